//! One copy of the metadata: a journal and a store in one NSD's container, and a thread that
//! syncs the journal while others sync theirs.

use std::sync::Arc;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::{Error, ErrorKind, NsdId, Result};
use strake_store::{Batch, Container, Journal, Kv, KvRead, KvRole, Lsn};

/// An append leaves this much free in the ring, for record headers and padding.
const LOG_MARGIN_BYTES: u64 = 64 << 10;

pub(crate) struct Holder {
    pub(crate) nsd: NsdId,
    pub(crate) container: Container,
    pub(crate) kv: Kv,
    journal: Arc<Journal>,
    syncer: Arc<Syncer>,
}

/// What the sync thread and its callers share.
#[derive(Default)]
struct Syncer {
    state: Mutex<SyncState>,
    wanted: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct SyncState {
    /// Calls so far.
    requested: u64,
    /// Calls answered by a sync that began after them.
    done: u64,
    /// The first failure; a journal does not recover from one.
    error: Option<Error>,
    stopped: bool,
}

/// A sync that was asked for.
pub(crate) struct SyncTicket {
    syncer: Arc<Syncer>,
    number: u64,
}

impl SyncTicket {
    /// Waits until it is done.
    pub(crate) fn wait(self) -> Result<()> {
        let mut state = self.syncer.state.lock();
        while state.done < self.number {
            self.syncer.answered.wait(&mut state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

impl Syncer {
    fn run(&self, journal: &Journal) {
        let mut state = self.state.lock();
        loop {
            while state.requested == state.done && !state.stopped {
                self.wanted.wait(&mut state);
            }
            if state.requested == state.done {
                return;
            }
            // All who asked until now share this one sync.
            let number = state.requested;
            let result = strake_env::sync::MutexGuard::unlocked(&mut state, || journal.sync());
            state.done = number;
            if let Err(error) = result {
                state.error.get_or_insert(error);
            }
            self.answered.notify_all();
        }
    }
}

impl Holder {
    /// Opens what a container holds; also the journal's entries, in order.
    pub(crate) fn open(
        container: &Container,
        cache_bytes: usize,
    ) -> Result<(Holder, strake_store::journal::Entries)> {
        let nsd = container.superblock().nsd;
        let kv = Kv::open(container.kv_region(KvRole::Metadata), cache_bytes)?;
        let (journal, entries) = Journal::open(container.metadata_log())?;
        journal.advance(kv.applied_in_base());
        let journal = Arc::new(journal);
        let syncer = Arc::new(Syncer::default());
        let (thread_journal, thread_syncer) = (Arc::clone(&journal), Arc::clone(&syncer));
        strake_env::thread::Builder::new()
            .name(format!("meta-sync-{nsd}"))
            .spawn(move || thread_syncer.run(&thread_journal))?;
        Ok((Holder { nsd, container: container.clone(), kv, journal, syncer }, entries))
    }

    /// Whether an entry of so many bytes surely fits the journal.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let needed = bytes as u64 + LOG_MARGIN_BYTES;
        self.journal.used().saturating_add(needed) <= self.journal.capacity()
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_heavy(&self, overlay_bytes_max: u64) -> bool {
        self.kv.overlay_bytes() > overlay_bytes_max
            || self.journal.used() > self.journal.capacity() / 2
            || self.kv.is_due(1)
            || self.kv.promises_too_much()
    }

    /// Whether an entry of so many bytes may make this copy larger, up to so many eighths of what
    /// it may become.
    pub(crate) fn may_grow(&self, bytes: usize, part: u64) -> bool {
        // Its records are several; together they are hardly twice the entry.
        let fits = || self.free(part) >= 4 * bytes as u64;
        fits() || {
            self.kv.look_for_space();
            fits()
        }
    }

    /// Bytes of pages that this copy may still take, up to so many eighths of what it may become.
    pub(crate) fn free(&self, part: u64) -> u64 {
        (self.kv.weight_max() / 8).saturating_mul(part).saturating_sub(self.kv.weight())
    }

    /// Whether a checkpoint might tell that this copy takes clearly less than is thought: what is
    /// in memory counts as if it replaced nothing.
    pub(crate) fn has_much_in_memory(&self) -> bool {
        self.kv.overlay_bytes() > self.kv.weight_max() / 16
    }

    /// Whether anything was changed since the last checkpoint.
    pub(crate) fn has_changes(&self) -> bool {
        self.kv.overlay_bytes() > 0
    }

    /// Appends entry `lsn`; every copy numbers alike.
    pub(crate) fn append(&self, entry: &[u8], lsn: Lsn) -> Result<()> {
        let got = self.journal.append(entry)?;
        if got != lsn {
            let detail = format!("NSD {}: entry {} came to be {}", self.nsd, lsn.0, got.0);
            return Err(Error::new(ErrorKind::Internal, detail));
        }
        Ok(())
    }

    pub(crate) fn apply(&self, changes: Batch, lsn: Lsn) {
        self.kv.apply(changes, lsn);
    }

    /// The last entry's number.
    pub(crate) fn last(&self) -> Lsn {
        self.journal.last()
    }

    /// The next entry gets a number above `lsn`.
    pub(crate) fn advance(&self, lsn: Lsn) {
        self.journal.advance(lsn);
    }

    /// Syncs the journal on this thread.
    pub(crate) fn sync(&self) -> Result<()> {
        self.journal.sync()
    }

    /// Has the journal synced by its own thread.
    pub(crate) fn request_sync(&self) -> SyncTicket {
        let mut state = self.syncer.state.lock();
        state.requested += 1;
        let number = state.requested;
        self.syncer.wanted.notify_one();
        SyncTicket { syncer: Arc::clone(&self.syncer), number }
    }

    /// Writes the store's changes to its base and gives up entries that are in it; of these, none
    /// above `synced`, which another copy may still need after a crash.
    pub(crate) fn checkpoint(&self, synced: Lsn) -> Result<()> {
        let in_base = self.kv.checkpoint()?;
        self.journal.trim(Lsn(in_base.min(synced).0 + 1))
    }

    /// Ends all writing to its disk, also by threads that still have the holder.
    pub(crate) fn close(&self) {
        self.journal.close();
        self.kv.close_base();
    }

    /// Bytes in the journal.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.journal.used()
    }

    /// Reads the journal back; the number of the first damaged chunk.
    pub(crate) fn verify_log(&self) -> Result<Option<u64>> {
        self.journal.verify()
    }

    /// As [`Holder::checkpoint`], and nothing of the journal as it is counts any more.
    pub(crate) fn renew_log(&self, synced: Lsn) -> Result<()> {
        let in_base = self.kv.checkpoint()?;
        self.journal.renew(Lsn(in_base.min(synced).0 + 1))
    }

    /// As [`Holder::checkpoint`], to a base that is written anew. `Corrupt` if it cannot be read.
    pub(crate) fn renew_base(&self, synced: Lsn) -> Result<()> {
        let in_base = self.kv.renew(false)?.applied;
        self.journal.trim(Lsn(in_base.min(synced).0 + 1))
    }

    /// All records in key order.
    pub(crate) fn scan_all(
        &self,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.kv.scan(from, &[0xff], visit)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The thread is not joined: a disk that hangs must not hang the thread that drops its copy.
        self.syncer.state.lock().stopped = true;
        self.syncer.wanted.notify_one();
        // A copy that takes its place looks for space each second.
        self.container.keep_for_none();
    }
}
