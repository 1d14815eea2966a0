//! Turns a metadata job into phases and their rates.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::listing::{self, ListingArgs};
use super::phase::Step;
use super::report;
use crate::crew::{Crews, Place, Relaunch, check_space};
use crate::error::{BenchError, Result};
use crate::io::run::head;
use crate::outcome::LatencySummary;
use crate::report::{Better, Report, value_of};
use crate::stop::Stop;
use crate::work::Work;

/// `bench md` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct MdArgs {
    /// Any directory; the run makes one of its own below it and removes it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// The create/list/remove test instead.
    #[command(flatten)]
    pub listing: ListingArgs,
    /// Where it runs.
    #[command(flatten)]
    pub place: Place,
}

/// One step, measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// What was done.
    pub step: Step,
    /// Hosts.
    pub hosts: usize,
    /// Tasks per host.
    pub tasks_per_host: u32,
    /// Which repetition, from 1.
    pub iteration: u32,
    /// Operations of all tasks.
    pub operations: u64,
    /// Time of the longest task.
    pub seconds: f64,
    /// Operations ÷ longest task.
    pub operations_per_second: f64,
    /// Latency over all tasks.
    pub latency: LatencySummary,
}

/// Runs a job with each of its numbers of tasks.
pub fn run_job(job: &Job, crews: &mut Crews) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    let (hosts, common) = (crews.hosts(), crews.common()?);
    crews.check_shift(job.shift)?;
    for &tasks in &job.tasks {
        for iteration in 1..=job.iterations {
            let mut made = Vec::new();
            for step in job.steps() {
                let mut phase = job.phase(step, iteration, common);
                phase.made.clone_from(&made);
                let label = format!("{}, {tasks} tasks per host", step.title());
                let outcome = crews.run(&label, &Work::Md(phase), tasks)?;
                match step {
                    Step::FileCreate | Step::DirectoryCreate => {
                        made = outcome.operations_by_rank();
                    }
                    Step::FileRemove | Step::DirectoryRemove => made.clear(),
                    _ => {}
                }
                let rates = outcome.rates();
                measured.push(Measured {
                    step,
                    hosts,
                    tasks_per_host: tasks,
                    iteration,
                    operations: rates.operations,
                    seconds: rates.longest_seconds,
                    operations_per_second: rates.operations_per_second,
                    latency: LatencySummary::from(&outcome.latency()),
                });
            }
            crews.tidy()?;
        }
    }
    Ok(measured)
}

/// Runs `bench md`; returns the report and its text.
pub fn run(args: &MdArgs, stop: &Stop, relaunch: Relaunch<'_>) -> Result<(Report, String)> {
    if !args.listing.list.is_empty() {
        if !args.place.hosts.is_empty() {
            return Err(BenchError::Usage("--list runs on this host; leave --hosts away".into()));
        }
        return listing::run(&args.directory, &args.listing, &args.place, stop);
    }
    let job = &args.job;
    job.validate()?;
    let target = match args.place.hosts.is_empty() {
        true => Some(check_space(&args.directory, job.bytes_per_host())?),
        false => None,
    };
    let tasks = job.tasks_max();
    let mut crews = Crews::assemble(&args.directory, &args.place, tasks, stop, relaunch)?;
    let mut report = Report::new("md", crews.facts()?, target);
    let measured = run_job(job, &mut crews)?;
    report.settings = value_of(job);
    for line in &measured {
        let step = serde_json::to_value(line.step).unwrap_or_default();
        let step = step.as_str().unwrap_or_default().to_string();
        let name = format!("md {step} {}x{}", line.hosts, line.tasks_per_host);
        report.sample(&name, "op/s", Better::Higher, line.operations_per_second);
    }
    report.detail = value_of(&measured);
    let text = report::summary(&head(&args.directory, report.target.as_ref()), job, &measured);
    Ok((report, text))
}
