//! What a leader does: copies entries to the others, commits what a quorum has, confirms reads,
//! and changes the membership.

use super::copying::Copies;
use super::{Core, Lingering, Role};
use crate::entry::{Payload, Snapshot};
use crate::membership::Membership;
use crate::message::{Body, Part, Verdict};
use crate::rule::{Rule, obeys};
use crate::types::{Bytes, Position, ReplicaId, Stamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Reads that wait for a majority. More are refused.
const READS_MAX: usize = 10_000;

/// What a leader knows, beside its log.
pub(super) struct Leading {
    others: BTreeMap<ReplicaId, Progress>,
    pub(super) copies: Copies,
    /// The entry that began the term.
    begin: Position,
    pub(super) round: u64,
    /// Rounds that no majority has answered yet, and when the others were asked.
    asked: VecDeque<(u64, Duration)>,
    /// When the newest round was asked that a majority has answered.
    answered: Option<Duration>,
    /// Reads with the round that confirms them, in order.
    reads: VecDeque<Read>,
    heartbeat_at: Duration,
    /// Whether all are to hear from the leader at the end of this step.
    is_asked: bool,
    since: Duration,
}

struct Read {
    number: u64,
    position: Position,
    round: u64,
}

/// How far another replica is.
struct Progress {
    /// The next entry to send.
    next: Position,
    /// Its log agrees up to here.
    agrees: Position,
    /// Whether its word counts.
    counts: bool,
    heard: Option<Duration>,
    /// The newest round that it has answered.
    round: u64,
    supports: Option<u32>,
    /// Until its log is known to agree somewhere, one message at a time goes out.
    is_probed: bool,
    sending: Option<Sending>,
}

struct Sending {
    snapshot: Arc<Snapshot>,
    received: u64,
    /// Whether it answered since the last heartbeat.
    has_moved: bool,
}

impl Progress {
    fn new(last: Position) -> Progress {
        Progress {
            next: last.next(),
            agrees: Position::START,
            counts: false,
            heard: None,
            round: 0,
            supports: None,
            is_probed: true,
            sending: None,
        }
    }
}

impl Leading {
    /// When the others were asked last, of the times that a majority has answered.
    pub(super) fn asked(&self) -> Option<Duration> {
        self.answered
    }

    /// An earlier life of this replica has said what is known of it.
    pub(super) fn forget(&mut self, id: ReplicaId, last: Position) {
        if let Some(progress) = self.others.get_mut(&id) {
            *progress = Progress::new(last);
        }
        self.copies.forget(id);
    }

    pub(super) fn begin(&self) -> Position {
        self.begin
    }
}

/// Why something was not taken into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another replica leads, if it is known.
    #[error("this replica does not lead")]
    NotLeader(Option<ReplicaId>),
    /// Too much waits to become durable, or for a snapshot.
    #[error("the log has no room now")]
    Busy,
    /// The log goes on at another place, or in another term, than the caller thinks.
    #[error("the log does not end there")]
    Moved,
    /// The entry is too long.
    #[error("the entry is longer than the limit")]
    TooLarge,
    /// The group's feature level is lower (R32).
    #[error("the entry needs feature level {needed}, and the group has {level}")]
    AboveLevel {
        /// The entry's.
        needed: u32,
        /// The group's.
        level: u32,
    },
}

/// Why the membership or the level is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefusal {
    /// As for an entry.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A change is under way.
    #[error("another change is under way")]
    UnderWay,
    /// The new membership makes no sense.
    #[error("no such group: it needs a voter, and at most 16 members")]
    Invalid,
    /// A voter to be lacks too much. It must be a learner first.
    #[error("{0} is no learner that has caught up")]
    Behind(ReplicaId),
    /// A member does not understand that level, or has not said.
    #[error("{0} does not understand the level")]
    Unsupported(ReplicaId),
}

/// How far a member is, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Who.
    pub id: ReplicaId,
    /// Its log agrees with the leader's up to here.
    pub agrees: Position,
    /// How many entries it lacks.
    pub lag: u64,
    /// Whether it was heard within the time of an election.
    pub is_heard: bool,
    /// Whether it decides.
    pub is_voter: bool,
}

