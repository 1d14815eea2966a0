//! Decides how many threads read from `/dev/fuse`: few while requests are short, more as soon as
//! some last.
//!
//! If a thread sleeps in the kernel's queue, each request costs a wake-up, often of a processor
//! that sleeps as well. A thread that has answered and looks again has the next request in warm
//! caches. So threads beyond the wanted number *park* here. But requests must not wait because all
//! readers are held up, for example by a disk. Three rules prevent that:
//!
//! - **A kind that lasts.** A thread may take a request of a kind that *lasted* lately
//!   ([`Lasting`]) and leave no reader behind. Then it wakes another thread. To wake one for every
//!   request would cost as much as a short request does.
//! - **A kind that may come alone** ([`Length::LongAlone`]). If requests come one at a time, a
//!   woken thread finds nothing to do, and takes the processor from the disk's thread or from the
//!   program. So for two kinds of request a thread is woken only if requests come side by side. The
//!   first kind is `fsync` and the pieces of a listing, because a program waits for each before it
//!   asks for more. The second kind lasts because a processor is busy with it (copies, fresh
//!   memory), and not because its thread is held up.
//!
//!   Two observations show that requests come side by side. A request is taken while another is
//!   being answered. Or a request waits at the moment when an answer is ready and not yet sent;
//!   after it is sent, the program may have asked again already. Each observation counts for the
//!   next [`CROWD_MAX`] requests.
//! - **All other kinds.** A *watch* wakes a thread if nobody reads and nothing was taken for a
//!   [`TICK`].
//!
//! `state` counts the threads that read in its low bits, and the requests taken above them. So
//! taking a request is one atomic addition. A thread decides to park under the lock of `parked`. A
//! thread that wakes another changes `state` first and takes that lock afterwards. So one of the
//! two always sees the other.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::process;
use strake_env::sync::{Condvar, Mutex};

/// How long all readers may be held up before the watch wakes another thread.
const TICK: Duration = Duration::from_millis(4);
/// After this many ticks in which somebody read, the watch sleeps until it is called.
const QUIET_TICKS_MAX: u32 = 50;

/// A request that takes this long *lasts*. It is a few times what waking another thread costs.
const LONG: Duration = Duration::from_micros(60);
/// If a request takes this long, its thread was probably held up and not busy.
const BUSY_MAX: Duration = Duration::from_micros(500);
/// After a request that lasted, this many short ones of its kind must follow before the kind counts
/// as short.
const SHORT_ONES_MIN: u8 = 8;
/// After this many requests of [`Length::LongAlone`] one by one, such requests count as coming
/// alone.
const CROWD_MAX: u32 = 16;

const ONE_READER: u64 = 1;
const READERS_MASK: u64 = 0xffff;
const ONE_TAKEN: u64 = READERS_MASK + 1;

/// How long a request probably lasts, as others of its kind did lately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    /// It lasts, and its thread is held up.
    Long,
    /// It lasts, but another thread is of use only if other requests come meanwhile.
    LongAlone,
}

/// The threads that read and those that are parked; see the head of this file.
pub(crate) struct Readers {
    /// How many threads read while requests are short.
    wanted: u64,
    state: AtomicU64,
    /// The number of threads that answer a request.
    answering: AtomicU32,
    /// How many more [`Length::LongAlone`] requests wake a thread. At 0 they count as coming alone.
    /// This is a hint: concurrent updates may be lost.
    crowd: AtomicU32,
    parked: Mutex<Parked>,
    unparked: Condvar,
    /// True while the watch looks at each tick. A thread that sets it also calls the watch.
    watching: AtomicBool,
    called: Condvar,
}

#[derive(Default)]
struct Parked {
    count: usize,
    /// Of these, how many are woken and have not left yet.
    leaving: usize,
    ended: bool,
}

impl Readers {
    /// No readers yet. While requests are short, `wanted` threads read, and at least one.
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

    /// Called before a thread reads. Parks the thread while enough others read. If its last request
    /// was long, the next ones may be long, too. Then one more thread reads, so that not each of
    /// them has to wake another.
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

    /// True if a thread should read while another answers a request of this length.
    fn wants_another(&self, length: Length) -> bool {
        match length {
            Length::Short => false,
            Length::Long => true,
            Length::LongAlone => self.crowd.load(Ordering::Relaxed) > 0,
        }
    }

