//! The turns of a background thread that works when it is asked, and those who wait for one.

use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};

/// Whoever waits looks again after this time.
const WAIT_STEP: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    is_asked: bool,
    is_closed: bool,
    /// Turns that have brought something.
    turns: u64,
}

/// The turns of one thread.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turns {
    /// Has the thread begin.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if !state.is_asked {
            state.is_asked = true;
            self.changed.notify_all();
        }
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until the thread is asked to begin. False if the thread ends.
    pub(crate) fn next(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_asked && !state.is_closed {
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
        state.is_asked = false;
        !state.is_closed
    }

    /// Notes that a turn has ended. False if the thread ends.
    pub(crate) fn end_turn(&self, is_useful: bool) -> bool {
        let mut state = self.state.lock();
        state.turns += u64::from(is_useful);
        self.changed.notify_all();
        !state.is_closed
    }

    /// Has the thread begin, and waits for a limited time until a turn has ended. Returns how many
    /// turns have brought something so far; `None` if the thread ends.
    pub(crate) fn wait(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.is_asked = true;
            self.changed.notify_all();
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
        (!state.is_closed).then_some(state.turns)
    }
}
