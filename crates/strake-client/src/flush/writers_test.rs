//! Blocks on their way to the disks: which thread sends them, when, and what of them is in memory
//! meanwhile.

use super::*;
use crate::block_io::send::flush_block;
use crate::memory::page_pool::Fill;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, lookup, open, pattern, read, write};
use std::time::Duration;
use strake_env::Rng;
use strake_proto::{ByteCount, Caller, Ino};
use strake_testing::memory_nsd::Faults;

/// A writer that sends the block again and writes to it again whenever another thread could.
#[test]
fn a_sender_that_always_comes_too_late_is_done_when_another_has_sent() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.write_cache_threshold = ByteCount(0);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let mut round = 0;
    let mut put = || {
        round += 1;
        write(&vfs, handle, 0, &pattern(20_000, round));
    };
    put();
    let index = file.dirty_blocks()[0];
    let block = file.find_block(index).expect("just written");
    flush_block(&vfs.mount, &inode, &file, &block).expect("accepted");
    put();
    let mut between = || {
        flush_block(&vfs.mount, &inode, &file, &block).expect("sent by the writer");
        put();
    };
    flush_block_with(&vfs.mount, &inode, &file, &block, None, &mut between).expect("all was sent");
    assert_eq!(round, 3, "it took the writer one more turn");
    vfs.fsync(handle).expect("synced");
    assert!(read(&vfs, handle, 0, 20_000) == pattern(20_000, 3));
    drop((file, inode));
    vfs.shutdown().expect("ended");
}

/// The queued job of a block that `fsync` has sent comes late, after another small write.
#[test]
fn a_job_that_comes_late_leaves_what_was_written_since() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
    let file = vfs.mount.file(&inode).expect("a file");
    write(&vfs, handle, 0, &pattern(20_000, 1));
    let block = file.find_block(0).expect("just written");
    let late = |block: &Block| {
        block.queued.store(block.sends.load(Ordering::Acquire) + 1, Ordering::Release);
        let inode = vfs.mount.table.pin(inode.ino);
        Job::new(inode, Arc::clone(&file), 0)
    };
    let job = late(&block);
    flush_block(&vfs.mount, &inode, &file, &block).expect("accepted");
    vfs.fsync(handle).expect("synced");
    write(&vfs, handle, 5000, &pattern(100, 2));
    run(&vfs.mount, job);
    assert_eq!(file.dirty_blocks(), [0], "it was queued for what was sent before");
    run(&vfs.mount, late(&block));
    assert!(!file.has_dirty_blocks(), "one that was queued since is sent");
    drop((block, file, inode));
    vfs.shutdown().expect("ended");
}

/// Only the touched pages of a block that is written here and there take memory until it is sent.
/// It is then put together in a buffer that other blocks may have used.
#[test]
fn a_block_written_here_and_there_is_put_together_when_it_is_sent() {
    write_here_and_there(true);
}

#[test]
fn a_block_written_here_and_there_keeps_its_buffer_where_no_other_is_at_hand() {
    write_here_and_there(false);
}

fn write_here_and_there(is_at_hand: bool) {
    const BLOCK: usize = BLOCK_SIZE as usize;
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.page_pool = ByteCount::mib(64);
    rig.settings.write_cache_threshold = ByteCount(0);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let mut bytes = pattern(3 * BLOCK - 5000, 1);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &bytes);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    let handle = open(&vfs, "f").1;
    let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let found = |at| {
        let block = file.find_block(at).expect("in memory");
        let data = block.data.read();
        (data.is_sparse(), data.buffer.as_ref().map(|buffer| buffer.as_ptr()))
    };
    let buffers = || [1, 2].map(found);
    // Whole units and parts of units. The last one lies beyond the end, in the last block.
    let places = [100_000, BLOCK + 65_536, 2 * BLOCK + 20_000, 3 * BLOCK - 3000];
    let mut put = |seed| {
        for at in places {
            let part = pattern(4096, seed);
            write(&vfs, handle, at as u64, &part);
            bytes.resize(bytes.len().max(at + part.len()), 0);
            bytes[at..at + part.len()].copy_from_slice(&part);
            assert!(read(&vfs, handle, at as u64 - 50, 4000) == bytes[at - 50..at + 3950]);
        }
    };
    put(2);
    let before = buffers();
    assert!(before.iter().all(|(is_sparse, _)| *is_sparse));
    if is_at_hand {
        let page_pool = &vfs.mount.page_pool;
        let touched = [(); 3].map(|()| page_pool.allocate(BLOCK, Fill::Whole));
        touched.into_iter().for_each(|buffer| page_pool.release(buffer));
    }
    // While the other units cannot be read, what was written stays.
    let all_read = |read| {
        rig.nsds.iter().for_each(|nsd| {
            nsd.set_faults(Faults { read, ..Faults::default() });
        })
    };
    all_read(Some(ErrorKind::Corrupt));
    let block = file.find_block(1).expect("just written");
    assert!(flush_block(&vfs.mount, &inode, &file, &block).is_err());
    assert!(read(&vfs, handle, BLOCK as u64 + 65_536, 4096) == pattern(4096, 2));
    all_read(None);
    put(3);
    vfs.fsync(handle).expect("synced");
    for (before, (is_sparse, at)) in before.iter().zip(buffers()) {
        assert!(!is_sparse && (at != before.1) == is_at_hand);
    }
    put(4);
    drop((block, file, inode));
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    assert!(read(&vfs, open(&vfs, "f").1, 0, 4 * BLOCK) == bytes);
    vfs.shutdown().expect("ended");
}

