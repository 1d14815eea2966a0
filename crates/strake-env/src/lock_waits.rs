//! The waits for watched locks ([`crate::watched`]): which thread waits, for which lock, and which
//! threads hold that lock, each with its time. `strake diag waiters` shows them.
//!
//! Each thread has a row of its own: the locks that it holds, and the lock that it waits for. Only
//! the thread changes its row, so taking a lock that is free touches no memory that other threads
//! change. [`lock_waits`] reads all rows and matches waits with holders by the lock's address.
//! Nothing is stored in a lock.
//!
//! - A row names a lock only while the thread holds it: the entry is made after the lock is taken,
//!   and erased before it is released.
//! - The thread that waits keeps the lock alive, so an address means one lock only.
//! - A wait that is listed went on while the holders were read (see [`lock_waits`]).
//! - A thread's row goes with the thread.

use crate::answering;
use crate::thread::{self, Thread};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A thread's row names so many locks. A thread that holds more is not named as their holder.
const HOLDS_MAX: usize = 16;

/// A thread that waits for a lock.
#[derive(Clone, Debug)]
pub struct LockWait {
    /// The lock's name.
    pub name: &'static str,
    /// How the thread wants it, "shared" or "exclusive". Empty where there is only one way.
    pub mode: &'static str,
    /// The thread.
    pub thread: Thread,
    /// The kernel's number of it ([`thread::number`]).
    pub number: u32,
    /// How long it has waited.
    pub waited: Duration,
    /// The threads that hold the lock, the longest hold first. It is empty while the lock passes
    /// from one thread to the next.
    pub holders: Vec<LockHolder>,
}

/// A thread that holds a lock.
#[derive(Clone, Debug)]
pub struct LockHolder {
    /// The thread.
    pub thread: Thread,
    /// The kernel's number of it.
    pub number: u32,
    /// How long it has held the lock.
    pub held: Duration,
}

/// Every thread that has ever taken a watched lock and has not ended. The lock is a plain one also
/// in a simulation: nothing that the scheduler decides happens under it.
static ROWS: parking_lot::Mutex<Vec<Arc<Row>>> = parking_lot::Mutex::new(Vec::new());

crate::local! {
    static OWN: Own = Own::new();
}

/// The locks of one thread; see the module. A row has cache lines of its own.
#[repr(align(128))]
struct Row {
    thread: Thread,
    number: u32,
    waiting: parking_lot::Mutex<Option<Waiting>>,
    holds: [Hold; HOLDS_MAX],
}

struct Waiting {
    lock: usize,
    name: &'static str,
    mode: &'static str,
    since: Duration,
}

/// A lock that is held.
#[derive(Default)]
struct Hold {
    /// The lock's address; 0 if the entry is free.
    lock: AtomicUsize,
    /// In nanoseconds. It is set before `lock`.
    since: AtomicU64,
}

impl Hold {
    /// Since when the lock is held here, if it is.
    fn since(&self, lock: usize) -> Option<Duration> {
        let is_held = || self.lock.load(Ordering::Acquire) == lock;
        if !is_held() {
            return None;
        }
        let since = Duration::from_nanos(self.since.load(Ordering::Acquire));
        // The time belongs to another hold if the entry was erased meanwhile.
        is_held().then_some(since)
    }
}

/// A thread's own handle of its row.
struct Own {
    row: Arc<Row>,
    /// The entries of `holds` that are taken, as bits.
    taken: Cell<u32>,
}

impl Own {
    fn new() -> Own {
        let row = Arc::new(Row {
            thread: thread::current(),
            number: thread::number(),
            waiting: parking_lot::Mutex::new(None),
            holds: Default::default(),
        });
        ROWS.lock().push(Arc::clone(&row));
        Own { row, taken: Cell::new(0) }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut rows = ROWS.lock();
        let index = rows.iter().position(|row| Arc::ptr_eq(row, &self.row));
        rows.swap_remove(index.expect("invariant: a row is listed until its thread ends"));
    }
}

/// The time for holds and waits. The coarse clock moves every few milliseconds, and costs a quarter
/// of the exact one.
fn now() -> Duration {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(now) = crate::simulation::now() {
        return now;
    }
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Notes that this thread holds a lock, until it is dropped. It is dropped on the thread that made
/// it, because the guards of locks cannot move to another one.
pub(crate) struct Held {
    /// `None` if the row was full or gone.
    index: Option<u8>,
}

impl Held {
    /// The lock at this address was taken.
    #[inline]
    pub(crate) fn new(lock: usize) -> Held {
        let index = OWN.try_with(|own| {
            let taken = own.taken.get();
            let index = taken.trailing_ones();
            let hold = own.row.holds.get(index as usize)?;
            hold.since.store(now().as_nanos() as u64, Ordering::Release);
            hold.lock.store(lock, Ordering::Release);
            own.taken.set(taken | 1 << index);
            Some(index as u8)
        });
        Held { index: index.ok().flatten() }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        // A thread that ends has no row any more.
        let _ = OWN.try_with(|own| {
            own.row.holds[usize::from(index)].lock.store(0, Ordering::Release);
            own.taken.set(own.taken.get() & !(1 << index));
        });
    }
}

/// Notes that this thread waits for a lock, until it is dropped.
pub(crate) struct Wait {
    /// The time of the wait counts for the request that this thread answers.
    _span: answering::Span,
}

impl Wait {
    /// The lock at this address is not free.
    #[cold]
    pub(crate) fn new(lock: usize, name: &'static str, mode: &'static str) -> Wait {
        let waiting = Waiting { lock, name, mode, since: now() };
        let _ = OWN.try_with(|own| *own.row.waiting.lock() = Some(waiting));
        Wait { _span: answering::wait(name) }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let _ = OWN.try_with(|own| *own.row.waiting.lock() = None);
    }
}

/// All waits for watched locks in this process, the longest first.
///
/// No listed wait ends while this looks for the holders: a thread that got its lock waits for a
/// moment before it goes on. So each holder that is named held the lock while the other waited.
pub fn lock_waits() -> Vec<LockWait> {
    let now = now();
    let rows = ROWS.lock();
    let waiting: Vec<_> = rows.iter().map(|row| (row, row.waiting.lock())).collect();
    let waiting = waiting.iter().filter_map(|(row, waiting)| Some((row, waiting.as_ref()?)));
    let mut waits: Vec<LockWait> = waiting
        .map(|(row, waiting)| LockWait {
            name: waiting.name,
            mode: waiting.mode,
            thread: row.thread.clone(),
            number: row.number,
            waited: now.saturating_sub(waiting.since),
            holders: holders(&rows, waiting.lock, now),
        })
        .collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.waited));
    waits
}

/// The threads that hold this lock. A thread that holds it twice is named once.
fn holders(rows: &[Arc<Row>], lock: usize, now: Duration) -> Vec<LockHolder> {
    let held = |row: &Arc<Row>| {
        let since = row.holds.iter().filter_map(|hold| hold.since(lock)).min()?;
        let (thread, number) = (row.thread.clone(), row.number);
        Some(LockHolder { thread, number, held: now.saturating_sub(since) })
    };
    let mut holders: Vec<LockHolder> = rows.iter().filter_map(held).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held));
    holders
}

#[cfg(test)]
#[path = "lock_waits_test.rs"]
mod lock_waits_test;
