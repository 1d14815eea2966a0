//! Reads strips and makes listings.

use super::write::trailer_place;
use super::{BlockStore, Held};
use crate::extent::{Extent, slice_of, units_of};
use crate::gather::gather;
use crate::keys::{Table, block_start, parse_strip_key, strip_key, table_end};
use crate::record::{
    Checksums, Damaged, Displaced, StripRecord, StripVersion, View, decode_strip, decode_trailer,
    trailer_units,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use strake_env::AlignedBuffer;
use strake_observe::{BufferType, IoDirection, IoSide};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{KeptVersion, NsdReply, StripEntry};
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectId, Result, StripKey, Version};
use strake_store::KvRead;
use strake_stripe::ChecksumSeed;

/// Memory for checksums: two generations of this many bytes, so checksums in use survive a change
/// of generation. This is enough for 4 GiB of strips.
const CACHE_BYTES_PER_GENERATION: usize = 4 << 20;
/// An entry takes this many bytes besides its checksums: key, version, places in the map.
const CACHE_ENTRY_BYTES: usize = 96;
/// A listing has at most this many entries.
const LIST_LIMIT_MAX: u32 = 4096;
/// A listing of strips that some positions may lack looks through at most this many records. Tests
/// have few records.
const LACKING_SCAN_MAX: u32 = if cfg!(test) { 7 } else { 16_384 };

/// Identifies a trailer: its strip, the version under which it was made, and its first unit. A
/// strip that is straightened keeps the version and gets a trailer elsewhere.
pub(super) type TrailerKey = (StripKey, Version, u64);

/// Checksums of long strips that were lately written or read.
#[derive(Default)]
pub(super) struct TrailerCache {
    young: HashMap<TrailerKey, Arc<[u32]>>,
    old: HashMap<TrailerKey, Arc<[u32]>>,
    young_bytes: usize,
    /// Checksums that some thread is reading now. The parts of a strip are often read side by side.
    fetching: HashSet<TrailerKey>,
}

/// The outcome of a look for checksums.
enum Sought {
    Found(Arc<[u32]>),
    /// Another thread is reading them. They may be there by the time they are needed.
    Fetched,
    /// Nobody has them. The caller reads them and reports when it is done ([`Fetching`]).
    Mine,
}

/// While this lives, some thread is reading the checksums.
struct Fetching<'a> {
    store: &'a BlockStore,
    trailer: TrailerKey,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.store.trailers.lock().fetching.remove(&self.trailer);
    }
}

impl TrailerCache {
    pub(super) fn insert(&mut self, key: TrailerKey, checksums: &[u32]) {
        let bytes = CACHE_ENTRY_BYTES + size_of_val(checksums);
        if self.young_bytes + bytes > CACHE_BYTES_PER_GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(key, checksums.into()).is_none() {
            self.young_bytes += bytes;
        }
    }

    fn seek(&mut self, key: TrailerKey) -> Sought {
        if let Some(found) = self.get(key) {
            return Sought::Found(found);
        }
        match self.fetching.insert(key) {
            true => Sought::Mine,
            false => Sought::Fetched,
        }
    }

    fn get(&mut self, key: TrailerKey) -> Option<Arc<[u32]>> {
        if let Some(found) = self.young.get(&key) {
            return Some(Arc::clone(found));
        }
        let found = self.old.remove(&key)?;
        self.insert(key, &found);
        Some(found)
    }
}