impl Core {
    /// Adds an entry, if this replica leads. It is committed when its stamp is; another entry at
    /// its position means that it never will be.
    ///
    /// # Errors
    /// If it is refused. Then it is in no log.
    pub fn propose(&mut self, level: u32, bytes: Bytes) -> Result<Stamp, Refusal> {
        self.may_append()?;
        let known = self.level();
        if bytes.len() > self.config.entry_bytes_max {
            return Err(Refusal::TooLarge);
        }
        if level > known {
            return Err(Refusal::AboveLevel { needed: level, level: known });
        }
        let stamp = self.append(Payload::Data { level, bytes });
        self.advance_commit();
        Ok(stamp)
    }

    /// As [`Core::propose`], if the entry has this stamp then: for a caller that has decided ahead
    /// what the entry does at this place. The entry may linger ([`Config::linger`]).
    ///
    /// [`Config::linger`]: super::Config::linger
    ///
    /// # Errors
    /// As [`Core::propose`]. [`Refusal::Moved`] if it would have another stamp.
    pub fn propose_at(
        &mut self,
        now: Duration,
        stamp: Stamp,
        level: u32,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        self.now = self.now.max(now);
        self.may_append()?;
        if self.next() != Some(stamp) {
            return Err(Refusal::Moved);
        }
        let length = bytes.len();
        let before = self.lingering.take();
        let may_linger = before.is_some() || self.changed.entries_from.is_none();
        if let Err(refusal) = self.propose(level, bytes) {
            self.lingering = before;
            return Err(refusal);
        }
        if may_linger && !self.config.linger.is_zero() {
            let until = self.now + self.config.linger;
            let first = Lingering { from: stamp.position, until, bytes: 0 };
            let mut lingering = before.unwrap_or(first);
            lingering.bytes += length;
            self.lingering = Some(lingering);
        }
        Ok(())
    }

    /// Asks whether this is still the leader. The answer is in [`super::Output::reads`].
    ///
    /// # Errors
    /// If it knows that it is not, or if too many ask.
    pub fn read(&mut self, number: u64) -> Result<(), Refusal> {
        let (committed, hint) = (self.committed, self.leader);
        let Role::Leader(leading) = &mut self.role else { return Err(Refusal::NotLeader(hint)) };
        if leading.reads.len() >= READS_MAX {
            return Err(Refusal::Busy);
        }
        leading.round += 1;
        // What earlier leaders committed is below the entry that began this term.
        let position = committed.max(leading.begin);
        leading.reads.push_back(Read { number, position, round: leading.round });
        leading.is_asked = true;
        self.confirm_reads();
        Ok(())
    }

    /// Changes the members. The change ends by itself, also with another leader.
    ///
    /// # Errors
    /// If it is refused.
    pub fn change(
        &mut self,
        voters: BTreeSet<ReplicaId>,
        learners: BTreeSet<ReplicaId>,
    ) -> Result<Stamp, ChangeRefusal> {
        self.may_append()?;
        let old = self.log.membership().clone();
        if old.is_joint() || self.log.membership_position() > self.committed {
            return Err(ChangeRefusal::UnderWay);
        }
        let Role::Leader(leading) = &self.role else {
            return Err(Refusal::NotLeader(self.leader).into());
        };
        if self.committed < leading.begin {
            return Err(ChangeRefusal::UnderWay);
        }
        let window = self.config.window_entries;
        let last = self.log.last().position.0;
        for &id in voters.difference(&old.voters).filter(|&&id| id != self.config.id) {
            let progress = leading.others.get(&id);
            let is_near = |progress: &&Progress| {
                progress.counts && last.saturating_sub(progress.agrees.0) <= window
            };
            if progress.filter(is_near).is_none() {
                return Err(ChangeRefusal::Behind(id));
            }
        }
        let outgoing = if voters == old.voters { BTreeSet::new() } else { old.voters };
        let members = Membership { voters, outgoing, learners };
        if !members.is_valid() {
            return Err(ChangeRefusal::Invalid);
        }
        Ok(self.append_membership(members))
    }

