//! Files that are removed while their bytes are on their way to the disks.

use crate::StrakeVfs;
use crate::coherence_test::World;
use crate::vfs::{OpenFlags, Vfs};
use std::sync::Arc;
use std::time::Duration;
use strake_array::reaper;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread;
use strake_proto::meta::RenameMode;
use strake_proto::nsd::NsdRequest;
use strake_proto::{Caller, Ino};
use strake_testing::memory_nsd::Moment;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
/// More than an inode takes.
const CONTENT: [u8; 9000] = [7; 9000];
/// A write that the test holds up goes on after that time.
const HELD_UP: Duration = Duration::from_millis(300);

fn put(vfs: &StrakeVfs, name: &[u8]) -> Ino {
    // As a kernel does.
    let _ = vfs.lookup(ROOT, Ino::ROOT, name);
    let (entry, opened) = vfs.create(ROOT, Ino::ROOT, name, 0o644, RW, true).expect("created");
    vfs.write(opened.handle, 0, &CONTENT).expect("written");
    vfs.release(opened.handle);
    entry.attr.ino
}

fn remove(vfs: &StrakeVfs, how: &str) {
    if how == "unlink" {
        return vfs.unlink(ROOT, Ino::ROOT, b"file").expect("removed");
    }
    let (from, to) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"file"[..]));
    vfs.rename(ROOT, from, to, RenameMode::Replace).expect("replaced");
}

fn strips(world: &World) -> usize {
    world.rig.nsds.iter().map(|nsd| nsd.strips()).sum()
}

/// Any mount that sees a removal has the disks delete the file at once. A strip that comes to them
/// afterwards would stay for ever.
#[test]
fn no_strip_of_a_file_comes_to_a_disk_after_its_removal() {
    #[derive(PartialEq)]
    enum Step {
        Quiet,
        Armed,
        OnItsWay,
        Removed,
    }
    for how in ["unlink", "rename"] {
        let world = World::new("2x", 2);
        let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
        let stage = Arc::new((Mutex::new(Step::Quiet), Condvar::new()));
        let watched = Arc::clone(&stage);
        let watch = move |moment: Moment, request: &NsdRequest| {
            let is_write =
                matches!(request, NsdRequest::Write { .. } | NsdRequest::WriteMany { .. });
            let mut step = watched.0.lock();
            if moment == Moment::Before && is_write && *step == Step::Armed {
                *step = Step::OnItsWay;
                watched.1.notify_all();
                watched.1.wait_while_for(&mut step, |step| *step != Step::Removed, HELD_UP);
            }
        };
        world.rig.nsds[0].set_watch(Some(Arc::new(watch)));
        let file = put(own, b"file");
        own.sync().expect("synced");
        let opened = own.open(ROOT, file, RW).expect("opened").handle;
        own.write(opened, 0, &CONTENT).expect("written");
        own.release(opened);
        let _ = own.lookup(ROOT, Ino::ROOT, b"new");
        own.symlink(ROOT, Ino::ROOT, b"new", b"target").expect("made");
        own.mount.array.meta.sync().expect("the leader knows");
        *stage.0.lock() = Step::Armed;
        thread::scope(|scope| {
            scope.spawn(|| own.sync().expect("synced"));
            let mut step = stage.0.lock();
            let is_armed = |step: &mut Step| *step == Step::Armed;
            stage.1.wait_while_for(&mut step, is_armed, Duration::from_secs(60));
            drop(step);
            let before = world.inodes();
            let removing = scope.spawn(|| {
                remove(own, how);
                own.mount.array.meta.sync().expect("the leader knows");
            });
            // The removal may wait for the write, and goes on when that is no longer held up.
            world.await_inodes(before - 1, "it is removed");
            reaper::apply_pending(&other.mount.array).expect("the disks are told");
            *stage.0.lock() = Step::Removed;
            stage.1.notify_all();
            removing.join().expect("no panic");
        });
        world.rig.nsds.iter().for_each(|nsd| nsd.set_watch(None));
        reaper::apply_pending(&other.mount.array).expect("the disks are told");
        assert_eq!(strips(&world), 0, "{how}");
        world.end();
    }
}

/// A file is opened and closed while it is replaced, and has bytes that are not sent.
#[test]
fn a_file_that_is_closed_during_its_removal_leaves_nothing() {
    let world = World::new("2x", 2);
    let own = &*world.mounts[0];
    put(own, b"file");
    let inodes = world.inodes();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                put(own, b"new");
                let names = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"file"[..]));
                let mode = RenameMode::Replace;
                own.rename(ROOT, names.0, names.1, mode).expect("replaced");
            }
        });
        for _ in 0..3000 {
            let found = own.lookup(ROOT, Ino::ROOT, b"file").expect("always there").attr.ino;
            // It may be gone since.
            if let Ok(opened) = own.open(ROOT, found, OpenFlags { write: false, ..RW }) {
                let mut bytes = [0; 9000];
                let count = own.read(opened.handle, 0, &mut bytes).expect("read");
                assert!(count == 9000 && bytes == CONTENT, "{count} bytes");
                own.release(opened.handle);
            }
            own.forget(found, 1);
        }
    });
    own.unlink(ROOT, Ino::ROOT, b"file").expect("removed");
    own.sync().expect("synced");
    world.await_inodes(inodes - 1, "all are gone");
    for _ in 0..2 {
        reaper::apply_pending(&own.mount.array).expect("the disks are told");
    }
    assert_eq!(strips(&world), 0);
    world.end();
}
