//! Checks that what the documents show works: each file of `examples/` does what it says on a real
//! mount, and ARCHITECTURE lists each thread that a daemon runs.

use super::checks::Checks;
use super::command;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use crate::tidy::documents;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TIME_MAX: Duration = Duration::from_secs(120);
/// How many bytes of a thread's name the kernel keeps.
const THREAD_NAME_BYTES: usize = 15;
/// How often to check whether the daemon has noticed that a disk is gone or back.
const LOOKS_MAX: u32 = 150;
const LOOK: Duration = Duration::from_millis(200);

/// Stands in the examples for choices of the reader.
const PROGRAM: &str = "/usr/local/bin/strake";
const DATA: &str = "/srv/strake";
const MOUNT: &str = "/mnt/strake";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    threads(session, checks, Shape::of("4+2p", 6))?;
    threads(session, checks, Shape { socket: true, ..Shape::of("2x", 4) })?;
    threads(session, checks, Shape { rings: true, ..Shape::of("1", 4) })?;
    let examples = Examples::new(session, checks.suite())?;
    let made = examples.make();
    if !checks.record("real-disks.sh makes a file system", made) {
        return Ok(());
    }
    checks.record("disks.py says that all is well", examples.disks_py(0));
    checks.record("mixed.fio runs, and every block is right", examples.fio());
    checks.record("disks.py finds a disk that is away", examples.with_a_disk_away());
    let units = ["strake.service ExecStop", "strake.service ExecStart"];
    for unit in units.into_iter().chain(["strake-scrub.service ExecStart"]) {
        checks.record(unit, examples.unit(unit));
    }
    let listed = examples.unlisted();
    checks.record("examples/README.md lists every example", listed);
    checks.record("down", examples.unit(units[0]));
    checks.record("disks.py knows that nothing answers", examples.disks_py(2));
    Ok(())
}

/// Checks that each thread of the daemon and of its server process is in the table.
fn threads(session: &Session, checks: &mut Checks, shape: Shape) -> Result<(), String> {
    let page = session.repository.join("docs/ARCHITECTURE.md");
    let page = std::fs::read_to_string(page).map_err(|error| error.to_string())?;
    let names = documents::names(&page, "Threads");
    let mounted = Mounted::create(session, checks, shape.code, &shape)?;
    std::fs::write(mounted.mount.join("file"), vec![7; 3 << 20]).map_err(|e| e.to_string())?;
    let unknown: Vec<String> = running(&mounted.data())
        .into_iter()
        .filter(|thread| !names.iter().any(|name| is_called(thread, name)))
        .collect();
    let way = if shape.socket { "in two processes" } else { "in one process" };
    let way = if shape.rings { "with rings" } else { way };
    checks.hold(&format!("every thread is in the table, {way}"), unknown.is_empty(), || {
        format!("ARCHITECTURE.md does not list {unknown:?}")
    });
    mounted.finish(checks);
    Ok(())
}

/// The names of the threads of all processes that serve `data`. The name of a process's first
/// thread is the program's, and is left out.
fn running(data: &Path) -> BTreeSet<String> {
    let data = data.to_string_lossy().into_owned();
    let mut names = BTreeSet::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> =
            words.split(|byte| *byte == 0).map(|w| String::from_utf8_lossy(w).into()).collect();
        if words.get(1).map(String::as_str) != Some("daemon") || !words.contains(&data) {
            continue;
        }
        for thread in std::fs::read_dir(process.path().join("task")).into_iter().flatten().flatten()
        {
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            names.insert(name.trim_end().to_owned());
        }
    }
    names.remove("strake");
    names.remove("");
    names
}

/// True if the kernel's name of a thread matches a name in the table, where `N` stands for a
/// number.
fn is_called(thread: &str, name: &str) -> bool {
    let is_cut = thread.len() == THREAD_NAME_BYTES;
    let mut rest = thread;
    for (index, part) in name.split('N').enumerate() {
        if index > 0 {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        }
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None => return is_cut && part.starts_with(rest),
        }
    }
    rest.is_empty()
}

/// A file system that the first example makes and the others use.
struct Examples<'a> {
    session: &'a Session,
    suite: &'static str,
    folder: PathBuf,
    root: PathBuf,
}

