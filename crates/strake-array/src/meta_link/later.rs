//! Changes that are told to the metadata later, because their outcome is known here.
//!
//! A client that holds a directory exclusively, and knows that a name is absent, knows what the
//! metadata would answer. So the program goes on, and a thread sends such changes, many at once
//! ([`MetaPort::apply_all`]).
//!
//! **Order.** They are sent in the order in which they were made. Everything else that goes to the
//! metadata waits until they are applied ([`Later::settle`]), or goes behind them in the same
//! message ([`Later::ask`]). So nobody sees the metadata without them: not this client, and no
//! other one either, since a token is given up only after a sync (R19).
//!
//! **A refusal** cannot come, as the metadata has reserved what is needed. If it comes all the
//! same, the change stays first in the line as long as waiting may help, and whoever settles gets
//! the error. Else the change is lost, as if the client had crashed, and the next one who settles
//! gets the error. That may be a thread that no program waits for, so a sync of the directory asks
//! as well ([`Later::take_refused`]).

use super::unsynced::changed;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_env::thread::{Builder, JoinHandle};
use strake_observe::{Observe, WaitGuard};
use strake_proto::meta::{MetaEntry, MetaPort, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, Result};
use tracing::error;

/// The most changes that are sent at once.
const TOGETHER: usize = 32;
/// A change that nobody waits for is sent after that time, with those that have come meanwhile.
const LINGER: Duration = Duration::from_millis(1);
/// The most changes that are not applied yet.
const OPEN_MAX: usize = 256;
/// The limit of a wait. The port's own limits are lower.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// A change that could not be applied is tried again after that time.
const AGAIN: Duration = Duration::from_secs(1);

/// A change in the line.
struct Change {
    number: u64,
    since: Duration,
    entry: MetaEntry,
    outcome: Outcome,
    /// It was sent before, and perhaps applied.
    is_repeated: bool,
}

/// The answer to a change.
enum Outcome {
    /// It will be this one. A program was told so.
    Told(MetaReply),
    /// Somebody waits for it, and finds it here.
    Asked(Answer),
}

type Answer = Arc<Mutex<Option<Result<MetaReply>>>>;

#[derive(Default)]
struct State {
    /// Changes that are not applied yet, in their order.
    open: VecDeque<Change>,
    /// How many of the first ones are being sent.
    sending: usize,
    /// The number of the newest change.
    last: u64,
    /// The number of the newest change that somebody waits for.
    wanted: u64,
    /// Why the first ones could not be applied.
    failure: Option<Error>,
    /// Why a change is lost that nobody has been told of.
    loss: Option<Error>,
    /// How many are lost.
    lost: u64,
    /// In which directories, as far as nobody has asked for that.
    refused: HashSet<Ino>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

impl State {
    fn is_applied(&self, upto: u64) -> bool {
        self.open.front().is_none_or(|change| change.number > upto)
    }

    /// When the next changes are to be sent.
    fn due(&self) -> Option<Duration> {
        let first = self.open.front()?;
        let is_urgent = self.ended || self.open.len() >= TOGETHER || self.wanted >= first.number;
        Some(if is_urgent { Duration::ZERO } else { first.since + LINGER })
    }

