//! The superblock: the disk's identity, and the chunks of each key-value store.
//!
//! There are two copies, A at 0 and B at 64 KiB. They are written alternately: sequence n goes to
//! copy A if n is even, and to B otherwise. Each write is synced before the next one begins, so a
//! torn write can only destroy the copy that is not the newest durable one. The valid copy with the
//! higher sequence wins.
//!
//! One copy is 4096 bytes, integers little-endian:
//!
//! ```text
//!    0   8  magic "STRAKEsb"
//!    8   4  CRC32C over the 4096 bytes with this field zero
//!   12   4  format version, 1
//!   16   8  incompat flags: a reader that does not know a set bit must refuse. 1: the index may
//!           have records of strips in format 2, with patches; 2: only a manager's lease lets
//!           anybody use the disk, and its term is not 0
//!   24   8  sequence
//!   32  16  cluster id
//!   48   4  NSD id
//!   52   4  file system id
//!   56   4  failure group
//!   60   4  count of metadata holders, at most 16
//!   64   8  container length in bytes
//!   72   8  metadata generation
//!   80   8  seed of the index log
//!   88   8  seed of the metadata log
//!   96   8  length in bytes of the index KV
//!  104   8  length in bytes of the metadata KV
//!  112   4  count of chunks of the index KV, at most 256
//!  116   4  count of chunks of the metadata KV, at most 256
//!  120   8  the highest term of a manager that the disk's server was told of; 0 for none
//!  128  64  metadata holders, 16 × NSD id (4), unused ones zero
//!  192 1024 chunks of the index KV, in order, 256 × chunk index (4), unused ones zero
//! 1216 1024 chunks of the metadata KV, likewise
//! 2240     zero up to 4096
//! ```

use strake_proto::{ClusterId, Error, ErrorKind, FsId, NsdId, Result, Term};

/// The length of one copy in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The offsets of the two copies.
pub const COPY_OFFSETS: [u64; 2] = [0, 64 << 10];
/// A superblock can name this many holders, far more than the p + 1 = 4 that any code needs.
pub const METADATA_HOLDERS_MAX: usize = 16;
/// A KV can own this many chunks: a whole container up to 256 GiB, or 256 GiB of a larger one.
pub const KV_CHUNKS_MAX: usize = 256;

const MAGIC: &[u8; 8] = b"STRAKEsb";
/// The version of the container's format. Every superblock names it.
pub const FORMAT_VERSION: u32 = 1;
const FLAG_PATCHES: u64 = 1;
const FLAG_MANAGED: u64 = 2;

/// The space of one key-value store: chunks in order. The first `length` bytes of them are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpace {
    /// Bytes in use.
    pub length: u64,
    /// The store's chunks, in order.
    pub chunks: Vec<u32>,
}

/// The disk's identity, and the chunks of each key-value store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// Grows by one with every rewrite.
    pub sequence: u64,
    /// The cluster that the disk belongs to.
    pub cluster: ClusterId,
    /// The disk's own id.
    pub nsd: NsdId,
    /// The file system that the disk belongs to.
    pub fs: FsId,
    /// Disks of one group fail together.
    pub failure_group: u32,
    /// Bytes of the container when it was formatted.
    pub length: u64,
    /// The newest generation of metadata copies that this disk has heard of.
    pub metadata_generation: u64,
    /// True if the index may have records that say how one version of a strip differs from another.
    pub has_patches: bool,
    /// The highest term of a manager that the disk's server was told of. From then on only a
    /// manager's lease lets anybody use the disk. `Term(0)` for a disk that never had a manager.
    pub term: Term,
    /// The NSDs that hold the metadata of that generation.
    pub metadata_holders: Vec<NsdId>,
    /// The seed of the index log. Its records are bound to the seed, so a new seed empties the log.
    pub index_log_seed: u64,
    /// The seed of the metadata log, likewise.
    pub metadata_log_seed: u64,
    /// Space of the block store's index.
    pub index_kv: KvSpace,
    /// Space of the metadata's store.
    pub metadata_kv: KvSpace,
}

