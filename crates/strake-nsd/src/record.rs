//! What the index stores: the record of a strip, of a tombstone, of a promise; and the trailer
//! that lies behind the data of a long strip.
//!
//! Integers are little-endian. Every value ends with a CRC32C of its key and all bytes before. So
//! neither a flipped bit nor a value under the wrong key passes.
//!
//! ```text
//! strip value
//! 0   1  format (1)
//! 1   1  number of versions held, newest first: 1 ..= VERSIONS_MAX
//! 2   …  versions, each:
//!        0   8  version: grant
//!        8   8  version: counter
//!        16  4  bytes of the whole block
//!        20  4  skipped positions
//!        24  4  bytes of the strip, a multiple of 4096, > 0
//!        28  8  lsn of the journal entry that accepted it
//!        36  1  flags: 1 settled
//!        37  1  zero
//!        38  2  number of extents, > 0
//!        40  …  extents: first unit (8), units (4); together strip + trailer units
//!        …   …  CRC32C per 4 KiB of the strip (4 each), only up to INLINE_CHECKSUMS_MAX of them;
//!               for more units they stand in the trailer
//! …   4  CRC32C
//!
//! strip value that was given up: damage found at a start, kept so that the strip is never taken
//! for one that was not written; until it is written anew or deleted
//! 0   1  255
//! 1   4  CRC32C
//!
//! tombstone value                              promise value
//! 0   1  format (1)                            0   1  format (1)
//! 1   8  first block                           1  16  version up to which it refuses
//! 9  16  version                               17  4  CRC32C
//! 25  4  CRC32C
//!
//! trailer: whole units directly behind the last unit of the strip
//! 0   4  magic "STTR"
//! 4   2  format (1)
//! 6   2  zero
//! 8   4  number of checksums: strip bytes / 4096
//! 12  4  CRC32C of the trailer's bytes up to the last checksum, this field taken as zero
//! 16  4  file system id
//! 20  4  strip index
//! 24  8  object id
//! 32  8  block index
//! 40  8  version: grant
//! 48  8  version: counter
//! 56  8  zero
//! 64  …  checksums, 4 bytes each; zeros to the end of the unit
//! ```

use crate::extent::{Extent, units_of};
use strake_proto::limits::{PAYLOAD_BYTES_MAX, UNIT_BYTES};
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, GrantNumber, StripKey, Version};
use strake_store::Lsn;

/// A strip of more units than this (64 KiB) keeps its checksums in a trailer. So the record of a
/// large strip stays small (an index of one record per MiB), and a small strip needs no trailer.
pub const INLINE_CHECKSUMS_MAX: usize = 16;
/// At most this many versions are held: the current one and those kept. Writers settle a stripe
/// with the next commit, so two kept ones are usual. `rules.rs` says which one goes if there are
/// more.
pub const VERSIONS_MAX: usize = 5;
/// Bytes before the first checksum of a trailer.
pub const TRAILER_HEADER_BYTES: usize = 64;

const FORMAT: u8 = 1;
/// This byte stands in the place of the format if a strip was given up.
const GIVEN_UP: u8 = 0xff;
const FORMAT_UNKNOWN: &str = "unknown format";
const LOST: &str = "strip: given up when its disk was opened, for its record was damaged";
const TRAILER_MAGIC: &[u8; 4] = b"STTR";
const FLAG_SETTLED: u8 = 1;

/// A stored value is not what was written; the text says what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

/// The place of a strip's checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// In the record.
    Inline(Vec<u32>),
    /// In the units behind the strip.
    Trailer,
}

/// One version of a strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripVersion {
    /// Version and shape.
    pub header: StripHeader,
    /// Bytes on disk, a multiple of 4 KiB.
    pub strip_bytes: u32,
    /// The journal entry that accepted it. Before that entry is durable, nobody was told that the
    /// version is stable.
    pub accepted: Lsn,
    /// Whether its stripe is known to be stable everywhere.
    pub settled: bool,
    /// Its units and those of its trailer, in order.
    pub extents: Vec<Extent>,
    /// Its checksums, or that they are in the trailer.
    pub checksums: Checksums,
}

impl StripVersion {
    /// Its version.
    pub fn version(&self) -> Version {
        self.header.version
    }
}

/// The versions held of one strip, newest first. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripRecord {
    /// Strictly descending.
    pub versions: Vec<StripVersion>,
}

impl StripRecord {
    /// The newest.
    pub fn current(&self) -> &StripVersion {
        self.versions.first().expect("invariant: a record holds a version")
    }

    /// The version asked for, or the newest for `None`.
    pub fn version(&self, version: Option<Version>) -> Option<&StripVersion> {
        match version {
            None => self.versions.first(),
            Some(version) => self.versions.iter().find(|held| held.version() == version),
        }
    }

    /// Every extent of every version.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.versions.iter().flat_map(|version| version.extents.iter().copied())
    }
}

