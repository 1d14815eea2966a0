//! A node's processes: found, killed, frozen.
//!
//! A process belongs to a node if it is in the node's network namespace, or if it is a daemon whose
//! `--data` lies in the node's directory. The second also finds the processes of a node whose
//! namespace is gone. Process numbers are found anew each time, because a number that was written
//! down may belong to somebody else by now.
//!
//! A node is *paused* by the cgroup freezer, which stops all its processes at one moment and which
//! they do not notice. Where the freezer cannot be used each process gets SIGSTOP.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// How long processes may take to end or to stop.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const SETTLE_STEP: Duration = Duration::from_millis(5);
/// The freezer of cgroups of the first version, and the tree of the second.
const FIRST: &str = "/sys/fs/cgroup/freezer";
const SECOND: &str = "/sys/fs/cgroup";

/// What a process of a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The node's server process.
    Server,
    /// The process of a mount.
    Mount,
    /// Anything else: a command, or what a user runs in the namespace.
    Other,
}

/// A process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) kind: Kind,
    /// True if a signal has stopped it.
    is_stopped: bool,
    /// What it has in memory.
    pub(super) resident_bytes: u64,
}

/// Where a node's processes are.
pub(super) struct Place {
    /// The node's directory.
    root: PathBuf,
    /// The device and the inode of its namespace, if that is there.
    namespace: Option<(u64, u64)>,
    freezer: Freezer,
}

/// How a node was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// By the cgroup freezer.
    Frozen,
    /// By SIGSTOP.
    Stopped,
}

impl Place {
    /// The place of the node in the directory `root` whose namespace and cgroup have this name.
    pub(super) fn of(root: PathBuf, name: String) -> Place {
        let namespace = identity(&super::network::path(&name));
        // The file of a namespace that is half made or half removed stands for none.
        let namespace =
            namespace.filter(|it| Some(*it) != identity(Path::new("/proc/self/ns/net")));
        Place { root, namespace, freezer: Freezer::of(&name) }
    }

