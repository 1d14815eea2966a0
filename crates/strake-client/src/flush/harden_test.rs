//! Tests which small synchronous writes are hardened, and what a power cut leaves of them.

use super::{SCATTERED_UNITS, harden};
use crate::testing::{BLOCK_SIZE, Mounted, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, lookup, open, pattern, read, write};
use std::time::Duration;
use strake_array::stripe_io::SendCounts;
use strake_proto::limits::HARDENED_UNITS_MAX;
use strake_proto::{ByteCount, Caller, Ino};

const BLOCK: usize = BLOCK_SIZE as usize;
const UNIT: usize = 4096;

/// Nothing is sent that no test asks for.
fn quiet_rig() -> Rig {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(256);
    rig
}

fn counts(vfs: &Mounted) -> SendCounts {
    vfs.array().io.send_counts()
}

/// A database makes and removes a journal with each transaction. Neither needs strips.
#[test]
fn the_first_fsync_of_a_new_file_is_hardened_and_names_its_object() {
    let rig = quiet_rig();
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let (_, gone) = create(&vfs, "gone");
    for (turn, handle) in [handle, gone, handle].into_iter().enumerate() {
        write(&vfs, handle, 512 * turn as u64, &pattern(9000, turn as u8));
        vfs.fsync(handle).expect("synced");
    }
    assert_eq!(counts(&vfs), SendCounts::default());
    vfs.unlink(&Caller::ROOT, Ino::ROOT, b"gone").expect("unlinked");
    vfs.release(gone);
    let expected = read(&vfs, handle, 0, 20_000);
    assert_eq!(expected.len(), 10_024);
    rig.freeze();
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    assert!(read(&vfs, open(&vfs, "f").1, 0, 20_000) == expected);
    vfs.shutdown().expect("ended");
    assert_eq!(rig.unsettled(), 0);
}

/// Two entries name the object and harden its bytes. A power cut may leave only the first one.
#[test]
fn a_file_that_outgrows_its_inode_keeps_what_was_synced_at_every_power_cut() {
    let (first, second) = (pattern(3000, 1), pattern(9000, 2));
    for (synced, more) in [(0, 0), (0, 1), (0, 2), (3000, 0), (3000, 1), (3000, 2)] {
        let context = format!("{synced} bytes synced, {more} entries more");
        let rig = quiet_rig();
        let vfs = rig.start(0);
        let (_, handle) = create(&vfs, "f");
        vfs.sync().expect("the name is durable");
        write(&vfs, handle, 0, &first);
        if synced > 0 {
            vfs.fsync(handle).expect("synced");
        }
        write(&vfs, handle, 3000, &second);
        // The reservation of the object becomes durable with the name otherwise.
        vfs.mount.array.meta.sync().expect("durable");
        let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
        let file = vfs.mount.file(&inode).expect("a file");
        let is_hardened = {
            let _one_at_a_time = inode.syncing.lock();
            harden(&vfs.mount, &inode, &file).expect("room")
        };
        assert_eq!(is_hardened, synced == 0, "{context}");
        drop((inode, file));
        rig.freeze();
        drop(vfs);
        rig.meta.crash(more);
        rig.nsds.iter().for_each(|nsd| nsd.crash());
        let vfs = rig.start(0);
        let found = read(&vfs, open(&vfs, "f").1, 0, 20_000);
        let has_all = is_hardened && more == 2;
        let expected =
            if has_all { [&first[..], &second].concat() } else { first[..synced].into() };
        assert!(found == expected, "{context}: {} bytes", found.len());
        vfs.shutdown().expect("ended");
    }
}

/// A virtual machine flushes after some dozens of writes here and there.
#[test]
fn more_than_the_threshold_is_hardened_if_it_is_scattered() {
    const BLOCKS: usize = 40;
    let rig = quiet_rig();
    let threshold = rig.settings.write_cache_threshold.0 as usize / UNIT;
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let mut expected = pattern(BLOCKS * BLOCK, 1);
    write(&vfs, handle, 0, &expected);
    vfs.fsync(handle).expect("synced");
    let before = counts(&vfs);
    let put = |blocks: usize, units: usize, salt: u8, expected: &mut [u8]| {
        for at in 0..blocks {
            let (from, bytes) = (at * BLOCK + 8192, pattern(units * UNIT, salt));
            write(&vfs, handle, from as u64, &bytes);
            expected[from..from + bytes.len()].copy_from_slice(&bytes);
        }
        vfs.fsync(handle).expect("synced");
    };
    put(BLOCKS, HARDENED_UNITS_MAX / BLOCKS, 2, &mut expected);
    put(threshold, SCATTERED_UNITS, 3, &mut expected);
    assert_eq!(counts(&vfs), before, "scattered");
    put(threshold, SCATTERED_UNITS + 1, 4, &mut expected);
    assert!(counts(&vfs).patches > before.patches, "less so");
    put(1, threshold + 1, 5, &mut expected);
    rig.freeze();
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    assert!(read(&vfs, open(&vfs, "f").1, 0, expected.len() + 1) == expected);
    vfs.shutdown().expect("ended");
}
