//! Which units of an NSD are free. This is in memory only. Every start rebuilds it from the index,
//! which is the one truth about used units.
//!
//! **Chunks.** The space is cut into equal chunks. A chunk belongs to a key-value region or to
//! data. A data chunk is *empty* (wholly free), or small strips or large strips have claimed it.
//! The two kinds of strips are kept apart so that large strips stay contiguous. Claimed chunks are
//! filled before an empty one is claimed, lowest first. So whole chunks at the high end stay empty,
//! and key-value regions can grow into them.
//!
//! **Reserve.** Some empty chunks are kept from data. Key-value regions grow into them, because
//! deleting needs index space. When regions have taken some, the same amount is kept anew from
//! space that becomes free. It is never taken from space that somebody was told is free
//! ([`Allocator::tell_free`]) or that is granted to a client, nor from the last space that data
//! has. While data has plenty, more is kept for the metadata. It is kept again after a restart
//! ([`Allocator::keep_more`]).
//!
//! **Withheld** units are free, but nobody gets them for a moment, because the host is being told
//! that they are free. A chunk stays empty meanwhile. While there are withheld units, a request
//! that could only be met in pieces is not met: its caller waits for that moment to end.
//!
//! **Order of the search** for n units. First, a free extent of n or more in a chunk of the class,
//! from where the last search ended (next fit). Then a new chunk. Then a free extent in a chunk of
//! the other class. Then pieces from anywhere. Otherwise there is no space.
//!
//! **Invariants** (`check`):
//! - Free extents lie within their chunk. They ascend and never touch (they are coalesced).
//! - A chunk's free count is the sum of its free extents. Its bound is at least the longest one.
//! - The total is the sum over data chunks.
//! - An empty chunk has no class.

use crate::extent::Extent;
use std::collections::BTreeMap;

/// Strips of up to this many units count as small.
const SMALL_UNITS_MAX: u32 = 32;
/// The reserve is refilled only while data has more free than one part in this many of the whole.
/// Writers to a full file system need the rest.
const LEFT_PART: u64 = 32;
/// At most this many units (256 MiB) are left to those writers in that way.
const LEFT_UNITS_MAX: u64 = 1 << 16;
/// More than the reserve is kept for the metadata only while data has plenty: one part in this many
/// of the whole is free, and half of the space it was told is free. A client uses at most the other
/// half for data that is yet to be written (`strake-array/src/room.rs`).
const PLENTY_PART: u64 = 8;

/// The place and number of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkGeometry {
    /// The first unit of the first chunk.
    pub first_unit: u64,
    /// The number of units of every chunk.
    pub units: u32,
    /// The number of chunks.
    pub count: u32,
}

impl ChunkGeometry {
    fn start(self, chunk: usize) -> u64 {
        self.first_unit + chunk as u64 * u64::from(self.units)
    }

    /// The chunk that holds the whole extent, and the extent's place in that chunk.
    fn locate(self, extent: Extent) -> Option<(usize, u32)> {
        let within = extent.start.checked_sub(self.first_unit)?;
        let chunk = within / u64::from(self.units);
        let at = (within % u64::from(self.units)) as u32;
        let fits = chunk < u64::from(self.count)
            && extent.count > 0
            && at.checked_add(extent.count).is_some_and(|end| end <= self.units);
        fits.then_some((chunk as usize, at))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Small,
    Large,
}

#[derive(Clone, Debug)]
struct Chunk {
    /// True if a key-value region owns the chunk. Nothing is then allocated from it.
    is_kv: bool,
    /// The class of strips that claimed the chunk; `None` while it is empty.
    class: Option<Class>,
    free_units: u32,
    /// Units that are free too, but that nobody can have now.
    withheld: u32,
    /// No free extent is longer than this. The bound is exact after a search that failed.
    longest_bound: u32,
    /// Start within the chunk ▶ count.
    free: BTreeMap<u32, u32>,
}

impl Chunk {
    fn is_empty(&self, units: u32) -> bool {
        !self.is_kv && self.free_units + self.withheld == units
    }

    /// True if the chunk is wholly free and can be claimed as a whole.
    fn is_claimable(&self, units: u32) -> bool {
        self.is_empty(units) && self.withheld == 0
    }

    /// Takes a part out of the free extent that holds it. Returns false if no free extent holds it.
    fn cut_out(&mut self, start: u32, count: u32) -> bool {
        let Some((at, length)) = self.containing(start, count) else { return false };
        self.free.remove(&at);
        if at < start {
            self.free.insert(at, start - at);
        }
        let end = start + count;
        if end < at + length {
            self.free.insert(end, at + length - end);
        }
        self.free_units -= count;
        true
    }

