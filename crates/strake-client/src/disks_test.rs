//! Disks that are replaced, suspended and lost while files are in use.

use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::RealClock;
use strake_manager::Replacement;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::meta::MetaOp;
use strake_proto::nsd::NsdPort;
use strake_proto::{Caller, ErrorKind, Ino, NsdId, SlotIndex};
use strake_testing::MemoryNsd;
use strake_testing::memory_nsd::Faults;

const BLOCK: usize = BLOCK_SIZE as usize;
const SLOT: usize = 2;
const OLD: NsdId = NsdId(3);
const NEW: NsdId = NsdId(9);

fn port(nsd: &Arc<MemoryNsd>) -> Arc<dyn NsdPort> {
    Arc::clone(nsd) as Arc<dyn NsdPort>
}

fn replace(vfs: &Mounted, new: &Arc<MemoryNsd>, rate: u64) {
    vfs.manager.replace_nsd(Replacement { old: OLD, new: NEW, rate }, port(new)).expect("begins");
}

/// Writes that a busy writer makes at most, so that a test that fails ends.
const ROUNDS_MAX: u8 = 250;
/// A wait that lasts longer is a fault.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Waits until the slot's NSD is what is wanted.
fn wait_until(vfs: &Mounted, is_so: impl Fn(&strake_array::NsdView) -> bool) {
    let clock = RealClock::shared();
    let start = clock.monotonic();
    while !is_so(&vfs.array().nsds()[SLOT]) {
        assert!(clock.monotonic() - start < WAIT_MAX, "still {:?}", vfs.array().nsds()[SLOT]);
        strake_env::thread::yield_now();
    }
}

fn is_done(view: &strake_array::NsdView) -> bool {
    let state = view.state;
    view.nsd == NEW && (state.status, state.availability) == (NsdStatus::Ready, NsdAvailability::Up)
}

/// A file system with a few files, one of which was deleted.
fn filled(code: &str) -> (Rig, Mounted) {
    let rig = Rig::new(code, 7);
    let vfs = rig.start(0);
    for at in 0..6u8 {
        let (_, handle) = create(&vfs, &format!("f{at}"));
        write(&vfs, handle, 0, &pattern(3 * BLOCK + 5000, at));
        vfs.release(handle);
    }
    vfs.sync().expect("synced");
    vfs.unlink(&Caller::ROOT, Ino::ROOT, b"f5").expect("unlinked");
    (rig, vfs)
}

fn verify(vfs: &Mounted, why: &str) {
    for at in 0..5u8 {
        let (_, handle) = open(vfs, &format!("f{at}"));
        assert!(read(vfs, handle, 0, 4 * BLOCK) == pattern(3 * BLOCK + 5000, at), "{why}: f{at}");
        vfs.release(handle);
    }
}

/// Starts anew with the new NSD in the slot and as many others away as the code tolerates.
fn verify_without_others(mut rig: Rig, vfs: Mounted, new: Arc<MemoryNsd>, code: &str) {
    vfs.shutdown().expect("ended");
    drop(vfs);
    rig.nsds[SLOT] = new;
    for away in if code == "2x" { vec![0b1, 0b1000] } else { vec![0b11, 0b1_1000] } {
        let vfs = rig.start(away);
        verify(&vfs, code);
        drop(vfs);
        // What this start noted of those away is forgotten again.
        let vfs = rig.start(0);
        vfs.manager.recover_nsds();
        assert!(vfs.array().nsds().iter().all(|nsd| nsd.state.availability.readable()));
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn a_disk_is_replaced_under_a_writer_and_the_new_one_has_everything() {
    for code in ["2x", "4+2p"] {
        let (rig, vfs) = filled(code);
        let new = MemoryNsd::new(NEW);
        let stop = AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                let (_, handle) = create(&vfs, "busy");
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
            replace(&vfs, &new, 0);
            wait_until(&vfs, is_done);
            stop.store(true, Ordering::Relaxed);
        });
        rig.nsds[SLOT].set_down(true);
        verify(&vfs, code);
        let (_, handle) = open(&vfs, "busy");
        assert!(read(&vfs, handle, 0, 600_000) == pattern(600_000, 77));
        vfs.release(handle);
        wait_until(&vfs, |_| vfs.manager.replacement() == Ok(None));
        verify_without_others(rig, vfs, new, code);
    }
}

#[test]
fn a_disk_that_is_lost_is_replaced_by_an_empty_one() {
    for code in ["2x", "4+2p"] {
        let (rig, vfs) = filled(code);
        vfs.array().attach_nsd(SlotIndex(SLOT as u16), None);
        let new = MemoryNsd::new(NEW);
        replace(&vfs, &new, 0);
        wait_until(&vfs, is_done);
        assert!(new.strips() > 0);
        verify_without_others(rig, vfs, new, code);
    }
}