    /// Raises the feature level (R32). It never falls.
    ///
    /// # Errors
    /// If it is refused, or if a member does not understand it.
    pub fn raise_level(&mut self, level: u32) -> Result<Stamp, ChangeRefusal> {
        self.may_append()?;
        let Role::Leader(leading) = &self.role else {
            return Err(Refusal::NotLeader(self.leader).into());
        };
        let supports = |id: &ReplicaId| leading.others.get(id).and_then(|other| other.supports);
        if level < self.log.level_at(self.log.last().position) {
            return Err(ChangeRefusal::Invalid);
        }
        if level > self.config.supports {
            return Err(ChangeRefusal::Unsupported(self.config.id));
        }
        let lacks = |id: &ReplicaId| supports(id).is_none_or(|supports| supports < level);
        if let Some(id) = self.others().into_iter().find(lacks) {
            return Err(ChangeRefusal::Unsupported(id));
        }
        let stamp = self.append(Payload::Level(level));
        self.advance_commit();
        Ok(stamp)
    }

    /// How far the members are, if this is the leader.
    pub fn members(&self) -> Vec<MemberStatus> {
        let Role::Leader(leading) = &self.role else { return Vec::new() };
        let (members, last) = (self.log.membership(), self.log.last().position);
        let status = |id: ReplicaId| {
            let other = leading.others.get(&id);
            let agrees = match other {
                Some(progress) => progress.agrees,
                None => self.durable,
            };
            let heard = other.is_none_or(|progress| self.is_near(progress.heard));
            let lag = last.0.saturating_sub(agrees.0);
            MemberStatus { id, agrees, lag, is_heard: heard, is_voter: members.is_voter(id) }
        };
        members.all().into_iter().map(status).collect()
    }

    fn is_near(&self, heard: Option<Duration>) -> bool {
        heard.is_some_and(|heard| self.now.saturating_sub(heard) < self.config.election)
    }

    fn may_append(&self) -> Result<(), Refusal> {
        if !self.is_leader() {
            return Err(Refusal::NotLeader(self.leader));
        }
        let has_room = self.log.bytes() < self.config.log_bytes_max;
        if has_room { Ok(()) } else { Err(Refusal::Busy) }
    }

    /// Begins a term as its leader.
    pub(super) fn lead(&mut self) {
        let last = self.log.last().position;
        self.role = Role::Leader(Box::new(Leading {
            others: BTreeMap::new(),
            copies: Copies::default(),
            begin: last.next(),
            round: 0,
            asked: VecDeque::new(),
            answered: None,
            reads: VecDeque::new(),
            heartbeat_at: self.now + self.config.heartbeat,
            is_asked: true,
            since: self.now,
        }));
        self.leader = None;
        self.note_others();
        self.append(Payload::Begin);
        self.advance_commit();
    }

    /// The leader keeps account of exactly the other members.
    fn note_others(&mut self) {
        let (others, last) = (self.others(), self.log.last().position);
        let Role::Leader(leading) = &mut self.role else { return };
        let gone = leading.others.keys().filter(|id| !others.contains(id));
        gone.for_each(|&id| leading.copies.forget(id));
        leading.others.retain(|id, _| others.contains(id));
        for id in others {
            leading.others.entry(id).or_insert_with(|| Progress::new(last));
        }
    }

    fn append_membership(&mut self, members: Membership) -> Stamp {
        let stamp = self.append(Payload::Membership(members));
        self.note_others();
        self.advance_commit();
        stamp
    }

    /// What a leader does from time to time.
    pub(super) fn lead_on(&mut self) {
        let Role::Leader(leading) = &self.role else { return };
        let is_supported = self.log.membership().has_quorum(|id| {
            let other = leading.others.get(&id);
            id == self.config.id
                || other.is_some_and(|other| other.counts && self.is_near(other.heard))
        });
        let is_young = self.now.saturating_sub(leading.since) < self.config.election;
        if (!is_supported && !is_young) || self.is_stalled() {
            return self.become_follower(self.hard.term, None);
        }
        if self.now >= leading.heartbeat_at {
            self.send_to_all(true);
        }
    }

    /// Fails all reads: this is no leader any more.
    pub(super) fn fail_reads(&mut self) {
        if let Role::Leader(leading) = &mut self.role {
            let reads = leading.reads.drain(..);
            self.output.reads.extend(reads.map(|read| (read.number, None)));
        }
    }

    /// Sends what was appended in this step.
    pub(super) fn send_new_entries(&mut self) {
        let Role::Leader(leading) = &mut self.role else { return };
        let is_asked = std::mem::take(&mut leading.is_asked);
        if is_asked || (self.changed.entries_from.is_some() && self.lingering.is_none()) {
            self.send_to_all(is_asked);
        }
    }

