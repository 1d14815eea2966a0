//! What replicas say to each other, and its bytes.
//!
//! Messages may be lost, repeated, delayed and overtaken. Integers of the head are little-endian;
//! the envelope is in the encoding of postcard.
//!
//! ```text
//!  0  4  magic "SRrm"
//!  4  4  version, 1
//!  8 16  the cluster: a message of another one is refused
//! 24  4  CRC32C over the whole message with this field zero
//! 28     envelope
//! ```

use crate::entry::{Entry, Snapshot};
use crate::membership::Membership;
use crate::types::{Bytes, Life, Position, ReplicaId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strake_proto::{ClusterId, Term};

const MAGIC: &[u8; 4] = b"SRrm";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 28;
const CRC_AT: usize = 24;
/// No message is longer.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// A message with its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Who says it.
    pub from: ReplicaId,
    /// In which of its lives.
    pub from_life: Life,
    /// Who is to hear it.
    pub to: ReplicaId,
    /// In which life, if it is an answer. Other lives do not hear it.
    pub to_life: Option<Life>,
    /// The sender's term.
    pub term: Term,
    /// What is said.
    pub body: Body,
}

/// The newest life of each other replica that the sender has heard of.
pub type Lives = BTreeMap<ReplicaId, Life>;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A replica has started: what do you have?
    Ask,
    /// What the sender has, all of it durable.
    Answer(Answer),
    /// The sender knows a later life of the receiver: live on under a higher number than this.
    Outlived(u32),
    /// Vote for me.
    Vote {
        /// The term of the election. A preliminary one is for the term to come.
        term: Term,
        /// What the candidate has.
        last: Stamp,
        /// Whether it only asks whether it could win. Then nobody changes its term.
        is_preliminary: bool,
    },
    /// The answer.
    Voted {
        /// The election's term.
        term: Term,
        /// Of which kind it is.
        is_preliminary: bool,
        /// The vote.
        granted: bool,
        /// Votes of earlier lives than these do not count.
        lives: Lives,
    },
    /// Entries of a leader; none, to show that it is there.
    Append {
        /// What stands before the entries.
        previous: Stamp,
        /// The entries.
        entries: Vec<Entry>,
        /// The log is committed up to here.
        committed: Position,
        /// Which question of the leader this is, so that a majority can confirm it.
        round: u64,
    },
    /// A part of a snapshot, for a replica that lacks entries which the leader has no more.
    Part(Part),
    /// The answer to entries and to parts.
    Appended {
        /// How it went.
        verdict: Verdict,
        /// The round that it answers.
        round: u64,
        /// Whether the sender knows what its earlier lives promised, so that its word counts.
        counts: bool,
        /// The highest feature level that the sender understands.
        supports: u32,
        /// Answers of earlier lives than these do not count.
        lives: Lives,
    },
    /// A part of a copy, for a replica whose machine keeps its own state.
    Copy(CopyPart),
}

/// A copy of a leader's machine to one replica.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CopyId {
    /// The leader's term.
    pub term: Term,
    /// Counts the copies of the term.
    pub count: u64,
}

/// A part of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPart {
    /// Of which copy.
    pub copy: CopyId,
    /// Which part, from 0 on.
    pub number: u64,
    /// What the leader's machine made for the other one.
    pub bytes: Bytes,
    /// If the copy is whole with this part: at which stamp. It has no bytes.
    pub whole: Option<Snapshot>,
    /// As in [`Body::Append`].
    pub round: u64,
}

/// What a replica has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The end of its log.
    pub last: Stamp,
    /// The members, as its log knows them.
    pub membership: Membership,
    /// From where on they are members.
    pub membership_stamp: Stamp,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What the snapshot covers.
    pub stamp: Stamp,
    /// The members there.
    pub membership: Membership,
    /// The feature level there.
    pub level: u32,
    /// The bytes of the whole snapshot.
    pub length: u64,
    /// Where the part begins.
    pub offset: u64,
    /// The part.
    pub bytes: Bytes,
    /// As in [`Body::Append`].
    pub round: u64,
}

/// How entries or a part were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The log agrees with the leader's up to here, durably.
    Agrees(Position),
    /// The log has something else there. It may agree at the hint.
    Differs {
        /// What stood before the entries.
        previous: Position,
        /// Try here.
        hint: Position,
    },
    /// The snapshot at this position has been received so far.
    Received {
        /// Which snapshot.
        position: Position,
        /// How many of its bytes, from its beginning.
        bytes: u64,
    },
    /// The sender's machine lacks its state, and needs a copy. It has taken nothing.
    Lacks,
    /// The sender's machine has these parts of a copy.
    Copied {
        /// Which copy.
        copy: CopyId,
        /// All parts before this one.
        next: u64,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Too short, too long, of another magic, or with a wrong checksum or contents.
    #[error("not a message between replicas, or a damaged one")]
    Malformed,
    /// Another version.
    #[error("a message of version {0}; this program understands version {VERSION}")]
    Version(u32),
    /// Another cluster.
    #[error("a message of the cluster {0}")]
    Cluster(ClusterId),
    /// It came from another replica than it says.
    #[error("a message that says to be of {0}, which did not send it")]
    Sender(ReplicaId),
}

/// The bytes of a message.
pub fn encode(cluster: ClusterId, envelope: &Envelope) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&cluster.0);
    bytes.extend_from_slice(&[0; 4]);
    let mut bytes =
        postcard::to_extend(envelope, bytes).expect("invariant: memory takes every message");
    let crc = crc32c::crc32c(&bytes);
    bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The message in these bytes.
///
/// # Errors
/// If they are no whole message of this cluster and version.
pub fn decode(cluster: ClusterId, bytes: &[u8]) -> Result<Envelope, MessageError> {
    if bytes.len() < HEAD_BYTES || bytes.len() > MESSAGE_BYTES_MAX || &bytes[..4] != MAGIC {
        return Err(MessageError::Malformed);
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|index| bytes[at + index]));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &[0; 4]);
    if crc32c::crc32c_append(crc, &bytes[HEAD_BYTES..]) != word(CRC_AT) {
        return Err(MessageError::Malformed);
    }
    if word(4) != VERSION {
        return Err(MessageError::Version(word(4)));
    }
    let mut other = ClusterId::default();
    other.0.copy_from_slice(&bytes[8..CRC_AT]);
    if other != cluster {
        return Err(MessageError::Cluster(other));
    }
    match postcard::take_from_bytes(&bytes[HEAD_BYTES..]) {
        Ok((envelope, [])) => Ok(envelope),
        _ => Err(MessageError::Malformed),
    }
}

#[cfg(test)]
#[path = "message_test.rs"]
mod message_test;
