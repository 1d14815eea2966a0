//! What happens before this client gives tokens up: what was changed under them becomes durable,
//! the adapter's caches drop the file, and so does this client.
//!
//! - *Durable* means whole stripes, no hardened unit left, and the metadata synced: the next holder
//!   finds everything on the NSDs (rules R7, R15, R19 of the cluster).
//! - *Range deletions* are applied before, as far as the NSDs are there. The next holder learns the
//!   rest with the file ([`crate::mount::Mount::file`]).
//! - *A mount that was declared dead* drops all that it has. Other clients may have changed it.
//! - *What cannot be written* is lost, and every handle hears of it: another client waits, and
//!   holds back nobody for ever.

use crate::flush::sync::{sync_all, sync_inode_whole};
use crate::inode::core::InodeState;
use crate::invalidate::Outdated;
use crate::lease::dead;
use crate::mount::Mount;
use crate::tokens::GiveUp;
use std::sync::Arc;
use std::time::Duration;
use strake_array::reaper;
use strake_proto::{Error, ErrorKind, GrantNumber, Ino, NsdId, Result};
use strake_token::Mode;
use strake_token::held::Limit;
use tracing::{error, warn};

/// The adapter may need that long to drop a file. It is asked again then.
const DROP_MAX: Duration = Duration::from_secs(10);

impl GiveUp for Mount {
    fn granted(&self, number: GrantNumber) {
        self.array.io.versions().raise(number);
    }

    fn flush(&self, ino: Ino, limit: &Limit) {
        let inode = self.table.find(ino);
        if let Some(inode) = &inode {
            self.save(inode);
        }
        // Names that this client has changed are in no inode's state.
        if self.array.meta.has_unsynced()
            && let Err(error) = self.array.meta.sync()
        {
            error!(target: "tokens", "the metadata is not durable: {error}");
        }
        let stores = self.tokens.as_ref().is_some_and(|tokens| tokens.is_written(ino));
        if limit.inode.is_none() || stores {
            self.drop_from_caches(ino);
        }
    }

    fn forget(&self, ino: Ino, limit: &Limit) {
        let Some(inode) = self.table.find(ino) else { return };
        if limit.inode == Some(Mode::Shared) {
            return;
        }
        let file = {
            // A sync in the background has ended, or finds no contents.
            let _no_sync = inode.syncing.lock();
            let mut core = inode.core.lock();
            core.forget();
            core.file.take()
        };
        if let Some(file) = file {
            assert!(!file.has_dirty_blocks(), "inode {ino} is dirty after its last flush");
            let content = file.content.write();
            file.drop_blocks(&self.array.room, 0, u64::MAX);
            drop(content);
        }
    }

    fn leave(&self, nsds: &[NsdId]) {
        nsds.iter().for_each(|nsd| self.array.io.nsds().leave(*nsd));
    }

    fn bury(&self, files: &[Ino]) {
        let dirty = self.dirty_inodes(None);
        let count = dirty.len();
        dirty.iter().for_each(|inode| self.lose(inode, dead()));
        for ino in files {
            self.drop_from_caches(*ino);
            if let Some(inode) = self.table.find(*ino) {
                self.discard(&inode);
                inode.core.lock().forget();
            }
        }
        error!(
            target: "tokens",
            "changes of {count} files are lost, and all caches were dropped. Every use of this \
             mount fails with EIO until it is mounted anew"
        );
    }

    fn write_again(&self, nsd: NsdId) -> bool {
        // Blocks that were written without the NSD must be in the metadata, because the manager
        // compares the blocks that it finds there.
        self.array.io.nsds().write_again(nsd) && sync_all(self).is_ok()
    }

    fn has_caches(&self) -> bool {
        self.adapter.get().is_some()
    }
}

impl Mount {
    /// Makes a file durable. If that fails for good, what is dirty is dropped.
    fn save(&self, inode: &Arc<InodeState>) {
        let start = self.array.clock.monotonic();
        loop {
            let Err(error) = self.save_once(inode) else { return };
            let waited = self.array.clock.monotonic().saturating_sub(start);
            // A file that was removed has nothing to save.
            let is_final = self.is_dead()
                || error.kind() == ErrorKind::Stale
                || error.kind() == ErrorKind::NoSpace
                || waited >= self.settings.standstill_max;
            if is_final {
                self.lose(inode, error);
                return;
            }
            warn!(target: "tokens", "inode {} is not durable yet: {error}", inode.ino);
        }
    }

    fn save_once(&self, inode: &Arc<InodeState>) -> Result<()> {
        sync_inode_whole(self, inode)?;
        let file = inode.core.lock().file.clone();
        if file.is_some_and(|file| file.has_floor(&self.array.floors)) {
            reaper::apply_pending(&self.array)?;
        }
        Ok(())
    }

    fn lose(&self, inode: &Arc<InodeState>, error: Error) {
        if error.kind() != ErrorKind::Stale {
            error!(target: "tokens", "changes of inode {} are lost: {error}", inode.ino);
            inode.core.lock().latch.set(error);
        }
        self.discard(inode);
        inode.core.lock().forget();
    }

    /// Has the adapter's caches drop a file, however long that takes: they would show what is no
    /// longer so.
    fn drop_from_caches(&self, ino: Ino) {
        let Some(adapter) = self.adapter.get() else { return };
        loop {
            let outdated = Outdated::Contents { ino, range: 0..u64::MAX };
            let dropped = adapter
                .invalidate(outdated)
                .and_then(|dropping| dropping.wait(&self.array.observe.waiters, DROP_MAX));
            match dropped {
                Ok(()) => return,
                // It is gone, and its caches with it.
                Err(error) if error.kind() == ErrorKind::Unreachable => return,
                Err(error) => warn!(target: "tokens", "inode {ino} is still cached: {error}"),
            }
        }
    }
}
