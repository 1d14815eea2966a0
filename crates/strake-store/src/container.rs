//! The container of one NSD: its identity, and where on the disk everything lies.
//!
//! ```text
//! 0          superblock A (4 KiB)
//! 64 KiB     superblock B (4 KiB)
//! 128 KiB    marks of up to eight servers, if several nodes reach the NSD (4 KiB each;
//!            `strake-lease`, `reservation.rs`)
//! 1 MiB      index log      clamp(length / 64, 4 MiB, 64 MiB), rounded down to 4 KiB
//! …          metadata log   the same size
//! …          chunks         clamp(length / 256, 1 MiB, 1 GiB), rounded up to a power of two
//! ```
//!
//! Everything follows from the container's length at format time ([`Geometry`]), so the superblock
//! alone is enough to find the rest. Chunks belong to data unless the superblock lists them as part
//! of a KV. A KV grows by asking the [`ChunkSource`] (the block store's allocator) for a chunk. It
//! owns the chunk once the rewritten superblock is durable.
//!
//! Lock order: `update` (held across the superblock's I/O), then `current` (never across I/O).

use crate::journal::Journal;
use crate::kv::{capacity_bytes, clear_chunk};
use crate::region::{ChunkSource, KvRegion, KvRole, LogRegion};
use crate::superblock::{
    COPY_OFFSETS, KV_CHUNKS_MAX, KvSpace, METADATA_HOLDERS_MAX, SUPERBLOCK_BYTES, Superblock,
};
use std::ops::Range;
use std::sync::{Arc, Weak};
use strake_env::sync::{Mutex, RwLock, WatchedMutex};
use strake_env::{AlignedBuffer, Disk};
use strake_proto::{ClusterId, Error, ErrorKind, FsId, NsdId, Result};

const MIB: u64 = 1 << 20;
/// The smallest container: two logs of 4 MiB and room to work.
pub const CONTAINER_BYTES_MIN: u64 = 32 * MIB;
/// This fraction of a container (one part in so many) is for the metadata while data does not need
/// it.
const KEPT_PART: u64 = 16;
/// The index KV owns at least this much from the start, so the first opening needs no allocator.
const INDEX_KV_BYTES_AT_FORMAT: u64 = 4 * MIB;

/// The choices with which a container is made.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The cluster that the container will belong to.
    pub cluster: ClusterId,
    /// The NSD's own id.
    pub nsd: NsdId,
    /// The file system that the container will belong to.
    pub fs: FsId,
    /// Disks of one group fail together.
    pub failure_group: u32,
    /// 64 random bits that no earlier format of this disk used. They keep old and new logs apart.
    pub seed: u64,
}

/// The places of all parts, computed from the container's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of each of the two logs.
    pub log_bytes: u64,
    /// The offset of the first chunk.
    pub chunks_offset: u64,
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
    /// The number of chunks.
    pub chunk_count: u32,
}

impl Geometry {
    /// The geometry of a container of `length` bytes. `None` if that is too short.
    pub fn of(length: u64) -> Option<Geometry> {
        if length < CONTAINER_BYTES_MIN {
            return None;
        }
        let log_bytes = (length / 64).clamp(4 * MIB, 64 * MIB) / 4096 * 4096;
        let chunks_offset = MIB + 2 * log_bytes;
        let left = length - chunks_offset;
        let chunk_bytes = (length / 256).clamp(MIB, 1024 * MIB).next_power_of_two();
        let chunk_count = u32::try_from(left / chunk_bytes).ok()?;
        Some(Geometry { log_bytes, chunks_offset, chunk_bytes, chunk_count })
    }

    /// The bytes of a chunk on the disk.
    pub fn chunk_range(&self, chunk: u32) -> Range<u64> {
        assert!(chunk < self.chunk_count, "chunk {chunk} of {}", self.chunk_count);
        let start = self.chunks_offset + u64::from(chunk) * self.chunk_bytes;
        start..start + self.chunk_bytes
    }
}

