//! The server process of `rpc=socket` is killed (`kill -9`) at random moments while programs work
//! on the mount. No program may notice: each runs to its end without an error, and verifies what
//! it wrote. Afterwards everything is verified once more, and again after `down` and `up`.
//!
//! | program | what it verifies itself |
//! |---|---|
//! | fio | every block by its checksum, buffered and direct |
//! | tar | the unpacked files against the archive: contents, modes, owners, times |
//! | git | commits and checkouts with `fsck --full --strict` |
//!
//! Before the kills, the server stands still for a while. Listings are answered meanwhile, and say
//! which figures are old.
//!
//! The seed of the moments is printed, and `STRAKE_SEED` sets it. The last checks are:
//!
//! - While no server runs, calls wait, and `strake diag waiters` names them.
//! - `strake down` works while the server is being started anew, and while it dies.
//! - If the server cannot be started any more, the daemon ends too (not with `--quick`).

use super::checks::Checks;
use super::command::{Ended, pause};
use super::crashes::Draw;
use super::faults;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Kills in all (quick, long).
const KILLS: (u64, u64) = (5, 20);
/// How long a server serves before it is killed, in milliseconds. Then it has served long enough
/// not to count as one that fails at every start.
const WORK_MILLIS: std::ops::Range<u64> = 1100..3000;
/// How long a server may take to be started anew.
const START_SECONDS_MAX: u64 = 60;
/// One run of a program, with servers dying under it.
const PROGRAM_SECONDS_MAX: u64 = 240;
const LOOK: Duration = Duration::from_millis(10);
const SHAPE: Shape = Shape { socket: true, ..Shape::of("4+2p", 6) };

/// What `fio` does, in turns.
const JOBS: [&str; 4] = [
    "--rw=randwrite --bs=8k --size=16M --ioengine=psync --fsync=64",
    "--rw=write --bs=1M --size=64M --ioengine=psync",
    "--rw=randwrite --bs=64k --size=16M --ioengine=libaio --direct=1 --iodepth=8",
    "--rw=randwrite --bsrange=512-128k --size=16M --ioengine=psync --fdatasync=32",
];

const UNTAR: &str = "mkdir \"$0\" && tar -xf \"$1\" -C \"$0\" && tar -df \"$1\" -C \"$0\"";

const GIT: &str = "cd \"$0\"
for n in 1 2 3 4 5; do
  echo \"$1 $n\" >file-$((n % 3))
  mkdir -p dir-$n && head -c $((n * 9973)) /dev/urandom >dir-$n/blob
  git add -A
  git commit -q -m \"$1 $n\"
done
git checkout -q HEAD~3
git checkout -q -B side-$1
git rm -q -r dir-2
git commit -q -m \"$1 side\"
git checkout -q main
git fsck --full --strict --no-progress
test -z \"$(git status --porcelain)\"";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    println!("STRAKE_SEED={}", session.seed);
    let mut draw = Draw::new(session.seed);
    let kills = if session.quick { KILLS.0 } else { KILLS.1 };
    let mounted = Mounted::create(session, checks, "socket", &SHAPE)?;
    let place = Place::prepare(session, &mounted)?;
    let answered = listings_are_answered(&mounted);
    checks.record("listings are answered while the server stands still", answered);
    let stop = AtomicBool::new(false);
    let killed = std::thread::scope(|scope| {
        let (place, stop) = (&place, &stop);
        let fio = scope.spawn(move || repeat(stop, &|turn| place.fio(turn)));
        let tar = scope.spawn(move || repeat(stop, &|turn| place.untar(turn)));
        let git = scope.spawn(move || repeat(stop, &|turn| place.git(turn)));
        let killed = kill_servers(&mounted, kills, &mut draw);
        stop.store(true, Ordering::Relaxed);
        for (name, program) in [("fio", fio), ("tar", tar), ("git", git)] {
            let ended = program.join().unwrap_or_else(|_| Err("it panicked".to_owned()));
            let turns = ended.as_ref().map_or(0, |turns| *turns);
            let what = format!("{name} runs {turns} times without an error");
            checks.record(&what, ended.map(drop));
        }
        killed
    });
    let killed_all = checks.record(&format!("the server is killed {kills} times"), killed);
    let counted = mounted.log().matches("it is started anew").count() as u64;
    checks.hold(&format!("the daemon starts {kills} servers anew"), counted == kills, || {
        format!("the log tells of {counted}")
    });
    // A disk whose server was away for a write is brought up to date first.
    let all_up = (1..=SHAPE.nsds)
        .try_for_each(|nsd| faults::wait_for(&mounted, &format!("nsd{nsd} "), &[" up "]));
    checks.record("every disk is up", all_up);
    checks.record("disk list", mounted.disks_are_up());
    place.verify(checks, "after the kills");
    checks.record("strake fs check is clean", mounted.check());
    if killed_all {
        let named = waiters_are_named(&mounted, &place);
        checks.record("diag waiters names the calls that wait while no server runs", named);
        ends(&mounted, checks, &place, &mut draw)?;
        if !session.quick {
            gives_up(&mounted, checks, &place)?;
        }
    }
    mounted.finish(checks);
    Ok(())
}

