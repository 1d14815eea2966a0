//! A cluster of three nodes, made by the commands that the first page shows. The nodes are
//! directories of this machine with the addresses 127.0.0.1, 127.0.0.2 and 127.0.0.3.
//!
//! 1. The six commands, from nothing to a mount on n2. Each refusal that protects a user is tried:
//!    a token that was used, a node that serves disks and is to be deleted, a code
//!    that one node's loss would break.
//! 2. The server process of n1, the first node, is killed before anything is mounted. Every command
//!    that looks at the cluster works on n2 and n3, and so do changes, and a mount. What n1 alone
//!    can do is refused and says so. n1 comes back.
//! 3. The server process of n3 is killed (`kill -9`). Files are read and written without it. It is
//!    started again, and its disk catches up.
//! 4. fio verifies what it writes while the server processes of all nodes are killed in turn and
//!    started again, the mount's own node and the leader among them. fio must see no error.
//! 5. `fs check` is ended with Ctrl-C while the leader compares the files with their strips. The
//!    leader ends that as well.
//! 6. `fs check`, unmount, stop, start and mount again elsewhere: everything is still there.

use super::checks::Checks;
use super::cluster_disks::invite;
use super::command::{Ended, pause};
use super::session::Session;
use super::writer::contents;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const COMMAND_SECONDS_MAX: u64 = 60;
pub(super) const FIO_SECONDS_MAX: u64 = 120;
/// Between two accidents.
const WORK: Duration = Duration::from_millis(1500);
/// How often to look whether a disk has caught up, and how many times.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS_MAX: u32 = 150;
/// More than goes into the metadata.
const NOTICE_BYTES: usize = 1 << 20;
/// How many files the first check that is ended looks at. Each further one has more.
const CHECKED_FILES: u64 = 1000;
const ROUNDS_MAX: u64 = 4;
pub(super) const NODES: [&str; 3] = ["n1", "n2", "n3"];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-first")?;
    let outcome = story(&place, checks);
    place.end();
    outcome
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make(place, checks)?;
    the_first_node_is_gone(place, checks)?;
    let settings = "--set pagepool=64M --set stay_awake=off";
    let mount = place.on("n1", &format!("fs mount demo -N n2 {settings}"));
    place.succeeds("mount", mount)?;
    checks.record("six commands make a cluster and mount its file system on n2", Ok(()));
    refusals(place, checks);
    // d1 has missed what was written without n1. Only one failure at a time is promised.
    checks.record("d1 catches up", place.wait_until_up_again(&[place.root.join("mnt")]));
    one_server_dies(place, checks)?;
    servers_die_under_fio(place, checks);
    checks.record("every disk is up", place.wait_until_up());
    checks.record("Ctrl-C ends a check at the leader, too", check_is_ended(place));
    let check = place.succeeds("check", place.on_mount("fs check"));
    checks.record("strake fs check is clean", check);
    for name in ["without-n1", "before", "meanwhile"] {
        checks.record(&format!("file {name} is whole"), place.verify(name));
    }
    let umount = place.succeeds("umount", place.on("n3", "fs umount demo"));
    checks.record("n3 has n2 unmount", umount);
    for node in ["n3", "n2", "n1"] {
        let stopped = place.succeeds("stop", place.on(node, "node stop"));
        checks.record(&format!("{node} stops"), stopped);
    }
    for node in NODES {
        let started = place.succeeds("start", place.on(node, "node start"));
        checks.record(&format!("{node} starts"), started);
    }
    checks.record("n1 mounts it", place.succeeds("mount", place.on("n1", "fs mount demo")));
    for name in ["before", "meanwhile"] {
        checks.record(&format!("file {name} is whole on n1"), place.verify(name));
    }
    checks.record("n1 unmounts it", place.succeeds("umount", place.on("n1", "fs umount demo")));
    checks.record("a deleted file system makes room for another", made_anew(place));
    Ok(())
}