    /// Its processes.
    pub(super) fn find(&self) -> Vec<Process> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let own = rustix::process::getpid();
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let pids = numbers.filter_map(Pid::from_raw).filter(|pid| *pid != own);
        pids.filter_map(|pid| self.look(pid)).collect()
    }

    /// The process, if it belongs to the node. A process that has ended belongs to none, even if
    /// its parent has not noticed yet.
    fn look(&self, pid: Pid) -> Option<Process> {
        let base = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let words = std::fs::read(base.join("cmdline")).ok()?;
        let kind = kind_of(&words, &self.root);
        let is_inside =
            self.namespace.is_some() && self.namespace == identity(&base.join("ns/net"));
        if kind.is_none() && !is_inside {
            return None;
        }
        let status = std::fs::read_to_string(base.join("status")).ok()?;
        let is_stopped = field(&status, "State").is_some_and(|state| state.starts_with(['T', 't']));
        let resident = field(&status, "VmRSS").and_then(|text| text.strip_suffix(" kB"));
        let kibibytes: u64 = resident.and_then(|text| text.parse().ok()).unwrap_or(0);
        let resident_bytes = kibibytes.saturating_mul(1024);
        Some(Process { pid, kind: kind.unwrap_or(Kind::Other), is_stopped, resident_bytes })
    }

    /// True if a process does not run because the node is paused.
    pub(super) fn is_paused(&self, process: &Process) -> bool {
        process.is_stopped || self.freezer.holds(process.pid)
    }

    /// Kills all processes, and returns when they are gone.
    ///
    /// # Errors
    /// `TimedOut` if some do not end.
    pub(super) fn kill(&self) -> Result<usize> {
        let end = RealClock.monotonic() + SETTLE_MAX;
        let mut killed = 0;
        loop {
            let handles: Vec<OwnedFd> =
                self.find().iter().filter_map(|process| self.handle(process.pid)).collect();
            for handle in &handles {
                // One that has ended meanwhile cannot be killed, and need not be.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
            // A frozen process ends when it is thawed, before it does anything else.
            self.freezer.thaw();
            if handles.is_empty() {
                self.freezer.remove();
                return Ok(killed);
            }
            killed += handles.len();
            for handle in &handles {
                wait_for_end(handle, end)?;
            }
        }
    }

    /// A handle on a process that belongs to the node. Unlike a number, it is never reused.
    fn handle(&self, pid: Pid) -> Option<OwnedFd> {
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number may have got another owner between the look and the handle.
        self.look(pid).map(|_| handle)
    }

    /// Stops all processes from running until [`Place::resume`].
    ///
    /// # Errors
    /// `TimedOut` if some do not stop.
    pub(super) fn pause(&self) -> Result<(Pause, usize)> {
        let end = RealClock.monotonic() + SETTLE_MAX;
        if self.freezer.freeze().is_err() {
            return Ok((Pause::Stopped, self.stop(end)?));
        }
        loop {
            let all = self.find();
            let missing: Vec<Pid> = all
                .iter()
                .map(|process| process.pid)
                .filter(|pid| !self.freezer.has(*pid))
                .collect();
            if missing.is_empty() && self.freezer.is_frozen() {
                return Ok((Pause::Frozen, all.len()));
            }
            if missing.iter().any(|pid| self.freezer.take(*pid).is_err_and(|gone| !gone)) {
                self.freezer.thaw();
                return Ok((Pause::Stopped, self.stop(end)?));
            }
            settle(end, "to freeze")?;
        }
    }

    /// Stops each process by a signal.
    fn stop(&self, end: Duration) -> Result<usize> {
        loop {
            let all = self.find();
            if all.iter().all(|process| process.is_stopped) {
                return Ok(all.len());
            }
            for process in &all {
                if let Some(handle) = self.handle(process.pid) {
                    let _ = pidfd_send_signal(&handle, Signal::STOP);
                }
            }
            settle(end, "to stop")?;
        }
    }

    /// Lets all processes run again.
    ///
    /// # Errors
    /// `TimedOut` if some do not.
    pub(super) fn resume(&self) -> Result<usize> {
        let end = RealClock.monotonic() + SETTLE_MAX;
        loop {
            self.freezer.thaw();
            let all = self.find();
            let paused: Vec<&Process> =
                all.iter().filter(|process| self.is_paused(process)).collect();
            if paused.is_empty() {
                return Ok(all.len());
            }
            for process in paused {
                if let Some(handle) = self.handle(process.pid) {
                    let _ = pidfd_send_signal(&handle, Signal::CONT);
                }
            }
            settle(end, "to go on")?;
        }
    }

    /// Removes the cgroup of a node that has no processes any more.
    pub(super) fn forget(&self) {
        self.freezer.thaw();
        self.freezer.remove();
    }
}

/// What a command line is for the node in the directory `root`; `None` if it is not one of the
/// node's daemons.
fn kind_of(words: &[u8], root: &Path) -> Option<Kind> {
    let words: Vec<&[u8]> = words.split(|&byte| byte == 0).collect();
    if *words.get(1)? != b"daemon" {
        return None;
    }
    let after = |name: &[u8]| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    };
    let data = Path::new(std::ffi::OsStr::from_bytes(after(b"--data")?));
    let below = data.strip_prefix(root).ok()?;
    Some(match after(b"--role") {
        Some(b"node") if below.as_os_str().is_empty() => Kind::Server,
        None if below.starts_with("mount") => Kind::Mount,
        _ => Kind::Other,
    })
}

/// The value of a line `NAME:\tVALUE`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
}

/// What makes a namespace the same one under two names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn settle(end: Duration, what: &str) -> Result<()> {
    if RealClock.monotonic() >= end {
        let seconds = SETTLE_MAX.as_secs();
        let detail = format!("the node's processes take longer than {seconds} s {what}");
        return Err(Error::new(ErrorKind::TimedOut, detail));
    }
    RealClock.sleep(SETTLE_STEP);
    Ok(())
}