impl BlockStore {
    pub(super) fn read(
        &self,
        key: &StripKey,
        version: Option<Version>,
        offset: u32,
        length: u32,
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let whole = |value: u32| (value as usize).is_multiple_of(UNIT_BYTES);
        if !whole(offset) || !whole(length) || receive.len() < length as usize {
            let detail = format!("a read of {length} bytes at {offset} is not in units of 4 KiB");
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        // The guard comes before the look-up. While it lives, no unit found there is reused.
        let _guard = self.reclaim.read();
        let record = self.record(key)?;
        let view = record.as_ref().and_then(|record| record.view(version)).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("NSD {} has no strip {key}", self.nsd))
        })?;
        let held = view.held;
        let payload = length.min(held.strip_bytes.saturating_sub(offset));
        let mut checksums = Vec::new();
        if payload > 0 {
            // A caller that names a version and wants the whole strip verifies the disk. Checksums
            // known in memory do not count then.
            let verifies = version.is_some() && payload == held.strip_bytes;
            let first = offset as usize / UNIT_BYTES;
            let out = &mut receive[..payload as usize];
            checksums = self.read_view(key, &view, verifies, first, out)?;
        }
        Ok(NsdReply::Strip {
            header: held.header.clone(),
            strip_bytes: held.strip_bytes,
            checksums,
            payload_bytes: payload,
        })
    }

    /// Reads units from `first` on. Returns their checksums under the version of the view.
    pub(super) fn read_view(
        &self,
        key: &StripKey,
        view: &View<'_>,
        verifies: bool,
        first: usize,
        out: &mut [u8],
    ) -> Result<Vec<u32>> {
        let count = out.len() / UNIT_BYTES;
        let (from, to) = (first as u32, (first + count) as u32);
        let place_of = |unit| view.displaced.partition_point(|one| one.unit < unit);
        let displaced = &view.displaced[place_of(from)..place_of(to)];
        let mut checksums = vec![0; count];
        // One large read comes first. Small ones go over it.
        if let Some((from, to)) = straight_part(displaced, from, to) {
            let at = |unit: u32| unit as usize - first;
            let part = &mut out[at(from) * UNIT_BYTES..at(to) * UNIT_BYTES];
            let all = self.read_straight(key, view, verifies, from as usize, part)?;
            checksums[at(from)..at(to)].copy_from_slice(&all[from as usize..to as usize]);
        }
        self.read_displaced(displaced, &|unit| unit as usize - first, out)?;
        for one in displaced {
            checksums[one.unit as usize - first] = one.checksum;
        }
        if view.whole.made != view.held.version() {
            let seed = |version| ChecksumSeed::new(key, version);
            let change = seed(view.whole.made).difference(seed(view.held.version()));
            checksums.iter_mut().for_each(|checksum| *checksum ^= change);
        }
        Ok(checksums)
    }

    /// Reads displaced units into `out`. `index_of` says where a unit of the strip belongs there;
    /// neighbours in the strip are neighbours there too.
    pub(super) fn read_displaced(
        &self,
        units: &[Displaced],
        index_of: &dyn Fn(u32) -> usize,
        out: &mut [u8],
    ) -> Result<()> {
        let bytes_of = |unit: u32, count: usize| {
            let from = index_of(unit) * UNIT_BYTES;
            from..from + count * UNIT_BYTES
        };
        let reads = gather(units);
        let longest = reads.iter().filter(|read| !read.is_run()).map(|read| read.extent.bytes());
        let mut spare = AlignedBuffer::zeroed(longest.max().unwrap_or(0) as usize);
        for read in &reads {
            let is_run = read.is_run();
            let together = &mut spare[..if is_run { 0 } else { read.extent.bytes() as usize }];
            // A bad place between the units must not hide them. So after a fault, each run is read
            // by itself.
            if is_run || self.read_extents(&[read.extent], together).is_err() {
                for (extent, run) in read.runs() {
                    let part = &mut out[bytes_of(run[0].unit, run.len())];
                    self.read_extents(&[extent], part)?;
                }
                continue;
            }
            for one in &read.units {
                let from = (one.place - read.extent.start) as usize * UNIT_BYTES;
                out[bytes_of(one.unit, 1)].copy_from_slice(&together[from..from + UNIT_BYTES]);
            }
        }
        Ok(())
    }

    /// Reads units from `first` on from the extents, and returns all checksums as they are stored.
    /// If the checksums must come from the disk, both are read side by side.
    fn read_straight(
        &self,
        key: &StripKey,
        view: &View<'_>,
        verifies: bool,
        first: usize,
        out: &mut [u8],
    ) -> Result<Arc<[u32]>> {
        let units = (out.len() / UNIT_BYTES) as u64;
        let extents = slice_of(&view.whole.extents, first as u64, units);
        let Some(trailer) = trailer_key(key, view) else {
            self.read_extents(&extents, out)?;
            return self.checksums(key, view);
        };
        let mut fetching = None;
        if !verifies {
            let sought = self.trailers.lock().seek(trailer);
            match sought {
                Sought::Found(known) => {
                    self.read_extents(&extents, out)?;
                    return Ok(known);
                }
                Sought::Fetched => {
                    self.read_extents(&extents, out)?;
                    return self.checksums(key, view);
                }
                Sought::Mine => fetching = Some(Fetching { store: self, trailer }),
            }
        }
        let behind = trailer_extents(view);
        let ([extent], [trailer_extent]) = (&extents[..], &behind[..]) else {
            self.read_extents(&extents, out)?;
            return match verifies {
                true => Ok(self.read_trailer(key, view)?.into()),
                false => self.checksums(key, view),
            };
        };
        let mut bytes = AlignedBuffer::zeroed(trailer_extent.bytes() as usize);
        self.read_extent(*extent, out, Some((*trailer_extent, &mut bytes)))?;
        let all: Arc<[u32]> = self.take_trailer(key, view, &bytes)?.into();
        if fetching.is_some() {
            self.trailers.lock().insert(trailer, &all);
        }
        Ok(all)
    }

    /// All checksums of a version as they are stored.
    pub(super) fn checksums(&self, key: &StripKey, view: &View<'_>) -> Result<Arc<[u32]>> {
        if let Checksums::Inline(checksums) = &view.whole.checksums {
            return Ok(checksums.as_slice().into());
        }
        let trailer = trailer_key(key, view).expect("invariant: not inline, so in a trailer");
        if let Some(found) = self.trailers.lock().get(trailer) {
            return Ok(found);
        }
        let checksums = self.read_trailer(key, view)?;
        self.trailers.lock().insert(trailer, &checksums);
        Ok(checksums.into())
    }

    /// The checksums as the disk has them.
    pub(super) fn read_trailer(&self, key: &StripKey, view: &View<'_>) -> Result<Vec<u32>> {
        let extents = trailer_extents(view);
        let mut bytes = AlignedBuffer::zeroed(units_of(&extents) as usize * UNIT_BYTES);
        self.read_extents(&extents, &mut bytes)?;
        self.take_trailer(key, view, &bytes)
    }

    fn take_trailer(&self, key: &StripKey, view: &View<'_>, bytes: &[u8]) -> Result<Vec<u32>> {
        decode_trailer(key, view.whole.made, view.held.strip_bytes, bytes)
            .map_err(|damage| self.damaged(key, damage))
    }

    pub(super) fn read_extents(&self, extents: &[Extent], out: &mut [u8]) -> Result<()> {
        self.ios.fetch_add(1, SeqCst);
        let mut rest = out;
        for extent in extents {
            let (part, tail) = rest.split_at_mut(extent.bytes() as usize);
            rest = tail;
            self.read_extent(*extent, part, None)?;
        }
        assert!(rest.is_empty(), "the extents of a strip hold all of it");
        Ok(())
    }

    /// Reads an extent into `out`. With `beside`, also reads another extent into aligned memory.
    fn read_extent(
        &self,
        extent: Extent,
        out: &mut [u8],
        beside: Option<(Extent, &mut [u8])>,
    ) -> Result<()> {
        assert_eq!(extent.bytes(), out.len() as u64, "an extent is read whole");
        let start = self.observe.io.begin();
        let waiting =
            self.observe.waiters.enter("NSD I/O completion", format!("read, NSD {}", self.nsd));
        let more = beside.as_ref().map_or(0, |(other, _)| other.bytes());
        let read = |out: &mut [u8]| match beside {
            None => self.disk.read_at(extent.offset(), out),
            Some((other, bytes)) => {
                self.disk.read_two_at([(extent.offset(), out), (other.offset(), bytes)])
            }
        };
        let read = if (out.as_ptr() as usize).is_multiple_of(UNIT_BYTES) {
            read(out)
        } else {
            let mut aligned = AlignedBuffer::zeroed(out.len());
            let result = read(&mut aligned);
            out.copy_from_slice(&aligned);
            result
        };
        drop(waiting);
        self.observe.io.end(
            start,
            IoDirection::Read,
            BufferType::Data,
            self.nsd,
            extent.offset(),
            extent.bytes() + more,
            IoSide::Local,
        );
        read.map_err(|error| {
            Error::from(error).context(format!("NSD {}, reading {extent:?}", self.nsd))
        })
    }

    pub(super) fn list(&self, from: &StripKey, until: ObjectId, limit: u32) -> Result<NsdReply> {
        let limit = limit.clamp(1, LIST_LIMIT_MAX) as usize;
        let start = strip_key(Table::Strip, from);
        let end = block_start(Table::Strip, from.fs, until, BlockIndex(0));
        let mut entries = Vec::new();
        let mut more = false;
        self.index.scan(&start, &end, &mut |key, value| {
            if entries.len() == limit {
                more = true;
                return false;
            }
            // A damaged record cannot be described. A listing never proves that a strip was not
            // written: reading the strip shows the damage.
            entries.extend(entry(key, value));
            true
        })?;
        Ok(NsdReply::Strips { entries, more })
    }

    pub(super) fn list_unsettled(&self, after: Option<StripKey>, limit: u32) -> Result<NsdReply> {
        use std::ops::Bound::{Excluded, Unbounded};
        let limit = limit.clamp(1, LIST_LIMIT_MAX) as usize;
        let mut from = after.map_or(Unbounded, Excluded);
        loop {
            let mut keys: Vec<StripKey> = {
                let unsettled = self.unsettled.lock();
                unsettled.range((from, Unbounded)).take(limit + 1).copied().collect()
            };
            let more = keys.len() > limit;
            keys.truncate(limit);
            let mut entries = Vec::new();
            for key in &keys {
                // The strip may have been settled or deleted since.
                if let Held::Record(record) = self.look_up(key)? {
                    entries.push(describe(*key, &record));
                }
            }
            // A page without entries would look like the end.
            if !entries.is_empty() || !more {
                return Ok(NsdReply::Strips { entries, more });
            }
            from = keys.last().map_or(from, |last| Excluded(*last));
        }
    }
}

