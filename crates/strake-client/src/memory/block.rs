//! One block of one file in memory.
//!
//! Where the bytes of each unit (4 KiB) of a block are:
//!
//! 1. In the buffer, if the unit is *valid*.
//! 2. Otherwise on the NSDs, if the unit begins below `limit`.
//! 3. Otherwise nowhere: the unit is zero.
//!
//! So a write to a part of a block need not read the other units, and a new block need not be
//! zeroed. To cut off stale bytes beyond an old end of file, `limit` is lowered.
//!
//! `length` is the block's logical length: all bytes beyond it are zero, and none of them is
//! stored. In the last valid unit the buffer has zeros at and beyond `length`.
//!
//! States: *clean* (evictable) ▶ *dirty* (`dirty`) ▶ *accepted* (`pinned` > 0: the block was sent,
//! and an NSD may lose it until the commit) ▶ clean. A block that is written to again while it is
//! accepted is both accepted and dirty.

use crate::memory::page_pool::{Fill, Page, PagePool};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use strake_array::room::Claim;
use strake_env::AlignedBuffer;
use strake_env::sync::{Mutex, WatchedRwLock};
use strake_proto::Version;
use strake_proto::limits::UNIT_BYTES;

/// The value of `Block::stored` while the stored length is not known.
pub(crate) const STORED_UNKNOWN: u32 = u32::MAX;

/// A block counts as written in parts if less than one in this many of its units was written.
const PARTS_OF_BLOCK: usize = 4;

/// A set of unit indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitSet {
    words: Vec<u64>,
}

impl UnitSet {
    pub(crate) fn contains(&self, unit: usize) -> bool {
        self.words.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, unit: usize) {
        if self.words.len() <= unit / 64 {
            self.words.resize(unit / 64 + 1, 0);
        }
        self.words[unit / 64] |= 1 << (unit % 64);
    }

    pub(crate) fn insert_range(&mut self, from: usize, to: usize) {
        // Whole words at once: the common case is a megabyte, which is four words.
        let mut unit = from;
        while unit < to {
            if unit.is_multiple_of(64) && to - unit >= 64 {
                if self.words.len() <= unit / 64 {
                    self.words.resize(unit / 64 + 1, 0);
                }
                self.words[unit / 64] = u64::MAX;
                unit += 64;
            } else {
                self.insert(unit);
                unit += 1;
            }
        }
    }

    /// True if the set has all of the first `units` units.
    pub(crate) fn is_full(&self, units: usize) -> bool {
        (0..units / 64).all(|word| self.words.get(word) == Some(&u64::MAX))
            && (units / 64 * 64..units).all(|unit| self.contains(unit))
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn remove(&mut self, unit: usize) {
        if let Some(word) = self.words.get_mut(unit / 64) {
            *word &= !(1 << (unit % 64));
        }
    }

    /// The units in the set, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        self.words
            .iter()
            .enumerate()
            .flat_map(move |(at, word)| bits(*word).map(move |bit| at * 64 + bit))
    }
}

/// How a block differs from the version that is known to be stable. Only an accepted send makes it
/// equal again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    /// The units that differ.
    pub(crate) units: UnitSet,
    /// Whether other units may differ too.
    pub(crate) whole: bool,
}

/// The contents of a block; see the file's head.
#[derive(Default)]
pub(crate) struct BlockData {
    pub(crate) buffer: Option<AlignedBuffer>,
    pub(crate) valid: UnitSet,
    pub(crate) limit: u32,
    pub(crate) length: u32,
    pub(crate) dirty: bool,
    /// The units that were written since the block was last sent or hardened.
    pub(crate) unsaved: UnitSet,
    /// Whether more than `unsaved` differs from what is stored. The block must then be sent;
    /// hardening is not enough.
    pub(crate) whole: bool,
    pub(crate) changed: Changed,
    /// The bytes on disks that are held for the block until it is sent.
    pub(crate) charge: usize,
    /// The part of `charge` that makes the file system no fuller: see [`strake_array::room`]. 0
    /// unless the file system is full.
    pub(crate) replaces: usize,
    /// Whether the block overwrites a settled version of the same length: see
    /// [`Claim::overwrites`].
    pub(crate) overwrites: bool,
    /// The bytes of `charge` that the pool counts as dirty. That is all of them, unless only parts
    /// of the block are in memory.
    pub(crate) dirtied: usize,
    /// Whether the block has a buffer that may not be taken from it yet: see [`Block::enter`].
    outside: bool,
    /// The bytes that `stat` counted as allocated before the block was ever stored.
    pub(crate) fresh: u32,
    /// Whether the block is no longer in its file's map. A caller that finds it so must look it up
    /// again.
    pub(crate) detached: bool,
}

