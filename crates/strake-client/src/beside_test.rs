//! Several mounts that write one file at the same time.
//!
//! The expected contents are kept block by block. A writer holds the blocks that it writes, and
//! holds shared that nobody looks at the whole; so mounts write different blocks at the same time,
//! and each outcome is exact all the same.

use crate::StrakeVfs;
use crate::coherence_test::{World, client};
use crate::data::of::Of;
use crate::differential_test::{fill, length, place};
use crate::flush::sync::sync_all;
use crate::memory::file::{Content, Gains};
use crate::testing::{BLOCK_SIZE, Rig, assert_whole, send_block};
use crate::vfs::{FallocateMode, Handle, OpenFlags, SetAttr, Vfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::sync::{Mutex, RwLock};
use strake_env::thread;
use strake_proto::{BlockIndex, Caller, Ino, Timestamp};
use strake_token::Mode;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const BLOCK: usize = BLOCK_SIZE as usize;
const BLOCKS: usize = 12;
const SIZE_MAX: usize = BLOCKS * BLOCK;
/// Of the records that programs interleave in one file: no part of a block, nor of a unit.
const RECORD: usize = 47_008;

/// A file, a handle of it on each mount, and what it should be.
struct Whole {
    ino: Ino,
    handles: Vec<Handle>,
    /// Shared by those who write blocks.
    gate: RwLock<()>,
    /// The bytes of each block, as far as they were ever written.
    blocks: Vec<Mutex<Vec<u8>>>,
    size: AtomicU64,
    /// When the last write began.
    written: Mutex<Timestamp>,
    /// How often several mounts could write blocks at the same time.
    beside: AtomicU32,
}

impl Whole {
    fn new(world: &World, name: &str) -> Whole {
        let first = &world.mounts[0];
        let (entry, opened) =
            first.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true).expect("created");
        let ino = entry.attr.ino;
        let others = world.mounts[1..].iter().map(|mount| {
            mount.lookup(ROOT, Ino::ROOT, name.as_bytes()).expect("seen at once");
            mount.open(ROOT, ino, RW).expect("opened").handle
        });
        Whole {
            ino,
            handles: std::iter::once(opened.handle).chain(others).collect(),
            gate: RwLock::new(()),
            blocks: (0..BLOCKS).map(|_| Mutex::default()).collect(),
            size: AtomicU64::new(0),
            written: Mutex::default(),
            beside: AtomicU32::new(0),
        }
    }

    fn step(&self, world: &World, at: usize, rng: &mut Rng) {
        match rng.below(60) {
            0 => self.look(world, rng),
            1 => self.append(world, at, rng),
            2 => self.truncate(world, at, rng),
            3 => self.punch(world, at, rng),
            4..=6 => self.read(world, at, rng),
            7..=9 => world.mounts[at].fsync(self.handles[at]).expect("synced"),
            10 => drop(world.mounts[at].sync().expect("synced")),
            _ => self.write_any(world, at, rng),
        }
    }

    fn write_any(&self, world: &World, at: usize, rng: &mut Rng) {
        let (offset, count) = match rng.below(3) {
            0 => (rng.index(SIZE_MAX / RECORD) * RECORD, RECORD),
            1 => (rng.index(BLOCKS) * BLOCK, BLOCK),
            _ => (place(rng, SIZE_MAX), length(rng)),
        };
        let count = count.min(SIZE_MAX - offset);
        let salt = rng.next_u64() as u8;
        let bytes: Vec<u8> = (0..count).map(|at| (at / 7) as u8 ^ salt).collect();
        self.write(world, at, offset, &bytes);
    }

    fn write(&self, world: &World, at: usize, offset: usize, bytes: &[u8]) {
        let _parts = self.gate.read();
        let first = offset / BLOCK;
        let end = (offset + bytes.len()).div_ceil(BLOCK);
        let mut blocks: Vec<_> = self.blocks[first..end].iter().map(|one| one.lock()).collect();
        let begun = world.rig.clock.wall();
        let vfs = &world.mounts[at];
        let count = vfs.write(self.handles[at], offset as u64, bytes).expect("there is room");
        assert_eq!(count, bytes.len());
        for (index, block) in (first..).zip(&mut blocks) {
            let start = index * BLOCK;
            let (from, to) = (offset.max(start), (offset + bytes.len()).min(start + BLOCK));
            fill(block, from - start, to - start, |within| bytes[start + within - offset]);
        }
        self.size.fetch_max((offset + bytes.len()) as u64, Ordering::AcqRel);
        let mut written = self.written.lock();
        *written = begun.max(*written);
        drop(written);
        let writing = world.tokens.iter().filter(|one| one.held(self.ino) == Some(Mode::Writing));
        self.beside.fetch_add(u32::from(writing.count() > 1), Ordering::Relaxed);
    }

    /// Reads a part of one block, while others are written.
    fn read(&self, world: &World, at: usize, rng: &mut Rng) {
        let _parts = self.gate.read();
        let (index, within) = (rng.index(BLOCKS), rng.index(BLOCK));
        let block = self.blocks[index].lock();
        let mut out = vec![0xee; (1 + rng.index(BLOCK)).min(BLOCK - within)];
        let offset = (index * BLOCK + within) as u64;
        let count = world.mounts[at].read(self.handles[at], offset, &mut out).expect("readable");
        let known = block.get(within..).unwrap_or(&[]);
        assert!(count >= known.len().min(out.len()), "block {index} is too short");
        for (at, byte) in out[..count].iter().enumerate() {
            let expected = known.get(at).copied().unwrap_or(0);
            assert_eq!(*byte, expected, "block {index} at {}", within + at);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in &self.blocks {
            let mut block = block.lock().clone();
            block.resize(BLOCK, 0);
            bytes.extend(block);
        }
        bytes.truncate(self.size.load(Ordering::Acquire) as usize);
        bytes
    }

    fn set_bytes(&self, bytes: &[u8]) {
        for (index, block) in self.blocks.iter().enumerate() {
            let start = (index * BLOCK).min(bytes.len());
            *block.lock() = bytes[start..(start + BLOCK).min(bytes.len())].to_vec();
        }
        self.size.store(bytes.len() as u64, Ordering::Release);
    }

    /// Looks at all of it from one mount, while nobody writes.
    fn look(&self, world: &World, rng: &mut Rng) {
        let _whole = self.gate.write();
        let at = rng.index(world.mounts.len());
        if rng.one_in(2) {
            let attr = world.mounts[at].getattr(self.ino).expect("attributes");
            assert_eq!(attr.size, self.size.load(Ordering::Acquire), "size on mount {at}");
            let written = *self.written.lock();
            assert!(attr.mtime >= written, "{:?} is before {written:?}", attr.mtime);
        }
        self.verify(&world.mounts[at], self.handles[at], &format!("mount {at}"));
    }

    fn verify(&self, vfs: &StrakeVfs, handle: Handle, context: &str) {
        let bytes = self.bytes();
        let mut out = vec![0xee; SIZE_MAX + 1];
        let count = vfs.read(handle, 0, &mut out).expect("readable");
        let wrong = (0..count.min(bytes.len())).find(|at| out[*at] != bytes[*at]);
        assert_eq!((count, wrong), (bytes.len(), None), "{context}: length, first wrong byte");
    }

    fn append(&self, world: &World, at: usize, rng: &mut Rng) {
        let _whole = self.gate.write();
        let mut bytes = self.bytes();
        let more = vec![rng.next_u64() as u8; length(rng).min(SIZE_MAX - bytes.len())];
        let (vfs, flags) = (&world.mounts[at], OpenFlags { append: true, ..RW });
        let handle = vfs.open(ROOT, self.ino, flags).expect("opened").handle;
        assert_eq!(vfs.write(handle, 0, &more).expect("there is room"), more.len());
        vfs.release(handle);
        bytes.extend(more);
        self.set_bytes(&bytes);
    }

    fn truncate(&self, world: &World, at: usize, rng: &mut Rng) {
        let _whole = self.gate.write();
        let mut bytes = self.bytes();
        let size = if rng.one_in(6) { 0 } else { place(rng, SIZE_MAX) };
        let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        world.mounts[at].setattr(ROOT, self.ino, None, &change).expect("cut");
        bytes.resize(size, 0);
        self.set_bytes(&bytes);
    }

    fn punch(&self, world: &World, at: usize, rng: &mut Rng) {
        let _whole = self.gate.write();
        let mut bytes = self.bytes();
        let start = place(rng, SIZE_MAX);
        let end = (start + length(rng)).min(SIZE_MAX).max(start + 1);
        let range = start as u64..end as u64;
        let punched = world.mounts[at].fallocate(self.handles[at], range, FallocateMode::PunchHole);
        punched.expect("punched");
        let size = bytes.len();
        if start < size {
            fill(&mut bytes, start, end.min(size), |_| 0);
        }
        self.set_bytes(&bytes);
    }

    /// Compares the files with those that a lone mount finds after all mounts have ended.
    fn verify_alone(&self, rig: &Rig) {
        let alone = rig.start(0);
        let handle = alone.open(ROOT, self.ino, RW).expect("opened").handle;
        self.verify(&alone.vfs, handle, "after all mounts have ended");
        assert_whole(&alone.vfs, self.ino, "after all mounts have ended");
        let mount = &alone.vfs.mount;
        let inode = mount.table.pin(self.ino);
        let file = mount.file(&inode).expect("a file");
        if let Content::Object(layout) = &*file.content.read() {
            let of = Of { mount, inode: &inode, file: &file };
            let all = (BlockIndex(0), BlockIndex::END);
            let stored = of.stable_bytes(layout, all, &Gains::default()).expect("listed");
            let attr = alone.getattr(self.ino).expect("attributes");
            assert_eq!(attr.allocated as i64, stored, "allocated bytes");
        }
        alone.release(handle);
        alone.shutdown().expect("ends");
    }
}

fn steps() -> u64 {
    std::env::var("STRAKE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

fn seed() -> u64 {
    let seed = std::env::var("STRAKE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("STRAKE_SEED={seed}");
    seed
}

/// Notes an end, also after a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn all_write(code: &str, nsds: u16, seed: u64, leaders: u32, syncs: bool) {
    let world = World::new(code, nsds);
    let whole = Whole::new(&world, "whole");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for mount in world.mounts.iter().filter(|_| syncs) {
            let ended = &ended;
            scope.spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    sync_all(&mount.mount).expect("synced");
                }
            });
        }
        let writers: Vec<_> = (0..2 * world.mounts.len())
            .map(|number| {
                let (whole, world, ended) = (&whole, &world, &ended);
                scope.spawn(move || {
                    let ended = Ended(ended);
                    let mut rng = Rng::new(seed * 100 + number as u64);
                    for _ in 0..steps() {
                        whole.step(world, number / 2, &mut rng);
                    }
                    std::mem::forget(ended);
                })
            })
            .collect();
        for _ in 0..leaders {
            world.rig.clock.sleep(Duration::from_millis(50));
            world.change_leader();
        }
        let _ended = Ended(&ended);
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    });
    let beside = whole.beside.load(Ordering::Relaxed);
    println!("{code}: {beside} of {} steps beside others", 6 * steps());
    assert!(beside > 0, "the mounts have only taken turns");
    let rig = world.end();
    whole.verify_alone(&rig);
}