/// Stops the server, so that neither the metadata nor a disk answers, and asks for listings. They
/// must come, and those with figures of the server must say that these are old.
fn listings_are_answered(mounted: &Mounted<'_>) -> Result<(), String> {
    const LISTINGS: [(&str, bool); 6] = [
        ("fs show", true),
        ("fs df", true),
        ("disk list", true),
        ("diag memory", false),
        ("diag stats", false),
        ("diag waiters", false),
    ];
    let server = mounted.server(mounted.daemon()?).ok_or("there is no server")?;
    mounted.say("fs show")?;
    signal(mounted, "STOP", server)?;
    let told = LISTINGS.map(|(listing, has_figures)| {
        let text = mounted.say(listing)?;
        match text.contains("does not answer") == has_figures {
            true => Ok(()),
            false => Err(format!("{listing}:\n{text}")),
        }
    });
    signal(mounted, "CONT", server)?;
    told.into_iter().collect::<Result<(), String>>()?;
    faults::wait_until(mounted, "fs show", |text| !text.contains("does not answer"))
}

/// Sends one process a signal, by its name without `SIG`.
fn signal(mounted: &Mounted<'_>, signal: &str, process: u32) -> Result<(), String> {
    let mut kill = mounted.outside("kill");
    kill.args(["-s", signal]).arg(process.to_string());
    mounted.program("signal", START_SECONDS_MAX, &mut kill).map(drop)
}

/// Keeps the server away for a while. A change of attributes and a write to disk must wait then,
/// both must be in `strake diag waiters` by name, and both must succeed when the server is back.
fn waiters_are_named(mounted: &Mounted<'_>, place: &Place<'_>) -> Result<(), String> {
    const WANTED: [&str; 2] = ["for a change of metadata", "for the server process"];
    let text = |error: std::io::Error| format!("waiters: {error}");
    let path = place.inside("changed");
    let changed = std::fs::File::create(&path).map_err(text)?;
    // With contents, so that the next write goes to the disks without a change of the metadata.
    let path_of_last = place.inside("last");
    std::fs::write(&path_of_last, super::writer::contents(6, 5 << 20)).map_err(text)?;
    let last = std::fs::File::options().write(true).open(&path_of_last);
    let mut written = last.map_err(text)?;
    mounted.sync()?;
    let server = mounted.server(mounted.daemon()?).ok_or("there is no server")?;
    let away = Away::take(mounted)?;
    let killed = mounted.kill_one(server);
    let (seen, change, write) = std::thread::scope(|scope| {
        let change = scope.spawn(|| changed.set_permissions(Permissions::from_mode(0o640)));
        let write = scope.spawn(|| {
            written.write_all(&super::writer::contents(5, 5 << 20))?;
            written.sync_all()
        });
        let seen = faults::wait_until(mounted, "diag waiters", |text| {
            WANTED.iter().all(|wanted| text.contains(wanted))
        });
        let returned = away.give_back();
        let joined = [change, write].map(|thread| thread.join());
        let [change, write] = joined.map(|ended| ended.unwrap_or_else(|_| panicked()));
        (seen.and(returned), change, write)
    });
    killed?;
    seen?;
    change.map_err(|error| format!("the change: {error}"))?;
    write.map_err(|error| format!("the write: {error}"))?;
    let mode = std::fs::metadata(&path).map_err(text)?.permissions().mode() & 0o777;
    if mode != 0o640 {
        return Err(format!("the change was answered, and the mode is {mode:o}"));
    }
    faults::wait_until(mounted, "diag waiters", |text| {
        !WANTED.iter().any(|wanted| text.contains(wanted))
    })
}

