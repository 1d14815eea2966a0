//! An NSD is deleted while several mounts are at work on files that have strips on it.

use crate::coherence_test::{File, MOUNTS, SIZE_MAX, World, client, seed};
use crate::leaving_test::next_leader;
use crate::testing::{BLOCK_SIZE, Crew, Rig, assert_whole};
use crate::vfs::{OpenFlags, Vfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Rng, thread};
use strake_manager::Deletion;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::meta::{FileData, Inode, MetaEntry, MetaOp, MetaQuery, MetaReply};
use strake_proto::{BlockIndex, Caller, Ino, NsdId, SlotIndex};
use strake_token::message::{Reply, Term};
use strake_token::port::ToClient;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const BLOCK: usize = BLOCK_SIZE as usize;
const GONE: SlotIndex = SlotIndex(1);

fn wait_until(world: &World, what: &str, is_so: impl Fn() -> bool) {
    let end = world.rig.clock.monotonic() + Duration::from_secs(60);
    while !is_so() {
        assert!(world.rig.clock.monotonic() < end, "still not: {what}");
        world.rig.clock.sleep(Duration::from_millis(1));
    }
}

fn begin(crew: &Crew) {
    // So slow that it does not end before `await_end`.
    let deletion = Deletion { nsd: NsdId(u32::from(GONE.0) + 1), rate: 1 };
    crew.manager.delete_nsd(deletion).expect("begins");
}

/// Waits until all mounts send strips to heirs, too.
fn await_followed(world: &World) {
    wait_until(world, "followed", || {
        world.mounts.iter().all(|mount| mount.array().io.nsds().being_emptied() == Some(GONE))
    });
}

/// Lets the deletion go on until it is over.
fn await_end(world: &World, crew: &Crew) {
    crew.manager.set_rebuild_rate(0);
    await_deletion(world, crew);
}

/// Tends what a node tends until no NSD is being deleted.
pub(crate) fn await_deletion(world: &World, crew: &Crew) {
    wait_until(world, "deleted", || {
        tend(world, crew);
        crew.manager.deletion() == Ok(None) && !crew.manager.is_rebuilding()
    });
}

/// Tends what a node tends until every mount uses this slot's NSD.
pub(crate) fn await_up(world: &World, crew: &Crew, slot: SlotIndex) {
    wait_until(world, "up again", || {
        tend(world, crew);
        let is_up = |mount: &Arc<crate::client::StrakeVfs>| {
            mount.array().io.nsds().availability(slot) == NsdAvailability::Up
        };
        world.mounts.iter().all(is_up)
    });
}

fn tend(world: &World, crew: &Crew) {
    crew.manager.recover_nsds();
    world.mounts.iter().for_each(|mount| mount.array().io.nsds().look_after());
}

/// Tells the workers to stop, also if the test fails meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Works on the files from several threads until `until` has come to its end.
pub(crate) fn at_work(world: &World, files: &[Mutex<File>], seed: u64, until: impl FnOnce()) {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let work = move |at: u64| {
            let mut rng = Rng::new(seed + at);
            while !stop.load(Ordering::Relaxed) {
                files[rng.index(files.len())].lock().step(&world.mounts, &mut rng);
            }
        };
        let workers: Vec<_> = (0..2).map(|at| scope.spawn(move || work(at))).collect();
        {
            let _stop = Stop(stop);
            until();
        }
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
}

/// Files that have something on each NSD.
pub(crate) fn made(world: &World, count: usize) -> Vec<Mutex<File>> {
    made_in(world, 0..count)
}

/// Those files with these numbers.
pub(crate) fn made_in(world: &World, numbers: std::ops::Range<usize>) -> Vec<Mutex<File>> {
    let make = |at: usize| {
        let mut file = File::new(world, format!("f{at}"));
        file.bytes = (0..SIZE_MAX).map(|byte| (byte / 3 + at) as u8).collect();
        let first = &world.mounts[0];
        assert_eq!(first.write(file.handles[0], 0, &file.bytes), Ok(SIZE_MAX));
        first.fsync(file.handles[0]).expect("synced");
        Mutex::new(file)
    };
    numbers.map(make).collect()
}

