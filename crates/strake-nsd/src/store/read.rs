//! Reading a strip, and listings.

use super::{BlockStore, Held};
use crate::extent::{Extent, slice_of};
use crate::keys::{Table, block_start, parse_strip_key, strip_key};
use crate::record::{
    Checksums, Damaged, StripRecord, StripVersion, decode_strip, decode_trailer, trailer_units,
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

/// Memory for checksums: two generations of this many bytes. So checksums in use survive a change
/// of generation. This is enough for 4 GiB of strips.
const CACHE_BYTES_PER_GENERATION: usize = 4 << 20;
/// An entry takes this much beside its checksums: key, version, places in the map.
const CACHE_ENTRY_BYTES: usize = 96;
/// No listing is longer.
const LIST_LIMIT_MAX: u32 = 4096;

/// Checksums of long strips that were lately written or read.
#[derive(Default)]
pub(super) struct TrailerCache {
    young: HashMap<(StripKey, Version), Arc<[u32]>>,
    old: HashMap<(StripKey, Version), Arc<[u32]>>,
    young_bytes: usize,
    /// Checksums that some thread is reading: the parts of a strip are often read side by side.
    fetching: HashSet<(StripKey, Version)>,
}

/// The outcome of a look for checksums.
enum Sought {
    Found(Arc<[u32]>),
    /// Somebody else is reading them; they may be there by the time they are needed.
    Fetched,
    /// Nobody has them. The caller reads them, and says when it is done ([`Fetching`]).
    Mine,
}

/// Somebody is reading checksums as long as this lives.
struct Fetching<'a> {
    store: &'a BlockStore,
    key: StripKey,
    version: Version,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.store.trailers.lock().fetching.remove(&(self.key, self.version));
    }
}

impl TrailerCache {
    pub(super) fn insert(&mut self, key: StripKey, version: Version, checksums: &[u32]) {
        let bytes = CACHE_ENTRY_BYTES + size_of_val(checksums);
        if self.young_bytes + bytes > CACHE_BYTES_PER_GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert((key, version), checksums.into()).is_none() {
            self.young_bytes += bytes;
        }
    }

    fn seek(&mut self, key: StripKey, version: Version) -> Sought {
        if let Some(found) = self.get(key, version) {
            return Sought::Found(found);
        }
        match self.fetching.insert((key, version)) {
            true => Sought::Mine,
            false => Sought::Fetched,
        }
    }