/// The owner of a map of blocks.
pub(crate) trait Owner: Send + Sync {
    /// Forgets a block, which is already marked as detached.
    fn forget_block(&self, index: u64);
}

strake_env::lock_names! {
    /// Held across NSD I/O of the block: shared while it is sent, exclusively while it is read.
    pub(crate) DataLock = "block of a file";
}

/// See the file's head. `data` may be held across NSD I/O: shared while the block is sent,
/// exclusively while it is read from the NSDs.
pub(crate) struct Block {
    pub(crate) index: u64,
    me: Weak<Block>,
    owner: Weak<dyn Owner>,
    used: AtomicBool,
    /// How many bytes went to sequential readers that keep them.
    pub(crate) served: AtomicU32,
    /// 0 if the block is not in the queue of the write-behind threads. Otherwise one more than
    /// `sends` was when it was queued.
    pub(crate) queued: AtomicU64,
    /// How many accepted writes are not yet stable.
    pub(crate) pinned: AtomicU32,
    /// Whether the pinned write replaces a settled version of the same length.
    pub(crate) in_place: AtomicBool,
    /// How often the block was sent and accepted. It changes under the lock of `data`.
    pub(crate) sends: AtomicU64,
    /// The stored length; 0 if nothing is stored, [`STORED_UNKNOWN`] if the length is not known.
    pub(crate) stored: AtomicU32,
    /// Whether NSDs may hold a version that was not accepted, or may have lost one. What they have
    /// is then not known to be stable.
    unsure: AtomicBool,
    /// Of the pinned write, if it is tracked, the units that were on no disk when it was sent. They
    /// are until it is stable. See [`crate::memory::file::FileState::note_sending`].
    pub(crate) flying: Mutex<Option<UnitSet>>,
    /// The version that is known to be stable on all NSDs that are not noted; `NONE` if none is.
    stable: Mutex<Version>,
    pub(crate) gain: Mutex<Gain>,
    pub(crate) data: WatchedRwLock<DataLock, BlockData>,
}

/// What a block gained on disks by writes that are accepted and not yet stable.
#[derive(Debug, Default)]
pub(crate) struct Gain {
    /// The sum.
    pub(crate) unstable: i64,
    /// The part that belongs to writes that an NSD may have lost. The next write carries it.
    pub(crate) owed: i64,
    /// `Some` once the block was deleted, which also deletes what it had gained: the bytes that
    /// became stable since.
    pub(crate) deleted: Option<i64>,
}

impl BlockData {
    /// True if reading `from..to` needs the NSDs, because a unit below `limit` is not valid.
    pub(crate) fn is_missing(&self, from: usize, to: usize) -> bool {
        let to = to.min(self.limit as usize);
        from < to
            && (from / UNIT_BYTES..to.div_ceil(UNIT_BYTES)).any(|unit| !self.valid.contains(unit))
    }

    /// Copies bytes from `from` on into `out`. None of them may be missing.
    pub(crate) fn copy_out(&self, from: usize, out: &mut [u8]) {
        let (mut at, end) = (from, from + out.len());
        while at < end {
            let unit = at / UNIT_BYTES;
            let valid = self.valid.contains(unit);
            // A run of units in the same state is copied at once.
            let mut run = unit + 1;
            while run * UNIT_BYTES < end && self.valid.contains(run) == valid {
                run += 1;
            }
            let stop = end.min(run * UNIT_BYTES);
            let target = &mut out[at - from..stop - from];
            match &self.buffer {
                Some(buffer) if valid => target.copy_from_slice(&buffer[at..stop]),
                _ => target.fill(0),
            }
            at = stop;
        }
    }

    /// How many bytes the buffer can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// True if the buffer was taken for parts of the block alone.
    pub(crate) fn is_sparse(&self) -> bool {
        self.buffer.as_ref().is_some_and(AlignedBuffer::is_sparse)
    }

    /// True if some unit of the block is not in memory.
    pub(crate) fn has_holes(&self) -> bool {
        !self.valid.is_full((self.length as usize).div_ceil(UNIT_BYTES))
    }

