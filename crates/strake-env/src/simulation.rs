//! A scheduler for tests: threads run one at a time, in an order that a seed chooses, in simulated
//! time, on simulated disks and a simulated network (docs/decisions/0024).
//!
//! ```text
//! scheduler   the baton, decision points, time, deadlocks
//! stacks      the stacks of the simulated threads, and switching between them
//! local       values of each thread
//! lock        mutexes, read-write locks, condition variables
//! thread      spawning, joining, scopes
//! channel     channels, on those locks
//! network     streams between simulated processes
//! entropy     what would be chance, also for the standard library's hash maps
//! trace       every decision and I/O, to compare two runs
//! ```
//!
//! [`run`] calls a function on the first simulated thread. Whatever this thread does through the
//! seam is simulated from then on, and so are all threads that it spawns. Other threads of the
//! process see the plain seam. Two runs of one seed take the same decisions and do the same I/O.
//!
//! **A simulated thread must not wait** for another simulated thread around the seam: by a lock of
//! another crate that is held across a decision point, or by a standard channel. The thread that
//! holds the baton would sleep, and no thread could wake it. `undisturbed` is for calls of other
//! crates that come back into ours while they hold a lock of their own.
//!
//! Only tests have this module: it is compiled with the feature `simulation`, or for the tests of
//! this crate.

mod channel;
mod entropy;
pub(crate) mod local;
mod lock;
mod network;
mod scheduler;
pub(crate) mod stacks;
mod thread;
mod threads;
mod trace;

pub(crate) mod seam {
    //! What takes the place of the plain types.
    pub use super::channel::{Iter, Receiver, Sender, SyncSender, channel, sync_channel};
    pub use super::lock::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
        RwLockWriteGuard, WaitTimeoutResult,
    };
    pub use super::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, scope, spawn,
        yield_now,
    };
}

pub use network::{Link, Network, SimListener, SimStream};
pub use trace::{Line, Trace};

pub(crate) use entropy::fill as fill_entropy;

use crate::Rng;
use scheduler::{Here, Scheduler};
use stacks::here;
use std::panic::Location;
use std::time::Duration;

/// A place in the source.
pub type Place = &'static Location<'static>;

/// A thread that holds the baton for so long, in real time, blocks around the seam.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// What a thread that lets others run waits.
const MOMENT: Duration = Duration::from_micros(5);
/// What the simulated machine's clock shows at the beginning.
pub const BOOT: Duration = Duration::from_secs(100_000);
/// One in so many I/Os of a simulated disk is slow, by this factor.
const SLOW_ONE_IN: u64 = 50;
const SLOW_FACTOR: u32 = 20;

/// How a simulation is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// At one in so many decision points another thread may run; drawn from the seed if it is 0.
    /// Seldom changes find what needs a thread to stand still for long, frequent ones what needs
    /// threads in step.
    pub switch_one_in: u64,
    /// A simulation with more decisions has failed.
    pub points_max: u64,
    /// A simulation that takes longer, in simulated time, has failed: a thread that waits for ever
    /// beside one that ticks is no deadlock.
    pub time_max: Duration,
    /// Whether the lines of the trace are kept, beside their hash.
    pub keep_trace: bool,
    /// Whether a race is planted in [`crate::FanOut`], for a test to find.
    pub has_canary: bool,
    /// The name of a rule that this simulation does not obey, for a test to find ([`is_broken`]).
    pub broken: Option<&'static str>,
}

impl Options {
    /// The usual ones.
    pub fn new(seed: u64) -> Options {
        Options {
            seed,
            switch_one_in: 0,
            points_max: 100_000_000,
            time_max: Duration::from_secs(24 * 3600),
            keep_trace: false,
            has_canary: false,
            broken: None,
        }
    }
}

/// What a simulation came to.
pub struct Outcome<T> {
    /// Its seed.
    pub seed: u64,
    /// What its first thread returned, or what went wrong: a panic, or a deadlock with all that
    /// waited.
    pub result: Result<T, String>,
    /// Every decision and every I/O.
    pub trace: Trace,
    /// The threads that were still waiting when everything else had ended, and what for.
    pub left: Vec<String>,
    /// What it took in simulated time.
    pub time: Duration,
    /// How many decisions there were.
    pub points: u64,
}

impl<T> Outcome<T> {
    /// What the first thread returned.
    ///
    /// # Panics
    /// If the simulation failed.
    pub fn expect(self) -> T {
        match self.result {
            Ok(result) => result,
            Err(report) => panic!("seed {}: {report}", self.seed),
        }
    }
}

