//! Two of three nodes of a cluster are lost for good, and `strake cluster recover` on the third one
//! brings the file system back (R31).
//!
//! 1. The server of n1 is away while n2 and n3 make, delete and sync files. Then n2 and n3 die. The
//!    directory of n3 is gone with its disk. That of n2 is put aside.
//! 2. `cluster recover` on n1 says what is lost, and asks. Without an answer nothing is changed.
//! 3. n1 serves again. A mount that lived through it fails every operation, and is mounted again.
//!    Every file that was synced before is whole. What n2 and n3 did alone is not there. New files
//!    can be written.
//! 4. n2 comes back with its old log and disk. It gives up what it had, and becomes a member. A new
//!    node takes the place of n3.
//! 5. Both others are lost once more, and nothing is left of them. n1 recovers again, and two new
//!    nodes take their places. The file system goes on without any one node.
//! 6. n1 is lost, which made the cluster. A new node joins at another one and takes its place.
//! 7. Two disks are lost, and their nodes are not. `fs recover` has the file system go on with the
//!    copy on the third disk, and new disks take their places.

use super::checks::Checks;
use super::cluster_copies::{FILES, make_three};
use super::cluster_disks::{is_free, make_node, make_node_at, verify, wait_until};
use super::cluster_first::{NODES, Place, make_nsds, make_nsds_at};
use super::cluster_mounts::{at, kill_node, mount};
use super::session::Session;
use super::writer::contents;
use std::fs;
use std::path::PathBuf;

const SMALL_BYTES: usize = 3 << 20;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-recover")?;
    let outcome = story(&place, checks);
    place.end();
    outcome
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_three(place, 'd', "3x")?;
    small(place, "n1", "old", 20)?;
    without_n1(place)?;
    lose(place, "n3")?;
    kill_node(place, "n2")?;
    detach(place, "n2")?;
    fs::rename(dir(place, "n2"), dir(place, "aside")).map_err(text("put n2 aside"))?;
    recovered(place, checks, "d2, d3")?;
    let left = fs::read_dir(at(place, "n1")).map_err(text("list"))?;
    let names = left.filter_map(Result::ok).map(|entry| entry.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    checks.hold("what others did alone is gone", !names.contains(&"void".into()), || {
        format!("{names:?}")
    });
    let back = whole(place, "n1", "old", 20);
    checks.record("a file that others deleted alone is back", back);
    checks.record("a new file is written on the disk that is left", small(place, "n1", "new", 22));
    old_node_returns(place, checks)?;
    checks.record("a new node takes the place of n3", replace(place, "n3", "d3", ("n4", 4)));
    goes_on(place, checks, &["n2", "n4"])?;
    lose(place, "n2")?;
    lose(place, "n4")?;
    place.kill("n1")?;
    recovered(place, checks, "d2, e4")?;
    for (lost, disk, new) in [("n2", "d2", ("n5", 5)), ("n4", "e4", ("n6", 6))] {
        let replaced = take_over(place, "n1", (lost, disk), new);
        checks.record(&format!("{} takes the place of {lost}", new.0), replaced);
    }
    goes_on(place, checks, &["n5", "n6"])?;
    lose(place, "n1")?;
    let replaced = take_over(place, "n5", ("n1", "d1"), ("n7", 7));
    checks.record("n7 takes the place of n1, which made the cluster", replaced);
    let shown = place.run("issuers", place.on("n7", "cluster show"))?.success()?.output();
    let is_so = |line: &str| line.contains("issued") && line.ends_with("n5, n6, n7");
    checks.hold("the nodes that are there issue certificates", shown.lines().any(is_so), || shown);
    let found = (0..FILES).try_for_each(|file| verify(place, "n7", file));
    checks.record("every file is whole on n7", found);
    let check = place.succeeds("check", place.on_mount_of("n7", "fs check"));
    checks.record("strake fs check is clean without n1", check);
    two_disks_are_lost(place, checks)
}