    /// Sends entries to everyone who may have some; with `force` also none, to be heard.
    fn send_to_all(&mut self, force: bool) {
        let Role::Leader(leading) = &mut self.role else { return };
        if force {
            leading.heartbeat_at = self.now + self.config.heartbeat;
            leading.round += 1;
            leading.asked.push_back((leading.round, self.now));
            let is_of_use =
                |(_, at): &(u64, Duration)| self.now.saturating_sub(*at) < self.config.lease;
            while leading.asked.front().is_some_and(|asked| !is_of_use(asked)) {
                leading.asked.pop_front();
            }
        }
        let ids: Vec<ReplicaId> = leading.others.keys().copied().collect();
        ids.into_iter().for_each(|id| self.send_entries(id, force));
    }

    /// Sends entries to one replica.
    fn send_entries(&mut self, to: ReplicaId, force: bool) {
        let Role::Leader(leading) = &mut self.role else { return };
        let round = leading.round;
        if leading.copies.is_under_way(to) {
            return if force {
                self.keep_copying(to)
            };
        }
        let Some(progress) = leading.others.get_mut(&to) else { return };
        if self.keeping.is_some() && progress.next <= self.log.base().position {
            return self.begin_copy(to);
        }
        if progress.sending.is_none() && progress.next <= self.log.base().position {
            let Some(snapshot) = self.log.snapshot().cloned() else { return };
            progress.sending = Some(Sending { snapshot, received: 0, has_moved: false });
            return self.send_part(to);
        }
        if let Some(sending) = &mut progress.sending {
            // The last part may be lost. While parts are answered, answers bring the next ones.
            if force && !std::mem::take(&mut sending.has_moved) {
                self.send_part(to);
            }
            return;
        }
        let is_full = progress.next.0 - 1 > progress.agrees.0 + self.config.window_entries;
        if !force && (progress.is_probed || is_full) {
            return;
        }
        let previous = progress.next.previous();
        let mut entries = Vec::new();
        let mut bytes = 0;
        if !is_full {
            let end = self.lingering.as_ref().map(|lingering| lingering.from);
            let known = self.log.from(progress.next).iter();
            let known = known.take_while(|entry| end.is_none_or(|end| entry.position < end));
            for entry in known.take(self.config.window_entries as usize) {
                bytes += entry.cost();
                entries.push(entry.clone());
                if bytes >= self.config.append_bytes {
                    break;
                }
            }
        }
        if entries.is_empty() && !force {
            return;
        }
        if !progress.is_probed {
            progress.next = Position(progress.next.0 + entries.len() as u64);
        }
        let term = self.log.term_at(previous).expect("invariant: what follows the base is there");
        let previous = Stamp { term, position: previous };
        let committed = self.committed_for_others();
        self.send(to, Body::Append { previous, entries, committed, round });
    }

    fn send_part(&mut self, to: ReplicaId) {
        let Role::Leader(leading) = &self.role else { return };
        let Some(progress) = leading.others.get(&to) else { return };
        let Some(sending) = &progress.sending else { return };
        let snapshot = &sending.snapshot;
        let start = (sending.received as usize).min(snapshot.bytes.len());
        let end = (start + self.config.part_bytes).min(snapshot.bytes.len());
        let part = Part {
            stamp: snapshot.stamp,
            membership: snapshot.membership.clone(),
            level: snapshot.level,
            length: snapshot.bytes.len() as u64,
            offset: start as u64,
            bytes: Bytes::from(&snapshot.bytes[start..end]),
            round: leading.round,
        };
        self.send(to, Body::Part(part));
    }

