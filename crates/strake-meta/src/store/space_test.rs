//! Metadata that has used all its space. Nothing can be added, and everything else goes on.

use crate::store::store_test::*;
use crate::store::*;
use crate::testing::{create, entry, new_inode, unlink};
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::meta::FileData;
use strake_proto::{FileType, Ino};

/// Far more files than fit.
const FILES_MAX: u64 = 200_000;

struct Files {
    rng: Rng,
    /// The names and inodes that exist.
    there: Vec<(String, Ino)>,
    made: u64,
}

impl Files {
    /// Makes files until there is no space, some with contents. Returns how many it made.
    fn fill(&mut self, store: &MetaStore) -> u64 {
        let before = self.made;
        loop {
            self.made += 1;
            assert!(self.made < before + FILES_MAX, "it never fills");
            let name = format!("file-{}", self.made);
            let made = create(Ino::ROOT, &name, new_inode(FileType::Regular));
            match store.apply(&entry(5, made)) {
                Ok(MetaReply::Inode(inode)) => {
                    let ino = inode.attr.ino;
                    if self.rng.one_in(3) && room(store) > 16 << 10 {
                        write(store, ino, self.rng.index(4000));
                    }
                    self.there.push((name, ino));
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    return self.made - before - 1;
                }
            }
        }
    }

    fn remove(&mut self, store: &MetaStore, at: usize) {
        let (name, _) = self.there.swap_remove(at);
        let removed = store.apply(&entry(5, unlink(Ino::ROOT, &name, false)));
        removed.unwrap_or_else(|error| panic!("{name} removed: {error}"));
    }
}

fn room(store: &MetaStore) -> u64 {
    match store.query(&MetaQuery::Counts) {
        Ok(MetaReply::Counts(counts)) => counts.metadata_free,
        other => panic!("{other:?}"),
    }
}

fn write(store: &MetaStore, ino: Ino, bytes: usize) {
    let (mtime, ctime, allocated_delta) = (None, None, 0);
    let data = Some(FileData::Inline(vec![7; bytes]));
    let told = MetaOp::Update { ino, size: 4000, data, allocated_delta, mtime, ctime };
    store.apply(&entry(5, told)).expect("contents that had room");
}

#[test]
fn what_is_full_takes_nothing_more_and_lets_everything_be_removed() {
    for seed in test_seeds(1, 2 * test_scale()) {
        eprintln!("seed {seed}");
        let (rig, mut store) = Rig::new(2, 1, true);
        let mut files = Files { rng: Rng::new(seed), there: Vec::new(), made: 0 };
        assert!(files.fill(&store) > 1000, "a small part of it");
        for _ in 0..4 {
            // A file can be written anew any number of times, because that makes it no larger.
            for _ in 0..1000 {
                let (_, ino) = files.there[files.rng.index(files.there.len())];
                write(&store, ino, 0);
            }
            let part = [10, 2, 1][files.rng.index(3)];
            let before = files.there.len() as u64;
            for at in (0..files.there.len()).rev() {
                if files.rng.one_in(part) {
                    files.remove(&store, at);
                }
            }
            match files.rng.index(3) {
                0 => store.checkpoint().expect("space"),
                1 => store.tick(),
                _ => {}
            }
            store.sync().expect("durable");
            if files.rng.one_in(2) {
                drop(store);
                store = rig.open(&[]).expect("opens however full it is");
            }
            let removed = before - files.there.len() as u64;
            let again = files.fill(&store);
            assert!(again >= removed / 4, "{removed} removed, {again} fit");
        }
        assert!(!store.is_full.load(Ordering::Acquire), "no checkpoint lacked space");
        while !files.there.is_empty() {
            files.remove(&store, files.there.len() - 1);
        }
        store.checkpoint().expect("space");
        assert!(files.fill(&store) > 1000, "there is as much room as before");
        let (_, ino) = files.there[0];
        assert!(matches!(store.query(&MetaQuery::GetInode { ino }), Ok(MetaReply::Inode(_))));
        match store.query(&MetaQuery::Check).expect("checks") {
            MetaReply::Checked(reply) => assert!(reply.faults.is_empty(), "{reply:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn whoever_makes_room_is_never_refused_because_of_others_who_write() {
    for seed in test_seeds(1, 2 * test_scale()) {
        eprintln!("seed {seed}");
        let (_rig, store) = Rig::new(2, 1, true);
        let mut files = Files { rng: Rng::new(seed), there: Vec::new(), made: 0 };
        files.fill(&store);
        let parts: Vec<Vec<_>> =
            files.there.chunks(files.there.len() / 8).map(<[_]>::to_vec).collect();
        let write_and_remove = |number: usize, there| {
            let rng = Rng::new(seed * 100 + number as u64);
            let mut mine = Files { rng, there, made: 0 };
            while !mine.there.is_empty() {
                for _ in 0..10 {
                    let (_, ino) = mine.there[mine.rng.index(mine.there.len())];
                    write(&store, ino, 0);
                }
                let at = mine.rng.index(mine.there.len());
                mine.remove(&store, at);
            }
        };
        strake_env::thread::scope(|scope| {
            for (number, part) in parts.into_iter().enumerate() {
                let work = &write_and_remove;
                scope.spawn(move || work(number, part));
            }
        });
        assert!(!store.is_full.load(Ordering::Acquire), "no checkpoint lacked space");
    }
}

#[test]
fn what_was_removed_makes_room_at_once() {
    let (_rig, store) = Rig::new(2, 1, true);
    let mut files = Files { rng: Rng::new(1), there: Vec::new(), made: 0 };
    files.fill(&store);
    for _ in 0..10 {
        for _ in 0..5 {
            let at = files.rng.index(files.there.len());
            files.remove(&store, at);
        }
        assert!(files.fill(&store) > 0);
    }
}
