//! Copies: how a state that machines keep themselves comes to a replica that needs it.
//!
//! A replica needs a *copy* if its leader has no longer the entries that follow its log, or if its
//! machine *lacks* its state: it is new on an old journal, or an earlier copy broke off. The
//! machines make and take the parts (`machine.rs`). The core says which part is due, and when the
//! copy is whole.
//!
//! 1. The leader orders a part from its own machine ([`CopyOrder`]), sends it, and repeats it with
//!    its heartbeats until the other machine has taken it. Then the next part is due.
//! 2. From the first part on the receiver lacks its state. It takes no entries. It still votes, by
//!    the log that it has. If only it has enough, it leads until a majority has its log.
//! 3. A part may say that the copy is whole, at a stamp. The receiver's machine makes that durable.
//!    Then the stamp takes the place of the receiver's log, and the receiver acknowledges it.
//!
//! A copy that is whole below what the receiver knows to be committed is not the end: the leader
//! sends further parts.

use super::{Core, Role};
use crate::entry::Snapshot;
use crate::message::{Body, CopyId, CopyPart, Verdict};
use crate::rule::{Rule, obeys};
use crate::types::{Bytes, Life, Position, ReplicaId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a leader's machine is to do for the copies to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOrder {
    /// Make this part, and hand it to [`Core::copy_made`].
    Make {
        /// For whom.
        to: ReplicaId,
        /// Of which copy.
        copy: CopyId,
        /// Which part, from 0 on.
        number: u64,
    },
    /// The copy to this replica is over.
    End {
        /// For whom it was.
        to: ReplicaId,
    },
}

/// A part for this replica's own machine. When the machine has it, [`Core::copy_taken`] is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedPart {
    /// Of which copy.
    pub copy: CopyId,
    /// Which part. The machine forgets what it had at part 0.
    pub number: u64,
    /// The part.
    pub bytes: Bytes,
    /// If the copy is whole with this part: where. The machine makes its state durable then.
    pub whole: Option<Position>,
}

/// The copies that a leader sends.
#[derive(Default)]
pub(super) struct Copies {
    count: u64,
    under_way: BTreeMap<ReplicaId, Outgoing>,
    /// The round in which the last copy to a replica ended.
    ended: BTreeMap<ReplicaId, u64>,
}

/// A copy on its way.
struct Outgoing {
    copy: CopyId,
    number: u64,
    /// The part of this number, when the machine has made it.
    part: Option<(Bytes, Option<Snapshot>)>,
    /// Whether the other one has taken a part since the last heartbeat.
    has_moved: bool,
}

impl Copies {
    pub(super) fn is_under_way(&self, to: ReplicaId) -> bool {
        self.under_way.contains_key(&to)
    }

    /// An earlier life of this replica has taken what was sent, or it is no member any more.
    pub(super) fn forget(&mut self, id: ReplicaId) {
        self.under_way.remove(&id);
        self.ended.remove(&id);
    }

    /// Another replica agrees up to a position. Returns whether that ends a copy.
    pub(super) fn end_at(&mut self, to: ReplicaId, position: Position, round: u64) -> bool {
        let part = self.under_way.get(&to).and_then(|outgoing| outgoing.part.as_ref());
        let whole = part.and_then(|(_, whole)| whole.as_ref());
        let ends = whole.is_some_and(|whole| whole.stamp.position <= position);
        if ends {
            self.under_way.remove(&to);
            self.ended.insert(to, round);
        }
        ends
    }
}

/// What a core knows of a machine that keeps its own state.
#[derive(Default)]
pub(super) struct Keeping {
    /// Whether the machine's state is not whole.
    lacks: bool,
    incoming: Option<Incoming>,
    /// The newest copy that has begun here.
    newest: CopyId,
    /// The copies that this replica's machine makes, as it was told.
    told: BTreeMap<ReplicaId, CopyId>,
}

