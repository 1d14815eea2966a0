//! Directories move while others work, and while other directories move.

use super::*;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::store::MetaStore;
use crate::store::Tried;
use crate::store::store_test::Rig;
use crate::testing::{create, entry, new_inode};
use strake_env::Rng;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply, RenameMode};
use strake_proto::{FileType, Ino};

fn make(store: &MetaStore, parent: Ino, name: &str) -> Ino {
    let made = store.apply(&entry(1, create(parent, name, new_inode(FileType::Directory))));
    let MetaReply::Inode(inode) = made.expect("there is room") else { panic!("no inode") };
    inode.attr.ino
}

fn rename(from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> MetaOp {
    let name = |name: &str| name.as_bytes().to_vec();
    MetaOp::Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        mode,
        open: false,
    }
}

fn check(store: &MetaStore) {
    let MetaReply::Checked(reply) = store.query(&MetaQuery::Check).expect("checks") else {
        panic!("no answer of a check")
    };
    assert_eq!(reply.faults, Vec::<String>::new());
}

#[test]
fn others_go_on_while_a_directory_moves_to_the_bottom_of_a_deep_tree() {
    let (_rig, store) = Rig::new(1, 0, false);
    let mut bottom = make(&store, Ino::ROOT, "deep");
    for _ in 0..50 * STEPS {
        bottom = make(&store, bottom, "d");
    }
    make(&store, Ino::ROOT, "moved");
    let mut beside = 0;
    let (mut from, mut to) = ((Ino::ROOT, "moved"), (bottom, "moved"));
    while beside == 0 {
        strake_env::thread::scope(|scope| {
            let move_it = || store.apply(&entry(2, rename(from, to, RenameMode::Replace)));
            let moving = scope.spawn(move_it);
            while !moving.is_finished() {
                // A walk that kept the lock of the state would have it for as long as it walks.
                let was_free = store.state.try_write().is_some();
                beside += u64::from(store.moving.is_locked() && was_free);
            }
            moving.join().expect("no panic").expect("it moves");
        });
        (from, to) = (to, from);
    }
    let state = store.state.read();
    assert!(state.moves > 0);
}

#[test]
fn an_answer_holds_until_another_directory_moves() {
    let (_rig, store) = Rig::new(1, 0, false);
    let (a, b) = (make(&store, Ino::ROOT, "a"), make(&store, Ino::ROOT, "b"));
    let inside = rename((Ino::ROOT, "a"), (b, "inside"), RenameMode::Replace);
    let walked = store.walk_before(&inside).expect("walks");
    let asked = Nesting { inner: b, outer: a };
    assert_eq!(walked.known(store.state.read().moves), [(asked, false)]);
    // A move that has not waited for its turn: `b` is inside `a` now.
    let other = entry(3, rename((Ino::ROOT, "b"), (a, "b"), RenameMode::Replace));
    let bytes = encode_entry(LogEntryRef::Plain(&other)).expect("is short");
    let tried = store.try_apply(LogEntryRef::Plain(&other), &bytes, 0, &Walked::default());
    assert!(matches!(tried, Ok(Tried::Applied(_))));
    assert_eq!(walked.known(store.state.read().moves), []);
    drop(walked);
    let refused = store.apply(&entry(4, inside)).expect_err("into itself");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    check(&store);
}

#[test]
fn directories_that_many_move_at_once_keep_their_ways_to_the_root() {
    const DIRECTORIES: usize = 8;
    for seed in strake_env::rng::test_seeds(1, 4) {
        println!("seed {seed}");
        let (_rig, store) = Rig::new(1, 0, false);
        let all: Vec<Ino> =
            (0..DIRECTORIES).map(|at| make(&store, Ino::ROOT, &format!("d{at}"))).collect();
        let moved: u64 = strake_env::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let (store, all) = (&store, &all);
                    let mut rng = Rng::new(seed * 100 + thread);
                    scope.spawn(move || {
                        let mut moved = 0;
                        for _ in 0..400 {
                            let name = format!("d{}", rng.index(DIRECTORIES));
                            let other = format!("d{}", rng.index(DIRECTORIES));
                            let from = all.get(rng.index(DIRECTORIES + 1)).unwrap_or(&Ino::ROOT);
                            let to = all.get(rng.index(DIRECTORIES + 1)).unwrap_or(&Ino::ROOT);
                            let (mode, other) = match rng.below(4) {
                                0 => (RenameMode::Exchange, other.as_str()),
                                _ => (RenameMode::NoReplace, name.as_str()),
                            };
                            let op = rename((*from, &name), (*to, other), mode);
                            moved += u64::from(store.apply(&entry(2, op)).is_ok());
                        }
                        moved
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert!(moved > 20, "{moved} moves");
        check(&store);
    }
}

/// A parent that is damaged so that it leads back.
#[test]
fn a_way_that_loops_is_found_out() {
    let parent = |ino: Ino| Ok(Ino(if ino.0 == 700 { 300 } else { ino.0 + 1 }));
    let mut climb = Climb::new(Nesting { inner: Ino(2), outer: Ino(1_000_000) });
    let error = climb.go(usize::MAX, parent).expect_err("it loops");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let down = |ino: Ino| Ok(Ino(ino.0 - 1));
    let mut climb = Climb::new(Nesting { inner: Ino(5000), outer: Ino(40) });
    assert_eq!(climb.go(1000, down), Ok(None));
    assert_eq!(climb.go(1_000_000, down), Ok(Some(true)));
    let mut climb = Climb::new(Nesting { inner: Ino(5000), outer: Ino(9000) });
    assert_eq!(climb.go(1_000_000, down), Ok(Some(false)));
}
