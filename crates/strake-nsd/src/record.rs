//! The values that the index stores: records of strips, tombstones, promises and grants. Also the
//! trailer that lies behind the data of a long strip.
//!
//! Integers are little-endian. Every value ends with a CRC32C of its key and all bytes before. So a
//! flipped bit or a value under the wrong key is always found.
//!
//! ```text
//! strip value
//! 0   1  format: 1; or 2 where there are patches or displaced units, or where the extents were
//!        written for another version
//! 1   1  number of versions held, newest first: 1 ..= VERSIONS_MAX
//! 2   …  versions, each:
//!        0   8  version: grant
//!        8   8  version: counter
//!        16  4  bytes of the whole block
//!        20  4  positions that may lack the version: those that the write left out, and once the
//!               stripe is settled those on which it was not stable then
//!        24  4  bytes of the strip, a multiple of 4096, > 0
//!        28  8  lsn of the journal entry that accepted it
//!        36  1  flags: 1 settled; 2 patch (format 2 only)
//!        37  1  zero
//!        38  2  number of extents, > 0; 0 in a patch, which has no checksums in the next place
//!        40  …  extents: first unit (8), units (4); together strip + trailer units
//!        …   …  CRC32C per 4 KiB of the strip (4 each), only up to INLINE_CHECKSUMS_MAX of them;
//!               for more units they stand in the trailer
//!        and in format 2 also:
//!        …  16  made: the version under which the extents were written, which seeds all
//!               checksums here and in the trailer (grant, counter); not in a patch
//!        …   2  number of runs of displaced units
//!        …   …  runs, ascending, none continues the one before: first unit in the strip (2),
//!               units (2), place: first unit on the disk (8)
//!        …   …  CRC32C of each displaced unit (4 each), in order, seeded with `made`
//! …   4  CRC32C
//!
//! A *patch* differs from the next older version in its displaced units only. It has that one's
//! lengths, and it is never the oldest. All versions together have at most DISPLACED_MAX displaced
//! units. A displaced unit is read from its place, never from the extents.
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
//! grant value, in units
//! 0   1  format (1)
//! 1   8  number of the client's last ask
//! 9   8  floor
//! 17  8  need
//! 25  8  target
//! 33  8  granted
//! 41  4  CRC32C
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
use crate::grants::{GRANT_MAX, Grant};
use std::borrow::Cow;
use strake_proto::limits::{PAYLOAD_BYTES_MAX, UNIT_BYTES};
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, GrantNumber, StripKey, Version};
use strake_store::Lsn;

/// A strip of more units than this (64 KiB) keeps its checksums in a trailer. So the record of a
/// large strip stays small (an index has one record per MiB), and a small strip needs no trailer.
pub const INLINE_CHECKSUMS_MAX: usize = 16;
/// At most this many versions are held: the current one and kept ones. Writers settle a stripe with
/// the next commit, so two kept versions are usual. `rules.rs` says which version goes if there are
/// more.
pub const VERSIONS_MAX: usize = 5;
/// All versions of a strip together have at most this many displaced units (4 MiB). They make a
/// record at most 16 KiB longer.
pub const DISPLACED_MAX: usize = 1024;
/// Bytes before the first checksum of a trailer.
pub const TRAILER_HEADER_BYTES: usize = 64;

const FORMAT: u8 = 1;
/// The format of strip values with patches.
const FORMAT_PATCHED: u8 = 2;
/// This byte takes the place of the format if a strip was given up.
const GIVEN_UP: u8 = 0xff;
const FORMAT_UNKNOWN: &str = "unknown format";
const LOST: &str = "strip: given up when its disk was opened, for its record was damaged";
const TRAILER_MAGIC: &[u8; 4] = b"STTR";
const FLAG_SETTLED: u8 = 1;
const FLAG_PATCH: u8 = 2;

/// A stored value is not what was written. The text says what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

/// The place of a strip's checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The record holds the checksums.
    Inline(Vec<u32>),
    /// The units behind the strip hold the checksums.
    Trailer,
}

