//! Threads that start together: the barrier, the meter, and the crew of this host.
//!
//! A phase runs in four steps, the same on one host or many: `begin` makes the tasks and lets
//! each prepare (open its file); `ready` returns when all stand at the barrier; `release` lets
//! them go; `collect` waits for the end. The clocks of all tasks of a host start when its barrier
//! opens and stop where each task says so, normally after close.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use strake_net::SharedSecret;

use crate::clock::Tick;
use crate::error::{BenchError, Result};
use crate::host::{self, CpuTimes};
use crate::metric::TaskSample;
use crate::outcome::{HostOutcome, TaskOutcome};
use crate::stop::Stop;
use crate::work::Assignment;
use strake_proto::histogram::Histogram;

/// What one task of a phase does.
pub trait Task: Send {
    /// Everything that happens before the barrier and is not measured.
    fn prepare(&mut self) -> Result<()>;
    /// The measured part: reports each operation to the meter.
    fn run(&mut self, meter: &mut Meter) -> Result<()>;
}

/// Operations and bytes so far, for the progress line; written now and then by every task.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    operations: AtomicU64,
}

impl Progress {
    /// Bytes and operations so far.
    pub fn get(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.operations.load(Ordering::Relaxed))
    }
}

/// A task reports its progress after so many operations or bytes, since a counter shared by
/// all processors would otherwise be what is measured.
const REPORT_OPERATIONS: u64 = 1024;
const REPORT_BYTES: u64 = 16 << 20;

/// Takes the times of one task.
#[derive(Debug)]
pub struct Meter {
    start: Tick,
    last: Tick,
    deadline_ns: u64,
    ended: Option<u64>,
    bytes: u64,
    operations: u64,
    reported: (u64, u64),
    latency: Histogram,
    progress: Arc<Progress>,
    stop: Stop,
}

impl Meter {
    fn new(limit_seconds: Option<f64>, progress: Arc<Progress>, stop: Stop) -> Meter {
        let now = Tick::now();
        Meter {
            start: now,
            last: now,
            deadline_ns: limit_seconds.map_or(u64::MAX, |seconds| (seconds * 1e9) as u64),
            ended: None,
            bytes: 0,
            operations: 0,
            reported: (0, 0),
            latency: Histogram::default(),
            progress,
            stop,
        }
    }

    /// Starts the clock at the moment the barrier opened. A task that had to wait for a
    /// processor after that was late, and that is part of its time: else many short tasks on few
    /// processors would run one after the other and add up to more than the machine can do.
    fn start(&mut self, opened: Tick) {
        self.start = opened;
        self.last = Tick::now();
    }

