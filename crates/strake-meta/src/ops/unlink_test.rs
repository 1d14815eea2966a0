//! Tests what unlink, rmdir, reap and join leave behind.

use crate::testing::{TestFs, create, link, new_inode, removed_of, rmdir, unlink};
use strake_proto::meta::{MetaOp, MetaQuery, MetaReply};
use strake_proto::{ErrorKind, FileType, Ino};

#[test]
fn the_last_name_takes_the_inode_along() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    fs.apply(link(file, Ino::ROOT, "b")).expect("links");
    let removed = removed_of(fs.apply(unlink(Ino::ROOT, "a", false)).expect("unlinks"));
    assert_eq!(removed.map(|removed| (removed.ino, removed.links)), Some((file, 1)));
    let now = fs.inode(file).attr;
    assert_eq!((now.ctime.seconds, now.mtime.seconds), (fs.second, 2), "only ctime moves");
    assert_eq!(fs.inode(Ino::ROOT).attr.mtime.seconds, fs.second);
    fs.apply(unlink(Ino::ROOT, "b", false)).expect("unlinks");
    assert!(fs.is_gone(file));
    fs.check();
}

#[test]
fn an_open_file_lives_as_an_orphan_until_it_is_reaped() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    fs.apply(unlink(Ino::ROOT, "a", true)).expect("unlinks");
    assert_eq!(fs.inode(file).attr.links, 0);
    let orphans = MetaQuery::Orphans { after: Ino(0), limit: 10 };
    assert_eq!(fs.query(&orphans), MetaReply::Inos(vec![file]));
    fs.check();
    assert_eq!(fs.kind(link(file, Ino::ROOT, "b")), ErrorKind::NotFound);
    assert_eq!(fs.kind(MetaOp::Reap { ino: Ino::ROOT }), ErrorKind::Busy);
    fs.apply(MetaOp::Reap { ino: file }).expect("reaps");
    assert!(fs.is_gone(file));
    assert_eq!(fs.query(&orphans), MetaReply::Inos(Vec::new()));
    fs.check();
}

#[test]
fn join_ends_what_the_predecessor_left() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    let kept = fs.make(Ino::ROOT, "b", FileType::Regular);
    for ino in [file, kept] {
        fs.apply(MetaOp::NewObject { ino }).expect("reserves");
    }
    fs.apply(unlink(Ino::ROOT, "a", true)).expect("unlinks");
    let first = fs.apply(MetaOp::Join).expect("joins");
    assert!(fs.is_gone(file) && !fs.is_gone(kept));
    let pending = MetaQuery::PendingRanges { after: 0, limit: 10 };
    match fs.query(&pending) {
        MetaReply::PendingRanges(ranges) => {
            assert_eq!(ranges.len(), 2);
            assert!(ranges.iter().all(|range| range.object_gone && range.waiting.len() == 3));
        }
        other => panic!("{other:?}"),
    }
    assert_ne!(fs.apply(MetaOp::Join).expect("joins"), first, "a grant is given once");
    fs.check();
}

#[test]
fn only_an_empty_directory_is_removed() {
    let mut fs = TestFs::new();
    let dir = fs.make(Ino::ROOT, "d", FileType::Directory);
    assert_eq!(fs.inode(Ino::ROOT).attr.links, 3);
    fs.make(dir, "f", FileType::Fifo);
    assert_eq!(fs.kind(rmdir(Ino::ROOT, "d", false)), ErrorKind::NotEmpty);
    assert_eq!(fs.kind(unlink(Ino::ROOT, "d", false)), ErrorKind::IsDirectory);
    assert_eq!(fs.kind(rmdir(dir, "f", false)), ErrorKind::NotDirectory);
    assert_eq!(fs.kind(rmdir(dir, ".", false)), ErrorKind::Invalid);
    assert_eq!(fs.kind(rmdir(dir, "..", false)), ErrorKind::NotEmpty);
    assert_eq!(fs.kind(unlink(dir, "none", false)), ErrorKind::NotFound);
    fs.apply(unlink(dir, "f", false)).expect("unlinks");
    fs.apply(rmdir(Ino::ROOT, "d", true)).expect("removes");
    assert_eq!(fs.inode(Ino::ROOT).attr.links, 2);
    let inside = create(dir, "x", new_inode(FileType::Regular));
    assert_eq!(fs.kind(inside), ErrorKind::NotFound);
    assert_eq!(fs.inode(dir).attr.links, 0);
    fs.check();
}
