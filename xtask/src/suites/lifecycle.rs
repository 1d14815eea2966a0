//! Data that was written is there after `down` and `up`. Data that was made durable is there after
//! the daemon was killed.

use super::checks::Checks;
use super::command;
use super::faults;
use super::manifest;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use super::writer;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const SECONDS_MAX: u64 = 60;
/// So much is added to what a check reads before each try to end it early.
const CHECKED_BYTES: usize = 96 << 20;
const ROUNDS_MAX: u64 = 8;

/// One of everything that a directory can hold, with extended attributes and access lists.
const ZOO: &str = "set -e
mkdir -p d/e/f && chmod 2750 d/e && chown tests:tests d/e
printf inline > small && head -c 3000000 /dev/urandom > large && chmod 4711 large
truncate -s 1T sparse && printf middle | dd of=sparse bs=1 seek=5000000000 conv=notrunc status=none
ln small hard && ln -s ../small d/link && ln -s /nowhere dangling
mkfifo fifo && mknod null c 1 3 && mknod block b 7 0
touch -d '1999-12-31 23:59:59.123456789 UTC' old
setfattr -n user.colour -v blue small && setfattr -n trusted.key -v 0x0001ff large
setfattr -n user.dir -v yes d
setfacl -m u:tests:rwx,g:nogroup:r small && setfacl -d -m u:nobody:rx d
i=0; while [ $i -lt 500 ]; do echo $i > d/e/f/file-$i; i=$((i+1)); done
rm d/e/f/file-7 && mv d/e/f/file-8 d/e/renamed
";

/// Commands that describe a file system in use, and a word that each must print.
const LISTINGS: &[(&str, &str)] = &[
    ("diag stats", "fuse_create"),
    ("diag iohist", "nsd"),
    ("diag waiters", "waits"),
    ("diag threads", "has nothing to do"),
    ("diag config", "half of worker_threads"),
    ("config show --why", "the default"),
    ("diag memory", "pagepool"),
    ("diag memory --json", "residentBytes"),
    ("fs show", "4+2p"),
    ("fs df", "nsd6"),
    ("nsd list", "nsd6"),
    ("disk list", "ready"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    persistence(session, checks)?;
    killed(session, checks, "kill", &Shape::of("4+2p", 6))?;
    killed(session, checks, "kill socket", &Shape { socket: true, ..Shape::of("4+2p", 6) })?;
    busy(session, checks)
}

fn persistence(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "persistence", &Shape::of("4+2p", 6))?;
    let mut zoo = mounted.outside("sh");
    zoo.arg("-c").arg(ZOO).current_dir(&mounted.mount);
    mounted.program("zoo", SECONDS_MAX, &mut zoo)?;
    for (listing, word) in LISTINGS {
        let told = mounted.say(listing);
        let outcome = told.and_then(|text| match text.contains(word) {
            true => Ok(()),
            false => Err(format!("'{word}' is not in it:\n{text}")),
        });
        checks.record(&format!("'strake {listing}' tells of '{word}'"), outcome);
    }
    checks.record("df names the file system", named(&mounted, checks.suite()));
    let before = everything(&mounted, "before")?;
    for round in ["first", "second"] {
        mounted.down()?;
        mounted.up()?;
        let outcome =
            everything(&mounted, round).and_then(|after| manifest::compare(&before, &after));
        checks.record(&format!("the {round} down and up change nothing"), outcome);
    }
    checks.record("the daemon holds no lock of the script that started it", locked_up(&mounted));
    checks.record("a service manager is told when it serves and when it ends", notified(&mounted));
    checks.record("an up right after an umount mounts it again", unmounted(&mounted));
    for signal in ["INT", "TERM", "KILL"] {
        let what = format!("SIG{signal} ends strake fs check, and the next one is clean");
        checks.record(&what, interrupted(&mounted, signal));
    }
    mounted.finish(checks);
    Ok(())
}

fn named(mounted: &Mounted<'_>, name: &str) -> Result<(), String> {
    let mut df = mounted.outside("df");
    df.arg("--output=source,fstype").arg(&mounted.mount);
    let told = mounted.program("df", SECONDS_MAX, &mut df)?.output();
    let fields: Vec<&str> = told.lines().last().unwrap_or_default().split_whitespace().collect();
    if fields == [name, "fuse.strake"] { Ok(()) } else { Err(told) }
}

