//! A check of everything while the store is in use.

use crate::store::store_test::*;
use crate::store::*;
use crate::testing::{create, entry, new_inode};
use strake_proto::{FileType, Ino};
use strake_store::KvRead;

/// Directories one in the other, so that the check has something to do.
fn deep() -> (Rig, MetaStore) {
    let (rig, store) = Rig::new(2, 1, false);
    let mut parent = Ino::ROOT;
    for second in 0..3000 {
        let made = store.apply(&entry(second, create(parent, "d", new_inode(FileType::Directory))));
        let MetaReply::Inode(inode) = made.expect("there is room") else { panic!("no inode") };
        parent = inode.attr.ino;
    }
    (rig, store)
}

#[test]
fn changes_go_on_while_a_check_reads_everything() {
    let (_rig, store) = deep();
    let beside = strake_env::thread::scope(|scope| {
        let checking = scope.spawn(|| store.query(&MetaQuery::Check).expect("checks"));
        let mut beside = 0u64;
        while !checking.is_finished() {
            // A check that shared the lock of the state would have it before it shuts out others.
            let was_free = store.state.try_write().is_some();
            beside += u64::from(store.checking.is_locked() && was_free);
        }
        let MetaReply::Checked(reply) = checking.join().expect("no panic") else { panic!("?") };
        assert_eq!((reply.faults, reply.inodes), (Vec::new(), 3001));
        beside
    });
    assert!(beside > 0, "the check kept changes out");
}

#[test]
fn a_check_ends_for_a_checkpoint_that_needs_its_pages() {
    let (_rig, store) = deep();
    let holders = store.state.read().holders.clone();
    assert!(!store.end_check(&holders), "there is none");
    let (sender, begun) = strake_env::channel::channel();
    strake_env::thread::scope(|scope| {
        let (store, holders) = (&store, &holders);
        let checking = scope.spawn(move || {
            let _alone = store.checking.lock();
            let view = holders[0].kv.view();
            sender.send(()).expect("somebody waits");
            loop {
                if let Err(error) = view.get(b"any") {
                    return error.kind();
                }
            }
        });
        begun.recv().expect("it begins");
        assert!(store.end_check(holders));
        assert_eq!(checking.join().expect("no panic"), ErrorKind::Busy);
    });
}

#[test]
fn a_check_ends_when_its_caller_wants_it_no_more_and_the_next_one_runs() {
    let (_rig, store) = deep();
    let names = || -> Vec<String> {
        let all = store.options.waiters.snapshot();
        all.into_iter().map(|wait| wait.reason).collect()
    };
    let end = |number| store.query(&MetaQuery::EndCheck { number }).expect("asked");
    strake_env::thread::scope(|scope| {
        // One waits for another one, and one reads: both end.
        let another = store.checking.lock();
        let waiting = scope.spawn(|| store.query(&MetaQuery::CheckAs { number: 1 }));
        while names() != ["another check of the metadata"] {
            strake_env::thread::yield_now();
        }
        assert_eq!(end(2), MetaReply::Done);
        assert!(!waiting.is_finished(), "it has another number");
        end(1);
        let error = waiting.join().expect("no panic").expect_err("it was ended");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        drop(another);
        let reading = scope.spawn(|| {
            loop {
                let checked = store.query(&MetaQuery::CheckAs { number: 3 });
                if let Err(error) = checked {
                    return error;
                }
            }
        });
        while !reading.is_finished() {
            end(3);
        }
        assert_eq!(reading.join().expect("no panic").kind(), ErrorKind::Interrupted);
    });
    let MetaReply::Checked(reply) = store.query(&MetaQuery::CheckAs { number: 3 }).expect("checks")
    else {
        panic!("?")
    };
    assert_eq!((reply.faults, reply.inodes), (Vec::new(), 3001));
}

#[test]
fn a_wait_for_the_lock_of_the_metadata_is_listed_with_its_holder() {
    let (_rig, store) = Rig::new(1, 0, false);
    strake_env::thread::scope(|scope| {
        let held = store.state.write();
        let asking = scope.spawn(|| store.query(&MetaQuery::Counts).expect("answers"));
        let holder = loop {
            assert!(!asking.is_finished(), "it was held up by nobody");
            let mut waits = strake_env::lock_waits::lock_waits().into_iter();
            if let Some(wait) = waits.find(|wait| wait.thread.id() == asking.thread().id()) {
                assert_eq!((wait.name, wait.mode), ("metadata lock", "shared"));
                break wait.holders[0].thread.id();
            }
            strake_env::thread::yield_now();
        };
        assert_eq!(holder, strake_env::thread::current().id());
        drop(held);
        asking.join().expect("no panic");
    });
}