/// Three nodes with a disk each, and a file system on them. A token works once.
pub(super) fn make(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let used = make_nodes(place)?;
    let stanzas = "%nsd: device=disk servers=n1 nsd=d1 size=512M\n\
                   %nsd: device=disk servers=n2 nsd=d2 size=512M failureGroup=7\n\n\
                   # the third\n%nsd: device=disk\n servers=n3 size=512M nsd=d3\n";
    make_nsds(place, stanzas)?;
    let create = with(place.on("n1", "fs create demo --code 2x --mount"), &place.mount());
    place.succeeds("fs-create", create)?;
    let again = with(with(place.on("other", "node join"), &used), "--address");
    let again = with(again, &place.address(4));
    checks.record("a token works once", place.refused(again, "used"));
    let state = place.run("state", place.on("n3", "node state"))?.success()?.output();
    let active = state.matches(" active ").count();
    checks.hold("three nodes are active", active == 3, || state);
    Ok(())
}

/// Makes the NSDs that the stanzas describe, with a command at n1.
pub(super) fn make_nsds(place: &Place<'_>, stanzas: &str) -> Result<(), String> {
    make_nsds_at(place, "n1", stanzas)
}

/// As [`make_nsds`], with a command at another node.
pub(super) fn make_nsds_at(place: &Place<'_>, node: &str, stanzas: &str) -> Result<(), String> {
    let file = place.root.join("nsds.stanza");
    std::fs::write(&file, stanzas).map_err(|error| error.to_string())?;
    place.succeeds("nsds", with(place.on(node, "nsd create -F"), &file.to_string_lossy()))
}

/// Three nodes without disks. Returns a token that was used.
pub(super) fn make_nodes(place: &Place<'_>) -> Result<String, String> {
    let create = place.on("n1", "cluster create demo --node n1 --address");
    place.succeeds("create", with(create, &place.address(1)))?;
    let add = place.on("n1", "node add n2 n3 --roles quorum,server,client");
    let tokens = place.run("add", add)?.success()?.output();
    let tokens: Vec<&str> =
        tokens.split_whitespace().filter(|word| word.starts_with("strake-join-")).collect();
    let &[second, third] = tokens.as_slice() else {
        return Err(format!("{} tokens were printed", tokens.len()));
    };
    for (number, token) in [(2, second), (3, third)] {
        let join = with(place.on(NODES[number - 1], "node join"), token);
        let join = with(with(join, "--address"), &place.address(number));
        place.succeeds("join", join)?;
    }
    all_vote(place)?;
    Ok(second.to_owned())
}

/// All three nodes have a vote about the cluster's records, as soon as they have joined: a cluster
/// of which one alone has one stands still when it is lost.
fn all_vote(place: &Place<'_>) -> Result<(), String> {
    let shown = place.run("show", place.on("n2", "cluster show --json"))?.success()?.output();
    match shown.matches("\"votes\": true").count() == NODES.len() {
        true => Ok(()),
        false => Err(format!("some have no vote: {shown}")),
    }
}

/// Deletes the file system, and makes one of the same name of the same disks at once, while the
/// server of one of them is down at first.
fn made_anew(place: &Place<'_>) -> Result<(), String> {
    place.kill("n3")?;
    place.succeeds("delete", place.on("n1", "fs delete demo --destroy-data"))?;
    place.succeeds("start", place.on("n3", "node start"))?;
    let wanted = "fs create demo --code 2x --nsds d1,d2,d3 --mount";
    place.succeeds("create-anew", with(place.on("n1", wanted), &place.mount()))?;
    place.succeeds("mount-anew", place.on("n1", "fs mount demo -N n2"))?;
    let names = std::fs::read_dir(place.mount()).map_err(|error| error.to_string())?;
    if names.count() > 0 {
        return Err("what was deleted is there".to_owned());
    }
    place.write("before", 1)?;
    place.verify("before")?;
    place.succeeds("check-anew", place.on_mount("fs check"))?;
    place.succeeds("umount-anew", place.on("n1", "fs umount demo"))
}

