//! Which file systems are up on this machine, so that commands find theirs without `--data`.
//!
//! One file a file system in `/run/strake` (root) or `$XDG_RUNTIME_DIR/strake`, named after the
//! file system's cluster, holding the data directory. Entries of daemons that are gone are left
//! out of listings: only the socket tells who is up.

use crate::data_dir::DataDir;
use std::path::{Path, PathBuf};
use strake_proto::{Error, ErrorKind, Result};

fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/strake"));
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|path| Path::new(&path).join("strake"))
}

/// Notes that the file system of `cluster` is served from `dir`. Best effort: without it, commands
/// need `--data`.
pub(crate) fn add(cluster: &str, dir: &DataDir) {
    if let Some(directory) = directory() {
        let written = std::fs::create_dir_all(&directory).and_then(|()| {
            std::fs::write(directory.join(cluster), dir.root().as_os_str().as_encoded_bytes())
        });
        if let Err(error) = written {
            eprintln!("strake: cannot note the file system in {}: {error}", directory.display());
        }
    }
}

/// Forgets a file system.
pub(crate) fn remove(cluster: &str) {
    if let Some(directory) = directory() {
        let _ = std::fs::remove_file(directory.join(cluster));
    }
}

/// The data directories of all file systems that were not taken down, sorted.
pub(crate) fn list() -> Vec<DataDir> {
    use std::os::unix::ffi::OsStringExt;
    let Some(entries) = directory().and_then(|path| std::fs::read_dir(path).ok()) else {
        return Vec::new();
    };
    let mut roots: Vec<PathBuf> = entries
        .filter_map(|entry| std::fs::read(entry.ok()?.path()).ok())
        .map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
        .collect();
    roots.sort();
    roots.iter().filter_map(|root| DataDir::at(root).ok()).collect()
}

/// The data directory a command means: `--data`, else `STRAKE_DATA`, else the only one that is up.
///
/// # Errors
/// `Invalid` where none or several are up, with what to write.
pub(crate) fn find(data: Option<&Path>) -> Result<DataDir> {
    if let Some(path) = data {
        return DataDir::at(path);
    }
    if let Some(path) = std::env::var_os("STRAKE_DATA") {
        return DataDir::at(Path::new(&path));
    }
    let mut up: Vec<DataDir> = list();
    up.retain(|dir| std::os::unix::net::UnixStream::connect(dir.socket_path()).is_ok());
    match up.len() {
        1 => Ok(up.remove(0)),
        0 => Err(Error::new(
            ErrorKind::Invalid,
            "no file system is up here: start one with `strake up`, or name it with --data DIR",
        )),
        _ => {
            let roots: Vec<String> =
                up.iter().map(|dir| dir.root().display().to_string()).collect();
            Err(Error::new(
                ErrorKind::Invalid,
                format!("several file systems are up: choose with --data: {}", roots.join(", ")),
            ))
        }
    }
}