/// `umount` returns before the daemon has written what it holds and has ended.
fn unmounted(mounted: &Mounted<'_>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let file = mounted.mount.join("unmounted");
    for round in 0..5u8 {
        let bytes = vec![round; 20_000_000];
        std::fs::write(&file, &bytes).map_err(text)?;
        let mut umount = mounted.outside("umount");
        umount.arg(&mounted.mount);
        mounted.program("umount", SECONDS_MAX, &mut umount)?;
        mounted.up()?;
        if std::fs::read(&file).map_err(text)? != bytes {
            return Err(format!("round {round}: other bytes"));
        }
    }
    Ok(())
}

/// Takes the file system down. Then takes it up from a script that holds a lock, as `flock` does
/// for the programs that it runs.
fn locked_up(mounted: &Mounted<'_>) -> Result<(), String> {
    mounted.down()?;
    let lock = mounted.beside("script")?.join("lock");
    let up = mounted.up_command();
    let mut script = mounted.outside("flock");
    script.arg(&lock).arg(up.get_program()).args(up.get_args());
    mounted.program("up with a lock", SECONDS_MAX, &mut script)?;
    let mut free = mounted.outside("flock");
    free.arg("--nonblock").arg(&lock).arg("true");
    mounted.program("the lock", SECONDS_MAX, &mut free).map(drop)
}

/// Takes the file system down, and up as a unit of systemd would.
fn notified(mounted: &Mounted<'_>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    mounted.down()?;
    let path = mounted.beside("manager")?.join("notify");
    let socket = UnixDatagram::bind(&path).map_err(text)?;
    socket.set_read_timeout(Some(Duration::from_secs(SECONDS_MAX))).map_err(text)?;
    let heard = |wanted: &str| {
        let mut bytes = [0; 1000];
        let length = socket.recv(&mut bytes).map_err(text)?;
        let told = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if told.contains(wanted) { Ok(told) } else { Err(format!("{wanted} is not in: {told}")) }
    };
    let mut up = mounted.up_command();
    up.env("NOTIFY_SOCKET", &path);
    mounted.program("up of a service", SECONDS_MAX, &mut up)?;
    let told = heard("READY=1\nMAINPID=")?;
    let pid = told.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap_or_default();
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(text)?;
    if !String::from_utf8_lossy(&command).contains("daemon") {
        return Err(format!("process {pid} is not the daemon"));
    }
    mounted.down()?;
    heard("STOPPING=1\nSTATUS=ending: ")?;
    mounted.up().map(drop)
}

/// Ends `strake fs check` with a signal while the daemon is at it. Then no check goes on, and the
/// next one finds everything in order. A check may be over before the signal comes. It is tried
/// again with more data then.
fn interrupted(mounted: &Mounted<'_>, signal: &str) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    for round in 1..=ROUNDS_MAX {
        let file = mounted.mount.join(format!("checked-{signal}-{round}"));
        std::fs::write(&file, writer::contents(round, CHECKED_BYTES)).map_err(text)?;
        mounted.sync()?;
        let mut check = mounted.command("fs check");
        check.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = check.spawn().map_err(text)?;
        let is_over = |child: &mut std::process::Child| child.try_wait().map_err(text);
        while !mounted.say("fs check --status")?.contains("the strips of") {
            if is_over(&mut child)?.is_some() {
                break;
            }
        }
        let mut kill = mounted.outside("kill");
        kill.args(["-s", signal]).arg(child.id().to_string());
        // It is a zombie if it has ended before, so that the number is still its own.
        mounted.program("signal", SECONDS_MAX, &mut kill)?;
        let ended = child.wait().map_err(text)?;
        if ended.success() {
            continue;
        }
        if signal != "KILL" && ended.code() != Some(130) {
            return Err(format!("the check ended with {ended}"));
        }
        // The command waits for the end unless it is killed. Then the daemon notices that.
        let now = mounted.say("fs check --status")?;
        if signal != "KILL" && !now.contains("no check is under way") {
            return Err(now);
        }
        faults::wait_until(mounted, "fs check --status", |text| text.contains("no check"))?;
        return mounted.check();
    }
    Err(format!("{ROUNDS_MAX} checks were over before the signal came"))
}

