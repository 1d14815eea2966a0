//! A limit to the rate of background work, so that it leaves the disks to applications.

use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex};

/// A job that is ahead of its rate by less than this goes on. Shorter waits cost more than they are
/// worth.
const AHEAD_MIN: Duration = Duration::from_millis(5);
/// The longest single wait. After it the job looks at the rate again.
const STEP_MAX: Duration = Duration::from_millis(500);

/// Bytes per second for a job that can be stopped at any time.
#[derive(Default)]
pub(crate) struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes per second; 0 for no limit.
    rate: u64,
    stopped: bool,
    /// When everything done so far would be done at the rate.
    due: Duration,
}

impl Pace {
    /// Begins a job at `rate` bytes per second; 0 for no limit.
    pub(crate) fn start(&self, rate: u64) {
        *self.state.lock() = State { rate, ..State::default() };
    }

    /// Sets another rate. A job that waits goes on at once.
    pub(crate) fn set_rate(&self, rate: u64) {
        let mut state = self.state.lock();
        (state.rate, state.due) = (rate, Duration::ZERO);
        self.changed.notify_all();
    }

    /// Ends the job: it waits no more.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Whether the job is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// The rate; 0 for no limit.
    pub(crate) fn rate(&self) -> u64 {
        self.state.lock().rate
    }

    /// Waits for a time. False if the job is to end.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stopped {
            self.changed.wait_for(&mut state, time);
        }
        !state.stopped
    }

    /// Notes that `bytes` were moved, and waits until they are due. False if the job is to end.
    pub(crate) fn moved(&self, bytes: u64, clock: &dyn Clock) -> bool {
        let mut state = self.state.lock();
        if state.rate > 0 {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(state.rate);
            let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            // Time in which the job was slower for other reasons is not made up for.
            state.due = state.due.max(clock.monotonic()) + cost;
            while !state.stopped {
                let ahead = state.due.saturating_sub(clock.monotonic());
                if ahead < AHEAD_MIN {
                    break;
                }
                self.changed.wait_for(&mut state, ahead.min(STEP_MAX));
            }
        }
        !state.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::ManualClock;

    #[test]
    fn what_is_moved_is_due_at_the_rate_and_a_stopped_job_waits_for_nothing() {
        let (pace, clock) = (Pace::default(), ManualClock::default());
        pace.start(0);
        assert!(pace.moved(u64::MAX, &clock), "no limit");
        pace.start(1 << 20);
        assert!(pace.moved(1 << 10, &clock), "a millisecond is not waited for");
        pace.stop();
        // This clock never moves by itself: without the stop it would wait for ever.
        assert!(!pace.moved(1 << 30, &clock));
        assert!(pace.is_stopped());
    }
}
