//! The disks of a cluster's file system, while three nodes have it mounted and fio verifies what it
//! writes on two of them.
//!
//! 1. A disk is added. Files that are made then lie there, too, and are whole on every mount.
//! 2. A node with two disks is away for a while, which is one loss and not two.
//! 3. A disk is lost. What cannot take its place is refused with exit code 2: an NSD that does not
//!    exist, one that is in use, one of another failure group, one that is too small.
//! 4. A new NSD takes its place. While it is filled, the node that serves is killed, and the mount
//!    of the third node is killed. The new disk is `up` in the end, and the lost one is free.
//! 5. A disk that can be read is deleted. The node that serves is killed meanwhile, and the next
//!    one goes on. The disk is free in the end.
//! 6. A node that has only disks is emptied and leaves the cluster.
//! 7. Every file is whole on every mount, `fs check` is clean, and a scrub finds nothing.
//! 8. The same with code 1, as far as disks go ([`super::cluster_one_copy`]).

use super::checks::Checks;
use super::cluster_first::{FIO_SECONDS_MAX, NODES, Place, make_nodes, make_nsds, with};
use super::cluster_mounts::{at, mount, serving};
use super::command::pause;
use super::session::Session;
use super::writer::contents;
use crate::runner::now;
use std::fs;
use std::process::Command;
use std::time::Duration;

// So much that a disk of 64 MiB cannot hold its part of them.
const FILES: u64 = 12;
const FILE_BYTES: usize = 19 << 20;
/// For what takes longest here: a disk is filled, with a change of the serving node in between.
const FILL_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// A mount that does not hear of a disk that is away is waited for so long.
const LEAVE_MAX: Duration = Duration::from_secs(60);

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-disks")?;
    let outcome = story(&place, checks);
    place.end();
    outcome.and_then(|()| super::cluster_one_copy::run(session, checks))
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_nodes(place)?;
    let mut stanzas = String::new();
    for (number, node) in (1..).zip(NODES) {
        stanzas += &format!("%nsd: device=m{number} servers={node} nsd=m{number} size=384M\n");
        let data = format!("servers={node} usage=dataOnly size=384M");
        stanzas += &format!("%nsd: device=d{number} nsd=d{number} {data}\n");
    }
    make_nsds(place, &stanzas)?;
    let create = with(place.on("n1", "fs create demo --code 2x --mount"), &place.mount());
    place.succeeds("fs-create", create)?;
    for node in NODES {
        mount(place, node)?;
    }
    for file in 0..FILES {
        write(place, file)?;
    }
    let (fio, story) = std::thread::scope(|scope| {
        let fios: Vec<_> = [("n1", "64k"), ("n2", "4k")]
            .map(|(node, block)| scope.spawn(move || fio(place, node, block)))
            .into_iter()
            .collect();
        let story = a_disk_that_comes(place, checks)
            .and_then(|()| a_node_away(place, checks))
            .and_then(|()| a_lost_disk(place, checks))
            .and_then(|()| a_disk_that_goes(place, checks))
            .and_then(|()| a_node_that_goes(place, checks));
        let ended = fios.into_iter().map(|fio| fio.join().unwrap_or(Err("it panicked".into())));
        (ended.collect::<Result<Vec<()>, String>>(), story)
    });
    story?;
    checks.record("fio on two mounts sees no error", fio.map(drop));
    whole(place, checks);
    Ok(())
}

/// Verifies what it writes while the disks change.
pub(super) fn fio(place: &Place<'_>, node: &str, block: &str) -> Result<(), String> {
    let mut fio = place.session.command("fio");
    fio.args([format!("--name=verified-{node}"), format!("--bs={block}")]);
    fio.args(["--rw=randwrite", "--size=16M", "--ioengine=psync", "--fsync=16"]);
    fio.args(["--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1", "--time_based"]);
    fio.args(["--runtime=45", "--randseed=7", "--fallocate=none", "--directory"]);
    fio.arg(at(place, node));
    let name = format!("fio-{node}");
    place.session.run("cluster-disks", &name, FIO_SECONDS_MAX, &mut fio).map(drop)
}

