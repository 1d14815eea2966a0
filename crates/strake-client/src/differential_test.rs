//! Random operations on files, compared with files that are plain vectors: several threads, small
//! blocks, a tiny pool, NSDs that are missing, vanish and return, restarts.

use crate::StrakeVfs;
use crate::settings::Patches;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig, assert_whole};
use crate::vfs::{FallocateMode, Handle, OpenFlags, SeekFor, SetAttr, Vfs};
use std::sync::Arc;
use strake_env::Rng;
use strake_proto::{ByteCount, Caller, ErrorKind, Ino, SlotIndex};

const ROOT: &Caller = &Caller::ROOT;
const BLOCK: usize = BLOCK_SIZE as usize;
/// Files stay below this.
const SIZE_MAX: usize = 5 * BLOCK + 1000;
const FILES: usize = 3;

const RW: OpenFlags = OpenFlags::READ_WRITE;

/// One file and what it should be.
struct File {
    name: String,
    ino: Ino,
    handle: Handle,
    bytes: Vec<u8>,
}

struct Worker {
    vfs: Arc<StrakeVfs>,
    rng: Rng,
    files: Vec<File>,
}

/// A place that is often near a border of blocks or units.
pub(crate) fn place(rng: &mut Rng, below: usize) -> usize {
    let at = match rng.below(4) {
        0 => rng.index(6) * BLOCK,
        1 => rng.index(below / 4096 + 1) * 4096,
        2 => rng.index(6000),
        _ => rng.index(below),
    };
    let jitter = if rng.one_in(3) { rng.index(3) } else { 0 };
    at.saturating_sub(jitter).min(below - 1)
}

/// A length: small mostly, now and then several blocks.
pub(crate) fn length(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => 1 + rng.index(2 * BLOCK),
        1 => BLOCK,
        2 => 4096,
        3 => 1 + rng.index(100_000),
        _ => 1 + rng.index(5000),
    }
}

pub(crate) fn fill(bytes: &mut Vec<u8>, from: usize, to: usize, value: impl Fn(usize) -> u8) {
    if bytes.len() < to {
        bytes.resize(to, 0);
    }
    for (at, byte) in bytes.iter_mut().enumerate().take(to).skip(from) {
        *byte = value(at);
    }
}

