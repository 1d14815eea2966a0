//! Kills the daemon with `kill -9` at random moments while real programs work. If servers have a
//! process of their own, either the daemon or both processes are killed. Some of the starts after
//! that happen with an NSD away, which returns later. `restart_server` tests what happens when only
//! the server is killed.
//!
//! Each program has a checker outside the file system that knows what the program was told is
//! durable: see `loads`. The seed of the moments is printed, and `STRAKE_SEED` sets it.

mod loads;

use super::checks::Checks;
use super::command::pause;
use super::faults;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use super::writer::contents;
use loads::{Load, Place};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long the programs work before the kill, in milliseconds.
const WORK_MILLIS: std::ops::Range<u64> = 200..2500;
/// How long a program may take to notice that the file system is gone.
const END_SECONDS_MAX: u64 = 60;
/// A program that still gets errors after this long does not hang: git (2.39), for one, goes on for
/// ever with a directory that it cannot read.
const COMPLAINTS_SECONDS_MAX: u64 = 5;
const LOOK: Duration = Duration::from_millis(5);
/// How long it may take until every program was told that something is durable.
const TOLD_SECONDS_MAX: u64 = 120;

/// A shape, and how many rounds it gets (quick, long).
struct Case {
    name: &'static str,
    shape: Shape,
    rounds: (u64, u64),
    /// Whether the file system is full. The programs then overwrite what is there.
    full: bool,
}

impl Case {
    const fn of(name: &'static str, shape: Shape, rounds: (u64, u64)) -> Case {
        Case { name, shape, rounds, full: false }
    }
}

const SIX: Shape = Shape::of("4+2p", 6);
const SMALL: Shape = Shape { block_size: "256K", nsd_size: "64M", ..SIX };

const CASES: [Case; 4] = [
    Case::of("4+2p", SIX, (4, 40)),
    Case::of("2x", Shape { patches_always: true, ..Shape::of("2x", 4) }, (3, 30)),
    Case::of("socket", Shape { socket: true, patches_always: true, ..SIX }, (4, 40)),
    Case { full: true, ..Case::of("full", SMALL, (3, 30)) },
];

/// A start takes no longer than this, also after a kill amid small overwrites: few stripes wait for
/// a commit at any time, so there is little to resolve (rule P8).
const START_SECONDS_MAX: u64 = 30;

/// Random numbers that follow from a seed.
pub(super) struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Draw {
        Draw { seed, drawn: 0 }
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.drawn += 1;
        let bytes = contents(self.seed << 20 | self.drawn, 8);
        bytes.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)) % limit
    }
}

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    println!("STRAKE_SEED={}", session.seed);
    for (index, case) in CASES.iter().enumerate() {
        let mut draw = Draw::new(session.seed << 8 | index as u64);
        let rounds = if session.quick { case.rounds.0 } else { case.rounds.1 };
        let mounted = Mounted::create(session, checks, case.name, &case.shape)?;
        if let Err(reason) = one(session, &mounted, checks, case, rounds, &mut draw) {
            checks.record(&format!("{}: goes on", case.name), Err(reason));
        }
        mounted.finish(checks);
    }
    let mounted = Mounted::create(session, checks, "overwrites", &SIX)?;
    starts_soon(session, &mounted, checks)?;
    mounted.finish(checks);
    Ok(())
}

/// Kills everything while many small overwrites are under way as patches.
fn starts_soon(
    session: &Session,
    mounted: &Mounted<'_>,
    checks: &mut Checks,
) -> Result<(), String> {
    let seconds = if session.quick { 4 } else { 60 };
    let fio = |words: &str| {
        let mut fio = mounted.outside("fio");
        fio.args(["--name=overwrites", "--size=512M", "--fallocate=none", "--filename"]);
        fio.arg(mounted.mount.join("file")).args(words.split(' '));
        fio
    };
    let laid =
        mounted.program("lay", END_SECONDS_MAX, &mut fio("--rw=write --bs=1M --end_fsync=1"));
    laid?;
    let mut overwrites = fio("--rw=randwrite --bs=4k --direct=1 --numjobs=4 --time_based");
    overwrites.arg("--runtime=600").stdin(Stdio::null()).stdout(Stdio::null());
    let mut working =
        overwrites.stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    pause(Duration::from_secs(seconds));
    let patches = patches(mounted);
    let killed = mounted.kill_all();
    working.wait().map_err(|error| error.to_string())?;
    killed?;
    let patches = patches?;
    let begun = crate::runner::now();
    mounted.up()?;
    let seconds = (crate::runner::now() - begun).as_secs_f64();
    let what = format!("a start after a kill amid small overwrites, {patches} patches before");
    checks.hold(&what, patches > 0 && seconds <= START_SECONDS_MAX as f64, || {
        format!("it took {seconds:.1} s")
    });
    Ok(())
}

/// The patches that a mount has sent.
fn patches(mounted: &Mounted<'_>) -> Result<u64, String> {
    let stats = mounted.say("diag stats")?;
    let line = stats.lines().find(|line| line.starts_with("blockPatch "));
    let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    count.ok_or(stats)
}

