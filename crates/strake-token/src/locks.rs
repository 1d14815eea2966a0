//! Locks of programs (`fcntl`, `flock` and those of open file descriptions) that hold over all
//! mounts. Pure, as tokens are: events go in, effects come out.
//!
//! - [`table`] has the locks of one file system, at the leader: who holds what, who waits, and
//!   which requests were answered.
//! - [`holder`] is the view of one client: what it has asked for, and which locks it must say again
//!   to a new leader.
//! - [`pieces`] says which bytes have what.
//!
//! **An owner** is a number that one client chose: of a process, or of an open file. A lock of an
//! open file description comes as a POSIX lock with an owner of its own, as the kernel sends it.
//!
//! **Every change counts once.** A client numbers its requests and repeats each until it is
//! answered. The table remembers answers until the client says that it has heard them. So messages
//! may be lost, repeated and overtaken.
//!
//! **The table says at least what a client believes.** A new leader learns from each client which
//! locks it believes to hold, before it grants anything. What a request under way may have unlocked
//! is not among them, because somebody else may hold it by now.
//!
//! The reasons are in decision 0039. `model_test` drives the real table and real holders over a
//! network that loses, repeats and reorders, and finds each rule of [`crate::rule`] that is taken
//! away.

pub mod holder;
#[cfg(test)]
mod model_test;
pub mod pieces;
pub mod table;

use crate::held::Mode;
use crate::message::RequestId;
use serde::{Deserialize, Serialize};
use strake_proto::{ClientId, Ino};

/// Bytes `from..to` of a file. `to` is [`ByteRange::END`] for all that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct ByteRange {
    /// The first byte.
    pub from: u64,
    /// One past the last byte.
    pub to: u64,
}

impl ByteRange {
    /// One past the last byte that a file can have.
    pub const END: u64 = 1 << 63;
    /// All bytes of a file.
    pub const ALL: ByteRange = ByteRange { from: 0, to: ByteRange::END };

    /// Bytes `from..to`. `None` if there are none, or if a file cannot have them.
    pub fn new(from: u64, to: u64) -> Option<ByteRange> {
        (from < to && to <= ByteRange::END).then_some(ByteRange { from, to })
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// The bytes that both have.
    pub fn common(self, other: ByteRange) -> Option<ByteRange> {
        ByteRange::new(self.from.max(other.from), self.to.min(other.to))
    }
}

impl TryFrom<(u64, u64)> for ByteRange {
    type Error = &'static str;

    fn try_from((from, to): (u64, u64)) -> Result<ByteRange, Self::Error> {
        ByteRange::new(from, to).ok_or("a range without bytes")
    }
}

impl From<ByteRange> for (u64, u64) {
    fn from(range: ByteRange) -> Self {
        (range.from, range.to)
    }
}

/// Locks of one kind never conflict with those of the other, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// `fcntl`: of ranges, of a process or of an open file description.
    Posix,
    /// `flock`: of a whole file, of an open file description.
    Flock,
}

/// Whose lock it is, within one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The kind of its locks.
    pub kind: LockKind,
    /// Chosen by the client.
    pub id: u64,
}

/// Bytes of a file, as an owner wants to lock them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockWant {
    /// The file.
    pub ino: Ino,
    /// Whose lock it is to be.
    pub owner: LockOwner,
    /// The bytes; of `flock` all.
    pub range: ByteRange,
    /// How; `None` unlocks.
    pub mode: Option<Mode>,
    /// The process that asks. Shown to others on the same client.
    pub pid: u32,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockOp {
    /// Locks or unlocks; fails if it would have to wait.
    Set(LockWant),
    /// The same, and waits for others.
    SetWaiting(LockWant),
    /// Asks who is in the way.
    Test(LockWant),
}

impl LockOp {
    /// What it is about.
    pub fn want(&self) -> &LockWant {
        match self {
            LockOp::Set(want) | LockOp::SetWaiting(want) | LockOp::Test(want) => want,
        }
    }

    /// Whether it changes what the owner holds.
    pub fn changes(&self) -> bool {
        !matches!(self, LockOp::Test(_))
    }
}

/// A lock of an owner, to be said again to a new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockHeld {
    /// The bytes.
    pub range: ByteRange,
    /// How.
    pub mode: Mode,
    /// The process that asked for it.
    pub pid: u32,
}

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockRequest {
    /// Asks. Sent again with the same number until it is answered.
    Do {
        /// Which request.
        request: RequestId,
        /// The client has heard the answer of every request below this one, or that it waits.
        below: RequestId,
        /// What it asks for.
        op: LockOp,
    },
    /// Ends a request that waits. The answer says which was faster, this or the lock. It may be
    /// there before the request.
    Cancel {
        /// Which request.
        request: RequestId,
    },
    /// The client has heard [`LockReply::Answer`] of a request that had to wait.
    Heard {
        /// Which request.
        request: RequestId,
    },
    /// To a new leader: locks of one owner in one file.
    Reassert {
        /// Which message of the kind.
        part: u64,
        /// The file.
        ino: Ino,
        /// Whose.
        owner: LockOwner,
        /// The locks.
        locks: Vec<LockHeld>,
    },
    /// To a new leader: the client has reasserted all. Sent again, with all parts, until the leader
    /// says [`LockReply::Reasserted`].
    Reasserted {
        /// How many parts there are. The message may be there before they are.
        parts: u64,
    },
}

/// To a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockReply {
    /// The outcome of a request.
    Answer {
        /// Which request.
        request: RequestId,
        /// What became of it.
        outcome: LockOutcome,
        /// Counts the answers of one leader: a change with a higher moment came later.
        moment: u64,
        /// Whether the request had to wait. Then this is sent again until the client has said
        /// [`LockRequest::Heard`].
        late: bool,
    },
    /// The request waits. Sent at each repetition.
    Waits {
        /// Which request.
        request: RequestId,
        /// A client that is in the way.
        holder: ClientId,
    },
    /// The new leader has heard all that the client reasserts.
    Reasserted,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockOutcome {
    /// It is as the owner wanted.
    Granted,
    /// Somebody is in the way, and the request does not wait.
    WouldBlock,
    /// Somebody is in the way who waits for this owner, perhaps through others.
    Deadlock,
    /// The client has too many locks.
    Full,
    /// The client has ended it.
    Cancelled,
    /// A test: nobody is in the way.
    Free,
    /// A test: this lock is in the way.
    Held {
        /// Its bytes.
        range: ByteRange,
        /// How it is locked.
        mode: Mode,
        /// The process that has it; 0 if that belongs to another client.
        pid: u32,
    },
}
