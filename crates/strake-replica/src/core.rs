//! The consensus of one replica, pure: inputs and the time go in, outputs come out. There is no
//! clock, disk, socket or thread here, so a simulation can put it through everything.
//!
//! **The algorithm** is Raft (Ongaro and Ousterhout 2014) with preliminary votes, leaders that step
//! down without a majority, reads that a majority confirms, learners, and joint memberships.
//!
//! **One step.** The driver hands in one or more inputs and then takes the [`Output`]:
//! 1. It gives [`Output::persist`] to the journal, and says [`Core::persisted`] when that is done.
//! 2. It sends [`Output::send`] at once. Messages that promise something are not in there before
//!    what they promise is durable: the core holds them back until the journal has said so.
//! 3. It applies [`Output::committed`] in order.
//!
//! **Lives (R26).** A replica that starts cannot know whether its disk was put back to an older
//! state. It asks the others. Each majority that it was ever part of has a member that answers. So
//! the highest stamp among the answers, the *threshold*, covers all that was committed with its
//! help. Then it votes for nobody who has less than the threshold, and in no term that an answer
//! knows already. Until then its word counts nowhere. Every message carries its sender's life.
//! Votes and acknowledgements carry the lives that their sender has heard of. So a leader or
//! candidate never counts what an earlier life has said.
//!
//! ```text
//! core        the state, steps, and what the journal has done
//! asking      the questions of a replica that starts; lives
//! election    votes
//! following   entries and snapshots from a leader
//! copying     copies of states that machines keep themselves
//! leading     copies, commits, reads, changes of membership
//! ```

mod asking;
mod copying;
mod election;
mod following;
mod leading;

use crate::entry::{Entry, Payload, Snapshot};
use crate::log::Log;
use crate::membership::Membership;
use crate::message::{Body, Envelope, Lives};
use crate::rule::{Rule, obeys};
use crate::types::{Bytes, Life, Position, ReplicaId, Stamp};
use asking::Asking;
use copying::Keeping;
pub use copying::{CopyOrder, ReceivedPart};
use following::Incoming;
use leading::Leading;
pub use leading::{ChangeRefusal, MemberStatus, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use strake_env::Rng;
use strake_proto::Term;

/// What stays as it is while a replica runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which replica it is.
    pub id: ReplicaId,
    /// How often a leader shows that it is there.
    pub heartbeat: Duration,
    /// A follower that hears of no leader for this long, or up to twice as long, wants an election.
    pub election: Duration,
    /// How long a leader is certain to be the only one after it asked a majority. It is shorter
    /// than [`Config::election`], by more than the clocks of two nodes may differ in that time.
    pub lease: Duration,
    /// Proposals with more bytes are refused.
    pub entry_bytes_max: usize,
    /// One message takes entries of about this many bytes.
    pub append_bytes: usize,
    /// So many entries may be on their way to one follower.
    pub window_entries: u64,
    /// An entry of [`Core::propose_at`] waits so long for others, unless somebody waits for it
    /// ([`Core::hurry`]). One write of each journal and one message then take them all. Zero: no
    /// entry waits.
    pub linger: Duration,
    /// While entries behind the snapshot take more, proposals are refused.
    pub log_bytes_max: usize,
    /// A part of a snapshot has this many bytes.
    pub part_bytes: usize,
    /// Larger snapshots are refused.
    pub snapshot_bytes_max: usize,
    /// How many entries before a snapshot are kept for replicas that lag a little. They take a
    /// quarter of [`Config::log_bytes_max`] at most.
    pub kept_entries: u64,
    /// The highest feature level that this program understands.
    pub supports: u32,
    /// A replica that is alone commits entries when they are in memory. They are durable on
    /// [`Core::sync`]. (R27)
    pub commits_when_appended: bool,
    /// Replicas that are known from elsewhere. They are asked too, in case that the disk is so old
    /// that it does not know them.
    pub known: BTreeSet<ReplicaId>,
    /// After so long, a replica that has not got all answers it needs is content with those of a
    /// majority, itself counted. That keeps a group alive in which a replica restarts while another
    /// one is gone. It gives up the protection against a disk that was put back, in this case. It
    /// waits a twentieth of that for those that never answer ([`Core::give_up_on`]).
    pub content_after: Option<Duration>,
    /// The word of an earlier life of this replica in the same process, if it is known. If the
    /// journal has all of it, the disk was not put back, and nobody needs to be asked.
    pub earlier: Option<Word>,
}

