//! Disks that are deleted without another in their place, while files are in use.

use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::{RealClock, Rng};
use strake_manager::Deletion;
use strake_manager::Replacement;
use strake_proto::layout::NsdStatus;
use strake_proto::meta::{FileData, MetaQuery};
use strake_proto::nsd::NsdPort;
use strake_proto::{BlockIndex, Caller, ErrorKind, Ino, NsdId, SlotIndex};
use strake_testing::MemoryNsd;
use strake_testing::memory_nsd::Faults;

const BLOCK: usize = BLOCK_SIZE as usize;
/// Writes that a busy writer makes at most, so that a test that fails ends.
const ROUNDS_MAX: u8 = 250;
/// A wait that lasts longer is a fault.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn delete(vfs: &Mounted, slot: usize, rate: u64) -> strake_proto::Result<()> {
    vfs.manager.delete_nsd(Deletion { nsd: NsdId(slot as u32 + 1), rate })
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let clock = RealClock::shared();
    let start = clock.monotonic();
    while !is_so() {
        assert!(clock.monotonic() - start < WAIT_MAX, "still not: {what}");
        strake_env::thread::yield_now();
    }
}

/// Waits until the deletion has ended, and nothing else may be under way.
pub(crate) fn wait_for_end(vfs: &Mounted) {
    wait_until("deleted", || vfs.manager.deletion() == Ok(None) && !vfs.manager.is_rebuilding());
}

/// A file system with long and short files, one of which was deleted.
fn filled(code: &str, count: u16) -> (Rig, Mounted) {
    let rig = Rig::new(code, count);
    let vfs = rig.start(0);
    for at in 0..6u8 {
        let (_, handle) = create(&vfs, &format!("f{at}"));
        write(&vfs, handle, 0, &pattern(length(at), at));
        vfs.release(handle);
    }
    vfs.sync().expect("synced");
    vfs.unlink(&Caller::ROOT, Ino::ROOT, b"f5").expect("unlinked");
    (rig, vfs)
}

fn length(at: u8) -> usize {
    if at.is_multiple_of(2) { 3 * BLOCK + 5000 } else { 9000 }
}

fn verify(vfs: &Mounted, why: &str) {
    for at in 0..5u8 {
        let (_, handle) = open(vfs, &format!("f{at}"));
        assert!(read(vfs, handle, 0, 4 * BLOCK) == pattern(length(at), at), "{why}: f{at}");
        vfs.release(handle);
    }
}

/// Nothing is missing, and nothing lies where it does not belong.
fn clean(vfs: &Mounted) {
    vfs.sync().expect("synced");
    vfs.tend();
    vfs.sync().expect("synced");
    let found = vfs.manager.check_strips().expect("checks");
    assert_eq!((found.faults, found.notes), (vec![], vec![]));
}

/// Starts without the deleted ones and with as many others away as the code tolerates, several
/// times.
fn verify_without(rig: &Rig, vfs: Mounted, gone: &[usize], tolerated: usize) {
    clean(&vfs);
    vfs.shutdown().expect("ended");
    drop(vfs);
    let gone_mask = gone.iter().fold(0u32, |mask, slot| mask | 1 << slot);
    let mut rng = Rng::new(7);
    for _ in 0..4 {
        let mut left: Vec<usize> = (0..rig.nsds.len()).filter(|at| !gone.contains(at)).collect();
        rng.shuffle(&mut left);
        let away = left[..tolerated].iter().fold(gone_mask, |mask, slot| mask | 1 << slot);
        let vfs = rig.start(away);
        verify(&vfs, &format!("{away:#b} away"));
        drop(vfs);
        // What this start noted of those away is forgotten again.
        let vfs = rig.start(gone_mask);
        vfs.manager.recover_nsds();
        assert!(vfs.array().nsds().iter().all(|nsd| nsd.state.availability.readable()));
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn a_disk_that_is_there_or_lost_is_deleted_under_a_writer() {
    for (code, count, tolerated, lost) in
        [("2x", 4, 1, false), ("2x", 4, 1, true), ("4+2p", 7, 2, false), ("4+2p", 7, 2, true)]
    {
        let (rig, vfs) = filled(code, count);
        if lost {
            vfs.array().attach_nsd(SlotIndex(2), None);
        }
        let (_, handle) = create(&vfs, "busy");
        write(&vfs, handle, 0, &pattern(600_000, 76));
        let stop = AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS_MAX {
                    write(&vfs, handle, u64::from(round % 3) * 70_000, &pattern(300_000, round));
                    vfs.fsync(handle).expect("synced");
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                write(&vfs, handle, 0, &pattern(600_000, 77));
                vfs.fsync(handle).expect("synced");
            });
            delete(&vfs, 2, 0).expect("begins");
            wait_for_end(&vfs);
            stop.store(true, Ordering::Relaxed);
        });
        assert!(
            vfs.array().nsds().iter().all(|view| view.slot != SlotIndex(2)),
            "it is not listed"
        );
        rig.nsds[2].set_down(true);
        verify(&vfs, code);
        assert!(read(&vfs, handle, 0, 600_000) == pattern(600_000, 77));
        vfs.release(handle);
        verify_without(&rig, vfs, &[2], tolerated);
    }
}

