//! One replica with its threads: hands inputs to the pure core, and does what it says.
//!
//! ```text
//! replica          takes the core's outputs; sends messages
//! replica-journal  writes and syncs steps; one sync serves all that wait
//! replica-apply    applies committed entries; takes snapshots
//! ```
//!
//! Callers and messages go to the core directly, under one lock that is never held across I/O, a
//! message or the state machine. Whoever waits has a limit, and a name in the list of waits.
//!
//! The core's output is mostly taken and handed on by the thread that caused it: one that brings a
//! message, that has written the journal, or that waits for an entry. Waking the thread `replica`
//! would take longer. One thread at a time does that, so that all goes on in order, and it does so
//! once. It wakes the thread `replica` for the outputs that others cause meanwhile.
//!
//! **When the journal fails**, when the log asks for what this program does not understand, or when
//! two replicas have lost what they promised, the replica ends: all calls fail and say why.

mod threads;

use crate::core::{ChangeRefusal, Config, Core, MemberStatus, Refusal, RoleName, Word};
use crate::journal::{Identity, Journal, JournalError, Span};
use crate::machine::{Machine, Transport};
use crate::membership::Membership;
use crate::message::{MessageError, decode};
use crate::types::{Bytes, Position, ReplicaId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_env::thread::JoinHandle;
use strake_env::{Clock, Disk, Rng, WaitNames};
use strake_proto::{ClusterId, Term};

/// So many proposals may wait for their answers.
const PROPOSALS_MAX: usize = 4096;

/// What a replica is made of.
pub struct Parts {
    /// The cluster.
    pub cluster: ClusterId,
    /// Limits and times, and which replica it is.
    pub config: Config,
    /// The disk of the journal, made by [`Journal::create`].
    pub disk: Arc<dyn Disk>,
    /// What the log drives.
    pub machine: Machine,
    /// The way to the others.
    pub transport: Arc<dyn Transport>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where waits are named.
    pub waits: Arc<dyn WaitNames>,
}

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was changed.
    #[error(transparent)]
    NotChanged(#[from] ChangeRefusal),
    /// It was in the log of a leader that was replaced. It is not done, and never will be.
    #[error("another leader has replaced the entry; it was not applied")]
    Replaced,
    /// Time is up. It may be done, or be done later.
    #[error("no answer in time; it may still happen")]
    Unknown,
    /// The replica has ended.
    #[error("the replica has ended: {0}")]
    Ended(Arc<str>),
}

/// An entry that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Where it is.
    pub position: Position,
    /// What the state machine answered.
    pub answer: Vec<u8>,
}

/// How a replica is, for listings.
#[derive(Clone, Debug)]
pub struct Status {
    /// Which one.
    pub id: ReplicaId,
    /// What it is at the moment.
    pub role: RoleName,
    /// Who leads, if that is known.
    pub leader: Option<ReplicaId>,
    /// The newest term that it has heard of.
    pub term: Term,
    /// The last entry of its log.
    pub last: Stamp,
    /// Committed up to here.
    pub committed: Position,
    /// Applied up to here.
    pub applied: Position,
    /// The feature level.
    pub level: u32,
    /// The members, as its log has them.
    pub membership: Membership,
    /// How far each member is, if this one leads.
    pub members: Vec<MemberStatus>,
    /// Why it has ended.
    pub ended: Option<Arc<str>>,
}

/// The result of reading the journal again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Bytes read.
    pub bytes: u64,
    /// The damage, if there was any. The journal has been written anew then.
    pub damage: Option<String>,
}

/// How a proposal ended.
enum Outcome {
    Applied(Vec<u8>),
    Replaced,
    /// A snapshot has taken the entry's place.
    Skipped,
}

struct State {
    core: Core,
    /// Whether the core has something to say.
    is_due: bool,
    is_stopping: bool,
    ended: Option<Arc<str>>,
    applied: Position,
    /// Whether a snapshot is wanted as soon as what is applied is stable.
    wants_snapshot: bool,
    proposals: BTreeMap<(Position, Term), Option<Outcome>>,
    /// Reads with what the core said to them.
    reads: BTreeMap<u64, Option<Option<Position>>>,
    read_count: u64,
    /// Whether a caller has heard that it went on without all answers.
    was_content: bool,
    /// The part of the journal that is in force.
    span: Span,
    /// The epoch of the journal that is to be written anew, if it is in force.
    renews: Option<u64>,
    /// The last epoch for which that was done.
    renewed: Option<u64>,
}

