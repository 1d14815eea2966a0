//! Counted changes on copies on disks. The log has the changes, and no log has the refusals.

use crate::store::store_test::*;
use crate::store::*;
use crate::testing::{create, entry, new_inode, unlink};
use strake_proto::{FileType, Ino};

const LIFE: u64 = 9;

fn counted(life: u64, oldest: u64, sequence: u64, op: MetaOp) -> CountedEntry {
    let entry = MetaEntry { sequence, ..entry(sequence as i64, op) };
    CountedEntry { life, oldest, entry }
}

fn make(sequence: u64) -> CountedEntry {
    let name = sequence.to_string();
    counted(LIFE, sequence, sequence, create(Ino::ROOT, &name, new_inode(FileType::Regular)))
}

fn joined(store: &MetaStore) -> CountedAnswer {
    store.apply_counted(&counted(LIFE, 1, 1, MetaOp::Join)).expect("joins")
}

#[test]
fn counted_changes_are_in_the_log_with_their_answers() {
    let (rig, store) = Rig::new(4, 1, true);
    assert_eq!(joined(&store).position, 2, "after the format");
    for sequence in 2..50 {
        store.apply_counted(&make(sequence)).expect("answered").outcome.expect("made");
    }
    let last = make(49);
    let answer = store.apply_counted(&last).expect("answered");
    assert_eq!((answer.position, store.entries()), (50, 50), "again is no entry");
    let refused = CountedEntry { oldest: 49, ..make(50) };
    let refused =
        CountedEntry { entry: MetaEntry { op: last.entry.op.clone(), ..refused.entry }, ..refused };
    let refusal = store.apply_counted(&refused).expect("answered");
    assert_eq!(refusal.outcome.as_ref().expect_err("there is one").kind(), ErrorKind::Exists);
    store.sync().expect("synced");
    for round in 0..2 {
        let store = rig.open(&[]).expect("opens");
        let snapshots = store.snapshots().expect("read");
        assert!(snapshots.iter().all(|kv| *kv == snapshots[0]), "round {round}");
        assert_eq!(store.apply_counted(&last).as_ref(), Ok(&answer));
        assert_eq!(store.apply_counted(&refused).as_ref(), Ok(&refusal));
        let passed = store.apply_counted(&make(48)).map_err(|error| error.kind());
        assert_eq!(passed, Err(ErrorKind::Stale));
        // The second time the answers come from the base.
        store.checkpoint().expect("checkpoints");
    }
    let store = rig.open(&[]).expect("opens");
    store.apply(&entry(60, MetaOp::Join)).expect("an uncounted life");
    let closed = store.apply_counted(&last).map_err(|error| error.kind());
    assert_eq!(closed, Err(ErrorKind::Fenced));
}

#[test]
fn no_number_is_told_before_it_is_durable_whose_it_is() {
    let (rig, store) = Rig::new(4, 1, true);
    let durable = || rig.copy().open(&[]).expect("opens").entries();
    joined(&store);
    assert_eq!(durable(), 2, "a life has a grant, which is told");
    store.apply_counted(&make(2)).expect("answered").outcome.expect("made");
    assert_eq!(durable(), 3, "it took a range of numbers");
    store.apply_counted(&make(3)).expect("answered").outcome.expect("made");
    assert_eq!(durable(), 3, "from a range that is durable");
    let answer = store.apply_counted(&make(4)).expect("answered");
    // What is sent again after a crash gets the numbers that it had.
    let store = rig.copy().open(&[]).expect("opens");
    store
        .apply(&entry(60, create(Ino::ROOT, "other", new_inode(FileType::Regular))))
        .expect("made");
    store.apply_counted(&make(3)).expect("answered").outcome.expect("made");
    assert_eq!(store.apply_counted(&make(4)).expect("answered").outcome, answer.outcome);
}

#[test]
fn a_change_that_was_refused_without_an_entry_stays_refused() {
    let (_rig, store) = Rig::new(3, 1, true);
    joined(&store);
    let full = || Error::new(ErrorKind::NoSpace, "full");
    let change = make(2);
    assert_eq!(store.refuse(&change, full()), Err(full()));
    // There is space by now, and a late copy arrives.
    assert_eq!(store.apply_counted(&change), Err(full()));
    store.apply_counted(&make(3)).expect("answered").outcome.expect("others are made");
    let passed = store.apply_counted(&change).map_err(|error| error.kind());
    assert_eq!(passed, Err(ErrorKind::NoSpace));
    // One copy is refused after another copy was applied. The answer of the applied copy counts.
    let answer = store.apply_counted(&make(4)).expect("answered");
    assert_eq!(store.refuse(&make(4), full()), Ok(answer));
    // Another life has refusals of its own, and the window's own refusals are not kept.
    let fenced = Error::new(ErrorKind::Fenced, "closed");
    assert_eq!(store.refuse(&counted(8, 5, 5, MetaOp::Join), fenced.clone()), Err(fenced));
    let gone = counted(LIFE, 5, 5, unlink(Ino::ROOT, "4", false));
    store.apply_counted(&gone).expect("answered").outcome.expect("removed");
}
