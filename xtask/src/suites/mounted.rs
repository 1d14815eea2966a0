//! One Strake file system, handled as its user would: up, down, check. Also the accidents.

use super::checks::Checks;
use super::command::Ended;
use super::session::Session;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long any one `strake` command may take here.
const COMMAND_SECONDS_MAX: u64 = 120;

/// The kind of file system to make.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) code: &'static str,
    pub(crate) nsds: u16,
    pub(crate) block_size: &'static str,
    pub(crate) nsd_size: &'static str,
    pub(crate) socket: bool,
    /// Whether requests come through io_uring.
    pub(crate) rings: bool,
    /// Blocks are sent as patches wherever that can be, however much of them has changed.
    pub(crate) patches_always: bool,
    /// The setting `pagepool`.
    pub(crate) pagepool: &'static str,
    /// The setting `nsd_io_limit`, if it is not the usual one.
    pub(crate) io_limit: Option<&'static str>,
}

impl Shape {
    /// A small file system of `code` on `nsds` NSDs.
    pub(crate) const fn of(code: &'static str, nsds: u16) -> Shape {
        let (block_size, nsd_size) = ("1M", "2G");
        Shape {
            code,
            nsds,
            block_size,
            nsd_size,
            socket: false,
            rings: false,
            patches_always: false,
            pagepool: "64M",
            io_limit: None,
        }
    }
}

