//! A thread that works for a block store when it is woken.

use super::BlockStore;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::JoinHandle;
use strake_proto::Result;
use tracing::error;

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    woken: Condvar,
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    due: bool,
    stop: bool,
}

/// Does one piece of the work. Returns the pause after which there is more, or `None`.
type Turn = fn(&BlockStore) -> Option<Duration>;

/// A thread that works for a block store; see the file's head.
pub(super) struct Worker {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the worker. It waits for `delay` after a wake, and then does `turn` until no work is
    /// left.
    pub(super) fn start(
        store: &Arc<BlockStore>,
        name: &str,
        delay: Duration,
        turn: Turn,
    ) -> Result<Worker> {
        let signal = Arc::new(Signal::default());
        let (weak, seen) = (Arc::downgrade(store), Arc::clone(&signal));
        let thread = strake_env::thread::Builder::new()
            .name(format!("nsd{}-{name}", store.nsd))
            .spawn(move || work(&weak, &seen, delay, turn))?;
        Ok(Worker { signal, thread })
    }

    /// Tells the worker that there is work.
    pub(super) fn wake(&self) {
        self.signal.state.lock().due = true;
        self.signal.woken.notify_all();
    }

    /// Ends the worker after the turn under way.
    pub(super) fn stop(self) {
        self.signal.state.lock().stop = true;
        self.signal.woken.notify_all();
        self.signal.stopped.notify_all();
        // The worker itself may hold the last reference to the store. Then it stops itself.
        if self.thread.thread().id() != strake_env::thread::current().id()
            && self.thread.join().is_err()
        {
            error!(target: "nsd", "a worker of a block store panicked");
        }
    }
}

impl Signal {
    /// Waits for a wake, or for `pause`. Returns false when the worker must end.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        match pause {
            None => {
                while !state.due && !state.stop {
                    self.woken.wait(&mut state);
                }
                state.due = false;
            }
            Some(pause) if !pause.is_zero() && !state.stop => {
                self.stopped.wait_for(&mut state, pause);
            }
            Some(_) => {}
        }
        !state.stop
    }
}

fn work(store: &Weak<BlockStore>, signal: &Signal, delay: Duration, turn: Turn) {
    while signal.wait(None) {
        let mut pause = Some(delay);
        while pause.is_some() {
            if !signal.wait(pause) {
                return;
            }
            let Some(store) = store.upgrade() else { return };
            pause = turn(&store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store_test::{DISK_BYTES, format, observe};
    use super::*;
    use crate::BlockStoreOptions;
    use strake_env::disk::sim::SimDisk;
    use strake_env::thread::yield_now;
    use strake_store::Container;

    /// A turn that lasts until somebody ends the store, and somewhat longer.
    fn outlasts(store: &BlockStore) -> Option<Duration> {
        while store.straightener.lock().is_some() {
            yield_now();
        }
        (0..1000).for_each(|_| yield_now());
        store.checkpoint_if_large();
        None
    }

    #[test]
    fn a_store_that_was_ended_and_dropped_has_let_go_of_its_disk() {
        let disk = SimDisk::new(DISK_BYTES);
        drop(format(&disk, 1));
        for _ in 0..20 {
            let free = disk.open(Duration::ZERO).expect("nobody has it");
            let container = Container::open(free).expect("container");
            let options = BlockStoreOptions {
                straighten_delay: Duration::MAX,
                ..BlockStoreOptions::new(&observe())
            };
            let store = BlockStore::open(container, options).expect("block store");
            let worker = Worker::start(&store, "test", Duration::ZERO, outlasts).expect("starts");
            worker.wake();
            *store.straightener.lock() = Some(worker);
            while Arc::strong_count(&store) == 1 {
                yield_now();
            }
            store.end();
        }
    }
}
