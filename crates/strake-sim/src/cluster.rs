//! A whole cluster of one seed: three nodes, three mounts, programs on them, and faults, in
//! simulated time on simulated disks and a simulated network.
//!
//! ```text
//! world       the machines: their processes start, are killed, and start again
//! node        a node: block store, replica of the metadata, crew, door; the product's code
//! mount       a mount: the client and its sessions; the product's code
//! program     what programs do on a mount; each step is recorded
//! record      what they did, in the order of moments
//! faults      what happens to machines and links
//! canary      rules that a run can do without
//! linear      finds an order of operations that one program at a time could have seen
//! invariants  what must always hold, one file for each
//! ```
//!
//! **A run** has four phases. The cluster is made, and programs begin on every mount. Then faults
//! happen (*safety*): whatever the faults do, no invariant may fail, though nothing need go on.
//! Then all is mended (*liveness*): within [`MENDED_WITHIN`] every disk is up and every program
//! gets on. At the end everything is checked and read once more, and the record is judged.
//!
//! **What is not the product's code**: the records of the cluster (which mounts there are) are
//! known to all nodes at once, certificates are a shared secret, and no kernel is above the mounts.

mod canary;
mod disk;
mod faults;
mod invariants;
mod linear;
mod log;
mod mount;
mod node;
mod place;
mod program;
mod record;
mod replicas;
mod world;

use canary::Canary;
use invariants::{
    a_fenced_client_changes_nothing, names_are_linearizable, no_two_conflicting_tokens,
    replicas_are_equal, stripes_decode, units_are_linearizable,
};
use program::Program;
use record::{Action, Record};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::simulation::{self, Options, Outcome};
use strake_env::{Clock, RealClock, Rng, thread};
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{MetaQuery, MetaReply};
use world::World;

/// After the last fault, everything goes on again within that time.
const MENDED_WITHIN: Duration = Duration::from_secs(120);
/// A run that takes longer, in simulated time, hangs. Each mount that was killed may take five
/// minutes, until its calls to the metadata have no time left.
const RUN_MAX: Duration = Duration::from_secs(3600);
/// How often tokens are looked at, and whether all goes on.
const LOOK: Duration = Duration::from_millis(25);

/// Runs a seed with so many faults, without a rule if one is named. Returns what the programs did.
pub(crate) fn run(seed: u64, faults: usize, without: Option<Canary>) -> Outcome<Record> {
    log::start();
    canary::prepare();
    let broken = without.map(Canary::name);
    let options = Options { time_max: RUN_MAX, broken, ..Options::new(seed) };
    simulation::run(options, move || live(seed, faults))
}

/// Judges what the programs of a run did.
///
/// # Errors
/// What no correct file system would have done.
pub(crate) fn judge(record: &Record) -> Result<(), String> {
    a_fenced_client_changes_nothing::judge(record)?;
    units_are_linearizable::judge(record)?;
    names_are_linearizable::judge(record)
}

fn live(seed: u64, faults: usize) -> Record {
    let mut rng = Rng::new(seed);
    let code = if rng.one_in(3) { "3x" } else { "2x" };
    let world = World::start(code.parse().expect("a code"), rng.next_u64());
    world.populate();
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (world, is_over) = (Arc::clone(&world), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                RealClock.sleep(LOOK);
                look_at_tokens(&world);
            }
        })
    };
    world.suffer(faults);
    await_mended(&world);
    is_over.store(true, Ordering::SeqCst);
    watcher.join().expect("no panic");
    world.end_programs();
    check_at_end(&world);
    world.recorder.take()
}

fn look_at_tokens(world: &World) {
    let universe = world.universe();
    let inos: Vec<_> = universe.files.iter().copied().chain([universe.directory]).collect();
    let mounts: Vec<_> = world.living().iter().map(|it| Arc::clone(&it.mount)).collect();
    no_two_conflicting_tokens::look(&mounts, &inos);
}

/// Waits until every disk is up and every program gets on.
fn await_mended(world: &World) {
    let (since, end) = (world.recorder.moment(), RealClock.monotonic() + MENDED_WITHIN);
    while let Err(missing) = is_mended(world, since) {
        if RealClock.monotonic() >= end {
            panic!("{MENDED_WITHIN:?} after the last fault: {missing}\n{}", world.waits());
        }
        RealClock.sleep(LOOK);
    }
}

fn is_mended(world: &World, since: u64) -> Result<(), String> {
    let living = world.living();
    if living.len() < world::HOSTS {
        return Err(format!("only {} mounts live", living.len()));
    }
    for it in &living {
        let counts: [fn(&Action) -> bool; 3] = [
            |action| matches!(action, Action::Write(..)),
            |action| matches!(action, Action::SyncAll),
            |action| matches!(action, Action::Create(..) | Action::Unlink(..) | Action::Rename(..)),
        ];
        let missing = counts
            .iter()
            .position(|it_counts| world.recorder.count(it.life, since, it_counts) == 0);
        if let Some(at) = missing {
            let what = ["write", "sync", "change names"][at];
            return Err(format!("client {} does not {what}", it.mount.client()));
        }
    }
    let known = world.on_mount(0, |it| it.mount.meta().query(&MetaQuery::Configuration));
    let Ok(MetaReply::Configuration(known)) = known else {
        return Err("the metadata does not answer".to_owned());
    };
    let is_up = |availability| availability == NsdAvailability::Up;
    let down = known.pool.slots.iter().find(|slot| !is_up(slot.state.availability));
    match down {
        Some(slot) => Err(format!("NSD {} is {:?}", slot.nsd, slot.state.availability)),
        None => Ok(()),
    }
}

/// Reads everything on one mount, ends the others, checks all that is stored, and ends the rest.
fn check_at_end(world: &Arc<World>) {
    let universe = world.universe();
    let read = world.on_mount(0, |living| {
        Program::new(&universe, living.life, &living.mount, Rng::new(1))?.look_at_all()?;
        strake_client::vfs::Vfs::sync(&*living.mount.vfs)
    });
    read.expect("all can be read");
    for host in 1..world::HOSTS {
        world.on_mount(host, |living| living.mount.end()).expect("ends in order");
    }
    stripes_decode::check(world).expect("all is stored as it should be");
    world.on_mount(0, |living| living.mount.end()).expect("ends in order");
    let end = RealClock.monotonic() + MENDED_WITHIN;
    let nodes = world.nodes();
    while !replicas_are_equal::are_level(&nodes) {
        assert!(RealClock.monotonic() < end, "the replicas never become level");
        RealClock.sleep(LOOK);
    }
    replicas_are_equal::check(&nodes).expect("all have applied the same entries");
    drop(nodes);
    world.stop();
}

#[cfg(test)]
#[path = "cluster_test.rs"]
mod cluster_test;