fn one(
    session: &Session,
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    case: &Case,
    rounds: u64,
    draw: &mut Draw,
) -> Result<(), String> {
    let name = case.name;
    let mut loads = match case.full {
        true => loads::in_place(mounted)?,
        false => loads::all(session, mounted)?,
    };
    let mut acknowledged = vec![0; loads.len()];
    for round in 1..=rounds {
        let place = Place { session, mounted, round };
        let mut running = loads
            .iter_mut()
            .map(|load| start(&place, &mut **load))
            .collect::<Result<Vec<_>, _>>()?;
        if round == 1 {
            // However slow the machine is, each program is told of something durable in at least
            // one round.
            wait_until_told(&place, &loads)?;
        }
        let time = WORK_MILLIS.start + draw.below(WORK_MILLIS.end - WORK_MILLIS.start);
        pause(Duration::from_millis(time));
        let with_server = case.shape.socket && draw.below(2) == 1;
        let killed = if with_server { mounted.kill_all() } else { mounted.kill() };
        wait_for_ends(session, &mut running)?;
        killed?;
        let away = (draw.below(2) == 0).then(|| 1 + draw.below(case.shape.nsds.into()) as u16);
        away.map_or(Ok(()), |nsd| mounted.remove_nsd(nsd))?;
        let what = format!(
            "{name} {round}: up after kill -9 of {} at {time} ms, NSD away: {away:?}",
            if with_server { "the daemon and its server" } else { "the daemon" }
        );
        if !checks.record(&what, mounted.up().map(drop)) {
            return Err("the file system does not come up again".to_owned());
        }
        for (load, total) in loads.iter_mut().zip(&mut acknowledged) {
            let refused = refused_for_space(session, load.name())?;
            checks.hold(&format!("{name} {round}: {} finds room", load.name()), !refused, || {
                "it got ENOSPC".to_owned()
            });
            let verified = load.verify(&place);
            *total += *verified.as_ref().unwrap_or(&0);
            let count = verified.as_ref().map_or(0, |count| *count);
            let what = format!("{name} {round}: {} has all {count}", load.name());
            checks.record(&what, verified.map(drop));
        }
        if let Some(nsd) = away {
            mounted.return_nsd(nsd)?;
            let back = faults::wait_for(mounted, &format!("nsd{nsd} "), &[" up "]);
            checks.record(&format!("{name} {round}: NSD {nsd} is up to date again"), back);
        }
        checks.record(&format!("{name} {round}: strake fs check is clean"), mounted.check());
    }
    for (load, total) in loads.iter().zip(acknowledged) {
        let what = format!("{name}: {} was told of {total} things", load.name());
        checks.hold(&what, total > 0, || "so nothing was tested".to_owned());
    }
    Ok(())
}

/// Starts a program. Its output goes to its log.
fn start(place: &Place<'_>, load: &mut dyn Load) -> Result<(&'static str, Child), String> {
    use std::os::unix::process::CommandExt;
    let text = |error: std::io::Error| format!("{}: {error}", load.name());
    let said = std::fs::OpenOptions::new().create(true).append(true).open(place.log(load.name())?);
    let errors = errors_of(place.session, load.name());
    std::fs::create_dir_all(errors.with_file_name("")).map_err(text)?;
    let errors = std::fs::File::create(errors).map_err(text)?;
    let said = said.map_err(text)?;
    let name = load.name();
    let mut command = load.command(place)?;
    command.process_group(0).stdin(Stdio::null()).stdout(said).stderr(errors);
    let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    Ok((name, child))
}

/// Waits until each program has logged that something is durable.
fn wait_until_told(place: &Place<'_>, loads: &[Box<dyn Load>]) -> Result<(), String> {
    let end = crate::runner::now() + Duration::from_secs(TOLD_SECONDS_MAX);
    for load in loads {
        while !place.said(load.name())?.iter().any(|line| load.tells(line)) {
            if crate::runner::now() >= end {
                return Err(format!("{} makes nothing durable", load.name()));
            }
            pause(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// The log of what a program complains of in this round.
fn errors_of(session: &Session, name: &str) -> std::path::PathBuf {
    session.log("crashes", &format!("{name} errors"))
}

/// True if a program was told that there is no room.
fn refused_for_space(session: &Session, name: &str) -> Result<bool, String> {
    let path = errors_of(session, name);
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).to_lowercase().contains("no space left"))
}

/// Waits until all programs have noticed that the file system is gone.
fn wait_for_ends(session: &Session, running: &mut [(&'static str, Child)]) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let start = crate::runner::now();
    for (name, child) in running {
        let complaints =
            || std::fs::metadata(errors_of(session, name)).map_or(0, |errors| errors.len());
        while child.try_wait().map_err(text)?.is_none() {
            let waited = crate::runner::now().duration_since(start).as_secs();
            if waited >= END_SECONDS_MAX {
                super::janitor::kill_group(child.id());
                return Err(format!("{name} hangs on the mount of a killed daemon"));
            }
            let before = complaints();
            pause(LOOK);
            if waited >= COMPLAINTS_SECONDS_MAX && complaints() > before {
                super::janitor::kill_group(child.id());
                child.wait().map_err(text)?;
            }
        }
    }
    Ok(())
}
