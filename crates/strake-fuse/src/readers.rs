//! Who reads from `/dev/fuse`: few threads while requests are short, more as soon as some last.
//!
//! Every thread that sleeps in the kernel's queue costs a wake-up for each request, often on a
//! processor that sleeps as well; a thread that has answered and looks again finds the next request
//! in its own caches. So the threads beyond those wanted *park* here. What must not happen is that
//! requests wait because all who read are held up, by a disk for instance:
//!
//! - Whoever takes a request of a kind that *lasted* lately ([`Lasting`]) and leaves nobody reading
//!   wakes another; waking one for every request would cost as much as a short one does.
//! - Where requests come one at a time whoever is woken finds nothing, and takes the processor from
//!   the disk's thread, or from the program. So for some ([`Length::LongAlone`]) one is woken only
//!   where requests come side by side: `fsync` and the pieces of a listing, since a program waits
//!   for each before it asks for more; and what lasts because a processor is busy with it, in
//!   copies or in fresh memory, not because its thread is held up. That they come so shows in two
//!   ways: one is taken while another request is being answered; or a request is found waiting when
//!   its answer is ready (not when it was sent: who got it may have asked again already). It is
//!   believed for the next [`CROWD_MAX`] of them.
//! - For all else there is a *watch*: when nobody reads and nothing was taken for a [`TICK`], it
//!   wakes another.
//!
//! `state` counts the threads that read in its low bits and the requests taken above them, so that
//! taking a request is one atomic addition. A thread decides to park under the lock of `parked`,
//! and whoever wakes another takes that lock after having left `state`: one of the two sees the
//! other.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::process;
use strake_env::sync::{Condvar, Mutex};

/// How long all readers may be held up before the watch wakes another.
const TICK: Duration = Duration::from_millis(4);
/// Ticks without a need after which the watch sleeps until it is called.
const QUIET_TICKS_MAX: u32 = 50;

/// From here on a request lasted: what waking another thread for it costs, a few times over.
const LONG: Duration = Duration::from_micros(60);
/// A processor is hardly busy for so long with one request.
const BUSY_MAX: Duration = Duration::from_micros(500);
/// Short requests of a kind after one that lasted, before its kind is believed to be short.
const SHORT_ONES_MIN: u8 = 8;
/// Requests, one after the other, after which they are believed to come so.
const CROWD_MAX: u32 = 16;

const ONE_READER: u64 = 1;
const READERS_MASK: u64 = 0xffff;
const ONE_TAKEN: u64 = READERS_MASK + 1;

/// How long a request probably lasts, as others of its kind did lately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    /// Its thread is held up.
    Long,
    /// And another thread is of use only if other requests come meanwhile.
    LongAlone,
}

/// See the module.
pub(crate) struct Readers {
    /// Threads that may read when none of them is needed.
    wanted: u64,
    state: AtomicU64,
    /// Threads that answer a request.
    answering: AtomicU32,
    /// [`Length::LongAlone`] requests until they are believed to come one after the other. A hint:
    /// updates that cross each other may be lost.
    crowd: AtomicU32,
    parked: Mutex<Parked>,
    unparked: Condvar,
    /// Whether the watch looks at each tick; it is called by whoever sets this.
    watching: AtomicBool,
    called: Condvar,
}

#[derive(Default)]
struct Parked {
    count: usize,
    /// Of these, woken and not yet on their way.
    leaving: usize,
    ended: bool,
}

impl Readers {
    /// Nobody reads; `wanted` (at least 1) is how many do while requests are short.
    pub(crate) fn new(wanted: usize) -> Readers {
        Readers {
            wanted: wanted.max(1) as u64,
            state: AtomicU64::new(0),
            answering: AtomicU32::new(0),
            crowd: AtomicU32::new(0),
            parked: Mutex::default(),
            unparked: Condvar::new(),
            watching: AtomicBool::new(false),
            called: Condvar::new(),
        }
    }

    fn reading(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & READERS_MASK
    }

