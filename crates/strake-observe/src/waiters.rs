//! The registry of waits. A thread that may wait for another part of the system holds a guard
//! meanwhile, which names the wait. So `strake diag waiters` can tell at any time why nothing
//! moves.
//!
//! ```
//! # let waiters = strake_observe::Waiters::new(strake_env::RealClock::shared());
//! let guard = waiters.enter("NSD I/O completion", "nsd 3");
//! // … the wait …
//! drop(guard);
//! ```
//!
//! Waits for locks are noted by the locks themselves ([`strake_env::watched`]). The listing for
//! users has both.

use crate::Observe;
use crate::format::{self, nanoseconds};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_env::WaitNames;
use strake_env::answering;
use strake_env::lock_waits::{LockHolder, LockWait, lock_waits};
use strake_env::sync::Mutex;
use strake_env::thread::{self, Thread};
use strake_proto::Timestamp;

/// A wait for a lock is listed when it has lasted this long. Shorter ones are part of every load.
const LOCK_WAIT_MIN: Duration = Duration::from_millis(10);
/// So many threads that hold a lock are named.
const HOLDERS_NAMED_MAX: usize = 3;

/// One wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaiterSnapshot {
    /// The name of the thread that waits, or of a request that waits without one.
    pub thread: String,
    /// The kernel's number of the thread. 0 for a request without one.
    #[serde(default)]
    pub number: u32,
    /// The name of the thing that it waits for, one of a small set.
    pub reason: String,
    /// The detail, such as the NSD; it may be empty.
    pub detail: String,
    /// When the wait began, by the calendar.
    pub since: Timestamp,
    /// How long it has lasted.
    #[serde(rename = "waitedNs", with = "nanoseconds")]
    pub waited: Duration,
    /// The threads that hold what is waited for, if that is a lock: the longest hold first.
    #[serde(default)]
    pub holders: Vec<WaitHolder>,
}

/// A thread that holds what another one waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitHolder {
    /// Its name.
    pub thread: String,
    /// The kernel's number of it.
    pub number: u32,
    /// How long it has held that, in nanoseconds.
    pub held_ns: u64,
}

