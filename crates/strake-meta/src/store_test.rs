//! Copies on simulated disks: starts, losses, full logs, power cuts.

use super::{MetaOptions, MetaStore, WITNESS_BYTES};
use crate::kv::MemoryKv;
use crate::machine;
use crate::testing::{configuration, create, entry, new_inode, unlink};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::sim::{Sequence, SimDisk};
use strake_env::{Clock, Disk, ManualClock, RealClock, Rng};
use strake_observe::Waiters;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus, Slot};
use strake_proto::meta::{
    Configuration, FileData, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply, RenameMode,
    XattrMode,
};
use strake_proto::{ClusterId, Code, ErrorKind, FileType, FsId, Ino, NsdId};
use strake_store::superblock::Superblock;
use strake_store::{ChunkSource, Container, FormatOptions, UnusedChunks};

const DISK_BYTES: u64 = 48 << 20;

/// A machine with simulated disks.
pub(super) struct Rig {
    pub(super) disks: Vec<Arc<SimDisk>>,
    witness: Option<Arc<SimDisk>>,
    source: Arc<dyn ChunkSource>,
}

impl Rig {
    pub(super) fn new(count: u32, parity: u8, witnessed: bool) -> (Rig, MetaStore) {
        let sequence = Sequence::default();
        let disks: Vec<_> =
            (0..count).map(|_| SimDisk::with_sequence(DISK_BYTES, &sequence)).collect();
        for (index, disk) in disks.iter().enumerate() {
            let options = FormatOptions {
                cluster: ClusterId([5; 16]),
                nsd: NsdId(index as u32 + 1),
                fs: FsId(1),
                failure_group: index as u32 + 1,
                seed: 77 + index as u64,
            };
            Container::format(disk.clone() as Arc<dyn Disk>, &options).expect("formats");
        }
        let witness = witnessed.then(|| SimDisk::with_sequence(WITNESS_BYTES, &sequence));
        let rig = Rig { disks, witness, source: UnusedChunks::shared() };
        let containers = rig.containers(&BTreeSet::new());
        let store =
            MetaStore::format(&containers, &pool(count, parity), rig.options()).expect("formats");
        (rig, store)
    }

    fn containers(&self, without: &BTreeSet<usize>) -> Vec<Container> {
        let present = self.disks.iter().enumerate().filter(|(index, _)| !without.contains(index));
        present
            .map(|(_, disk)| {
                let container =
                    Container::open(disk.clone() as Arc<dyn Disk>).expect("superblocks survive");
                container.set_chunk_source(&self.source);
                container
            })
            .collect()
    }

    pub(super) fn open(&self, without: &[usize]) -> strake_proto::Result<MetaStore> {
        MetaStore::open(&self.containers(&without.iter().copied().collect()), self.options())
    }

    pub(super) fn container(&self, index: usize) -> Container {
        let others = (0..self.disks.len()).filter(|other| *other != index).collect();
        self.containers(&others).remove(0)
    }

    fn options(&self) -> MetaOptions {
        let clock = Arc::new(ManualClock::default());
        let witness = self.witness.clone().map(|disk| disk as Arc<dyn Disk>);
        let options = MetaOptions::new(Arc::new(Waiters::new(clock)));
        MetaOptions { cache_bytes: 1 << 20, witness, ..options }
    }

    /// A copy of what a killed process leaves. It can be changed on its own.
    pub(super) fn copy(&self) -> Rig {
        let disks = self.disks.iter().map(|disk| disk.copy()).collect();
        let witness = self.witness.as_ref().map(|disk| disk.copy());
        Rig { disks, witness, source: UnusedChunks::shared() }
    }

    /// The machine after a power cut.
    fn crash(&self, position: u64, rng: &mut Rng) -> Rig {
        let sequence = Sequence::default();
        let mut crash = |disk: &Arc<SimDisk>| {
            let mut cuts = disk.power_cuts().counting_in(&sequence);
            cuts.advance(position);
            cuts.crash(rng)
        };
        let disks = self.disks.iter().map(&mut crash).collect();
        let witness = self.witness.as_ref().map(&mut crash);
        Rig { disks, witness, source: UnusedChunks::shared() }
    }
}

