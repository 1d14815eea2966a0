//! Tests that attributes and ACLs behave as on Linux.

use crate::testing::{TestFs, create, inode_of, new_inode};
use strake_proto::acl::{ACCESS_NAME, Acl, AclEntry, AclTag, DEFAULT_NAME};
use strake_proto::meta::{AttrChange, MetaOp, MetaQuery, MetaReply, XattrMode};
use strake_proto::{ErrorKind, FileType, Ino};

fn set(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> MetaOp {
    let (name, value) = (name.to_vec(), value.to_vec());
    MetaOp::SetXattr { ino, name, value, mode, clear_setgid: false }
}

/// `u::rwx,u:7:rwx,g::r-x,m::rwx,o::---`
fn list() -> Vec<u8> {
    let entries = [
        (AclTag::Owner, 7),
        (AclTag::User(7), 7),
        (AclTag::OwningGroup, 5),
        (AclTag::Mask, 7),
        (AclTag::Others, 0),
    ];
    let entries = entries.map(|(tag, permissions)| AclEntry { tag, permissions });
    Acl::new(entries.to_vec()).expect("valid").to_xattr()
}

fn value(fs: &TestFs, ino: Ino, name: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    use strake_proto::meta::MetaPort;
    match fs.meta.query(&MetaQuery::GetXattr { ino, name: name.to_vec() }) {
        Ok(MetaReply::Bytes(bytes)) => Ok(bytes),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn limits_and_flags_are_those_of_linux() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "f", FileType::Regular);
    let mode = XattrMode::Set;
    assert_eq!(fs.kind(set(file, b"user.a", &[0; 65537], mode)), ErrorKind::TooBig);
    assert_eq!(fs.kind(set(file, &[b'u'; 256], b"", mode)), ErrorKind::Range);
    assert_eq!(fs.kind(set(file, b"other.a", b"", mode)), ErrorKind::NotSupported);
    assert_eq!(fs.kind(set(file, b"user.", b"", mode)), ErrorKind::Invalid);
    assert_eq!(fs.kind(set(file, b"user.a", b"", XattrMode::Replace)), ErrorKind::NoAttribute);
    fs.apply(set(file, b"user.a", &[1; 65536], XattrMode::Create)).expect("sets");
    assert_eq!(fs.kind(set(file, b"user.a", b"", XattrMode::Create)), ErrorKind::Exists);
    for index in 0..15 {
        let name = format!("user.{index}");
        fs.apply(set(file, name.as_bytes(), &[1; 65536], mode)).expect("sets");
    }
    assert_eq!(fs.kind(set(file, b"user.more", b"x", mode)), ErrorKind::NoSpace);
    fs.apply(MetaOp::RemoveXattr { ino: file, name: b"user.a".to_vec() }).expect("removes");
    assert_eq!(value(&fs, file, b"user.a"), Err(ErrorKind::NoAttribute));
    let again = MetaOp::RemoveXattr { ino: file, name: b"user.a".to_vec() };
    assert_eq!(fs.kind(again), ErrorKind::NoAttribute);
    fs.check();
}

#[test]
fn an_access_acl_and_the_mode_follow_each_other() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "f", FileType::Regular);
    fs.apply(set(file, ACCESS_NAME, &list(), XattrMode::Set)).expect("sets");
    let inode = fs.inode(file);
    assert_eq!((inode.attr.permissions, inode.has_acl), (0o770, true));
    let change = AttrChange { permissions: Some(0o4_640), ..AttrChange::default() };
    fs.set_attr(file, change);
    let acl = Acl::from_xattr(&value(&fs, file, ACCESS_NAME).expect("is there"));
    let acl = acl.expect("valid").expect("not empty");
    assert_eq!(acl.entries()[3].permissions, 4, "chmod sets the mask");
    assert_eq!(acl.entries()[2].permissions, 5, "and spares the owning group");
    fs.apply(MetaOp::RemoveXattr { ino: file, name: ACCESS_NAME.to_vec() }).expect("removes");
    let inode = fs.inode(file);
    assert_eq!((inode.attr.permissions, inode.has_acl), (0o4_640, false));
    fs.apply(MetaOp::RemoveXattr { ino: file, name: ACCESS_NAME.to_vec() }).expect("no error");
    assert_eq!(fs.kind(set(file, DEFAULT_NAME, &list(), XattrMode::Set)), ErrorKind::Access);
    fs.check();
}

#[test]
fn a_default_acl_is_inherited_instead_of_the_umask() {
    let mut fs = TestFs::new();
    let dir = fs.make(Ino::ROOT, "d", FileType::Directory);
    fs.apply(set(dir, DEFAULT_NAME, &list(), XattrMode::Set)).expect("sets");
    let mut new = new_inode(FileType::Regular);
    new.permissions = 0o666;
    new.umask = 0o777;
    let file = inode_of(fs.apply(create(dir, "f", new)).expect("creates"));
    assert_eq!((file.attr.permissions, file.has_acl), (0o660, true));
    let inner = fs.make(dir, "inner", FileType::Directory);
    assert_eq!(value(&fs, inner, DEFAULT_NAME), Ok(list()));
    let link = fs.make(dir, "link", FileType::Symlink);
    assert_eq!(fs.inode(link).attr.permissions, 0o777);
    fs.check();
}
