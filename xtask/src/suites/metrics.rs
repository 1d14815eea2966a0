//! What Prometheus gets: over HTTP, read by a parser in Python that shares nothing with the writer,
//! and compared with what `strake diag stats` and `strake disk list` say. Also `strake stat`, and
//! `strake top` on a real pseudo-terminal.

use super::checks::Checks;
use super::command;
use super::faults::wait_for;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::net::TcpListener;
use std::time::Duration;

const SECONDS_MAX: u64 = 60;

/// Gets the metrics, and holds them against the listings of the same file system.
const FETCH: &str = r#"
import json, re, sys, urllib.error, urllib.request
address, stats, disks = sys.argv[1], *(json.load(open(path)) for path in sys.argv[2:4])
answer = urllib.request.urlopen('http://%s/metrics' % address, timeout=20)
assert answer.status == 200
assert answer.headers['Content-Type'].startswith('text/plain; version=0.0.4')
text = answer.read().decode()
samples, kinds, helped = {}, {}, set()
for line in text.splitlines():
    if line.startswith('# HELP '):
        helped.add(line.split(' ', 3)[2])
    elif line.startswith('# TYPE '):
        _, _, name, kind = line.split(' ')
        assert name not in kinds, name
        kinds[name] = kind
    else:
        match = re.fullmatch(r'([a-z_]+)\{(.*)\} (\S+)', line)
        assert match, line
        labels = dict(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2]))
        assert labels.pop('fs') == 'metrics', line
        key = match[1], tuple(sorted(labels.items()))
        assert key not in samples, line
        samples[key] = float(match[3])
assert set(kinds) == helped
for name, labels in samples:
    family = re.sub('_(bucket|sum|count)$', '', name)
    assert kinds.get(name) or kinds.get(family) == 'histogram', name
def sample(name, **labels):
    return samples[name, tuple(sorted(labels.items()))]
for one in stats:
    if one['name'] not in ('fuse_write', 'fuse_fsync'):
        continue
    count = sum(count for _, count in one['durations']['counts'])
    assert count > 0 and sample('strake_operations_total', operation=one['name']) == count, one
    assert sample('strake_operation_bytes_total', operation=one['name']) == one['bytes']
    seconds = sample('strake_operation_seconds_total', operation=one['name'])
    assert abs(seconds - one['durations']['sum_ns'] / 1e9) < 1e-6
assert sample('strake_operation_bytes_total', operation='fuse_write') == 8 << 20
for disk in disks:
    name = disk['name']
    up = disk['availability'].lower() == 'up'
    assert sample('strake_nsd_up', nsd=name) == (1 if up else 0), disk
    assert sample('strake_nsd_bytes', nsd=name) > 0
    last = 0
    for bound in ('0.0001', '0.001', '0.01', '0.1', '1', '+Inf'):
        count = sample('strake_disk_seconds_bucket', nsd=name, work='sync', le=bound)
        assert count >= last
        last = count
    assert last == sample('strake_disk_seconds_count', nsd=name, work='sync') > 0
    assert sample('strake_disk_bytes_total', nsd=name, work='write') > 1 << 20
assert sample('strake_health', component='mount', event='') == 0
for path, method, status in (('/', 'GET', 404), ('/metrics', 'POST', 405)):
    try:
        request = urllib.request.Request('http://%s%s' % (address, path), method=method)
        urllib.request.urlopen(request, timeout=20)
        raise AssertionError((path, method))
    except urllib.error.HTTPError as error:
        assert error.code == status, (path, method, error.code)
"#;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "metrics", &Shape::of("2x", 4))?;
    let address = free_address()?;
    mounted.down()?;
    let taken = TcpListener::bind(&address).map_err(|error| error.to_string())?;
    checks.record("an address that is in use is refused", refused(session, &mounted, &address));
    drop(taken);
    let mut up = mounted.up_command();
    up.args(["--set", &format!("metrics={address}")]);
    mounted.program("up with metrics", SECONDS_MAX, &mut up)?;
    let mut dd = mounted.outside("dd");
    dd.args(["if=/dev/zero", "of=written", "bs=1M", "count=8", "conv=fsync"]);
    mounted.program("dd", SECONDS_MAX, dd.current_dir(&mounted.mount))?;
    mounted.sync()?;
    checks.record("metrics are what the listings say", fetched(&mounted, &address));
    mounted.remove_nsd(2)?;
    let away = wait_for(&mounted, "nsd2 ", &["down", "unrecovered"]);
    let away = away.and_then(|()| fetched(&mounted, &address));
    checks.record("and with a disk away", away);
    mounted.return_nsd(2)?;
    wait_for(&mounted, "nsd2 ", &["ready   up"])?;
    let said = mounted.say("diag metrics").and_then(|text| {
        let is_there = text.contains("# TYPE strake_disk_seconds histogram");
        if is_there { Ok(()) } else { Err(text) }
    });
    checks.record("diag metrics prints them", said);
    checks.record("stat shows what dd does", stat(&mounted));
    checks.record("top shows disks on a terminal, and restores it", top(session, &mounted));
    mounted.finish(checks);
    Ok(())
}

/// Runs `strake top` on a pseudo-terminal, and looks at what it draws and leaves behind.
const TOP: &str = r"
import fcntl, os, re, select, struct, subprocess, sys, termios, time
screen, own = os.openpty()
fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 120, 0, 0))
before, drawn = termios.tcgetattr(own), b''
top = subprocess.Popen(sys.argv[1:], stdin=own, stdout=own, stderr=own)
def until(*words):
    global drawn
    end = time.monotonic() + 40
    # Only what changes is drawn, so orders for the terminal stand between words.
    def seen():
        text = drawn.decode(errors='replace')
        return text + re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', ' ', text)
    while not all(word in seen() for word in words):
        assert time.monotonic() < end and top.poll() is None, (words, drawn[-3000:])
        if select.select([screen], [], [], 1)[0]:
            drawn += os.read(screen, 65536)
