//! The hardened units of a file: those that the metadata keeps until they are in stable stripes.
//! See also `flush/harden.rs`.
//!
//! A kept unit may be forgotten as soon as a stable stripe has these bytes or newer ones. It *must*
//! be forgotten, or hardened again, before an `fsync` that relies on newer bytes in a stripe:
//! otherwise a start would write the kept bytes over them. So for each unit this list knows two
//! things:
//!
//! * How far the bytes have come ([`Phase`]). A send counts only if it began after the unit was
//!   copied. A unit that is hardened again is where it began.
//! * Whether what was sent, or may be in memory, is newer than what is kept.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;

/// A unit of a file: the index of its block, and its index within the block.
pub(crate) type UnitOfFile = (u64, u32);

/// How far the bytes of a kept unit have come, or newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// They wait in memory.
    Waiting,
    /// They were sent. The stripe is not stable yet.
    Sent,
    /// They are in a stable stripe.
    Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    phase: Phase,
    /// Whether stripes may have newer bytes than the metadata.
    is_older: bool,
}

impl Unit {
    fn is_lagging(&self) -> bool {
        self.is_older && self.phase != Phase::Stored
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    units: BTreeMap<UnitOfFile, Unit>,
    /// The number of units that are older and not stored.
    lagging: usize,
    /// The number of units that are stored and older.
    outdated: usize,
    /// The last block that was chosen to be sent.
    cursor: Option<u64>,
}

fn of_block(block: u64) -> RangeInclusive<UnitOfFile> {
    (block, 0)..=(block, u32::MAX)
}

impl Kept {
    pub(crate) fn len(&self) -> usize {
        self.units.len()
    }

    fn count(&mut self, unit: Unit, more: bool) {
        let Unit { phase, is_older } = unit;
        let counted = match (is_older, phase) {
            (false, _) => return,
            (true, Phase::Stored) => &mut self.outdated,
            (true, Phase::Waiting | Phase::Sent) => &mut self.lagging,
        };
        if more { *counted += 1 } else { *counted -= 1 }
    }

    fn put(&mut self, at: UnitOfFile, unit: Unit) {
        if let Some(before) = self.units.insert(at, unit) {
            self.count(before, false);
        }
        self.count(unit, true);
    }

    fn take(&mut self, at: UnitOfFile) {
        if let Some(before) = self.units.remove(&at) {
            self.count(before, false);
        }
    }

    fn change(&mut self, block: u64, change: impl Fn(u32, Unit) -> Unit) {
        let changed: Vec<_> = self
            .units
            .range(of_block(block))
            .map(|(at, unit)| (*at, *unit, change(at.1, *unit)))
            .filter(|(_, before, after)| before != after)
            .collect();
        for (at, _, after) in changed {
            self.put(at, after);
        }
    }

    /// Notes that a unit was copied to be hardened. The caller holds the block's lock.
    pub(crate) fn harden(&mut self, at: UnitOfFile) {
        self.put(at, Unit { phase: Phase::Waiting, is_older: false });
    }

    /// Notes that it is not known which bytes of a unit the metadata keeps.
    pub(crate) fn doubt(&mut self, at: UnitOfFile) {
        if let Some(unit) = self.units.get(&at).copied() {
            self.put(at, Unit { is_older: true, ..unit });
        }
    }

    /// Whether the metadata keeps the bytes that were sent last, or are about to be kept.
    pub(crate) fn is_current(&self, at: UnitOfFile) -> bool {
        self.units.get(&at).is_some_and(|unit| !unit.is_older)
    }

    /// Notes that a block is about to be sent. `is_newer` says which of its units were written
    /// since they were hardened. The caller holds the block's lock.
    pub(crate) fn begin_send(&mut self, block: u64, is_newer: impl Fn(u32) -> bool) {
        self.change(block, |number, unit| Unit {
            phase: if unit.phase == Phase::Stored { Phase::Stored } else { Phase::Sent },
            is_older: unit.is_older || is_newer(number),
        });
    }

    /// Notes that what was sent of a block is stable.
    pub(crate) fn stored(&mut self, block: u64) {
        self.change(block, |_, unit| match unit.phase {
            Phase::Sent => Unit { phase: Phase::Stored, ..unit },
            Phase::Waiting | Phase::Stored => unit,
        });
    }

