//! The check finds every contradiction that is planted here.

use crate::keys;
use crate::records::{COUNTERS, Counters, DentryRecord, InodeRecord, decode, encode};
use crate::testing::{TestFs, link};
use strake_proto::meta::{MetaOp, XattrMode};
use strake_proto::{FileType, Ino};
use strake_store::{Batch, KvRead};

/// A sound file system with something in every table.
fn rich() -> (TestFs, Ino, Ino) {
    let mut fs = TestFs::new();
    let dir = fs.make(Ino::ROOT, "dir", FileType::Directory);
    let file = fs.make(dir, "file", FileType::Regular);
    fs.apply(link(file, Ino::ROOT, "other")).expect("links");
    fs.apply(MetaOp::NewObject { ino: file }).expect("reserves");
    fs.apply(MetaOp::SetXattr {
        ino: file,
        name: b"user.a".to_vec(),
        value: b"b".to_vec(),
        mode: XattrMode::Set,
        clear_setgid: false,
    })
    .expect("sets");
    fs.check();
    (fs, dir, file)
}

/// Damages one record and expects a fault that mentions `what`.
fn damaged(what: &str, damage: impl FnOnce(&dyn KvRead, Ino, Ino, &mut Batch)) {
    let (fs, dir, file) = rich();
    let mut kv = fs.meta.snapshot();
    let mut batch = Batch::new();
    damage(&kv, dir, file, &mut batch);
    kv.apply(&batch);
    let faults = super::check(&kv).expect("walks").faults;
    assert!(faults.iter().any(|fault| fault.contains(what)), "{what}: {faults:?}");
}

fn change(kv: &dyn KvRead, ino: Ino, batch: &mut Batch, change: impl FnOnce(&mut InodeRecord)) {
    let stored = kv.get(&keys::inode(ino)).expect("reads").expect("is there");
    let mut record = InodeRecord::decode(&stored).expect("decodes");
    change(&mut record);
    batch.put(keys::inode(ino), record.encode());
}

#[test]
fn every_contradiction_is_found() {
    damaged("2 names", |kv, _, file, batch| change(kv, file, batch, |record| record.links = 3));
    damaged("subdirectories", |kv, dir, _, batch| {
        change(kv, dir, batch, |record| record.links = 3);
    });
    damaged("counts 9", |kv, dir, _, batch| change(kv, dir, batch, |record| record.entries = 9));
    damaged("cookie is out of range", |kv, dir, _, batch| {
        change(kv, dir, batch, |record| record.next_cookie = 3);
    });
    damaged("no way to the root", |kv, dir, _, batch| {
        change(kv, dir, batch, |record| record.parent = dir);
    });
    damaged("an orphan's record: false", |kv, _, file, batch| {
        change(kv, file, batch, |record| record.links = 0);
    });
    damaged("do not fit together", |kv, dir, _, batch| {
        change(kv, dir, batch, |record| record.size = 5);
    });
    damaged("bytes are allocated", |kv, _, file, batch| {
        change(kv, file, batch, |record| record.allocated = 5);
    });
    damaged("not those it counts", |kv, _, file, batch| {
        change(kv, file, batch, |record| record.xattr_count = 0);
    });
    damaged("reserved object 1 is not its file's", |kv, _, file, batch| {
        change(kv, file, batch, |record| record.reserved.clear());
    });
    damaged("leads to no such inode", |_, _, file, batch| batch.delete(keys::inode(file)));
    damaged("a place in directory", |_, dir, _, batch| batch.delete(keys::dentry(dir, b"file")));
    damaged("name and place disagree", |_, dir, _, batch| batch.delete(keys::cookie(dir, 3)));
    damaged("does not decode", |_, _, file, batch| batch.put(keys::inode(file), vec![1, 2]));
    damaged("inodes were found", |kv, _, _, batch| {
        let stored = kv.get(&keys::global(COUNTERS)).expect("reads").expect("is there");
        let counters: Counters = decode(&stored).expect("decodes");
        let wrong = Counters { inodes: 9, ..counters };
        batch.put(keys::global(COUNTERS), encode(&wrong));
    });
    damaged("has another parent", |kv, dir, _, batch| {
        let stored = kv.get(&keys::dentry(Ino::ROOT, b"dir")).expect("reads").expect("is there");
        let dentry: DentryRecord = decode(&stored).expect("decodes");
        batch.put(keys::dentry(dir, b"file"), encode(&dentry));
    });
}