pub(super) fn pool(count: u32, parity: u8) -> Configuration {
    let mut configuration = configuration();
    let slot = configuration.pool.slots[0];
    configuration.code = Code { data: 1, parity };
    configuration.pool.slots =
        (1..=count).map(|nsd| Slot { nsd: NsdId(nsd), failure_group: nsd, ..slot }).collect();
    configuration
}

pub(super) fn random_op(rng: &mut Rng) -> MetaOp {
    let name = format!("{}", rng.below(8));
    let other = format!("{}", rng.below(8)).into_bytes();
    let ino = Ino(1 + rng.below(20));
    match rng.below(10) {
        0..4 => {
            let types = [FileType::Regular, FileType::Directory, FileType::Symlink];
            create(Ino::ROOT, &name, new_inode(types[rng.index(3)]))
        }
        4 => unlink(Ino::ROOT, &name, rng.one_in(2)),
        5 => MetaOp::Rename {
            parent: Ino::ROOT,
            name: name.into_bytes(),
            new_parent: Ino::ROOT,
            new_name: other,
            mode: RenameMode::Replace,
            open: rng.one_in(2),
        },
        6 | 7 => MetaOp::Update {
            ino,
            size: 4000,
            data: Some(FileData::Inline(vec![rng.below(256) as u8; rng.index(4000)])),
            allocated_delta: 0,
            mtime: None,
            ctime: None,
        },
        8 => MetaOp::SetXattr {
            ino,
            name: b"user.a".to_vec(),
            value: vec![1; rng.index(60_000)],
            mode: XattrMode::Set,
            clear_setgid: false,
        },
        _ => MetaOp::Join,
    }
}

/// The states after each of the first n entries.
pub(super) struct Promised {
    states: Vec<MemoryKv>,
}

impl Promised {
    pub(super) fn new(configuration: Configuration) -> Promised {
        let mut promised = Promised { states: vec![MemoryKv::default()] };
        let created = configuration.created;
        let op = MetaOp::Format(Box::new(configuration));
        let format = MetaEntry { time: created, ..entry(0, op) };
        promised.push(&MetaEntry { client: strake_proto::ClientId(0), ..format });
        promised
    }

    pub(super) fn push(&mut self, entry: &MetaEntry) {
        let mut next = self.states.last().expect("has a first").clone();
        let (_, changes) = machine::apply(&next, entry).expect("was applied before");
        next.apply(&changes);
        self.states.push(next);
    }

    pub(super) fn require(&self, store: &MetaStore, at_least: u64, context: &str) {
        let entries = store.entries();
        assert!(entries >= at_least, "{entries} entries of {at_least} promised: {context}");
        let expected = &self.states[entries as usize];
        for snapshot in store.snapshots().expect("reads") {
            assert!(snapshot == *expected, "another state after {entries} entries: {context}");
        }
        match store.query(&MetaQuery::Check).expect("checks") {
            MetaReply::Checked(reply) => assert!(reply.faults.is_empty(), "{reply:?} {context}"),
            other => panic!("{other:?}"),
        }
    }
}

fn apply_all(store: &MetaStore, count: usize, from: i64) {
    for index in 0..count {
        let name = format!("file-{from}-{index}");
        let op = create(Ino::ROOT, &name, new_inode(FileType::Regular));
        store.apply(&entry(from, op)).expect("creates");
    }
}