    /// Before a thread reads: parks it while enough others do. Where its last request was long, the
    /// next ones may be, and one more reads: else each of them had to wake another.
    pub(crate) fn enter(&self, last: Length) {
        let enough = self.wanted + u64::from(self.wants_another(last));
        if self.reading() >= enough {
            let mut parked = self.parked.lock();
            if self.reading() >= enough && !parked.ended {
                parked.count += 1;
                while parked.leaving == 0 && !parked.ended {
                    self.unparked.wait(&mut parked);
                }
                parked.leaving = parked.leaving.saturating_sub(1);
                parked.count -= 1;
            }
        }
        self.state.fetch_add(ONE_READER, Ordering::SeqCst);
    }

    /// Whether somebody should read beside whoever answers such a request.
    fn wants_another(&self, length: Length) -> bool {
        match length {
            Length::Short => false,
            Length::Long => true,
            Length::LongAlone => self.crowd.load(Ordering::Relaxed) > 0,
        }
    }

    /// After a thread has read a request, before it answers.
    pub(crate) fn take(&self, length: Length) {
        if self.answering.fetch_add(1, Ordering::Relaxed) > 0 {
            self.crowd.store(CROWD_MAX, Ordering::Relaxed);
        }
        let before = self.state.fetch_add(ONE_TAKEN - ONE_READER, Ordering::SeqCst);
        if before & READERS_MASK > ONE_READER {
            return;
        }
        if self.wants_another(length) {
            if length == Length::LongAlone {
                let left = self.crowd.load(Ordering::Relaxed);
                self.crowd.store(left.saturating_sub(1), Ordering::Relaxed);
            }
            self.wake_one();
        } else if !self.watching.swap(true, Ordering::SeqCst) {
            // The watch looks at `watching` under this lock before it sleeps.
            drop(self.parked.lock());
            self.called.notify_one();
        }
    }

    /// When the answer to a request is ready and not yet sent. `is_waiting` is asked whether
    /// another request came, where that tells something and nobody read meanwhile.
    pub(crate) fn answered(&self, length: Length, is_waiting: impl FnOnce() -> bool) {
        if length == Length::LongAlone && self.reading() == 0 && is_waiting() {
            self.crowd.store(CROWD_MAX, Ordering::Relaxed);
        }
        self.answering.fetch_sub(1, Ordering::Relaxed);
    }

    fn wake_one(&self) {
        let mut parked = self.parked.lock();
        if parked.count > parked.leaving {
            parked.leaving += 1;
            self.unparked.notify_one();
        }
    }

    /// The connection is gone: nobody parks any more, and the watch ends.
    pub(crate) fn end(&self) {
        self.parked.lock().ended = true;
        self.unparked.notify_all();
        self.called.notify_all();
    }

    /// One look of the watch: wakes a reader if nobody reads and nothing was taken since the look
    /// that returned `seen`.
    fn look(&self, seen: u64) -> u64 {
        let state = self.state.load(Ordering::SeqCst);
        if state & READERS_MASK == 0 && state == seen {
            self.wake_one();
        }
        state
    }

    /// The watch; returns when the connection has ended.
    pub(crate) fn watch(&self) {
        let mut seen = u64::MAX;
        let mut quiet = 0;
        let mut parked = self.parked.lock();
        while !parked.ended {
            if quiet >= QUIET_TICKS_MAX {
                self.watching.store(false, Ordering::SeqCst);
                // Whoever left nobody reading before that line did not call.
                if self.reading() > 0 {
                    while !self.watching.load(Ordering::SeqCst) && !parked.ended {
                        self.called.wait(&mut parked);
                    }
                }
                self.watching.store(true, Ordering::SeqCst);
                quiet = 0;
            }
            self.called.wait_for(&mut parked, TICK);
            let now = strake_env::sync::MutexGuard::unlocked(&mut parked, || self.look(seen));
            quiet = if now & READERS_MASK > 0 { quiet + 1 } else { 0 };
            seen = now;
        }
    }
}

/// Whether requests of one kind lasted lately, and whether whoever answered them was held up. A
/// hint: updates that cross each other may be lost.
#[derive(Default)]
pub(crate) struct Lasting {
    /// Short requests until it is believed to be short again.
    left: AtomicU8,
    /// Requests that held nobody up until it is believed that none does.
    held_up: AtomicU8,
}

impl Lasting {
    /// How long the next one probably lasts; `alone` if who asks for it asks for nothing else.
    pub(crate) fn expected(&self, alone: bool) -> Length {
        if self.left.load(Ordering::Relaxed) == 0 {
            Length::Short
        } else if alone || self.held_up.load(Ordering::Relaxed) == 0 {
            Length::LongAlone
        } else {
            Length::Long
        }
    }

