//! What all parts of the client share.

use crate::committer::Committer;
use crate::file::FileState;
use crate::inode::{Core, InodeState};
use crate::neighbours::Neighbours;
use crate::open_table::{OpenTable, Pinned};
use crate::pool::PagePool;
use crate::ranges::Ranges;
use crate::replace::Replacer;
use crate::scrub::Scrubber;
use crate::settings::Settings;
use crate::space::Space;
use crate::stripe_io::StripeIo;
use crate::write_behind::Queue;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::{Clock, FanOut};
use strake_observe::Observe;
use strake_proto::meta::{Counts, Inode, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{Attr, ClientId, Error, ErrorKind, Ino, Result, Timestamp};

/// The metadata with this client's name and clock.
pub(crate) struct MetaLink {
    port: Arc<dyn MetaPort>,
    client: ClientId,
    clock: Arc<dyn Clock>,
    /// Changes answered, and of these those known to be durable.
    applied: AtomicU64,
    synced: AtomicU64,
    /// What the metadata has to give to contents, and when it told so.
    room: Mutex<(u64, Duration)>,
}

/// While the metadata has more room than that, it is asked
const ROOM_PLENTY: u64 = 64 << 20;
/// no more often than that how much it has.
const ROOM_HOLDS: Duration = Duration::from_secs(1);

impl MetaLink {
    /// The metadata at `port`.
    pub(crate) fn new(
        port: Arc<dyn MetaPort>,
        client: ClientId,
        clock: Arc<dyn Clock>,
    ) -> MetaLink {
        let (applied, synced) = (AtomicU64::new(0), AtomicU64::new(0));
        MetaLink { port, client, clock, applied, synced, room: Mutex::default() }
    }

    /// Bytes that contents of files may take of the metadata: a third of all that it may become is
    /// for names and inodes.
    pub(crate) fn inline_room(&self) -> Result<u64> {
        let now = self.clock.monotonic();
        let (room, told) = *self.room.lock();
        if room >= ROOM_PLENTY && now.saturating_sub(told) <= ROOM_HOLDS {
            return Ok(room);
        }
        let counts = self.counts()?;
        let room = counts.metadata_free.saturating_sub(counts.metadata_bytes / 2);
        *self.room.lock() = (room, now);
        Ok(room)
    }

    /// Sums over all metadata.
    pub(crate) fn counts(&self) -> Result<Counts> {
        match self.query(&MetaQuery::Counts)? {
            MetaReply::Counts(counts) => Ok(counts),
            _ => Err(wrong_reply()),
        }
    }

    /// Asks.
    pub(crate) fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.port.query(query)
    }

    /// Changes. Not counted (`sequence` 0): the way is a direct call, so no request is ever sent
    /// twice; a session that resends numbers them.
    pub(crate) fn apply(&self, op: MetaOp) -> Result<MetaReply> {
        self.apply_timed(op).map(|(reply, _)| reply)
    }

    /// As [`MetaLink::apply`]; also tells the time that the change has in the metadata.
    pub(crate) fn apply_timed(&self, op: MetaOp) -> Result<(MetaReply, Timestamp)> {
        let time = self.clock.wall();
        let entry = MetaEntry { client: self.client, sequence: 0, time, op };
        let reply = self.port.apply(&entry)?;
        self.applied.fetch_add(1, Ordering::AcqRel);
        Ok((reply, time))
    }

    /// Changes, answered by an inode.
    pub(crate) fn apply_inode(&self, op: MetaOp) -> Result<Inode> {
        match self.apply(op)? {
            MetaReply::Inode(inode) => Ok(*inode),
            _ => Err(wrong_reply()),
        }
    }

    /// Asks for an inode.
    pub(crate) fn query_inode(&self, query: &MetaQuery) -> Result<Inode> {
        match self.query(query)? {
            MetaReply::Inode(inode) => Ok(*inode),
            _ => Err(wrong_reply()),
        }
    }

    /// Makes all changes answered so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let applied = self.applied.load(Ordering::Acquire);
        self.port.sync()?;
        self.synced.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// Changes answered so far: equal before and after a question, nothing changed meanwhile.
    pub(crate) fn changes(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Whether the first `changes` changes are durable.
    pub(crate) fn is_durable(&self, changes: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= changes
    }

    /// Whether a change was answered that may not be durable.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.applied.load(Ordering::Acquire) > self.synced.load(Ordering::Acquire)
    }
}

