//! One block of one file in memory.
//!
//! A block's bytes are, unit by unit (4 KiB): in the buffer if the unit is *valid*; else on the
//! NSDs if the unit begins below `limit`; else zero. So a write to a part of a block need not read
//! the rest, a new block need not be zeroed, and stale bytes beyond an old end of file are cut off
//! by lowering `limit`.
//!
//! `length` is the block's logical length: beyond it all is zero and nothing is stored. Within the
//! last valid unit, bytes at and beyond `length` are zero in the buffer.
//!
//! States: *clean* (evictable) ▶ *dirty* (`dirty`) ▶ *accepted* (`pinned` > 0: sent, may be lost by
//! an NSD until the commit) ▶ clean. A block that is written to again while accepted is both.

use crate::memory::page_pool::{Fill, Page, PagePool};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use strake_array::room::Claim;
use strake_env::AlignedBuffer;
use strake_env::sync::{Mutex, RwLock};
use strake_proto::Version;
use strake_proto::limits::UNIT_BYTES;

/// `Block::stored`: not known.
pub(crate) const STORED_UNKNOWN: u32 = u32::MAX;

/// A block of which less than such a part was written is written in parts.
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
        // Whole words at once: the common case is a megabyte, four words.
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

    /// Whether all of the first `units` are in it.
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

    /// The units in it, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        self.words
            .iter()
            .enumerate()
            .flat_map(move |(at, word)| bits(*word).map(move |bit| at * 64 + bit))
    }
}

/// How a block differs from what is stored under the version that is known to be stable. Only an
/// accepted send makes it the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    /// These units differ.
    pub(crate) units: UnitSet,
    /// More than these may differ.
    pub(crate) whole: bool,
}

/// The contents; see the file's head.
#[derive(Default)]
pub(crate) struct BlockData {
    pub(crate) buffer: Option<AlignedBuffer>,
    pub(crate) valid: UnitSet,
    pub(crate) limit: u32,
    pub(crate) length: u32,
    pub(crate) dirty: bool,
    /// Units that were written since the block was sent or hardened last.
    pub(crate) unsaved: UnitSet,
    /// Whether more than `unsaved` differs from what is stored, so that only sending it will do.
    pub(crate) whole: bool,
    pub(crate) changed: Changed,
    /// Bytes on disks that are held for it until it is sent.
    pub(crate) charge: usize,
    /// Of these, what makes the file system no fuller: see [`strake_array::room`]. 0 unless it is
    /// full.
    pub(crate) replaces: usize,
    /// Whether it overwrites a settled version of its length: see [`Claim::overwrites`].
    pub(crate) overwrites: bool,
    /// Bytes of `charge` counted in the pool as dirty: all, unless only parts are in memory.
    pub(crate) dirtied: usize,
    /// Whether it has a buffer that nobody may take yet: see [`Block::enter`].
    outside: bool,
    /// Bytes counted as allocated by `stat` before the block was ever stored.
    pub(crate) fresh: u32,
    /// No longer in its file's map: whoever finds it so looks again.
    pub(crate) detached: bool,
}

/// Whoever has a block in a map.
pub(crate) trait Owner: Send + Sync {
    /// Forgets a block; it is marked detached already.
    fn forget_block(&self, index: u64);
}

/// See the file's head. `data` may be held across NSD I/O: shared while the block is sent,
/// exclusively while it is read from the NSDs.
pub(crate) struct Block {
    pub(crate) index: u64,
    me: Weak<Block>,
    owner: Weak<dyn Owner>,
    used: AtomicBool,
    /// Bytes that went to sequential readers who keep them.
    pub(crate) served: AtomicU32,
    /// 0 unless it stands in the queue of the writers behind; then one more than `sends` was when
    /// it was queued last.
    pub(crate) queued: AtomicU64,
    /// Accepted writes not yet stable.
    pub(crate) pinned: AtomicU32,
    /// Whether the write that is pinned replaces a settled version of the same length.
    pub(crate) in_place: AtomicBool,
    /// How often it was sent and accepted; changed under the lock of `data`.
    pub(crate) sends: AtomicU64,
    /// The stored length; 0 for none, [`STORED_UNKNOWN`].
    pub(crate) stored: AtomicU32,
    /// Whether NSDs may hold a version of it that was not accepted, or that they may have lost:
    /// what they have then is not known to be stable.
    unsure: AtomicBool,
    /// The version that is known to be stable on all NSDs that are not noted; `NONE` for none.
    stable: Mutex<Version>,
    pub(crate) gain: Mutex<Gain>,
    pub(crate) data: RwLock<BlockData>,
}

/// What a block gained on disks by writes that are accepted and not yet stable.
#[derive(Debug, Default)]
pub(crate) struct Gain {
    /// The sum; `None` once the block was deleted, and with it what it had gained.
    pub(crate) unstable: Option<i64>,
    /// Of this, by writes that an NSD may have lost: the next one carries it.
    pub(crate) owed: i64,
}