    /// True if the task must not begin another operation: somebody asked to stop, or the time
    /// of a stonewalled phase is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.stop.raised() || self.last.nanos_since(self.start) >= self.deadline_ns
    }

    /// Marks the beginning of an operation. Only needed where the task did something of its own
    /// since the last one; otherwise one operation begins where the last ended.
    #[inline]
    pub fn operation_begins(&mut self) {
        self.last = Tick::now();
    }

    /// Counts an operation that moved `bytes`.
    #[inline]
    pub fn operation_ends(&mut self, bytes: u64) {
        let now = Tick::now();
        self.latency.add(now.nanos_since(self.last));
        self.last = now;
        self.bytes += bytes;
        self.operations += 1;
        if self.operations - self.reported.1 >= REPORT_OPERATIONS
            || self.bytes - self.reported.0 >= REPORT_BYTES
        {
            self.report();
        }
    }

    /// Counts `operations` that one call completed, as a listing does, each with its share.
    pub fn operations_end(&mut self, operations: u64) {
        let now = Tick::now();
        let share = now.nanos_since(self.last) / operations.max(1);
        self.last = now;
        for _ in 0..operations {
            self.latency.add(share);
        }
        self.operations += operations;
        self.report();
    }

    /// Stops the clock: what the task does from here on is not counted.
    pub fn clock_stops(&mut self) {
        if self.ended.is_none() {
            self.ended = Some(self.start.elapsed_nanos());
        }
    }

    fn report(&mut self) {
        let (bytes, operations) = self.reported;
        self.progress.bytes.fetch_add(self.bytes - bytes, Ordering::Relaxed);
        let more = self.operations - operations;
        self.progress.operations.fetch_add(more, Ordering::Relaxed);
        self.reported = (self.bytes, self.operations);
    }

    fn finish(mut self, rank: u32) -> TaskOutcome {
        self.clock_stops();
        self.report();
        TaskOutcome {
            rank,
            sample: TaskSample {
                bytes: self.bytes,
                operations: self.operations,
                seconds: self.ended.unwrap_or(0) as f64 / 1e9,
                busy_seconds: self.latency.sum_ns() as f64 / 1e9,
            },
            latency: self.latency,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    Wait,
    /// The barrier opened, then.
    Go(Tick),
    Cancel,
}

#[derive(Debug)]
struct Gate {
    state: Mutex<(usize, Signal)>,
    changed: Condvar,
}

impl Gate {
    /// Reports one more task at the barrier and waits for the signal.
    fn arrive(&self) -> Signal {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        while state.1 == Signal::Wait {
            self.changed.wait(&mut state);
        }
        state.1
    }

    fn wait_for(&self, tasks: usize) {
        let mut state = self.state.lock();
        while state.0 < tasks {
            self.changed.wait(&mut state);
        }
    }

    fn send(&self, signal: Signal) {
        self.state.lock().1 = signal;
        self.changed.notify_all();
    }
}

/// Stands in at the barrier for a task that panicked while it prepared: the others must not wait
/// for it for ever. A task that arrives by itself forgets this first.
struct Arrival<'a> {
    gate: &'a Gate,
    failed: &'a Mutex<Option<BenchError>>,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let error = BenchError::Protocol("a task panicked while it prepared".into());
        self.failed.lock().get_or_insert(error);
        self.gate.state.lock().0 += 1;
        self.gate.changed.notify_all();
    }
}

struct Running {
    gate: Arc<Gate>,
    threads: Vec<JoinHandle<Result<TaskOutcome>>>,
    failed: Arc<Mutex<Option<BenchError>>>,
    before: CpuTimes,
}

/// The tasks of this host, as threads.
pub struct Team {
    host: String,
    directory: PathBuf,
    /// What opens other agents, where this is one.
    secret: Option<SharedSecret>,
    stop: Stop,
    progress: Arc<Progress>,
    running: Option<Running>,
}

impl Team {
    /// A team that works in `directory`, which need not exist yet.
    pub fn new(directory: PathBuf, stop: Stop) -> Team {
        Team {
            host: host::name(),
            directory,
            secret: None,
            stop: stop.for_session(),
            progress: Arc::default(),
            running: None,
        }
    }

    /// A team whose tasks call other agents.
    pub fn with_secret(mut self, secret: SharedSecret) -> Team {
        self.secret = Some(secret);
        self
    }

    /// The counters behind the progress line; they start anew with each phase.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Makes the tasks and waits until all stand at the barrier. If one cannot prepare, all are
    /// sent home and its error is returned.
    pub fn begin(&mut self, assignment: &Assignment) -> Result<()> {
        assert!(self.running.is_none(), "a team runs one phase at a time");
        self.stop.check()?;
        assignment.work.before_phase()?;
        self.progress = Arc::default();
        let gate = Arc::new(Gate { state: Mutex::new((0, Signal::Wait)), changed: Condvar::new() });
        let mut running = Running {
            gate: Arc::clone(&gate),
            threads: Vec::new(),
            failed: Arc::default(),
            before: CpuTimes::default(),
        };
        for seat in 0..assignment.tasks_here {
            let rank = assignment.first_rank + seat;
            let task = assignment.task(rank, &self.directory, self.secret.as_ref());
            let body = self.body(task, rank, assignment.work.limit_seconds(), &running);
            let spawned = thread::Builder::new().name(format!("task-{rank}")).spawn(body);
            match spawned {
                Ok(handle) => running.threads.push(handle),
                Err(error) => {
                    let mut failed = running.failed.lock();
                    failed.get_or_insert(BenchError::system("cannot start a thread", error));
                    break;
                }
            }
        }
        gate.wait_for(running.threads.len());
        let failure = running.failed.lock().take();
        self.running = Some(running);
        if let Some(error) = failure {
            self.cancel();
            return Err(error);
        }
        Ok(())
    }

