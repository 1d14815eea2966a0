//! Overwriting what is stored: it needs room only while it is sent, and is settled by the rounds
//! alone.

use crate::StrakeVfs;
use crate::testing::{BLOCK_SIZE, Mounted, Rig, send_block};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_proto::nsd::NsdRequest;
use strake_proto::{ByteCount, Ino};
use strake_testing::memory_nsd::Moment;

const BLOCK: u64 = BLOCK_SIZE as u64;
const UNIT: usize = 4096;
/// Blocks of the file: they fill half of the NSDs, and are several times what may be held.
const BLOCKS: u64 = 144;
/// Of each of the six NSDs.
const CAPACITY: u64 = 12 << 20;

/// Nothing is sent that no test asks for.
fn quiet_rig(code: &str) -> Rig {
    let mut rig = Rig::new(code, 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(256);
    rig.settings.write_cache_threshold = ByteCount(0);
    rig
}

/// Counts the strips that are written from now on.
fn count_writes(rig: &Rig) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    for nsd in &rig.nsds {
        let count = Arc::clone(&count);
        nsd.set_watch(Some(Arc::new(move |moment, request| {
            let writes = matches!(request, NsdRequest::Write { .. } | NsdRequest::Patch { .. });
            if moment == Moment::Before && writes {
                count.fetch_add(1, Ordering::AcqRel);
            }
        })));
    }
    count
}

/// Regression: each dirty block held room for all of itself, so that a few of them made a writer
/// send everything that was dirty.
#[test]
fn overwriting_more_blocks_than_there_is_room_for_sends_none_of_them() {
    for code in ["1", "2x"] {
        let rig = quiet_rig(code);
        rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
        let blocks = if code == "1" { BLOCKS } else { BLOCKS / 2 };
        let mut held = pattern((blocks * BLOCK) as usize, 1);
        let vfs = rig.start(0);
        let handle = create(&vfs, "f").1;
        write(&vfs, handle, 0, &held);
        vfs.shutdown().expect("ended");
        drop(vfs);
        let vfs = rig.start(0);
        let handle = open(&vfs, "f").1;
        let sent = count_writes(&rig);
        for turn in 0..2 {
            for index in 0..blocks {
                let at = (index * BLOCK) as usize + turn * UNIT;
                let bytes = pattern(UNIT, 7 + turn as u8);
                write(&vfs, handle, at as u64, &bytes);
                held[at..at + UNIT].copy_from_slice(&bytes);
            }
        }
        assert_eq!(sent.load(Ordering::Acquire), 0, "{code}: written to memory alone");
        vfs.fsync(handle).expect("each finds room when it is sent");
        assert!(sent.load(Ordering::Acquire) >= blocks, "{code}: sent");
        assert!(read(&vfs, handle, 0, held.len() + 1) == held, "{code}");
        vfs.shutdown().expect("ended");
        drop(vfs);
        rig.crash();
        let vfs = rig.start(0);
        assert!(read(&vfs, open(&vfs, "f").1, 0, held.len() + 1) == held, "{code}: durable");
        vfs.shutdown().expect("ended");
    }
}

/// What growth holds is there for it, however much is overwritten beside it.
#[test]
fn what_is_overwritten_leaves_growth_its_room() {
    let rig = quiet_rig("1");
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern((BLOCKS * BLOCK) as usize, 1));
    vfs.fsync(handle).expect("durable");
    let (_, other) = create(&vfs, "g");
    let mut grown = 0;
    for index in 0..BLOCKS {
        write(&vfs, handle, index * BLOCK, &pattern(UNIT, 2));
        let more = pattern(UNIT, 3);
        if vfs.write(other, grown, &more).is_ok_and(|count| count == UNIT) {
            grown += UNIT as u64;
        }
    }
    assert!(grown > 0);
    vfs.fsync(other).expect("what was accepted has its room");
    vfs.fsync(handle).expect("what was accepted has its room");
    assert!(
        read(&vfs, other, 0, grown as usize + 1) == pattern(UNIT, 3).repeat(grown as usize / UNIT)
    );
    vfs.shutdown().expect("ended");
}

fn round(vfs: &StrakeVfs) {
    vfs.mount.array.rounds.run(false).expect("a round");
}

