//! What the state machine asks of an ordered key-value store, and the simplest one.

use std::collections::BTreeMap;
use std::sync::Arc;
use strake_proto::Result;

/// Reads of an ordered store. One call's view of the store does not change between calls: the
/// owner holds a lock that keeps writers out.
pub trait KvRead {
    /// The value of a key.
    ///
    /// # Errors
    /// The store's.
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>>;

    /// Visits keys `from..to` in order until `visit` returns false.
    ///
    /// # Errors
    /// The store's.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;
}

/// What an entry changes, in key order: `None` removes.
pub type Changes = Vec<(Vec<u8>, Option<Arc<[u8]>>)>;

/// A store in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKv {
    records: BTreeMap<Vec<u8>, Arc<[u8]>>,
}

impl MemoryKv {
    /// Makes changes.
    pub fn apply(&mut self, changes: Changes) {
        for (key, value) in changes {
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
    }
}

impl KvRead for MemoryKv {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        Ok(self.records.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if from < to {
            let range = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
            self.records.range::<[u8], _>(range).all(|(key, value)| visit(key, value));
        }
        Ok(())
    }
}
