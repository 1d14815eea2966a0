//! The trace: a ring of events, each with its start, its duration and the request that it is part
//! of. `strake diag trace` starts it, stops it and shows it.
//!
//! While no trace runs, an event costs one relaxed load. While one runs, it costs a slot of a ring.
//! The clock is read only where it is read anyway, except for calls and spans that nobody else
//! times ([`Trace::begin`]). Threads of one [`Lane`] take places in the ring by the dozen, so that
//! two processors seldom write the same memory.
//!
//! A trace also remembers the names of the processes that made requests, and the names of files
//! that were looked up, so that reports can show them.

mod lines;
mod packed;

use lines::Lines;
use packed::{Names as Table, Packed};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_env::cause::{self, Cause, CauseGuard};
use strake_env::sync::Mutex;
use strake_env::{Clock, process, thread};
use strake_proto::{Ino, NsdId, Timestamp};

/// The fewest events that a trace keeps.
pub const TRACE_EVENTS_MIN: usize = 1024;
/// The most events that a trace keeps. They take a quarter of a GiB.
pub const TRACE_EVENTS_MAX: usize = 4 << 20;
/// The usual number of events. They take 16 MiB.
pub const TRACE_EVENTS_DEFAULT: usize = 256 << 10;

/// The memory that an event takes, in bytes.
pub const TRACE_EVENT_BYTES: usize = Lines::SLOT_BYTES;

/// So many processes are remembered by name.
const PROCESSES_MAX: usize = 4096;
/// So many files are remembered by name.
const FILES_MAX: usize = 65_536;
/// A path with more components than this is cut short.
const DEPTH_MAX: usize = 64;
/// The name of a process is read again after at least this time, because a shell's child makes its
/// first requests before it becomes another program.
const NAME_AGE_MIN: Duration = Duration::from_millis(1);

/// Something that has just ended, as the part that timed it tells the trace.
#[derive(Clone, Copy, Debug)]
pub struct Occurrence {
    /// What it was.
    pub operation: &'static str,
    /// When it began, by the clock that never goes back.
    pub begun: Duration,
    /// How long it took.
    pub took: Duration,
    /// Bytes moved, if it moves any.
    pub bytes: u64,
    /// The NSD concerned.
    pub nsd: Option<NsdId>,
    /// Whether it failed.
    pub failed: bool,
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it was.
    pub operation: &'static str,
    /// When it began, in nanoseconds since the trace began.
    pub start_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Bytes moved, if it moves any.
    pub bytes: u64,
    /// The request that it is part of.
    pub cause: Cause,
    /// The thread that did it.
    pub thread: ThreadLabel,
    /// The NSD concerned.
    pub nsd: Option<NsdId>,
    /// Whether it failed.
    pub failed: bool,
}

/// A thread's number, which no other thread of this process has, and the start of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ThreadLabel {
    /// The number.
    pub number: u32,
    name: [u8; 16],
}

impl ThreadLabel {
    /// The label of a thread. Linux too keeps 15 bytes of a name.
    pub fn new(number: u32, name: &str) -> ThreadLabel {
        let mut kept = [0; 16];
        let length = (0..=name.len().min(15)).rev().find(|at| name.is_char_boundary(*at));
        let length = length.unwrap_or(0);
        kept[..length].copy_from_slice(&name.as_bytes()[..length]);
        ThreadLabel { number, name: kept }
    }

    fn of_this_thread() -> ThreadLabel {
        static LAST: AtomicU32 = AtomicU32::new(0);
        strake_env::local! {
            static LABEL: ThreadLabel = {
                let number = LAST.fetch_add(1, Relaxed) + 1;
                let label =
                    ThreadLabel::new(number, thread::current().name().unwrap_or("unnamed"));
                packed::note_thread(label);
                label
            };
        }
        LABEL.with(|label| *label)
    }

    /// The name.
    pub fn name(&self) -> &str {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        std::str::from_utf8(&self.name[..length]).unwrap_or_default()
    }
}

impl fmt::Debug for ThreadLabel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.number, self.name())
    }
}

/// One trace, from its start on.
struct Run {
    ring: Lines,
    begun: Duration,
    since: Timestamp,
    /// When it was stopped.
    ended: OnceLock<Duration>,
    /// Places that were taken and will not be used.
    skipped: AtomicU64,
}

/// The number of lanes that threads take their events to.
const LANES: usize = 16;
/// The most places of the ring that a lane takes at once.
const PLACES_MAX: usize = 64;

/// The number of places of a ring that a lane takes at once. Together the lanes take a quarter of
/// the ring at most.
fn places_at_once(capacity: usize) -> u64 {
    PLACES_MAX.min(capacity / (4 * LANES)) as u64
}

/// The places in the ring of the trace that the next events of some threads take.
#[derive(Default)]
struct Places {
    /// The trace that runs.
    run: Option<Arc<Run>>,
    tickets: Range<u64>,
}

