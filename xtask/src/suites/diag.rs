//! What `strake diag` says of real programs: a trace counts what `dd` did, and shows one write from
//! its request to the disks.
//!
//! The reports are read by a program in Python, which shares nothing with the one that wrote them.

use super::checks::Checks;
use super::command;
use super::faults;
use super::mm;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::time::Duration;

const SECONDS_MAX: u64 = 60;

/// What `trace report --json` must say after `dd` has written eight times 1 MiB.
const COUNTED: &str = r"
import json, sys
report, stats = (json.load(open(path)) for path in sys.argv[1:3])
process = sys.argv[3]
tables = {table['by']: table['rows'] for table in report['tables']}
assert report['status']['on'] and report['status']['overwritten'] == 0, report['status']
def row(by, operation, of):
    found = [row for row in tables[by] if row['operation'] == operation and row['of'] == of]
    assert len(found) == 1, (by, operation, of, tables[by])
    return found[0]
all_writes = row('operation', 'fuse_write', '')
of_stats = next(one for one in stats if one['name'] == 'fuse_write')
counts = sum(count for _, count in of_stats['durations']['counts'])
assert all_writes['count'] == counts == 8, (all_writes, of_stats)
assert all_writes['bytes'] == of_stats['bytes'] == 8 << 20
assert all_writes['totalNs'] == of_stats['durations']['sum_ns'], (all_writes, of_stats)
assert all_writes['maxNs'] == of_stats['durations']['max_ns'], (all_writes, of_stats)
for by, of in (('process', 'dd ' + process), ('file', '/some/written')):
    assert row(by, 'fuse_write', of)['count'] == 8
    assert row(by, 'fuse_fsync', of)['count'] == 1
written = [row('nsd', 'disk write data', 'nsd%d' % nsd)['bytes'] for nsd in range(1, 7)]
# Each block of 1 MiB has four data strips of 256 KiB and two parity strips on six NSDs.
assert all(8 * (256 << 10) <= bytes < 9 * (256 << 10) for bytes in written), written
for one in (row for rows in tables.values() for row in rows):
    assert 0 <= one['minNs'] <= one['meanNs'] <= one['maxNs'] <= one['totalNs'], one
    assert one['minNs'] <= one['p90Ns'] <= one['maxNs'] and one['failures'] <= one['count'], one
    assert one['minNs'] <= one['medianNs'] <= one['maxNs'], one
    assert 0 < one['medianPercent'] <= 100, one
";

/// What the picture must show of one synchronous write of 1 MiB.
const PICTURE: &str = r"
import json, sys
events = json.load(open(sys.argv[1]))['traceEvents']
bars = [event for event in events if event['ph'] == 'X']
writes = [bar for bar in bars if bar['name'] == 'fuse_write']
assert len(writes) == 1, writes
write, = writes
assert write['args']['process'] == 'dd ' + sys.argv[2], write
assert write['args']['file'] == '/synchronous' and write['args']['bytes'] == 1 << 20, write
parts = [bar for bar in bars if bar['args'].get('request') == write['args']['request']]
def inside(part, whole, slack=0.002):
    end = lambda bar: bar['ts'] + bar['dur']
    return part['ts'] + slack >= whole['ts'] and end(part) <= end(whole) + slack
assert all(inside(part, write) for part in parts), parts
of = lambda name: [part for part in parts if part['name'] == name]
assert len(of('write')) == len(of('blockWrite')) == 1, parts
nsds = ['nsd%d' % nsd for nsd in range(1, 7)]
for name in ('call write', 'disk write data', 'call commit'):
    assert sorted({part['args']['nsd'] for part in of(name)}) == nsds, (name, of(name))
# Each I/O is within the call of its NSD, on the same thread.
for disk in of('disk write data'):
    calls = [call for call in of('call write') if call['tid'] == disk['tid']]
    around = [call for call in calls if inside(disk, call)]
    assert len(around) == 1 and around[0]['args']['nsd'] == disk['args']['nsd'], disk
