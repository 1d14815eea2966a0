//! What happens before this client gives tokens up: what was changed under them becomes durable,
//! the adapter's caches drop the file, and so does this client.
//!
//! - *Durable* means whole stripes, no hardened unit left, and the metadata synced: the next holder
//!   finds everything on the NSDs (rules R7, R15, R19 of the cluster).
//! - *Range deletions* are applied before, as far as the NSDs are there. The next holder learns the
//!   rest with the file ([`crate::mount::Mount::file`]).
//! - *A mount that was declared dead* drops all that it has. Other clients may have changed it.
//! - *What cannot be written because disks are away* stays with this client, and so does the token:
//!   some disk may have accepted a part of it, which nobody may see before it is whole (R4). Those
//!   who wait for the file get an error when they have waited long enough.
//! - *What cannot be written for another reason* is lost: another client waits, and holds back
//!   nobody for ever. Every handle hears of it, and so does the next sync of everything.

use crate::data::of::Of;
use crate::flush::sync::{sync_all, sync_inode_whole, sync_inodes};
use crate::inode::core::InodeState;
use crate::inode::open_table::Pinned;
use crate::inode::shown::Order;
use crate::invalidate::{Found, Outdated};
use crate::lease::dead;
use crate::memory::file::Content;
use crate::mount::{DISKS_NEEDED, Mount, SAVE_PAUSE};
use crate::tokens::{Drops, GiveUp, Given};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_array::reaper;
use strake_proto::{Error, ErrorKind, FileType, GrantNumber, Ino, NsdId, Result};
use strake_token::Mode;
use tracing::{debug, error, warn};

/// The adapter may need that long to drop a file. It is asked again then.
const DROP_MAX: Duration = Duration::from_secs(10);
/// The kernel takes in answers within that time, and says so when it forgets an inode. It needs a
/// processor for the program that waits for the answer.
const LEARN_MAX: Duration = Duration::from_secs(10);
/// It is told again after that long.
const LEARN_PAUSE: Duration = Duration::from_micros(100);
/// Caches count from the moment at which they take an answer in, which may be that much later.
const RUN_OUT_MARGIN: Duration = Duration::from_secs(1);

impl GiveUp for Mount {
    fn granted(&self, number: GrantNumber) {
        self.array.io.versions().raise(number);
    }

    fn save(&self, ino: Ino, given: &Given) -> bool {
        let inode = self.table.find(ino);
        // Under a shared token this client has changed nothing, and what it did before that is
        // durable since it gave up more.
        let is_clean = || inode.as_ref().is_none_or(|it| it.core.lock().dirty_since.is_none());
        if given.from == Some(Mode::Shared) && is_clean() {
            return true;
        }
        let mut is_saved = true;
        if given.begins_beside() {
            let pinned = self.table.pin(ino);
            if let Err(error) = self.trim_end(&pinned)
                && error.kind() != ErrorKind::Stale
            {
                warn!(target: "tokens", "inode {ino} is not written beside others: {error}");
            }
            is_saved = self.save_file(&pinned);
        } else if let Some(inode) = &inode {
            is_saved = self.save_file(inode);
        }
        // Names that this client has changed are in no inode's state.
        if self.array.meta.has_unsynced()
            && let Err(error) = self.array.meta.sync()
        {
            error!(target: "tokens", "the metadata is not durable: {error}");
        }
        is_saved
    }

    fn save_all(&self, files: &[Ino]) -> bool {
        let inodes: Vec<Arc<InodeState>> =
            files.iter().filter_map(|ino| self.table.find(*ino)).collect();
        let lacks = |inode: &Arc<InodeState>| {
            let core = inode.core.lock();
            core.dirty_since.is_some() || core.lacks_attributes()
        };
        let dirty: Vec<Pinned> =
            inodes.iter().filter(|it| lacks(it)).map(|it| self.table.pin(it.ino)).collect();
        // Names, which have no inode's state, are to be durable even if all of these are clean.
        let is_needed = !dirty.is_empty() || self.array.meta.has_unsynced();
        let is_synced = !is_needed || sync_inodes(self, &dirty).is_ok();
        is_synced && !inodes.iter().any(lacks) && self.have_ranges_deleted(inodes).is_ok()
    }

    fn drop_from_caches(&self, ino: Ino, drops: Drops, spared: &[Range<u64>]) {
        match drops {
            Drops::Nothing => {}
            Drops::Attributes => self.outdate(ino, &Outdated::Attributes(ino)),
            Drops::All => {
                for range in gaps(spared) {
                    self.outdate(ino, &Outdated::Contents { ino, range });
                }
            }
        }
    }