    /// Another replica has answered in this term.
    pub(super) fn take_appended(
        &mut self,
        from: ReplicaId,
        verdict: Verdict,
        round: u64,
        counts: bool,
        supports: u32,
    ) {
        let last = self.log.last().position;
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(progress) = leading.others.get_mut(&from) else { return };
        progress.heard = Some(self.now);
        progress.supports = Some(supports);
        progress.counts |= counts;
        progress.round = progress.round.max(round.min(leading.round));
        match verdict {
            Verdict::Agrees(position) if position <= last => {
                progress.agrees = progress.agrees.max(position);
                progress.next = progress.next.max(progress.agrees.next());
                progress.is_probed = false;
                let is_installed = |sending: &Sending| sending.snapshot.stamp.position <= position;
                let ends = leading.copies.end_at(from, position, leading.round);
                if ends || progress.sending.as_ref().is_some_and(is_installed) {
                    progress.sending = None;
                    progress.next = progress.agrees.next();
                }
                self.send_entries(from, false);
            }
            Verdict::Agrees(_) => {}
            Verdict::Differs { previous, hint } => {
                // A message that was overtaken says nothing new.
                let is_new = previous > progress.agrees && previous < progress.next;
                let is_sent = progress.sending.is_some() || leading.copies.is_under_way(from);
                if is_new && !is_sent {
                    let next = previous.min(hint.next()).max(progress.agrees.next());
                    progress.next = next;
                    progress.is_probed = true;
                    self.send_entries(from, true);
                }
            }
            Verdict::Lacks => self.take_lack(from, round),
            Verdict::Copied { copy, next } => self.take_copied(from, copy, next),
            Verdict::Received { position, bytes } => {
                let Some(sending) = &mut progress.sending else { return };
                if sending.snapshot.stamp.position == position && bytes != sending.received {
                    sending.received = bytes.min(sending.snapshot.bytes.len() as u64);
                    sending.has_moved = true;
                    self.send_part(from);
                }
            }
        }
        self.advance_commit();
        self.confirm_reads();
        self.extend_lease();
    }

    /// Notes which round a majority has answered by now.
    fn extend_lease(&mut self) {
        let (own, now) = (self.config.id, self.now);
        let Role::Leader(leading) = &mut self.role else { return };
        let round = self.log.membership().quorum_value(|id| match leading.others.get(&id) {
            Some(progress) if progress.counts => progress.round,
            None if id == own => leading.round,
            _ => 0,
        });
        while let Some((_, at)) = leading.asked.pop_front_if(|(asked, _)| *asked <= round) {
            leading.answered = Some(if obeys(Rule::LeasesCountFromAsking) { at } else { now });
        }
    }

    /// Commits what a quorum has.
    pub(super) fn advance_commit(&mut self) {
        let Role::Leader(leading) = &self.role else { return };
        let own = self.config.id;
        let reached = if self.is_solo() {
            self.log.last().position
        } else {
            self.log.membership().quorum_value(|id| match leading.others.get(&id) {
                Some(progress) if progress.counts => progress.agrees,
                None if id == own => self.durable,
                _ => Position::START,
            })
        };
        let is_of_term = self.log.term_at(reached) == Some(self.hard.term);
        if reached <= self.committed || (!is_of_term && obeys(Rule::OwnTermCommits)) {
            return;
        }
        self.committed = reached;
        if self.is_solo() {
            self.committed_alone = reached;
        }
        self.confirm_reads();
        self.go_on_with_change();
        if self.lacks() && obeys(Rule::LackersStepDown) {
            // A majority has its log by now, so others can lead.
            self.send_to_all(true);
            self.become_follower(self.hard.term, None);
        }
    }

    /// Ends a change of membership when its first half is committed.
    fn go_on_with_change(&mut self) {
        let members = self.log.membership();
        if self.log.membership_position() > self.committed {
            return;
        }
        if members.is_joint() {
            let members = Membership { outgoing: BTreeSet::new(), ..members.clone() };
            self.append_membership(members);
        } else if !members.is_voter(self.config.id) {
            // Its own removal is committed. The others elect one of theirs.
            self.send_to_all(true);
            self.become_follower(self.hard.term, None);
        }
    }

    /// Answers the reads that a quorum has confirmed.
    fn confirm_reads(&mut self) {
        let (own, committed) = (self.config.id, self.committed);
        let Role::Leader(leading) = &mut self.role else { return };
        let members = self.log.membership();
        while let Some(read) = leading.reads.front() {
            let confirms = |id: ReplicaId| {
                let other = leading.others.get(&id);
                id == own || other.is_some_and(|other| other.counts && other.round >= read.round)
            };
            let is_confirmed = members.has_quorum(confirms) || !obeys(Rule::ReadsAskAMajority);
            if !is_confirmed || committed < read.position {
                return;
            }
            self.output.reads.push((read.number, Some(read.position)));
            leading.reads.pop_front();
        }
    }
}
