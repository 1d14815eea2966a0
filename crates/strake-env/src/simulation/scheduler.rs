//! The scheduler: one thread holds the baton, and the seed decides which thread gets it next.
//!
//! All simulated threads of a simulation run on one thread of the operating system, each on a stack
//! of its own (`stacks`). A thread hands the baton on at *decision points* ([`Here::point`]) and
//! where it must wait ([`Here::block`]). Between two points no other thread runs, so a simulated
//! lock needs no atomic protocol, and "release the lock and wait" is one step.
//!
//! **Time** belongs to the scheduler. Each point takes a microsecond. When no thread can run, time
//! jumps to the earliest time limit of a waiting thread. When no thread has a limit either, the
//! simulation fails with the name of each thread, what it waits for, and where.
//!
//! **Failure.** After a deadlock or a panic no thread gets the baton again. The threads of a failed
//! simulation stay where they are, and are given up without being unwound.

use super::threads::{Status, Thread, Threads};
use super::trace::{Line, Trace};
use super::{Options, Place, stacks};
use crate::Rng;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What a decision point takes in simulated time: so threads that look at a clock again and again
/// do get on.
const STEP: Duration = Duration::from_micros(1);

/// What a thread waits for. Addresses are compared, never ordered or printed, because they differ
/// between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    /// The lock at this address.
    Lock(usize),
    /// The read-write lock at this address, for writing: readers that come later wait, too.
    Write(usize),
    /// The condition variable at this address.
    Condition(usize),
    /// The end of this thread.
    End(usize),
    /// Nothing but time.
    Time,
    /// Something to happen at this end of a simulated connection, or at this listener.
    Network(u64),
}

pub(crate) struct State {
    options: Options,
    pub(crate) rng: Rng,
    pub(crate) now: Duration,
    threads: Threads,
    /// Processes whose threads are not run.
    paused: Vec<u32>,
    pub(crate) trace: Trace,
    points: u64,
    main_ended: bool,
    /// Why the simulation is over; `Err` says what failed.
    over: Option<Result<(), String>>,
}

impl State {
    /// Notes a step of a thread; time goes on. An error is the end of the simulation.
    fn step(&mut self, id: usize, what: &'static str, place: Place) -> Result<(), String> {
        self.points += 1;
        self.trace.add(Line { thread: id as u32, what, place: Some(place), numbers: [0, 0] });
        self.pass(self.now + STEP);
        self.threads.running(id).place = place;
        if self.points > self.options.points_max {
            return Err(self.report(&format!("no end after {} decisions", self.points - 1)));
        }
        if self.now > self.options.time_max {
            return Err(self.report("no end in time"));
        }
        Ok(())
    }

    /// Lets time pass; waits whose limit is reached end.
    fn pass(&mut self, now: Duration) {
        self.now = now;
        self.threads.pass(now);
    }

    /// One of the threads that can run.
    fn pick(&mut self) -> Option<usize> {
        let all = self.threads.ready();
        if self.paused.is_empty() {
            return (!all.is_empty()).then(|| all[self.rng.index(all.len())]);
        }
        let process = |id: &usize| self.threads.get(*id).map(|thread| thread.process);
        let runs = |id: &usize| process(id).is_some_and(|process| !self.paused.contains(&process));
        let ready: Vec<usize> = all.iter().copied().filter(runs).collect();
        (!ready.is_empty()).then(|| ready[self.rng.index(ready.len())])
    }

    /// The thread that runs next, if time has to pass for it.
    fn next(&mut self) -> Option<usize> {
        loop {
            if let Some(next) = self.pick() {
                return Some(next);
            }
            let earliest = self.threads.earliest()?;
            self.pass(earliest);
        }
    }

    /// Ends waits for `on`: one of them, drawn, or all.
    pub(crate) fn wake(&mut self, on: Awaited, all: bool) -> usize {
        let mut waiting = self.threads.waiting(on).to_vec();
        if !all && waiting.len() > 1 {
            waiting = vec![waiting[self.rng.index(waiting.len())]];
        }
        waiting.iter().for_each(|id| self.threads.wake(*id, false));
        waiting.len()
    }

    /// Whether a race is planted.
    pub(crate) fn has_canary(&self) -> bool {
        self.options.has_canary
    }

    /// The rule that is not obeyed.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        self.options.broken
    }

    fn report(&self, what: &str) -> String {
        let mut report = format!("{what}, at {:?} of simulated time:", self.now);
        for (_, thread) in self.threads.all() {
            report.push_str("\n  ");
            report.push_str(&self.describe(thread));
        }
        report
    }

    /// A thread, what it waits for, and where.
    fn describe(&self, thread: &Thread) -> String {
        let state = match thread.status() {
            Status::Ready => "can run".to_owned(),
            Status::Waiting { what, until: None, .. } => format!("waits for {what}"),
            Status::Waiting { what, until: Some(until), .. } => {
                format!("waits for {what}, until {until:?}")
            }
        };
        let paused = if self.paused.contains(&thread.process) { ", paused" } else { "" };
        let (name, process, place) = (&thread.name, thread.process, thread.place);
        format!("{name} (process {process}{paused}) {state}, at {place}")
    }
}