/// The cluster's records are kept by all three nodes.
fn the_first_node_is_gone(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    checks.record("three nodes keep the records", all_vote(place));
    place.succeeds("add", place.on("n3", "node add n4"))?;
    place.kill("n1")?;
    let led = place.wait_for("cluster show --json", "n3", |text| {
        text.contains("\"leader\": \"n2\"") || text.contains("\"leader\": \"n3\"")
    });
    checks.record("another node leads when n1 is dead", led);
    for (node, words, wanted) in [
        ("n2", "cluster show", "does not answer"),
        ("n3", "node list", "n1"),
        ("n2", "node state", " down "),
        ("n3", "nsd list", "d1"),
        ("n2", "fs list", "demo"),
    ] {
        let shown = place.run("without-n1", place.on(node, words))?.success()?.output();
        let shown = if shown.contains(wanted) { Ok(()) } else { Err(shown) };
        checks.record(&format!("without n1, {words} works on {node}"), shown);
    }
    let deleted = place.succeeds("delete-without-n1", place.on("n2", "node delete n4"));
    checks.record("n2 deletes a node without n1", deleted);
    checks.record("without n1, a node joins", joins_without_n1(place));
    checks.record("without n1, the file system is mounted, written and read", used(place));
    place.succeeds("start", place.on("n1", "node start"))?;
    let back = place.wait_for("cluster show --json", "n1", |text| {
        text.matches("\"behind\": 0").count() == NODES.len() && !text.contains("n4")
    });
    checks.record("n1 comes back and has what it missed", back);
    Ok(())
}

/// n2 and n3 have the key of n1, and issue certificates. Of two tokens for a node the newer one
/// counts, whoever made it.
fn joins_without_n1(place: &Place<'_>) -> Result<(), String> {
    let shown = place.run("issuers", place.on("n3", "cluster show"))?.success()?.output();
    if !shown.lines().any(|line| line.ends_with("n1, n2, n3") && line.contains("issued")) {
        return Err(format!("not all have the key: {shown}"));
    }
    let older = invite(place, "n3", "n5", "client")?;
    let newer = invite(place, "n2", "n5", "client")?;
    for (token, is_good) in [(older, false), (newer, true)] {
        let join = with(with(place.on("n5", "node join"), &token), "--address");
        let join = with(join, &place.address(5));
        match is_good {
            true => place.succeeds("join-n5", join)?,
            false => place.refused(join, "a newer one replaced it")?,
        }
    }
    place.succeeds("list-at-n5", place.on("n5", "node list"))?;
    place.refused(place.on("n2", "node add n3"), "n3 is a node of this cluster already")?;
    let delete = place.on("n2", "node delete n1");
    place.refused(delete, "n1 serves d1")?;
    place.succeeds("delete-n5", place.on("n3", "node delete n5"))?;
    place.succeeds("stop-n5", place.on("n5", "node stop"))
}

/// n3 mounts the file system, and uses it.
fn used(place: &Place<'_>) -> Result<(), String> {
    let settings = "--set pagepool=64M --set stay_awake=off";
    place.succeeds("mount-without-n1", place.on("n3", &format!("fs mount demo {settings}")))?;
    place.write("without-n1", 2)?;
    place.verify("without-n1")?;
    place.succeeds("umount-without-n1", place.on("n2", "fs umount demo"))
}

/// What protects users from themselves.
fn refusals(place: &Place<'_>, checks: &mut Checks) {
    let delete = place.on("n1", "node delete n2");
    checks.record("a node with disks is not deleted", place.refused(delete, "n2 serves d2"));
    let stop = place.on("n2", "node stop");
    checks.record("a node does not stop under its mount", place.refused(stop, "umount demo"));
    let create = place.on("n1", "fs create more --code 2x --mount /nowhere");
    checks.record("a file system needs disks", place.refused(create, "no free NSD"));
    let delete = place.on("n1", "fs delete demo");
    checks.record("data is destroyed on purpose only", place.refused(delete, "--destroy-data"));
    let delete = place.on("n1", "fs delete demo --destroy-data");
    let busy = place.refused(delete, "demo is mounted on n2");
    checks.record("a file system in use is not deleted", busy);
    let delete = place.on("n1", "nsd delete d1");
    let busy = place.refused(delete, "d1 belongs to file system demo");
    checks.record("an NSD in use is not deleted", busy);
    let file = place.root.join("one-node.stanza");
    let stanzas = "%nsd: device=a servers=n3 size=64M\n%nsd: device=b servers=n3 size=64M\n";
    let made = std::fs::write(&file, stanzas).map_err(|error| error.to_string()).and_then(|()| {
        let nsds = with(place.on("n1", "nsd create -F"), &file.to_string_lossy());
        place.succeeds("nsds-of-one-node", nsds)
    });
    checks.record("descriptors of two disks of one node are taken", made);
    let create = place.on("n1", "fs create more --code 2x --mount /nowhere");
    let wanted = "The loss of one would lose data";
    checks.record("a code must survive the loss of a node", place.refused(create, wanted));
}

