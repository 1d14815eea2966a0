//! Files are moved to a newer layout, with users at work, crashes and disks away.

use super::*;
use crate::coherence_test::{File, World, seed};
use crate::emptied_test::{at_work, await_deletion, ended, made, verify_alone};
use crate::testing::{BLOCK_SIZE, Crew, Mounted, Rig, assert_whole};
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use std::collections::BTreeSet;
use std::time::Duration;
use strake_array::reaper;
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_manager::{Deletion, Manager, Rebalanced, View};
use strake_proto::{NsdId, ObjectId};
use strake_testing::memory_nsd::Faults;

const BLOCK: usize = BLOCK_SIZE as usize;
/// Files as a lone mount has them: names and lengths. One was cut to less than an inode holds, and
/// the last one has a hole.
const FILES: [(&str, usize); 7] = [
    ("empty", 0),
    ("inline", 3000),
    ("short", 9973),
    ("shrunk", 3000),
    ("block", BLOCK),
    ("long", 5 * BLOCK + 77),
    ("holes", 9 * BLOCK),
];

fn expected(name: &str, length: usize) -> Vec<u8> {
    let mut bytes = pattern(length, name.len() as u8);
    if name == "holes" {
        bytes[BLOCK..7 * BLOCK + 5000].fill(0);
    }
    bytes
}

fn make_all(vfs: &Mounted) {
    for (name, length) in FILES {
        let (ino, handle) = create(vfs, name);
        let made = if name == "shrunk" { BLOCK } else { length };
        write(vfs, handle, 0, &pattern(made, name.len() as u8));
        if name == "shrunk" {
            vfs.fsync(handle).expect("durable");
            let cut = SetAttr { size: Some(length as u64), ..SetAttr::default() };
            vfs.setattr(&Caller::ROOT, ino, Some(handle), &cut).expect("cut");
        }
        if name == "holes" {
            vfs.fsync(handle).expect("durable");
            let range = BLOCK as u64..7 * BLOCK as u64 + 5000;
            vfs.fallocate(handle, range, FallocateMode::PunchHole).expect("punched");
        }
        vfs.release(handle);
    }
    vfs.sync().expect("durable");
}

fn verify_all(vfs: &Mounted, context: &str) {
    for (name, length) in FILES {
        let (ino, handle) = open(vfs, name);
        let found = read(vfs, handle, 0, length + 1);
        assert!(found == expected(name, length), "{context}: {name}");
        assert_whole(vfs, ino.ino, context);
        vfs.release(handle);
    }
    let found = vfs.manager.check_strips().expect("checks");
    assert_eq!((found.faults, found.notes), (vec![], vec![]), "{context}");
}

fn add(rig: &Rig, manager: &Manager) {
    let at = rig.nsds.len() - 1;
    let port = rig.port(at).expect("is there");
    manager.add_nsd(NsdId(at as u32 + 1), 100, port).expect("adds");
}

fn rebalanced(rig: &Rig, manager: &Manager) -> View<Rebalanced> {
    let end = rig.clock.monotonic() + Duration::from_secs(60);
    while manager.rebalance().running {
        assert!(rig.clock.monotonic() < end, "{:?}", manager.rebalance());
        rig.clock.sleep(Duration::from_millis(1));
    }
    manager.rebalance()
}

/// How many of the files lie by the newest layout.
fn by_newest(vfs: &Mounted, newest: u16) -> usize {
    let is_newest = |(name, _): &(&str, usize)| {
        let (ino, handle) = open(vfs, name);
        let inode = vfs.mount.table.pin(ino.ino);
        let content = vfs.mount.file(&inode).expect("a file").content.read().clone();
        vfs.release(handle);
        matches!(content, Content::Object(layout) if layout.layout.0 == u32::from(newest))
    };
    FILES.iter().filter(|file| is_newest(file)).count()
}

#[test]
fn files_lie_on_an_added_nsd_once_they_are_moved_and_are_the_same() {
    for (code, nsds) in [("1", 2), ("2x", 3), ("4+2p", 6)] {
        let rig = Rig::with_spares(code, nsds, 1);
        let vfs = rig.start(0);
        make_all(&vfs);
        add(&rig, &vfs.manager);
        let spare = &rig.nsds[usize::from(nsds)];
        assert_eq!((spare.strips(), by_newest(&vfs, 2)), (0, 0), "{code}");
        let held = || {
            await_reaped(&rig, &vfs);
            rig.nsds.iter().flat_map(|nsd| nsd.objects()).collect::<BTreeSet<_>>()
        };
        let before = held();
        vfs.manager.start_rebalance(0).expect("begins");
        let view = rebalanced(&rig, &vfs.manager);
        assert_eq!(
            (view.complete, view.found.moved, view.found.left),
            (true, 5, 0),
            "{code}: {view:?}"
        );
        assert!(spare.strips() > 0 && by_newest(&vfs, 2) == 5, "{code}");
        verify_all(&vfs, code);
        vfs.sync().expect("durable");
        assert_eq!(
            held().intersection(&before).next(),
            None,
            "{code}: of before something is left"
        );
        assert_eq!(vfs.view().handles, 0, "{code}");
        vfs.shutdown().expect("ends");
        drop(vfs);
        rig.crash();
        verify_all(&rig.start(0), code);
    }
}

