//! A chunk: the whole 4 KiB blocks, with a header and entries, that a journal writes at once.
//!
//! Integers are little-endian. A chunk is either valid or invalid as a whole. All its entries were
//! written by one write before one barrier, so a checksum per entry could only save entries that
//! were never acknowledged.
//!
//! ```text
//!  0  8  magic "STRAKEjl"
//!  8  4  CRC32C over the whole chunk with this field zero
//! 12  4  length of the chunk in bytes, a multiple of 4096, at most 1 MiB
//! 16  8  seed of the log, from the superblock: chunks of an earlier life of the disk do not count
//! 24  8  incarnation: how often the log was opened
//! 32  8  sequence: 1 for the first chunk of the log, ascending by one
//! 40  8  position: bytes from the log's beginning as if it were no ring; modulo the ring's length
//!        it is where the chunk lies, so a chunk found elsewhere is a stray
//! 48  8  durable sequence: this chunk and all before it were durable when this one was written
//! 56  8  needed sequence: chunks before it are trimmed; at most the chunk's own sequence
//! 64  8  next LSN: all entries so far are numbered below
//! 72  4  count of entries
//! 76  4  bytes of entries
//! 80     entries: LSN (8), length (4), bytes
//! ```

use super::Lsn;
use crate::superblock::{u32_at, u64_at};
use strake_env::AlignedBuffer;

/// Chunks begin and end at multiples of this.
pub(super) const BLOCK_BYTES: usize = 4096;
/// The length of the longest chunk.
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;
/// The size of the buffer that a chunk begins with.
pub(super) const BUFFER_BYTES_MIN: usize = 4 * BLOCK_BYTES;
const HEADER_BYTES: usize = 80;
const ENTRY_HEADER_BYTES: usize = 12;
/// Counters of chunks, entries and bytes never come near this, so adding to them is safe.
const COUNT_END: u64 = 1 << 62;
const MAGIC: &[u8; 8] = b"STRAKEjl";
/// The length of the longest entry.
pub const ENTRY_BYTES_MAX: usize = CHUNK_BYTES_MAX - HEADER_BYTES - ENTRY_HEADER_BYTES;

/// A chunk's header without magic and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) length: u32,
    pub(super) seed: u64,
    pub(super) incarnation: u64,
    pub(super) sequence: u64,
    pub(super) position: u64,
    pub(super) durable: u64,
    pub(super) needed: u64,
    pub(super) next_lsn: u64,
    pub(super) entry_count: u32,
    pub(super) entry_bytes: u32,
}

impl Header {
    /// Reads a header if `block` begins with a plausible one. The checksum is verified later.
    pub(super) fn read(block: &[u8]) -> Option<Header> {
        if block.len() < BLOCK_BYTES || &block[..8] != MAGIC {
            return None;
        }
        let header = Header {
            length: u32_at(block, 12),
            seed: u64_at(block, 16),
            incarnation: u64_at(block, 24),
            sequence: u64_at(block, 32),
            position: u64_at(block, 40),
            durable: u64_at(block, 48),
            needed: u64_at(block, 56),
            next_lsn: u64_at(block, 64),
            entry_count: u32_at(block, 72),
            entry_bytes: u32_at(block, 76),
        };
        let length = header.length as usize;
        let counts = [header.incarnation, header.sequence, header.position, header.next_lsn];
        let plausible = counts.iter().all(|&count| count < COUNT_END)
            && length.is_multiple_of(BLOCK_BYTES)
            && (BLOCK_BYTES..=CHUNK_BYTES_MAX).contains(&length)
            && header.entry_bytes as usize <= length - HEADER_BYTES
            && header.durable < header.sequence
            && (1..=header.sequence).contains(&header.needed);
        plausible.then_some(header)
    }
}

/// True if a whole chunk matches its checksum.
pub(super) fn is_valid(chunk: &[u8]) -> bool {
    checksum(chunk) == u32_at(chunk, 8)
}

fn checksum(chunk: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&chunk[..8]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &chunk[12..])
}

