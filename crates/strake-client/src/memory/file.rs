//! The contents of a regular file in memory: where its bytes are, its size, its blocks.
//!
//! Reads, writes and flushes hold the lock `content` shared. Truncate, punch, and a move of the
//! bytes from the inode to an object hold it exclusively. In both ways it may be held across NSD
//! I/O of this file.
//!
//! While the file is in use, `size` is the true size. The metadata's size follows when the data
//! below it is stable. A writer that extends the file holds `extend`, copies its bytes, and raises
//! `size` last.

use crate::memory::block::{Block, BlockData, Owner};
use crate::memory::kept::{Kept, UnitOfFile};
use crate::memory::page_pool::PagePool;
use crate::memory::unsettled::Unsettled;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use strake_array::floors::Floors;
use strake_array::meta_link::MetaLink;
use strake_array::room::{Claim, Room};
use strake_array::stripe_io::on_disk;
use strake_env::sync::{Mutex, WatchedMutex, WatchedRwLock};
use strake_proto::meta::{FileData, Inode};
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout, Result};

/// A byte in an inode takes at most so many bytes of the metadata, whose pages are half full.
const INLINE_PAGES_FACTOR: u64 = 2;

/// The place of a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Nowhere: zeros up to the size.
    Empty,
    /// Here. Zeros follow up to the size. The bytes are never longer than the size.
    Inline(Vec<u8>),
    /// In blocks of an object.
    Object(ObjectLayout),
}

strake_env::lock_names! {
    /// Held across NSD I/O of the file, exclusively also across one metadata call.
    pub(crate) ContentLock = "contents of the same file";
    /// Held across one extending write, which may wait for `content`.
    pub(crate) Extending = "end of the same file";
    /// Held across one metadata call.
    pub(crate) SizeLock = "size of the same file";
}

/// See the file's head.
pub(crate) struct FileState {
    pub(crate) content: WatchedRwLock<ContentLock, Content>,
    pub(crate) size: AtomicU64,
    pub(crate) extend: WatchedMutex<Extending>,
    /// One size-changing metadata entry of this file at a time.
    pub(crate) meta: WatchedMutex<SizeLock>,
    blocks: Mutex<HashMap<u64, Arc<Block>>>,
    dirty: Mutex<BTreeSet<u64>>,
    /// The dirty blocks that have units which are on no disk.
    unsaved: Mutex<BTreeSet<u64>>,
    /// The units that the metadata keeps.
    kept: Mutex<Kept>,
    /// The blocks with units that were sent, are not stable yet, and were not saved otherwise when
    /// they were sent: see [`Block::flying`].
    flying: Mutex<BTreeSet<u64>>,
    /// Bytes of the metadata that the contents will take, as far as the metadata does not know it.
    untold: AtomicU64,
    /// Whether a block was sent since hardening began, and `kept` does not know what became of it:
    /// hardened bytes may be older than stored ones.
    pub(crate) sent: AtomicBool,
    /// Blocks that are accepted and not yet stable, and of which `flying` does not say what an
    /// `fsync` must save.
    pub(crate) opaque: AtomicU64,
    /// Blocks from here on were never stored.
    pub(crate) stored_blocks: AtomicU64,
    /// Whether the block at the end of the file may be stored longer than the size, with stale
    /// bytes.
    pub(crate) tail_stale: AtomicBool,
    /// No block is sent until so many changes of the metadata are durable. A crash must not forget
    /// a truncation and keep what was written after it. Nor must it forget the reservation of an
    /// object, whose number would then be given away again.
    pub(crate) barrier: AtomicU64,
    /// Whether the metadata must be told of the bytes: of their place, or of inline bytes
    /// themselves.
    pub(crate) content_changed: AtomicBool,
    /// Whether the metadata names the object.
    pub(crate) linked: AtomicBool,
    /// Raised when the bytes move from the inode to an object or back. A sync that began before
    /// must begin anew.
    pub(crate) moves: AtomicU64,
    /// The size that the metadata has.
    pub(crate) told_size: AtomicU64,
    /// Readers in order have given up the memory of blocks before this one.
    pub(crate) passed: AtomicU64,
    /// Blocks that are accepted and not yet stable.
    pub(crate) unstable: AtomicU64,
    /// How often an accepted block did not become stable, so that it is dirty again.
    pub(crate) lost: AtomicU64,
    /// Stable stripes, which are settled when the metadata is durable.
    pub(crate) unsettled: Mutex<Unsettled>,
    /// Whether other clients write other blocks of the file: nothing is hardened, the end of the
    /// file is trimmed, and the size is only the least that it may be.
    pub(crate) is_beside: bool,
    /// The grant after which the size was last learnt from the metadata.
    pub(crate) learnt: AtomicU64,
    /// All was dropped because it could not be made durable. Writes under way fail.
    pub(crate) is_dropped: AtomicBool,
    page_pool: Arc<PagePool>,
}