struct Shared {
    cluster: ClusterId,
    config: Config,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    waits: Arc<dyn WaitNames>,
    state: Mutex<State>,
    /// For the thread `replica`.
    work: Condvar,
    /// For callers.
    done: Condvar,
    /// Held while the core's output is taken and handed on. `None` before the threads are there,
    /// and at the end.
    hands: Mutex<Option<threads::Hands>>,
}

/// A replica that runs.
pub struct Replica {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Replica {
    /// Starts a replica on its journal.
    ///
    /// # Errors
    /// If the journal cannot be opened, or the system has no entropy or no thread.
    pub fn start(parts: Parts) -> Result<Replica, JournalError> {
        let Parts { cluster, config, disk, mut machine, transport, clock, waits } = parts;
        let mut rng = Rng::from_entropy()?;
        let identity = Identity { cluster, replica: config.id };
        let (journal, hard, log) = Journal::open(disk, identity, rng.next_u64() as u32)?;
        let (now, seed) = (clock.monotonic(), rng.next_u64());
        let core = match &mut machine {
            Machine::Carried(_) => Core::new(config.clone(), hard, log, now, seed),
            Machine::Keeping(machine) => {
                Core::keeping(config.clone(), hard, log, machine.position(), now, seed)
            }
        };
        let applied = core.committed();
        let state = State {
            core,
            is_due: true,
            is_stopping: false,
            ended: None,
            applied,
            wants_snapshot: false,
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            read_count: 0,
            was_content: false,
            span: journal.span(),
            renews: None,
            renewed: None,
        };
        let state = Mutex::new(state);
        let (work, done) = (Condvar::new(), Condvar::new());
        let hands = Mutex::default();
        let shared = Shared { cluster, config, transport, clock, waits, state, work, done, hands };
        let shared = Arc::new(shared);
        let threads = Mutex::new(threads::start(&shared, journal, machine, applied)?);
        Ok(Replica { shared, threads })
    }

    /// Ends all threads. What was acknowledged is durable.
    pub fn stop(&self) {
        self.shared.end("it was stopped");
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A panic ends the process in the product, and fails the test in a test.
            let _ = thread.join();
        }
    }

    /// A message has arrived from a node that has proven to have the replicas that `is_there`
    /// accepts.
    ///
    /// # Errors
    /// If it is none, of another cluster or version, or says that another replica sent it.
    pub fn deliver(
        &self,
        is_there: impl Fn(ReplicaId) -> bool,
        message: &[u8],
    ) -> Result<(), MessageError> {
        let envelope = decode(self.shared.cluster, message)?;
        if !is_there(envelope.from) {
            return Err(MessageError::Sender(envelope.from));
        }
        let now = self.shared.clock.monotonic();
        let mut state = self.shared.state.lock();
        state.core.receive(now, envelope);
        state.is_due = true;
        drop(state);
        self.shared.step();
        Ok(())
    }

    /// Proposes an entry, and waits until it is applied here.
    ///
    /// # Errors
    /// If this is not the leader or is busy; if the entry was replaced. [`Failure::Unknown`] if
    /// time is up.
    pub fn propose(&self, level: u32, bytes: &[u8], limit: Duration) -> Result<Applied, Failure> {
        let mut state = self.enter()?;
        if state.proposals.len() >= PROPOSALS_MAX {
            return Err(Refusal::Busy.into());
        }
        let Stamp { term, position } = state.core.propose(level, Bytes::from(bytes))?;
        let key = (position, term);
        state.proposals.insert(key, None);
        self.shared.wake(&mut state);
        let detail = format!("entry {position}");
        let outcome = self.wait(&mut state, "replica commit", &detail, limit, |state| {
            let is_done = state.proposals.get(&key).is_some_and(Option::is_some);
            if is_done { state.proposals.remove(&key).flatten() } else { None }
        });
        state.proposals.remove(&key);
        match outcome? {
            Outcome::Applied(answer) => Ok(Applied { position, answer }),
            Outcome::Replaced => Err(Failure::Replaced),
            Outcome::Skipped => Err(Failure::Unknown),
        }
    }

    /// Where the next entry will be, if this replica leads and its machine has applied everything
    /// that was committed before its term. Then a caller may decide ahead what the entry does.
    pub fn next(&self) -> Option<Stamp> {
        let state = self.shared.state.lock();
        let is_fit = state.ended.is_none() && !state.core.lacks();
        let begin = state.core.begin().filter(|&begin| is_fit && state.applied >= begin);
        begin.and_then(|_| state.core.next())
    }

