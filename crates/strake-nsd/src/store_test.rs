//! Tests the block store against a slow, obvious model: random requests, commits, reopenings and
//! power cuts. Each seed is printed, so a failure names the seed that replays it.
//!
//! For each strip the model keeps every version accepted, in order, and which of them a commit
//! covers. After a power cut the store must hold a state of each strip that is at least as new as
//! the last committed one. Its bytes and checksums must be those of one accepted version, never a
//! mixture.

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;
use strake_env::disk::sim::SimDisk;
use strake_env::{Clock, RealClock, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{
    NsdCheckReply, RangeChange, SMALL_STRIP_UNITS_MAX, STRIPS_MAX, SettledStripe, SmallStrip,
    StripHeader,
};
use strake_proto::{FsId, GrantNumber, StripIndex};
use strake_store::container::FormatOptions;
use strake_stripe::checksum::{ChecksumSeed, first_bad_unit, strip_checksums};

pub(super) const DISK_BYTES: u64 = 64 << 20;

pub(super) fn observe() -> Arc<Observe> {
    Observe::new(RealClock::shared() as Arc<dyn Clock>, 512)
}

pub(super) fn format(disk: &Arc<SimDisk>, seed: u64) -> Arc<BlockStore> {
    let options = FormatOptions {
        cluster: ClusterId([7; 16]),
        nsd: NsdId(3),
        fs: FsId(1),
        failure_group: 3,
        seed,
    };
    Container::format(Arc::clone(disk) as Arc<dyn Disk>, &options).expect("format");
    open(disk)
}

pub(super) fn open(disk: &Arc<SimDisk>) -> Arc<BlockStore> {
    let container = Container::open(Arc::clone(disk) as Arc<dyn Disk>).expect("container");
    // Discards come at once, so that they meet writes.
    let discard_delay = Duration::ZERO;
    // Only the tests themselves do this, so that a seed does the same each time.
    let straighten_delay = Duration::MAX;
    let options =
        BlockStoreOptions { discard_delay, straighten_delay, ..BlockStoreOptions::new(&observe()) };
    BlockStore::open(container, options).expect("block store")
}

pub(super) fn key(object: u64, block: u64) -> StripKey {
    StripKey {
        fs: FsId(1),
        object: ObjectId(object),
        block: BlockIndex(block),
        strip: StripIndex((block % 3) as u8),
    }
}

pub(super) fn version(counter: u64) -> Version {
    Version { grant: GrantNumber(1), counter }
}

pub(super) fn call(store: &BlockStore, request: &NsdRequest, send: &[u8]) -> Result<NsdReply> {
    store.call(NsdContext::default(), request, send, &mut [])
}

pub(super) fn write(
    store: &BlockStore,
    key: StripKey,
    version: Version,
    data: &[u8],
) -> Result<NsdReply> {
    let header = StripHeader { version, block_bytes: data.len() as u32, lacks: 0 };
    let checksums = strip_checksums(&key, version, data);
    call(
        store,
        &NsdRequest::Write { key, header, checksums, copy: false, stable: Version::NONE },
        data,
    )
}

pub(super) fn small_strip(key: StripKey, counter: u64, data: &[u8]) -> SmallStrip {
    let version = version(counter);
    let header = StripHeader { version, block_bytes: data.len() as u32, lacks: 0 };
    let checksums = strip_checksums(&key, version, data);
    SmallStrip { key, header, checksums, stable: Version::NONE }
}

/// Patches `units` of the base with `data`, which holds them one after the other.
pub(super) fn patch(
    store: &BlockStore,
    key: StripKey,
    base: (&Strip, Version),
    units: &[u32],
    data: &[u8],
) -> Result<NsdReply> {
    patch_after(store, key, base, units, data, Version::NONE)
}

/// Like `patch`, with a writer that names `stable` as stable.
pub(super) fn patch_after(
    store: &BlockStore,
    key: StripKey,
    (base, version): (&Strip, Version),
    units: &[u32],
    data: &[u8],
    stable: Version,
) -> Result<NsdReply> {
    let seed = ChecksumSeed::new(&key, version);
    let checksums = units.iter().zip(data.chunks_exact(UNIT_BYTES));
    let checksums = checksums.map(|(unit, data)| seed.unit(*unit, data)).collect();
    let header = StripHeader { version, block_bytes: base.bytes.len() as u32, lacks: 0 };
    let (base, units) = (base.version, units.to_vec());
    call(store, &NsdRequest::Patch { key, header, base, units, checksums, stable }, data)
}

/// A whole version of a strip.
#[derive(Clone)]
pub(super) struct Strip {
    pub(super) version: Version,
    pub(super) bytes: Vec<u8>,
}

impl Strip {
    /// The same strip with some units changed.
    pub(super) fn patched(&self, version: Version, units: &[u32], data: &[u8]) -> Strip {
        let mut bytes = self.bytes.clone();
        for (unit, data) in units.iter().zip(data.chunks_exact(UNIT_BYTES)) {
            bytes[*unit as usize * UNIT_BYTES..][..UNIT_BYTES].copy_from_slice(data);
        }
        Strip { version, bytes }
    }
}

/// Straightens all strips. Returns how many units it moved.
pub(super) fn straighten(store: &BlockStore) -> u64 {
    let keys = store.crooked.lock().all();
    store.straighten(&keys).expect("a good disk")
}

/// The whole current strip, with its checksums verified.
pub(super) fn read(store: &BlockStore, key: StripKey) -> Option<(Version, Vec<u8>)> {
    read_version(store, key, None)
}

/// One whole version of a strip, with its checksums verified.
pub(super) fn read_version(
    store: &BlockStore,
    key: StripKey,
    version: Option<Version>,
) -> Option<(Version, Vec<u8>)> {
    let mut out = AlignedBuffer::zeroed(4 << 20);
    let request = NsdRequest::Read { key, version, offset: 0, length: 4 << 20 };
    match store.call(NsdContext::default(), &request, &[], &mut out) {
        Ok(NsdReply::Strip { header, checksums, payload_bytes, .. }) => {
            let bytes = &out[..payload_bytes as usize];
            let bad = first_bad_unit(&key, header.version, 0, bytes, &checksums);
            assert_eq!(bad, None, "strip {key} at {} does not match", header.version);
            Some((header.version, bytes.to_vec()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        other => panic!("read of {key}: {other:?}"),
    }
}

use strake_env::AlignedBuffer;

/// The history of one strip: the contents of each version (`None`: deleted), ascending.
#[derive(Default)]
struct History {
    states: Vec<(Version, Option<Vec<u8>>)>,
    committed: usize,
}

#[derive(Default)]
struct Model {
    strips: BTreeMap<StripKey, History>,
    counter: u64,
}

impl Model {
    fn now(&self, key: &StripKey) -> Option<(Version, Vec<u8>)> {
        let (version, data) = self.strips.get(key)?.states.last()?;
        Some((*version, data.clone()?))
    }

    fn commit(&mut self) {
        self.strips.values_mut().for_each(|history| history.committed = history.states.len());
    }

    /// Judges the store's state after a power cut, and takes it over.
    fn recover(&mut self, store: &BlockStore) {
        for (key, history) in &mut self.strips {
            let found = read(store, *key);
            let position =
                (history.committed.saturating_sub(1)..history.states.len()).rev().find(|&index| {
                    let (version, data) = &history.states[index];
                    match (&found, data) {
                        (Some((seen, bytes)), Some(data)) => seen == version && bytes == data,
                        (None, None) => true,
                        _ => false,
                    }
                });
            let never = history.committed == 0 && found.is_none();
            let seen = found.map(|(version, _)| version);
            assert!(position.is_some() || never, "{key}: {seen:?} was lost or never written");
            history.states.truncate(position.map_or(0, |index| index + 1));
            history.committed = history.states.len();
        }
    }

    /// Compares every version that the store holds.
    fn check(&self, store: &BlockStore) {
        for (key, history) in &self.strips {
            let Some(record) = store.record(key).expect("index") else { continue };
            for held in &record.versions {
                let state = history.states.iter().find(|(version, _)| *version == held.version());
                let (version, data) = state.expect("it was written");
                let found = read_version(store, *key, Some(*version)).expect("held");
                assert!(Some(&found.1) == data.as_ref(), "{key} at {version}");
            }
        }
        check(store);
    }
}

pub(super) fn check(store: &BlockStore) {
    store.space.allocator.lock().check();
    match call(store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => assert_eq!(found.faults, Vec::<String>::new()),
        other => panic!("{other:?}"),
    }
}

fn random_write(store: &BlockStore, model: &mut Model, rng: &mut Rng) {
    let key = key(rng.below(4), rng.below(6));
    let units = if rng.one_in(4) { 17 + rng.index(40) } else { 1 + rng.index(16) };
    let mut data = AlignedBuffer::zeroed(units * UNIT_BYTES);
    rng.fill(&mut data);
    model.counter += 1;
    let version = version(model.counter);
    write(store, key, version, &data).expect("write");
    model.strips.entry(key).or_default().states.push((version, Some(data.to_vec())));
}

/// Writes small strips of several objects and blocks in one request, sometimes twice.
fn random_writes(store: &BlockStore, model: &mut Model, rng: &mut Rng) {
    let mut sent = Vec::new();
    let mut strips: Vec<SmallStrip> = Vec::new();
    for _ in 0..=rng.below(6) {
        let key = key(rng.below(4), rng.below(6));
        let mut data = vec![0; (1 + rng.index(SMALL_STRIP_UNITS_MAX)) * UNIT_BYTES];
        rng.fill(&mut data);
        model.counter += 1;
        let version = version(model.counter);
        strips.push(small_strip(key, model.counter, &data));
        sent.extend_from_slice(&data);
        model.strips.entry(key).or_default().states.push((version, Some(data)));
    }
    let is_unlike = |one: &SmallStrip| strips.iter().filter(|it| it.key == one.key).count() == 1;
    let is_repeated = rng.one_in(3) && strips.iter().all(is_unlike);
    let request = NsdRequest::WriteMany { strips, copy: false };
    call(store, &request, &sent).expect("written");
    if let NsdRequest::WriteMany { strips, .. } = request
        && is_repeated
    {
        call(store, &NsdRequest::WriteMany { strips, copy: true }, &sent).expect("there already");
    }
}

/// Returns true if the patch was accepted.
fn random_patch(store: &BlockStore, model: &mut Model, rng: &mut Rng) -> bool {
    let key = key(rng.below(4), rng.below(6));
    let Some((version, bytes)) = model.now(&key) else { return false };
    let base = Strip { version, bytes };
    let count = (base.bytes.len() / UNIT_BYTES) as u32;
    let few = 1 + rng.below(6);
    let units: Vec<u32> = (0..count).filter(|_| rng.one_in(few)).collect();
    let mut data = vec![0; units.len() * UNIT_BYTES];
    rng.fill(&mut data);
    model.counter += 1;
    let new = base.patched(self::version(model.counter), &units, &data);
    let history = model.strips.get_mut(&key).expect("it has a base");
    let is_stable = history.committed == history.states.len();
    match patch(store, key, (&base, new.version), &units, &data) {
        Ok(_) => {
            assert!(is_stable, "{key}: a patch of what no commit covers");
            history.states.push((new.version, Some(new.bytes)));
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotBase, "{error}");
            let held = store.record(&key).expect("index").expect("held");
            let is_full = held.displaced_units() + units.len() > crate::record::DISPLACED_MAX;
            assert!(!is_stable || is_full, "{key}: {error}");
            false
        }
    }
}

/// Deletes ranges, in one request or in as many as there are ranges.
fn random_delete(store: &BlockStore, model: &mut Model, rng: &mut Rng) {
    let mut changes = Vec::new();
    for _ in 0..=rng.below(3) {
        let (object, from) = (ObjectId(rng.below(4)), rng.below(6));
        let to = if rng.one_in(3) { u64::MAX } else { from + rng.below(4) };
        model.counter += 1;
        let version = version(model.counter);
        for (key, history) in &mut model.strips {
            if key.object == object && (from..to).contains(&key.block.0) {
                history.states.push((version, None));
            }
        }
        let (from, to) = (BlockIndex(from), BlockIndex(to));
        changes.push(RangeChange::Delete { object, from, to, version });
    }
    if rng.one_in(2) {
        for change in changes {
            call(store, &change.alone(FsId(1)), &[]).expect("delete");
        }
        return;
    }
    while !changes.is_empty() {
        let request = NsdRequest::ChangeRanges { fs: FsId(1), changes: changes.clone() };
        let reply = call(store, &request, &[]).expect("delete");
        let NsdReply::Changed { done, .. } = reply else { panic!("{reply:?}") };
        drop(changes.drain(..done as usize));
    }
}

fn random_commit(store: &BlockStore, model: &mut Model, rng: &mut Rng) {
    let mut settled = Vec::new();
    for (key, history) in &model.strips {
        // Only a version that an earlier commit made stable may be settled.
        let stable = history.committed.checked_sub(1).map(|last| &history.states[last]);
        if let Some((version, Some(_))) = stable
            && rng.one_in(2)
        {
            let (fs, object, block) = (key.fs, key.object, key.block);
            settled.push(SettledStripe { fs, object, block, version: *version, lacks: 0 });
        }
    }
    call(store, &NsdRequest::Commit { settled }, &[]).expect("commit");
    model.commit();
}

#[test]
fn random_histories_agree_with_the_model_through_power_cuts() {
    let (mut patches, mut straightened) = (0, 0);
    for seed in strake_env::rng::test_seeds(0, 30) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(DISK_BYTES);
        let mut store = format(&disk, seed);
        let mut model = Model::default();
        // Mostly whole strips, or mostly patches.
        let writes = 5 + rng.below(15);
        for _ in 0..250 {
            match rng.below(40) {
                at if at < writes && rng.one_in(4) => {
                    random_writes(&store, &mut model, &mut rng);
                }
                at if at < writes => random_write(&store, &mut model, &mut rng),
                0..=19 => patches += u64::from(random_patch(&store, &mut model, &mut rng)),
                20..=22 => random_delete(&store, &mut model, &mut rng),
                23..=29 if !rng.one_in(3) => random_commit(&store, &mut model, &mut rng),
                24..=27 => {
                    straightened += straighten(&store);
                    // Only writing into place makes everything durable. Folding need not.
                    call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
                    model.commit();
                }
                30 => {
                    store.checkpoint().expect("checkpoint");
                    model.commit();
                }
                31 => {
                    drop(store);
                    disk = disk.crash(disk.position(), &mut rng);
                    store = open(&disk);
                    model.recover(&store);
                    model.check(&store);
                }
                _ => {
                    let key = key(rng.below(4), rng.below(6));
                    assert_eq!(read(&store, key), model.now(&key), "{key}");
                }
            }
        }
        model.check(&store);
    }
    println!("{patches} patches, {straightened} units straightened");
    assert!(patches > 300 && straightened > 300, "{patches} patches, {straightened} straightened");
}

#[test]
fn stale_versions_and_those_under_a_tombstone_are_refused() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let data = AlignedBuffer::zeroed(UNIT_BYTES);
    write(&store, key(1, 1), version(5), &data).expect("first");
    for old in [4, 5] {
        let error = write(&store, key(1, 1), version(old), &data).expect_err("stale");
        assert_eq!(error.kind(), ErrorKind::Stale);
    }
    let all = NsdRequest::DeleteRange {
        fs: FsId(1),
        object: ObjectId(1),
        from: BlockIndex(0),
        to: BlockIndex::END,
        version: version(9),
    };
    call(&store, &all, &[]).expect("delete");
    assert_eq!(read(&store, key(1, 1)), None);
    assert!(write(&store, key(1, 7), version(9), &data).is_err());
    write(&store, key(1, 7), version(10), &data).expect("above the tombstone");
    let promise = NsdRequest::Refuse { key: key(1, 8), version: version(20) };
    let reply = call(&store, &promise, &[]).expect("promise");
    assert_eq!(reply, NsdReply::Promise { refused: true });
    assert!(write(&store, key(1, 8), version(20), &data).is_err());
}

#[test]
fn a_request_with_many_ranges_ends_early_where_there_is_much_to_delete() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let data = AlignedBuffer::zeroed(UNIT_BYTES);
    let blocks_of = [1, super::range::STEPS_MAX as u64 * 256, 1, 1];
    for (object, blocks) in (0u64..).zip(blocks_of) {
        for block in 0..blocks {
            write(&store, key(object, block), version(1), &data).expect("written");
        }
    }
    let delete = |object| {
        let (from, to) = (BlockIndex(0), BlockIndex::END);
        RangeChange::Delete { object: ObjectId(object), from, to, version: version(9) }
    };
    let request = |changes| call(&store, &NsdRequest::ChangeRanges { fs: FsId(1), changes }, &[]);
    let done = |reply: Result<NsdReply>| match reply.expect("changed") {
        NsdReply::Changed { done, .. } => done,
        other => panic!("{other:?}"),
    };
    assert_eq!(done(request((0..4).map(delete).collect())), 2, "it ends after the long one");
    assert_eq!(read(&store, key(1, 5)), None);
    assert!(read(&store, key(2, 0)).is_some());
    let forget = RangeChange::Forget { object: ObjectId(2), version: version(9) };
    assert_eq!(done(request(vec![delete(2), forget, delete(3)])), 3);
    assert!([0, 1, 2, 3].iter().all(|object| read(&store, key(*object, 0)).is_none()));
    write(&store, key(2, 0), version(8), &data).expect("its tombstone is forgotten");
    write(&store, key(3, 0), version(8), &data).expect_err("this one is not");
    for wrong in [0, strake_proto::nsd::RANGES_MAX + 1] {
        let refused = request(vec![delete(1); wrong]).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_full_disk_says_so_and_deleting_makes_room() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let data = AlignedBuffer::zeroed(1 << 20);
    let mut counter = 0;
    let full = loop {
        counter += 1;
        if let Err(error) = write(&store, key(counter, 0), version(counter), &data) {
            break error;
        }
        assert!(counter < 64, "the disk never gets full");
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    for object in 1..counter {
        let request = NsdRequest::DeleteRange {
            fs: FsId(1),
            object: ObjectId(object),
            from: BlockIndex(0),
            to: BlockIndex::END,
            version: version(100 + object),
        };
        call(&store, &request, &[]).expect("deleting works on a full disk");
    }
    // The freed units wait for a commit. The write makes one.
    write(&store, key(99, 0), version(999), &data).expect("there is room again");
    check(&store);
}

#[test]
fn a_failed_write_stops_all_changes_but_not_reads() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let data = AlignedBuffer::zeroed(UNIT_BYTES);
    write(&store, key(1, 1), version(1), &data).expect("good");
    call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
    disk.set_faults(|faults| faults.writes_until_error = Some(0));
    assert!(write(&store, key(1, 2), version(2), &data).is_err());
    disk.set_faults(|faults| faults.writes_until_error = None);
    let error = write(&store, key(1, 2), version(3), &data).expect_err("it stays failed");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(read(&store, key(1, 1)).is_some());
}

#[test]
fn a_check_in_parts_finds_what_a_whole_one_does() {
    let disk = SimDisk::new(2 * DISK_BYTES);
    let store = format(&disk, 1);
    let mut data = AlignedBuffer::zeroed(256 * UNIT_BYTES);
    Rng::new(5).fill(&mut data);
    for block in 0..40 {
        write(&store, key(1, block), version(1 + block), &data).expect("there is room");
    }
    for block in [3, 38] {
        let record = store.record(&key(1, block)).expect("index").expect("held");
        disk.flip(record.extents().next().expect("units").offset() + 5000, 1);
    }
    let reply = call(&store, &NsdRequest::Check { data: true }, &[]).expect("check");
    let NsdReply::Checked(whole) = reply else { panic!("{reply:?}") };
    assert_eq!((whole.strips, &whole.bad), (40, &vec![key(1, 3), key(1, 38)]));
    let (mut sum, mut parts, mut next) = (NsdCheckReply::default(), 0, Some(Vec::new()));
    while let Some(from) = next {
        let request = NsdRequest::CheckPart { data: true, from };
        let reply = call(&store, &request, &[]).expect("check");
        let NsdReply::CheckedPart { found, next: after } = reply else { panic!("{reply:?}") };
        sum.add(found);
        (parts, next) = (parts + 1, after);
    }
    assert_eq!((sum, parts), (whole, 3), "the records, 32 MiB of strips, and the rest");
}

#[test]
fn a_flipped_bit_is_found() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let mut data = AlignedBuffer::zeroed(20 * UNIT_BYTES);
    Rng::new(5).fill(&mut data);
    write(&store, key(1, 1), version(1), &data).expect("good");
    let record = store.record(&key(1, 1)).expect("index").expect("held");
    disk.flip(record.extents().next().expect("units").offset() + 5000, 1);
    match call(&store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => assert_eq!(found.bad, [key(1, 1)]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn concurrent_writers_and_committers_lose_nothing() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    strake_env::thread::scope(|scope| {
        for object in 1..5u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 1..40u64 {
                    let mut data = AlignedBuffer::zeroed(UNIT_BYTES * 2);
                    data.fill(object as u8);
                    write(store, key(object, round % 7), version(round), &data).expect("write");
                    let commit = NsdRequest::Commit { settled: Vec::new() };
                    call(store, &commit, &[]).expect("commit");
                }
            });
        }
    });
    drop(store);
    let store = open(&disk.crash(disk.position(), &mut Rng::new(9)));
    for object in 1..5u64 {
        for block in 0..7 {
            let (found, data) = read(&store, key(object, block)).expect("committed");
            let last = (33..40).rev().find(|round| round % 7 == block).expect("each once");
            assert_eq!(found, version(last));
            assert!(data.iter().all(|&byte| byte == object as u8));
        }
    }
    check(&store);
}