impl Config {
    /// Sensible values for a network in one room.
    pub fn new(id: ReplicaId) -> Config {
        Config {
            id,
            heartbeat: Duration::from_millis(100),
            election: Duration::from_millis(1000),
            lease: Duration::from_millis(750),
            entry_bytes_max: 1 << 20,
            append_bytes: 1 << 20,
            window_entries: 1024,
            linger: Duration::ZERO,
            log_bytes_max: 16 << 20,
            part_bytes: 256 << 10,
            snapshot_bytes_max: 64 << 20,
            kept_entries: 1000,
            supports: 0,
            commits_when_appended: false,
            known: BTreeSet::new(),
            content_after: None,
            earlier: None,
        }
    }
}

/// What must be durable beside the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hard {
    /// The newest term that this replica has heard of.
    pub term: Term,
    /// For whom it voted in that term. Itself, also if it only must not vote any more.
    pub voted: Option<ReplicaId>,
    /// Its own life.
    pub life: Life,
    /// The newest lives of the others that it has heard of.
    pub lives: Lives,
}

/// The word of a replica: no promise of its goes beyond this, and all of it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    hard: Hard,
    last: Stamp,
}

impl Word {
    /// Whether a journal that has this keeps the word.
    fn is_kept_by(&self, hard: &Hard, last: Stamp) -> bool {
        let Hard { term, voted, lives, .. } = &self.hard;
        let is_known = |(id, life): (&ReplicaId, &Life)| {
            hard.lives.get(id).is_some_and(|known| known == life || known.number > life.number)
        };
        last >= self.last
            && (hard.term > *term || (hard.term == *term && hard.voted == *voted))
            && lives.iter().all(is_known)
    }
}

/// What the journal is to write, all or nothing.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its number, for [`Core::persisted`].
    pub ticket: u64,
    /// The new hard state, if it changed.
    pub hard: Option<Hard>,
    /// Entries. They replace all that the journal has from the first of them on.
    pub entries: Vec<Entry>,
    /// A new snapshot with the log's new base. Then the entries are the whole log behind the base.
    pub snapshot: Option<(Arc<Snapshot>, Stamp)>,
    /// Whether it must be durable, with everything before. Else it only has to be written.
    pub sync: bool,
}

/// An entry that is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The entry.
    pub entry: Entry,
    /// False for an entry that is above the feature level: no replica applies it.
    pub applies: bool,
}

/// What ends a replica: it must not run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// More disks were put back than the group survives.
    #[error("two leaders in term {0}: more than one replica has lost what it had promised")]
    TwoLeaders(Term),
    /// The same.
    #[error("the leader has another entry at {0}, where this log is committed")]
    CommittedDiffers(Position),
    /// The group uses what this program does not know.
    #[error("the log's feature level is {0}, which this program does not understand: upgrade it")]
    Level(u32),
}

/// What is to be done after a step.
#[derive(Debug, Default)]
pub struct Output {
    /// For the journal.
    pub persist: Option<Batch>,
    /// Messages.
    pub send: Vec<Envelope>,
    /// The state machine begins anew with this snapshot, before the entries.
    pub install: Option<Arc<Snapshot>>,
    /// For the state machine.
    pub committed: Vec<Committed>,
    /// For a machine that keeps its own state, after the entries: parts of a copy.
    pub received: Vec<ReceivedPart>,
    /// For such a machine, after the entries: what others need of it.
    pub orders: Vec<CopyOrder>,
    /// Reads by their number: a machine that has applied this position may answer. `None` if this
    /// is no leader any more.
    pub reads: Vec<(u64, Option<Position>)>,
    /// The replica must end.
    pub fault: Option<Fault>,
}

/// What a replica is at the moment.
enum Role {
    Follower,
    Candidate(Candidate),
    Leader(Box<Leading>),
}

/// An election under way.
struct Candidate {
    term: Term,
    is_preliminary: bool,
    votes: BTreeMap<ReplicaId, bool>,
    /// The own vote counts when this ticket is done.
    own_ticket: Option<u64>,
}

/// What the journal was given and has not made durable.
struct Outstanding {
    ticket: u64,
    last: Position,
    /// When it was given, until it is written.
    since: Option<Duration>,
    hard: Option<Hard>,
}