fn names(store: &MetaStore) -> usize {
    let query = MetaQuery::ReadDir { dir: Ino::ROOT, after: 0, limit: 4096, with_inodes: false };
    match store.query(&query).expect("lists") {
        MetaReply::Entries { entries, .. } => entries.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copies_of_whose_log_nothing_is_left_do_not_serve() {
    let (rig, store) = Rig::new(4, 2, true);
    let (_, holders) = store.holders();
    assert_eq!(holders.len(), 3);
    for number in 0..5 {
        let op = create(Ino::ROOT, &number.to_string(), new_inode(FileType::Regular));
        store.apply(&entry(number + 2, op)).expect("applied");
    }
    store.sync().expect("synced");
    // The process ends without a checkpoint.
    for lost in 0..=3 {
        let copy = rig.copy();
        for nsd in &holders[..lost] {
            let disk = &copy.disks[nsd.0 as usize - 1];
            let geometry = strake_store::container::Geometry::of(DISK_BYTES).expect("fits");
            let zeros = strake_env::AlignedBuffer::zeroed(geometry.log_bytes as usize);
            disk.write_at((1 << 20) + geometry.log_bytes, &zeros).expect("written");
        }
        match copy.open(&[]) {
            Ok(opened) => {
                assert!(lost < 3, "older metadata is served");
                let expected = store.snapshots().expect("read").remove(0);
                assert!(opened.snapshots().expect("read")[0] == expected, "{lost} lost");
            }
            Err(error) => assert_eq!((lost, error.kind()), (3, ErrorKind::Unreachable)),
        }
    }
}

#[test]
fn what_was_synced_is_there_after_a_start() {
    let (rig, store) = Rig::new(5, 2, false);
    assert_eq!(store.holders(), (1, vec![NsdId(1), NsdId(2), NsdId(3)]));
    apply_all(&store, 100, 5);
    store.sync().expect("syncs");
    drop(store);
    let store = rig.open(&[]).expect("opens");
    assert_eq!((store.entries(), names(&store)), (101, 100));
    store.checkpoint().expect("checkpoints");
    apply_all(&store, 10, 6);
    store.sync().expect("syncs");
    drop(store);
    let store = rig.open(&[0, 1]).expect("opens without two of three holders");
    assert_eq!((store.entries(), names(&store)), (111, 110));
    assert_eq!(store.holders(), (2, vec![NsdId(3)]));
    // The next copy is made by itself, on the NSD that is left.
    store.tick();
    store.tick();
    assert_eq!(store.holders(), (4, vec![NsdId(3), NsdId(4), NsdId(5)]));
    apply_all(&store, 10, 7);
    store.sync().expect("syncs");
    drop(store);
    // The two NSDs that were away are stale, although they have copies: they lack generation 4.
    let error = rig.open(&[2, 3, 4]).err().expect("no current copy").to_string();
    assert!(error.contains("only 2 of 5"), "{error}");
    let store = rig.open(&[1, 2]).expect("opens with the new copies");
    assert_eq!((store.entries(), names(&store)), (121, 120));
}

#[test]
fn without_a_current_copy_the_needed_disks_are_named() {
    let (rig, store) = Rig::new(3, 1, false);
    store.sync().expect("syncs");
    drop(store);
    let store = rig.open(&[0]).expect("opens");
    assert_eq!(store.holders().1, [NsdId(2)]);
    drop(store);
    let error = rig.open(&[1]).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("is on NSDs 2"), "{error}");
    let error = rig.open(&[0, 2]).err().expect("refused");
    assert!(error.to_string().contains("bring back 1 of NSDs 1, 3"), "{error}");
}

#[test]
fn a_holder_that_fails_is_lost_and_stale_from_then_on() {
    let (rig, store) = Rig::new(3, 1, false);
    apply_all(&store, 5, 5);
    store.sync().expect("syncs");
    rig.disks[0].set_faults(|faults| faults.sync_failure = true);
    apply_all(&store, 5, 6);
    store.sync().expect("the other copy is enough");
    assert_eq!(store.holders(), (2, vec![NsdId(2)]));
    store.tick();
    assert_eq!(store.holders(), (3, vec![NsdId(2), NsdId(3)]));
    apply_all(&store, 5, 7);
    store.sync().expect("syncs");
    drop(store);
    for without in 0..3 {
        // Each start without one NSD writes a generation. The next test starts from the beginning.
        let store = rig.copy().open(&[without]).expect("opens");
        assert_eq!(names(&store), 15, "without disk {without}");
    }
}

#[test]
fn who_waits_for_a_copy_that_hangs_names_its_disk() {
    let (rig, store) = Rig::new(2, 1, false);
    for hanging in 0..2 {
        apply_all(&store, 1, hanging as i64);
        rig.disks[hanging].set_faults(|faults| {
            faults.hang = true;
            faults.hang_limit = Some(Duration::from_secs(120));
        });
        strake_env::thread::scope(|scope| {
            let sync = scope.spawn(|| store.sync());
            let named = format!("NSD {}", hanging + 1);
            let start = RealClock.monotonic();
            let is_named = || {
                let waiting = store.options.waiters.snapshot();
                waiting.iter().any(|wait| wait.detail == named)
            };
            while !is_named() && RealClock.monotonic() - start < Duration::from_secs(60) {
                strake_env::thread::yield_now();
            }
            let seen = is_named();
            rig.disks[hanging].set_faults(|faults| faults.hang = false);
            assert_eq!(sync.join().expect("no panic"), Ok(()));
            assert!(seen, "{named} was not named");
        });
    }
}

#[test]
fn the_last_copy_takes_everything_along() {
    let (rig, store) = Rig::new(2, 1, false);
    for disk in &rig.disks {
        disk.set_faults(|faults| faults.sync_failure = true);
    }
    apply_all(&store, 1, 5);
    assert_eq!(store.sync().map_err(|error| error.kind()), Err(ErrorKind::Io));
    let op = create(Ino::ROOT, "late", new_inode(FileType::Regular));
    assert_eq!(store.apply(&entry(6, op)).map_err(|error| error.kind()), Err(ErrorKind::Io));
    assert!(store.query(&MetaQuery::Counts).is_ok(), "what is there stays readable");
}

#[test]
fn a_full_log_is_emptied_by_a_checkpoint() {
    let (rig, store) = Rig::new(2, 1, false);
    let op = create(Ino::ROOT, "file", new_inode(FileType::Regular));
    store.apply(&entry(2, op)).expect("creates");
    let ino = Ino(2);
    // Some 24 MiB go through logs of 4 MiB.
    for second in 0..400 {
        let name = format!("user.{}", second % 10).into_bytes();
        let (value, mode) = (vec![second as u8; 60_000], XattrMode::Set);
        let op = MetaOp::SetXattr { ino, name, value, mode, clear_setgid: false };
        store.apply(&entry(second, op)).expect("sets");
    }
    store.sync().expect("syncs");
    drop(store);
    let store = rig.open(&[]).expect("opens");
    assert_eq!(store.entries(), 402);
    let query = MetaQuery::GetXattr { ino, name: b"user.9".to_vec() };
    assert_eq!(store.query(&query), Ok(MetaReply::Bytes(vec![399_u16 as u8; 60_000])));
}

/// Regression: each thread that had waited for a checkpoint because the log was full made another
/// one, although the log had room by then.
#[test]
fn threads_that_find_the_log_full_share_a_checkpoint() {
    const THREADS: i64 = 32;
    let (rig, store) = Rig::new(2, 1, false);
    for thread in 0..THREADS {
        let op = create(Ino::ROOT, &format!("file-{thread}"), new_inode(FileType::Regular));
        store.apply(&entry(2, op)).expect("creates");
    }
    // Some 24 MiB go through logs of 4 MiB.
    let (store_ref, before) = (&store, store.state.read().holders[0].kv.stats().checkpoints);
    strake_env::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for second in 0..12 {
                    let (ino, name) = (Ino(2 + thread as u64), b"user.a".to_vec());
                    let (value, mode) = (vec![second as u8; 60_000], XattrMode::Set);
                    let op = MetaOp::SetXattr { ino, name, value, mode, clear_setgid: false };
                    store_ref.apply(&entry(second, op)).expect("sets");
                }
            });
        }
    });
    let made = store.state.read().holders[0].kv.stats().checkpoints - before;
    assert!((5..16).contains(&made), "{made} checkpoints");
    store.sync().expect("syncs");
    drop(store);
    let store = rig.open(&[]).expect("opens");
    for thread in 0..THREADS {
        let (ino, name) = (Ino(2 + thread as u64), b"user.a".to_vec());
        let query = MetaQuery::GetXattr { ino, name };
        assert_eq!(store.query(&query), Ok(MetaReply::Bytes(vec![11; 60_000])));
    }
}

