//! All NSDs of a failure group are away together, as when a machine with several disks dies. That
//! is more NSDs than the code has parity strips.

use crate::coherence_test::{World, seed};
use crate::emptied_test::{at_work, await_up, ended, made};
use crate::testing::{BLOCK_SIZE, Mounted, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use std::time::Duration;
use strake_proto::layout::NsdAvailability;
use strake_proto::{ErrorKind, SlotIndex};

const BLOCK: usize = BLOCK_SIZE as usize;
/// Code, NSDs, NSDs in each failure group.
const POOLS: [(&str, u16, u16); 3] = [("2x", 6, 2), ("3x", 9, 3), ("4+2p", 12, 4)];

fn set_down(rig: &Rig, slots: std::ops::Range<u16>, is_down: bool) {
    slots.for_each(|slot| rig.nsds[usize::from(slot)].set_down(is_down));
}

fn mask(slots: std::ops::Range<u16>) -> u32 {
    slots.fold(0, |mask, slot| mask | 1 << slot)
}

fn make(vfs: &Mounted, names: std::ops::Range<u8>) {
    for at in names {
        let (_, handle) = create(vfs, &format!("f{at}"));
        write(vfs, handle, 0, &pattern(3 * BLOCK + 5000, at));
        vfs.fsync(handle).expect("durable");
        vfs.release(handle);
    }
}

fn verify(vfs: &Mounted, names: std::ops::Range<u8>, context: &str) {
    for at in names {
        let (_, handle) = open(vfs, &format!("f{at}"));
        let found = read(vfs, handle, 0, 4 * BLOCK);
        assert!(found == pattern(3 * BLOCK + 5000, at), "{context}: f{at}");
        vfs.release(handle);
    }
}

fn await_all_up(rig: &Rig, vfs: &Mounted) {
    let end = rig.clock.monotonic() + Duration::from_secs(60);
    let is_up = |view: &strake_array::NsdView| view.state.availability == NsdAvailability::Up;
    while !vfs.array().nsds().iter().all(is_up) {
        assert!(rig.clock.monotonic() < end, "still {:?}", vfs.array().nsds());
        vfs.manager.recover_nsds();
    }
}

/// Looks at the files without each of the groups, one after the other.
fn without_each(rig: &Rig, count: u16, group: u16, look: impl Fn(&Mounted)) {
    for other in (0..count / group).map(|at| at * group..(at + 1) * group) {
        let vfs = rig.start(mask(other));
        look(&vfs);
        vfs.shutdown().expect("ends");
        drop(vfs);
        let vfs = rig.start(0);
        await_all_up(rig, &vfs);
        vfs.shutdown().expect("ends");
    }
}

#[test]
fn a_whole_group_may_be_away_and_come_back() {
    for (code, count, group) in POOLS {
        for away in (0..count / group).map(|at| at * group..(at + 1) * group) {
            let context = format!("{code} without {away:?}");
            let rig = Rig::in_groups(code, count, group);
            let vfs = rig.start(0);
            make(&vfs, 0..4);
            set_down(&rig, away.clone(), true);
            make(&vfs, 4..8);
            verify(&vfs, 0..8, &context);
            vfs.shutdown().expect("ends");
            drop(vfs);
            let vfs = rig.start(mask(away.clone()));
            verify(&vfs, 0..8, &context);
            make(&vfs, 8..9);
            vfs.shutdown().expect("ends");
            drop(vfs);
            set_down(&rig, away.clone(), false);
            let vfs = rig.start(0);
            await_all_up(&rig, &vfs);
            let found = vfs.manager.check_strips().expect("checks");
            assert_eq!((found.faults, found.notes), (vec![], vec![]), "{context}");
            vfs.shutdown().expect("ends");
            drop(vfs);
            without_each(&rig, count, group, |vfs| verify(vfs, 0..9, &context));
        }
    }
}

/// One NSD more would be too many, wherever it is: nothing is acknowledged without it.
#[test]
fn no_other_nsd_may_be_away_beside_a_group() {
    for (code, count, group) in POOLS {
        let rig = Rig::in_groups(code, count, group);
        let vfs = rig.start(0);
        make(&vfs, 0..4);
        set_down(&rig, 0..group, true);
        make(&vfs, 4..8);
        set_down(&rig, group..group + 1, true);
        let (_, handle) = create(&vfs, "more");
        write(&vfs, handle, 0, &pattern(8 * BLOCK, 9));
        let refused = vfs.fsync(handle).expect_err("some blocks have too few strips");
        assert_eq!(refused.kind(), ErrorKind::Io, "{code}");
        set_down(&rig, 0..group + 1, false);
        await_all_up(&rig, &vfs);
        verify(&vfs, 0..8, code);
    }
}

#[test]
fn a_whole_group_goes_and_comes_while_all_mounts_write() {
    for (code, count, group) in POOLS {
        let seed = seed();
        let (world, crew) = World::with_crew_on(Rig::in_groups(code, count, group));
        let files = made(&world, 4);
        let away = group..2 * group;
        at_work(&world, &files, seed, || {
            set_down(&world.rig, away.clone(), true);
            let end = world.rig.clock.monotonic() + Duration::from_secs(60);
            let is_noted = |slot| crew.vfs.array().io.nsds().is_noted(SlotIndex(slot));
            while !away.clone().all(is_noted) {
                assert!(world.rig.clock.monotonic() < end, "{code}: the mounts do without them");
                world.rig.clock.sleep(Duration::from_millis(1));
            }
            set_down(&world.rig, away.clone(), false);
            away.clone().for_each(|slot| await_up(&world, &crew, SlotIndex(slot)));
        });
        let (rig, files) = ended(world, crew, files);
        without_each(&rig, count, group, |vfs| {
            for file in &files {
                let (_, handle) = open(vfs, &file.name);
                let found = read(vfs, handle, 0, file.bytes.len() + 1);
                assert!(found == file.bytes, "{code}: {}", file.name);
                vfs.release(handle);
            }
        });
    }
}