    /// Makes an extent free and joins it with its free neighbours.
    fn put_back(&mut self, start: u32, count: u32) {
        let mut merged = (start, count);
        if let Some((&at, &length)) = self.free.range(..=start).next_back() {
            assert!(at + length <= start, "units freed twice: {count} at {start} of a chunk");
            if at + length == start {
                self.free.remove(&at);
                merged = (at, length + count);
            }
        }
        let end = start + count;
        if let Some((&at, &length)) = self.free.range(start..).next() {
            assert!(at >= end, "units freed twice: {count} at {start} of a chunk");
            if at == end {
                self.free.remove(&at);
                merged.1 += length;
            }
        }
        self.free.insert(merged.0, merged.1);
        self.free_units += count;
        self.longest_bound = self.longest_bound.max(merged.1);
    }

    /// The first free extent of at least `count` units at or after `from`, otherwise the first from
    /// the start.
    fn find(&mut self, count: u32, from: u32) -> Option<u32> {
        if self.longest_bound < count {
            return None;
        }
        let fits = |(&start, &length): (&u32, &u32)| (length >= count).then_some(start);
        let found = self
            .free
            .range(from..)
            .find_map(fits)
            .or_else(|| self.free.range(..from).find_map(fits));
        if found.is_none() {
            self.longest_bound = self.free.values().copied().max().unwrap_or(0);
        }
        found
    }

    /// Takes `count` units at the start of the free extent at `start`.
    fn take(&mut self, start: u32, count: u32) {
        let length = self.free.remove(&start).expect("invariant: a free extent starts there");
        assert!(length >= count, "an extent is taken from a shorter one");
        if length > count {
            self.free.insert(start + count, length - count);
        }
        self.free_units -= count;
    }

    /// The free extent that holds all of `start..start + count`.
    fn containing(&self, start: u32, count: u32) -> Option<(u32, u32)> {
        let (&at, &length) = self.free.range(..=start).next_back()?;
        (at + length >= start + count).then_some((at, length))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    chunk: usize,
    unit: u32,
}

/// The free space of one NSD.
#[derive(Debug)]
pub struct Allocator {
    geometry: ChunkGeometry,
    chunks: Vec<Chunk>,
    empty_chunks: u32,
    /// Free units over all data chunks.
    free_units: u64,
    /// Withheld units over all data chunks.
    withheld: u64,
    reserve_chunks: u32,
    /// The smallest size of the reserve, in chunks.
    least_reserve: u32,
    /// The number of chunks kept from data now. All of them are empty.
    kept: u32,
    /// The units that somebody was told are free, less those allocated since.
    told: u64,
    /// The units that are granted to clients.
    granted: u64,
    small: Cursor,
    large: Cursor,
}

/// The extent cannot be as the index says: it lies outside all data chunks, or it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFree(pub Extent);

impl Allocator {
    /// An allocator in which everything is free except the chunks of key-value regions.
    /// `reserve_chunks` are kept from data.
    pub fn new(
        geometry: ChunkGeometry,
        kv_chunks: impl IntoIterator<Item = u32>,
        reserve_chunks: u32,
    ) -> Allocator {
        assert!(geometry.units > 0, "a chunk has units");
        let chunk = Chunk {
            is_kv: false,
            class: None,
            free_units: geometry.units,
            withheld: 0,
            longest_bound: geometry.units,
            free: BTreeMap::from([(0, geometry.units)]),
        };
        let mut allocator = Allocator {
            geometry,
            chunks: vec![chunk; geometry.count as usize],
            empty_chunks: geometry.count,
            free_units: u64::from(geometry.count) * u64::from(geometry.units),
            withheld: 0,
            reserve_chunks,
            least_reserve: reserve_chunks,
            kept: reserve_chunks.min(geometry.count),
            told: 0,
            granted: 0,
            small: Cursor::default(),
            large: Cursor::default(),
        };
        for index in kv_chunks {
            allocator.give_to_kv(index as usize);
        }
        allocator
    }

    /// Notes at a start that the index holds `extent`.
    ///
    /// # Errors
    /// [`NotFree`] if the index is damaged. Nothing changes then.
    pub fn mark_used(&mut self, extent: Extent) -> Result<(), NotFree> {
        let (index, start) = self.geometry.locate(extent).ok_or(NotFree(extent))?;
        let chunk = &mut self.chunks[index];
        let was_empty = chunk.is_empty(self.geometry.units);
        if chunk.is_kv || !chunk.cut_out(start, extent.count) {
            return Err(NotFree(extent));
        }
        self.free_units -= u64::from(extent.count);
        if was_empty {
            chunk.class = Some(class_of(extent.count));
            self.lose_empty();
        }
        Ok(())
    }

