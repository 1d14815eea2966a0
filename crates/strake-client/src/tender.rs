//! The threads that work in the background: those that write behind, those that read ahead, the
//! one that folds small synchronous writes, and the *tender*. The tender does what is due at some
//! time: the syncs of the sync interval, rounds, range deletions, and giving back space that other
//! mounts may need.

use crate::data::prefetch;
use crate::flush::last_close::close_kept;
use crate::flush::sync::sync_often;
use crate::flush::{folding, writers};
use crate::mount::Mount;
use std::sync::Arc;
use std::time::Duration;
use strake_array::reaper;
use strake_env::process;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::JoinHandle;
use strake_proto::{Error, ErrorKind, Result};

/// The tender looks in this interval.
const TICK: Duration = Duration::from_millis(500);

/// A mount beside others looks after its NSDs once in so many ticks. A lone mount's manager does.
const NSD_TICKS: u64 = 4;

/// The running threads.
pub(crate) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts the threads.
    pub(crate) fn start(mount: &Arc<Mount>) -> Result<Background> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let mut threads = Vec::new();
        let mut spawn = |name: String, work: Box<dyn FnOnce(&Mount) + Send>| -> Result<()> {
            let mount = Arc::clone(mount);
            let thread = strake_env::thread::Builder::new().name(name).spawn(move || work(&mount));
            threads.push(thread.map_err(|error| {
                Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
            })?);
            Ok(())
        };
        for number in 0..mount.settings.flushers.max(1) {
            spawn(format!("flusher-{number}"), Box::new(writers::serve))?;
            spawn(format!("prefetch-{number}"), Box::new(prefetch::serve))?;
        }
        spawn(
            "page-pool".to_owned(),
            Box::new(|mount: &Mount| mount.page_pool.serve(&mount.array.observe.operations)),
        )?;
        spawn("folder".to_owned(), Box::new(folding::serve))?;
        if mount.tokens.is_some() {
            spawn("setattr".to_owned(), Box::new(tell_attributes))?;
        }
        let signal = Arc::clone(&stop);
        spawn("tender".to_owned(), Box::new(move |mount| tend(mount, &signal)))?;
        Ok(Background { stop, threads: Mutex::new(threads) })
    }

    /// Ends the threads. Queued blocks are still written. A second call does nothing.
    pub(crate) fn stop(&self, mount: &Mount) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        mount.write_behind.close();
        mount.prefetch.close();
        mount.folding.close();
        mount.untold.close();
        mount.page_pool.close();
        for thread in self.threads.lock().drain(..) {
            // The panic of a thread has been printed. The process goes on to save what it can.
            let _ = thread.join();
        }
    }
}

fn tend(mount: &Mount, stop: &(Mutex<bool>, Condvar)) {
    let mut reaped = 0;
    let mut settled_at = mount.array.clock.monotonic();
    for tick in 1u64.. {
        {
            let mut stopped = stop.0.lock();
            if !*stopped {
                stop.1.wait_for(&mut stopped, TICK);
            }
            if *stopped {
                break;
            }
        }
        if !mount.has_lease() {
            continue;
        }
        let now = mount.array.clock.monotonic();
        let interval = mount.settings.sync_interval;
        close_kept(mount, now);
        sync_due(mount);
        if mount.array.rounds.has_work() && now.saturating_sub(settled_at) >= interval / 2 {
            settled_at = now;
            let _ = mount.array.rounds.run(false);
        }
        hold_memory(mount);
        mount.array.room.tend();
        if let Some(tokens) = &mount.tokens {
            tokens.let_found_go();
            if tick.is_multiple_of(NSD_TICKS) {
                mount.array.io.nsds().look_after();
            }
        }
        let changes = mount.array.meta.changes();
        if tick.is_multiple_of(2) && changes != reaped {
            let _ = reaper::apply_pending(&mount.array);
            reaped = mount.array.meta.changes();
        }
    }
    close_kept(mount, Duration::MAX);
}

/// Tells the metadata attributes that were kept, until they are kept no more.
fn tell_attributes(mount: &Mount) {
    while mount.untold.wait() {
        // Errors need no answer here: the inodes are dirty, so their syncs note what they meet.
        if !mount.has_lease() || mount.tell_kept().is_err() {
            mount.array.clock.sleep(TICK);
        }
    }
}

/// Keeps the process within its memory, if the memory that it takes can be found out.
fn hold_memory(mount: &Mount) {
    if mount.settings.own_process
        && let Ok(resident) = process::resident_bytes()
    {
        mount.page_pool.hold(usize::try_from(resident).unwrap_or(usize::MAX), mount.table.count());
    }
}

/// Makes durable the files that have been dirty for half of the sync interval, so that the work is
/// done within the interval.
fn sync_due(mount: &Mount) {
    let now = mount.array.clock.monotonic();
    let due = now
        .checked_sub(mount.settings.sync_interval / 2)
        .map(|before| mount.dirty_inodes(Some(before)))
        .unwrap_or_default();
    // Errors are latched at the files they concern.
    if due.is_empty() || sync_often(mount, &due).is_err() {
        return;
    }
    // What was written meanwhile has its own time.
    for inode in &due {
        let mut core = inode.core.lock();
        core.dirty_since = core.dirty_since.map(|since| since.max(now));
    }
}

/// Does one turn of the tender at once: the syncs that are due, a round, range deletions, and what
/// is granted beyond need.
pub(crate) fn tend_now(mount: &Mount) {
    sync_due(mount);
    // Errors need no answer here: blocks that did not become stable are dirty again, and deletions
    // are tried again.
    let _ = mount.array.rounds.run(false);
    let _ = reaper::apply_pending(&mount.array);
    mount.array.room.tend();
}
