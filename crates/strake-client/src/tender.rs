//! The threads that work unasked: writers behind, readers ahead, and the *tender*, which looks
//! after what has a time (the sync interval, the reaper of ranges).

use crate::context::Shared;
use crate::data::prefetch;
use crate::flush::settle::sync_inodes;
use crate::flush::{harden, writers};
use std::sync::Arc;
use std::time::Duration;
use strake_array::reaper;
use strake_env::process;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::JoinHandle;
use strake_proto::{Error, ErrorKind, Result};

/// How often the tender looks.
const TICK: Duration = Duration::from_millis(500);

/// The running threads.
pub(crate) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts them.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Background> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let mut threads = Vec::new();
        let mut spawn = |name: String, work: Box<dyn FnOnce(&Shared) + Send>| -> Result<()> {
            let shared = Arc::clone(shared);
            let thread = strake_env::thread::Builder::new().name(name).spawn(move || work(&shared));
            threads.push(thread.map_err(|error| {
                Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
            })?);
            Ok(())
        };
        for number in 0..shared.settings.flushers.max(1) {
            spawn(format!("flusher-{number}"), Box::new(writers::serve))?;
            spawn(format!("prefetch-{number}"), Box::new(prefetch::serve))?;
        }
        spawn(
            "pool".to_owned(),
            Box::new(|shared: &Shared| shared.pool.serve(&shared.array.observe.operations)),
        )?;
        let signal = Arc::clone(&stop);
        spawn("tender".to_owned(), Box::new(move |shared| tend(shared, &signal)))?;
        Ok(Background { stop, threads: Mutex::new(threads) })
    }

    /// Ends them; what is queued is still written. Does nothing the second time.
    pub(crate) fn stop(&self, shared: &Shared) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        shared.write_behind.close();
        shared.prefetch.close();
        shared.pool.close();
        for thread in self.threads.lock().drain(..) {
            // A panic there has been printed; the process goes on to save what it can.
            let _ = thread.join();
        }
    }
}

fn tend(shared: &Shared, stop: &(Mutex<bool>, Condvar)) {
    let mut reaped = 0;
    let mut settled_at = shared.array.clock.monotonic();
    for tick in 1u64.. {
        {
            let mut stopped = stop.0.lock();
            if !*stopped {
                stop.1.wait_for(&mut stopped, TICK);
            }
            if *stopped {
                return;
            }
        }
        let now = shared.array.clock.monotonic();
        let interval = shared.settings.sync_interval;
        sync_due(shared);
        if harden::is_full(shared) {
            let mut due = shared.dirty_inodes(None);
            due.retain(|inode| {
                inode.core.lock().file.as_ref().is_some_and(|file| file.is_hardened())
            });
            // Errors are latched at the files they concern.
            let _ = sync_inodes(shared, &due);
        }
        if shared.array.rounds.has_work() && now.saturating_sub(settled_at) >= interval / 2 {
            settled_at = now;
            let _ = shared.array.rounds.run(false);
        }
        hold_memory(shared);
        let changes = shared.array.meta.changes();
        if tick.is_multiple_of(2) && changes != reaped {
            let _ = reaper::apply_pending(&shared.array);
            reaped = shared.array.meta.changes();
        }
    }
}

/// Holds the process to its memory, where it is known.
fn hold_memory(shared: &Shared) {
    if shared.settings.own_process
        && let Ok(resident) = process::resident_bytes()
    {
        shared.pool.hold(usize::try_from(resident).unwrap_or(usize::MAX), shared.table.count());
    }
}

/// Makes durable what has been waiting for half of the sync interval, so that the work itself still
/// ends within it.
fn sync_due(shared: &Shared) {
    let due = shared
        .array
        .clock
        .monotonic()
        .checked_sub(shared.settings.sync_interval / 2)
        .map(|before| shared.dirty_inodes(Some(before)))
        .unwrap_or_default();
    if !due.is_empty() {
        // Errors are latched at the files they concern.
        let _ = sync_inodes(shared, &due);
    }
}

/// One turn of the tender at once, all of it.
pub(crate) fn tend_now(shared: &Shared) {
    sync_due(shared);
    // As in the tender: whoever lost something over it finds it dirty, and ranges are tried again.
    let _ = shared.array.rounds.run(false);
    let _ = reaper::apply_pending(&shared.array);
}