#[test]
fn mounts_write_one_file_at_the_same_time() {
    let seed = seed();
    all_write("1", 1, seed, 0, false);
    all_write("4+1p", 5, seed + 1, 0, false);
    all_write("2x", 3, seed + 2, 0, false);
}

#[test]
fn mounts_write_one_file_while_all_is_synced() {
    all_write("1", 1, seed(), 0, true);
}

#[test]
fn mounts_write_one_file_through_changes_of_the_leader() {
    all_write("1", 1, seed(), 10, false);
}

/// The newest grant that a write to a block would go by, if the mount writes beside others.
fn newest(vfs: &StrakeVfs, ino: Ino, block: usize) -> Option<u64> {
    let tokens = vfs.mount.take_to_write(ino, (block * BLOCK) as u64, 1).expect("granted");
    tokens.beside().map(|number| number.0)
}

#[test]
fn writers_of_two_halves_ask_for_nothing() {
    let world = World::new("2x", 3);
    let whole = Whole::new(&world, "halves");
    whole.write(&world, 2, 0, &vec![1; SIZE_MAX]);
    let half = BLOCKS / 2;
    let write = |round: u8| {
        for block in 0..half {
            whole.write(&world, 0, block * BLOCK + 100, &[round; 5000]);
            whole.write(&world, 1, (block + half) * BLOCK + 100, &[round; 5000]);
        }
    };
    write(2);
    write(3);
    let before = [0, 1].map(|at| newest(&world.mounts[at], whole.ino, at * half));
    assert!(before.iter().all(Option::is_some), "{before:?}");
    (4..20).for_each(write);
    let after = [0, 1].map(|at| newest(&world.mounts[at], whole.ino, at * half));
    assert_eq!(before, after, "nothing was granted meanwhile");
    whole.look(&world, &mut Rng::new(1));
    // A mount that is alone again has the whole file after its next look.
    let attr = world.mounts[0].getattr(whole.ino).expect("attributes");
    assert_eq!(attr.size, SIZE_MAX as u64);
    write_alone(&world, &whole);
    let rig = world.end();
    whole.verify_alone(&rig);
}