/// One NSD's container. Clones share one container.
#[derive(Clone)]
pub struct Container {
    inner: Arc<Inner>,
}

strake_env::lock_names! {
    /// Held across the superblock's I/O.
    Update = "superblock of an NSD";
}

struct Inner {
    disk: Arc<dyn Disk>,
    geometry: Geometry,
    update: WatchedMutex<Update>,
    current: RwLock<Arc<Superblock>>,
    source: RwLock<Option<Weak<dyn ChunkSource>>>,
    /// Drafts by [`KvRole`]: the space of stores that will replace those in the superblock. The
    /// space is claimed in memory only, not on the disk, so after a crash it belongs to data again.
    /// Changed under `update`.
    drafts: Mutex<[KvSpace; 2]>,
}

impl Container {
    /// Makes a new, empty container on `disk`. Whatever was there is lost.
    ///
    /// # Errors
    /// `Invalid` for a disk that is too small. The disk's errors.
    pub fn format(disk: Arc<dyn Disk>, options: &FormatOptions) -> Result<Container> {
        let length = disk.len();
        let geometry = Geometry::of(length).ok_or_else(|| {
            let least = CONTAINER_BYTES_MIN / MIB;
            Error::new(ErrorKind::Invalid, format!("an NSD needs at least {least} MiB"))
        })?;
        let wanted = INDEX_KV_BYTES_AT_FORMAT.div_ceil(geometry.chunk_bytes) as u32;

        let first = geometry.chunk_count - wanted;
        let superblock = Superblock {
            sequence: 2,
            cluster: options.cluster,
            nsd: options.nsd,
            fs: options.fs,
            failure_group: options.failure_group,
            length,
            index_log_seed: options.seed,
            metadata_log_seed: options.seed.rotate_left(32) ^ 0x6d65_7461,
            index_kv: KvSpace { length: 0, chunks: (first..geometry.chunk_count).rev().collect() },
            ..Superblock::default()
        };
        // Superblocks, logs and KVs must never meet a full host, so their space is taken now.
        disk.reserve(0, geometry.chunks_offset)?;
        for &chunk in &superblock.index_kv.chunks {
            take_chunk(&*disk, &geometry, chunk)?;
        }
        let container = Container::with(disk, geometry, superblock);
        Journal::begin(container.index_log())?;
        Journal::begin(container.metadata_log())?;
        let (disk, superblock) = (container.disk(), container.superblock());
        // B is written first. If A (sequence 2) were durable beside an old B with a higher
        // sequence, the old container would win.
        write_copy(&**disk, &Superblock { sequence: 1, ..(*superblock).clone() })?;
        disk.sync()?;
        write_copy(&**disk, &superblock)?;
        disk.sync()?;
        Ok(container)
    }