#[test]
fn the_worker_syncs_and_ends() {
    let (rig, store) = Rig::new(2, 1, false);
    let store = Arc::new(store);
    let worker = store.start_worker().expect("starts");
    apply_all(&store, 3, 5);
    drop(worker);
    store.tick();
    drop(store);
    assert_eq!(names(&rig.open(&[]).expect("opens")), 3);
}

/// Two NSDs alone cannot tell which of them is stale. The witness can.
#[test]
fn with_a_witness_a_pair_starts_with_one_and_never_with_the_stale_one() {
    let (rig, store) = Rig::new(2, 1, true);
    apply_all(&store, 5, 5);
    store.sync().expect("syncs");
    drop(store);
    for without in 0..2 {
        let store = rig.copy().open(&[without]).expect("either is current");
        assert_eq!(names(&store), 5);
    }
    let store = rig.open(&[0]).expect("opens");
    apply_all(&store, 5, 6);
    store.sync().expect("syncs");
    drop(store);
    let error = rig.open(&[1]).err().expect("the other is stale").to_string();
    assert!(error.contains("bring back 1 of NSDs 2"), "{error}");
    let store = rig.open(&[]).expect("opens");
    assert_eq!((names(&store), store.holders().1), (10, vec![NsdId(2)]));
    store.tick();
    drop(store);
    assert_eq!(names(&rig.open(&[1]).expect("a copy was made anew")), 10);
}