/// One simulation.
pub(crate) struct Scheduler {
    /// No two simulations of a process have the same one.
    number: u64,
    state: Mutex<State>,
    ended: Condvar,
    pub(crate) network: super::network::Links,
}

/// The simulated thread that runs here.
#[derive(Clone)]
pub(crate) struct Here {
    scheduler: Arc<Scheduler>,
    id: usize,
}

/// What became of a simulation.
pub(crate) struct Ended {
    pub(crate) result: Result<(), String>,
    pub(crate) trace: Trace,
    pub(crate) left: Vec<String>,
    pub(crate) now: Duration,
    pub(crate) points: u64,
    /// Whether a thread blocks outside the seam, and so keeps the thread that all run on.
    pub(crate) is_stuck: bool,
}

impl Scheduler {
    pub(crate) fn new(options: Options, rng: Rng) -> Arc<Scheduler> {
        let state = State {
            trace: Trace::new(options.keep_trace),
            options,
            rng,
            now: Duration::ZERO,
            threads: Threads::default(),
            paused: Vec::new(),
            points: 0,
            main_ended: false,
            over: None,
        };
        let network = super::network::Links::default();
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        Arc::new(Scheduler { number, state: Mutex::new(state), ended: Condvar::new(), network })
    }

    /// Adds a thread that can run.
    fn add(self: &Arc<Scheduler>, name: String, process: u32, scope: Option<usize>) -> Here {
        let thread = Thread::new(name, process, scope, std::panic::Location::caller());
        let id = self.state.lock().threads.add(thread);
        Here { scheduler: Arc::clone(self), id }
    }

    /// The first thread.
    pub(crate) fn first(self: &Arc<Scheduler>) -> Here {
        self.add("main".to_owned(), 0, None)
    }

    /// Waits until the simulation is over, which runs on another thread of the operating system.
    pub(crate) fn watch(&self) -> Ended {
        let mut is_stuck = false;
        let mut state = self.state.lock();
        while state.over.is_none() {
            let points = state.points;
            let timed_out = self.ended.wait_for(&mut state, super::STUCK_AFTER).timed_out();
            if timed_out && state.over.is_none() && state.points == points {
                let what = "a thread blocks outside the seam: no decision for a minute";
                state.over = Some(Err(state.report(what)));
                is_stuck = true;
            }
        }
        let result = state.over.clone().expect("invariant: looked at above");
        let left = state.threads.all().map(|(_, thread)| state.describe(thread)).collect();
        let trace = std::mem::take(&mut state.trace);
        Ended { result, trace, left, now: state.now, points: state.points, is_stuck }
    }

    fn end(&self, state: &mut State, result: Result<(), String>) {
        state.over.get_or_insert(result);
        self.ended.notify_all();
    }
}

impl Here {
    /// Looks at this thread, or changes it.
    fn mine<T>(&self, work: impl FnOnce(&mut Thread) -> T) -> T {
        self.with(|state| work(state.threads.running(self.id)))
    }

