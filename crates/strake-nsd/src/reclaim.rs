//! Decides when freed units may be used again. Two things must have happened. The journal entry
//! that freed the units must be durable, because before that a crash would bring the old record
//! back. And every read that may have found the units in the index must have ended. So a read needs
//! no lock and no second look.
//!
//! Freed units are *pending* until their entry is durable. Then they are in *limbo* until the
//! readers are gone. Readers are counted by epoch, in two counters. The epoch advances from e to
//! e+1 only when no reader of e−1 is left. So no reader can see units that entered limbo in epoch e
//! once the epoch is e+2. Units that cannot be released yet are released at a later call. Only a
//! writer that finds the disk full waits for readers.

use crate::extent::{Extent, units_of};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_store::Lsn;

#[derive(Default)]
struct Queues {
    /// Units that wait for their entry, by the entry that freed them, ascending.
    pending: VecDeque<(Lsn, Vec<Extent>)>,
    /// Units that wait for readers, by the epoch in which they came, ascending.
    limbo: VecDeque<(u64, Vec<Extent>)>,
}

/// Freed units that may not be used yet.
#[derive(Default)]
pub struct Reclaim {
    epoch: AtomicU64,
    readers: [AtomicU64; 2],
    queues: Mutex<Queues>,
    /// Units that were freed and have not been given back by [`Reclaim::given_back`] yet.
    units: AtomicU64,
    /// The number of threads that wait for readers to end.
    waiting: AtomicU64,
    reader_gone: Condvar,
}

/// Protects units from reuse while it lives: all units that the index named when it was made, or
/// later.
pub struct ReadGuard<'a> {
    reclaim: &'a Reclaim,
    readers: &'a AtomicU64,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.readers.fetch_sub(1, SeqCst);
        if self.reclaim.waiting.load(SeqCst) > 0 {
            // A thread that counted this reader holds the lock until it waits.
            drop(self.reclaim.queues.lock());
            self.reclaim.reader_gone.notify_all();
        }
    }
}