impl From<&LockHolder> for WaitHolder {
    fn from(holder: &LockHolder) -> WaitHolder {
        WaitHolder {
            thread: name(&holder.thread),
            number: holder.number,
            held_ns: u64::try_from(holder.held.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Who waits.
enum Who {
    /// A thread, with the kernel's number of it. Its name is looked up only for a listing.
    Thread(Thread, u32),
    /// A request that no thread waits with, by a name.
    Request(String),
}

/// A wait that goes on.
struct Waiter {
    who: Who,
    reason: &'static str,
    detail: Cow<'static, str>,
    since: Timestamp,
    start: Duration,
}

/// The waits by index, and the indexes that are free.
#[derive(Default)]
struct Table {
    waiters: Vec<Option<Waiter>>,
    free: Vec<usize>,
}

/// The registry.
pub struct Waiters {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

/// The guard that a thread holds while it waits. Dropping it ends the wait.
pub struct WaitGuard<'a> {
    waiters: &'a Waiters,
    index: usize,
    /// The time of the wait counts for the request that this thread answers.
    _span: answering::Span,
}

/// The guard of a request that waits without a thread. Dropping it ends the wait.
pub struct RequestWait {
    waiters: Arc<Waiters>,
    index: usize,
}

impl RequestWait {
    /// Says anew which one it waits for.
    pub fn describe(&self, detail: String) {
        if let Some(waiter) = &mut self.waiters.table.lock().waiters[self.index] {
            waiter.detail = detail.into();
        }
    }
}

impl Drop for RequestWait {
    fn drop(&mut self) {
        self.waiters.end(self.index);
    }
}

impl Waiters {
    /// A registry without waits.
    pub fn new(clock: Arc<dyn Clock>) -> Waiters {
        Waiters { clock, table: Mutex::default() }
    }

    /// Notes that this thread begins to wait for `reason`. `detail` says which one.
    #[must_use = "the wait ends when the guard is dropped"]
    pub fn enter(
        &self,
        reason: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> WaitGuard<'_> {
        let index = self.begin(reason, detail.into());
        WaitGuard { waiters: self, index, _span: answering::wait(reason) }
    }

    /// Like [`Waiters::enter`], for a request that no thread waits with. `who` stands in place of
    /// the thread's name.
    #[must_use = "the wait ends when the guard is dropped"]
    pub fn enter_request(
        self: &Arc<Waiters>,
        who: String,
        reason: &'static str,
        detail: String,
    ) -> RequestWait {
        let index = self.begin_as(Who::Request(who), reason, detail.into());
        RequestWait { waiters: Arc::clone(self), index }
    }

    fn begin(&self, reason: &'static str, detail: Cow<'static, str>) -> usize {
        self.begin_as(Who::Thread(thread::current(), thread::number()), reason, detail)
    }

    fn begin_as(&self, who: Who, reason: &'static str, detail: Cow<'static, str>) -> usize {
        let waiter =
            Waiter { who, reason, detail, since: self.clock.wall(), start: self.clock.monotonic() };
        let mut table = self.table.lock();
        let index = table.free.pop().unwrap_or_else(|| {
            table.waiters.push(None);
            table.waiters.len() - 1
        });
        table.waiters[index] = Some(waiter);
        index
    }

    fn end(&self, index: usize) {
        let mut table = self.table.lock();
        table.waiters[index] = None;
        table.free.push(index);
    }

    /// All waits, the longest first.
    pub fn snapshot(&self) -> Vec<WaiterSnapshot> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        let mut all: Vec<WaiterSnapshot> = table
            .waiters
            .iter()
            .flatten()
            .map(|waiter| WaiterSnapshot {
                thread: match &waiter.who {
                    Who::Thread(thread, _) => name(thread),
                    Who::Request(name) => name.clone(),
                },
                number: match waiter.who {
                    Who::Thread(_, number) => number,
                    Who::Request(_) => 0,
                },
                reason: waiter.reason.to_owned(),
                detail: waiter.detail.clone().into_owned(),
                since: waiter.since,
                waited: now.saturating_sub(waiter.start),
                holders: Vec::new(),
            })
            .collect();
        drop(table);
        all.sort_by_key(|waiter| std::cmp::Reverse(waiter.waited));
        all
    }

    /// All waits, with those for the watched locks of this process
    /// ([`strake_env::watched`]), the longest first.
    pub fn snapshot_with_locks(&self) -> Vec<WaiterSnapshot> {
        let now = self.clock.wall();
        let locks = lock_waits().into_iter().filter(|wait| wait.waited >= LOCK_WAIT_MIN);
        let locks = locks.map(|wait| WaiterSnapshot {
            thread: name(&wait.thread),
            number: wait.number,
            reason: wait.name.to_owned(),
            detail: describe(&wait),
            since: before(now, wait.waited),
            waited: wait.waited,
            holders: wait.holders.iter().map(WaitHolder::from).collect(),
        });
        let mut all: Vec<WaiterSnapshot> = locks.chain(self.snapshot()).collect();
        all.sort_by_key(|waiter| std::cmp::Reverse(waiter.waited));
        all
    }
}

fn name(thread: &Thread) -> String {
    thread.name().unwrap_or("unnamed").to_owned()
}

/// How a lock is wanted and by whom it is held: `shared, held by mender for 3.2 s`.
fn describe(wait: &LockWait) -> String {
    let held = |it: &LockHolder| format!("{} for {:.1} s", name(&it.thread), it.held.as_secs_f64());
    let mut holders: Vec<String> = wait.holders.iter().take(HOLDERS_NAMED_MAX).map(held).collect();
    match wait.holders.len().saturating_sub(HOLDERS_NAMED_MAX) {
        0 => {}
        more => holders.push(format!("{more} more")),
    }
    let held = holders.join(", ");
    match (wait.mode, &*held) {
        (mode, "") => mode.to_owned(),
        ("", held) => format!("held by {held}"),
        (mode, held) => format!("{mode}, held by {held}"),
    }
}

/// The calendar's time so long ago.
fn before(now: Timestamp, ago: Duration) -> Timestamp {
    let nanos = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanos);
    let nanos = nanos - ago.as_nanos() as i128;
    let second = 1_000_000_000;
    Timestamp { seconds: nanos.div_euclid(second) as i64, nanos: nanos.rem_euclid(second) as u32 }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiters.end(self.index);
    }
}

/// Sessions stand below this crate. They name their waits here through this trait.
impl WaitNames for Waiters {
    fn begin_wait(&self, reason: &'static str, detail: &str) -> usize {
        self.begin(reason, detail.to_owned().into())
    }

