//! Entries as bytes in the journal: a version byte, 1 today, then [`MetaEntry`] in postcard's
//! encoding. The journal below adds number and checksum.

use strake_proto::meta::MetaEntry;
use strake_proto::{Error, ErrorKind, Result};

const ENTRY_VERSION: u8 = 1;
/// The largest change is an attribute of 64 KiB or a configuration; four such fit the smallest
/// journal.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Most entries are shorter: those on names.
const ENTRY_BYTES_USUAL: usize = 128;

/// An entry's bytes.
pub(crate) fn encode_entry(entry: &MetaEntry) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ENTRY_BYTES_USUAL);
    bytes.push(ENTRY_VERSION);
    let bytes = postcard::to_extend(entry, bytes)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("an entry: {error}")))?;
    if bytes.len() > ENTRY_BYTES_MAX {
        return Err(Error::new(ErrorKind::TooBig, "one change takes 1 MiB at most"));
    }
    Ok(bytes)
}

/// Reads an entry's bytes.
pub(crate) fn decode_entry(bytes: &[u8]) -> Result<MetaEntry> {
    let corrupt = |detail: String| Error::new(ErrorKind::Corrupt, detail);
    match bytes.split_first() {
        Some((&ENTRY_VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((entry, [])) => Ok(entry),
            Ok(_) => Err(corrupt("a log entry has too many bytes".to_owned())),
            Err(error) => Err(corrupt(format!("a log entry does not decode: {error}"))),
        },
        Some((version, _)) => Err(corrupt(format!("a log entry has unknown version {version}"))),
        None => Err(corrupt("a log entry is empty".to_owned())),
    }
}
