//! Disks that two nodes reach each, in a lab of three servers and a client, with code 1: each disk
//! is needed. A process on the client writes files and makes each one durable, all the while.
//!
//! One node after the other is killed, paused, cut off and stopped, the one that leads among them.
//! The next server of its disk must take it over, the writer must see no error, and the disk must
//! come back to its own node later. In the end every file is whole on every mount, and `fs check`
//! is clean.

use super::checks::Checks;
use super::command::{self, Ended, pause};
use super::session::Session;
use super::writer;
use crate::runner::now;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

const SECONDS_MAX: u64 = 100;
/// How often to look, and for how long, whether something has come about.
const LOOK: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(90);
/// So many files must become durable in each state.
const FILES: usize = 20;
/// The writer rests so many milliseconds between two files, so that the disks do not fill.
const REST: &str = "80";
/// The node without disks. The writer works there.
const CLIENT: usize = 4;
/// Each state, as the commands that bring it about and end it.
const TROUBLE: &[(&str, &str, &str)] = &[
    ("killed", "kill", "start"),
    ("paused", "pause", "resume"),
    ("cut off", "partition", "heal"),
    ("stopped", "stop", "start"),
];
const UP: &str = "up --nodes 3 --clients 1 --code 1 --servers-per-nsd 2 --nsd-size 1G --force";
/// Descriptions of NSDs that are refused, and words that the advice must contain.
const WRONG: &[(&str, &str)] = &[
    ("%nsd: device=d servers=node1,node2", "same absolute path on each"),
    ("%nsd: device=/DIR/x servers=node1,node4 size=64M", "node4 lacks the role server"),
    ("%nsd: device=/DIR/x servers=node1,node1 size=64M", "node1 is named twice"),
    ("%nsd: device=/DIR/x servers=node1,node9 size=64M", "no node 'node9'"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let lab = Lab { session, dir: session.root.join(session.next_number().to_string()) };
    let outcome = lab.succeeds(UP).and_then(|()| wrong(&lab, checks)).and_then(|()| {
        let mut writer = lab.write()?;
        let story = story(&lab, checks);
        let ended = writer.try_wait().map_err(|error| error.to_string());
        checks.hold("the writer saw no error", ended == Ok(None), || lab.errors());
        // It writes until the end.
        let _ = writer.kill();
        let _ = writer.wait();
        story.and_then(|()| whole(&lab, checks))
    });
    // Whatever went wrong, nothing stays.
    let down = lab.succeeds("down");
    outcome.and(down)
}

fn wrong(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    for (number, (text, advice)) in WRONG.iter().enumerate() {
        let path = lab.session.root.join(format!("wrong-{number}.stanza"));
        let text = text.replace("/DIR", &lab.session.root.display().to_string());
        std::fs::write(&path, &text).map_err(|error| error.to_string())?;
        let mut create = lab.session.command(&lab.session.strake);
        create.args(["nsd", "create", "--dir"]).arg(lab.dir.join("node1")).arg("-F").arg(&path);
        let refused = lab.command("wrong", &mut create).and_then(|ended| {
            match ended.status.code() == Some(2) && ended.output().contains(advice) {
                true => Ok(()),
                false => Err(ended.complaint("not refused as it should be")),
            }
        });
        checks.record(&format!("servers that cannot be, {number}: refused with advice"), refused);
    }
    Ok(())
}

fn story(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    lab.goes_on()?;
    for (number, (how, begin, end)) in TROUBLE.iter().enumerate() {
        // The one that serves the metadata is in trouble every other time.
        let leader = lab.leader()?;
        let node = (1..=3).find(|node| (*node == leader) == (number % 2 == 1)).unwrap_or(leader);
        lab.succeeds(&format!("node {node} {begin}"))?;
        let taken = lab.wait_until("another node serves its disk", || {
            Ok(lab.disk_of(node)?.contains("(now "))
        });
        checks.record(&format!("a node is {how}: another one serves its disk"), taken);
        checks.record(&format!("a node is {how}: files are written"), lab.goes_on());
        lab.succeeds(&format!("node {node} {end}"))?;
        let back = lab.wait_until("the disk is at home", || {
            Ok(!lab.disk_of(node)?.contains("(now ") && lab.all_up()?)
        });
        checks.record(&format!("the node is back: it serves its disk ({how})"), back);
        checks.record(&format!("the node is back: files are written ({how})"), lab.goes_on());
    }
    Ok(())
}

/// All files that are durable are whole on every mount.
fn whole(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let durable = lab.durable();
    for node in 1..=CLIENT {
        // Its mount may be about to go on after a death.
        let there = lab.wait_until("the mount is there", || Ok(lab.files(node).exists()));
        let found = there.and_then(|()| {
            (0..durable as u64).try_for_each(|number| writer::verify(&lab.files(node), number))
        });
        checks.record(&format!("all {durable} durable files are whole on node {node}"), found);
    }
    let mut check = lab.session.command(&lab.session.strake);
    check.args(["fs", "check", "--data"]).arg(lab.dir.join("node1/mount/lab"));
    let clean = lab.command("check", &mut check).and_then(Ended::success);
    checks.record("strake fs check is clean", clean.map(drop));
    Ok(())
}

struct Lab<'a> {
    session: &'a Session,
    dir: PathBuf,
}

