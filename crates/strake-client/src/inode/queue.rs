//! Queues of blocks that background threads are to send or to fetch.

use crate::inode::open_table::Pinned;
use crate::memory::file::FileState;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};

/// How long an idle thread sleeps before it looks again.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A block to be sent or fetched.
pub(crate) struct Job {
    pub(crate) inode: Pinned,
    pub(crate) file: Arc<FileState>,
    pub(crate) index: u64,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    pressed: bool,
    closed: bool,
}

/// What a thread is to do next.
pub(crate) enum Next {
    Job(Job),
    /// Nothing is queued, and somebody waits for clean pages.
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

    /// Jobs that wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// Says that somebody waits for clean pages.
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

    /// What to do next; waits a limited time for something.
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
