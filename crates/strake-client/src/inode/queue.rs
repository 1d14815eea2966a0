//! Queues of blocks for background threads, which send or fetch them.

use crate::inode::open_table::Pinned;
use crate::memory::file::FileState;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use strake_env::cause::{self, Cause};
use strake_env::sync::{Condvar, Mutex};

/// An idle thread looks again after this time.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A block to be sent or fetched.
pub(crate) struct Job {
    pub(crate) inode: Pinned,
    pub(crate) file: Arc<FileState>,
    pub(crate) index: u64,
    /// The request because of which it was queued.
    pub(crate) cause: Cause,
}

impl Job {
    /// A job of the calling thread's request.
    pub(crate) fn new(inode: Pinned, file: Arc<FileState>, index: u64) -> Job {
        let cause = Cause { inode: inode.ino.0, ..cause::current() };
        Job { inode, file, index, cause }
    }
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    pressed: bool,
    closed: bool,
}

/// The next thing that a thread has to do.
pub(crate) enum Next {
    Job(Job),
    /// The queue is empty, and an operation waits for clean pages.
    Press,
    Idle,
    End,
}

/// Jobs for background threads.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

impl Queue {
    /// Puts a job at the end.
    pub(crate) fn push(&self, job: Job) {
        self.state.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    /// The number of queued jobs.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// Notes that an operation waits for clean pages.
    pub(crate) fn press(&self) {
        let mut state = self.state.lock();
        if !state.pressed {
            state.pressed = true;
            self.changed.notify_one();
        }
    }

    /// Ends the threads once the queue is empty.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Takes jobs from the front for as long as they are wanted, at most `most`.
    pub(crate) fn take_while(&self, most: usize, is_wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut state = self.state.lock();
        let count = state.jobs.iter().take(most).take_while(|job| is_wanted(job)).count();
        state.jobs.drain(..count).collect()
    }

    /// The next thing to do. Waits for it for a limited time.
    pub(crate) fn next(&self) -> Next {
        let mut state = self.state.lock();
        for _ in 0..2 {
            if let Some(job) = state.jobs.pop_front() {
                return Next::Job(job);
            }
            if std::mem::take(&mut state.pressed) {
                return Next::Press;
            }
            if state.closed {
                return Next::End;
            }
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
        Next::Idle
    }
}
