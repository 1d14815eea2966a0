//! The issuer's list of join tokens: which node each is for, until when, and whether it was used.
//!
//! Of a token's secret only the hash is kept, so whoever reads the list cannot join. A token is
//! good for one key: if the answer was lost on the way, the same key may ask again until the token
//! expires, and nobody else may. A new token for a node replaces the one before.
//!
//! Pure: the file and the clock are [`crate::joining`]'s. Bytes of the file:
//!
//! ```text
//! 0  4  magic "SJTL"
//! 4  2  version (1), little-endian
//! 6  …  entries, in postcard
//! …  4  CRC32C of all before, little-endian
//! ```

use serde::{Deserialize, Serialize};
use strake_proto::{Error, ErrorKind, NodeIdentity, Result};

const MAGIC: [u8; 4] = *b"SJTL";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 6;
const CHECK_BYTES: usize = 4;
/// Tokens that wait to be used; used and expired ones make room.
const ENTRIES_MAX: usize = 1000;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Of the token's secret.
    digest: [u8; 32],
    /// Who its bearer becomes.
    identity: NodeIdentity,
    /// Seconds of the calendar, after which it is void.
    expires: i64,
    /// The public key that used it.
    used_by: Option<[u8; 32]>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JoinLedger {
    entries: Vec<Entry>,
}

impl JoinLedger {
    /// Adds a token. `now` and `expires` are seconds of the calendar.
    pub(crate) fn add(
        &mut self,
        digest: [u8; 32],
        identity: NodeIdentity,
        expires: i64,
        now: i64,
    ) -> Result<()> {
        let keeps = |entry: &Entry| entry.expires > now && entry.identity.name != identity.name;
        self.entries.retain(keeps);
        if self.entries.len() >= ENTRIES_MAX {
            let detail =
                format!("{ENTRIES_MAX} join tokens wait to be used: wait until some expire");
            return Err(Error::new(ErrorKind::NoSpace, detail));
        }
        self.entries.push(Entry { digest, identity, expires, used_by: None });
        self.check();
        Ok(())
    }

    /// Uses a token for the owner of `key`; says who that is now.
    ///
    /// # Errors
    /// `Access`, with the reason, if the token is not good.
    pub(crate) fn redeem(
        &mut self,
        digest: &[u8; 32],
        key: [u8; 32],
        now: i64,
    ) -> Result<NodeIdentity> {
        let denied = |why: &str| {
            let detail = format!("{why}: make a new one with `strake node add`");
            Err(Error::new(ErrorKind::Access, detail))
        };
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.digest == *digest) else {
            return denied("the join token is not known here, or a newer one replaced it");
        };
        if entry.expires <= now {
            return denied("the join token has expired");
        }
        if entry.used_by.is_some_and(|used_by| used_by != key) {
            return denied("the join token was used already");
        }
        entry.used_by = Some(key);
        Ok(entry.identity.clone())
    }

    /// Makes the tokens of a node void.
    pub(crate) fn withdraw(&mut self, name: &strake_proto::NodeName) {
        self.entries.retain(|entry| entry.identity.name != *name);
    }

    /// Asserts what always holds: one token for a name, one name for a token.
    pub(crate) fn check(&self) {
        for (at, entry) in self.entries.iter().enumerate() {
            for other in &self.entries[at + 1..] {
                assert_ne!(entry.identity.name, other.identity.name, "one token for a node");
                assert_ne!(entry.digest, other.digest, "no token for two nodes");
            }
        }
    }

    /// The file's bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crate::session::encode(&self.entries)?);
        let check = crc32c::crc32c(&bytes);
        bytes.extend(check.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the file's bytes.
    ///
    /// # Errors
    /// `Corrupt` if they are no list, `NotSupported` if they are of a newer version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<JoinLedger> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "the list of join tokens is damaged");
        if bytes.len() < HEAD_BYTES + CHECK_BYTES || bytes[..4] != MAGIC {
            return Err(corrupt());
        }
        let (covered, check) = bytes.split_at(bytes.len() - CHECK_BYTES);
        if crc32c::crc32c(covered).to_le_bytes() != check {
            return Err(corrupt());
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            let detail = format!("the list of join tokens has version {version}: run that strake");
            return Err(Error::new(ErrorKind::NotSupported, detail));
        }
        let entries: Vec<Entry> =
            crate::session::decode(&covered[HEAD_BYTES..]).map_err(|_| corrupt())?;
        let ledger = JoinLedger { entries };
        let names: std::collections::BTreeSet<_> =
            ledger.entries.iter().map(|entry| &entry.identity.name).collect();
        let digests: std::collections::BTreeSet<_> =
            ledger.entries.iter().map(|entry| entry.digest).collect();
        if names.len() != ledger.entries.len() || digests.len() != ledger.entries.len() {
            return Err(corrupt());
        }
        Ok(ledger)
    }
}

#[cfg(test)]
#[path = "join_ledger_test.rs"]
mod join_ledger_test;