/// Of n6 and n7 the disks are gone. Their servers, and all mounts, are there.
fn two_disks_are_lost(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let refused = place.refused(place.on("n5", "fs recover demo"), "nothing is to be recovered");
    checks.record("what has its majority is not recovered", refused);
    for node in ["n6", "n7"] {
        place.kill(node)?;
        fs::remove_dir_all(dir(place, node).join("nsd/e")).map_err(text("remove the disk"))?;
    }
    for node in ["n6", "n7"] {
        place.succeeds("start-without-disk", place.on(node, "node start"))?;
    }
    let asked = wait_until(|| {
        let said = place.run("asked-fs", place.on("n5", "fs recover demo"))?;
        Ok((!said.status.success() && said.output().contains("nothing was changed"), said.output()))
    });
    checks.record("fs recover asks", asked);
    let recover = place.on("n7", "fs recover demo --yes");
    let said = place.run("recover-fs", recover)?.success()?.output();
    for wanted in ["It goes on with the copy of n5 on e5, up to entry ", "e6, e7 do not answer"] {
        checks.hold(&format!("it says: {wanted}"), said.contains(wanted), || said.clone());
    }
    let goes_on = wait_until(|| {
        let made = fs::create_dir(at(place, "n5").join("without two disks"));
        Ok((made.is_ok(), format!("{made:?}")))
    });
    checks.record("a mount of before goes on without two disks", goes_on);
    for (node, lost, new, group) in [("n6", "e6", "f6", 4004), ("n7", "e7", "f7", 4001)] {
        let stanza =
            format!("%nsd: device=f servers={node} nsd={new} size=384M failureGroup={group}\n");
        make_nsds_at(place, "n5", &stanza)?;
        place
            .succeeds("replace", place.on_mount_of("n5", &format!("disk replace {lost} {new}")))?;
        checks.record(&format!("{new} takes the place of {lost}"), is_up_at(place, "n5", new));
        is_free(place, "n5", lost)?;
        place.succeeds("drop-disk", place.on("n5", &format!("nsd delete {lost}")))?;
    }
    let found = (0..FILES).try_for_each(|file| verify(place, "n7", file));
    checks.record("every file is whole on new disks", found);
    let check = place.succeeds("check", place.on_mount_of("n7", "fs check"));
    checks.record("strake fs check is clean on new disks", check);
    Ok(())
}

/// The others make a file and delete one. n1 does not hear of it.
fn without_n1(place: &Place<'_>) -> Result<(), String> {
    place.kill("n1")?;
    small(place, "n2", "void", 21)?;
    fs::remove_file(at(place, "n2").join("old")).map_err(text("remove"))?;
    place.succeeds("sync-n2", place.on_mount_of("n2", "fs sync"))?;
    whole(place, "n3", "void", 21)
}

/// A node dies, and nothing is left of it.
fn lose(place: &Place<'_>, node: &str) -> Result<(), String> {
    kill_node(place, node)?;
    detach(place, node)?;
    fs::remove_dir_all(dir(place, node)).map_err(text("remove the node"))
}

/// Takes the mount of a dead process away.
fn detach(place: &Place<'_>, node: &str) -> Result<(), String> {
    let mut umount = place.session.command("umount");
    umount.arg("-l").arg(at(place, node));
    place.succeeds("umount-dead", umount)
}

/// n1, whose server is down, goes on alone. The disks of the others are named as lost.
fn recovered(place: &Place<'_>, checks: &mut Checks, lost: &str) -> Result<(), String> {
    // The process that was killed has the lock for a moment.
    let asked = wait_until(|| {
        let said = place.run("asked", place.on("n1", "cluster recover"))?;
        Ok((!said.status.success() && said.output().contains("nothing was changed"), said.output()))
    });
    checks.record("cluster recover asks", asked);
    let said = place.run("recover", place.on("n1", "cluster recover --yes"))?.success()?.output();
    for wanted in [
        "It goes on with the copy of n1 on d1, up to entry ",
        "The last change in it was made at 20",
        &format!("{lost} do not answer"),
    ] {
        checks.hold(&format!("it says: {wanted}"), said.contains(wanted), || said.clone());
    }
    place.succeeds("start-n1", place.on("n1", "node start"))?;
    let goes_on = wait_until(|| {
        // It may answer from what it knows until its lease ends. This asks the node that serves.
        let made = fs::create_dir(at(place, "n1").join(format!("without {lost}")));
        Ok((made.is_ok(), format!("{made:?}")))
    });
    checks.record("a mount of before goes on", goes_on);
    let found = (0..FILES).try_for_each(|file| verify(place, "n1", file));
    checks.record("every file that was synced is whole", found);
    Ok(())
}

/// A node that was taken for lost comes back with its old log.
fn old_node_returns(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    fs::rename(dir(place, "aside"), dir(place, "n2")).map_err(text("bring n2 back"))?;
    place.succeeds("start-n2", place.on("n2", "node start"))?;
    let member = wait_until(|| {
        let said = place.run("state", place.on("n2", "node state --json"))?.output();
        let is_member = said.contains("\"fs\": \"demo\"") && !said.contains("\"lacking\"");
        Ok((is_member && said.matches("\"serves\": true").count() == 1, said))
    });
    checks.record("a node that comes back is a member again", member);
    mount(place, "n2")?;
    let gone = !at(place, "n2").join("void").exists();
    checks.hold("what it did alone is void", gone, || "void is there".to_owned());
    let up = is_up(place, "d2").and_then(|()| whole(place, "n2", "new", 22));
    checks.record("its disk catches up", up);
    Ok(())
}