impl Worker {
    fn new(vfs: &Mounted, seed: u64, thread: usize) -> Worker {
        let files = (0..FILES).map(|at| {
            let name = format!("t{thread}f{at}");
            let (entry, opened) =
                vfs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true).expect("created");
            File { name, ino: entry.attr.ino, handle: opened.handle, bytes: Vec::new() }
        });
        let rng = Rng::new(seed * 100 + thread as u64);
        Worker { vfs: Arc::clone(&vfs.vfs), files: files.collect(), rng }
    }

    fn step(&mut self) {
        let at = self.rng.index(FILES);
        match self.rng.below(16) {
            0..=4 => self.write(at),
            5..=8 => self.read(at),
            9 => self.truncate(at),
            10 => self.punch(at),
            11 => self.append(at),
            12 => self.vfs.fsync(self.files[at].handle).expect("synced"),
            13 => self.reopen(at),
            14 => self.copy(at),
            _ => self.seek(at),
        }
        let file = &self.files[at];
        let attr = self.vfs.getattr(file.ino).expect("attr");
        assert_eq!(attr.size, file.bytes.len() as u64, "{}", file.name);
    }

    fn write(&mut self, at: usize) {
        let offset = place(&mut self.rng, SIZE_MAX);
        let length = length(&mut self.rng).min(SIZE_MAX - offset);
        let salt = self.rng.next_u64() as u8;
        let data: Vec<u8> = (0..length).map(|at| (at / 7) as u8 ^ salt).collect();
        let file = &mut self.files[at];
        let count = self.vfs.write(file.handle, offset as u64, &data).expect("there is room");
        assert_eq!(count, length);
        fill(&mut file.bytes, offset, offset + length, |at| data[at - offset]);
    }

    fn append(&mut self, at: usize) {
        let file = &mut self.files[at];
        let length = length(&mut self.rng).min(SIZE_MAX - file.bytes.len());
        let salt = self.rng.next_u64() as u8;
        let data: Vec<u8> = (0..length).map(|at| (at / 5) as u8 ^ salt).collect();
        let flags = OpenFlags { append: true, ..RW };
        let handle = self.vfs.open(ROOT, file.ino, flags).expect("opened").handle;
        assert_eq!(self.vfs.write(handle, 0, &data).expect("there is room"), length);
        file.bytes.extend_from_slice(&data);
        self.vfs.release(handle);
    }

    fn read(&mut self, at: usize) {
        let offset = place(&mut self.rng, SIZE_MAX);
        let mut out = vec![0xee; length(&mut self.rng)];
        let file = &self.files[at];
        let count = self.vfs.read(file.handle, offset as u64, &mut out).expect("readable");
        let expected = file.bytes.get(offset..).unwrap_or(&[]);
        let expected = &expected[..expected.len().min(out.len())];
        assert_eq!(count, expected.len(), "{} at {offset}", file.name);
        same(&file.name, offset, &out[..count], expected);
    }

    fn truncate(&mut self, at: usize) {
        let size = if self.rng.one_in(4) { 0 } else { place(&mut self.rng, SIZE_MAX) };
        let file = &mut self.files[at];
        let handle = self.rng.one_in(2).then_some(file.handle);
        let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        self.vfs.setattr(ROOT, file.ino, handle, &change).expect("cut");
        file.bytes.resize(size, 0);
    }

    fn punch(&mut self, at: usize) {
        let start = place(&mut self.rng, SIZE_MAX);
        let end = (start + length(&mut self.rng)).min(SIZE_MAX).max(start + 1);
        let keep_size = self.rng.one_in(2);
        let mode = match self.rng.below(3) {
            0 => FallocateMode::ZeroRange { keep_size },
            1 => FallocateMode::Allocate { keep_size },
            _ => FallocateMode::PunchHole,
        };
        let file = &mut self.files[at];
        let size = file.bytes.len();
        let done = self.vfs.fallocate(file.handle, start as u64..end as u64, mode);
        if mode != FallocateMode::PunchHole && keep_size && end > size {
            let refused = done.expect_err("no space is kept beyond the end");
            assert_eq!(refused.kind(), ErrorKind::NotSupported);
            return;
        }
        done.expect("punched");
        if !matches!(mode, FallocateMode::Allocate { .. }) && start < size {
            fill(&mut file.bytes, start, end.min(size), |_| 0);
        }
        if mode != FallocateMode::PunchHole && !keep_size {
            file.bytes.resize(size.max(end), 0);
        }
    }

    fn reopen(&mut self, at: usize) {
        let file = &mut self.files[at];
        self.vfs.release(file.handle);
        if self.rng.one_in(2) {
            self.vfs.forget(file.ino, 1);
            let entry = self.vfs.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("found");
            assert_eq!(entry.attr.ino, file.ino);
            assert_eq!(entry.attr.size, file.bytes.len() as u64);
        }
        file.handle = self.vfs.open(ROOT, file.ino, RW).expect("opened").handle;
        if self.rng.one_in(2) {
            self.vfs.pages_are_kept(file.handle);
        }
    }

    fn copy(&mut self, at: usize) {
        let other = (at + 1) % FILES;
        let (from, to) = (place(&mut self.rng, SIZE_MAX), place(&mut self.rng, SIZE_MAX));
        let length = length(&mut self.rng).min(SIZE_MAX - to);
        let source = (self.files[other].handle, from as u64);
        let target = (self.files[at].handle, to as u64);
        let count = self.vfs.copy_range(source, target, length as u64).expect("copied") as usize;
        let bytes = self.files[other].bytes.get(from..).unwrap_or(&[]);
        let bytes = bytes[..bytes.len().min(length)].to_vec();
        assert_eq!(count, bytes.len());
        if count > 0 {
            fill(&mut self.files[at].bytes, to, to + count, |at| bytes[at - to]);
        }
    }

    fn seek(&mut self, at: usize) {
        let offset = place(&mut self.rng, SIZE_MAX);
        let file = &self.files[at];
        let zero = |range: &[u8]| range.iter().all(|byte| *byte == 0);
        match self.vfs.seek(file.handle, offset as u64, SeekFor::Data) {
            Ok(data) => {
                let data = data as usize;
                assert!(data >= offset && data < file.bytes.len());
                assert!(zero(&file.bytes[offset..data]), "data was skipped");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoDevice);
                assert!(zero(file.bytes.get(offset..).unwrap_or(&[])), "data was not found");
            }
        }
        match self.vfs.seek(file.handle, offset as u64, SeekFor::Hole) {
            Ok(hole) => {
                let hole = hole as usize;
                assert!(hole >= offset && hole <= file.bytes.len());
                let end = (hole / BLOCK + 1) * BLOCK;
                let rest = &file.bytes[hole..end.min(file.bytes.len())];
                assert!(zero(rest), "a hole with data in it");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoDevice);
                assert!(offset >= file.bytes.len());
            }
        }
    }

    fn verify(&self) {
        for file in &self.files {
            let mut out = vec![0xee; file.bytes.len() + 1];
            let count = self.vfs.read(file.handle, 0, &mut out).expect("readable");
            assert_eq!(count, file.bytes.len(), "{}", file.name);
            same(&file.name, 0, &out[..count], &file.bytes);
        }
    }

    /// Opens everything again on another client.
    fn moved_to(mut self, vfs: &Mounted) -> Worker {
        for file in &mut self.files {
            let entry = vfs.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("found");
            assert_eq!(entry.attr.size, file.bytes.len() as u64, "{}", file.name);
            file.handle = vfs.open(ROOT, entry.attr.ino, RW).expect("opened").handle;
        }
        self.vfs = Arc::clone(&vfs.vfs);
        self
    }
}

