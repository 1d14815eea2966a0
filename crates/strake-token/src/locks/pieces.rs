//! Which bytes of a file have which value: pieces in order, without overlap, and without neighbours
//! of one value. So equal contents have one form.

use super::ByteRange;
use std::collections::BTreeMap;

/// See the file's head. The key is the first byte of a piece; one past its last stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pieces<V>(BTreeMap<u64, (u64, V)>);

impl<V> Default for Pieces<V> {
    fn default() -> Pieces<V> {
        Pieces(BTreeMap::new())
    }
}

impl<V: Copy + Eq> Pieces<V> {
    /// Whether no byte has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of pieces.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, V)> + '_ {
        self.0.iter().map(|(from, (to, value))| (ByteRange { from: *from, to: *to }, *value))
    }

    /// The pieces that have a byte of `range`, each as a whole.
    pub fn over(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, V)> + '_ {
        let before = self.0.range(..range.from).next_back().map(|(from, _)| *from);
        let first = before.unwrap_or(range.from);
        let pieces = self.0.range(first..range.to);
        let pieces = pieces.map(|(from, (to, value))| (ByteRange { from: *from, to: *to }, *value));
        pieces.filter(move |(piece, _)| piece.overlaps(range))
    }

    /// Gives all bytes of `range` a value, or none.
    pub fn put(&mut self, range: ByteRange, value: Option<V>) {
        self.cut(range.from);
        self.cut(range.to);
        while let Some((from, _)) = self.0.range(range.from..range.to).next() {
            let from = *from;
            self.0.remove(&from);
        }
        let Some(value) = value else { return };
        let ByteRange { mut from, mut to } = range;
        if let Some((before, (end, other))) = self.0.range(..from).next_back()
            && (*end, *other) == (from, value)
        {
            from = *before;
        }
        if let Some((end, other)) = self.0.get(&to).copied()
            && other == value
        {
            self.0.remove(&to);
            to = end;
        }
        self.0.insert(from, (to, value));
    }

    /// Makes a piece begin at `at`, if one lies across it.
    fn cut(&mut self, at: u64) {
        let Some((_, (to, value))) = self.0.range_mut(..at).next_back() else { return };
        if *to > at {
            let (end, value) = (std::mem::replace(to, at), *value);
            self.0.insert(at, (end, value));
        }
    }

    /// Walks all pieces.
    ///
    /// # Panics
    /// If they are out of order, or two neighbours could be one.
    pub fn check(&self) {
        let mut last: Option<(ByteRange, V)> = None;
        for (range, value) in self.iter() {
            assert!(range.from < range.to && range.to <= ByteRange::END, "a piece has bytes");
            if let Some((before, other)) = last {
                let is_apart =
                    before.to < range.from || (before.to == range.from && other != value);
                assert!(is_apart, "pieces are in order, and as few as can be");
            }
            last = Some((range, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    #[test]
    fn pieces_are_what_a_list_of_bytes_is() {
        for seed in strake_env::rng::test_seeds(0, 50) {
            let mut rng = Rng::new(seed);
            let (mut pieces, mut bytes) = (Pieces::default(), [None; 24]);
            for _ in 0..200 {
                let from = rng.below(23);
                let to = from + 1 + rng.below(24 - from);
                let value = (!rng.one_in(3)).then(|| rng.below(3));
                let range = ByteRange { from, to };
                pieces.put(range, value);
                bytes[from as usize..to as usize].fill(value);
                pieces.check();
                let mut seen = [None; 24];
                for (piece, value) in pieces.iter() {
                    seen[piece.from as usize..piece.to as usize].fill(Some(value));
                }
                assert_eq!(seen, bytes, "seed {seed}");
                let from = rng.below(23);
                let asked = ByteRange { from, to: from + 1 + rng.below(24 - from) };
                let over: Vec<_> = pieces.over(asked).collect();
                let expected: Vec<_> =
                    pieces.iter().filter(|(piece, _)| piece.overlaps(asked)).collect();
                assert_eq!(over, expected, "seed {seed}");
            }
        }
    }
}
