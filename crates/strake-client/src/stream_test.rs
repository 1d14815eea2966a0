//! Large reads by those who keep the pages: past the pool, beside everything that changes a file.

use crate::data::read::STREAM_BYTES_MIN;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use crate::vfs::{Handle, SetAttr, Vfs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_proto::{BlockIndex, ByteCount, Caller, ObjectId};

const BLOCK: usize = BLOCK_SIZE as usize;
/// What is written at once and stays whole.
const RECORD: usize = 4096;
/// Of the longest file: more than the pool holds.
const RECORDS: usize = 12 * BLOCK / RECORD;
/// The NSD whose strips lose bits, and the one that vanishes: together what `4+2p` tolerates.
const ROTTEN: usize = 2;
const FLAPPING: usize = 4;

fn open_kept(vfs: &Mounted, name: &str) -> Handle {
    let handle = open(vfs, name).1;
    vfs.pages_are_kept(handle);
    handle
}

#[test]
fn a_stream_leaves_nothing_in_the_pool_and_sees_what_is_there() {
    for (code, away) in [("1", 0), ("4+2p", 0), ("4+2p", 0b1)] {
        let rig = Rig::new(code, 6);
        let vfs = rig.start(0);
        let mut bytes = pattern(3 * BLOCK + 5000, 7);
        let (_, writer) = create(&vfs, "f");
        write(&vfs, writer, 0, &bytes);
        vfs.shutdown().expect("ended");
        let vfs = rig.start(away);
        let reader = open_kept(&vfs, "f");
        let all = |vfs: &Mounted, bytes: &[u8]| {
            for (at, part) in (0u64..).zip(bytes.chunks(STREAM_BYTES_MIN)) {
                let offset = at * STREAM_BYTES_MIN as u64;
                assert!(read(vfs, reader, offset, STREAM_BYTES_MIN) == part, "{code} at {offset}");
            }
        };
        let before = vfs.view().page_pool.used;
        all(&vfs, &bytes[..3 * BLOCK]);
        // Who has to rebuild loads whole blocks.
        assert!(away != 0 || vfs.view().page_pool.used == before, "{code}: nothing is kept twice");
        // Dirty, and not on any disk.
        let writer = open(&vfs, "f").1;
        write(&vfs, writer, BLOCK as u64 + 100, &[9; 70_000]);
        bytes[BLOCK + 100..BLOCK + 70_100].fill(9);
        all(&vfs, &bytes);
        vfs.shutdown().expect("ended");
    }
}

/// A kernel that has nearly all pages of a file asks for the others as somebody reads it in order.
#[test]
fn no_block_is_loaded_for_the_few_pages_that_a_kernel_gave_up() {
    const GAP: usize = 16 << 10;
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let bytes = pattern(4 * BLOCK, 7);
    let (_, writer) = create(&vfs, "f");
    write(&vfs, writer, 0, &bytes);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    let reader = open_kept(&vfs, "f");
    let loaded = |vfs: &Mounted| {
        for (at, part) in (0u64..).zip(bytes.chunks(GAP)) {
            let offset = at * GAP as u64;
            assert!(read(vfs, reader, offset, GAP / 2) == part[..GAP / 2], "at {offset}");
        }
        vfs.view().page_pool.used
    };
    assert_eq!(loaded(&vfs), 0);
    // Where others read, they may want what is between.
    let other = open_kept(&vfs, "f");
    assert!(loaded(&vfs) >= (bytes.len() - BLOCK) as u64);
    vfs.release(other);
    vfs.shutdown().expect("ended");
}

#[test]
fn a_stream_that_is_written_goes_on_in_its_own_memory() {
    // Twice what is touched ahead.
    const BYTES: usize = 256 * BLOCK;
    let mut rig = Rig::new("1", 6);
    rig.settings.page_pool = ByteCount::mib(512);
    let vfs = rig.start(0);
    // A stream whose writer is held up would go on in its own memory already.
    vfs.mount.page_pool.assume_memory(false);
    let put = |name: &str, seed| {
        let (_, handle) = create(&vfs, name);
        let bytes = pattern(BYTES, seed);
        for (at, part) in (0u64..).zip(bytes.chunks(BLOCK)) {
            write(&vfs, handle, at * BLOCK as u64, part);
        }
        vfs.fsync(handle).expect("synced");
        (handle, bytes)
    };
    let mut files = vec![put("first", 1)];
    let before = vfs.view().page_pool.used;
    assert!(before >= BYTES as u64, "what was just written is in memory");
    vfs.mount.page_pool.assume_memory(true);
    // What is used again stays.
    let (handle, bytes) = &files[0];
    assert!(read(&vfs, *handle, 5 * BLOCK as u64, 100) == bytes[5 * BLOCK..5 * BLOCK + 100]);
    files.push(put("second", 2));
    let after = vfs.view().page_pool.used;
    assert!(after < before + BYTES as u64, "{before} to {after} bytes");
    for (handle, bytes) in &files {
        assert!(read(&vfs, *handle, 0, BYTES) == *bytes);
    }
    vfs.shutdown().expect("ended");
}

/// A kernel that keeps nothing asks for everything again. What the pool can hold is there then.
#[test]
fn a_file_that_is_longer_than_the_pool_passes_through_a_part_of_it() {
    const PART: usize = 16 << 10;
    let mut rig = Rig::new("1", 6);
    // A block that is read ahead may come when its reader has passed.
    rig.settings.prefetch_blocks = 0;
    let budget = rig.start(0).view().page_pool.budget as usize;
    for (blocks, is_kept) in [(budget / BLOCK / 2, true), (2 * budget / BLOCK, false)] {
        let vfs = rig.start(0);
        let bytes = pattern(blocks * BLOCK, 3);
        let (_, writer) = create(&vfs, &format!("{blocks}"));
        write(&vfs, writer, 0, &bytes);
        vfs.shutdown().expect("ended");
        let vfs = rig.start(0);
        let reader = open(&vfs, &format!("{blocks}")).1;
        for (at, part) in (0u64..).zip(bytes.chunks(PART)) {
            assert!(read(&vfs, reader, at * PART as u64, PART) == part, "{blocks} at {at}");
        }
        let used = vfs.view().page_pool.used as usize;
        assert_eq!(used >= bytes.len(), is_kept, "{used} bytes of {blocks} blocks");
        assert!(is_kept || used <= BLOCK, "{used} bytes");
        // A part that is read once more is kept.
        for (at, part) in bytes[..2 * BLOCK].chunks(PART).enumerate() {
            assert!(read(&vfs, reader, (at * PART) as u64, PART) == part, "{blocks} at {at}");
        }
        assert!(vfs.view().page_pool.used as usize >= 2 * BLOCK, "{blocks} blocks");
        // Backwards, nothing is in order.
        for (at, part) in bytes.chunks(PART).enumerate().rev().step_by(7) {
            assert!(read(&vfs, reader, (at * PART) as u64, PART) == part, "{blocks} at {at}");
        }
        vfs.shutdown().expect("ended");
    }
}

/// Two handles read in turns: each block goes to the kernel once, and its memory to the next.
#[test]
fn readers_in_turns_go_on_in_the_memory_that_they_left_behind() {
    const BYTES: usize = 256 * BLOCK;
    let mut rig = Rig::new("1", 6);
    rig.settings.page_pool = ByteCount::mib(512);
    let vfs = rig.start(0);
    let bytes = pattern(BYTES, 1);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &bytes);
    vfs.shutdown().expect("ended");
    for is_slow in [true, false] {
        let vfs = rig.start(0);
        vfs.mount.page_pool.assume_memory(is_slow);
        let readers = [open_kept(&vfs, "f"), open_kept(&vfs, "f")];
        // Short enough to be loaded with their blocks.
        let parts = bytes.chunks(STREAM_BYTES_MIN / 2);
        for (at, part) in parts.enumerate() {
            let offset = (at * part.len()) as u64;
            assert!(read(&vfs, readers[at % 2], offset, part.len()) == part, "at {offset}");
        }
        let used = vfs.view().page_pool.used;
        assert_eq!(used < BYTES as u64, is_slow, "{used} bytes");
        vfs.shutdown().expect("ended");
    }
}

