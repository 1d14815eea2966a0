//! What a client and the authority say to each other. Both ends expect messages to be lost,
//! repeated and overtaken: each can be sent again.

use crate::held::{Held, Limit, Want};
use crate::locks::{LockReply, LockRequest};
use serde::{Deserialize, Serialize};
use strake_proto::{GrantNumber, Ino, NsdId};

/// Counts the requests of one client; each attempt has a number of its own.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct RequestId(pub u64);

pub use strake_proto::Term;

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Request {
    /// Asks for all tokens of one operation. Sent again with the same number until it is answered.
    Ask {
        /// Which attempt.
        request: RequestId,
        /// One for each file.
        wants: Vec<Want>,
    },
    /// Says what the client keeps of a file, of all that it was granted up to a number. Answers a
    /// revoke, or comes unasked. What changed under the rest is durable.
    GivenUp {
        /// The file.
        ino: Ino,
        /// Grants up to this one are meant; one of these that arrives later is void.
        upto: GrantNumber,
        /// What the client keeps.
        keeps: Held,
    },
    /// To a new leader: what the client holds of a file.
    Reassert {
        /// The file.
        ino: Ino,
        /// What it holds.
        held: Held,
        /// The newest number it was granted for that file.
        newest: GrantNumber,
    },
    /// To a new leader: the client has reasserted all. Sent again, with all that it counts, until
    /// the leader says [`Reply::Reasserted`].
    Reasserted {
        /// How many files it has reasserted. The message may be there before they are.
        files: u64,
    },
    /// The client has done what [`Reply::Unusable`], [`Reply::Writable`] or [`Reply::Places`]
    /// asked. The table of tokens has no part in this.
    Left {
        /// From that message.
        change: u64,
    },
    /// About locks of programs. The table of tokens has no part in this.
    Lock(LockRequest),
}

/// To a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// All that a request asked for, and perhaps more.
    Grant {
        /// The request.
        request: RequestId,
        /// One for each file.
        grants: Vec<Granted>,
    },
    /// Asks a client to keep no more than a limit. Sent again until the client has answered.
    Revoke {
        /// The file.
        ino: Ino,
        /// The newest grant of that file to that client.
        upto: GrantNumber,
        /// What the client may keep.
        limit: Limit,
    },
    /// The new leader has heard all that the client reasserts.
    Reasserted,
    /// These NSDs miss writes from now on, so nobody may read them. Sent again until the client
    /// says [`Request::Left`]. No client's view of its tokens has a part in this.
    Unusable {
        /// Which change of the pool map this is.
        change: u64,
        /// The NSDs.
        nsds: Vec<NsdId>,
    },
    /// This NSD is being brought up to date: the client writes to it from now on, does not read it,
    /// and makes durable what it wrote before. Sent again until the client says [`Request::Left`].
    Writable {
        /// Which change of the pool map this is.
        change: u64,
        /// The NSD.
        nsd: NsdId,
    },
    /// About locks of programs. No client's view of its tokens has a part in this.
    Lock(LockReply),
    /// Strips have other places from now on, as the pool map says: the client reads it anew, and
    /// makes durable what it wrote before. Sent again until the client says [`Request::Left`].
    Places {
        /// Which change of the pool map this is.
        change: u64,
    },
}

/// What a client holds of a file from now on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Granted {
    /// The file.
    pub ino: Ino,
    /// All that it holds, what it held before included.
    pub held: Held,
    /// Above every number that was granted before, of any file, to anybody.
    pub number: GrantNumber,
}