# Each thread has a name, and each arrow begins in a bar of its request and ends in another one.
named = {event['tid'] for event in events if event['ph'] == 'M' and event['name'] == 'thread_name'}
assert {bar['tid'] for bar in bars} == named
starts, ends = ({one['id']: one for one in events if one['ph'] == ph} for ph in 'sf')
assert starts.keys() == ends.keys() and starts
def requests_at(point):
    here = dict(ts=point['ts'], dur=0)
    around = [bar for bar in bars if bar['tid'] == point['tid'] and inside(here, bar)]
    return {bar['args']['request'] for bar in around if 'request' in bar['args']}
for number, end in ends.items():
    assert requests_at(starts[number]) & requests_at(end), (starts[number], end)
others = {part['tid'] for part in parts} - {write['tid']}
reached = {end['tid'] for number, end in ends.items() if starts[number]['tid'] == write['tid']}
assert others and others <= reached, (others, reached)
";

/// What `mon -p fs_io_s` must say after `dd` has written eight times 1 MiB and `cat` has read them.
const COUNTERS: &str = r"
import sys
keys = '_br_ _bw_ _oc_ _cc_ _rdc_ _wc_ _dir_ _iu_'.split()
def answer(path):
    words = open(path).read().split()
    assert words[0] == '_fs_io_s_' and words[words.index('_rc_') + 1] == '0', words
    return {key: int(words[words.index(key) + 1]) for key in ['_d_', *keys]}
before, after, reset = (answer(path) for path in sys.argv[1:4])
did = {key: after[key] - before[key] for key in after}
assert before['_d_'] == 6
assert did['_bw_'] == did['_br_'] == 8 << 20 and did['_wc_'] == 8, did
assert did['_oc_'] == did['_cc_'] == 2, did
assert did['_dir_'] > 0 and did['_iu_'] > 0 and did['_rdc_'] >= 8, did
assert all(reset[key] == 0 for key in keys), reset
";

/// What `mon -p rhist s` must say after fio's writes and reads, whose counts are the arguments.
const HISTOGRAMS: &str = r"
import sys
lines = [line.split() for line in open(sys.argv[1]).read().splitlines()]
assert lines.pop() == ['_end_']
found, latencies = {}, {}
for words in lines:
    if words[0] == '_rhist_':
        assert words[words.index('_rc_') + 1] == '0', words
        kind = words[words.index('_k_') + 1]
    elif words[0] == '_R_':
        size = kind, int(words[1]), int(words[2])
        found[size] = int(words[4])
    else:
        assert words[0] == '_L_' and float(words[1]) < (float(words[2]) or 1e9), words
        latencies[size] = latencies.get(size, 0) + int(words[4])
assert found == latencies, (found, latencies)
assert found == {('w', 4097, 65536): 32, ('w', 0, 4096): 16, ('r', 65537, 1048576): 4}, found
";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "trace", &Shape::of("4+2p", 6))?;
    checks.record("a report without a trace says how to start one", none_yet(session, &mounted));
    checks.record("a report counts what dd did, as diag stats does", counted(&mounted));
    checks.record("a picture shows one write from request to disks", picture(&mounted));
    checks.record("its steps are drawn, from the request to each disk", drawn(&mounted));
    checks.record("filters leave out the rest", filtered(&mounted));
    checks.record("a stopped trace stays as it is", stopped(&mounted));
    checks.record("diag all has everything but names and contents", all(&mounted));
    checks
        .record("mon counts what dd and cat did, and from zero after a reset", counters(&mounted));
    checks.record("mon counts requests by size and time", histograms(session, &mounted));
    checks.record("mon takes requests from files and pipes", requests(&mounted));
    checks.record("a file is explained", explained(&mounted));
    checks.record("a file is explained with a disk away", explained_degraded(&mounted));
    checks.record("the mm commands say and do the same", mm::on_one(session, &mounted));
    mounted.finish(checks);
    Ok(())
}

/// Runs a shell script in the mount and returns what it prints.
fn script(mounted: &Mounted<'_>, name: &str, script: &str) -> Result<String, String> {
    let mut shell = mounted.outside("sh");
    shell.arg("-ec").arg(script).current_dir(&mounted.mount);
    Ok(mounted.program(name, SECONDS_MAX, &mut shell)?.output().trim().to_owned())
}

