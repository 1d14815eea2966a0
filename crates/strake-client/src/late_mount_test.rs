//! A mount that is late to turn to a new leader, while an NSD misses writes.

use crate::coherence_test::World;
use crate::testing::BLOCK_SIZE;
use crate::vfs::{OpenFlags, SetAttr, Vfs};
use strake_env::thread;
use strake_proto::{Caller, ErrorKind, Ino, SlotIndex};
use strake_testing::memory_nsd::Faults;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
/// Some of them have their first strip on the NSD that is away.
const BLOCKS: usize = 8;
const SIZE: usize = BLOCKS * BLOCK_SIZE as usize;

/// The first mount writes, the second one is told that an NSD misses that, and the third one comes
/// late. When it reads, the NSD is there again, with what it had.
#[test]
fn a_mount_that_turns_to_a_new_leader_late_is_told_which_nsd_misses_writes() {
    let world = World::new("2x", 2);
    let [writer, prompt, late] = [0, 1, 2].map(|at| &*world.mounts[at]);
    let (entry, opened) = writer.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    writer.write(opened.handle, 0, &vec![1; SIZE]).expect("there is room");
    writer.fsync(opened.handle).expect("synced");
    late.lookup(ROOT, Ino::ROOT, b"f").expect("seen");
    let handle = late.open(ROOT, entry.attr.ino, RW).expect("opened").handle;
    // So that the writer needs nothing of the new leader.
    writer.write(opened.handle, 0, &[2]).expect("there is room");

    world.change_leader_for(&[0, 1]);
    // Only the writer meets that.
    let write = Some(ErrorKind::Unreachable);
    world.rig.nsds[0].set_faults(Faults { write, ..Faults::default() });
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            writer.write(opened.handle, 0, &vec![3; SIZE]).expect("there is room");
            writer.fsync(opened.handle).expect("synced");
        });
        let is_told = || prompt.mount.array.io.nsds().is_noted(SlotIndex(0));
        while !is_told() && !writing.is_finished() {
            thread::yield_now();
        }
        assert!(!writing.is_finished(), "a mount may still read from the NSD");
        world.turn_to_leader(2);
        writing.join().expect("no panic");
    });
    world.rig.nsds[0].set_faults(Faults::default());
    let mut out = vec![0; SIZE];
    assert_eq!(late.read(handle, 0, &mut out).expect("readable"), SIZE);
    let wrong = out.iter().position(|byte| *byte != 3);
    assert_eq!(wrong, None, "it reads what the NSD had before");
    world.end();
}

/// The next leader does not know the tokens of a mount that is late. But of a file that another
/// mount holds exclusively it has none.
#[test]
fn nobody_waits_for_a_late_mount_to_get_what_another_one_holds() {
    let world = World::new("1", 1);
    let (holder, prompt) = (&world.mounts[0], &world.mounts[1]);
    let (entry, opened) = holder.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    holder.write(opened.handle, 0, b"bytes").expect("written");
    world.change_leader_for(&[0, 1]);

    let handle = prompt.open(ROOT, entry.attr.ino, RW).expect("opened").handle;
    prompt.write(handle, 0, b"other").expect("written");
    let mut bytes = [0; 5];
    assert_eq!(holder.read(opened.handle, 0, &mut bytes), Ok(5));
    assert_eq!(&bytes, b"other");
    assert_eq!(world.tokens[2].held(entry.attr.ino), None);

    world.turn_to_leader(2);
    let late = &world.mounts[2];
    assert_eq!(late.getattr(entry.attr.ino).expect("there").size, 5);
    prompt.release(handle);
    holder.release(opened.handle);
    world.end();
}

/// Another mount removes a file that a late one has open. The next leader does not know that.
#[test]
fn a_file_that_a_late_mount_has_open_outlives_its_name() {
    let world = World::new("1", 1);
    let (holder, late) = (&world.mounts[0], &world.mounts[2]);
    let before = world.inodes();
    let (entry, opened) = late.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    late.write(opened.handle, 0, b"bytes").expect("written");
    let file = entry.attr.ino;
    let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    holder.lookup(ROOT, Ino::ROOT, b"f").expect("seen");
    holder.setattr(ROOT, file, None, &mode).expect("changed");
    // It makes a name, so that it has the directory, too.
    holder.mkdir(ROOT, Ino::ROOT, b"d", 0o755).expect("made");
    world.change_leader_for(&[0, 1]);

    holder.unlink(ROOT, Ino::ROOT, b"f").expect("removed");
    holder.sync().expect("durable");
    world.turn_to_leader(2);
    let mut bytes = [0; 5];
    assert_eq!(late.read(opened.handle, 0, &mut bytes), Ok(5));
    assert_eq!(&bytes, b"bytes");
    assert_eq!(world.inodes(), before + 2, "the file and the directory");
    late.release(opened.handle);
    world.await_inodes(before + 1, "the directory");
    world.end();
}
