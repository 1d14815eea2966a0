//! Bad and missing strips that a mount meets beside others. Any reader mends a bad one. A block
//! that needs a new version is written by the mount that holds the file alone.

use crate::StrakeVfs;
use crate::coherence_test::World;
use crate::memory::page_pool::Page;
use crate::testing::{BLOCK_SIZE, assert_whole};
use crate::vfs::{Handle, OpenFlags, Vfs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::{Rng, thread};
use strake_proto::{BlockIndex, Caller, Ino, ObjectId, Version};
use strake_token::Mode;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const READ: OpenFlags = OpenFlags { write: false, ..RW };
const BLOCK: usize = BLOCK_SIZE as usize;
/// So that a test that fails ends.
const WAIT_MAX: Duration = Duration::from_secs(20);
const CODES: [(&str, u16); 3] = [("2x", 2), ("4+1p", 5), ("4+2p", 6)];

/// A file of some blocks that the first mount has written and closed, and the others read.
struct Shared {
    world: World,
    ino: Ino,
    object: ObjectId,
    bytes: Vec<u8>,
    /// Of the second and the third mount.
    handles: [Handle; 2],
}

impl Shared {
    fn new(code: &str, nsds: u16, blocks: usize) -> Shared {
        let world = World::new(code, nsds);
        let writer = &world.mounts[0];
        let (entry, opened) =
            writer.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
        let bytes: Vec<u8> = (0..blocks * BLOCK).map(|at| (at / 13) as u8).collect();
        writer.write(opened.handle, 0, &bytes).expect("there is room");
        writer.fsync(opened.handle).expect("synced");
        writer.release(opened.handle);
        let ino = entry.attr.ino;
        let handles = [1, 2].map(|at| {
            let mount = &world.mounts[at];
            mount.lookup(ROOT, Ino::ROOT, b"f").expect("seen");
            mount.open(ROOT, ino, READ).expect("opened").handle
        });
        let objects = world.rig.nsds[0].objects();
        let object = *objects.first().expect("one");
        assert_eq!(objects.len(), 1);
        Shared { world, ino, object, bytes, handles }
    }

    fn read(&self, reader: usize, block: usize) {
        let mut out = vec![0; BLOCK];
        let (mount, offset) = (&self.world.mounts[1 + reader], block * BLOCK);
        let count = mount.read(self.handles[reader], offset as u64, &mut out).expect("readable");
        assert_eq!(count, BLOCK);
        assert!(out == self.bytes[offset..offset + BLOCK], "reader {reader}, block {block}");
    }

    fn version(&self, block: usize, strip: u8) -> Option<Version> {
        let of = |nsd: &std::sync::Arc<strake_testing::MemoryNsd>| {
            nsd.version(self.object, BlockIndex(block as u64), strip)
        };
        self.world.rig.nsds.iter().find_map(of)
    }

    fn held(&self) -> [Option<Mode>; 2] {
        [1, 2].map(|at| self.world.tokens[at].held(self.ino))
    }

    fn spoil(&self, block: usize, strip: u8) {
        let block = BlockIndex(block as u64);
        let hit =
            self.world.rig.nsds.iter().filter(|nsd| nsd.flip_bit(self.object, block, strip, 4097));
        assert_eq!(hit.count(), 1);
    }

    fn mended(&self) -> u64 {
        self.world.rig.nsds.iter().map(|nsd| nsd.mended()).sum()
    }
}

#[test]
fn readers_that_share_a_file_mend_what_is_bad_and_keep_sharing_it() {
    for (code, nsds) in CODES {
        let strips = if code == "2x" { 1 } else { 4 };
        let shared = Shared::new(code, nsds, strips);
        // All before the first read, because blocks are read ahead.
        let spoiled = (0..strips).map(|block| {
            shared.spoil(block, block as u8);
            shared.version(block, block as u8)
        });
        let before: Vec<Option<Version>> = spoiled.collect();
        for block in 0..strips {
            // Both meet it at the same time.
            thread::scope(|scope| {
                for reader in 0..2 {
                    let shared = &shared;
                    scope.spawn(move || shared.read(reader, block));
                }
            });
        }
        let after = (0..strips).map(|block| shared.version(block, block as u8));
        assert!(after.eq(before), "{code}");
        assert_eq!(shared.held(), [Some(Mode::Shared); 2], "{code}: nobody gave anything up");
        assert_eq!(shared.mended(), strips as u64, "{code}");
        assert_whole(&shared.world.mounts[1], shared.ino, code);
        shared.world.end();
    }
}

#[test]
fn a_block_that_needs_a_new_version_is_written_by_who_holds_the_file_alone() {
    for (code, nsds) in CODES {
        for copies in [false, true] {
            let shared = Shared::new(code, nsds, 2);
            shared.read(0, 0);
            shared.read(1, 0);
            assert_eq!(shared.held(), [Some(Mode::Shared); 2]);
            let (block, strip) = (BlockIndex(1), 0);
            let before = shared.version(1, strip);
            let lost = shared
                .world
                .rig
                .nsds
                .iter()
                .filter(|nsd| nsd.lose_strip(shared.object, block, strip));
            assert_eq!(lost.count(), 1);
            if copies {
                let mount = &shared.world.mounts[1];
                let (_, copy) =
                    mount.create(ROOT, Ino::ROOT, b"copy", 0o644, RW, true).expect("created");
                let source = (shared.handles[0], BLOCK as u64);
                let copied = mount.copy_range(source, (copy.handle, 0), BLOCK as u64);
                assert_eq!(copied.expect("copied"), BLOCK as u64);
                let mut out = vec![0; BLOCK];
                mount.read(copy.handle, 0, &mut out).expect("readable");
                assert!(out == shared.bytes[BLOCK..], "{code}");
            } else {
                shared.read(0, 1);
            }
            assert_eq!(shared.held(), [Some(Mode::Exclusive), None], "{code}, copies: {copies}");
            assert!(shared.version(1, strip) > before, "{code}: written anew");
            shared.read(1, 1);
            assert_whole(&shared.world.mounts[2], shared.ino, code);
            shared.world.end();
        }
    }
}

/// A mount writes a block without pause, and another one mends it by reading. A read shows what one
/// write made, and never anything older than before.
#[test]
fn a_block_that_one_mount_writes_is_mended_by_another_that_reads_it() {
    const ROUNDS: u8 = 120;
    for (code, nsds) in CODES {
        let shared = Shared::new(code, nsds, 1);
        let writer = &shared.world.mounts[0];
        let handle = writer.open(ROOT, shared.ino, RW).expect("opened").handle;
        writer.write(handle, 0, &vec![0; BLOCK]).expect("there is room");
        writer.fsync(handle).expect("synced");
        let is_on = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| read_on(&shared, &is_on));
            for round in 1..=ROUNDS {
                writer.write(handle, 0, &vec![round; BLOCK]).expect("there is room");
                if round % 3 == 0 {
                    writer.fsync(handle).expect("synced");
                }
            }
            // The reader meets strips that go bad while the writer pauses, too.
            let (before, clock) = (shared.mended(), &shared.world.rig.clock);
            let end = clock.monotonic() + WAIT_MAX;
            while shared.mended() < before + 3 && clock.monotonic() < end {
                thread::yield_now();
            }
            is_on.store(false, Ordering::Release);
            assert!(shared.mended() >= before + 3, "{code}: the reader mends nothing");
        });
        let mut out = vec![0; BLOCK];
        let reader: &StrakeVfs = &shared.world.mounts[2];
        reader.read(shared.handles[1], 0, &mut out).expect("readable");
        assert!(out == vec![ROUNDS; BLOCK], "{code}: the last round");
        writer.release(handle);
        shared.world.end();
    }
}

/// Spoils one strip again and again, and reads the block with nothing of it in memory.
fn read_on(shared: &Shared, is_on: &AtomicBool) {
    let mount = &shared.world.mounts[1];
    let (mut least, mut rng) = (0, Rng::new(1));
    while is_on.load(Ordering::Acquire) {
        for nsd in &shared.world.rig.nsds {
            nsd.flip_bit(shared.object, BlockIndex(0), 0, rng.index(BLOCK));
        }
        let inode = mount.mount.table.pin(shared.ino);
        let mut out = vec![0; BLOCK];
        mount.read(shared.handles[0], 0, &mut out).expect("readable");
        assert!(out.iter().all(|byte| *byte == out[0]), "of one write");
        assert!(out[0] >= least, "{} after {least}", out[0]);
        least = out[0];
        let file = inode.core.lock().file.clone();
        let block = file.and_then(|file| file.find_block(0));
        if let Some(buffer) = block.and_then(|block| block.take_clean()) {
            mount.mount.page_pool.release(buffer);
        }
    }
}
