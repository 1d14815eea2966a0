//! The counted changes of one client that are not known to be durable: what a session may have to
//! send again.
//!
//! A change is *open* until it is answered. At most [`WINDOW_CHANGES`] lie between the oldest open
//! change and the newest; the server keeps the answers of as many. An answered change stays here
//! until a sync that began after its answer has ended.
//!
//! ```text
//! New ──sent──▶ Asked ──answer──▶ Answered ──sync──▶ gone
//!                │   ──refusal──▶ gone
//!                └──connection broke─▶ Adrift ──sent again, see rpc/meta.rs──▶ Answered or gone
//! ```
//!
//! **Order.** Answers of one server process are ordered by the position that it gave. After a
//! replay at another process a new *era* begins: all that was replayed comes before all that is
//! answered later, in the order it had.

use crate::session::encode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{CountedAnswer, MetaOp, MetaReply};
use strake_proto::{Error, ErrorKind, Result};

/// The journal is synced away when it holds this many entries,
const ENTRIES_MAX: usize = 16_384;
/// or this many encoded bytes.
const BYTES_MAX: usize = 16 << 20;

/// A rule that a test may take away, to see that its loss is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Answered changes are replayed in the order in which they were applied.
    ReplayInOrder,
    /// A change tells the oldest that has no answer.
    OldestIsOpen,
}

/// A change as it was sent.
pub(crate) type Message = Arc<[u8]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not sent yet.
    New,
    /// Sent, and its caller waits for the answer.
    Asked,
    /// Sent, and then the connection broke.
    Adrift,
    /// Answered in this era, at this position, with a reply of this print.
    Answered(u64, u64, Print),
}

/// The part of a reply that a replay has to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    All,
    /// Not what writing changes: the sizes and the times. Other clients may write the same file
    /// meanwhile, so their changes and this one come in any order.
    ButWritten,
}

impl Repeats {
    pub(crate) fn of(op: &MetaOp) -> Repeats {
        match op {
            MetaOp::Update { .. } => Repeats::ButWritten,
            _ => Repeats::All,
        }
    }
}

/// A checksum of the part of a reply that a replay has to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    of: Repeats,
    checksum: u32,
}

struct Kept {
    message: Message,
    state: State,
    repeats: Repeats,
    /// Whether a caller waits for the answer.
    wanted: bool,
}

/// A function that is told why a session is over.
pub(crate) type WhenBroken = Box<dyn FnOnce(&Error) + Send>;

/// See the module.
#[derive(Default)]
pub(crate) struct Journal {
    /// The number of the client's life; 0 before it has joined.
    pub(crate) life: u64,
    /// The server process that has seen all answered changes.
    pub(crate) boot: Option<u64>,
    /// Set when the server's state contradicts the answers that this client got.
    broken: Option<Error>,
    /// It is told of that, once, and must not wait.
    when_broken: Option<WhenBroken>,
    /// Whether a thread is syncing because the journal is full.
    pub(crate) syncing: bool,
    last: u64,
    era: u64,
    entries: BTreeMap<u64, Kept>,
    open: BTreeSet<u64>,
    asked: usize,
    bytes: usize,
    /// Answers to changes that were sent again, for their callers to take.
    delivered: BTreeMap<u64, Result<MetaReply>>,
    #[cfg(test)]
    pub(crate) without: Option<Rule>,
}

impl Journal {
    /// Why the session is over, if it is.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Ends the session: the server's state contradicts the answers that this client got.
    pub(crate) fn break_off(&mut self, why: &Error) {
        self.broken = Some(why.clone());
        if let Some(then) = self.when_broken.take() {
            then(why);
        }
    }

    /// See [`crate::MetaClientSession::when_over`].
    pub(crate) fn when_broken(&mut self, then: WhenBroken) {
        match &self.broken {
            Some(why) => then(why),
            None => self.when_broken = Some(then),
        }
    }