    fn end_wait(&self, wait: usize) {
        self.end(wait);
    }
}

impl WaitNames for Observe {
    fn begin_wait(&self, reason: &'static str, detail: &str) -> usize {
        self.waiters.begin_wait(reason, detail)
    }

    fn end_wait(&self, wait: usize) {
        self.waiters.end_wait(wait);
    }
}

/// Prints waits in the form that users of `mmdiag --waiters` know. Times are shown
/// `utc_offset_seconds` east of UTC.
///
/// # Errors
/// Those of `out`.
pub fn print_waiters(
    out: &mut dyn fmt::Write,
    waiters: &[WaiterSnapshot],
    utc_offset_seconds: i64,
) -> fmt::Result {
    waiters.iter().try_for_each(|waiter| print_waiter(out, waiter, utc_offset_seconds))
}

/// One line of [`print_waiters`].
pub(crate) fn print_waiter(
    out: &mut dyn fmt::Write,
    waiter: &WaiterSnapshot,
    utc_offset_seconds: i64,
) -> fmt::Result {
    let gap = if waiter.detail.is_empty() { "" } else { " " };
    writeln!(
        out,
        "Waiting {:.4} sec since {}, thread {}: reason '{}{gap}{}'",
        waiter.waited.as_secs_f64(),
        format::time_of_day(waiter.since, utc_offset_seconds),
        waiter.thread,
        waiter.reason,
        waiter.detail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::ManualClock;

    #[test]
    fn a_request_waits_without_a_thread_and_may_say_anew_for_what() {
        let waiters = Arc::new(Waiters::new(Arc::new(ManualClock::default())));
        let wait = waiters.enter_request("process 7".to_owned(), "lock", "inode 3".to_owned());
        wait.describe("inode 3, held by client 9".to_owned());
        let listed = waiters.snapshot();
        let listed = listed.first().expect("it waits");
        assert_eq!((&*listed.thread, &*listed.reason), ("process 7", "lock"));
        assert_eq!(listed.detail, "inode 3, held by client 9");
        drop(wait);
        assert!(waiters.snapshot().is_empty());
    }

    #[test]
    fn waits_are_listed_longest_first_until_they_end() {
        let clock = Arc::new(ManualClock::default());
        let waiters = Waiters::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let first = waiters.enter("for I/O completion", "on nsd 3");
        clock.advance(Duration::from_millis(1500));
        let second = waiters.enter("for a free page", "");
        clock.advance(Duration::from_millis(250));
        let listed = waiters.snapshot();
        let seen: Vec<_> =
            listed.iter().map(|wait| (wait.reason.as_str(), wait.waited.as_millis())).collect();
        assert_eq!(seen, [("for I/O completion", 1750), ("for a free page", 250)]);
        let mut text = String::new();
        print_waiters(&mut text, &listed, 0).expect("a string takes all");
        let thread = thread::current().name().expect("test threads have names").to_owned();
        assert_eq!(
            text,
            format!(
                "Waiting 1.7500 sec since 22:13:20, thread {thread}: reason 'for I/O completion \
                 on nsd 3'\nWaiting 0.2500 sec since 22:13:21, thread {thread}: reason 'for a \
                 free page'\n"
            )
        );
        drop(first);
        assert_eq!(waiters.snapshot().len(), 1);
        drop(second);
        assert!(waiters.snapshot().is_empty());
    }

    strake_env::lock_names! {
        /// Held by a test.
        Door = "a door";
    }

    fn lock_wait(mode: &'static str, holders: usize) -> LockWait {
        let holder = |at: usize| LockHolder {
            thread: thread::current(),
            number: thread::number(),
            held: Duration::from_millis(12_000 - 1000 * at as u64),
        };
        let holders = (0..holders).map(holder).collect();
        let (thread, waited) = (thread::current(), Duration::from_secs(7));
        LockWait { name: "a lock", mode, thread, number: 7, waited, holders }
    }

    #[test]
    fn a_wait_for_a_lock_says_what_for_and_who_holds_it_since_when() {
        let me = name(&thread::current());
        let one = format!("held by {me} for 12.0 s");
        assert_eq!(describe(&lock_wait("", 0)), "");
        assert_eq!(describe(&lock_wait("", 1)), one);
        assert_eq!(describe(&lock_wait("shared", 0)), "shared");
        assert_eq!(describe(&lock_wait("exclusive", 1)), format!("exclusive, {one}"));
        let three = format!("{one}, {me} for 11.0 s, {me} for 10.0 s");
        assert_eq!(describe(&lock_wait("", 3)), three);
        assert_eq!(describe(&lock_wait("", 5)), format!("{three}, 2 more"));
        let now = Timestamp { seconds: 10, nanos: 5 };
        let expected = Timestamp { seconds: 2, nanos: 999_999_999 };
        assert_eq!(before(now, Duration::new(7, 6)), expected);
    }

    #[test]
    fn waits_for_locks_are_listed_among_the_others() {
        let waiters = Waiters::new(strake_env::RealClock::shared());
        let door = strake_env::sync::WatchedMutex::<Door>::default();
        let other = waiters.enter("a reason", "");
        thread::scope(|scope| {
            let guard = door.lock();
            let waiting = scope.spawn(|| drop(door.lock()));
            let listed = loop {
                assert!(!waiting.is_finished(), "the door was open");
                let mut listed = waiters.snapshot_with_locks();
                // Other tests of this process may wait for locks as well.
                listed.retain(|wait| ["a door", "a reason"].contains(&&*wait.reason));
                if listed.len() == 2 {
                    break listed;
                }
                thread::yield_now();
            };
            assert!(listed[0].waited >= listed[1].waited);
            let wait = listed.iter().find(|wait| wait.reason == "a door").expect("it is there");
            let holder = wait.holders.first().expect("this thread holds it");
            assert_eq!(holder.number, thread::number());
            assert!(wait.number != 0 && wait.number != holder.number, "{wait:?}");
            assert!(wait.waited >= LOCK_WAIT_MIN);
            let held = format!("held by {} for ", name(&thread::current()));
            assert!(wait.detail.starts_with(&held), "{}", wait.detail);
            drop(guard);
        });
        drop(other);
    }

    #[test]
    fn places_are_used_again_and_waits_of_many_threads_are_kept_apart() {
        let waiters = Waiters::new(Arc::new(ManualClock::default()));
        strake_env::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for index in 0..500 {
                        let _outer = waiters.enter("outer", index.to_string());
                        let _inner = waiters.enter("inner", "");
                    }
                });
            }
        });
        assert!(waiters.snapshot().is_empty());
        let places = waiters.table.lock().waiters.len();
        assert!(places <= 16, "{places} places for at most 16 waits at a time");
    }
}
