//! Changes in memory that the base does not have yet.

use super::base::weight_of;
use super::key::Key;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A value. `None` says that the key is absent, although the base may have it.
pub(super) type Change = Option<Arc<[u8]>>;

/// A pair takes this much memory beyond its bytes: the key's place, a fat pointer, allocations, and
/// the pair's share of a node.
const PAIR_OVERHEAD_BYTES: u64 = 96;

/// Changes in key order.
#[derive(Clone, Default)]
pub(super) struct Overlay {
    changes: BTreeMap<Key, Change>,
    bytes: u64,
    /// The weight of the pairs in a base: see [`weight_of`].
    weight: u64,
}

fn weight(key_bytes: usize, change: &Change) -> u64 {
    change.as_ref().map_or(0, |value| weight_of(key_bytes + value.len()))
}

fn cost(key: &[u8], change: &Change) -> u64 {
    (key.len() + change.as_ref().map_or(0, |value| value.len())) as u64 + PAIR_OVERHEAD_BYTES
}

impl Overlay {
    pub(super) fn set(&mut self, key: Key, change: Change) {
        self.bytes += cost(key.bytes(), &change);
        self.weight += weight(key.bytes().len(), &change);
        let key_bytes = key.bytes().len();
        if let Some(old) = self.changes.insert(key, change) {
            self.bytes -= key_bytes as u64 + cost(&[], &old);
            self.weight -= weight(key_bytes, &old);
        }
    }

    /// Forgets a key without a trace, for stores without a base.
    pub(super) fn forget(&mut self, key: &[u8]) {
        if let Some(old) = self.changes.remove(key) {
            self.bytes -= cost(key, &old);
            self.weight -= weight(key.len(), &old);
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Change> {
        self.changes.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// An estimate of the memory in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes that a base may grow by when it takes these changes.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Change)> {
        self.changes.iter().map(|(key, change)| (key.bytes(), change))
    }

    pub(super) fn range<'a>(
        &'a self,
        range: (Bound<&'a [u8]>, Bound<&'a [u8]>),
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a Change)> {
        self.changes.range::<[u8], _>(range).map(|(key, change)| (key.bytes(), change))
    }

    /// Puts older changes below these. If both change a key, these win.
    pub(super) fn add_older(&mut self, older: Overlay) {
        for (key, change) in older.changes {
            if !self.changes.contains_key(key.bytes()) {
                self.set(key, change);
            }
        }
    }

    /// Asserts that the byte count and the weight are those of the changes.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let bytes: u64 = self.changes.iter().map(|(key, change)| cost(key.bytes(), change)).sum();
        assert_eq!(bytes, self.bytes, "the overlay's bytes are counted");
        let pairs = self.changes.iter().map(|(key, change)| weight(key.bytes().len(), change));
        assert_eq!(pairs.sum::<u64>(), self.weight, "the overlay's weight is counted");
    }
}
