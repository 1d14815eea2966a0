//! Tests the allocator against a slow model with one owner per unit.

use super::*;
use strake_env::Rng;

const GEOMETRY: ChunkGeometry = ChunkGeometry { first_unit: 100, units: 64, count: 12 };
const RESERVE: u32 = 2;

/// Every unit of every chunk is free, or belongs to a key-value region or to an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Free,
    Kv,
    Used,
    /// Free, but withheld.
    Withheld,
}

struct Model {
    units: Vec<Unit>,
    kept: usize,
    kept_max: usize,
    told: u64,
}

impl Model {
    fn empty(&self) -> usize {
        let chunks = self.units.chunks(GEOMETRY.units as usize);
        chunks.filter(|chunk| chunk.iter().all(is_free)).count()
    }

    fn free_for_data(&self) -> u64 {
        let free = self.units.iter().filter(|unit| is_free(unit)).count();
        (free - self.kept * GEOMETRY.units as usize) as u64
    }

    /// The most units that data can have.
    fn total(&self) -> u64 {
        let chunks = self.units.iter().filter(|unit| **unit != Unit::Kv).count() as u64 / 64;
        chunks.saturating_sub(u64::from(RESERVE)) * 64
    }

    fn left(&self) -> u64 {
        self.total() / 32
    }

    fn keep_more(&mut self, more: usize) {
        self.kept_max = RESERVE as usize + more;
        self.kept = self.kept.min(self.kept_max);
        let left = (self.total() / 8).max(self.told / 2);
        while self.kept < self.kept_max.min(self.empty()) && self.free_for_data() >= left + 64 {
            self.kept += 1;
        }
    }

    /// The units free for data once the reserve is as full as it may be.
    fn refill(&mut self) {
        let left = self.left().max(self.told);
        let most = self.empty().min(RESERVE as usize);
        while self.kept < most && self.free_for_data() >= left + 64 {
            self.kept += 1;
        }
    }

    fn set(&mut self, extent: Extent, from: Unit, to: Unit) {
        for unit in extent.start..extent.end() {
            let slot = &mut self.units[(unit - GEOMETRY.first_unit) as usize];
            assert_eq!(*slot, from, "unit {unit}");
            *slot = to;
        }
    }
}

fn is_free(unit: &Unit) -> bool {
    matches!(unit, Unit::Free | Unit::Withheld)
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in strake_env::rng::test_seeds(0, 60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut allocator = Allocator::new(GEOMETRY, [11], RESERVE);
        let (kept, kept_max) = (RESERVE as usize, RESERVE as usize);
        let mut model = Model { units: vec![Unit::Free; 12 * 64], kept, kept_max, told: 0 };
        model.set(Extent { start: 100 + 11 * 64, count: 64 }, Unit::Free, Unit::Kv);
        let mut held: Vec<Extent> = Vec::new();
        let mut withheld: Vec<Extent> = Vec::new();
        for _ in 0..600 {
            match rng.below(24) {
                0 => {
                    if let Some(chunk) = allocator.claim_for_kv() {
                        let start = 100 + u64::from(chunk) * 64;
                        model.set(Extent { start, count: 64 }, Unit::Free, Unit::Kv);
                        model.kept = model.kept.saturating_sub(1);
                        model.refill();
                        if rng.one_in(2) {
                            allocator.release_from_kv(chunk);
                            model.set(Extent { start, count: 64 }, Unit::Kv, Unit::Free);
                            model.kept = (model.kept + 1).min(model.kept_max);
                        }
                    }
                }
                1..11 => {
                    let most = if rng.one_in(3) { 80 } else { 5 };
                    let units = 1 + rng.below(most) as u32;
                    let enough = model.free_for_data() >= u64::from(units);
                    let extents = allocator.allocate(units);
                    // While some units are withheld, fewer may be available. There are never too
                    // many.
                    assert!(extents.is_none() || enough, "{units} units");
                    assert!(extents.is_some() || !enough || !withheld.is_empty(), "{units} units");
                    if extents.is_some() {
                        model.told = model.told.saturating_sub(units.into());
                    }
                    for extent in extents.unwrap_or_default() {
                        model.set(extent, Unit::Free, Unit::Used);
                        held.push(extent);
                    }
                }
                20 => {
                    let unit = rng.index(model.units.len());
                    let chunk_end = (unit / 64 + 1) * 64;
                    let free = model.units[unit..chunk_end].iter();
                    let count = free.take_while(|unit| **unit == Unit::Free).count();
                    if count > 0 {
                        let start = GEOMETRY.first_unit + unit as u64;
                        let extent = Extent { start, count: 1 + rng.below(count as u64) as u32 };
                        assert_eq!(allocator.chunk_end(start), 100 + chunk_end as u64);
                        allocator.withhold(extent);
                        model.set(extent, Unit::Free, Unit::Withheld);
                        withheld.push(extent);
                    }
                }
                22 => {
                    model.refill();
                    let free = model.free_for_data();
                    let lacking = (RESERVE as usize).saturating_sub(model.kept) as u64 * 64;
                    model.told = free.saturating_sub(lacking).max(free.min(model.left()));
                    assert_eq!(allocator.tell_free(0), model.told);
                }
                23 => {
                    let (more, least) = (rng.index(5), model.free_for_data().min(model.told / 2));
                    model.keep_more(more);
                    let kept = model.kept.saturating_sub(RESERVE as usize);
                    assert_eq!(allocator.keep_more(0, more as u32), kept as u32);
                    assert!(allocator.free_for_data() >= least, "more is kept than may be");
                }
                21 => {
                    if !withheld.is_empty() {
                        let extent = withheld.swap_remove(rng.index(withheld.len()));
                        allocator.restore(extent);
                        model.set(extent, Unit::Withheld, Unit::Free);
                    }
                }
                _ => {
                    if !held.is_empty() {
                        let extent = held.swap_remove(rng.index(held.len()));
                        assert!(allocator.is_used(extent));
                        let before = allocator.free_for_data();
                        if rng.one_in(4) {
                            allocator.give_back(extent);
                            model.told += u64::from(extent.count);
                        } else {
                            allocator.free(extent);
                        }
                        model.set(extent, Unit::Used, Unit::Free);
                        model.refill();
                        let least = before.min(model.told.max(model.left()));
                        assert!(allocator.free_for_data() >= least, "less is free than was told");
                        assert!(!allocator.is_used(extent));
                    }
                }
            }
            allocator.check();
            assert_eq!(allocator.free_for_data(), model.free_for_data());
            assert_eq!(allocator.is_withholding(), !withheld.is_empty());
            let used = model.units.iter().filter(|unit| **unit == Unit::Used).count();
            assert_eq!(allocator.used(), used as u64);
        }
        // A start rebuilds the same state from the index.
        let kv: Vec<u32> =
            (0..12).filter(|chunk| model.units[*chunk as usize * 64] == Unit::Kv).collect();
        let mut rebuilt = Allocator::new(GEOMETRY, kv, RESERVE);
        for extent in &held {
            rebuilt.mark_used(*extent).expect("the index holds every unit once");
            assert_eq!(rebuilt.mark_used(*extent), Err(NotFree(*extent)));
        }
        rebuilt.settle_reserve();
        rebuilt.check();
        assert_eq!(rebuilt.used(), allocator.used());
        let more = model.kept.saturating_sub(RESERVE as usize) as u32;
        assert_eq!(rebuilt.keep_more(more, more), more);
        rebuilt.check();
        if more > 0 {
            assert_eq!(rebuilt.free_for_data(), allocator.free_for_data());
        }
    }
}

