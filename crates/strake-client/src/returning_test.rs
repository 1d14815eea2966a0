//! What an NSD that is away misses, and what it has when it is back.

use crate::client::StrakeVfs;
use crate::coherence_test::{File, World, client};
use crate::differential_test::{fill, length, place, same};
use crate::flush::sync::sync_all;
use crate::mount::DISKS_NEEDED;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Crew, Rig, assert_whole, send_block, try_send_block};
use crate::vfs::vfs_test::{create, lookup, open, pattern, read, write};
use crate::vfs::{FallocateMode, Handle, SetAttr, Vfs};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::channel::{Sender, channel};
use strake_env::thread;
use strake_manager::TokenService;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::meta::{MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdRequest};
use strake_proto::{
    BlockIndex, ByteCount, Caller, ClientId, ErrorKind, FsId, GrantNumber, Ino, NsdId, ObjectId,
    Result, SlotIndex, Timestamp, Version,
};
use strake_testing::memory_nsd::{Copy, Faults, Moment};
use strake_token::message::{Reply, Term};
use strake_token::port::ToClient;

const ROOT: &Caller = &Caller::ROOT;

const BLOCK: usize = BLOCK_SIZE as usize;
/// A test that waits for longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Regression: an NSD that had only accepted a stripe went away before the commit. Where its loss
/// was noticed before, the commit did not ask it, called the stripe stable, and noted nothing: when
/// the NSD was back, without the stripe, it was believed.
#[test]
fn an_nsd_that_went_before_a_commit_has_missed_what_the_commit_made_stable() {
    for (code, noticed) in [("2x", true), ("2x", false), ("4+2p", true), ("4+2p", false)] {
        for slot in 0..7usize {
            let rig = Rig::new(code, 7);
            let vfs = rig.start(0);
            let (ino, handle): (Ino, Handle) = create(&vfs, "f");
            write(&vfs, handle, 0, &pattern(BLOCK, 1));
            vfs.fsync(handle).expect("synced");
            vfs.sync().expect("synced");
            // Settled, so that no start looks at the stripe again.
            vfs.tend();
            write(&vfs, handle, 0, &pattern(BLOCK, 2));
            send_block(&vfs, ino, 0);
            let at = SlotIndex(slot as u16);
            if noticed {
                vfs.array().attach_nsd(at, None);
            } else {
                rig.nsds[slot].set_down(true);
            }
            vfs.fsync(handle).expect("synced");
            rig.nsds[slot].crash();
            vfs.array().attach_nsd(at, rig.port(slot));
            vfs.manager.recover_nsds();
            assert!(vfs.array().nsds()[slot].state.availability.readable(), "{code}: it is back");
            vfs.sync().expect("synced");
            vfs.tend();
            vfs.shutdown().expect("ended");
            drop(vfs);
            for other in (0..7).filter(|other| *other != slot) {
                let vfs = rig.start(1 << other);
                let (_, handle) = open(&vfs, "f");
                assert!(read(&vfs, handle, 0, BLOCK) == pattern(BLOCK, 2), "{code} {slot} {other}");
                drop(vfs);
                let vfs = rig.start(0);
                vfs.manager.recover_nsds();
            }
        }
    }
}

/// Regression: what a dying writer brought out on the NSD that went then, at a place of the stripe
/// that the block as it was before does not have, stayed there.
#[test]
fn an_nsd_that_returns_keeps_no_strip_that_the_block_does_not_have() {
    for slot in 0..5usize {
        let mut rig = Rig::new("4+1p", 5);
        rig.settings.sync_interval = Duration::from_secs(3600);
        rig.settings.write_cache_threshold = ByteCount(0);
        let vfs = rig.start(0);
        let (ino, handle): (Ino, Handle) = create(&vfs, "f");
        write(&vfs, handle, 0, &pattern(10_000, 1));
        vfs.fsync(handle).expect("synced");
        vfs.sync().expect("synced");
        vfs.tend();
        // Not to its end, so that no writer behind sends it.
        write(&vfs, handle, 9000, &pattern(200_000, 2));
        send_block(&vfs, ino, 0);
        drop(vfs);
        rig.nsds[slot].keep_all();
        rig.crash();
        let vfs = rig.start(1 << slot);
        vfs.array().attach_nsd(SlotIndex(slot as u16), rig.port(slot));
        vfs.manager.recover_nsds();
        assert!(vfs.array().nsds()[slot].state.availability.readable(), "NSD {slot} is back");
        let check = vfs.manager.check_strips().expect("checks");
        assert_eq!(check.faults, Vec::<String>::new(), "NSD {slot}");
        let (_, handle) = open(&vfs, "f");
        let longer = SetAttr { size: Some(BLOCK as u64), ..SetAttr::default() };
        vfs.setattr(ROOT, ino, Some(handle), &longer).expect("extends");
        let mut expected = pattern(10_000, 1);
        expected.resize(BLOCK, 0);
        assert!(read(&vfs, handle, 0, BLOCK) == expected, "NSD {slot}");
        vfs.shutdown().expect("ended");
    }
}