/// The unstable gains of blocks that are about to be deleted.
#[derive(Default)]
pub(crate) struct Gains {
    blocks: BTreeMap<u64, (Arc<Block>, i64)>,
}

impl Gains {
    /// The stable bytes on disks of the blocks that have a gain. They follow from what is known in
    /// memory, because an NSD that was restarted has lost what was not stable.
    pub(crate) fn stable(&self) -> BTreeMap<u64, i64> {
        let gaining = self.blocks.iter().filter(|(_, (_, gain))| *gain != 0);
        let stable = gaining.map(|(index, (block, gain))| {
            (*index, i64::from(on_disk(block.stored.load(Ordering::Acquire))) - gain)
        });
        stable.collect()
    }

    /// The sum of the gains.
    pub(crate) fn unstable(&self) -> i64 {
        self.blocks.values().map(|(_, gain)| gain).sum()
    }

    /// Gives the gains back after the deletion failed. Returns how much of them is stable now; the
    /// caller adds that and the rest to the inode's.
    pub(crate) fn give_back(&self) -> i64 {
        let mut all = 0;
        for (block, unstable) in self.blocks.values() {
            let mut gain = block.gain.lock();
            let stable = gain.deleted.take().unwrap_or(0);
            gain.unstable = unstable - stable;
            all += stable;
        }
        all
    }
}

impl FileState {
    /// The state of a file as the metadata has it.
    ///
    /// # Errors
    /// `NotSupported` for a file of more than one object.
    pub(crate) fn new(
        inode: &Inode,
        page_pool: Arc<PagePool>,
        is_beside: bool,
    ) -> Result<Arc<FileState>> {
        let size = inode.attr.size;
        let content = match &inode.data {
            FileData::Empty => Content::Empty,
            FileData::Inline(bytes) => Content::Inline(bytes.clone()),
            FileData::Objects(objects) => match objects[..] {
                [layout] => Content::Object(layout),
                _ => {
                    let detail = "the file has several objects, which this version cannot read";
                    return Err(Error::new(ErrorKind::NotSupported, detail));
                }
            },
        };
        let stored_blocks = match &content {
            Content::Object(layout) => size.div_ceil(u64::from(layout.block_size)),
            _ => 0,
        };
        Ok(Arc::new(FileState {
            content: WatchedRwLock::new(content),
            size: AtomicU64::new(size),
            extend: WatchedMutex::default(),
            meta: WatchedMutex::default(),
            blocks: Mutex::default(),
            dirty: Mutex::default(),
            unsaved: Mutex::default(),
            kept: Mutex::default(),
            flying: Mutex::default(),
            untold: AtomicU64::new(0),
            sent: AtomicBool::new(false),
            opaque: AtomicU64::new(0),
            stored_blocks: AtomicU64::new(stored_blocks),
            // Whoever began to write beside others has trimmed the end.
            tail_stale: AtomicBool::new(!is_beside),
            barrier: AtomicU64::new(0),
            content_changed: AtomicBool::new(false),
            linked: AtomicBool::new(matches!(inode.data, FileData::Objects(_))),
            moves: AtomicU64::new(0),
            told_size: AtomicU64::new(size),
            passed: AtomicU64::new(0),
            unstable: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            unsettled: Mutex::default(),
            is_beside,
            learnt: AtomicU64::new(0),
            is_dropped: AtomicBool::new(false),
            page_pool,
        }))
    }