    /// Notes that what was sent of a block does not count: it may be lost, or the metadata does not
    /// know of it yet.
    pub(crate) fn not_stored(&mut self, block: u64) {
        self.change(block, |_, unit| match unit.phase {
            Phase::Sent => Unit { phase: Phase::Waiting, ..unit },
            Phase::Waiting | Phase::Stored => unit,
        });
    }

    /// Notes that all of a block is in a stable stripe that the metadata knows, and nothing newer
    /// is in memory. The caller holds the block's lock.
    pub(crate) fn all_stored(&mut self, block: u64) {
        self.change(block, |_, unit| Unit { phase: Phase::Stored, ..unit });
    }

    /// The units of which stripes may have newer bytes, none of them stable. An `fsync` must harden
    /// all of them, or send the file.
    pub(crate) fn lagging(&self) -> Vec<UnitOfFile> {
        if self.lagging == 0 {
            return Vec::new();
        }
        let lagging = self.units.iter().filter(|(_, unit)| unit.is_lagging());
        lagging.map(|(at, _)| *at).collect()
    }

    /// Whether one of these units, which [`Kept::lagging`] returned, still is like that.
    pub(crate) fn are_lagging(&self, units: &[UnitOfFile]) -> bool {
        units.iter().any(|at| self.units.get(at).is_some_and(Unit::is_lagging))
    }

    /// Up to `most` units that may be forgotten. With `outdated` only those that must be.
    pub(crate) fn forgettable(&self, outdated: bool, most: usize) -> Vec<UnitOfFile> {
        if outdated && self.outdated == 0 {
            return Vec::new();
        }
        let wanted = |unit: &Unit| unit.phase == Phase::Stored && (unit.is_older || !outdated);
        self.units.iter().filter(|(_, unit)| wanted(unit)).map(|(at, _)| *at).take(most).collect()
    }

    /// Notes that the metadata has forgotten these units, unless one was hardened again meanwhile.
    pub(crate) fn forget(&mut self, units: &[UnitOfFile]) {
        for at in units {
            if self.units.get(at).is_some_and(|unit| unit.phase == Phase::Stored) {
                self.take(*at);
            }
        }
    }

    /// Notes that the metadata has forgotten the units of the blocks `from..to`.
    pub(crate) fn forget_blocks(&mut self, from: u64, to: u64) {
        let gone: Vec<_> = self.units.range((from, 0)..(to, 0)).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|at| self.take(at));
    }

    /// Notes that the metadata has forgotten everything.
    pub(crate) fn clear(&mut self) {
        *self = Kept::default();
    }

