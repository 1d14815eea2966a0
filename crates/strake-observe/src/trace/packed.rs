//! An event of the trace as the ring keeps it: six words, so that its slot is one line of the
//! processor's cache. What a trace costs is for the most part the memory that it writes.
//!
//! ```text
//! word  bits
//!    0        start in nanoseconds since the trace began
//!    1        inode of the cause
//!    2        request of the cause
//!    3  0-47  duration in nanoseconds (3 days at most; what is longer counts as 3 days)
//!      48-63  operation: its place in the table of names
//!    4  0-47  bytes (256 TiB at most)
//!      48-63  NSD; 0xffff for none, and for those with larger numbers
//!    5  0-31  process of the cause
//!      32-62  number of the thread
//!         63  whether it failed
//! ```

use super::{Event, ThreadLabel};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;
use strake_env::cause::Cause;
use strake_env::sync::Mutex;
use strake_proto::NsdId;

/// See the file's head.
#[derive(Clone, Copy)]
pub(super) struct Packed(pub(super) [u64; 6]);

/// Durations and bytes have 48 bits.
const SHORT_MAX: u64 = (1 << 48) - 1;
const NO_NSD: u16 = u16::MAX;
/// Threads are numbered from 1.
const THREAD_MAX: u32 = u32::MAX >> 1;

impl Packed {
    pub(super) fn new(event: &Event) -> Packed {
        let nsd = event.nsd.and_then(|nsd| u16::try_from(nsd.0).ok()).unwrap_or(NO_NSD);
        let thread = event.thread.number.min(THREAD_MAX) | u32::from(event.failed) << 31;
        Packed([
            event.start_ns,
            event.cause.inode,
            event.cause.request,
            event.took_ns.min(SHORT_MAX) | u64::from(operation_number(event.operation)) << 48,
            event.bytes.min(SHORT_MAX) | u64::from(nsd) << 48,
            u64::from(event.cause.process) | u64::from(thread) << 32,
        ])
    }

    /// The event, with the names that it was noted under.
    pub(super) fn event(&self, names: &Names) -> Event {
        let [start_ns, inode, request, took, bytes, process] = self.0;
        let (nsd, thread) = ((bytes >> 48) as u16, (process >> 32) as u32);
        Event {
            operation: names.operations.get((took >> 48) as usize).copied().unwrap_or(OTHER),
            start_ns,
            took_ns: took & SHORT_MAX,
            bytes: bytes & SHORT_MAX,
            cause: Cause { request, inode, process: process as u32 },
            thread: names.thread(thread & THREAD_MAX),
            nsd: (nsd != NO_NSD).then_some(NsdId(nsd.into())),
            failed: thread > THREAD_MAX,
        }
    }
}

/// The names of operations and threads of this process.
#[derive(Clone, Default)]
pub(super) struct Names {
    operations: Vec<&'static str>,
    numbers: HashMap<&'static str, u16>,
    threads: HashMap<u32, ThreadLabel>,
}

/// The name of operations that have no place in the table any more.
const OTHER: &str = "other";
const OPERATIONS_MAX: usize = 4096;
/// Threads beyond this have a number and no name.
const THREADS_MAX: usize = 65_536;

static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

impl Names {
    /// All names so far.
    pub(super) fn now() -> Names {
        NAMES.lock().clone()
    }

    fn thread(&self, number: u32) -> ThreadLabel {
        let known = self.threads.get(&number).copied();
        known.unwrap_or_else(|| ThreadLabel::new(number, "unnamed"))
    }
}

/// Notes the name of a thread that records for the first time.
pub(super) fn note_thread(label: ThreadLabel) {
    let mut names = NAMES.lock();
    if names.threads.len() < THREADS_MAX {
        names.threads.insert(label.number, label);
    }
}

/// The place of an operation's name in the table. A thread remembers the last names that it has
/// looked up, by their addresses.
fn operation_number(name: &'static str) -> u16 {
    const KEPT: usize = 64;
    strake_env::local! {
        static LAST: [Cell<(usize, usize, u16)>; KEPT] =
            const { [const { Cell::new((0, 0, 0)) }; KEPT] };
    }
    let at = name.as_ptr() as usize;
    LAST.with(|last| {
        let cell = &last[(at ^ at >> 6) % KEPT];
        let (address, length, number) = cell.get();
        if (address, length) == (at, name.len()) {
            return number;
        }
        let number = NAMES.lock().operation_number(name);
        cell.set((at, name.len(), number));
        number
    })
}

impl Names {
    fn operation_number(&mut self, name: &'static str) -> u16 {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        if self.operations.len() >= OPERATIONS_MAX {
            return u16::MAX;
        }
        let number = self.operations.len() as u16;
        self.operations.push(name);
        self.numbers.insert(name, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_the_same_event_and_what_is_too_large_is_the_largest() {
        let label = ThreadLabel::new(77_000, "packs");
        note_thread(label);
        let event = Event {
            operation: "packed",
            start_ns: u64::MAX,
            took_ns: SHORT_MAX - 1,
            bytes: 47_008,
            cause: Cause { request: u64::MAX - 1, inode: u64::MAX - 2, process: u32::MAX - 3 },
            thread: label,
            nsd: Some(NsdId(65_000)),
            failed: true,
        };
        let other = Event {
            operation: "packed too",
            start_ns: 0,
            took_ns: 0,
            bytes: 0,
            cause: Cause::default(),
            nsd: None,
            failed: false,
            ..event
        };
        for event in [event, other, event] {
            assert_eq!(Packed::new(&event).event(&Names::now()), event);
        }
        let long = Event { took_ns: u64::MAX, bytes: u64::MAX, ..event };
        let cut = Event { took_ns: SHORT_MAX, bytes: SHORT_MAX, ..event };
        assert_eq!(Packed::new(&long).event(&Names::now()), cut);
    }

    #[test]
    fn names_beyond_the_tables_are_not_kept() {
        let mut names = Names::default();
        for number in 0..OPERATIONS_MAX {
            let name: &'static str = Box::leak(format!("operation {number}").into_boxed_str());
            assert_eq!(usize::from(names.operation_number(name)), number);
            assert_eq!(usize::from(names.operation_number(name)), number, "it is known");
        }
        assert_eq!(names.operation_number("one more"), u16::MAX);
        assert_eq!(names.thread(5), ThreadLabel::new(5, "unnamed"));
    }
}