/// A unit of a strip that lies in a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The unit's index within the strip.
    pub unit: u32,
    /// The unit of the disk that holds it.
    pub place: u64,
    /// The unit's checksum, seeded like the others of the strip: see [`Whole::made`].
    pub checksum: u32,
}

impl Displaced {
    /// The unit's place. Neighbours may lie in different chunks of the disk, so each unit has its
    /// own.
    pub fn extent(&self) -> Extent {
        Extent { start: self.place, count: 1 }
    }

    /// True if `next` continues this unit, both in the strip and on the disk.
    pub fn is_continued_by(&self, next: &Displaced) -> bool {
        next.unit == self.unit + 1 && next.place == self.place + 1
    }
}

/// The part of a version that a patch lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The version that seeds the checksums, here and in the trailer. The extents were written
    /// under this version.
    pub made: Version,
    /// The units of the strip and those of its trailer, in order.
    pub extents: Vec<Extent>,
    /// The checksums, or the fact that they are in the trailer.
    pub checksums: Checksums,
}

/// One version of a strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripVersion {
    /// Version and shape.
    pub header: StripHeader,
    /// Bytes on disk, a multiple of 4 KiB.
    pub strip_bytes: u32,
    /// The journal entry that accepted the version. Before that entry is durable, nobody is told
    /// that the version is stable.
    pub accepted: Lsn,
    /// True if the version's stripe is known to be stable everywhere.
    pub settled: bool,
    /// `None` for a patch. All but its displaced units are those of the next older version.
    pub whole: Option<Whole>,
    /// The displaced units, ascending.
    pub displaced: Vec<Displaced>,
}

impl StripVersion {
    /// The version itself.
    pub fn version(&self) -> Version {
        self.header.version
    }

    /// True if this version only says how it differs from the next older one.
    pub fn is_patch(&self) -> bool {
        self.whole.is_none()
    }

    /// Every extent that only this version names.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let whole = self.whole.iter().flat_map(|whole| whole.extents.iter().copied());
        whole.chain(self.displaced.iter().map(Displaced::extent))
    }
}

/// All parts of a version, including those it shares with older versions.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The version.
    pub held: &'a StripVersion,
    /// The place of its units that are not displaced.
    pub whole: &'a Whole,
    /// The displaced units, ascending.
    pub displaced: Cow<'a, [Displaced]>,
}

/// The versions held of one strip, newest first. There is at least one. The oldest is no patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripRecord {
    /// The versions, strictly descending.
    pub versions: Vec<StripVersion>,
}

impl StripRecord {
    /// The newest version.
    pub fn current(&self) -> &StripVersion {
        self.versions.first().expect("invariant: a record holds a version")
    }

    /// The oldest version.
    pub fn oldest(&self) -> &StripVersion {
        self.versions.last().expect("invariant: a record holds a version")
    }

    /// The given version, or the newest for `None`.
    pub fn version(&self, version: Option<Version>) -> Option<&StripVersion> {
        match version {
            None => self.versions.first(),
            Some(version) => self.versions.iter().find(|held| held.version() == version),
        }
    }

    /// All parts of the given version, or of the newest for `None`.
    pub fn view(&self, version: Option<Version>) -> Option<View<'_>> {
        let asked = |held: &StripVersion| version.is_none_or(|version| held.version() == version);
        let mut versions = self.versions.iter().skip_while(|held| !asked(held));
        let held = versions.next()?;
        let mut displaced = Cow::Borrowed(held.displaced.as_slice());
        let mut below = held;
        loop {
            if let Some(whole) = &below.whole {
                return Some(View { held, whole, displaced });
            }
            below = versions.next().expect("invariant: the oldest version is no patch");
            if !below.displaced.is_empty() {
                displaced = Cow::Owned(overlay(&displaced, &below.displaced).0);
            }
        }
    }

    /// The number of displaced units of all versions together.
    pub fn displaced_units(&self) -> usize {
        self.versions.iter().map(|held| held.displaced.len()).sum()
    }

    /// Every extent of every version.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.versions.iter().flat_map(StripVersion::extents)
    }

    /// True if only the newer format can express the record.
    pub fn is_patched(&self) -> bool {
        self.versions.iter().any(|held| {
            let made = held.whole.as_ref().map(|whole| whole.made);
            made != Some(held.version()) || !held.displaced.is_empty()
        })
    }
}