    /// True if some bytes of the block read as zero but are perhaps not zero where they are stored.
    pub(crate) fn has_stale_end(&self) -> bool {
        let end = (self.length as usize).div_ceil(UNIT_BYTES);
        self.limit < self.length
            && (self.limit as usize / UNIT_BYTES..end).any(|unit| !self.valid.contains(unit))
    }

    /// True if only a small part of the block was written since it was last stored.
    pub(crate) fn is_written_in_parts(&self) -> bool {
        let units = (self.length as usize).div_ceil(UNIT_BYTES);
        self.has_holes() || self.unsaved.count() < units / PARTS_OF_BLOCK
    }

    /// Counts what of the block is in memory. If the block is dirty, also counts what of that
    /// cannot be evicted until the block is sent. Returns whether that is more than before.
    pub(crate) fn count(&mut self, page_pool: &PagePool) -> bool {
        let Some(buffer) = &mut self.buffer else { return false };
        if buffer.is_sparse() {
            page_pool.note_touched(buffer, self.valid.count() * UNIT_BYTES);
        }
        let more = buffer.touched().min(self.charge).saturating_sub(self.dirtied);
        if more > 0 {
            self.dirtied += more;
            page_pool.add_dirty(more);
        }
        more > 0
    }

    /// See [`Block::grow`]. Returns whether there was no buffer before.
    fn grow(&mut self, page_pool: &PagePool, bytes: usize, fill: Fill) -> bool {
        let have = self.capacity();
        if have >= bytes.max(1) {
            return false;
        }
        // Room was made only for the used parts of the buffer, not for all of a larger one.
        assert!(!self.is_sparse(), "a buffer for parts is for a whole block");
        let mut larger = page_pool.allocate(bytes, fill);
        if let Some(old) = self.buffer.take() {
            larger[..old.len()].copy_from_slice(&old);
            page_pool.release(old);
        }
        self.buffer = Some(larger);
        have == 0
    }

    /// What is held for the block until it is sent.
    pub(crate) fn claim(&self) -> Claim {
        let (bytes, replaces) = (self.charge as u64, self.replaces as u64);
        Claim { bytes, replaces, overwrites: self.overwrites }
    }

    /// Notes what is held for the block.
    pub(crate) fn set_claim(&mut self, claim: Claim) {
        (self.charge, self.replaces) = (claim.bytes as usize, claim.replaces as usize);
        self.overwrites = claim.overwrites;
    }

    /// True if some bytes of the block are on no disk.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.whole || !self.unsaved.is_empty()
    }

    /// Marks the block as having nothing left to send or harden.
    pub(crate) fn set_saved(&mut self) {
        self.unsaved.clear();
        self.whole = false;
    }

    /// Makes a unit valid as zeros.
    pub(crate) fn zero_unit(&mut self, unit: usize) {
        let buffer = self.buffer.as_mut().expect("invariant: grown before");
        buffer[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES].fill(0);
        self.valid.insert(unit);
    }

    /// Zeros all valid bytes of `from..to`. The other bytes of the range then read as zero too if
    /// the units at its edges are valid where they reach below `limit`.
    pub(crate) fn zero_valid(&mut self, from: usize, to: usize) {
        let Some(buffer) = self.buffer.as_mut() else { return };
        let to = to.min(buffer.len());
        let mut at = from;
        while at < to {
            let stop = to.min((at / UNIT_BYTES + 1) * UNIT_BYTES);
            if self.valid.contains(at / UNIT_BYTES) {
                buffer[at..stop].fill(0);
            }
            at = stop;
        }
    }

    /// Cuts the block to `length` bytes.
    pub(crate) fn cut(&mut self, length: usize) {
        let end = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        self.zero_valid(length, end);
        self.limit = self.limit.min(length as u32);
        self.length = self.length.min(length as u32);
    }
}

impl Block {
    /// A block of `owner`. Its first `limit` bytes are on the NSDs.
    pub(crate) fn new(index: u64, owner: Weak<dyn Owner>, limit: u32) -> Arc<Block> {
        Arc::new_cyclic(|me| Block {
            index,
            me: Weak::clone(me),
            owner,
            used: AtomicBool::new(true),
            in_place: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            flying: Mutex::default(),
            served: AtomicU32::new(0),
            queued: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            sends: AtomicU64::new(0),
            stored: AtomicU32::new(if limit == 0 { 0 } else { STORED_UNKNOWN }),
            stable: Mutex::new(Version::NONE),
            gain: Mutex::default(),
            data: WatchedRwLock::new(BlockData { limit, length: limit, ..BlockData::default() }),
        })
    }