fn write_alone(world: &World, whole: &Whole) {
    whole.write(world, 0, 0, &[9; 100]);
    assert_eq!(world.tokens[0].held(whole.ino), Some(Mode::Exclusive));
}

#[test]
fn a_lone_writer_has_the_file_to_itself() {
    let world = World::new("1", 1);
    let whole = Whole::new(&world, "lone");
    for block in 0..BLOCKS {
        whole.write(&world, 1, block * BLOCK, &[7; BLOCK]);
        assert_eq!(world.tokens[1].held(whole.ino), Some(Mode::Exclusive));
    }
    whole.look(&world, &mut Rng::new(1));
    world.end();
}

/// A file whose bytes are in the inode is written by one mount at a time.
#[test]
fn a_small_file_is_not_written_beside_others() {
    let world = World::new("1", 1);
    let whole = Whole::new(&world, "small");
    for round in 0..20 {
        let at = usize::from(round) % world.mounts.len();
        whole.write(&world, at, usize::from(round) * 10, &[round; 10]);
        assert_eq!(world.tokens[at].held(whole.ino), Some(Mode::Exclusive));
    }
    whole.look(&world, &mut Rng::new(1));
    world.end();
}

/// Each end of the file is raised by a mount that does not have its last block.
#[test]
fn the_end_is_zero_where_others_raise_it() {
    let world = World::new("2x", 3);
    for round in 0..6 {
        let whole = Whole::new(&world, &format!("end-{round}"));
        // The bytes that a cut leaves in the last block are stale.
        whole.write(&world, 0, 0, &vec![0xaa; 3 * BLOCK]);
        world.mounts[0].fsync(whole.handles[0]).expect("synced");
        let cut = SetAttr { size: Some(BLOCK as u64 + 1000), ..SetAttr::default() };
        world.mounts[0].setattr(ROOT, whole.ino, None, &cut).expect("cut");
        let mut bytes = whole.bytes();
        bytes.truncate(BLOCK + 1000);
        whole.set_bytes(&bytes);
        whole.write(&world, 0, 0, &[1; 100]);
        // The next one has other blocks only, and makes the file longer.
        whole.write(&world, 1, (4 + round) * BLOCK, &[2; 100]);
        whole.write(&world, 0, 10, &[3; 100]);
        assert!(whole.beside.load(Ordering::Relaxed) > 0);
        whole.look(&world, &mut Rng::new(round as u64));
    }
    world.end();
}