/// Units of the trailer of a strip of that many bytes; 0 if its checksums are in the record.
pub fn trailer_units(strip_bytes: u32) -> u32 {
    let checksums = strip_bytes as usize / UNIT_BYTES;
    if checksums <= INLINE_CHECKSUMS_MAX {
        return 0;
    }
    (TRAILER_HEADER_BYTES + 4 * checksums).div_ceil(UNIT_BYTES) as u32
}

/// Units that a strip of that many bytes takes, trailer included.
pub fn strip_units(strip_bytes: u32) -> u32 {
    strip_bytes / UNIT_BYTES as u32 + trailer_units(strip_bytes)
}

/// The value of a strip record under `key`, the encoded key.
pub fn encode_strip(key: &[u8], record: &StripRecord) -> Vec<u8> {
    let count = record.versions.len();
    assert!((1..=VERSIONS_MAX).contains(&count), "a record holds 1 to {VERSIONS_MAX} versions");
    let mut bytes = vec![FORMAT, count as u8];
    for held in &record.versions {
        put_version(&mut bytes, held.version());
        bytes.extend_from_slice(&held.header.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&held.header.skipped.to_le_bytes());
        bytes.extend_from_slice(&held.strip_bytes.to_le_bytes());
        bytes.extend_from_slice(&held.accepted.0.to_le_bytes());
        bytes.extend_from_slice(&[if held.settled { FLAG_SETTLED } else { 0 }, 0]);
        let extents = u16::try_from(held.extents.len()).expect("invariant: at most 4,101 units");
        bytes.extend_from_slice(&extents.to_le_bytes());
        for extent in &held.extents {
            bytes.extend_from_slice(&extent.start.to_le_bytes());
            bytes.extend_from_slice(&extent.count.to_le_bytes());
        }
        if let Checksums::Inline(checksums) = &held.checksums {
            for checksum in checksums {
                bytes.extend_from_slice(&checksum.to_le_bytes());
            }
        }
    }
    seal(key, bytes)
}

/// The value of a strip whose record was damaged: it reads as [`Damaged`] for ever.
pub fn encode_given_up(key: &[u8]) -> Vec<u8> {
    seal(key, vec![GIVEN_UP])
}

/// Reads a strip record.
///
/// # Errors
/// [`Damaged`] for anything that [`encode_strip`] would not have written under `key`.
pub fn decode_strip(key: &[u8], value: &[u8]) -> Result<StripRecord, Damaged> {
    let mut reader = match open(key, value) {
        Err(Damaged(FORMAT_UNKNOWN)) if value[0] == GIVEN_UP => return Err(Damaged(LOST)),
        other => other?,
    };
    let count = reader.u8()? as usize;
    if !(1..=VERSIONS_MAX).contains(&count) {
        return Err(Damaged("number of versions"));
    }
    let mut versions: Vec<StripVersion> = Vec::with_capacity(count);
    for _ in 0..count {
        let held = decode_version(&mut reader)?;
        if versions.last().is_some_and(|newer| newer.version() <= held.version()) {
            return Err(Damaged("versions out of order"));
        }
        versions.push(held);
    }
    reader.end()?;
    Ok(StripRecord { versions })
}

fn decode_version(reader: &mut Reader<'_>) -> Result<StripVersion, Damaged> {
    let version = reader.version()?;
    let block_bytes = reader.u32()?;
    let skipped = reader.u32()?;
    let strip_bytes = reader.u32()?;
    let accepted = Lsn(reader.u64()?);
    let flags = reader.u8()?;
    if flags & !FLAG_SETTLED != 0 || reader.u8()? != 0 {
        return Err(Damaged("unknown flags"));
    }
    if !strip_bytes_are_valid(strip_bytes as usize) {
        return Err(Damaged("strip length"));
    }
    let count = reader.u16()?;
    // Bounded by the bytes that are there before anything is reserved for them.
    if usize::from(count) * 12 > reader.bytes.len() {
        return Err(Damaged("number of extents"));
    }
    let mut extents = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let extent = Extent { start: reader.u64()?, count: reader.u32()? };
        if extent.count == 0 || extent.start.checked_add(u64::from(extent.count)).is_none() {
            return Err(Damaged("extent"));
        }
        extents.push(extent);
    }
    if units_of(&extents) != u64::from(strip_units(strip_bytes)) {
        return Err(Damaged("extents do not add up to the strip"));
    }
    let checksums = if trailer_units(strip_bytes) > 0 {
        Checksums::Trailer
    } else {
        let units = strip_bytes as usize / UNIT_BYTES;
        Checksums::Inline((0..units).map(|_| reader.u32()).collect::<Result<_, _>>()?)
    };
    let header = StripHeader { version, block_bytes, skipped };
    let settled = flags & FLAG_SETTLED != 0;
    Ok(StripVersion { header, strip_bytes, accepted, settled, extents, checksums })
}

