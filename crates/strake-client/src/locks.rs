//! Locks of programs, where others use the same file system: [`LockHolder`] with a lock, and calls
//! that wait for the leader's answers. A lone mount has none of this: there the kernel keeps locks.
//!
//! **A call that may wait for other programs** holds no thread: its outcome goes to whoever
//! answers the kernel ([`Locks::set_later`]). All other calls wait here for an answer, which the
//! leader gives at once.
//!
//! **Unlocking.** A process loses its POSIX locks of a file with any `close(2)` of that file. The
//! kernel says so, with the owner. What belongs to an open file goes with its last close. Of a
//! `flock` lock the kernel names the owner then. Of locks of open file descriptions it does not: so
//! each handle remembers the owners that locked through it. Those of processes are taken off at
//! `close(2)`, and what is left belongs to the handle.
//!
//! **Data** needs nothing here. What a program wrote under a lock is seen by the next one that has
//! the lock, because reads take tokens.
//!
//! **Death.** A client that was declared dead has no locks any more, and takes none.
//!
//! **Locks.** `state` is a leaf. Messages are sent, and outcomes told, without it.

use crate::lease::dead;
use crate::vfs::{ByteRange, Handle, LockDone, LockHeld, LockKind, LockOwner, LockWant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex};
use strake_env::workers::{WorkerLimits, Workers};
use strake_observe::{Observe, RequestWait};
use strake_proto::{Error, ErrorKind, Ino, Result};
use strake_token::locks::holder::{Effect, LockHolder};
use strake_token::locks::{LockOp, LockOutcome, LockReply, LockRequest};
use strake_token::message::{Request, RequestId, Term};
use strake_token::port::ToAuthority;

/// An unanswered request is sent again after that long.
const REPEAT: Duration = Duration::from_secs(1);
/// A call that waits for no other program waits for the leader at most that long.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Requests under way. The leader takes as many and a few more.
const REQUESTS_MAX: usize = 16_000;
/// Cancelled waits that were not known, and may be about to begin.
const EARLY_MAX: usize = 4096;

/// The one that is told an outcome.
enum Caller {
    /// A thread that waits, and what it waits for once that is there.
    Thread(Option<Result<LockOutcome>>),
    /// Whoever answers the kernel.
    Later { ticket: u64, then: LockDone, wait: RequestWait, ino: Ino },
}

struct State {
    holder: LockHolder,
    callers: BTreeMap<RequestId, Caller>,
    /// Waits by the number that their caller gave them.
    tickets: BTreeMap<u64, RequestId>,
    /// Waits that were cancelled before they began, the oldest first.
    early: VecDeque<u64>,
    /// Owners of POSIX locks by the handle that they used last.
    handles: BTreeMap<(Ino, u64), BTreeSet<u64>>,
    /// Whether a thread sends again what is not answered.
    repeating: bool,
    dead: bool,
    ended: bool,
}

/// Messages to send and outcomes to tell, once the lock is released.
#[derive(Default)]
struct Todo {
    term: Term,
    messages: Vec<LockRequest>,
    outcomes: Vec<(LockDone, Result<()>)>,
    repeat: bool,
}

/// See the file's head.
pub(crate) struct Locks {
    state: Mutex<State>,
    /// An outcome is there, or the mount ends.
    changed: Condvar,
    /// The mount ends.
    ending: Condvar,
    way: Arc<dyn ToAuthority>,
    clock: Arc<dyn Clock>,
    observe: Arc<Observe>,
    repeater: OnceLock<Workers<()>>,
}

