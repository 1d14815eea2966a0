//! Trouble between nodes is staged for real in a lab of four, and `strake diag explain slow` must
//! name it first: nodes that take a file from each other, a network that loses packets in either
//! direction, a node that is silent. After quiet work it must name nothing. And a client that does
//! not reach one of the servers goes on.
//!
//! A machine that does much else meanwhile can make anything slow. So a stage that is not named
//! first is played again, a few times.

use super::checks::Checks;
use super::command::{self, Ended, pause};
use super::session::Session;
use crate::runner::now;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECONDS_MAX: u64 = 100;
/// How often to look, and for how long, whether something has come about.
const LOOK: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long each stage lasts, in seconds.
const STAGE_SECONDS: u32 = 8;
/// The node without disks. The leader does not care whether it reaches its server process.
const CLIENT: usize = 4;
/// So often a stage is played.
const ATTEMPTS: u32 = 3;
/// A way around a bad link is found within seven seconds.
const BAD_LINK_SECONDS: u32 = 10;
const QUIET_ROUNDS: u32 = 20;
const QUIET_ROUNDS_QUICK: u32 = 3;
/// A node counts as silent from three seconds on. A few seconds later its disk is out of use, and
/// nobody asks it any more.
const SILENT_SECONDS: u64 = 3;
/// A disk that does not answer is given up after a few seconds, instead of a minute.
const UP: &str = "up --nodes 3 --clients 1 --code 2x --nsd-size 256M --set nsd_io_limit=1s";

/// Ordinary work in a directory of its own. It rests nine times as long as it works, however slow
/// the machine is.
const QUIET: &str = r"
import os, sys, time
os.makedirs(sys.argv[2], exist_ok=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    begun = time.monotonic()
    for number in range(5):
        name = '%s/%d' % (sys.argv[2], number)
        with open(name, 'wb') as file:
            file.write(b'x' * 20000)
        assert len(open(name, 'rb').read()) == 20000
        os.remove(name)
    time.sleep(9 * (time.monotonic() - begun))
";

/// Reads and writes one small file again and again.
const COUNT: &str = r"
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    file = os.open('counter', os.O_RDWR | os.O_CREAT)
    os.pread(file, 8, 0)
    os.pwrite(file, b'12345678', 0)
    os.close(file)
";

/// Copies files to the file system and makes them durable.
const COPY: &str = r"
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    with open('copy-%d' % (number % 10), 'wb') as file:
        file.write(b'x' * (4 << 20))
        file.flush()
        os.fsync(file.fileno())
    number += 1
";

/// Writes to a file and keeps it open, until its input ends.
const HOLD: &str = r"
import sys
file = open('held', 'wb', buffering=0)
file.write(b'not durable yet')
print('ready', flush=True)
sys.stdin.read()
";

/// A report's first finding, and words that it must contain.
const JUDGE: &str = r"
import json, sys
report, wanted, words = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3:]
findings = report['findings']
assert ([it['id'] for it in findings][:1] or ['nothing'])[0] == wanted, report
spent = sum(part['nanos'] for part in report['spent'])
assert abs(spent - report['busyRequestsNs']) < 1000, report
now = ['held-up', 'silent-node']
assert sum(it['nanos'] for it in findings if it['id'] not in now) \
    <= report['busyRequestsNs'] + 1000, report
for it in findings:
    assert it['evidence'] and it['advice'], it
for word in words:
    assert word in findings[0]['title'] + ' '.join(findings[0]['evidence']), (word, findings[0])
";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let lab = Lab { session, dir: session.root.join(session.next_number().to_string()) };
    let outcome = story(&lab, checks);
    // Whatever went wrong, nothing stays.
    let down = lab.succeeds("down");
    outcome.and(down)
}