/// A reply that does not fit its question.
pub(crate) fn wrong_reply() -> Error {
    Error::new(ErrorKind::Internal, "the metadata gave a reply that does not fit the request")
}

/// See the file's head.
pub(crate) struct Shared {
    pub(crate) meta: MetaLink,
    pub(crate) io: StripeIo,
    pub(crate) pool: Arc<PagePool>,
    pub(crate) table: Arc<OpenTable>,
    pub(crate) committer: Committer,
    pub(crate) ranges: Ranges,
    pub(crate) space: Space,
    pub(crate) write_behind: Queue,
    pub(crate) prefetch: Queue,
    pub(crate) neighbours: Neighbours,
    pub(crate) flush_fan: FanOut,
    pub(crate) scrubber: Scrubber,
    pub(crate) replacer: Replacer,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observe: Arc<Observe>,
    pub(crate) settings: Settings,
    pub(crate) block_size: u32,
    /// Inodes with something to commit. A leaf under `InodeState::core`.
    pub(crate) dirty: Mutex<HashMap<Ino, Pinned>>,
    /// The inode of which dirty pages were queued last because they pressed.
    pub(crate) pressed_last: AtomicU64,
}

impl Shared {
    /// The time, for `stat`.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// An inode's attributes, exact.
    pub(crate) fn attr(&self, inode: &InodeState) -> Result<Attr> {
        self.loaded(inode, Core::attr)
    }

    /// What `look` sees of an inode whose attributes are known.
    pub(crate) fn loaded<T>(&self, inode: &InodeState, look: impl FnOnce(&Core) -> T) -> Result<T> {
        loop {
            let epoch = {
                let core = inode.core.lock();
                if core.is_loaded() {
                    return Ok(look(&core));
                }
                core.epoch()
            };
            let found = self.meta.query_inode(&MetaQuery::GetInode { ino: inode.ino })?;
            inode.core.lock().absorb(&found, epoch);
        }
    }

    /// Applies a change that is answered by the inode it changed, and takes that in.
    pub(crate) fn change(&self, inode: &InodeState, op: MetaOp) -> Result<Attr> {
        let epoch = inode.core.lock().epoch();
        let result = self.meta.apply_inode(op);
        let mut core = inode.core.lock();
        match result {
            Ok(changed) => {
                core.absorb_change(&changed, epoch);
                Ok(core.merge(changed.attr))
            }
            Err(error) => {
                core.forget();
                Err(error)
            }
        }
    }

    /// The contents of a regular file.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for what has none; `Stale` for a file that is gone.
    pub(crate) fn file(&self, inode: &InodeState) -> Result<Arc<FileState>> {
        loop {
            let epoch = {
                let core = inode.core.lock();
                if let Some(file) = &core.file {
                    return Ok(Arc::clone(file));
                }
                if core.removed {
                    return Err(ErrorKind::Stale.into());
                }
                core.epoch()
            };
            let found = self.meta.query_inode(&MetaQuery::GetInode { ino: inode.ino })?;
            crate::ops::require_regular(found.attr.file_type)?;
            let made = FileState::new(&found, Arc::clone(&self.pool))?;
            let mut core = inode.core.lock();
            if core.epoch() == epoch && core.file.is_none() {
                core.absorb(&found, epoch);
                core.file = Some(Arc::clone(&made));
                return Ok(made);
            }
        }
    }

