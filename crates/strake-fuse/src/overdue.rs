//! Names in the log each request that takes very long: while it is answered, and when it is done.
//!
//! Each serving thread has a [`Slot`] that says which request it answers. The thread takes no time
//! for it: a request costs a few stores to memory that is the thread's own. Another thread looks at
//! all slots every few seconds ([`Overdue::look`]). If it finds the same request again after
//! [`LIMIT`], the request is *overdue*. So a request is told of at most one interval late.
//!
//! A wait for a lock (SETLKW) takes no slot, because it lasts as long as another program likes.

use crate::abi::{InHeader, Opcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_env::thread;
use strake_observe::{WaiterSnapshot, Waiters, wait_chain};
use tracing::warn;

/// A request that takes this long is named in the log.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The request that one serving thread answers. Only that thread writes to the slot. The slot has a
/// cache line of its own, because the thread writes to it for every request.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// The kernel's number of the thread.
    thread: u32,
    /// How many requests have begun and ended: odd while one is answered.
    steps: AtomicU64,
    /// Valid while `steps` is odd.
    opcode: AtomicU32,
    /// Valid while `steps` is odd.
    inode: AtomicU64,
}

impl Slot {
    /// Runs `answer`, which answers the request.
    pub(crate) fn hold<T>(&self, header: &InHeader, answer: impl FnOnce() -> T) -> T {
        let steps = self.steps.load(Ordering::Relaxed);
        self.opcode.store(header.opcode, Ordering::Relaxed);
        self.inode.store(header.nodeid, Ordering::Relaxed);
        self.steps.store(steps + 1, Ordering::Release);
        let value = answer();
        self.steps.store(steps + 2, Ordering::Release);
        value
    }

    /// The request that is answered now, if one is.
    fn answering(&self) -> Option<Answering> {
        let steps = self.steps.load(Ordering::Acquire);
        let named = self.named();
        std::sync::atomic::fence(Ordering::Acquire);
        let is_same = self.steps.load(Ordering::Relaxed) == steps;
        (is_same && !steps.is_multiple_of(2)).then_some(named)
    }

    fn named(&self) -> Answering {
        let opcode = Opcode::from_number(self.opcode.load(Ordering::Relaxed));
        Answering {
            thread: self.thread,
            name: opcode.map_or("request", Opcode::name),
            inode: self.inode.load(Ordering::Relaxed),
        }
    }
}

/// A slot, and what the last look found there.
struct Watched {
    slot: Arc<Slot>,
    steps: u64,
    /// When a look first found `steps`.
    since: Duration,
    told: bool,
}

/// A request that is answered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answering {
    /// The kernel's number of the thread that answers it.
    pub thread: u32,
    /// The operation.
    pub name: &'static str,
    /// The file or directory.
    pub inode: u64,
}

/// A request that is overdue and still answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) thread: u32,
    pub(crate) name: &'static str,
    pub(crate) inode: u64,
    /// How long the looks have seen it. It is older by less than one interval.
    pub(crate) age: Duration,
}

/// The slots of all serving threads; see the head of this file.
#[derive(Default)]
pub(crate) struct Overdue {
    watched: Mutex<Vec<Watched>>,
}

impl Overdue {
    /// The slot of the calling thread.
    pub(crate) fn slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot { thread: thread::number(), ..Slot::default() });
        let watched =
            Watched { slot: Arc::clone(&slot), steps: 0, since: Duration::ZERO, told: false };
        self.watched.lock().push(watched);
        slot
    }

    /// The requests that are answered now.
    pub(crate) fn answering(&self) -> Vec<Answering> {
        let watched = self.watched.lock();
        watched.iter().filter_map(|watched| watched.slot.answering()).collect()
    }

    /// Looks at all slots. Returns the requests that have become overdue since the last look.
    pub(crate) fn look(&self, now: Duration) -> Vec<Late> {
        let mut watched = self.watched.lock();
        watched.iter_mut().filter_map(|watched| watched.look(now)).collect()
    }

    /// Looks, and logs what it finds, with what each request waits for, up to the root.
    pub(crate) fn tell(&self, now: Duration, waiters: &Waiters) {
        let late = self.look(now);
        if late.is_empty() {
            return;
        }
        let waits = waiters.snapshot_with_locks();
        for Late { thread, name, inode, age } in late {
            let (seconds, why) = (age.as_secs(), why(&waits, thread));
            warn!(
                target: "fuse",
                "{name} of inode {inode} is not done after more than {seconds} s: {why}"
            );
        }
    }
}

