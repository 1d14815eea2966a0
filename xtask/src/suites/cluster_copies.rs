//! Copies of the metadata of a cluster's file system go to other disks and other nodes, while three
//! nodes have it mounted.
//!
//! 1. A disk with a copy is not deleted while no other disk could take the copy.
//! 2. A disk with a copy is lost, and another disk of its node takes its place. The node that
//!    serves dies meanwhile. The file system then goes on without any one of the other nodes, so
//!    the new copy counts.
//! 3. A disk with a copy that can be read is deleted, and the copy goes to another disk of its
//!    node.
//! 4. A node dies for good, with its disk. A new node takes its place, disk and copy, and the dead
//!    one leaves the cluster. The file system then goes on without any one of the others.
//! 5. Every file is whole on every mount, and `fs check` is clean.

use super::checks::Checks;
use super::cluster_disks::{is_free, make_node, refused, verify, wait_for, wait_until, write};
use super::cluster_first::{NODES, Place, make_nodes, make_nsds, with};
use super::cluster_mounts::{at, kill_node, mount, serving};
use super::session::Session;
use std::fs;

pub(super) const FILES: u64 = 3;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-copies")?;
    let outcome = story(&place, checks);
    place.end();
    outcome
}

/// Makes three nodes with a disk each, `disk` and a number by name, and a file system of this code
/// that all mount. It has [`FILES`] files.
pub(super) fn make_three(place: &Place<'_>, disk: char, code: &str) -> Result<(), String> {
    make_nodes(place)?;
    let stanza = |(at, node): (usize, &str)| {
        format!("%nsd: device={disk}{at} servers={node} nsd={disk}{at} size=384M\n")
    };
    make_nsds(place, &(1..).zip(NODES).map(stanza).collect::<String>())?;
    let create = format!("fs create demo --code {code} --mount");
    place.succeeds("fs-create", with(place.on("n1", &create), &place.mount()))?;
    for node in NODES {
        mount(place, node)?;
    }
    (0..FILES).try_for_each(|file| write(place, file))
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_three(place, 'm', "2x")?;
    let delete = refused(place, "disk delete m2", "no other NSD can take it: 1 of 3 would vote");
    checks.record("refused: disk delete m2", delete);
    a_lost_disk(place, checks)?;
    a_disk_that_goes(place, checks)?;
    a_node_that_dies(place, checks)
}

/// A new disk of the node takes the place of a lost one with a copy.
fn a_lost_disk(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    fs::remove_dir_all(place.root.join("n2/nsd/m2")).map_err(|error| error.to_string())?;
    is_noted(place, "m2")?;
    make_nsds(
        place,
        "%nsd: device=data servers=n2 nsd=data size=384M usage=dataOnly\n\
         %nsd: device=e2 servers=n2 nsd=e2 size=384M\n",
    )?;
    let data = refused(place, "disk replace m2 data", "no other NSD can take it");
    checks.record("refused: an NSD for data alone takes the place", data);
    place.succeeds("replace", place.on_mount_of("n1", "disk replace m2 e2"))?;
    let dies = serving(place, "n1")?;
    place.kill(dies)?;
    place.succeeds("start", place.on(dies, "node start"))?;
    checks.record("the new disk is up", wait_for(place, "e2", |row| row.contains(" up ")));
    checks.record("the lost one is free", is_free(place, "n2", "m2"));
    place.succeeds("drop-m2", place.on("n3", "nsd delete m2 data"))?;
    goes_on_without_any(place, &["n1", "n3"], checks)
}

/// A disk with a copy is deleted. Another disk of the node has the copy from then on.
fn a_disk_that_goes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_nsds(place, "%nsd: device=e1 servers=n1 nsd=e1 size=384M\n")?;
    place.succeeds("add", place.on_mount_of("n1", "disk add e1"))?;
    place.succeeds("delete", place.on_mount_of("n2", "disk delete m1"))?;
    checks.record("a disk with a copy is deleted", is_free(place, "n2", "m1"));
    place.succeeds("drop-m1", place.on("n3", "nsd delete m1"))?;
    goes_on_without_any(place, &["n2", "n3"], checks)
}

/// A node is gone for good, and another one comes.
fn a_node_that_dies(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    kill_node(place, "n3")?;
    fs::remove_dir_all(place.root.join("n3")).map_err(|error| error.to_string())?;
    let mut dead = place.session.command("umount");
    dead.arg("-l").arg(at(place, "n3"));
    place.succeeds("umount-dead", dead)?;
    is_noted(place, "m3")?;
    let gone = refused(place, "disk delete m3", "no other NSD can take it");
    checks.record("refused: the copy of a dead node has nowhere to go", gone);
    make_node(place, "n4", 4, "quorum,server,client")?;
    make_nsds(place, "%nsd: device=x4 servers=n4 nsd=x4 size=384M\n")?;
    place.succeeds("add-x4", place.on_mount_of("n1", "disk add x4"))?;
    place.succeeds("delete-m3", place.on_mount_of("n2", "disk delete m3"))?;
    checks.record("the disk of a dead node leaves the file system", is_free(place, "n2", "m3"));
    place.succeeds("drop-m3", place.on("n2", "nsd delete m3"))?;
    place.succeeds("forget-n3", place.on("n1", "fs umount demo -N n3 --force"))?;
    place.succeeds("delete-n3", place.on("n1", "node delete n3"))?;
    mount(place, "n4")?;
    goes_on_without_any(place, &["n2", "n4"], checks)?;
    for node in ["n1", "n2", "n4"] {
        let found = (0..FILES).try_for_each(|file| verify(place, node, file));
        checks.record(&format!("every file is whole on {node}"), found);
    }
    let check = wait_until(|| {
        let said = place.run("check", place.on_mount_of("n4", "fs check"))?.success()?.output();
        Ok((!said.contains("is missing"), said))
    });
    checks.record("strake fs check is clean, and misses no disk", check);
    place.succeeds("stop-n4", place.on("n4", "node stop --force"))
}

/// Writes until a disk that is lost has missed something.
fn is_noted(place: &Place<'_>, disk: &str) -> Result<(), String> {
    wait_for(place, disk, |row| row.contains(" down ") || row.contains(" unrecovered "))?;
    write(place, 0)?;
    wait_for(place, disk, |row| row.contains(" unrecovered "))
}

/// Each of the nodes is away for a while, one after the other. n1 writes and reads meanwhile.
fn goes_on_without_any(
    place: &Place<'_>,
    nodes: &[&str],
    checks: &mut Checks,
) -> Result<(), String> {
    for node in nodes {
        place.kill(node)?;
        let goes_on = write(place, 0).and_then(|()| verify(place, "n1", 0));
        checks.record(&format!("it goes on without {node}"), goes_on);
        place.succeeds("start", place.on(node, "node start"))?;
        place.wait_until_up_again(&[at(place, "n1")])?;
    }
    Ok(())
}