/// Waits until all range deletions are done.
fn await_reaped(rig: &Rig, vfs: &Mounted) {
    let end = rig.clock.monotonic() + Duration::from_secs(60);
    while !reaper::pending(vfs.array()).expect("known").is_empty() {
        assert!(rig.clock.monotonic() < end, "not reaped");
        vfs.tend();
        rig.clock.sleep(Duration::from_millis(1));
    }
}

/// Everything loses its power at some moment of the moves. What was durable is the same then, and
/// the next start goes on.
#[test]
fn a_crash_in_between_loses_nothing_and_the_next_start_goes_on() {
    let mut rng = Rng::new(seed());
    for round in 0..12 {
        let rig = Rig::with_spares("2x", 3, 1);
        let vfs = rig.start(0);
        make_all(&vfs);
        add(&rig, &vfs.manager);
        vfs.manager.start_rebalance(0).expect("begins");
        rig.clock.sleep(Duration::from_micros(rng.below(20_000)));
        rig.freeze();
        drop(vfs);
        rig.power_cut(&mut rng);
        let vfs = rig.start(0);
        verify_all(&vfs, &format!("round {round}"));
        vfs.manager.resume_rebalance().expect("goes on, or is over");
        rebalanced(&rig, &vfs.manager);
        assert_eq!(by_newest(&vfs, 2), 5, "round {round}");
        verify_all(&vfs, &format!("round {round}, moved"));
        vfs.shutdown().expect("ends");
    }
}

/// Nothing can be written while files are to be moved. They stay as they are, and are moved later.
#[test]
fn a_move_that_fails_leaves_the_file_as_it_is() {
    for fault in [ErrorKind::NoSpace, ErrorKind::Io] {
        let rig = Rig::with_spares("2x", 3, 1);
        let vfs = rig.start(0);
        make_all(&vfs);
        add(&rig, &vfs.manager);
        let set = |write| {
            rig.nsds.iter().for_each(|nsd| nsd.set_faults(Faults { write, ..Faults::default() }))
        };
        set(Some(fault));
        vfs.manager.start_rebalance(0).expect("begins");
        let view = rebalanced(&rig, &vfs.manager);
        assert!(view.found.left > 0, "{fault:?}: {view:?}");
        set(None);
        vfs.tend();
        verify_all(&vfs, "nothing could be written");
        vfs.manager.start_rebalance(0).expect("begins");
        let view = rebalanced(&rig, &vfs.manager);
        assert_eq!((view.complete, view.found.left), (true, 0), "{fault:?}: {view:?}");
        verify_all(&vfs, "moved");
    }
}

/// The disks are full but for one file. Each file that is moved makes room for the next ones.
#[test]
fn files_of_full_disks_are_moved_to_an_added_one() {
    let rig = Rig::with_spares("2x", 3, 1);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(24 << 20));
    let vfs = rig.start(0);
    let mut count = 0;
    let made = |at: usize| -> Result<()> {
        let (_, handle) = create(&vfs, &format!("f{at}"));
        let written = vfs.write(handle, 0, &pattern(2 * BLOCK, at as u8));
        let synced = vfs.fsync(handle);
        vfs.release(handle);
        written.and(synced)
    };
    while made(count).is_ok() {
        count += 1;
        assert!(count < 1000, "the disks are never full");
    }
    for at in [count, count - 1] {
        vfs.unlink(&Caller::ROOT, Ino::ROOT, format!("f{at}").as_bytes()).expect("removed");
    }
    await_reaped(&rig, &vfs);
    let before = vfs.array().room.usable().1;
    add(&rig, &vfs.manager);
    vfs.manager.start_rebalance(0).expect("begins");
    let view = rebalanced(&rig, &vfs.manager);
    assert_eq!((view.complete, view.found.left), (true, 0), "of {count}: {view:?}");
    await_reaped(&rig, &vfs);
    let after = vfs.array().room.usable().1;
    assert!(after > 10 * before.max(1 << 20) / 4, "{before} bytes were free, and {after} are");
    for at in 0..count - 1 {
        let handle = open(&vfs, &format!("f{at}")).1;
        assert!(read(&vfs, handle, 0, 3 * BLOCK) == pattern(2 * BLOCK, at as u8), "f{at}");
        vfs.release(handle);
    }
}

/// A strip is bad. The block is written anew, and the file is moved.
#[test]
fn a_file_with_a_bad_strip_is_moved() {
    let rig = Rig::with_spares("2x", 3, 1);
    let vfs = rig.start(0);
    make_all(&vfs);
    vfs.shutdown().expect("ends");
    drop(vfs);
    let is_hit = (1..9).any(|object| rig.nsds[1].flip_bit(ObjectId(object), BlockIndex(0), 1, 9));
    assert!(is_hit, "some block has its second strip there");
    let vfs = rig.start(0);
    add(&rig, &vfs.manager);
    vfs.manager.start_rebalance(0).expect("begins");
    let view = rebalanced(&rig, &vfs.manager);
    assert_eq!((view.complete, view.found.left), (true, 0), "{view:?}");
    verify_all(&vfs, "moved");
}