/// A lane has lines of the processor's cache to itself.
#[derive(Default)]
#[repr(align(128))]
struct Lane(Mutex<Places>);

impl Places {
    fn push(&mut self, begun: Duration, event: impl FnOnce(Duration) -> Event) {
        let Some(run) = &self.run else { return };
        // An operation that began before the trace would look as if it had begun with it.
        let Some(start) = begun.checked_sub(run.begun) else { return };
        let half = run.ring.capacity() as u64 / 2;
        let is_old = || run.ring.taken() - self.tickets.start >= half;
        if self.tickets.is_empty() || is_old() {
            run.skipped.fetch_add(unused(&self.tickets), Relaxed);
            let places = places_at_once(run.ring.capacity());
            let first = run.ring.take(places);
            self.tickets = first..first + places;
        }
        run.ring.put(self.tickets.start, Packed::new(&event(start)).0);
        self.tickets.start += 1;
    }
}

fn unused(tickets: &Range<u64>) -> u64 {
    tickets.end - tickets.start
}

/// A process that made a request.
#[derive(Default)]
struct Process {
    name: String,
    first: Duration,
    /// When its name is read again.
    again: Duration,
}

/// What a trace knows by name.
#[derive(Default)]
struct Names {
    processes: HashMap<u32, Process>,
    /// The directory and the name of each file.
    files: HashMap<u64, (u64, Box<[u8]>)>,
}

/// A process for which a thread has worked.
#[derive(Clone, Copy)]
struct Served {
    process: u32,
    /// The number of the trace.
    trace: u64,
    /// The requests that the thread answers without a look at the name before it looks again.
    passed: u32,
    /// The requests of these that are yet to come.
    left: u32,
}

/// The number of processes that a thread remembers.
const SERVED: usize = 8;
/// The name of a process is looked at after this many requests at the latest. To look costs a
/// reading of the clock and a lock.
const PASSED_MAX: u32 = 64;

strake_env::local! {
    static LAST_PROCESSES: [Cell<Served>; SERVED] = const {
        [const { Cell::new(Served { process: 0, trace: 0, passed: 0, left: 0 }) }; SERVED]
    };
}

/// See the file's head.
pub struct Trace {
    clock: Arc<dyn Clock>,
    on: AtomicBool,
    /// No two traces of a process have the same number.
    number: AtomicU64,
    lanes: [Lane; LANES],
    /// The last trace, until the next one is started.
    run: Mutex<Option<Arc<Run>>>,
    names: Mutex<Names>,
}

impl Trace {
    /// A trace that does not run.
    pub fn new(clock: Arc<dyn Clock>) -> Trace {
        let (on, number) = (AtomicBool::new(false), AtomicU64::new(0));
        let (lanes, run, names) = (Default::default(), Mutex::default(), Mutex::default());
        Trace { clock, on, number, lanes, run, names }
    }

    /// Whether a trace runs.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Starts a trace that keeps the last `events` events, clamped to 1024..=4,194,304. What an
    /// earlier one has recorded is dropped.
    pub fn start(&self, events: usize) {
        let capacity = events.clamp(TRACE_EVENTS_MIN, TRACE_EVENTS_MAX);
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut run = self.run.lock();
        self.change_lanes(None);
        // Memory that is given back and taken anew costs the kernel time for seconds.
        let before = run.take().and_then(Arc::into_inner).map(|run| run.ring);
        let ring = match before.filter(|ring| ring.capacity() == capacity) {
            Some(ring) => ring.emptied(),
            None => Lines::new(capacity),
        };
        *self.names.lock() = Names::default();
        self.number.store(LAST.fetch_add(1, Relaxed) + 1, Relaxed);
        let (begun, since) = (self.clock.monotonic(), self.clock.wall());
        let (ended, skipped) = (OnceLock::new(), AtomicU64::new(0));
        let new = Arc::new(Run { ring, begun, since, ended, skipped });
        self.change_lanes(Some(&new));
        *run = Some(new);
        self.on.store(true, Relaxed);
    }

    /// Stops the trace. What it has recorded can still be read. Returns whether it ran.
    pub fn stop(&self) -> bool {
        let run = self.run.lock();
        let ran = self.on.swap(false, Relaxed);
        if let Some(run) = run.as_ref().filter(|_| ran) {
            self.change_lanes(None);
            let _ = run.ended.set(self.clock.monotonic());
        }
        ran
    }

    /// From now on events go to `run`, or nowhere.
    fn change_lanes(&self, run: Option<&Arc<Run>>) {
        for lane in &self.lanes {
            let mut places = lane.0.lock();
            if let Some(before) = &places.run {
                before.skipped.fetch_add(unused(&places.tickets), Relaxed);
            }
            *places = Places { run: run.cloned(), tickets: 0..0 };
        }
    }