    /// The page pool that has the memory of the blocks.
    pub(crate) fn page_pool(&self) -> &Arc<PagePool> {
        &self.page_pool
    }

    /// The size, as reads see it.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Takes in a size that the metadata has, if it is larger: others wrote there.
    pub(crate) fn raise_to(&self, size: u64, block_size: u32) {
        let _extend = self.extend.lock();
        self.stored_blocks.fetch_max(size.div_ceil(u64::from(block_size)), Ordering::AcqRel);
        self.told_size.fetch_max(size, Ordering::AcqRel);
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// A block that is in memory.
    pub(crate) fn find_block(&self, index: u64) -> Option<Arc<Block>> {
        self.blocks.lock().get(&index).cloned()
    }

    /// All blocks that are in memory.
    pub(crate) fn blocks_in_memory(&self) -> Vec<Arc<Block>> {
        self.blocks.lock().values().cloned().collect()
    }

    /// A block, made if it is not in memory. Its stored bytes count up to the present size.
    pub(crate) fn block(self: &Arc<FileState>, layout: &ObjectLayout, index: u64) -> Arc<Block> {
        let mut blocks = self.blocks.lock();
        if let Some(found) = blocks.get(&index) {
            return Arc::clone(found);
        }
        let made = Block::new(index, self.as_owner(), self.stored_limit(layout, index));
        blocks.insert(index, Arc::clone(&made));
        made
    }

    /// How many bytes of a block may be stored and count.
    pub(crate) fn stored_limit(&self, layout: &ObjectLayout, index: u64) -> u32 {
        if index >= self.stored_blocks.load(Ordering::Acquire) {
            return 0;
        }
        let start = index * u64::from(layout.block_size);
        self.size().saturating_sub(start).min(u64::from(layout.block_size)) as u32
    }

    /// Whether the stored stripe of a block is settled, or will be settled by the rounds alone. The
    /// metadata need not be told anything for it then.
    pub(crate) fn is_settled(&self, block: &Block) -> bool {
        // The order matters: a stripe is among the unsettled before its block is unpinned.
        let pinned = block.pinned.load(Ordering::Acquire) > 0;
        (!pinned || block.in_place.load(Ordering::Acquire))
            && !self.unsettled.lock().has(BlockIndex(block.index))
    }

    /// Notes that a block is about to be sent, and returns whether it is *tracked*. Of a tracked
    /// block an `fsync` finds out what it must save meanwhile. That needs a block that is sent *in
    /// place* of a settled version of the same length, and differs from it in known units. Of any
    /// other block the file must be sent. The caller holds the block's lock exclusively.
    pub(crate) fn note_sending(&self, block: &Block, data: &BlockData, in_place: bool) -> bool {
        let is_tracked = in_place && !data.whole;
        self.stored_blocks.fetch_max(block.index + 1, Ordering::AcqRel);
        let is_newer = |unit: u32| !is_tracked || data.unsaved.contains(unit as usize);
        self.kept.lock().begin_send(block.index, is_newer);
        if !is_tracked {
            self.sent.store(true, Ordering::Release);
            self.opaque.fetch_add(1, Ordering::AcqRel);
            return false;
        }
        // Before the block is no longer among the unsaved ones.
        let mut flying = block.flying.lock();
        if !data.unsaved.is_empty() {
            self.flying.lock().insert(block.index);
        }
        *flying = Some(data.unsaved.clone());
        true
    }

    /// Notes that units of a block are on no disk, unless what was sent of it is stable.
    pub(crate) fn fly_again(&self, block: &Block, units: &[UnitOfFile]) {
        if let Some(flying) = &mut *block.flying.lock() {
            units.iter().for_each(|(_, unit)| flying.insert(*unit as usize));
            self.flying.lock().insert(block.index);
        }
    }

    /// Notes that a block which was sent is stable, or will not be. Called while it is pinned.
    pub(crate) fn note_sent(&self, block: &Block, is_tracked: bool, is_stable: bool) {
        // While there are two accepted versions, one of them is a reader's, and not tracked.
        if is_tracked {
            let mut flying = block.flying.lock();
            *flying = None;
            self.flying.lock().remove(&block.index);
        } else {
            self.opaque.fetch_sub(1, Ordering::AcqRel);
        }
        let mut kept = self.kept.lock();
        match is_tracked && is_stable {
            true => kept.stored(block.index),
            false => kept.not_stored(block.index),
        }
    }

    /// Whether a range deletion of the file's object is pending.
    pub(crate) fn has_floor(&self, floors: &Floors) -> bool {
        match &*self.content.read() {
            Content::Object(layout) => floors.has(layout.object),
            _ => false,
        }
    }

    fn as_owner(self: &Arc<FileState>) -> Weak<dyn Owner> {
        let owner: Weak<FileState> = Arc::downgrade(self);
        owner
    }

    /// Notes that a block is dirty.
    pub(crate) fn insert_dirty(&self, index: u64) {
        self.dirty.lock().insert(index);
    }

    /// Notes that a block is not dirty any more.
    pub(crate) fn remove_dirty(&self, index: u64) {
        self.dirty.lock().remove(&index);
        self.unsaved.lock().remove(&index);
    }

    /// Notes that a dirty block has units which are on no disk.
    pub(crate) fn insert_unsaved(&self, index: u64) {
        self.unsaved.lock().insert(index);
    }

    /// Notes that all of a dirty block is on some disk.
    pub(crate) fn remove_unsaved(&self, index: u64) {
        self.unsaved.lock().remove(&index);
    }

    /// The blocks with units that are on no disk, or on their way there, in order. `None` if there
    /// are more than `max`.
    pub(crate) fn unsaved_blocks(&self, max: usize) -> Option<Vec<u64>> {
        // Both at once, because blocks go from one set to the other.
        let (unsaved, flying) = (self.unsaved.lock(), self.flying.lock());
        let all: BTreeSet<u64> = unsaved.union(&flying).copied().collect();
        (all.len() <= max).then(|| all.into_iter().collect())
    }

    /// Whether the metadata keeps hardened units of the file.
    pub(crate) fn is_hardened(&self) -> bool {
        self.kept.lock().len() > 0
    }

    /// Changes what is known of the kept units, or looks at it.
    pub(crate) fn kept<T>(&self, work: impl FnOnce(&mut Kept) -> T) -> T {
        let mut kept = self.kept.lock();
        let before = kept.len();
        let result = work(&mut kept);
        let (less, more) = (before.saturating_sub(kept.len()), kept.len().saturating_sub(before));
        self.page_pool.hardened.fetch_add(more, Ordering::AcqRel);
        self.page_pool.hardened.fetch_sub(less, Ordering::AcqRel);
        result
    }

    /// Notes that the metadata keeps units of which nothing more is known.
    pub(crate) fn add_hardened(&self, units: &[UnitOfFile]) {
        self.kept(|kept| {
            for at in units {
                kept.harden(*at);
                kept.doubt(*at);
            }
        });
    }

    /// Notes that the metadata keeps no hardened bytes of the file any more.
    pub(crate) fn clear_hardened(&self) {
        self.kept(Kept::clear);
    }

    /// Notes that a block has nothing in memory that its stable stripe lacks. The caller holds the
    /// block's lock.
    pub(crate) fn note_clean(&self, index: u64) {
        // Of an unsettled stripe the metadata may not know yet.
        if !self.unsettled.lock().has(BlockIndex(index)) {
            self.kept.lock().all_stored(index);
        }
    }

    /// Takes room in the metadata for so many more bytes of contents in the inode. Returns false if
    /// there is none. The caller holds `content` exclusively.
    pub(crate) fn hold_inline(&self, meta: &MetaLink, more: usize) -> Result<bool> {
        let more = INLINE_PAGES_FACTOR * more as u64;
        let all = self.page_pool.untold.fetch_add(more, Ordering::AcqRel) + more;
        self.untold.fetch_add(more, Ordering::AcqRel);
        let fits = meta.inline_room().map(|room| all <= room);
        if !matches!(fits, Ok(true)) {
            self.untold.fetch_sub(more, Ordering::AcqRel);
            self.page_pool.untold.fetch_sub(more, Ordering::AcqRel);
        }
        fits
    }

    /// Gives back the room taken in the metadata, because it was told of the contents, or never
    /// will be.
    pub(crate) fn release_inline(&self) {
        let held = self.untold.swap(0, Ordering::AcqRel);
        self.page_pool.untold.fetch_sub(held, Ordering::AcqRel);
    }

    /// The dirty blocks, in order.
    pub(crate) fn dirty_blocks(&self) -> Vec<u64> {
        self.dirty.lock().iter().copied().collect()
    }

    /// Whether any block is dirty.
    pub(crate) fn has_dirty_blocks(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    /// Whether an `fsync` may find something to harden.
    pub(crate) fn has_something_to_harden(&self) -> bool {
        self.has_dirty_blocks() || !self.flying.lock().is_empty()
    }

    /// The first dirty block at or after `from`.
    pub(crate) fn first_dirty_block(&self, from: u64) -> Option<u64> {
        self.dirty.lock().range(from..).next().copied()
    }

    /// Whether it has no bytes. False while its contents may be changing.
    pub(crate) fn is_empty(&self) -> bool {
        self.content.try_read().is_some_and(|content| matches!(&*content, Content::Empty))
    }

    /// Whether any block is in memory.
    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.lock().is_empty()
    }

    /// Drops the blocks `from..to`, dirty or not. Returns the bytes that `stat` counted for those
    /// that were never stored. The caller holds `content` exclusively, so no other thread works on
    /// them.
    pub(crate) fn drop_blocks(&self, room: &Room, from: u64, to: u64) -> u64 {
        let dropped: Vec<Arc<Block>> = {
            let mut blocks = self.blocks.lock();
            let indexes: Vec<u64> =
                blocks.keys().copied().filter(|index| (from..to).contains(index)).collect();
            indexes.iter().filter_map(|index| blocks.remove(index)).collect()
        };
        let mut fresh = 0;
        for block in dropped {
            self.remove_dirty(block.index);
            let mut data = block.data.write();
            fresh += u64::from(std::mem::take(&mut data.fresh));
            room.release(data.claim());
            self.discard(&mut data);
        }
        fresh
    }

    /// Takes the unstable gains of the blocks `from..to`, which are about to be deleted. They will
    /// never be the inode's, and the caller subtracts [`Gains::unstable`] from the inode's. It
    /// holds `content` exclusively until it has dropped the blocks, or has given the gains back.
    pub(crate) fn take_gains(&self, from: u64, to: u64) -> Gains {
        let blocks: Vec<Arc<Block>> = {
            let blocks = self.blocks.lock();
            let inside = blocks.iter().filter(|(index, _)| (from..to).contains(index));
            inside.map(|(_, block)| Arc::clone(block)).collect()
        };
        let mut gains = Gains::default();
        for block in blocks {
            let mut gain = block.gain.lock();
            gain.deleted = Some(0);
            let unstable = std::mem::take(&mut gain.unstable);
            drop(gain);
            gains.blocks.insert(block.index, (block, unstable));
        }
        gains
    }

    /// Empties a block that has left the map.
    fn discard(&self, data: &mut BlockData) {
        data.detached = true;
        data.dirty = false;
        data.set_saved();
        data.valid.clear();
        data.set_claim(Claim::default());
        self.page_pool.remove_dirty(std::mem::take(&mut data.dirtied));
        if let Some(buffer) = data.buffer.take() {
            self.page_pool.release(buffer);
        }
    }
}

impl Owner for FileState {
    fn forget_block(&self, index: u64) {
        self.note_clean(index);
        self.blocks.lock().remove(&index);
    }
}

impl Drop for FileState {
    /// Gives the buffers back at once. Otherwise the page pool's clock would keep them for a while.
    fn drop(&mut self) {
        self.clear_hardened();
        self.release_inline();
        for block in std::mem::take(self.blocks.get_mut()).into_values() {
            let mut data = block.data.write();
            self.discard(&mut data);
        }
    }
}