    /// Called after a thread has read a request and before it answers.
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
            if self.wake_one() {
                return;
            }
        }
        if !self.watching.swap(true, Ordering::SeqCst) {
            // The watch looks at `watching` under this lock before it sleeps.
            drop(self.parked.lock());
            self.called.notify_one();
        }
    }

    /// Called when the answer to a request is ready and not yet sent. `is_waiting` says whether
    /// another request waits. It is asked only if that matters and nobody reads.
    pub(crate) fn answered(&self, length: Length, is_waiting: impl FnOnce() -> bool) {
        if length == Length::LongAlone && self.reading() == 0 && is_waiting() {
            self.crowd.store(CROWD_MAX, Ordering::Relaxed);
        }
        self.answering.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes a parked thread. False if there is none.
    fn wake_one(&self) -> bool {
        let mut parked = self.parked.lock();
        let is_any = parked.count > parked.leaving;
        if is_any {
            parked.leaving += 1;
            self.unparked.notify_one();
        }
        is_any
    }

    /// Ends all waiting, because the connection is gone: no thread parks any more, and the watch
    /// ends.
    pub(crate) fn end(&self) {
        self.parked.lock().ended = true;
        self.unparked.notify_all();
        self.called.notify_all();
    }

    /// One look of the watch. Wakes a thread if nobody reads and nothing was taken since the look
    /// that returned `seen`. If all threads are held up, calls `grow`.
    fn look(&self, seen: u64, grow: &mut dyn FnMut()) -> u64 {
        let state = self.state.load(Ordering::SeqCst);
        if state & READERS_MASK == 0 && state == seen && !self.wake_one() {
            grow();
        }
        state
    }

    /// Runs the watch until the connection has ended. Calls `grow` when all threads are held up.
    pub(crate) fn watch(&self, grow: &mut dyn FnMut()) {
        let mut seen = u64::MAX;
        let mut quiet = 0;
        let mut parked = self.parked.lock();
        while !parked.ended {
            if quiet >= QUIET_TICKS_MAX {
                self.watching.store(false, Ordering::SeqCst);
                // A thread that left no reader before the line above did not call the watch. So
                // look once more before sleeping.
                if self.reading() > 0 {
                    while !self.watching.load(Ordering::SeqCst) && !parked.ended {
                        self.called.wait(&mut parked);
                    }
                }
                self.watching.store(true, Ordering::SeqCst);
                quiet = 0;
            }
            self.called.wait_for(&mut parked, TICK);
            let now = strake_env::sync::MutexGuard::unlocked(&mut parked, || self.look(seen, grow));
            quiet = if now & READERS_MASK > 0 { quiet + 1 } else { 0 };
            seen = now;
        }
    }
}

/// Knows whether requests of one kind lasted lately, and whether their threads were held up. This
/// is a hint: concurrent updates may be lost.
#[derive(Default)]
pub(crate) struct Lasting {
    /// How many more short requests must follow until the kind counts as short again.
    left: AtomicU8,
    /// How many more requests must hold up no thread until the kind counts as holding up none.
    held_up: AtomicU8,
}

impl Lasting {
    /// How long the next request probably lasts. `alone` says that a program which asks for it asks
    /// for nothing else meanwhile.
    pub(crate) fn expected(&self, alone: bool) -> Length {
        if self.left.load(Ordering::Relaxed) == 0 {
            Length::Short
        } else if alone || self.held_up.load(Ordering::Relaxed) == 0 {
            Length::LongAlone
        } else {
            Length::Long
        }
    }

    /// Runs `answer`, which also returns how long it took, and notes the time.
    ///
    /// If the kind lasts, it also notes how much of the time a processor was busy. That takes two
    /// system calls.
    pub(crate) fn note<T>(&self, answer: impl FnOnce() -> (T, Duration)) -> T {
        let is_lasting = self.left.load(Ordering::Relaxed) > 0;
        let start = is_lasting.then(process::thread_time);
        let (value, took) = answer();
        self.took(took, || start.map(|start| process::thread_time().saturating_sub(start)));
        value
    }

    /// Notes how long a request took. `busy` says how much of the time a processor was busy, if
    /// that is known.
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

/// Sets the counter to [`SHORT_ONES_MIN`] if `anew`, else takes it one step towards 0.
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

    /// A thread that reads until the end. `entered` counts how often it began to read.
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
        // That thread reads, so a thread whose last request was short would park. After a long one
        // it does not.
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
            move || readers.watch(&mut || {})
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
    fn the_watch_asks_for_a_thread_when_all_are_held_up() {
        let readers = Arc::new(Readers::new(1));
        let grown = Arc::new(AtomicUsize::new(0));
        let watch = strake_env::thread::spawn({
            let (readers, grown) = (Arc::clone(&readers), Arc::clone(&grown));
            move || {
                readers.watch(&mut || {
                    grown.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        readers.enter(Length::Long);
        readers.take(Length::Long);
        wait_until(|| grown.load(Ordering::SeqCst) > 0);
        readers.end();
        watch.join().expect("ended");
    }

    #[test]
    fn a_look_wakes_nobody_while_requests_are_taken_or_read() {
        let readers = Readers::new(1);
        readers.parked.lock().count = 1;
        readers.enter(Length::Short);
        let seen = readers.look(readers.look(0, &mut || {}), &mut || {});
        assert_eq!(readers.parked.lock().leaving, 0, "one reads");
        readers.take(Length::Short);
        let seen = readers.look(seen, &mut || {});
        assert_eq!(readers.parked.lock().leaving, 0, "it was taken since the last look");
        readers.look(seen, &mut || {});
        assert_eq!(readers.parked.lock().leaving, 1);
        readers.look(seen, &mut || {});
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
        // A request is taken while another is being answered.
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

    /// The lengths expected if the kind comes side by side, and if it comes alone.
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
        // Until more is known, a processor may have been busy with it.
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
        // Other threads may take the processor now and then, but not each time.
        let is_believed = (0..10_000).any(|_| {
            one(&busy);
            kind.expected(false) == Length::LongAlone
        });
        assert!(is_believed, "time on a processor does not hold up");
        one(&|| wait(LONG));
        assert!(kind.expected(false) == Length::Long);
    }
}
