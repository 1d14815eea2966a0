//! A thread that is started on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::sync::Mutex;
use strake_env::thread::JoinHandle;
use strake_proto::{Error, ErrorKind, Result};

/// A thread that is started on demand, one at a time.
#[derive(Default)]
pub(crate) struct Job {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether the work goes on. This flag decides whether the next work may start. The thread
    /// itself ends a moment later.
    running: Arc<AtomicBool>,
}

/// Clears the flag when the work ends, also by a panic.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Job {
    /// Calls `begin` and starts a thread that does `work`.
    ///
    /// # Errors
    /// `Busy` if work is under way; `NoMemory` when there are no more threads.
    pub(crate) fn start<T: Send + Sync + 'static>(
        &self,
        name: &str,
        context: &Arc<T>,
        begin: impl FnOnce(),
        work: impl FnOnce(&T) + Send + 'static,
    ) -> Result<()> {
        let mut thread = self.thread.lock();
        if self.is_running() {
            return Err(Error::new(ErrorKind::Busy, format!("a {name} is under way already")));
        }
        begin();
        self.running.store(true, Ordering::Release);
        let running = Running(Arc::clone(&self.running));
        let context = Arc::clone(context);
        let spawned = strake_env::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _running = running;
            work(&context);
        });
        *thread = Some(spawned.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
        })?);
        Ok(())
    }

    /// Whether the work goes on. A thread that sees that it has ended also sees all its effects.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}
