//! Metadata on disks: the state machine over p + 1 equal copies.
//!
//! Each *holder* is an NSD's container with its own journal of entries and its own store of
//! records. All holders get the same entries under the same numbers. The first holder answers the
//! questions.
//!
//! 1. `apply` runs the state machine on the first holder's store. It appends the entry to every
//!    journal and makes the changes in every store, both in memory. The change is then visible but
//!    not durable.
//! 2. `sync` makes all journals durable at the same time. Callers share syncs.
//! 3. A checkpoint syncs, writes each store's changes to its base, and trims its journal.
//!    [`MetaStore::tick`] makes it when it is due. A caller that finds the journal full makes it at
//!    once.
//! 4. A holder that fails is *lost*. Before anything more is acknowledged, generation + 1 without
//!    that holder is written to all NSDs (copies.rs). The loss of the last holder stops everything.
//! 5. Opening finds the newest generation, replays the journals, and makes all holders equal
//!    (open.rs).
//! 6. NSDs come and go while the store runs. An NSD with an old generation is not believed
//!    (members.rs).
//!
//! Locks, in this order: `moving`, `checking`, then `checkpointing` or `copying`, then `state`.
//! Questions share `state`. Changes hold it alone. They hold it across memory operations only,
//! unless a record must be read from disk or a holder is lost. A question that walks everything
//! reads a view of the store and holds `checking` alone. A checkpoint tries `checking`, and waits
//! for it only after it has cut the view of its owner.

mod copies;
mod holder;
mod members;
pub(crate) mod moves;
mod open;
pub(crate) mod refusals;
pub(crate) mod scrub;
pub(crate) mod space;
mod witness;

use crate::kv::MemoryKv;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::ops::rename::Nesting;
use crate::{machine, query};
use holder::Holder;
use moves::Walked;
use refusals::Refusals;
use scrub::is_damage;
use space::{Admission, part_for};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, WatchedMutex, WatchedMutexGuard, WatchedRwLock};
use strake_env::thread::JoinHandle;
use strake_env::{Disk, Stop, Stops};
use strake_observe::Waiters;
use strake_proto::meta::{
    CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
};
use strake_proto::{Error, ErrorKind, NsdId, Result};
use strake_store::{Batch, Container, Lsn};

pub use witness::WITNESS_BYTES;

/// How often the worker syncs entries that are not synced yet.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// A change waits for at most this many checkpoints before it is refused. One checkpoint trims the
/// journal of everything that was in it before. Others may fill the journal meanwhile, so a change
/// may need more than one.
const CHECKPOINTS_PER_CHANGE_MAX: usize = 4;
/// Before those, a change takes at most so many checkpoints of others for its own.
const CHECKPOINTS_SHARED_MAX: usize = 16;
/// The wait of a change for room in the log. Any checkpoint gives room, whoever makes it.
const LOG_FULL: &str = "metadata log full";

strake_env::lock_names! {
    /// Held across memory operations; see the module for the exceptions.
    StateLock = "metadata lock";
    /// Held while a checkpoint is made.
    Checkpointing = "metadata checkpoint";
    /// Held while a copy is made.
    Copying = "copy of the metadata being made";
    /// Held by a check from its beginning to its end. Others wait for it only with another check,
    /// and with a checkpoint that has ended this one.
    Checking = "check of the metadata";
    /// Held by whoever moves a directory (moves.rs).
    pub(crate) Moving = "directory move";
}

/// Holders that failed, each with its error.
type Lost = Vec<(Arc<Holder>, Error)>;

