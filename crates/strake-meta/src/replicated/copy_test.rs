//! A copy is whole whatever changes while it is made; its bytes are fixed, and garbage is refused.

use super::*;
use crate::MemoryKv;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

/// A few changes of a few keys, so that records come, change and go.
fn some_changes(rng: &mut Rng) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..rng.index(4) {
        let key = [b'k', rng.index(40) as u8];
        match rng.one_in(3) {
            true => batch.delete(key),
            false => batch.put(key, vec![rng.next_u64() as u8; rng.index(30)]),
        }
    }
    batch
}

/// Copies a store while it changes. Returns whether the copy is as the store, and its parts.
fn is_equal(seed: u64, notes_changes: bool) -> (bool, usize) {
    let mut rng = Rng::new(seed);
    let (mut store, mut other) = (MemoryKv::default(), MemoryKv::default());
    (0..30).for_each(|_| store.apply(&some_changes(&mut rng)));
    let mut copy = OutgoingCopy::new();
    for parts in 1.. {
        let (part, is_whole) = copy.part(&store, 40).expect("memory is read");
        other.apply(&read_part(&part).expect("a part of ours"));
        if is_whole {
            return (store == other, parts);
        }
        let changes = some_changes(&mut rng);
        store.apply(&changes);
        if notes_changes {
            assert!(copy.note(&changes));
        }
    }
    unreachable!("a copy ends")
}

#[test]
fn a_copy_is_as_the_store_whatever_changes_meanwhile() {
    let (mut parts, mut missed) = (0, 0);
    for seed in test_seeds(0, 300 * test_scale()) {
        let (is_same, count) = is_equal(seed, true);
        assert!(is_same, "seed {seed}");
        parts += count;
        missed += usize::from(!is_equal(seed, false).0);
    }
    assert!(parts > 1500 && missed > 150, "{parts} parts; {missed} differ without the changes");
}

#[test]
fn the_bytes_of_a_part_are_these() {
    let mut store = MemoryKv::default();
    let mut batch = Batch::new();
    batch.put(b"ab", *b"xyz");
    batch.put(b"cd", *b"");
    store.apply(&batch);
    let mut copy = OutgoingCopy::new();
    let mut gone = Batch::new();
    gone.delete(b"e");
    assert!(copy.note(&gone));
    let (part, is_whole) = copy.part(&store, 100).expect("memory is read");
    assert!(is_whole);
    assert_eq!(part, *b"\x01\x03\x01e\x00\x02ab\x01\x03xyz\x02cd\x01\x00");
}

#[test]
fn mutated_parts_are_refused_or_parts_and_never_panic() {
    let whole = b"\x01\x03\x01e\x00\x02ab\x01\x03xyz\x02cd\x01\x00";
    for seed in test_seeds(0, 2000 * test_scale()) {
        let mut rng = Rng::new(seed);
        let mut part = whole.to_vec();
        for _ in 0..1 + rng.index(3) {
            let at = rng.index(part.len());
            part[at] = rng.next_u64() as u8;
        }
        part.truncate(part.len() - rng.index(3));
        if let Ok(batch) = read_part(&part) {
            assert!(batch.len() < 128, "a list of so few bytes is short");
        }
    }
    assert_eq!(read_part(b"").expect_err("no version").kind(), ErrorKind::Corrupt);
    assert_eq!(read_part(b"\x02\x00").expect_err("another one").kind(), ErrorKind::Corrupt);
    assert_eq!(read_part(b"\x01\x00\x00").expect_err("too long").kind(), ErrorKind::Corrupt);
}
