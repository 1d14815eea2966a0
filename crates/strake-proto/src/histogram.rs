//! A histogram of durations in buckets of constant relative width.
//!
//! Below 32 ns every value has its own bucket. Above, each power of two is cut into 32 equal
//! buckets. A percentile is therefore at most 1/32 (3.2 %) above the exact value. This takes 1,920
//! buckets (15 KiB). Histograms of tasks, threads and hosts can be added without loss. Percentiles
//! could not.
//!
//! One thread counts with [`Histogram::add`]. `strake-observe` counts from many threads with atomic
//! additions, in the same buckets, through [`bucket_of`] and [`Histogram::from_counts`].

use serde::{Deserialize, Serialize};

/// Buckets per power of two.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// The number of buckets: 32 below 32 ns, then 32 for each of the 59 higher powers of two.
pub const BUCKETS: usize = (STEPS + (64 - STEP_BITS as u64) * STEPS) as usize;

/// A histogram of nanoseconds with exact count, sum, least, greatest and sum of squares.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Sparse", into = "Sparse")]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    sum_of_squares: f64,
    min_ns: u64,
    max_ns: u64,
}

impl std::fmt::Debug for Histogram {
    /// Leaves out the buckets, which are two thousand numbers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("mean_ns", &self.mean_ns())
            .field("max_ns", &self.max_ns)
            .finish_non_exhaustive()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS],
            count: 0,
            sum_ns: 0,
            sum_of_squares: 0.0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Histogram {
    /// Counts one operation.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(nanos);
        self.sum_of_squares += nanos as f64 * nanos as f64;
        self.min_ns = self.min_ns.min(nanos);
        self.max_ns = self.max_ns.max(nanos);
    }

    /// A histogram of durations that were counted elsewhere: the count of each bucket, the sum, and
    /// the greatest. The least is the start of its bucket, and the deviation is that of the
    /// buckets' middles.
    pub fn from_counts(counts: impl Iterator<Item = u64>, sum_ns: u64, max_ns: u64) -> Histogram {
        let mut histogram = Histogram { max_ns, ..Histogram::default() };
        for (bucket, count) in counts.enumerate().filter(|(_, count)| *count > 0) {
            let (start, end) = (start_of(bucket), end_of(bucket).min(max_ns));
            let middle = (start as f64 + end as f64) / 2.0;
            histogram.buckets[bucket] = count;
            histogram.count += count;
            histogram.sum_of_squares += middle * middle * count as f64;
            histogram.min_ns = histogram.min_ns.min(start);
            // A duration that is being recorded right now may be in its bucket and not yet in the
            // greatest.
            histogram.max_ns = histogram.max_ns.max(start);
        }
        histogram.sum_ns = u128::from(sum_ns);
        histogram
    }

    /// Adds all of another's operations.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.sum_of_squares += other.sum_of_squares;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All latencies together, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        u64::try_from(self.sum_ns).unwrap_or(u64::MAX)
    }

    /// The greatest latency, 0 if nothing was counted.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The least latency, 0 if nothing was counted.
    pub fn min_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min_ns }
    }

    /// The arithmetic mean in nanoseconds, 0 if nothing was counted.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum_ns as f64 / self.count as f64
    }

    /// The standard deviation (of the population) in nanoseconds.
    pub fn deviation_ns(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mean = self.mean_ns();
        (self.sum_of_squares / self.count as f64 - mean * mean).max(0.0).sqrt()
    }

    /// The latency that `fraction` of the operations did not exceed: the upper end of its
    /// bucket, but never above the greatest.
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        let wanted = (fraction * self.count as f64).ceil().max(1.0) as u64;
        let mut passed = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            passed += count;
            if passed >= wanted {
                return end_of(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// Operations per millisecond step `(milliseconds, count)`, empty steps left out: the rows
    /// that a network test prints.
    pub fn by_millisecond(&self) -> Vec<(u64, u64)> {
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for (bucket, &count) in self.buckets.iter().enumerate() {
            let ms = end_of(bucket).min(self.max_ns) / 1_000_000;
            match rows.last_mut() {
                _ if count == 0 => {}
                Some(row) if row.0 == ms => row.1 += count,
                _ => rows.push((ms, count)),
            }
        }
        rows
    }

    /// Asserts the invariants between the parts.
    pub fn check(&self) {
        assert_eq!(self.buckets.len(), BUCKETS);
        assert_eq!(self.buckets.iter().sum::<u64>(), self.count);
        if self.count > 0 {
            assert!(self.min_ns <= self.max_ns);
            assert!(self.mean_ns() >= self.min_ns as f64 - 0.5);
            assert!(self.mean_ns() <= self.max_ns as f64 + 0.5);
        }
    }
}

/// The bucket that counts a duration.
#[inline]
pub fn bucket_of(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let magnitude = 63 - nanos.leading_zeros();
    let step = nanos >> (magnitude - STEP_BITS);
    (u64::from(magnitude - STEP_BITS) * STEPS + step) as usize
}

/// The smallest value that falls into a bucket.
fn start_of(bucket: usize) -> u64 {
    bucket.checked_sub(1).map_or(0, |before| end_of(before) + 1)
}

/// The largest value that falls into a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let step = STEPS + bucket % STEPS;
    // The last bucket ends at 2^64, which needs more than 64 bits.
    u64::try_from(((u128::from(step) + 1) << shift) - 1).unwrap_or(u64::MAX)
}