#[test]
fn disks_are_deleted_one_after_the_other_while_the_code_allows_it() {
    let (rig, vfs) = filled("4+2p", 9);
    for slot in [4, 0, 7] {
        delete(&vfs, slot, 0).expect("begins");
        wait_for_end(&vfs);
        verify(&vfs, "after a deletion");
        clean(&vfs);
        let name = format!("after {slot}");
        let (_, handle) = create(&vfs, &name);
        write(&vfs, handle, 0, &pattern(2 * BLOCK, slot as u8));
        vfs.fsync(handle).expect("synced");
        vfs.release(handle);
    }
    let refused = delete(&vfs, 1, 0).expect_err("six are left for 4+2p");
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
    assert_eq!(delete(&vfs, 4, 0).expect_err("it is gone").kind(), ErrorKind::NotFound);
    assert_eq!(vfs.manager.deletion(), Ok(None));
    verify_without(&rig, vfs, &[4, 0, 7], 2);
}

#[test]
fn a_deletion_that_was_interrupted_is_taken_up_again() {
    for present in [true, false] {
        let (rig, vfs) = filled("4+2p", 7);
        if !present {
            vfs.array().attach_nsd(SlotIndex(2), None);
        }
        // A byte a second: it will not come far.
        delete(&vfs, 2, 1).expect("begins");
        wait_until("at work", || vfs.array().nsds()[2].progress.is_some());
        assert_eq!(vfs.array().nsds()[2].state.status, NsdStatus::BeingEmptied);
        assert_eq!(delete(&vfs, 3, 0).expect_err("one at a time").kind(), ErrorKind::Busy);
        let new = MemoryNsd::new(NsdId(10));
        let port = Arc::clone(&new) as Arc<dyn NsdPort>;
        let other = Replacement { old: NsdId(1), new: NsdId(10), rate: 0 };
        assert_eq!(vfs.manager.replace_nsd(other, port).expect_err("nor").kind(), ErrorKind::Busy);
        assert_eq!(
            vfs.manager.set_suspended(NsdId(3), false).expect_err("nor").kind(),
            ErrorKind::Busy
        );
        let (_, handle) = create(&vfs, "meanwhile");
        write(&vfs, handle, 0, &pattern(BLOCK, 9));
        vfs.fsync(handle).expect("synced");
        let (_, handle) = open(&vfs, "f0");
        write(&vfs, handle, 0, &pattern(length(0), 0));
        vfs.fsync(handle).expect("synced");
        // It is in use as before: nobody looks for what heirs may have.
        verify(&vfs, "while it is being deleted");
        clean_but_for_notes(&vfs);
        drop(vfs);
        rig.crash();
        let vfs = rig.start(if present { 0b1000 } else { 0b1100 });
        verify(&vfs, "after a crash, with another away");
        drop(vfs);
        let vfs = rig.start(if present { 0 } else { 0b100 });
        vfs.manager.recover_nsds();
        let deletion = Deletion { nsd: NsdId(3), rate: 1 };
        assert_eq!(vfs.manager.deletion(), Ok(Some((deletion, false))));
        delete(&vfs, 2, 0).expect("goes on");
        wait_for_end(&vfs);
        verify_without(&rig, vfs, &[2], 2);
    }
}

fn clean_but_for_notes(vfs: &Mounted) {
    let found = vfs.manager.check_strips().expect("checks");
    assert_eq!(found.faults, Vec::<String>::new());
}

#[test]
fn what_the_others_cannot_take_is_refused() {
    let (_rig, vfs) = filled("4+2p", 6);
    let refused = delete(&vfs, 2, 0).expect_err("five are too few");
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
    assert!(refused.to_string().contains("too few"), "{refused}");
    let (rig, vfs) = filled("4+2p", 7);
    vfs.array().attach_nsd(SlotIndex(5), None);
    let refused = delete(&vfs, 2, 0).expect_err("another is away");
    assert!(refused.to_string().contains("NSD 6 is not up"), "{refused}");
    vfs.array().attach_nsd(SlotIndex(5), rig.port(5));
    vfs.manager.recover_nsds();
    rig.nsds[1].set_capacity(1 << 20);
    assert_eq!(delete(&vfs, 2, 0).expect_err("NSD 2 is full").kind(), ErrorKind::NoSpace);
    assert_eq!(vfs.manager.deletion(), Ok(None));
    let (_rig, vfs) = filled("1", 3);
    vfs.array().attach_nsd(SlotIndex(2), None);
    let refused = delete(&vfs, 2, 0).expect_err("nobody else has what it holds");
    assert_eq!(refused.kind(), ErrorKind::Unreachable);
    assert_eq!(delete(&vfs, 7, 0).expect_err("no such NSD").kind(), ErrorKind::NotFound);
}