impl BlockStore {
    /// Lists strips that some of `positions` may lack. There is no index of these: most strips lack
    /// nothing, and a listing comes once for each NSD that returns. So the records themselves are
    /// looked through, a bounded number for each call. A damaged record cannot say who lacks its
    /// strip. It is an error, and then everything is compared.
    pub(super) fn list_lacking(
        &self,
        positions: u32,
        after: Option<StripKey>,
        limit: u32,
    ) -> Result<NsdReply> {
        let limit = limit.clamp(1, LIST_LIMIT_MAX) as usize;
        let start = match after {
            None => vec![Table::Strip as u8],
            Some(after) => {
                let mut next = strip_key(Table::Strip, &after).to_vec();
                next.push(0);
                next
            }
        };
        let mut entries = Vec::new();
        let mut seen = 0;
        let mut last = None;
        let mut damaged = None;
        self.index.scan(&start, &table_end(Table::Strip), &mut |encoded, value| {
            let Some(key) = parse_strip_key(Table::Strip, encoded) else { return true };
            (last, seen) = (Some(key), seen + 1);
            match decode_strip(encoded, value) {
                Err(damage) => damaged = Some(self.damaged(&key, damage)),
                Ok(record) => {
                    let lacks = |held: &StripVersion| held.header.lacks & positions != 0;
                    if record.versions.iter().any(lacks) {
                        entries.push(describe(key, &record));
                    }
                }
            }
            damaged.is_none() && entries.len() < limit && seen < LACKING_SCAN_MAX
        })?;
        if let Some(damaged) = damaged {
            return Err(damaged);
        }
        let is_cut = entries.len() == limit || seen == LACKING_SCAN_MAX;
        Ok(NsdReply::Lacking { entries, next: last.filter(|_| is_cut) })
    }
}