/// Calls `entry` for each entry of a valid chunk. `None` if the entries do not fit their frame.
pub(super) fn read_entries(
    chunk: &[u8],
    header: &Header,
    mut entry: impl FnMut(Lsn, &[u8]),
) -> Option<()> {
    let mut rest = chunk.get(HEADER_BYTES..HEADER_BYTES + header.entry_bytes as usize)?;
    for _ in 0..header.entry_count {
        let (head, tail) = rest.split_at_checked(ENTRY_HEADER_BYTES)?;
        let (bytes, tail) = tail.split_at_checked(u32_at(head, 8) as usize)?;
        entry(Lsn(u64_at(head, 0)), bytes);
        rest = tail;
    }
    rest.is_empty().then_some(())
}

/// A chunk being filled.
pub(super) struct Builder {
    buffer: AlignedBuffer,
    used: usize,
    entry_count: u32,
}

impl Builder {
    /// An empty chunk in `buffer`, which has at least [`BUFFER_BYTES_MIN`] bytes with any contents.
    /// When the chunk outgrows the buffer, a larger one replaces it. Most chunks hold only a few
    /// entries.
    pub(super) fn new(buffer: AlignedBuffer) -> Builder {
        assert!(buffer.len() >= BUFFER_BYTES_MIN, "a chunk begins with a block");
        Builder { buffer, used: HEADER_BYTES, entry_count: 0 }
    }

    /// Adds an entry if there is room.
    pub(super) fn push(&mut self, lsn: u64, entry: &[u8]) -> bool {
        let end = self.used + ENTRY_HEADER_BYTES + entry.len();
        if end > CHUNK_BYTES_MAX {
            return false;
        }
        if end > self.buffer.len() {
            let larger = end.next_power_of_two().min(CHUNK_BYTES_MAX);
            let mut buffer = AlignedBuffer::zeroed(larger);
            buffer[..self.used].copy_from_slice(&self.buffer[..self.used]);
            self.buffer = buffer;
        }
        let at = self.used;
        self.buffer[at..at + 8].copy_from_slice(&lsn.to_le_bytes());
        self.buffer[at + 8..at + 12].copy_from_slice(&(entry.len() as u32).to_le_bytes());
        self.buffer[at + ENTRY_HEADER_BYTES..end].copy_from_slice(entry);
        self.used = end;
        self.entry_count += 1;
        true
    }

    /// The bytes that the chunk now takes on the disk.
    pub(super) fn length(&self) -> usize {
        self.used.next_multiple_of(BLOCK_BYTES)
    }

    /// The bytes that the chunk would take with one more entry of `bytes`, if the entry fits.
    pub(super) fn length_with(&self, bytes: usize) -> Option<usize> {
        let end = self.used + ENTRY_HEADER_BYTES + bytes;
        (end <= CHUNK_BYTES_MAX).then(|| end.next_multiple_of(BLOCK_BYTES))
    }

    /// Fills in the header. Lengths and counts come from the builder itself.
    pub(super) fn finish(&mut self, header: &Header) -> &[u8] {
        let length = self.length();
        self.buffer[self.used..length].fill(0);
        let mut put = |at: usize, bytes: &[u8]| {
            self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, MAGIC);
        put(12, &(length as u32).to_le_bytes());
        put(16, &header.seed.to_le_bytes());
        put(24, &header.incarnation.to_le_bytes());
        put(32, &header.sequence.to_le_bytes());
        put(40, &header.position.to_le_bytes());
        put(48, &header.durable.to_le_bytes());
        put(56, &header.needed.to_le_bytes());
        put(64, &header.next_lsn.to_le_bytes());
        put(72, &self.entry_count.to_le_bytes());
        put(76, &((self.used - HEADER_BYTES) as u32).to_le_bytes());
        let crc = checksum(&self.buffer[..length]);
        self.buffer[8..12].copy_from_slice(&crc.to_le_bytes());
        &self.buffer[..length]
    }

    /// The buffer, for the next chunk.
    pub(super) fn into_buffer(self) -> AlignedBuffer {
        self.buffer
    }
}

/// The bytes that an entry of `bytes` needs in a chunk of its own.
pub(super) fn length_alone(bytes: usize) -> usize {
    (HEADER_BYTES + ENTRY_HEADER_BYTES + bytes).next_multiple_of(BLOCK_BYTES)
}
