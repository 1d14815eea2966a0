//! What the comparison with another file system found, each by itself.

use crate::testing::Mounted;
use crate::testing::Rig;
use crate::vfs::{Entry, Handle, MakeNode, OpenFlags, SetAttr, Vfs};
use strake_proto::{Caller, ErrorKind, FileType, Groups, Ino};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;

fn create(vfs: &Mounted, name: &str, permissions: u32) -> (Ino, Handle) {
    let (entry, opened) =
        vfs.create(ROOT, Ino::ROOT, name.as_bytes(), permissions, RW, true).expect("created");
    (entry.attr.ino, opened.handle)
}

fn member(uid: u32, groups: &[u32]) -> Caller {
    Caller { uid, gid: uid, pid: 0, umask: 0, groups: Groups::Known(groups.to_vec()) }
}

#[test]
fn pages_of_a_mapping_stay_in_place_through_an_appending_handle() {
    let rig = Rig::new("2x", 4);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "mapped", 0o644);
    vfs.write(handle, 0, &[1; 5000]).expect("written");
    let appending = vfs.open(ROOT, ino, OpenFlags { append: true, ..RW }).expect("opened").handle;
    assert_eq!(vfs.write_mapped(appending, 100, &[2; 50]).expect("written"), 50);
    assert_eq!(vfs.getattr(ino).expect("attr").size, 5000);
    let mut bytes = [0; 5000];
    assert_eq!(vfs.read(handle, 0, &mut bytes).expect("read"), 5000);
    assert!(bytes.iter().enumerate().all(|(at, &b)| b == 1 + u8::from((100..150).contains(&at))));
    let reader = OpenFlags { write: false, ..RW };
    let reader = vfs.open(ROOT, ino, reader).expect("opened").handle;
    let refused = vfs.write_mapped(reader, 0, &[3]).expect_err("not open for writing");
    assert_eq!(refused.kind(), ErrorKind::BadHandle);
}

#[test]
fn setgid_without_group_execution_is_kept_only_by_members_of_the_group() {
    let rig = Rig::new("2x", 4);
    let vfs = rig.start(0);
    let kill = SetAttr { kill_privileges: true, ..SetAttr::default() };
    for (at, (caller, before, after)) in [
        (member(7, &[0]), 0o2644, 0o2644),
        (member(7, &[8]), 0o2644, 0o644),
        (member(7, &[0]), 0o6755, 0o755),
        (member(7, &[8]), 0o4644, 0o644),
        (member(7, &[8]), 0o6644, 0o644),
        (member(7, &[8]), 0o6777, 0o777),
    ]
    .into_iter()
    .enumerate()
    {
        let (ino, handle) = create(&vfs, &format!("f{at}"), before);
        let mode = SetAttr { permissions: Some(before), ..SetAttr::default() };
        vfs.setattr(ROOT, ino, None, &mode).expect("chmod");
        let attr = vfs.setattr(&caller, ino, Some(handle), &kill).expect("cleared");
        assert_eq!(attr.permissions, after, "{before:o} by a member of {:?}", caller.groups);
        assert_eq!(vfs.getattr(ino).expect("attr").permissions, after);
    }
}

#[test]
fn a_change_that_names_nothing_moves_the_change_time_and_clears_privileges() {
    let rig = Rig::new("2x", 4);
    let vfs = rig.start(0);
    let (ino, _) = create(&vfs, "f", 0o755);
    let mode = SetAttr { permissions: Some(0o6755), ..SetAttr::default() };
    let before = vfs.setattr(ROOT, ino, None, &mode).expect("chmod");
    let after = vfs.setattr(ROOT, ino, None, &SetAttr::default()).expect("chown(-1, -1)");
    assert_eq!(after.permissions, 0o755);
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    // A directory keeps them: they mean something else there.
    let dir = vfs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let mode = SetAttr { permissions: Some(0o2755), ..SetAttr::default() };
    vfs.setattr(ROOT, dir, None, &mode).expect("chmod");
    assert_eq!(
        vfs.setattr(ROOT, dir, None, &SetAttr::default()).expect("nothing").permissions,
        0o2755
    );
}

#[test]
fn what_the_kernel_still_has_open_changes_its_attributes_without_a_name() {
    let rig = Rig::new("2x", 4);
    let vfs = rig.start(0);
    let fifo = MakeNode { file_type: FileType::Fifo, permissions: 0o600, rdev: 0 };
    let Entry { attr } = vfs.mknod(ROOT, Ino::ROOT, b"fifo", fifo).expect("made");
    vfs.unlink(ROOT, Ino::ROOT, b"fifo").expect("removed");
    let change = SetAttr { permissions: Some(0o640), uid: Some(5), ..SetAttr::default() };
    let changed = vfs.setattr(ROOT, attr.ino, None, &change).expect("changed");
    assert_eq!((changed.permissions, changed.uid, changed.links), (0o640, 5, 0));
    assert_eq!(vfs.getattr(attr.ino).expect("attr").permissions, 0o640);
    // What only an O_PATH descriptor holds keeps the size it had, committed or not.
    let (ino, handle) = create(&vfs, "path only", 0o644);
    vfs.write(handle, 0, &[1; 9000]).expect("written");
    vfs.release(handle);
    vfs.unlink(ROOT, Ino::ROOT, b"path only").expect("removed");
    assert_eq!(vfs.getattr(ino).expect("attr").size, 9000);
    // So does what was open beside it when its name went, after the last close.
    let (ino, handle) = create(&vfs, "open and path", 0o644);
    vfs.write(handle, 0, &[1; 9000]).expect("written");
    vfs.unlink(ROOT, Ino::ROOT, b"open and path").expect("removed");
    let change = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    vfs.setattr(ROOT, ino, None, &change).expect("changed");
    vfs.release(handle);
    let last = vfs.getattr(ino).expect("the kernel still has it");
    assert_eq!((last.size, last.permissions, last.links), (9000, 0o600, 0));
    // The time of the removal does not move again when it is asked for.
    let (ino, handle) = create(&vfs, "open", 0o644);
    vfs.unlink(ROOT, Ino::ROOT, b"open").expect("removed");
    let removed = vfs.getattr(ino).expect("attr").ctime;
    vfs.fsync(handle).expect("synced");
    assert_eq!(vfs.getattr(ino).expect("attr").ctime, removed);
}
