//! The last minutes of a process: every few seconds the recorder adds an [`Interval`] with what
//! happened since the one before. `strake diag explain slow`, `strake health` and `strake stat`
//! read it.
//!
//! Intervals are kept for [`KEPT`], and they take [`BYTES_MAX`] at most: then the oldest goes. An
//! interval names the processes and files whose requests took longest; the others count for nobody
//! in particular.

use crate::Observe;
use crate::disk_times::{DiskRow, DiskSums, DiskWork};
use crate::links::LinkSums;
use crate::operations::OperationSums;
use crate::requests::{Account, AccountKey};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_proto::NsdId;

/// The recorder adds an interval this often.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// How long an interval is kept.
pub const KEPT: Duration = Duration::from_secs(600);
/// All intervals together take so many bytes at most.
pub const BYTES_MAX: usize = 8 << 20;
/// An interval names so many processes and files.
const KEYS_MAX: usize = 24;
/// The names of so many processes are read again.
const NAMES_AGAIN: usize = 8;
/// An interval counts as busy if its requests took one part in so many of its time.
const BUSY_PARTS: u64 = 4;

/// The page pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSample {
    /// Bytes that it may take.
    pub budget: u64,
    /// Of these, in use.
    pub used: u64,
    /// Bytes that are not on disk yet.
    pub dirty: u64,
}

/// Processor time since some moment in the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorSample {
    /// Of all processors together, idle or not, in nanoseconds.
    pub all: u64,
    /// In which they were not idle.
    pub busy: u64,
    /// Of this process.
    pub own: u64,
    /// Bytes that the network has received and sent.
    pub network: (u64, u64),
}

impl ProcessorSample {
    fn since(self, earlier: ProcessorSample) -> ProcessorSample {
        let of = |now: u64, then: u64| now.saturating_sub(then);
        ProcessorSample {
            all: of(self.all, earlier.all),
            busy: of(self.busy, earlier.busy),
            own: of(self.own, earlier.own),
            network: (of(self.network.0, earlier.network.0), of(self.network.1, earlier.network.1)),
        }
    }

    fn add(&mut self, more: ProcessorSample) {
        self.all += more.all;
        self.busy += more.busy;
        self.own += more.own;
        self.network.0 += more.network.0;
        self.network.1 += more.network.1;
    }
}

/// What the recorder brings along.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The page pool now.
    pub pool: PoolSample,
    /// Processor time until now.
    pub processor: ProcessorSample,
}

/// What happened in a few seconds.
#[derive(Clone, Debug)]
pub struct Interval {
    /// When it ended.
    pub ended: Duration,
    /// How long it was, in nanoseconds.
    pub nanos: u64,
    /// What programs asked for.
    pub accounts: Vec<(AccountKey, Account)>,
    /// What the disks did, or the calls of NSDs where disks are elsewhere.
    pub disks: Vec<DiskRow>,
    /// The operations that ran.
    pub operations: Vec<OperationSums>,
    /// The events on the way to other nodes.
    pub links: Vec<(String, LinkSums)>,
    /// The page pool at its end.
    pub pool: PoolSample,
    /// Processor time.
    pub processor: ProcessorSample,
}

impl Interval {
    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        let accounts = self
            .accounts
            .iter()
            .map(|(_, account)| size_of::<(AccountKey, Account)>() + account.waits.capacity() * 32);
        let disks = self.disks.iter().map(|(_, _, sums)| {
            size_of::<DiskRow>() + sums.buckets.capacity() * size_of::<(u16, u32)>()
        });
        let operations = self.operations.capacity() * size_of::<OperationSums>();
        let links = self.links.capacity() * (size_of::<(String, LinkSums)>() + 64);
        size_of::<Interval>() + links + accounts.sum::<usize>() + disks.sum::<usize>() + operations
    }
}

/// The sums up to the last interval.
#[derive(Default)]
struct Before {
    at: Duration,
    disks: BTreeMap<(NsdId, DiskWork), DiskSums>,
    operations: BTreeMap<&'static str, OperationSums>,
    links: BTreeMap<String, LinkSums>,
    processor: ProcessorSample,
}

#[derive(Default)]
struct State {
    /// `None` before the first call of [`Recent::record`].
    before: Option<Before>,
    intervals: VecDeque<Interval>,
    bytes: usize,
}

/// See the head of this file.
#[derive(Default)]
pub struct Recent {
    state: Mutex<State>,
}