/// The power goes while one of a pair starts without the other. The witness may then know a
/// generation that no superblock has. The first one starts again even so. The other never starts
/// alone once the first has been in use.
#[test]
fn with_a_witness_a_start_that_was_cut_short_can_be_made_again() {
    let (rig, store) = Rig::new(2, 1, true);
    apply_all(&store, 5, 5);
    store.sync().expect("syncs");
    drop(store);
    let from = rig.disks[0].position();
    drop(rig.open(&[0]).expect("opens"));
    let mut rng = Rng::new(1);
    for cut in from..=rig.disks[0].position() {
        for _ in 0..4 {
            let crashed = rig.crash(cut, &mut rng);
            let store = crashed.open(&[0]).expect("it is the newest");
            assert_eq!(names(&store), 5);
            apply_all(&store, 5, 6);
            store.sync().expect("syncs");
            drop(store);
            assert!(crashed.open(&[1]).is_err(), "the other is stale");
            assert_eq!(names(&crashed.open(&[]).expect("opens")), 10);
        }
    }
}

/// Two starts in a row are cut short, each at every moment of the beginning of its life. Then any p
/// NSDs are lost. The next start finds the newest metadata.
#[test]
fn with_a_witness_two_starts_that_were_cut_short_can_be_made_again() {
    let (rig, store) = Rig::new(4, 2, true);
    let now = entry(1, MetaOp::Join).time;
    apply_all(&store, 5, 5);
    store.sync().expect("syncs");
    drop(store);
    // The positions at which the life begins and has begun.
    let start = |rig: &Rig, without: &[usize]| {
        let store = rig.open(without).expect("its newest metadata is there");
        let begin = rig.disks[0].position();
        store.begin_life(now).expect("begins");
        assert_eq!(names(&store), 5);
        begin..=rig.disks[0].position()
    };
    let mut rng = Rng::new(1);
    for cut in start(&rig, &[]) {
        let once = rig.crash(cut, &mut rng);
        for cut in start(&once, &[]) {
            let twice = once.crash(cut, &mut rng);
            for one in 0..4 {
                start(&twice.crash(0, &mut rng), &[one, (one + 1 + rng.index(3)) % 4]);
            }
        }
    }
}

/// Starts are cut short at any moment, one after the other, with any tolerated NSDs away. Between
/// them are lives in which changes are acknowledged. What was acknowledged, and what a start has
/// shown, stays.
#[test]
fn with_a_witness_any_row_of_starts_can_be_cut_short() {
    for seed in strake_env::rng::test_seeds(0, 40) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let (count, parity) = [(2, 1), (3, 2), (4, 2), (5, 2), (4, 3)][rng.index(5)];
        row_of_starts(&mut rng, count, parity);
    }
}