    /// Opens the container on `disk`.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Corrupt` if both superblocks are damaged, `NotSupported` for
    /// a newer format, `Invalid` if the disk is shorter than the container.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Container> {
        let superblock = Container::peek(&*disk)?;
        if superblock.length > disk.len() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the container has {} bytes, its disk only {}",
                    superblock.length,
                    disk.len()
                ),
            ));
        }
        let geometry = Geometry::of(superblock.length)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "superblock with a length too short"))?;
        check_chunks(&superblock, &geometry)?;
        Ok(Container::with(disk, geometry, superblock))
    }

    /// The newest valid superblock of a disk, without opening it.
    ///
    /// # Errors
    /// As [`Container::open`].
    pub fn peek(disk: &dyn Disk) -> Result<Superblock> {
        let mut found: Option<Superblock> = None;
        let mut error = Error::new(ErrorKind::NotFound, "no Strake container on this disk");
        for offset in COPY_OFFSETS {
            let mut buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
            let copy = disk.read_at(offset, &mut buffer).map_err(Error::from).and_then(|()| {
                let bytes: &[u8; SUPERBLOCK_BYTES] =
                    buffer[..].try_into().expect("invariant: the buffer has this length");
                Superblock::decode(bytes)
            });
            match copy {
                Ok(copy) if found.as_ref().is_none_or(|best| best.sequence < copy.sequence) => {
                    found = Some(copy);
                }
                Ok(_) => {}
                // A copy from a newer program must not be hidden by an older one beside it.
                Err(newer) if newer.kind() == ErrorKind::NotSupported => return Err(newer),
                Err(other) if other.kind() != ErrorKind::NotFound => error = other,
                Err(_) => {}
            }
        }
        found.ok_or(error)
    }

    fn with(disk: Arc<dyn Disk>, geometry: Geometry, superblock: Superblock) -> Container {
        Container {
            inner: Arc::new(Inner {
                disk,
                geometry,
                update: WatchedMutex::default(),
                current: RwLock::new(Arc::new(superblock)),
                source: RwLock::new(None),
                drafts: Mutex::default(),
            }),
        }
    }

    /// The disk below.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.inner.disk
    }

    /// The places of all parts.
    pub fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    /// The current superblock.
    pub fn superblock(&self) -> Arc<Superblock> {
        self.inner.current.read().clone()
    }

    /// Changes the superblock durably. Identity and length cannot be changed.
    ///
    /// # Errors
    /// `Invalid` if a list is too long or names chunks twice. The disk's errors. After an error the
    /// old superblock is still current here, and the disk has one of the two.
    pub fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let _update = self.inner.update.lock();
        self.rewrite(change)
    }

    /// Rewrites the superblock. The caller holds `update`.
    fn rewrite(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let old = self.superblock();
        let mut new = Superblock::clone(&old);
        change(&mut new);
        new.sequence = old.sequence + 1;
        (new.cluster, new.nsd, new.fs, new.length) = (old.cluster, old.nsd, old.fs, old.length);
        check_chunks(&new, &self.inner.geometry)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.detail()))?;
        write_copy(&*self.inner.disk, &new)?;
        self.inner.disk.sync()?;
        *self.inner.current.write() = Arc::new(new);
        Ok(())
    }

    /// Reads both copies of the superblock back, and writes damaged ones anew. The newest is
    /// written first, in its own place, so there is a good copy at any time. Returns how many
    /// copies it wrote.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn verify_superblocks(&self) -> Result<u64> {
        let _update = self.inner.update.lock();
        let (disk, current) = (&self.inner.disk, self.superblock());
        let is_good = |sequence: u64| {
            let mut buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
            disk.read_at(copy_offset(sequence), &mut buffer).ok()?;
            let copy = Superblock::decode(buffer[..].try_into().ok()?).ok()?;
            Some(sequence != current.sequence || copy == *current)
        };
        let mut written = 0;
        if is_good(current.sequence) != Some(true) {
            write_copy(&**disk, &current)?;
            disk.sync()?;
            written += 1;
        }
        if is_good(current.sequence + 1) != Some(true) {
            self.rewrite(|_| {})?;
            written += 1;
        }
        Ok(written)
    }

    /// The chunks that belong to data, ascending.
    pub fn data_chunks(&self) -> Vec<u32> {
        let mut chunks = data_chunks(&self.superblock(), &self.inner.geometry);
        let drafts = self.inner.drafts.lock();
        chunks.retain(|chunk| drafts.iter().all(|draft| !draft.chunks.contains(chunk)));
        chunks
    }

    /// Sets the source of chunks for KVs that grow. Without a source they cannot grow (`NoSpace`).
    pub fn set_chunk_source(&self, source: &Arc<dyn ChunkSource>) {
        *self.inner.source.write() = Some(Arc::downgrade(source));
    }

    /// The block store's log. Its journal makes the disk's data durable before its entries. So an
    /// entry never refers to data that is not there, no matter which thread's sync wrote the entry.
    pub fn index_log(&self) -> LogRegion {
        let log = self.log(MIB, self.superblock().index_log_seed);
        LogRegion { follows_data: true, ..log }
    }

    /// The metadata's log.
    pub fn metadata_log(&self) -> LogRegion {
        self.log(MIB + self.inner.geometry.log_bytes, self.superblock().metadata_log_seed)
    }

    fn log(&self, offset: u64, seed: u64) -> LogRegion {
        LogRegion {
            disk: self.inner.disk.clone(),
            offset,
            length: self.inner.geometry.log_bytes,
            seed,
            follows_data: false,
            is_begun: true,
        }
    }

    /// The space of a KV.
    pub fn kv_region(&self, role: KvRole) -> KvRegion {
        KvRegion { container: self.clone(), role, is_draft: false }
    }

    /// The space of a store, as memory knows it.
    pub(crate) fn kv_space(&self, role: KvRole, is_draft: bool) -> KvSpace {
        match is_draft {
            true => self.inner.drafts.lock()[role as usize].clone(),
            false => self.superblock().kv_space(role).clone(),
        }
    }

    /// Durably puts the draft of a store in its place. Returns the chunks that the store had
    /// before. The caller releases them when nothing can touch them any more.
    pub(crate) fn adopt_draft(&self, role: KvRole) -> Result<Vec<u32>> {
        let _update = self.inner.update.lock();
        // If the rewrite fails, the disk may still say that the chunks are the store's. So nobody
        // gets them until the next opening shows whose they are.
        let draft = std::mem::take(&mut self.inner.drafts.lock()[role as usize]);
        let before = self.superblock().kv_space(role).chunks.clone();
        self.rewrite(|superblock| *superblock.kv_space_mut(role) = draft)?;
        Ok(before)
    }

    /// Gives up the draft of a store.
    pub(crate) fn drop_draft(&self, role: KvRole) {
        let _update = self.inner.update.lock();
        let draft = std::mem::take(&mut self.inner.drafts.lock()[role as usize]);
        self.release(&draft.chunks);
    }

    /// Gives chunks back to data.
    pub(crate) fn release(&self, chunks: &[u32]) {
        if let Some(source) = self.source() {
            source.release(chunks);
        }
    }

    /// Empties the metadata log and the metadata KV, as for a new copy. Their chunks go back to
    /// data. Journals and KVs that were opened on them before must be gone.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn reset_metadata(&self) -> Result<()> {
        self.empty_metadata()?;
        // A disk that is no file of a host is as fast at the first write to a place.
        if self.disk().is_hosted() {
            self.fill_metadata_log()?;
        }
        Journal::begin(self.metadata_log())
    }

    /// As [`Container::reset_metadata`], for whoever keeps a journal of another form in the
    /// metadata's log: it is full of zeros afterwards, durably.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn clear_metadata(&self) -> Result<()> {
        self.empty_metadata()?;
        self.fill_metadata_log()?;
        Ok(self.disk().sync()?)
    }

    /// Begins the metadata log anew, and empties the metadata KV.
    fn empty_metadata(&self) -> Result<()> {
        self.update_superblock(|superblock| {
            superblock.metadata_log_seed = superblock.metadata_log_seed.wrapping_add(1);
        })?;
        self.empty_kv(KvRole::Metadata)
    }

    /// Empties a KV, and gives its chunks back to data.
    pub(crate) fn empty_kv(&self, role: KvRole) -> Result<()> {
        let _update = self.inner.update.lock();
        let chunks = self.superblock().kv_space(role).chunks.clone();
        self.rewrite(|superblock| *superblock.kv_space_mut(role) = KvSpace::default())?;
        self.release(&chunks);
        Ok(())
    }

    /// Writes zeros over the metadata's log. The log's space was reserved when the container was
    /// made. But for each first write to a place there, a host records that the place now holds
    /// something. A small fsync then takes 190 µs instead of 90. A host may also store written data
    /// elsewhere. After the zeros it cannot be too full for the log later.
    fn fill_metadata_log(&self) -> Result<()> {
        let (disk, log) = (self.disk(), self.metadata_log());
        let zeros = AlignedBuffer::zeroed(MIB.min(log.length) as usize);
        let mut offset = log.offset;
        while offset < log.offset + log.length {
            let part = (log.offset + log.length - offset).min(zeros.len() as u64);
            disk.write_at(offset, &zeros[..part as usize])?;
            offset += part;
        }
        Ok(())
    }

    fn source(&self) -> Option<Arc<dyn ChunkSource>> {
        self.inner.source.read().as_ref().and_then(Weak::upgrade)
    }

    /// Sets the length of a KV, and claims chunks if needed. Claimed chunks stay with the KV.
    pub(crate) fn set_kv_length(&self, role: KvRole, is_draft: bool, length: u64) -> Result<()> {
        let _update = self.inner.update.lock();
        let space = self.kv_space(role, is_draft);
        if space.length == length {
            return Ok(());
        }
        let needed = length.div_ceil(capacity_bytes(&self.inner.geometry, 1));
        if needed > KV_CHUNKS_MAX as u64 {
            return Err(Error::new(ErrorKind::NoSpace, "the key-value store is at its limit"));
        }
        let missing = (needed as usize).saturating_sub(space.chunks.len());
        let mut claimed = Vec::new();
        if let Err(error) = self.claim(missing, &mut claimed) {
            self.release(&claimed);
            return Err(error);
        }
        if is_draft {
            let draft = &mut self.inner.drafts.lock()[role as usize];
            draft.length = length;
            draft.chunks.extend_from_slice(&claimed);
            return Ok(());
        }
        // If the rewrite fails, the disk may still say that the chunks are the KV's. So they are
        // not given back to data until the next opening shows whose they are.
        self.rewrite(|superblock| {
            let space = superblock.kv_space_mut(role);
            space.length = length;
            space.chunks.extend_from_slice(&claimed);
        })
    }

    /// Keeps chunks from data while data has plenty, so that a KV's file can grow to `wanted`
    /// bytes. After a restart, keeps as many as were kept for a file of `needed` bytes. Returns how
    /// long the file can become with its own and the kept chunks, given the steps in which redb
    /// grows it.
    pub(crate) fn keep_for_kv(&self, role: KvRole, needed: u64, wanted: u64) -> u64 {
        let space = self.kv_space(role, false);
        let capacity = |chunks: usize| capacity_bytes(&self.inner.geometry, chunks as u64);
        let chunks_for = |length: u64| {
            usize::try_from(length.div_ceil(capacity(1))).unwrap_or(usize::MAX).min(KV_CHUNKS_MAX)
        };
        let Some(source) = self.source() else { return space.length };
        let missing = |chunks: usize| chunks.saturating_sub(space.chunks.len()) as u32;
        let steps = || length_steps(space.length);
        let most = missing(space.chunks.len() + self.data_chunks().len());
        let missing_for = |length: u64| {
            let chunks = steps().find(|step| *step >= length).map_or(KV_CHUNKS_MAX, chunks_for);
            missing(chunks).min(most)
        };
        let (needed, wanted) = (missing_for(needed), missing_for(wanted));
        let kept = source.keep(needed, wanted) as usize;
        let most = capacity(space.chunks.len() + kept);
        let longest = steps().take_while(|step| *step <= most).last().unwrap_or(space.length);
        // Chunks that do not suffice for one more step are of no use.
        let useful = missing(chunks_for(longest));
        source.keep(needed.min(useful), useful);
        longest
    }

    /// The length in bytes that a KV's file must be able to reach while data has plenty.
    pub(crate) fn least_for_kv(&self) -> u64 {
        self.inner.disk.len() / KEPT_PART
    }

    /// From now on keeps only the smallest reserve from data, because no store here grows any more.
    pub fn keep_for_none(&self) {
        if let Some(source) = self.source() {
            source.keep(0, 0);
        }
    }

    fn claim(&self, count: usize, claimed: &mut Vec<u32>) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let full = || Error::new(ErrorKind::NoSpace, "no free chunk for a key-value store");
        let source = self.source().ok_or_else(full)?;
        let mut candidates = self.data_chunks();
        candidates.reverse();
        for _ in 0..count {
            let chunk = source.claim(&candidates).ok_or_else(full)?;
            let at = candidates.iter().position(|&candidate| candidate == chunk);
            candidates.remove(at.expect("invariant: a source gives one of the candidates"));
            claimed.push(chunk);
            take_chunk(&*self.inner.disk, &self.inner.geometry, chunk)?;
        }
        // The superblock must not give a KV chunks that still hold old data.
        self.inner.disk.sync()?;
        Ok(())
    }
}