/// The reason of a thread's wait, and the reasons behind it.
fn why(waits: &[WaiterSnapshot], thread: u32) -> String {
    let Some(wait) = wait_chain::innermost(waits, thread) else {
        return "it waits for nothing that has a name".to_owned();
    };
    let mut why = format!("it waits {}", wait_chain::what(wait));
    wait_chain::chain(waits, wait).iter().for_each(|step| why.push_str(&format!("; {step}")));
    why
}

impl Watched {
    fn look(&mut self, now: Duration) -> Option<Late> {
        let steps = self.slot.steps.load(Ordering::Acquire);
        if steps != self.steps {
            (self.steps, self.since, self.told) = (steps, now, false);
        }
        let age = now.saturating_sub(self.since);
        if steps.is_multiple_of(2) || self.told || age < LIMIT {
            return None;
        }
        // The request that was there at an earlier look. So its fields were written long ago.
        let Answering { thread, name, inode } = self.slot.named();
        self.told = true;
        Some(Late { thread, name, inode, age })
    }
}

/// Logs a request that has ended, if it took very long.
pub(crate) fn ended(opcode: Opcode, header: &InHeader, took: Duration) {
    if took >= LIMIT {
        let (name, inode, seconds) = (opcode.name(), header.nodeid, took.as_secs_f64());
        warn!(target: "fuse", "{name} of inode {inode} took {seconds:.1} s");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    const GETATTR: u32 = 3;
    const WRITE: u32 = 16;
    const READDIR: u32 = 28;

    fn header(opcode: u32, nodeid: u64) -> InHeader {
        InHeader { opcode, nodeid, ..InHeader::default() }
    }

    #[test]
    fn a_request_is_told_once_while_it_is_answered() {
        let overdue = Overdue::default();
        let (slot, other) = (overdue.slot(), overdue.slot());
        let thread = thread::number();
        let late = |name, inode, age| Late { thread, name, inode, age: seconds(age) };
        assert_eq!(overdue.look(seconds(1000)), []);
        assert_eq!(overdue.answering(), []);
        slot.hold(&header(READDIR, 7), || {
            let reads = Answering { thread, name: "fuse_readdir", inode: 7 };
            assert_eq!(overdue.answering(), [reads]);
            assert_eq!(overdue.look(seconds(1001)), []);
            assert_eq!(overdue.look(seconds(1010)), []);
            other.hold(&header(WRITE, 8), || {
                assert_eq!(overdue.look(seconds(1011)), [late("fuse_readdir", 7, 10)]);
                assert_eq!(overdue.look(seconds(1020)), []);
                assert_eq!(overdue.look(seconds(1022)), [late("fuse_write", 8, 11)]);
            });
        });
        assert_eq!(overdue.look(seconds(2000)), []);
    }

    #[test]
    fn a_request_that_is_told_says_what_it_waits_for() {
        let waiters = Waiters::new(Arc::new(strake_env::ManualClock::default()));
        let own = thread::number();
        let of = |waiters: &Waiters| why(&waiters.snapshot(), own);
        assert_eq!(of(&waiters), "it waits for nothing that has a name");
        let _wait = waiters.enter("NSD commit", "nsd 3");
        assert_eq!(of(&waiters), "it waits 0.00 µs for 'NSD commit nsd 3'");
    }

    #[test]
    fn many_short_requests_in_a_row_are_none_that_is_overdue() {
        let overdue = Overdue::default();
        let slot = overdue.slot();
        for now in 0..100 {
            slot.hold(&header(GETATTR, 1), || {
                assert_eq!(overdue.look(seconds(now)), []);
            });
        }
        // Nor is a thread that has nothing to do.
        assert_eq!(overdue.look(seconds(500)), []);
    }
}