/// Runs `work` as the first thread of a simulation, and then all threads that are left until they
/// have ended or wait for ever.
///
/// # Panics
/// When the system gives no thread.
pub fn run<T: Send + 'static>(
    options: Options,
    work: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    entropy::link();
    let mut rng = Rng::new(options.seed);
    let drawn = 1 << rng.below(6);
    let switch_one_in = if options.switch_one_in == 0 { drawn } else { options.switch_one_in };
    let scheduler = Scheduler::new(Options { switch_one_in, ..options }, rng);
    let first = scheduler.first();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("main".to_owned()).spawn(move || {
        // Nobody receives it if the simulation failed meanwhile.
        stacks::run(first, Box::new(move || drop(sender.send(work()))));
    });
    let thread = thread.expect("the system has threads left");
    let ended = scheduler.watch();
    if !ended.is_stuck {
        thread.join().expect("invariant: panics end on the stacks of simulated threads");
    }
    let result = ended.result.and_then(|()| {
        let result = receiver.recv();
        result.map_err(|_| "the first thread returned nothing".to_owned())
    });
    let (trace, left, time, points) = (ended.trace, ended.left, ended.now, ended.points);
    Outcome { seed: options.seed, result, trace, left, time, points }
}

/// Whether this thread is simulated.
pub fn is_simulated() -> bool {
    here().is_some()
}

/// The simulated time since the beginning; `None` if this thread is not simulated.
pub fn now() -> Option<Duration> {
    here().map(|here| here.with(|state| BOOT + state.now))
}

/// The simulated process that this thread belongs to; `None` if this thread is not simulated.
pub fn process() -> Option<u32> {
    here().map(|here| here.process())
}

/// Sleeps in simulated time; false if this thread is not simulated.
#[track_caller]
pub(crate) fn sleep(time: Duration) -> bool {
    let Some(here) = here() else { return false };
    here.sleep(time, Location::caller());
    true
}

/// Calls `work` with no decision points, for calls that come out of another crate which may hold a
/// lock of its own. No other thread runs meanwhile unless this one must wait.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    match here() {
        Some(here) => here.undisturbed(work),
        None => work(),
    }
}

/// Whether a race is planted.
pub(crate) fn has_canary() -> bool {
    here().is_some_and(|here| here.with(|state| state.has_canary()))
}

/// Whether the simulation that this thread belongs to does not obey the rule of that name.
pub fn is_broken(rule: &str) -> bool {
    here().is_some_and(|here| here.with(|state| state.broken()) == Some(rule))
}

/// A decision point of a test's own.
#[track_caller]
pub fn point() {
    if let Some(here) = here() {
        here.point("point", Location::caller());
    }
}

/// Notes a line of a test's own in the trace.
pub fn note(what: &'static str, numbers: [u64; 2]) {
    if let Some(here) = here() {
        here.note(what, numbers);
    }
}

/// A number below `bound`, drawn from the seed.
///
/// # Panics
/// If this thread is not simulated.
pub fn draw(bound: u64) -> u64 {
    simulated().with(|state| state.rng.below(bound))
}

fn simulated() -> Here {
    here().expect("this is for simulated threads")
}

/// The network of this simulation.
///
/// # Panics
/// If this thread is not simulated.
pub fn network() -> Network {
    Network::of(&simulated())
}

/// Calls `work` as a part of another simulated process, to which the threads that it spawns
/// belong, too. Process 0 is the first thread's.
///
/// # Panics
/// If this thread is not simulated.
pub fn in_process<T>(process: u32, work: impl FnOnce() -> T) -> T {
    let before = simulated().set_process(process);
    let result = work();
    simulated().set_process(before);
    result
}

/// Stops running the threads of a process, as a machine that stands still, or runs them again.
///
/// # Panics
/// If this thread is not simulated.
#[track_caller]
pub fn pause(process: u32, is_paused: bool) {
    simulated().pause(process, is_paused);
    simulated().point("pause", Location::caller());
}

/// Notes the bytes that a simulated disk has read or is about to write.
pub(crate) fn disk_bytes(what: &'static str, offset: u64, bytes: &[u8]) {
    let Some(here) = here() else { return };
    let check = u64::from(crc32c::crc32c(bytes));
    here.note(what, [offset, (bytes.len() as u64) << 32 | check]);
}

/// An I/O of a simulated disk takes its time.
#[track_caller]
pub(crate) fn disk_time(times: [Duration; 2]) {
    let Some(here) = here() else { return };
    if here.is_undisturbed() {
        return;
    }
    let [least, most] = times;
    let range = most.saturating_sub(least).as_nanos() as u64;
    let time = here.with(|state| {
        let time = least + Duration::from_nanos(state.rng.below(range.max(1)));
        if state.rng.one_in(SLOW_ONE_IN) { time * SLOW_FACTOR } else { time }
    });
    here.sleep(time, Location::caller());
}

#[cfg(test)]
#[path = "simulation_test.rs"]
mod simulation_test;