/// A copy that arrives.
struct Incoming {
    leader: (ReplicaId, Life),
    round: u64,
    next: u64,
    /// Whether the machine has the part `next` and is not done.
    is_busy: bool,
    /// What that part makes whole.
    whole: Option<Snapshot>,
}

impl Keeping {
    pub(super) fn new(lacks: bool) -> Keeping {
        Keeping { lacks, ..Keeping::default() }
    }
}

impl Core {
    /// Whether the machine keeps its own state.
    pub(super) fn keeps(&self) -> bool {
        self.keeping.is_some()
    }

    /// Whether the machine's state is not whole.
    pub fn lacks(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.lacks)
    }

    /// Begins a copy to a replica, if there is none.
    pub(super) fn begin_copy(&mut self, to: ReplicaId) {
        let lacks = self.lacks();
        let Role::Leader(leading) = &mut self.role else { return };
        let copies = &mut leading.copies;
        if lacks || copies.is_under_way(to) {
            return;
        }
        copies.count += 1;
        let (copy, number) = (CopyId { term: self.hard.term, count: copies.count }, 0);
        copies.under_way.insert(to, Outgoing { copy, number, part: None, has_moved: false });
        self.output.orders.push(CopyOrder::Make { to, copy, number });
    }

    /// A replica says that its machine lacks its state. It may have said so before a copy ended.
    pub(super) fn take_lack(&mut self, from: ReplicaId, round: u64) {
        let Role::Leader(leading) = &self.role else { return };
        let is_late = leading.copies.ended.get(&from).is_some_and(|ended| round <= *ended);
        if self.keeps() && !is_late {
            self.begin_copy(from);
        }
    }

    /// A heartbeat for a replica that takes a copy. A part that is not answered is sent again.
    pub(super) fn keep_copying(&mut self, to: ReplicaId) {
        let Role::Leader(leading) = &mut self.role else { return };
        let round = leading.round;
        let Some(outgoing) = leading.copies.under_way.get_mut(&to) else { return };
        let is_due = !std::mem::take(&mut outgoing.has_moved);
        let (previous, committed) = (self.log.base(), self.committed_for_others());
        self.send(to, Body::Append { previous, entries: Vec::new(), committed, round });
        if is_due {
            self.send_copy_part(to);
        }
    }

    fn send_copy_part(&mut self, to: ReplicaId) {
        let Role::Leader(leading) = &self.role else { return };
        let Some(outgoing) = leading.copies.under_way.get(&to) else { return };
        let Some((bytes, whole)) = outgoing.part.clone() else { return };
        let (copy, number, round) = (outgoing.copy, outgoing.number, leading.round);
        self.send(to, Body::Copy(CopyPart { copy, number, bytes, whole, round }));
    }

    /// The machine has made a part that was ordered. `whole` is the position at which the copy is
    /// whole with it. Without a part the machine has given the copy up, and another one begins.
    pub fn copy_made(
        &mut self,
        to: ReplicaId,
        copy: CopyId,
        number: u64,
        part: Option<(Bytes, Option<Position>)>,
    ) {
        let Role::Leader(leading) = &mut self.role else { return };
        let is_such = |outgoing: &&mut Outgoing| {
            (outgoing.copy, outgoing.number) == (copy, number) && outgoing.part.is_none()
        };
        let Some(outgoing) = leading.copies.under_way.get_mut(&to).filter(is_such) else { return };
        let Some((bytes, whole)) = part else {
            leading.copies.under_way.remove(&to);
            return self.begin_copy(to);
        };
        let whole = whole.and_then(|at| self.log.snapshot_at(at, Bytes::from(&[][..])));
        outgoing.part = Some((bytes, whole));
        self.send_copy_part(to);
    }

    /// Another replica's machine has all parts before `next`.
    pub(super) fn take_copied(&mut self, from: ReplicaId, copy: CopyId, next: u64) {
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(outgoing) = leading.copies.under_way.get_mut(&from) else { return };
        if outgoing.copy == copy && outgoing.part.is_some() && next == outgoing.number + 1 {
            (outgoing.number, outgoing.part, outgoing.has_moved) = (next, None, true);
            self.output.orders.push(CopyOrder::Make { to: from, copy, number: next });
        }
    }

    /// A part of a copy has come from the leader that this replica follows.
    pub(super) fn take_copy(&mut self, from: ReplicaId, life: Life, part: CopyPart) {
        let CopyPart { copy, number, bytes, whole, round } = part;
        let (committed, supports, term) = (self.committed, self.config.supports, self.hard.term);
        let Some(keeping) = &mut self.keeping else { return };
        let is_old = copy.term != term || copy < keeping.newest;
        if is_old && obeys(Rule::OldCopiesAreVoid) {
            return;
        }
        if copy != keeping.newest {
            if number != 0 {
                return self.reply(from, life, Verdict::Lacks, round);
            }
            keeping.newest = copy;
            keeping.lacks = true;
            let (leader, next, is_busy) = ((from, life), 0, false);
            keeping.incoming = Some(Incoming { leader, round, next, is_busy, whole: None });
        }
        let Some(incoming) = &mut keeping.incoming else {
            return self.reply(from, life, Verdict::Agrees(committed), round);
        };
        (incoming.leader, incoming.round) = ((from, life), round);
        if number < incoming.next {
            let verdict = Verdict::Copied { copy, next: incoming.next };
            return self.reply(from, life, verdict, round);
        }
        if number > incoming.next || incoming.is_busy {
            return;
        }
        if let Some(whole) = &whole
            && whole.level > supports
        {
            return self.fail(super::Fault::Level(whole.level));
        }
        incoming.is_busy = true;
        let covers = |whole: &Snapshot| {
            whole.stamp.position >= committed || !obeys(Rule::CopiesReachTheCommitted)
        };
        incoming.whole = whole.filter(covers);
        let whole = incoming.whole.as_ref().map(|whole| whole.stamp.position);
        self.output.received.push(ReceivedPart { copy, number, bytes, whole });
    }

    /// The machine has taken this part. If it made the copy whole, that is durable.
    pub fn copy_taken(&mut self, now: Duration, copy: CopyId, number: u64) {
        self.now = self.now.max(now);
        let Some(keeping) = &mut self.keeping else { return };
        let is_newest = keeping.newest == copy;
        let is_such = |incoming: &&mut Incoming| incoming.is_busy && incoming.next == number;
        let incoming = keeping.incoming.as_mut().filter(|_| is_newest).filter(is_such);
        let Some(incoming) = incoming else { return };
        (incoming.is_busy, incoming.next) = (false, number + 1);
        let ((leader, life), round) = (incoming.leader, incoming.round);
        let verdict = match incoming.whole.take() {
            None => Verdict::Copied { copy, next: number + 1 },
            Some(whole) => {
                (keeping.incoming, keeping.lacks) = (None, false);
                let position = whole.stamp.position;
                self.install(Arc::new(whole));
                Verdict::Agrees(position)
            }
        };
        if copy.term == self.hard.term && self.leader == Some(leader) {
            self.reply(leader, life, verdict, round);
        }
    }

    /// Says which copies are over that the machine was told to make.
    pub(super) fn end_copies(&mut self) {
        let Some(keeping) = &mut self.keeping else { return };
        let under_way = match &self.role {
            Role::Leader(leading) => {
                let under_way = leading.copies.under_way.iter();
                under_way.map(|(&to, outgoing)| (to, outgoing.copy)).collect()
            }
            _ => BTreeMap::new(),
        };
        let is_over = |to: &&ReplicaId| !under_way.contains_key(to);
        let ends: Vec<ReplicaId> = keeping.told.keys().filter(is_over).copied().collect();
        self.output.orders.extend(ends.into_iter().map(|to| CopyOrder::End { to }));
        keeping.told = under_way;
    }
}