#[test]
fn what_was_kept_is_kept_again_however_full_it_is_until_somebody_relies_on_the_rest() {
    let full = |told: bool| {
        let mut allocator = Allocator::new(GEOMETRY, [], RESERVE);
        (0..7 * 64 / 16).for_each(|_| drop(allocator.allocate(16).expect("space")));
        if told {
            allocator.tell_free(0);
        }
        allocator.keep_more(3, 3)
    };
    assert_eq!(full(false), 3);
    assert_eq!(full(true), 1, "half of what was told, and an eighth of the whole, are left");
}

#[test]
fn data_never_takes_the_reserve_and_kv_regions_grow_into_it() {
    let mut allocator = Allocator::new(GEOMETRY, [], RESERVE);
    let mut taken = 0;
    while let Some(extents) = allocator.allocate(7) {
        taken += extents.iter().map(|extent| extent.count).sum::<u32>();
    }
    assert_eq!(taken, 10 * 64 / 7 * 7);
    assert_eq!(allocator.claim_for_kv(), Some(11));
    assert_eq!(allocator.claim_for_kv(), Some(10));
    assert_eq!(allocator.claim_for_kv(), None);
    allocator.check();
}

#[test]
fn what_data_was_told_is_free_is_not_kept_from_it_afterwards() {
    let mut allocator = Allocator::new(GEOMETRY, [], RESERVE);
    let mut held = Vec::new();
    while let Some(extents) = allocator.allocate(32) {
        held.extend(extents);
    }
    assert_eq!(allocator.claim_for_kv(), Some(11));
    // Rewriting moves the data from chunk to chunk, so each chunk becomes empty at some time.
    allocator.free(held.remove(0));
    for _ in 0..100 {
        assert_eq!(allocator.free_for_data(), 32);
        // The amount that is always left.
        assert_eq!(allocator.tell_free(0), 9 * 64 / 32);
        held.extend(allocator.allocate(32).expect("as much as was freed"));
        allocator.free(held.remove(0));
    }
    // When nobody needs the space, it is kept again.
    held.drain(..8).for_each(|extent| allocator.free(extent));
    assert_eq!(allocator.free_for_data(), 32 + 8 * 32 - 64);
    assert_eq!(allocator.tell_free(0), allocator.free_for_data());
    let mut rebuilt = Allocator::new(GEOMETRY, [11], RESERVE);
    held.iter().for_each(|extent| rebuilt.mark_used(*extent).expect("free"));
    rebuilt.settle_reserve();
    assert_eq!(rebuilt.free_for_data(), allocator.free_for_data());
}

#[test]
fn large_strips_are_contiguous_and_stay_out_of_the_chunks_of_small_ones() {
    let mut allocator = Allocator::new(GEOMETRY, [], RESERVE);
    for _ in 0..8 {
        let small = allocator.allocate(1).expect("space");
        let large = allocator.allocate(33).expect("space");
        assert_eq!((small.len(), large.len()), (1, 1));
        assert_eq!((small[0].start - 100) / 64, 0, "small strips fill the first chunk");
        assert_ne!((large[0].start - 100) / 64, 0);
    }
}

#[test]
fn extents_outside_the_chunks_are_refused() {
    let mut allocator = Allocator::new(GEOMETRY, [3], RESERVE);
    let bad = [(99, 1), (100, 0), (100 + 12 * 64, 1), (163, 2), (100 + 3 * 64, 1), (u64::MAX, 1)];
    for (start, count) in bad {
        let extent = Extent { start, count };
        assert_eq!(allocator.mark_used(extent), Err(NotFree(extent)));
        assert!(!allocator.is_used(extent));
    }
    allocator.check();
}
