//! Problems are staged for real, one after the other, and `strake diag explain slow` must name each
//! of them first: a slow disk, small unaligned writes, an fsync for each record, a page pool that
//! is too small, a disk that is nearly full. After quiet work it must name nothing. The short form
//! leaves out the page pool, the full disk, and the health of a file system without trouble.
//!
//! A machine that does much else meanwhile can make anything slow. So a stage that is not named
//! first is played again, a few times.
//!
//! The slow disk lies on a loop device that the kernel slows down (`blkio.throttle`). Programs in
//! Python do the rest.

use super::checks::Checks;
use super::command;
use super::faults::wait_for;
use super::mounted::{Mounted, Shape};
use super::reference::Xfs;
use super::session::Session;
use crate::runner::Tally;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

const SECONDS_MAX: u64 = 60;
/// How long each problem lasts, in seconds.
const STAGE_SECONDS: u32 = 6;
/// The rounds of quiet work.
const QUIET_ROUNDS: u32 = 20;
const QUIET_ROUNDS_QUICK: u32 = 2;
/// So often a stage is played.
const ATTEMPTS: u32 = 3;
/// The slow disk does so many writes each second.
const SLOW_WRITES: u32 = 40;
/// Where the kernel takes limits for devices. Hosts with the second version of control groups
/// have no such file for all processes.
const THROTTLE: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device";

