//! Rename as Linux does it, case by case.

use super::Name;
use crate::testing::{TestFs, link, removed_of};
use crate::transaction::Transaction;
use strake_proto::meta::{MetaOp, RenameMode};
use strake_proto::{ClientId, ErrorKind, FileType, Ino, Timestamp};

fn rename(from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> MetaOp {
    MetaOp::Rename {
        parent: from.0,
        name: from.1.as_bytes().to_vec(),
        new_parent: to.0,
        new_name: to.1.as_bytes().to_vec(),
        mode,
        open: false,
    }
}

fn replace(from: (Ino, &str), to: (Ino, &str)) -> MetaOp {
    rename(from, to, RenameMode::Replace)
}

const ROOT: Ino = Ino::ROOT;

/// A transaction looks for an inode among all that it keeps. If it kept each directory of a walk, a
/// rename into a deep tree would hold up everybody for minutes.
#[test]
fn a_walk_to_the_root_keeps_no_directories() {
    let mut fs = TestFs::new();
    let outer = fs.make(ROOT, "outer", FileType::Directory);
    let mut deepest = outer;
    for _ in 0..500 {
        deepest = fs.make(deepest, "d", FileType::Directory);
    }
    let kv = fs.meta.snapshot();
    let time = Timestamp { seconds: 1, nanos: 0 };
    let mut txn = Transaction::new(&kv, ClientId(1), time);
    let (source, target) = ((ROOT, "outer"), (deepest, "inside"));
    let name = |(parent, name): (Ino, &'static str)| Name { parent, name: name.as_bytes() };
    let refused = super::rename(&mut txn, name(source), name(target), RenameMode::Replace, false);
    assert_eq!(refused.expect_err("into itself").kind(), ErrorKind::Invalid);
    assert!(txn.kept() <= 4, "{} directories are kept", txn.kept());
}

#[test]
fn a_replaced_name_keeps_its_place_and_the_old_inode_goes() {
    let mut fs = TestFs::new();
    let old = fs.make(ROOT, "old", FileType::Regular);
    let new = fs.make(ROOT, "new", FileType::Regular);
    let place = fs.list(ROOT)[0].cookie;
    let removed = removed_of(fs.apply(replace((ROOT, "new"), (ROOT, "old"))).expect("renames"));
    assert_eq!(removed.map(|removed| (removed.ino, removed.links)), Some((old, 0)));
    let listed = fs.list(ROOT);
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].ino, listed[0].cookie), (new, place));
    assert!(fs.is_gone(old));
    assert_eq!(fs.inode(new).attr.ctime.seconds, fs.second);
    fs.check();
}

/// Acts like a program that renames each file it is shown. If a renamed file got a new place, the
/// listing would show it again, for ever.
#[test]
fn a_name_keeps_its_place_in_its_directory_however_it_is_called() {
    let mut fs = TestFs::new();
    let d = fs.make(ROOT, "d", FileType::Directory);
    let file = fs.make(ROOT, "file", FileType::Regular);
    fs.make(ROOT, "last", FileType::Regular);
    let before: Vec<_> = fs.list(ROOT).into_iter().map(|it| (it.ino, it.cookie)).collect();
    for (old, new) in [("file", "x"), ("d", "file"), ("x", "d"), ("d", "x"), ("last", "a")] {
        fs.apply(replace((ROOT, old), (ROOT, new))).expect("renames");
        let after: Vec<_> = fs.list(ROOT).into_iter().map(|it| (it.ino, it.cookie)).collect();
        assert_eq!(after, before, "{old} to {new}");
        fs.check();
    }
    assert_eq!((fs.lookup(ROOT, "file"), fs.lookup(ROOT, "x")), (Ok(d), Ok(file)));
    assert_eq!(fs.inode(ROOT).attr.mtime.seconds, fs.second);
    // In another directory the name gets the next free place.
    fs.apply(replace((ROOT, "x"), (d, "x"))).expect("renames");
    fs.apply(replace((d, "x"), (ROOT, "x"))).expect("renames");
    assert_eq!(fs.list(ROOT).last().map(|it| it.ino), Some(file));
}