    /// Proposes an entry that will have this stamp, and does not wait. If it lingers and is urgent,
    /// the caller hurries it ([`Replica::hurry`]) when it has told others of it.
    ///
    /// # Errors
    /// If this is not the leader or is busy. [`Refusal::Moved`] if the entry would have another
    /// stamp. Then it is in no log.
    pub fn propose_at(
        &self,
        stamp: Stamp,
        level: u32,
        bytes: &[u8],
        is_urgent: bool,
    ) -> Result<(), Failure> {
        let mut state = self.enter()?;
        let lingered = state.core.lingers_until();
        let now = self.shared.clock.monotonic();
        state.core.propose_at(now, stamp, level, Bytes::from(bytes))?;
        match state.core.lingers_until() {
            None => self.shared.wake(&mut state),
            // The thread learns until when it may sleep.
            until => {
                if until != lingered && !is_urgent {
                    self.shared.work.notify_one();
                }
            }
        }
        Ok(())
    }

    /// Entries that linger go to the others now ([`Core::hurry`]). The caller has something else to
    /// do first, so the thread `replica` sends them.
    pub fn hurry(&self) {
        let mut state = self.shared.state.lock();
        if state.core.hurry() {
            self.shared.wake(&mut state);
        }
    }

    /// Waits until an entry is committed, with all before it.
    ///
    /// # Errors
    /// [`Failure::Replaced`] if it never will be. [`Failure::Unknown`] if time is up, or if this
    /// replica does not lead any more and the place of the entry is cut off by now.
    pub fn wait_committed(&self, stamp: Stamp, limit: Duration) -> Result<(), Failure> {
        let mut state = self.enter()?;
        if state.core.hurry() {
            state.is_due = true;
            drop(state);
            self.shared.step();
            state = self.enter()?;
        }
        let detail = format!("entry {}", stamp.position);
        self.wait(&mut state, "replica commit", &detail, limit, |state| {
            let core = &state.core;
            match core.is_committed(stamp) {
                Some(true) => Some(Ok(())),
                Some(false) => Some(Err(Failure::Replaced)),
                None if core.committed() < stamp.position => None,
                None => Some(Err(Failure::Unknown)),
            }
        })?
    }

    /// Waits until this replica is known to lead and has applied everything that was acknowledged
    /// before the call. Then its state machine may answer a read. Returns the position.
    ///
    /// # Errors
    /// If it does not lead; [`Failure::Unknown`] if time is up.
    pub fn read_barrier(&self, limit: Duration) -> Result<Position, Failure> {
        let mut state = self.enter()?;
        let number = state.read_count;
        state.read_count += 1;
        state.core.read(number)?;
        state.reads.insert(number, None);
        self.shared.wake(&mut state);
        let outcome = self.wait(&mut state, "replica read", "", limit, |state| {
            match state.reads.get(&number).copied().flatten()? {
                None => Some(Err(Refusal::NotLeader(state.core.leader()))),
                Some(position) => (state.applied >= position).then_some(Ok(position)),
            }
        });
        state.reads.remove(&number);
        Ok(outcome??)
    }

    /// Makes durable what is in the log by now, with a majority. Only a replica alone that commits
    /// in memory has acknowledged anything that is not.
    ///
    /// # Errors
    /// [`Failure::Unknown`] if time is up.
    pub fn sync(&self, limit: Duration) -> Result<(), Failure> {
        let mut state = self.enter()?;
        let last = state.core.last().position;
        state.core.sync();
        self.shared.wake(&mut state);
        self.wait(&mut state, "replica sync", "", limit, |state| {
            (state.core.stable() >= last).then_some(())
        })
    }

    /// Changes the members, and waits until that is committed.
    ///
    /// # Errors
    /// If it is refused. If time is up, the change may still end.
    pub fn change(
        &self,
        voters: &BTreeSet<ReplicaId>,
        learners: &BTreeSet<ReplicaId>,
        limit: Duration,
    ) -> Result<(), Failure> {
        let mut state = self.enter()?;
        state.core.change(voters.clone(), learners.clone())?;
        self.shared.wake(&mut state);
        self.wait(&mut state, "replica membership", "", limit, |state| {
            let members = state.core.membership();
            let is_such = (&members.voters, &members.learners) == (voters, learners);
            (is_such && state.core.is_membership_committed()).then_some(())
        })
    }

    /// Raises the feature level, and waits until the group has it.
    ///
    /// # Errors
    /// If a member does not understand it; [`Failure::Unknown`] if time is up.
    pub fn raise_level(&self, level: u32, limit: Duration) -> Result<(), Failure> {
        let mut state = self.enter()?;
        state.core.raise_level(level)?;
        self.shared.wake(&mut state);
        self.wait(&mut state, "replica commit", "feature level", limit, |state| {
            (state.core.level() >= level).then_some(())
        })
    }

