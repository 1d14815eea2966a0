//! The table of locks of one file system, at the leader.
//!
//! **Who waits.** A request that may wait does so as long as
//! 1. another owner holds what conflicts, or
//! 2. an earlier request of another owner waits for what conflicts: so nobody is passed by for
//!    ever. This does not hold where that owner waits for this one, perhaps through others. A
//!    request that may not wait is refused only for the first reason, as POSIX wants it.
//!
//! **Circles.** A request of kind POSIX is refused if an owner that is in its way waits for its own
//! owner, perhaps through others, because of what these hold. Waits for the second reason close no
//! circle: in a circle each owner waits for the next one, so they do not hold there.
//!
//! **Upgrades.** While a POSIX request waits, its owner keeps what it has. A shared `flock` lock is
//! let go before its owner asks for an exclusive one. Both are as on Linux.
//!
//! **Each request counts once.** A *session* has the answers that a client may not have heard. What
//! is below the client's own mark and neither waits nor was answered late has been heard.
//!
//! **After a change of leader** requests are kept until every client has reasserted its locks, or
//! is dead, and are looked at then in the order in which they came.
//!
//! **Price.** A change looks at all requests that wait, and a request that waits at all owners of
//! its file and all earlier requests. That is fine for thousands of requests and hundreds of owners
//! of one file.

use super::pieces::Pieces;
use super::{
    ByteRange, LockHeld, LockKind, LockOp, LockOutcome, LockOwner, LockReply, LockRequest, LockWant,
};
use crate::authority::Refusal;
use crate::held::Mode;
use crate::message::{RequestId, Term};
use crate::rule::{Rule, obeys};
use std::collections::{BTreeMap, BTreeSet};
use strake_proto::{ClientId, Ino};

/// Requests of one client that wait, or whose answers it has not heard.
pub const REQUESTS_MAX: usize = 20_000;
/// Pieces of locks of one client. Each takes some 80 bytes.
pub const PIECES_MAX: usize = 250_000;

/// A message to a client.
pub type Message = (ClientId, LockReply);

/// An owner among those of all clients.
type Who = (ClientId, LockOwner);

/// How a piece is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    mode: Mode,
    pid: u32,
}

/// What a client has reasserted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Grace {
    parts: BTreeSet<u64>,
    /// How many there are, once the client has said so.
    count: Option<u64>,
}

/// An answer, with its moment.
type Answered = (LockOutcome, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    /// The client's mark: see [`LockRequest::Do`].
    below: RequestId,
    /// Answers of requests from the mark on.
    answered: BTreeMap<RequestId, Answered>,
    /// Answers of requests that had to wait, until the client has heard them.
    late: BTreeMap<RequestId, Answered>,
    /// Pieces of all its locks.
    pieces: usize,
    /// After a change of leader, until the client has reasserted its locks.
    grace: Option<Grace>,
}

impl Session {
    fn answer(&self, request: RequestId) -> Option<LockReply> {
        let reply = |(outcome, moment): &Answered, late| LockReply::Answer {
            request,
            outcome: *outcome,
            moment: *moment,
            late,
        };
        let at_once = self.answered.get(&request).map(|answered| reply(answered, false));
        at_once.or_else(|| self.late.get(&request).map(|answered| reply(answered, true)))
    }

    /// Takes the client's mark.
    fn heard_below(&mut self, below: RequestId) {
        self.below = self.below.max(below);
        self.answered = self.answered.split_off(&self.below);
    }
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    client: ClientId,
    request: RequestId,
    op: LockOp,
    /// Nobody has looked at it, perhaps because clients reassert.
    is_new: bool,
    /// The client was told that it waits, so it may pass over it in its mark.
    is_told: bool,
}

impl Waiting {
    fn who(&self) -> Who {
        (self.client, self.op.want().owner)
    }

    /// Whether the two want what only one of them can have.
    fn conflicts_with(&self, other: &Waiting) -> bool {
        let (one, two) = (self.op.want(), other.op.want());
        let modes = one.mode.zip(two.mode);
        self.who() != other.who()
            && (one.ino, one.owner.kind) == (two.ino, two.owner.kind)
            && one.range.overlaps(two.range)
            && modes.is_some_and(|(one, two)| !one.agrees(two))
    }
}

/// A request that waits, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Who asked.
    pub client: ClientId,
    /// What for.
    pub want: LockWant,
    /// A client that is in the way.
    pub holder: ClientId,
}