    /// The simulation that it belongs to.
    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// Looks at the simulation's state, or changes it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.scheduler.state.lock())
    }

    /// Ends the simulation as failed; this thread stays here for ever.
    pub(crate) fn fail(&self, report: String) -> ! {
        let state = self.scheduler.state.lock();
        self.fail_with(state, report)
    }

    fn fail_with(&self, mut state: MutexGuard<'_, State>, report: String) -> ! {
        self.scheduler.end(&mut state, Err(report));
        drop(state);
        loop {
            stacks::suspend(None);
        }
    }

    /// A decision point: another thread may run now.
    pub(crate) fn point(&self, what: &'static str, place: Place) {
        let mut state = self.scheduler.state.lock();
        if let Err(report) = state.step(self.id, what, place) {
            self.fail_with(state, report);
        }
        let one_in = state.options.switch_one_in;
        if state.threads.running(self.id).calm > 0 || !state.rng.one_in(one_in) {
            return;
        }
        // This thread can run, so there is one.
        let next = state.pick().unwrap_or(self.id);
        self.hand_over(state, next);
    }

    /// Waits for `on`, at most `limit`; false if the limit was reached. `what` says it in words.
    pub(crate) fn block(
        &self,
        on: Awaited,
        what: &'static str,
        limit: Option<Duration>,
        place: Place,
    ) -> bool {
        let mut state = self.scheduler.state.lock();
        if let Err(report) = state.step(self.id, what, place) {
            self.fail_with(state, report);
        }
        let until = limit.map(|limit| state.now.saturating_add(limit));
        state.threads.wait(self.id, on, what, until);
        let Some(next) = state.next() else {
            let report = state.report("nobody can run");
            self.fail_with(state, report);
        };
        self.hand_over(state, next);
        !self.mine(|thread| thread.has_timed_out())
    }

    fn hand_over(&self, state: MutexGuard<'_, State>, next: usize) {
        if next == self.id {
            return;
        }
        drop(state);
        stacks::suspend(Some(next));
    }

    /// Ends waits for `on`.
    pub(crate) fn wake(&self, on: Awaited, all: bool) -> usize {
        self.with(|state| state.wake(on, all))
    }

    /// Whether some thread waits for `on`.
    pub(crate) fn is_awaited(&self, on: Awaited) -> bool {
        self.with(|state| !state.threads.waiting(on).is_empty())
    }

    /// Waits for so long.
    pub(crate) fn sleep(&self, time: Duration, place: Place) {
        self.block(Awaited::Time, "time to pass", Some(time), place);
    }

    /// Notes something in the trace.
    pub(crate) fn note(&self, what: &'static str, numbers: [u64; 2]) {
        let line = Line { thread: self.id as u32, what, place: None, numbers };
        self.with(|state| state.trace.add(line));
    }

    /// Calls `work` with no decision points: no other thread runs unless this one must wait.
    pub(crate) fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Calm<'a>(&'a Here);
        impl Calm<'_> {
            fn change(&self, change: fn(&mut usize)) {
                self.0.mine(|thread| change(&mut thread.calm));
            }
        }
        impl Drop for Calm<'_> {
            fn drop(&mut self) {
                self.change(|calm| *calm -= 1);
            }
        }
        let calm = Calm(self);
        calm.change(|calm| *calm += 1);
        work()
    }

    /// Whether it is within [`Here::undisturbed`].
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.mine(|thread| thread.calm > 0)
    }

    /// Adds a thread of the same process, which runs [`Here::run`] once it was started.
    pub(crate) fn add(&self, name: Option<String>, scope: Option<usize>) -> Here {
        let process = self.process();
        let name = name.unwrap_or_else(|| "unnamed".to_owned());
        self.scheduler.add(name, process, scope)
    }

    /// A thread that was added could not be started.
    pub(crate) fn withdraw(&self) {
        self.with(|state| state.threads.remove(self.id));
    }

    /// Tells it from the threads of all simulations of this process.
    pub(crate) fn identity(&self) -> u64 {
        (self.scheduler.number << 32) | self.id as u64
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.mine(|thread| thread.name.clone())
    }

    /// Its number.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// Works as this thread. Returns the thread that gets the baton then, or `None` at the end of
    /// the simulation.
    pub(super) fn run(&self, work: impl FnOnce()) -> Option<usize> {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        if let Err(payload) = result {
            let name = self.mine(|thread| thread.name.clone());
            self.fail(format!("the thread {name} panicked: {}", panic_text(&*payload)));
        }
        self.finish()
    }

    fn finish(&self) -> Option<usize> {
        let mut state = self.scheduler.state.lock();
        let line = Line { thread: self.id as u32, what: "end", place: None, numbers: [0, 0] };
        state.trace.add(line);
        state.threads.remove(self.id);
        state.wake(Awaited::End(self.id), true);
        if self.id == 0 {
            state.main_ended = true;
        }
        let next = state.next();
        match next {
            Some(_) => {}
            // What is left then waits for something that only a next call would bring.
            None if state.main_ended => self.scheduler.end(&mut state, Ok(())),
            None => {
                let report = state.report("nobody can run");
                self.scheduler.end(&mut state, Err(report));
            }
        }
        next
    }

    /// Whether that thread has ended.
    pub(crate) fn has_ended(&self, id: usize) -> bool {
        self.with(|state| state.threads.get(id).is_none())
    }

    /// Waits for the end of a thread.
    pub(crate) fn join(&self, id: usize, place: Place) {
        while !self.has_ended(id) {
            self.block(Awaited::End(id), "the end of a thread", None, place);
        }
    }

    /// A thread of that scope which has not ended.
    pub(crate) fn any_of_scope(&self, scope: usize) -> Option<usize> {
        self.with(|state| {
            let mut all = state.threads.all();
            all.find(|(_, thread)| thread.scope == Some(scope)).map(|(id, _)| id)
        })
    }

    /// The simulated process that it belongs to.
    pub(crate) fn process(&self) -> u32 {
        self.mine(|thread| thread.process)
    }

    /// Moves this thread, and those that it spawns from now on, to another process.
    pub(crate) fn set_process(&self, process: u32) -> u32 {
        self.mine(|thread| std::mem::replace(&mut thread.process, process))
    }

    /// Stops running the threads of a process, or runs them again.
    pub(crate) fn pause(&self, process: u32, is_paused: bool) {
        self.with(|state| {
            state.paused.retain(|other| *other != process);
            if is_paused {
                state.paused.push(process);
            }
        });
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
