//! The machine-readable report that every benchmark writes with `--json`, and that `compare`
//! reads.
//!
//! Format 1, a JSON object:
//!
//! ```text
//! tool      "strake bench"
//! format    1
//! kind      "io", "md", "net", …
//! unix_seconds, hosts [HostFacts], target Target or null
//! settings  what was asked for, by kind
//! metrics   [{name, unit, better: "higher" | "lower", samples: [number]}]
//! detail    everything measured, by kind
//! ```
//!
//! `compare` needs only `metrics`; a name means the same thing in every version.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock;
use crate::error::{BenchError, Result};
use crate::host::{HostFacts, Target};

/// The version of the layout above.
pub const FORMAT: u32 = 1;

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// A rate.
    Higher,
    /// A time.
    Lower,
}

/// One figure with all its repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// What was measured, stable over versions.
    pub name: String,
    /// Unit of the samples.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// One figure per repetition.
    pub samples: Vec<f64>,
}

/// A benchmark's results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// "strake bench".
    pub tool: String,
    /// `FORMAT`.
    pub format: u32,
    /// Which benchmark.
    pub kind: String,
    /// When it ended.
    pub unix_seconds: u64,
    /// Where it ran.
    pub hosts: Vec<HostFacts>,
    /// What it ran on.
    pub target: Option<Target>,
    /// What was asked for.
    pub settings: Value,
    /// The figures to compare.
    pub metrics: Vec<Metric>,
    /// Everything measured.
    pub detail: Value,
}

impl Report {
    /// A report of one kind without figures.
    pub fn new(kind: &str, hosts: Vec<HostFacts>, target: Option<Target>) -> Report {
        Report {
            tool: "strake bench".into(),
            format: FORMAT,
            kind: kind.into(),
            unix_seconds: clock::unix_seconds(),
            hosts,
            target,
            settings: Value::Null,
            metrics: Vec::new(),
            detail: Value::Null,
        }
    }

    /// Adds a sample to the metric of that name, made if it is new.
    pub fn sample(&mut self, name: &str, unit: &str, better: Better, figure: f64) {
        match self.metrics.iter_mut().find(|metric| metric.name == name) {
            Some(metric) => metric.samples.push(figure),
            None => self.metrics.push(Metric {
                name: name.into(),
                unit: unit.into(),
                better,
                samples: vec![figure],
            }),
        }
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("invariant: a report has string keys and finite figures");
        text.push('\n');
        text
    }

    /// Reads a report that `--json` wrote; `name` is for messages.
    pub fn from_json(text: &str, name: &str) -> Result<Report> {
        let report: Report = serde_json::from_str(text).map_err(|error| {
            BenchError::Usage(format!("{name} is no report of `strake bench --json`: {error}"))
        })?;
        if report.format != FORMAT {
            let format = report.format;
            return Err(BenchError::Usage(format!(
                "{name} has format {format}, this program reads format {FORMAT}"
            )));
        }
        Ok(report)
    }
}

/// The JSON of a part of a report.
pub fn value_of<T: Serialize>(part: &T) -> Value {
    serde_json::to_value(part).expect("invariant: reports consist of plain data")
}