fn story(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    lab.succeeds(UP)?;
    let rounds = if lab.session.quick { QUIET_ROUNDS_QUICK } else { QUIET_ROUNDS };
    for round in 1..=rounds {
        let quiet = lab.stage(&[(1, QUIET), (2, QUIET)], "nothing", &[]);
        checks.record(&format!("quiet work on two nodes, round {round}: nothing is slow"), quiet);
    }
    let words = ["node1/mnt/counter", "node1", "node2"];
    let taken = lab.stage(&[(1, COUNT), (2, COUNT)], "token-conflict", &words);
    checks.record("a file that two nodes take from each other is named first", taken);
    // The counts are the leader's. Another one may lead since, on a machine that stood still.
    let attempts = |shows: &dyn Fn() -> Result<(), String>| {
        let again = |_: String| {
            lab.work("work-again", &[(1, COUNT), (2, COUNT)], STAGE_SECONDS)?.success()?;
            shows()
        };
        (1..ATTEMPTS).fold(shows(), |outcome, _| outcome.or_else(again))
    };
    let shown = attempts(&|| lab.tokens_show("counter"));
    checks.record("`diag tokens` has it at the top", shown);
    let shown = attempts(&|| lab.top_shows("counter"));
    checks.record("`top` has all nodes and that file", shown);
    checks.record("`--all` has the answers of all nodes", lab.all_answer());
    checks.record("a node without a server's certificate is asked, too", lab.client_obeys());

    lab.succeeds("node 1 lose 15")?;
    let lossy = lab.stage(&[(1, COPY)], "network", &["loses packets", "packets to node"]);
    checks.record("a network that loses what a node sends is named first", lossy);
    lab.succeeds("node 1 heal")?;
    lab.succeeds("node 3 lose 15")?;
    let lossy = lab.stage(&[(1, COPY)], "network", &["network to node3", "packets from node3"]);
    checks.record("one that loses what it should receive is named first", lossy);
    lab.succeeds("node 3 heal")?;
    for (what, is_wanted) in [("a server", false), ("the leader", true)] {
        let outcome = lab.leader().and_then(|leader| {
            let node = (1..=3).find(|node| (*node == leader) == is_wanted).ok_or("no such node")?;
            bad_link(lab, node)
        });
        checks.record(&format!("a client that does not reach {what} goes on"), outcome);
    }
    silent(lab, checks)
}

/// The client's link to one of the servers is cut while it writes. Everybody else reaches both.
fn bad_link(lab: &Lab<'_>, node: usize) -> Result<(), String> {
    lab.succeeds(&format!("node {CLIENT} partition --from {node}"))?;
    let written = lab.work("copy-beside-a-bad-link", &[(CLIENT, COPY)], BAD_LINK_SECONDS);
    let outcome = written.and_then(Ended::success).and_then(|_| {
        let data = lab.dir.join(format!("node{CLIENT}/mount/lab"));
        let mut health = lab.session.command(&lab.session.strake);
        // Yellow has an exit code of its own.
        health.arg("health").arg("--data").arg(data);
        let said = lab.command("health", &mut health)?.output();
        let wanted = format!("node{node} through node");
        if said.contains(&wanted) { Ok(()) } else { Err(format!("{wanted}: not in:\n{said}")) }
    });
    let disks = lab.disks();
    lab.succeeds(&format!("node {CLIENT} heal"))?;
    outcome?;
    // Nobody has left the server out.
    let up = disks?.matches("\"availability\": \"Up\"").count();
    if up == 3 { Ok(()) } else { Err(format!("{up} disks are up")) }
}

/// A node stands still that serves disks, and whose mount holds a file. It does not lead, so that
/// the leader can say who holds the file.
fn silent(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let still = if lab.leader()? == 3 { 2 } else { 3 };
    let node = format!("node{still}");
    let mut holder = lab.python(still, HOLD);
    holder.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = holder.spawn().map_err(|error| error.to_string())?;
    let ready = lab.wait_until("the file is held", || Ok(lab.mount(still).join("held").exists()));
    let outcome = ready.and_then(|()| held(lab, checks, still, &node));
    // Its mount may be dead, and its end then has to wait for nothing.
    let _ = holder.kill();
    let resumed = lab.succeeds(&format!("node {still} resume"));
    let _ = holder.wait();
    outcome.and(resumed)
}

