//! What one node keeps of replicated metadata: a store on its disk, and whether it is whole.
//!
//! A record says that a copy is under way. It is durable before the first old record goes, and it
//! goes with the last part of the copy. So a store whose copy broke off is known after a crash.

use super::rule::{Rule, Rules};
use crate::ahead::Base;
use crate::keys;
use std::sync::Arc;
use strake_proto::Result;
use strake_store::{Batch, Kv, KvRead, Lsn};

/// The name of the record that is there while a copy is under way.
const COPYING: &str = "copying";
/// Beyond every key.
const KEYS_END: &[u8] = &[0xff];
/// So many records are removed at a time.
const REMOVED_TOGETHER: usize = 1000;
/// While a copy arrives, this many bytes of it wait in memory at most.
const OVERLAY_BYTES_MAX: u64 = 32 << 20;

/// See the module.
#[derive(Clone)]
pub(super) struct NodeStore {
    kv: Arc<Kv>,
    rules: Rules,
}

impl NodeStore {
    pub(super) fn new(kv: Arc<Kv>, rules: Rules) -> NodeStore {
        NodeStore { kv, rules }
    }

    /// The store as it is now, to be read.
    pub(super) fn view(&self) -> NodeStore {
        NodeStore { kv: Arc::new(self.kv.view()), rules: self.rules }
    }

    /// The last position that is durable, or `None` if the store is not whole.
    pub(super) fn position(&self) -> Result<Option<u64>> {
        let is_whole = self.kv.get(&keys::global(COPYING))?.is_none();
        Ok(is_whole.then(|| self.kv.applied_in_base().0))
    }

    /// Removes all records, for a copy that follows.
    pub(super) fn erase(&self) -> Result<()> {
        let mark = keys::global(COPYING);
        if self.rules.obeys(Rule::BrokenCopiesAreMarked) {
            let mut batch = Batch::new();
            batch.put(&mark, *b"1");
            self.kv.apply(batch, Lsn(0));
        }
        self.kv.checkpoint()?;
        loop {
            let mut batch = Batch::new();
            self.kv.scan(&[], KEYS_END, &mut |key, _| {
                if key != mark {
                    batch.delete(key);
                }
                batch.len() < REMOVED_TOGETHER
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            self.kv.apply(batch, Lsn(0));
            self.kv.checkpoint()?;
        }
    }

    /// Takes changes of a copy.
    pub(super) fn take(&self, changes: Batch) -> Result<()> {
        self.kv.apply(changes, Lsn(0));
        if self.kv.overlay_bytes() > OVERLAY_BYTES_MAX {
            self.kv.checkpoint()?;
        }
        Ok(())
    }

    /// The copy is whole at a position. Makes that durable.
    pub(super) fn finish(&self, position: u64) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(keys::global(COPYING));
        self.kv.apply(batch, Lsn(position));
        self.kv.checkpoint().map(|_| ())
    }
}

impl Base for NodeStore {
    fn apply(&mut self, changes: &Batch, position: u64) {
        self.kv.apply(changes.clone(), Lsn(position));
    }
}

impl KvRead for NodeStore {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        self.kv.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.kv.scan(from, to, visit)
    }

    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.kv.scan_back(from, to, visit)
    }
}