fn row_of_starts(rng: &mut Rng, count: u32, parity: usize) {
    let (mut rig, store) = Rig::new(count, parity as u8, true);
    drop(store);
    let now = entry(1, MetaOp::Join).time;
    // The entries that must be there, and the NSDs that were not brought up to date since they were
    // away.
    let (mut kept, mut stale) = (0, BTreeSet::new());
    for life in 0..12 {
        let mut away: Vec<usize> = (0..count as usize).collect();
        rng.shuffle(&mut away);
        away.truncate(if rng.one_in(3) { parity } else { 0 });
        away.retain(|nsd| {
            let may = stale.contains(nsd) || stale.len() < parity;
            if may {
                stale.insert(*nsd);
            }
            may
        });
        let before = rig.disks[0].position();
        let store = rig.open(&away).expect("its newest metadata is there");
        let begin = rig.disks[0].position();
        store.begin_life(now).expect("begins");
        let found = names(&store);
        assert!(found >= kept, "life {life}: {found} of {kept} are there");
        // The entries that are there after the end of each promise.
        let mut promises = vec![(before, kept), (rig.disks[0].position(), found)];
        if rng.one_in(4) {
            apply_all(&store, 3, 100 + life);
            store.sync().expect("syncs");
            promises.push((rig.disks[0].position(), found + 3));
        }
        if away.is_empty() && rng.one_in(3) {
            (0..count).for_each(|_| store.tick());
            store.end_life(now).expect("ends");
            (kept, stale) = (names(&store), BTreeSet::new());
            continue;
        }
        drop(store);
        // The cut mostly comes while generations are written.
        let first = if rng.one_in(4) { before } else { begin };
        let cut = first + rng.below(rig.disks[0].position() - first + 1);
        let kept_at = |(at, kept): &(u64, usize)| (*at <= cut).then_some(*kept);
        kept = promises.iter().filter_map(kept_at).max().expect("what was there before");
        rig = rig.crash(cut, rng);
    }
}

/// A copy is made while four threads change, sync and ask. The new copy is equal in the end.
#[test]
fn a_copy_is_made_while_changes_go_on() {
    let (rig, store) = Rig::new(3, 1, false);
    apply_all(&store, 3000, 2);
    store.sync().expect("syncs");
    rig.disks[1].set_faults(|faults| faults.sync_failure = true);
    strake_env::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for index in 0..300 {
                    let name = format!("{thread}-{index}");
                    let op = create(Ino::ROOT, &name, new_inode(FileType::Regular));
                    store.apply(&entry(5, op)).expect("creates");
                    if index % 3 == 0 {
                        store.apply(&entry(6, unlink(Ino::ROOT, &name, false))).expect("unlinks");
                    }
                    if index % 50 == 0 {
                        store.sync().expect("syncs");
                        store.query(&MetaQuery::Counts).expect("answers");
                    }
                }
            });
        }
        scope.spawn(|| {
            while store.holders().1 != [NsdId(1), NsdId(3)] {
                store.tick();
            }
        });
    });
    let snapshots = store.snapshots().expect("reads");
    assert_eq!(snapshots.len(), 2);
    assert!(snapshots[0] == snapshots[1], "the copies differ");
    store.sync().expect("syncs");
    drop(store);
    // The first holder is gone. The new copy has everything.
    let store = rig.copy().open(&[0]).expect("opens");
    assert_eq!(store.snapshots().expect("reads"), snapshots[..1]);
}

/// Everything synced survives any power cut followed by the loss of any p NSDs. The state is
/// exactly the one that a prefix of the entries leads to.
#[test]
fn synced_entries_survive_power_cuts_and_losses() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        // Three copies among three NSDs with a witness, or among five without.
        let count = if seed % 2 == 0 { 3 } else { 5 };
        crash_run(seed, count, 40, 14);
    }
}