    fn get(&mut self, key: StripKey, version: Version) -> Option<Arc<[u32]>> {
        if let Some(found) = self.young.get(&(key, version)) {
            return Some(Arc::clone(found));
        }
        let found = self.old.remove(&(key, version))?;
        self.insert(key, version, &found);
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
        // Before the look-up: what it finds is not reused while this lives.
        let _guard = self.reclaim.read();
        let record = self.record(key)?;
        let held = record.as_ref().and_then(|record| record.version(version)).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("NSD {} has no strip {key}", self.nsd))
        })?;
        let payload = length.min(held.strip_bytes.saturating_sub(offset));
        let first = offset as usize / UNIT_BYTES;
        let count = payload as usize / UNIT_BYTES;
        let mut checksums = Vec::new();
        if count > 0 {
            let out = &mut receive[..payload as usize];
            let all = self.read_checked(key, held, version, first, out)?;
            checksums.extend_from_slice(&all[first..first + count]);
        }
        Ok(NsdReply::Strip {
            header: held.header.clone(),
            strip_bytes: held.strip_bytes,
            checksums,
            payload_bytes: payload,
        })
    }

    /// Reads units from `first` on, and all checksums of the strip: side by side, where these must
    /// come from the disk.
    fn read_checked(
        &self,
        key: &StripKey,
        held: &StripVersion,
        version: Option<Version>,
        first: usize,
        out: &mut [u8],
    ) -> Result<Arc<[u32]>> {
        let units = (out.len() / UNIT_BYTES) as u64;
        let extents = slice_of(&held.extents, first as u64, units);
        // Who names a version and wants the whole strip verifies the disk: what memory knows of the
        // checksums does not count then.
        let verifies = version.is_some() && out.len() == held.strip_bytes as usize;
        if held.checksums != Checksums::Trailer {
            self.read_extents(&extents, out)?;
            return self.checksums(key, held);
        }
        let mut fetching = None;
        if !verifies {
            let sought = self.trailers.lock().seek(*key, held.version());
            match sought {
                Sought::Found(known) => {
                    self.read_extents(&extents, out)?;
                    return Ok(known);
                }
                Sought::Fetched => {
                    self.read_extents(&extents, out)?;
                    return self.checksums(key, held);
                }
                Sought::Mine => {
                    fetching = Some(Fetching { store: self, key: *key, version: held.version() });
                }
            }
        }
        let ([extent], [all]) = (&extents[..], &held.extents[..]) else {
            self.read_extents(&extents, out)?;
            return match verifies {
                true => Ok(self.read_trailer(key, held)?.into()),
                false => self.checksums(key, held),
            };
        };
        let start = all.start + u64::from(held.strip_bytes) / UNIT_BYTES as u64;
        let trailer = Extent { start, count: trailer_units(held.strip_bytes) };
        let mut bytes = AlignedBuffer::zeroed(trailer.bytes() as usize);
        self.read_extent(*extent, out, Some((trailer, &mut bytes)))?;
        let all: Arc<[u32]> = self.take_trailer(key, held, &bytes)?.into();
        if fetching.is_some() {
            self.trailers.lock().insert(*key, held.version(), &all);
        }
        Ok(all)
    }

    /// All checksums of a held version.
    pub(super) fn checksums(&self, key: &StripKey, held: &StripVersion) -> Result<Arc<[u32]>> {
        if let Checksums::Inline(checksums) = &held.checksums {
            return Ok(checksums.as_slice().into());
        }
        if let Some(found) = self.trailers.lock().get(*key, held.version()) {
            return Ok(found);
        }
        let checksums = self.read_trailer(key, held)?;
        self.trailers.lock().insert(*key, held.version(), &checksums);
        Ok(checksums.into())
    }

    /// The checksums as they stand on the disk.
    pub(super) fn read_trailer(&self, key: &StripKey, held: &StripVersion) -> Result<Vec<u32>> {
        let units = u64::from(held.strip_bytes) / UNIT_BYTES as u64;
        let behind = u64::from(trailer_units(held.strip_bytes));
        let mut bytes = AlignedBuffer::zeroed(behind as usize * UNIT_BYTES);
        self.read_extents(&slice_of(&held.extents, units, behind), &mut bytes)?;
        self.take_trailer(key, held, &bytes)
    }

    fn take_trailer(&self, key: &StripKey, held: &StripVersion, bytes: &[u8]) -> Result<Vec<u32>> {
        decode_trailer(key, held.version(), held.strip_bytes, bytes)
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

    /// Reads an extent into `out`, and beside it another one into memory that is aligned.
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
            // What is damaged cannot be described. Nobody takes a listing for proof that a strip
            // was not written: reading it says that it is damaged.
            entries.extend(entry(key, value));
            true
        })?;
        Ok(NsdReply::Strips { entries, more })
    }

    pub(super) fn list_unsettled(&self, after: Option<StripKey>, limit: u32) -> Result<NsdReply> {
        use std::ops::Bound::{Excluded, Unbounded};
        let limit = limit.clamp(1, LIST_LIMIT_MAX) as usize;
        let from = after.map_or(Unbounded, Excluded);
        let mut keys: Vec<StripKey> = {
            let unsettled = self.unsettled.lock();
            unsettled.range((from, Unbounded)).take(limit + 1).copied().collect()
        };
        let more = keys.len() > limit;
        keys.truncate(limit);
        let mut entries = Vec::new();
        for key in keys {
            // It may have been settled or deleted since.
            if let Held::Record(record) = self.look_up(&key)? {
                entries.push(describe(key, &record));
            }
        }
        Ok(NsdReply::Strips { entries, more })
    }
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
            // The longest strip there is, and one barely long enough.
            let checksums = vec![object as u32; if object % 2 == 0 { 4096 } else { 17 }];
            cache.insert(key(object), version, &checksums);
            let first = cache.get(key(0), version);
            assert_eq!(first.map(|checksums| checksums[0]), Some(0), "in use all the time");
            // The sum is the slow part of this test.
            if object % 100 == 0 {
                let held = cache.young.values().chain(cache.old.values());
                let bytes: usize = held.map(|one| CACHE_ENTRY_BYTES + one.len() * 4).sum();
                assert!(bytes <= 2 * CACHE_BYTES_PER_GENERATION);
            }
        }
        assert!(cache.get(key(1), version).is_none(), "what is not in use goes");
    }
}
