//! The simplest ordered key-value store that the state machine can run on.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use strake_proto::Result;
use strake_store::{Batch, KvRead};

/// A store in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKv {
    records: BTreeMap<Vec<u8>, Arc<[u8]>>,
}

impl MemoryKv {
    /// Makes changes.
    pub fn apply(&mut self, changes: &Batch) {
        for (key, value) in changes.iter() {
            match value {
                Some(value) => self.records.insert(key.to_vec(), value.clone()),
                None => self.records.remove(key),
            };
        }
    }

    fn range(&self, from: &[u8], to: &[u8]) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.records
            .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
            .map(|(key, value)| (&key[..], &value[..]))
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
            self.range(from, to).all(|(key, value)| visit(key, value));
        }
        Ok(())
    }

    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if from < to {
            self.range(from, to).rev().all(|(key, value)| visit(key, value));
        }
        Ok(())
    }
}