/// All that a record has held, in order; 0 for zeros.
struct History {
    held: Vec<u64>,
    /// Of these, the last one that was acknowledged.
    acknowledged: usize,
}

struct Model {
    records: Vec<Mutex<History>>,
    ended: AtomicBool,
    checked: AtomicUsize,
}

impl Model {
    fn new() -> Model {
        let empty = || Mutex::new(History { held: vec![0], acknowledged: 0 });
        Model {
            records: (0..RECORDS).map(|_| empty()).collect(),
            ended: AtomicBool::new(false),
            checked: AtomicUsize::new(0),
        }
    }

    /// Does what gives the records `from..to` a value.
    fn change(&self, (from, to): (usize, usize), value: u64, work: impl FnOnce()) {
        self.records[from..to].iter().for_each(|record| record.lock().held.push(value));
        work();
        for record in &self.records[from..to] {
            let mut record = record.lock();
            record.acknowledged = record.held.len() - 1;
        }
    }

    /// One read: each record of it must be whole, no older than what was acknowledged before, and
    /// no newer than what was begun before it ended.
    fn check_read(&self, vfs: &Mounted, handle: Handle, first: usize, count: usize) {
        let range = first..(first + count).min(RECORDS);
        let oldest: Vec<usize> =
            self.records[range.clone()].iter().map(|one| one.lock().acknowledged).collect();
        let found = read(vfs, handle, (first * RECORD) as u64, range.len() * RECORD);
        assert_eq!(found.len() % RECORD, 0, "the file is cut between records only");
        for ((index, bytes), oldest) in range.zip(found.chunks(RECORD)).zip(oldest) {
            let value = value_of(index, bytes);
            let history = self.records[index].lock();
            assert!(
                history.held[oldest..].contains(&value),
                "record {index} has {value}, not of {:?}",
                &history.held[oldest..]
            );
            self.checked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn stamped(index: usize, value: u64) -> Vec<u8> {
    (value << 16 | index as u64).to_le_bytes().repeat(RECORD / 8)
}

fn value_of(index: usize, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes.chunks(8).all(|word| word == &bytes[..8]), "record {index} is torn");
    assert_eq!(stamp & 0xffff, index as u64, "another record's bytes");
    stamp >> 16
}

/// Writes, cuts and extends.
fn change_at_random(vfs: &Mounted, model: &Model, rng: &mut Rng, steps: u64) {
    let _ended = Ended(&model.ended);
    let (attr, handle) = open(vfs, "f");
    let resize = |records: usize| {
        let size = Some((records * RECORD) as u64);
        let change = SetAttr { size, ..SetAttr::default() };
        vfs.setattr(&Caller::ROOT, attr.ino, None, &change).expect("resized");
    };
    for step in 1..=steps {
        let from = rng.index(RECORDS);
        let to = (from + 1 + rng.index(96)).min(RECORDS);
        match rng.below(12) {
            0 => model.change((from, RECORDS), 0, || {
                resize(from);
                resize(RECORDS);
            }),
            1 => vfs.fsync(handle).expect("synced"),
            _ => {
                let bytes: Vec<u8> = (from..to).flat_map(|at| stamped(at, step)).collect();
                model.change((from, to), step, || {
                    write(vfs, handle, (from * RECORD) as u64, &bytes);
                });
            }
        }
    }
}

/// Tells the others when the writer has ended, however it did.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn read_at_random(vfs: &Mounted, model: &Model, rng: &mut Rng) {
    let handle = open_kept(vfs, "f");
    let mut next = 0;
    while !model.ended.load(Ordering::Acquire) {
        let count = (1 + rng.index(4)) * STREAM_BYTES_MIN / RECORD;
        // In order mostly, as a stream is.
        next = if rng.one_in(8) || next >= RECORDS { rng.index(RECORDS) } else { next };
        model.check_read(vfs, handle, next, count);
        next += count;
    }
    vfs.release(handle);
}

fn disturb(rig: &Rig, vfs: &Mounted, model: &Model, rng: &mut Rng) {
    while !model.ended.load(Ordering::Acquire) {
        let (block, at) = (BlockIndex(rng.below(12)), rng.index(BLOCK));
        for strip in 0..6 {
            rig.nsds[ROTTEN].flip_bit(ObjectId(1), block, strip, at);
        }
        rig.nsds[FLAPPING].set_down(true);
        vfs.sync().expect("degraded");
        rig.nsds[FLAPPING].set_down(false);
        vfs.manager.recover_nsds();
    }
}

fn run(seed: u64, code: &str) {
    println!("seed {seed} code {code}");
    let mut rig = Rig::new(code, 6);
    // On a busy machine nothing may be written for as long as the tests' own limit.
    rig.settings.standstill_max = Duration::from_secs(600);
    let vfs = rig.start(0);
    let model = Model::new();
    let (_, handle) = create(&vfs, "f");
    vfs.fallocate(
        handle,
        0..(RECORDS * RECORD) as u64,
        crate::vfs::FallocateMode::Allocate { keep_size: false },
    )
    .expect("extended");
    strake_env::thread::scope(|scope| {
        let (vfs, model) = (&vfs, &model);
        let rng = |stream: u64| Rng::new(seed * 10 + stream);
        scope.spawn(move || change_at_random(vfs, model, &mut rng(0), 100));
        scope.spawn(move || read_at_random(vfs, model, &mut rng(1)));
        scope.spawn(move || read_at_random(vfs, model, &mut rng(2)));
        if code != "1" {
            disturb(&rig, vfs, model, &mut rng(3));
        }
    });
    let check_all = |vfs: &Mounted| {
        let reader = open_kept(vfs, "f");
        model.check_read(vfs, reader, 0, RECORDS);
        vfs.release(reader);
    };
    check_all(&vfs);
    vfs.manager.recover_nsds();
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    check_all(&vfs);
    assert!(model.checked.load(Ordering::Relaxed) >= 2 * RECORDS);
    vfs.shutdown().expect("ended");
}

#[test]
fn streams_beside_writers_cuts_and_faults_never_bring_wrong_bytes() {
    for seed in strake_env::rng::test_seeds(70, 2) {
        for code in ["1", "4+2p"] {
            run(seed, code);
        }
    }
}
