//! What the log holds: entries, and the snapshot that stands for those at its beginning.

use crate::membership::Membership;
use crate::types::{Bytes, Position, Stamp};
use serde::{Deserialize, Serialize};
use strake_proto::Term;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The term of the leader that appended it.
    pub term: Term,
    /// Where it is.
    pub position: Position,
    /// What it says.
    pub payload: Payload,
}

impl Entry {
    /// Its stamp.
    pub fn stamp(&self) -> Stamp {
        Stamp { term: self.term, position: self.position }
    }

    /// About how much memory, journal or message it takes.
    pub fn cost(&self) -> usize {
        /// More than what an entry without bytes takes.
        const OVERHEAD: usize = 64;
        match &self.payload {
            Payload::Data { bytes, .. } => OVERHEAD + bytes.len(),
            Payload::Membership(members) => OVERHEAD + 5 * members.all().len() * 2,
            Payload::Begin | Payload::Level(_) => OVERHEAD,
        }
    }
}

/// What an entry says. A new variant goes at the end: entries are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// A leader's term begins.
    Begin,
    /// From this entry on, these are the members.
    Membership(Membership),
    /// From this entry on, entries of this feature level may follow (R32).
    Level(u32),
    /// Something for the state machine.
    Data {
        /// The feature level that a machine needs to understand it.
        level: u32,
        /// Opaque bytes.
        bytes: Bytes,
    },
}

/// What the log's entries up to a stamp have made of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The last entry that it covers.
    pub stamp: Stamp,
    /// The members at that entry.
    pub membership: Membership,
    /// The feature level at that entry.
    pub level: u32,
    /// The state machine's bytes.
    pub bytes: Bytes,
}
