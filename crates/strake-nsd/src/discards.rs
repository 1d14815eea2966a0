//! Free units that the host does not know to be free yet. It may still hold their old contents.
//!
//! These units can be allocated at any time. They are then removed from this set, because they are
//! written anew. So giving space back to the host never holds up a writer that needs the space. The
//! set lives in memory only. Units that a crash forgets stay with the host until they are used
//! again.
//!
//! **Invariants** (`check`): No range is empty. Ranges ascend and never touch (they are coalesced,
//! so that few calls tell the host). Their lengths add up to the count of units.

use crate::extent::Extent;
use std::collections::BTreeMap;

/// The set of units; see the module.
#[derive(Debug, Default)]
pub struct Discards {
    /// Start ▶ one past the end.
    ranges: BTreeMap<u64, u64>,
    /// The lengths of all ranges together.
    units: u64,
}

impl Discards {
    /// Notes units that were freed.
    pub fn add(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.start, extent.end());
        let mut joined = 0;
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            end = end.max(next_end);
            joined += next_end - next;
            self.ranges.remove(&next);
        }
        self.ranges.insert(start, end);
        self.units += end - start - joined;
    }

    /// Removes units that are used again, as far as they are in the set.
    pub fn remove(&mut self, extent: Extent) {
        let (start, end) = (extent.start, extent.end());
        while let Some((&at, &at_end)) = self.ranges.range(..end).next_back() {
            if at_end <= start {
                return;
            }
            self.ranges.remove(&at);
            self.units -= at_end.min(end) - at.max(start);
            if at < start {
                self.ranges.insert(at, start);
            }
            if at_end > end {
                self.ranges.insert(end, at_end);
            }
        }
    }

    /// Takes out the first units that lie in a row of at least `row_min`, at most `count_max`.
    /// `limit` is called with the first of them. No unit at or behind the limit it returns is
    /// taken.
    pub fn take(
        &mut self,
        row_min: u32,
        count_max: u32,
        limit: impl Fn(u64) -> u64,
    ) -> Option<Extent> {
        let is_wanted = |(start, end): &(&u64, &u64)| **end - **start >= u64::from(row_min);
        let (&start, &end) = self.ranges.iter().find(is_wanted)?;
        let end = end.min(limit(start));
        let count = u32::try_from(end - start).unwrap_or(u32::MAX).min(count_max);
        let extent = Extent { start, count };
        self.remove(extent);
        Some(extent)
    }

    /// True if there is nothing to tell the host.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of units to tell the host of.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Asserts the invariants that the file's head lists.
    pub fn check(&self) {
        let lengths = self.ranges.iter().map(|(start, end)| end - start);
        assert_eq!(lengths.sum::<u64>(), self.units, "the units are counted");
        let mut end_of_last = None;
        for (&start, &end) in &self.ranges {
            assert!(start < end, "an empty range is to be discarded");
            assert!(end_of_last.is_none_or(|last| last < start), "ranges touch");
            end_of_last = Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use strake_env::Rng;

    #[test]
    fn random_operations_agree_with_a_set_of_units() {
        for seed in strake_env::rng::test_seeds(0, 50) {
            println!("seed {seed}");
            let mut rng = Rng::new(seed);
            let mut discards = Discards::default();
            let mut model: BTreeSet<u64> = BTreeSet::new();
            for _ in 0..500 {
                let extent = Extent { start: rng.below(200), count: 1 + rng.below(30) as u32 };
                match rng.below(5) {
                    0 | 1 => {
                        discards.add(extent);
                        model.extend(extent.start..extent.end());
                    }
                    2 | 3 => {
                        discards.remove(extent);
                        model.retain(|unit| *unit < extent.start || *unit >= extent.end());
                    }
                    _ => {
                        // Chunks of 64 units.
                        let row_min = 1 + rng.below(2) as u32 * rng.below(40) as u32;
                        let taken = discards.take(row_min, 10, |start| (start / 64 + 1) * 64);
                        let is_in_row = |unit: &&u64| {
                            let before = (0..**unit).rev().take_while(|it| model.contains(it));
                            let after = (**unit..).take_while(|it| model.contains(it));
                            before.count() + after.count() >= row_min as usize
                        };
                        let first = model.iter().find(is_in_row).copied();
                        assert_eq!(taken.map(|extent| extent.start), first);
                        let Some(taken) = taken else { continue };
                        assert!(taken.count > 0 && taken.count <= 10);
                        assert_eq!(taken.start / 64, (taken.end() - 1) / 64);
                        for unit in taken.start..taken.end() {
                            assert!(model.remove(&unit), "unit {unit} was not to be discarded");
                        }
                    }
                }
                discards.check();
                let held = discards.ranges.iter().flat_map(|(&start, &end)| start..end);
                assert!(held.eq(model.iter().copied()));
                assert_eq!(discards.is_empty(), model.is_empty());
            }
        }
    }
}
