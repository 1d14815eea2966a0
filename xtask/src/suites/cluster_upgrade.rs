//! Three nodes get a newer program one after the other while programs work on their mounts, and
//! then the cluster's feature level rises (R32). The older program is this one with
//! `STRAKE_FEATURE_LEVEL_MAX=1`: it speaks the protocol of the first level, and refuses higher
//! levels.
//!
//! 1. Nodes and mounts of the older program. fio verifies on two mounts while the server process of
//!    each node ends and a newer one starts. fio sees no error. After the first node, and again
//!    while only mounts are older, `cluster upgrade` is refused and names who is older.
//! 2. The mounts are made anew, one after the other, while fio works on another one.
//! 3. `cluster upgrade` asks, and then raises the level while fio works. The logs of the metadata
//!    follow. A second time there is nothing to do.
//! 4. A node with the older program does not start any more, and says why. With the newer one it
//!    is back. `fs check` is clean.

use super::checks::Checks;
use super::cluster_copies::{FILES, make_three};
use super::cluster_disks::{verify, wait_until};
use super::cluster_first::{FIO_SECONDS_MAX, NODES, Place};
use super::cluster_mounts::{at, mount};
use super::session::Session;
use std::sync::atomic::Ordering::SeqCst;

const OLDER: &str = "runs an older program (strake ";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-upgrade")?;
    let outcome = story(&place, checks);
    place.runs_older.store(false, SeqCst);
    place.end();
    outcome
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    place.runs_older.store(true, SeqCst);
    make_three(place, 'u', "2x")?;
    checks.record("an older program has nothing to upgrade to", upgraded(place, "1, the newest"));
    place.runs_older.store(false, SeqCst);
    let servers = under_load(place, &["n1", "n2"], 45, || servers_anew(place));
    servers.record(checks, "the servers get a newer program");
    let refused = is_refused(place, &["the mount of demo on n1", "on n2", "on n3"]);
    checks.record("refused while mounts run an older program, which are named", refused);
    checks.record("nothing was changed", has_level(place, 1));
    let load = under_load(place, &["n2"], 10, || mount_anew(place, &["n1", "n3"]));
    load.record(checks, "n1 and n3 mount anew");
    let load = under_load(place, &["n1"], 10, || mount_anew(place, &["n2"]));
    load.record(checks, "n2 mounts anew");
    let asked = place.run("asked", place.on("n2", "cluster upgrade"))?;
    let is_asked = !asked.status.success() && asked.output().contains("nothing was changed");
    checks.hold("cluster upgrade asks", is_asked, || asked.output());
    let load = under_load(place, &["n1", "n3"], 15, || {
        upgraded(place, "demo has feature level 2 now")?;
        has_level(place, 2)?;
        metadata_follows(place)
    });
    load.record(checks, "the level rises, and the metadata follows");
    checks.record("a second time there is nothing to do", upgraded(place, "2, the newest"));
    checks.record("an older program does not come back", older_is_refused(place));
    let whole = (0..FILES).try_for_each(|file| verify(place, "n3", file));
    checks.record("every file is whole", whole);
    let check = place.succeeds("check", place.on_mount("fs check"));
    checks.record("strake fs check is clean", check);
    checks.record("all unmount", place.succeeds("umount", place.on("n2", "fs umount demo")));
    Ok(())
}

