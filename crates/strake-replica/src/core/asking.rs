//! What a replica that starts asks the others, and which lives count (R26).

use super::{Core, Role};
use crate::membership::Membership;
use crate::message::{Answer, Body, Envelope};
use crate::rule::{Rule, obeys};
use crate::types::{Life, ReplicaId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_proto::Term;

/// So many other replicas are heard of. More than a group ever has, with those that have left it.
const LIVES_MAX: usize = 256;

/// After this part of [`super::Config::content_after`] nobody waits for a replica that is given up.
/// One whose disk is there after all has answered by then.
const GONE_PART: u32 = 20;

/// What a replica has learnt about what it once promised.
pub(super) struct Asking {
    answers: BTreeMap<ReplicaId, (Term, Answer)>,
    since: Duration,
    ask_at: Duration,
    is_done: bool,
    /// Whether it is done without all the answers that would tell of any disk that was put back.
    is_content: bool,
    /// It votes for nobody who has less.
    pub(super) threshold: Stamp,
}

impl Asking {
    pub(super) fn new(now: Duration) -> Asking {
        Asking {
            answers: BTreeMap::new(),
            since: now,
            ask_at: now,
            is_done: false,
            is_content: false,
            threshold: Stamp::default(),
        }
    }

    /// Whether its word counts.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether it is done without all answers ([`super::Config::content_after`]).
    pub(super) fn is_content(&self) -> bool {
        self.is_content
    }

    pub(super) fn finish(&mut self) {
        self.is_done = true;
    }

    fn has(&self, id: ReplicaId) -> bool {
        self.answers.contains_key(&id)
    }

    /// The members as the newest of the answering logs has them, and from where on.
    fn newest_membership(&self) -> Option<(Stamp, &Membership)> {
        let answers = self.answers.values().map(|(_, answer)| answer);
        let newest = answers.max_by_key(|answer| answer.membership_stamp);
        let newest = newest.filter(|answer| answer.membership.is_valid());
        newest.map(|answer| (answer.membership_stamp, &answer.membership))
    }
}

impl Core {
    /// Asks whoever has not answered, and everyone again while this replica has less than they.
    /// One of them may be the one whose disk was put back, and then it has less itself by now.
    pub(super) fn ask_if_due(&mut self) {
        let is_behind = self.log.last() < self.asking.threshold;
        if (self.asking.is_done && !is_behind) || self.now < self.asking.ask_at {
            return;
        }
        self.asking.ask_at = self.now + self.config.heartbeat;
        let mut asked: BTreeSet<ReplicaId> = self.log.membership().all();
        asked.extend(self.config.known.iter().copied());
        asked.extend(self.deciding_members().all());
        for id in asked {
            if id != self.config.id && (is_behind || !self.asking.has(id)) {
                self.promise(id, None, Body::Ask);
            }
        }
        self.look_at_answers();
    }

    /// Whether enough have answered by now, and what follows.
    pub(super) fn look_at_answers(&mut self) {
        if self.asking.is_done {
            return;
        }
        let has_all = self.has_all_answers();
        if !has_all && !self.is_content_by_now() {
            return;
        }
        self.asking.is_done = true;
        self.asking.is_content = !has_all;
        self.find_threshold();
        let terms = self.asking.answers.values().map(|(term, _)| *term);
        let term = terms.max().unwrap_or_default();
        if term > self.hard.term {
            self.become_follower(term, None);
        }
        // An earlier life may have voted in this term, or in one before. Terms to come are free.
        if term == self.hard.term && self.hard.voted.is_none() && !self.asking.answers.is_empty() {
            self.hard.voted = Some(self.config.id);
            self.changed.hard = true;
        }
    }

    /// The members as the newest log has them that is known, this one or one that answered. That
    /// log has all that was committed among earlier members. What was committed without its newest
    /// change has a majority of the voters that the change began from, who are in it as well.
    fn deciding_members(&self) -> &Membership {
        match self.asking.newest_membership() {
            Some((stamp, members)) if stamp > self.log.membership_stamp() => members,
            _ => self.log.membership(),
        }
    }

    /// What the voters that answered have. Others may have more, which was promised to nobody.
    fn find_threshold(&mut self) {
        let (members, known) = (self.deciding_members(), &self.config.known);
        let is_voter = |id: ReplicaId| members.is_voter(id) || known.contains(&id);
        let answers = self.asking.answers.iter().filter(|(id, _)| is_voter(**id));
        let threshold = answers.map(|(_, (_, answer))| answer.last).max().unwrap_or_default();
        self.asking.threshold = threshold;
    }

    fn has_all_answers(&self) -> bool {
        if !obeys(Rule::StartersAsk) {
            return true;
        }
        let (own, asking) = (self.config.id, &self.asking);
        let known = Membership::of(self.config.known.iter().copied());
        let members = self.deciding_members();
        let meets = |members: &Membership| members.meets_majorities(own, |id| asking.has(id));
        meets(members) && (self.config.known.is_empty() || meets(&known))
    }

    /// Whether a majority, itself counted, must do.
    fn is_content_by_now(&self) -> bool {
        let (own, asking) = (self.config.id, &self.asking);
        let members = self.deciding_members();
        let has_said = |id: ReplicaId| id == own || asking.has(id);
        let mut voters = members.all().into_iter().filter(|id| members.is_voter(*id));
        let nobody_is_left = voters.all(|id| has_said(id) || self.gone.contains(&id));
        let waited = self.now.saturating_sub(asking.since);
        let is_over =
            |limit: Duration| waited >= if nobody_is_left { limit / GONE_PART } else { limit };
        self.config.content_after.is_some_and(is_over) && members.has_quorum(has_said)
    }

    pub(super) fn answer(&mut self, to: ReplicaId, life: Life) {
        let answer = Answer {
            last: self.log.last(),
            membership: self.log.membership().clone(),
            membership_stamp: self.log.membership_stamp(),
        };
        self.promise(to, Some(life), Body::Answer(answer));
    }

    pub(super) fn take_answer(&mut self, from: ReplicaId, term: Term, answer: Answer) {
        let is_wanted = !self.asking.is_done || self.log.last() < self.asking.threshold;
        if !is_wanted {
            return;
        }
        self.asking.answers.insert(from, (term, answer));
        if self.asking.is_done {
            self.find_threshold();
        }
        self.look_at_answers();
    }

    /// Whether a message comes from the newest life of its sender. An older one is told so.
    pub(super) fn is_newest_life(&mut self, envelope: &Envelope) -> bool {
        if !obeys(Rule::EarlierLivesAreVoid) {
            return true;
        }
        let (from, life) = (envelope.from, envelope.from_life);
        if !self.has_room_for_life_of(from) {
            return false;
        }
        let known = self.note_life(from, life);
        if known != life {
            self.promise(from, Some(life), Body::Outlived(known.number));
        }
        known == life
    }

    /// Ids are never used again, so few are ever heard of. A peer that invents them is not heard.
    fn has_room_for_life_of(&self, id: ReplicaId) -> bool {
        let lives = &self.hard.lives;
        lives.len() < LIVES_MAX || lives.contains_key(&id)
    }

    /// Hears of a life of another replica. Returns the newest one.
    fn note_life(&mut self, of: ReplicaId, life: Life) -> Life {
        let newest = match self.hard.lives.get(&of) {
            Some(known) if *known == life || life.number < known.number => return *known,
            // Two lives of one number: the disk was put back. Nobody knows which is the later one,
            // so both are over.
            Some(known) if known.number == life.number => {
                Life { number: life.number.saturating_add(1), chance: 0 }
            }
            _ => life,
        };
        self.hard.lives.insert(of, newest);
        self.changed.hard = true;
        self.forget_word_of(of);
        newest
    }

    /// Hears which lives another replica knows.
    pub(super) fn note_lives(&mut self, lives: &BTreeMap<ReplicaId, Life>) {
        if !obeys(Rule::EarlierLivesAreVoid) {
            return;
        }
        for (&id, &life) in lives {
            if id != self.config.id {
                if self.has_room_for_life_of(id) {
                    self.note_life(id, life);
                }
            } else if life.number > self.hard.life.number
                || (life.number == self.hard.life.number && life != self.hard.life)
            {
                self.live_on_above(life.number);
            }
        }
    }

    /// Another replica knows a later life of this one, so the disk was put back.
    pub(super) fn live_on_above(&mut self, number: u32) {
        if number < self.hard.life.number {
            return;
        }
        let chance = self.rng.next_u64() as u32;
        self.hard.life = Life { number: number.saturating_add(1), chance };
        self.changed.hard = true;
        self.become_follower(self.hard.term, None);
        self.asking = Asking::new(self.now);
        self.look_at_answers();
    }

    /// What this replica has said in an earlier life counts no more.
    fn forget_word_of(&mut self, id: ReplicaId) {
        let last = self.log.last().position;
        match &mut self.role {
            Role::Follower => {}
            Role::Candidate(candidate) => {
                candidate.votes.remove(&id);
            }
            Role::Leader(leading) => leading.forget(id, last),
        }
    }
}