    fn body(
        &self,
        mut task: Box<dyn Task>,
        rank: u32,
        limit: Option<f64>,
        running: &Running,
    ) -> impl FnOnce() -> Result<TaskOutcome> + Send + 'static {
        let (gate, failed) = (Arc::clone(&running.gate), Arc::clone(&running.failed));
        let mut meter = Meter::new(limit, Arc::clone(&self.progress), self.stop.clone());
        move || {
            let arrival = Arrival { gate: &gate, failed: &failed };
            let prepared = task.prepare();
            if let Err(error) = prepared {
                failed.lock().get_or_insert(error);
            }
            std::mem::forget(arrival);
            let Signal::Go(opened) = gate.arrive() else {
                return Err(BenchError::Interrupted);
            };
            meter.start(opened);
            task.run(&mut meter)?;
            Ok(meter.finish(rank))
        }
    }

    /// Opens the barrier.
    pub fn release(&mut self) {
        let running = self.running.as_mut().expect("invariant: release follows begin");
        running.before = CpuTimes::now();
        running.gate.send(Signal::Go(Tick::now()));
    }

    /// True between `begin` and `collect`.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// True once every task came to its end.
    pub fn is_finished(&self) -> bool {
        let running = self.running.as_ref();
        running.is_none_or(|running| running.threads.iter().all(JoinHandle::is_finished))
    }

    /// Waits for the end of the phase.
    pub fn collect(&mut self) -> Result<HostOutcome> {
        let running = self.running.take().expect("invariant: collect follows release");
        let mut tasks = Vec::with_capacity(running.threads.len());
        let mut failure = None;
        for handle in running.threads {
            match handle.join() {
                Ok(Ok(outcome)) => tasks.push(outcome),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        let cpu = CpuTimes::now().since(running.before);
        if let Some(error) = failure {
            return Err(error);
        }
        self.stop.check()?;
        Ok(HostOutcome { host: self.host.clone(), tasks, cpu })
    }

    /// Sends everybody home, from the barrier or from work, and waits for them.
    pub fn cancel(&mut self) {
        if let Some(running) = self.running.take() {
            self.stop.raise();
            running.gate.send(Signal::Cancel);
            for handle in running.threads {
                // What they have to say no longer matters: the phase is given up.
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_panics_before_the_barrier_does_not_hold_up_the_others() {
        let gate = Gate { state: Mutex::new((0, Signal::Wait)), changed: Condvar::new() };
        let failed = Mutex::new(None);
        let panicked = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let _arrival = Arrival { gate: &gate, failed: &failed };
                std::panic::resume_unwind(Box::new("a bug"));
            });
            worker.join().is_err()
        });
        assert!(panicked);
        gate.wait_for(1);
        assert!(matches!(failed.into_inner(), Some(BenchError::Protocol(_))));
    }

    #[test]
    fn a_meter_counts_what_it_is_told_and_stops_where_it_is_told() {
        let mut meter = Meter::new(None, Arc::default(), Stop::default());
        meter.start(Tick::now());
        for _ in 0..3 {
            meter.operation_ends(100);
        }
        meter.operations_end(7);
        meter.clock_stops();
        let progress = Arc::clone(&meter.progress);
        let first = meter.ended;
        meter.clock_stops();
        assert_eq!(meter.ended, first, "only the first stop counts");
        let outcome = meter.finish(5);
        assert_eq!((outcome.rank, outcome.sample.bytes), (5, 300));
        assert_eq!(outcome.sample.operations, 10);
        assert_eq!(outcome.latency.count(), 10);
        assert_eq!(progress.get(), (300, 10));
        assert!(outcome.sample.busy_seconds <= outcome.sample.seconds);
    }

    #[test]
    fn a_limit_or_a_raised_flag_ends_a_task() {
        let stop = Stop::default();
        let mut meter = Meter::new(None, Arc::default(), stop.clone());
        meter.start(Tick::now());
        assert!(!meter.is_over());
        stop.raise();
        assert!(meter.is_over());
        let mut meter = Meter::new(Some(0.0), Arc::default(), Stop::default());
        meter.start(Tick::now());
        assert!(meter.is_over());
    }
}