/// Ends all, after a check that finds nothing.
pub(crate) fn ended(world: World, crew: Crew, files: Vec<Mutex<File>>) -> (Rig, Vec<File>) {
    crew.vfs.sync().expect("synced");
    for mount in &world.mounts {
        mount.sync().expect("synced");
    }
    let found = crew.manager.check_strips().expect("checks");
    assert_eq!((found.faults, found.notes), (vec![], vec![]));
    crew.end();
    (world.end(), files.into_iter().map(Mutex::into_inner).collect())
}

/// Nothing is on the slot, every file is whole on the others, and any NSD that the code does not
/// need may go.
fn verify(world: World, crew: Crew, files: Vec<Mutex<File>>, spare: usize) {
    let (rig, files) = ended(world, crew, files);
    let gone = 1 << GONE.0;
    verify_alone(&rig, &files, gone, true);
    let others = (0..rig.nsds.len()).filter(|at| *at != usize::from(GONE.0));
    for away in others.take(if spare > 0 { 3 } else { 0 }) {
        verify_alone(&rig, &files, gone | 1 << away, false);
        // It is forgotten again that this one was away.
        let alone = rig.start(gone);
        alone.manager.recover_nsds();
        alone.shutdown().expect("ends");
    }
}

pub(crate) fn verify_alone(rig: &Rig, files: &[File], away: u32, all_there: bool) {
    let alone = rig.start(away);
    for file in files {
        let mut out = vec![0; SIZE_MAX];
        let handle = alone.vfs.open(ROOT, file.ino, RW).expect("opened").handle;
        let count = alone.vfs.read(handle, 0, &mut out).expect("readable");
        assert!(out[..count] == file.bytes, "{} without {away:#b}", file.name);
        if all_there {
            assert_whole(&alone.vfs, file.ino, &file.name);
        }
        alone.vfs.release(handle);
    }
    alone.shutdown().expect("ends");
}

#[test]
fn an_nsd_that_is_there_or_lost_is_deleted_while_all_mounts_write() {
    for (code, nsds, is_lost) in
        [("1", 3, false), ("2x", 4, false), ("4+2p", 7, false), ("4+2p", 7, true)]
    {
        let (world, crew) = World::with_crew(code, nsds);
        let files = made(&world, 4);
        at_work(&world, &files, seed(), || {
            if is_lost {
                let all = world.mounts.iter().map(|mount| mount.array());
                let all = all.chain([crew.vfs.array()]);
                all.for_each(|array| array.attach_nsd(GONE, None));
                wait_until(&world, "noted", || crew.vfs.array().io.nsds().is_noted(GONE));
            }
            begin(&crew);
            await_end(&world, &crew);
        });
        for (at, mount) in world.mounts.iter().enumerate() {
            let nsds = mount.array().io.nsds();
            assert_eq!(nsds.deleted_count(), 1, "mount {at} has followed");
            assert_eq!(nsds.slot_of(NsdId(u32::from(GONE.0) + 1)), None);
        }
        verify(world, crew, files, usize::from(code != "1"));
    }
}

/// The files that have an object whose layout has the slot.
fn on_the_slot(world: &World) -> usize {
    let query = MetaQuery::ScanInodes { after: Ino(0), limit: 1024 };
    let MetaReply::Inodes(inodes) =
        world.leader.service().metadata().query(&query).expect("answers")
    else {
        panic!("no inodes")
    };
    let nsds = world.mounts[0].array().io.nsds();
    let is_on = |inode: &&Inode| match &inode.data {
        FileData::Objects(layouts) => {
            layouts.iter().any(|layout| nsds.is_member(layout, GONE).expect("known"))
        }
        _ => false,
    };
    inodes.iter().filter(is_on).count()
}

/// Code 1 has no other copy of any strip. So files are moved, and the node that does it may die.
#[test]
fn without_parity_another_manager_goes_on_moving_the_files_off() {
    let (world, mut crew) = World::with_crew("1", 3);
    let files = made(&world, 6);
    at_work(&world, &files, seed(), || {
        begin(&crew);
        // At this rate one file alone is moved.
        wait_until(&world, "the first file is moved", || on_the_slot(&world) < 6);
        assert!(on_the_slot(&world) > 0, "the others are where they were");
        crew.manager.stop();
        crew.vfs.shutdown().expect("ends");
        next_leader(&world);
        crew = world.rig.start_crew(&world.leader);
        let (pending, is_running) = crew.manager.deletion().expect("known").expect("is under way");
        assert_eq!((pending.nsd, is_running), (NsdId(u32::from(GONE.0) + 1), false));
        crew.manager.delete_nsd(pending).expect("goes on");
        await_end(&world, &crew);
    });
    assert_eq!(on_the_slot(&world), 0);
    verify(world, crew, files, 0);
}

