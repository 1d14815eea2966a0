//! Checkpoints of one node's store, on a thread of their own.
//!
//! Whoever applies entries never waits for a checkpoint. The log stays longer for the time of one.
//! A checkpoint that finds no space loses nothing: the log has what it would have written. Until
//! one succeeds, the metadata takes no more names (`store/space.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::{Error, ErrorKind, Result};
use strake_store::Kv;
use tracing::{error, info};

/// The thread looks at least that often whether a checkpoint is due, and how much space there is.
const LOOK: Duration = Duration::from_secs(1);
/// A checkpoint is due when so many bytes of changes are in memory.
const OVERLAY_BYTES_MAX: u64 = 64 << 20;

/// See the module.
pub(super) struct Saver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    kv: Arc<Kv>,
    state: Mutex<State>,
    changed: Condvar,
    is_full: AtomicBool,
}

#[derive(Default)]
struct State {
    is_asked: bool,
    is_stopping: bool,
    fault: Option<Error>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(super) fn start(kv: Arc<Kv>) -> Result<Saver> {
        let (state, changed, is_full) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { kv, state, changed, is_full });
        let of_thread = Arc::clone(&shared);
        let run = move || of_thread.run();
        let thread = Builder::new().name("meta-checkpoint".to_owned()).spawn(run)?;
        Ok(Saver { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Asks for a checkpoint soon. Returns the last position that is durable by now.
    ///
    /// # Errors
    /// Why a checkpoint has failed before. The store takes no more then.
    pub(super) fn ask(&self) -> Result<u64> {
        let mut state = self.shared.state.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        state.is_asked = true;
        self.shared.changed.notify_all();
        drop(state);
        Ok(self.shared.kv.applied_in_base().0)
    }

    /// Makes a checkpoint on this thread, for a caller that needs space.
    ///
    /// # Errors
    /// The disk's. No space is no error; see [`Saver::is_full`].
    pub(super) fn save_now(&self) -> Result<()> {
        self.shared.save()
    }

    /// True if the last checkpoint found no space.
    pub(super) fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Acquire)
    }

    /// Ends the thread. With `saves`, a last checkpoint leaves little to replay.
    pub(super) fn stop(&self, saves: bool) {
        self.shared.state.lock().is_stopping = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        let is_first = thread.is_some();
        // A panic was printed where it happened.
        let _ = thread.map(JoinHandle::join);
        if saves
            && is_first
            && let Err(error) = self.shared.save()
        {
            error!(target: "metadata", "the last checkpoint failed: {error}");
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.stop(false);
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let is_asked = {
                let mut state = self.state.lock();
                if !state.is_asked && !state.is_stopping {
                    self.changed.wait_for(&mut state, LOOK);
                }
                if state.is_stopping {
                    return;
                }
                std::mem::take(&mut state.is_asked)
            };
            self.kv.look_for_space();
            let is_due = self.kv.overlay_bytes() > OVERLAY_BYTES_MAX
                || self.kv.is_due(1)
                || self.kv.promises_too_much()
                || self.is_full.load(Ordering::Acquire);
            if (is_asked || is_due)
                && let Err(fault) = self.save()
            {
                error!(target: "metadata", "a checkpoint failed: {fault}");
                self.state.lock().fault = Some(fault);
                return;
            }
        }
    }

    fn save(&self) -> Result<()> {
        let is_short = |outcome: &Result<_>| {
            outcome.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::NoSpace)
        };
        let mut saved = self.kv.checkpoint();
        if is_short(&saved) {
            // A check keeps pages of the base from being used again.
            self.kv.cut_views();
            saved = self.kv.checkpoint();
        }
        let is_full = is_short(&saved);
        if self.is_full.swap(is_full, Ordering::AcqRel) != is_full {
            match is_full {
                true => {
                    error!(target: "metadata", "the checkpoint finds no space: nothing is added")
                }
                false => info!(target: "metadata", "the checkpoint has space again"),
            }
        }
        if is_full { Ok(()) } else { saved.map(|_| ()) }
    }
}
