//! Changes in memory that the base does not have yet.

use super::key::Key;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A value, or its absence where the base may have one.
pub(super) type Change = Option<Arc<[u8]>>;

/// What a pair costs beyond its bytes: the key's place, a fat pointer, allocations, its share of a
/// node.
const PAIR_OVERHEAD_BYTES: u64 = 96;

/// Changes in key order.
#[derive(Clone, Default)]
pub(super) struct Overlay {
    changes: BTreeMap<Key, Change>,
    bytes: u64,
}

fn cost(key: &[u8], change: &Change) -> u64 {
    (key.len() + change.as_ref().map_or(0, |value| value.len())) as u64 + PAIR_OVERHEAD_BYTES
}

impl Overlay {
    pub(super) fn set(&mut self, key: Key, change: Change) {
        self.bytes += cost(key.bytes(), &change);
        let key_bytes = key.bytes().len() as u64;
        if let Some(old) = self.changes.insert(key, change) {
            self.bytes -= key_bytes + cost(&[], &old);
        }
    }

    /// Forgets a key without a trace, for stores without a base.
    pub(super) fn forget(&mut self, key: &[u8]) {
        if let Some(old) = self.changes.remove(key) {
            self.bytes -= cost(key, &old);
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Change> {
        self.changes.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Estimated memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
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

    /// Puts older changes below these: where both change a key, these win.
    pub(super) fn add_older(&mut self, older: Overlay) {
        for (key, change) in older.changes {
            if !self.changes.contains_key(key.bytes()) {
                self.set(key, change);
            }
        }
    }

    /// Asserts that the byte count is what the changes cost.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let bytes: u64 = self.changes.iter().map(|(key, change)| cost(key.bytes(), change)).sum();
        assert_eq!(bytes, self.bytes, "the overlay's bytes are counted");
    }
}
