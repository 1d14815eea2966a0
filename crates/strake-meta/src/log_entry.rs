//! Journal entries as bytes: a version byte, then the entry in postcard's encoding. The journal
//! below adds the number and the checksum.
//!
//! | version | what follows |
//! |---|---|
//! | 1 | [`MetaEntry`] with sequence 0: a change that is not counted. 0.1 wrote only these. |
//! | 2 | [`CountedEntry`] of an earlier time: its numbers come from the counters of all clients. |
//! | 3 | [`CountedEntry`]. Version 0.1 refuses a log with one, until a clean end empties it. |
//! | 4 | The NSDs of nodes that are lost: the log goes on without a majority (`ops/go_on.rs`). |

use strake_proto::meta::{CountedEntry, MetaEntry};
use strake_proto::{Error, ErrorKind, NsdId, Result};

const ENTRY_VERSION: u8 = 1;
const COUNTED_BEFORE_VERSION: u8 = 2;
const COUNTED_VERSION: u8 = 3;
const GOES_ON_VERSION: u8 = 4;
/// An entry's size limit. The largest change is an attribute of 64 KiB or a configuration. The
/// smallest journal has room for four entries of this size.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Most entries change names and are shorter than this.
const ENTRY_BYTES_USUAL: usize = 128;

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogEntry {
    /// A change that is not counted.
    Plain(MetaEntry),
    /// A change that is counted.
    Counted(CountedEntry),
    /// A change that was counted, and got its numbers from the counters.
    CountedBefore(CountedEntry),
    /// The log goes on without a majority, and these NSDs are on nodes that are lost.
    GoesOn(Vec<NsdId>),
}

/// A borrowed `LogEntry`.
#[derive(Clone, Copy)]
pub(crate) enum LogEntryRef<'a> {
    Plain(&'a MetaEntry),
    Counted(&'a CountedEntry),
}

impl<'a> LogEntryRef<'a> {
    /// The change itself.
    pub(crate) fn entry(self) -> &'a MetaEntry {
        match self {
            LogEntryRef::Plain(entry) => entry,
            LogEntryRef::Counted(counted) => &counted.entry,
        }
    }
}

/// An entry's bytes.
pub(crate) fn encode_entry(entry: LogEntryRef<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ENTRY_BYTES_USUAL);
    let encoded = match entry {
        LogEntryRef::Plain(entry) => {
            bytes.push(ENTRY_VERSION);
            postcard::to_extend(entry, bytes)
        }
        LogEntryRef::Counted(counted) => {
            bytes.push(COUNTED_VERSION);
            postcard::to_extend(counted, bytes)
        }
    };
    let bytes =
        encoded.map_err(|error| Error::new(ErrorKind::Internal, format!("an entry: {error}")))?;
    if bytes.len() > ENTRY_BYTES_MAX {
        return Err(Error::new(ErrorKind::TooBig, "one change takes 1 MiB at most"));
    }
    Ok(bytes)
}

/// The bytes of the entry with which a log goes on after the loss of its majority.
pub(crate) fn encode_goes_on(lost: &[NsdId]) -> Vec<u8> {
    postcard::to_extend(lost, vec![GOES_ON_VERSION]).expect("invariant: numbers always encode")
}

/// Reads an entry's bytes.
pub(crate) fn decode_entry(bytes: &[u8]) -> Result<LogEntry> {
    match bytes.split_first() {
        Some((&ENTRY_VERSION, rest)) => whole(rest).map(LogEntry::Plain),
        Some((&COUNTED_VERSION, rest)) => whole(rest).map(LogEntry::Counted),
        Some((&COUNTED_BEFORE_VERSION, rest)) => whole(rest).map(LogEntry::CountedBefore),
        Some((&GOES_ON_VERSION, rest)) => whole(rest).map(LogEntry::GoesOn),
        Some((version, _)) => Err(corrupt(format!("a log entry has unknown version {version}"))),
        None => Err(corrupt("a log entry is empty".to_owned())),
    }
}

fn whole<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((entry, [])) => Ok(entry),
        Ok(_) => Err(corrupt("a log entry has too many bytes".to_owned())),
        Err(error) => Err(corrupt(format!("a log entry does not decode: {error}"))),
    }
}

fn corrupt(detail: String) -> Error {
    Error::new(ErrorKind::Corrupt, detail)
}