    /// The oldest change that has no answer, or else the next one.
    fn oldest(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.last + 1)
    }

    /// Whether one more change may be sent.
    pub(crate) fn has_window(&self) -> bool {
        self.last + 1 - self.oldest() < WINDOW_CHANGES
    }

    /// Whether a sync must come first.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX || self.bytes >= BYTES_MAX
    }

    /// Whether some change is adrift and no caller waits for its answer.
    pub(crate) fn has_forsaken(&self) -> bool {
        let oldest = self.entries.get(&self.oldest());
        oldest.is_some_and(|kept| kept.state == State::Adrift && !kept.wanted)
    }

    /// Takes in a new change, which `encode` makes of its sequence and the oldest open one.
    pub(crate) fn begin(
        &mut self,
        repeats: Repeats,
        encode: &dyn Fn(u64, u64) -> Result<Message>,
    ) -> Result<(u64, Message)> {
        assert!(self.has_window(), "the caller has waited for it");
        let sequence = self.last + 1;
        let oldest = if self.obeys(Rule::OldestIsOpen) { self.oldest() } else { sequence };
        let message = encode(sequence, oldest)?;
        self.last = sequence;
        self.bytes += message.len();
        self.open.insert(sequence);
        let (kept, state) = (Arc::clone(&message), State::New);
        let kept = Kept { message: kept, state, repeats, wanted: true };
        self.entries.insert(sequence, kept);
        Ok((sequence, message))
    }

    /// Notes that a change is being sent, unless its answer has come in the meantime.
    pub(crate) fn ask(&mut self, sequence: u64) -> Option<Result<MetaReply>> {
        if let Some(error) = &self.broken {
            return Some(Err(error.clone()));
        }
        if let Some(outcome) = self.delivered.remove(&sequence) {
            return Some(outcome);
        }
        self.set(sequence, State::Asked);
        None
    }

    /// Notes that the connection on which a change was asked broke.
    pub(crate) fn disconnected(&mut self, sequence: u64) {
        self.set(sequence, State::Adrift);
    }

    /// Notes the end of a change's caller without an answer; returns the answer if there is one
    /// after all. A change that was sent stays, since the server may have it.
    pub(crate) fn give_up(&mut self, sequence: u64) -> Option<Result<MetaReply>> {
        match self.entries.get_mut(&sequence) {
            Some(kept) if kept.state == State::New => self.forget(sequence),
            Some(kept) => kept.wanted = false,
            None => {}
        }
        self.delivered.remove(&sequence)
    }

    /// How many callers wait for an answer on a connection.
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Takes in the answer of an open change; returns what its caller is told.
    pub(crate) fn answered(
        &mut self,
        sequence: u64,
        answer: Result<CountedAnswer>,
    ) -> Result<MetaReply> {
        match answer {
            Ok(CountedAnswer { position, outcome: Ok(reply) }) => {
                let kept = self.entries.get(&sequence);
                let repeats = kept.expect("invariant: open changes are kept").repeats;
                let print = Print::new(&reply, repeats);
                self.set(sequence, State::Answered(self.era, position, print));
                Ok(reply)
            }
            // A refused change has changed nothing.
            Ok(CountedAnswer { outcome: Err(error), .. }) => {
                self.forget(sequence);
                Err(error)
            }
            Err(error) if is_protocol(error.kind()) => {
                self.set(sequence, State::Adrift);
                let error = Error::new(
                    ErrorKind::Io,
                    format!("the metadata does not take change {sequence} any more: {error}"),
                );
                self.break_off(&error);
                Err(error)
            }
            Err(error) => {
                self.forget(sequence);
                Err(error)
            }
        }
    }

    /// Takes in the answer of a change that was sent again, for its caller.
    pub(crate) fn deliver(&mut self, sequence: u64, answer: Result<CountedAnswer>) {
        let wanted = self.entries.get(&sequence).is_some_and(|kept| kept.wanted);
        let outcome = self.answered(sequence, answer);
        if wanted {
            self.delivered.insert(sequence, outcome);
        }
    }

    /// The changes to replay at a process that may have forgotten them, in their order, with the
    /// prints of their replies.
    pub(crate) fn to_replay(&self) -> Vec<(u64, Message, Print)> {
        let mut answered: Vec<(u64, u64, u64, Message, Print)> = Vec::new();
        for (sequence, kept) in &self.entries {
            if let State::Answered(era, position, print) = kept.state {
                answered.push((era, position, *sequence, Arc::clone(&kept.message), print));
            }
        }
        if self.obeys(Rule::ReplayInOrder) {
            answered.sort_by_key(|(era, position, ..)| (*era, *position));
        }
        let replayed = answered.into_iter();
        replayed.map(|(_, _, sequence, message, print)| (sequence, message, print)).collect()
    }

    /// Notes that everything answered was replayed at the process of that boot number.
    pub(crate) fn replayed(&mut self, boot: u64) {
        self.era += 1;
        self.boot = Some(boot);
    }

    /// The changes to send again.
    pub(crate) fn adrift(&self) -> Vec<(u64, Message)> {
        let adrift = self.entries.iter().filter(|(_, kept)| kept.state == State::Adrift);
        adrift.map(|(sequence, kept)| (*sequence, Arc::clone(&kept.message))).collect()
    }

    /// The changes that a sync that begins now makes durable.
    pub(crate) fn to_sync(&self) -> Vec<u64> {
        let is_answered = |kept: &Kept| matches!(kept.state, State::Answered(..));
        let answered = self.entries.iter().filter(|(_, kept)| is_answered(kept));
        answered.map(|(sequence, _)| *sequence).collect()
    }

    /// Forgets a change.
    pub(crate) fn forget(&mut self, sequence: u64) {
        if let Some(kept) = self.entries.remove(&sequence) {
            self.asked -= usize::from(kept.state == State::Asked);
            self.open.remove(&sequence);
            self.bytes -= kept.message.len();
        }
    }

    fn set(&mut self, sequence: u64, state: State) {
        let kept = self.entries.get_mut(&sequence).expect("invariant: open changes are kept");
        let before = std::mem::replace(&mut kept.state, state);
        self.asked += usize::from(state == State::Asked);
        self.asked -= usize::from(before == State::Asked);
        if matches!(state, State::Answered(..)) {
            self.open.remove(&sequence);
        }
    }

    #[cfg(test)]
    fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "tests take rules away")]
    fn obeys(&self, _rule: Rule) -> bool {
        true
    }
}

