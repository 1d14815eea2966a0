//! Entries of a log of several nodes: those of every journal (`log_entry.rs`), and two more.
//!
//! | version | what follows |
//! |---|---|
//! | 3 | [`Numbers`], and then version 2: a change that was answered with them and then lost. |
//! | 4 | Nothing. A leader begins, and burns numbers. |

use crate::log_entry::{LogEntry, LogEntryRef, decode_entry, encode_entry};
use crate::machine;
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaReply, Numbers};
use strake_proto::{Error, ErrorKind, Result};
use strake_store::{Batch, KvRead};

const AGAIN_VERSION: u8 = 3;
const BURN_VERSION: u8 = 4;

/// The entry with which a leader burns numbers.
pub(crate) const BURN: [u8; 1] = [BURN_VERSION];

/// The bytes of a change that was answered with these numbers and then lost.
pub(crate) fn encode_again(counted: &CountedEntry, told: Numbers) -> Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(&told, vec![AGAIN_VERSION])
        .map_err(|error| Error::new(ErrorKind::Internal, format!("numbers: {error}")))?;
    bytes.extend(encode_entry(LogEntryRef::Counted(counted))?);
    Ok(bytes)
}

/// Runs the state machine on an entry. An entry that the machine refuses at its leader is never in
/// the log.
pub(super) fn decide(
    kv: &dyn KvRead,
    bytes: &[u8],
    position: u64,
) -> Result<(CountedAnswer, Batch)> {
    let plain = |(reply, changes)| (CountedAnswer { position, outcome: Ok(reply) }, changes);
    if bytes == BURN {
        return machine::burn_numbers(kv).map(|changes| plain((MetaReply::Done, changes)));
    }
    let (told, bytes) = match bytes.split_first() {
        Some((&AGAIN_VERSION, rest)) => postcard::take_from_bytes(rest).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("numbers do not decode: {error}"))
        })?,
        _ => (Numbers::default(), bytes),
    };
    match decode_entry(bytes)? {
        LogEntry::Plain(entry) => machine::apply(kv, &entry).map(plain),
        LogEntry::Counted(counted) => machine::apply_again(kv, &counted, told, position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::entry;
    use strake_proto::meta::MetaOp;
    use strake_proto::{GrantNumber, Ino};

    #[test]
    fn the_bytes_of_an_entry_that_comes_again_are_these() {
        let counted = CountedEntry { life: 5, oldest: 3, entry: entry(2, MetaOp::Join) };
        let told = Numbers { ino: Some(Ino(9)), object: None, grant: Some(GrantNumber(300)) };
        let bytes = encode_again(&counted, told).expect("encodes");
        let (head, rest) = bytes.split_at(7);
        assert_eq!(head, [3, 1, 9, 0, 1, 0xac, 0x02]);
        assert_eq!(rest, encode_entry(LogEntryRef::Counted(&counted)).expect("encodes"));
        assert_eq!(BURN, [4]);
    }
}