/// The manifest, the extended attributes and access lists, which std cannot read, and the middle of
/// the sparse file, which is too large to be read whole.
fn everything(mounted: &Mounted<'_>, round: &str) -> Result<Vec<String>, String> {
    let sparse = mounted.mount.join("sparse");
    let mut lines = vec![middle_of(&sparse)?];
    let attributes = "getfattr -R -P -h -d -m - -e hex --absolute-names . && getfacl -R -P -n -p .";
    let mut shell = mounted.outside("sh");
    shell.arg("-c").arg(attributes).current_dir(&mounted.mount);
    let listed = mounted.program(&format!("attributes {round}"), SECONDS_MAX, &mut shell)?;
    let paragraphs = listed.output();
    lines.extend(paragraphs.split("\n\n").map(|text| text.replace('\n', " | ")));
    lines.extend(manifest::of(&mounted.mount)?);
    lines.sort();
    Ok(lines)
}

fn middle_of(sparse: &Path) -> Result<String, String> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let mut middle = [1; 8];
    let file = std::fs::File::open(sparse).map_err(|error| error.to_string())?;
    file.read_exact_at(&mut middle, 4_999_999_999).map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    Ok(format!("sparse: size {} middle {middle:?}", meta.size()))
}

/// Crashes three times in a row, each time in the middle of writing.
pub(crate) fn killed(
    session: &Session,
    checks: &mut Checks,
    name: &str,
    shape: &Shape,
) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, name, shape)?;
    for round in 1..=3_u64 {
        let directory = mounted.mount.join(format!("round-{round}"));
        std::fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let durable = write_and_kill(session, &mounted, &directory, 10 * round)?;
        let what = format!("{name} {round}: up again after kill -9 of the daemon");
        if !checks.record(&what, mounted.up().map(drop)) {
            return Err("the file system does not come up again".to_owned());
        }
        let outcome = (0..durable).try_for_each(|number| writer::verify(&directory, number));
        checks.record(&format!("{name} {round}: all {durable} durable files are there"), outcome);
        checks.record(&format!("{name} {round}: strake fs check is clean"), mounted.check());
    }
    if shape.socket {
        let what = format!("{name}: SIGINT ends strake fs check, and the next one is clean");
        checks.record(&what, interrupted(&mounted, "INT"));
    }
    mounted.finish(checks);
    Ok(())
}

/// Kills the daemon once `wanted` files are durable. Returns how many were durable in the end.
fn write_and_kill(
    session: &Session,
    mounted: &Mounted<'_>,
    directory: &Path,
    wanted: u64,
) -> Result<u64, String> {
    let output = mounted.beside("writer")?.join("numbers");
    let numbers = std::fs::File::create(&output).map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = session
        .command(own)
        .arg(writer::COMMAND)
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(numbers)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let durable = || std::fs::read_to_string(&output).unwrap_or_default().lines().count() as u64;
    let end = crate::runner::now() + Duration::from_secs(SECONDS_MAX);
    while durable() < wanted && crate::runner::now() < end {
        command::pause(Duration::from_millis(2));
    }
    mounted.kill()?;
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if crate::runner::now() >= end {
            let _ = child.kill();
            return Err("the writer hangs on the mount of a killed daemon".to_owned());
        }
        command::pause(Duration::from_millis(2));
    }
    if durable() < wanted {
        return Err(format!("{} files in {SECONDS_MAX} s, {wanted} wanted", durable()));
    }
    Ok(durable())
}

/// `down` refuses while a program uses the mount, and `down --force` goes through.
fn busy(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "busy", &Shape::of("2x", 4))?;
    std::fs::write(mounted.mount.join("kept"), b"kept").map_err(|error| error.to_string())?;
    let mut sleeper = session
        .command("sleep")
        .arg("600")
        .current_dir(&mounted.mount)
        .spawn()
        .map_err(|error| error.to_string())?;
    let log = session.log(checks.suite(), "down while busy");
    let refused = command::run(&mut mounted.command("down"), &log, Duration::from_secs(60));
    let outcome = refused.and_then(|ended| {
        let named = ended.output().contains(&sleeper.id().to_string());
        match (ended.status.code(), named) {
            (Some(1), true) => Ok(()),
            _ => Err(ended.complaint("wanted: exit code 1 and the process that is in the way")),
        }
    });
    checks.record("down of a busy mount is refused and names who uses it", outcome);
    let forced = session.run(
        checks.suite(),
        "down by force",
        SECONDS_MAX,
        &mut mounted.command("down --force"),
    );
    checks.record("down --force of a busy mount", forced.map(drop));
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    mounted.up()?;
    let kept = std::fs::read(mounted.mount.join("kept")).map_err(|error| error.to_string());
    checks.hold("what was written before is there", kept == Ok(b"kept".to_vec()), || {
        format!("{kept:?}")
    });
    mounted.finish(checks);
    Ok(())
}