/// A file of two blocks that are settled, and some bytes that are overwritten in the first.
fn overwritten(rig: &Rig) -> (Mounted, Ino) {
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(2 * BLOCK as usize, 1));
    vfs.fsync(handle).expect("durable");
    round(&vfs);
    assert_eq!((rig.unsettled(), kept(rig)), (0, 0));
    write(&vfs, handle, 5 * UNIT as u64, &pattern(UNIT, 2));
    (vfs, ino)
}

fn kept(rig: &Rig) -> usize {
    rig.nsds.iter().map(|nsd| nsd.kept()).sum()
}

#[test]
fn what_is_overwritten_is_settled_by_two_rounds_without_the_metadata() {
    let rig = quiet_rig("4+2p");
    let (vfs, ino) = overwritten(&rig);
    let changes = vfs.mount.array.meta.changes();
    send_block(&vfs, ino, 0);
    round(&vfs);
    assert!(kept(&rig) > 0, "stable, and its predecessor is there still");
    round(&vfs);
    assert_eq!((rig.unsettled(), kept(&rig)), (0, 0), "settled");
    assert_eq!(vfs.mount.array.meta.changes(), changes, "the metadata was told nothing");
    vfs.shutdown().expect("ended");
}

/// A block is settled after the metadata that names its bytes is durable, also where it was
/// overwritten before that: else a crash would leave strips beyond the end that nobody finds.
#[test]
fn what_overwrites_a_block_that_is_not_settled_waits_for_the_metadata_as_well() {
    let rig = quiet_rig("4+2p");
    let (vfs, ino) = overwritten(&rig);
    vfs.sync().expect("durable");
    let handle = open(&vfs, "f").1;
    write(&vfs, handle, 2 * BLOCK, &pattern(BLOCK as usize, 3));
    send_block(&vfs, ino, 2);
    round(&vfs);
    for seed in 4..6 {
        write(&vfs, handle, 2 * BLOCK, &pattern(UNIT, seed));
        send_block(&vfs, ino, 2);
        round(&vfs);
        round(&vfs);
    }
    let before = rig.nsds.iter().map(|nsd| nsd.strips()).sum::<usize>();
    rig.freeze();
    drop(vfs);
    rig.crash();
    rig.nsds.iter().for_each(|nsd| nsd.set_down(false));
    let vfs = rig.start(0);
    let after = rig.nsds.iter().map(|nsd| nsd.strips()).sum::<usize>();
    assert!(after < before, "what the metadata never heard of is deleted: {after} of {before}");
    assert_eq!(vfs.manager.check_strips().expect("checks").faults, Vec::<String>::new());
    vfs.shutdown().expect("ended");
}

/// A record that begins and ends within a unit. What it covers whole may be damaged.
#[test]
fn both_ends_of_a_record_are_read_at_once_and_damage_between_them_is_overwritten() {
    let rig = quiet_rig("1");
    let vfs = rig.start(0);
    let mut held = pattern(BLOCK as usize, 1);
    let handle = create(&vfs, "f").1;
    write(&vfs, handle, 0, &held);
    vfs.shutdown().expect("ended");
    drop(vfs);
    let vfs = rig.start(0);
    let handle = open(&vfs, "f").1;
    let reads = Arc::new(AtomicU64::new(0));
    for nsd in &rig.nsds {
        let reads = Arc::clone(&reads);
        nsd.set_watch(Some(Arc::new(move |moment, request| {
            let is_read = matches!(request, NsdRequest::Read { length, .. } if *length > 0);
            if moment == Moment::Before && is_read {
                reads.fetch_add(1, Ordering::AcqRel);
            }
        })));
    }
    let mut put = |at: usize, length: usize| {
        let bytes = pattern(length, at as u8);
        write(&vfs, handle, at as u64, &bytes);
        held[at..at + length].copy_from_slice(&bytes);
        reads.swap(0, Ordering::AcqRel)
    };
    assert_eq!(put(5000, 40_000), 1);
    assert_eq!(put(44_900, 100), 0, "its units are in memory");
    let object = strake_proto::ObjectId(1);
    let at = 25 * UNIT + 9;
    let hit =
        rig.nsds.iter().filter(|nsd| nsd.flip_bit(object, strake_proto::BlockIndex(0), 0, at));
    assert_eq!(hit.count(), 1);
    assert!(put(22 * UNIT + 100, 8 * UNIT) > 1);
    vfs.fsync(handle).expect("synced");
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    assert!(read(&vfs, open(&vfs, "f").1, 0, held.len() + 1) == held);
    vfs.shutdown().expect("ended");
}