impl Superblock {
    pub(crate) fn kv_space(&self, role: KvRole) -> &KvSpace {
        match role {
            KvRole::Index => &self.index_kv,
            KvRole::Metadata => &self.metadata_kv,
        }
    }

    fn kv_space_mut(&mut self, role: KvRole) -> &mut KvSpace {
        match role {
            KvRole::Index => &mut self.index_kv,
            KvRole::Metadata => &mut self.metadata_kv,
        }
    }
}

/// The lengths that redb's file takes one after the other as it grows from `length` bytes. It
/// doubles up to a region of 4 GiB, and then grows by one region at a time. Each length has room
/// for the headers that redb adds to a region.
fn length_steps(length: u64) -> impl Iterator<Item = u64> {
    const REGION: u64 = 4096 * MIB;
    const HEADERS: u64 = MIB / 4;
    std::iter::successors(Some(length), |length| {
        length.checked_add((*length).clamp(MIB, REGION))?.checked_add(HEADERS)
    })
}

/// The offset of the superblock with this sequence number. Every second number has the same offset.
fn copy_offset(sequence: u64) -> u64 {
    COPY_OFFSETS[(sequence % 2) as usize]
}

fn write_copy(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let bytes = AlignedBuffer::from_slice(&superblock.encode());
    disk.write_at(copy_offset(superblock.sequence), &bytes)?;
    Ok(())
}

