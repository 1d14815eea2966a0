//! Directories nested one in the other as deep as programs make them, and very many inodes.
//!
//! Anybody who may make a directory can make such a tree. `fs check`, `fs scrub`, and moving
//! something into it take long then, and nobody else may wait for them. `deep_probe` works beside
//! them as programs do, and so does fio. How long the longest of their calls took is printed but
//! not judged. What is judged is that calls end while the long work goes on.

use super::checks::Checks;
use super::command::pause;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use crate::runner::now;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const DEPTH: u64 = 400_000;
const FILES: u64 = 600_000;
const DEPTH_QUICK: u64 = 20_000;
const FILES_QUICK: u64 = 10_000;
/// How long any step may take.
const SECONDS_MAX: u64 = 1800;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    // The containers are sparse. A million inodes fill those of the usual size.
    let shape = Shape { nsd_size: "16G", ..Shape::of("2x", 3) };
    let mounted = Mounted::create(session, checks, "2x", &shape)?;
    let (depth, files) = if session.quick { (DEPTH_QUICK, FILES_QUICK) } else { (DEPTH, FILES) };
    let place = Place::make(&mounted)?;
    let made = place.probe("make", &place.tree, &[&depth.to_string()]);
    checks.record(&format!("{depth} directories, each in the one before"), made);
    let made = place.probe("wide", &place.wide, &[&files.to_string()]);
    checks.record(&format!("{files} files beside them"), made);
    let busy = Busy::start(&place)?;
    beside_work(&place, busy, depth, checks)?;
    checks.record("the tree is whole", place.probe("walk", &place.tree, &[&depth.to_string()]));
    ends(&place, checks)?;
    checks
        .record("after down and up, too", place.probe("walk", &place.tree, &[&depth.to_string()]));
    let mut remove = mounted.outside("rm");
    remove.arg("-rf").arg(&place.tree).arg(&place.wide);
    let removed = mounted.program("rm", SECONDS_MAX, &mut remove).map(drop);
    checks.record("rm -rf of all", removed);
    mounted.finish(checks);
    Ok(())
}

/// A mount with a deep tree, a wide one, and a place where others work.
struct Place<'a> {
    mounted: &'a Mounted<'a>,
    tree: PathBuf,
    wide: PathBuf,
    busy: PathBuf,
}

impl<'a> Place<'a> {
    fn make(mounted: &'a Mounted<'a>) -> Result<Place<'a>, String> {
        let at = |name: &str| {
            let path = mounted.mount.join(name);
            std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<_, String>(path)
        };
        Ok(Place { mounted, tree: at("tree")?, wide: at("wide")?, busy: at("busy")? })
    }

    fn probe(&self, probe: &str, path: &Path, words: &[&str]) -> Result<(), String> {
        let mut command = self.mounted.example("deep_probe");
        command.arg(probe).arg(path).args(words);
        self.mounted.program(probe, SECONDS_MAX, &mut command).map(drop)
    }
}