impl Reclaim {
    /// Begins a read. Call this before the index is looked up.
    pub fn read(&self) -> ReadGuard<'_> {
        loop {
            let epoch = self.epoch.load(SeqCst);
            let readers = &self.readers[(epoch % 2) as usize];
            readers.fetch_add(1, SeqCst);
            let guard = ReadGuard { reclaim: self, readers };
            // If the epoch has passed meanwhile, the reader would not be noticed in time.
            if self.epoch.load(SeqCst) == epoch {
                return guard;
            }
        }
    }

    /// Notes that the entry `lsn` frees `extents`. Entries come in order.
    pub fn freed(&self, lsn: Lsn, extents: Vec<Extent>) {
        if extents.is_empty() {
            return;
        }
        self.units.fetch_add(units_of(&extents), SeqCst);
        let mut queues = self.queues.lock();
        assert!(queues.pending.back().is_none_or(|(last, _)| *last <= lsn), "entries in order");
        queues.pending.push_back((lsn, extents));
    }

    /// Takes out the units that nobody can need any more, given that entries up to `durable` are
    /// durable. [`Reclaim::units`] counts the units until [`Reclaim::given_back`].
    pub fn release(&self, durable: Lsn) -> Vec<Extent> {
        let mut queues = self.queues.lock();
        let epoch = self.epoch.load(SeqCst);
        while queues.pending.front().is_some_and(|(lsn, _)| *lsn <= durable) {
            let (_, extents) = queues.pending.pop_front().expect("invariant: just seen");
            queues.limbo.push_back((epoch, extents));
        }
        // If nobody reads, two steps take even the newest units out of limbo at once.
        let _ = !queues.limbo.is_empty() && self.advance(&queues) && self.advance(&queues);
        let epoch = self.epoch.load(SeqCst);
        let mut released = Vec::new();
        while queues.limbo.front().is_some_and(|(came, _)| came + 2 <= epoch) {
            let (_, extents) = queues.limbo.pop_front().expect("invariant: just seen");
            released.extend(extents);
        }
        released
    }

    /// Begins the next epoch, if no reader of the last one is left. Every step is made under the
    /// lock of the queues.
    fn advance(&self, _locked: &Queues) -> bool {
        let epoch = self.epoch.load(SeqCst);
        let is_free = self.readers[((epoch + 1) % 2) as usize].load(SeqCst) == 0;
        if is_free {
            self.epoch.store(epoch + 1, SeqCst);
        }
        is_free
    }

    /// Waits until every read that has begun by now has ended. Returns false if no reader ends
    /// within `limit`.
    pub fn outlive_readers(&self, limit: Duration) -> bool {
        let mut queues = self.queues.lock();
        let came = self.epoch.load(SeqCst);
        self.waiting.fetch_add(1, SeqCst);
        let outlived = loop {
            while self.epoch.load(SeqCst) < came + 2 && self.advance(&queues) {}
            if self.epoch.load(SeqCst) >= came + 2 {
                break true;
            }
            if self.reader_gone.wait_for(&mut queues, limit).timed_out() {
                break false;
            }
        };
        self.waiting.fetch_sub(1, SeqCst);
        outlived
    }

    /// Notes that released units can be allocated again.
    pub fn given_back(&self, extents: &[Extent]) {
        self.units.fetch_sub(units_of(extents), SeqCst);
    }

    /// Waits until some reader ends, for at most `limit`. Returns false if none did. Returns at
    /// once if no units wait for readers.
    pub fn wait_for_a_reader(&self, limit: Duration) -> bool {
        let mut queues = self.queues.lock();
        self.waiting.fetch_add(1, SeqCst);
        let reading = self.readers.iter().any(|readers| readers.load(SeqCst) > 0);
        let ended = queues.limbo.is_empty()
            || !reading
            || !self.reader_gone.wait_for(&mut queues, limit).timed_out();
        self.waiting.fetch_sub(1, SeqCst);
        ended
    }

    /// Units freed but not yet handed back.
    pub fn units(&self) -> u64 {
        self.units.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u64; 0] = [];

    fn released(reclaim: &Reclaim, durable: u64) -> Vec<u64> {
        let released = reclaim.release(Lsn(durable));
        reclaim.given_back(&released);
        released.iter().map(|extent| extent.start).collect()
    }

    fn unit(start: u64) -> Vec<Extent> {
        vec![Extent { start, count: 1 }]
    }

    #[test]
    fn units_wait_for_their_entry() {
        let reclaim = Reclaim::default();
        reclaim.freed(Lsn(5), unit(1));
        reclaim.freed(Lsn(6), unit(2));
        assert_eq!(released(&reclaim, 4), NOTHING);
        assert_eq!(released(&reclaim, 5), [1]);
        assert_eq!(reclaim.units(), 1);
        assert_eq!(released(&reclaim, 9), [2]);
        assert_eq!(reclaim.units(), 0);
    }

    #[test]
    fn units_wait_for_readers_that_came_before_but_not_for_later_ones() {
        let reclaim = Reclaim::default();
        let early = reclaim.read();
        reclaim.freed(Lsn(1), unit(1));
        assert_eq!(released(&reclaim, 1), NOTHING);
        let late = reclaim.read();
        assert_eq!(released(&reclaim, 1), NOTHING);
        drop(early);
        assert_eq!(released(&reclaim, 1), [1]);
        reclaim.freed(Lsn(2), unit(2));
        assert_eq!(released(&reclaim, 2), NOTHING);
        drop(late);
        assert_eq!(released(&reclaim, 2), [2]);
    }

    #[test]
    fn whoever_waits_for_readers_is_woken_by_the_last() {
        let reclaim = Reclaim::default();
        let limit = Duration::from_secs(60);
        assert!(reclaim.wait_for_a_reader(limit), "nothing to wait for");
        let guard = reclaim.read();
        reclaim.freed(Lsn(1), unit(1));
        assert_eq!(released(&reclaim, 1), NOTHING);
        assert!(!reclaim.wait_for_a_reader(Duration::from_millis(1)), "the reader reads on");
        strake_env::thread::scope(|scope| {
            let waiter = scope.spawn(|| reclaim.wait_for_a_reader(limit));
            drop(guard);
            assert!(waiter.join().expect("no panic"));
        });
        assert_eq!(released(&reclaim, 1), [1]);
    }

    #[test]
    fn readers_that_came_before_are_outlived() {
        let reclaim = Reclaim::default();
        let limit = Duration::from_secs(60);
        assert!(reclaim.outlive_readers(limit), "nobody reads");
        let early = reclaim.read();
        assert!(!reclaim.outlive_readers(Duration::from_millis(1)), "the reader reads on");
        strake_env::thread::scope(|scope| {
            let waiter = scope.spawn(|| reclaim.outlive_readers(limit));
            while reclaim.waiting.load(SeqCst) == 0 {
                strake_env::thread::yield_now();
            }
            drop(early);
            assert!(waiter.join().expect("no panic"));
        });
    }

    #[test]
    fn random_readers_never_see_a_unit_reused() {
        for seed in strake_env::rng::test_seeds(0, 50) {
            println!("seed {seed}");
            let mut rng = strake_env::Rng::new(seed);
            let reclaim = Reclaim::default();
            // A reader may see every unit that was not yet freed when it began.
            let mut readers: Vec<(ReadGuard<'_>, u64)> = Vec::new();
            let mut next = 0;
            let mut reused = 0;
            for _ in 0..500 {
                match rng.below(4) {
                    0 => readers.push((reclaim.read(), next)),
                    1 if !readers.is_empty() => {
                        readers.swap_remove(rng.index(readers.len()));
                    }
                    2 => {
                        next += 1;
                        reclaim.freed(Lsn(next), unit(next));
                    }
                    _ => {
                        for start in released(&reclaim, next.saturating_sub(rng.below(3))) {
                            assert!(readers.iter().all(|(_, seen)| start <= *seen));
                            reused += 1;
                        }
                    }
                }
            }
            readers.clear();
            reused += released(&reclaim, next).len() as u64;
            assert_eq!((reused, reclaim.units()), (next, 0), "everything is reused in the end");
        }
    }
}