def press(keys):
    global drawn
    drawn = b''
    os.write(screen, keys)
until('\x1b[?1049h', 'programs', '1 now', '2 disks')
assert termios.tcgetattr(own) != before, 'the terminal is raw meanwhile'
press(b'2')
until('nsd1', 'nsd4', 'ms sync', 'where')
press(b'\r')
until('failure group', 'metadata')
press(b'\x1b')
until('sync/s')
press(b's')
until('programs made')
press(b'q')
assert top.wait(40) == 0, top.returncode
assert b'\x1b[?1049l' in os.read(screen, 65536)
assert termios.tcgetattr(own) == before, 'the terminal is as it was'
# A terminal that goes takes the command with it.
drawn = b''
top = subprocess.Popen(sys.argv[1:], stdin=own, stdout=own, stderr=own)
until('programs')
os.close(own)
os.close(screen)
assert top.wait(40) != 0, top.returncode
";

fn top(session: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let strake = mounted.command("top");
    let mut python = mounted.outside("/usr/bin/python3");
    python.args(["-c", TOP]).arg(strake.get_program()).args(strake.get_args());
    python.env("TERM", "xterm-256color");
    mounted.program("top on a terminal", SECONDS_MAX, &mut python)?;
    let log = session.log("metrics", "top without a terminal");
    let limit = Duration::from_secs(SECONDS_MAX);
    let ended = command::run(&mut mounted.command("top"), &log, limit)?;
    if ended.status.code() != Some(2) || !ended.output().contains("no terminal") {
        return Err(ended.complaint("not exit code 2 without a terminal"));
    }
    let text = mounted.say("top --once 1")?;
    let pages = ["now", "disks", "nodes", "files", "clients", "waits"];
    let lines: Vec<&str> = text.lines().collect();
    match pages.iter().all(|page| lines.contains(page)) && text.contains("nsd4  up") {
        true => Ok(()),
        false => Err(format!("top --once says\n{text}")),
    }
}

/// What `strake stat` must say of `dd`, which writes a MiB and syncs it, again and again.
const STAT: &str = r"
import json, sys
table, lines = open(sys.argv[1]).read().splitlines(), open(sys.argv[2]).read().splitlines()
assert len(table) == 4 and [row.count('|') for row in table] == [5] * 4, table
lines = [json.loads(line) for line in lines]
assert len(lines) == 3
for line in lines:
    assert 0 <= line['busyPercent'] <= 101 and 0 <= line['ownPercent'] <= 101, line
busiest = max(lines, key=lambda line: line['writes'])
assert busiest['writes'] > 1 and busiest['writtenBytes'] > 1 << 19, lines
assert busiest['calls'] > 1 and busiest['callMs'] > 0, lines
# Code 2x has two copies.
assert sum(line['diskWrittenBytes'] for line in lines) > sum(line['writtenBytes'] for line in lines)
assert busiest['diskIos'] > 1 and busiest['diskMs'] > 0, lines
";

fn stat(mounted: &Mounted<'_>) -> Result<(), String> {
    let directory = mounted.beside("judged")?;
    let script = r#"(end=$(($(date +%s) + 6)); while test $(date +%s) -lt $end; do
            dd if=/dev/zero of=again bs=1M count=1 oflag=sync status=none; done) &
        "$@" 1 2 > "$TABLE"
        "$@" --json 1 3 > "$LINES"
        wait"#;
    let (table, lines) = (directory.join("stat"), directory.join("stat.json"));
    let strake = mounted.command("stat");
    let mut shell = mounted.outside("sh");
    shell.args(["-ec", script, "sh"]).arg(strake.get_program()).args(strake.get_args());
    shell.env("TABLE", &table).env("LINES", &lines).current_dir(&mounted.mount);
    mounted.program("stat", SECONDS_MAX, &mut shell)?;
    let mut python = mounted.outside("/usr/bin/python3");
    python.args(["-c", STAT]).arg(table).arg(lines);
    mounted.program("judge stat", SECONDS_MAX, &mut python).map(drop)
}

/// An address of this machine with a port that nobody uses.
fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|it| it.to_string()).map_err(|error| error.to_string())
}

fn refused(session: &Session, mounted: &Mounted<'_>, address: &str) -> Result<(), String> {
    let mut up = mounted.up_command();
    up.args(["--set", &format!("metrics={address}")]);
    let log = session.log("metrics", "address in use");
    let ended = command::run(&mut up, &log, Duration::from_secs(SECONDS_MAX))?;
    match (ended.status.code(), ended.output().contains("choose another address")) {
        (Some(2), true) => Ok(()),
        _ => Err(ended.complaint("not exit code 2 with advice")),
    }
}

fn fetched(mounted: &Mounted<'_>, address: &str) -> Result<(), String> {
    let directory = mounted.beside("judged")?;
    let mut python = mounted.outside("/usr/bin/python3");
    python.args(["-c", FETCH, address]);
    for words in ["diag stats --json", "disk list --json"] {
        let path = directory.join(words.replace(' ', "-"));
        std::fs::write(&path, mounted.say(words)?).map_err(|error| error.to_string())?;
        python.arg(path);
    }
    mounted.program("fetch the metrics", SECONDS_MAX, &mut python).map(drop)
}