    /// Ends a start, when all units in use are marked. If data has less free space than must be
    /// left to it, the reserve stays smaller by what the key-value regions took.
    pub fn settle_reserve(&mut self) {
        while self.kept > 0 && self.free_for_data() < self.left_for_data() {
            self.kept -= 1;
        }
    }

    /// Allocates `units` (> 0), contiguous if possible. Returns `None` if there is not enough
    /// space, or not enough at the moment.
    pub fn allocate(&mut self, units: u32) -> Option<Vec<Extent>> {
        let extents = self.find_space(units)?;
        self.told = self.told.saturating_sub(units.into());
        Some(extents)
    }

    fn find_space(&mut self, units: u32) -> Option<Vec<Extent>> {
        assert!(units > 0, "nothing to allocate");
        if u64::from(units) > self.free_for_data() {
            return None;
        }
        let class = class_of(units);
        let other = if class == Class::Small { Class::Large } else { Class::Small };
        let place = self
            .find(units, class, class)
            .or_else(|| self.claim_empty(units, class))
            .or_else(|| self.find(units, class, other));
        match place {
            Some((chunk, start)) => Some(vec![self.take(chunk, start, units, class)]),
            None if self.withheld > 0 => None,
            None => Some(self.gather(units, class)),
        }
    }

    /// Frees units. They must be allocated: a double free is a bug and panics.
    pub fn free(&mut self, extent: Extent) {
        let (index, start) =
            self.geometry.locate(extent).expect("invariant: freed units lie in one chunk");
        let units = self.geometry.units;
        let chunk = &mut self.chunks[index];
        assert!(!chunk.is_kv, "units of a key-value chunk are not data");
        chunk.put_back(start, extent.count);
        self.free_units += u64::from(extent.count);
        if chunk.is_empty(units) {
            chunk.class = None;
            self.empty_chunks += 1;
        }
        self.refill_reserve();
    }

    /// Frees units that were allocated but not used, as if they had never been allocated.
    pub fn give_back(&mut self, extent: Extent) {
        self.told += u64::from(extent.count);
        self.free(extent);
    }

    /// Withholds free units of one chunk: nobody gets them before [`Allocator::restore`].
    pub fn withhold(&mut self, extent: Extent) {
        let (index, start) =
            self.geometry.locate(extent).expect("invariant: what is withheld lies in one chunk");
        let chunk = &mut self.chunks[index];
        assert!(
            !chunk.is_kv && chunk.cut_out(start, extent.count),
            "only what is free is withheld"
        );
        chunk.withheld += extent.count;
        self.withheld += u64::from(extent.count);
        self.free_units -= u64::from(extent.count);
    }

    /// Ends the withholding.
    pub fn restore(&mut self, extent: Extent) {
        let (index, start) =
            self.geometry.locate(extent).expect("invariant: what was withheld lies in one chunk");
        let chunk = &mut self.chunks[index];
        chunk.put_back(start, extent.count);
        chunk.withheld -= extent.count;
        self.withheld -= u64::from(extent.count);
        self.free_units += u64::from(extent.count);
    }

    /// True if units are withheld.
    pub fn is_withholding(&self) -> bool {
        self.withheld > 0
    }

    /// One past the last unit of the chunk that holds `unit`.
    pub fn chunk_end(&self, unit: u64) -> u64 {
        let units = u64::from(self.geometry.units);
        let chunk = (unit - self.geometry.first_unit) / units;
        self.geometry.first_unit + (chunk + 1) * units
    }

    /// All units of a chunk.
    pub fn chunk_extent(&self, index: u32) -> Extent {
        Extent { start: self.geometry.start(index as usize), count: self.geometry.units }
    }

    /// Gives the highest empty chunk to a key-value region. The reserve exists for this.
    pub fn claim_for_kv(&mut self) -> Option<u32> {
        let units = self.geometry.units;
        let index = self.chunks.iter().rposition(|chunk| chunk.is_claimable(units))?;
        self.kept = self.kept.saturating_sub(1);
        self.give_to_kv(index);
        self.refill_reserve();
        Some(index as u32)
    }