    /// As [`Core::trust`]: for a person who accepts what may be lost.
    pub fn trust(&self) {
        let mut state = self.shared.state.lock();
        state.core.trust();
        self.shared.wake(&mut state);
    }

    /// As [`Core::give_up_on`].
    pub fn give_up_on(&self, gone: &BTreeSet<ReplicaId>) {
        let mut state = self.shared.state.lock();
        state.core.give_up_on(gone);
        self.shared.wake(&mut state);
    }

    /// Reads the journal again, and has it written anew if it is damaged. Everything that is in
    /// force is in memory too.
    ///
    /// # Errors
    /// If the replica has ended; [`Failure::Unknown`] if time is up.
    pub fn verify_journal(&self, limit: Duration) -> Result<Verified, Failure> {
        let span = self.enter()?.span.clone();
        let mut verified = Verified { bytes: span.bytes(), damage: None };
        let Err(damage) = span.verify() else { return Ok(verified) };
        let mut state = self.enter()?;
        if state.span.epoch == span.epoch {
            state.renews = Some(span.epoch);
            self.shared.wake(&mut state);
            self.wait(&mut state, "replica journal", "is written anew", limit, |state| {
                (state.span.epoch != span.epoch).then_some(())
            })?;
            // By itself it begins another epoch too. Then nobody misses what this one had.
            let is_renewed = state.renewed == Some(span.epoch);
            verified.damage = is_renewed.then(|| damage.to_string());
        }
        Ok(verified)
    }

    /// Its word so far, for the next life in this process ([`Config::earlier`]).
    pub fn word(&self) -> Option<Word> {
        self.shared.state.lock().core.word()
    }

    /// True while no other replica can lead: a majority has answered what this one asked less than
    /// [`Config::lease`] ago, and votes for nobody yet. A process that stood still finds it over.
    pub fn lease(&self) -> bool {
        let state = self.shared.state.lock();
        let until = state.core.lease_until().filter(|_| state.ended.is_none());
        until.is_some_and(|until| self.shared.clock.monotonic() < until)
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let state = self.shared.state.lock();
        let core = &state.core;
        Status {
            id: self.shared.config.id,
            role: core.role(),
            leader: core.leader(),
            term: core.term(),
            last: core.last(),
            committed: core.committed(),
            applied: state.applied,
            level: core.level(),
            membership: core.membership().clone(),
            members: core.members(),
            ended: state.ended.clone(),
        }
    }

    /// Whether it has gone on without all answers ([`Config::content_after`]) since the last call.
    ///
    /// [`Config::content_after`]: crate::core::Config::content_after
    pub fn is_newly_content(&self) -> bool {
        let mut state = self.shared.state.lock();
        let is_content = state.core.is_content();
        is_content && !std::mem::replace(&mut state.was_content, is_content)
    }

    fn enter(&self) -> Result<MutexGuard<'_, State>, Failure> {
        let state = self.shared.state.lock();
        match &state.ended {
            Some(reason) => Err(Failure::Ended(Arc::clone(reason))),
            None => Ok(state),
        }
    }

    /// Waits until something is there, at most `limit`.
    fn wait<T>(
        &self,
        state: &mut MutexGuard<'_, State>,
        reason: &'static str,
        detail: &str,
        limit: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Failure> {
        let shared = &self.shared;
        let end = shared.clock.monotonic() + limit;
        let wait = shared.waits.begin_wait(reason, detail);
        let outcome = loop {
            if let Some(outcome) = ready(state) {
                break Ok(outcome);
            }
            if let Some(reason) = &state.ended {
                break Err(Failure::Ended(Arc::clone(reason)));
            }
            let left = end.saturating_sub(shared.clock.monotonic());
            if left.is_zero() {
                break Err(Failure::Unknown);
            }
            shared.done.wait_for(state, left);
        };
        shared.waits.end_wait(wait);
        outcome
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The core has something to say.
    fn wake(&self, state: &mut State) {
        state.is_due = true;
        self.work.notify_one();
    }

    /// Nothing goes on from here.
    fn end(&self, reason: &str) {
        let mut state = self.state.lock();
        state.is_stopping = true;
        state.ended.get_or_insert_with(|| reason.into());
        self.work.notify_all();
        self.done.notify_all();
    }
}

#[cfg(test)]
#[path = "replica_test.rs"]
mod replica_test;