/// Disks are added while all mounts write.
fn a_disk_that_comes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_nsds(place, "%nsd: device=a1 servers=n1 nsd=a1 size=384M usage=dataOnly\n")?;
    for (words, wanted) in [
        ("disk add nothing", "no NSD 'nothing'; free are a1"),
        ("disk add a1 m1", "NSD m1 belongs to file system demo"),
        ("disk add a1 --size 1G", "--size: in a cluster, make an NSD first"),
        ("disk add /dev/null", "in a cluster, make an NSD first"),
    ] {
        checks.record(&format!("refused: {words}"), refused(place, words, wanted));
    }
    place.succeeds("add", place.on_mount_of("n3", "disk add a1"))?;
    checks.record("an added disk is up", wait_for(place, "a1", |row| row.contains(" up ")));
    let free = || {
        let text = place.run("df", place.on_mount_of("n2", "fs df"))?.success()?.output();
        let row = text.lines().find(|line| line.starts_with("a1 "));
        row.map(str::to_owned).ok_or_else(|| format!("no row of a1:\n{text}"))
    };
    let before = free()?;
    for file in FILES..FILES + 2 {
        write(place, file)?;
    }
    let after = free()?;
    checks.hold("new files lie on an added disk", after != before, || after.clone());
    for node in NODES {
        let found = (FILES..FILES + 2).try_for_each(|file| verify(place, node, file));
        checks.record(&format!("new files are whole on {node}"), found);
    }
    // The files of before are moved there. Another node goes on with that.
    place.succeeds("rebalance", place.on_mount_of("n2", "fs rebalance start --rate 40M"))?;
    let dies = serving(place, "n1")?;
    place.kill(dies)?;
    place.succeeds("start", place.on(dies, "node start"))?;
    let moved = wait_until(|| {
        // For a moment no node serves, and the next one begins anew.
        let status = place.on_mount_of("n2", "fs rebalance status");
        let status = place.run("rebalance-status", status)?.output();
        Ok((status.contains("complete") && !status.contains("left:"), status))
    });
    checks.record("files are moved although the serving node is killed", moved);
    checks.record("every disk is up", wait_for(place, "a1", |row| row.contains(" up ")));
    Ok(())
}

/// The disks of a node are one failure group, of which no stripe has two strips.
fn a_node_away(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    place.kill("n3")?;
    let begun = now();
    for file in [0, 1] {
        write(place, file)?;
    }
    for disk in ["m3", "d3"] {
        wait_for(place, disk, |row| row.contains(" unrecovered "))?;
    }
    let time = now() - begun;
    let is_soon = time < LEAVE_MAX;
    let what = "all mounts do without the disks of n3, and none waits for another one's limit";
    checks.hold(what, is_soon, || format!("after {} s", time.as_secs()));
    for node in ["n1", "n2"] {
        let found = (0..FILES).try_for_each(|file| verify(place, node, file));
        checks.record(&format!("every file is whole on {node} without the disks of n3"), found);
    }
    place.succeeds("start", place.on("n3", "node start"))?;
    for disk in ["m3", "d3"] {
        checks.record(&format!("{disk} is up"), wait_for(place, disk, |row| row.contains(" up ")));
    }
    Ok(())
}

fn a_lost_disk(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    fs::remove_dir_all(place.root.join("n3/nsd/d3")).map_err(|error| error.to_string())?;
    wait_for(place, "d3", |row| row.contains(" unrecovered "))?;
    make_nsds(
        place,
        "%nsd: device=e1 servers=n1 nsd=e1 size=384M usage=dataOnly\n\
         %nsd: device=e2 servers=n2 nsd=e2 size=384M usage=dataOnly\n\
         %nsd: device=small servers=n3 nsd=small size=64M usage=dataOnly\n\
         %nsd: device=e3 servers=n3 nsd=e3 size=384M usage=dataOnly\n",
    )?;
    for (words, wanted) in [
        ("disk replace d3 nothing", "no NSD 'nothing'; free are e1, e2, small, e3"),
        ("disk replace d3 m1", "NSD m1 belongs to file system demo"),
        ("disk replace d2 e2", "can be read"),
        ("disk replace m2 e2", "m2 holds a copy of the metadata, and no other NSD can take it"),
        ("disk replace d3 e1", "Make an NSD with failureGroup="),
        ("disk replace d3 small", "NSD small has room for"),
        ("disk replace d3 --in-place", "--in-place: in a cluster, make an NSD first"),
        ("disk replace d3 /dev/null", "in a cluster, make an NSD first"),
        ("disk replace d9 e3", "no disk 'd9'"),
    ] {
        checks.record(&format!("refused: {words}"), refused(place, words, wanted));
    }
    place.succeeds("replace", place.on_mount_of("n1", "disk replace d3 e3 --rate 8M"))?;
    let dies = serving(place, "n1")?;
    place.kill(dies)?;
    place.kill_mount("n3")?;
    place.succeeds("start", place.on(dies, "node start"))?;
    mount(place, "n3")?;
    let up = wait_for(place, "e3", |row| row.contains(" up "));
    checks.record("a new disk is filled although the serving node and a mount are killed", up);
    checks.record("the lost disk belongs to no file system any more", is_free(place, "n2", "d3"));
    place.succeeds("drop", place.on("n2", "nsd delete d3 e1 e2 small"))
}

