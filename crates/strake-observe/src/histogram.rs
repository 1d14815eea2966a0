//! A log-linear histogram of durations in nanoseconds, recorded with atomic additions.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Linear steps per power of two: a bucket is at most 1/16 (6.25 %) wide.
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

    /// The duration that `percent` of all (0..=100) did not exceed; zero if there is none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (start, count) in &self.counts {
            seen += count;
            if seen >= rank {
                let index = bucket(*start) + 1;
                return Duration::from_nanos((bucket_start(index) - 1).min(self.max));
            }
        }
        Duration::ZERO
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

    #[test]
    fn buckets_are_contiguous_and_hold_their_values() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(bucket_start(index)), index);
            assert_eq!(bucket(bucket_start(index + 1) - 1), index);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
