//! An NSD misses writes, and one mount hears nothing of that. Nobody waits for it, and it reads
//! nothing old.

use crate::coherence_test::{File, World, client};
use crate::vfs::Vfs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::thread;
use strake_proto::layout::{NsdAvailability, NsdState};
use strake_proto::meta::{MetaEntry, MetaOp, MetaQuery, MetaReply};
use strake_proto::{ClientId, NsdId, SlotIndex, Timestamp};
use strake_token::message::{Reply, Term};
use strake_token::port::ToClient;

/// The mount that hears nothing, and the one that writes.
const DEAF: usize = 1;
const WRITER: usize = 0;
const SIZE: usize = 100_000;
/// So long nothing may happen that must not happen at all. If it does happen, but later, the test
/// does not see it.
const MOMENT: Duration = Duration::from_millis(50);

/// A way to a mount on which it is not told to leave NSDs.
struct Deaf {
    way: Arc<dyn ToClient>,
    hears: AtomicBool,
}

impl Deaf {
    fn on_the_way_to(world: &World, at: usize) -> Arc<Deaf> {
        let way = Arc::clone(&world.tokens[at]) as Arc<dyn ToClient>;
        let deaf = Arc::new(Deaf { way, hears: AtomicBool::new(false) });
        deaf.turn_to_leader(world, at);
        deaf
    }

    fn turn_to_leader(self: &Arc<Deaf>, world: &World, at: usize) {
        world.leader.service().came_back(client(at), Arc::clone(self) as Arc<dyn ToClient>);
    }
}

impl ToClient for Deaf {
    fn renewed(&self, sent: Duration) {
        self.way.renewed(sent);
    }

    fn declared_dead(&self) {
        self.way.declared_dead();
    }

    fn new_term(&self, term: Term) {
        self.way.new_term(term);
    }

    fn send(&self, term: Term, message: Reply) {
        let hears = self.hears.load(Ordering::Acquire);
        if hears || !matches!(message, Reply::Unusable { .. }) {
            self.way.send(term, message);
        }
    }
}

/// All mounts have read a file. Then one writes it anew without an NSD, and one does not hear that
/// the NSD misses this.
fn written_without(slot: u16) -> (World, Vec<File>, Arc<Deaf>) {
    let world = World::new("2x", 3);
    let mut files: Vec<File> = (0..4).map(|at| File::new(&world, format!("f{at}"))).collect();
    for file in &mut files {
        file.bytes = vec![1; SIZE];
        world.mounts[WRITER].write(file.handles[WRITER], 0, &file.bytes).expect("there is room");
        world.mounts[WRITER].fsync(file.handles[WRITER]).expect("synced");
        assert_reads(&world, file);
    }
    let deaf = Deaf::on_the_way_to(&world, DEAF);
    world.mounts[WRITER].array().attach_nsd(SlotIndex(slot), None);
    for file in &mut files {
        file.bytes = vec![2; SIZE];
        world.mounts[WRITER].write(file.handles[WRITER], 0, &file.bytes).expect("there is room");
        // It does not wait for the other mount.
        world.mounts[WRITER].fsync(file.handles[WRITER]).expect("synced");
    }
    assert_eq!(availability(&world, slot), NsdAvailability::Unrecovered, "a write missed it");
    (world, files, deaf)
}

fn assert_reads(world: &World, file: &File) {
    let mut out = vec![0; SIZE];
    world.mounts[DEAF].read(file.handles[DEAF], 0, &mut out).expect("readable");
    assert!(out == file.bytes, "{}: a strip that missed the write was read", file.name);
}

fn state(world: &World, slot: u16) -> NsdState {
    match world.leader.service().metadata().query(&MetaQuery::Configuration) {
        Ok(MetaReply::Configuration(known)) => known.pool.slots[usize::from(slot)].state,
        other => panic!("no configuration: {other:?}"),
    }
}

fn availability(world: &World, slot: u16) -> NsdAvailability {
    state(world, slot).availability
}

/// The mount reads all files. It is told to leave the NSD a moment later.
fn hears_while_it_reads(world: &World, files: &[File], deaf: &Deaf) {
    thread::scope(|scope| {
        let reading = scope.spawn(|| files.iter().for_each(|file| assert_reads(world, file)));
        world.rig.clock.sleep(MOMENT);
        deaf.hears.store(true, Ordering::Release);
        reading.join().expect("no panic");
    });
}

#[test]
fn a_mount_that_has_not_left_an_nsd_is_granted_nothing() {
    for slot in 0..3 {
        let (world, files, deaf) = written_without(slot);
        hears_while_it_reads(&world, &files, &deaf);
        world.end();
    }
}

#[test]
fn nor_by_a_later_leader() {
    for slot in 0..3 {
        let (world, files, deaf) = written_without(slot);
        world.change_leader_for(&[0, 2]);
        deaf.turn_to_leader(&world, DEAF);
        hears_while_it_reads(&world, &files, &deaf);
        world.end();
    }
}

#[test]
fn an_nsd_does_not_come_back_before_all_mounts_have_left_it() {
    let (world, files, deaf) = written_without(0);
    let service = world.leader.service();
    let recovering = NsdState { availability: NsdAvailability::Recovering, ..state(&world, 0) };
    let op = MetaOp::SetNsdState { nsd: NsdId(1), state: recovering };
    let entry = MetaEntry { client: ClientId(0), sequence: 0, time: Timestamp::default(), op };
    thread::scope(|scope| {
        let returning = scope.spawn(|| service.metadata().apply(&entry));
        world.rig.clock.sleep(MOMENT);
        assert_eq!(availability(&world, 0), NsdAvailability::Unrecovered);
        deaf.hears.store(true, Ordering::Release);
        returning.join().expect("no panic").expect("made");
    });
    assert_eq!(availability(&world, 0), NsdAvailability::Recovering);
    files.iter().for_each(|file| assert_reads(&world, file));
    world.end();
}