    /// Takes back a chunk that a key-value region claimed but could not use.
    pub fn release_from_kv(&mut self, index: u32) {
        let units = self.geometry.units;
        let chunk = &mut self.chunks[index as usize];
        assert!(chunk.is_kv, "only a key-value chunk is given back");
        chunk.is_kv = false;
        chunk.free = BTreeMap::from([(0, units)]);
        chunk.free_units = units;
        chunk.longest_bound = units;
        self.empty_chunks += 1;
        self.free_units += u64::from(units);
        self.kept = (self.kept + 1).min(self.reserve_chunks);
    }

    /// Keeps `wanted` chunks more than the smallest reserve while data has plenty, up to half of
    /// the space that somebody was told is free. The `needed` chunks were kept before a restart.
    /// Until somebody is told what is free, they are kept again even if little is left. Returns how
    /// many more chunks are kept now.
    pub fn keep_more(&mut self, needed: u32, wanted: u32) -> u32 {
        let and_always = |chunks: u32| self.least_reserve.saturating_add(chunks);
        let again = if needed > 0 && self.told == 0 { and_always(needed) } else { 0 };
        self.reserve_chunks = and_always(needed.max(wanted)).min(self.geometry.count);
        self.kept = self.kept.min(self.reserve_chunks);
        while self.kept < again.min(self.empty_chunks)
            && self.free_for_data() >= self.granted + u64::from(self.geometry.units)
        {
            self.kept += 1;
        }
        let plenty = self.total_without(self.least_reserve) / PLENTY_PART;
        let least = plenty.max(self.told / 2).max(self.granted);
        let least = least + u64::from(self.geometry.units);
        while self.kept < self.reserve_chunks.min(self.empty_chunks)
            && self.free_for_data() >= least
        {
            self.kept += 1;
        }
        self.kept.saturating_sub(self.least_reserve)
    }

    /// True if more than half of the reserve is gone.
    pub fn reserve_is_short(&self) -> bool {
        self.kept * 2 < self.least_reserve
    }

    /// Units of all data chunks, used and free, without the reserve.
    pub fn total_for_data(&self) -> u64 {
        self.total_without(self.least_reserve.max(self.kept))
    }

    /// Units of all data chunks, less this many chunks.
    fn total_without(&self, kept: u32) -> u64 {
        let chunks = self.chunks.iter().filter(|chunk| !chunk.is_kv).count() as u64;
        chunks.saturating_sub(u64::from(kept)) * u64::from(self.geometry.units)
    }

    /// Notes how many units are granted to clients ([`crate::grants`]). The metadata and the
    /// reserve get none of these.
    pub fn note_granted(&mut self, units: u64) {
        self.granted = units;
    }

    /// Free units that data may still take, withheld units included.
    pub fn free_for_data(&self) -> u64 {
        self.free_units + self.withheld - u64::from(self.kept) * u64::from(self.geometry.units)
    }

    /// The free units on which writers may rely. They include the `coming` units, which are about
    /// to be freed. They leave out what the reserve lacks, unless that is the last space.
    pub fn tell_free(&mut self, coming: u64) -> u64 {
        self.refill_reserve();
        let lacking = self.least_reserve.saturating_sub(self.kept);
        let lacking = u64::from(lacking) * u64::from(self.geometry.units);
        let free = self.free_for_data() + coming;
        self.told = free.saturating_sub(lacking).max(free.min(self.left_for_data()));
        self.told
    }

    fn refill_reserve(&mut self) {
        let least = self.told.max(self.granted).max(self.left_for_data());
        let least = least + u64::from(self.geometry.units);
        while self.kept < self.least_reserve.min(self.empty_chunks) && self.free_for_data() >= least
        {
            self.kept += 1;
        }
    }

    /// The number of units that must be left to data when the reserve is refilled.
    fn left_for_data(&self) -> u64 {
        (self.total_without(self.least_reserve) / LEFT_PART).min(LEFT_UNITS_MAX)
    }

    /// Units in use by data.
    pub fn used(&self) -> u64 {
        let chunks = self.chunks.iter().filter(|chunk| !chunk.is_kv).count() as u64;
        chunks * u64::from(self.geometry.units) - self.free_units - self.withheld
    }

    /// True if all of `extent` lies in data chunks and is in use.
    pub fn is_used(&self, extent: Extent) -> bool {
        self.geometry.locate(extent).is_some_and(|(index, start)| {
            let chunk = &self.chunks[index];
            let end = start + extent.count;
            let before = chunk.free.range(..end).next_back();
            !chunk.is_kv && before.is_none_or(|(&at, &length)| at + length <= start)
        })
    }