fn trailer_extents(view: &View<'_>) -> Vec<Extent> {
    let units = u64::from(view.held.strip_bytes) / UNIT_BYTES as u64;
    slice_of(&view.whole.extents, units, trailer_units(view.held.strip_bytes).into())
}

/// Identifies the trailer of a strip, if its checksums are in one.
fn trailer_key(key: &StripKey, view: &View<'_>) -> Option<TrailerKey> {
    let units = u64::from(view.held.strip_bytes) / UNIT_BYTES as u64;
    Some((*key, view.whole.made, trailer_place(&view.whole.extents, units)?))
}

/// The part of units `from..to` that begins and ends with a unit that is not displaced.
fn straight_part(displaced: &[Displaced], from: u32, to: u32) -> Option<(u32, u32)> {
    let before = (from..).zip(displaced).take_while(|(unit, one)| one.unit == *unit).count();
    let behind = (from..to).rev().zip(displaced.iter().rev());
    let behind = behind.take_while(|(unit, one)| one.unit == *unit).count();
    let (from, to) = (from + before as u32, to - behind as u32);
    (from < to).then_some((from, to))
}

fn entry(key: &[u8], value: &[u8]) -> std::result::Result<StripEntry, Damaged> {
    let parsed = parse_strip_key(Table::Strip, key).ok_or(Damaged("key of a strip"))?;
    Ok(describe(parsed, &decode_strip(key, value)?))
}