/// In a cluster the leader suspends an NSD. A mount that does not know that yet, and notes that the
/// NSD has missed something, must not end it.
#[test]
fn who_notes_a_loss_keeps_an_nsd_suspended() {
    let rig = Rig::new("2x", 3);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(8 * BLOCK, 1));
    vfs.fsync(handle).expect("synced");
    let suspended = NsdState { status: NsdStatus::Suspended, availability: NsdAvailability::Up };
    let op = MetaOp::SetNsdState { nsd: NsdId(1), state: suspended };
    let entry = MetaEntry { client: ClientId(9), sequence: 0, time: Timestamp::default(), op };
    rig.meta.apply(&entry).expect("suspended");
    rig.nsds[0].set_down(true);
    write(&vfs, handle, 0, &pattern(8 * BLOCK, 2));
    vfs.fsync(handle).expect("synced");
    let MetaReply::Configuration(known) =
        rig.meta.query(&MetaQuery::Configuration).expect("answers")
    else {
        panic!("no configuration")
    };
    let state = known.pool.slots[0].state;
    assert_eq!(
        (state.status, state.availability),
        (NsdStatus::Suspended, NsdAvailability::Unrecovered)
    );
    vfs.shutdown().expect("ended");
}

/// The node of a disk was lost, after it had carried out deletions that the metadata has lost since
/// (R31). A whole object is deleted at a version above all others.
#[test]
fn what_a_lost_deletion_took_from_a_disk_comes_back() {
    let end = Version { grant: GrantNumber(u64::MAX), counter: u64::MAX };
    let later = Version { grant: GrantNumber(1 << 30), counter: 1 };
    for version in [end, later] {
        let rig = Rig::new("3x", 3);
        let vfs = rig.start(0);
        let (_, handle) = create(&vfs, "f");
        write(&vfs, handle, 0, &pattern(3 * BLOCK, 1));
        vfs.fsync(handle).expect("synced");
        vfs.shutdown().expect("ended");
        drop(vfs);
        let lost = rig.port(2).expect("is there");
        let from_to = (BlockIndex(0), BlockIndex::END);
        let (fs, object, (from, to)) = (FsId(1), ObjectId(1), from_to);
        let delete = NsdRequest::DeleteRange { fs, object, from, to, version };
        lost.call(NsdContext::default(), &delete, &[], &mut []).expect("deletes");
        // As the log that goes on has it, with all numbers above those of lost entries.
        let availability = NsdAvailability::Unrecovered;
        let state = NsdState { status: NsdStatus::Ready, availability };
        for op in
            [MetaOp::SetNsdState { nsd: NsdId(3), state }, MetaOp::ReserveGrants { count: 1 << 40 }]
        {
            let entry =
                MetaEntry { client: ClientId(9), sequence: 0, time: Timestamp::default(), op };
            rig.meta.apply(&entry).expect("changed");
        }
        let vfs = rig.start(0);
        vfs.manager.recover_nsds();
        assert!(vfs.array().nsds()[2].state.availability.readable(), "it is back");
        vfs.shutdown().expect("ended");
        drop(vfs);
        let vfs = rig.start(0b011);
        let (_, handle) = open(&vfs, "f");
        assert!(read(&vfs, handle, 0, 3 * BLOCK) == pattern(3 * BLOCK, 1), "{version}");
        vfs.shutdown().expect("ended");
    }
}