/// Has a Python program judge files, which are named by their contents.
fn judge(
    mounted: &Mounted<'_>,
    name: &str,
    program: &str,
    contents: &[(&str, String)],
    argument: &str,
) -> Result<(), String> {
    let directory = mounted.beside("judged")?;
    let mut python = mounted.outside("/usr/bin/python3");
    python.arg("-c").arg(program);
    for (file, text) in contents {
        let path = directory.join(file);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        python.arg(path);
    }
    python.arg(argument);
    mounted.program(name, SECONDS_MAX, &mut python).map(drop)
}

fn none_yet(session: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let log = session.log("diag", "no trace yet");
    let mut report = mounted.command("diag trace report");
    let ended = command::run(&mut report, &log, Duration::from_secs(SECONDS_MAX))?;
    let advises = ended.output().contains("strake diag trace start");
    match (ended.status.code(), advises) {
        (Some(1), true) => Ok(()),
        _ => Err(ended.complaint("not exit code 1 with advice")),
    }
}

fn counted(mounted: &Mounted<'_>) -> Result<(), String> {
    mounted.say("diag trace start")?;
    let process = script(
        mounted,
        "dd",
        "mkdir some; dd if=/dev/zero of=some/written bs=1M count=8 conv=fsync status=none & echo $!; wait $!",
    )?;
    // What is written behind is over now.
    mounted.sync()?;
    let report = mounted.say("diag trace report --rows 1000 --json")?;
    let stats = mounted.say("diag stats --json")?;
    let contents = [("report.json", report), ("stats.json", stats)];
    judge(mounted, "judge the report", COUNTED, &contents, &process)?;
    let text = mounted.say("diag trace report --by process")?;
    let named = format!("fuse_write 'dd {process}'");
    if text.contains(&named) { Ok(()) } else { Err(format!("'{named}' is not in it:\n{text}")) }
}

fn picture(mounted: &Mounted<'_>) -> Result<(), String> {
    mounted.say("diag trace start --events 100000")?;
    let process = script(
        mounted,
        "dd of one block",
        "dd if=/dev/zero of=synchronous bs=1M count=1 oflag=sync status=none & echo $!; wait $!",
    )?;
    let path = mounted.beside("judged")?.join("trace.json");
    let mut report = mounted.command("diag trace report");
    report.arg("--chrome").arg(&path);
    mounted.program("write the picture", SECONDS_MAX, &mut report)?;
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    judge(mounted, "judge the picture", PICTURE, &[("trace.json", text)], &process)
}

/// The write of [`picture`] as a drawing: one of six disks for each strip, and the commits.
fn drawn(mounted: &Mounted<'_>) -> Result<(), String> {
    let path = mounted.beside("judged")?.join("write.svg");
    let mut report = mounted.command("diag trace report --of write");
    report.arg("--picture").arg(&path);
    mounted.program("draw the write", SECONDS_MAX, &mut report)?;
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let steps = |of: &str| {
        text.lines().filter(|it| it.contains("class=\"label\"") && it.contains(of)).count()
    };
    let found =
        ["fuse_write", "call write nsd", "disk write data nsd", "call commit nsd"].map(steps);
    let is_named = text.contains("write of 1 MiB to /synchronous: ");
    let [requests, calls, disks, commits] = found;
    match is_named && (requests, calls) == (1, 6) && disks >= 6 && commits >= 6 {
        true => Ok(()),
        false => Err(format!("{found:?} in {}", path.display())),
    }
}

fn filtered(mounted: &Mounted<'_>) -> Result<(), String> {
    mounted.say("diag trace start")?;
    script(mounted, "two files", "echo 1 > one; echo 2 > two; cat one two > /dev/null")?;
    let of = |words: &str| -> Result<String, String> {
        let mut report = mounted.command("diag trace report --by file --by nsd");
        report.args(words.split(' ')).current_dir(&mounted.mount);
        Ok(mounted.program(&format!("report {words}"), SECONDS_MAX, &mut report)?.output())
    };
    let (one, nobody) = (of("--file one")?, of("--pid 4000000000")?);
    if !one.contains("'/one'") || one.contains("'/two'") {
        return Err(format!("--file: {one}"));
    }
    if nobody.contains("fuse_") { Err(format!("--pid: {nobody}")) } else { Ok(()) }
}