    /// Gives the buffer a capacity of at least `bytes` bytes; valid units are kept. When the block
    /// gets its first buffer it enters the pool's clock, unless the buffer is for parts.
    pub(crate) fn grow(
        &self,
        data: &mut BlockData,
        page_pool: &PagePool,
        bytes: usize,
        fill: Fill,
    ) {
        let is_new = data.grow(page_pool, bytes, fill);
        if is_new && self.index > 0 && fill == Fill::Whole {
            page_pool.note_stream();
        }
        data.outside |= is_new;
        if !data.is_sparse() {
            self.enter(data, page_pool);
        }
    }

    /// From now on the buffer may be taken while the block is clean. A block with only parts in
    /// memory gets here only when it is sent.
    pub(crate) fn enter(&self, data: &mut BlockData, page_pool: &PagePool) {
        if std::mem::take(&mut data.outside)
            && let Some(me) = self.me.upgrade()
        {
            page_pool.enter(me as Arc<dyn Page>);
        }
    }

    /// This block, shared as its owners hold it.
    pub(crate) fn shared(&self) -> Option<Arc<Block>> {
        self.me.upgrade()
    }

    /// The version that is known to be stable; [`Version::NONE`] if none is.
    pub(crate) fn stable(&self) -> Version {
        *self.stable.lock()
    }

    /// Notes that a version under which the block was sent is stable.
    pub(crate) fn became_stable(&self, version: Version) {
        let mut stable = self.stable.lock();
        *stable = version.max(*stable);
        self.unsure.store(false, Ordering::Release);
    }

    /// Notes that a version of the block was not accepted everywhere, or may be lost.
    pub(crate) fn set_unsure(&self) {
        self.unsure.store(true, Ordering::Release);
    }

    /// True if NSDs may hold a version other than the one that is known to be stable.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Acquire)
    }

    /// Notes the version and the length that the NSDs have. Returns the length. The version is
    /// stable unless an accepted version has yet to become stable, because a start makes all
    /// stripes equal before they are read. The caller holds the lock of `data` exclusively.
    pub(crate) fn note_stored(&self, found: Option<(Version, u32)>) -> u32 {
        let length = found.map_or(0, |(_, length)| length);
        self.stored.store(length, Ordering::Release);
        if let Some((version, _)) = found
            && self.pinned.load(Ordering::Acquire) == 0
            && !self.is_unsure()
        {
            self.became_stable(version);
        }
        length
    }

    /// Notes that the block was used.
    pub(crate) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

impl Page for Block {
    fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn take_clean(&self) -> Option<AlignedBuffer> {
        let mut data = self.data.try_write()?;
        if data.dirty || self.pinned.load(Ordering::Acquire) > 0 {
            return None;
        }
        let buffer = data.buffer.take()?;
        data.valid.clear();
        data.detached = true;
        if let Some(owner) = self.owner.upgrade() {
            owner.forget_block(self.index);
        }
        Some(buffer)
    }

    fn is_resident(&self) -> bool {
        // A block that is locked is in use.
        self.data.try_read().is_none_or(|data| data.buffer.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_sets_agree_with_a_list() {
        let mut set = UnitSet::default();
        set.insert_range(3, 200);
        set.insert(1000);
        for unit in 0..1100 {
            assert_eq!(set.contains(unit), (3..200).contains(&unit) || unit == 1000, "{unit}");
        }
    }

    #[test]
    fn what_is_neither_valid_nor_below_the_limit_is_zero() {
        let page_pool = PagePool::new(1 << 20, 64 << 10);
        let mut data = BlockData { limit: 5000, length: 20_000, ..BlockData::default() };
        data.grow(&page_pool, 20_000, Fill::Whole);
        let buffer = data.buffer.as_mut().expect("grown");
        buffer.fill(7);
        data.valid.insert(2);
        assert!(data.is_missing(0, 4096) && data.is_missing(4096, 4097));
        assert!(!data.is_missing(8192, 20_000));
        let mut out = vec![1; 12_000];
        data.copy_out(8000, &mut out);
        assert!(out[..192].iter().all(|byte| *byte == 0));
        assert!(out[192..4288].iter().all(|byte| *byte == 7));
        assert!(out[4288..].iter().all(|byte| *byte == 0));
        data.cut(9000);
        let mut out = vec![1; 1000];
        data.copy_out(8500, &mut out);
        assert!(out[..500].iter().all(|byte| *byte == 7));
        assert!(out[500..].iter().all(|byte| *byte == 0));
    }
}