#[test]
fn a_replacement_that_was_interrupted_is_taken_up_again() {
    let (rig, vfs) = filled("4+2p");
    let new = MemoryNsd::new(NEW);
    // A byte a second: it will not come far.
    replace(&vfs, &new, 1);
    wait_until(&vfs, |view| view.progress.is_some());
    assert_eq!(vfs.array().nsds()[SLOT].state.status, NsdStatus::Replacing);
    let other = Replacement { old: NsdId(1), new: NsdId(10), rate: 0 };
    let refused = vfs.manager.replace_nsd(other, port(&MemoryNsd::new(NsdId(10))));
    assert_eq!(refused.expect_err("one at a time").kind(), ErrorKind::Busy);
    drop(vfs);
    rig.crash();
    new.crash();
    let vfs = rig.start(0);
    let (pending, running) = vfs.manager.replacement().expect("known").expect("it was noted");
    assert_eq!((pending.old, pending.new, pending.rate, running), (OLD, NEW, 1, false));
    replace(&vfs, &new, 0);
    wait_until(&vfs, is_done);
    verify_without_others(rig, vfs, new, "4+2p");
}

/// Regression: a crash after the new disk had taken the place, and before that was noted, left a
/// replacement that could not be taken up, ended or followed by another.
#[test]
fn a_replacement_whose_end_was_not_noted_ends() {
    let (_rig, vfs) = filled("4+2p");
    let new = MemoryNsd::new(NEW);
    replace(&vfs, &new, 0);
    wait_until(&vfs, is_done);
    wait_until(&vfs, |_| vfs.manager.replacement() == Ok(None));
    let (name, value) = ("replacing".to_owned(), format!("{OLD} {NEW} 0"));
    vfs.mount.array.meta.apply(MetaOp::SetConfig { name, value }).expect("as before the crash");
    replace(&vfs, &new, 0);
    wait_until(&vfs, |_| vfs.manager.replacement() == Ok(None));
    verify(&vfs, "nothing was moved");
}

#[test]
fn a_new_disk_that_fails_replaces_nothing_and_an_old_one_that_fails_is_replaced_at_once() {
    let (_rig, vfs) = filled("4+2p");
    let new = MemoryNsd::new(NEW);
    new.set_faults(Faults { write: Some(ErrorKind::Io), ..Faults::default() });
    replace(&vfs, &new, 0);
    while vfs.manager.replacement().expect("known").expect("it stays noted").1 {
        strake_env::thread::yield_now();
    }
    assert_eq!(vfs.array().nsds()[SLOT].nsd, OLD);
    verify(&vfs, "the old one goes on");
    vfs.shutdown().expect("ended");
    drop(vfs);

    let (rig, vfs) = filled("4+2p");
    let new = MemoryNsd::new(NEW);
    replace(&vfs, &new, 1);
    wait_until(&vfs, |view| view.progress.is_some());
    vfs.array().attach_nsd(SlotIndex(SLOT as u16), None);
    vfs.manager.set_rebuild_rate(0);
    wait_until(&vfs, is_done);
    verify_without_others(rig, vfs, new, "4+2p");
}

#[test]
fn a_suspended_disk_gets_no_new_files_and_is_read() {
    let (rig, vfs) = filled("4+2p");
    vfs.sync().expect("synced");
    let before = rig.nsds[SLOT].strips();
    assert!(vfs.manager.set_suspended(OLD, true).expect("set"), "six others are left");
    assert_eq!(vfs.array().nsds()[SLOT].state.status, NsdStatus::Suspended);
    for at in 0..4u8 {
        let (_, handle) = create(&vfs, &format!("new{at}"));
        write(&vfs, handle, 0, &pattern(3 * BLOCK, at));
        vfs.fsync(handle).expect("synced");
    }
    assert!(rig.nsds[SLOT].strips() <= before, "nothing new is on it");
    verify(&vfs, "what is there is read");
    assert!(!vfs.manager.set_suspended(NsdId(1), true).expect("set"), "five are too few for 4+2p");
    vfs.shutdown().expect("ended");
    drop(vfs);
    let vfs = rig.start(0b1);
    assert_eq!(vfs.array().nsds()[SLOT].state.status, NsdStatus::Suspended, "it is remembered");
    verify(&vfs, "after a start");
    for at in 0..4u8 {
        let (_, handle) = open(&vfs, &format!("new{at}"));
        assert!(read(&vfs, handle, 0, 3 * BLOCK) == pattern(3 * BLOCK, at));
    }
    vfs.manager.set_suspended(NsdId(1), false).expect("set");
    assert!(vfs.manager.set_suspended(OLD, false).expect("set"));
    let (_, handle) = create(&vfs, "newest");
    write(&vfs, handle, 0, &pattern(8 * BLOCK, 9));
    vfs.fsync(handle).expect("synced");
    assert!(rig.nsds[SLOT].strips() > before);
    vfs.shutdown().expect("ended");
}
