//! The threads of a simulation that have not ended, by what they wait for: so a decision takes as
//! long with a thousand threads as with ten.

use super::Place;
use super::scheduler::Awaited;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Whether a thread can run.
#[derive(Clone, Copy)]
pub(super) enum Status {
    /// It can.
    Ready,
    /// It waits for `on`, at most until then. `what` says it in words.
    Waiting { on: Awaited, what: &'static str, until: Option<Duration> },
}

/// A thread that has not ended.
pub(super) struct Thread {
    pub(super) name: String,
    /// The simulated process it belongs to.
    pub(super) process: u32,
    /// The scope that spawned it, by its address.
    pub(super) scope: Option<usize>,
    status: Status,
    /// Whether its last wait ended by its limit.
    timed_out: bool,
    /// The number of calls of `undisturbed` that are under way.
    pub(super) calm: usize,
    /// Where its last decision point was.
    pub(super) place: Place,
}

impl Thread {
    /// A thread that can run.
    pub(super) fn new(name: String, process: u32, scope: Option<usize>, place: Place) -> Thread {
        let status = Status::Ready;
        Thread { name, process, scope, status, timed_out: false, calm: 0, place }
    }

    /// Whether it can run.
    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// Whether its last wait ended by its limit.
    pub(super) fn has_timed_out(&self) -> bool {
        self.timed_out
    }
}

/// All threads that have not ended, by number. Whatever has an order has that of the numbers, so
/// that two runs are equal.
#[derive(Default)]
pub(super) struct Threads {
    live: BTreeMap<usize, Thread>,
    next: usize,
    /// The numbers of those that can run, in order.
    ready: Vec<usize>,
    /// The numbers of those that wait, in order. Nobody goes through this map: addresses differ
    /// between two runs.
    waiting: HashMap<Awaited, Vec<usize>>,
    /// When waits end by their limit.
    limits: BTreeSet<(Duration, usize)>,
}

/// Adds a number to a list in order.
fn enter(list: &mut Vec<usize>, id: usize) {
    if let Err(place) = list.binary_search(&id) {
        list.insert(place, id);
    }
}

/// Takes a number out of a list in order.
fn leave(list: &mut Vec<usize>, id: usize) {
    if let Ok(place) = list.binary_search(&id) {
        list.remove(place);
    }
}

impl Threads {
    /// Adds a thread that can run, and returns its number.
    pub(super) fn add(&mut self, thread: Thread) -> usize {
        let id = self.next;
        self.next += 1;
        self.live.insert(id, thread);
        self.ready.push(id);
        id
    }

    /// The thread of this number, unless it has ended.
    pub(super) fn get(&self, id: usize) -> Option<&Thread> {
        self.live.get(&id)
    }

    /// The thread of this number, which runs.
    ///
    /// # Panics
    /// If it has ended.
    pub(super) fn running(&mut self, id: usize) -> &mut Thread {
        self.live.get_mut(&id).expect("invariant: a running thread has not ended")
    }

    /// All threads, by number.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Thread)> {
        self.live.iter().map(|(id, thread)| (*id, thread))
    }

    /// The numbers of all threads that can run, in order.
    pub(super) fn ready(&self) -> &[usize] {
        &self.ready
    }

    /// The numbers of all threads that wait for `on`, in order.
    pub(super) fn waiting(&self, on: Awaited) -> &[usize] {
        self.waiting.get(&on).map_or(&[], Vec::as_slice)
    }

    /// When the first wait ends by its limit.
    pub(super) fn earliest(&self) -> Option<Duration> {
        self.limits.first().map(|(until, _)| *until)
    }

    /// The thread waits from now on.
    pub(super) fn wait(
        &mut self,
        id: usize,
        on: Awaited,
        what: &'static str,
        until: Option<Duration>,
    ) {
        let thread = self.running(id);
        assert!(matches!(thread.status, Status::Ready), "a thread that waits does not run");
        thread.status = Status::Waiting { on, what, until };
        thread.timed_out = false;
        leave(&mut self.ready, id);
        enter(self.waiting.entry(on).or_default(), id);
        self.limits.extend(until.map(|until| (until, id)));
    }

    /// The thread can run again.
    pub(super) fn wake(&mut self, id: usize, timed_out: bool) {
        let thread = self.live.get_mut(&id).expect("invariant: a thread that waits is there");
        let Status::Waiting { on, until, .. } = thread.status else { return };
        thread.status = Status::Ready;
        thread.timed_out = timed_out;
        self.forget(id, on, until);
        enter(&mut self.ready, id);
    }

    fn forget(&mut self, id: usize, on: Awaited, until: Option<Duration>) {
        if let Some(waiting) = self.waiting.get_mut(&on) {
            leave(waiting, id);
            if waiting.is_empty() {
                self.waiting.remove(&on);
            }
        }
        if let Some(until) = until {
            self.limits.remove(&(until, id));
        }
    }

    /// Ends the waits whose limit is reached.
    pub(super) fn pass(&mut self, now: Duration) {
        while let Some((_, id)) = self.limits.first().filter(|(until, _)| *until <= now) {
            self.wake(*id, true);
        }
    }

    /// The thread has ended.
    pub(super) fn remove(&mut self, id: usize) {
        let Some(thread) = self.live.remove(&id) else { return };
        match thread.status {
            Status::Ready => leave(&mut self.ready, id),
            Status::Waiting { on, until, .. } => self.forget(id, on, until),
        }
    }
}

#[cfg(test)]
#[path = "threads_test.rs"]
mod threads_test;