/// The result of an attempt to apply a change.
enum Tried {
    Applied(CountedAnswer),
    /// This is lacking. A checkpoint must be made first.
    Lacks(&'static str),
}

/// Options that may differ between two runs of one file system.
#[derive(Clone)]
pub struct MetaOptions {
    /// Bytes of the page cache of each holder's store.
    pub cache_bytes: usize,
    /// A checkpoint begins when a holder has this many bytes of changes in memory.
    pub overlay_bytes_max: u64,
    /// How long a change waits for room in the journal.
    pub room_wait_max: Duration,
    /// A place beside the NSDs that knows the newest generation (see `store/witness.rs`). It is at
    /// least [`WITNESS_BYTES`] long. Without a witness, p + 1 superblocks must be readable at every
    /// start.
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

/// Metadata on disks; see the module.
pub struct MetaStore {
    /// The number of copies wanted: p + 1, or one on each NSD if there are fewer NSDs.
    copies_wanted: usize,
    /// The number of NSDs that may lack the newest generation: p.
    losses_max: usize,
    /// The generation that each container had when it was opened.
    found: Vec<(NsdId, u64)>,
    options: MetaOptions,
    state: WatchedRwLock<StateLock, State>,
    checkpointing: WatchedMutex<Checkpointing>,
    /// How many checkpoints have trimmed the logs.
    checkpoints: AtomicU64,
    copying: WatchedMutex<Copying>,
    checking: WatchedMutex<Checking>,
    moving: WatchedMutex<Moving>,
    /// Checks that may end early.
    stops: Stops,
    /// Every entry up to this one is durable on all holders.
    synced: AtomicU64,
    /// True if the last checkpoint found no space (space.rs).
    is_full: AtomicBool,
    worker: WorkerSignal,
}

struct State {
    /// The number of NSDs of the pool, readable or not.
    nsd_count: usize,
    /// Every container of the pool that can be reached, ascending by id.
    containers: Vec<Container>,
    /// The holders. The list is never empty. The first holder answers the questions.
    holders: Vec<Arc<Holder>>,
    /// A copy that is being made. It gets every change, but it is no holder yet.
    joining: Option<Arc<Holder>>,
    /// NSDs that failed as holders in this run. They are not tried again.
    failed_nsds: Vec<NsdId>,
    /// NSDs that missed the mark and are not marked `Unrecovered` yet (members.rs). They get no new
    /// generation before they are marked; otherwise the next start would not recognise them.
    suspects: Vec<NsdId>,
    generation: u64,
    /// Holders with something that could not be read. The worker makes their copies anew.
    damaged: Vec<NsdId>,
    /// The newest generation that may be in force. Once this run has begun a generation, it is
    /// certainly the last one begun.
    in_force: u64,
    last: Lsn,
    /// How many directories this run has moved from one directory to another (moves.rs).
    moves: u64,
    refusals: Refusals,
    /// Set while the copies left do not suffice. Nothing is accepted then.
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

/// The background worker of a [`MetaStore`]. Dropping it ends the worker.
pub struct MetaWorker {
    store: Weak<MetaStore>,
    thread: Option<JoinHandle<()>>,
}

impl MetaStore {
    /// Starts the worker. It syncs every second, makes checkpoints when due, and makes new copies
    /// after losses.
    ///
    /// # Errors
    /// If no thread can be started.
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

    /// Waits for work or for the interval. Returns false when the worker must end.
    fn worker_wait(&self) -> bool {
        let mut state = self.worker.state.lock();
        if !state.stop && !state.checkpoint_due {
            self.worker.changed.wait_for(&mut state, SYNC_INTERVAL);
        }
        state.checkpoint_due = false;
        !state.stop
    }

    /// One round of the worker: it syncs entries that are not synced, makes a checkpoint if one is
    /// due, and makes a missing copy. Tests call it by hand. A failure is kept; the next call that
    /// needs the failed part returns it.
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
            // A failed copy marks its NSD. The next tick tries another NSD.
            drop(self.add_copy());
        }
    }

    /// Writes everything to the bases and trims the journals. For tests and for an orderly end.
    ///
    /// # Errors
    /// As [`MetaPort::sync`]. `NoSpace` if a base cannot grow; nothing is lost then.
    pub fn checkpoint(&self) -> Result<()> {
        let _guard = self.begin_checkpoint()?;
        self.checkpoint_alone()
    }

    /// Makes a checkpoint, or waits for the one that is under way if `may_share`. False if it
    /// waited. A thread that had waited would be held up once more by a checkpoint of its own.
    fn checkpoint_for(&self, may_share: bool) -> Result<bool> {
        let before = self.checkpoints.load(Ordering::Acquire);
        let _guard = self.begin_checkpoint()?;
        if may_share && self.checkpoints.load(Ordering::Acquire) != before {
            return Ok(false);
        }
        self.checkpoint_alone().map(|()| true)
    }

    /// The caller has shut out other checkpoints.
    fn checkpoint_alone(&self) -> Result<()> {
        self.sync()?;
        let synced = Lsn(self.synced.load(Ordering::Acquire));
        let holders = self.state.read().holders.clone();
        let (mut full, mut lost) = self.checkpoint_all(&holders, synced);
        // A check keeps pages of the base from being used again.
        if full.is_some() && lost.is_empty() && self.end_check(&holders) {
            (full, lost) = self.checkpoint_all(&holders, synced);
        }
        if !lost.is_empty() {
            self.lose_used(lost)?;
        }
        self.set_full(full.is_some());
        if full.is_none() {
            self.checkpoints.fetch_add(1, Ordering::AcqRel);
        }
        full.map_or(Ok(()), |error| Err(error.context("metadata cannot grow")))
    }

    /// Shuts out other checkpoints.
    fn begin_checkpoint(&self) -> Result<WatchedMutexGuard<'_, ()>> {
        self.checkpointing.try_lock_for(self.options.room_wait_max).ok_or_else(|| {
            let detail = "the metadata's checkpoint takes too long: see `strake diag waiters`";
            Error::new(ErrorKind::TimedOut, detail)
        })
    }

    /// Checkpoints all holders side by side. Returns whether one found no space, and those that
    /// failed otherwise.
    fn checkpoint_all(&self, holders: &[Arc<Holder>], synced: Lsn) -> (Option<Error>, Lost) {
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
        (full, lost)
    }

    /// The generation of the copies, and their holders. The first holder answers the questions.
    pub fn holders(&self) -> (u64, Vec<NsdId>) {
        let state = self.state.read();
        (state.generation, state.holders.iter().map(|holder| holder.nsd).collect())
    }

