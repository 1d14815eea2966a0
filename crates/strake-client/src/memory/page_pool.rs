//! The page pool: one budget of memory for the data of all files, clean and dirty.
//!
//! Buffers come in powers of two from 4 KiB to the block size. A buffer of which only parts are
//! used ([`Fill::Parts`]) counts only those parts. A block with a buffer is a [`Page`] and stands
//! in the *clock*. Eviction goes round the clock: it passes over every page that was used since it
//! last came by, and takes the buffers of the others if they are clean.
//!
//! No thread waits for memory while it holds a lock. An operation first asks for room
//! ([`PagePool::admit`], which evicts and may wait). Then it takes its locks, and then it
//! allocates, which never waits. So the operations under way can exceed the budget, by the buffer
//! for which each was admitted.
//!
//! The first touch of fresh memory costs more than the copy into it. So a thread keeps some buffers
//! ready that have been touched ([`warm`]). On a virtual machine whose host has to find the memory
//! first, the first touch costs far more. There a new block gets the memory of a block that was
//! *left behind* ([`PagePool::leave_behind`]). The pool then grows to its budget as fast as there
//! is time to touch memory, and not as fast as applications write.
//!
//! *Dirty* bytes (not yet stable on the NSDs) are limited to half of the budget, so that eviction
//! always finds clean pages. Writers wait for that ([`PagePool::wait_for_clean`]).
//!
//! The process needs other memory, too: caches of the metadata, threads, and what its allocator
//! keeps. It may have a tenth of the budget for them, and [`INODE_BYTES`] for each inode in use. If
//! it takes more, the excess is *withheld* from the pool ([`PagePool::hold`]): at most a quarter of
//! the budget, and never of the minimum that every pool has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use strake_env::AlignedBuffer;
use strake_env::sync::{Condvar, Mutex};
use strake_observe::Waiters;

/// There is always room for so many whole blocks.
const BLOCKS_MIN: usize = 8;
/// A buffer for parts counts at least so many bytes.
pub(crate) const PARTS_BYTES_MIN: usize = 64 << 10;
/// There are at most so many buffers for parts. Each is a mapping, and a process may have 65,530.
const PARTS_MAX: usize = 16384;
/// The smallest buffer.
const BUFFER_BYTES_MIN: usize = 4096;
/// One part in so many of the budget is kept touched ahead.
const WARM_PARTS: usize = 16;
/// No more than so many bytes are kept touched ahead.
const WARM_BYTES_MAX: usize = 256 << 20;
/// In a smaller pool no memory is touched ahead, and the pool grows as fast as it is used.
const WARM_BUDGET_MIN: usize = 512 << 20;
/// Besides as many pages as have buffers, so many pages without one may stand in the clock.
const CLOCK_SLACK: usize = 64;
/// At most so many pages that were left behind are looked at to find the memory of one.
const LEFT_BEHIND_LOOKS: usize = 8;
/// Each inode in use may take so many bytes.
const INODE_BYTES: usize = 200;
/// The rest of the process takes too much if it takes more than one part in so many of the budget.
/// That is less than the tenth that it may have, because it is looked at only now and then.
const REST_PARTS: usize = 16;
/// The rest of the process may take so many bytes however small the pool is.
const REST_BYTES_MIN: usize = 64 << 20;
/// At most one part in so many of the budget is withheld. More than half of it is always left, so
/// that dirty pages never fill the pool.
const WITHHELD_PARTS: usize = 4;
/// One part in so many of the budget is not for the bytes of a single file: other files have
/// blocks, too, and the process needs memory.
const OTHERS_PARTS: usize = 8;
/// A waiter looks again after this time.
const WAIT_STEP: Duration = Duration::from_millis(200);