/// Whether a strip may have that many bytes.
pub fn strip_bytes_are_valid(bytes: usize) -> bool {
    bytes > 0 && bytes <= PAYLOAD_BYTES_MAX && bytes.is_multiple_of(UNIT_BYTES)
}

/// A tombstone without its end, which is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The first block it covers.
    pub from: BlockIndex,
    /// Versions up to this are gone and refused.
    pub version: Version,
}

/// The value of a tombstone.
pub fn encode_tombstone(key: &[u8], tombstone: Tombstone) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend_from_slice(&tombstone.from.0.to_le_bytes());
    put_version(&mut bytes, tombstone.version);
    seal(key, bytes)
}

/// Reads a tombstone.
///
/// # Errors
/// [`Damaged`].
pub fn decode_tombstone(key: &[u8], value: &[u8]) -> Result<Tombstone, Damaged> {
    let mut reader = open(key, value)?;
    let from = BlockIndex(reader.u64()?);
    let tombstone = Tombstone { from, version: reader.version()? };
    reader.end()?;
    Ok(tombstone)
}

/// The value of a promise to refuse everything up to `version`.
pub fn encode_promise(key: &[u8], version: Version) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    put_version(&mut bytes, version);
    seal(key, bytes)
}

/// Reads a promise.
///
/// # Errors
/// [`Damaged`].
pub fn decode_promise(key: &[u8], value: &[u8]) -> Result<Version, Damaged> {
    let mut reader = open(key, value)?;
    let version = reader.version()?;
    reader.end()?;
    Ok(version)
}

/// The trailer of a strip, whole units long.
pub fn encode_trailer(key: &StripKey, version: Version, checksums: &[u32]) -> Vec<u8> {
    let length = TRAILER_HEADER_BYTES + 4 * checksums.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(UNIT_BYTES));
    let count = u32::try_from(checksums.len()).expect("invariant: a strip has at most 4,096 units");
    bytes.extend_from_slice(TRAILER_MAGIC);
    bytes.extend_from_slice(&u16::from(FORMAT).to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&key.fs.0.to_le_bytes());
    bytes.extend_from_slice(&u32::from(key.strip.0).to_le_bytes());
    bytes.extend_from_slice(&key.object.0.to_le_bytes());
    bytes.extend_from_slice(&key.block.0.to_le_bytes());
    put_version(&mut bytes, version);
    bytes.extend_from_slice(&[0; 8]);
    for checksum in checksums {
        bytes.extend_from_slice(&checksum.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(length.next_multiple_of(UNIT_BYTES), 0);
    bytes
}

/// Reads the checksums from the trailer of `key` at `version`, whose strip has `strip_bytes`.
///
/// # Errors
/// [`Damaged`]; also if it is the intact trailer of another strip or version.
pub fn decode_trailer(
    key: &StripKey,
    version: Version,
    strip_bytes: u32,
    bytes: &[u8],
) -> Result<Vec<u32>, Damaged> {
    let count = strip_bytes as usize / UNIT_BYTES;
    let length = TRAILER_HEADER_BYTES + 4 * count;
    let bytes = bytes.get(..length).ok_or(Damaged("short trailer"))?;
    let (header, checksums) = bytes.split_at(TRAILER_HEADER_BYTES);
    let checksums: Vec<u32> = checksums
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("invariant: chunks of four")))
        .collect();
    // Everything else in it is known, so the one right header can be made and compared.
    let right = encode_trailer(key, version, &checksums);
    if header != &right[..TRAILER_HEADER_BYTES] {
        return Err(Damaged("trailer"));
    }
    Ok(checksums)
}

fn put_version(bytes: &mut Vec<u8>, version: Version) {
    bytes.extend_from_slice(&version.grant.0.to_le_bytes());
    bytes.extend_from_slice(&version.counter.to_le_bytes());
}

fn seal(key: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks the CRC and format of a value; the reader stands behind the format.
fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<Reader<'a>, Damaged> {
    let (bytes, crc) = value.split_last_chunk::<4>().ok_or(Damaged("short value"))?;
    if crc32c::crc32c_append(crc32c::crc32c(key), bytes) != u32::from_le_bytes(*crc) {
        return Err(Damaged("checksum"));
    }
    let mut reader = Reader { bytes };
    match reader.u8()? {
        FORMAT => Ok(reader),
        _ => Err(Damaged(FORMAT_UNKNOWN)),
    }
}

/// Takes fields off the front; never beyond the end.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (field, rest) = self.bytes.split_first_chunk::<N>().ok_or(Damaged("short value"))?;
        self.bytes = rest;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8, Damaged> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Result<u16, Damaged> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_le_bytes)
    }

    fn version(&mut self) -> Result<Version, Damaged> {
        Ok(Version { grant: GrantNumber(self.u64()?), counter: self.u64()? })
    }

    fn end(&self) -> Result<(), Damaged> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Damaged("bytes behind the end")) }
    }
}

#[cfg(test)]
#[path = "record_test.rs"]
mod record_test;
