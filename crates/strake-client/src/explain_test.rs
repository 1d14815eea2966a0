//! Tests what is known of files: in memory, on all NSDs, without some of them, with damaged strips.

use super::{FileView, OnNsd, Place};
use crate::testing::{BLOCK_SIZE, Mounted, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, pattern, write};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::layout::NsdAvailability;
use strake_proto::{BlockIndex, Caller, ErrorKind, Ino};

const BLOCK: usize = BLOCK_SIZE as usize;
/// A wait that lasts longer is a fault.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn look(vfs: &Mounted, name: &str) -> FileView {
    let entry = vfs.lookup(&Caller::ROOT, Ino::ROOT, name.as_bytes()).expect("it is there");
    let view = vfs.explain(entry.attr.ino, 1000).expect("it can be explained");
    vfs.forget(entry.attr.ino, 1);
    view
}

/// The sums over all NSDs: present, missing, damaged, away.
fn sums(view: &FileView) -> [u64; 4] {
    let sum = |of: fn(&OnNsd) -> u64| view.nsds.values().map(of).sum();
    [sum(|on| on.present), sum(|on| on.missing), sum(|on| on.damaged), sum(|on| on.away)]
}

#[test]
fn a_file_is_followed_from_memory_to_the_nsds() {
    let rig = Rig::new("4+2p", 7);
    let vfs = rig.start(0);
    let (_, empty) = create(&vfs, "empty");
    let (_, small) = create(&vfs, "small");
    write(&vfs, small, 0, b"small");
    let (_, large) = create(&vfs, "large");
    assert_eq!(look(&vfs, "empty").place, Place::Nowhere);
    assert_eq!(look(&vfs, "small").place, Place::Inode(5));
    assert_eq!(look(&vfs, "large").handles, 1);

    write(&vfs, large, 0, &pattern(3 * BLOCK, 1));
    let view = look(&vfs, "large");
    assert!(matches!(view.place, Place::Object(_)), "{:?}", view.place);
    assert_eq!((view.blocks, view.looked, view.attr.size), (3, 3, 3 * BLOCK as u64));
    assert_eq!(view.memory.blocks, 3);
    vfs.fsync(large).expect("synced");
    // The bytes of a block that somebody uses at this moment are not counted.
    let end = RealClock.monotonic() + WAIT_MAX;
    let view = loop {
        let view = look(&vfs, "large");
        if view.memory.bytes == 3 * BLOCK as u64 {
            break view;
        }
        assert!(RealClock.monotonic() < end, "{:?}", view.memory);
        strake_env::thread::yield_now();
    };
    assert_eq!(view.memory.blocks, 3);
    assert_eq!((view.memory.dirty, view.memory.unstable), (0, 0));
    assert_eq!((view.holes, view.degraded, view.unreadable), (0, 0, 0));
    assert_eq!(sums(&view), [18, 0, 0, 0], "six strips for each block");
    assert!(view.nsds.values().all(|on| on.availability == NsdAvailability::Up));

    // A block that was jumped over is a hole.
    write(&vfs, large, 4 * BLOCK as u64, &pattern(BLOCK, 2));
    vfs.fsync(large).expect("synced");
    let view = look(&vfs, "large");
    assert_eq!((view.blocks, view.holes, view.unreadable), (5, 1, 0));
    assert_eq!(sums(&view), [24, 0, 0, 0]);

    let root = vfs.explain(Ino::ROOT, 10).expect("it can be explained");
    assert_eq!((root.place, root.blocks, root.nsds.len()), (Place::NoFile, 0, 0));
    assert_eq!(root.token, None, "there is no other mount");
    let gone = vfs.explain(Ino(1 << 40), 10).expect_err("there is no such file");
    assert!(matches!(gone.kind(), ErrorKind::NotFound | ErrorKind::Stale), "{gone}");
    for handle in [empty, small, large] {
        vfs.release(handle);
    }
}

#[test]
fn nsds_that_are_away_and_strips_that_are_gone_are_told_apart() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "file");
    write(&vfs, handle, 0, &pattern(10 * BLOCK, 3));
    vfs.fsync(handle).expect("synced");
    let part = vfs.explain(ino, 4).expect("it can be explained");
    assert_eq!((part.blocks, part.looked), (10, 4));
    assert_eq!(sums(&part), [24, 0, 0, 0], "four of ten blocks");

    let Place::Object(layout) = part.place else { panic!("{:?}", part.place) };
    let lost = |nsd: &std::sync::Arc<strake_testing::MemoryNsd>, strip| {
        nsd.lose_strip(layout.object, BlockIndex(7), strip)
    };
    assert!((0..6).any(|strip| lost(&rig.nsds[5], strip)), "one of its strips was there");
    let view = look(&vfs, "file");
    assert_eq!((sums(&view), view.degraded), ([59, 1, 0, 0], 1));
    assert_eq!(view.nsds[&rig.nsds[5].id()].missing, 1);
    write(&vfs, handle, 7 * BLOCK as u64, &pattern(BLOCK, 3));
    vfs.fsync(handle).expect("synced");
    assert_eq!(sums(&look(&vfs, "file")), [60, 0, 0, 0], "it was written anew");

    for (away, unreadable) in [(1, 0), (2, 0), (3, 10)] {
        rig.nsds[away - 1].set_down(true);
        let view = look(&vfs, "file");
        let strips = (10 * (6 - away) as u64, 10 * away as u64);
        assert_eq!(sums(&view), [strips.0, 0, 0, strips.1], "{away} are away");
        assert_eq!((view.degraded, view.unreadable), (10, unreadable), "{away} are away");
    }
    vfs.release(handle);
}