fn stopped(mounted: &Mounted<'_>) -> Result<(), String> {
    let told = mounted.say("diag trace stop")?;
    let before = mounted.say("diag trace report --json")?;
    script(mounted, "another file", "echo 3 > three; sync three")?;
    let after = mounted.say("diag trace report --json")?;
    let again = mounted.say("diag trace stop")?;
    if !told.contains("stopped") || !again.contains("no trace runs") {
        return Err(format!("stop said '{told}', and then '{again}'"));
    }
    if before == after { Ok(()) } else { Err(format!("{before}\nand then\n{after}")) }
}

/// The archive is read by tar(1), and each answer by Python.
fn all(mounted: &Mounted<'_>) -> Result<(), String> {
    let directory = mounted.beside("case")?;
    script(mounted, "a secret", "echo of-the-utmost-secrecy > a-very-secret-name; sync .")?;
    let archive = directory.join("case.tar");
    let mut all = mounted.command("diag all");
    mounted.program("diag all", SECONDS_MAX, all.arg("--output").arg(&archive))?;
    let judge = "set -e
        tar xf case.tar
        for name in readme.txt show.json machine/meminfo; do test -s $name; done
        # A log without an event is empty.
        test -e strake.log
        grep -q 'A support case of the file system' readme.txt
        # Only nodes of a cluster have tokens.
        test $(grep -c missing readme.txt) = $(grep -c 'missing  tokens.json' readme.txt)
        for name in *.json; do /usr/bin/python3 -m json.tool $name > /dev/null; done
        test $(ls *.json | wc -l) -ge 17
        if grep -r -e of-the-utmost-secrecy -e a-very-secret-name .; then exit 1; fi";
    let mut shell = mounted.outside("sh");
    shell.args(["-c", judge]).current_dir(&directory);
    mounted.program("judge the case", SECONDS_MAX, &mut shell).map(drop)
}

fn counters(mounted: &Mounted<'_>) -> Result<(), String> {
    let before = mounted.say("mon -p fs_io_s")?;
    script(
        mounted,
        "dd and cat",
        "dd if=/dev/zero of=counted bs=1M count=8 status=none
        # Nothing comes from the page cache.
        dd if=counted of=/dev/null bs=1M iflag=direct status=none
        ls > /dev/null",
    )?;
    // The kernel tells of the last close when it likes.
    let closes =
        |text: &str| -> Option<u64> { text.split_once("_cc_ ")?.1.split_once(' ')?.0.parse().ok() };
    let wanted = closes(&before).map(|closes| closes + 2);
    faults::wait_until(mounted, "mon -p fs_io_s", |text| closes(text) >= wanted)?;
    let after = mounted.say("mon -p fs_io_s")?;
    mounted.say("mon reset")?;
    let reset = mounted.say("mon -p fs_io_s")?;
    let contents = [("before", before), ("after", after), ("reset", reset)];
    judge(mounted, "judge the counters", COUNTERS, &contents, "")
}

/// What `diag explain` says of a file in the mount.
fn explain(mounted: &Mounted<'_>, name: &str, file: &str) -> Result<String, String> {
    let mut explain = mounted.command("diag explain");
    explain.arg(mounted.mount.join(file));
    Ok(mounted.program(name, SECONDS_MAX, &mut explain)?.output())
}

fn explained(mounted: &Mounted<'_>) -> Result<(), String> {
    script(
        mounted,
        "two files",
        "head -c 10485760 /dev/zero > explained; printf little > little; sync .",
    )?;
    // A program that has one of them open and locked.
    let mut python = mounted.outside("/usr/bin/python3");
    let locked = "import fcntl, subprocess, sys
file = open('explained', 'r+')
fcntl.flock(file, fcntl.LOCK_EX)
sys.exit(subprocess.run(sys.argv[1:]).returncode)";
    let strake = mounted.command("diag explain explained");
    python.args(["-c", locked]).arg(strake.get_program()).args(strake.get_args());
    python.current_dir(&mounted.mount);
    let mut said = mounted.program("explain a locked file", SECONDS_MAX, &mut python)?.output();
    said.push_str(&explain(mounted, "explain a little file", "little")?);
    let nsds = (1..=6).map(|nsd| format!("nsd{nsd} up 10 0 0 0"));
    let wanted = [
        "size 10485760 bytes (10 MiB)",
        "contents 10 blocks of 1 MiB with code 4+2p,",
        "health all strips are there; 0 are not stored",
        "0 of them not yet sent, 0 sent and not yet stable",
        "open 1 handles of this mount",
        "locks FLOCK WRITE lock of process",
        "contents 6 bytes in its inode",
        "locks none",
    ];
    holds(&said, wanted.into_iter().map(str::to_owned).chain(nsds))
}