    /// Takes in the results of the first changes.
    fn take_in(&mut self, results: Vec<Result<MetaReply>>) {
        self.failure = None;
        let (mut left, mut is_first) = (VecDeque::new(), true);
        let tried: Vec<Change> = self.open.drain(..results.len()).collect();
        for (mut change, result) in tried.into_iter().zip(results) {
            let expected = match &change.outcome {
                Outcome::Told(expected) => expected,
                Outcome::Asked(answer) => {
                    let has_waited = !is_first && matches!(&result, Err(error) if is_busy(error));
                    match &self.failure {
                        // It has only waited for a change before it.
                        Some(failure) => *answer.lock() = Some(Err(failure.clone())),
                        None if has_waited => left.push_back(change),
                        None => {
                            is_first &= result.is_ok();
                            *answer.lock() = Some(result);
                        }
                    }
                    continue;
                }
            };
            let error = match result {
                Ok(reply) if reply == *expected => continue,
                Ok(MetaReply::Removed(None)) if change.is_repeated => continue,
                Ok(reply) => Error::new(ErrorKind::Internal, format!("its outcome is {reply:?}")),
                Err(error) => error,
            };
            if may_pass(error.kind()) {
                change.is_repeated = true;
                left.push_back(change);
                // Those after the first have only waited for it.
                if std::mem::take(&mut is_first) {
                    self.failure = Some(error);
                }
                continue;
            }
            is_first = false;
            let what = "a change of names that a program was told of is lost";
            error!(target: "metadata", "{what}: {error}: {:?}", change.entry.op);
            self.lost += 1;
            self.refused.extend(changed(&change.entry.op).0);
            self.loss = Some(Error::new(ErrorKind::Io, format!("{what}: {error}")));
        }
        left.append(&mut self.open);
        self.open = left;
    }
}

fn is_busy(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy
}

/// Whether a change that was refused for that reason may be taken later.
fn may_pass(kind: ErrorKind) -> bool {
    use ErrorKind as It;
    matches!(kind, It::NoSpace | It::Unreachable | It::TimedOut | It::Busy | It::NoMemory)
}

struct Shared {
    port: Arc<dyn MetaPort>,
    clock: Arc<dyn Clock>,
    observe: Arc<Observe>,
    state: Mutex<State>,
    /// For the thread: there is something to send, or to end.
    work: Condvar,
    /// For those that wait: changes were applied, or not.
    moved: Condvar,
    /// How many changes are open. It is 0 where no change is ever told later.
    count: AtomicU64,
}

/// See the file's head.
pub(super) struct Later(Arc<Shared>);

impl Later {
    pub(super) fn new(
        port: Arc<dyn MetaPort>,
        clock: Arc<dyn Clock>,
        observe: Arc<Observe>,
    ) -> Later {
        let (state, count) = (Mutex::default(), AtomicU64::new(0));
        let (work, moved) = (Condvar::new(), Condvar::new());
        Later(Arc::new(Shared { port, clock, observe, state, work, moved, count }))
    }

    /// Takes a change that will be answered by `expected`. Never waits.
    ///
    /// # Errors
    /// If too many are open, earlier ones cannot be applied, or there is no thread. The change is
    /// not taken then.
    pub(super) fn push(&self, entry: MetaEntry, expected: MetaReply) -> Result<()> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if state.open.len() >= OPEN_MAX {
            return Err(ErrorKind::Busy.into());
        }
        if let Some(error) = state.failure.as_ref().or(state.loss.as_ref()) {
            return Err(error.clone());
        }
        if state.thread.is_none() {
            let shared = Arc::clone(shared);
            let thread = Builder::new().name("later changes".into()).spawn(move || shared.send());
            state.thread = Some(thread.map_err(|error| {
                Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
            })?);
        }
        shared.append(&mut state, entry, Outcome::Told(expected));
        if state.open.len() == 1 || state.open.len() == TOGETHER {
            shared.work.notify_one();
        }
        Ok(())
    }

    /// Makes a change behind those that are open, with the same message. `None` if none is open:
    /// the caller makes the change itself.
    ///
    /// # Errors
    /// Inside: the change's; as [`Later::settle`] if an earlier one cannot be applied. This one is
    /// not made then.
    pub(super) fn ask(&self, entry: &MetaEntry) -> Option<Result<MetaReply>> {
        let shared = &*self.0;
        if shared.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = shared.state.lock();
        if let Err(error) = shared.tell_loss(&mut state) {
            return Some(Err(error));
        }
        if let Some(error) = &state.failure {
            return Some(Err(error.clone()));
        }
        if state.open.is_empty() {
            return None;
        }
        let answer = Answer::default();
        let outcome = Outcome::Asked(Arc::clone(&answer));
        let number = shared.append(&mut state, entry.clone(), outcome);
        Some(shared.await_answer(state, number, &answer))
    }

    /// Waits until all changes that were taken so far are applied.
    ///
    /// # Errors
    /// Of the first that cannot be applied; `Io` if one is lost; `TimedOut` after a long wait.
    pub(super) fn settle(&self) -> Result<()> {
        let shared = &*self.0;
        if shared.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let state = shared.state.lock();
        shared.wait(state)
    }
}

impl Later {
    /// How many changes are lost.
    pub(super) fn lost(&self) -> u64 {
        self.0.state.lock().lost
    }

