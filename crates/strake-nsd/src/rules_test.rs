//! The rules one by one, and tombstones against a model of one version per block.

use super::*;
use crate::record::Checksums;
use strake_env::Rng;
use strake_proto::GrantNumber;
use strake_proto::nsd::StripHeader;

fn version(counter: u64) -> Version {
    Version { grant: GrantNumber(1), counter }
}

/// A version accepted by the entry of the same number, in the unit of the same number.
fn version_of(counter: u64, settled: bool) -> StripVersion {
    StripVersion {
        header: StripHeader { version: version(counter), block_bytes: 4096, skipped: 0 },
        strip_bytes: 4096,
        accepted: Lsn(counter),
        settled,
        extents: vec![unit(counter)],
        checksums: Checksums::Inline(vec![0]),
    }
}

fn unit(start: u64) -> Extent {
    Extent { start, count: 1 }
}

fn record(versions: &[(u64, bool)]) -> StripRecord {
    StripRecord {
        versions: versions.iter().map(|(at, settled)| version_of(*at, *settled)).collect(),
    }
}

/// What stays behind version `new`, and the units that go.
fn put(old: &[(u64, bool)], new: u64, committing: u64) -> (Vec<u64>, Vec<u64>) {
    put_after(old, new, committing, Version::NONE)
}

/// The same, where the writer says that `stable` is.
fn put_after(
    old: &[(u64, bool)],
    new: u64,
    committing: u64,
    stable: Version,
) -> (Vec<u64>, Vec<u64>) {
    let newest = version_of(new, false);
    let (record, freed) = put_in_front(newest, Some(record(old)), Lsn(committing), stable);
    let mut versions = record.versions.iter().map(|one| one.version().counter);
    assert_eq!(versions.next(), Some(new));
    (versions.collect(), freed.iter().map(|extent| extent.start).collect())
}

#[test]
fn only_versions_above_all_held_and_refused_are_accepted() {
    let old = record(&[(5, true)]);
    let judge = |held, floor, at, copy| judge_write(held, version(floor), version(at), copy);
    let stale = |at| WriteVerdict::Stale(version(at));
    assert_eq!(judge(None, 0, 1, false), WriteVerdict::Accepted);
    assert_eq!(judge(None, 3, 3, false), stale(3));
    assert_eq!(judge(None, 3, 4, false), WriteVerdict::Accepted);
    assert_eq!(judge(Some(&old), 0, 4, true), stale(5));
    assert_eq!(judge(Some(&old), 0, 5, false), stale(5));
    assert_eq!(judge(Some(&old), 0, 5, true), WriteVerdict::Present);
    assert_eq!(judge(Some(&old), 7, 6, true), stale(7));
    assert_eq!(judge(Some(&old), 7, 8, false), WriteVerdict::Accepted);
}

#[test]
fn what_may_have_been_acknowledged_is_kept() {
    assert_eq!(put(&[(1, true)], 2, 1), (vec![1], vec![]));
    assert_eq!(put(&[(2, false), (1, true)], 3, 1), (vec![1], vec![2]), "2 was not committed");
    assert_eq!(put(&[(2, false), (1, true)], 3, 2), (vec![2, 1], vec![]), "2 may be stable");
    assert_eq!(put(&[(1, false)], 2, 0), (vec![], vec![1]));
    let full = [(5, false), (4, false), (3, false), (2, false), (1, true)];
    assert_eq!(put(&full, 6, 5), (vec![5, 4, 3, 1], vec![2]), "the ends stay");
}

#[test]
fn what_is_older_than_what_the_writer_knows_to_be_stable_goes() {
    let held = [(5, false), (4, false), (3, false), (1, true)];
    let put = |new, stable| put_after(&held, new, 5, version(stable));
    assert_eq!(put(6, 5), (vec![5], vec![4, 3, 1]));
    assert_eq!(put(6, 4), (vec![5, 4], vec![3, 1]));
    assert_eq!(put(6, 2), (vec![5, 4, 3, 1], vec![]), "this NSD has missed 2");
    assert_eq!(put(6, 6), (vec![], vec![5, 4, 3, 1]), "a copy of what is stable");
    assert_eq!(put(6, 7), (vec![5, 4, 3, 1], vec![]));
    let forgotten =
        |stable| forget_older(&record(&held), version(stable)).map(|change| change.freed);
    assert_eq!(forgotten(4), Some(vec![unit(3), unit(1)]));
    assert_eq!(forgotten(1), None);
    assert_eq!(forgotten(2), None);
}

