//! The allocator behind its lock, and what of the free space is granted to whom. Also gives space
//! back to the host.

use super::BlockStore;
use crate::allocator::Allocator;
use crate::discards::Discards;
use crate::extent::{Extent, units_of};
use crate::grants::{Grants, Holder, Supply};
use crate::reclaim::Reclaim;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use strake_env::disk::relieved::SpaceGiver;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_proto::limits::UNIT_BYTES;
use strake_store::{ChunkSource, Lsn};

/// The host is told of at most this many units at once: 16 MiB. Other users wait for the host's
/// locks for at most as long as that takes.
const DISCARD_UNITS_MAX: u32 = 4096;
/// A commit tells the host only of rows of at least this many units: 256 KiB. To tell it of a small
/// one costs as much. What was patched frees many small ones, which are used again soon.
const AT_ONCE_UNITS_MIN: u32 = 64;
/// The pause between two discards while others use the disk. It is this many times as long as the
/// last discard took, and at least [`PAUSE_MIN`]. Hosts do part of the work after they have
/// answered.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// An orderly end spends at most this much time on discarding the rest.
const GIVE_BACK_MAX: Duration = Duration::from_secs(2);
/// A key-value store waits at most this long for the last chunk to be whole again.
const KV_WAIT_MAX: Duration = Duration::from_secs(60);

/// The free units. Key-value stores claim their chunks here.
pub(crate) struct Space {
    pub(super) allocator: Mutex<Allocator>,
    /// Units that writers hold and no record names yet. Changed under the allocator's lock.
    pub(super) in_flight: AtomicU64,
    /// What of the free units is granted to whom. Changed under the allocator's lock.
    grants: Mutex<Grants>,
    /// Whether anything was ever granted. If not, `grants` need not be looked at.
    granting: AtomicBool,
    /// Free units that the host has not been told of. Changed under the allocator's lock.
    stale: Mutex<Discards>,
    /// Signalled when units withheld for the host are back.
    restored: Condvar,
    /// The number of threads that wait for withheld units.
    waiting: AtomicU64,
}

impl Space {
    pub(super) fn new(mut allocator: Allocator, grants: Grants) -> Space {
        allocator.note_granted(grants.granted());
        Space {
            allocator: Mutex::new(allocator),
            granting: AtomicBool::new(!grants.is_empty()),
            grants: Mutex::new(grants),
            in_flight: AtomicU64::new(0),
            stale: Mutex::default(),
            restored: Condvar::new(),
            waiting: AtomicU64::new(0),
        }
    }

    /// Allocates units for a client, or for nobody who has a grant (`None`). `None` if there are
    /// too few at the moment, or if they are granted to others.
    pub(super) fn allocate(
        &self,
        holder: Option<Holder>,
        reclaim: &Reclaim,
        units: u32,
    ) -> Option<Vec<Extent>> {
        let mut allocator = self.allocator.lock();
        let grants = self.is_granting().then(|| self.grants.lock());
        let free = free_units(&allocator, reclaim);
        if grants.as_ref().is_some_and(|it| !it.may_take(holder, units.into(), free)) {
            return None;
        }
        let extents = allocator.allocate(units)?;
        if let Some(mut grants) = grants {
            grants.take(holder, units.into());
            allocator.note_granted(grants.granted());
        }
        let mut stale = self.stale.lock();
        extents.iter().for_each(|&extent| stale.remove(extent));
        self.in_flight.fetch_add(u64::from(units), SeqCst);
        Some(extents)
    }

    /// Whether [`Space::allocate`] could succeed once all freed units can be used again.
    pub(super) fn could_allocate(
        &self,
        holder: Option<Holder>,
        reclaim: &Reclaim,
        units: u32,
    ) -> bool {
        let allocator = self.allocator.lock();
        let free = free_units(&allocator, reclaim);
        let is_granted_to_others =
            || self.is_granting() && !self.grants.lock().may_take(holder, units.into(), free);
        !is_granted_to_others() && free >= units.into()
    }