fn explained_degraded(mounted: &Mounted<'_>) -> Result<(), String> {
    mounted.remove_nsd(4)?;
    faults::wait_for(mounted, "nsd4 ", &["down", "unrecovered"])?;
    let said = explain(mounted, "explain without nsd4", "explained")?;
    mounted.return_nsd(4)?;
    faults::wait_for(mounted, "nsd4 ", &["ready   up"])?;
    let again = explain(mounted, "explain with nsd4", "explained")?;
    let lacks = "health 10 blocks lack strips, and others make up for these; 0 are not stored";
    holds(&said, [lacks, "0 0 0 10", "nsd3 up 10 0 0 0"].map(str::to_owned))?;
    holds(&again, ["all strips are there", "nsd4 up 10 0 0 0"].map(str::to_owned))
}

/// Whether a text has all of these, apart from the number of blanks.
fn holds(text: &str, wanted: impl IntoIterator<Item = String>) -> Result<(), String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match wanted.into_iter().find(|wanted| !words.contains(wanted)) {
        None => Ok(()),
        Some(wanted) => Err(format!("'{wanted}' is not in it:\n{text}")),
    }
}

fn histograms(session: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let refused = |words: &str, why: &str| -> Result<(), String> {
        let log = session.log("diag", words);
        let ended =
            command::run(&mut mounted.command(words), &log, Duration::from_secs(SECONDS_MAX))?;
        let advises = ended.output().contains(why);
        let is_right = ended.status.code() == Some(2) && advises;
        if is_right { Ok(()) } else { Err(ended.complaint(&format!("not exit code 2: {why}"))) }
    };
    refused("mon rhist s", "not yet enabled")?;
    refused("mon rhist nr 4m;1m 1", "range error")?;
    mounted.say("mon rhist nr 4k;64k;1m 1;10")?;
    mounted.say("mon rhist on")?;
    script(
        mounted,
        "writes and reads",
        "dd if=/dev/zero of=sizes bs=16k count=32 oflag=direct status=none
        dd if=/dev/zero of=sizes bs=1k count=16 seek=5000 conv=notrunc status=none
        truncate -s 4M sizes
        dd if=sizes of=/dev/null bs=1M count=4 iflag=direct status=none",
    )?;
    let said = mounted.say("mon rhist off")?;
    if !said.ends_with("rhist off OK\n") {
        return Err(format!("rhist off: {said}"));
    }
    let shown = mounted.say("mon -p rhist s")?;
    judge(mounted, "judge the histograms", HISTOGRAMS, &[("rhist", shown)], "")
}

fn requests(mounted: &Mounted<'_>) -> Result<(), String> {
    let file = mounted.beside("judged")?.join("requests");
    let text = "# what follows is asked twice, but for one\n\n  once ver\nio_s\n";
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    let count = |text: &str, word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    let mut from_file = mounted.command("mon -p -r 2 -d 10");
    from_file.arg("-i").arg(&file);
    let said = mounted.program("mon -i", SECONDS_MAX, &mut from_file)?.output();
    if (count(&said, "_ver_"), count(&said, "_io_s_")) != (1, 2) {
        return Err(format!("-i: {said}"));
    }
    let mut strake = mounted.command("mon -p");
    strake.arg("--silent");
    let words: Vec<String> = std::iter::once(strake.get_program())
        .chain(strake.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let pipe = format!("printf 'io_s\\nsource %s\\n' '{}' | {}", file.display(), words.join(" "));
    let said = script(mounted, "mon from a pipe", &pipe)?;
    if (count(&said, "_ver_"), count(&said, "_io_s_")) != (1, 2) {
        return Err(format!("a pipe: {said}"));
    }
    Ok(())
}