    /// Runs `answer`, which tells how long it took as well, and notes that.
    ///
    /// Of a kind that lasts it is noted too how much of the time a processor had, which takes two
    /// system calls.
    pub(crate) fn note<T>(&self, answer: impl FnOnce() -> (T, Duration)) -> T {
        let is_lasting = self.left.load(Ordering::Relaxed) > 0;
        let start = is_lasting.then(process::thread_time);
        let (value, took) = answer();
        self.took(took, || start.map(|start| process::thread_time().saturating_sub(start)));
        value
    }

    /// One took so long; `busy` tells how much of that a processor had, if that is known.
    fn took(&self, took: Duration, busy: impl FnOnce() -> Option<Duration>) {
        let is_long = took >= LONG;
        count_down(&self.left, is_long);
        let is_held_up = is_long
            && match busy() {
                Some(busy) => took.saturating_sub(busy) >= LONG,
                None => took >= BUSY_MAX,
            };
        count_down(&self.held_up, is_held_up);
    }
}

/// Begins anew with [`SHORT_ONES_MIN`], or goes one step towards 0.
fn count_down(counter: &AtomicU8, anew: bool) {
    let left = counter.load(Ordering::Relaxed);
    if anew {
        counter.store(SHORT_ONES_MIN, Ordering::Relaxed);
    } else if left > 0 {
        counter.store(left - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use strake_env::thread::JoinHandle;
    use strake_env::{Clock, RealClock};

    /// A thread that reads until the end; `entered` counts how often one got as far as reading.
    fn reader(readers: &Arc<Readers>, entered: &Arc<AtomicUsize>) -> JoinHandle<()> {
        let (readers, entered) = (Arc::clone(readers), Arc::clone(entered));
        strake_env::thread::spawn(move || {
            readers.enter(Length::Short);
            entered.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn wait_until(condition: impl Fn() -> bool) {
        while !condition() {
            strake_env::thread::yield_now();
        }
    }

    #[test]
    fn threads_beyond_those_wanted_park_until_all_others_are_held_up() {
        let readers = Arc::new(Readers::new(1));
        let entered = Arc::new(AtomicUsize::new(0));
        readers.enter(Length::Short);
        let threads = [reader(&readers, &entered), reader(&readers, &entered)];
        wait_until(|| readers.parked.lock().count == 2);
        assert_eq!(entered.load(Ordering::SeqCst), 0);
        readers.take(Length::Long);
        wait_until(|| entered.load(Ordering::SeqCst) == 1);
        assert_eq!(readers.parked.lock().count, 1, "one is enough");
        // It reads, so the first parks; with what lasted it would not.
        readers.enter(Length::Long);
        assert_eq!(readers.reading(), 2);
        readers.take(Length::Long);
        assert_eq!(readers.parked.lock().count, 1, "another still reads");
        readers.end();
        for thread in threads {
            thread.join().expect("ended");
        }
    }

    #[test]
    fn the_watch_wakes_another_when_a_short_request_lasts() {
        let readers = Arc::new(Readers::new(1));
        let entered = Arc::new(AtomicUsize::new(0));
        let watch = strake_env::thread::spawn({
            let readers = Arc::clone(&readers);
            move || readers.watch()
        });
        readers.enter(Length::Short);
        let thread = reader(&readers, &entered);
        wait_until(|| readers.parked.lock().count == 1);
        readers.take(Length::Short);
        wait_until(|| entered.load(Ordering::SeqCst) == 1);
        readers.end();
        thread.join().expect("ended");
        watch.join().expect("ended");
    }

    #[test]
    fn a_look_wakes_nobody_while_requests_are_taken_or_read() {
        let readers = Readers::new(1);
        readers.parked.lock().count = 1;
        readers.enter(Length::Short);
        let seen = readers.look(readers.look(0));
        assert_eq!(readers.parked.lock().leaving, 0, "one reads");
        readers.take(Length::Short);
        let seen = readers.look(seen);
        assert_eq!(readers.parked.lock().leaving, 0, "it was taken since the last look");
        readers.look(seen);
        assert_eq!(readers.parked.lock().leaving, 1);
        readers.look(seen);
        assert_eq!(readers.parked.lock().leaving, 1, "who is woken already counts");
    }

    #[test]
    fn nobody_is_woken_for_who_waits_for_each_answer() {
        let readers = Readers::new(1);
        readers.parked.lock().count = 1;
        let one = |waits: bool| {
            readers.enter(Length::LongAlone);
            readers.take(Length::LongAlone);
            readers.answered(Length::LongAlone, || waits);
            std::mem::take(&mut readers.parked.lock().leaving)
        };
        assert_eq!(one(false), 0);
        assert_eq!(one(true), 0, "another came, as is known only now");
        for left in (0..CROWD_MAX).rev() {
            assert_eq!(one(false), 1, "that is believed {left} times more");
        }
        assert_eq!(one(false), 0);
        // One is taken while another is being answered.
        readers.enter(Length::LongAlone);
        readers.take(Length::LongAlone);
        readers.enter(Length::LongAlone);
        readers.take(Length::LongAlone);
        assert_eq!(std::mem::take(&mut readers.parked.lock().leaving), 1);
        readers.answered(Length::LongAlone, || false);
        readers.answered(Length::LongAlone, || false);
        assert_eq!(one(false), 1);
    }

    #[test]
    fn whether_another_waits_is_asked_after_what_is_awaited_while_nobody_read() {
        let readers = Readers::new(2);
        let unasked = || unreachable!("somebody reads, or there are others anyway");
        readers.enter(Length::Short);
        readers.take(Length::Short);
        readers.answered(Length::Long, unasked);
        readers.enter(Length::Short);
        readers.enter(Length::Short);
        readers.take(Length::LongAlone);
        readers.answered(Length::LongAlone, unasked);
        assert!(!readers.wants_another(Length::LongAlone));
        readers.take(Length::LongAlone);
        readers.answered(Length::LongAlone, || true);
        assert!(readers.wants_another(Length::LongAlone));
    }

    /// The lengths expected of a kind that comes side by side, and of one that comes alone.
    fn expected(kind: &Lasting) -> (Length, Length) {
        (kind.expected(false), kind.expected(true))
    }

    #[test]
    fn a_kind_lasts_until_enough_short_ones() {
        let kind = Lasting::default();
        assert!(expected(&kind) == (Length::Short, Length::Short));
        kind.took(BUSY_MAX, || None);
        for _ in 0..SHORT_ONES_MIN {
            assert!(expected(&kind) == (Length::Long, Length::LongAlone));
            kind.took(LONG / 2, || unreachable!("it matters for long ones alone"));
        }
        assert!(expected(&kind) == (Length::Short, Length::Short));
    }

    #[test]
    fn only_what_holds_its_thread_up_wants_another_in_any_case() {
        let kind = Lasting::default();
        // A processor may have been busy with it, until more is known.
        kind.took(LONG, || None);
        assert!(expected(&kind) == (Length::LongAlone, Length::LongAlone));
        kind.took(3 * LONG, || Some(2 * LONG));
        assert!(expected(&kind) == (Length::Long, Length::LongAlone));
        for _ in 0..SHORT_ONES_MIN {
            assert!(kind.expected(false) == Length::Long);
            kind.took(2 * BUSY_MAX, || Some(2 * BUSY_MAX - LONG / 2));
        }
        assert!(expected(&kind) == (Length::LongAlone, Length::LongAlone));
    }

    #[test]
    fn time_on_a_processor_is_told_from_other_time() {
        let kind = Lasting::default();
        let one = |work: &dyn Fn()| {
            let start = RealClock.monotonic();
            kind.note(|| (work(), RealClock.monotonic() - start));
        };
        let (_sender, never) = strake_env::channel::channel::<()>();
        let wait = |limit| assert!(never.recv_timeout(limit).is_err());
        one(&|| wait(BUSY_MAX));
        assert!(kind.expected(false) == Length::Long);
        let busy = || {
            let start = process::thread_time();
            while process::thread_time() - start < LONG {}
        };
        // Others may take the processor from it now and then, but not each time.
        let is_believed = (0..10_000).any(|_| {
            one(&busy);
            kind.expected(false) == Length::LongAlone
        });
        assert!(is_believed, "time on a processor does not hold up");
        one(&|| wait(LONG));
        assert!(kind.expected(false) == Length::Long);
    }
}
