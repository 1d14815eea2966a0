//! The file that keeps a cluster's records on a node. The leader's copy counts; other nodes keep
//! what the leader told them last, so that they know their NSDs and the leader's address when they
//! start.
//!
//! ```text
//! bytes 0..8    magic "STRKCLUS"
//! bytes 8..12   version, little-endian: 4, 5, 6 or 7
//! bytes 12..16  length of the body, little-endian
//! bytes 16..20  CRC32C of bytes 8..16 and the body, little-endian
//! bytes 20..    the body: [`Cluster`] in postcard
//! ```
//!
//! Version 7 is of clusters in which several nodes issue certificates. Version 6 lacks these nodes
//! at the end, and is written where the keeper alone does. Version 5 lacks NSDs that several nodes
//! reach as well: there are none. Version 4 is of clusters of the first feature level. It lacks the
//! level as well, so that programs of that level read it.
//!
//! A node of the quorum that has a file of version 3 or later also has a journal of the records'
//! log; the file is what it knows before the log speaks. Version 3 also lacks the logs of metadata
//! before the level: there are none. Version 2 is of clusters without a log. It lacks the
//! generation before them as well, which is 0.
//!
//! The file is replaced as a whole: written beside, synced, renamed. After a crash either the old
//! or the new one is there.

use super::records::Cluster;
use std::path::Path;
use strake_proto::{Error, ErrorKind, FeatureLevel, Result};

const MAGIC: &[u8; 8] = b"STRKCLUS";
const VERSION: u32 = 7;
/// Of a cluster in which one node issues certificates.
const WITHOUT_ISSUERS: u32 = 6;
/// Of a cluster in which each NSD has one server.
const WITHOUT_SHARED: u32 = 5;
/// Of a cluster of the first feature level.
const WITHOUT_LEVEL: u32 = 4;
/// Of a cluster in which no metadata ever went on without a majority.
const WITHOUT_METADATA_LOGS: u32 = 3;
/// Of a cluster whose first node kept the records alone.
const WITHOUT_LOG: u32 = 2;
const HEAD_BYTES: usize = 20;
/// The longest file that is read. A cluster of thousands of nodes stays far below.
const FILE_BYTES_MAX: u64 = 64 << 20;

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the cluster's records: {what}"))
}

fn sum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// The most bytes that [`spared_bytes`] says.
pub(super) const SPARED_BYTES_MAX: usize = 3;

/// The bytes at the end that records are kept without: that of further issuers if there are none,
/// before it that of NSDs which several nodes reach if there are none, and before that the level if
/// it is the first one.
pub(super) fn spared_bytes(cluster: &Cluster) -> usize {
    let parts = [cluster.has_issuers(), cluster.has_shared(), cluster.level > FeatureLevel::FIRST];
    parts.iter().position(|is_there| *is_there).unwrap_or(SPARED_BYTES_MAX)
}

/// The file's bytes.
///
/// # Errors
/// `Internal` if the records have no form in bytes.
pub(crate) fn encode(cluster: &Cluster) -> Result<Vec<u8>> {
    let mut body = postcard::to_allocvec(cluster)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let spared = spared_bytes(cluster);
    let version = [VERSION, WITHOUT_ISSUERS, WITHOUT_SHARED, WITHOUT_LEVEL][spared];
    body.truncate(body.len() - spared);
    let length = u32::try_from(body.len()).map_err(|_| ErrorKind::TooBig)?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    let sum = sum(&bytes[8..16], &body);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The records of such bytes.
///
/// # Errors
/// `Corrupt` for anything that [`encode`] did not make; the message says what is wrong.
pub(crate) fn decode(bytes: &[u8]) -> Result<Cluster> {
    read(bytes).map(|(cluster, _)| cluster)
}

/// The records of such bytes, and whether a log belongs to them.
fn read(bytes: &[u8]) -> Result<(Cluster, bool)> {
    let (head, body) =
        bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| corrupt("the file is too short"))?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != *MAGIC {
        return Err(corrupt("this is no such file"));
    }
    // Fields that the file lacks at its end are empty or zero.
    let lacking = match number(8) {
        VERSION => 0,
        WITHOUT_ISSUERS => 1,
        WITHOUT_SHARED => 2,
        WITHOUT_LEVEL => 3,
        WITHOUT_METADATA_LOGS => 4,
        WITHOUT_LOG => 5,
        other => {
            let what = format!("version {other}, which a newer program wrote: install that one");
            return Err(corrupt(&what));
        }
    };
    if number(12) as usize != body.len() || number(16) != sum(&head[8..16], body) {
        return Err(corrupt("length or checksum is wrong"));
    }
    let mut whole = body.to_vec();
    whole.resize(body.len() + lacking, 0);
    let has_log = number(8) != WITHOUT_LOG;
    match postcard::take_from_bytes::<Cluster>(&whole) {
        Ok((mut cluster, [])) => {
            cluster.level = cluster.level.max(FeatureLevel::FIRST);
            cluster.check().map(|()| (cluster, has_log)).map_err(|fault| corrupt(&fault))
        }
        _ => Err(corrupt("they do not decode")),
    }
}

/// Reads the file; `None` if there is none. Says whether a log belongs to the records.
///
/// # Errors
/// As [`decode`]; the host's.
pub(crate) fn load(path: &Path) -> Result<Option<(Cluster, bool)>> {
    let about = |error: Error| error.context(path.display());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(about(error.into())),
        Ok(found) if found.len() > FILE_BYTES_MAX => return Err(about(corrupt("too long"))),
        Ok(_) => {}
    }
    let bytes = std::fs::read(path).map_err(|error| about(error.into()))?;
    read(&bytes).map(Some).map_err(about)
}

#[cfg(test)]
#[path = "file_test.rs"]
mod file_test;
