//! What the options of a mount change: read-only, durable at once, access times.

use crate::StrakeVfs;
use crate::mode::{AccessTimes, MountMode};
use crate::testing::Rig;
use crate::vfs::vfs_test::{create, lookup, open, read, write};
use crate::vfs::{FallocateMode, MakeNode, OpenFlags, SetAttr, Vfs};
use strake_proto::meta::{RenameMode, XattrMode};
use strake_proto::{Caller, ErrorKind, FileType, Ino, Result, Timestamp};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const READER: OpenFlags = OpenFlags { write: false, ..RW };
const READ_ONLY: MountMode = MountMode {
    read_only: true,
    sync: false,
    sync_names: false,
    access_times: AccessTimes::Always,
    no_directory_times: false,
};

/// All changes that a read-only file system refuses, each tried once on the files `f` and `g`.
fn changes(vfs: &StrakeVfs) -> Vec<(&'static str, Result<()>)> {
    let ino = lookup(vfs, "f").attr.ino;
    let node = MakeNode { file_type: FileType::Fifo, permissions: 0o644, rdev: 0 };
    let chmod = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    let cut = OpenFlags { truncate: true, ..READER };
    let names = ((Ino::ROOT, &b"f"[..]), (Ino::ROOT, &b"h"[..]));
    vec![
        ("mknod", vfs.mknod(ROOT, Ino::ROOT, b"n", node).map(drop)),
        ("mkdir", vfs.mkdir(ROOT, Ino::ROOT, b"d", 0o755).map(drop)),
        ("symlink", vfs.symlink(ROOT, Ino::ROOT, b"s", b"f").map(drop)),
        ("link", vfs.link(ROOT, ino, Ino::ROOT, b"l").map(drop)),
        ("create", vfs.create(ROOT, Ino::ROOT, b"c", 0o644, RW, false).map(drop)),
        ("tmpfile", vfs.tmpfile(ROOT, Ino::ROOT, 0o644, RW).map(drop)),
        ("chmod", vfs.setattr(ROOT, ino, None, &chmod).map(drop)),
        ("open to write", vfs.open(ROOT, ino, RW).map(drop)),
        ("open to cut", vfs.open(ROOT, ino, cut).map(drop)),
        ("access to write", vfs.access(ROOT, ino, 2)),
        ("setxattr", vfs.setxattr(ROOT, ino, b"user.a", b"v", XattrMode::Set, false)),
        ("removexattr", vfs.removexattr(ROOT, ino, b"user.a")),
        ("rename", vfs.rename(ROOT, names.0, names.1, RenameMode::Replace).map(drop)),
        ("rmdir", vfs.rmdir(ROOT, Ino::ROOT, b"d")),
        ("unlink", vfs.unlink(ROOT, Ino::ROOT, b"g")),
    ]
}

#[test]
fn a_read_only_mount_refuses_every_change_and_can_be_made_writable_again() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let (_, other) = create(&vfs, "g");
    write(&vfs, handle, 0, b"bytes");
    vfs.setxattr(ROOT, ino, b"user.a", b"v", XattrMode::Set, false).expect("set");
    let before = vfs.getattr(ino).expect("attr");

    vfs.set_mode(READ_ONLY);
    for (what, outcome) in changes(&vfs) {
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::ReadOnly), "{what}");
    }
    let allocate = FallocateMode::Allocate { keep_size: false };
    let refused = [
        ("write", vfs.write(handle, 0, b"other").map(drop)),
        ("fallocate", vfs.fallocate(handle, 0..4096, allocate)),
        ("copy", vfs.copy_range((handle, 0), (other, 0), 5).map(drop)),
    ];
    for (what, outcome) in refused {
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::ReadOnly), "{what}");
    }
    assert_eq!(read(&vfs, handle, 0, 9), b"bytes");
    assert_eq!(vfs.getattr(ino).expect("attr"), before, "a read moves no access time");
    vfs.access(ROOT, ino, 4).expect("may be read");
    vfs.create(ROOT, Ino::ROOT, b"f", 0o644, READER, false).expect("opens what is there");
    // What was written, and what programs have changed through mappings, still becomes durable.
    vfs.write_mapped(handle, 0, b"BYTES").expect("written back");
    vfs.sync().expect("synced");
    rig.crash();
    drop(vfs);

    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert_eq!(read(&vfs, handle, 0, 9), b"BYTES");
    vfs.set_mode(READ_ONLY);
    vfs.set_mode(MountMode::default());
    for (what, outcome) in changes(&vfs) {
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
    }
    vfs.shutdown().expect("ended");
}