/// Something that has a buffer of the pool.
pub(crate) trait Page: Send + Sync {
    /// Whether it was used since this was last asked.
    fn was_used(&self) -> bool;
    /// Gives its buffer away if it is clean and not being used just now.
    fn take_clean(&self) -> Option<AlignedBuffer>;
    /// Whether it still has a buffer. If not, it leaves the clock.
    fn is_resident(&self) -> bool;
}

/// What a new buffer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fill {
    /// All of the buffer will be used soon.
    #[default]
    Whole,
    /// Only parts of the buffer will be used. The other parts are not touched, so they take no
    /// memory.
    Parts,
}

#[derive(Default)]
struct PoolState {
    /// Bytes of buffers in pages.
    used: usize,
    /// Buffers in pages.
    buffers: usize,
    /// The buffers for parts among them.
    parts: usize,
    /// Bytes of buffers in `free`.
    spare: usize,
    /// Bytes of the budget that must not be used.
    withheld: usize,
    /// Spare buffers, by the binary logarithm of their length.
    free: Vec<Vec<AlignedBuffer>>,
    clock: VecDeque<Arc<dyn Page>>,
    /// Pages of whole blocks that were left behind, the oldest first. They stand in the clock, too.
    left_behind: VecDeque<Arc<dyn Page>>,
    dirty: usize,
    /// Counts how often bytes became clean, so that waiters can tell a standstill from slowness.
    cleaned: u64,
    closed: bool,
}

/// See the file's head.
pub(crate) struct PagePool {
    budget: usize,
    dirty_max: usize,
    withheld_max: usize,
    block_size: usize,
    /// Bytes that are kept touched ahead; 0 for none.
    warm: usize,
    /// The number of operations that wait for room or for clean pages.
    waiting: AtomicUsize,
    /// The units of all files that the metadata keeps hardened.
    pub(crate) hardened: AtomicUsize,
    /// Bytes of the metadata that contents of inodes will take, as far as it was not told of them.
    pub(crate) untold: AtomicU64,
    first_touch: warm::FirstTouch,
    state: Mutex<PoolState>,
    changed: Condvar,
    /// Signalled when a stream has begun a block.
    begun: Condvar,
}

/// What is in the page pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePoolView {
    /// The budget.
    pub budget: u64,
    /// Bytes of buffers in use.
    pub used: u64,
    /// Bytes of buffers kept for reuse.
    pub spare: u64,
    /// Bytes of the budget that the rest of the process takes.
    pub withheld: u64,
    /// Bytes not yet stable on the NSDs.
    pub dirty: u64,
    /// The speed of touching fresh memory, in bytes per second; 0 if it is not known.
    pub first_touch: u64,
}

impl PagePool {
    /// A pool of `budget` bytes for blocks of at most `block_size`.
    pub(crate) fn new(budget: usize, block_size: usize) -> PagePool {
        let least = BLOCKS_MIN * block_size;
        let budget = budget.max(least);
        PagePool {
            budget,
            dirty_max: budget / 2,
            withheld_max: (budget / WITHHELD_PARTS).min(budget - least),
            block_size: PagePool::capacity(block_size),
            warm: if budget < WARM_BUDGET_MIN {
                0
            } else {
                (budget / WARM_PARTS).min(WARM_BYTES_MAX)
            },
            waiting: AtomicUsize::new(0),
            hardened: AtomicUsize::new(0),
            untold: AtomicU64::new(0),
            first_touch: warm::FirstTouch::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            begun: Condvar::new(),
        }
    }