    /// The number of entries that this file system has had.
    pub fn entries(&self) -> u64 {
        self.state.read().last.0
    }

    /// All records of each holder, for tests. Equal stores give equal maps.
    ///
    /// # Errors
    /// The stores' own errors.
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

    /// Walks the ways that a change needs; see moves.rs.
    fn walk_before(&self, op: &MetaOp) -> Result<Walked<'_>> {
        moves::walk_before(op, &self.moving, self.options.room_wait_max, &|see| {
            let state = self.state.read();
            see(&state.holders[0].kv, state.moves);
        })
    }

    /// Applies an entry. First makes a checkpoint if the journals or the stores need one.
    fn apply_logged(&self, entry: LogEntryRef<'_>) -> Result<CountedAnswer> {
        let bytes = encode_entry(entry)?;
        let walked = self.walk_before(&entry.entry().op)?;
        let (mut made, mut shared) = (0, 0);
        while made < CHECKPOINTS_PER_CHANGE_MAX {
            let lacking = match self.try_apply(entry, &bytes, made, &walked)? {
                Tried::Applied(answer) => return Ok(answer),
                Tried::Lacks(what) => what,
            };
            let _wait = self.options.waiters.enter(lacking, "waits for a checkpoint");
            match self.checkpoint_for(lacking == LOG_FULL && shared < CHECKPOINTS_SHARED_MAX) {
                Ok(false) => shared += 1,
                Ok(true) => made += 1,
                // There may be room even so.
                Err(error) if error.kind() == ErrorKind::NoSpace => made += 1,
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "the metadata's log is full and cannot be trimmed"))
    }

    /// Applies an entry with the lock held, after `made` checkpoints were made for it.
    fn try_apply(
        &self,
        entry: LogEntryRef<'_>,
        bytes: &[u8],
        made: usize,
        walked: &Walked<'_>,
    ) -> Result<Tried> {
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
        let known = walked.known(state.moves);
        let is_move = moves::is_move(&state.holders[0].kv, &entry.entry().op);
        let decide = |holder: &Holder| decide(holder, entry, lsn, known);
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
            return Ok(Tried::Lacks(LOG_FULL));
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
        state.moves += u64::from(is_move);
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

    /// Does the work that must precede a change of the copies themselves.
    fn before(&self, op: &MetaOp) -> Result<()> {
        match op {
            MetaOp::MoveMetadataCopy { nsd } => self.move_copy(*nsd),
            _ => Ok(()),
        }
    }

    /// Does the work that must follow a change of the copies themselves.
    fn after(&self, op: &MetaOp, reply: &MetaReply) -> Result<()> {
        if let (MetaOp::DeleteNsd { nsd }, MetaReply::Configuration(after)) = (op, reply) {
            self.sync()?;
            self.forget(*nsd, &after.pool);
        }
        Ok(())
    }
}

/// Runs the state machine on a holder's store.
fn decide(
    holder: &Holder,
    entry: LogEntryRef<'_>,
    lsn: Lsn,
    known: &[(Nesting, bool)],
) -> Result<(CountedAnswer, Batch)> {
    match entry {
        LogEntryRef::Plain(entry) => {
            let (reply, changes) = machine::apply_knowing(&holder.kv, entry, known)?;
            Ok((CountedAnswer { position: lsn.0, outcome: Ok(reply) }, changes))
        }
        LogEntryRef::Counted(counted) => {
            machine::apply_counted_knowing(&holder.kv, counted, lsn.0, known)
        }
    }
}

impl MetaPort for MetaStore {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        if let MetaQuery::ScrubCopy { nsd, part } = query {
            return self.scrub_copy(*nsd, *part).map(MetaReply::CopyScrubbed);
        }
        match query {
            MetaQuery::Check => return self.check(&Stop::default()).map(MetaReply::Checked),
            MetaQuery::CheckAs { number } => {
                return self.stops.run(*number, |stop| self.check(stop)).map(MetaReply::Checked);
            }
            MetaQuery::EndCheck { number } => {
                self.stops.end(*number);
                return Ok(MetaReply::Done);
            }
            _ => {}
        }
        // Questions are answered even when nothing can be changed any more.
        let state = self.state.read();
        let answer = |holder: &Holder| query::query(&holder.kv, query);
        let (state, mut reply) = match answer(&state.holders[0]) {
            Err(error) if is_damage(&error) => {
                drop(state);
                let mut state = self.state.write();
                let reply = self.ask_others(&mut state, &answer).ok_or(error)?;
                (state.downgrade(), reply)
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
        let first = machine::durable_first(&self.state.read().holders[0].kv, counted, &answer)?;
        if first > self.synced.load(Ordering::Acquire) {
            self.sync()?;
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
        // The list of waits names the disk, so that a disk that hangs can be found.
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
            // A panic in the worker was printed there. There is nothing to add.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod check_test;
#[cfg(test)]
#[path = "store_test.rs"]
mod store_test;
