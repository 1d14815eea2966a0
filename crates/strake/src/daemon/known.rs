//! Answers to questions that may take long, for listings that may not.
//!
//! A listing shows what the metadata and the NSDs say. If one of them is held up, the listing must
//! come all the same: it is how an administrator finds out what is wrong. So a thread of its own
//! asks each question. The listing waits for a moment and then takes the answer that came last,
//! with its age.
//!
//! Invariants:
//! - At most one thread asks one question, however many listings want the answer.
//! - An answer without an age was begun after the listing was asked for. So a listing shows every
//!   change that was acknowledged before.

use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex};
use strake_observe::Waiters;
use strake_proto::Result;

/// One question, and the answers to it.
pub(super) struct Known<T> {
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// A thread asks.
    asking: bool,
    /// How often a thread has begun to ask.
    begun: u64,
    /// The last answer, and the number of its asking.
    ended: Option<(u64, Result<T>)>,
    /// The last answer that was no error, and when its asking began.
    last: Option<(Duration, T)>,
}

/// What is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told<T> {
    /// The answer.
    Now(T),
    /// There is no answer in time. This one came last, and was asked for so long ago.
    Before(T, Duration),
    /// There is no answer in time, and there never was one.
    Never,
}

impl<T: Clone + Send + 'static> Known<T> {
    /// `answer` is known, or nothing yet.
    pub(super) fn new(
        answer: Option<T>,
        clock: &Arc<dyn Clock>,
        waiters: &Arc<Waiters>,
    ) -> Arc<Known<T>> {
        let last = answer.map(|answer| (clock.monotonic(), answer));
        let state = Mutex::new(State { asking: false, begun: 0, ended: None, last });
        let (clock, waiters) = (Arc::clone(clock), Arc::clone(waiters));
        Arc::new(Known { clock, waiters, state, changed: Condvar::new() })
    }

    /// Begins to ask. `work` gets the answer.
    pub(super) fn ask(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Question<T> {
        let mut state = self.state.lock();
        let (known, work) = (Arc::clone(self), Some(Box::new(work) as Work<T>));
        let mut question = Question { known, came: state.begun, work };
        question.begin(&mut state);
        question
    }

    fn end(&self, number: u64, since: Duration, answer: Result<T>) {
        let mut state = self.state.lock();
        if let Ok(answer) = &answer {
            state.last = Some((since, answer.clone()));
        }
        state.asking = false;
        state.ended = Some((number, answer));
        self.changed.notify_all();
    }
}

type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// One who asks.
pub(super) struct Question<T> {
    known: Arc<Known<T>>,
    /// How often a thread had begun to ask before.
    came: u64,
    /// Taken once the asking has begun.
    work: Option<Work<T>>,
}

impl<T: Clone + Send + 'static> Question<T> {
    /// Starts the thread that asks, unless another one is at it.
    fn begin(&mut self, state: &mut State<T>) {
        if state.asking {
            return;
        }
        let Some(work) = self.work.take() else { return };
        state.asking = true;
        state.begun += 1;
        let number = state.begun;
        let (known, since) = (Arc::clone(&self.known), self.known.clock.monotonic());
        let started = strake_env::thread::Builder::new()
            .name("listing".to_owned())
            .spawn(move || known.end(number, since, work()));
        if let Err(error) = started {
            state.asking = false;
            state.ended = Some((number, Err(error.into())));
        }
    }

    /// The answer, if it comes until `end`; otherwise the last one. `what` names the wait.
    ///
    /// # Errors
    /// The error that is the answer.
    pub(super) fn wait(mut self, end: Duration, what: &str) -> Result<Told<T>> {
        let known = Arc::clone(&self.known);
        let _wait = known.waiters.enter("a listing", what.to_owned());
        let mut state = known.state.lock();
        loop {
            if let Some((number, answer)) = &state.ended
                && *number > self.came
            {
                return answer.clone().map(Told::Now);
            }
            // What another listing began to ask may be older than this one.
            self.begin(&mut state);
            let now = known.clock.monotonic();
            let left = end.saturating_sub(now);
            if left.is_zero() {
                let last = state.last.clone();
                return Ok(last.map_or(Told::Never, |(since, answer)| {
                    Told::Before(answer, now.saturating_sub(since))
                }));
            }
            known.changed.wait_for(&mut state, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::RealClock;
    use strake_env::channel;
    use strake_proto::{Error, ErrorKind};

    fn known() -> Arc<Known<u32>> {
        let clock = RealClock::shared();
        Known::new(None, &clock, &Arc::new(Waiters::new(Arc::clone(&clock))))
    }

    #[test]
    fn the_last_answer_is_told_while_the_next_one_does_not_come() {
        let known = known();
        let (sender, released) = channel::channel::<()>();
        let held_up = move || {
            let _ = released.recv();
            Ok(2)
        };
        assert_eq!(known.ask(|| Ok(1)).wait(Duration::MAX, "").expect("asked"), Told::Now(1));
        let first = known.ask(held_up);
        // Both answers come before the thread that asks has one.
        let second = known.ask(|| panic!("one thread asks")).wait(Duration::ZERO, "");
        assert!(matches!(second, Ok(Told::Before(1, _))), "{second:?}");
        assert!(matches!(first.wait(Duration::ZERO, ""), Ok(Told::Before(1, _))));
        drop(sender);
        // The answer to an earlier listing is not that of a later one.
        assert_eq!(known.ask(|| Ok(3)).wait(Duration::MAX, "").expect("asked"), Told::Now(3));
    }

    #[test]
    fn nothing_is_told_where_nothing_ever_came() {
        let known = known();
        let (sender, released) = channel::channel::<()>();
        let question = known.ask(move || {
            let _ = released.recv();
            Ok(1)
        });
        assert_eq!(question.wait(Duration::ZERO, "").expect("no error"), Told::Never);
        drop(sender);
    }

    #[test]
    fn an_error_is_told_and_hides_no_later_age() {
        let known = known();
        assert_eq!(known.ask(|| Ok(1)).wait(Duration::MAX, "").expect("asked"), Told::Now(1));
        let failed = known.ask(|| Err(Error::new(ErrorKind::Io, "broken"))).wait(Duration::MAX, "");
        assert_eq!(failed.expect_err("it failed").kind(), ErrorKind::Io);
        let (sender, released) = channel::channel::<()>();
        let question = known.ask(move || {
            let _ = released.recv();
            Ok(2)
        });
        assert!(matches!(question.wait(Duration::ZERO, ""), Ok(Told::Before(1, _))));
        drop(sender);
    }
}