/// Whether the server says that it does not know this session any more.
fn is_protocol(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Stale | ErrorKind::Fenced | ErrorKind::Invalid)
}

impl Print {
    /// The print of a reply. Descriptions of the file system are not compared: they are as they are
    /// when they are asked for. Nor are tokens that come along.
    pub(crate) fn new(reply: &MetaReply, of: Repeats) -> Print {
        let sum = |reply: &MetaReply| {
            crc32c::crc32c(&encode(reply).expect("invariant: what was decoded encodes"))
        };
        let checksum = match (reply, of) {
            (MetaReply::Configuration(_), _) => 0,
            (MetaReply::Made { inode, .. }, _) => sum(&MetaReply::Inode(inode.clone())),
            (MetaReply::Reserved { inodes, .. }, _) => sum(&MetaReply::Inos(inodes.clone())),
            (MetaReply::Inode(inode), Repeats::ButWritten) => {
                let mut inode = inode.clone();
                (inode.attr.size, inode.attr.allocated) = Default::default();
                (inode.attr.mtime, inode.attr.ctime) = Default::default();
                sum(&MetaReply::Inode(inode))
            }
            (reply, _) => sum(reply),
        };
        Print { of, checksum }
    }

    /// Whether a reply is the same.
    pub(crate) fn is_of(self, reply: &MetaReply) -> bool {
        self == Print::new(reply, self.of)
    }
}