/// Lays displaced units over those of an older version, both ascending. Returns the units that
/// show, and the older ones that are hidden.
pub fn overlay(newer: &[Displaced], older: &[Displaced]) -> (Vec<Displaced>, Vec<Displaced>) {
    let (mut shown, mut hidden) = (newer.to_vec(), Vec::new());
    for one in older {
        match newer.binary_search_by_key(&one.unit, |newer| newer.unit) {
            Ok(_) => hidden.push(*one),
            Err(_) => shown.push(*one),
        }
    }
    shown.sort_unstable_by_key(|one| one.unit);
    (shown, hidden)
}

/// Units of the trailer of a strip of `strip_bytes`. 0 if the record holds the checksums.
pub fn trailer_units(strip_bytes: u32) -> u32 {
    let checksums = strip_bytes as usize / UNIT_BYTES;
    if checksums <= INLINE_CHECKSUMS_MAX {
        return 0;
    }
    (TRAILER_HEADER_BYTES + 4 * checksums).div_ceil(UNIT_BYTES) as u32
}

/// Units that a strip of `strip_bytes` takes, trailer included.
pub fn strip_units(strip_bytes: u32) -> u32 {
    strip_bytes / UNIT_BYTES as u32 + trailer_units(strip_bytes)
}

/// The value of a strip record. `key` is the encoded key.
pub fn encode_strip(key: &[u8], record: &StripRecord) -> Vec<u8> {
    let count = record.versions.len();
    assert!((1..=VERSIONS_MAX).contains(&count), "a record holds 1 to {VERSIONS_MAX} versions");
    let format = if record.is_patched() { FORMAT_PATCHED } else { FORMAT };
    let mut bytes = vec![format, count as u8];
    for held in &record.versions {
        put_version(&mut bytes, held.version());
        bytes.extend_from_slice(&held.header.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&held.header.lacks.to_le_bytes());
        bytes.extend_from_slice(&held.strip_bytes.to_le_bytes());
        bytes.extend_from_slice(&held.accepted.0.to_le_bytes());
        let settled = if held.settled { FLAG_SETTLED } else { 0 };
        let patch = if held.is_patch() { FLAG_PATCH } else { 0 };
        bytes.extend_from_slice(&[settled | patch, 0]);
        put_whole(&mut bytes, held.whole.as_ref());
        if format == FORMAT_PATCHED {
            if let Some(whole) = &held.whole {
                put_version(&mut bytes, whole.made);
            }
            put_displaced(&mut bytes, &held.displaced);
        }
    }
    seal(key, bytes)
}

fn put_whole(bytes: &mut Vec<u8>, whole: Option<&Whole>) {
    let extents = whole.map_or(&[][..], |whole| &whole.extents);
    let count = u16::try_from(extents.len()).expect("invariant: at most 4,101 units");
    bytes.extend_from_slice(&count.to_le_bytes());
    for extent in extents {
        bytes.extend_from_slice(&extent.start.to_le_bytes());
        bytes.extend_from_slice(&extent.count.to_le_bytes());
    }
    if let Some(Whole { checksums: Checksums::Inline(checksums), .. }) = whole {
        for checksum in checksums {
            bytes.extend_from_slice(&checksum.to_le_bytes());
        }
    }
}