    /// Ends the thread that touches memory ahead.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.begun.notify_all();
    }

    /// The capacity of the buffer for `bytes` bytes.
    pub(crate) fn capacity(bytes: usize) -> usize {
        bytes.max(BUFFER_BYTES_MIN).next_power_of_two()
    }

    /// The most bytes that may be dirty.
    pub(crate) fn dirty_max(&self) -> usize {
        self.dirty_max
    }

    /// Whether so many bytes are dirty that even blocks are sent which may soon be written to
    /// again. That is so above three quarters of the limit. Below it such blocks stay, because each
    /// is sent as a whole and may be dirty again a moment later.
    pub(crate) fn is_pressed(&self) -> bool {
        self.state.lock().dirty > self.dirty_max / 4 * 3
    }

    /// Whether a file of so many bytes has room in the pool as a whole.
    pub(crate) fn can_hold(&self, bytes: u64) -> bool {
        bytes <= (self.budget - self.budget / OTHERS_PARTS) as u64
    }

    /// The dirty bytes.
    #[cfg(test)]
    pub(crate) fn dirty(&self) -> usize {
        self.state.lock().dirty
    }

    /// Makes room for a buffer of `bytes`. Evicts pages, or waits until other threads do, for at
    /// most `limit`. After that the operation goes on and exceeds the budget. `kick` is called
    /// before each wait.
    pub(crate) fn admit(&self, bytes: usize, waiters: &Waiters, limit: Duration, kick: &dyn Fn()) {
        let bytes = PagePool::capacity(bytes);
        if bytes == self.block_size {
            self.reuse();
        }
        let mut waited = Duration::ZERO;
        while !self.make_room(bytes) && waited < limit {
            waited += WAIT_STEP;
            let _waiting = Waiting::count(&self.waiting);
            kick();
            let _wait = waiters.enter("room in the page pool", "");
            let mut state = self.state.lock();
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
    }

    /// Leaves a page behind: a clean page of a whole block that is hardly wanted soon. If it is
    /// used again, it keeps its memory.
    pub(crate) fn leave_behind(&self, page: Arc<dyn Page>) {
        if self.warm == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.left_behind.push_back(page);
        if state.left_behind.len() > self.budget / self.block_size {
            state.left_behind.pop_front();
        }
    }

    /// Takes the buffer of a page that was left behind, if fresh memory is slow and there is no
    /// spare buffer for a whole block.
    fn reuse(&self) {
        if !self.first_touch.is_slow() {
            return;
        }
        for _ in 0..LEFT_BEHIND_LOOKS {
            let page = {
                let mut state = self.state.lock();
                if state.free.get(class_of(self.block_size)).is_some_and(|free| !free.is_empty()) {
                    return;
                }
                let Some(page) = state.left_behind.pop_front() else { return };
                page
            };
            // Without the pool's lock, because a page takes its own.
            let taken = if page.was_used() { None } else { page.take_clean() };
            if let Some(buffer) = taken {
                self.release(buffer);
                return;
            }
        }
    }

    fn fits(&self, state: &PoolState, bytes: usize) -> bool {
        state.used + state.spare + state.withheld + bytes <= self.budget
    }

    /// Adapts the withheld bytes to the memory that the rest of the process takes. `resident` is
    /// all memory of the process, in bytes, and `inodes` is the number of inodes in use.
    pub(crate) fn hold(&self, resident: usize, inodes: usize) {
        let rest = (self.budget / REST_PARTS).max(REST_BYTES_MIN) + inodes * INODE_BYTES;
        let mut state = self.state.lock();
        let above = (state.withheld + resident).saturating_sub(self.budget + rest);
        state.withheld = above.min(self.withheld_max);
        drop(state);
        self.make_room(0);
    }

    /// Makes room for a buffer for a whole block by evicting clean pages. False if that is not
    /// enough. Never waits.
    pub(crate) fn make_room_for_block(&self) -> bool {
        self.make_room(self.block_size)
    }

    /// Evicts clean pages until there is room. False if that is not enough.
    fn make_room(&self, bytes: usize) -> bool {
        // The clock goes round twice, because the first time may only clear the marks of use.
        let mut steps = {
            let state = self.state.lock();
            if self.fits(&state, bytes) {
                return true;
            }
            2 * state.clock.len()
        };
        loop {
            let page = {
                let mut state = self.state.lock();
                let class = class_of(bytes);
                if self.fits(&state, bytes)
                    || state.free.get(class).is_some_and(|free| !free.is_empty())
                {
                    return true;
                }
                if drop_spare(&mut state) {
                    continue;
                }
                if steps == 0 {
                    return false;
                }
                steps -= 1;
                let Some(page) = state.clock.pop_front() else { return false };
                page
            };
            // Without the pool's lock, because a page takes its own.
            let taken = if page.was_used() { None } else { page.take_clean() };
            match taken {
                Some(buffer) => self.release(buffer),
                None if page.is_resident() => self.state.lock().clock.push_back(page),
                None => {}
            }
        }
    }

    /// A buffer of at least `bytes` bytes with arbitrary contents. Never waits.
    pub(crate) fn allocate(&self, bytes: usize, fill: Fill) -> AlignedBuffer {
        let capacity = PagePool::capacity(bytes);
        {
            let mut state = self.state.lock();
            state.buffers += 1;
            if fill == Fill::Parts && capacity > PARTS_BYTES_MIN {
                state.parts += 1;
                self.take(&mut state, PARTS_BYTES_MIN);
                drop(state);
                let mut buffer = AlignedBuffer::sparse(capacity);
                buffer.note_touched(PARTS_BYTES_MIN);
                return buffer;
            }
            state.used += capacity;
            if let Some(buffer) = state.free.get_mut(class_of(capacity)).and_then(Vec::pop) {
                state.spare -= capacity;
                return buffer;
            }
        }
        AlignedBuffer::zeroed(capacity)
    }

    /// Counts `bytes` of a buffer as in memory, if it did not before.
    pub(crate) fn note_touched(&self, buffer: &mut AlignedBuffer, bytes: usize) {
        let before = buffer.touched();
        buffer.note_touched(bytes);
        if buffer.touched() > before {
            let mut state = self.state.lock();
            self.take(&mut state, buffer.touched() - before);
            state.parts -= usize::from(!buffer.is_sparse());
        }
    }

    /// Counts memory that does not come from a spare buffer. Spare buffers are dropped if the
    /// budget is exceeded otherwise.
    fn take(&self, state: &mut PoolState, bytes: usize) {
        state.used += bytes;
        while !self.fits(state, 0) && drop_spare(state) {}
    }

    /// Whether a block may have a buffer for parts.
    pub(crate) fn has_parts(&self, block_size: usize) -> bool {
        block_size > PARTS_BYTES_MIN && self.state.lock().parts < PARTS_MAX
    }

    /// Whether so many blocks have such a buffer that those that are clean had better give theirs
    /// away.
    pub(crate) fn is_short_of_parts(&self) -> bool {
        self.state.lock().parts > PARTS_MAX / 2
    }

    /// Whether so many more bytes are within the budget.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.fits(&self.state.lock(), bytes)
    }

    /// Whether writers are so far ahead of the disks that blocks of which only parts were written
    /// had better gather more before they are sent.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.lock().dirty > self.dirty_max / 2
    }

    /// A spare buffer for a whole block, which has been touched, if there is one. Never waits.
    pub(crate) fn take_touched(&self) -> Option<AlignedBuffer> {
        self.reuse();
        let mut state = self.state.lock();
        let buffer = state.free.get_mut(class_of(self.block_size)).and_then(Vec::pop)?;
        state.spare -= buffer.len();
        state.used += buffer.len();
        state.buffers += 1;
        Some(buffer)
    }

    /// Notes that a stream has begun a block and will soon want another.
    pub(crate) fn note_stream(&self) {
        self.begun.notify_one();
    }

    /// Puts a page that has got a buffer into the clock.
    pub(crate) fn enter(&self, page: Arc<dyn Page>) {
        let mut state = self.state.lock();
        state.clock.push_back(page);
        // Pages that gave their buffers away by themselves are removed before there are many.
        if state.clock.len() > 2 * state.buffers + CLOCK_SLACK {
            state.clock.retain(|page| page.is_resident());
        }
    }

    /// Takes a buffer back and keeps it as a spare one, if there is room. A buffer for parts is not
    /// kept.
    pub(crate) fn release(&self, buffer: AlignedBuffer) {
        let capacity = buffer.len();
        let mut state = self.state.lock();
        state.used -= buffer.touched();
        state.buffers -= 1;
        state.parts -= usize::from(buffer.is_sparse());
        if !buffer.is_sparse() && self.fits(&state, capacity) {
            keep(&mut state, buffer);
        }
        self.changed.notify_all();
    }

    /// Counts bytes that have become dirty.
    pub(crate) fn add_dirty(&self, bytes: usize) {
        self.state.lock().dirty += bytes;
    }

    /// Counts dirty bytes that have become stable or were dropped.
    pub(crate) fn remove_dirty(&self, bytes: usize) {
        if bytes > 0 {
            let mut state = self.state.lock();
            state.dirty -= bytes;
            state.cleaned += 1;
            self.changed.notify_all();
        }
    }

    /// Waits while too many bytes are dirty. `kick` asks the threads that write behind to go on.
    /// Returns false if nothing became clean for `limit`.
    pub(crate) fn wait_for_clean(
        &self,
        waiters: &Waiters,
        limit: Duration,
        kick: &dyn Fn(),
    ) -> bool {
        let mut state = self.state.lock();
        if state.dirty <= self.dirty_max {
            return true;
        }
        let _waiting = Waiting::count(&self.waiting);
        let _wait = waiters.enter("dirty pages to be written", "");
        let mut seen = state.cleaned;
        let mut stood = Duration::ZERO;
        while state.dirty > self.dirty_max {
            drop(state);
            kick();
            state = self.state.lock();
            if state.dirty <= self.dirty_max {
                break;
            }
            self.changed.wait_for(&mut state, WAIT_STEP);
            stood = if state.cleaned == seen { stood + WAIT_STEP } else { Duration::ZERO };
            seen = state.cleaned;
            if stood >= limit {
                return false;
            }
        }
        true
    }

    /// Whether some operation waits for room or for clean pages.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// For listings.
    pub(crate) fn view(&self) -> PagePoolView {
        let state = self.state.lock();
        PagePoolView {
            budget: self.budget as u64,
            used: state.used as u64,
            spare: state.spare as u64,
            withheld: state.withheld as u64,
            first_touch: self.first_touch.bytes_per_second(),
            dirty: state.dirty as u64,
        }
    }

    /// Asserts what always holds.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let state = self.state.lock();
        let spare: usize = state.free.iter().flatten().map(|buffer| buffer.len()).sum();
        assert_eq!(spare, state.spare);
        for (class, buffers) in state.free.iter().enumerate() {
            assert!(buffers.iter().all(|buffer| buffer.len() == 1 << class && !buffer.is_sparse()));
        }
    }
}

/// While it lives, an operation counts as waiting.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn count(counter: &'a AtomicUsize) -> Waiting<'a> {
        counter.fetch_add(1, Ordering::AcqRel);
        Waiting(counter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn class_of(capacity: usize) -> usize {
    capacity.trailing_zeros() as usize
}

/// Keeps a buffer for reuse.
fn keep(state: &mut PoolState, buffer: AlignedBuffer) {
    let class = class_of(buffer.len());
    if state.free.len() <= class {
        state.free.resize_with(class + 1, Vec::new);
    }
    state.spare += buffer.len();
    state.free[class].push(buffer);
}

/// Gives one kept buffer to the system, the largest first.
fn drop_spare(state: &mut PoolState) -> bool {
    let largest = state.free.iter_mut().rev().find_map(Vec::pop);
    let found = largest.is_some();
    state.spare -= largest.map_or(0, |buffer| buffer.len());
    found
}

#[cfg(test)]
mod page_pool_model_test;
mod warm;
