//! Disks of a cluster's file system with code 1 are deleted, while three nodes have it mounted and
//! fio verifies what it writes on two of them. Part of the suite cluster-disks.
//!
//! 1. A disk is deleted. The node that serves is killed meanwhile, and the next one goes on.
//! 2. A node that has only disks is emptied and leaves the cluster.
//! 3. Every file is whole on every mount, `fs check` is clean, and a scrub finds nothing.

use super::checks::Checks;
use super::cluster_disks::{fio, is_free, make_node, scrub, verify, wait_until, write};
use super::cluster_first::{NODES, Place, make_nodes, make_nsds, with};
use super::cluster_mounts::{mount, serving};
use super::session::Session;

const FILES: u64 = 6;

pub(super) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-disks")?;
    let outcome = story(&place, checks);
    place.end();
    outcome
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make_nodes(place)?;
    make_node(place, "n4", 4, "server")?;
    let mut stanzas = "%nsd: device=x1 servers=n4 nsd=x1 size=384M usage=dataOnly\n".to_owned();
    for (number, node) in (1..).zip(NODES) {
        stanzas += &format!("%nsd: device=m{number} servers={node} nsd=m{number} size=384M\n");
    }
    stanzas += "%nsd: device=d2 servers=n2 nsd=d2 size=384M usage=dataOnly\n";
    make_nsds(place, &stanzas)?;
    let create = with(place.on("n1", "fs create demo --code 1 --mount"), &place.mount());
    place.succeeds("fs-create-1", create)?;
    NODES.into_iter().try_for_each(|node| mount(place, node))?;
    (0..FILES).try_for_each(|file| write(place, file))?;
    let (fio, story) = std::thread::scope(|scope| {
        let fios: Vec<_> = [("n1", "64k"), ("n2", "4k")]
            .map(|(node, block)| scope.spawn(move || fio(place, node, block)))
            .into_iter()
            .collect();
        let story = a_disk_that_goes(place, checks).and_then(|()| a_node_that_goes(place, checks));
        let ended = fios.into_iter().map(|fio| fio.join().unwrap_or(Err("it panicked".into())));
        (ended.collect::<Result<Vec<()>, String>>(), story)
    });
    story?;
    checks.record("code 1: fio on two mounts sees no error", fio.map(drop));
    for node in NODES {
        let found = (0..FILES + 2).try_for_each(|file| verify(place, node, file));
        checks.record(&format!("code 1: every file is whole on {node}"), found);
    }
    checks.record(
        "code 1: strake fs check is clean",
        place.succeeds("check-1", place.on_mount("fs check")),
    );
    checks.record("code 1: a scrub finds nothing bad", scrub(place));
    Ok(())
}

fn a_disk_that_goes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    place.succeeds("delete-1", place.on_mount_of("n3", "disk delete d2 --rate 8M"))?;
    let dies = serving(place, "n1")?;
    place.kill(dies)?;
    place.succeeds("start-1", place.on(dies, "node start"))?;
    (FILES..FILES + 2).try_for_each(|file| write(place, file))?;
    let gone = wait_until(|| {
        let disks = place.disks()?;
        Ok((!disks.lines().any(|line| line.starts_with("d2 ")), disks))
    });
    checks.record("code 1: a disk is deleted although the serving node is killed", gone);
    checks.record("code 1: it belongs to no file system any more", is_free(place, "n2", "d2"));
    place.succeeds("drop-1", place.on("n3", "nsd delete d2"))
}

fn a_node_that_goes(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let deleted = place.succeeds("delete-n4-1", place.on("n2", "node delete n4 --empty"));
    checks.record("code 1: a node is emptied and deleted", deleted);
    let listed = place.run("nsds-1", place.on("n2", "nsd list"))?.success()?.output();
    checks.hold("code 1: its disk is gone", !listed.contains("x1"), || listed.clone());
    place.succeeds("stop-n4-1", place.on("n4", "node stop"))
}
