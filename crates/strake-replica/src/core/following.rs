//! What a replica takes from its leader: entries, and parts of a snapshot.

use super::{Core, Fault, Role};
use crate::entry::{Entry, Snapshot};
use crate::message::{Body, Part, Verdict};
use crate::rule::{Rule, obeys};
use crate::types::{Life, Position, ReplicaId, Stamp};
use std::sync::Arc;
use strake_proto::Term;

/// A snapshot that arrives in parts.
pub(super) struct Incoming {
    term: Term,
    stamp: Stamp,
    length: u64,
    bytes: Vec<u8>,
}

impl Core {
    /// Whether a message comes from the leader of the newest term. If so, this replica follows it.
    pub(super) fn follow(&mut self, from: ReplicaId, life: Life, term: Term, round: u64) -> bool {
        if term < self.hard.term {
            // It hears of the newer term from the answer.
            let hint = self.committed;
            self.reply(from, life, Verdict::Differs { previous: Position::START, hint }, round);
            return false;
        }
        let has_other = self.is_leader() || self.leader.is_some_and(|leader| leader != from);
        if term == self.hard.term && has_other {
            self.fail(Fault::TwoLeaders(term));
            return false;
        }
        let is_new = term > self.hard.term || self.leader != Some(from);
        if is_new || !matches!(self.role, Role::Follower) {
            self.become_follower(term, Some(from));
        }
        self.heard_leader = Some(self.now);
        self.put_off_election();
        true
    }

    pub(super) fn reply(&mut self, to: ReplicaId, life: Life, verdict: Verdict, round: u64) {
        let counts = self.asking.is_done();
        let (supports, lives) = (self.config.supports, self.lives());
        let body = Body::Appended { verdict, round, counts, supports, lives };
        self.promise(to, Some(life), body);
    }

    pub(super) fn take_entries(
        &mut self,
        leader: (ReplicaId, Life),
        previous: Stamp,
        entries: Vec<Entry>,
        committed: Position,
        round: u64,
    ) {
        if self.lacks() && obeys(Rule::LackersTakeNoEntries) {
            return self.reply(leader.0, leader.1, Verdict::Lacks, round);
        }
        let positions = entries.iter().map(|entry| entry.position);
        let is_in_order =
            positions.eq((1..).map(|n| Position(previous.position.0 + n)).take(entries.len()));
        if !is_in_order || previous.position.0 > u64::MAX / 2 {
            return;
        }
        let base = self.log.base().position;
        if previous.position >= base && self.log.term_at(previous.position) != Some(previous.term) {
            let hint = self.hint(previous.position);
            let verdict = Verdict::Differs { previous: previous.position, hint };
            return self.reply(leader.0, leader.1, verdict, round);
        }
        let mut agrees = previous.position.max(base);
        for entry in entries.into_iter().filter(|entry| entry.position > base) {
            match self.log.term_at(entry.position) {
                Some(term) if term == entry.term => {
                    agrees = entry.position;
                    continue;
                }
                Some(_) if entry.position <= self.committed => {
                    return self.fail(Fault::CommittedDiffers(entry.position));
                }
                Some(_) => {
                    let last = entry.position.previous();
                    self.log.truncate(last);
                    self.forget_behind(last);
                }
                None => {}
            }
            if entry.term < self.log.last().term {
                return;
            }
            // The leader sends the rest again.
            if self.waits_for_room() && obeys(Rule::FullLogsTakeNoMore) {
                break;
            }
            agrees = entry.position;
            self.note_entries(entry.position);
            self.log.push(entry);
        }
        self.committed = self.committed.max(committed.min(agrees));
        self.look_at_answers();
        self.reply(leader.0, leader.1, Verdict::Agrees(agrees), round);
    }

    /// Whether the log is as long as it may be, because the journal must take it as a whole, and
    /// this replica's next snapshot makes room. Entries that are not committed may need later ones
    /// to become so. So a log that is full of them takes those, up to what a leader with a journal
    /// of this size can have.
    fn waits_for_room(&self) -> bool {
        let (most, entry) = (self.config.log_bytes_max, self.config.entry_bytes_max);
        let bytes = self.log.bytes();
        let is_freed_soon = || self.log.bytes_up_to(self.committed) >= most / 2;
        bytes >= most && (is_freed_soon() || bytes >= most.saturating_add(most.max(entry)))
    }

    /// Where the log may agree with the leader's, if it does not at `previous`.
    fn hint(&self, previous: Position) -> Position {
        let mut hint = self.log.last().position.min(previous.previous());
        if let Some(term) = self.log.term_at(previous) {
            // All of that term may be wrong.
            let threshold = self.committed.max(self.log.base().position);
            while hint > threshold && self.log.term_at(hint) == Some(term) {
                hint = hint.previous();
            }
        }
        hint.max(self.committed)
    }

    pub(super) fn take_part(&mut self, leader: ReplicaId, life: Life, part: Part) {
        if self.keeps() {
            return;
        }
        let (position, round) = (part.stamp.position, part.round);
        if position <= self.committed {
            self.incoming = None;
            return self.reply(leader, life, Verdict::Agrees(self.committed), round);
        }
        if part.length > self.config.snapshot_bytes_max as u64 {
            return;
        }
        let (term, stamp, length) = (self.hard.term, part.stamp, part.length);
        let fresh = Incoming { term, stamp, length, bytes: Vec::new() };
        let incoming = self.incoming.take();
        let fits = |incoming: &Incoming| {
            (incoming.term, incoming.stamp, incoming.length) == (term, stamp, length)
        };
        let mut incoming = incoming.filter(fits).unwrap_or(fresh);
        let received = incoming.bytes.len() as u64;
        if part.offset == received && received + part.bytes.len() as u64 <= length {
            incoming.bytes.extend_from_slice(&part.bytes);
        }
        let received = incoming.bytes.len() as u64;
        if received < length {
            self.incoming = Some(incoming);
            let verdict = Verdict::Received { position, bytes: received };
            return self.reply(leader, life, verdict, round);
        }
        let Part { membership, level, .. } = part;
        let bytes = incoming.bytes.into();
        self.install(Arc::new(Snapshot { stamp, membership, level, bytes }));
        self.reply(leader, life, Verdict::Agrees(position), round);
    }

    /// Begins anew with a snapshot of the leader.
    pub(super) fn install(&mut self, snapshot: Arc<Snapshot>) {
        if snapshot.level > self.config.supports {
            return self.fail(Fault::Level(snapshot.level));
        }
        let stamp = snapshot.stamp;
        let is_known = self.log.term_at(stamp.position) == Some(stamp.term);
        if !is_known {
            self.forget_behind(self.committed);
        }
        self.log.take_snapshot(Arc::clone(&snapshot), 0, 0);
        self.changed.snapshot = true;
        self.committed = stamp.position;
        self.handed = stamp.position;
        if !self.keeps() {
            self.output.committed.clear();
            self.output.install = Some(snapshot);
        }
        self.look_at_answers();
    }

    /// What a leader may tell others to be committed.
    pub(super) fn committed_for_others(&self) -> Position {
        if obeys(Rule::OthersLearnTheDurable) {
            self.committed.min(self.durable)
        } else {
            self.committed
        }
    }
}