/// The object was given before the deletion, and is not named before the files are gone through.
#[test]
fn without_parity_an_object_that_a_mount_has_only_reserved_is_moved_too() {
    let (world, crew) = World::with_crew("1", 3);
    let files = made(&world, 1);
    let mut late = File::new(&world, "late".to_owned());
    late.bytes = vec![9; SIZE_MAX];
    world.leader.shut_reserving();
    thread::scope(|scope| {
        let (mounts, handle, bytes) = (&world.mounts, late.handles[1], &late.bytes);
        let writing = scope.spawn(move || mounts[1].write(handle, 0, bytes));
        world.leader.await_reserved();
        begin(&crew);
        crew.manager.set_rebuild_rate(0);
        await_followed(&world);
        world.leader.open_reserving();
        assert_eq!(writing.join().expect("no panic"), Ok(SIZE_MAX));
    });
    await_end(&world, &crew);
    world.mounts[1].sync().expect("synced");
    assert_eq!(on_the_slot(&world), 0);
    let files = files.into_iter().chain([Mutex::new(late)]).collect();
    verify(world, crew, files, 0);
}

#[test]
fn what_an_heir_misses_at_one_mount_alone_is_brought_to_it() {
    for round in 0..4 {
        let (world, crew) = World::with_crew("4+2p", 7);
        let files = made(&world, 4);
        let heir = SlotIndex([0, 2, 3, 6][round]);
        let one = world.mounts[round % MOUNTS].array();
        at_work(&world, &files, seed() + 100 * round as u64, || {
            begin(&crew);
            await_followed(&world);
            one.attach_nsd(heir, None);
            world.rig.clock.sleep(Duration::from_millis(20));
            one.attach_nsd(heir, world.rig.port(usize::from(heir.0)));
            await_end(&world, &crew);
        });
        verify(world, crew, files, 1);
    }
}

#[test]
fn a_mount_that_dies_and_one_that_comes_meanwhile_lose_nothing() {
    let (mut world, crew) = World::with_crew("4+2p", 7);
    let files = made(&world, 4);
    begin(&crew);
    at_work(&world, &files, seed(), || {
        world.rig.clock.sleep(Duration::from_millis(10));
    });
    let (late, tokens) = world.rig.start_beside(&world.leader, client(9));
    // It dies without a word.
    drop((world.mounts.remove(2), world.tokens.remove(2)));
    crew.bury(client(2));
    world.leader.service().gone(client(2));
    await_end(&world, &crew);
    for file in &files {
        let mut file = file.lock();
        late.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("seen");
        let handle = late.open(ROOT, file.ino, RW).expect("opened").handle;
        let mut out = vec![0; SIZE_MAX];
        let count = late.read(handle, 0, &mut out).expect("readable");
        let other = world.mounts[0].read(file.handles[0], 0, &mut vec![0; SIZE_MAX]);
        assert_eq!(other, Ok(count));
        // The mount that died may have kept writes for itself.
        file.bytes = out[..count].to_vec();
        late.release(handle);
    }
    wait_until(&world, "the late one has followed", || {
        late.array().io.nsds().look_after();
        late.array().io.nsds().deleted_count() == 1
    });
    late.shutdown().expect("ends");
    world.leader.service().gone(client(9));
    drop((late, tokens));
    verify(world, crew, files, 1);
}

/// A way to a mount on which some messages are late.
struct Slow {
    way: Arc<dyn ToClient>,
    /// Which messages.
    which: fn(&Reply) -> bool,
    /// Shut while they are kept.
    gate: Mutex<bool>,
    moved: Condvar,
    kept: AtomicBool,
}

impl Slow {
    /// From now on these messages to the mount wait for [`Slow::open`].
    fn on_the_way_to(world: &World, at: usize, which: fn(&Reply) -> bool) -> Arc<Slow> {
        let way = Arc::clone(&world.tokens[at]) as Arc<dyn ToClient>;
        let (gate, moved) = (Mutex::new(true), Condvar::new());
        let slow = Arc::new(Slow { way, which, gate, moved, kept: AtomicBool::new(false) });
        world.leader.service().came_back(client(at), Arc::clone(&slow) as Arc<dyn ToClient>);
        slow
    }