    /// The directories of those that were lost since this was last asked.
    pub(super) fn take_refused(&self) -> HashSet<Ino> {
        std::mem::take(&mut self.0.state.lock().refused)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let thread = {
            let mut state = self.0.state.lock();
            state.ended = true;
            state.thread.take()
        };
        self.0.work.notify_all();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Puts a change at the end of the line. Returns its number.
    fn append(&self, state: &mut State, entry: MetaEntry, outcome: Outcome) -> u64 {
        state.last += 1;
        let (number, since) = (state.last, self.clock.monotonic());
        state.open.push_back(Change { number, since, entry, outcome, is_repeated: false });
        self.count.store(state.open.len() as u64, Ordering::Release);
        number
    }

    /// A loss is told once.
    fn tell_loss(&self, state: &mut State) -> Result<()> {
        let Some(error) = state.loss.take() else { return Ok(()) };
        self.count.store(state.open.len() as u64, Ordering::Release);
        Err(error)
    }

    /// Waits until the changes so far are applied.
    fn wait(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let (upto, mut wait) = (state.last, None);
        let end = self.clock.monotonic() + WAIT_MAX;
        loop {
            self.tell_loss(&mut state)?;
            if state.is_applied(upto) {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            self.wait_more(&mut state, upto, end, &mut wait)?;
        }
    }

    /// Waits for the answer to a change in the line.
    fn await_answer(
        &self,
        mut state: MutexGuard<'_, State>,
        number: u64,
        answer: &Answer,
    ) -> Result<MetaReply> {
        let mut wait = None;
        let end = self.clock.monotonic() + WAIT_MAX;
        loop {
            if let Some(result) = answer.lock().take() {
                return result;
            }
            let at = state.open.iter().position(|change| change.number == number);
            // A change that is being sent gets its answer.
            let may_leave = at.filter(|at| *at >= state.sending);
            let failed = match (&state.failure, may_leave) {
                (Some(error), Some(_)) => Err(error.clone()),
                _ => self.wait_more(&mut state, number, end, &mut wait),
            };
            if let Err(error) = failed {
                // It is not made later, unless it is on its way.
                if let Some(at) = may_leave {
                    state.open.remove(at);
                    self.count.store(state.open.len() as u64, Ordering::Release);
                }
                return Err(error);
            }
        }
    }

    /// Waits until something changes for the changes up to a number, which somebody wants.
    fn wait_more<'a>(
        &'a self,
        state: &mut MutexGuard<'_, State>,
        upto: u64,
        end: Duration,
        wait: &mut Option<WaitGuard<'a>>,
    ) -> Result<()> {
        if state.wanted < upto {
            state.wanted = upto;
            self.work.notify_one();
        }
        wait.get_or_insert_with(|| self.observe.waiters.enter("earlier changes of names", ""));
        let now = self.clock.monotonic();
        if now >= end {
            let detail = "earlier changes of names do not end: see `strake diag waiters`";
            return Err(Error::new(ErrorKind::TimedOut, detail));
        }
        self.moved.wait_for(state, end - now);
        Ok(())
    }

    /// The thread that sends.
    fn send(&self) {
        let mut state = self.state.lock();
        let mut not_before = Duration::ZERO;
        loop {
            if state.ended && (state.open.is_empty() || state.failure.is_some()) {
                return;
            }
            let now = self.clock.monotonic();
            match state.due().map(|due| due.max(not_before)) {
                None => self.work.wait(&mut state),
                Some(due) if now < due => {
                    self.work.wait_for(&mut state, due - now);
                }
                Some(_) => {
                    let first = state.open.iter().take(TOGETHER);
                    let entries: Vec<MetaEntry> = first.map(|it| it.entry.clone()).collect();
                    state.sending = entries.len();
                    drop(state);
                    let begun = self.observe.trace.begin();
                    let results = self.port.apply_all(&entries);
                    let failed = results.iter().any(Result::is_err);
                    self.observe.trace.end(begun, "metadata changes", 0, None, failed);
                    state = self.state.lock();
                    state.sending = 0;
                    state.take_in(results);
                    let pause = if state.failure.is_some() { AGAIN } else { Duration::ZERO };
                    not_before = self.clock.monotonic() + pause;
                    // The next one who settles hears of a loss, too.
                    let count = state.open.len() + usize::from(state.loss.is_some());
                    self.count.store(count as u64, Ordering::Release);
                    self.moved.notify_all();
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "later_test.rs"]
mod later_test;