impl BlockData {
    /// Whether reading `from..to` needs the NSDs: a unit below `limit` that is not valid.
    pub(crate) fn is_missing(&self, from: usize, to: usize) -> bool {
        let to = to.min(self.limit as usize);
        from < to
            && (from / UNIT_BYTES..to.div_ceil(UNIT_BYTES)).any(|unit| !self.valid.contains(unit))
    }

    /// Copies `from..` into `out`; nothing of it may be missing.
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

    /// Bytes that the buffer can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// Whether parts of it are in a buffer that was taken for those alone.
    pub(crate) fn is_sparse(&self) -> bool {
        self.buffer.as_ref().is_some_and(AlignedBuffer::is_sparse)
    }

    /// Whether something of it is not in memory.
    pub(crate) fn has_holes(&self) -> bool {
        !self.valid.is_full((self.length as usize).div_ceil(UNIT_BYTES))
    }

    /// Whether something of it reads as zero that need not be zero where it is stored.
    pub(crate) fn has_stale_end(&self) -> bool {
        let end = (self.length as usize).div_ceil(UNIT_BYTES);
        self.limit < self.length
            && (self.limit as usize / UNIT_BYTES..end).any(|unit| !self.valid.contains(unit))
    }

    /// Whether little of it was written since it was stored last.
    pub(crate) fn is_written_in_parts(&self) -> bool {
        let units = (self.length as usize).div_ceil(UNIT_BYTES);
        self.has_holes() || self.unsaved.count() < units / PARTS_OF_BLOCK
    }

    /// Counts what of it is in memory, and if it is dirty what of that cannot be had until it is
    /// sent. Returns whether that is more than before.
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
        // Room was made for what is used of it, not for all of a larger one.
        assert!(!self.is_sparse(), "a buffer for parts is for a whole block");
        let mut larger = page_pool.allocate(bytes, fill);
        if let Some(old) = self.buffer.take() {
            larger[..old.len()].copy_from_slice(&old);
            page_pool.release(old);
        }
        self.buffer = Some(larger);
        have == 0
    }

    /// What is held for it until it is sent.
    pub(crate) fn claim(&self) -> Claim {
        let (bytes, replaces) = (self.charge as u64, self.replaces as u64);
        Claim { bytes, replaces, overwrites: self.overwrites }
    }

    /// Notes what is held for it.
    pub(crate) fn set_claim(&mut self, claim: Claim) {
        (self.charge, self.replaces) = (claim.bytes as usize, claim.replaces as usize);
        self.overwrites = claim.overwrites;
    }

    /// Whether something of it is on no disk.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.whole || !self.unsaved.is_empty()
    }

    /// Nothing of it is left to be sent or hardened.
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

    /// Zeros all valid bytes of `from..to` and makes the rest of that range read as zero, which
    /// needs the edge units valid where they reach below `limit`.
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
    /// A block of `owner` of which the first `limit` bytes are on the NSDs.
    pub(crate) fn new(index: u64, owner: Weak<dyn Owner>, limit: u32) -> Arc<Block> {
        Arc::new_cyclic(|me| Block {
            index,
            me: Weak::clone(me),
            owner,
            used: AtomicBool::new(true),
            in_place: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            served: AtomicU32::new(0),
            queued: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            sends: AtomicU64::new(0),
            stored: AtomicU32::new(if limit == 0 { 0 } else { STORED_UNKNOWN }),
            stable: Mutex::new(Version::NONE),
            gain: Mutex::new(Gain { unstable: Some(0), owed: 0 }),
            data: RwLock::new(BlockData { limit, length: limit, ..BlockData::default() }),
        })
    }

    /// Gives the buffer at least `bytes` bytes of capacity; valid units are kept. With its first
    /// buffer the block enters the pool's clock, unless it is for parts.
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

    /// From now on its buffer may be taken while it is clean. Where only parts of it are in memory
    /// that is never so, until it is completed to be sent.
    pub(crate) fn enter(&self, data: &mut BlockData, page_pool: &PagePool) {
        if std::mem::take(&mut data.outside)
            && let Some(me) = self.me.upgrade()
        {
            page_pool.enter(me as Arc<dyn Page>);
        }
    }

    /// This block as its owners hold it.
    pub(crate) fn shared(&self) -> Option<Arc<Block>> {
        self.me.upgrade()
    }

    /// The version that is known to be stable; [`Version::NONE`] if none is.
    pub(crate) fn stable(&self) -> Version {
        *self.stable.lock()
    }

    /// Notes that a version that it was sent under is stable.
    pub(crate) fn became_stable(&self, version: Version) {
        let mut stable = self.stable.lock();
        *stable = version.max(*stable);
        self.unsure.store(false, Ordering::Release);
    }

    /// Notes that a version of it was not accepted everywhere, or may be lost.
    pub(crate) fn set_unsure(&self) {
        self.unsure.store(true, Ordering::Release);
    }

    /// Whether NSDs may hold another version than the one that is known to be stable.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Acquire)
    }

    /// Notes version and length that the NSDs have; returns the length. The version is stable,
    /// unless one that was accepted is yet to become so: a start makes all stripes equal before
    /// anybody looks. The caller holds the lock of `data` exclusively.
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

    /// Notes that it was used.
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
