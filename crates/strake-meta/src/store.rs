//! Metadata on disks: the state machine over p + 1 equal copies.
//!
//! Each *holder* is an NSD's container with a journal of entries and a store of records of its own.
//! All holders get the same entries under the same numbers; the first one answers the questions.
//!
//! 1. `apply` runs the state machine on the first holder's store, appends the entry to every
//!    journal (in memory) and makes the changes in every store (in memory): visible, not durable.
//! 2. `sync` makes every journal durable, all at the same time; callers share syncs.
//! 3. A checkpoint syncs, writes each store's changes to its base, and trims its journal. It is
//!    made by whoever finds the journal full, or before that by [`MetaStore::tick`].
//! 4. A holder that fails is *lost*: before anything more is acknowledged, generation + 1 without
//!    it is written to all NSDs (copies.rs). The last one's loss stops everything.
//! 5. Opening finds the newest generation, replays, and makes all holders equal (open.rs).
//! 6. NSDs come and go while this runs; one that carries an old generation is not believed
//!    (members.rs).
//!
//! Locks, in this order: `checkpointing` or `copying`, `state`. Questions share `state`; changes
//! hold it alone, across memory only, unless a record must be read from disk or a holder is lost.

mod copies;
mod holder;
mod members;
mod open;
mod refusals;
mod scrub;
mod space;
mod witness;

use crate::kv::MemoryKv;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::{machine, query};
use holder::Holder;
use refusals::Refusals;
use scrub::is_damage;
use space::{Admission, part_for};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::Disk;
use strake_env::sync::{Condvar, Mutex, RwLock, RwLockWriteGuard};
use strake_env::thread::JoinHandle;
use strake_observe::Waiters;
use strake_proto::meta::{
    CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
};
use strake_proto::{Error, ErrorKind, NsdId, Result};
use strake_store::{Batch, Container, Lsn};

pub use witness::WITNESS_BYTES;

/// How often unsynced entries are synced by the worker.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// Checkpoints that a change waits for before it is refused. One trims the journal of what was
/// there before it; more are for what others put there meanwhile.
const CHECKPOINTS_PER_CHANGE_MAX: usize = 4;

/// What came of an attempt to apply.
enum Tried {
    Applied(CountedAnswer),
    /// A checkpoint must be made before, for want of this.
    Lacks(&'static str),
}

/// What may differ between two runs of one file system.
#[derive(Clone)]
pub struct MetaOptions {
    /// Page cache of each holder's store.
    pub cache_bytes: usize,
    /// Changes in memory (of each holder) at which a checkpoint begins.
    pub overlay_bytes_max: u64,
    /// How long a change waits for room in the journal.
    pub room_wait_max: Duration,
    /// A place beside the NSDs that knows the newest generation; see `store/witness.rs`. At least
    /// [`WITNESS_BYTES`] long. Without one, p + 1 superblocks must be readable at every start.
    pub witness: Option<Arc<dyn Disk>>,
    /// Where waits are listed.
    pub waiters: Arc<Waiters>,
}

impl MetaOptions {
    /// The usual values.
    pub fn new(waiters: Arc<Waiters>) -> MetaOptions {
        MetaOptions {
            cache_bytes: 32 << 20,
            overlay_bytes_max: 64 << 20,
            room_wait_max: Duration::from_secs(120),
            witness: None,
            waiters,
        }
    }
}

/// See the module.
pub struct MetaStore {
    /// Copies wanted: p + 1, or one on each NSD where there are fewer.
    copies_wanted: usize,
    /// NSDs that may lack the newest generation: p.
    losses_max: usize,
    /// The generation that each container had when it was opened.
    found: Vec<(NsdId, u64)>,
    options: MetaOptions,
    state: RwLock<State>,
    checkpointing: Mutex<()>,
    copying: Mutex<()>,
    /// Every entry up to this one is durable on all holders.
    synced: AtomicU64,
    /// The last checkpoint found no space (space.rs).
    is_full: AtomicBool,
    worker: WorkerSignal,
}

struct State {
    /// NSDs of the pool, readable or not.
    nsd_count: usize,
    /// Every container of the pool that can be reached, ascending by id.
    containers: Vec<Container>,
    /// Never empty; the first answers the questions.
    holders: Vec<Arc<Holder>>,
    /// A copy under way: gets every change, is no holder yet.
    joining: Option<Arc<Holder>>,
    /// NSDs that failed as holders in this run; not tried again.
    failed_nsds: Vec<NsdId>,
    /// NSDs that missed the mark and are not marked `Unrecovered` yet (members.rs): they get no
    /// generation before that, or the next start would not know them any more.
    suspects: Vec<NsdId>,
    generation: u64,
    /// Holders with something that could not be read; the worker makes their copies anew.
    damaged: Vec<NsdId>,
    /// The newest generation that may be in force: the last one for sure once this run has begun
    /// one.
    in_force: u64,
    last: Lsn,
    refusals: Refusals,
    /// Set while no sufficient set of copies is left: nothing is accepted then.
    stopped: Option<Error>,
}

#[derive(Default)]
struct WorkerSignal {
    state: Mutex<WorkerState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkerState {
    stop: bool,
    checkpoint_due: bool,
}

/// The background worker of a [`MetaStore`]; ends when dropped.
pub struct MetaWorker {
    store: Weak<MetaStore>,
    thread: Option<JoinHandle<()>>,
}

impl MetaStore {
    /// Starts the worker: syncs every second, checkpoints when due, makes new copies after losses.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_worker(self: &Arc<Self>) -> Result<MetaWorker> {
        let weak = Arc::downgrade(self);
        let worker_store = Weak::clone(&weak);
        let thread =
            strake_env::thread::Builder::new().name("meta-worker".to_owned()).spawn(move || {
                while let Some(store) = worker_store.upgrade() {
                    if !store.worker_wait() {
                        return;
                    }
                    store.tick();
                }
            })?;
        Ok(MetaWorker { store: weak, thread: Some(thread) })
    }