/// See the file's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockTable {
    term: Term,
    moment: u64,
    sessions: BTreeMap<ClientId, Session>,
    files: BTreeMap<Ino, BTreeMap<Who, Pieces<Lock>>>,
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    arrivals: u64,
}

impl LockTable {
    /// The table of a leader in its term. `clients` have joined earlier, and reassert their locks.
    pub fn new(term: Term, clients: &[ClientId]) -> LockTable {
        let session = || Session { grace: Some(Grace::default()), ..Session::default() };
        LockTable {
            term,
            moment: 0,
            sessions: clients.iter().map(|client| (*client, session())).collect(),
            files: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// A client has joined. It holds nothing.
    pub fn join(&mut self, client: ClientId) {
        let before = self.sessions.insert(client, Session::default());
        assert!(before.is_none(), "each life of a client has an id of its own");
    }

    /// A client has gone, or was declared dead: its locks are free.
    pub fn dead(&mut self, client: ClientId) -> Vec<Message> {
        self.sessions.remove(&client);
        self.waiting.retain(|_, waiting| waiting.client != client);
        self.files.values_mut().for_each(|owners| owners.retain(|who, _| who.0 != client));
        self.files.retain(|_, owners| !owners.is_empty());
        let mut messages = Vec::new();
        self.settle(&mut messages);
        messages
    }

    /// Takes a message that a client sent to the leader of a term.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn receive(
        &mut self,
        client: ClientId,
        term: Term,
        message: LockRequest,
    ) -> Result<Vec<Message>, Refusal> {
        if term != self.term && obeys(Rule::OtherTermsAreVoid) {
            return Ok(Vec::new());
        }
        if !self.sessions.contains_key(&client) {
            return Err(Refusal::Unknown);
        }
        let mut messages = Vec::new();
        match message {
            LockRequest::Do { request, below, op } => {
                self.take(client, request, below, op, &mut messages)?;
            }
            LockRequest::Cancel { request } => self.cancel(client, request, &mut messages),
            LockRequest::Heard { request } => self.heard(client, request),
            LockRequest::Reassert { part, ino, owner, locks } => {
                self.reassert(client, part, (ino, owner), &locks)?;
                messages.extend(self.end_grace(client, None));
            }
            LockRequest::Reasserted { parts } => {
                messages.extend(self.end_grace(client, Some(parts)));
            }
        }
        self.settle(&mut messages);
        Ok(messages)
    }

    /// Time has passed: late answers that no client has heard are sent again.
    pub fn tick(&self) -> Vec<Message> {
        let late = self.sessions.iter().flat_map(|(client, session)| {
            session.late.keys().filter_map(|request| Some((*client, session.answer(*request)?)))
        });
        late.collect()
    }

    fn session(&mut self, client: ClientId) -> &mut Session {
        self.sessions.get_mut(&client).expect("invariant: only those who joined are listened to")
    }

    fn take(
        &mut self,
        client: ClientId,
        request: RequestId,
        below: RequestId,
        op: LockOp,
        messages: &mut Vec<Message>,
    ) -> Result<(), Refusal> {
        let want = op.want();
        let is_whole = want.owner.kind == LockKind::Posix || want.range == ByteRange::ALL;
        if !is_whole || (!op.changes() && want.mode.is_none()) {
            return Err(Refusal::Invalid);
        }
        let session = self.session(client);
        session.heard_below(below);
        if let Some(answer) = session.answer(request) {
            messages.push((client, answer));
            return Ok(());
        }
        let (mark, kept) = (session.below, session.answered.len() + session.late.len());
        let mut own = self.waiting.iter().filter(|(_, waiting)| waiting.client == client);
        if let Some((arrival, _)) = own.clone().find(|(_, waiting)| waiting.request == request) {
            messages.extend(self.waits_text(*arrival));
            return Ok(());
        }
        if request < mark && obeys(Rule::LockRequestsCountOnce) {
            return Ok(());
        }
        if kept + own.by_ref().count() >= REQUESTS_MAX {
            return Err(Refusal::TooMany);
        }
        self.arrivals += 1;
        let waiting = Waiting { client, request, op, is_new: true, is_told: false };
        self.waiting.insert(self.arrivals, waiting);
        Ok(())
    }

    fn cancel(&mut self, client: ClientId, request: RequestId, messages: &mut Vec<Message>) {
        let session = self.session(client);
        if let Some(answer) = session.answer(request) {
            // Another outcome was faster. The client must live with it.
            messages.push((client, answer));
            return;
        }
        let is_heard = request < session.below || session.answered.len() >= REQUESTS_MAX;
        let found =
            self.waiting.iter().find(|(_, one)| (one.client, one.request) == (client, request));
        match found.map(|(arrival, _)| *arrival) {
            Some(arrival) => {
                let waiting = self.waiting.remove(&arrival);
                let late = waiting.is_some_and(|waiting| waiting.is_told);
                messages.push(self.answer(client, request, LockOutcome::Cancelled, late));
            }
            None if !is_heard && obeys(Rule::LockCancelsAreRemembered) => {
                messages.push(self.answer(client, request, LockOutcome::Cancelled, false));
            }
            None => {}
        }
    }

    fn heard(&mut self, client: ClientId, request: RequestId) {
        let session = self.session(client);
        if let Some(answered) = session.late.remove(&request)
            && request >= session.below
        {
            // A repetition of the request may still come.
            session.answered.insert(request, answered);
        }
    }

    fn reassert(
        &mut self,
        client: ClientId,
        part: u64,
        (ino, owner): (Ino, LockOwner),
        locks: &[LockHeld],
    ) -> Result<(), Refusal> {
        let Some(grace) = &self.session(client).grace else { return Ok(()) };
        if grace.parts.contains(&part) {
            return Ok(());
        }
        let who = (client, owner);
        for lock in locks {
            if self.in_the_way(ino, who, lock.range, lock.mode).next().is_some() {
                return Err(Refusal::Conflict);
            }
        }
        for lock in locks {
            self.put(ino, who, lock.range, Some(Lock { mode: lock.mode, pid: lock.pid }));
        }
        if let Some(grace) = &mut self.session(client).grace {
            grace.parts.insert(part);
        }
        Ok(())
    }

    /// Ends the grace of a client that has reasserted all. It is told so at each repetition.
    fn end_grace(&mut self, client: ClientId, count: Option<u64>) -> Option<Message> {
        let session = self.session(client);
        if let Some(grace) = &mut session.grace {
            grace.count = grace.count.or(count);
            let is_whole = grace.count == Some(grace.parts.len() as u64);
            if !is_whole && (grace.count.is_none() || obeys(Rule::ReassertedLocksAreCounted)) {
                return None;
            }
            session.grace = None;
        }
        Some((client, LockReply::Reasserted))
    }

    /// Whether some client has yet to reassert its locks.
    pub fn is_in_grace(&self) -> bool {
        self.sessions.values().any(|session| session.grace.is_some())
    }

    /// Answers what can be answered.
    fn settle(&mut self, messages: &mut Vec<Message>) {
        if self.is_in_grace() && obeys(Rule::LocksAreReassertedFirst) {
            return;
        }
        loop {
            let new = self.waiting.iter().find(|(_, waiting)| waiting.is_new);
            if let Some(arrival) = new.map(|(arrival, _)| *arrival) {
                self.look_at(arrival, messages);
                continue;
            }
            let Some(arrival) = self.waiting.keys().copied().find(|at| self.may_have(*at)) else {
                break;
            };
            let waiting = self.waiting.remove(&arrival).expect("invariant: it was just found");
            messages.push(self.grant(&waiting));
        }
        let new = self.waiting.iter().filter(|(_, waiting)| !waiting.is_told);
        for arrival in new.map(|(arrival, _)| *arrival).collect::<Vec<_>>() {
            messages.extend(self.waits_text(arrival));
            if let Some(waiting) = self.waiting.get_mut(&arrival) {
                waiting.is_told = true;
            }
        }
    }

    /// Looks at a request for the first time. It is answered, or waits for its turn.
    fn look_at(&mut self, arrival: u64, messages: &mut Vec<Message>) {
        let waiting = self.waiting.get_mut(&arrival).expect("invariant: it was just found");
        waiting.is_new = false;
        let waiting = waiting.clone();
        let (client, request, want) = (waiting.client, waiting.request, *waiting.op.want());
        let who = waiting.who();
        let outcome = match (waiting.op, want.mode) {
            (LockOp::Test(_), _) => Some(self.test(who, &want)),
            (_, None) => None,
            (op, Some(mode)) => {
                if want.owner.kind == LockKind::Flock && mode == Mode::Exclusive {
                    self.let_go_of_shared(who, want.ino);
                }
                let is_free = self.in_the_way(want.ino, who, want.range, mode).next().is_none();
                if self.is_full(client) {
                    Some(LockOutcome::Full)
                } else if matches!(op, LockOp::Set(_)) {
                    (!is_free).then_some(LockOutcome::WouldBlock)
                } else if want.owner.kind == LockKind::Posix && self.closes_circle(&waiting) {
                    Some(LockOutcome::Deadlock)
                } else {
                    return;
                }
            }
        };
        self.waiting.remove(&arrival);
        messages.push(match outcome {
            Some(outcome) => self.answer(client, request, outcome, false),
            None => self.grant(&waiting),
        });
    }

    fn is_full(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.pieces >= PIECES_MAX)
    }