    fn forget(&self, ino: Ino, given: &Given) {
        if given.keeps_sight() {
            return;
        }
        let order = self.shown.lock().take(ino, self.array.clock.monotonic());
        order.into_iter().for_each(|order| self.drop_names(order));
        let Some(inode) = self.table.find(ino) else { return };
        if given.is_blocks() {
            self.forget_blocks(&inode, given);
            return;
        }
        let file = {
            // A sync in the background has ended, or finds no contents.
            let _no_sync = inode.syncing.lock();
            let mut core = inode.core.lock();
            core.forget_all();
            core.file.take()
        };
        if let Some(file) = file {
            assert!(!file.has_dirty_blocks(), "inode {ino} is dirty after its last flush");
            let content = file.content.write();
            file.drop_blocks(&self.array.room, 0, u64::MAX);
            drop(content);
        }
    }

    fn is_just_found(&self, ino: Ino) -> bool {
        let is_directory = |inode: &Arc<InodeState>| {
            let core = inode.core.lock();
            !core.is_access_known() || core.attr().file_type == FileType::Directory
        };
        self.table.is_just_found(ino, self.array.clock.monotonic())
            && self.table.find(ino).is_some_and(|inode| !is_directory(&inode))
    }

    fn may_be_written_beside(&self, ino: Ino) -> bool {
        let Some(inode) = self.table.find(ino) else { return false };
        let file = {
            let core = inode.core.lock();
            if core.removed {
                return false;
            }
            core.file.clone()
        };
        file.is_some_and(|file| {
            let content = file.content.read();
            // Tokens are of blocks of the size that new files have.
            let of_blocks = matches!(&*content, Content::Object(layout)
                if layout.block_size == self.array.block_size);
            of_blocks
                && file.linked.load(Ordering::Acquire)
                && !file.content_changed.load(Ordering::Acquire)
                && !file.tail_stale.load(Ordering::Acquire)
                && !file.is_hardened()
                && !file.has_dirty_blocks()
        })
    }

    fn leave(&self, nsds: &[NsdId]) {
        nsds.iter().for_each(|nsd| self.array.io.nsds().leave(*nsd));
    }

    fn leaves(&self) -> u64 {
        self.array.io.nsds().leaves()
    }

    fn bury(&self, files: &[Ino]) {
        let order = self.shown.lock().order();
        self.drop_names(order);
        let dirty = self.dirty_inodes(None);
        let count = dirty.len();
        dirty.iter().for_each(|inode| self.lose(inode, dead()));
        self.learn_refusals();
        for ino in self.array.meta.unsynced_inodes() {
            self.losses.note(ino, dead());
        }
        for ino in files {
            self.outdate(*ino, &Outdated::Contents { ino: *ino, range: 0..u64::MAX });
            if let Some(inode) = self.table.find(*ino) {
                self.discard(&inode);
                inode.core.lock().forget_all();
            }
        }
        error!(
            target: "tokens",
            "changes of {count} files are lost, and all caches were dropped. Files that are open \
             fail with EIO until they are opened again"
        );
    }

    fn write_again(&self, nsd: NsdId, leaves: u64) -> bool {
        // Blocks that were written without the NSD must be in the metadata, because the manager
        // compares the blocks that it finds there.
        let nsds = self.array.io.nsds();
        nsds.write_again(nsd, leaves) && sync_all(self).is_ok() && nsds.note_again(nsd, leaves)
    }

    fn follow_places(&self) -> bool {
        // As above: files that the metadata does not know yet have to be there to be compared.
        self.array.io.nsds().follow_pool().is_ok() && sync_all(self).is_ok()
    }
}

/// All bytes of a file but these ranges. The end of the file is always there.
fn gaps(spared: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut spared = spared.to_vec();
    spared.sort_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut from = 0;
    for range in spared {
        if range.start > from {
            gaps.push(from..range.start);
        }
        from = from.max(range.end);
    }
    gaps.push(from..u64::MAX);
    gaps
}

impl Mount {
    /// Before others write a file beside this client: nothing is stored beyond its size in its last
    /// block, because whoever makes it longer then does not have that block.
    fn trim_end(&self, inode: &Arc<InodeState>) -> Result<()> {
        let file = self.file(inode)?;
        let _extend = file.extend.lock();
        Of { mount: self, inode, file: &file }.trim_tail(file.size())
    }

    /// Drops blocks that another client wants. Others of the file may be dirty, and written to.
    fn forget_blocks(&self, inode: &Arc<InodeState>, given: &Given) {
        let _no_sync = inode.syncing.lock();
        let Some(file) = inode.core.lock().file.clone() else { return };
        let content = file.content.write();
        for (range, _) in given.limit.ranges.iter().filter(|(_, most)| most.is_none()) {
            let is_dirty = file.first_dirty_block(range.from.0).is_some_and(|at| at < range.to.0);
            assert!(!is_dirty, "inode {} is dirty after its last flush", inode.ino);
            file.drop_blocks(&self.array.room, range.from.0, range.to.0);
        }
        drop(content);
    }

