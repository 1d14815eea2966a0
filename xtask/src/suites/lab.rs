//! `strake lab`: three nodes in network namespaces of their own, and what is done to them. Each
//! mounts the file system. While one that holds files is dead, paused or cut off, the others read
//! and write these files and more. When it is back, its mount goes on by itself.
//! `lab status` must tell each of these states as it is. Nothing of a lab may stay: not of one that
//! was taken down, of one whose `up` failed, nor of one whose `up` was killed.

use super::checks::Checks;
use super::command::{Ended, pause};
use super::held::Held;
use super::mm;
use super::session::Session;
use super::writer::contents;
use crate::runner::now;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const COMMAND_SECONDS_MAX: u64 = 60;
/// How often to look whether a disk has caught up, and for how long.
const LOOK: Duration = Duration::from_millis(100);
const UP_MAX: Duration = Duration::from_secs(40);
const FILE_BYTES: usize = 12 << 20;
/// A disk that does not answer is given up after a few seconds, instead of a minute.
const UP: &str = "up --nodes 3 --code 2x --nsd-size 256M --set nsd_io_limit=1s";
/// An `up` that fails when everything but the file system is there: two of five strips would be on
/// one node.
const FAILS: &str = "up --nodes 3 --nsds-per-node 2 --nsd-size 64M --code 4+1p";
/// Arguments that make no lab, and a word that the advice must contain.
const WRONG: &[(&str, &str)] = &[
    ("up --nodes 0", "1 to 32"),
    ("up --nodes 3 --nsd-size 1M", "64 MiB"),
    ("up --nodes 3 --code 4+2p", "6 NSDs"),
    ("up --nodes 3 --quorum 4", "1 to 3"),
    ("up --nodes 3 --set pagepol=1G", "pagepool"),
    ("up --nodes 3", "already"),
    ("node 4 kill", "1 to 3"),
    ("node 2 slow soon", "MS"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let dir = session.root.join(session.next_number().to_string());
    let mut lab = Lab { session, dir, prefix: String::new(), written: Vec::new() };
    let outcome = story(&mut lab, checks);
    // Whatever went wrong, nothing stays.
    let _ = lab.run("down-at-the-end", "down");
    outcome
}

fn story(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    lab.succeeds(UP)?;
    let namespace = lab.fact(1, "namespace")?;
    lab.prefix = namespace.trim_end_matches('1').to_owned();
    checks.record("a lab of three nodes is up", lab.holds(&[(1, "state", "active")]));
    let everything = lab.there();
    let kinds = ["namespace", "mount", "process", "list", "file"];
    let missing = kinds.iter().find(|kind| !everything.iter().any(|it| it.starts_with(*kind)));
    checks.hold("what a lab leaves could be seen", missing.is_none(), || {
        format!("no {missing:?} of {everything:?}")
    });
    wrong(lab, checks);
    checks.record("a file is written and read", lab.work());
    commands(lab, checks)?;
    killed(lab, checks)?;
    paused(lab, checks)?;
    cut_off(lab, checks)?;
    disturbed(lab, checks);
    stopped(lab, checks)?;
    removed(lab, checks)
}

/// The commands of Spectrum Scale. They unmount the second node, which is mounted anew.
fn commands(lab: &Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let same = mm::on_lab(lab.session, &lab.dir);
    checks.record("the mm commands say and do the same", same);
    let at = lab.mount(2);
    lab.administers(2, &format!("fs mount lab --at {}", at.display()))?;
    checks.record("mounted anew, a node reads what is there", lab.is_read_on(2));
    Ok(())
}

fn wrong(lab: &Lab<'_>, checks: &mut Checks) {
    for (words, advice) in WRONG {
        let refused = lab.run("wrong", words).and_then(|ended| {
            match ended.status.code() == Some(2) && ended.output().contains(advice) {
                true => Ok(()),
                false => Err(ended.complaint("not refused as it should be")),
            }
        });
        checks.record(&format!("`lab {words}` is refused with advice"), refused);
    }
}

fn killed(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let all =
        lab.holds(&[(1, "mount", "mounted"), (2, "mount", "mounted"), (3, "mount", "mounted")]);
    checks.record("every node mounts it", all.and_then(|()| lab.is_read_on(3)));
    let held = Held::new(lab.session, &lab.mount(3), 100)?;
    lab.succeeds("node 3 kill")?;
    lab.is_free(checks, &held, "killed", [1, 2]);
    let seen = lab.holds(&[(3, "state", "down"), (3, "server", "null"), (2, "state", "active")]);
    checks.record("a killed node is shown as down", seen);
    checks.record("files are read and written without it", lab.work());
    held.close()?;
    lab.succeeds("node 3 start")?;
    let active = lab.holds(&[(3, "state", "active"), (3, "mount", "mounted")]);
    checks.record("started, it is active", active);
    checks.record("its disk catches up", lab.wait_until_up());
    Ok(())
}

fn paused(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let server = lab.fact(2, "server")?;
    let held = Held::new(lab.session, &lab.mount(2), 200)?;
    lab.succeeds("node 2 pause")?;
    lab.is_free(checks, &held, "paused", [1, 3]);
    let seen = lab.holds(&[(2, "state", "paused"), (2, "server", &server), (3, "state", "active")]);
    checks.record("a paused node is shown as paused, and its process is there", seen);
    checks.record("files are read and written without it", lab.work());
    lab.succeeds("node 2 resume")?;
    let seen = lab.holds(&[(2, "state", "active"), (2, "server", &server)]);
    checks.record("resumed, the same process is active", seen);
    lab.comes_back(checks, held, 2)
}

fn cut_off(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let held = Held::new(lab.session, &lab.mount(2), 300)?;
    lab.succeeds("node 2 partition")?;
    lab.is_free(checks, &held, "cut off", [1, 3]);
    let seen = lab.holds(&[(2, "network", "cut off"), (3, "network", "joined")]);
    checks.record("a node whose cable is out is shown as cut off", seen);
    let mut list = lab.session.command(&lab.session.strake);
    list.args(["node", "list", "--dir"]).arg(lab.dir.join("node2"));
    let alone = lab.command("list-cut-off", &mut list).and_then(|ended| {
        let says = ended.output().contains("does not answer");
        if !ended.status.success() && says { Ok(()) } else { Err(ended.complaint("reached")) }
    });
    checks.record("it does not reach the leader", alone);
    checks.record("files are read and written without it", lab.work());
    lab.succeeds("node 2 heal")?;
    checks.record("healed, it is joined", lab.holds(&[(2, "network", "joined")]));
    lab.comes_back(checks, held, 2)
}

/// What a node sends is lost and comes late. Delays need netem: where the kernel has none, the
/// command says so.
fn disturbed(lab: &Lab<'_>, checks: &mut Checks) {
    let lossy = lab.succeeds("node 2 lose 3").and_then(|()| lab.succeeds("node 2 lose 25"));
    let lossy =
        lossy.and_then(|()| lab.holds(&[(2, "lossPercent", "25.0"), (3, "lossPercent", "0.0")]));
    checks.record("what a node sends is lost in part", lossy.and_then(|()| lab.is_read_on(2)));
    let slow = lab.run("disturb", "node 2 slow 7").and_then(|ended| match ended.status.success() {
        true => lab.holds(&[(2, "delayMs", "7"), (2, "lossPercent", "25.0")]),
        false if ended.output().contains("CONFIG_NET_SCH_NETEM") => Ok(()),
        false => Err(ended.complaint("neither done nor explained")),
    });
    checks.record("what it sends comes late, or the kernel's lack is named", slow);
    let healed = lab.succeeds("node 2 heal");
    let seen = healed.and_then(|()| lab.holds(&[(2, "delayMs", "0"), (2, "lossPercent", "0.0")]));
    checks.record("heal ends it", seen);
}

fn stopped(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    lab.succeeds("node 3 stop")?;
    let seen = lab.holds(&[(3, "state", "down"), (3, "mount", "no"), (3, "mountProcess", "null")]);
    checks.record("a stopped node is shown as down, and not mounted", seen);
    lab.succeeds("node 3 start")?;
    checks.record("its disk catches up", lab.wait_until_up());
    let mut check = lab.session.command(&lab.session.strake);
    check.args(["fs", "check", "--data"]).arg(lab.dir.join("node1/mount/lab"));
    let checked = lab.command("check", &mut check).and_then(|ended| ended.success().map(drop));
    checks.record("strake fs check is clean", checked);
    lab.succeeds("node 1 kill")?;
    let seen = lab.holds(&[(1, "state", "down"), (1, "mount", "dead"), (2, "state", "active")]);
    checks.record("the mount of a killed node is shown as dead", seen);
    lab.succeeds("node 1 start")?;
    checks.record("started, it is mounted", lab.holds(&[(1, "mount", "mounted")]));
    checks.record("its files are there", lab.verify());
    Ok(())
}

/// Nothing stays of labs that end in all kinds of ways.
fn removed(lab: &mut Lab<'_>, checks: &mut Checks) -> Result<(), String> {
    let elsewhere = lab.session.root.join("elsewhere");
    lab.administers(1, "fs umount lab -N node1")?;
    lab.administers(1, &format!("fs mount lab --at {}", elsewhere.display()))?;
    let again = lab.administers(1, "fs mount lab --at /nowhere");
    let is_said = again.is_err_and(|said| said.contains("elsewhere already: `strake fs umount"));
    checks.hold("a second place of a mount is refused", is_said, || "it is not".to_owned());
    // A node that is paused and one that is cut off end as any.
    lab.succeeds("node 2 pause")?;
    lab.succeeds("node 3 partition")?;
    checks.record("the lab is taken down", lab.succeeds("down"));
    checks.record("nothing of it is left", lab.nothing_is_left());
    let gone = std::fs::remove_dir(&elsewhere).map_err(|error| error.to_string());
    checks.record("nor a mount that somebody made elsewhere", gone);
    checks.record("it can be taken down again", lab.succeeds("down"));
    let failed = lab.run("fails", FAILS).and_then(|ended| {
        let says = ended.output().contains("The loss of one would lose data");
        if !ended.status.success() && says { Ok(()) } else { Err(ended.complaint("another end")) }
    });
    checks.record("a lab whose last step fails says why", failed);
    checks.record("nothing of it is left", lab.nothing_is_left());
    for milliseconds in [40, 150, 250] {
        let mut command = lab.words(UP);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        // Wherever it is by then: the result must be the same.
        pause(Duration::from_millis(milliseconds));
        child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
        let down = lab.succeeds("down");
        // Before it has written anything, nothing says that the empty directory is the lab's.
        let _ = std::fs::remove_dir(&lab.dir);
        let down = down.and_then(|()| lab.nothing_is_left());
        checks.record(&format!("nothing is left of an `up` killed after {milliseconds} ms"), down);
    }
    lab.succeeds(UP)?;
    std::fs::remove_file(lab.dir.join("lab.json")).map_err(|error| error.to_string())?;
    let down = lab.succeeds("down").and_then(|()| lab.left_is_only("file"));
    checks.record("a lab without its file loses all but its files", down);
    std::fs::remove_dir_all(&lab.dir).map_err(|error| error.to_string())
}

struct Lab<'a> {
    session: &'a Session,
    dir: PathBuf,
    /// How the names of its namespaces begin.
    prefix: String,
    /// The salts of the files that were written.
    written: Vec<u64>,
}

