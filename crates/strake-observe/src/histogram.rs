//! A log-linear histogram of durations in nanoseconds, recorded with atomic additions.
//!
//! Below 16 ns every value has its own bucket; above, each power of two is cut into 16 equal
//! buckets, so that a bucket is at most 1/16 of its values wide, from nanoseconds to centuries,
//! in 976 buckets (8 KiB). Recording is three atomic operations without a loop over anything; a
//! snapshot taken meanwhile may miss the durations being recorded at that moment and nothing
//! else.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Linear steps per power of two: percentiles are exact to 6.25 %, enough to see any change.
const STEPS: usize = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// The histogram. Recording never blocks.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let shift = 63 - STEP_BITS - value.leading_zeros();
    (shift as usize) * STEPS + (value >> shift) as usize
}

/// The smallest value of a bucket.
fn bucket_start(index: usize) -> u64 {
    if index < 2 * STEPS {
        return index as u64;
    }
    let shift = index / STEPS - 1;
    ((index % STEPS + STEPS) as u64) << shift
}

/// The largest value of the bucket that holds `value`.
fn bucket_end(value: u64) -> u64 {
    match bucket(value) + 1 {
        BUCKETS => u64::MAX,
        next => bucket_start(next) - 1,
    }
}

impl Histogram {
    /// Empty.
    pub fn new() -> Histogram {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
        self.max.fetch_max(nanos, Relaxed);
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut counts = Vec::new();
        for (index, count) in self.buckets.iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                counts.push((bucket_start(index), count));
            }
        }
        HistogramSnapshot { counts, sum: self.sum.load(Relaxed), max: self.max.load(Relaxed) }
    }
}

/// A histogram's contents as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// Smallest value of a bucket in nanoseconds, and how many fell into it; ascending, none empty.
    pub counts: Vec<(u64, u64)>,
    /// Nanoseconds in all.
    pub sum: u64,
    /// The longest in nanoseconds.
    pub max: u64,
}

impl HistogramSnapshot {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// The duration that `percent` of all (0..=100) did not exceed, rounded up to the end of its
    /// bucket but never above the longest; zero if there is none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (start, count) in &self.counts {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(bucket_end(*start).min(self.max));
            }
        }
        Duration::from_nanos(self.max)
    }

    /// The mean; zero if there is none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        let mut sums: std::collections::BTreeMap<u64, u64> = self.counts.iter().copied().collect();
        for (start, count) in &other.counts {
            *sums.entry(*start).or_insert(0) += count;
        }
        self.counts = sums.into_iter().collect();
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    #[test]
    fn buckets_are_contiguous_and_hold_their_values() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(bucket_start(index)), index);
            assert_eq!(bucket(bucket_start(index + 1) - 1), index);
            assert_eq!(bucket_end(bucket_start(index)) + 1, bucket_start(index + 1));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_end(u64::MAX), u64::MAX);
    }

    #[test]
    fn percentiles_stay_within_a_sixteenth_of_sorted_durations() {
        let mut rng = Rng::new(5);
        for round in 0..50 {
            let (left, right) = (Histogram::new(), Histogram::new());
            let mut model: Vec<u64> =
                (0..1 + rng.below(500)).map(|_| rng.next_u64() >> (10 + rng.below(54))).collect();
            for (index, nanos) in model.iter().enumerate() {
                let half = if index % 2 == 0 { &left } else { &right };
                half.record(Duration::from_nanos(*nanos));
            }
            let mut merged = left.snapshot();
            merged.merge(&right.snapshot());
            model.sort_unstable();
            assert_eq!(merged.count(), model.len() as u64);
            assert_eq!(merged.max, *model.last().expect("at least one"));
            let mean =
                model.iter().map(|nanos| u128::from(*nanos)).sum::<u128>() / model.len() as u128;
            assert_eq!(merged.mean().as_nanos(), mean);
            for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 100.0] {
                let rank = ((model.len() as f64 * percent / 100.0).ceil() as usize).max(1);
                let exact = model[rank - 1];
                let got = merged.percentile(percent).as_nanos() as u64;
                assert!(
                    got >= exact && got - exact <= exact / 16,
                    "round {round}: {percent} % is {exact}, got {got}"
                );
            }
        }
        assert_eq!(Histogram::new().snapshot().percentile(50.0), Duration::ZERO);
        assert_eq!(Histogram::new().snapshot().mean(), Duration::ZERO);
    }

    #[test]
    fn threads_count_everything() {
        let histogram = Histogram::new();
        strake_env::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|at| histogram.record(Duration::from_nanos(at))));
            }
        });
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.sum), (4000, 4 * 499_500));
    }
}