    /// Makes a file durable. If that fails for good, what is dirty is dropped. False if disks that
    /// it needs are away.
    fn save_file(&self, inode: &Arc<InodeState>) -> bool {
        let Err(first) = self.save_once(inode) else {
            self.stuck.lock().remove(&inode.ino);
            return true;
        };
        let clock = &self.array.clock;
        let start = clock.monotonic();
        // A file that has been tried for long takes no thread from others.
        let is_stuck = self.stuck.lock().contains(&inode.ino);
        if !is_stuck {
            warn!(target: "tokens", "inode {} is not durable yet: {first}", inode.ino);
        }
        let waiters = &self.array.observe.waiters;
        let _wait = waiters.enter(DISKS_NEEDED, format!("inode {}", inode.ino));
        let mut error = first;
        loop {
            let waited = clock.monotonic().saturating_sub(start);
            let is_late = is_stuck || waited >= self.settings.standstill_max;
            // A file that was removed has nothing to save.
            let is_final = self.is_dead()
                || error.kind() == ErrorKind::Stale
                || error.kind() == ErrorKind::NoSpace
                || (is_late && !self.may_pass(&error));
            if is_final {
                self.stuck.lock().remove(&inode.ino);
                self.lose(inode, error);
                return true;
            }
            clock.sleep(SAVE_PAUSE);
            match self.save_once(inode) {
                Ok(()) => {
                    self.stuck.lock().remove(&inode.ino);
                    return true;
                }
                Err(again) => error = again,
            }
            if is_late {
                self.stuck.lock().insert(inode.ino);
                return false;
            }
        }
    }

    fn save_once(&self, inode: &Arc<InodeState>) -> Result<()> {
        sync_inode_whole(self, inode)?;
        self.have_ranges_deleted([Arc::clone(inode)])
    }

    /// Applies range deletions if some are pending in one of these files.
    fn have_ranges_deleted(&self, inodes: impl IntoIterator<Item = Arc<InodeState>>) -> Result<()> {
        let is_pending = |inode: Arc<InodeState>| {
            let file = inode.core.lock().file.clone();
            file.is_some_and(|file| file.has_floor(&self.array.floors))
        };
        match inodes.into_iter().any(is_pending) {
            true => reaper::apply_pending(&self.array).map(drop),
            false => Ok(()),
        }
    }

    fn lose(&self, inode: &Arc<InodeState>, error: Error) {
        if error.kind() != ErrorKind::Stale {
            error!(target: "tokens", "changes of inode {} are lost: {error}", inode.ino);
            if inode.lacks_more_than_reads() {
                self.losses.note(inode.ino, error.clone());
            }
            inode.core.lock().latch.set(error);
        }
        self.discard(inode);
        inode.core.lock().forget();
    }

    /// Has the adapter's caches drop all names. If they refuse, waits until all names have run out
    /// that they may have.
    fn drop_names(&self, order: Order) {
        let Some(adapter) = self.adapter.get() else { return };
        let waiters = &self.array.observe.waiters;
        let dropped = adapter
            .invalidate(Outdated::AllNames)
            .and_then(|dropping| dropping.wait(waiters, DROP_MAX));
        match dropped {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => {
                debug!(target: "tokens", "names run out instead of being dropped: {error}");
                let clock = &self.array.clock;
                let until = self.shown.lock().refused(clock.monotonic()) + RUN_OUT_MARGIN;
                let _wait = waiters.enter("names in the adapter's caches", "");
                clock.sleep(until.saturating_sub(clock.monotonic()));
            }
        }
        self.shown.lock().dropped(order);
    }

    /// Has the adapter's caches drop something of an inode, however long that takes: they would
    /// show what is no longer so.
    ///
    /// An answer that tells them of the inode may be on its way, and they know nothing to drop
    /// until they have taken it in. A lookup counts before it is answered. So while lookups are
    /// counted, caches that know nothing are told again.
    fn outdate(&self, ino: Ino, what: &Outdated) {
        let Some(adapter) = self.adapter.get() else { return };
        let clock = &self.array.clock;
        let mut unknown_since = None;
        loop {
            let dropped = adapter
                .invalidate(what.clone())
                .and_then(|dropping| dropping.wait(&self.array.observe.waiters, DROP_MAX));
            match dropped {
                Ok(Found::Nothing) if self.table.is_looked_up(ino) => {
                    let now = clock.monotonic();
                    if now - *unknown_since.get_or_insert(now) >= LEARN_MAX {
                        warn!(target: "tokens", "the kernel lacks inode {ino}, which is looked up");
                        return;
                    }
                    let waiters = &self.array.observe.waiters;
                    let _wait = waiters.enter("adapter learning", format!("inode {ino}"));
                    clock.sleep(LEARN_PAUSE);
                }
                Ok(_) => return,
                // It is gone, and its caches with it.
                Err(error) if error.kind() == ErrorKind::Unreachable => return,
                Err(error) => warn!(target: "tokens", "{what} is still cached: {error}"),
            }
        }
    }
}

#[cfg(test)]
#[path = "give_up_test.rs"]
mod give_up_test;