    /// Takes back units that [`Space::allocate`] gave out.
    pub(super) fn give_back(&self, holder: Option<Holder>, extents: &[Extent]) {
        let mut allocator = self.allocator.lock();
        let units = units_of(extents);
        self.free_locked(&mut allocator, extents, Allocator::give_back);
        if self.is_granting() {
            let mut grants = self.grants.lock();
            grants.put_back(holder, units);
            allocator.note_granted(grants.granted());
        }
        self.in_flight.fetch_sub(units, SeqCst);
    }

    /// Changes what is granted. `work` gets the free space, and what is told as free stays free.
    pub(super) fn change_grants<T>(
        &self,
        reclaim: &Reclaim,
        work: impl FnOnce(&mut Grants, Supply) -> T,
    ) -> T {
        let mut allocator = self.allocator.lock();
        let free = allocator.tell_free(reclaim.units());
        let total = allocator.total_for_data();
        let mut grants = self.grants.lock();
        let result = work(&mut grants, Supply { free: free.min(total), total });
        if !grants.is_empty() {
            self.granting.store(true, SeqCst);
        }
        allocator.note_granted(grants.granted());
        result
    }

    /// False if nothing was ever granted, as by a single mount.
    pub(super) fn is_granting(&self) -> bool {
        self.granting.load(SeqCst)
    }

    /// What is granted, to look at it.
    pub(super) fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock()
    }

    /// Frees units, and does `also` under the same hold of the allocator's lock.
    fn free(&self, extents: &[Extent], also: impl FnOnce()) {
        let mut allocator = self.allocator.lock();
        self.free_locked(&mut allocator, extents, Allocator::free);
        also();
    }

    fn free_locked(
        &self,
        allocator: &mut Allocator,
        extents: &[Extent],
        how: fn(&mut Allocator, Extent),
    ) {
        let mut stale = self.stale.lock();
        for &extent in extents {
            how(allocator, extent);
            stale.add(extent);
        }
    }

    /// The number of bytes that the host has not been told of yet.
    fn stale_bytes(&self) -> u64 {
        self.stale.lock().units() * UNIT_BYTES as u64
    }

    /// Notes that a record names this many more units.
    pub(super) fn named(&self, units: u64) {
        let _allocator = self.allocator.lock();
        self.in_flight.fetch_sub(units, SeqCst);
    }

    /// Withholds the units that the host is told of next: some that lie in a row of at least
    /// `row_min`. [`Space::end_discard`] gives them back.
    fn begin_discard(&self, row_min: u32) -> Option<Extent> {
        let mut allocator = self.allocator.lock();
        let chunk_end = |unit| allocator.chunk_end(unit);
        let extent = self.stale.lock().take(row_min, DISCARD_UNITS_MAX, chunk_end)?;
        allocator.withhold(extent);
        Some(extent)
    }

    fn end_discard(&self, extent: Extent) {
        self.allocator.lock().restore(extent);
        self.restored.notify_all();
    }

    /// Waits until withheld units come back, for at most `limit`. Returns false if no units are
    /// withheld, or if none came back.
    pub(super) fn wait_for_discard(&self, limit: Duration) -> bool {
        self.wait_locked(&mut self.allocator.lock(), limit)
    }

    fn wait_locked(&self, allocator: &mut MutexGuard<'_, Allocator>, limit: Duration) -> bool {
        if !allocator.is_withholding() {
            return false;
        }
        self.waiting.fetch_add(1, SeqCst);
        let timed_out = self.restored.wait_for(allocator, limit).timed_out();
        self.waiting.fetch_sub(1, SeqCst);
        !timed_out
    }
}

/// The units that writers may take, now or after the next commit.
fn free_units(allocator: &Allocator, reclaim: &Reclaim) -> u64 {
    allocator.free_for_data() + reclaim.units()
}

