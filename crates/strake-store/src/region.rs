//! The parts of a container that its users get: log rings, and the space of key-value stores.

use crate::container::Container;
use crate::superblock::KvSpace;
use std::io;
use std::sync::Arc;
use strake_env::Disk;
use strake_proto::Result;

/// A ring on the disk for one [`crate::Journal`].
#[derive(Clone)]
pub struct LogRegion {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) seed: u64,
    /// True if the entries refer to data on the same disk, which must be durable before them.
    pub(crate) follows_data: bool,
    /// True if the log was begun when the container was made. An empty ring is then a lost log.
    pub(crate) is_begun: bool,
}

impl LogRegion {
    /// The ring's bytes as a disk, for whoever keeps something else there than a
    /// [`crate::Journal`].
    pub fn into_disk(self) -> Arc<dyn Disk> {
        Arc::new(PartOfDisk { disk: self.disk, offset: self.offset, length: self.length })
    }
}

/// A range of a disk, as a disk.
struct PartOfDisk {
    disk: Arc<dyn Disk>,
    offset: u64,
    length: u64,
}

impl Disk for PartOfDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        self.disk.read_at(self.offset + offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        self.disk.write_at(self.offset + offset, bytes)
    }

    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        self.disk.write_and_sync(self.offset + offset, bytes)
    }

    fn is_hosted(&self) -> bool {
        self.disk.is_hosted()
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn discard(&self, offset: u64, length: u64) {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            self.disk.discard(self.offset + offset, length);
        }
    }
}

/// The owner of a key-value store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRole {
    /// The block store's index.
    Index,
    /// The file system's metadata.
    Metadata,
}

/// Gives chunks of the data area to key-value stores that grow. The block store's allocator is one.
///
/// [`crate::Kv::checkpoint`] and [`crate::Kv::open`] call it with the container's superblock lock
/// held. An implementation must not use the store or the container's superblock methods. It must
/// not wait for a lock under which a checkpoint is made.
pub trait ChunkSource: Send + Sync {
    /// Takes one wholly free chunk out of the data area for good. `candidates` are all chunks that
    /// do not belong to a KV yet, highest first. The highest free one is best.
    fn claim(&self, candidates: &[u32]) -> Option<u32>;

    /// Keeps chunks from data for a KV that may grow. The `needed` chunks were already kept before
    /// a restart. The `wanted` chunks are kept only while data has plenty. Returns how many chunks
    /// are kept for the KV now, besides those that are always kept. May be called under any lock of
    /// a store's owner.
    fn keep(&self, needed: u32, wanted: u32) -> u32;

    /// Takes back chunks that are free again, from a claim that was not used or a KV that was
    /// dropped.
    fn release(&self, chunks: &[u32]);
}

/// The source for containers without a block store (tests, metadata alone). All chunks are free.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnusedChunks;

impl UnusedChunks {
    /// The usual handle. Keep it as long as the container.
    pub fn shared() -> Arc<dyn ChunkSource> {
        Arc::new(UnusedChunks)
    }
}

impl ChunkSource for UnusedChunks {
    fn claim(&self, candidates: &[u32]) -> Option<u32> {
        candidates.first().copied()
    }

    fn keep(&self, needed: u32, wanted: u32) -> u32 {
        needed.max(wanted)
    }

    fn release(&self, _chunks: &[u32]) {}
}

/// The growable space of one key-value store.
#[derive(Clone)]
pub struct KvRegion {
    pub(crate) container: Container,
    pub(crate) role: KvRole,
    /// True if this space will replace the store's present space.
    pub(crate) is_draft: bool,
}

impl KvRegion {
    /// Empties the store. A [`crate::Kv`] that was opened on it before must be closed or gone.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn clear(&self) -> Result<()> {
        self.container.empty_kv(self.role)
    }

    /// A separate space for a store that will replace this one.
    pub(crate) fn draft(&self) -> KvRegion {
        KvRegion { is_draft: true, ..self.clone() }
    }

    pub(crate) fn space(&self) -> KvSpace {
        self.container.kv_space(self.role, self.is_draft)
    }
}