fn panicked<T>() -> std::io::Result<T> {
    Err(std::io::Error::other("it panicked"))
}

/// The file system's secret, moved away. Without it no server can be started.
struct Away {
    secret: PathBuf,
    place: PathBuf,
}

impl Away {
    fn take(mounted: &Mounted<'_>) -> Result<Away, String> {
        let (secret, place) = (mounted.data().join("secret"), mounted.data().join("secret-away"));
        std::fs::rename(&secret, &place).map_err(|error| format!("secret: {error}"))?;
        Ok(Away { secret, place })
    }

    fn give_back(self) -> Result<(), String> {
        std::fs::rename(&self.place, &self.secret).map_err(|error| format!("secret: {error}"))
    }
}

/// Takes the file system down while its server dies.
fn ends(
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    place: &Place<'_>,
    draw: &mut Draw,
) -> Result<(), String> {
    checks.record("down", mounted.down());
    mounted.up()?;
    place.verify(checks, "after down and up");
    let daemon = mounted.daemon()?;
    place.write_something()?;
    let server = mounted.server(daemon).ok_or("there is no server")?;
    mounted.kill_one(server)?;
    checks.record("down right after a server's death", mounted.down());
    mounted.up()?;
    place.verify(checks, "after that");
    let daemon = mounted.daemon()?;
    place.write_something()?;
    let server = mounted.server(daemon).ok_or("there is no server")?;
    let (down, killed) = std::thread::scope(|scope| {
        let down = scope.spawn(|| mounted.down());
        pause(Duration::from_millis(draw.below(150)));
        let killed = mounted.kill_one(server);
        (down.join().unwrap_or_else(|_| Err("it panicked".to_owned())), killed)
    });
    checks.record("down while the server dies", down);
    // It may have ended by itself before.
    drop(killed);
    mounted.up()?;
    place.verify(checks, "after that, too");
    Ok(())
}

/// A server that cannot be started any more takes the daemon with it, and `up` recovers.
fn gives_up(mounted: &Mounted<'_>, checks: &mut Checks, place: &Place<'_>) -> Result<(), String> {
    let daemon = mounted.daemon()?;
    let server = mounted.server(daemon).ok_or("there is no server")?;
    let away = Away::take(mounted)?;
    let ended = mounted.kill_one(server).and_then(|()| mounted.wait_for_end(daemon));
    away.give_back()?;
    checks.record("a server that cannot be started takes the daemon with it", ended);
    let said = mounted.log().contains("for the 10th time in a row");
    checks.hold("the log says why", said, || mounted.log());
    mounted.up()?;
    place.verify(checks, "after the daemon gave up");
    Ok(())
}

/// Kills one server after the other, each at a random moment of its work.
fn kill_servers(mounted: &Mounted<'_>, kills: u64, draw: &mut Draw) -> Result<(), String> {
    let daemon = mounted.daemon()?;
    let mut last = 0;
    for kill in 1..=kills {
        let end = crate::runner::now() + Duration::from_secs(START_SECONDS_MAX);
        let server = loop {
            match mounted.server(daemon).filter(|server| *server != last) {
                Some(server) => break server,
                None if crate::runner::now() >= end => {
                    return Err(format!("no server is started after kill {}", kill - 1));
                }
                None => pause(LOOK),
            }
        };
        let time = WORK_MILLIS.start + draw.below(WORK_MILLIS.end - WORK_MILLIS.start);
        pause(Duration::from_millis(time));
        mounted.kill_one(server).map_err(|error| format!("kill {kill}: {error}"))?;
        last = server;
    }
    Ok(())
}

/// Runs a program again and again until it is to stop, at least once; says how often.
fn repeat(stop: &AtomicBool, once: &dyn Fn(u64) -> Result<(), String>) -> Result<u64, String> {
    for turn in 1.. {
        once(turn)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(turn);
        }
    }
    Ok(0)
}

/// The programs and what they work on.
struct Place<'a> {
    mounted: &'a Mounted<'a>,
    archive: PathBuf,
}