fn put_displaced(bytes: &mut Vec<u8>, displaced: &[Displaced]) {
    let runs: Vec<_> = displaced.chunk_by(Displaced::is_continued_by).collect();
    bytes.extend_from_slice(&(runs.len() as u16).to_le_bytes());
    for run in runs {
        let unit = u16::try_from(run[0].unit).expect("invariant: a strip has at most 4,096 units");
        bytes.extend_from_slice(&unit.to_le_bytes());
        bytes.extend_from_slice(&(run.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&run[0].place.to_le_bytes());
    }
    for one in displaced {
        bytes.extend_from_slice(&one.checksum.to_le_bytes());
    }
}

/// The value of a strip whose record was damaged. It always reads as [`Damaged`].
pub fn encode_given_up(key: &[u8]) -> Vec<u8> {
    seal(key, vec![GIVEN_UP])
}

/// Reads a strip record.
///
/// # Errors
/// [`Damaged`] for anything that [`encode_strip`] would not have written under `key`.
pub fn decode_strip(key: &[u8], value: &[u8]) -> Result<StripRecord, Damaged> {
    let (mut reader, format) = match unseal(key, value)? {
        (reader, format @ (FORMAT | FORMAT_PATCHED)) => (reader, format),
        (_, GIVEN_UP) => return Err(Damaged(LOST)),
        _ => return Err(Damaged(FORMAT_UNKNOWN)),
    };
    let count = reader.u8()? as usize;
    if !(1..=VERSIONS_MAX).contains(&count) {
        return Err(Damaged("number of versions"));
    }
    let mut versions: Vec<StripVersion> = Vec::with_capacity(count);
    for _ in 0..count {
        let held = decode_version(&mut reader, format)?;
        if let Some(newer) = versions.last() {
            if newer.version() <= held.version() {
                return Err(Damaged("versions out of order"));
            }
            let lengths = |one: &StripVersion| (one.strip_bytes, one.header.block_bytes);
            if newer.is_patch() && lengths(newer) != lengths(&held) {
                return Err(Damaged("a patch of another length"));
            }
        }
        versions.push(held);
    }
    reader.end()?;
    let record = StripRecord { versions };
    if record.oldest().is_patch() {
        return Err(Damaged("a patch of nothing"));
    }
    if record.displaced_units() > DISPLACED_MAX {
        return Err(Damaged("number of displaced units"));
    }
    // Each meaning has exactly one form.
    if record.is_patched() != (format == FORMAT_PATCHED) {
        return Err(Damaged("the newer format without a reason"));
    }
    Ok(record)
}

fn decode_version(reader: &mut Reader<'_>, format: u8) -> Result<StripVersion, Damaged> {
    let version = reader.version()?;
    let block_bytes = reader.u32()?;
    let lacks = reader.u32()?;
    let strip_bytes = reader.u32()?;
    let accepted = Lsn(reader.u64()?);
    let flags = reader.u8()?;
    let known = if format == FORMAT_PATCHED { FLAG_SETTLED | FLAG_PATCH } else { FLAG_SETTLED };
    if flags & !known != 0 || reader.u8()? != 0 {
        return Err(Damaged("unknown flags"));
    }
    if !strip_bytes_are_valid(strip_bytes as usize) {
        return Err(Damaged("strip length"));
    }
    let is_patch = flags & FLAG_PATCH != 0;
    let mut whole = decode_whole(reader, version, strip_bytes, is_patch)?;
    let mut displaced = Vec::new();
    if format == FORMAT_PATCHED {
        if let Some(whole) = &mut whole {
            whole.made = reader.version()?;
        }
        displaced = decode_displaced(reader, strip_bytes)?;
    }
    let header = StripHeader { version, block_bytes, lacks };
    let settled = flags & FLAG_SETTLED != 0;
    Ok(StripVersion { header, strip_bytes, accepted, settled, whole, displaced })
}

/// Reads extents and checksums. For a patch, checks that it has none.
fn decode_whole(
    reader: &mut Reader<'_>,
    made: Version,
    strip_bytes: u32,
    is_patch: bool,
) -> Result<Option<Whole>, Damaged> {
    let count = reader.u16()?;
    if is_patch {
        return if count == 0 { Ok(None) } else { Err(Damaged("a patch with extents")) };
    }
    // The count is checked against the bytes that are there before memory is reserved.
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
    Ok(Some(Whole { made, extents, checksums }))
}

fn decode_displaced(reader: &mut Reader<'_>, strip_bytes: u32) -> Result<Vec<Displaced>, Damaged> {
    let strip_units = strip_bytes / UNIT_BYTES as u32;
    let mut displaced: Vec<Displaced> = Vec::new();
    for _ in 0..reader.u16()? {
        let (first, count) = (u32::from(reader.u16()?), u32::from(reader.u16()?));
        let place = reader.u64()?;
        let lies_within = first + count <= strip_units
            && place.checked_add(u64::from(count)).is_some()
            && displaced.len() + count as usize <= DISPLACED_MAX;
        if count == 0 || !lies_within {
            return Err(Damaged("run of displaced units"));
        }
        let run = (0..count).map(|at| Displaced {
            unit: first + at,
            place: place + u64::from(at),
            checksum: 0,
        });
        let last = displaced.last().copied();
        displaced.extend(run);
        let begin = &displaced[displaced.len() - count as usize];
        if last.is_some_and(|last| last.unit >= first || last.is_continued_by(begin)) {
            return Err(Damaged("runs of displaced units out of order"));
        }
    }
    for one in &mut displaced {
        one.checksum = reader.u32()?;
    }
    Ok(displaced)
}

/// True if a strip may have this many bytes.
pub fn strip_bytes_are_valid(bytes: usize) -> bool {
    bytes > 0 && bytes <= PAYLOAD_BYTES_MAX && bytes.is_multiple_of(UNIT_BYTES)
}

/// A tombstone without its end. The end is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The first block it covers.
    pub from: BlockIndex,
    /// Versions up to this one are gone and refused.
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
/// [`Damaged`] if the value is not a tombstone written under `key`.
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
/// [`Damaged`] if the value is not a promise written under `key`.
pub fn decode_promise(key: &[u8], value: &[u8]) -> Result<Version, Damaged> {
    let mut reader = open(key, value)?;
    let version = reader.version()?;
    reader.end()?;
    Ok(version)
}

/// The value of a grant of space, without what is flying.
pub fn encode_grant(key: &[u8], grant: &Grant) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    for field in [grant.number, grant.floor, grant.need, grant.target, grant.granted] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    seal(key, bytes)
}