/// Makes a data chunk ready to belong to a KV.
fn take_chunk(disk: &dyn Disk, geometry: &Geometry, chunk: u32) -> Result<()> {
    let range = geometry.chunk_range(chunk);
    disk.reserve(range.start, range.end - range.start)?;
    clear_chunk(disk, geometry, chunk)?;
    Ok(())
}

fn data_chunks(superblock: &Superblock, geometry: &Geometry) -> Vec<u32> {
    let mut data = vec![true; geometry.chunk_count as usize];
    for &chunk in superblock.index_kv.chunks.iter().chain(&superblock.metadata_kv.chunks) {
        data[chunk as usize] = false;
    }
    (0..geometry.chunk_count).filter(|&chunk| data[chunk as usize]).collect()
}

/// Checks that no chunk is out of range or in two places, that lengths fit, and that the lists fit
/// the format.
fn check_chunks(superblock: &Superblock, geometry: &Geometry) -> Result<()> {
    let corrupt = |what: &str| Err(Error::new(ErrorKind::Corrupt, format!("superblock: {what}")));
    let mut owned = vec![false; geometry.chunk_count as usize];
    for space in [&superblock.index_kv, &superblock.metadata_kv] {
        if space.length > capacity_bytes(geometry, space.chunks.len() as u64) {
            return corrupt("a key-value store is longer than its chunks");
        }
        if space.chunks.len() > KV_CHUNKS_MAX {
            return corrupt("a key-value store has too many chunks");
        }
        for &chunk in &space.chunks {
            match owned.get_mut(chunk as usize) {
                Some(owned) if !*owned => *owned = true,
                _ => return corrupt("a chunk is out of range or owned twice"),
            }
        }
    }
    if superblock.metadata_holders.len() > METADATA_HOLDERS_MAX {
        return corrupt("too many metadata holders");
    }
    Ok(())
}

#[cfg(test)]
#[path = "container_test.rs"]
mod container_test;