/// The file `f` with these bytes on disks and none of them in memory. The pool has this many
/// blocks. Blocks are sent only when memory runs short.
fn stored(pool_blocks: u64, bytes: &[u8]) -> (Rig, Mounted) {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.page_pool = ByteCount(pool_blocks * u64::from(BLOCK_SIZE));
    rig.settings.write_cache_threshold = ByteCount(0);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, bytes);
    vfs.shutdown().expect("ended");
    drop(vfs);
    let vfs = rig.start(0);
    (rig, vfs)
}

/// The blocks are dirty, so what is read into them cannot be evicted until they are sent.
#[test]
fn reading_blocks_written_here_and_there_stays_within_the_pool() {
    const BLOCK: usize = BLOCK_SIZE as usize;
    const PARTS: usize = 22;
    let mut bytes = pattern((PARTS + 1) * BLOCK, 1);
    let (rig, vfs) = stored(16, &bytes);
    let handle = open(&vfs, "f").1;
    for at in 1..=PARTS {
        let from = at * BLOCK + 8192;
        write(&vfs, handle, from as u64, &pattern(4096, at as u8));
        bytes[from..from + 4096].copy_from_slice(&pattern(4096, at as u8));
    }
    // A thread that sends a block may exceed the budget by one block.
    let most = ((16 + rig.settings.flushers + 1) * BLOCK) as u64;
    for at in 0..=PARTS {
        let from = at * BLOCK;
        assert!(read(&vfs, handle, from as u64, BLOCK) == bytes[from..from + BLOCK]);
        let used = vfs.view().page_pool.used;
        assert!(used <= most, "{used} of {most} after block {at}");
    }
    vfs.shutdown().expect("ended");
}

/// The pool has eight blocks. More blocks than that wait for more writes to them.
#[test]
fn blocks_written_here_and_there_take_what_was_written() {
    const BLOCK: usize = BLOCK_SIZE as usize;
    const BLOCKS: usize = 24;
    let mut bytes = pattern(BLOCKS * BLOCK - 5000, 1);
    let (rig, vfs) = stored(8, &bytes);
    let (attr, handle) = open(&vfs, "f");
    let file = vfs.mount.file(&vfs.mount.table.pin(attr.ino)).expect("a file");
    for at in 1..11 {
        write(&vfs, handle, (at * BLOCK + 8192) as u64, &pattern(4096, at as u8));
    }
    let view = vfs.view().page_pool;
    assert_eq!((view.used, view.dirty), (640 << 10, 640 << 10), "{view:?}");
    assert_eq!(file.dirty_blocks(), (1..11).collect::<Vec<u64>>());
    for at in 1..11 {
        let from = at * BLOCK + 8192;
        bytes[from..from + 4096].copy_from_slice(&pattern(4096, at as u8));
    }
    for seed in strake_env::rng::test_seeds(1, 4) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        for _ in 0..1000 {
            let from = rng.index(bytes.len());
            let part = pattern(1 + rng.index(4096), rng.below(256) as u8);
            let part = &part[..part.len().min(bytes.len() - from)];
            write(&vfs, handle, from as u64, part);
            bytes[from..from + part.len()].copy_from_slice(part);
            let at = rng.index(bytes.len() - 9000);
            assert!(read(&vfs, handle, at as u64, 9000) == bytes[at..at + 9000]);
        }
        vfs.fsync(handle).expect("synced");
        assert_eq!(vfs.view().page_pool.dirty, 0);
    }
    drop(file);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 0, bytes.len() + 1) == bytes);
    write(&vfs, handle, 9 * BLOCK as u64 + 8192, &pattern(4096, 1));
    vfs.unlink(&Caller::ROOT, Ino::ROOT, b"f").expect("unlinked");
    vfs.release(handle);
    let view = vfs.view().page_pool;
    assert_eq!((view.used, view.dirty), (0, 0), "{view:?}");
    vfs.shutdown().expect("ended");
}

/// The first block of a file is no exception. Room is made for what is written to it, so its buffer
/// must not be exchanged for a larger one.
#[test]
fn a_first_block_written_here_and_there_has_its_whole_buffer() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let places = [BLOCK_SIZE as u64 / 3, BLOCK_SIZE as u64 / 2, BLOCK_SIZE as u64 - 100];
    for at in places {
        write(&vfs, handle, at, &pattern(100, at as u8));
        let block = file.find_block(0).expect("just written");
        let data = block.data.read();
        assert!(data.is_sparse() && data.capacity() == BLOCK_SIZE as usize);
    }
    vfs.fsync(handle).expect("synced");
    for at in places {
        assert!(read(&vfs, handle, at, 100) == pattern(100, at as u8));
    }
    vfs.mount.page_pool.check();
    drop((file, inode));
    vfs.shutdown().expect("ended");
}