/// Ordinary work with pauses: it makes, reads, lists and removes files, and makes them durable.
const QUIET: &str = r"
import os, time
os.makedirs('quiet', exist_ok=True)
for turn in range(4):
    for number in range(100):
        name = 'quiet/%d' % number
        with open(name, 'wb') as file:
            file.write(b'x' * 20000)
        assert len(open(name, 'rb').read()) == 20000
    for name in os.listdir('quiet'):
        os.stat('quiet/' + name)
    directory = os.open('quiet', os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    for name in os.listdir('quiet'):
        os.remove('quiet/' + name)
    time.sleep(0.5)
";

/// Appends records, and makes each durable.
const RECORDS: &str = r"
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
file = os.open('journal', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while time.monotonic() < end:
    os.write(file, b'a record of about sixty bytes, which must not be lost at all\n')
    os.fsync(file)
";

/// Writes small pieces at odd places of a file that is larger than the page pool.
const SMALL: &str = r"
import os, random, sys, time
random.seed(1)
size = 192 << 20
file = os.open('table', os.O_RDWR | os.O_CREAT)
for at in range(0, size, 1 << 20):
    os.pwrite(file, b'x' * (1 << 20), at)
os.fsync(file)
time.sleep(3)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(100):
        os.pwrite(file, b'y' * random.randrange(50, 3000), random.randrange(1, size - 4096) | 1)
";

/// Writes as fast as it can.
const BURST: &str = r"
import mmap, os, sys, time
end = time.monotonic() + float(sys.argv[1])
file = os.open('burst', os.O_WRONLY | os.O_CREAT)
whole_pages = mmap.mmap(-1, 1 << 20)
at = 0
while time.monotonic() < end:
    os.pwrite(file, whole_pages, at % (400 << 20))
    at += 1 << 20
";

/// Fills the file system, and then overwrites what is there.
const FULL: &str = r"
import errno, os, random, sys, time
random.seed(1)
file = os.open('all', os.O_RDWR | os.O_CREAT)
size = 0
try:
    while True:
        size += os.pwrite(file, b'x' * (1 << 18), size)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
os.fsync(file)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(20):
        os.pwrite(file, b'y' * (1 << 16), random.randrange(0, size >> 16) << 16)
    os.fsync(file)
";

/// Copies files to the file system and makes them durable.
const COPY: &str = r"
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    with open('copy-%d' % (number % 20), 'wb') as file:
        file.write(b'x' * (4 << 20))
        file.flush()
        os.fsync(file.fileno())
    number += 1
";

/// What the report must say: the first finding, and that the parts of the time add up.
const JUDGE: &str = r"
import json, sys
report, wanted = json.load(open(sys.argv[1])), sys.argv[2]
found = [finding['id'] for finding in report['findings']]
assert (found[:1] or ['nothing'])[0] == wanted, (found, report)
spent = sum(part['nanos'] for part in report['spent'])
assert abs(spent - report['busyRequestsNs']) < 1000, report
assert sum(finding['nanos'] for finding in report['findings'] if finding['id'] != 'held-up') \
    <= report['busyRequestsNs'] + 1000, report
for finding in report['findings']:
    assert finding['evidence'] and finding['advice'], finding
";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "programs", &Shape::of("2x", 4))?;
    let rounds = if session.quick { QUIET_ROUNDS_QUICK } else { QUIET_ROUNDS };
    for round in 1..=rounds {
        let quiet = stage(&mounted, "quiet", QUIET, "2s", "nothing");
        checks.record(&format!("quiet work, round {round}: nothing is slow"), quiet);
    }
    let records = stage(&mounted, "records", RECORDS, "5s", "sync-per-record");
    checks.record("an fsync for each record is named first", records);
    let filters =
        (1..ATTEMPTS).fold(filtered(&mounted), |told, _| told.or_else(|_| filtered(&mounted)));
    checks.record("the filters leave out what others asked for", filters);
    let small = stage(&mounted, "small", SMALL, "5s", "small-writes");
    checks.record("small unaligned writes are named first", small);
    let health = is_healthy(&mounted, 3, "yellow requests requests_slow: ");
    checks.record("health: what was slow is yellow", health);
    mounted.finish(checks);
    if !session.quick {
        healthy(session, checks)?;
        crowded(session, checks)?;
    }
    slow_disk(session, checks)
}

/// Programs want more memory or more space than there is.
fn crowded(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let little = Shape { pagepool: "16M", ..Shape::of("2x", 4) };
    let mounted = Mounted::create(session, checks, "page pool", &little)?;
    let burst = stage(&mounted, "burst", BURST, "5s", "page-pool");
    checks.record("a page pool that is too small is named first", burst);
    mounted.finish(checks);

    let small = Shape { block_size: "256K", nsd_size: "64M", ..Shape::of("2x", 4) };
    let mounted = Mounted::create(session, checks, "full", &small)?;
    let full = stage(&mounted, "full", FULL, "5s", "full");
    checks.record("a disk that is nearly full is named first", full);
    let health = is_healthy(&mounted, 3, "space_low: nsd").or_else(|_| {
        // It may be full to the last byte.
        is_healthy(&mounted, 4, "space_out: ")
    });
    checks.record("health: a disk that is nearly full is yellow, or red", health);
    mounted.finish(checks);
    Ok(())
}

/// Runs a program in the mount, and then has the last seconds explained.
fn stage(
    mounted: &Mounted<'_>,
    name: &str,
    program: &str,
    since: &str,
    wanted: &str,
) -> Result<(), String> {
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = staged(mounted, name, program, since, wanted);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn staged(
    mounted: &Mounted<'_>,
    name: &str,
    program: &str,
    since: &str,
    wanted: &str,
) -> Result<(), String> {
    let mut python = mounted.outside("/usr/bin/python3");
    python.args(["-c", program, &STAGE_SECONDS.to_string()]).current_dir(&mounted.mount);
    mounted.program(name, SECONDS_MAX, &mut python)?;
    let report = mounted.say(&format!("diag explain slow --since {since} --json"))?;
    let path = mounted.beside("judged")?.join("report.json");
    std::fs::write(&path, &report).map_err(|error| error.to_string())?;
    let mut python = mounted.outside("/usr/bin/python3");
    python.args(["-c", JUDGE]).arg(&path).arg(wanted);
    mounted.program(&format!("judge {name}"), SECONDS_MAX, &mut python).map(drop)
}

/// A file system that is new, with a disk away, with too many away, and down.
fn healthy(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "health", &Shape::of("2x", 4))?;
    let green = is_healthy(&mounted, 0, "green mount /").and_then(|()| {
        let listed = mounted.say("health")?;
        let is_green = |line: &str| line.starts_with("green ");
        if listed.lines().all(is_green) { Ok(()) } else { Err(listed) }
    });
    checks.record("health: a new file system is green", green);
    mounted.remove_nsd(2)?;
    let away = wait_for(&mounted, "nsd2 ", &["down", "unrecovered"])
        .and_then(|()| is_healthy(&mounted, 3, "yellow nsd2 nsd_down: "));
    checks.record("health: a disk that is away is yellow", away);
    mounted.remove_nsd(3)?;
    let lost = wait_for(&mounted, "nsd3 ", &["down", "unrecovered"])
        .and_then(|()| is_healthy(&mounted, 4, "red nsd3 nsd_lost: "));
    checks.record("health: more than the code tolerates is red", lost);
    for nsd in [2, 3] {
        mounted.return_nsd(nsd)?;
        wait_for(&mounted, &format!("nsd{nsd} "), &["ready   up"])?;
    }
    checks.record("health: with all disks back it is green", is_healthy(&mounted, 0, "nsd3"));
    mounted.down()?;
    let down = is_healthy(&mounted, 4, "red daemon daemon_down: ");
    checks.record("health: a file system that is down is red", down);
    mounted.up()?;
    mounted.finish(checks);
    Ok(())
}

/// `strake health` ends with this code and has a line with this text. `--json` says the same.
fn is_healthy(mounted: &Mounted<'_>, code: i32, text: &str) -> Result<(), String> {
    let run = |words: &str| {
        let log = mounted.log_of(words);
        command::run(&mut mounted.command(words), &log, Duration::from_secs(SECONDS_MAX))
    };
    let (said, json) = (run("health")?, run("health --json")?);
    let colour = match code {
        0 => "green",
        3 => "yellow",
        _ => "red",
    };
    let has_colour = json.output().contains(&format!("\"colour\": \"{colour}\""));
    if said.status.code() != Some(code) || json.status.code() != Some(code) || !has_colour {
        return Err(json.complaint(&format!("not exit code {code} and {colour}")));
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words(&said.output()).contains(text) {
        true => Ok(()),
        false => Err(format!("'{text}' is not in:\n{}", said.output())),
    }
}

/// One program syncs each record and another one does nothing bad. Each is asked about alone.
fn filtered(mounted: &Mounted<'_>) -> Result<(), String> {
    let script = format!(
        "python3 -c \"$1\" {STAGE_SECONDS} & bad=$!
        while kill -0 $bad 2> /dev/null; do echo > good; sleep 0.1; done
        wait $bad
        printf '%s ' $bad $$"
    );
    let mut shell = mounted.outside("sh");
    shell.args(["-ec", &script, "sh", RECORDS]).current_dir(&mounted.mount);
    let ended = mounted.program("two programs", SECONDS_MAX, &mut shell)?.output();
    let [bad, good] = ended.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!("no two processes: {ended}"));
    };
    let ask = |words: String, path: Option<&str>| -> Result<String, String> {
        let mut explain = mounted.command("diag explain slow --since 5s");
        explain.args(words.split_whitespace());
        if let Some(path) = path {
            explain.arg("--path").arg(mounted.mount.join(path));
        }
        let name = format!("explain {words} {}", path.unwrap_or(""));
        Ok(mounted.program(&name, SECONDS_MAX, &mut explain)?.output())
    };
    let is_named = |text: &str| text.contains("1. A program makes each record durable by itself");
    let of_bad = ask(format!("--pid {bad}"), None)?;
    if !is_named(&of_bad) || !of_bad.contains(&format!("python3 ({bad})")) {
        return Err(format!("the program is not named: {of_bad}"));
    }
    let of_file = ask(String::new(), Some("journal"))?;
    if !is_named(&of_file) {
        return Err(format!("nothing is said of its file: {of_file}"));
    }
    for (words, path) in [(format!("--pid {good}"), None), (String::new(), Some("good"))] {
        let said = ask(words.clone(), path)?;
        if !said.contains("Nothing is slow") {
            return Err(format!("{words} {path:?}: {said}"));
        }
    }
    Ok(())
}