fn wait_for_end(process: &OwnedFd, end: Duration) -> Result<()> {
    loop {
        let left = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut ended, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => settle(end, "to end")?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
}

/// The cgroup in which a node's processes are frozen.
enum Freezer {
    First(PathBuf),
    Second(PathBuf),
}

impl Freezer {
    fn of(name: &str) -> Freezer {
        match Path::new(FIRST).is_dir() {
            true => Freezer::First(Path::new(FIRST).join(name)),
            false => Freezer::Second(Path::new(SECOND).join(name)),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Freezer::First(path) | Freezer::Second(path) => path,
        }
    }

    /// The file that freezes, what it holds then, and what it holds otherwise.
    fn switch(&self) -> (PathBuf, &'static str, &'static str) {
        match self {
            Freezer::First(path) => (path.join("freezer.state"), "FROZEN", "THAWED"),
            Freezer::Second(path) => (path.join("cgroup.freeze"), "1", "0"),
        }
    }

    /// Makes the cgroup, and freezes everything that is moved into it.
    fn freeze(&self) -> std::io::Result<()> {
        match std::fs::create_dir(self.path()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let (file, frozen, _) = self.switch();
        std::fs::write(file, frozen)
    }

    fn thaw(&self) {
        let (file, _, thawed) = self.switch();
        if file.exists() {
            // A failure shows in what is still paused.
            let _ = std::fs::write(file, thawed);
        }
    }

    /// Moves a process here. The error is true if the process is gone.
    fn take(&self, pid: Pid) -> std::result::Result<(), bool> {
        let number = pid.as_raw_nonzero().to_string();
        std::fs::write(self.path().join("cgroup.procs"), &number)
            .map_err(|_| !Path::new("/proc").join(number).join("ns").exists())
    }

    fn has(&self, pid: Pid) -> bool {
        let number = pid.as_raw_nonzero().to_string();
        let list = std::fs::read_to_string(self.path().join("cgroup.procs")).unwrap_or_default();
        list.lines().any(|line| line == number)
    }

    /// True if everything in it stands still.
    fn is_frozen(&self) -> bool {
        match self {
            Freezer::First(path) => std::fs::read_to_string(path.join("freezer.state"))
                .is_ok_and(|state| state.trim() == "FROZEN"),
            Freezer::Second(path) => std::fs::read_to_string(path.join("cgroup.events"))
                .is_ok_and(|events| events.lines().any(|line| line == "frozen 1")),
        }
    }

    /// True if a process is here and frozen, or about to be.
    fn holds(&self, pid: Pid) -> bool {
        let (file, _, thawed) = self.switch();
        std::fs::read_to_string(file).is_ok_and(|state| state.trim() != thawed) && self.has(pid)
    }

    fn remove(&self) {
        // A cgroup is a directory that is removed with the files in it.
        let _ = std::fs::remove_dir(self.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(words: &str) -> Option<Kind> {
        kind_of(words.replace(' ', "\0").as_bytes(), Path::new("/l/node1"))
    }

    #[test]
    fn daemons_are_known_by_their_directory() {
        assert_eq!(kind("strake daemon --role node --data /l/node1 "), Some(Kind::Server));
        assert_eq!(kind("/x/strake daemon --data /l/node1/mount/lab "), Some(Kind::Mount));
        assert_eq!(kind("strake daemon --role server --data /l/node1/x "), Some(Kind::Other));
        for other in [
            "strake daemon --role node --data /l/node11 ",
            "strake daemon --role node --data /l ",
            "tar -C /l/node1/mnt ",
            "vi daemon ",
            "strake daemon --data",
            "",
        ] {
            assert_eq!(kind(other), None, "{other}");
        }
    }

    #[test]
    fn the_kernels_report_of_a_process_is_read_by_name() {
        let status = "Name:\tstrake\nState:\tT (stopped)\nVmRSS:\t    5120 kB\n";
        assert_eq!(field(status, "State"), Some("T (stopped)"));
        assert_eq!(field(status, "VmRSS"), Some("5120 kB"));
        assert_eq!(field(status, "VmRS"), None);
    }
}