    fn let_go_of_shared(&mut self, who: Who, ino: Ino) {
        let held = self.files.get(&ino).and_then(|owners| owners.get(&who));
        if held.is_some_and(|held| held.iter().any(|(_, lock)| lock.mode == Mode::Shared)) {
            self.put(ino, who, ByteRange::ALL, None);
        }
    }

    fn test(&self, who: Who, want: &LockWant) -> LockOutcome {
        let mode = want.mode.expect("invariant: a test names a mode");
        let others = self.in_the_way(want.ino, who, want.range, mode);
        let first = others.min_by_key(|(other, range, _)| (range.from, *other));
        match first {
            None => LockOutcome::Free,
            Some((other, range, lock)) => {
                let pid = if other.0 == who.0 { lock.pid } else { 0 };
                LockOutcome::Held { range, mode: lock.mode, pid }
            }
        }
    }

    /// Locks of others that `who` could not hold `range` beside.
    fn in_the_way(
        &self,
        ino: Ino,
        who: Who,
        range: ByteRange,
        mode: Mode,
    ) -> impl Iterator<Item = (Who, ByteRange, Lock)> + '_ {
        let owners = self.files.get(&ino).into_iter().flatten();
        let others = owners.filter(move |(other, _)| **other != who && other.1.kind == who.1.kind);
        others.flat_map(move |(other, pieces)| {
            let conflicts = pieces.over(range).filter(move |(_, lock)| !lock.mode.agrees(mode));
            conflicts.map(move |(range, lock)| (*other, range, lock))
        })
    }

    /// Owners that hold what a request waits for.
    fn holders(&self, waiting: &Waiting) -> BTreeSet<Who> {
        let want = waiting.op.want();
        let Some(mode) = want.mode else { return BTreeSet::new() };
        let others = self.in_the_way(want.ino, waiting.who(), want.range, mode);
        others.map(|(other, _, _)| other).collect()
    }

    /// Whether a request that waits may have what it wants: see the file's head.
    fn may_have(&self, arrival: u64) -> bool {
        let this = &self.waiting[&arrival];
        if this.is_new || !self.holders(this).is_empty() {
            return false;
        }
        let mut earlier = self.waiting.range(..arrival).map(|(_, waiting)| waiting);
        !obeys(Rule::LockersWaitInOrder)
            || !earlier.any(|other| {
                other.conflicts_with(this) && !self.waits_for(other.who(), this.who(), true)
            })
    }

    /// Whether an owner waits for another, perhaps through others. `in_order` counts waits behind
    /// earlier requests as well.
    fn waits_for(&self, from: Who, to: Who, in_order: bool) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([from]), vec![from]);
        while let Some(who) = left.pop() {
            if who == to {
                return true;
            }
            let own = |one: &Waiting| one.who() == who && !one.is_new;
            for (arrival, waiting) in self.waiting.iter().filter(|(_, one)| own(one)) {
                let mut next = self.holders(waiting);
                if in_order {
                    let earlier = self.waiting.range(..*arrival).map(|(_, earlier)| earlier);
                    let before = earlier.filter(|earlier| earlier.conflicts_with(waiting));
                    next.extend(before.map(Waiting::who));
                }
                left.extend(next.into_iter().filter(|who| seen.insert(*who)));
            }
        }
        false
    }

    fn closes_circle(&self, waiting: &Waiting) -> bool {
        let mut holders = self.holders(waiting).into_iter();
        holders.any(|holder| self.waits_for(holder, waiting.who(), false))
            && obeys(Rule::LockCirclesAreRefused)
    }

    fn grant(&mut self, waiting: &Waiting) -> Message {
        let want = *waiting.op.want();
        let lock = want.mode.map(|mode| Lock { mode, pid: want.pid });
        self.put(want.ino, waiting.who(), want.range, lock);
        self.answer(waiting.client, waiting.request, LockOutcome::Granted, waiting.is_told)
    }

    fn put(&mut self, ino: Ino, who: Who, range: ByteRange, lock: Option<Lock>) {
        let owners = self.files.entry(ino).or_default();
        let pieces = owners.entry(who).or_default();
        let before = pieces.count();
        pieces.put(range, lock);
        let after = pieces.count();
        if after == 0 {
            owners.remove(&who);
        }
        if owners.is_empty() {
            self.files.remove(&ino);
        }
        let session = self.session(who.0);
        session.pieces = session.pieces + after - before;
    }

    fn answer(
        &mut self,
        client: ClientId,
        request: RequestId,
        outcome: LockOutcome,
        late: bool,
    ) -> Message {
        self.moment += 1;
        let moment = self.moment;
        let session = self.session(client);
        let answers = if late { &mut session.late } else { &mut session.answered };
        answers.insert(request, (outcome, moment));
        (client, LockReply::Answer { request, outcome, moment, late })
    }

    /// Says that a request waits, if somebody has looked at it.
    fn waits_text(&self, arrival: u64) -> Option<Message> {
        let waiting = &self.waiting[&arrival];
        let holder = self.holder(arrival)?;
        Some((waiting.client, LockReply::Waits { request: waiting.request, holder }))
    }

    /// A client that is in the way of a request that waits.
    fn holder(&self, arrival: u64) -> Option<ClientId> {
        let waiting = &self.waiting[&arrival];
        if waiting.is_new {
            return None;
        }
        let holders = self.holders(waiting);
        let mut earlier = self.waiting.range(..arrival).map(|(_, waiting)| waiting);
        let before = || earlier.find(|other| other.conflicts_with(waiting)).map(Waiting::who);
        holders.first().copied().or_else(before).map(|who| who.0)
    }

    /// All requests that wait, in order.
    pub fn waits(&self) -> Vec<LockWait> {
        let waits = self.waiting.iter().filter_map(|(arrival, waiting)| {
            let holder = self.holder(*arrival)?;
            Some(LockWait { client: waiting.client, want: *waiting.op.want(), holder })
        });
        waits.collect()
    }

    /// What an owner of a client holds of a file.
    pub fn held(&self, client: ClientId, ino: Ino, owner: LockOwner) -> Vec<LockHeld> {
        let pieces = self.files.get(&ino).and_then(|owners| owners.get(&(client, owner)));
        let held =
            |(range, lock): (ByteRange, Lock)| LockHeld { range, mode: lock.mode, pid: lock.pid };
        pieces.map(|pieces| pieces.iter().map(held).collect()).unwrap_or_default()
    }

    /// The number of files in which somebody has a lock.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Whether nobody waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Walks the whole table.
    ///
    /// # Panics
    /// If two owners hold what conflicts, something is kept for a client that is gone, or a
    /// request waits that nobody holds up.
    pub fn check(&self) {
        let mut pieces_of: BTreeMap<ClientId, usize> = BTreeMap::new();
        for (ino, owners) in &self.files {
            assert!(!owners.is_empty(), "inode {ino}: nothing is not kept");
            for (who, pieces) in owners {
                assert!(self.sessions.contains_key(&who.0), "inode {ino}: {who:?} is gone");
                assert!(!pieces.is_empty(), "inode {ino}: nothing is not kept");
                pieces.check();
                *pieces_of.entry(who.0).or_default() += pieces.count();
                for (range, lock) in pieces.iter() {
                    let other = self.in_the_way(*ino, *who, range, lock.mode).next();
                    assert!(other.is_none(), "inode {ino}: {who:?} beside {other:?}");
                }
            }
        }
        for (client, session) in &self.sessions {
            let counted = pieces_of.get(client).copied().unwrap_or_default();
            assert_eq!(session.pieces, counted, "client {client}: pieces are counted");
        }
        for (arrival, waiting) in &self.waiting {
            assert!(self.sessions.contains_key(&waiting.client), "only clients wait");
            assert!(self.is_in_grace() || !self.may_have(*arrival), "{waiting:?} waits for nobody");
        }
    }
}

#[cfg(test)]
#[path = "table_test.rs"]
mod table_test;