    /// Waits for work or the interval; false when it is to end.
    fn worker_wait(&self) -> bool {
        let mut state = self.worker.state.lock();
        if !state.stop && !state.checkpoint_due {
            self.worker.changed.wait_for(&mut state, SYNC_INTERVAL);
        }
        state.checkpoint_due = false;
        !state.stop
    }

    /// What the worker does each time: syncs what is not synced, checkpoints if one is due, makes
    /// a missing copy. Tests call it by hand. Failures are kept and shown by the next call that
    /// needs what failed.
    pub fn tick(&self) {
        self.look_for_space();
        let (last, heavy, copies) = {
            let state = self.state.read();
            let max = self.options.overlay_bytes_max;
            let heavy = state.holders.iter().any(|holder| holder.is_heavy(max));
            (state.last, heavy || self.is_full.load(Ordering::Acquire), state.holders.len())
        };
        let mut outcome = Ok(());
        if last.0 > self.synced.load(Ordering::Acquire) {
            outcome = self.sync();
        }
        if heavy && outcome.is_ok() {
            outcome = self.checkpoint();
        }
        if outcome.is_ok() {
            outcome = self.mend_damaged();
        }
        if copies < self.copies_wanted && outcome.is_ok() {
            // A copy that fails marks its NSD; the next tick tries another.
            drop(self.add_copy());
        }
    }

    /// Writes everything to the bases and trims the journals. For tests and an orderly end.
    ///
    /// # Errors
    /// As [`MetaPort::sync`]; `NoSpace` where a base cannot grow (nothing is lost).
    pub fn checkpoint(&self) -> Result<()> {
        let Some(_guard) = self.checkpointing.try_lock_for(self.options.room_wait_max) else {
            let detail = "the metadata's checkpoint takes too long: see `strake diag waiters`";
            return Err(Error::new(ErrorKind::TimedOut, detail));
        };
        self.sync()?;
        let synced = Lsn(self.synced.load(Ordering::Acquire));
        let holders = self.state.read().holders.clone();
        let mut full = None;
        let mut lost = Vec::new();
        let outcomes: Vec<(Arc<Holder>, Result<()>)> = strake_env::thread::scope(|scope| {
            let checkpoint = |holder: &Arc<Holder>| (Arc::clone(holder), holder.checkpoint(synced));
            let threads: Vec<_> =
                holders[1..].iter().map(|holder| scope.spawn(move || checkpoint(holder))).collect();
            let first = checkpoint(&holders[0]);
            let others = threads
                .into_iter()
                .map(|thread| thread.join().expect("invariant: a checkpoint does not panic"));
            std::iter::once(first).chain(others).collect()
        });
        for (holder, outcome) in outcomes {
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => full = Some(error),
                Err(error) => lost.push((holder, error)),
            }
        }
        if !lost.is_empty() {
            self.lose_used(lost)?;
        }
        self.set_full(full.is_some());
        full.map_or(Ok(()), |error| Err(error.context("metadata cannot grow")))
    }

