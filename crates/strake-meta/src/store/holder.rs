//! One copy of the metadata: a journal and a store in one NSD's container. A thread of its own
//! syncs the journal while other holders sync theirs.

use std::sync::Arc;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::{Error, ErrorKind, NsdId, Result};
use strake_store::{Batch, Container, Journal, Kv, KvRead, KvRole, Lsn};

/// An append leaves this many bytes of the ring free, for record headers and padding.
const LOG_MARGIN_BYTES: u64 = 64 << 10;

pub(crate) struct Holder {
    pub(crate) nsd: NsdId,
    pub(crate) container: Container,
    pub(crate) kv: Kv,
    journal: Arc<Journal>,
    syncer: Arc<Syncer>,
}

/// The state that the sync thread shares with its callers.
#[derive(Default)]
struct Syncer {
    state: Mutex<SyncState>,
    wanted: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct SyncState {
    /// The number of calls so far.
    requested: u64,
    /// The number of calls answered by a sync that began after them.
    done: u64,
    /// The first failure. A journal does not recover from a failure.
    error: Option<Error>,
    stopped: bool,
}

/// A sync that was asked for.
pub(crate) struct SyncTicket {
    syncer: Arc<Syncer>,
    number: u64,
}

impl SyncTicket {
    /// Waits until the sync is done.
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
            // All callers who asked until now share this one sync.
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
    /// Opens the copy in a container. Also returns the journal's entries, in order.
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

    /// True if an entry of this many bytes certainly fits into the journal.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let needed = bytes as u64 + LOG_MARGIN_BYTES;
        self.journal.used().saturating_add(needed) <= self.journal.capacity()
    }

    /// True if a checkpoint is due.
    pub(crate) fn is_heavy(&self, overlay_bytes_max: u64) -> bool {
        self.kv.overlay_bytes() > overlay_bytes_max
            || self.journal.used() > self.journal.capacity() / 2
            || self.kv.is_due(1)
            || self.kv.promises_too_much()
    }

    /// True if a checkpoint might show that the copy is clearly smaller than assumed. Changes in
    /// memory are counted as if they replaced nothing.
    pub(crate) fn has_much_in_memory(&self) -> bool {
        self.kv.overlay_bytes() > self.kv.weight_max() / 16
    }

    /// True if anything was changed since the last checkpoint.
    pub(crate) fn has_changes(&self) -> bool {
        self.kv.overlay_bytes() > 0
    }

    /// Appends entry `lsn`. All copies number their entries alike.
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

    /// Makes the next entry get a number above `lsn`.
    pub(crate) fn advance(&self, lsn: Lsn) {
        self.journal.advance(lsn);
    }

    /// Syncs the journal on this thread.
    pub(crate) fn sync(&self) -> Result<()> {
        self.journal.sync()
    }

    /// Asks the journal's own thread to sync it.
    pub(crate) fn request_sync(&self) -> SyncTicket {
        let mut state = self.syncer.state.lock();
        state.requested += 1;
        let number = state.requested;
        self.syncer.wanted.notify_one();
        SyncTicket { syncer: Arc::clone(&self.syncer), number }
    }

    /// Writes the store's changes to its base. Then drops the journal entries that are in the base,
    /// but none above `synced`: another copy may still need those after a crash.
    pub(crate) fn checkpoint(&self, synced: Lsn) -> Result<()> {
        let in_base = self.kv.checkpoint()?;
        self.journal.trim(Lsn(in_base.min(synced).0 + 1))
    }

    /// Ends all writing to the disk, including writing by threads that still have the holder.
    pub(crate) fn close(&self) {
        self.journal.close();
        self.kv.close_base();
    }

    /// Bytes in the journal.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.journal.used()
    }

    /// Reads the journal back. Returns the number of the first damaged chunk.
    pub(crate) fn verify_log(&self) -> Result<Option<u64>> {
        self.journal.verify()
    }

    /// Like [`Holder::checkpoint`]. Afterwards nothing in the journal as it was counts any more.
    pub(crate) fn renew_log(&self, synced: Lsn) -> Result<()> {
        let in_base = self.kv.checkpoint()?;
        self.journal.renew(Lsn(in_base.min(synced).0 + 1))
    }

    /// Like [`Holder::checkpoint`], but writes the base anew. `Corrupt` if the base cannot be read.
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
        // The thread is not joined. A disk that hangs must not hang the thread that drops its copy.
        self.syncer.state.lock().stopped = true;
        self.syncer.wanted.notify_one();
        // A copy that takes this one's place looks for space every second.
        self.container.keep_for_none();
    }
}