/// A disk that can be read is deleted while all mounts write. The node that serves dies meanwhile.
fn a_disk_that_goes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    place.succeeds("delete", place.on_mount_of("n2", "disk delete d2 --rate 8M"))?;
    let second = place.run("second", place.on_mount_of("n1", "disk delete d1"))?;
    let is_refused = second.status.code() == Some(1) && second.output().contains("d2 is being del");
    let second = if is_refused { Ok(()) } else { Err(second.complaint("it is not refused")) };
    checks.record("a second deletion at the same time is refused", second);
    let dies = serving(place, "n1")?;
    place.kill(dies)?;
    place.succeeds("start", place.on(dies, "node start"))?;
    let gone = wait_until(|| {
        let disks = place.disks()?;
        Ok((!disks.lines().any(|line| line.starts_with("d2 ")), disks))
    });
    checks.record("a disk is deleted although the serving node is killed", gone);
    checks.record("it belongs to no file system any more", is_free(place, "n2", "d2"));
    place.succeeds("drop-d2", place.on("n3", "nsd delete d2"))
}

/// A node that has only disks is emptied while all mounts write, and leaves the cluster.
fn a_node_that_goes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_node(place, "n4", 4, "server")?;
    make_nsds(
        place,
        "%nsd: device=x1 servers=n4 nsd=x1 size=384M\n\
         %nsd: device=x2 servers=n4 nsd=x2 size=384M\n",
    )?;
    place.succeeds("add-x", place.on_mount_of("n1", "disk add x1 x2"))?;
    let files = FILES + 2..FILES + 4;
    files.clone().try_for_each(|file| write(place, file))?;
    let held = place.refused(place.on("n1", "node delete n1 --empty"), "n1 has demo mounted");
    checks.record("refused: node delete n1 --empty", held);
    let deleted = place.succeeds("delete-n4", place.on("n2", "node delete n4 --empty"));
    checks.record("a node is emptied and deleted", deleted);
    let listed = place.run("nsds", place.on("n2", "nsd list"))?.success()?.output();
    checks.hold("its disks are gone", !listed.contains("x1"), || listed.clone());
    for node in NODES {
        let found = files.clone().try_for_each(|file| verify(place, node, file));
        checks.record(&format!("what lay there is whole on {node}"), found);
    }
    place.succeeds("stop-n4", place.on("n4", "node stop"))
}

/// One more node joins the cluster, at n1. Its address has that number.
pub(super) fn make_node(
    place: &Place<'_>,
    node: &str,
    number: usize,
    roles: &str,
) -> Result<(), String> {
    make_node_at(place, "n1", (node, number), roles)
}

/// As [`make_node`], at another node.
pub(super) fn make_node_at(
    place: &Place<'_>,
    issuer: &str,
    (node, number): (&str, usize),
    roles: &str,
) -> Result<(), String> {
    let token = invite(place, issuer, node, roles)?;
    let join = with(with(place.on(node, "node join"), &token), "--address");
    place.succeeds("join-node", with(join, &place.address(number)))
}