/// A mount dies that writes beside others. What it synced is there, and so is all of the others.
#[test]
fn a_mount_that_dies_beside_others_takes_nothing_along() {
    for seed in strake_env::rng::test_seeds(0, 8) {
        let (mut world, crew) = World::with_crew("2x", 3);
        let whole = Whole::new(&world, "whole");
        let mut rng = Rng::new(seed);
        for block in 0..BLOCKS {
            whole.write(&world, block % 3, block * BLOCK, &[block as u8; BLOCK]);
        }
        for at in 0..world.mounts.len() {
            world.mounts[at].fsync(whole.handles[at]).expect("synced");
        }
        // It writes more, and sends some of that.
        let mut dying: Vec<usize> = Vec::new();
        for _ in 0..4 {
            let block = 3 * rng.index(BLOCKS / 3);
            let within = rng.index(BLOCK - 9000);
            let offset = (block * BLOCK + within) as u64;
            let late = [0xee; 9000];
            world.mounts[0].write(whole.handles[0], offset, &late).expect("there is room");
            dying.push(block);
            if rng.one_in(2) {
                send_block(&world.mounts[0], whole.ino, block as u64);
            }
        }
        assert_eq!(world.tokens[0].held(whole.ino), Some(Mode::Writing));
        drop((world.mounts.remove(0), world.tokens.remove(0)));
        let (done, handles) = (AtomicBool::new(false), &whole.handles[1..]);
        thread::scope(|scope| {
            for (at, mount) in world.mounts.iter().enumerate() {
                let (whole, done) = (&whole, &done);
                scope.spawn(move || go_on(whole, mount, handles[at], at + 1, done));
            }
            let _done = Ended(&done);
            world.rig.clock.sleep(Duration::from_millis(rng.below(20)));
            crew.bury(client(0));
        });
        for (at, mount) in world.mounts.iter().enumerate() {
            let mut out = vec![0; SIZE_MAX + 1];
            let count = mount.read(handles[at], 0, &mut out).expect("readable");
            assert_eq!(count, SIZE_MAX, "seed {seed}");
            for (index, block) in whole.blocks.iter().enumerate() {
                let (block, found) = (block.lock(), &out[index * BLOCK..(index + 1) * BLOCK]);
                let is_right = |at: usize| {
                    found[at] == block[at] || (dying.contains(&index) && found[at] == 0xee)
                };
                let wrong = (0..BLOCK).find(|at| !is_right(*at));
                assert_eq!(wrong, None, "seed {seed}: block {index}");
            }
        }
        assert_whole(&world.mounts[0], whole.ino, &format!("seed {seed}"));
        for (at, mount) in world.mounts.iter().enumerate() {
            mount.shutdown().expect("ends");
            world.leader.service().gone(client(at + 1));
        }
        crew.end();
    }
}

/// Writes its own blocks until it is done.
fn go_on(whole: &Whole, mount: &Arc<StrakeVfs>, handle: Handle, own: usize, done: &AtomicBool) {
    let mut round = 0_u8;
    while !done.load(Ordering::Acquire) {
        round = round.wrapping_add(1);
        for index in (own..BLOCKS).step_by(3) {
            let mut block = whole.blocks[index].lock();
            let bytes = vec![round ^ index as u8; BLOCK / 2];
            let offset = (index * BLOCK) as u64;
            assert_eq!(mount.write(handle, offset, &bytes).expect("there is room"), bytes.len());
            block[..BLOCK / 2].copy_from_slice(&bytes);
        }
    }
}