/// A new node takes the place of one that is gone, and its disk that of the lost disk. While more
/// than one disk is lost, none can be deleted.
fn take_over(
    place: &Place<'_>,
    at: &str,
    (lost, disk): (&str, &str),
    (node, number): (&str, usize),
) -> Result<(), String> {
    make_node_at(place, at, (node, number), "quorum,server,client")?;
    // The group that all disks of the lost node share.
    let group = format!("400{}", &lost[1..]);
    let stanza =
        format!("%nsd: device=e servers={node} nsd=e{number} size=384M failureGroup={group}\n");
    make_nsds_at(place, at, &stanza)?;
    let replace = format!("disk replace {disk} e{number}");
    place.succeeds("replace-disk", place.on_mount_of(at, &replace))?;
    is_up_at(place, at, &format!("e{number}"))?;
    is_free(place, at, disk)?;
    place.succeeds("drop-disk", place.on(at, &format!("nsd delete {disk}")))?;
    place.succeeds("delete-node", place.on(at, &format!("node delete {lost}")))?;
    mount(place, node)
}

/// A new node with a disk takes the place of one that is gone, by the documented commands.
fn replace(place: &Place<'_>, lost: &str, disk: &str, new: (&str, usize)) -> Result<(), String> {
    let (node, number) = new;
    make_node(place, node, number, "quorum,server,client")?;
    make_nsds(place, &format!("%nsd: device=e servers={node} nsd=e{number} size=384M\n"))?;
    place.succeeds("add-disk", place.on_mount_of("n1", &format!("disk add e{number}")))?;
    place.succeeds("delete-disk", place.on_mount_of("n1", &format!("disk delete {disk}")))?;
    is_free(place, "n1", disk)?;
    place.succeeds("drop-disk", place.on("n1", &format!("nsd delete {disk}")))?;
    place.succeeds("delete-node", place.on("n1", &format!("node delete {lost}")))?;
    is_up(place, &format!("e{number}"))?;
    mount(place, node)
}

/// Everything is whole on all nodes, and n1 goes on without any one of the others.
fn goes_on(place: &Place<'_>, checks: &mut Checks, nodes: &[&str]) -> Result<(), String> {
    let check = place.succeeds("check", place.on_mount_of("n1", "fs check"));
    checks.record("strake fs check is clean", check);
    for node in nodes {
        let found = (0..FILES).try_for_each(|file| verify(place, node, file));
        let found = found.and_then(|()| whole(place, node, "old", 20));
        checks.record(&format!("every file is whole on {node}"), found);
        place.kill(node)?;
        let goes_on = small(place, "n1", "meanwhile", 30).and_then(|()| verify(place, "n1", 0));
        checks.record(&format!("it goes on without {node}"), goes_on);
        place.succeeds("start", place.on(node, "node start"))?;
        small(place, "n1", "meanwhile", 31)?;
        let disks = wait_until(|| {
            let disks = place.run("disks", place.on_mount_of("n1", "disk list"))?.output();
            Ok((disks.matches(" up ").count() == NODES.len(), disks))
        });
        checks.record(&format!("the disk of {node} is back"), disks);
    }
    Ok(())
}

fn is_up(place: &Place<'_>, disk: &str) -> Result<(), String> {
    is_up_at(place, "n1", disk)
}

fn is_up_at(place: &Place<'_>, node: &str, disk: &str) -> Result<(), String> {
    wait_until(|| {
        let disks = place.run("disks", place.on_mount_of(node, "disk list"))?.output();
        let row = disks.lines().find(|line| line.starts_with(&format!("{disk} ")));
        Ok((row.is_some_and(|row| row.contains(" up ")), disks))
    })
}

fn dir(place: &Place<'_>, node: &str) -> PathBuf {
    place.root.join(node)
}

fn small(place: &Place<'_>, node: &str, name: &str, salt: u64) -> Result<(), String> {
    let path = at(place, node).join(name);
    fs::write(&path, contents(salt, SMALL_BYTES)).map_err(text(name))?;
    fs::File::open(&path).and_then(|file| file.sync_all()).map_err(text(name))
}

fn whole(place: &Place<'_>, node: &str, name: &str, salt: u64) -> Result<(), String> {
    let found = fs::read(at(place, node).join(name)).map_err(text(name))?;
    match found == contents(salt, SMALL_BYTES) {
        true => Ok(()),
        false => Err(format!("{name} on {node} is not what was written")),
    }
}

fn text(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}
