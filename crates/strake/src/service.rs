//! Tells the service manager that started this process how it stands: sd_notify(3).
//!
//! `strake up` and `strake node start` return when their daemon serves, so they name the daemon as
//! the main process before they end. The daemon itself tells when it begins to end. Where nothing
//! listens (`NOTIFY_SOCKET` is not set), nothing is told.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use strake_env::net::{UnixDatagram, UnixSocketAddr};

/// The daemon `pid` serves, and is the main process of the service from now on.
pub(crate) fn serves(pid: u32, status: &str) {
    tell(&format!("READY=1\nMAINPID={pid}\nSTATUS={status}"));
}

/// The daemon is on its way down.
pub(crate) fn ends(reason: &str) {
    tell(&format!("STOPPING=1\nSTATUS=ending: {reason}"));
}

fn tell(state: &str) {
    if let Some(address) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&address, state)
    {
        // The service manager then says itself what it misses.
        tracing::warn!(target: "daemon", "the service manager was not told: {error}");
    }
}

/// Sends to a socket that is named by its path, or by `@` and a name outside the file system.
fn send(address: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixSocketAddr::from_abstract_name(name)?,
        None => UnixSocketAddr::from_pathname(address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut text = [0; 200];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    #[test]
    fn both_kinds_of_addresses_are_reached() {
        let name = format!("strake-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard(&by_path), "READY=1");
        std::fs::remove_file(&path).unwrap();
        let address = UnixSocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(heard(&by_name), "STOPPING=1");
        assert!(send(path.as_os_str(), "READY=1").is_err(), "nobody listens there any more");
    }
}
