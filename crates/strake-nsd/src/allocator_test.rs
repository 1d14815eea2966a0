//! The allocator against a slow model: one owner per unit.

use super::*;
use strake_env::Rng;

const GEOMETRY: ChunkGeometry = ChunkGeometry { first_unit: 100, units: 64, count: 12 };
const RESERVE: u32 = 2;

/// Every unit of every chunk: free, of a key-value region, or of an allocation.
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
}

impl Model {
    fn free_for_data(&self) -> u64 {
        let is_free = |unit: &Unit| matches!(unit, Unit::Free | Unit::Withheld);
        let free = self.units.iter().filter(|unit| is_free(unit)).count();
        let empty = self
            .units
            .chunks(GEOMETRY.units as usize)
            .filter(|chunk| chunk.iter().all(is_free))
            .count();
        (free - empty.min(RESERVE as usize) * GEOMETRY.units as usize) as u64
    }

    fn set(&mut self, extent: Extent, from: Unit, to: Unit) {
        for unit in extent.start..extent.end() {
            let slot = &mut self.units[(unit - GEOMETRY.first_unit) as usize];
            assert_eq!(*slot, from, "unit {unit}");
            *slot = to;
        }
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in strake_env::rng::test_seeds(0, 60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut allocator = Allocator::new(GEOMETRY, [11], RESERVE);
        let mut model = Model { units: vec![Unit::Free; 12 * 64] };
        model.set(Extent { start: 100 + 11 * 64, count: 64 }, Unit::Free, Unit::Kv);
        let mut held: Vec<Extent> = Vec::new();
        let mut withheld: Vec<Extent> = Vec::new();
        for _ in 0..600 {
            match rng.below(22) {
                0 => {
                    if let Some(chunk) = allocator.claim_for_kv() {
                        let start = 100 + u64::from(chunk) * 64;
                        model.set(Extent { start, count: 64 }, Unit::Free, Unit::Kv);
                        if rng.one_in(2) {
                            allocator.release_from_kv(chunk);
                            model.set(Extent { start, count: 64 }, Unit::Kv, Unit::Free);
                        }
                    }
                }
                1..11 => {
                    let most = if rng.one_in(3) { 80 } else { 5 };
                    let units = 1 + rng.below(most) as u32;
                    let enough = model.free_for_data() >= u64::from(units);
                    let extents = allocator.allocate(units);
                    // While some are withheld not all are to be had; never too many.
                    assert!(extents.is_none() || enough, "{units} units");
                    assert!(extents.is_some() || !enough || !withheld.is_empty(), "{units} units");
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
                        allocator.free(extent);
                        model.set(extent, Unit::Used, Unit::Free);
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
        // What a start rebuilds from the index is the same.
        let kv: Vec<u32> =
            (0..12).filter(|chunk| model.units[*chunk as usize * 64] == Unit::Kv).collect();
        let mut rebuilt = Allocator::new(GEOMETRY, kv, RESERVE);
        for extent in &held {
            rebuilt.mark_used(*extent).expect("the index holds every unit once");
            assert_eq!(rebuilt.mark_used(*extent), Err(NotFree(*extent)));
        }
        rebuilt.check();
        assert_eq!(rebuilt.free_for_data(), allocator.free_for_data());
    }
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