    /// The generation of copies, and who holds them; the first answers the questions.
    pub fn holders(&self) -> (u64, Vec<NsdId>) {
        let state = self.state.read();
        (state.generation, state.holders.iter().map(|holder| holder.nsd).collect())
    }

    /// How many entries this file system has had.
    pub fn entries(&self) -> u64 {
        self.state.read().last.0
    }

    /// All records of each holder, for tests: equal stores are equal maps.
    ///
    /// # Errors
    /// The stores' own.
    pub fn snapshots(&self) -> Result<Vec<MemoryKv>> {
        let state = self.state.read();
        let mut snapshots = Vec::new();
        for holder in &state.holders {
            let mut batch = Batch::new();
            holder.scan_all(&[], &mut |key, value| {
                batch.put(key, value);
                true
            })?;
            let mut kv = MemoryKv::default();
            kv.apply(&batch);
            snapshots.push(kv);
        }
        Ok(snapshots)
    }

    /// Applies, after a checkpoint where the journals or the stores need one.
    fn apply_logged(&self, entry: LogEntryRef<'_>) -> Result<CountedAnswer> {
        let bytes = encode_entry(entry)?;
        for made in 0..CHECKPOINTS_PER_CHANGE_MAX {
            let lacking = match self.try_apply(entry, &bytes, made)? {
                Tried::Applied(answer) => return Ok(answer),
                Tried::Lacks(what) => what,
            };
            let _wait = self.options.waiters.enter(lacking, "waits for a checkpoint");
            match self.checkpoint() {
                // There may be room all the same.
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                made => made?,
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "the metadata's log is full and cannot be trimmed"))
    }

    /// Applies with the lock held, after so many checkpoints were made for it.
    fn try_apply(&self, entry: LogEntryRef<'_>, bytes: &[u8], made: usize) -> Result<Tried> {
        let mut state = self.state.write();
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        if let LogEntryRef::Counted(counted) = entry
            && let Some(error) = state.refusals.of(counted)
        {
            return Err(error.clone());
        }
        let lsn = Lsn(state.last.0 + 1);
        let decide = |holder: &Holder| decide(holder, entry, lsn);
        let (answer, changes) = match decide(&state.holders[0]) {
            Err(error) if is_damage(&error) => self.ask_others(&mut state, &decide).ok_or(error)?,
            decided => decided?,
        };
        if changes.is_empty() {
            return Ok(Tried::Applied(answer));
        }
        let part = answer.outcome.as_ref().map_or(0, |_| part_for(&entry.entry().op));
        let admission = self.space_for(&state, part, bytes.len(), made)?;
        if matches!(admission, Admission::AfterCheckpoint) {
            return Ok(Tried::Lacks("metadata space"));
        }
        let everyone = || state.holders.iter().chain(&state.joining);
        if !everyone().all(|holder| holder.has_room(bytes.len())) {
            return Ok(Tried::Lacks("metadata log full"));
        }
        let mut lost = Vec::new();
        let mut left = everyone().count();
        let mut changes = changes;
        for holder in everyone() {
            left -= 1;
            match holder.append(bytes, lsn) {
                Ok(()) if left == 0 => holder.apply(std::mem::take(&mut changes), lsn),
                Ok(()) => holder.apply(changes.clone(), lsn),
                Err(error) => lost.push((holder.nsd, error)),
            }
        }
        state.last = lsn;
        if !lost.is_empty() {
            self.lose(&mut state, &lost)?;
        }
        let max = self.options.overlay_bytes_max;
        if state.holders.iter().any(|holder| holder.is_heavy(max)) {
            drop(state);
            self.worker.state.lock().checkpoint_due = true;
            self.worker.changed.notify_one();
        }
        Ok(Tried::Applied(answer))
    }