/// One life after the other dies while it makes the NSDs equal.
#[test]
fn the_last_two_of_a_writer_are_kept_through_recoveries_that_die() {
    let mut held = record(&[(12, false), (11, false), (4, false), (3, false), (2, true)]);
    let mut lives = Vec::new();
    for life in 2..9 {
        let mut newest = version_of(1, false);
        newest.header.version.grant = GrantNumber(life);
        (held, _) = put_in_front(newest, Some(held), Lsn(100), Version::NONE);
        let kept = held.versions[1..].iter().map(|one| one.version());
        lives.push(kept.map(|one| (one.grant.0, one.counter)).collect::<Vec<_>>());
    }
    assert_eq!(lives[0], [(1, 12), (1, 11), (1, 4), (1, 2)]);
    assert_eq!(lives[1], [(2, 1), (1, 12), (1, 11), (1, 2)]);
    assert_eq!(lives[2], [(3, 1), (1, 12), (1, 11), (1, 2)]);
    assert_eq!(lives[6], [(7, 1), (1, 12), (1, 11), (1, 2)]);
}

#[test]
fn settling_frees_what_is_older_and_marks_the_version() {
    let settled = |held: &[(u64, bool)], at| {
        settle(&record(held), version(at)).map(|change| (change.record, change.freed))
    };
    let (two, one) = ((2, false), (1, true));
    assert_eq!(settled(&[two, one], 2), Some((Some(record(&[(2, true)])), vec![unit(1)])));
    assert_eq!(settled(&[(2, true)], 2), None, "known already");
    assert_eq!(settled(&[(1, true)], 2), None, "this NSD missed 2: 1 may be all there is");
    let three = (3, false);
    let kept = Some((Some(record(&[three, (2, true)])), vec![unit(1)]));
    assert_eq!(settled(&[three, two, one], 2), kept, "settled while kept");
}

#[test]
fn deleting_takes_lower_versions_only() {
    let deleted = |held: &[(u64, bool)], at| {
        delete(&record(held), version(at)).map(|change| (change.record, change.freed))
    };
    assert_eq!(deleted(&[(2, true)], 3), Some((None, vec![unit(2)])));
    assert_eq!(deleted(&[(4, true)], 3), None);
    let kept = Some((Some(record(&[(4, false)])), vec![unit(2)]));
    assert_eq!(deleted(&[(4, false), (2, true)], 3), kept);
}

#[test]
fn a_promise_is_needed_only_for_what_could_still_be_accepted() {
    let old = record(&[(4, false), (2, true)]);
    let judge = |at, floor| judge_refuse(Some(&old), version(floor), version(at));
    assert_eq!(judge(4, 0), RefuseVerdict::Held);
    assert_eq!(judge(2, 0), RefuseVerdict::Held);
    assert_eq!(judge(3, 0), RefuseVerdict::Refused);
    assert_eq!(judge(5, 0), RefuseVerdict::Promise);
    assert_eq!(judge(5, 5), RefuseVerdict::Refused);
    assert_eq!(judge_refuse(None, Version::NONE, version(1)), RefuseVerdict::Promise);
}

#[test]
fn tombstones_agree_with_one_version_per_block() {
    for seed in strake_env::rng::test_seeds(0, 200) {
        let mut rng = Rng::new(seed);
        let mut model = [0u64; 24];
        let mut pieces: Vec<Piece> = Vec::new();
        for _ in 0..40 {
            let from = rng.below(23);
            let to = from + 1 + rng.below(24 - from);
            let at = 1 + rng.below(9);
            for slot in &mut model[from as usize..to as usize] {
                *slot = at.max(*slot);
            }
            let tombstone = Tombstone { from: BlockIndex(from), version: version(at) };
            let new = Piece { tombstone, to: BlockIndex(to) };
            // As the store does: those that end at or after the start and begin before the end.
            let touches = |piece: &Piece| piece.to.0 >= from && piece.tombstone.from.0 <= to;
            let (old, mut rest): (Vec<_>, Vec<_>) = pieces.into_iter().partition(touches);
            rest.extend(lay_over(&old, new));
            rest.sort_by_key(|piece| piece.to);
            pieces = rest;
            if rng.one_in(8) {
                let forgotten = 1 + rng.below(9);
                pieces.retain(|piece| piece.tombstone.version > version(forgotten));
                model.iter_mut().filter(|slot| **slot <= forgotten).for_each(|slot| *slot = 0);
            }
            for pair in pieces.windows(2) {
                assert!(pair[0].to <= pair[1].tombstone.from, "seed {seed}: {pieces:?}");
            }
            for (block, expected) in model.iter().enumerate() {
                let found = pieces.iter().find(|piece| piece.to.0 > block as u64);
                let covers = found.filter(|piece| piece.tombstone.from.0 <= block as u64);
                let actual = covers.map_or(0, |piece| piece.tombstone.version.counter);
                assert_eq!(actual, *expected, "seed {seed} block {block}: {pieces:?}");
            }
        }
    }
}