#[test]
fn a_directory_moves_with_its_dot_dot_and_the_links_follow() {
    let mut fs = TestFs::new();
    let from = fs.make(ROOT, "from", FileType::Directory);
    let to = fs.make(ROOT, "to", FileType::Directory);
    let moved = fs.make(from, "d", FileType::Directory);
    fs.apply(replace((from, "d"), (to, "d"))).expect("renames");
    assert_eq!((fs.inode(from).attr.links, fs.inode(to).attr.links), (2, 3));
    assert_eq!(fs.lookup(moved, ".."), Ok(to));
    assert_eq!(fs.lookup(to, "d"), Ok(moved));
    fs.check();
}

#[test]
fn what_linux_refuses_is_refused_in_its_order() {
    let mut fs = TestFs::new();
    let a = fs.make(ROOT, "a", FileType::Directory);
    let b = fs.make(a, "b", FileType::Directory);
    let file = fs.make(b, "file", FileType::Regular);
    fs.make(ROOT, "empty", FileType::Directory);
    assert_eq!(fs.kind(replace((ROOT, "a"), (b, "x"))), ErrorKind::Invalid);
    assert_eq!(fs.kind(replace((ROOT, "a"), (a, "x"))), ErrorKind::Invalid);
    assert_eq!(fs.kind(replace((b, "file"), (ROOT, "a"))), ErrorKind::NotEmpty);
    assert_eq!(fs.kind(replace((b, "file"), (ROOT, "empty"))), ErrorKind::IsDirectory);
    assert_eq!(fs.kind(replace((ROOT, "empty"), (b, "file"))), ErrorKind::NotDirectory);
    assert_eq!(fs.kind(replace((ROOT, "empty"), (ROOT, "a"))), ErrorKind::NotEmpty);
    assert_eq!(fs.kind(replace((ROOT, "none"), (ROOT, "x"))), ErrorKind::NotFound);
    assert_eq!(fs.kind(replace((ROOT, "."), (ROOT, "x"))), ErrorKind::Busy);
    let no_replace = rename((ROOT, "empty"), (ROOT, "a"), RenameMode::NoReplace);
    assert_eq!(fs.kind(no_replace), ErrorKind::Exists);
    let exchange = rename((ROOT, "a"), (b, "file"), RenameMode::Exchange);
    assert_eq!(fs.kind(exchange), ErrorKind::Invalid);
    let exchange = rename((ROOT, "a"), (ROOT, "none"), RenameMode::Exchange);
    assert_eq!(fs.kind(exchange), ErrorKind::NotFound);
    assert_eq!(fs.inode(file).attr.links, 1);
    fs.check();
}

#[test]
fn two_names_of_one_inode_stay_as_they_are() {
    let mut fs = TestFs::new();
    let file = fs.make(ROOT, "a", FileType::Regular);
    fs.apply(link(file, ROOT, "b")).expect("links");
    let before = fs.inode(file);
    assert_eq!(removed_of(fs.apply(replace((ROOT, "a"), (ROOT, "b"))).expect("a no-op")), None);
    assert_eq!(fs.list(ROOT).len(), 2);
    assert_eq!(fs.inode(file), before);
    fs.check();
}

#[test]
fn exchange_swaps_a_file_and_a_directory() {
    let mut fs = TestFs::new();
    let d = fs.make(ROOT, "d", FileType::Directory);
    let inner = fs.make(d, "inner", FileType::Directory);
    let file = fs.make(ROOT, "file", FileType::Regular);
    fs.apply(rename((ROOT, "file"), (d, "inner"), RenameMode::Exchange)).expect("exchanges");
    assert_eq!((fs.lookup(d, "inner"), fs.lookup(ROOT, "file")), (Ok(file), Ok(inner)));
    assert_eq!((fs.inode(ROOT).attr.links, fs.inode(d).attr.links), (4, 2));
    assert_eq!(fs.lookup(inner, ".."), Ok(ROOT));
    fs.check();
}