/// A file system that exists. When it is dropped, it is taken down and removed.
pub(crate) struct Mounted<'a> {
    session: &'a Session,
    suite: &'static str,
    name: String,
    root: PathBuf,
    /// Where it is mounted.
    pub(crate) mount: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Makes and mounts a file system.
    ///
    /// # Errors
    /// What `strake up` said.
    pub(crate) fn create(
        session: &'a Session,
        checks: &Checks,
        name: &str,
        shape: &Shape,
    ) -> Result<Mounted<'a>, String> {
        // A short path: tests make sockets below it, and a socket's path has at most 107 bytes.
        let root = session.root.join(session.next_number().to_string());
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        Mounted::create_in(session, checks, name, shape, &root)
    }

    /// Makes and mounts a file system in `root`, a directory below the session's.
    ///
    /// # Errors
    /// What `strake up` said.
    pub(crate) fn create_in(
        session: &'a Session,
        checks: &Checks,
        name: &str,
        shape: &Shape,
        root: &Path,
    ) -> Result<Mounted<'a>, String> {
        let (suite, name) = (checks.suite(), name.to_owned());
        let mounted =
            Mounted { session, suite, name, root: root.to_owned(), mount: root.join("mnt") };
        let mut up = mounted.command("up");
        up.arg("--mount").arg(&mounted.mount).args(["--name", suite, "--code", shape.code]);
        up.args(["--nsds", &shape.nsds.to_string(), "--nsd-size", shape.nsd_size]);
        up.args(["--block-size", shape.block_size]);
        up.args(["--set", &format!("pagepool={}", shape.pagepool)]);
        if shape.socket {
            up.args(["--set", "rpc=socket"]);
        }
        if shape.rings {
            up.args(["--set", "fuse_io_uring=on"]);
        }
        if shape.patches_always {
            up.args(["--set", "patches=always"]);
        }
        if let Some(limit) = shape.io_limit {
            up.args(["--set", &format!("nsd_io_limit={limit}")]);
        }
        mounted.run("create", &mut up)?;
        Ok(mounted)
    }

    /// A file system from an archive that has the directory `data`. It is not up yet.
    ///
    /// # Errors
    /// What `tar` said.
    pub(crate) fn unpack(
        session: &'a Session,
        checks: &Checks,
        name: &str,
        archive: &Path,
    ) -> Result<Mounted<'a>, String> {
        let root = session.root.join(session.next_number().to_string());
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        let mut tar = session.command("tar");
        tar.arg("-C").arg(&root).arg("-xzf").arg(archive);
        session.run(checks.suite(), &format!("{name} tar"), COMMAND_SECONDS_MAX, &mut tar)?;
        let (suite, name, mount) = (checks.suite(), name.to_owned(), root.join("mnt"));
        Ok(Mounted { session, suite, name, root, mount })
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// A directory beside the file system, on the host's disk.
    pub(crate) fn beside(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.root.join(name);
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// The command `strake WORDS --data DIR`.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = self.session.command(&self.session.strake);
        command.args(words.split(' ')).arg("--data").arg(self.data());
        command
    }

    /// A foreign program that will use the mount.
    pub(crate) fn outside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.session.command(program)
    }

    /// An example of `strake-fuse` that will use the mount.
    pub(crate) fn example(&self, name: &str) -> Command {
        self.outside(self.session.probe.with_file_name(name))
    }

    /// Runs a foreign program of this suite.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub(crate) fn program(
        &self,
        name: &str,
        seconds: u64,
        command: &mut Command,
    ) -> Result<Ended, String> {
        let ended =
            self.session.run(self.suite, &format!("{} {name}", self.name), seconds, command);
        ended.map_err(|error| self.with_log(error))
    }

    /// Adds the end of the daemon's log to an error. Sometimes only the output of a run is kept, so
    /// the output must tell both sides.
    fn with_log(&self, error: String) -> String {
        const LINES: usize = 10;
        let log = std::fs::read_to_string(self.data().join("strake.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n    : ");
        format!("{error}\n  the daemon's log ends:\n    : {last}")
    }

    /// Where the output of `strake WORDS` is kept by a suite that runs it itself.
    pub(crate) fn log_of(&self, words: &str) -> PathBuf {
        self.session.log(self.suite, &format!("{} strake {words}", self.name))
    }

    /// Runs `strake WORDS` and returns what it says.
    ///
    /// # Errors
    /// What it said, if it failed.
    pub(crate) fn say(&self, words: &str) -> Result<String, String> {
        self.run(words, &mut self.command(words)).map(|ended| ended.output())
    }

    /// The container of an NSD that was made with the file system.
    pub(crate) fn container(&self, index: u16) -> PathBuf {
        self.data().join(format!("nsd{index}/container"))
    }

    /// The daemon's log.
    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(self.data().join("strake.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn run(&self, what: &str, command: &mut Command) -> Result<Ended, String> {
        let name = format!("{} strake {what}", self.name);
        let ended = self.session.run(self.suite, &name, COMMAND_SECONDS_MAX, command);
        ended.map_err(|error| self.with_log(format!("strake {what}: {error}")))
    }

    /// Starts the file system again.
    ///
    /// # Errors
    /// What `strake up` said.
    pub(crate) fn up(&self) -> Result<Ended, String> {
        self.run("up", &mut self.up_command())
    }

    /// The command that starts the file system again.
    pub(crate) fn up_command(&self) -> Command {
        let mut command = self.command("up");
        command.arg("--mount").arg(&self.mount);
        command
    }

    /// Flushes, unmounts, and ends the daemon.
    ///
    /// # Errors
    /// What `strake down` said.
    pub(crate) fn down(&self) -> Result<(), String> {
        self.run("down", &mut self.command("down")).map(drop)
    }

    /// Runs `strake fs check`, which must find nothing.
    ///
    /// # Errors
    /// What it found.
    pub(crate) fn check(&self) -> Result<(), String> {
        let ended = self.run("fs check", &mut self.command("fs check"))?;
        let clean = ended.output().lines().any(|line| line == "clean");
        if clean { Ok(()) } else { Err(ended.complaint("strake fs check is not clean")) }
    }

    /// Runs `strake fs sync`.
    ///
    /// # Errors
    /// What it said.
    pub(crate) fn sync(&self) -> Result<(), String> {
        self.run("fs sync", &mut self.command("fs sync")).map(drop)
    }

    /// Checks that `strake disk list` shows every disk as up.
    ///
    /// # Errors
    /// What it printed.
    pub(crate) fn disks_are_up(&self) -> Result<(), String> {
        let ended = self.run("disk list", &mut self.command("disk list --json"))?;
        let output = ended.output();
        let down = output.lines().filter(|line| line.contains("\"availability\""));
        if down.clone().count() > 0
            && down.clone().all(|line| line.to_lowercase().contains("\"up\""))
        {
            return Ok(());
        }
        Err(ended.complaint("not every disk is up"))
    }

    /// Records the last two checks of a file system: it is clean, and it goes down.
    pub(crate) fn finish(self, checks: &mut Checks) {
        let name = self.name.clone();
        checks.record(&format!("{name}: strake fs check is clean"), self.check());
        checks.record(&format!("{name}: strake down"), self.down());
    }

    /// The daemon's process number, which a second `up` prints.
    ///
    /// # Errors
    /// It does not run.
    pub(crate) fn daemon(&self) -> Result<u32, String> {
        let output = self.up()?.output();
        let number = output.rsplit_once("(process ").and_then(|(_, rest)| rest.split_once(')'));
        number
            .and_then(|(number, _)| number.parse().ok())
            .ok_or_else(|| format!("`up` of what is up names no process: {output}"))
    }

    /// Kills the daemon as a crash would. All its helper processes must end after that.
    ///
    /// # Errors
    /// It does not run, or outlives the signal.
    pub(crate) fn kill(&self) -> Result<(), String> {
        let daemon = self.daemon()?;
        let helpers = children_of(daemon);
        self.kill_and_wait(&[daemon], &helpers)
    }

    /// Kills the daemon and all its helper processes, as a crash of them all would.
    ///
    /// # Errors
    /// They do not run, or outlive the signal.
    pub(crate) fn kill_all(&self) -> Result<(), String> {
        let daemon = self.daemon()?;
        // The helpers first. Otherwise they could end in an orderly way.
        let mut processes = children_of(daemon);
        processes.push(daemon);
        self.kill_and_wait(&processes, &[])
    }

    /// The server process of a daemon with `rpc=socket`, if one runs.
    pub(crate) fn server(&self, daemon: u32) -> Option<u32> {
        let is_server = |process: &u32| {
            let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == b"server") && is_alive(*process)
        };
        children_of(daemon).into_iter().find(is_server)
    }

    /// Kills one process as a crash would.
    ///
    /// # Errors
    /// It does not run, or outlives the signal.
    pub(crate) fn kill_one(&self, process: u32) -> Result<(), String> {
        self.kill_and_wait(&[process], &[])
    }

    /// Kills a process and those that it has started.
    ///
    /// # Errors
    /// As [`Mounted::kill_one`].
    pub(crate) fn kill_family(&self, parent: u32) -> Result<(), String> {
        // A process that stands still starts no more.
        let mut stop = self.session.command("sh");
        stop.args(["-c", &format!("kill -STOP {parent}")]);
        self.run("stop", &mut stop)?;
        let mut family = children_of(parent);
        family.push(parent);
        self.kill_and_wait(&family, &[])
    }

    fn kill_and_wait(&self, victims: &[u32], others: &[u32]) -> Result<(), String> {
        let mut kill = self.session.command("sh");
        kill.args(["-c", "kill -9 \"$@\"", "sh"]).args(victims.iter().map(u32::to_string));
        self.run("kill", &mut kill)?;
        let mut all = victims.iter().chain(others);
        all.try_for_each(|process| self.wait_for_end(*process))
            .map_err(|error| format!("{error}, after kill -9 of {victims:?}"))
    }

    /// Waits until a process has ended.
    ///
    /// # Errors
    /// The process goes on.
    pub(crate) fn wait_for_end(&self, process: u32) -> Result<(), String> {
        let end = crate::runner::now() + std::time::Duration::from_secs(COMMAND_SECONDS_MAX);
        while is_alive(process) {
            if crate::runner::now() >= end {
                return Err(format!("{}: process {process} goes on", self.name));
            }
            super::command::pause(std::time::Duration::from_millis(5));
        }
        Ok(())
    }

    /// Moves the directory of NSD `index` (from 1) away, like a disk that is pulled. Some tests do
    /// that while the file system is in use.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn remove_nsd(&self, index: u16) -> Result<(), String> {
        self.rename(&format!("data/nsd{index}"), &format!("pulled-nsd{index}"))
    }

    /// Puts the directory of a removed NSD back.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn return_nsd(&self, index: u16) -> Result<(), String> {
        self.rename(&format!("pulled-nsd{index}"), &format!("data/nsd{index}"))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        std::fs::rename(self.root.join(from), self.root.join(to))
            .map_err(|error| format!("{from} to {to}: {error}"))
    }
}

/// The processes that a process has started.
fn children_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|process| status_of(*process).is_some_and(|(_, of)| of == parent)).collect()
}

/// The state of a process, and its parent.
fn status_of(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// True if a process runs. A process that only waits to be reaped does not.
fn is_alive(process: u32) -> bool {
    status_of(process).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.run("down --force", &mut self.command("down --force"));
        // The janitor deals with what is still mounted or cannot be removed.
        let _ = std::fs::remove_dir(&self.mount);
        if !self.mount.exists() {
            let _ = std::fs::remove_dir_all(self.data());
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}