#[test]
fn of_many_strips_with_a_stale_one_those_before_it_are_written_and_no_space_is_lost() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let data = vec![7; UNIT_BYTES];
    write(&store, key(2, 0), version(9), &data).expect("written");
    let free = |store: &BlockStore| store.status().free;
    let before = free(&store);
    let strips = (1..4).map(|object| small_strip(key(object, 0), 5, &data)).collect();
    let request = NsdRequest::WriteMany { strips, copy: false };
    let error = call(&store, &request, &data.repeat(3)).expect_err("the second one is stale");
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    assert_eq!(read(&store, key(1, 0)).expect("written before").0, version(5));
    assert_eq!(read(&store, key(2, 0)).expect("the newer one").0, version(9));
    assert!(read(&store, key(3, 0)).is_none(), "nothing after an error");
    assert_eq!(before - free(&store), UNIT_BYTES as u64);
    check(&store);
}

#[test]
fn requests_for_many_strips_that_make_no_sense_are_refused() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let long = vec![1; (SMALL_STRIP_UNITS_MAX + 1) * UNIT_BYTES];
    let one = &long[..UNIT_BYTES];
    let strip = |data: &[u8]| small_strip(key(1, 0), 5, data);
    let none = SmallStrip { checksums: Vec::new(), ..strip(one) };
    let unnamed = SmallStrip {
        header: StripHeader { version: Version::NONE, block_bytes: 1, lacks: 0 },
        ..strip(one)
    };
    let many = vec![strip(one); STRIPS_MAX + 1];
    let too_much = one.repeat(STRIPS_MAX + 1);
    let requests: [(Vec<SmallStrip>, &[u8]); 6] = [
        (Vec::new(), &[]),
        (vec![strip(&long)], &long),
        (vec![none], &[]),
        (vec![unnamed], one),
        (vec![strip(one)], &long),
        (many, &too_much),
    ];
    for (strips, data) in requests {
        let request = NsdRequest::WriteMany { strips, copy: false };
        let error = call(&store, &request, data).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    check(&store);
}