    fn await_kept(&self, world: &World) {
        wait_until(world, "a message is kept", || self.kept.load(Ordering::Acquire));
    }

    fn open(&self) {
        *self.gate.lock() = false;
        self.moved.notify_all();
    }
}

/// Opens the way also if the test fails: the manager waits for it.
struct OpenAtEnd<'a>(&'a Slow);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl ToClient for Slow {
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
        if (self.which)(&message) {
            self.kept.store(true, Ordering::Release);
            self.moved.wait_while(&mut self.gate.lock(), |is_shut| *is_shut);
        }
        self.way.send(term, message);
    }
}

#[test]
fn a_mount_that_hears_of_the_end_late_reads_nothing_old() {
    let (world, crew) = World::with_crew("2x", 4);
    let files = made(&world, 3);
    begin(&crew);
    let all_follow =
        || world.mounts.iter().all(|mount| mount.array().io.nsds().being_emptied() == Some(GONE));
    wait_until(&world, "followed", all_follow);
    let slow = Slow::on_the_way_to(&world, 1, |message| matches!(message, Reply::Places { .. }));
    let _open = OpenAtEnd(&slow);
    crew.manager.set_rebuild_rate(0);
    slow.await_kept(&world);
    let deleted = |at: usize| world.mounts[at].array().io.nsds().deleted_count();
    world.mounts[0].array().io.nsds().follow_pool().expect("followed");
    assert_eq!((deleted(0), deleted(1)), (1, 0), "one knows of the end");
    for file in &files {
        let mut file = file.lock();
        file.bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        assert_eq!(world.mounts[0].write(file.handles[0], 0, &file.bytes), Ok(SIZE_MAX));
        let mut out = vec![0; SIZE_MAX];
        assert_eq!(world.mounts[1].read(file.handles[1], 0, &mut out), Ok(SIZE_MAX));
        assert!(out == file.bytes, "the other one reads what was there before");
        // The first looks for the bytes where the other one writes them.
        file.bytes.iter_mut().for_each(|byte| *byte ^= 0x66);
        assert_eq!(world.mounts[1].write(file.handles[1], 0, &file.bytes), Ok(SIZE_MAX));
        assert_eq!(world.mounts[0].read(file.handles[0], 0, &mut out), Ok(SIZE_MAX));
        assert!(out == file.bytes, "the first reads what was there before");
    }
    slow.open();
    await_end(&world, &crew);
    verify(world, crew, files, 1);
}

#[test]
fn an_heir_that_misses_a_change_after_the_comparison_is_compared_again() {
    let mut found = 0;
    for round in 0..3 {
        let (world, crew) = World::with_crew("2x", 4);
        let files = made(&world, 1);
        let heir = SlotIndex([0, 2, 3][round]);
        let one = world.mounts[1].array();
        begin(&crew);
        await_followed(&world);
        // It comes when everything is compared.
        let slow =
            Slow::on_the_way_to(&world, 1, |message| matches!(message, Reply::Unusable { .. }));
        let _open = OpenAtEnd(&slow);
        crew.manager.set_rebuild_rate(0);
        slow.await_kept(&world);
        let ino = files[0].lock().ino;
        let blocks = blocks_with_heir(&world, ino, heir);
        found += blocks.len();
        one.attach_nsd(heir, None);
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut file = files[0].lock();
                // Whole blocks: a few bytes would be kept in the metadata, and no strip sent.
                for at in &blocks {
                    let block = *at..(at + BLOCK).min(SIZE_MAX);
                    file.bytes[block.clone()].iter_mut().for_each(|byte| *byte ^= 0x77);
                    let (handle, bytes) = (file.handles[1], &file.bytes[block]);
                    let count = world.mounts[1].write(handle, *at as u64, bytes);
                    assert_eq!(count, Ok(bytes.len()));
                }
                world.mounts[1].fsync(file.handles[1]).expect("synced");
            });
            // The write waits for the message, or must not need it.
            world.rig.clock.sleep(Duration::from_millis(50));
            slow.open();
            writing.join().expect("no panic");
        });
        one.attach_nsd(heir, world.rig.port(usize::from(heir.0)));
        await_end(&world, &crew);
        verify(world, crew, files, 1);
    }
    assert!(found > 0, "no heir missed anything");
}

