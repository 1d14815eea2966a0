//! Work in the background that goes through all files: one of each kind at a time, at a limited
//! rate, with a view of how far it is.

use crate::context::Repair;
use crate::job::Job;
use crate::pace::Pace;
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_proto::{Result, Timestamp};

/// The progress of such work, and its findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View<F> {
    /// Whether it is at work.
    pub running: bool,
    /// When it began; `None` if it did not since the start.
    pub started: Option<Timestamp>,
    /// When it ended, by itself or because it was stopped.
    pub ended: Option<Timestamp>,
    /// Whether it got to the end.
    pub complete: bool,
    /// Bytes per second at most; 0 for no limit.
    pub rate: u64,
    /// Bytes of files that are done, without parity.
    pub done: u64,
    /// Bytes of files that were to be done when it began.
    pub total: u64,
    /// The findings.
    pub found: F,
}

/// See the file's head.
pub(crate) struct Background<F> {
    pub(crate) repair: Arc<Repair>,
    pub(crate) pace: Pace,
    pub(crate) view: Mutex<View<F>>,
    job: Job,
}

impl<F: Clone + Default + Send + 'static> Background<F> {
    /// Nothing is at work.
    pub(crate) fn new(repair: &Arc<Repair>) -> Arc<Background<F>> {
        let (pace, view, job) = (Pace::default(), Mutex::default(), Job::default());
        Arc::new(Background { repair: Arc::clone(repair), pace, view, job })
    }

    /// The progress.
    pub(crate) fn view(&self) -> View<F> {
        // Asked first, because the view of work that has ended is complete.
        let running = self.job.is_running();
        View { running, rate: self.pace.rate(), ..self.view.lock().clone() }
    }

    /// Begins the work on a thread of this name. `work` says whether it got to the end, and `tell`
    /// logs how it went.
    ///
    /// # Errors
    /// `Busy` if it is at work; `NoMemory` when there are no more threads.
    pub(crate) fn start(
        self: &Arc<Background<F>>,
        name: &str,
        rate: u64,
        work: fn(&Background<F>) -> Result<bool>,
        tell: fn(&View<F>, &Result<bool>),
    ) -> Result<()> {
        let begin = || {
            self.pace.start(rate);
            let started = Some(self.repair.array.clock.wall());
            *self.view.lock() = View { started, ..View::default() };
        };
        self.job.start(name, self, begin, move |this| {
            let result = work(this);
            let mut view = this.view.lock();
            view.ended = Some(this.repair.array.clock.wall());
            view.complete = matches!(result, Ok(true));
            tell(&view, &result);
        })
    }

    /// Notes that `bytes` of files are done.
    pub(crate) fn did(&self, bytes: u64) {
        let mut view = self.view.lock();
        view.done = (view.done + bytes).min(view.total);
    }

    /// Ends the work. Returns when it has ended.
    pub(crate) fn stop(&self) {
        self.pace.stop();
        self.job.join();
    }
}