/// Entries at the end of a leader's log that nobody waits for yet: they are neither written nor
/// sent. See [`Config::linger`].
struct Lingering {
    from: Position,
    until: Duration,
    bytes: usize,
}

#[derive(Default)]
struct Changed {
    hard: bool,
    entries_from: Option<Position>,
    snapshot: bool,
    sync: bool,
}

/// What a replica is, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// It follows, or looks for somebody to follow.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
    /// It has started and does not know yet what it once promised.
    Asking,
    /// It receives the log and does not vote.
    Learner,
    /// Its machine lacks its state. It votes, and waits for a copy.
    Lacking,
}

/// One replica.
pub struct Core {
    config: Config,
    rng: Rng,
    now: Duration,
    hard: Hard,
    log: Log,
    role: Role,
    leader: Option<ReplicaId>,
    heard_leader: Option<Duration>,
    /// What this replica heard before it started is forgotten by then, so it votes from here on.
    votes_from: Duration,
    election_at: Duration,
    committed: Position,
    handed: Position,
    /// The log is durable up to here.
    durable: Position,
    durable_hard: Hard,
    /// What was committed in memory, alone.
    committed_alone: Position,
    ticket: u64,
    outstanding: VecDeque<Outstanding>,
    /// Messages that wait for a ticket.
    held: VecDeque<(u64, Envelope)>,
    /// Messages of this step that promise something.
    promises: Vec<Envelope>,
    changed: Changed,
    lingering: Option<Lingering>,
    asking: Asking,
    /// See [`Core::give_up_on`].
    gone: BTreeSet<ReplicaId>,
    incoming: Option<Incoming>,
    /// For a machine that keeps its own state.
    keeping: Option<Keeping>,
    output: Output,
}

impl Core {
    /// A replica that starts with what its journal kept. All of it is durable, and the life in
    /// `hard` is a new one. The seed decides the limits of elections.
    pub fn new(config: Config, hard: Hard, log: Log, now: Duration, seed: u64) -> Core {
        assert!(config.lease < config.election, "a lease is over before others vote");
        let start = log.snapshot_stamp().position;
        let mut core = Core {
            rng: Rng::new(seed),
            now,
            durable_hard: hard.clone(),
            hard,
            role: Role::Follower,
            leader: None,
            heard_leader: None,
            votes_from: now + config.election,
            election_at: now,
            committed: start,
            handed: start,
            durable: log.last().position,
            committed_alone: start,
            log,
            ticket: 0,
            outstanding: VecDeque::new(),
            held: VecDeque::new(),
            promises: Vec::new(),
            changed: Changed::default(),
            lingering: None,
            asking: Asking::new(now),
            gone: BTreeSet::new(),
            incoming: None,
            keeping: None,
            output: Output::default(),
            config,
        };
        core.put_off_election();
        core.check_level();
        core.output.install = core.log.snapshot().cloned();
        let keeps = |word: &Word| word.is_kept_by(&core.hard, core.log.last());
        let compares = obeys(Rule::WordsAreCompared);
        if core.config.earlier.as_ref().is_some_and(|word| !compares || keeps(word)) {
            core.asking.finish();
        }
        core.look_at_answers();
        if core.log.membership().is_alone(core.config.id) {
            // Nobody else can lead, so there is nobody to wait for.
            core.election_at = now;
        }
        core
    }

    /// As [`Core::new`], for a machine that keeps its own state. The machine has the entries up to
    /// `position` durable, or lacks its state. A position that the log does not have is as good as
    /// none: machine and log are not of the same disks, or a crash came when a copy was whole.
    pub fn keeping(
        config: Config,
        hard: Hard,
        log: Log,
        position: Option<Position>,
        now: Duration,
        seed: u64,
    ) -> Core {
        let known = log.snapshot_stamp().position..=log.last().position;
        let position = position.filter(|position| known.contains(position));
        let mut core = Core::new(config, hard, log, now, seed);
        core.output.install = None;
        core.keeping = Some(Keeping::new(position.is_none()));
        let position = position.unwrap_or(core.committed);
        (core.committed, core.handed) = (position, position);
        core.check_level();
        core
    }