fn describe(key: StripKey, record: &StripRecord) -> StripEntry {
    let current = record.current();
    let kept = record.versions[1..].iter();
    let kept = kept.map(|held| KeptVersion { header: held.header.clone(), settled: held.settled });
    StripEntry {
        key,
        header: current.header.clone(),
        strip_bytes: current.strip_bytes,
        settled: current.settled,
        kept: kept.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::{FsId, GrantNumber, StripIndex};

    #[test]
    fn the_cache_of_checksums_is_bounded_by_bytes_and_keeps_what_is_in_use() {
        let mut cache = TrailerCache::default();
        let key = |object| StripKey {
            fs: FsId(1),
            object: ObjectId(object),
            block: BlockIndex(0),
            strip: StripIndex(0),
        };
        let version = Version { grant: GrantNumber(1), counter: 1 };
        for object in 0..20_000 {
            // The longest strip possible, and one barely long enough to have a trailer.
            let checksums = vec![object as u32; if object % 2 == 0 { 4096 } else { 17 }];
            cache.insert((key(object), version, object), &checksums);
            let first = cache.get((key(0), version, 0));
            assert_eq!(first.map(|checksums| checksums[0]), Some(0), "in use all the time");
            // Summing up is the slow part of this test.
            if object % 100 == 0 {
                let held = cache.young.values().chain(cache.old.values());
                let bytes: usize = held.map(|one| CACHE_ENTRY_BYTES + one.len() * 4).sum();
                assert!(bytes <= 2 * CACHE_BYTES_PER_GENERATION);
            }
        }
        assert!(cache.get((key(1), version, 1)).is_none(), "what is not in use goes");
    }
}
