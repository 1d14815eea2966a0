//! Threads for jobs that may be held up for long. A thread is started when a job finds no idle one,
//! up to a limit. Beyond that jobs wait in a queue of limited length. So a job that is held up
//! holds up no other while threads are left, and neither threads nor memory grow without a bound.
//!
//! No thread is started before the first job. A thread stays until [`Workers::end`].

use crate::sync::{Condvar, Mutex};
use crate::thread;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many threads and jobs there may be.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Threads, at least 1.
    pub threads_max: usize,
    /// Jobs that wait for a thread.
    pub waiting_max: usize,
}

/// Why a job was not taken, with the job.
#[derive(Debug)]
pub enum Refused<T> {
    /// The queue of jobs is full, or the system gave no thread.
    Full(T),
    /// [`Workers::end`] was called.
    Ended(T),
}

struct State<T> {
    waiting: VecDeque<T>,
    /// Threads that wait for a job; those that were notified count until they run.
    idle: usize,
    threads: usize,
    ended: bool,
}

struct Inner<T> {
    name: String,
    limits: WorkerLimits,
    work: Box<dyn Fn(T) + Send + Sync>,
    state: Mutex<State<T>>,
    came: Condvar,
    left: Condvar,
}

/// See the module.
pub struct Workers<T> {
    inner: Arc<Inner<T>>,
}

impl<T: Send + 'static> Workers<T> {
    /// Threads named `name` that call `work` with one job after the other.
    pub fn new(
        name: impl Into<String>,
        limits: WorkerLimits,
        work: impl Fn(T) + Send + Sync + 'static,
    ) -> Workers<T> {
        assert!(limits.threads_max > 0, "jobs need a thread");
        let state = State { waiting: VecDeque::new(), idle: 0, threads: 0, ended: false };
        let (name, work) = (name.into(), Box::new(work));
        let (state, came, left) = (Mutex::new(state), Condvar::new(), Condvar::new());
        Workers { inner: Arc::new(Inner { name, limits, work, state, came, left }) }
    }

    /// Has `job` worked on by a thread; returns at once.
    ///
    /// # Errors
    /// [`Refused`], with the job.
    pub fn submit(&self, job: T) -> Result<(), Refused<T>> {
        let mut state = self.inner.state.lock();
        if state.ended {
            return Err(Refused::Ended(job));
        }
        if state.waiting.len() >= self.inner.limits.waiting_max {
            return Err(Refused::Full(job));
        }
        state.waiting.push_back(job);
        if state.waiting.len() <= state.idle {
            self.inner.came.notify_one();
        } else if state.threads < self.inner.limits.threads_max {
            if self.start().is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                let job = state.waiting.pop_back().expect("invariant: it was just put there");
                return Err(Refused::Full(job));
            }
        }
        Ok(())
    }

    fn start(&self) -> std::io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let name = inner.name.clone();
        thread::Builder::new().name(name).spawn(move || {
            // Counts the thread out however it ends; a panic has said so.
            let leaving = Leaving(&inner);
            leaving.0.serve();
        })?;
        Ok(())
    }

    /// Takes no more jobs and ends each thread after the job that it works on. Returns the jobs
    /// that were not begun.
    pub fn end(&self) -> Vec<T> {
        let mut state = self.inner.state.lock();
        state.ended = true;
        self.inner.came.notify_all();
        state.waiting.drain(..).collect()
    }

    /// Waits until the last thread has ended. Call [`Workers::end`] before.
    pub fn join(&self) {
        let mut state = self.inner.state.lock();
        self.inner.left.wait_while(&mut state, |state| state.threads > 0);
    }

    /// The current number of threads.
    pub fn threads(&self) -> usize {
        self.inner.state.lock().threads
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.inner.state.lock().ended = true;
        self.inner.came.notify_all();
    }
}

struct Leaving<'a, T>(&'a Inner<T>);

impl<T> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.left.notify_all();
    }
}

impl<T> Inner<T> {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            // Jobs that wait when the `Workers` are dropped are still worked on.
            if let Some(job) = state.waiting.pop_front() {
                drop(state);
                (self.work)(job);
                state = self.state.lock();
            } else if state.ended {
                return;
            } else {
                state.idle += 1;
                self.came.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Receiver, channel};

    const LIMITS: WorkerLimits = WorkerLimits { threads_max: 2, waiting_max: 3 };

    /// Workers whose jobs are doors: a job ends when its sender is dropped, and is told of before.
    fn doors() -> (Workers<Receiver<()>>, Receiver<()>) {
        let (begun, heard) = channel();
        let workers = Workers::new("test", LIMITS, move |door: Receiver<()>| {
            let _ = begun.send(());
            let _ = door.recv();
        });
        (workers, heard)
    }

    #[test]
    fn a_job_that_is_held_up_holds_up_no_other_while_threads_are_left() {
        let (workers, begun) = doors();
        assert_eq!(workers.threads(), 0, "nothing is started in advance");
        let (held, door) = channel();
        assert!(workers.submit(door).is_ok());
        begun.recv().expect("begun");
        for _ in 0..10 {
            let (open, door) = channel();
            drop(open);
            assert!(workers.submit(door).is_ok());
            begun.recv().expect("the second thread takes it");
        }
        assert_eq!(workers.threads(), 2);
        drop(held);
        workers.end();
        workers.join();
        assert_eq!(workers.threads(), 0);
    }

    #[test]
    fn neither_threads_nor_jobs_exceed_their_limits() {
        let (workers, begun) = doors();
        let mut held = Vec::new();
        for count in 0..LIMITS.threads_max + LIMITS.waiting_max {
            let (open, door) = channel();
            held.push(open);
            assert!(workers.submit(door).is_ok(), "job {count}");
            if count < LIMITS.threads_max {
                begun.recv().expect("begun");
            }
        }
        let (_open, door) = channel();
        assert!(matches!(workers.submit(door), Err(Refused::Full(_))));
        assert_eq!(workers.threads(), LIMITS.threads_max);
        assert_eq!(workers.end().len(), LIMITS.waiting_max, "they come back");
        let (_open, door) = channel();
        assert!(matches!(workers.submit(door), Err(Refused::Ended(_))));
        drop(held);
        workers.join();
    }

    #[test]
    fn every_job_of_many_submitters_is_worked_on_once() {
        let sum = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&sum);
        let limits = WorkerLimits { threads_max: 3, waiting_max: 10_000 };
        let workers = Workers::new("test", limits, move |job: u64| *counted.lock() += job);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (1..=1000).for_each(|job| workers.submit(job).expect("room")));
            }
        });
        let left: u64 = workers.end().into_iter().sum();
        workers.join();
        assert_eq!(*sum.lock() + left, 4 * 500_500);
    }
}
