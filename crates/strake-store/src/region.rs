//! Parts of a container handed to their users: log rings, and the space of key-value stores.

use crate::container::Container;
use crate::superblock::KvSpace;
use std::sync::Arc;
use strake_env::Disk;

/// A ring on the disk for one [`crate::Journal`].
#[derive(Clone)]
pub struct LogRegion {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) seed: u64,
    /// Whether entries speak of data on the same disk, which must be durable before them.
    pub(crate) follows_data: bool,
    /// Whether the log was begun when the container was made: then an empty ring is a lost log.
    pub(crate) is_begun: bool,
}

/// Whose key-value store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRole {
    /// The block store's index.
    Index,
    /// The file system's metadata.
    Metadata,
}

/// Gives chunks of the data area to key-value stores that grow: the block store's allocator.
///
/// Called from [`crate::Kv::checkpoint`] and [`crate::Kv::open`], with the container's superblock
/// lock held: an implementation must neither use the store or the container's superblock methods
/// nor wait for a lock under which a checkpoint is made.
pub trait ChunkSource: Send + Sync {
    /// Takes one wholly free chunk out of the data area for good. `candidates` are all chunks that
    /// are not a KV's yet, highest first; the highest free one is best.
    fn claim(&self, candidates: &[u32]) -> Option<u32>;

    /// Keeps chunks from data for a KV that may grow: those `needed` were kept for it before a
    /// restart, those `wanted` only while data has plenty. How many are kept for it now, beside
    /// what is always kept. May be called under any lock of a store's owner.
    fn keep(&self, needed: u32, wanted: u32) -> u32;

    /// Chunks that are free again: a claim that was not used, or a KV that was dropped.
    fn release(&self, chunks: &[u32]);
}

/// The source for containers without a block store (tests, metadata alone): all is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnusedChunks;

impl UnusedChunks {
    /// The usual handle; keep it as long as the container.
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
    /// Space that is to take the place of the store's.
    pub(crate) is_draft: bool,
}

impl KvRegion {
    /// Space of its own for a store that is to take the place of this one.
    pub(crate) fn draft(&self) -> KvRegion {
        KvRegion { is_draft: true, ..self.clone() }
    }

    pub(crate) fn space(&self) -> KvSpace {
        self.container.kv_space(self.role, self.is_draft)
    }
}
