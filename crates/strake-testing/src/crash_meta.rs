//! Metadata in memory. A crash loses the entries that were not synced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::sync::Mutex;
use strake_meta::MemoryMeta;
use strake_proto::meta::{MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, Result};

/// Metadata whose entries are lost in a crash unless they were synced.
pub struct CrashMeta {
    live: Mutex<Arc<MemoryMeta>>,
    log: Mutex<(Vec<MetaEntry>, usize)>,
    frozen: AtomicBool,
}

impl CrashMeta {
    /// Empty metadata.
    pub fn new() -> Arc<CrashMeta> {
        let live = Mutex::new(Arc::new(MemoryMeta::new()));
        Arc::new(CrashMeta { live, log: Mutex::default(), frozen: AtomicBool::new(false) })
    }

    /// A crash: loses the entries that were not synced, except the first `more` of them.
    pub fn crash(&self, more: usize) {
        self.frozen.store(false, Ordering::SeqCst);
        let mut log = self.log.lock();
        log.1 = (log.1 + more).min(log.0.len());
        let durable = log.1;
        log.0.truncate(durable);
        let meta = MemoryMeta::new();
        for entry in &log.0 {
            meta.apply(entry).expect("it was applied before");
        }
        *self.live.lock() = Arc::new(meta);
    }
}

impl CrashMeta {
    /// Refuses all changes from now on, until the next crash.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    /// Whether a change of which this is true is durable.
    pub fn is_durable(&self, wanted: impl Fn(&MetaOp) -> bool) -> bool {
        let log = self.log.lock();
        log.0[..log.1].iter().any(|entry| wanted(&entry.op))
    }

    fn check_power(&self) -> Result<()> {
        if self.frozen.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "injected: the power is gone"));
        }
        Ok(())
    }
}

impl MetaPort for CrashMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        let live = Arc::clone(&self.live.lock());
        live.query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        // Under one lock, so that the log has the order in which the entries were applied.
        let mut log = self.log.lock();
        self.check_power()?;
        let reply = self.live.lock().apply(entry)?;
        log.0.push(entry.clone());
        Ok(reply)
    }

    fn sync(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.check_power()?;
        log.1 = log.0.len();
        Ok(())
    }
}
