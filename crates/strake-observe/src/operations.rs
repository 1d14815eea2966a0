//! A histogram, a failure count and a byte count for each named operation. `strake diag stats`
//! prints them. Callers fetch an operation's counters once and keep the handle. Recording then
//! takes two readings of the clock and a few atomic additions. While a trace runs, each operation
//! is one of its events.

use crate::histogram::Recorder;
use crate::trace::{Occurrence, Trace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::RwLock;
use strake_proto::histogram::Histogram;

/// The counters of one operation. Get it once with [`OperationStats::operation`], record often.
pub struct Operation {
    name: &'static str,
    clock: Arc<dyn Clock>,
    trace: Arc<Trace>,
    /// The count of all operations that have begun.
    begun: Arc<AtomicU64>,
    histogram: Recorder,
    failures: AtomicU64,
    bytes: AtomicU64,
}

impl Operation {
    /// Takes the time before the operation.
    pub fn begin(&self) -> Duration {
        self.begun.fetch_add(1, Relaxed);
        self.clock.monotonic()
    }

    /// Counts the operation that began at `start` and has just ended. Returns how long it took.
    pub fn end(&self, start: Duration, bytes: u64, succeeded: bool) -> Duration {
        let took = self.clock.monotonic().saturating_sub(start);
        self.histogram.record(took);
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Relaxed);
        }
        if !succeeded {
            self.failures.fetch_add(1, Relaxed);
        }
        let (operation, failed) = (self.name, !succeeded);
        self.trace.note(&Occurrence { operation, begun: start, took, bytes, nsd: None, failed });
        took
    }

    /// Runs and counts `work`; `Err` is a failure.
    pub fn run<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = self.begin();
        let result = work();
        self.end(start, 0, result.is_ok());
        result
    }
}

/// The operations of a process by name.
pub struct OperationStats {
    clock: Arc<dyn Clock>,
    trace: Arc<Trace>,
    begun: Arc<AtomicU64>,
    table: RwLock<BTreeMap<&'static str, Arc<Operation>>>,
}

impl OperationStats {
    /// A registry without operations.
    pub fn new(clock: Arc<dyn Clock>, trace: Arc<Trace>) -> OperationStats {
        OperationStats { clock, trace, begun: Arc::default(), table: RwLock::default() }
    }

    /// The counters of `name`, made at the first call.
    pub fn operation(&self, name: &'static str) -> Arc<Operation> {
        if let Some(found) = self.table.read().get(name) {
            return Arc::clone(found);
        }
        let mut table = self.table.write();
        let made = table.entry(name).or_insert_with(|| {
            Arc::new(Operation {
                name,
                clock: Arc::clone(&self.clock),
                trace: Arc::clone(&self.trace),
                begun: Arc::clone(&self.begun),
                histogram: Recorder::new(),
                failures: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
            })
        });
        Arc::clone(made)
    }

    /// How many operations of all names have begun. While it does not change, no operation begins.
    pub fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// The sums of all operations that ran at least once, by name. They cost less than a
    /// [`OperationStats::snapshot`].
    pub fn sums(&self) -> Vec<OperationSums> {
        let table = self.table.read();
        let all = table.values().map(|operation| OperationSums {
            name: operation.name,
            count: operation.histogram.count(),
            failures: operation.failures.load(Relaxed),
            bytes: operation.bytes.load(Relaxed),
            nanos: operation.histogram.sum_ns(),
        });
        all.filter(|sums| sums.count > 0).collect()
    }

    /// All operations that ran at least once, by name.
    pub fn snapshot(&self) -> Vec<OperationSnapshot> {
        let table = self.table.read();
        let all = table.iter().map(|(name, operation)| OperationSnapshot {
            name: (*name).to_owned(),
            failures: operation.failures.load(Relaxed),
            bytes: operation.bytes.load(Relaxed),
            durations: operation.histogram.snapshot(),
        });
        all.filter(|operation| operation.durations.count() > 0).collect()
    }
}

/// The sums of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationSums {
    /// Its name.
    pub name: &'static str,
    /// How often it ran.
    pub count: u64,
    /// How often it failed.
    pub failures: u64,
    /// Bytes moved, if it moves any.
    pub bytes: u64,
    /// The time of all runs in nanoseconds.
    pub nanos: u64,
}

/// The counters of one operation as plain data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationSnapshot {
    /// Its name.
    pub name: String,
    /// How many failed.
    pub failures: u64,
    /// Bytes moved, if the operation moves any.
    pub bytes: u64,
    /// How long each took.
    pub durations: Histogram,
}

/// Prints a line for each operation. Durations are in milliseconds.
///
/// # Errors
/// Those of `out`.
pub fn print_operations(out: &mut dyn fmt::Write, operations: &[OperationSnapshot]) -> fmt::Result {
    writeln!(
        out,
        "{:<20} {:>10} {:>8} {:>14} {:>10} {:>10} {:>10} {:>10}",
        "operation", "count", "failed", "bytes", "mean ms", "p50 ms", "p99 ms", "max ms"
    )?;
    for operation in operations {
        let durations = &operation.durations;
        let ms = |nanos: u64| nanos as f64 / 1e6;
        writeln!(
            out,
            "{:<20} {:>10} {:>8} {:>14} {:>10.3} {:>10.3} {:>10.3} {:>10.3}",
            operation.name,
            durations.count(),
            operation.failures,
            operation.bytes,
            durations.mean_ns() / 1e6,
            ms(durations.quantile_ns(0.5)),
            ms(durations.quantile_ns(0.99)),
            ms(durations.max_ns()),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::ManualClock;

    #[test]
    fn operations_are_counted_by_name_with_their_failures_and_bytes() {
        let clock = Arc::new(ManualClock::default());
        let trace = Arc::new(Trace::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let stats = OperationStats::new(Arc::clone(&clock) as Arc<dyn Clock>, trace);
        let read = stats.operation("read");
        for (millis, bytes, succeeded) in [(1, 4096, true), (3, 0, false)] {
            let start = read.begin();
            clock.advance(Duration::from_millis(millis));
            stats.operation("read").end(start, bytes, succeeded);
        }
        let failed: Result<(), ()> = stats.operation("mkdir").run(|| Err(()));
        assert_eq!(failed, Err(()));
        stats.operation("never");

        let listed = stats.snapshot();
        let seen: Vec<_> = listed
            .iter()
            .map(|operation| (operation.name.as_str(), operation.failures, operation.bytes))
            .collect();
        assert_eq!(seen, [("mkdir", 1, 0), ("read", 1, 4096)]);
        let read =
            OperationSums { name: "read", count: 2, failures: 1, bytes: 4096, nanos: 4_000_000 };
        assert_eq!(stats.sums()[1], read);
        assert_eq!(listed[1].durations.mean_ns(), 2e6);
        let mut text = String::new();
        print_operations(&mut text, &listed).expect("a string takes all");
        assert!(text.lines().nth(2).expect("read's line").starts_with("read  "));
        assert!(text.contains(" 2.000 ") && text.contains(" 3.000\n"), "{text}");
    }
}