/// What takes long, while others work.
fn beside_work(
    place: &Place<'_>,
    mut busy: Busy,
    depth: u64,
    checks: &mut Checks,
) -> Result<(), String> {
    let mounted = place.mounted;
    let mut beside = |name: &str, work: &mut dyn FnMut() -> Result<(), String>| {
        busy.answer()?;
        let started = now();
        let outcome = work();
        let seconds = (now() - started).as_secs_f64();
        let others = busy.answer()?;
        checks.record(&format!("{name}: {seconds:.1} s; meanwhile {others}"), outcome);
        Ok::<_, String>(others.split("; ").all(|kind| !kind.contains(" 0 times")))
    };
    beside("nothing else", &mut || {
        pause(Duration::from_secs(2));
        Ok(())
    })?;
    let in_check = beside("fs check", &mut || mounted.check())?;
    let in_scrub = beside("fs scrub", &mut || {
        mounted.say("fs scrub start")?;
        let end = now() + Duration::from_secs(SECONDS_MAX);
        while !mounted.say("fs scrub status")?.contains("complete") {
            if now() >= end {
                return Err("it is not complete".into());
            }
            pause(Duration::from_millis(50));
        }
        Ok(())
    })?;
    let (depth, tree) = (depth.to_string(), &place.tree);
    let file = place.wide.join("sunk");
    std::fs::create_dir(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let file = file.display().to_string();
    beside("a directory moves to the bottom", &mut || place.probe("sink", tree, &[&depth, &file]))?;
    beside("the whole tree moves", &mut || {
        let (from, to) = (tree.join("d"), place.wide.join("moved"));
        let moved = std::fs::rename(&from, &to).and_then(|()| std::fs::rename(&to, &from));
        moved.map_err(|error| error.to_string())
    })?;
    checks.hold(
        "calls of each kind ended while the check and the scrub went on",
        in_check && in_scrub,
        || "some did not".to_owned(),
    );
    let fio = busy.end(mounted);
    checks.record(
        &format!("fio beside all that: {}", fio.as_deref().unwrap_or_default()),
        fio.map(drop),
    );
    Ok(())
}

/// The file system goes down, and is told to end, while a check goes on.
fn ends(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let mounted = place.mounted;
    let check = Beside::start(mounted.command("fs check"))?;
    checks.record("down ends a check", mounted.down());
    check.end()?;
    mounted.up()?;
    let check = Beside::start(mounted.command("fs check"))?;
    let daemon = mounted.daemon()?;
    signal(mounted, "TERM", daemon)?;
    checks.record("so does SIGTERM", mounted.wait_for_end(daemon));
    check.end()?;
    mounted.up().map(drop)
}

fn signal(mounted: &Mounted<'_>, name: &str, process: u32) -> Result<(), String> {
    // The shell's own `kill`, because not every machine has a package with the program.
    let mut kill = mounted.outside("sh");
    kill.args(["-c", &format!("kill -{name} {process}")]);
    mounted.program("kill", SECONDS_MAX, &mut kill).map(drop)
}

/// A program that works beside the suite. Dropped, it is killed.
struct Beside(Child);

impl Beside {
    fn start(mut command: Command) -> Result<Beside, String> {
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.stdin(Stdio::piped()).spawn();
        child.map(Beside).map_err(|error| format!("{command:?}: {error}"))
    }

    /// Waits for its end, and returns what it said.
    fn end(mut self) -> Result<String, String> {
        drop(self.0.stdin.take());
        let end = now() + Duration::from_secs(SECONDS_MAX);
        while self.0.try_wait().map_err(|error| error.to_string())?.is_none() {
            if now() >= end {
                return Err(format!("process {} does not end", self.0.id()));
            }
            pause(Duration::from_millis(10));
        }
        let output = self.0.stdout.take().map(std::io::read_to_string);
        output.unwrap_or_else(|| Ok(String::new())).map_err(|error| error.to_string())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who works beside everything: `deep_probe busy`, and fio.
struct Busy {
    probe: Beside,
    fio: Beside,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Busy {
    fn start(place: &Place<'_>) -> Result<Busy, String> {
        let mounted = place.mounted;
        let mut fio = mounted.outside("fio");
        fio.args(["--name=beside", "--rw=randrw", "--bs=4k", "--size=16m", "--time_based"]);
        fio.args(["--runtime=3600", "--rate_iops=200"]);
        fio.arg(format!("--directory={}", place.busy.display()));
        let fio = Beside::start(fio)?;
        let mut probe = mounted.example("deep_probe");
        probe.arg("busy").arg(&place.busy);
        let mut probe = Beside::start(probe)?;
        let (orders, answers) = (probe.0.stdin.take(), probe.0.stdout.take());
        let orders = orders.ok_or("deep_probe has no input")?;
        let answers = BufReader::new(answers.ok_or("deep_probe has no output")?);
        Ok(Busy { probe, fio, orders, answers })
    }

    /// What the probe's threads have done since this was asked last.
    ///
    /// # Errors
    /// It has ended, because one of its calls failed.
    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let asked = writeln!(self.orders).and_then(|()| self.answers.read_line(&mut line));
        match asked {
            Ok(1..) => Ok(line.trim_end().to_owned()),
            Ok(0) => Err("a call of those who work beside failed".to_owned()),
            Err(error) => Err(format!("those who work beside: {error}")),
        }
    }

    /// Ends both. Returns how long fio says that its calls took.
    fn end(self, mounted: &Mounted<'_>) -> Result<String, String> {
        drop(self.orders);
        self.probe.end()?;
        signal(mounted, "INT", self.fio.0.id())?;
        let output = self.fio.end()?;
        let times: Vec<&str> =
            output.lines().map(str::trim).filter(|line| line.starts_with("clat (")).collect();
        if times.is_empty() { Err(format!("fio said: {output}")) } else { Ok(times.join("; ")) }
    }
}