fn crash_run(seed: u64, count: u32, steps: usize, cuts: usize) {
    let mut rng = Rng::new(seed);
    let (rig, store) = Rig::new(count, 2, count == 3);
    let mut promised = Promised::new(pool(count, 2));
    let start = rig.disks[0].position();
    // The position after each sync that returned, and the entries that the sync covers.
    let mut synced = vec![(start, 1)];
    for step in 0..steps {
        let entry = entry(step as i64 + 2, random_op(&mut rng));
        if store.apply(&entry).is_ok() && store.entries() as usize == promised.states.len() {
            promised.push(&entry);
        }
        if rng.one_in(6) {
            store.sync().expect("syncs");
            synced.push((rig.disks[0].position(), store.entries()));
        }
        if rng.one_in(15) {
            store.checkpoint().expect("checkpoints");
        }
    }
    drop(store);
    let end = rig.disks[0].position();
    for cut in 0..cuts {
        let position = start + rng.below(end - start + 1);
        let context = format!("seed {seed}, cut {cut} at {position}");
        let covered = synced.iter().filter(|(at, _)| *at <= position).map(|(_, n)| *n).max();
        let after = rig.crash(position, &mut rng);
        let mut order: Vec<usize> = (0..count as usize).collect();
        rng.shuffle(&mut order);
        let lost = &order[..rng.index(3)];
        let store = after.open(lost).unwrap_or_else(|error| panic!("{error}: {context}"));
        promised.require(&store, covered.expect("the format"), &context);
        // Life goes on. Entries synced now win over the copies that were away.
        let before = store.entries();
        store.tick();
        apply_all(&store, 2, 1000);
        store.sync().expect("syncs");
        drop(store);
        let store = after.open(&[]).unwrap_or_else(|error| panic!("{error}: {context}"));
        assert_eq!(store.entries(), before + 2, "{context}");
        let snapshots = store.snapshots().expect("reads");
        assert!(snapshots.windows(2).all(|pair| pair[0] == pair[1]), "{context}");
    }
}

#[test]
fn nsds_leave_and_come_back_while_in_use() {
    let (rig, store) = Rig::new(4, 1, false);
    let now = entry(1, MetaOp::Join).time;
    store.begin_life(now).expect("begins");
    apply_all(&store, 5, 5);
    assert!(store.detach(NsdId(1), "removed"));
    assert_eq!(store.holders().1, [NsdId(2)]);
    store.tick();
    assert_eq!(store.holders().1, [NsdId(2), NsdId(3)]);
    apply_all(&store, 5, 6);
    store.sync().expect("syncs");
    // The NSD takes part again. It certainly missed nothing.
    let back = rig.container(0);
    assert_eq!(store.attach(back, false, now), Ok(false));
    assert_eq!(unrecovered(&store), []);
    assert!(store.detach(NsdId(2), "removed"));
    store.tick();
    assert_eq!(store.holders().1, [NsdId(3), NsdId(1)], "of the failure groups without one");
    // Now more NSDs are away than are tolerated. Questions are answered, changes are refused.
    assert!(store.detach(NsdId(3), "removed"));
    let op = create(Ino::ROOT, "late", new_inode(FileType::Regular));
    assert_eq!(store.apply(&entry(7, op)).map_err(|error| error.kind()), Err(ErrorKind::Io));
    assert_eq!(names(&store), 10);
    assert!(!store.detach(NsdId(1), "removed"), "the last copy stays in use");
    assert_eq!(store.attach(rig.container(2), true, now), Ok(true));
    assert_eq!(unrecovered(&store), [NsdId(3)], "its contents were doubted");
    apply_all(&store, 5, 8);
    store.sync().expect("enough are back");
    assert_eq!(names(&store), 15);
}

#[test]
fn an_old_copy_in_the_place_of_a_disk_is_recognised() {
    let (rig, store) = Rig::new(4, 1, false);
    let now = entry(1, MetaOp::Join).time;
    store.begin_life(now).expect("begins");
    let old = rig.copy();
    store.end_life(now).expect("ends");
    drop(store);
    for (disk, life) in [(3, "made before the end of the last life"), (1, "once more")] {
        let mut mixed = rig.copy();
        mixed.disks[disk] = old.disks[disk].copy();
        let store = mixed.open(&[]).expect("opens");
        store.begin_life(now).expect("begins");
        assert_eq!(unrecovered(&store), [NsdId(disk as u32 + 1)], "{life}");
    }
    let store = rig.open(&[]).expect("opens");
    store.begin_life(now).expect("begins");
    assert_eq!(unrecovered(&store), [], "nobody else is suspected");
}