impl<'a> Examples<'a> {
    fn new(session: &'a Session, suite: &'static str) -> Result<Examples<'a>, String> {
        let root = session.root.join(session.next_number().to_string());
        std::fs::create_dir(&root).map_err(|error| error.to_string())?;
        Ok(Examples { session, suite, folder: session.repository.join("examples"), root })
    }

    /// A command in the environment that the examples expect.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.session.command(program);
        let programs = self.session.strake.parent().unwrap_or(Path::new("/"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env("DATA", self.root.join("data")).env("MNT", self.root.join("mnt"));
        command
    }

    fn run(&self, name: &str, command: &mut Command) -> Result<command::Ended, String> {
        command::run(command, &self.session.log(self.suite, name), TIME_MAX)
    }

    fn make(&self) -> Result<(), String> {
        let disk = |number: usize| format!("{}/disk{number}:{}", self.root.display(), number / 2);
        let disks: Vec<String> = (2..8).map(disk).collect();
        let mut script = self.command(self.folder.join("real-disks.sh"));
        script.env("DISKS", disks.join(" "));
        script.args(["--nsd-size", "512M", "--set", "pagepool=64M"]);
        let ended = self.run("real-disks.sh", &mut script)?.success()?;
        let lines = ended.output().lines().filter(|line| line.starts_with("nsd")).count();
        if lines == 6 { Ok(()) } else { Err(ended.complaint("it does not list six disks")) }
    }

    fn disks_py(&self, code: i32) -> Result<(), String> {
        let mut script = self.command(self.folder.join("disks.py"));
        script.arg(self.root.join("data"));
        let ended = self.run(&format!("disks.py {code}"), &mut script)?;
        let found = ended.status.code();
        if found == Some(code) { Ok(()) } else { Err(ended.complaint("another exit code")) }
    }

    /// Waits until the script exits with this code.
    fn disks_py_comes_to(&self, code: i32) -> Result<(), String> {
        let mut last = Ok(());
        for _ in 0..LOOKS_MAX {
            last = self.disks_py(code);
            if last.is_ok() {
                break;
            }
            command::pause(LOOK);
        }
        last
    }

    fn with_a_disk_away(&self) -> Result<(), String> {
        let (there, away) = (self.root.join("disk3"), self.root.join("away"));
        std::fs::rename(&there, &away).map_err(|error| error.to_string())?;
        let found = self.disks_py_comes_to(1);
        std::fs::rename(&away, &there).map_err(|error| error.to_string())?;
        found.and_then(|()| self.disks_py_comes_to(0))
    }

    fn fio(&self) -> Result<(), String> {
        let mut fio = self.command("fio");
        fio.arg(self.folder.join("mixed.fio")).env("SIZE", "16M");
        self.run("mixed.fio", &mut fio)?.success().map(drop)
    }

    /// Runs the line `KEY=` of a unit file; `what` is `FILE KEY`.
    fn unit(&self, what: &str) -> Result<(), String> {
        let (file, key) = what.split_once(' ').ok_or("no key")?;
        let text = std::fs::read_to_string(self.folder.join(file)).map_err(|e| e.to_string())?;
        let start = format!("{key}=");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        let mut words = line.ok_or_else(|| format!("no {start}"))?.split(' ');
        if words.next() != Some(PROGRAM) {
            return Err(format!("the line does not begin with {PROGRAM}"));
        }
        let mut command = self.command(&self.session.strake);
        for word in words {
            match word {
                DATA => command.arg(self.root.join("data")),
                MOUNT => command.arg(self.root.join("mnt")),
                word => command.arg(word),
            };
        }
        self.run(what, &mut command)?.success().map(drop)
    }

    fn unlisted(&self) -> Result<(), String> {
        let folder = std::fs::read_dir(&self.folder).map_err(|error| error.to_string())?;
        let list = std::fs::read_to_string(self.folder.join("README.md"));
        let list = list.map_err(|error| error.to_string())?;
        let below = std::fs::read_dir(self.folder.join("monitoring"));
        let below = below.map_err(|error| error.to_string())?.flatten();
        let below = below.map(|entry| format!("monitoring/{}", entry.file_name().display()));
        let names = folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let names = names.filter(|name| name != "monitoring").chain(below);
        let missing: Vec<String> = names
            .filter(|name| name != "README.md" && !list.contains(&format!("({name})")))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn threads_are_known_by_their_name_also_where_the_kernel_cut_it() {
        assert!(is_called("fuse-7", "fuse-N") && is_called("nsd12-checkpoin", "nsdN-checkpoint"));
        assert!(is_called("nsd 1 worker 0", "nsd N worker N") && is_called("disk", "disk"));
        assert!(is_called("metadata worker", "metadata worker N"));
        assert!(!is_called("disk-list", "disk") && !is_called("flush", "flusher-N"));
        assert!(!is_called("fuse-watch", "fuse-N"));
    }
}
