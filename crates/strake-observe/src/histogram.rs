//! A histogram that threads record in without a lock.
//!
//! It has the buckets of [`strake_proto::histogram`]. Recording is three relaxed atomic operations
//! without a loop over anything. A snapshot taken meanwhile may miss the durations that are being
//! recorded at that moment, and nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_proto::histogram::{BUCKETS, Histogram, bucket_of};

/// The histogram of one operation. Recording never blocks.
pub(crate) struct Recorder {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Recorder {
    /// An empty histogram.
    pub(crate) fn new() -> Recorder {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Recorder { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub(crate) fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
        self.max.fetch_max(nanos, Relaxed);
    }

    /// How many durations were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// The sum of all durations, in nanoseconds.
    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// A snapshot of the counts so far.
    pub(crate) fn snapshot(&self) -> Histogram {
        let counts = self.buckets.iter().map(|count| count.load(Relaxed));
        Histogram::from_counts(counts, self.sum.load(Relaxed), self.max.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_everything() {
        let recorder = Recorder::new();
        strake_env::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|at| recorder.record(Duration::from_nanos(at))));
            }
        });
        let snapshot = recorder.snapshot();
        snapshot.check();
        assert_eq!(
            (snapshot.count(), snapshot.sum_ns(), snapshot.max_ns()),
            (4000, 1_998_000, 999)
        );
    }

    #[test]
    fn the_longest_duration_has_a_bucket() {
        let recorder = Recorder::new();
        recorder.record(Duration::MAX);
        assert_eq!(recorder.snapshot().max_ns(), u64::MAX);
    }
}
