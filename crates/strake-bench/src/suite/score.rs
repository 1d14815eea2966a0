//! One number, in the manner of the IO500 list: pure.
//!
//! `√(geometric mean of four bandwidths in GiB/s × geometric mean of eight rates in thousands
//! per second)`. The phases resemble those of the list, but are shorter and on one host, so this
//! number compares runs of this suite with each other and with nothing else.

use serde::{Deserialize, Serialize};

use super::stages::Results;
use crate::statistics::geometric_mean;

/// The bandwidth stages of the score.
pub const BANDWIDTHS: [&str; 4] = ["easy write", "easy read", "hard write", "hard read"];
/// The rate stages of the score.
pub const RATES: [&str; 8] = [
    "md easy create",
    "md easy stat",
    "md easy remove",
    "md hard create",
    "md hard stat",
    "md hard read",
    "md hard remove",
    "find",
];

/// The number and its parts, per repetition.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// The number.
    pub samples: Vec<f64>,
    /// Geometric mean of the bandwidths, GiB/s.
    pub bandwidth: Vec<f64>,
    /// Geometric mean of the rates, thousands per second.
    pub rate: Vec<f64>,
}

/// The score of each repetition that has all its stages.
pub fn score(results: &Results) -> Score {
    let repetitions = results.stages.iter().map(|stage| stage.samples.len()).max().unwrap_or(0);
    let mut score = Score::default();
    for repetition in 0..repetitions {
        let of = |names: &[&str], unit: f64| -> Option<Vec<f64>> {
            let figures = names.iter().map(|name| {
                let stage = results.stages.iter().find(|stage| stage.name == *name)?;
                Some(stage.samples.get(repetition)? / unit)
            });
            figures.collect()
        };
        if let (Some(bandwidths), Some(rates)) = (of(&BANDWIDTHS, 1024.0), of(&RATES, 1000.0)) {
            let (bandwidth, rate) = (geometric_mean(&bandwidths), geometric_mean(&rates));
            score.bandwidth.push(bandwidth);
            score.rate.push(rate);
            score.samples.push((bandwidth * rate).sqrt());
        }
    }
    score
}

#[cfg(test)]
mod tests {
    use super::super::stages::tests::results;
    use super::*;

    #[test]
    fn score_by_hand() {
        // Four bandwidths of 1, 2, 4 and 8 GiB/s: geometric mean 2^1.5. Eight rates of 8,000 per
        // second: mean 8. The square root of their product: √(8 · 2^1.5) = 2^2.25.
        let mut results = results();
        for (index, name) in BANDWIDTHS.iter().enumerate() {
            results.set(name, vec![1024.0 * f64::from(1 << index)]);
        }
        for name in RATES {
            results.set(name, vec![8_000.0]);
        }
        let found = score(&results);
        assert!((found.samples[0] - 2f64.powf(2.25)).abs() < 1e-9);
        assert!((found.bandwidth[0] - 2f64.powf(1.5)).abs() < 1e-9);
        assert!((found.rate[0] - 8.0).abs() < 1e-9);
        results.stages.retain(|stage| stage.name != "find");
        assert!(score(&results).samples.is_empty(), "no score without all its parts");
    }
}