/// How something went, and the programs that worked meanwhile.
struct Load {
    done: Result<(), String>,
    fios: Vec<(&'static str, Result<(), String>)>,
}

impl Load {
    fn record(self, checks: &mut Checks, what: &str) {
        checks.record(what, self.done);
        for (node, fio) in self.fios {
            checks.record(&format!("fio on {node} sees no error meanwhile"), fio);
        }
    }
}

/// Does something while fio writes and verifies on the mounts of these nodes.
fn under_load(
    place: &Place<'_>,
    nodes: &[&'static str],
    seconds: u32,
    work: impl FnOnce() -> Result<(), String>,
) -> Load {
    let fio = |node: &'static str| {
        let mut fio = place.session.command("fio");
        fio.args([&format!("--name=verified-{node}"), "--bs=16k", "--size=8M", "--loops=1000"]);
        fio.args(["--rw=randwrite", "--ioengine=psync", "--fsync=16", "--verify=crc32c"]);
        fio.args(["--verify_backlog=32", "--verify_fatal=1", "--time_based"]);
        fio.arg(format!("--runtime={seconds}"));
        fio.args(["--randseed=7", "--fallocate=none", "--directory"]);
        fio.arg(at(place, node));
        let name = format!("fio-{node}");
        place.session.run("cluster-upgrade", &name, FIO_SECONDS_MAX, &mut fio).map(drop)
    };
    std::thread::scope(|scope| {
        let fios: Vec<_> = nodes.iter().map(|node| (*node, scope.spawn(|| fio(node)))).collect();
        let done = work();
        let ended = |fio: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
            fio.join().unwrap_or_else(|_| Err("it panicked".to_owned()))
        };
        let fios = fios.into_iter().map(|(node, fio)| (node, ended(fio))).collect();
        Load { done, fios }
    })
}

/// The server process of each node ends in order, and that of a newer program starts.
fn servers_anew(place: &Place<'_>) -> Result<(), String> {
    for (already, node) in ["n3", "n2", "n1"].into_iter().enumerate() {
        place.succeeds("stop", place.on(node, "node stop --force"))?;
        place.succeeds("start", place.on(node, "node start"))?;
        // Only one failure at a time is promised.
        place.wait_until_up_again(&[at(place, "n1"), at(place, "n2")])?;
        if already < 2 {
            is_refused(place, &[&format!("n1 {OLDER}"), "on n3 runs an older program"])?;
        }
    }
    Ok(())
}

fn mount_anew(place: &Place<'_>, nodes: &[&str]) -> Result<(), String> {
    nodes.iter().try_for_each(|node| {
        place.succeeds("umount", place.on(node, &format!("fs umount demo -N {node}")))?;
        mount(place, node)
    })
}

/// `cluster upgrade` changes nothing, and names what is in the way.
fn is_refused(place: &Place<'_>, named: &[&str]) -> Result<(), String> {
    let refused = place.run("refused", place.on("n3", "cluster upgrade --yes"))?;
    let output = refused.output();
    let is_so = refused.status.code() == Some(2) && named.iter().all(|name| output.contains(name));
    if is_so { Ok(()) } else { Err(refused.complaint("not refused as it should be")) }
}

/// `cluster upgrade` succeeds and says `wanted`.
fn upgraded(place: &Place<'_>, wanted: &str) -> Result<(), String> {
    let said = place.run("upgrade", place.on("n2", "cluster upgrade --yes"))?.success()?;
    if said.output().contains(wanted) { Ok(()) } else { Err(said.complaint("it says")) }
}

/// Every node says that the cluster has this level.
fn has_level(place: &Place<'_>, level: u32) -> Result<(), String> {
    NODES.into_iter().try_for_each(|node| {
        let show = place.run("show", place.on(node, "cluster show --json"))?.success()?;
        let is_so = show.output().contains(&format!("\n  \"level\": {level},"));
        if is_so { Ok(()) } else { Err(show.output()) }
    })
}

/// Every replica of a log has the new level: those of the records, and those of the metadata.
fn metadata_follows(place: &Place<'_>) -> Result<(), String> {
    wait_until(|| {
        let state = place.run("state", place.on("n1", "node state --json"))?.success()?.output();
        Ok((state.matches("\"level\": 2").count() == 2 * NODES.len(), state))
    })
}

/// A node whose program is older does not start, and says why. A newer one takes it back.
fn older_is_refused(place: &Place<'_>) -> Result<(), String> {
    place.succeeds("stop", place.on("n3", "node stop --force"))?;
    place.runs_older.store(true, SeqCst);
    let refused = place.refused(
        place.on("n3", "node start"),
        "cluster demo has feature level 2, and this program (strake ",
    );
    place.runs_older.store(false, SeqCst);
    refused?;
    place.succeeds("start", place.on("n3", "node start"))?;
    place.wait_until_up_again(&[at(place, "n1"), at(place, "n2")])
}
