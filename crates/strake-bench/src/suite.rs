//! `bench suite`: one command, ten minutes (two with `--quick`), a balanced selection, a summary
//! and a report that can be sent to the seller of the storage.
//!
//! `stages` measures, `score` sums up (pure), `svg`, `markdown` and `html` draw (pure).

pub mod html;
pub mod markdown;
pub mod score;
pub mod stages;
pub mod svg;

use std::fs;
use std::path::PathBuf;

use crate::error::{BenchError, Result};
use crate::host::{HostFacts, Target};
use crate::report::{Better, Report, value_of};
use crate::stop::Stop;

/// `bench suite` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct SuiteArgs {
    /// Any directory; the run makes one of its own below it and removes it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// About two minutes instead of ten.
    #[arg(long)]
    pub quick: bool,
    /// Tasks; one per hardware thread, at most 16, by default.
    #[arg(long, short, value_name = "N")]
    pub tasks: Option<u32>,
    /// Where the reports are written.
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Print the report as JSON on standard output as well.
    #[arg(long)]
    pub json: bool,
}

/// More tasks than this say more about the benchmark than about the storage.
const TASKS_MAX: usize = 16;

/// Runs the suite; returns the report and what to print.
pub fn run(args: &SuiteArgs, stop: &Stop) -> Result<(Report, String)> {
    if !args.output.is_dir() {
        let output = args.output.display();
        return Err(BenchError::Usage(format!("--output {output} is no directory")));
    }
    let facts = HostFacts::gather();
    let target = Target::of(&args.directory)?;
    let tasks = args.tasks.unwrap_or(facts.threads.min(TASKS_MAX) as u32).max(1);
    let plan = stages::Plan::new(args.quick, tasks);
    let results = stages::run(&args.directory, &plan, &target, stop)?;
    let mut report = Report::new("suite", vec![facts], Some(target));
    report.settings = value_of(&plan);
    for stage in &results.stages {
        for &sample in &stage.samples {
            report.sample(&format!("suite {}", stage.name), &stage.unit, stage.better, sample);
        }
    }
    let score = score::score(&results);
    for &sample in &score.samples {
        report.sample("suite score", "", Better::Higher, sample);
    }
    report.detail = value_of(&results);
    let stem = format!("strake-bench-suite-{}", report.unix_seconds);
    let document = markdown::Document { report: &report, results: &results, score: &score };
    let texts = [
        ("json", report.to_json()),
        ("md", markdown::render(&document)),
        ("html", html::render(&document)),
    ];
    let mut shown = markdown::summary(&document);
    for (ending, text) in texts {
        let path = args.output.join(format!("{stem}.{ending}"));
        fs::write(&path, text).map_err(|error| BenchError::path("write", &path, error))?;
        shown.push_str(&format!("report: {}\n", path.display()));
    }
    Ok((report, shown))
}
