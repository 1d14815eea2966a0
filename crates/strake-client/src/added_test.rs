//! An NSD gets a slot of its own while several mounts are at work.

use crate::coherence_test::{File, World, seed};
use crate::emptied_test::{at_work, await_deletion, await_up, ended, made, made_in, verify_alone};
use crate::testing::{Crew, Rig};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, pattern, write};
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_env::thread;
use strake_manager::Deletion;
use strake_proto::layout::NsdAvailability;
use strake_proto::{Caller, ErrorKind, Ino, NsdId, SlotIndex};

/// Gives the last NSD a slot.
fn add(world: &World, crew: &Crew) -> SlotIndex {
    let at = world.rig.nsds.len() - 1;
    let nsd = NsdId(at as u32 + 1);
    let port = || world.rig.port(at).expect("is there");
    for _ in 0..2 {
        crew.manager.add_nsd(nsd, 100, port()).expect("adds, and again changes nothing");
    }
    let slot = crew.vfs.array().io.nsds().slot_of(nsd).expect("it has a slot");
    assert_eq!(crew.vfs.array().io.nsds().availability(slot), NsdAvailability::Up);
    slot
}

/// Each file is right as a lone mount finds it, whichever NSDs the code can do without.
fn verify(world: World, crew: Crew, files: Vec<Mutex<File>>) {
    let (rig, files) = ended(world, crew, files);
    verify_alone(&rig, &files, 0, true);
    for away in 0..rig.nsds.len() {
        verify_alone(&rig, &files, 1 << away, false);
        let alone = rig.start(0);
        alone.manager.recover_nsds();
        alone.shutdown().expect("ends");
    }
}

#[test]
fn an_nsd_is_added_while_all_mounts_write_and_gets_strips_of_new_files() {
    for (code, nsds) in [("2x", 3), ("4+2p", 6)] {
        let (world, crew) = World::with_crew_on(Rig::with_spares(code, nsds, 1));
        let mut files = made(&world, 3);
        let mut slot = None;
        at_work(&world, &files, seed(), || slot = Some(add(&world, &crew)));
        let slot = slot.expect("added");
        let held = || world.rig.nsds[usize::from(slot.0)].strips();
        assert_eq!(held(), 0, "{code}: files that exist stay where they are");
        files.extend(made_in(&world, 3..6));
        assert!(held() > 0, "{code}: new files have strips on it");
        at_work(&world, &files, seed() + 7, || world.rig.clock.sleep(Duration::from_millis(50)));
        for mount in &world.mounts {
            let nsds = mount.array().io.nsds();
            assert_eq!(
                nsds.availability(slot),
                NsdAvailability::Up,
                "{code}: every mount found it"
            );
        }
        verify(world, crew, files);
    }
}

/// Mounts place new files by themselves, by the pool map that they know.
#[test]
fn a_suspended_nsd_gets_new_files_of_no_mount() {
    let (world, crew) = World::with_crew("2x", 4);
    let files = made(&world, 3);
    let held = || world.rig.nsds[1].strips();
    let make = |mount: usize, name: String| {
        let mount = &world.mounts[mount];
        // As a kernel does. The mount knows then that it may make the file by itself.
        assert!(mount.lookup(&Caller::ROOT, Ino::ROOT, name.as_bytes()).is_err());
        let (_, handle) = create(mount, &name);
        write(mount, handle, 0, &pattern(9000, 1));
        mount.release(handle);
        mount.sync().expect("synced");
    };
    for (round, is_left_out) in [false, true, false].into_iter().enumerate() {
        crew.manager.set_suspended(NsdId(2), is_left_out).expect("set");
        for mount in 0..world.mounts.len() {
            let before = held();
            (0..8).for_each(|at| make(mount, format!("n{round}-{mount}-{at}")));
            assert_eq!(held() == before, is_left_out, "{} strips instead of {before}", held());
        }
    }
    assert!(world.leader.told_later.load(Ordering::SeqCst) > 100, "names and objects");
    verify(world, crew, files);
}

/// Regression: where the server of a new NSD did not answer at once, the manager called the NSD
/// down until its next look, and refused to delete another one.
#[test]
fn an_nsd_that_answers_a_moment_later_is_up_when_it_is_added() {
    let (world, crew) = World::with_crew_on(Rig::with_spares("2x", 3, 1));
    let new = world.rig.nsds.last().expect("the spare one");
    new.set_down(true);
    let slot = thread::scope(|scope| {
        scope.spawn(|| {
            let waiters = &crew.vfs.array().observe.waiters;
            let waits = || waiters.snapshot().iter().any(|it| it.reason == "answer of a new NSD");
            let end = world.rig.clock.monotonic() + Duration::from_secs(60);
            while !waits() && world.rig.clock.monotonic() < end {
                world.rig.clock.sleep(Duration::from_millis(1));
            }
            new.set_down(false);
        });
        add(&world, &crew)
    });
    let files = made(&world, 2);
    assert!(world.rig.nsds[usize::from(slot.0)].strips() > 0);
    verify(world, crew, files);
}

/// A mount that hears nothing of the new slot follows when it reads a file that lies there, and one
/// that does not find the NSD writes without it. Then the NSD is brought up to date.
#[test]
fn a_mount_that_does_not_find_the_new_nsd_writes_without_it() {
    let (world, crew) = World::with_crew_on(Rig::with_spares("4+2p", 6, 1));
    let slot = add(&world, &crew);
    let files = made(&world, 2);
    let nsd = &world.rig.nsds[usize::from(slot.0)];
    nsd.set_down(true);
    at_work(&world, &files, seed(), || world.rig.clock.sleep(Duration::from_millis(50)));
    nsd.set_down(false);
    await_up(&world, &crew, slot);
    verify(world, crew, files);
}

#[test]
fn an_nsd_that_was_added_makes_room_for_the_deletion_of_another() {
    let (world, crew) = World::with_crew_on(Rig::with_spares("2x", 3, 1));
    let slot = add(&world, &crew);
    let files = made(&world, 4);
    // So slow that it does not end before it may.
    crew.manager.delete_nsd(Deletion { nsd: NsdId(1), rate: 1 }).expect("begins");
    let refused = crew.manager.add_nsd(NsdId(9), 9, world.rig.port(0).expect("some"));
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Busy));
    crew.manager.set_rebuild_rate(0);
    at_work(&world, &files, seed(), || await_deletion(&world, &crew));
    assert!(world.rig.nsds[usize::from(slot.0)].strips() > 0);
    let (rig, files) = ended(world, crew, files);
    verify_alone(&rig, &files, 1, true);
}
