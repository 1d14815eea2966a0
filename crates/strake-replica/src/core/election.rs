//! Elections: a preliminary one that changes nothing, then one for a term.

use super::{Candidate, Core, Role};
use crate::message::{Body, Envelope, Lives};
use crate::rule::{Rule, obeys};
use crate::types::{ReplicaId, Stamp};
use std::collections::BTreeMap;
use strake_proto::Term;

/// A replica whose machine lacks its state waits so many times as long before it stands.
const LACKER_ELECTIONS: u32 = 3;

impl Core {
    /// Takes a message.
    pub fn receive(&mut self, now: std::time::Duration, envelope: Envelope) {
        self.now = self.now.max(now);
        let is_mine = envelope.to == self.config.id && envelope.from != self.config.id;
        let is_late = envelope.to_life.is_some_and(|life| life != self.hard.life);
        if !is_mine || (is_late && obeys(Rule::EarlierLivesAreVoid)) {
            return;
        }
        if let Body::Outlived(number) = envelope.body {
            return self.live_on_above(number);
        }
        if !self.is_newest_life(&envelope) {
            return;
        }
        let Envelope { from, from_life, term, body, .. } = envelope;
        match body {
            Body::Ask => self.answer(from, from_life),
            Body::Answer(answer) => self.take_answer(from, term, answer),
            Body::Outlived(_) => {}
            Body::Vote { term: wanted, last, is_preliminary } => {
                let granted = if is_preliminary {
                    self.would_vote(wanted, last)
                } else {
                    self.vote(from, wanted, last)
                };
                let Some(granted) = granted else { return };
                let lives = self.hard.lives.clone();
                let body = Body::Voted { term: wanted, is_preliminary, granted, lives };
                self.promise(from, Some(from_life), body);
            }
            Body::Voted { term: wanted, is_preliminary, granted, lives } => {
                self.note_lives(&lives);
                if term > self.hard.term {
                    self.become_follower(term, None);
                }
                self.take_vote(from, wanted, is_preliminary, granted);
            }
            Body::Append { previous, entries, committed, round } => {
                if self.follow(from, from_life, term, round) {
                    self.take_entries((from, from_life), previous, entries, committed, round);
                }
            }
            Body::Part(part) => {
                if self.follow(from, from_life, term, part.round) {
                    self.take_part(from, from_life, part);
                }
            }
            Body::Copy(part) => {
                if self.follow(from, from_life, term, part.round) {
                    self.take_copy(from, from_life, part);
                }
            }
            Body::Appended { verdict, round, counts, supports, lives } => {
                self.note_lives(&lives);
                if term > self.hard.term {
                    self.become_follower(term, None);
                } else if term == self.hard.term {
                    self.take_appended(from, verdict, round, counts, supports);
                }
            }
        }
    }

    /// Follows in a term, or stays what it is not: a leader or candidate.
    pub(super) fn become_follower(&mut self, term: Term, leader: Option<ReplicaId>) {
        assert!(term >= self.hard.term, "terms do not fall");
        if term > self.hard.term {
            self.hard.term = term;
            self.hard.voted = None;
            self.changed.hard = true;
        }
        self.fail_reads();
        self.role = Role::Follower;
        self.leader = leader;
        self.put_off_election();
    }

    /// Waits for a leader anew, for a time that the seed decides.
    pub(super) fn put_off_election(&mut self) {
        let spread = self.rng.below(1 + self.config.election.as_micros() as u64);
        let spread = std::time::Duration::from_micros(spread);
        // Others come first, unless only this replica has enough.
        let count = if self.lacks() { LACKER_ELECTIONS } else { 1 };
        self.election_at = self.now + count * self.config.election + spread;
    }

    /// Looks for votes, if it may have them.
    pub(super) fn campaign(&mut self) {
        self.put_off_election();
        self.leader = None;
        let has_enough = self.log.last() >= self.asking.threshold;
        let is_voter = self.log.membership().is_voter(self.config.id);
        if is_voter && self.asking.is_done() && has_enough && !self.is_stalled() {
            self.stand(true);
        } else {
            self.role = Role::Follower;
        }
    }