    /// What must happen before a change that concerns the copies themselves.
    fn before(&self, op: &MetaOp) -> Result<()> {
        match op {
            MetaOp::MoveMetadataCopy { nsd } => self.move_copy(*nsd),
            _ => Ok(()),
        }
    }

    /// What follows from a change that concerns the copies themselves.
    fn after(&self, op: &MetaOp, reply: &MetaReply) -> Result<()> {
        if let (MetaOp::DeleteNsd { nsd }, MetaReply::Configuration(after)) = (op, reply) {
            self.sync()?;
            self.forget(*nsd, &after.pool);
        }
        Ok(())
    }
}

/// Runs the state machine on a holder's store.
fn decide(holder: &Holder, entry: LogEntryRef<'_>, lsn: Lsn) -> Result<(CountedAnswer, Batch)> {
    match entry {
        LogEntryRef::Plain(entry) => machine::apply(&holder.kv, entry).map(|(reply, changes)| {
            (CountedAnswer { position: lsn.0, outcome: Ok(reply) }, changes)
        }),
        LogEntryRef::Counted(counted) => machine::apply_counted(&holder.kv, counted, lsn.0),
    }
}

impl MetaPort for MetaStore {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        if let MetaQuery::ScrubCopy { nsd, part } = query {
            return self.scrub_copy(*nsd, *part).map(MetaReply::CopyScrubbed);
        }
        // Also when nothing can be changed any more: what is there stays readable.
        let state = self.state.read();
        let answer = |holder: &Holder| query::query(&holder.kv, query);
        let (state, mut reply) = match answer(&state.holders[0]) {
            Err(error) if is_damage(&error) => {
                drop(state);
                let mut state = self.state.write();
                let reply = self.ask_others(&mut state, &answer).ok_or(error)?;
                (RwLockWriteGuard::downgrade(state), reply)
            }
            reply => (state, reply?),
        };
        let holder = &state.holders[0];
        if let MetaReply::Counts(counts) = &mut reply {
            counts.metadata_bytes = holder.kv.weight();
            counts.metadata_free = self.free(&state);
        }
        Ok(reply)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.before(&entry.op)?;
        let reply = self.apply_logged(LogEntryRef::Plain(entry))?.outcome?;
        self.after(&entry.op, &reply)?;
        Ok(reply)
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let op = &counted.entry.op;
        self.before(op)?;
        let answer = match self.apply_logged(LogEntryRef::Counted(counted)) {
            Ok(answer) => answer,
            Err(error) => self.refuse(counted, error)?,
        };
        if let Ok(reply) = &answer.outcome {
            self.after(op, reply)?;
        }
        Ok(answer)
    }

    fn sync(&self) -> Result<()> {
        let (last, holders) = {
            let state = self.state.read();
            if let Some(error) = &state.stopped {
                return Err(error.clone());
            }
            (state.last, state.holders.clone())
        };
        let tickets: Vec<_> = holders[1..].iter().map(|holder| holder.request_sync()).collect();
        // The disk is named: where one hangs, it is the one to look at.
        let waiting = |holder: &Holder| {
            let detail = format!("NSD {}", holder.nsd);
            self.options.waiters.enter("metadata log sync", detail)
        };
        let mut lost = Vec::new();
        let wait = waiting(&holders[0]);
        if let Err(error) = holders[0].sync() {
            lost.push((Arc::clone(&holders[0]), error));
        }
        drop(wait);
        for (ticket, holder) in tickets.into_iter().zip(&holders[1..]) {
            let _wait = waiting(holder);
            if let Err(error) = ticket.wait() {
                lost.push((Arc::clone(holder), error));
            }
        }
        if !lost.is_empty() {
            self.lose_used(lost)?;
        }
        self.synced.fetch_max(last.0, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for MetaWorker {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.worker.state.lock().stop = true;
            store.worker.changed.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A panic in the worker was printed there; there is nothing to add.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
#[path = "store_test.rs"]
mod store_test;