/// A writer of the same mount goes on without a pause. The files hold what it wrote.
#[test]
fn files_of_a_lone_mount_are_moved_under_a_writer() {
    let rig = Rig::with_spares("4+2p", 6, 1);
    let vfs = rig.start(0);
    make_all(&vfs);
    add(&rig, &vfs.manager);
    let (_, handle) = open(&vfs, "long");
    let mut bytes = expected("long", 5 * BLOCK + 77);
    let mut rng = Rng::new(seed());
    vfs.manager.start_rebalance(0).expect("begins");
    let mut steps = 0;
    while vfs.manager.rebalance().running || steps < 200 {
        let (at, salt) = (rng.index(5 * BLOCK), rng.index(200) as u8);
        let part = pattern(1 + rng.index(9000), salt);
        let part = &part[..part.len().min(bytes.len() - at)];
        write(&vfs, handle, at as u64, part);
        bytes[at..at + part.len()].copy_from_slice(part);
        if rng.index(20) == 0 {
            vfs.fsync(handle).expect("durable");
        }
        assert!(read(&vfs, handle, 0, bytes.len()) == bytes, "after {steps} steps");
        steps += 1;
    }
    vfs.fsync(handle).expect("durable");
    println!("{steps} steps, {:?}", vfs.manager.rebalance());
    rig.freeze();
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (ino, handle) = open(&vfs, "long");
    assert!(read(&vfs, handle, 0, bytes.len() + 1) == bytes, "after a crash");
    assert_whole(&vfs, ino.ino, "after a crash");
    let found = vfs.manager.check_strips().expect("checks");
    assert_eq!((found.faults, found.notes), (vec![], vec![]));
}

fn verify(world: World, crew: Crew, files: Vec<Mutex<File>>) {
    let (rig, files) = ended(world, crew, files);
    verify_alone(&rig, &files, 0, true);
}

#[test]
fn files_are_moved_while_all_mounts_write() {
    for (code, nsds) in [("2x", 2), ("4+2p", 6)] {
        let (world, crew) = World::with_crew_on(Rig::with_spares(code, nsds, 1));
        let files = made(&world, 4);
        add(&world.rig, &crew.manager);
        at_work(&world, &files, seed(), || {
            crew.manager.start_rebalance(0).expect("begins");
            let deletion = Deletion { nsd: NsdId(1), rate: 0 };
            let refused = crew.manager.delete_nsd(deletion).map_err(|error| error.kind());
            // It may be over by now.
            assert!(refused == Err(ErrorKind::Busy) || !crew.manager.rebalance().running);
            rebalanced(&world.rig, &crew.manager);
        });
        if crew.manager.deletion() == Ok(None) {
            // Files that were changed without a pause may be left.
            crew.manager.start_rebalance(0).expect("begins");
            let view = rebalanced(&world.rig, &crew.manager);
            assert!(view.complete && view.found.left == 0, "{code}: {view:?}");
        }
        await_deletion(&world, &crew);
        verify(world, crew, files);
    }
}

/// The layout of the files has no other disk for the strips of one that goes. They are moved to the
/// layout that has the added one.
#[test]
fn a_disk_is_deleted_whose_strips_have_no_heirs_in_the_layout_of_before() {
    for (code, nsds, is_lost) in [("2x", 2, false), ("4+2p", 6, false), ("4+2p", 6, true)] {
        let (world, crew) = World::with_crew_on(Rig::with_spares(code, nsds, 1));
        let files = made(&world, 4);
        let deletion = Deletion { nsd: NsdId(1), rate: 0 };
        let refused = crew.manager.delete_nsd(deletion).expect_err("there is no other");
        assert_eq!(refused.kind(), ErrorKind::NotSupported, "{code}: {refused}");
        add(&world.rig, &crew.manager);
        at_work(&world, &files, seed() + 3, || {
            if is_lost {
                world.rig.nsds[0].set_down(true);
            }
            crew.manager.delete_nsd(deletion).expect("there is another one now");
            await_deletion(&world, &crew);
        });
        let (rig, files) = ended(world, crew, files);
        verify_alone(&rig, &files, 1, true);
    }
}

#[test]
fn a_rebalance_that_was_stopped_leaves_every_file_whole() {
    let (world, crew) = World::with_crew_on(Rig::with_spares("2x", 3, 1));
    let files = made(&world, 6);
    add(&world.rig, &crew.manager);
    at_work(&world, &files, seed(), || {
        for _ in 0..5 {
            crew.manager.start_rebalance(0).expect("begins");
            crew.manager.stop_rebalance().expect("ends");
            crew.manager.resume_rebalance().expect("nothing to go on with");
            assert!(!crew.manager.rebalance().running);
        }
    });
    verify(world, crew, files);
}