impl Superblock {
    /// The copy's bytes.
    ///
    /// # Panics
    /// If a list is longer than the format holds. [`crate::Container`] checks this before.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        assert!(self.metadata_holders.len() <= METADATA_HOLDERS_MAX, "holders must fit");
        let mut out = [0; SUPERBLOCK_BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 12, &FORMAT_VERSION.to_le_bytes());
        let patches = if self.has_patches { FLAG_PATCHES } else { 0 };
        let managed = if self.term > Term(0) { FLAG_MANAGED } else { 0 };
        let flags = patches | managed;
        put(&mut out, 16, &flags.to_le_bytes());
        put(&mut out, 24, &self.sequence.to_le_bytes());
        put(&mut out, 32, &self.cluster.0);
        put(&mut out, 48, &self.nsd.0.to_le_bytes());
        put(&mut out, 52, &self.fs.0.to_le_bytes());
        put(&mut out, 56, &self.failure_group.to_le_bytes());
        put(&mut out, 60, &(self.metadata_holders.len() as u32).to_le_bytes());
        put(&mut out, 64, &self.length.to_le_bytes());
        put(&mut out, 72, &self.metadata_generation.to_le_bytes());
        put(&mut out, 80, &self.index_log_seed.to_le_bytes());
        put(&mut out, 88, &self.metadata_log_seed.to_le_bytes());
        put(&mut out, 120, &self.term.0.to_le_bytes());
        for (index, holder) in self.metadata_holders.iter().enumerate() {
            put(&mut out, 128 + 4 * index, &holder.0.to_le_bytes());
        }
        for (which, space) in [&self.index_kv, &self.metadata_kv].into_iter().enumerate() {
            assert!(space.chunks.len() <= KV_CHUNKS_MAX, "chunks must fit");
            put(&mut out, 96 + 8 * which, &space.length.to_le_bytes());
            put(&mut out, 112 + 4 * which, &(space.chunks.len() as u32).to_le_bytes());
            for (index, chunk) in space.chunks.iter().enumerate() {
                put(&mut out, 192 + 1024 * which + 4 * index, &chunk.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(&out);
        put(&mut out, 8, &crc.to_le_bytes());
        out
    }

    /// Reads a copy. This checks only the form. [`crate::Container::open`] checks that the lists
    /// fit the container.
    ///
    /// # Errors
    /// `NotFound` without the magic. `Corrupt` if the checksum or a count is wrong. `NotSupported`
    /// for a newer format.
    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock> {
        if &bytes[..8] != MAGIC {
            return Err(Error::new(ErrorKind::NotFound, "no superblock here"));
        }
        let mut plain = *bytes;
        plain[8..12].fill(0);
        if crc32c::crc32c(&plain) != u32_at(bytes, 8) {
            return Err(Error::new(ErrorKind::Corrupt, "superblock with a wrong checksum"));
        }
        let version = u32_at(bytes, 12);
        let incompat = u64_at(bytes, 16);
        if version != FORMAT_VERSION || incompat & !(FLAG_PATCHES | FLAG_MANAGED) != 0 {
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!(
                    "container format {version} (flags {incompat:#x}) is newer than this program"
                ),
            ));
        }
        let space = |which: usize| -> Result<KvSpace> {
            let count = u32_at(bytes, 112 + 4 * which) as usize;
            let chunks = list(bytes, 192 + 1024 * which, count, KV_CHUNKS_MAX)?;
            Ok(KvSpace { length: u64_at(bytes, 96 + 8 * which), chunks })
        };
        let mut cluster = ClusterId::default();
        cluster.0.copy_from_slice(&bytes[32..48]);
        let term = Term(u64_at(bytes, 120));
        if (term > Term(0)) != (incompat & FLAG_MANAGED != 0) {
            let detail = "superblock with a manager's term and without its flag, or the reverse";
            return Err(Error::new(ErrorKind::Corrupt, detail));
        }
        let holders = list(bytes, 128, u32_at(bytes, 60) as usize, METADATA_HOLDERS_MAX)?;
        Ok(Superblock {
            sequence: u64_at(bytes, 24),
            cluster,
            nsd: NsdId(u32_at(bytes, 48)),
            fs: FsId(u32_at(bytes, 52)),
            failure_group: u32_at(bytes, 56),
            length: u64_at(bytes, 64),
            metadata_generation: u64_at(bytes, 72),
            has_patches: incompat & FLAG_PATCHES != 0,
            term,
            metadata_holders: holders.into_iter().map(NsdId).collect(),
            index_log_seed: u64_at(bytes, 80),
            metadata_log_seed: u64_at(bytes, 88),
            index_kv: space(0)?,
            metadata_kv: space(1)?,
        })
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn list(bytes: &[u8], at: usize, count: usize, limit: usize) -> Result<Vec<u32>> {
    if count > limit {
        return Err(Error::new(ErrorKind::Corrupt, "superblock with an impossible count"));
    }
    Ok((0..count).map(|index| u32_at(bytes, at + 4 * index)).collect())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}

#[cfg(test)]
#[path = "superblock_test.rs"]
mod superblock_test;
