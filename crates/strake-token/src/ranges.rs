//! Ranges of blocks of one file, each held in one mode: sorted, without overlap, and without
//! neighbours of one mode. So equal holdings have one form.

use crate::held::Mode;
use serde::{Deserialize, Serialize};
use strake_proto::BlockIndex;

/// Blocks `from..to`. `to` is [`BlockIndex::END`] for all that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(BlockIndex, BlockIndex)", into = "(BlockIndex, BlockIndex)")]
pub struct BlockRange {
    /// The first block.
    pub from: BlockIndex,
    /// One past the last block.
    pub to: BlockIndex,
}

impl BlockRange {
    /// All blocks of a file.
    pub const ALL: BlockRange = BlockRange { from: BlockIndex(0), to: BlockIndex::END };

    /// Blocks `from..to`.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn new(from: BlockIndex, to: BlockIndex) -> BlockRange {
        assert!(from < to, "a range has blocks");
        BlockRange { from, to }
    }

    /// Whether the two have a block in common.
    pub fn overlaps(self, other: BlockRange) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// The blocks that both have.
    pub fn common(self, other: BlockRange) -> Option<BlockRange> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from < to).then_some(BlockRange { from, to })
    }

    /// Whether all blocks of `other` are in it.
    pub fn contains(self, other: BlockRange) -> bool {
        self.from <= other.from && other.to <= self.to
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(BlockRange, Mode)>", into = "Vec<(BlockRange, Mode)>")]
pub struct Ranges(Vec<(BlockRange, Mode)>);

impl TryFrom<(BlockIndex, BlockIndex)> for BlockRange {
    type Error = &'static str;

    fn try_from((from, to): (BlockIndex, BlockIndex)) -> Result<BlockRange, Self::Error> {
        if from < to { Ok(BlockRange { from, to }) } else { Err("a range without blocks") }
    }
}

impl From<BlockRange> for (BlockIndex, BlockIndex) {
    fn from(range: BlockRange) -> Self {
        (range.from, range.to)
    }
}

impl TryFrom<Vec<(BlockRange, Mode)>> for Ranges {
    type Error = &'static str;

    fn try_from(list: Vec<(BlockRange, Mode)>) -> Result<Ranges, Self::Error> {
        let in_form = list.windows(2).all(|pair| {
            let (one, two) = (pair[0], pair[1]);
            one.0.to < two.0.from || (one.0.to == two.0.from && one.1 != two.1)
        });
        let in_form = in_form && list.iter().all(|(_, mode)| *mode != Mode::Writing);
        if in_form { Ok(Ranges(list)) } else { Err("ranges out of order") }
    }
}

impl From<Ranges> for Vec<(BlockRange, Mode)> {
    fn from(ranges: Ranges) -> Self {
        ranges.0
    }
}

impl Ranges {
    /// All blocks, exclusively.
    pub fn all() -> Ranges {
        Ranges(vec![(BlockRange::ALL, Mode::Exclusive)])
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }

    /// The blocks that are not held.
    pub fn gaps(&self) -> Vec<BlockRange> {
        let mut rest = Ranges::all();
        for (held, _) in self.iter() {
            rest.limit(held, None);
        }
        rest.0.into_iter().map(|(range, _)| range).collect()
    }

    /// Whether a block of `range` is held.
    pub fn overlaps(&self, range: BlockRange) -> bool {
        self.iter().any(|(held, _)| held.overlaps(range))
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is held, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockRange, Mode)> + '_ {
        self.0.iter().copied()
    }

    /// Whether every block of `range` is held in `mode`, or in a mode that includes it.
    pub fn covers(&self, range: BlockRange, mode: Mode) -> bool {
        let mut at = range.from;
        for (held, held_mode) in self.iter() {
            if held.from <= at && at < held.to && held_mode.includes(mode) {
                at = held.to;
            }
        }
        at >= range.to
    }

    /// Whether a block of `range` is held in a mode that does not agree with `mode` elsewhere.
    pub fn conflicts(&self, range: BlockRange, mode: Mode) -> bool {
        self.iter().any(|(held, held_mode)| held.overlaps(range) && !held_mode.agrees(mode))
    }

    /// Whether some block is held here and there in modes that do not agree.
    pub fn conflicts_with(&self, other: &Ranges) -> bool {
        other.iter().any(|(range, mode)| self.conflicts(range, mode))
    }

    /// Whether all that is held here is held there as well.
    pub fn is_within(&self, other: &Ranges) -> bool {
        self.iter().all(|(range, mode)| other.covers(range, mode))
    }

    /// Holds `range` in `mode`, or in the mode in which it is held if that includes `mode`.
    pub fn raise(&mut self, range: BlockRange, mode: Mode) {
        self.change(range, |held| Some(held.map_or(mode, |held| held.max(mode))));
    }

    /// Holds of `range` at most `most`; `None` gives it up.
    pub fn limit(&mut self, range: BlockRange, most: Option<Mode>) {
        self.change(range, |held| held.and_then(|held| most.map(|most| held.min(most))));
    }

    /// The longest range within `desired` that contains `required` and agrees with all of `self` in
    /// `mode`. `required` itself is taken to agree.
    pub fn room(&self, required: BlockRange, desired: BlockRange, mode: Mode) -> BlockRange {
        let (mut from, mut to) = (desired.from.min(required.from), desired.to.max(required.to));
        for (held, _) in self.iter().filter(|(_, held_mode)| !held_mode.agrees(mode)) {
            if held.to <= required.from {
                from = from.max(held.to);
            } else if held.from >= required.to {
                to = to.min(held.from);
            }
        }
        BlockRange { from, to }
    }

    /// Gives each block of `range` the mode that `rule` makes of its present one.
    fn change(&mut self, range: BlockRange, rule: impl Fn(Option<Mode>) -> Option<Mode>) {
        let mut cuts: Vec<BlockIndex> = vec![range.from, range.to];
        for (held, _) in self.iter() {
            cuts.extend([held.from, held.to]);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut changed: Vec<(BlockRange, Mode)> = Vec::with_capacity(self.0.len() + 2);
        for pair in cuts.windows(2) {
            let piece = BlockRange { from: pair[0], to: pair[1] };
            let held = self.iter().find(|(held, _)| held.contains(piece)).map(|(_, mode)| mode);
            let mode = if range.contains(piece) { rule(held) } else { held };
            let Some(mode) = mode else { continue };
            match changed.last_mut() {
                Some((last, last_mode)) if last.to == piece.from && *last_mode == mode => {
                    last.to = piece.to;
                }
                _ => changed.push((piece, mode)),
            }
        }
        self.0 = changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    const BLOCKS: u64 = 12;

    fn range(from: u64, to: u64) -> BlockRange {
        BlockRange::new(BlockIndex(from), BlockIndex(to))
    }

    /// A mode for each block.
    #[derive(Clone, Default, PartialEq, Eq, Debug)]
    struct Model([Option<Mode>; BLOCKS as usize]);

    impl Model {
        fn of(ranges: &Ranges) -> Model {
            let mut model = Model::default();
            for (range, mode) in ranges.iter() {
                for block in range.from.0..range.to.0 {
                    assert_eq!(model.0[block as usize], None, "ranges do not overlap");
                    model.0[block as usize] = Some(mode);
                }
            }
            model
        }

        fn of_range(&self, range: BlockRange) -> &[Option<Mode>] {
            &self.0[range.from.0 as usize..range.to.0 as usize]
        }
    }

    fn any_range(rng: &mut Rng) -> BlockRange {
        let from = rng.below(BLOCKS);
        range(from, from + 1 + rng.below(BLOCKS - from))
    }

    #[test]
    fn ranges_agree_with_a_mode_for_each_block() {
        let seed = 11;
        let mut rng = Rng::new(seed);
        let (mut ranges, mut model) = (Ranges::default(), Model::default());
        for step in 0..20_000 {
            let (at, mode) = (any_range(&mut rng), Mode::ALL[rng.index(2)]);
            let cells = at.from.0 as usize..at.to.0 as usize;
            if rng.below(2) == 0 {
                ranges.raise(at, mode);
                model.0[cells].iter_mut().for_each(|cell| *cell = (*cell).max(Some(mode)));
            } else {
                let most = [None, Some(Mode::Shared)][rng.index(2)];
                ranges.limit(at, most);
                model.0[cells].iter_mut().for_each(|cell| *cell = (*cell).min(most));
            }
            assert_eq!(Model::of(&ranges), model, "seed {seed}, step {step}");
            let asked = any_range(&mut rng);
            let cells = model.of_range(asked);
            assert_eq!(ranges.covers(asked, mode), cells.iter().all(|cell| *cell >= Some(mode)));
            let conflict = cells.iter().flatten().any(|cell| !cell.agrees(mode));
            assert_eq!(ranges.conflicts(asked, mode), conflict, "seed {seed}, step {step}");
            if !conflict {
                let room = ranges.room(asked, range(0, BLOCKS), mode);
                assert!(room.contains(asked) && !ranges.conflicts(room, mode));
                let more = [room.from.0.checked_sub(1), Some(room.to.0)];
                for next in more.into_iter().flatten().filter(|next| *next < BLOCKS) {
                    assert!(ranges.conflicts(range(next, next + 1), mode), "it is the longest");
                }
            }
        }
    }

    #[test]
    fn neighbours_of_one_mode_are_one_range() {
        let mut ranges = Ranges::default();
        ranges.raise(range(0, 4), Mode::Exclusive);
        ranges.raise(range(8, 12), Mode::Exclusive);
        ranges.raise(range(4, 8), Mode::Exclusive);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(range(0, 12), Mode::Exclusive)]);
        ranges.limit(range(4, 8), Some(Mode::Shared));
        assert_eq!(ranges.iter().count(), 3);
    }
}
