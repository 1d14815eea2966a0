//! `strake down`: flushes everything, unmounts, and ends the daemon.

use crate::admin::{self, Request, Status};
use crate::data_dir::{DataDir, NodeConfig};
use crate::mounts;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};
use std::path::PathBuf;
use std::time::Duration;
use strake_proto::{ByteCount, Error, ErrorKind, Result};

/// How long the daemon may take to end after it has flushed everything.
const END_SECONDS_MAX: i64 = 60;

/// Flush everything, unmount and end the daemon.
///
/// The command refuses while programs use the mount, and names them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake down --data /srv/strake
  strake down --data /srv/strake --force     even while programs use the mount")]
pub(crate) struct DownArgs {
    /// The data directory [default: $STRAKE_DATA]. The command never guesses it.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Unmount even if the mount is busy. Programs that use it get errors; data is still flushed.
    #[arg(long)]
    force: bool,
}

/// Runs `strake down`.
pub(crate) fn run(args: &DownArgs) -> Result<()> {
    let dir = crate::registry::named(args.data.as_deref())?.ok_or_else(|| {
        let detail = "name the file system to take down: --data DIR, or STRAKE_DATA";
        Error::new(ErrorKind::Invalid, detail)
    })?;
    let config = dir.read_config()?;
    if config.node.is_some() {
        let detail = format!("this is a mount of a cluster: `strake fs umount {}`", config.name);
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    println!("{}", take_down(&dir, &config, args.force)?);
    Ok(())
}

/// Flushes everything, unmounts and ends the daemon. Returns a sentence that says what was done. A
/// daemon that is gone already is no error.
///
/// # Errors
/// `Busy` if the mount is in use, `TimedOut` if the daemon does not end; those of flushing.
pub(crate) fn take_down(dir: &DataDir, config: &NodeConfig, force: bool) -> Result<String> {
    let daemon = daemon_process(dir);
    match admin::call(dir, &Request::Down { force }, Duration::from_secs(3600)) {
        Ok(value) => {
            let bytes = value.get("flushedBytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
            if let Some(daemon) = daemon {
                wait_for_end(&daemon)?;
            }
            Ok(format!("{} is down; {} flushed", config.name, ByteCount(bytes)))
        }
        Err(error) if error.kind() == ErrorKind::Unreachable && dir.try_lock()?.is_some() => {
            crate::registry::remove(&config.registry_key(dir));
            if !mounts::is_dead_strake_mount(&config.mount) {
                return Ok(format!("{} is not up", config.name));
            }
            mounts::detach(&config.mount)?;
            let mount = config.mount.display();
            Ok(format!("{}: its daemon was gone; the mount at {mount} is detached", config.name))
        }
        Err(error) => Err(error),
    }
}

/// A handle on the daemon's process. Unlike a process number, it is never reused.
pub(crate) fn daemon_process(dir: &DataDir) -> Option<OwnedFd> {
    let value = admin::call(dir, &Request::Status, Duration::from_secs(60)).ok()?;
    let status: Status = serde_json::from_value(value).ok()?;
    let pid = Pid::from_raw(i32::try_from(status.pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until the daemon has ended. The daemon answers `down` before it ends, and its disks are
/// free only afterwards.
pub(crate) fn wait_for_end(daemon: &OwnedFd) -> Result<()> {
    let limit = Timespec { tv_sec: END_SECONDS_MAX, tv_nsec: 0 };
    let mut ended = [PollFd::new(daemon, PollFlags::IN)];
    match poll(&mut ended, Some(&limit)).map_err(std::io::Error::from)? {
        0 => Err(Error::new(
            ErrorKind::TimedOut,
            format!("unmounted and flushed, but the daemon still runs after {END_SECONDS_MAX} s"),
        )),
        _ => Ok(()),
    }
}