/// Regression: nothing tells a mount beside others that an NSD is up to date again. It finds out
/// every few seconds. If another NSD went in between, reads and writes failed with `Io`.
#[test]
fn a_mount_uses_an_nsd_that_others_use_again_as_soon_as_it_needs_it() {
    let (world, crew) = World::with_crew("2x", 3);
    let [writer, other] = [0, 1].map(|at| &world.mounts[at]);
    let file = File::new(&world, "f".into());
    let mut expected = pattern(8 * BLOCK, 1);
    write(writer, file.handles[0], 0, &expected);
    writer.fsync(file.handles[0]).expect("synced");
    for (round, [returns, goes]) in (2..).zip([[0u16, 1], [1, 2], [2, 0]]) {
        let [returns, goes] = [returns, goes].map(|at: u16| (SlotIndex(at), usize::from(at)));
        world.rig.nsds[returns.1].set_down(true);
        expected = pattern(8 * BLOCK, round);
        write(writer, file.handles[0], 0, &expected);
        writer.fsync(file.handles[0]).expect("one NSD may be away");
        world.rig.nsds[returns.1].set_down(false);
        crew.manager.recover_nsds();
        assert!(crew.vfs.array().io.nsds().availability(returns.0).readable(), "it is up again");
        world.rig.nsds[goes.1].set_down(true);
        assert!(read(other, file.handles[1], 0, 8 * BLOCK) == expected, "{returns:?} {goes:?}");
        for block in 0..8 {
            let (at, bytes) = (block * BLOCK + 5000, pattern(9000, 9));
            write(other, file.handles[1], at as u64, &bytes);
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        other.fsync(file.handles[1]).expect("one NSD may be away");
        world.rig.nsds[goes.1].set_down(false);
        crew.manager.recover_nsds();
        assert!(read(writer, file.handles[0], 0, 8 * BLOCK) == expected, "{returns:?} {goes:?}");
        world.mounts.iter().for_each(|mount| mount.array().io.nsds().look_after());
    }
    crew.end();
    world.end();
}

/// Two mounts, and a file of which the first one has blocks that only a sync sends. The bytes are
/// those that it should have.
fn dirty_beside_others() -> (World, Crew, File, Vec<u8>) {
    let mut rig = Rig::new("2x", 3);
    rig.settings.standstill_max = HANGS;
    // No sync but the test's sends anything, and it does not go into the metadata.
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.write_cache_threshold = ByteCount(0);
    // Enough, so that no writer behind sends it for want of room.
    rig.settings.page_pool = ByteCount::mib(64);
    let (world, crew) = World::with_crew_on(rig);
    let (writer, file) = (&world.mounts[0], File::new(&world, "f".into()));
    let mut expected = pattern(8 * BLOCK, 1);
    write(writer, file.handles[0], 0, &expected);
    writer.fsync(file.handles[0]).expect("synced");
    for block in 0..8 {
        // Not to the end of a block, so that no writer behind sends it.
        let (at, bytes) = (block * BLOCK, pattern(BLOCK - 5000, 2));
        write(writer, file.handles[0], at as u64, &bytes);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    (world, crew, file, expected)
}

/// Does something on the first mount for which two NSDs of three are needed that are away. Once it
/// waits, `meanwhile` is done, and they come back.
fn waiting_for_two_nsds<T: Send>(
    world: &World,
    request: impl FnOnce(&StrakeVfs) -> Result<T> + Send,
    meanwhile: impl FnOnce(&StrakeVfs),
) -> Result<T> {
    let writer = &world.mounts[0];
    // Some block has both of its strips there.
    let away = &world.rig.nsds[..2];
    away.iter().for_each(|nsd| nsd.set_down(true));
    thread::scope(|scope| {
        let request = scope.spawn(|| request(writer));
        let waiters = &writer.array().observe.waiters;
        let waits = || waiters.snapshot().iter().any(|it| it.reason == DISKS_NEEDED);
        while !waits() {
            assert!(!request.is_finished(), "it waits, and the list of waits says so");
            world.rig.clock.sleep(Duration::from_millis(1));
        }
        meanwhile(writer);
        away.iter().for_each(|nsd| nsd.set_down(false));
        request.join().expect("no panic")
    })
}

/// Servers are started anew while mounts live. For a moment more NSDs may be away than the code
/// tolerates. What a program has written stays dirty, its `fsync` waits, and nobody is told of an
/// error that was none.
#[test]
fn a_sync_beside_other_mounts_waits_for_nsds_that_come_back_soon() {
    let (world, crew, file, expected) = dirty_beside_others();
    let as_the_mount_does = |writer: &StrakeVfs| {
        // Now and then. It fails, and the file need not tell of that.
        sync_all(&writer.mount).expect_err("too many NSDs are away");
    };
    let sync = |writer: &StrakeVfs| writer.fsync(file.handles[0]);
    waiting_for_two_nsds(&world, sync, as_the_mount_does).expect("the NSDs are back");
    let writer = &world.mounts[0];
    writer.fsync(file.handles[0]).expect("nothing was lost");
    assert!(read(&world.mounts[1], file.handles[1], 0, 8 * BLOCK) == expected);
    assert_whole(writer, file.ino, "after the wait");
    crew.end();
    world.end();
}

/// Regression: an unmount lost what was not durable yet if disks were away for a moment.
#[test]
fn the_end_of_a_mount_beside_others_waits_for_nsds_that_come_back_soon() {
    let (world, crew, file, expected) = dirty_beside_others();
    let report = waiting_for_two_nsds(&world, StrakeVfs::unmount, |_| ()).expect("all is saved");
    assert!(report.files == 1 && report.bytes > 0, "{report:?}");
    world.leader.service().gone(client(0));
    assert!(read(&world.mounts[1], file.handles[1], 0, 8 * BLOCK) == expected);
    crew.end();
    world.end();
}

/// For a moment more NSDs are away than the code tolerates, as above. Programs that need stripes of
/// which nothing is left wait, each in its own way, and get what they asked for.
#[test]
fn requests_beside_other_mounts_wait_for_nsds_that_went_a_moment_ago() {
    let mut rig = Rig::new("2x", 3);
    rig.settings.standstill_max = HANGS;
    let (world, crew) = World::with_crew_on(rig);
    let (writer, other) = (&world.mounts[0], &world.mounts[1]);
    let copy = File::new(&world, "copy".into());
    type Request = fn(&StrakeVfs, &File, &File) -> Result<()>;
    let requests: [Request; 6] = [
        |vfs, file, _| {
            assert!(read(vfs, file.handles[1], 0, 9 * BLOCK) == pattern(9 * BLOCK, 1));
            Ok(())
        },
        // The ends are no whole units, so what is there is read first.
        |vfs, file, _| {
            let at = |block: usize| (block * BLOCK + 7) as u64;
            (0..9).try_for_each(|block| vfs.write(file.handles[1], at(block), &[3; 5]).map(drop))
        },
        |vfs, file, _| {
            (0..9).try_for_each(|block| {
                let size = Some((8 - block) * BLOCK as u64 + 5);
                vfs.setattr(ROOT, file.ino, None, &SetAttr { size, ..SetAttr::default() })?;
                Ok(())
            })
        },
        |vfs, file, copy| {
            let length = 9 * BLOCK as u64;
            vfs.copy_range((file.handles[1], 0), (copy.handles[1], 0), length).map(drop)
        },
        |vfs, file, _| {
            let hole = |block: u64| block * BLOCK as u64 + 5..block * BLOCK as u64 + 10_000;
            let punch =
                |block| vfs.fallocate(file.handles[1], hole(block), FallocateMode::PunchHole);
            (0..9).try_for_each(punch)
        },
        |vfs, file, _| {
            // Whole units, and few: nothing is read, and the page pool has room.
            let at = |block: usize| (block * BLOCK) as u64;
            (0..9).for_each(|block| write(vfs, file.handles[1], at(block), &[4; 4096]));
            vfs.sync().map(drop)
        },
    ];
    for (at, request) in requests.iter().enumerate() {
        let file = File::new(&world, format!("f{at}"));
        write(writer, file.handles[0], 0, &pattern(9 * BLOCK, 1));
        writer.fsync(file.handles[0]).expect("synced");
        // Some block has both of its strips there.
        let away = &world.rig.nsds[..2];
        away.iter().for_each(|nsd| nsd.set_down(true));
        thread::scope(|scope| {
            let asks = scope.spawn(|| request(other, &file, &copy));
            let waiters = &other.array().observe.waiters;
            while !waiters.snapshot().iter().any(|it| it.reason == DISKS_NEEDED) {
                assert!(!asks.is_finished(), "request {at} waits, and the list of waits says so");
                world.rig.clock.sleep(Duration::from_millis(1));
            }
            away.iter().for_each(|nsd| nsd.set_down(false));
            asks.join().expect("no panic").expect("the NSDs are back");
        });
        crew.manager.recover_nsds();
        world.mounts.iter().for_each(|mount| mount.array().io.nsds().look_after());
        // Dirty pages that nobody can send would leave the next request no room in memory.
        other.sync().expect("synced");
    }
    let mut copied = vec![0; 9 * BLOCK];
    assert_eq!(writer.read(copy.handles[0], 0, &mut copied).expect("readable"), 9 * BLOCK);
    assert!(copied == pattern(9 * BLOCK, 1));
    crew.end();
    world.end();
}

/// Regression: a mount was told to write to an NSD again while a commit without it was under way.
/// The commit noted once more that the NSD lacks what it made stable, and so ended the recovery.
/// Beside a mount that commits without pause, an NSD came back late or never.
#[test]
fn a_commit_that_began_without_an_nsd_does_not_end_its_recovery() {
    let (world, crew) = World::with_crew("2x", 3);
    let (writer, file) = (Arc::clone(&world.mounts[0]), File::new(&world, "f".into()));
    write(&writer, file.handles[0], 0, &pattern(8 * BLOCK, 1));
    writer.fsync(file.handles[0]).expect("synced");
    for at in 0..3 {
        let (slot, other) = (SlotIndex(at as u16), &world.rig.nsds[(at + 1) % 3]);
        world.rig.nsds[at].set_down(true);
        write(&writer, file.handles[0], 0, &pattern(8 * BLOCK, 10 + at as u8));
        writer.fsync(file.handles[0]).expect("one NSD may be away");
        write(&writer, file.handles[0], 0, &pattern(8 * BLOCK, 20 + at as u8));
        (0..8).for_each(|block| send_block(&writer, file.ino, block));
        let ((began, begins), is_first) = (channel(), AtomicBool::new(true));
        let (mount, clock) = (Arc::clone(&writer), Arc::clone(&world.rig.clock));
        other.set_watch(Some(Arc::new(move |moment, request| {
            let is_commit = matches!(request, NsdRequest::Commit { .. });
            if moment == Moment::Before && is_commit && is_first.swap(false, Ordering::AcqRel) {
                began.send(()).expect("the test waits");
                let end = clock.monotonic() + HANGS;
                let state = || mount.array().io.nsds().availability(slot);
                while state() != NsdAvailability::Recovering && clock.monotonic() < end {
                    clock.sleep(Duration::from_millis(1));
                }
            }
        })));
        thread::scope(|scope| {
            let sync = scope.spawn(|| writer.fsync(file.handles[0]).expect("one NSD may be away"));
            begins.recv_timeout(HANGS).expect("the commit is under way");
            world.rig.nsds[at].set_down(false);
            crew.manager.recover_nsds();
            sync.join().expect("no panic");
        });
        other.set_watch(None);
        let state = crew.vfs.array().io.nsds().availability(slot);
        assert_eq!(state, NsdAvailability::Up, "NSD {slot}: what it had missed was compared");
        assert_whole(&writer, file.ino, "recovered");
    }
    crew.end();
    drop(writer);
    world.end();
}

/// What a step may do to an NSD that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It does not answer; what it accepted stays.
    Silent,
    /// There is no way to it, and what it only accepted is gone.
    Gone,
    /// It is started anew at once: what it only accepted is gone.
    Restarted,
    /// As `Gone`; it comes back as it was at some time before.
    Older,
}

/// How recoveries went.
#[derive(Debug, Default)]
struct Tally {
    by_table: u64,
    full: u64,
    older: u64,
}

struct Rehearsal {
    rig: Rig,
    vfs: Mounted,
    rng: Rng,
    files: Vec<(Handle, Vec<u8>)>,
    away: Vec<(usize, Loss)>,
    copies: Vec<Copy>,
    tolerance: usize,
    /// Those that went, or were started anew, since the last check.
    disturbed: BTreeSet<usize>,
    /// Those that were to be started anew since the last check. They may do so at any call.
    restarted: BTreeSet<usize>,
    tally: Tally,
}

const NSDS: u16 = 8;
const FILES: usize = 6;
const SIZE_MAX: usize = 3 * BLOCK;

impl Rehearsal {
    fn new(seed: u64, code: &str, tolerance: usize) -> Rehearsal {
        let rig = Rig::new(code, NSDS);
        let vfs = rig.start(0);
        let files = (0..FILES).map(|at| (create(&vfs, &format!("f{at}")).1, Vec::new())).collect();
        let copies = rig.nsds.iter().map(|nsd| nsd.copy()).collect();
        Rehearsal {
            rig,
            vfs,
            rng: Rng::new(seed),
            files,
            away: Vec::new(),
            copies,
            tolerance,
            disturbed: BTreeSet::new(),
            restarted: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Does what must succeed while no more are away than the code tolerates. One more may be: a
    /// call that had met an NSD which did not answer says so when it is back and others have gone.
    /// Several may also be started anew within one call, and be up again when it ends. Then it
    /// succeeds once all are back, as if it had not been tried. Before that, an `fsync` may tell
    /// once what a writer behind met while they were away.
    fn must<T>(&mut self, what: &str, operation: impl Fn(&Mounted) -> Result<T>) -> T {
        let result = operation(&self.vfs);
        if result.is_err() && self.disturbed.len() > self.tolerance {
            println!("{what}: {:?} were away or started anew", self.disturbed);
            self.bring_all_back();
            return operation(&self.vfs).or_else(|_| operation(&self.vfs)).expect(what);
        }
        result.expect(what)
    }

    fn change(&mut self) {
        let at = self.rng.index(FILES);
        match self.rng.below(12) {
            0 => {
                let name = format!("f{at}");
                self.must("unlink", |vfs| vfs.unlink(ROOT, Ino::ROOT, name.as_bytes()));
                self.vfs.release(self.files[at].0);
                self.files[at] = (create(&self.vfs, &format!("f{at}")).1, Vec::new());
            }
            1 | 2 => {
                let size = self.rng.index(SIZE_MAX);
                let ino = lookup(&self.vfs, &format!("f{at}")).attr.ino;
                let attr = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                self.must("cut", |vfs| vfs.setattr(ROOT, ino, None, &attr));
                self.files[at].1.resize(size, 0);
            }
            _ => {
                let from = place(&mut self.rng, SIZE_MAX);
                let bytes = pattern(length(&mut self.rng), self.rng.below(256) as u8);
                let handle = self.files[at].0;
                self.must("write", |vfs| {
                    let mut done = 0;
                    while done < bytes.len() {
                        done += vfs.write(handle, (from + done) as u64, &bytes[done..])?;
                    }
                    Ok(())
                });
                fill(&mut self.files[at].1, from, from + bytes.len(), |at| bytes[at - from]);
            }
        }
        let (handle, ino) = (self.files[at].0, lookup(&self.vfs, &format!("f{at}")).attr.ino);
        match self.rng.below(5) {
            0 => self.must("fsync", |vfs| vfs.fsync(handle)),
            1 => drop(self.must("sync", |vfs| vfs.sync())),
            2 => self.vfs.mount.array.rounds.run(false).unwrap_or_default(),
            3 => self.must("send", |vfs| try_send_block(vfs, ino, 0)),
            _ => {}
        }
    }

    fn lose(&mut self) {
        let at = self.rng.index(usize::from(NSDS));
        let is_away = self.away.iter().any(|(other, _)| *other == at);
        let nsd = &self.rig.nsds[at];
        let loss = [Loss::Silent, Loss::Gone, Loss::Restarted, Loss::Older][self.rng.index(4)];
        // Those that are back and not up yet count, too. A write that is still under way may have
        // met one of them before it was back, and takes it out of use when it ends.
        let array = &self.vfs.mount.array;
        drop(array.io.nsds().gate().write());
        while !array.rounds.is_due(0) {
            strake_env::thread::yield_now();
        }
        let views = self.vfs.array().nsds();
        let is_out = |other: &usize| {
            let view = &views[*other];
            !view.state.availability.readable() || self.away.iter().any(|(away, _)| away == other)
        };
        let others = || (0..views.len()).filter(|other| *other != at);
        let out = others().filter(is_out).count();
        let restarted = others().filter(|it| !is_out(it) && self.restarted.contains(it)).count();
        // More than the code tolerates may start anew, if nobody else is out. Where some are out
        // and one more starts anew, none need be able to bring another one up to date.
        let is_too_much = out + restarted >= self.tolerance;
        if loss == Loss::Restarted {
            if is_too_much && out > 0 {
                return;
            }
            // Also while it is brought up to date.
            let (down, after) = (self.away.contains(&(at, Loss::Silent)), self.rng.below(4));
            let restart_after = Some(after as u32);
            nsd.set_faults(Faults { down, restart_after, ..Faults::default() });
            self.disturbed.insert(at);
            self.restarted.insert(at);
            return;
        }
        if is_away || is_too_much {
            self.copies[at] = nsd.copy();
            return;
        }
        match loss {
            Loss::Silent => nsd.set_down(true),
            _ => self.vfs.array().attach_nsd(SlotIndex(at as u16), None),
        }
        self.away.push((at, loss));
        self.disturbed.insert(at);
    }

    fn bring_back(&mut self) {
        let Some((at, loss)) = self.away.pop() else { return };
        let (nsd, slot) = (&self.rig.nsds[at], SlotIndex(at as u16));
        match loss {
            Loss::Gone => nsd.crash(),
            Loss::Older => nsd.restore(&self.copies[at]),
            Loss::Silent | Loss::Restarted => nsd.set_down(false),
        }
        if self.rng.one_in(4) {
            let restart_after = Some(self.rng.below(3) as u32);
            nsd.set_faults(Faults { restart_after, ..Faults::default() });
        }
        self.tally.older += u64::from(loss == Loss::Older);
        self.vfs.array().attach_nsd(slot, self.rig.port(at));
        // The mender waits for as long as this looks after the NSD.
        let nsds = self.vfs.mount.array.io.nsds();
        let _alone = nsds.mending().lock();
        for _ in 0..10 {
            if !nsds.probe(slot) || nsds.availability(slot) != NsdAvailability::Unrecovered {
                break;
            }
            match self.vfs.manager.recover_nsd(slot) {
                // Of an older one, the tables of the others do not tell all.
                Ok(Some(_)) if loss == Loss::Older => {}
                Ok(Some(report)) if report.full => self.tally.full += 1,
                Ok(Some(_)) => self.tally.by_table += 1,
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn bring_back_and_check(&mut self) {
        self.bring_back();
        if self.away.is_empty() {
            self.check();
        }
    }

    /// Brings back everybody who is away, and has the mender look at those who were only started
    /// anew, until all are up.
    fn bring_all_back(&mut self) {
        while !self.away.is_empty() {
            self.bring_back();
        }
        let readable =
            |vfs: &Mounted| vfs.array().nsds().iter().all(|nsd| nsd.state.availability.readable());
        for _ in 0..5 {
            self.vfs.tend();
            if readable(&self.vfs) {
                return;
            }
        }
        panic!("{:?}", self.vfs.array().nsds());
    }

    /// Everybody is back: every strip of every file is where it should be, of the newest version.
    fn check(&mut self) {
        self.bring_all_back();
        for at in 0..FILES {
            let handle = self.files[at].0;
            self.must("fsync", |vfs| vfs.fsync(handle));
        }
        self.vfs.sync().expect("synced");
        self.rig.nsds.iter().for_each(|nsd| nsd.set_faults(Faults::default()));
        // This notices who was started anew, and the rest brings them up.
        self.vfs.tend();
        self.bring_all_back();
        self.disturbed.clear();
        self.restarted.clear();
        let found = self.vfs.manager.check_strips().expect("checked");
        assert!(found.faults.is_empty() && found.notes.is_empty(), "{found:?}");
        for (at, (handle, bytes)) in self.files.iter().enumerate() {
            let out = read(&self.vfs, *handle, 0, bytes.len() + 1);
            assert_eq!(out.len(), bytes.len());
            same(&format!("f{at}"), 0, &out, bytes);
        }
    }
}

/// Random changes, syncs and commits, with disks that go, lose what they had not made stable, come
/// back as they went or older, and are started anew meanwhile. Whoever is back and up has every
/// strip it should have; a check that reads no cache says so.
#[test]
fn whoever_is_back_has_everything_and_mostly_because_of_its_table() {
    let mut tally = Tally::default();
    for seed in strake_env::rng::test_seeds(1, 12 * strake_env::rng::test_scale()) {
        let (code, tolerance) = [("2x", 1), ("4+2p", 2), ("3x", 2)][seed as usize % 3];
        println!("seed {seed} code {code}");
        let mut rehearsal = Rehearsal::new(seed, code, tolerance);
        for round in 0..4 {
            for _ in 0..30 {
                match rehearsal.rng.below(10) {
                    0 | 1 => rehearsal.lose(),
                    2 => rehearsal.bring_back_and_check(),
                    _ => rehearsal.change(),
                }
            }
            println!("seed {seed} round {round}: {:?}", rehearsal.tally);
            rehearsal.check();
        }
        tally.by_table += rehearsal.tally.by_table;
        tally.full += rehearsal.tally.full;
        tally.older += rehearsal.tally.older;
        rehearsal.vfs.shutdown().expect("ended");
    }
    println!("{tally:?}");
    assert!(tally.by_table > tally.full && tally.older > 0, "{tally:?}");
}

/// Regression: a disk that went while it was full kept the file system full, whatever was deleted.
#[test]
fn a_disk_that_went_full_does_not_keep_the_others_full() {
    let rig = Rig::new("2x", 4);
    let vfs = rig.start(0);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(8 * BLOCK as u64));
    let (_, handle) = create(&vfs, "fill");
    let bytes = pattern(BLOCK, 1);
    let mut offset = 0;
    while vfs.write(handle, offset, &bytes).is_ok_and(|count| count == BLOCK) {
        offset += BLOCK as u64;
        assert!(offset < 64 * BLOCK as u64, "it is never full");
        vfs.sync().expect("synced");
        vfs.mount.array.room.refresh();
    }
    vfs.array().attach_nsd(SlotIndex(1), None);
    vfs.release(handle);
    vfs.unlink(ROOT, Ino::ROOT, b"fill").expect("deleting works");
    vfs.tend();
    let (_, handle) = create(&vfs, "next");
    write(&vfs, handle, 0, &pattern(2 * BLOCK, 2));
    vfs.fsync(handle).expect("synced");
}

/// A mount that says nothing. The test hears what it is told.
struct Mute(Sender<()>);

impl ToClient for Mute {
    fn new_term(&self, _: Term) {}

    fn send(&self, _: Term, _: Reply) {
        let _ = self.0.send(());
    }
}

/// Regression: a node that led, and waited for a mount that it did not reach any more, went on
/// waiting for minutes. If it was to lead again, nobody led meanwhile.
#[test]
fn a_service_that_ends_waits_for_no_mount_that_is_to_follow_a_change_of_the_pool() {
    const MOUNT: ClientId = ClientId(9);
    type Change = fn(&Arc<TokenService>) -> Result<()>;
    let returns: Change = |service| service.have_written(NsdId(1), ClientId(1));
    let leaves: Change = |service| {
        let state =
            NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Unrecovered };
        let op = MetaOp::SetNsdState { nsd: NsdId(1), state };
        let time = Timestamp { seconds: 2_000, nanos: 0 };
        let entry = MetaEntry { client: ClientId(1), sequence: 0, time, op };
        service.metadata().apply(&entry).map(drop)
    };
    for change in [returns, leaves] {
        let rig = Rig::new("2x", 3);
        let service = rig.tokens(&[]);
        let (tells, told) = channel();
        service.join(MOUNT, Arc::new(Mute(tells)));
        strake_env::thread::scope(|scope| {
            let waits = scope.spawn(|| change(&service));
            told.recv_timeout(HANGS).expect("it is told of the change");
            service.stop();
            let error = waits.join().expect("no panic").expect_err("nobody has followed");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        });
    }
}