impl Recent {
    /// Adds what happened since the last call. The first call only takes the sums so far.
    pub fn record(&self, observe: &Observe, sample: &Sample, now: Duration) {
        let mut state = self.state.lock();
        let mut accounts = observe.requests.drain();
        let rows = observe.disks.sums();
        let rows = if rows.is_empty() { observe.calls.sums() } else { rows };
        let operations = observe.operations.sums();
        let links = observe.links.view().into_iter();
        let links: Vec<(String, LinkSums)> =
            links.map(|view| (view.name.clone(), LinkSums::of(&view))).collect();
        let new = Before {
            at: now,
            disks: rows.iter().map(|(nsd, work, sums)| ((*nsd, *work), sums.clone())).collect(),
            links: links.iter().cloned().collect(),
            operations: operations.iter().map(|sums| (sums.name, *sums)).collect(),
            processor: sample.processor,
        };
        let Some(before) = state.before.replace(new) else { return };
        for (key, _) in accounts.iter().take(NAMES_AGAIN) {
            observe.requests.learn_again(key.process);
        }
        if accounts.len() > KEYS_MAX {
            let mut rest = Account::default();
            accounts.drain(KEYS_MAX..).for_each(|(_, account)| rest.add(&account));
            accounts.push((AccountKey::default(), rest));
        }
        let disks = rows.into_iter().map(|(nsd, work, sums)| {
            let sums = before.disks.get(&(nsd, work)).map_or(sums.clone(), |it| sums.since(it));
            (nsd, work, sums)
        });
        let interval = Interval {
            ended: now,
            nanos: nanos(now.saturating_sub(before.at)),
            accounts,
            disks: disks.filter(|(_, _, sums)| sums.count > 0).collect(),
            links: links
                .into_iter()
                .map(|(node, sums)| {
                    let then = before.links.get(&node).copied().unwrap_or_default();
                    (node, sums.since(then))
                })
                .collect(),
            operations: since(&operations, &before.operations),
            pool: sample.pool,
            processor: sample.processor.since(before.processor),
        };
        state.bytes += interval.bytes();
        state.intervals.push_back(interval);
        let oldest = now.saturating_sub(KEPT);
        while let Some(first) = state.intervals.front()
            && (first.ended < oldest || state.bytes > BYTES_MAX)
        {
            let bytes = first.bytes();
            state.bytes -= bytes;
            state.intervals.pop_front();
        }
    }

    /// The intervals that ended in the last `since`, added up. Only requests that `filter` lets
    /// through count.
    pub fn window(&self, since: Duration, now: Duration, filter: Filter) -> Window {
        let state = self.state.lock();
        let from = now.saturating_sub(since);
        let mut window = Window::default();
        for interval in state.intervals.iter().filter(|it| it.ended > from) {
            window.add(interval, filter);
        }
        window
    }

    /// Shows `take` the intervals that ended in the last `since`, the oldest first.
    pub fn each(&self, since: Duration, now: Duration, take: &mut dyn FnMut(&Interval)) {
        let (state, from) = (self.state.lock(), now.saturating_sub(since));
        state.intervals.iter().filter(|it| it.ended > from).for_each(take);
    }

    /// The last interval.
    pub fn last(&self) -> Option<Interval> {
        self.state.lock().intervals.back().cloned()
    }

    /// The bytes that the intervals take.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

/// The operations that ran since `before`.
fn since(
    now: &[OperationSums],
    before: &BTreeMap<&'static str, OperationSums>,
) -> Vec<OperationSums> {
    let ran = now.iter().map(|it| {
        let Some(then) = before.get(it.name) else { return *it };
        OperationSums {
            name: it.name,
            count: it.count.saturating_sub(then.count),
            failures: it.failures.saturating_sub(then.failures),
            bytes: it.bytes.saturating_sub(then.bytes),
            nanos: it.nanos.saturating_sub(then.nanos),
        }
    });
    let mut ran: Vec<OperationSums> = ran.filter(|it| it.count > 0).collect();
    ran.shrink_to_fit();
    ran
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The requests that somebody asks about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Only this process's.
    pub process: Option<u32>,
    /// Only those that name this file or directory.
    pub inode: Option<u64>,
}

impl Filter {
    fn lets_through(&self, key: &AccountKey) -> bool {
        self.process.is_none_or(|it| it == key.process)
            && self.inode.is_none_or(|it| it == key.inode)
    }
}

/// Several intervals, added up.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The time of all of them, in nanoseconds.
    pub nanos: u64,
    /// The time of those in which programs waited much: the *busy* ones. Everything below is of
    /// these, except `pool`, `links` and `all`.
    pub busy: u64,
    /// The requests of all intervals.
    pub all: Account,
    /// The requests.
    pub account: Account,
    /// The same by process and file.
    pub accounts: BTreeMap<AccountKey, Account>,
    /// What the disks did.
    pub disks: BTreeMap<(NsdId, DiskWork), DiskSums>,
    /// The operations.
    pub operations: BTreeMap<&'static str, OperationSums>,
    /// The events on the way to other nodes.
    pub links: BTreeMap<String, LinkSums>,
    /// The page pool at the end.
    pub pool: PoolSample,
    /// Processor time.
    pub processor: ProcessorSample,
}