fn held(lab: &Lab<'_>, checks: &mut Checks, still: usize, node: &str) -> Result<(), String> {
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| lab.work("copy-while-silent", &[(1, COPY)], 4 * STAGE_SECONDS));
        lab.succeeds(&format!("node {still} pause"))?;
        let read = scope.spawn(|| {
            let mut reader = lab.session.command("cat");
            reader.arg(lab.mount(1).join("held"));
            lab.command("reads-held", &mut reader)
        });
        let says = format!("held by {node}");
        let waiter = lab.wait_until("a waiter names the node that holds a file", || {
            Ok(lab.diag("waiters")?.lines().any(|line| line.contains(&says)))
        });
        checks.record("`diag waiters` names the node that holds the file", waiter);
        let silence = lab.wait_until("the node is silent", || {
            let rows = lab.diag("network --json")?;
            let row = rows.split('{').find(|row| row.contains(&format!("\"{node}\"")));
            Ok(row.and_then(|row| number(row, "silenceNs")) >= Some(SILENT_SECONDS * 1_000_000_000))
        });
        checks.record("`diag network` shows how long a node is silent", silence);
        let named = lab.explained("silent-now", "silent-node", &[node]);
        checks.record("a node that is silent is named first while it is", named);
        for (what, thread) in [("work goes on without it", copy), ("the file is free", read)] {
            let ended = thread.join().map_err(|_| "a panic".to_owned())?;
            checks.record(what, ended.and_then(|ended| ended.success().map(drop)));
        }
        Ok(())
    })
}

/// The number of that name in a row of JSON.
fn number(row: &str, name: &str) -> Option<u64> {
    let (_, rest) = row.split_once(&format!("\"{name}\": "))?;
    rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}

struct Lab<'a> {
    session: &'a Session,
    dir: PathBuf,
}