/// Reads a grant.
///
/// # Errors
/// [`Damaged`] if the value is not a grant written under `key`.
pub fn decode_grant(key: &[u8], value: &[u8]) -> Result<Grant, Damaged> {
    let mut reader = open(key, value)?;
    let (number, floor, need) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (target, granted) = (reader.u64()?, reader.u64()?);
    reader.end()?;
    if granted > target || floor > need || target > GRANT_MAX || need > GRANT_MAX {
        return Err(Damaged("grant of space"));
    }
    Ok(Grant { number, floor, need, target, granted, flying: 0 })
}

/// The bytes of a strip's trailer, in whole units.
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

/// Reads the checksums from the trailer of `key` at `version`. The strip has `strip_bytes`.
///
/// # Errors
/// [`Damaged`], even for an intact trailer of another strip or version.
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
    // Everything else in the trailer is known, so the right header can be made and compared.
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

/// Checks the CRC and the format of a value. Returns a reader placed behind the format.
fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<Reader<'a>, Damaged> {
    match unseal(key, value)? {
        (reader, FORMAT) => Ok(reader),
        _ => Err(Damaged(FORMAT_UNKNOWN)),
    }
}

/// Checks the CRC of a value. Returns its format and a reader placed behind it.
fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Result<(Reader<'a>, u8), Damaged> {
    let (bytes, crc) = value.split_last_chunk::<4>().ok_or(Damaged("short value"))?;
    if crc32c::crc32c_append(crc32c::crc32c(key), bytes) != u32::from_le_bytes(*crc) {
        return Err(Damaged("checksum"));
    }
    let mut reader = Reader { bytes };
    let format = reader.u8()?;
    Ok((reader, format))
}

/// Takes fields off the front, never beyond the end.
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
