//! The *mender*: a thread that asks NSDs that are away whether they are back, and brings those that
//! have returned up to date.

use crate::context::Repair;
use crate::returning::recover_nsd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_array::reaper;
use strake_env::sync::Mutex;
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::layout::NsdAvailability;
use strake_proto::{Error, ErrorKind, Result};
use tracing::error;

/// The mender asks NSDs that are away in this interval, and at once when it is called.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The running thread.
pub(crate) struct Mender {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mender {
    /// Starts the thread.
    ///
    /// # Errors
    /// `NoMemory` when there are no more threads.
    pub(crate) fn start(repair: &Arc<Repair>) -> Result<Mender> {
        let stop = Arc::new(AtomicBool::new(false));
        let (repair, signal) = (Arc::clone(repair), Arc::clone(&stop));
        let thread = Builder::new().name("mender".to_owned()).spawn(move || mend(&repair, &signal));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
        })?;
        Ok(Mender { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread end soon.
    pub(crate) fn stop(&self, repair: &Repair) {
        self.stop.store(true, Ordering::Release);
        repair.clients.iter().for_each(|clients| clients.end_waits());
        repair.array.io.nsds().call_for_attention();
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn mend(repair: &Repair, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        repair.array.io.nsds().wait_for_call(PROBE_INTERVAL);
        if !stop.load(Ordering::Acquire) {
            look_after_nsds(repair);
        }
    }
}

/// Asks NSDs that are away, and brings those that returned up to date.
pub(crate) fn look_after_nsds(repair: &Repair) {
    let nsds = repair.array.io.nsds();
    let _alone = nsds.mending().lock();
    for slot in nsds.slots() {
        if nsds.availability(slot).writable() {
            // An NSD that went away is noticed even if nothing uses it.
            nsds.check(slot);
            continue;
        }
        if !nsds.probe(slot) {
            continue;
        }
        if nsds.availability(slot) == NsdAvailability::Unrecovered {
            // The next look tries again.
            if let Err(error) = recover_nsd(repair, slot) {
                error!(target: "disks", "NSD {}: recovery: {error}", nsds.nsd(slot));
            }
        } else {
            // The NSD missed no write. What was deleted meanwhile is deleted on it now.
            let _ = reaper::apply_pending(&repair.array);
        }
    }
}