    /// Time has passed. A driver says so a few times in each heartbeat.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.ask_if_due();
        if matches!(self.role, Role::Leader(_)) {
            self.lead_on();
        } else if self.now >= self.election_at {
            self.campaign();
        }
    }

    /// The journal has written everything up to this ticket, and `synced` it if that is true.
    pub fn persisted(&mut self, now: Duration, ticket: u64, synced: bool) {
        self.now = self.now.max(now);
        if !synced {
            let written = self.outstanding.iter_mut().filter(|batch| batch.ticket <= ticket);
            written.for_each(|batch| batch.since = None);
            return;
        }
        while self.outstanding.front().is_some_and(|batch| batch.ticket <= ticket) {
            let batch = self.outstanding.pop_front().expect("invariant: there is a front");
            self.durable = self.durable.max(batch.last);
            self.durable_hard =
                batch.hard.unwrap_or_else(|| std::mem::take(&mut self.durable_hard));
        }
        while self.held.front().is_some_and(|(needed, _)| *needed <= ticket) {
            let (_, envelope) = self.held.pop_front().expect("invariant: there is a front");
            self.output.send.push(envelope);
        }
        self.count_own_vote(ticket);
        self.advance_commit();
    }

    /// Ends the step.
    pub fn output(&mut self) -> Output {
        self.linger_no_longer_than_due();
        self.send_new_entries();
        self.write_batch();
        let gate = self.outstanding.back().map(|batch| batch.ticket);
        let gate = gate.filter(|_| obeys(Rule::DurableBeforePromised));
        for envelope in std::mem::take(&mut self.promises) {
            match gate {
                Some(ticket) => self.held.push_back((ticket, envelope)),
                None => self.output.send.push(envelope),
            }
        }
        self.hand_out();
        self.end_copies();
        self.check();
        std::mem::take(&mut self.output)
    }

    /// Somebody waits for the entries that linger. False if there is none.
    pub fn hurry(&mut self) -> bool {
        self.lingering.take().is_some()
    }

    /// Until when entries linger, if any does.
    pub fn lingers_until(&self) -> Option<Duration> {
        self.lingering.as_ref().map(|lingering| lingering.until)
    }

    /// Makes everything that is in the log durable: for a replica alone that commits earlier.
    pub fn sync(&mut self) {
        self.changed.sync |= self.log.last().position > self.durable;
    }

    /// The state machine's bytes at a position that it was handed. The log before it may go. There
    /// are no bytes if the machine keeps its own state, and has it durable up to the position.
    /// Returns false if the position is not stable yet: then another snapshot is wanted later.
    pub fn snapshot_taken(&mut self, position: Position, bytes: Bytes) -> bool {
        let is_useful = position > self.log.snapshot_stamp().position
            && position <= self.stable().min(self.handed)
            && bytes.len() <= self.config.snapshot_bytes_max;
        let snapshot = is_useful.then(|| self.log.snapshot_at(position, bytes)).flatten();
        if let Some(snapshot) = snapshot {
            let Config { kept_entries, log_bytes_max, .. } = self.config;
            self.log.take_snapshot(Arc::new(snapshot), kept_entries, log_bytes_max / 4);
            self.changed.snapshot = true;
        }
        position <= self.stable()
    }

    /// Whoever runs the cluster vouches that this disk was not put back, or accepts what is lost
    /// if it was (R31). The replica waits for no more answers.
    pub fn trust(&mut self) {
        self.asking.finish();
    }

    /// These replicas never answer again, because what they had is gone for good. A replica that is
    /// content with a majority after a time waits a twentieth of it for them.
    pub fn give_up_on(&mut self, gone: &BTreeSet<ReplicaId>) {
        self.gone.extend(gone);
    }

    /// Whether it went on without all answers ([`Config::content_after`]).
    pub fn is_content(&self) -> bool {
        self.asking.is_content()
    }

    /// Its word so far. `None` while that does not count yet.
    pub fn word(&self) -> Option<Word> {
        let counts = self.asking.is_done() && self.log.last() >= self.asking.threshold;
        let term = self.log.term_at(self.durable).filter(|_| counts)?;
        let last = Stamp { term, position: self.durable };
        Some(Word { hard: self.durable_hard.clone(), last })
    }

    /// The log is committed up to here.
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// Committed, and also after a crash of this replica alone.
    pub fn stable(&self) -> Position {
        let is_certain = self.committed_alone <= self.durable;
        if is_certain { self.committed } else { self.committed.min(self.durable) }
    }

    /// The end of the log.
    pub fn last(&self) -> Stamp {
        self.log.last()
    }

    /// The term.
    pub fn term(&self) -> Term {
        self.hard.term
    }

    /// Its life.
    pub fn life(&self) -> Life {
        self.hard.life
    }

    /// Who leads, as far as it knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        if self.is_leader() { Some(self.config.id) } else { self.leader }
    }

    /// Where the next entry would be, if this replica leads.
    pub fn next(&self) -> Option<Stamp> {
        let position = self.log.last().position.next();
        self.is_leader().then_some(Stamp { term: self.hard.term, position })
    }

    /// The entry that began the term, if this replica leads. All that was committed before is
    /// below it.
    pub fn begin(&self) -> Option<Position> {
        let Role::Leader(leading) = &self.role else { return None };
        Some(leading.begin())
    }

    /// Whether the entry of this stamp is committed. False if it never will be. `None` if that is
    /// open, or not known any more.
    pub fn is_committed(&self, stamp: Stamp) -> Option<bool> {
        let Stamp { term, position } = stamp;
        if self.committed < position {
            return None;
        }
        // A leader removes none of its entries, so its own are known also when they are cut off.
        let is_own = self.is_leader() && term == self.hard.term;
        let known = self.log.term_at(position).map(|known| known == term);
        known.or(is_own.then_some(true))
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Until when this replica certainly is the only leader, by its own clock. `None` if it does
    /// not lead, or has not asked a majority yet. After that it may still be the only one.
    pub fn lease_until(&self) -> Option<Duration> {
        let Role::Leader(leading) = &self.role else { return None };
        if self.log.membership().is_alone(self.config.id) {
            return Some(Duration::MAX);
        }
        Some(leading.asked()?.saturating_add(self.config.lease))
    }

    /// What it is.
    pub fn role(&self) -> RoleName {
        match &self.role {
            Role::Leader(_) => RoleName::Leader,
            Role::Candidate(_) => RoleName::Candidate,
            Role::Follower if !self.asking.is_done() => RoleName::Asking,
            Role::Follower if self.lacks() => RoleName::Lacking,
            Role::Follower if !self.log.membership().is_voter(self.config.id) => RoleName::Learner,
            Role::Follower => RoleName::Follower,
        }
    }

    /// The members as its log has them.
    pub fn membership(&self) -> &Membership {
        self.log.membership()
    }

    /// Whether no change of membership is under way.
    pub fn is_membership_committed(&self) -> bool {
        !self.membership().is_joint() && self.log.membership_position() <= self.committed
    }

    /// The feature level of what is committed.
    pub fn level(&self) -> u32 {
        self.log.level_at(self.committed)
    }

    /// What the entries behind the snapshot and those kept before it take.
    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// Whether it knows what it once promised, and has all of it.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        self.asking.is_done() && self.log.last() >= self.asking.threshold
    }

    /// Asserts what must be true between steps.
    pub fn check(&self) {
        let last = self.log.last().position;
        assert!(self.log.snapshot_stamp().position <= self.committed, "snapshots are committed");
        assert!(self.handed <= self.committed && self.committed <= last, "handed, committed, last");
        assert!(self.durable <= last, "what is durable is there");
        assert!(self.outstanding.iter().all(|batch| batch.last <= last), "batches are in the log");
        let tickets = self.outstanding.iter().map(|batch| batch.ticket);
        assert!(tickets.is_sorted(), "tickets rise");
        if let Some(lingering) = &self.lingering {
            assert_eq!(self.changed.entries_from, Some(lingering.from), "all others are written");
        }
    }

    /// Entries linger only while nothing else is written, and this replica leads.
    fn linger_no_longer_than_due(&mut self) {
        let Changed { hard, snapshot, sync, .. } = self.changed;
        let is_else = hard || snapshot || sync || !self.promises.is_empty() || !self.is_leader();
        let bytes_max = self.config.append_bytes / 4;
        let is_due = |it: &Lingering| is_else || self.now >= it.until || it.bytes >= bytes_max;
        if self.lingering.as_ref().is_some_and(is_due) {
            self.lingering = None;
        }
    }

    /// Whether this replica is the whole group and may commit in memory.
    fn is_solo(&self) -> bool {
        let members = self.log.membership();
        let is_solo = members.is_alone(self.config.id) && members.learners.is_empty();
        self.config.commits_when_appended && is_solo
    }

    /// Whether the journal has not written something for so long that others should lead.
    fn is_stalled(&self) -> bool {
        let since = self.outstanding.iter().find_map(|batch| batch.since);
        since.is_some_and(|since| self.now.saturating_sub(since) >= self.config.election)
            && obeys(Rule::StalledLeadersStepDown)
    }

    fn others(&self) -> Vec<ReplicaId> {
        let all = self.log.membership().all();
        all.into_iter().filter(|&id| id != self.config.id).collect()
    }

    fn envelope(&self, to: ReplicaId, to_life: Option<Life>, body: Body) -> Envelope {
        let (from, from_life) = (self.config.id, self.hard.life);
        Envelope { from, from_life, to, to_life, term: self.hard.term, body }
    }

    /// Sends what promises something, when it is durable.
    fn promise(&mut self, to: ReplicaId, to_life: Option<Life>, body: Body) {
        let envelope = self.envelope(to, to_life, body);
        self.promises.push(envelope);
    }

    /// Sends at once.
    fn send(&mut self, to: ReplicaId, body: Body) {
        let envelope = self.envelope(to, None, body);
        self.output.send.push(envelope);
    }

    fn append(&mut self, payload: Payload) -> Stamp {
        let position = self.log.last().position.next();
        let entry = Entry { term: self.hard.term, position, payload };
        let stamp = entry.stamp();
        self.lingering = None;
        self.note_entries(position);
        self.log.push(entry);
        stamp
    }

    /// The log changes from here on.
    fn note_entries(&mut self, from: Position) {
        let known = self.changed.entries_from.unwrap_or(from);
        self.changed.entries_from = Some(known.min(from));
    }

    /// The log ends here now. What the journal has behind it is not ours any more.
    fn forget_behind(&mut self, last: Position) {
        self.durable = self.durable.min(last);
        self.outstanding.iter_mut().for_each(|batch| batch.last = batch.last.min(last));
        self.changed.entries_from = self.changed.entries_from.map(|from| from.min(last.next()));
    }

    fn write_batch(&mut self) {
        if self.lingering.is_some() {
            return;
        }
        let Changed { hard, entries_from, snapshot, sync } = std::mem::take(&mut self.changed);
        if !hard && entries_from.is_none() && !snapshot && !sync {
            return;
        }
        self.ticket += 1;
        let base = self.log.base();
        // With a snapshot the journal writes everything anew.
        let from = if snapshot { Some(base.position.next()) } else { entries_from };
        let snapshot = match self.log.snapshot() {
            Some(taken) if snapshot => Some((Arc::clone(taken), base)),
            _ => None,
        };
        let must_sync = hard || sync || !self.promises.is_empty() || !self.is_solo();
        self.output.persist = Some(Batch {
            ticket: self.ticket,
            hard: (hard && obeys(Rule::VotesAreWritten)).then(|| self.hard.clone()),
            entries: from.map(|from| self.log.from(from).to_vec()).unwrap_or_default(),
            sync: must_sync || snapshot.is_some(),
            snapshot,
        });
        let last = self.log.last().position;
        let since = Some(self.now);
        let hard = hard.then(|| self.hard.clone());
        self.outstanding.push_back(Outstanding { ticket: self.ticket, last, since, hard });
        self.note_own_ticket();
    }

    /// Ends the replica if what the machine has is of a level that this program does not
    /// understand: the entry that raised it is not handed out again.
    fn check_level(&mut self) {
        let level = self.log.level_at(self.handed);
        if level > self.config.supports {
            self.fail(Fault::Level(level));
        }
    }

    fn hand_out(&mut self) {
        let end = match &self.keeping {
            Some(_) if self.lacks() => return,
            Some(_) if obeys(Rule::KeepersGetTheDurable) => self.committed.min(self.durable),
            _ => self.committed,
        };
        while self.handed < end {
            let position = self.handed.next();
            let entry = self.log.entry(position).expect("invariant: entries are kept until handed");
            let applies = match &entry.payload {
                Payload::Data { level, .. } => *level <= self.log.level_at(position),
                Payload::Level(level) if *level > self.config.supports => {
                    self.output.fault = Some(Fault::Level(*level));
                    return;
                }
                _ => false,
            };
            self.output.committed.push(Committed { entry: entry.clone(), applies });
            self.handed = position;
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.output.fault.get_or_insert(fault);
    }
}

#[cfg(test)]
#[path = "core_test.rs"]
mod core_test;