    /// Stands for election.
    fn stand(&mut self, is_preliminary: bool) {
        let term = Term(self.hard.term.0.saturating_add(1));
        let votes = BTreeMap::new();
        self.role = Role::Candidate(Candidate { term, is_preliminary, votes, own_ticket: None });
        if !is_preliminary {
            self.hard.term = term;
            self.hard.voted = Some(self.config.id);
            self.changed.hard = true;
            self.put_off_election();
        }
        let last = self.log.last();
        for id in self.others() {
            if self.log.membership().is_voter(id) {
                self.promise(id, None, Body::Vote { term, last, is_preliminary });
            }
        }
        if is_preliminary {
            self.take_vote(self.config.id, term, true, true);
        }
    }

    /// The own vote is in this batch.
    pub(super) fn note_own_ticket(&mut self) {
        let ticket = self.ticket;
        if let Role::Candidate(candidate) = &mut self.role
            && !candidate.is_preliminary
        {
            candidate.own_ticket.get_or_insert(ticket);
        }
    }

    /// The own vote counts when it is durable.
    pub(super) fn count_own_vote(&mut self, ticket: u64) {
        if let Role::Candidate(candidate) = &self.role
            && candidate.own_ticket.is_some_and(|needed| needed <= ticket)
        {
            self.take_vote(self.config.id, candidate.term, false, true);
        }
    }

    /// Whether a leader was, or may have been, heard so lately that it may hold its lease.
    fn has_leader(&self) -> bool {
        let is_near = |heard| self.now.saturating_sub(heard) < self.config.election;
        let waits = obeys(Rule::VotersWait);
        let has_heard = self.heard_leader.is_some_and(is_near) && (waits || self.leader.is_some());
        self.is_leader() || has_heard || (waits && self.now < self.votes_from)
    }

    /// Whether a candidate has as much as this replica has, and once had.
    pub(super) fn has_enough(&self, last: Stamp) -> bool {
        let own = if obeys(Rule::LongerLogsWin) { self.log.last() } else { Stamp::default() };
        last >= own && last >= self.asking.threshold && self.asking.is_done()
    }

    fn would_vote(&self, wanted: Term, last: Stamp) -> Option<bool> {
        Some(wanted > self.hard.term && !self.has_leader() && self.has_enough(last))
    }

    /// Votes. `None` if the candidate is not heard, because there is a leader.
    pub(super) fn vote(&mut self, candidate: ReplicaId, wanted: Term, last: Stamp) -> Option<bool> {
        if wanted > self.hard.term {
            if self.has_leader() {
                return None;
            }
            self.become_follower(wanted, None);
        }
        let is_free = self.hard.voted.is_none_or(|voted| voted == candidate);
        let granted = wanted == self.hard.term
            && is_free
            && self.leader.is_none()
            && !self.is_leader()
            && self.has_enough(last);
        if granted {
            self.changed.hard |= self.hard.voted != Some(candidate);
            self.hard.voted = Some(candidate);
            self.put_off_election();
        }
        Some(granted)
    }

    fn take_vote(&mut self, from: ReplicaId, wanted: Term, is_preliminary: bool, granted: bool) {
        let members = self.log.membership();
        let Role::Candidate(candidate) = &mut self.role else { return };
        if candidate.term != wanted || candidate.is_preliminary != is_preliminary {
            return;
        }
        candidate.votes.insert(from, granted);
        let has_won = members.has_quorum(|id| candidate.votes.get(&id) == Some(&true));
        if has_won && is_preliminary {
            self.stand(false);
        } else if has_won {
            self.lead();
        }
    }

    /// The lives of others, for messages.
    pub(super) fn lives(&self) -> Lives {
        self.hard.lives.clone()
    }
}