impl Window {
    /// Adds an interval.
    pub fn add(&mut self, interval: &Interval, filter: Filter) {
        self.nanos += interval.nanos;
        self.pool = interval.pool;
        for (node, sums) in &interval.links {
            self.links.entry(node.clone()).or_default().add(*sums);
        }
        let wanted = || interval.accounts.iter().filter(|(key, _)| filter.lets_through(key));
        let took: u64 = wanted().map(|(_, account)| account.nanos()).sum();
        wanted().for_each(|(_, account)| self.all.add(account));
        if took < interval.nanos / BUSY_PARTS {
            return;
        }
        self.busy += interval.nanos;
        for (key, account) in wanted() {
            self.account.add(account);
            self.accounts.entry(*key).or_default().add(account);
        }
        for (nsd, work, sums) in &interval.disks {
            self.disks.entry((*nsd, *work)).or_default().add(sums);
        }
        for it in &interval.operations {
            let sums = self.operations.entry(it.name).or_insert(OperationSums {
                count: 0,
                failures: 0,
                bytes: 0,
                nanos: 0,
                ..*it
            });
            sums.count += it.count;
            sums.failures += it.failures;
            sums.bytes += it.bytes;
            sums.nanos += it.nanos;
        }
        self.processor.add(interval.processor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{Request, RequestKind};
    use std::sync::Arc;
    use strake_env::answering::Waits;
    use strake_env::{Clock, ManualClock};

    fn ask(observe: &Observe, process: u32, took: Duration) {
        observe.requests.note(&Request {
            process,
            inode: 5,
            kind: RequestKind::Read,
            offset: 0,
            bytes: 100,
            took,
            is_refused: false,
            waits: Waits::NONE,
        });
    }

    #[test]
    fn a_window_has_the_intervals_of_its_time_and_counts_busy_ones_alone() {
        let clock = Arc::new(ManualClock::default());
        let observe = Observe::new(Arc::clone(&clock) as Arc<dyn Clock>, 512);
        let step = |work: &dyn Fn()| {
            work();
            clock.advance(INTERVAL);
            observe.recent.record(&observe, &Sample::default(), clock.monotonic());
        };
        let second = Duration::from_secs(1);
        step(&|| ask(&observe, 9, second));
        step(&|| ask(&observe, 1, second));
        step(&|| ask(&observe, 2, second / 4));
        step(&|| {
            ask(&observe, 1, second);
            observe.disks.of(NsdId(3)).record(DiskWork::Read, second / 8, 4096);
        });
        let window = |since: u64, filter| {
            observe.recent.window(Duration::from_secs(since), clock.monotonic(), filter)
        };
        let all = window(600, Filter::default());
        assert_eq!(all.nanos, 6_000_000_000, "the first call only takes the sums so far");
        assert_eq!(all.busy, 4_000_000_000);
        assert_eq!((all.all.count(), all.account.count()), (3, 2));
        assert_eq!(all.disks[&(NsdId(3), DiskWork::Read)].nanos, 125_000_000);
        let last = window(4, Filter::default());
        assert_eq!((last.nanos, last.account.count()), (4_000_000_000, 1));
        let of = Filter { process: Some(2), inode: None };
        let second = window(600, of);
        assert_eq!((second.all.count(), second.busy), (1, 0));
    }

    #[test]
    fn intervals_are_kept_for_some_minutes_and_within_their_memory() {
        let clock = Arc::new(ManualClock::default());
        let observe = Observe::new(Arc::clone(&clock) as Arc<dyn Clock>, 512);
        for round in 0..1000_u64 {
            for process in 0..2000 {
                ask(&observe, process, Duration::from_nanos(process.into()));
            }
            for nsd in 0..16 {
                let took = Duration::from_nanos(1 << (round % 40));
                observe.disks.of(NsdId(nsd)).record(DiskWork::Write, took, 1);
            }
            clock.advance(INTERVAL);
            observe.recent.record(&observe, &Sample::default(), clock.monotonic());
            assert!(observe.recent.bytes() <= BYTES_MAX);
        }
        let window = observe.recent.window(KEPT * 2, clock.monotonic(), Filter::default());
        assert!(window.nanos <= nanos(KEPT + INTERVAL), "{}", window.nanos);
        assert!(window.nanos >= nanos(KEPT / 2), "{}", window.nanos);
        assert!(window.all.count() >= 2000, "the rest counts too");
    }
}
