//! Metadata in memory only: the state machine on a sorted map. It serves tests, and measurements of
//! the state machine's own cost.

use crate::kv::MemoryKv;
use crate::{machine, query};
use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::sync::RwLock;
use strake_proto::Result;
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaEntry, MetaPort, MetaQuery, MetaReply};

/// Metadata in memory; see the module. Everything is durable as long as the value lives.
#[derive(Debug, Default)]
pub struct MemoryMeta {
    kv: RwLock<MemoryKv>,
    /// The position of the last counted change.
    position: AtomicU64,
}

impl MemoryMeta {
    /// Metadata that waits for its first entry, [`strake_proto::meta::MetaOp::Format`].
    pub fn new() -> MemoryMeta {
        MemoryMeta::default()
    }

    /// All records as they are now. Equal snapshots mean equal states.
    pub fn snapshot(&self) -> MemoryKv {
        self.kv.read().clone()
    }
}

impl MetaPort for MemoryMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        query::query(&*self.kv.read(), query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let mut kv = self.kv.write();
        let (reply, changes) = machine::apply(&*kv, entry)?;
        kv.apply(&changes);
        Ok(reply)
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let mut kv = self.kv.write();
        let position = self.position.load(Ordering::Relaxed) + 1;
        let (answer, changes) = machine::apply_counted(&*kv, counted, position)?;
        kv.apply(&changes);
        if !changes.is_empty() {
            self.position.store(position, Ordering::Relaxed);
        }
        Ok(answer)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
