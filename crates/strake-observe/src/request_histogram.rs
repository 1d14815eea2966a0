//! How many reads and writes there were of each size, and how long they took: the histograms that
//! `strake mon` shows as `rhist`. Nothing is counted before somebody turns them on.
//!
//! A *pattern* has the upper ends of the ranges of sizes and of latencies. The last range of each
//! is open. Recording takes a shared lock and one relaxed addition. While the histograms are off it
//! is one relaxed load.

use crate::iohist::IoDirection;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_env::sync::RwLock;

/// A pattern has at most so many ends of ranges of each kind.
pub const RANGES_MAX: usize = 15;

/// The upper ends of the ranges of sizes and of latencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pattern {
    /// In bytes, ascending. Each belongs to the range that it ends.
    pub sizes: Vec<u64>,
    /// In tenths of a millisecond, ascending. Each belongs to the range that it ends.
    pub latencies: Vec<u64>,
}

impl Default for Pattern {
    fn default() -> Pattern {
        Pattern {
            sizes: (8..=20).map(|power| (1 << power) - 1).collect(),
            latencies: vec![10, 100, 300, 1000, 2000, 4000, 8000],
        }
    }
}

/// A range: its ends, and `None` for the end of an open one.
pub type Range = (u64, Option<u64>);

fn ranges(ends: &[u64]) -> Vec<Range> {
    let starts = std::iter::once(0).chain(ends.iter().map(|end| end + 1));
    starts.zip(ends.iter().map(|end| Some(*end)).chain(std::iter::once(None))).collect()
}

impl Pattern {
    /// A pattern with these ends of ranges. `None` unless both are ascending, above 0, and not too
    /// many.
    pub fn new(sizes: Vec<u64>, latencies: Vec<u64>) -> Option<Pattern> {
        let is_good = |ends: &[u64]| {
            (1..=RANGES_MAX).contains(&ends.len())
                && ends[0] > 0
                && ends.is_sorted_by(|one, next| one < next)
                && ends.iter().all(|end| *end < u64::MAX / 1_000_000)
        };
        (is_good(&sizes) && is_good(&latencies)).then_some(Pattern { sizes, latencies })
    }

    /// The ranges of sizes, in bytes.
    pub fn size_ranges(&self) -> Vec<Range> {
        ranges(&self.sizes)
    }

    /// The ranges of latencies, in tenths of a millisecond.
    pub fn latency_ranges(&self) -> Vec<Range> {
        ranges(&self.latencies)
    }

    /// Where a request is counted, among those of its direction.
    fn place(&self, bytes: u64, took: Duration) -> usize {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let size = self.sizes.partition_point(|end| *end < bytes);
        let latency = self.latencies.partition_point(|end| end * 100_000 < nanos);
        size * (self.latencies.len() + 1) + latency
    }

    fn places(&self) -> usize {
        (self.sizes.len() + 1) * (self.latencies.len() + 1)
    }
}

/// The counts of reads and of writes.
struct Counts {
    reads: Vec<AtomicU64>,
    writes: Vec<AtomicU64>,
}

impl Counts {
    fn new(pattern: &Pattern) -> Counts {
        let zeros = || (0..pattern.places()).map(|_| AtomicU64::new(0)).collect();
        Counts { reads: zeros(), writes: zeros() }
    }
}

#[derive(Default)]
struct State {
    pattern: Pattern,
    /// `None` before they are turned on for the first time.
    counts: Option<Counts>,
}

/// See the file's head.
#[derive(Default)]
pub struct RequestHistograms {
    on: AtomicBool,
    state: RwLock<State>,
}

impl RequestHistograms {
    /// Counts a request, if the histograms are on.
    #[inline]
    pub fn record(&self, direction: IoDirection, bytes: u64, took: Duration) {
        if !self.on.load(Relaxed) {
            return;
        }
        let state = self.state.read();
        let Some(counts) = &state.counts else { return };
        let counts = match direction {
            IoDirection::Read => &counts.reads,
            IoDirection::Write => &counts.writes,
        };
        counts[state.pattern.place(bytes, took)].fetch_add(1, Relaxed);
    }

    /// Does what is asked, and returns the histograms as they are then.
    pub fn control(&self, order: &HistogramOrder) -> RequestHistogramView {
        let mut state = self.state.write();
        match order {
            HistogramOrder::On => {
                let counts = state.counts.take().unwrap_or_else(|| Counts::new(&state.pattern));
                state.counts = Some(counts);
                self.on.store(true, Relaxed);
            }
            HistogramOrder::Off => self.on.store(false, Relaxed),
            HistogramOrder::Reset => {
                state.counts = state.counts.take().map(|_| Counts::new(&state.pattern));
            }
            HistogramOrder::Ranges(pattern) => {
                self.on.store(false, Relaxed);
                state.counts = state.counts.take().map(|_| Counts::new(pattern));
                state.pattern = pattern.clone();
            }
            HistogramOrder::Show => {}
        }
        let load = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Relaxed)).collect();
        RequestHistogramView {
            on: self.on.load(Relaxed),
            pattern: state.pattern.clone(),
            counts: state.counts.as_ref().map(|it| (load(&it.reads), load(&it.writes))),
        }
    }
}

