//! Reads a log ring back. It finds which chunks count, and whether any durable chunk is missing.
//!
//! 1. Find all valid chunks of this seed that lie where their position says. The same sequence may
//!    be there twice: in a tail that an earlier recovery dropped, and in its successor. The chunk
//!    with the higher incarnation is the true one.
//! 2. The newest chunk, by incarnation and sequence, names the highest *durable* sequence s. The
//!    newest chunk need not be reachable itself, because chunks written before one barrier may be
//!    lost in any order.
//! 3. Chunk s must be there. The chain goes on from s as long as the next sequence is there with an
//!    incarnation that does not go down. A lower incarnation belongs to a tail that was dropped
//!    before.
//! 4. The last chunk of the chain, k, names the first *needed* chunk. Space is used again only
//!    after a durable chunk allowed it, so all chunks from there to k must be there. If one is
//!    missing, durable chunks were damaged. The answer is then `Corrupt`, never a shorter history.
//!
//! A log that was begun with its container (`LogRegion::is_begun`) has a chunk at any time. If no
//! chunk is found, the whole log is lost; it is not empty.
//!
//! Everything found is synced before anybody relies on it. If only the process crashed, the chunks
//! may still be in the disk's volatile cache.

use super::Entries;
use super::chunk::{self, BLOCK_BYTES, Header};
use crate::region::LogRegion;
use std::collections::BTreeMap;
use strake_env::AlignedBuffer;
use strake_proto::{Error, ErrorKind, Result};

/// The ring is read in parts of this size: large enough for a disk, small enough for its caches.
const READ_BYTES: usize = 256 << 10;

/// The results of recovery.
pub(super) struct Recovered {
    /// The chunks that count, ascending without a gap. The first one is the first needed chunk.
    pub(super) chain: Vec<Header>,
    /// The entries of these chunks.
    pub(super) entries: Entries,
    /// The highest incarnation seen anywhere.
    pub(super) incarnation: u64,
}

/// Reads the log.
///
/// # Errors
/// The disk's errors. `Corrupt` if durable chunks are damaged.
pub(super) fn recover(region: &LogRegion) -> Result<Recovered> {
    let chunks = valid_chunks(region)?;
    let newest = chunks.values().max_by_key(|chunk| (chunk.incarnation, chunk.sequence)).copied();
    let Some(newest) = newest else {
        if region.is_begun {
            return Err(Error::new(ErrorKind::Corrupt, "nothing is left of the log"));
        }
        return Ok(Recovered { chain: Vec::new(), entries: Vec::new(), incarnation: 0 });
    };
    let chain = chain(&chunks, &newest, region.length)?;
    let mut entries = Vec::new();
    let longest = chain.iter().map(|header| header.length as usize).max().unwrap_or(0);
    let mut buffer = AlignedBuffer::zeroed(longest);
    for header in &chain {
        let bytes = &mut buffer[..header.length as usize];
        region.disk.read_at(region.offset + header.position % region.length, bytes)?;
        let read = chunk::read_entries(bytes, header, |lsn, entry| {
            entries.push((lsn, entry.to_vec()));
        });
        if read.is_none() || entries.last().is_some_and(|(lsn, _)| lsn.0 >= header.next_lsn) {
            return Err(damaged(header.sequence));
        }
    }
    if !entries.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err(damaged(newest.sequence));
    }
    Ok(Recovered { chain, entries, incarnation: newest.incarnation })
}

fn damaged(sequence: u64) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the log is damaged at chunk {sequence}, which was durable"),
    )
}

fn chain(
    chunks: &BTreeMap<u64, Header>,
    newest: &Header,
    region_length: u64,
) -> Result<Vec<Header>> {
    let mut last = match newest.durable {
        0 => None,
        durable => Some(*chunks.get(&durable).ok_or_else(|| damaged(durable))?),
    };
    loop {
        let (sequence, incarnation) = last.map_or((0, 0), |last| (last.sequence, last.incarnation));
        match chunks.get(&(sequence + 1)) {
            Some(next) if next.incarnation >= incarnation => last = Some(*next),
            _ => break,
        }
    }
    let Some(last) = last else {
        return Ok(Vec::new());
    };
    let chain: Vec<Header> = (last.needed..=last.sequence)
        .map(|sequence| chunks.get(&sequence).copied().ok_or_else(|| damaged(sequence)))
        .collect::<Result<_>>()?;
    check_positions(&chain, region_length)?;
    Ok(chain)
}

/// Checks that chunks follow one another and fit the ring together. The journal relies on it.
fn check_positions(chain: &[Header], region_length: u64) -> Result<()> {
    let end = |header: &Header| header.position + u64::from(header.length);
    for pair in chain.windows(2) {
        if pair[1].position < end(&pair[0]) {
            return Err(damaged(pair[1].sequence));
        }
    }
    match (chain.first(), chain.last()) {
        (Some(first), Some(last)) if end(last) - first.position > region_length => {
            Err(damaged(last.sequence))
        }
        _ => Ok(()),
    }
}

/// All valid chunks by sequence. Of two with the same sequence, the higher incarnation counts.
fn valid_chunks(region: &LogRegion) -> Result<BTreeMap<u64, Header>> {
    let mut found: BTreeMap<u64, Header> = BTreeMap::new();
    let candidates = candidates(region)?;
    let longest = candidates.iter().map(|(_, header)| header.length as usize).max().unwrap_or(0);
    let mut buffer = AlignedBuffer::zeroed(longest);
    // Blocks within a valid chunk are its entries, even if they look like chunks.
    let mut end_of_valid = 0;
    for (offset, header) in candidates {
        let end = offset + u64::from(header.length);
        if offset < end_of_valid || end > region.length {
            continue;
        }
        let bytes = &mut buffer[..header.length as usize];
        region.disk.read_at(region.offset + offset, bytes)?;
        if chunk::is_valid(bytes) {
            end_of_valid = end;
            let best = found.entry(header.sequence).or_insert(header);
            if best.incarnation < header.incarnation {
                *best = header;
            }
        }
    }
    Ok(found)
}

/// All blocks of the ring that look like the beginning of a chunk of this log.
fn candidates(region: &LogRegion) -> Result<Vec<(u64, Header)>> {
    let mut found = Vec::new();
    let mut buffer = AlignedBuffer::zeroed(READ_BYTES);
    let mut offset = 0;
    while offset < region.length {
        let length = (region.length - offset).min(READ_BYTES as u64) as usize;
        region.disk.read_at(region.offset + offset, &mut buffer[..length])?;
        for (index, block) in buffer[..length].chunks_exact(BLOCK_BYTES).enumerate() {
            let at = offset + (index * BLOCK_BYTES) as u64;
            if let Some(header) = Header::read(block)
                && header.seed == region.seed
                && header.position % region.length == at
            {
                found.push((at, header));
            }
        }
        offset += length as u64;
    }
    Ok(found)
}