/// Asserts equality without printing megabytes.
pub(crate) fn same(name: &str, offset: usize, found: &[u8], expected: &[u8]) {
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        let (found, expected) = (found[at], expected[at]);
        panic!("{name} differs at {}: {found} instead of {expected}", offset + at);
    }
}

/// What happens to the NSDs while the threads work.
#[derive(Clone, Copy, PartialEq)]
enum Disturbance {
    None,
    /// One vanishes and returns, over and over.
    Flapping,
}

fn run(seed: u64, code: &str, away: u32, threads: usize, steps: usize, disturbance: Disturbance) {
    println!("seed {seed} code {code} away {away:b} threads {threads}");
    let mut rig = Rig::new(code, 10);
    // Every second time blocks go on in each other's memory instead of being evicted.
    let is_slow = seed % 2 == 1;
    if is_slow {
        rig.settings.page_pool = ByteCount::mib(512);
    }
    if seed / 2 % 2 == 1 {
        rig.settings.patches = Patches::Always;
    }
    let start = || {
        let vfs = rig.start(away);
        vfs.mount.page_pool.assume_memory(is_slow);
        vfs
    };
    let mut vfs = start();
    let mut workers: Vec<Worker> =
        (0..threads).map(|thread| Worker::new(&vfs, seed, thread)).collect();
    for round in 0..3u64 {
        strake_env::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(move || (0..steps).for_each(|_| worker.step()));
            }
            if disturbance == Disturbance::Flapping {
                let nsd = (seed + round) as usize % 10;
                for _ in 0..3 {
                    rig.nsds[nsd].set_down(true);
                    strake_env::thread::yield_now();
                    vfs.sync().expect("degraded");
                    rig.nsds[nsd].set_down(false);
                    vfs.manager.recover_nsds();
                }
            }
        });
        workers.iter().for_each(Worker::verify);
        vfs.manager.recover_nsds();
        vfs.shutdown().expect("ended");
        vfs = start();
        workers = workers.into_iter().map(|worker| worker.moved_to(&vfs)).collect();
        workers.iter().for_each(Worker::verify);
    }
    vfs.shutdown().expect("ended");
    println!("{:?}: {} strips patched", rig.settings.patches, rig.patches());
    let page_pool = vfs.view().page_pool;
    assert_eq!(page_pool.dirty, 0, "everything is stable");
    if away == 0 && disturbance == Disturbance::None {
        let files = workers.iter().flat_map(|worker| &worker.files);
        files.for_each(|file| assert_whole(&vfs, file.ino, &file.name));
    }
    if away == 0 {
        let unready =
            vfs.array().nsds().iter().filter(|nsd| !nsd.state.availability.readable()).count();
        assert!(unready == 0 || disturbance != Disturbance::None);
    }
    drop(workers);
}

#[test]
fn one_thread_agrees_with_the_model() {
    for seed in strake_env::rng::test_seeds(1, 5) {
        for code in ["1", "2x", "4+2p", "8+2p"] {
            run(seed, code, 0, 1, 120, Disturbance::None);
        }
    }
}

#[test]
fn several_threads_agree_with_their_models() {
    for seed in strake_env::rng::test_seeds(10, 3) {
        for code in ["1", "4+2p"] {
            run(seed, code, 0, 4, 100, Disturbance::None);
        }
    }
}

#[test]
fn with_nsds_away_from_the_start_all_agree_with_the_model() {
    for seed in strake_env::rng::test_seeds(20, 3) {
        for (code, away) in [("2x", 0b10), ("4+2p", 0b1001), ("8+2p", 0b1_0000_0100)] {
            run(seed, code, away, 2, 100, Disturbance::None);
        }
    }
}

#[test]
fn with_nsds_that_vanish_and_return_all_agree_with_the_model() {
    for seed in strake_env::rng::test_seeds(30, 4) {
        for code in ["2x", "4+2p", "8+2p"] {
            run(seed, code, 0, 2, 80, Disturbance::Flapping);
        }
    }
}

#[test]
fn names_of_slots_are_those_of_the_rig() {
    let rig = Rig::new("1", 3);
    let vfs = rig.start(0b100);
    let slots: Vec<SlotIndex> = vfs.array().nsds().iter().map(|nsd| nsd.slot).collect();
    assert_eq!(slots, [SlotIndex(0), SlotIndex(1), SlotIndex(2)]);
    assert!(!vfs.array().nsds()[2].state.availability.readable());
    vfs.shutdown().expect("ended");
}