impl Lab<'_> {
    fn command(&self, name: &str, command: &mut std::process::Command) -> Result<Ended, String> {
        let log = self.session.log("shared-disks", name);
        command::run(command, &log, Duration::from_secs(SECONDS_MAX))
    }

    /// Runs `strake lab WORDS --dir DIR`.
    fn succeeds(&self, words: &str) -> Result<(), String> {
        let mut command = self.session.command(&self.session.strake);
        command.arg("lab").args(words.split(' ')).arg("--dir").arg(&self.dir);
        self.command(&words.replace(' ', "-"), &mut command)?.success().map(drop)
    }

    /// The folder of the writer's files on a node's mount.
    fn files(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node{node}/mnt/files"))
    }

    fn numbers(&self) -> PathBuf {
        self.session.log("shared-disks", "writer-numbers")
    }

    /// Starts the writer on the client.
    fn write(&self) -> Result<Child, String> {
        let text = |error: std::io::Error| error.to_string();
        std::fs::create_dir(self.files(CLIENT)).map_err(text)?;
        let numbers = std::fs::File::create(self.numbers()).map_err(text)?;
        let errors = std::fs::File::create(self.numbers().with_extension("errors"));
        let own = std::env::current_exe().map_err(text)?;
        let mut writer = self.session.command(own);
        writer.arg(writer::COMMAND).arg(self.files(CLIENT)).arg(REST);
        writer.stdin(Stdio::null()).stdout(numbers).stderr(errors.map_err(text)?);
        writer.spawn().map_err(text)
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.numbers().with_extension("errors")).unwrap_or_default()
    }

    /// How many files are durable by now.
    fn durable(&self) -> usize {
        std::fs::read_to_string(self.numbers()).unwrap_or_default().lines().count()
    }

    /// Waits until more files are durable.
    fn goes_on(&self) -> Result<(), String> {
        let before = self.durable();
        self.wait_until("files become durable", || Ok(self.durable() >= before + FILES))
    }

    /// The line of the disk of a node in `strake nsd list`, as the next node says.
    fn disk_of(&self, node: usize) -> Result<String, String> {
        let next = self.dir.join(format!("node{}", node % 3 + 1));
        let mut list = self.session.command(&self.session.strake);
        list.args(["nsd", "list", "--dir"]).arg(next);
        let listed = self.command("nsd-list", &mut list)?.success()?.output();
        let name = format!(" node{node}nsd1 ");
        listed.lines().find(|line| line.contains(&name)).map(str::to_owned).ok_or(listed)
    }

    /// Whether every disk is in use.
    fn all_up(&self) -> Result<bool, String> {
        let mut list = self.session.command(&self.session.strake);
        list.args(["disk", "list", "--json", "--data"]).arg(self.dir.join("node4/mount/lab"));
        let text = self.command("disk-list", &mut list)?.success()?.output();
        Ok(text.matches("\"availability\": \"Up\"").count() == 3)
    }

    /// The node that serves the file system.
    fn leader(&self) -> Result<usize, String> {
        let text = {
            let mut command = self.session.command(&self.session.strake);
            command.args(["lab", "status", "--json", "--dir"]).arg(&self.dir);
            self.command("status", &mut command)?.success()?.output()
        };
        let leads = |row: &str| row.contains("\"leads\": true");
        let at = text.split('{').skip(1).position(leads);
        at.map(|at| at + 1).ok_or(text)
    }

    fn wait_until(
        &self,
        what: &str,
        holds: impl Fn() -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = now() + WAIT_MAX;
        loop {
            match holds() {
                Ok(true) => return Ok(()),
                Ok(false) if now() < end => {}
                Err(_) if now() < end => {}
                Ok(false) => return Err(format!("not within {WAIT_MAX:?}: {what}")),
                Err(error) => return Err(format!("not within {WAIT_MAX:?}: {what}: {error}")),
            }
            pause(LOOK);
        }
    }
}
