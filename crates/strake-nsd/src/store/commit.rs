//! Making accepted changes stable, settling, checkpoints and the worker that makes them.

use super::BlockStore;
use crate::edits::Edits;
use crate::keys::{Table, block_start, parse_strip_key, range_end, strip_key};
use crate::record::{decode_strip, encode_strip};
use crate::rules::{Change, settle};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use strake_proto::nsd::{NsdReply, SettledStripe};
use strake_proto::{BlockIndex, Error, ErrorKind, Result, StripKey};
use strake_store::{KvRead, Lsn};

/// The longest list of settled stripes; longer ones are refused.
const SETTLED_MAX: usize = 65_536;
/// The journal is trimmed when it is this full, in parts of its capacity.
const JOURNAL_FILL_PARTS: u64 = 2;

impl BlockStore {
    pub(super) fn commit(&self, settled: &[SettledStripe]) -> Result<NsdReply> {
        if settled.len() > SETTLED_MAX {
            let detail = format!("{} settled stripes, at most {SETTLED_MAX}", settled.len());
            return Err(Error::new(ErrorKind::TooBig, detail));
        }
        self.refuse_if_failed()?;
        settled.iter().try_for_each(|stripe| self.settle(stripe))?;
        self.make_durable()?;
        Ok(NsdReply::Stable { boot: self.boot })
    }

    /// Makes every change accepted so far durable, and reuses what that frees. Free if there is
    /// none.
    pub(super) fn make_durable(&self) -> Result<()> {
        let target = {
            let _order = self.order.lock();
            let last = self.journal.last().0;
            self.committing.fetch_max(last, SeqCst);
            last
        };
        if self.durable.load(SeqCst) < target {
            let _waiting = self.observe.waiters.enter("NSD commit", format!("NSD {}", self.nsd));
            self.journal.sync().map_err(|error| self.fail(error))?;
            self.durable.fetch_max(target, SeqCst);
        }
        self.reclaim.release(Lsn(self.durable.load(SeqCst)), |extent| {
            self.disk.discard(extent.offset(), extent.bytes());
            self.space.allocator.lock().free(extent);
        });
        Ok(())
    }

    fn settle(&self, stripe: &SettledStripe) -> Result<()> {
        let from = block_start(Table::Strip, stripe.fs, stripe.object, stripe.block);
        let next = BlockIndex(stripe.block.0.saturating_add(1));
        let to = range_end(Table::Strip, stripe.fs, stripe.object, next);
        loop {
            let object = self.object_lock(stripe.object);
            let mut changes: Vec<(StripKey, Change)> = Vec::new();
            let mut damage = None;
            self.index.scan(&from, &to, &mut |encoded, value| {
                let Some(key) = parse_strip_key(Table::Strip, encoded) else { return true };
                match decode_strip(encoded, value) {
                    Ok(held) => {
                        changes.extend(settle(&held, stripe.version).map(|change| (key, change)));
                    }
                    Err(error) => damage = Some(self.damaged(&key, error)),
                }
                damage.is_none()
            })?;
            if let Some(error) = damage {
                return Err(error);
            }
            if changes.is_empty() {
                return Ok(());
            }
            let mut edits = Edits::default();
            let mut freed = Vec::new();
            let mut settled = Vec::new();
            for (key, change) in changes {
                let record = change.record.expect("invariant: settling keeps the current version");
                let encoded = strip_key(Table::Strip, &key);
                edits.put(&encoded, encode_strip(&encoded, &record));
                freed.extend(change.freed);
                if record.current().settled {
                    settled.push(key);
                }
            }
            match self.publish(|_| (edits, freed)) {
                Ok(()) => {
                    let mut unsettled = self.unsettled.lock();
                    settled.iter().for_each(|key| {
                        unsettled.remove(key);
                    });
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    drop(object);
                    self.make_room()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// After a full journal: a checkpoint, by whoever comes first; the others wait for it.
    pub(super) fn make_room(&self) -> Result<()> {
        let _waiting = self.observe.waiters.enter("NSD journal space", format!("NSD {}", self.nsd));
        let before = self.journal.used();
        let guard = self.checkpointing.lock();
        if self.journal.used() < before {
            return Ok(());
        }
        self.checkpoint_locked()?;
        drop(guard);
        Ok(())
    }

    /// Writes the index's changes to its base and trims the journal.
    ///
    /// # Errors
    /// `NoSpace` where the index cannot grow: nothing is lost; the disk's.
    pub fn checkpoint(&self) -> Result<()> {
        let _guard = self.checkpointing.lock();
        self.checkpoint_locked()
    }

    fn checkpoint_locked(&self) -> Result<()> {
        self.make_durable()?;
        let applied = self.index.checkpoint()?;
        self.journal.trim(Lsn(applied.0 + 1)).map_err(|error| self.fail(error))
    }

    fn is_large(&self) -> bool {
        self.index.overlay_bytes() > self.options.overlay_bytes_max
            || self.journal.used() > self.journal.capacity() / JOURNAL_FILL_PARTS
    }

    /// Wakes the worker where a checkpoint is due.
    pub(super) fn checkpoint_if_large(&self) {
        if self.is_large()
            && let Some(worker) = &*self.worker.lock()
        {
            worker.wake();
        }
    }
}

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    due: bool,
    stop: bool,
}

/// The thread that makes checkpoints.
pub(super) struct Worker {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub(super) fn start(store: &Arc<BlockStore>) -> Result<Worker> {
        let signal = Arc::new(Signal::default());
        let (weak, seen) = (Arc::downgrade(store), Arc::clone(&signal));
        let thread = std::thread::Builder::new()
            .name(format!("nsd{}-checkpoint", store.nsd))
            .spawn(move || work(&weak, &seen))?;
        Ok(Worker { signal, thread })
    }

    fn wake(&self) {
        self.signal.state.lock().due = true;
        self.signal.changed.notify_all();
    }

    pub(super) fn stop(self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
        // The worker itself may hold the last reference, and so be the one that stops itself.
        if self.thread.thread().id() != std::thread::current().id() && self.thread.join().is_err() {
            eprintln!("nsd: the checkpoint worker panicked");
        }
    }
}

fn work(store: &Weak<BlockStore>, signal: &Signal) {
    loop {
        {
            let mut state = signal.state.lock();
            while !state.due && !state.stop {
                signal.changed.wait(&mut state);
            }
            if state.stop {
                return;
            }
            state.due = false;
        }
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = store.checkpoint() {
            eprintln!("nsd: NSD {}: no checkpoint: {error}", store.nsd);
        }
    }
}