    /// Up to `most` blocks with units that wait to be sent. Each block has its turn before any has
    /// it again.
    pub(crate) fn next_blocks(&mut self, most: usize) -> Vec<u64> {
        let mut blocks = Vec::new();
        let after = self.cursor.map_or(Unbounded, |last| Excluded((last, u32::MAX)));
        let later = self.units.range((after, Unbounded));
        for ((block, _), unit) in later.chain(&self.units) {
            if blocks.len() == most {
                break;
            }
            if unit.phase == Phase::Waiting && !blocks.contains(block) {
                blocks.push(*block);
            }
        }
        self.cursor = blocks.last().copied();
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use strake_env::Rng;

    const BLOCKS: u64 = 4;
    const UNITS: u32 = 5;

    /// What is known of a unit: values only grow.
    #[derive(Clone, Copy, Default)]
    struct Truth {
        memory: u32,
        /// What was sent, and is not stable.
        flying: Option<u32>,
        stable: u32,
        /// What the metadata keeps.
        kept: Option<u32>,
        unsaved: bool,
    }

    /// The rules of the list against what is true: nothing that is forgotten is newer than what
    /// is stable, and an fsync that is not refused leaves nothing that a start would bring back.
    #[test]
    fn what_is_forgotten_is_stored_and_what_is_outdated_is_known() {
        for seed in strake_env::rng::test_seeds(1, 300) {
            let mut rng = Rng::new(seed);
            let mut kept = Kept::default();
            let all: Vec<UnitOfFile> =
                (0..BLOCKS).flat_map(|block| (0..UNITS).map(move |unit| (block, unit))).collect();
            let mut truth: BTreeMap<UnitOfFile, Truth> =
                all.iter().map(|at| (*at, Truth::default())).collect();
            let mut flying: BTreeSet<u64> = BTreeSet::new();
            for step in 1..400 {
                let (at, block) = (all[rng.index(all.len())], rng.below(BLOCKS));
                let of = |truth: &mut BTreeMap<UnitOfFile, Truth>, work: &dyn Fn(&mut Truth)| {
                    truth.range_mut(of_block(block)).for_each(|(_, unit)| work(unit));
                };
                match rng.below(9) {
                    0..=2 => {
                        let unit = truth.get_mut(&at).expect("known");
                        (unit.memory, unit.unsaved) = (step, true);
                    }
                    3 if flying.insert(block) => {
                        let newer: BTreeSet<u32> = truth
                            .range(of_block(block))
                            .filter(|(_, unit)| unit.unsaved)
                            .map(|(at, _)| at.1)
                            .collect();
                        kept.begin_send(block, |unit| newer.contains(&unit));
                        of(&mut truth, &|unit| {
                            (unit.flying, unit.unsaved) = (Some(unit.memory), false);
                        });
                    }
                    4 if flying.remove(&block) => {
                        kept.stored(block);
                        of(&mut truth, &|unit| {
                            unit.stable = unit.flying.take().expect("it was sent");
                        });
                    }
                    5 if flying.contains(&block) && rng.one_in(2) => {
                        flying.remove(&block);
                        kept.not_stored(block);
                        // The client sends the whole block then.
                        of(&mut truth, &|unit| (unit.flying, unit.unsaved) = (None, true));
                    }
                    6 => {
                        let most = rng.index(9);
                        let units = kept.forgettable(false, most);
                        assert!(units.len() <= most);
                        for at in &units {
                            let unit = truth.get_mut(at).expect("known");
                            assert!(unit.kept.take() <= Some(unit.stable), "seed {seed}: {at:?}");
                        }
                        kept.forget(&units);
                    }
                    7 => {
                        let is_stored = |unit: &Truth| unit.memory == unit.stable;
                        if truth.range(of_block(block)).all(|(_, unit)| is_stored(unit)) {
                            kept.all_stored(block);
                        }
                    }
                    _ => fsync(&mut kept, &mut truth, &format!("seed {seed}, step {step}")),
                }
                let units = truth.values().filter(|unit| unit.kept.is_some()).count();
                assert_eq!(kept.len(), units, "seed {seed}");
            }
        }
    }

    /// Hardens what is unsaved or on its way, as `harden` does it.
    fn fsync(kept: &mut Kept, truth: &mut BTreeMap<UnitOfFile, Truth>, context: &str) {
        let lagging = kept.lagging();
        for (at, unit) in truth.iter_mut() {
            let is_flying = unit.flying.is_some_and(|sent| sent != unit.stable);
            if unit.unsaved || is_flying && !kept.is_current(*at) {
                kept.harden(*at);
                (unit.kept, unit.unsaved) = (Some(unit.memory), false);
            }
        }
        if kept.are_lagging(&lagging) {
            return;
        }
        let outdated = kept.forgettable(true, usize::MAX);
        for at in &outdated {
            let unit = truth.get_mut(at).expect("known");
            assert!(unit.kept.take() <= Some(unit.stable), "{context}: {at:?}");
        }
        kept.forget(&outdated);
        // A power cut now: stripes as they are stable, and what is kept over them.
        for (at, unit) in truth.iter() {
            let found = unit.kept.unwrap_or(unit.stable);
            assert_eq!(found, unit.memory, "{context}: {at:?}");
        }
    }

    #[test]
    fn every_block_that_waits_has_its_turn() {
        let mut kept = Kept::default();
        for block in [3, 5, 9, 12] {
            kept.harden((block, 0));
            kept.harden((block, 7));
        }
        assert_eq!(kept.next_blocks(3), [3, 5, 9]);
        assert_eq!(kept.next_blocks(3), [12, 3, 5]);
        assert_eq!(kept.next_blocks(9), [9, 12, 3, 5]);
        kept.begin_send(5, |_| false);
        assert_eq!(kept.next_blocks(9), [9, 12, 3]);
        kept.forget_blocks(0, 10);
        assert_eq!((kept.next_blocks(9), kept.len()), (vec![12], 2));
    }
}