    /// The calling thread answers a request of `cause` until the guard is dropped. `None` while no
    /// trace runs.
    pub fn answer(&self, cause: Cause) -> Option<CauseGuard> {
        if !self.is_on() {
            return None;
        }
        self.note_process(cause.process);
        Some(cause::take(cause))
    }

    /// Takes the time before something that only the trace times. `None` while no trace runs.
    #[inline]
    pub fn begin(&self) -> Option<Duration> {
        self.is_on().then(|| self.clock.monotonic())
    }

    /// Notes the end of what began at `begun`: see [`Trace::begin`].
    pub fn end(
        &self,
        begun: Option<Duration>,
        operation: &'static str,
        bytes: u64,
        nsd: Option<NsdId>,
        failed: bool,
    ) {
        let Some(begun) = begun else { return };
        let took = self.clock.monotonic().saturating_sub(begun);
        self.note(&Occurrence { operation, begun, took, bytes, nsd, failed });
    }

    /// Records something that has just ended. It costs one relaxed load while no trace runs.
    #[inline]
    pub fn note(&self, it: &Occurrence) {
        if self.is_on() {
            self.record(it);
        }
    }

    fn record(&self, it: &Occurrence) {
        let thread = ThreadLabel::of_this_thread();
        let lane = &self.lanes[thread.number as usize % LANES];
        lane.0.lock().push(it.begun, |start| Event {
            operation: it.operation,
            start_ns: nanos(start),
            took_ns: nanos(it.took),
            bytes: it.bytes,
            cause: cause::current(),
            thread,
            nsd: it.nsd,
            failed: it.failed,
        });
    }

    fn note_process(&self, process: u32) {
        let trace = self.number.load(Relaxed);
        LAST_PROCESSES.with(|last| {
            let cell = &last[process as usize % SERVED];
            let served = cell.get();
            let is_known = (served.process, served.trace) == (process, trace);
            if is_known && served.left > 0 {
                return cell.set(Served { left: served.left - 1, ..served });
            }
            self.look_up(process, self.clock.monotonic());
            // A process makes few requests before it becomes another program.
            let passed = if is_known { (2 * served.passed + 1).min(PASSED_MAX) } else { 0 };
            cell.set(Served { process, trace, passed, left: passed });
        });
    }

    /// Reads the name of a process, if it is not known or due again.
    fn look_up(&self, process: u32, now: Duration) {
        let first = {
            let names = self.names.lock();
            match names.processes.get(&process) {
                Some(known) if now < known.again => return,
                Some(known) => known.first,
                None if names.processes.len() >= PROCESSES_MAX => return,
                None => now,
            }
        };
        // It is read again when the process is twice as old. So it is read a few times in all.
        let again = now + now.saturating_sub(first).max(NAME_AGE_MIN);
        let name = process::name(process);
        let mut names = self.names.lock();
        let known = names.processes.entry(process).or_default();
        (known.first, known.again) = (first, again);
        if let Some(name) = name {
            known.name = name;
        }
    }

    /// Notes the name of a file. It does nothing while no trace runs. Listings also bring `.` and
    /// `..`, which are no names: with them a directory would lie within itself.
    pub fn note_file(&self, ino: Ino, parent: Ino, name: &[u8]) {
        if !self.is_on() || matches!(name, b"." | b"..") {
            return;
        }
        let mut names = self.names.lock();
        let is_full = names.files.len() >= FILES_MAX;
        match names.files.get_mut(&ino.0) {
            Some(known) if known.0 == parent.0 && *known.1 == *name => {}
            Some(known) => *known = (parent.0, name.into()),
            None if is_full => {}
            None => drop(names.files.insert(ino.0, (parent.0, name.into()))),
        }
    }

    /// What the last trace has recorded, oldest first, and how far it is. `None` if there was
    /// none since the start.
    pub fn snapshot(&self) -> Option<(TraceStatus, Vec<(u64, Event)>)> {
        let run = self.run.lock().clone()?;
        let (packed, names) = (run.ring.snapshot(), Table::now());
        let mut events: Vec<(u64, Event)> =
            packed.into_iter().map(|(ticket, it)| (ticket, Packed(it).event(&names))).collect();
        events.sort_by_key(|(_, event)| event.start_ns.saturating_add(event.took_ns));
        let ended = run.ended.get().copied();
        let end = ended.unwrap_or_else(|| self.clock.monotonic());
        let status = TraceStatus {
            on: ended.is_none(),
            since: run.since,
            elapsed_ns: nanos(end.saturating_sub(run.begun)),
            capacity: run.ring.capacity() as u64,
            kept: events.len() as u64,
            overwritten: self.recorded(&run).saturating_sub(events.len() as u64),
        };
        Some((status, events))
    }

