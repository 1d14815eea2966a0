//! Mean, deviation, median, and whether two sets of runs differ by more than their noise.

use serde::{Deserialize, Serialize};

/// Max, min, mean, standard deviation and median of repeated runs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// How many samples.
    pub count: usize,
    /// Greatest.
    pub max: f64,
    /// Least.
    pub min: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (n-1); 0 for one sample.
    pub deviation: f64,
    /// Median.
    pub median: f64,
}

/// Summarises samples; all zeroes where there are none.
pub fn summarize(samples: &[f64]) -> Summary {
    if samples.is_empty() {
        return Summary::default();
    }
    let count = samples.len();
    let mean = samples.iter().sum::<f64>() / count as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Summary {
        count,
        max: sorted[count - 1],
        min: sorted[0],
        mean,
        deviation: if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 },
        median: (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
    }
}

/// The geometric mean of positive figures; 0 if any is not positive or none is given.
pub fn geometric_mean(figures: &[f64]) -> f64 {
    if figures.is_empty() || figures.iter().any(|figure| *figure <= 0.0) {
        return 0.0;
    }
    let logs: f64 = figures.iter().map(|figure| figure.ln()).sum();
    (logs / figures.len() as f64).exp()
}

/// What two sets of runs say about each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// More than noise: the second is greater.
    Greater,
    /// More than noise: the second is less.
    Less,
    /// Not to be told apart from noise.
    Noise,
    /// Too few runs to know the noise.
    Unknown,
}

/// Two-sided 95 % points of Student's t for 1, 2, 3 … degrees of freedom (Fisher and Yates,
/// Statistical Tables, table III). Beyond the table the value of the next lower entry is used,
/// which errs on the side of "noise".
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A smaller relative change than this is of no interest, however certain.
pub const INTERESTING: f64 = 0.02;

/// Welch's test at 95 %: do the means differ by more than the scatter within each set explains?
pub fn difference(before: &[f64], after: &[f64]) -> Difference {
    if before.len() < 2 || after.len() < 2 {
        return Difference::Unknown;
    }
    let (a, b) = (summarize(before), summarize(after));
    let change = b.mean - a.mean;
    if change.abs() <= INTERESTING * a.mean.abs() {
        return Difference::Noise;
    }
    let (va, vb) = (a.deviation.powi(2) / a.count as f64, b.deviation.powi(2) / b.count as f64);
    let error = (va + vb).sqrt();
    // Welch–Satterthwaite, rounded down; without any scatter one degree is as good as many.
    let below = va.powi(2) / (a.count - 1) as f64 + vb.powi(2) / (b.count - 1) as f64;
    let degrees = if below > 0.0 { ((va + vb).powi(2) / below).floor() } else { 1.0 };
    let index = (degrees.clamp(1.0, T_95.len() as f64) as usize) - 1;
    if change.abs() <= T_95[index] * error {
        Difference::Noise
    } else if change > 0.0 {
        Difference::Greater
    } else {
        Difference::Less
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Dice;

    #[test]
    fn summaries_by_hand() {
        let summary = summarize(&[4.0, 2.0, 9.0]);
        assert_eq!((summary.max, summary.min, summary.mean), (9.0, 2.0, 5.0));
        assert_eq!((summary.median, summary.deviation), (4.0, 13f64.sqrt()));
        assert_eq!(summarize(&[1.0, 3.0]).median, 2.0);
        assert_eq!(summarize(&[7.0]).deviation, 0.0);
        assert_eq!(summarize(&[]), Summary::default());
        assert!((geometric_mean(&[1.0, 10.0, 100.0]) - 10.0).abs() < 1e-9);
        assert_eq!(geometric_mean(&[1.0, 0.0]), 0.0);
    }

    #[test]
    fn welch_by_hand() {
        // Means 100 and 110, deviations 1: t = 10 / sqrt(2/3) = 12.2 with 4 degrees, beyond 2.776.
        let before = [99.0, 100.0, 101.0];
        assert_eq!(difference(&before, &[109.0, 110.0, 111.0]), Difference::Greater);
        assert_eq!(difference(&[109.0, 110.0, 111.0], &before), Difference::Less);
        // Means 100 and 103, deviations 3: t = 3 / sqrt(6) = 1.22: noise.
        assert_eq!(difference(&[97.0, 100.0, 103.0], &[100.0, 103.0, 106.0]), Difference::Noise);
        // Certain, but one in a hundred.
        assert_eq!(difference(&[100.0, 100.0], &[101.0, 101.0]), Difference::Noise);
        assert_eq!(difference(&[100.0, 100.0], &[110.0, 110.0]), Difference::Greater);
        assert_eq!(difference(&[1.0], &[2.0, 2.0]), Difference::Unknown);
    }

    #[test]
    fn runs_of_one_system_are_seldom_told_apart() {
        // Sums of dice are near enough to normal; 5 % false alarms are what 95 % promises.
        let mut dice = Dice::new(5);
        let mut run = || 1_000.0 + (0..12).map(|_| dice.below(101) as f64).sum::<f64>();
        let alarms = (0..2_000)
            .filter(|_| {
                let before: Vec<f64> = (0..5).map(|_| run()).collect();
                let after: Vec<f64> = (0..5).map(|_| run()).collect();
                difference(&before, &after) != Difference::Noise
            })
            .count();
        assert!((40..=160).contains(&alarms), "{alarms} alarms in 2000 pairs");
    }
}
