//! What a thread waits for while it answers a request.
//!
//! A thread that answers requests begins an [`Answer`] for each. Until that ends, every wait of the
//! thread ([`wait`]) adds its time to the answer, by reason. A wait within a wait counts for the
//! inner one alone, so the times of an answer's waits add up to no more than the answer took. What
//! is left is the thread's own work.
//!
//! Threads that answer no request note nothing, and their waits cost two looks at memory of their
//! own.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

/// An answer keeps the times of so many reasons. Waits for further ones count as [`OTHER`].
const REASONS_MAX: usize = 8;
/// The reason of waits for which there was no place.
pub const OTHER: &str = "other waits";
/// The owner of a job waits for parts of it that other threads do.
pub const PARTS: &str = "other parts of a job";

/// The waits of one answer: the time of each reason, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    list: [(&'static str, u64); REASONS_MAX],
    count: usize,
}

impl Waits {
    /// No waits.
    pub const NONE: &Waits = &Waits { list: [("", 0); REASONS_MAX], count: 0 };

    /// Adds time to a reason.
    pub fn add(&mut self, reason: &'static str, nanos: u64) {
        let known = self.list[..self.count].iter_mut().find(|(of, _)| *of == reason);
        if let Some((_, sum)) = known {
            *sum += nanos;
        } else if self.count < REASONS_MAX {
            self.list[self.count] = (reason, nanos);
            self.count += 1;
        } else {
            let last = &mut self.list[REASONS_MAX - 1];
            *last = (OTHER, last.1 + nanos);
        }
    }

    /// Each reason with its time.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.list[..self.count].iter().copied()
    }
}

crate::local! {
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
    /// The time of the waits that have ended within the current one.
    static INNER: Cell<u64> = const { Cell::new(0) };
    /// Whether `WAITS` has anything of this answer. Most requests wait for nothing.
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
    static WAITS: Cell<Waits> = const { Cell::new(*Waits::NONE) };
}

/// The answer to a request, on the thread that gives it.
pub struct Answer(PhantomData<*const ()>);

impl Answer {
    /// This thread begins to answer a request.
    #[inline]
    pub fn begin() -> Answer {
        ANSWERING.set(true);
        INNER.set(0);
        HAS_WAITED.set(false);
        Answer(PhantomData)
    }

    /// The request is answered. `note` gets what the thread has waited for.
    #[inline]
    pub fn end<T>(self, note: impl FnOnce(&Waits) -> T) -> T {
        ANSWERING.set(false);
        if HAS_WAITED.get() { note(&WAITS.get()) } else { note(Waits::NONE) }
    }
}

/// A wait that goes on. Dropping it ends the wait.
#[must_use = "the wait ends when this is dropped"]
pub struct Span {
    reason: &'static str,
    /// When it began, and the time of the waits that had ended within the outer one. `None` on a
    /// thread that answers nothing.
    began: Option<(u64, u64)>,
    of_this_thread: PhantomData<*const ()>,
}

/// This thread begins to wait.
#[inline]
pub fn wait(reason: &'static str) -> Span {
    let began = ANSWERING.get().then(|| (now(), INNER.replace(0)));
    Span { reason, began, of_this_thread: PhantomData }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        let Some((since, before)) = self.began.filter(|_| ANSWERING.get()) else { return };
        let took = now().saturating_sub(since);
        let mut waits = if HAS_WAITED.replace(true) { WAITS.get() } else { *Waits::NONE };
        waits.add(self.reason, took.saturating_sub(INNER.get()));
        WAITS.set(waits);
        INNER.set(before + took);
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets at least a millisecond pass.
    fn spend() -> u64 {
        let since = now();
        while now() - since < 1_000_000 {
            std::hint::spin_loop();
        }
        now() - since
    }

    #[test]
    fn a_wait_counts_without_the_waits_within_it() {
        let answer = Answer::begin();
        let outer = wait("outer");
        let mut of_outer = spend();
        let inner = wait("inner");
        let of_inner = spend();
        drop(inner);
        of_outer += spend();
        drop(outer);
        let again = wait("inner");
        let of_inner = of_inner + spend();
        drop(again);
        let waits: Vec<_> = answer.end(|waits| waits.iter().collect());
        let [("inner", inner), ("outer", outer)] = waits[..] else { panic!("{waits:?}") };
        assert!(inner >= of_inner && outer >= of_outer, "{waits:?}");
        // Had the inner wait been counted twice, this would be at least a millisecond more.
        assert!(inner < of_inner + 900_000 && outer < of_outer + 900_000, "{waits:?}");
    }

    #[test]
    fn what_a_thread_waits_for_without_a_request_is_nobodys() {
        drop(wait("before"));
        let answer = Answer::begin();
        assert_eq!(answer.end(|waits| waits.iter().count()), 0);
        let late = wait("late");
        let answer = Answer::begin();
        drop(late);
        let count = answer.end(|waits| waits.iter().count());
        assert_eq!(count, 0, "it began before the request");
    }

    #[test]
    fn more_reasons_than_have_a_place_count_together() {
        let names = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
        let mut waits = *Waits::NONE;
        (0..3).for_each(|_| names.iter().for_each(|name| waits.add(name, 10)));
        assert_eq!(waits.iter().count(), REASONS_MAX);
        assert_eq!(waits.iter().map(|(_, nanos)| nanos).sum::<u64>(), 300);
        assert_eq!(waits.iter().last(), Some((OTHER, 90)));
    }
}