impl ChunkSource for Space {
    fn claim(&self, candidates: &[u32]) -> Option<u32> {
        let mut allocator = self.allocator.lock();
        let chunk = loop {
            if let Some(chunk) = allocator.claim_for_kv() {
                break chunk;
            }
            // The last empty chunk may be withheld in part.
            if !self.wait_locked(&mut allocator, KV_WAIT_MAX) {
                return None;
            }
        };
        assert!(candidates.contains(&chunk), "a chunk of a key-value store counted as free");
        self.stale.lock().remove(allocator.chunk_extent(chunk));
        Some(chunk)
    }

    fn keep(&self, needed: u32, wanted: u32) -> u32 {
        self.allocator.lock().keep_more(needed, wanted)
    }

    fn release(&self, chunks: &[u32]) {
        let mut allocator = self.allocator.lock();
        chunks.iter().for_each(|&chunk| allocator.release_from_kv(chunk));
    }
}

impl SpaceGiver for BlockStore {
    fn give_space(&self) -> bool {
        self.discard_listed(1) | self.space.wait_for_discard(GIVE_BACK_MAX)
    }
}

impl BlockStore {
    /// Lets units that nobody can need any more be allocated again.
    pub(super) fn reuse_released(&self) {
        // A thread that found the disk full must not miss units that another one is about to give.
        let _alone = self.releasing.lock();
        let released = self.reclaim.release(Lsn(self.durable.load(SeqCst)));
        if released.is_empty() {
            return;
        }
        // This is one step for a check, which counts free units and units on their way there.
        self.space.free(&released, || self.reclaim.given_back(&released));
        if self.space.stale_bytes() <= self.options.discard_at_once_bytes_max {
            // A full host needs the space back before the next write, and this is soon done.
            self.discard_listed(AT_ONCE_UNITS_MIN);
        }
        if self.space.stale_bytes() > 0
            && let Some(discarder) = &*self.discarder.lock()
        {
            discarder.wake();
        }
    }

    /// Tells the host of all free space that no other thread is telling it of, as far as it lies in
    /// rows of at least `row_min` units. Returns true if there was any.
    fn discard_listed(&self, row_min: u32) -> bool {
        let mut any = false;
        while let Some(extent) = self.space.begin_discard(row_min) {
            let name = format!("NSD {}", self.nsd);
            let _waiting = self.observe.waiters.enter("NSD discard", name);
            self.disk.discard(extent.offset(), extent.bytes());
            self.space.end_discard(extent);
            any = true;
        }
        any
    }

    /// Tells the host of one piece of free space. Returns the pause after which there is more to
    /// do, or `None` if there is nothing.
    pub(super) fn discard_some(&self) -> Option<Duration> {
        // Nothing more is written after a failure, and nobody knows what the disk has forgotten.
        if self.failure.lock().is_some() {
            return None;
        }
        if self.space.waiting.load(SeqCst) > 0 {
            return Some(PAUSE_MIN);
        }
        let extent = self.space.begin_discard(1)?;
        let begin = self.clock.monotonic();
        self.disk.discard(extent.offset(), extent.bytes());
        let took = self.clock.monotonic().saturating_sub(begin);
        self.space.end_discard(extent);
        let ios = self.ios.load(SeqCst);
        let is_idle = self.ios_seen.swap(ios, SeqCst) == ios;
        Some(if is_idle { Duration::ZERO } else { PAUSE_MIN.max(took * PAUSE_FACTOR) })
    }

    /// Tells the host of free space at an orderly end, for at most two seconds. Space that the host
    /// is not told of stays with it until it is used again.
    pub fn give_back(&self) {
        let end = self.clock.monotonic() + GIVE_BACK_MAX;
        while self.clock.monotonic() < end && self.discard_some().is_some() {}
    }

    /// Gives the host all free space now, because it is full. Returns false if there was nothing to
    /// give.
    pub(super) fn discard_all(&self) -> bool {
        // Space that another thread is just giving counts as well.
        self.discard_listed(1) | self.wait_for_discard()
    }

    /// Waits for units that are free but withheld for the host. Returns false if there are none.
    pub(super) fn wait_for_discard(&self) -> bool {
        let _waiting = self.observe.waiters.enter("NSD discard", format!("NSD {}", self.nsd));
        self.space.wait_for_discard(self.options.wait_limit)
    }
}