/// The form of a histogram in messages and JSON. It has only the buckets in use, each with its
/// smallest duration and its count.
#[derive(Serialize, Deserialize)]
struct Sparse {
    counts: Vec<(u64, u64)>,
    sum_ns: u64,
    sum_of_squares: f64,
    min_ns: u64,
    max_ns: u64,
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Sparse {
        let used = histogram.buckets.iter().enumerate();
        Sparse {
            counts: used
                .filter(|(_, count)| **count > 0)
                .map(|(bucket, count)| (start_of(bucket), *count))
                .collect(),
            sum_ns: histogram.sum_ns(),
            sum_of_squares: histogram.sum_of_squares,
            min_ns: histogram.min_ns(),
            max_ns: histogram.max_ns,
        }
    }
}

impl TryFrom<Sparse> for Histogram {
    type Error = String;

    fn try_from(sparse: Sparse) -> Result<Self, String> {
        let mut histogram = Histogram::default();
        for (start, count) in sparse.counts {
            let bucket = bucket_of(start);
            if start_of(bucket) != start {
                return Err(format!("no bucket of a histogram begins at {start}"));
            }
            let slot = &mut histogram.buckets[bucket];
            *slot = slot.checked_add(count).ok_or("histogram count overflows")?;
            histogram.count =
                histogram.count.checked_add(count).ok_or("histogram count overflows")?;
        }
        if histogram.count > 0 {
            histogram.sum_ns = u128::from(sparse.sum_ns);
            histogram.sum_of_squares = sparse.sum_of_squares;
            histogram.min_ns = sparse.min_ns;
            histogram.max_ns = sparse.max_ns;
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marsaglia's xorshift: this crate has no other randomness.
    struct Dice(u64);

    impl Dice {
        fn new(seed: u64) -> Dice {
            Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
        }

        fn roll(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.roll() % bound
        }
    }

    #[test]
    fn buckets_partition_all_nanoseconds() {
        let mut last = None;
        for bucket in 0..BUCKETS {
            let end = end_of(bucket);
            assert_eq!(bucket_of(end), bucket);
            if let Some(last) = last {
                assert!(end > last);
                assert_eq!(bucket_of(last + 1), bucket);
            }
            last = Some(end);
        }
        assert_eq!(last, Some(u64::MAX));
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_sorted_list() {
        for seed in 0..50 {
            let mut dice = Dice::new(seed);
            let mut histogram = Histogram::default();
            let mut list: Vec<u64> = (0..1 + dice.below(3_000))
                .map(|_| {
                    let bits = dice.below(40);
                    dice.roll() >> (63 - bits)
                })
                .collect();
            list.iter().for_each(|&nanos| histogram.add(nanos));
            histogram.check();
            list.sort_unstable();
            for fraction in [0.0, 0.5, 0.95, 0.99, 0.999, 1.0] {
                let rank = ((fraction * list.len() as f64).ceil() as usize).max(1);
                let exact = list[rank - 1];
                let found = histogram.quantile_ns(fraction);
                assert!(
                    exact <= found && found as f64 <= exact as f64 * (1.0 + 1.0 / 32.0) + 1.0,
                    "seed {seed}: {fraction} is {exact}, found {found}"
                );
            }
        }
    }

    #[test]
    fn merged_and_transported_histograms_are_equal_to_one() {
        let mut dice = Dice::new(3);
        let (mut one, mut parts) = (Histogram::default(), Histogram::default());
        for _ in 0..7 {
            let mut part = Histogram::default();
            for _ in 0..dice.below(500) {
                let nanos = dice.below(1 << 30);
                one.add(nanos);
                part.add(nanos);
            }
            let bytes = postcard::to_allocvec(&part).expect("plain data");
            let back: Histogram = postcard::from_bytes(&bytes).expect("as sent");
            assert_eq!((&back.buckets, back.sum_ns), (&part.buckets, part.sum_ns));
            parts.merge(&back);
        }
        parts.check();
        assert_eq!(parts.buckets, one.buckets);
        assert_eq!((parts.min_ns(), parts.max_ns()), (one.min_ns(), one.max_ns()));
        assert!((parts.deviation_ns() - one.deviation_ns()).abs() < 1.0);
    }

    #[test]
    fn mean_and_deviation_by_hand() {
        let mut histogram = Histogram::default();
        for nanos in [2, 4, 4, 4, 5, 5, 7, 9] {
            histogram.add(nanos);
        }
        assert_eq!(histogram.mean_ns(), 5.0);
        assert_eq!(histogram.deviation_ns(), 2.0);
        let empty = Histogram::default();
        assert_eq!((empty.mean_ns(), empty.quantile_ns(0.5), empty.min_ns()), (0.0, 0, 0));
    }

    #[test]
    fn counts_from_elsewhere_keep_sum_and_percentiles() {
        let mut dice = Dice::new(9);
        let mut one = Histogram::default();
        (0..2_000).for_each(|_| one.add(dice.below(1 << 35)));
        let counts = one.buckets.iter().copied();
        let other = Histogram::from_counts(counts, one.sum_ns(), one.max_ns());
        other.check();
        assert_eq!((other.count(), other.mean_ns()), (one.count(), one.mean_ns()));
        for fraction in [0.0, 0.5, 0.99, 1.0] {
            assert_eq!(other.quantile_ns(fraction), one.quantile_ns(fraction));
        }
        assert!(other.min_ns() <= one.min_ns() && one.min_ns() <= other.min_ns() * 33 / 32);
        assert!((other.deviation_ns() / one.deviation_ns() - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_malformed_histogram_is_refused() {
        let sparse =
            |counts| Sparse { counts, sum_ns: 0, sum_of_squares: 0.0, min_ns: 0, max_ns: 0 };
        // 65 lies inside the bucket of 64 and 65.
        assert!(Histogram::try_from(sparse(vec![(65, 1)])).is_err());
        assert!(Histogram::try_from(sparse(vec![(64, u64::MAX), (66, 1)])).is_err());
        assert!(Histogram::try_from(sparse(vec![(64, 1), (66, 1)])).is_ok());
    }
}