    /// Asserts the invariants that the file's head lists.
    pub fn check(&self) {
        let units = self.geometry.units;
        let mut free_units = 0u64;
        let mut empty_chunks = 0u32;
        let mut withheld = 0u64;
        for chunk in &self.chunks {
            let mut end_of_last = None;
            for (&start, &count) in &chunk.free {
                assert!(count > 0 && start + count <= units, "a free extent leaves its chunk");
                assert!(end_of_last.is_none_or(|end| end < start), "free extents touch");
                assert!(count <= chunk.longest_bound, "the bound is below an extent");
                end_of_last = Some(start + count);
            }
            let sum: u32 = chunk.free.values().sum();
            assert_eq!(sum, chunk.free_units, "a chunk's free count is not the sum");
            if chunk.is_kv {
                assert_eq!(sum + chunk.withheld, 0, "a key-value chunk has free units");
            }
            withheld += u64::from(chunk.withheld);
            empty_chunks += u32::from(chunk.is_empty(units));
            assert!(chunk.is_kv || chunk.class.is_none() == chunk.is_empty(units));
            free_units += u64::from(sum);
        }
        assert_eq!(free_units, self.free_units, "the total is not the sum");
        assert_eq!(withheld, self.withheld, "withheld units are miscounted");
        assert_eq!(empty_chunks, self.empty_chunks, "empty chunks are miscounted");
        assert!(self.kept <= self.reserve_chunks.min(self.empty_chunks), "kept, and not there");
    }

    fn give_to_kv(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        assert!(chunk.is_claimable(self.geometry.units), "only an empty chunk changes hands");
        chunk.is_kv = true;
        chunk.free.clear();
        chunk.free_units = 0;
        self.lose_empty();
        self.free_units -= u64::from(self.geometry.units);
    }

    /// Counts one empty chunk fewer.
    fn lose_empty(&mut self) {
        self.empty_chunks -= 1;
        self.kept = self.kept.min(self.empty_chunks);
    }

    fn cursor(&mut self, class: Class) -> &mut Cursor {
        match class {
            Class::Small => &mut self.small,
            Class::Large => &mut self.large,
        }
    }

    /// Next fit among the chunks of class `wanted`, from the cursor of `class`.
    fn find(&mut self, units: u32, class: Class, wanted: Class) -> Option<(usize, u32)> {
        let cursor = *self.cursor(class);
        let count = self.chunks.len();
        (0..count).map(|step| (cursor.chunk + step) % count).find_map(|index| {
            let chunk = &mut self.chunks[index];
            if chunk.class != Some(wanted) {
                return None;
            }
            let from = if index == cursor.chunk { cursor.unit } else { 0 };
            chunk.find(units, from).map(|start| (index, start))
        })
    }

    fn claim_empty(&mut self, units: u32, class: Class) -> Option<(usize, u32)> {
        if self.empty_chunks <= self.kept || units > self.geometry.units {
            return None;
        }
        let chunk_units = self.geometry.units;
        let index = self.chunks.iter().position(|chunk| chunk.is_claimable(chunk_units))?;
        self.claim(index, class);
        Some((index, 0))
    }

    fn claim(&mut self, index: usize, class: Class) {
        self.chunks[index].class = Some(class);
        self.empty_chunks -= 1;
    }

    fn take(&mut self, chunk: usize, start: u32, count: u32, class: Class) -> Extent {
        self.chunks[chunk].take(start, count);
        self.free_units -= u64::from(count);
        *self.cursor(class) = Cursor { chunk, unit: start + count };
        Extent { start: self.geometry.start(chunk) + u64::from(start), count }
    }

    /// Allocates pieces from wherever there is space. The caller has made sure that there is
    /// enough.
    fn gather(&mut self, units: u32, class: Class) -> Vec<Extent> {
        let mut left = units;
        let mut pieces = Vec::new();
        for index in 0..self.chunks.len() {
            if self.chunks[index].is_empty(self.geometry.units) {
                if self.empty_chunks <= self.kept {
                    continue;
                }
                self.claim(index, class);
            }
            while left > 0 {
                let Some((&start, &length)) = self.chunks[index].free.first_key_value() else {
                    break;
                };
                let count = length.min(left);
                pieces.push(self.take(index, start, count, class));
                left -= count;
            }
            if left == 0 {
                return pieces;
            }
        }
        unreachable!("invariant: the free count promised enough units");
    }
}

fn class_of(units: u32) -> Class {
    if units <= SMALL_UNITS_MAX { Class::Small } else { Class::Large }
}

#[cfg(test)]
#[path = "allocator_test.rs"]
mod allocator_test;
