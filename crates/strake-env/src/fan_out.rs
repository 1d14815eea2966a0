//! A few threads that run the parts of one job side by side while its owner waits: the strips of a
//! stripe, the blocks of a flush. The parts may borrow from the owner's stack, because the owner
//! does not go on before the last of them has ended.
//!
//! The owner takes part: it runs the last part itself, and then those parts of its job that no
//! thread has begun. So a job ends even when all threads are busy, and jobs may be nested.
#![allow(unsafe_code, reason = "borrows of the owner's stack cross threads; this is the one place")]

use crate::answering;
use crate::cause::{self, Cause};
use crate::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One call of [`FanOut::run`].
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    /// For whom the owner works.
    cause: Cause,
    state: Mutex<JobState>,
    ended: Condvar,
}

struct JobState {
    /// Parts not yet ended.
    remaining: usize,
    panicked: bool,
}

// SAFETY: `work` points to a `Sync` closure, which may be called from any thread; `run` keeps it
// alive until `remaining` is 0, and no part touches it after counting itself out.
unsafe impl Send for Job {}
// SAFETY: as for `Send`; everything else in it is behind a lock.
unsafe impl Sync for Job {}

impl Job {
    /// Runs one part, and then counts it as ended.
    fn part(&self, index: usize) {
        let _cause = cause::take(self.cause);
        // SAFETY: this part has not counted itself out yet, so `run` has not returned and the
        // closure it borrows is alive.
        let work = unsafe { &*self.work };
        let outcome = catch_unwind(AssertUnwindSafe(|| work(index)));
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::has_canary() {
            return self.count_out_with_a_race();
        }
        let mut state = self.state.lock();
        state.remaining -= 1;
        state.panicked |= outcome.is_err();
        if state.remaining == 0 {
            self.ended.notify_all();
        }
    }

    /// The canary of simulations: two parts that end at the same time count as one, and the owner
    /// waits for ever.
    #[cfg(any(test, feature = "simulation"))]
    fn count_out_with_a_race(&self) {
        let remaining = self.state.lock().remaining;
        self.state.lock().remaining = remaining - 1;
        if remaining == 1 {
            self.ended.notify_all();
        }
    }
}

#[derive(Default)]
struct Queue {
    parts: VecDeque<(Arc<Job>, usize)>,
    closed: bool,
}

struct Inner {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// The threads. Dropping it ends them.
pub struct FanOut {
    inner: Arc<Inner>,
    threads: Vec<crate::thread::JoinHandle<()>>,
}

impl FanOut {
    /// `threads` threads named `name`; with 0 every owner does its job alone.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(name: &str, threads: usize) -> std::io::Result<FanOut> {
        let inner = Arc::new(Inner { queue: Mutex::new(Queue::default()), filled: Condvar::new() });
        let spawn = |_| {
            let inner = Arc::clone(&inner);
            crate::thread::Builder::new().name(name.to_owned()).spawn(move || inner.serve())
        };
        let threads = (0..threads).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
        Ok(FanOut { inner, threads })
    }

    /// Calls `work` with each of `0..count`, in any order and side by side, and returns when all
    /// calls have.
    ///
    /// # Panics
    /// If one of them does.
    pub fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.threads.is_empty() {
            (0..count).for_each(work);
            return;
        }
        // SAFETY: only the lifetime is changed; the wait below ends after the last use of `work`.
        let work: *const (dyn Fn(usize) + Sync) = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(work)
        };
        let state = Mutex::new(JobState { remaining: count, panicked: false });
        let job = Arc::new(Job { work, cause: cause::current(), state, ended: Condvar::new() });
        {
            let mut queue = self.inner.queue.lock();
            queue.parts.extend((0..count - 1).map(|index| (Arc::clone(&job), index)));
        }
        for _ in 0..count - 1 {
            self.inner.filled.notify_one();
        }
        job.part(count - 1);
        while let Some(index) = self.take_part(&job) {
            job.part(index);
        }
        let _wait = answering::wait(answering::PARTS);
        let mut state = job.state.lock();
        while state.remaining > 0 {
            job.ended.wait(&mut state);
        }
        assert!(!state.panicked, "a part of the job panicked; its message is above");
    }

    /// A part of `job` that no thread has begun.
    fn take_part(&self, job: &Arc<Job>) -> Option<usize> {
        let mut queue = self.inner.queue.lock();
        let at = queue.parts.iter().position(|(other, _)| Arc::ptr_eq(other, job))?;
        queue.parts.remove(at).map(|(_, index)| index)
    }
}

impl Inner {
    fn serve(&self) {
        loop {
            let (job, index) = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(part) = queue.parts.pop_front() {
                        break part;
                    }
                    if queue.closed {
                        return;
                    }
                    self.filled.wait(&mut queue);
                }
            };
            job.part(index);
        }
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        self.inner.queue.lock().closed = true;
        self.inner.filled.notify_all();
        for thread in self.threads.drain(..) {
            // A thread ends only by returning: panics of parts are caught.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_part_runs_once_whatever_the_threads() {
        for threads in [0, 1, 3] {
            let fan = FanOut::new("fan", threads).expect("threads");
            for count in [0usize, 1, 2, 17] {
                let sum = AtomicU64::new(0);
                fan.run(count, &|index| {
                    sum.fetch_add(1 << (index as u64), Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), (1u64 << count) - 1, "{threads} threads, {count}");
            }
        }
    }

    #[test]
    fn jobs_may_be_nested_and_come_from_many_threads() {
        let fan = FanOut::new("fan", 2).expect("threads");
        let total = AtomicU64::new(0);
        crate::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        fan.run(4, &|_| {
                            fan.run(3, &|_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 12);
    }

    #[test]
    #[should_panic(expected = "a part of the job panicked")]
    fn a_panic_in_a_part_reaches_the_owner() {
        let fan = FanOut::new("fan", 1).expect("threads");
        fan.run(2, &|index| assert_ne!(index, 0, "this one is bad"));
    }
}