/// What somebody wants of the histograms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HistogramOrder {
    /// Count from now on.
    On,
    /// Count no more. What was counted stays.
    Off,
    /// Set all counts to 0.
    Reset,
    /// Use this pattern. Nothing is counted until they are turned on again.
    Ranges(Pattern),
    /// Only show them.
    Show,
}

/// The histograms as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestHistogramView {
    /// Whether requests are counted.
    pub on: bool,
    /// The ranges.
    pub pattern: Pattern,
    /// The counts of reads and of writes: all latencies of the first range of sizes, then those of
    /// the second one. `None` if they were never on.
    pub counts: Option<(Vec<u64>, Vec<u64>)>,
}

impl RequestHistogramView {
    /// Adds the counts of another file system. False if its pattern is another one.
    #[must_use]
    pub fn add(&mut self, other: &RequestHistogramView) -> bool {
        if self.pattern != other.pattern {
            return false;
        }
        match (&mut self.counts, &other.counts) {
            (Some((reads, writes)), Some((more_reads, more_writes))) => {
                let add = |to: &mut [u64], more: &[u64]| {
                    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
                };
                add(reads, more_reads);
                add(writes, more_writes);
            }
            (counts @ None, more) => *counts = more.clone(),
            (Some(_), None) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iohist::IoDirection::{Read, Write};

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn each_request_is_counted_in_the_range_that_holds_it() {
        let pattern = Pattern::new(vec![512, 1 << 20, 4 << 20], vec![13, 45, 100]).expect("good");
        let expected = [
            (0, Some(512)),
            (513, Some(1 << 20)),
            ((1 << 20) + 1, Some(4 << 20)),
            ((4 << 20) + 1, None),
        ];
        assert_eq!(pattern.size_ranges(), expected);
        assert_eq!(
            pattern.latency_ranges(),
            [(0, Some(13)), (14, Some(45)), (46, Some(100)), (101, None)]
        );
        let histograms = RequestHistograms::default();
        histograms.record(Read, 1, micros(1));
        assert_eq!(histograms.control(&HistogramOrder::Show).counts, None, "they are off");
        histograms.control(&HistogramOrder::Ranges(pattern));
        histograms.record(Read, 1, micros(1));
        histograms.control(&HistogramOrder::On);
        // The place of each, counted by hand: four latencies for each size.
        let requests = [
            (Read, 0, 0, 0),
            (Read, 512, 1300, 0),
            (Read, 513, 1301, 5),
            (Read, 15 << 20, 17_800, 15),
            (Write, 1 << 20, 4500, 5),
            (Write, 1 << 20, 4501, 6),
        ];
        let mut wanted = (vec![0; 16], vec![0; 16]);
        for (direction, bytes, took, place) in requests {
            histograms.record(direction, bytes, micros(took));
            match direction {
                Read => wanted.0[place] += 1,
                Write => wanted.1[place] += 1,
            }
        }
        let mut view = histograms.control(&HistogramOrder::Off);
        assert_eq!((view.on, view.counts.as_ref()), (false, Some(&wanted)));
        histograms.record(Read, 1, micros(1));
        assert_eq!(histograms.control(&HistogramOrder::Show), view);
        assert!(view.add(&view.clone()));
        assert_eq!(view.counts.as_ref().expect("they were on").0[0], 4);

        histograms.control(&HistogramOrder::Reset);
        let zeros = Some((vec![0; 16], vec![0; 16]));
        assert_eq!(histograms.control(&HistogramOrder::On).counts, zeros);
        let other = histograms.control(&HistogramOrder::Ranges(Pattern::default()));
        assert!(!other.on, "new ranges turn them off");
        assert!(!view.add(&other), "other ranges");
    }

    #[test]
    fn a_pattern_is_ascending_and_short() {
        assert!(Pattern::new(vec![1, 2], vec![1]).is_some());
        for (sizes, latencies) in
            [(vec![2, 2], vec![1]), (vec![1], vec![3, 1]), (vec![], vec![1]), (vec![0], vec![1])]
        {
            assert_eq!(Pattern::new(sizes, latencies), None);
        }
        assert!(Pattern::new((1..=15).collect(), vec![1]).is_some());
        assert_eq!(Pattern::new((1..=16).collect(), vec![1]), None);
        assert_eq!(Pattern::new(vec![u64::MAX], vec![1]), None);
        let usual = Pattern::default();
        assert_eq!(Pattern::new(usual.sizes.clone(), usual.latencies.clone()), Some(usual));
    }
}