impl Locks {
    /// Of a client that has just joined the leader of `term`.
    pub(crate) fn new(
        term: Term,
        way: Arc<dyn ToAuthority>,
        clock: Arc<dyn Clock>,
        observe: Arc<Observe>,
    ) -> Arc<Locks> {
        let state = Mutex::new(State {
            holder: LockHolder::new(term),
            callers: BTreeMap::new(),
            tickets: BTreeMap::new(),
            early: VecDeque::new(),
            handles: BTreeMap::new(),
            repeating: false,
            dead: false,
            ended: false,
        });
        let (changed, ending) = (Condvar::new(), Condvar::new());
        let repeater = OnceLock::new();
        let locks = Arc::new(Locks { state, changed, ending, way, clock, observe, repeater });
        let weak = Arc::downgrade(&locks);
        let limits = WorkerLimits { threads_max: 1, waiting_max: 1 };
        let repeater = Workers::new("locks", limits, move |()| {
            if let Some(locks) = weak.upgrade() {
                locks.repeat();
            }
        });
        assert!(locks.repeater.set(repeater).is_ok(), "set once");
        locks
    }

    /// Who is in the way.
    pub(crate) fn test(&self, want: LockWant) -> Result<Option<LockHeld>> {
        match self.run(LockOp::Test(want))? {
            LockOutcome::Held { range, mode, pid } => Ok(Some(LockHeld { range, mode, pid })),
            outcome => result(outcome, false).map(|()| None),
        }
    }

    /// Locks or unlocks, without waiting for others.
    pub(crate) fn set(&self, handle: Handle, want: LockWant) -> Result<()> {
        self.state.lock().note(handle, &want);
        result(self.run(LockOp::Set(want))?, false)
    }

    /// Locks once nobody is in the way. What only unlocks, or is not wanted, waits for nobody.
    pub(crate) fn set_later(&self, handle: Handle, want: LockWant, ticket: u64, then: LockDone) {
        if want.mode.is_none() {
            then(self.set(handle, want));
            return;
        }
        let mut state = self.state.lock();
        let is_cancelled = state.early.iter().position(|early| *early == ticket);
        if let Some(at) = is_cancelled {
            state.early.remove(at);
        }
        let refused = match state.may_ask(&want) {
            Ok(()) if is_cancelled.is_some() => Some(ErrorKind::Interrupted.into()),
            outcome => outcome.err(),
        };
        if let Some(error) = refused {
            drop(state);
            then(Err(error));
            return;
        }
        state.note(handle, &want);
        let (request, effect) = state.holder.ask(LockOp::SetWaiting(want));
        let (who, ino) = (format!("process {}", want.pid), want.ino);
        let wait = self.observe.waiters.enter_request(who, "lock", format!("inode {ino}"));
        state.callers.insert(request, Caller::Later { ticket, then, wait, ino });
        state.tickets.insert(ticket, request);
        let todo = state.absorb(vec![effect]);
        drop(state);
        self.perform(todo);
    }