/// A node's server process dies. Everything goes on without it, and it catches up.
fn one_server_dies(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    place.write("before", 1)?;
    place.kill("n3")?;
    checks.record("a file is read while n3's server is dead", place.verify("before"));
    checks.record("a file is written meanwhile", place.write("meanwhile", 2));
    let out_of_use = place.disks().and_then(|text| {
        let d3 = text.lines().find(|line| line.starts_with("d3 ")).unwrap_or_default();
        match d3.contains(" unrecovered ") || d3.contains(" down ") {
            true => Ok(()),
            false => Err(text.clone()),
        }
    });
    checks.record("disk list shows that d3 is out of use", out_of_use);
    place.succeeds("start", place.on("n3", "node start"))?;
    checks.record("d3 catches up", place.wait_until_up_again(&[place.root.join("mnt")]));
    Ok(())
}

/// Ends a check on n2 while the leader compares the files with their strips. The command waits for
/// the leader's answer, and fails only if that answer is a part. A check may be over before the
/// signal comes. It is tried again with more files then.
fn check_is_ended(place: &Place<'_>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    for round in 1..=ROUNDS_MAX {
        let dir = place.root.join("mnt").join(format!("checked-{round}"));
        std::fs::create_dir(&dir).map_err(text)?;
        for file in 0..CHECKED_FILES * round {
            // More than what the metadata keeps itself.
            std::fs::write(dir.join(file.to_string()), contents(file, 16 << 10)).map_err(text)?;
        }
        place.succeeds("sync", place.on_mount("fs sync"))?;
        let mut check = place.on_mount("fs check");
        let mut check = check.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(text)?;
        let mut is_there = false;
        while !is_there && check.try_wait().map_err(text)?.is_none() {
            let status = place.run("check-status", place.on_mount("fs check --status"))?;
            is_there = status.success()?.output().contains("the files and their strips");
        }
        // It is a zombie if it has ended before, so that the number is still its own.
        signal("-INT", &check.id().to_string())?;
        let ended = check.wait_with_output().map_err(text)?;
        let said = String::from_utf8_lossy(&ended.stdout);
        if is_there && ended.status.code() == Some(130) && said.contains("until then: ") {
            return place.wait_for_check_to_end();
        }
        if !ended.status.success() {
            return Err(format!("the check ended with {}: {said}", ended.status));
        }
    }
    Err(format!("{ROUNDS_MAX} checks were over before the signal came"))
}

/// All server processes die, one after the other, while fio works.
fn servers_die_under_fio(place: &Place<'_>, checks: &mut Checks) {
    let mut fio = place.session.command("fio");
    fio.args(["--name=verified", "--rw=randwrite", "--bs=64k", "--size=24M", "--ioengine=psync"]);
    fio.args(["--fsync=16", "--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1"]);
    fio.args(["--time_based", "--runtime=12", "--randseed=7", "--fallocate=none", "--directory"]);
    fio.arg(place.mount());
    let (fio, accidents) = std::thread::scope(|scope| {
        let fio =
            scope.spawn(|| place.session.run("cluster-first", "fio", FIO_SECONDS_MAX, &mut fio));
        let accidents = ["n3", "n2", "n1"].iter().try_for_each(|node| {
            pause(WORK);
            place.kill(node)?;
            pause(WORK);
            place.succeeds("restart", place.on(node, "node start"))?;
            // Only one failure at a time is promised.
            place.wait_until_up_again(&[place.root.join("mnt")])
        });
        let fio = fio.join().unwrap_or_else(|_| Err("it panicked".to_owned()));
        (fio.map(drop), accidents)
    });
    checks.record("the servers of n3, n2 and n1 are killed and started again", accidents);
    checks.record("fio sees no error meanwhile", fio);
}