impl Lab<'_> {
    fn words(&self, words: &str) -> Command {
        let mut command = self.session.command(&self.session.strake);
        command.arg("lab").args(words.split(' ')).arg("--dir").arg(&self.dir);
        command
    }

    fn command(&self, name: &str, command: &mut Command) -> Result<Ended, String> {
        let log = self.session.log("lab", name);
        super::command::run(command, &log, Duration::from_secs(COMMAND_SECONDS_MAX))
    }

    /// Runs `strake lab WORDS --dir DIR`.
    fn run(&self, name: &str, words: &str) -> Result<Ended, String> {
        self.command(name, &mut self.words(words))
    }

    fn succeeds(&self, words: &str) -> Result<(), String> {
        self.run(&words.replace(' ', "-"), words)?.success().map(drop)
    }

    /// What `lab status --json` says about a node, as JSON.
    fn fact(&self, node: usize, name: &str) -> Result<String, String> {
        let text = self.run("status", "status --json")?.success()?.output();
        let row = text.split('{').nth(node).ok_or_else(|| format!("no node {node}: {text}"))?;
        let start = format!("\"{name}\": ");
        let line = row.lines().find_map(|line| line.trim().strip_prefix(&start));
        let value = line.ok_or_else(|| format!("no {name}: {text}"))?;
        Ok(value.trim_end_matches(',').trim_matches('"').to_owned())
    }

    /// Compares facts of nodes with what they must be.
    fn holds(&self, wanted: &[(usize, &str, &str)]) -> Result<(), String> {
        for (node, name, value) in wanted {
            let found = self.fact(*node, name)?;
            if found != *value {
                return Err(format!("node {node}: {name} is {found}, not {value}"));
            }
        }
        Ok(())
    }

    fn file(&self, salt: u64) -> PathBuf {
        self.dir.join("node1/mnt").join(format!("file{salt}"))
    }

    fn mount(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node{node}/mnt"))
    }

    /// Runs `strake WORDS --dir DIR` on a node.
    fn administers(&self, node: usize, words: &str) -> Result<(), String> {
        let mut command = self.session.command(&self.session.strake);
        command.args(words.split(' ')).arg("--dir").arg(self.dir.join(format!("node{node}")));
        self.command("administers", &mut command)?.success().map(drop)
    }

    /// Two nodes soon have what the mount of a third has held.
    fn is_free(&self, checks: &mut Checks, held: &Held, how: &str, others: [usize; 2]) {
        let free = held.is_free_for(&others.map(|node| self.mount(node)));
        let seconds = free.as_ref().map_or(f64::NAN, Duration::as_secs_f64);
        let what = format!("what the mount of a {how} node held is free: {seconds:.1} s");
        checks.record(&what, free.map(drop));
    }

    /// A node that was silent goes on, and so does its mount.
    fn comes_back(&self, checks: &mut Checks, held: Held, node: usize) -> Result<(), String> {
        let held = held.goes_on()?;
        checks.record("its mount goes on, and the file that was open gives EIO", Ok(()));
        let others: Vec<PathBuf> =
            [1, 2, 3].into_iter().filter(|other| *other != node).map(|n| self.mount(n)).collect();
        checks.record("it has changed nothing", held.is_unchanged_on(&others));
        checks.record("its disk catches up", self.wait_until_up());
        held.close()?;
        checks.record("it reads what the others wrote", self.is_read_on(node));
        Ok(())
    }

    /// Verifies what was written before, and writes a file more.
    fn work(&mut self) -> Result<(), String> {
        self.verify()?;
        let salt = self.written.len() as u64 + 1;
        let path = self.file(salt);
        let text = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::write(&path, contents(salt, FILE_BYTES)).map_err(text)?;
        std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(text)?;
        self.written.push(salt);
        self.verify()
    }

    /// A node reads what the first has written.
    fn is_read_on(&self, node: usize) -> Result<(), String> {
        for salt in &self.written {
            let path = self.dir.join(format!("node{node}/mnt/file{salt}"));
            let found = std::fs::read(&path).map_err(|error| format!("{salt}: {error}"))?;
            if found != contents(*salt, FILE_BYTES) {
                return Err(format!("{} is not what was written", path.display()));
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), String> {
        self.is_read_on(1)
    }

    fn wait_until_up(&self) -> Result<(), String> {
        let (mut seen, end) = (String::new(), now() + UP_MAX);
        while now() < end {
            let mut disks = self.session.command(&self.session.strake);
            disks.args(["disk", "list", "--data"]).arg(self.dir.join("node1/mount/lab"));
            seen = self.command("disks", &mut disks)?.success()?.output();
            if seen.matches(" up ").count() == 3 {
                return Ok(());
            }
            pause(LOOK);
        }
        Err(format!("not every disk comes up:\n{seen}"))
    }

    /// Everything of the lab that is on the machine, one line for each thing.
    fn there(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let named = |place: &str| names(Path::new(place), &self.prefix);
        let places = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"];
        found.extend(named("/run/netns").into_iter().map(|name| format!("namespace {name}")));
        found.extend(places.iter().flat_map(|it| named(it)).map(|name| format!("cgroup {name}")));
        let dir = self.dir.to_string_lossy();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = |line: &&str| line.contains(&*dir) || line.contains(&self.prefix);
        found.extend(mounts.lines().filter(below).map(|line| format!("mount {line}")));
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&words).contains(&*dir) {
                found.insert(format!("process {}", entry.file_name().display()));
            }
        }
        let lists = self.session.lists();
        for list in [lists.join("nodes"), lists] {
            for entry in std::fs::read_dir(list).into_iter().flatten().flatten() {
                if std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&*dir)) {
                    found.insert(format!("list {}", entry.path().display()));
                }
            }
        }
        found.extend(self.dir.exists().then(|| format!("file {dir}")));
        found
    }

    fn nothing_is_left(&self) -> Result<(), String> {
        self.left_is_only("nothing")
    }

    fn left_is_only(&self, kind: &str) -> Result<(), String> {
        let mut left = self.there();
        left.retain(|it| !it.starts_with(kind));
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:#?}")) }
    }
}

/// The names in a folder that begin with `prefix`.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}