    /// Ends a wait for a lock.
    pub(crate) fn cancel(&self, ticket: u64) {
        let mut state = self.state.lock();
        let Some(request) = state.tickets.get(&ticket).copied() else {
            // It is over, is about to begin, or was never one.
            state.early.push_back(ticket);
            if state.early.len() > EARLY_MAX {
                state.early.pop_front();
            }
            return;
        };
        let effects = state.holder.cancel(request).into_iter().collect();
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// A process has closed a file: its POSIX locks of that file go.
    pub(crate) fn closed(&self, ino: Ino, owner: u64) -> Result<()> {
        let mut state = self.state.lock();
        for (_, owners) in state.handles.range_mut((ino, 0)..=(ino, u64::MAX)) {
            owners.remove(&owner);
        }
        drop(state);
        self.unlock_all(ino, LockOwner { kind: LockKind::Posix, id: owner }, false)
    }

    /// An open file is closed for the last time: its locks go.
    pub(crate) fn released(&self, ino: Ino, handle: Handle, flock: Option<u64>) {
        let left = self.state.lock().handles.remove(&(ino, handle.0)).unwrap_or_default();
        for id in left {
            // If nobody answers, the leader hears of it later.
            let _ = self.unlock_all(ino, LockOwner { kind: LockKind::Posix, id }, false);
        }
        if let Some(id) = flock {
            let _ = self.unlock_all(ino, LockOwner { kind: LockKind::Flock, id }, true);
        }
    }

    fn unlock_all(&self, ino: Ino, owner: LockOwner, surely: bool) -> Result<()> {
        if !surely && !self.state.lock().holder.may_have(ino, owner) {
            return Ok(());
        }
        let want = LockWant { ino, owner, range: ByteRange::ALL, mode: None, pid: 0 };
        result(self.run(LockOp::Set(want))?, false)
    }

    /// Asks, and waits for the answer.
    fn run(&self, op: LockOp) -> Result<LockOutcome> {
        let (request, todo) = {
            let mut state = self.state.lock();
            if op.want().mode.is_some() {
                state.may_ask(op.want())?;
            } else if state.dead {
                // There is nothing to unlock.
                return Ok(LockOutcome::Granted);
            }
            let (request, effect) = state.holder.ask(op);
            state.callers.insert(request, Caller::Thread(None));
            (request, state.absorb(vec![effect]))
        };
        self.perform(todo);
        let ino = op.want().ino;
        let start = self.clock.monotonic();
        let mut wait = None;
        let mut state = self.state.lock();
        loop {
            if let Some(Caller::Thread(Some(_))) = state.callers.get(&request)
                && let Some(Caller::Thread(Some(outcome))) = state.callers.remove(&request)
            {
                return outcome;
            }
            let is_late = self.clock.monotonic().saturating_sub(start) >= WAIT_MAX;
            if state.ended || is_late {
                state.callers.remove(&request);
                let effects = state.holder.abandon(request).into_iter().collect();
                let todo = state.absorb(effects);
                drop(state);
                self.perform(todo);
                let kind = if is_late { ErrorKind::TimedOut } else { ErrorKind::Unreachable };
                return Err(Error::new(kind, format!("no answer about locks of inode {ino}")));
            }
            wait.get_or_insert_with(|| self.observe.waiters.enter("lock", format!("inode {ino}")));
            self.changed.wait_for(&mut state, REPEAT);
        }
    }

    /// Takes a message of the leader of a term.
    pub(crate) fn receive(&self, term: Term, message: LockReply) {
        let mut state = self.state.lock();
        let effects = state.holder.receive(term, message);
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// There is a new leader, who knows nothing of this client's locks.
    pub(crate) fn new_term(&self, term: Term) {
        let mut state = self.state.lock();
        if term <= state.holder.term() {
            return;
        }
        let effects = state.holder.reassert(term);
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// This client was declared dead: others have its locks by now.
    pub(crate) fn die(&self) {
        let mut state = self.state.lock();
        state.dead = true;
        state.holder = LockHolder::new(state.holder.term());
        state.tickets.clear();
        state.handles.clear();
        let mut later = Vec::new();
        for (request, caller) in std::mem::take(&mut state.callers) {
            match caller {
                Caller::Later { then, .. } => later.push(then),
                Caller::Thread(outcome) => {
                    let outcome = outcome.or_else(|| Some(Err(dead())));
                    state.callers.insert(request, Caller::Thread(outcome));
                }
            }
        }
        drop(state);
        self.changed.notify_all();
        later.into_iter().for_each(|then| then(Err(dead())));
    }

    /// Ends all waits. Locks stay until the leader learns that this client is gone.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let waiting = std::mem::take(&mut state.tickets);
        let callers: Vec<Caller> =
            waiting.into_values().filter_map(|request| state.callers.remove(&request)).collect();
        drop(state);
        self.changed.notify_all();
        self.ending.notify_all();
        for caller in callers {
            if let Caller::Later { then, .. } = caller {
                then(Err(Error::new(ErrorKind::Unreachable, "the mount ends")));
            }
        }
        if let Some(repeater) = self.repeater.get() {
            drop(repeater.end());
            repeater.join();
        }
    }

    fn perform(&self, todo: Todo) {
        let Todo { term, messages, outcomes, repeat } = todo;
        messages.into_iter().for_each(|message| self.way.send(term, Request::Lock(message)));
        outcomes.into_iter().for_each(|(then, outcome)| then(outcome));
        self.changed.notify_all();
        if repeat && let Some(repeater) = self.repeater.get() {
            // If no thread is to be had, the next request tries again.
            if repeater.submit(()).is_err() {
                self.state.lock().repeating = false;
            }
        }
    }

    /// Sends again what is not answered, until all is.
    fn repeat(&self) {
        loop {
            let mut state = self.state.lock();
            if !state.ended {
                self.ending.wait_for(&mut state, REPEAT);
            }
            if state.ended || state.holder.is_idle() {
                state.repeating = false;
                return;
            }
            let effects = state.holder.repeat();
            let todo = state.absorb(effects);
            drop(state);
            self.perform(todo);
        }
    }
}

impl State {
    /// Whether a lock may be asked for now.
    fn may_ask(&self, want: &LockWant) -> Result<()> {
        if self.ended {
            return Err(Error::new(ErrorKind::Unreachable, "the mount ends"));
        }
        if self.dead {
            return Err(dead());
        }
        if self.holder.is_unsettled(want.ino, want.owner) {
            let detail = "the leader has not answered an earlier request that was given up";
            return Err(Error::new(ErrorKind::TimedOut, detail));
        }
        if self.holder.asked() >= REQUESTS_MAX {
            return Err(Error::new(ErrorKind::NoLocks, "too many requests for locks wait"));
        }
        Ok(())
    }

    /// Remembers who locks through a handle.
    fn note(&mut self, handle: Handle, want: &LockWant) {
        if want.owner.kind == LockKind::Posix && want.mode.is_some() {
            self.handles.entry((want.ino, handle.0)).or_default().insert(want.owner.id);
        }
    }

    /// Sorts out what is to be done without the lock.
    fn absorb(&mut self, effects: Vec<Effect>) -> Todo {
        let mut todo = Todo { term: self.holder.term(), ..Todo::default() };
        for effect in effects {
            match effect {
                Effect::Send(message) => todo.messages.push(message),
                Effect::Done { request, outcome, lost } => {
                    todo.outcomes.extend(self.done(request, outcome, lost));
                }
                Effect::Waits(request, holder) => {
                    if let Some(Caller::Later { wait, ino, .. }) = self.callers.get(&request) {
                        wait.describe(format!("inode {ino}, held by client {holder}"));
                    }
                }
            }
        }
        if !self.holder.is_idle() && !self.ended {
            todo.repeat = !std::mem::replace(&mut self.repeating, true);
        }
        todo
    }

    fn done(
        &mut self,
        request: RequestId,
        outcome: LockOutcome,
        lost: bool,
    ) -> Option<(LockDone, Result<()>)> {
        match self.callers.get_mut(&request)? {
            Caller::Thread(slot) => {
                *slot = Some(if lost { Err(gone()) } else { Ok(outcome) });
                None
            }
            Caller::Later { .. } => {
                let Some(Caller::Later { ticket, then, .. }) = self.callers.remove(&request) else {
                    unreachable!("it was just found");
                };
                self.tickets.remove(&ticket);
                Some((then, result(outcome, lost)))
            }
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Io, "a lock that was to be lowered was lost when the leader changed")
}

/// What a program is told.
fn result(outcome: LockOutcome, lost: bool) -> Result<()> {
    match outcome {
        LockOutcome::Granted | LockOutcome::Free | LockOutcome::Held { .. } => Ok(()),
        _ if lost => Err(gone()),
        LockOutcome::WouldBlock => Err(ErrorKind::WouldBlock.into()),
        LockOutcome::Deadlock => Err(ErrorKind::Deadlock.into()),
        LockOutcome::Full => Err(ErrorKind::NoLocks.into()),
        LockOutcome::Cancelled => Err(ErrorKind::Interrupted.into()),
    }
}