/// A token with which a node joins.
pub(super) fn invite(
    place: &Place<'_>,
    issuer: &str,
    node: &str,
    roles: &str,
) -> Result<String, String> {
    let add = place.on(issuer, &format!("node add {node} --roles {roles}"));
    let said = place.run("add-node", add)?.success()?.output();
    let token = said.split_whitespace().find(|word| word.starts_with("strake-join-"));
    token.map(str::to_owned).ok_or_else(|| format!("no token was printed: {said}"))
}

/// A disk belongs to no file system any more.
pub(super) fn is_free(place: &Place<'_>, asked: &str, disk: &str) -> Result<(), String> {
    wait_until(|| {
        let list = place.run("nsds", place.on(asked, "nsd list"))?.success()?.output();
        let row = list.lines().find(|line| line.contains(&format!(" {disk} ")));
        Ok((row.is_some_and(|row| row.contains("(free disk)")), list))
    })
}

/// Everything is there, and nothing is amiss.
fn whole(place: &Place<'_>, checks: &mut Checks) {
    for node in NODES {
        let found = (0..FILES + 2).try_for_each(|file| verify(place, node, file));
        checks.record(&format!("every file is whole on {node}"), found);
    }
    let all_up = wait_until(|| {
        let disks = place.disks()?;
        Ok((disks.matches(" up ").count() == 2 * NODES.len(), disks))
    });
    checks.record("six disks are up", all_up);
    let check = wait_until(|| {
        let said = place.run("check", place.on_mount("fs check"))?.success()?.output();
        Ok((!said.contains("is missing"), said))
    });
    checks.record("strake fs check is clean, and misses no disk", check);
    checks.record("a scrub finds nothing bad", scrub(place));
}

/// A scrub of all data finds nothing bad.
pub(super) fn scrub(place: &Place<'_>) -> Result<(), String> {
    place.succeeds("scrub", place.on_mount_of("n1", "fs scrub start")).and_then(|()| {
        wait_until(|| {
            let status = place.on_mount_of("n2", "fs scrub status");
            let status = place.run("scrub-status", status)?.success()?.output();
            Ok((status.contains("complete") && status.contains(" 0 strips bad"), status))
        })
    })
}

/// The command about the mount of n1 fails with exit code 2, and says `wanted`.
pub(super) fn refused(place: &Place<'_>, words: &str, wanted: &str) -> Result<(), String> {
    refused_by(place, place.on_mount_of("n1", words), wanted)
}

/// A command fails with exit code 2, and says `wanted`.
fn refused_by(place: &Place<'_>, command: Command, wanted: &str) -> Result<(), String> {
    let ended = place.run("refused", command)?;
    match ended.status.code() == Some(2) && ended.output().contains(wanted) {
        true => Ok(()),
        false => Err(ended.complaint("not refused as it should be")),
    }
}

/// Waits until the row of a disk in `disk list` of the mount on n2 is as wanted.
pub(super) fn wait_for(
    place: &Place<'_>,
    disk: &str,
    as_wanted: impl Fn(&str) -> bool,
) -> Result<(), String> {
    wait_until(|| {
        let disks = place.disks()?;
        let row = disks.lines().find(|line| line.starts_with(&format!("{disk} ")));
        Ok((row.is_some_and(&as_wanted), disks))
    })
}

/// Waits until a look finds what is wanted. What it saw last is the error otherwise.
pub(super) fn wait_until(look: impl Fn() -> Result<(bool, String), String>) -> Result<(), String> {
    let end = now() + FILL_MAX;
    loop {
        let (is_so, seen) = look()?;
        if is_so {
            return Ok(());
        }
        if now() >= end {
            return Err(seen);
        }
        pause(LOOK);
    }
}

pub(super) fn write(place: &Place<'_>, file: u64) -> Result<(), String> {
    let path = at(place, NODES[file as usize % 3]).join(format!("file-{file}"));
    let text = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::write(&path, contents(file, FILE_BYTES)).map_err(text)?;
    fs::File::open(&path).and_then(|file| file.sync_all()).map_err(text)
}

pub(super) fn verify(place: &Place<'_>, node: &str, file: u64) -> Result<(), String> {
    let path = at(place, node).join(format!("file-{file}"));
    let found = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    match found == contents(file, FILE_BYTES) {
        true => Ok(()),
        false => Err(format!("{} is not what was written", path.display())),
    }
}