/// A device that the kernel slows down, until this is dropped.
struct Slowed {
    device: String,
}

impl Slowed {
    fn new(host: &Xfs<'_>, writes: u32) -> Result<Slowed, String> {
        let device = std::fs::metadata(&host.mount).map_err(|error| error.to_string())?.dev();
        // The kernel's numbers of a device, as the C library packs them.
        let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
        let minor = (device & 0xff) | (device >> 12 & !0xff);
        let slowed = Slowed { device: format!("{major}:{minor}") };
        slowed.limit(writes)?;
        Ok(slowed)
    }

    /// 0 is no limit.
    fn limit(&self, writes: u32) -> Result<(), String> {
        std::fs::write(THROTTLE, format!("{} {writes}", self.device))
            .map_err(|error| format!("{THROTTLE}: {error}"))
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        let _ = self.limit(0);
    }
}

fn slow_disk(session: &Session, checks: &mut Checks) -> Result<(), String> {
    if !PathBuf::from(THROTTLE).exists() {
        println!("SKIPPED: this host cannot slow down a device for all processes ({THROTTLE})");
        checks.add(Tally { skipped: 1, ..Tally::default() });
        return Ok(());
    }
    let host = Xfs::mount(session, checks, "slow-host", 3 << 30)?;
    let mounted = Mounted::create(session, checks, "slow disk", &Shape::of("2x", 4))?;
    let path = host.mount.join("disk");
    mounted.say(&format!("disk replace nsd2 {}", path.display()))?;
    wait_for(&mounted, "nsd5 ", &["ready   up"])?;
    let slowed = Slowed::new(&host, SLOW_WRITES)?;
    let slow = stage(&mounted, "copy", COPY, "5s", "slow-disk").and_then(|()| {
        let said = mounted.say("diag explain slow --since 8s")?;
        match said.contains("1. nsd5 is slower than its peers") {
            true => Ok(()),
            false => Err(said),
        }
    });
    drop(slowed);
    checks.record("a slow disk is named first", slow);
    let health = is_healthy(&mounted, 3, "yellow nsd5 nsd_slow: a ");
    checks.record("health: a slow disk is yellow", health);
    mounted.finish(checks);
    Ok(())
}