impl<'a> Place<'a> {
    fn prepare(session: &Session, mounted: &'a Mounted<'a>) -> Result<Place<'a>, String> {
        let archive = mounted.beside("scripts")?.join("archive.tar");
        let mut command = mounted.outside("tar");
        command.arg("-cf").arg(&archive).arg("-C").arg(&session.repository);
        command.args(["xtask/src", "crates/strake-proto", "docs"]);
        mounted.program("tar create", PROGRAM_SECONDS_MAX, &mut command)?;
        let place = Place { mounted, archive };
        let mut command = mounted.outside("git");
        command.args(["init", "-q", "-b", "main"]).arg(place.inside("git"));
        mounted.program("git init", PROGRAM_SECONDS_MAX, &mut command)?;
        Ok(place)
    }

    fn inside(&self, name: &str) -> PathBuf {
        self.mounted.mount.join(name)
    }

    fn run(&self, name: &str, command: &mut Command) -> Result<Ended, String> {
        self.mounted.program(name, PROGRAM_SECONDS_MAX, command)
    }

    fn shell(&self, script: &str, first: &Path) -> Command {
        let mut command = self.mounted.outside("sh");
        command.args(["-ec", script]).arg(first);
        command
    }

    fn fio_command(&self, job: usize, words: &[&str]) -> Command {
        let mut fio = self.mounted.outside("fio");
        fio.arg(format!("--name=job{job}"))
            .arg("--filename")
            .arg(self.inside(&format!("fio{job}")));
        fio.args(JOBS[job].split(' '));
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--fallocate=none"]);
        fio.arg(format!("--randseed={}", 7 + job)).args(words);
        fio
    }

    fn fio(&self, turn: u64) -> Result<(), String> {
        let job = (turn - 1) as usize % JOBS.len();
        let mut command = self.fio_command(job, &["--do_verify=1"]);
        self.run(&format!("fio {turn}"), &mut command).map(drop)
    }

    fn untar(&self, turn: u64) -> Result<(), String> {
        let mut command = self.shell(UNTAR, &self.inside(&format!("tar-{turn}")));
        command.arg(&self.archive);
        self.run(&format!("tar {turn}"), &mut command)?;
        // Two stay.
        if turn > 2 {
            let old = self.inside(&format!("tar-{}", turn - 2));
            let removed = std::fs::remove_dir_all(&old);
            removed.map_err(|error| format!("{}: {error}", old.display()))?;
        }
        Ok(())
    }

    fn git(&self, turn: u64) -> Result<(), String> {
        let mut command = self.shell(GIT, &self.inside("git"));
        command.arg(turn.to_string());
        with_settings(&mut command);
        self.run(&format!("git {turn}"), &mut command).map(drop)
    }

    /// Makes something that `down` has to flush.
    fn write_something(&self) -> Result<(), String> {
        let bytes = super::writer::contents(5, 5 << 20);
        std::fs::write(self.inside("last"), bytes).map_err(|error| format!("last: {error}"))
    }

    /// Everything is there as it was.
    fn verify(&self, checks: &mut Checks, when: &str) {
        for job in 0..JOBS.len() {
            if self.inside(&format!("fio{job}")).exists() {
                let mut command = self.fio_command(job, &["--verify_only=1"]);
                let verified = self.run(&format!("fio {when} {job}"), &mut command);
                checks.record(&format!("fio {job} is right {when}"), verified.map(drop));
            }
        }
        let unpacked = std::fs::read_dir(&self.mounted.mount).into_iter().flatten();
        let unpacked = unpacked.filter_map(Result::ok).map(|entry| entry.path());
        for path in unpacked.filter(|path| path.to_string_lossy().contains("/tar-")) {
            let mut command = self.mounted.outside("tar");
            command.arg("-df").arg(&self.archive).arg("-C").arg(&path);
            let verified = self.run(&format!("tar {when}"), &mut command);
            checks.record(&format!("{} is right {when}", path.display()), verified.map(drop));
        }
        let mut command = self.shell("cd \"$0\"; git fsck --full --strict", &self.inside("git"));
        with_settings(&mut command);
        let verified = self.run(&format!("git {when}"), &mut command);
        checks.record(&format!("git is right {when}"), verified.map(drop));
        if let Ok(bytes) = std::fs::read(self.inside("last")) {
            let right = bytes == super::writer::contents(5, 5 << 20);
            checks.hold(&format!("the last file is right {when}"), right, String::new);
        }
    }
}

fn with_settings(command: &mut Command) {
    let settings = [("safe.directory", "*"), ("user.name", "s"), ("user.email", "s@localhost")];
    command.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (index, (key, value)) in settings.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{index}"), key);
        command.env(format!("GIT_CONFIG_VALUE_{index}"), value);
    }
}