/// Regression: with a holder away, the start wrote a generation to the old copy before the old copy
/// was marked as one that missed writes. If the start was cut short in between, the next start
/// believed the old copy.
#[test]
fn an_old_copy_is_recognised_although_the_first_start_with_it_was_cut_short() {
    let (rig, store) = Rig::new(5, 2, true);
    let now = entry(1, MetaOp::Join).time;
    store.begin_life(now).expect("begins");
    let old = rig.copy();
    store.end_life(now).expect("ends");
    drop(store);
    let mut rng = Rng::new(1);
    for place in [1, 2, 4] {
        let mut mixed = rig.copy();
        mixed.disks[place] = old.disks[place].copy();
        // All disks count their events together.
        let mixed = mixed.crash(0, &mut rng);
        let store = mixed.open(&[0]).expect("opens without a holder");
        store.begin_life(now).expect("begins");
        drop(store);
        for cut in 0..=mixed.disks[0].position() {
            let store = mixed.crash(cut, &mut rng).open(&[0]).expect("opens");
            store.begin_life(now).expect("begins");
            let doubted = unrecovered(&store);
            assert!(doubted.contains(&NsdId(place as u32 + 1)), "cut at {cut}: {doubted:?}");
        }
    }
}

/// A crash came after the disk had taken the place of another, and before it got a generation.
#[test]
fn a_disk_that_has_just_replaced_another_is_not_suspected() {
    let (rig, store) = Rig::new(4, 1, false);
    let now = entry(1, MetaOp::Join).time;
    store.begin_life(now).expect("begins");
    drop(store);
    let fresh = |superblock: &mut Superblock| {
        superblock.metadata_generation = 0;
        superblock.metadata_holders = Vec::new();
    };
    rig.container(3).update_superblock(fresh).expect("writes");
    let store = rig.open(&[]).expect("opens");
    store.begin_life(now).expect("begins");
    assert_eq!(unrecovered(&store), []);
}

/// An NSD with a copy is deleted. There are never fewer copies, at whatever moment the power goes.
/// Afterwards the NSD is not missed.
#[test]
fn a_deleted_nsd_gives_its_copy_to_another_before_it_goes() {
    for witnessed in [false, true] {
        let (rig, store) = Rig::new(4, 1, witnessed);
        store.begin_life(entry(1, MetaOp::Join).time).expect("begins");
        apply_all(&store, 30, 2);
        store.sync().expect("syncs");
        let before = names(&store);
        let begun = rig.disks[0].position();
        let gone = store.holders().1[0];
        let slot = usize::try_from(gone.0).expect("small") - 1;
        let status = NsdStatus::BeingEmptied;
        let state = NsdState { status, availability: NsdAvailability::Up };
        store.apply(&entry(100, MetaOp::SetNsdState { nsd: gone, state })).expect("sets");
        store.apply(&entry(101, MetaOp::MoveMetadataCopy { nsd: gone })).expect("moves its copy");
        let holders = store.holders().1;
        assert!(holders.len() == 2 && !holders.contains(&gone), "{holders:?}");
        store.apply(&entry(102, MetaOp::DeleteNsd { nsd: gone })).expect("deletes");
        store.detach(gone, "it was deleted");
        store.tick();
        assert_eq!(store.holders().1.len(), 2);
        drop(store);
        let end = rig.disks[0].position();
        let mut rng = Rng::new(9);
        for position in begun..=end {
            let crashed = rig.crash(position, &mut rng);
            let away = rng.index(4);
            let why = format!("cut at {position} of {begun}..{end}, then without {away}");
            let store = crashed.open(&[away]).unwrap_or_else(|error| panic!("{why}: {error}"));
            assert!(names(&store) >= before, "{why}");
        }
        for other in (0..4).filter(|other| *other != slot) {
            let store = rig.copy().open(&[slot, other]).expect("starts without it and another");
            assert_eq!(names(&store), before);
        }
    }
}

fn unrecovered(store: &MetaStore) -> Vec<NsdId> {
    let Ok(MetaReply::Configuration(found)) = store.query(&MetaQuery::Configuration) else {
        panic!("no configuration");
    };
    let away = found.pool.slots.iter().filter(|slot| !slot.state.availability.readable());
    away.map(|slot| slot.nsd).collect()
}