impl Lab<'_> {
    fn command(&self, name: &str, command: &mut std::process::Command) -> Result<Ended, String> {
        let log = self.session.log("slow-nodes", name);
        command::run(command, &log, Duration::from_secs(SECONDS_MAX))
    }

    /// Runs `strake lab WORDS --dir DIR`.
    fn succeeds(&self, words: &str) -> Result<(), String> {
        let mut command = self.session.command(&self.session.strake);
        command.arg("lab").args(words.split(' ')).arg("--dir").arg(&self.dir);
        self.command(&words.replace(' ', "-"), &mut command)?.success().map(drop)
    }

    /// The node that serves the file system.
    fn leader(&self) -> Result<usize, String> {
        let tokens = self.diag("tokens --json")?;
        let leads = |node: &usize| tokens.contains(&format!("\"leader\": \"node{node}\""));
        (1..=3).find(leads).ok_or(tokens)
    }

    /// Runs `strake disk list --json` on the first node.
    fn disks(&self) -> Result<String, String> {
        let mut command = self.session.command(&self.session.strake);
        command.args(["disk", "list", "--json", "--data"]).arg(self.dir.join("node1/mount/lab"));
        Ok(self.command("disk-list", &mut command)?.success()?.output())
    }

    fn mount(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node{node}/mnt"))
    }

    /// Runs `strake diag WORDS` on the first node.
    fn diag(&self, words: &str) -> Result<String, String> {
        Ok(self.diag_ended(words)?.success()?.output())
    }

    fn diag_ended(&self, words: &str) -> Result<Ended, String> {
        let mut command = self.session.command(&self.session.strake);
        command.arg("diag").args(words.split(' '));
        command.arg("--data").arg(self.dir.join("node1/mount/lab"));
        self.command(&format!("diag-{}", words.replace(' ', "-")), &mut command)
    }

    /// `strake top` on the first node has all nodes, and the file that they take from each other.
    fn top_shows(&self, name: &str) -> Result<(), String> {
        let mut command = self.session.command(&self.session.strake);
        command.args(["top", "--once", "1", "--data"]).arg(self.dir.join("node1/mount/lab"));
        let text = self.command("top", &mut command)?.success()?.output();
        let has = |begin: &str, end: &str| {
            text.lines().any(|line| line.starts_with(begin) && line.contains(end))
        };
        let nodes =
            has("node1 ", "this node") && has("node2 ", "server") && has("node3 ", "server");
        let hot = text.lines().any(|line| line.ends_with(&format!("/mnt/{name}")));
        if nodes && hot && has("mount on node2", "taken") { Ok(()) } else { Err(text) }
    }

    fn python(&self, node: usize, program: &str) -> std::process::Command {
        let mut python = self.session.command("/usr/bin/python3");
        python.args(["-c", program]).current_dir(self.mount(node));
        python
    }

    /// Runs programs on the mounts of nodes side by side, each for so many seconds.
    fn work(&self, name: &str, work: &[(usize, &str)], seconds: u32) -> Result<Ended, String> {
        let each = |(node, _): &(usize, &str)| {
            let mount = self.mount(*node);
            format!(
                "(cd '{}' && python3 -c \"$P{node}\" {seconds} own{node}) & J{node}=$!; ",
                mount.display()
            )
        };
        let wait = |(node, _): &(usize, &str)| format!("wait $J{node}; ");
        let begin: String = work.iter().map(each).collect();
        let script = begin + &work.iter().map(wait).collect::<String>();
        let mut shell = self.session.command("sh");
        shell.args(["-ec", &script]);
        for (node, program) in work {
            shell.env(format!("P{node}"), program);
        }
        self.command(name, &mut shell)
    }

    /// Runs programs, and then has the first node explain the last seconds.
    fn stage(&self, work: &[(usize, &str)], wanted: &str, words: &[&str]) -> Result<(), String> {
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            self.work(&format!("work-{wanted}"), work, STAGE_SECONDS)?.success()?;
            outcome = self.explained(wanted, wanted, words);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn explained(&self, name: &str, wanted: &str, words: &[&str]) -> Result<(), String> {
        let since = STAGE_SECONDS - 1;
        let report = self.diag(&format!("explain slow --json --since {since}s"))?;
        let path = self.dir.join("report.json");
        std::fs::write(&path, &report).map_err(|error| error.to_string())?;
        let mut python = self.session.command("/usr/bin/python3");
        python.args(["-c", JUDGE]).arg(&path).arg(wanted).args(words);
        self.command(&format!("judge-{name}"), &mut python)?.success().map(drop)
    }

    /// The mounts of all nodes answer when node 1 is asked for all, the client's too.
    fn all_answer(&self) -> Result<(), String> {
        for words in ["waiters --all --json", "network --all --json", "threads --all --json"] {
            let ended = self.diag_ended(words)?;
            let told = ended.output();
            let is_there = |node: usize| told.contains(&format!("\"node{node}\": ["));
            // The server processes of the nodes answer, too. Only the client's fetches errands.
            let has_nodes = !words.starts_with("threads") || told.contains("\"errands (node)\"");
            if !(1..=CLIENT).all(is_there) || !has_nodes || !ended.status.success() {
                return Err(format!("{words}: {told}"));
            }
        }
        Ok(())
    }

    /// A client's node may not serve. It is asked all the same, and told what to do.
    fn client_obeys(&self) -> Result<(), String> {
        for (name, words, wanted) in [
            ("state", "node state", "node4  active"),
            ("mount", "fs mount lab -N node4", "node4: lab is mounted at"),
        ] {
            let mut command = self.session.command(&self.session.strake);
            command.args(words.split(' ')).arg("--dir").arg(self.dir.join("node1"));
            let said = self.command(name, &mut command)?.success()?.output();
            if !said.contains(wanted) {
                return Err(format!("{words}: {said}"));
            }
        }
        Ok(())
    }

    /// The hottest file has this name, and was taken from both nodes.
    fn tokens_show(&self, name: &str) -> Result<(), String> {
        let text = self.diag("tokens")?;
        let row = text.lines().skip_while(|line| !line.contains("taken/s")).nth(1).unwrap_or("");
        let is_so = row.contains("node1 ") && row.contains("node2 ");
        let path = row.split_whitespace().last().map(Path::new);
        match is_so && path.is_some_and(|path| path.ends_with(name)) {
            true => Ok(()),
            false => Err(text),
        }
    }

    fn wait_until(
        &self,
        what: &str,
        is_so: impl Fn() -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = now() + WAIT_MAX;
        while !is_so()? {
            if now() >= end {
                return Err(format!("not within {} s: {what}", WAIT_MAX.as_secs()));
            }
            pause(LOOK);
        }
        Ok(())
    }
}