/// A command with one more argument.
pub(super) fn with(mut command: Command, argument: &str) -> Command {
    command.arg(argument);
    command
}

/// Where a cluster is.
pub(super) struct Place<'a> {
    pub(super) session: &'a Session,
    suite: &'static str,
    pub(super) root: PathBuf,
    port: u32,
    /// While it is true, programs that are started behave as older ones (decision 0080).
    pub(super) runs_older: AtomicBool,
}

impl<'a> Place<'a> {
    pub(super) fn new(session: &'a Session, suite: &'static str) -> Result<Place<'a>, String> {
        let root = session.root.join(session.next_number().to_string());
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        // Two runs side by side have different ports, below those that the system gives away.
        let port = 12_000 + std::process::id() % 20_000;
        Ok(Place { session, suite, root, port, runs_older: AtomicBool::new(false) })
    }

    /// Whatever went wrong, no process stays.
    pub(super) fn end(&self) {
        let _ = self.run("umount-at-the-end", self.on("n1", "fs umount demo --force"));
        // The others are there in some suites.
        for node in NODES.into_iter().chain(["n4", "n5", "n6", "n7"]) {
            let _ = self.run("stop-at-the-end", self.on(node, "node stop --force"));
            // The directory goes with the session. What the processes said may be wanted.
            let logs = [("node", "node.log"), ("mount", "mount/demo/strake.log")];
            for (name, log) in logs {
                let to = self.session.log(self.suite, &format!("{name}-{node}"));
                let _ = std::fs::remove_file(&to);
                let _ = std::fs::copy(self.root.join(node).join(log), to);
            }
        }
    }

    pub(super) fn address(&self, number: usize) -> String {
        format!("127.0.0.{number}:{}", self.port)
    }

    pub(super) fn mount(&self) -> String {
        self.root.join("mnt").to_string_lossy().into_owned()
    }

    /// The command `strake WORDS --dir DIR`, which comes before what is appended to it.
    pub(super) fn on(&self, node: &str, words: &str) -> Command {
        let mut command = self.session.command(&self.session.strake);
        let mut words = words.split(' ');
        command.args(words.by_ref().take(2));
        command.arg("--dir").arg(self.root.join(node)).args(words);
        if self.runs_older.load(SeqCst) {
            command.env("STRAKE_FEATURE_LEVEL_MAX", "1");
        }
        command
    }

    /// The command `strake WORDS` about the mount on n2.
    pub(super) fn on_mount(&self, words: &str) -> Command {
        self.on_mount_of("n2", words)
    }

    /// The command `strake WORDS` about the mount on a node.
    pub(super) fn on_mount_of(&self, node: &str, words: &str) -> Command {
        let mut command = self.session.command(&self.session.strake);
        let data = self.root.join(node).join("mount/demo");
        command.args(words.split(' ')).arg("--data").arg(data);
        command
    }

    pub(super) fn run(&self, name: &str, mut command: Command) -> Result<Ended, String> {
        let log = self.session.log(self.suite, name);
        super::command::run(&mut command, &log, Duration::from_secs(COMMAND_SECONDS_MAX))
    }

    pub(super) fn succeeds(&self, name: &str, command: Command) -> Result<(), String> {
        self.run(name, command)?.success().map(drop)
    }

    /// Succeeds if the command fails and says `wanted`.
    pub(super) fn refused(&self, command: Command, wanted: &str) -> Result<(), String> {
        let ended = self.run("refused", command)?;
        match !ended.status.success() && ended.output().contains(wanted) {
            true => Ok(()),
            false => Err(ended.complaint("not refused as it should be")),
        }
    }

    pub(super) fn disks(&self) -> Result<String, String> {
        Ok(self.run("disks", self.on_mount("disk list"))?.success()?.output())
    }

    /// As [`Place::wait_until_up`], after the server of a disk was killed and started again. Those
    /// who have these mounts may not have used the disk meanwhile. They would call it up, and find
    /// out later that it misses something.
    pub(super) fn wait_until_up_again(&self, mounts: &[PathBuf]) -> Result<(), String> {
        for mount in mounts {
            // So much goes to the disks and not into the metadata, and its commit meets all disks.
            let file = mount.join("notice");
            let written = std::fs::write(&file, contents(0, NOTICE_BYTES));
            let synced = written.and_then(|()| std::fs::File::open(file)?.sync_all());
            synced.map_err(|error| format!("notice: {error}"))?;
        }
        self.wait_until_up()
    }

    pub(super) fn wait_until_up(&self) -> Result<(), String> {
        let mut seen = String::new();
        for _ in 0..LOOKS_MAX {
            seen = self.disks()?;
            if seen.matches(" up ").count() == NODES.len() {
                return Ok(());
            }
            pause(LOOK);
        }
        Err(format!("not every disk comes up:\n{seen}"))
    }

    /// Repeats a command until what it says is `as_wanted`.
    fn wait_for(
        &self,
        words: &str,
        node: &str,
        as_wanted: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let mut seen = String::new();
        for _ in 0..LOOKS_MAX {
            seen = self.run("look", self.on(node, words))?.output();
            if as_wanted(&seen) {
                return Ok(());
            }
            pause(LOOK);
        }
        Err(format!("{words} on {node} never says what is wanted:\n{seen}"))
    }

    /// Waits until the mount on n2 says that no check is under way.
    fn wait_for_check_to_end(&self) -> Result<(), String> {
        let mut seen = String::new();
        for _ in 0..LOOKS_MAX {
            let status = self.run("check-status", self.on_mount("fs check --status"))?;
            seen = status.success()?.output();
            if seen.contains("no check is under way") {
                return Ok(());
            }
            pause(LOOK);
        }
        Err(format!("the check does not end: {seen}"))
    }

    fn write(&self, name: &str, salt: u64) -> Result<(), String> {
        let text = |error: std::io::Error| format!("{name}: {error}");
        let path = self.root.join("mnt").join(name);
        std::fs::write(&path, contents(salt, 12 << 20)).map_err(text)?;
        std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(text)
    }

    fn verify(&self, name: &str) -> Result<(), String> {
        let salt = if name == "before" { 1 } else { 2 };
        let path = self.root.join("mnt").join(name);
        let found = std::fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
        match found == contents(salt, 12 << 20) {
            true => Ok(()),
            false => Err(format!("{name} is not what was written")),
        }
    }

    /// Kills the server process of a node.
    pub(super) fn kill(&self, node: &str) -> Result<(), String> {
        let data = self.root.join(node);
        let wanted = format!("daemon\0--role\0node\0--data\0{}\0", data.display());
        signal("-9", &process(&wanted)?)
    }

    /// Kills the process of the mount on a node.
    pub(super) fn kill_mount(&self, node: &str) -> Result<(), String> {
        signal("-9", &self.mount_process(node)?)
    }

    /// The process of the mount on a node.
    pub(super) fn mount_process(&self, node: &str) -> Result<String, String> {
        let data = self.root.join(node).join("mount/demo");
        process(&format!("daemon\0--data\0{}\0", data.display()))
    }
}

/// The number of the process whose command line contains `wanted`.
fn process(wanted: &str) -> Result<String, String> {
    let entries = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
    let is_meant = |entry: &std::fs::DirEntry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(wanted)
    };
    let found = entries.filter_map(Result::ok).find(is_meant);
    let process = found.ok_or(format!("there is no process {wanted:?}"))?.file_name();
    Ok(process.to_string_lossy().into_owned())
}

/// Sends a signal to a process.
pub(super) fn signal(signal: &str, process: &str) -> Result<(), String> {
    let arguments = ["-c", "kill \"$1\" \"$2\"", "kill", signal, process];
    match Command::new("sh").args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("process {process} gets no {signal}")),
    }
}
