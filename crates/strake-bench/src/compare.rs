//! `bench compare A.json B.json`: shows what changed between two runs, and whether a change is
//! larger than the scatter of the runs.

use std::path::PathBuf;

use serde::Serialize;

use crate::error::{BenchError, Result};
use crate::figures::figure;
use crate::report::{Better, Metric, Report};
use crate::statistics::{Difference, difference, summarize};
use strake_report::Table;

/// `bench compare` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct CompareArgs {
    /// The report to compare with.
    #[arg(value_name = "A.json")]
    pub before: PathBuf,
    /// The report to judge.
    #[arg(value_name = "B.json")]
    pub after: PathBuf,
    /// Print the comparison as JSON.
    #[arg(long)]
    pub json: bool,
}

/// How a figure changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better by more than the noise.
    Better,
    /// Worse by more than the noise.
    Worse,
    /// Within the noise.
    Same,
    /// One run each: the noise is not known.
    Unknown,
    /// In one of the reports only.
    Missing,
}

/// One figure of both reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Mean before.
    pub before: Option<f64>,
    /// Mean after.
    pub after: Option<f64>,
    /// (after − before) ÷ before.
    pub change: Option<f64>,
    /// How it changed.
    pub verdict: Verdict,
}

/// Compares two reports figure by figure, in the order of the first.
pub fn compare(before: &Report, after: &Report) -> Vec<Line> {
    let of = |report: &'_ Report, name: &str| -> Option<Metric> {
        report.metrics.iter().find(|metric| metric.name == name).cloned()
    };
    let mut lines = Vec::new();
    for metric in &before.metrics {
        lines.push(line(Some(metric), of(after, &metric.name).as_ref()));
    }
    for metric in &after.metrics {
        if of(before, &metric.name).is_none() {
            lines.push(line(None, Some(metric)));
        }
    }
    lines
}

fn line(before: Option<&Metric>, after: Option<&Metric>) -> Line {
    let either = before.or(after).expect("invariant: one of both reports has the figure");
    let mean = |metric: &Metric| summarize(&metric.samples).mean;
    let (a, b) = (before.map(mean), after.map(mean));
    let change = match (a, b) {
        (Some(a), Some(b)) if a != 0.0 => Some((b - a) / a),
        _ => None,
    };
    let verdict = match (before, after) {
        (Some(before), Some(after)) => {
            let good = match before.better {
                Better::Higher => Difference::Greater,
                Better::Lower => Difference::Less,
            };
            match difference(&before.samples, &after.samples) {
                Difference::Noise => Verdict::Same,
                Difference::Unknown => Verdict::Unknown,
                found if found == good => Verdict::Better,
                _ => Verdict::Worse,
            }
        }
        _ => Verdict::Missing,
    };
    Line {
        name: either.name.clone(),
        unit: either.unit.clone(),
        before: a,
        after: b,
        change,
        verdict,
    }
}

/// The table of all figures, and a sentence that counts the verdicts.
pub fn layout(lines: &[Line]) -> String {
    let mut table = Table::new(&["figure", "A", "B", "unit", "change", ""], &[0, 3, 5]);
    for line in lines {
        let word = match line.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Same => "within the noise",
            Verdict::Unknown => "noise unknown: repeat the runs (--iterations)",
            Verdict::Missing => "in one report only",
        };
        table.row(vec![
            line.name.clone(),
            line.before.map_or("-".into(), figure),
            line.after.map_or("-".into(), figure),
            line.unit.clone(),
            line.change.map_or("-".into(), |change| format!("{:+.1}%", change * 100.0)),
            word.into(),
        ]);
    }
    let count = |verdict: Verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    format!(
        "{}\n{} better, {} worse, {} within the noise, {} not to be judged (95 % confidence; \
         changes of 2 % or less count as noise)\n",
        table.render(),
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::Same),
        count(Verdict::Unknown) + count(Verdict::Missing),
    )
}

/// Runs `bench compare`; returns what to print.
pub fn run(args: &CompareArgs) -> Result<String> {
    let read = |path: &PathBuf| {
        let text =
            std::fs::read_to_string(path).map_err(|error| BenchError::path("read", path, error))?;
        Report::from_json(&text, &path.display().to_string())
    };
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let lines = compare(&before, &after);
    if !args.json {
        return Ok(layout(&lines));
    }
    let mut text =
        serde_json::to_string_pretty(&lines).expect("invariant: a comparison is plain data");
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(metrics: &[(&str, Better, &[f64])]) -> Report {
        let mut report = Report::new("test", Vec::new(), None);
        for (name, better, samples) in metrics {
            samples.iter().for_each(|sample| report.sample(name, "MiB/s", *better, *sample));
        }
        report
    }

    #[test]
    fn changes_are_judged_by_direction_and_noise() {
        use Better::{Higher, Lower};
        let a = report(&[
            ("rate", Higher, &[100.0, 101.0, 99.0]),
            ("noisy", Higher, &[100.0, 150.0, 50.0]),
            ("time", Lower, &[10.0, 10.1, 9.9]),
            ("once", Higher, &[1.0]),
            ("gone", Higher, &[1.0]),
        ]);
        let b = report(&[
            ("rate", Higher, &[120.0, 121.0, 119.0]),
            ("noisy", Higher, &[120.0, 170.0, 70.0]),
            ("time", Lower, &[12.0, 12.1, 11.9]),
            ("once", Higher, &[2.0]),
            ("new", Higher, &[1.0]),
        ]);
        let lines = compare(&a, &b);
        let verdicts: Vec<Verdict> = lines.iter().map(|line| line.verdict).collect();
        use Verdict::{Missing, Same, Unknown, Worse};
        assert_eq!(verdicts, [Verdict::Better, Same, Worse, Unknown, Missing, Missing]);
        let text = layout(&lines);
        assert!(text.contains("rate     100   120  MiB/s   +20.0%  better\n"), "{text}");
        assert!(text.contains("1 better, 1 worse, 1 within the noise, 3 not to be judged"));
    }

    #[test]
    fn a_report_equals_itself_and_survives_its_json() {
        let a = report(&[("rate", Better::Higher, &[100.0, 101.0])]);
        let b = Report::from_json(&a.to_json(), "b").unwrap();
        assert_eq!(a, b);
        assert_eq!(compare(&a, &b)[0].verdict, Verdict::Same);
        assert!(Report::from_json("{}", "x").is_err());
        let newer = a.to_json().replace("\"format\": 1", "\"format\": 2");
        assert!(Report::from_json(&newer, "x").unwrap_err().to_string().contains("format 2"));
    }
}