#[test]
fn a_disk_of_a_code_without_parity_is_deleted_while_it_is_there() {
    let (rig, vfs) = filled("1", 4);
    delete(&vfs, 2, 0).expect("begins");
    wait_for_end(&vfs);
    verify_without(&rig, vfs, &[2], 0);
}

/// A deletion that has copied one strip and goes on when it is told to; the block of `f0` that it
/// was of, and the slot of its heir.
fn one_strip_copied(rig: &Rig, vfs: &Mounted) -> (u64, usize) {
    let strips = || rig.nsds.iter().map(|nsd| nsd.strips()).sum::<usize>();
    let before = strips();
    // A byte a second: the second one is far away.
    delete(vfs, 2, 1).expect("begins");
    wait_until("a strip is copied", || strips() > before);
    let (attr, handle) = open(vfs, "f0");
    vfs.release(handle);
    let query = MetaQuery::GetInode { ino: attr.ino };
    let inode = vfs.mount.array.meta.query_inode(&query).expect("it is there");
    let FileData::Objects(layouts) = inode.data else { panic!("f0 has blocks") };
    let heir = |block| {
        let found = vfs.mount.array.io.nsds().stripe_and_heir(&layouts[0], BlockIndex(block));
        found.expect("placed").1.map(|(_, heir)| (block, usize::from(heir.0)))
    };
    (0..4).find_map(heir).expect("some strip of f0 was on it")
}

#[test]
fn what_is_written_after_a_strip_was_copied_reaches_its_heir() {
    for present in [true, false] {
        let (rig, vfs) = filled("4+2p", 7);
        if !present {
            vfs.array().attach_nsd(SlotIndex(2), None);
        }
        one_strip_copied(&rig, &vfs);
        for salt in [90, 0] {
            let (_, handle) = open(&vfs, "f0");
            write(&vfs, handle, 0, &pattern(length(0), salt));
            vfs.fsync(handle).expect("synced");
            vfs.release(handle);
        }
        vfs.manager.set_rebuild_rate(0);
        wait_for_end(&vfs);
        verify_without(&rig, vfs, &[2], 2);
    }
}

/// The heir of a strip has it, misses its next version, and is up again at once: it holds none of
/// the other strips of that block, so nothing but the deletion knows that it missed something.
#[test]
fn an_heir_that_missed_a_change_does_not_take_its_place_before_it_has_it() {
    for present in [true, false] {
        let (rig, vfs) = filled("4+2p", 7);
        if !present {
            vfs.array().attach_nsd(SlotIndex(2), None);
        }
        let (block, heir) = one_strip_copied(&rig, &vfs);
        rig.nsds[heir].set_faults(Faults { write: Some(ErrorKind::Io), ..Faults::default() });
        let (_, handle) = open(&vfs, "f0");
        let bytes =
            &pattern(length(0), 0)[..BLOCK * (block as usize + 1)][BLOCK * block as usize..];
        write(&vfs, handle, block * BLOCK as u64, bytes);
        vfs.fsync(handle).expect("synced without the heir");
        vfs.release(handle);
        rig.nsds[heir].set_faults(Faults::default());
        vfs.manager.set_rebuild_rate(0);
        vfs.manager.recover_nsds();
        wait_for_end(&vfs);
        verify_without(&rig, vfs, &[2], 2);
    }
}

/// Another disk fails, misses what is written, and returns: the deletion waits for it, and its
/// inheritance is compared again.
#[test]
fn an_heir_that_misses_writes_holds_the_deletion_up_and_votes_for_nothing() {
    for (present, answers) in [(true, true), (false, false)] {
        let (rig, vfs) = filled("4+2p", 7);
        if !present {
            vfs.array().attach_nsd(SlotIndex(2), None);
        }
        delete(&vfs, 2, 1).expect("begins");
        wait_until("at work", || vfs.array().nsds()[2].progress.is_some());
        let fault = Faults { write: Some(ErrorKind::Io), down: !answers, ..Faults::default() };
        rig.nsds[4].set_faults(fault);
        let (_, handle) = open(&vfs, "f2");
        write(&vfs, handle, 0, &pattern(length(2), 78));
        vfs.fsync(handle).expect("two are away at most");
        write(&vfs, handle, 0, &pattern(length(2), 2));
        vfs.fsync(handle).expect("two are away at most");
        vfs.release(handle);
        if present {
            vfs.manager.set_rebuild_rate(0);
            let status = || vfs.array().nsds()[2].state.status;
            (0..20).for_each(|_| strake_env::thread::yield_now());
            assert_eq!(status(), NsdStatus::BeingEmptied, "what only it has would be lost");
        }
        rig.nsds[4].set_faults(Faults::default());
        vfs.manager.set_rebuild_rate(0);
        vfs.manager.recover_nsds();
        wait_for_end(&vfs);
        vfs.manager.recover_nsds();
        verify_without(&rig, vfs, &[2], 2);
    }
}
