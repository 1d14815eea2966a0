//! A record of the journal: what one step must keep, in whole blocks of 4 KiB.
//!
//! Integers are little-endian. The body is in the encoding of postcard.
//!
//! ```text
//!  0  8  magic "STRAKErr"
//!  8  4  CRC32C over the whole record with this field zero
//! 12  4  version, 1
//! 16 16  cluster
//! 32  4  replica
//! 36  4  zero
//! 40  8  epoch
//! 48  8  sequence: 0 for the first record of an epoch, ascending by one
//! 56  8  synced: the records of this epoch below were durable when this one was written
//! 64  8  length in bytes, a multiple of 4096
//! 72  8  bytes of the body
//! 80     body: hard state, or none; base and snapshot in a first record; entries
//! ```

use super::Identity;
use crate::core::Hard;
use crate::entry::{Entry, Snapshot};
use crate::types::{ReplicaId, Stamp};
use serde::{Deserialize, Serialize};
use strake_env::AlignedBuffer;
use strake_proto::ClusterId;

/// Records begin and end at multiples of this.
pub(super) const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"STRAKErr";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 80;

/// What one step must keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The hard state, if it changed.
    pub(super) hard: Option<Hard>,
    /// In the first record of an epoch: the base of the log, and the snapshot.
    pub(super) whole: Option<(Stamp, Option<Snapshot>)>,
    /// Entries that replace all from the first of them on.
    pub(super) entries: Vec<Entry>,
}

/// A record's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) identity: Identity,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    pub(super) synced: u64,
    pub(super) length: usize,
    pub(super) body_bytes: usize,
}

/// The bytes of a record. Its lengths come from the record itself.
pub(super) fn encode(head: &Head, record: &Record) -> AlignedBuffer {
    let body = postcard::to_allocvec(record).expect("invariant: memory takes every record");
    let length = (HEAD_BYTES + body.len()).next_multiple_of(BLOCK_BYTES);
    let mut bytes = AlignedBuffer::zeroed(length);
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, MAGIC);
    put(12, &VERSION.to_le_bytes());
    put(16, &head.identity.cluster.0);
    put(32, &head.identity.replica.0.to_le_bytes());
    put(40, &head.epoch.to_le_bytes());
    put(48, &head.sequence.to_le_bytes());
    put(56, &head.synced.to_le_bytes());
    put(64, &(length as u64).to_le_bytes());
    put(72, &(body.len() as u64).to_le_bytes());
    put(HEAD_BYTES, &body);
    let crc = checksum(&bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The record in a body, if it is one.
pub(super) fn decode(body: &[u8]) -> Option<Record> {
    match postcard::take_from_bytes(body) {
        Ok((record, [])) => Some(record),
        _ => None,
    }
}

/// The valid record of this replica at a place: its head and its body.
pub(super) fn at(area: &[u8], at: usize, identity: Identity) -> Option<(Head, &[u8])> {
    let rest = area.get(at..)?;
    if rest.len() < BLOCK_BYTES || &rest[..8] != MAGIC || u32_at(rest, 12) != VERSION {
        return None;
    }
    let head = Head {
        identity: identity_at(rest, 16),
        epoch: u64_at(rest, 40),
        sequence: u64_at(rest, 48),
        synced: u64_at(rest, 56),
        length: usize::try_from(u64_at(rest, 64)).ok()?,
        body_bytes: usize::try_from(u64_at(rest, 72)).ok()?,
    };
    let is_plausible = head.identity == identity
        && head.length.is_multiple_of(BLOCK_BYTES)
        && (BLOCK_BYTES..=rest.len()).contains(&head.length)
        && head.body_bytes <= head.length - HEAD_BYTES;
    if !is_plausible || checksum(&rest[..head.length]) != u32_at(rest, 8) {
        return None;
    }
    Some((head, &rest[HEAD_BYTES..HEAD_BYTES + head.body_bytes]))
}

/// Whether any valid record from a place on has such a head.
pub(super) fn find(
    area: &[u8],
    from: usize,
    identity: Identity,
    is_such: impl Fn(&Head) -> bool,
) -> bool {
    let places = (from..area.len()).step_by(BLOCK_BYTES);
    places.filter_map(|place| at(area, place, identity)).any(|(head, _)| is_such(&head))
}

/// CRC32C over bytes, of which 8..12 count as zero.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..8]), &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[12..])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn identity_at(bytes: &[u8], at: usize) -> Identity {
    let cluster = ClusterId(std::array::from_fn(|index| bytes[at + index]));
    Identity { cluster, replica: ReplicaId(u32_at(bytes, at + 16)) }
}