#[test]
fn on_a_synchronous_mount_what_is_acknowledged_survives() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    vfs.set_mode(MountMode { sync: true, sync_names: true, ..MountMode::default() });
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, b"bytes");
    vfs.symlink(ROOT, Ino::ROOT, b"s", b"f").expect("made");
    rig.crash();
    drop(vfs);
    let vfs = rig.start(0);
    let (attr, handle) = open(&vfs, "f");
    assert_eq!(read(&vfs, handle, 0, 9), b"bytes");
    assert_eq!(lookup(&vfs, "s").attr.file_type, FileType::Symlink);

    vfs.set_mode(MountMode { sync_names: true, ..MountMode::default() });
    write(&vfs, handle, 0, b"other");
    vfs.unlink(ROOT, Ino::ROOT, b"s").expect("removed");
    rig.crash();
    drop(vfs);
    let vfs = rig.start(0);
    assert!(vfs.lookup(ROOT, Ino::ROOT, b"s").is_err(), "with dirsync names are durable at once");
    let (_, handle) = open(&vfs, "f");
    assert_eq!(read(&vfs, handle, 0, 9), b"bytes", "and data is not");

    vfs.set_mode(MountMode { sync: true, ..MountMode::default() });
    let change = SetAttr { size: Some(2), permissions: Some(0o600), ..SetAttr::default() };
    vfs.setattr(ROOT, attr.ino, None, &change).expect("changed");
    rig.crash();
    drop(vfs);
    let vfs = rig.start(0);
    let attr = lookup(&vfs, "f").attr;
    assert_eq!((attr.size, attr.permissions), (2, 0o600));
    vfs.shutdown().expect("ended");
}

/// Lists the root directory and returns its access time before and after.
fn list(vfs: &StrakeVfs) -> (Timestamp, Timestamp) {
    let atime = || vfs.getattr(Ino::ROOT).expect("attr").atime;
    let before = atime();
    vfs.readdir(Ino::ROOT, 0, false, &mut |_| true).expect("listed");
    (before, atime())
}

#[test]
fn access_times_move_as_the_mount_has_it() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, b"bytes");
    let after_read = |access_times| {
        vfs.set_mode(MountMode { access_times, ..MountMode::default() });
        let before = vfs.getattr(ino).expect("attr").atime;
        read(&vfs, handle, 0, 5);
        (before, vfs.getattr(ino).expect("attr").atime)
    };
    let (before, after) = after_read(AccessTimes::Never);
    assert_eq!(before, after);
    let (before, after) = list(&vfs);
    assert_eq!(before, after);
    let (before, after) = after_read(AccessTimes::Relative);
    assert!(before < after, "the first read since the file was written");
    let (before, after) = after_read(AccessTimes::Relative);
    assert_eq!(before, after);
    let (before, after) = list(&vfs);
    assert!(before < after, "the first listing since the directory was changed");
    let (before, after) = list(&vfs);
    assert_eq!(before, after);
    let (before, after) = after_read(AccessTimes::Always);
    assert!(before < after);
    let (before, after) = list(&vfs);
    assert!(before < after);
    let (access_times, no_directory_times) = (AccessTimes::Always, true);
    vfs.set_mode(MountMode { access_times, no_directory_times, ..MountMode::default() });
    let (before, after) = list(&vfs);
    assert_eq!(before, after);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    assert_eq!(vfs.getattr(Ino::ROOT).expect("attr").atime, after, "it is durable");
    vfs.shutdown().expect("ended");
}