/// Where blocks of a file begin of which a strip on the slot goes to this heir.
fn blocks_with_heir(world: &World, ino: Ino, heir: SlotIndex) -> Vec<usize> {
    let nsds = world.mounts[1].array().io.nsds();
    let MetaReply::Inode(inode) =
        world.leader.service().metadata().query(&MetaQuery::GetInode { ino }).expect("there")
    else {
        panic!("no inode")
    };
    let FileData::Objects(layouts) = inode.data else { panic!("it has blocks") };
    let layout = layouts[0];
    let is_of = |at: &usize| {
        let found = nsds.stripe_and_heir(&layout, BlockIndex((at / BLOCK) as u64)).expect("placed");
        found.1.is_some_and(|(_, of)| of == heir)
    };
    (0..SIZE_MAX).step_by(BLOCK).filter(is_of).collect()
}

#[test]
fn what_a_dead_mount_left_has_everything_compared_again() {
    let (mut world, crew) = World::with_crew("2x", 4);
    let files = made(&world, 2);
    begin(&crew);
    let nsds = crew.vfs.array().io.nsds();
    wait_until(&world, "followed", || nsds.being_emptied() == Some(GONE));
    wait_until(&world, "at work", || nsds.require_heirs(GONE).is_ok());
    drop((world.mounts.remove(2), world.tokens.remove(2)));
    crew.bury(client(2));
    assert!(nsds.require_heirs(GONE).is_err(), "its stripes may be whole without an heir");
    world.leader.service().gone(client(2));
    await_end(&world, &crew);
    verify(world, crew, files, 1);
}

#[test]
fn a_mount_that_was_not_told_of_the_end_finds_out() {
    let world = World::new("2x", 4);
    let nsd = NsdId(u32::from(GONE.0) + 1);
    let meta = world.leader.service().metadata();
    let change = |op| {
        let (client, time) = (client(9), world.rig.clock.wall());
        meta.apply(&MetaEntry { client, sequence: 0, time, op }).expect("changed");
    };
    let (status, availability) = (NsdStatus::BeingEmptied, NsdAvailability::Up);
    change(MetaOp::SetNsdState { nsd, state: NsdState { status, availability } });
    let nsds = world.mounts[0].array().io.nsds();
    nsds.follow_pool().expect("followed");
    assert_eq!((nsds.being_emptied(), nsds.deleted_count()), (Some(GONE), 0));
    nsds.leave(nsd);
    change(MetaOp::DeleteNsd { nsd });
    nsds.look_after();
    assert_eq!((nsds.being_emptied(), nsds.deleted_count()), (None, 1));
    assert!(!nsds.is_noted(GONE), "it is nobody's loss any more");
    // As a commit does that began before.
    nsds.note(GONE).expect("what does not reach it is no fault");
    world.end();
}

/// Without parity no mount has left the NSD before. Its node serves it no more.
#[test]
fn without_parity_a_mount_that_was_not_told_of_the_end_does_without_the_nsd() {
    let world = World::new("1", 3);
    let nsd = NsdId(u32::from(GONE.0) + 1);
    let meta = world.leader.service().metadata();
    let change = |op| {
        let (client, time) = (client(9), world.rig.clock.wall());
        meta.apply(&MetaEntry { client, sequence: 0, time, op }).expect("changed");
    };
    let (status, availability) = (NsdStatus::BeingEmptied, NsdAvailability::Up);
    change(MetaOp::SetNsdState { nsd, state: NsdState { status, availability } });
    let nsds = world.mounts[0].array().io.nsds();
    nsds.follow_pool().expect("followed");
    assert!(nsds.note(GONE).is_err(), "what it has is nowhere else");
    change(MetaOp::DeleteNsd { nsd });
    nsds.note(GONE).expect("nothing is there any more");
    assert_eq!(nsds.deleted_count(), 0, "not told yet");
    nsds.look_after();
    assert_eq!((nsds.being_emptied(), nsds.deleted_count()), (None, 1));
    world.end();
}

/// A deleted NSD is none that is away: another one may be lost after that, and is left out.
#[test]
fn after_a_deletion_another_nsd_may_be_away() {
    let (world, crew) = World::with_crew("2x", 4);
    let files = made(&world, 2);
    begin(&crew);
    await_end(&world, &crew);
    world.rig.nsds[2].set_down(true);
    let handle = files[0].lock().handles[0];
    let first = &world.mounts[0];
    assert_eq!(first.write(handle, 0, &[7; SIZE_MAX]), Ok(SIZE_MAX));
    first.fsync(handle).expect("the other NSDs suffice");
}
