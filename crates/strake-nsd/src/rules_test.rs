//! Tests the rules one by one. Tombstones are compared with a model of one version per block.
//! Patches are compared with a model that holds each version as a whole.

use super::*;
use crate::record::{Checksums, Whole};
use strake_env::Rng;
use strake_proto::GrantNumber;

fn version(counter: u64) -> Version {
    Version { grant: GrantNumber(1), counter }
}

/// A version accepted by the entry of the same number, in the unit of the same number.
fn version_of(counter: u64, settled: bool) -> StripVersion {
    StripVersion {
        header: StripHeader { version: version(counter), block_bytes: 4096, lacks: 0 },
        strip_bytes: 4096,
        accepted: Lsn(counter),
        settled,
        whole: Some(Whole {
            made: version(counter),
            extents: vec![unit(counter)],
            checksums: Checksums::Inline(vec![0]),
        }),
        displaced: Vec::new(),
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

/// Returns the versions that stay behind version `new`, and the units that go.
fn put(old: &[(u64, bool)], new: u64, committing: u64) -> (Vec<u64>, Vec<u64>) {
    put_after(old, new, committing, Version::NONE)
}

/// Like `put`, with a writer that names `stable` as stable.
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
    assert_eq!(put(&full, 6, 5), (vec![5, 3, 2, 1], vec![4]), "the oldest and the current stay");
}

#[test]
fn what_is_older_than_what_the_writer_knows_to_be_stable_goes() {
    let held = [(5, false), (4, false), (3, false), (1, true)];
    let put = |new, stable| put_after(&held, new, 5, version(stable));
    assert_eq!(put(6, 5), (vec![5], vec![1, 3, 4]));
    assert_eq!(put(6, 4), (vec![5, 4], vec![1, 3]));
    assert_eq!(put(6, 2), (vec![5, 4, 3, 1], vec![]), "this NSD has missed 2");
    assert_eq!(put(6, 6), (vec![], vec![1, 3, 4, 5]), "a copy of what is stable");
    assert_eq!(put(6, 7), (vec![5, 4, 3, 1], vec![]));
    let forgotten =
        |stable| forget_older(&record(&held), version(stable)).map(|change| change.freed);
    assert_eq!(forgotten(4), Some(vec![unit(1), unit(3)]));
    assert_eq!(forgotten(1), None);
    assert_eq!(forgotten(2), None);
}

/// One manager after the other dies while it makes the NSDs equal. What the first of them found,
/// and the newest outcome, stay. Grants make no difference.
#[test]
fn the_oldest_and_the_current_are_kept_through_recoveries_that_die() {
    for is_one_grant in [false, true] {
        let mut held = record(&[(4, false), (3, false), (2, true)]);
        let mut lives = Vec::new();
        for life in 5..12 {
            let mut newest = version_of(life, false);
            newest.header.version.grant = GrantNumber(if is_one_grant { 1 } else { life });
            (held, _) = put_in_front(newest, Some(held), Lsn(100), Version::NONE);
            let kept = held.versions[1..].iter().map(|one| one.version().counter);
            lives.push(kept.collect::<Vec<_>>());
        }
        assert_eq!(lives[0], [4, 3, 2]);
        assert_eq!(lives[1], [5, 4, 3, 2]);
        assert_eq!(lives[2], [6, 4, 3, 2]);
        assert_eq!(lives[6], [10, 4, 3, 2]);
    }
}

#[test]
fn settling_frees_what_is_older_and_marks_the_version() {
    let settled = |held: &[(u64, bool)], at| {
        settle(&record(held), version(at), 0).map(|change| (change.record, change.freed))
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
            // Like the store: the pieces that end at or after the start and begin before the end.
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

#[test]
fn a_patch_needs_exactly_its_base() {
    let held = |versions| Some(record(versions));
    let judge = |held: Option<StripRecord>, floor, committing, at: u64, base, units: &[u32]| {
        let header = StripHeader { version: version(at), block_bytes: 4096, lacks: 0 };
        let patch = (&header, version(base), units);
        judge_patch(held.as_ref(), version(floor), Lsn(committing), patch)
    };
    let (accepted, not_base) = (WriteVerdict::Accepted, WriteVerdict::NotBase);
    assert_eq!(judge(held(&[(5, false)]), 4, 5, 6, 5, &[0]), accepted);
    assert_eq!(judge(held(&[(5, true), (4, true)]), 0, 0, 6, 5, &[]), accepted);
    assert_eq!(judge(None, 0, 9, 6, 5, &[]), not_base, "nothing is held");
    assert_eq!(judge(held(&[(4, true)]), 0, 9, 6, 5, &[]), not_base, "it missed the base");
    assert_eq!(judge(held(&[(7, false), (5, true)]), 0, 9, 8, 5, &[]), not_base, "it has more");
    assert_eq!(judge(held(&[(5, true)]), 5, 9, 6, 5, &[]), not_base, "the base is deleted");
    assert_eq!(judge(held(&[(5, false)]), 0, 4, 6, 5, &[]), not_base, "the base is not stable");
    assert_eq!(judge(held(&[(5, true)]), 0, 9, 6, 5, &[1]), not_base, "beyond the end");
    assert_eq!(judge(held(&[(5, true)]), 0, 9, 5, 5, &[]), WriteVerdict::Present);
    assert_eq!(judge(held(&[(7, true), (6, true)]), 0, 9, 6, 5, &[]), WriteVerdict::Present);
    assert_eq!(judge(held(&[(5, true)]), 0, 9, 4, 5, &[]), WriteVerdict::Stale(version(5)));
    let mut longer = record(&[(5, true)]);
    longer.versions[0].header.block_bytes = 4097;
    assert_eq!(judge(Some(longer), 0, 9, 6, 5, &[]), not_base, "the block has another length");
}

#[test]
fn a_strip_takes_no_more_displaced_units_than_its_record_may_have() {
    let mut held = record(&[(5, true)]);
    held.versions[0].strip_bytes = 1 << 24;
    let one = |unit| Displaced { unit, place: 100 + u64::from(unit), checksum: 0 };
    held.versions[0].displaced = (0..DISPLACED_MAX as u32 - 56).map(one).collect();
    let header = StripHeader { version: version(6), block_bytes: 4096, lacks: 0 };
    let judge = |units: u32| {
        let units: Vec<u32> = (0..units).collect();
        judge_patch(Some(&held), Version::NONE, Lsn(9), (&header, version(5), &units))
    };
    assert_eq!(judge(56), WriteVerdict::Accepted);
    assert_eq!(judge(57), WriteVerdict::NotBase);
}

/// The number of units of a strip of the model.
const UNITS: u32 = 6;

/// Two records with the same history: one with patches, and one in which each version is whole.
#[derive(Default)]
struct Twins {
    patched: Option<StripRecord>,
    whole: Option<StripRecord>,
    /// The contents of each version.
    contents: std::collections::BTreeMap<Version, Vec<u32>>,
    /// The contents written to each unit of the disk that was ever taken.
    disk: Vec<u32>,
    freed: std::collections::BTreeSet<u64>,
    lsn: u64,
}

impl Twins {
    fn take(&mut self, contents: &[u32]) -> u64 {
        let start = self.disk.len() as u64;
        self.disk.extend_from_slice(contents);
        start
    }

    fn free(&mut self, extents: &[Extent]) {
        for unit in extents.iter().flat_map(|extent| extent.start..extent.end()) {
            assert!(self.freed.insert(unit), "unit {unit} is freed twice");
        }
    }

    /// A whole version with these contents. In the patched record it gets units of its own.
    fn whole_version(&mut self, version: Version, contents: &[u32]) -> StripVersion {
        let start = self.take(contents);
        StripVersion {
            header: StripHeader { version, block_bytes: UNITS * 4096, lacks: 0 },
            strip_bytes: UNITS * 4096,
            accepted: Lsn(self.lsn),
            settled: false,
            whole: Some(Whole {
                made: version,
                extents: vec![Extent { start, count: UNITS }],
                checksums: Checksums::Inline(contents.to_vec()),
            }),
            displaced: Vec::new(),
        }
    }

    /// Puts a version in front of both records. `units` change, or all units if there are none.
    fn put(&mut self, version: Version, units: Option<&[u32]>, committing: Lsn, stable: Version) {
        self.lsn += 1;
        let lsn = self.lsn as u32;
        let newest = match units {
            None => self.whole_version(version, &[lsn; UNITS as usize]),
            Some(units) => {
                let base = self.patched.as_ref().expect("a base").current().clone();
                let mut contents = self.contents[&base.version()].clone();
                let mut displaced = Vec::new();
                for &unit in units {
                    contents[unit as usize] = lsn;
                    displaced.push(Displaced { unit, place: self.take(&[lsn]), checksum: lsn });
                }
                self.contents.insert(version, contents);
                let header = StripHeader { version, ..base.header.clone() };
                let accepted = Lsn(self.lsn);
                StripVersion { header, accepted, settled: false, whole: None, displaced, ..base }
            }
        };
        let contents = self.contents.entry(version).or_insert(vec![lsn; UNITS as usize]);
        let twin = StripVersion {
            whole: Some(Whole {
                made: version,
                extents: vec![unit(0)],
                checksums: Checksums::Inline(contents.clone()),
            }),
            displaced: Vec::new(),
            ..newest.clone()
        };
        let (record, freed) = put_in_front(newest, self.patched.take(), committing, stable);
        self.patched = Some(record);
        self.free(&freed);
        self.whole = Some(put_in_front(twin, self.whole.take(), committing, stable).0);
    }

    fn change(&mut self, rule: impl Fn(&StripRecord) -> Option<Change>) {
        let changes = (self.patched.as_ref().map(&rule), self.whole.as_ref().map(&rule));
        let (Some(patched), Some(whole)) = changes else { return };
        assert_eq!(patched.is_some(), whole.is_some());
        let (Some(patched), Some(whole)) = (patched, whole) else { return };
        self.free(&patched.freed);
        (self.patched, self.whole) = (patched.record, whole.record);
    }

    fn check(&self) {
        let versions = |record: &Option<StripRecord>| -> Vec<_> {
            let versions = record.iter().flat_map(|record| &record.versions);
            versions.map(|held| (held.header.clone(), held.accepted, held.settled)).collect()
        };
        assert_eq!(versions(&self.patched), versions(&self.whole));
        let mut named = self.freed.clone();
        if let Some(record) = &self.patched {
            for extent in record.extents() {
                for unit in extent.start..extent.end() {
                    assert!(named.insert(unit), "unit {unit} is named twice, or named and free");
                }
            }
            for held in &record.versions {
                let view = record.view(Some(held.version())).expect("held");
                let start = view.whole.extents[0].start;
                let Checksums::Inline(checksums) = &view.whole.checksums else { unreachable!() };
                let mut places: Vec<u64> = (start..start + u64::from(UNITS)).collect();
                let mut checksums = checksums.clone();
                for one in &*view.displaced {
                    places[one.unit as usize] = one.place;
                    checksums[one.unit as usize] = one.checksum;
                }
                let found: Vec<u32> = places.iter().map(|at| self.disk[*at as usize]).collect();
                assert_eq!(found, self.contents[&held.version()], "{}", held.version());
                assert_eq!(checksums, found, "the checksums go with their units");
            }
        }
        assert_eq!(named.len(), self.disk.len(), "what was taken is named or freed");
    }
}

#[test]
fn patched_strips_hold_what_whole_strips_would() {
    let (mut patches, mut joined) = (0, 0);
    for seed in strake_env::rng::test_seeds(0, 300) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut twins = Twins::default();
        for counter in 1..80 {
            // A new writer now and then, so that it matters which version goes when there are too
            // many.
            let new = Version { grant: GrantNumber(1 + counter / 9), counter };
            let held = twins.patched.iter().flat_map(|record| &record.versions);
            let held: Vec<Version> = held.map(StripVersion::version).collect();
            let any = if held.is_empty() { new } else { held[rng.index(held.len())] };
            let committing = Lsn(twins.lsn.saturating_sub(rng.below(3)));
            let stable = if rng.one_in(3) { any } else { Version::NONE };
            match rng.below(10) {
                0 => twins.put(new, None, committing, stable),
                1 => twins.change(|record| settle(record, any, 0)),
                2 => twins.change(|record| forget_older(record, any)),
                3 if rng.one_in(4) => twins.change(|record| delete(record, any)),
                _ => {
                    let units: Vec<u32> = (0..UNITS).filter(|_| rng.one_in(3)).collect();
                    let header = StripHeader { version: new, block_bytes: UNITS * 4096, lacks: 0 };
                    let patch = (&header, any, &units[..]);
                    let verdict =
                        judge_patch(twins.patched.as_ref(), Version::NONE, committing, patch);
                    if verdict == WriteVerdict::Accepted {
                        twins.put(new, Some(&units), committing, stable);
                        patches += 1;
                    }
                }
            }
            twins.check();
            let record = twins.patched.iter();
            joined += record
                .filter(|record| {
                    let oldest = record.oldest();
                    oldest.whole.as_ref().is_some_and(|whole| whole.made != oldest.version())
                })
                .count();
        }
    }
    println!("{patches} patches; {joined} times a joined one was held");
    assert!(patches > 2000 && joined > 2000, "{patches} patches, {joined} joined");
}