    /// How many events a trace has recorded.
    fn recorded(&self, run: &Arc<Run>) -> u64 {
        let of_run = |places: &Places| places.run.as_ref().is_some_and(|it| Arc::ptr_eq(it, run));
        let unused_in = |lane: &Lane| {
            let places = lane.0.lock();
            if of_run(&places) { unused(&places.tickets) } else { 0 }
        };
        let unused: u64 = self.lanes.iter().map(unused_in).sum();
        run.ring.taken().saturating_sub(unused).saturating_sub(run.skipped.load(Relaxed))
    }

    /// The names of what the events name by number. `nsds` has those of the NSDs.
    pub fn labels(&self, events: &[(u64, Event)], nsds: BTreeMap<NsdId, String>) -> Labels {
        let names = self.names.lock();
        let mut labels = Labels { nsds, ..Labels::default() };
        for cause in events.iter().map(|(_, event)| event.cause) {
            if let Some(process) = names.processes.get(&cause.process) {
                labels.processes.entry(cause.process).or_insert_with(|| process.name.clone());
            }
            if !labels.files.contains_key(&cause.inode)
                && let Some(path) = names.path(cause.inode)
            {
                labels.files.insert(cause.inode, path);
            }
        }
        labels
    }
}

impl Names {
    /// The path of a file from the root on. `None` if not even its own name is known.
    fn path(&self, inode: u64) -> Option<String> {
        if inode == Ino::ROOT.0 {
            return Some("/".to_owned());
        }
        let mut parts = Vec::new();
        let mut at = inode;
        while at != Ino::ROOT.0 && parts.len() < DEPTH_MAX {
            let Some((parent, name)) = self.files.get(&at) else { break };
            parts.push(printable(name));
            at = *parent;
        }
        if parts.is_empty() {
            return None;
        }
        parts.push(if at == Ino::ROOT.0 { "" } else { "…" }.to_owned());
        parts.reverse();
        Some(parts.join("/"))
    }
}

/// A name without the characters that would change the terminal.
fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.chars()
        .flat_map(|it| if it.is_control() { it.escape_default().collect() } else { vec![it] })
        .collect()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How far a trace is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStatus {
    /// Whether it runs.
    pub on: bool,
    /// When it was started, by the calendar.
    pub since: Timestamp,
    /// How long it has run.
    pub elapsed_ns: u64,
    /// How many events it can keep.
    pub capacity: u64,
    /// How many events it keeps now.
    pub kept: u64,
    /// How many earlier events have made room for later ones.
    pub overwritten: u64,
}

/// The names of what events name by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// The names of processes.
    pub processes: BTreeMap<u32, String>,
    /// The paths of files, from the root of the file system on.
    pub files: BTreeMap<u64, String>,
    /// The names of NSDs.
    pub nsds: BTreeMap<NsdId, String>,
}

impl Labels {
    /// How a process is shown: `dd 1234`.
    pub fn process(&self, process: u32) -> String {
        match self.processes.get(&process).filter(|name| !name.is_empty()) {
            Some(name) => format!("{name} {process}"),
            None => format!("process {process}"),
        }
    }

    /// How a file is shown: its path, or `inode 12`.
    pub fn file(&self, inode: u64) -> String {
        self.files.get(&inode).cloned().unwrap_or_else(|| format!("inode {inode}"))
    }

    /// How an NSD is shown.
    pub fn nsd(&self, nsd: NsdId) -> String {
        self.nsds.get(&nsd).cloned().unwrap_or_else(|| format!("NSD {nsd}"))
    }
}

/// An event as programs get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceEvent {
    /// Its number. Numbers rise in the order in which events ended.
    pub number: u64,
    /// What it was.
    pub operation: String,
    /// When it began, in nanoseconds since the trace began.
    pub start_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The request that it is part of; 0 if it is of none.
    pub request: u64,
    /// The file that the request names; 0 if none.
    pub inode: u64,
    /// The process that made the request; 0 if none.
    pub process: u32,
    /// The NSD concerned.
    pub nsd: Option<NsdId>,
    /// The number of the thread that did it.
    pub thread: u32,
    /// That thread's name.
    pub thread_name: String,
    /// Whether it failed.
    pub failed: bool,
}

impl TraceEvent {
    /// The event with this number.
    pub fn of(number: u64, event: &Event) -> TraceEvent {
        TraceEvent {
            number,
            operation: event.operation.to_owned(),
            start_ns: event.start_ns,
            took_ns: event.took_ns,
            bytes: event.bytes,
            request: event.cause.request,
            inode: event.cause.inode,
            process: event.cause.process,
            nsd: event.nsd,
            thread: event.thread.number,
            thread_name: event.thread.name().to_owned(),
            failed: event.failed,
        }
    }
}

#[cfg(test)]
#[path = "trace_test.rs"]
mod trace_test;