    /// Lets go of the contents of a file that nobody has open and that holds nothing in memory.
    pub(crate) fn drop_idle_file(&self, inode: &InodeState) {
        let mut core = inode.core.lock();
        let idle = !core.is_dirty()
            && core.dirty_since.is_none()
            && core.file.as_ref().is_some_and(|file| {
                // The only owner is `core`, under whose lock others are made.
                Arc::strong_count(file) == 1 && !file.has_blocks()
            });
        let dropped = if idle { core.file.take() } else { None };
        if let Some(file) = &dropped {
            debug_assert!(!file.has_dirty_blocks());
        }
        drop(core);
        drop(dropped);
    }

    /// Puts an inode on the list of those with something to commit.
    pub(crate) fn register(&self, inode: &Arc<InodeState>, core: &mut Core) {
        if core.dirty_since.is_none() {
            core.dirty_since = Some(self.clock.monotonic());
            self.dirty.lock().insert(inode.ino, self.table.pin(inode.ino));
        }
    }

    /// Takes an inode off that list if it has nothing left to commit.
    pub(crate) fn unregister_if_clean(&self, inode: &InodeState) {
        let mut core = inode.core.lock();
        let file_clean = core.file.as_ref().is_none_or(|file| {
            !file.has_dirty_blocks()
                && file.unstable.load(Ordering::Acquire) == 0
                && file.unsettled.lock().is_empty()
                && !file.is_hardened()
                && !file.content_changed.load(Ordering::Acquire)
        });
        let gone = if !core.is_dirty() && file_clean && core.dirty_since.is_some() {
            core.dirty_since = None;
            self.dirty.lock().remove(&inode.ino)
        } else {
            None
        };
        drop(core);
        drop(gone);
        self.drop_idle_file(inode);
    }

    /// The inodes with something to commit since before `before`.
    pub(crate) fn dirty_inodes(&self, before: Option<Duration>) -> Vec<Pinned> {
        let all: Vec<Pinned> = self.dirty.lock().values().cloned().collect();
        let mut dated: Vec<(Duration, Pinned)> = all
            .into_iter()
            .filter_map(|inode| {
                let since = inode.core.lock().dirty_since?;
                Some((since, inode))
            })
            .filter(|(since, _)| before.is_none_or(|before| *since <= before))
            .collect();
        dated.sort_by_key(|(since, inode)| (*since, inode.ino));
        dated.into_iter().map(|(_, inode)| inode).collect()
    }

    /// Takes in an inode that a question by name was answered with, before which
    /// [`MetaLink::changes`] was `before`. Returns its attributes.
    pub(crate) fn learn(&self, inode: &InodeState, found: &Inode, before: u64) -> Attr {
        let mut core = inode.core.lock();
        if !core.is_loaded() && self.meta.changes() == before {
            let epoch = core.epoch();
            core.absorb(found, epoch);
        }
        if core.is_loaded() { core.attr() } else { core.merge(found.attr) }
    }

    /// Drops all contents of a file in memory, dirty or not: it has no name and nobody has it open.
    pub(crate) fn discard(&self, inode: &InodeState) {
        let file = {
            let mut core = inode.core.lock();
            core.committed = core.changes;
            core.atime = None;
            core.file.take()
        };
        if let Some(file) = &file {
            let content = file.content.write();
            file.drop_blocks(self, 0, u64::MAX);
            drop(content);
            file.unsettled.lock().clear();
        }
        let gone = {
            let mut core = inode.core.lock();
            core.dirty_since = None;
            self.dirty.lock().remove(&inode.ino)
        };
        drop(gone);
        drop(file);
    }

    /// Makes room for a buffer; see [`PagePool::admit`].
    pub(crate) fn admit(&self, bytes: usize) {
        let limit = self.settings.standstill_max;
        self.pool.admit(bytes, &self.observe.waiters, limit, &|| self.kick());
    }

    /// Asks the writers behind to make pages clean.
    pub(crate) fn kick(&self) {
        self.write_behind.press();
    }
}
