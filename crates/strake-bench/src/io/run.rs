//! Turns a job into phases. It fixes their order, keeps track of data that outlives a phase, and
//! repeats them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::phase::{Files, Operation};
use super::report;
use crate::crew::{self, Crews, Place, Relaunch, check_space};
use crate::error::Result;
use crate::host::Target;
use crate::metric::{self, Interference, Rates};
use crate::outcome::{CpuUse, LatencySummary, PhaseOutcome, TaskOutcome};
use crate::report::{Better, Report, value_of};
use crate::stop::Stop;
use crate::work::Work;

/// `bench io` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct IoArgs {
    /// Any directory; the run makes one of its own below it and removes it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// A second job (TOML, the same names as the options here) to run at the same time after
    /// each ran alone: reports how much they disturb each other.
    #[arg(long, value_name = "OTHER.toml")]
    pub with: Option<PathBuf>,
    /// Where it runs.
    #[command(flatten)]
    pub place: Place,
}

/// One task's line in a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskLine {
    /// Host it ran on.
    pub host: String,
    /// Rank.
    pub rank: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds from the barrier to the end of the task.
    pub seconds: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Latency of its operations.
    pub latency: LatencySummary,
}

/// One phase, measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// What was done.
    pub operation: Operation,
    /// Hosts.
    pub hosts: usize,
    /// Tasks per host.
    pub tasks_per_host: u32,
    /// Which repetition, from 1.
    pub iteration: u32,
    /// The rates of all tasks.
    pub rates: Rates,
    /// Latency over all tasks.
    pub latency: LatencySummary,
    /// Processors, mean over the hosts.
    pub cpu: CpuUse,
    /// Every task.
    pub tasks: Vec<TaskLine>,
}

impl Measured {
    fn new(
        operation: Operation,
        hosts: usize,
        tasks_per_host: u32,
        iteration: u32,
        outcome: &PhaseOutcome,
    ) -> Measured {
        let line = |host: &str, task: &TaskOutcome| TaskLine {
            host: host.into(),
            rank: task.rank,
            bytes: task.sample.bytes,
            seconds: task.sample.seconds,
            bytes_per_second: metric::ratio(task.sample.bytes as f64, task.sample.seconds),
            operations_per_second: metric::ratio(
                task.sample.operations as f64,
                task.sample.seconds,
            ),
            latency: LatencySummary::from(&task.latency),
        };
        let tasks = outcome.hosts.iter().flat_map(|host| {
            let lines = host.tasks.iter();
            lines.map(|task| line(&host.host, task))
        });
        Measured {
            operation,
            hosts,
            tasks_per_host,
            iteration,
            rates: outcome.rates(),
            latency: LatencySummary::from(&outcome.latency()),
            cpu: outcome.cpu(),
            tasks: tasks.collect(),
        }
    }

    /// The name of its figures in a report.
    fn metric_name(&self, job: &Job) -> String {
        format!(
            "io {} {} {} {}x{}",
            self.operation.name(),
            job.pattern,
            job.record,
            self.hosts,
            self.tasks_per_host
        )
    }
}

/// The state of a job's data after the phases so far.
#[derive(Debug, Default)]
struct DataState {
    tag: u32,
    generation: u64,
    /// How many records each owner's data has. Empty means all of them.
    written: Vec<u64>,
}

impl DataState {
    /// The work of the next phase.
    fn next(&mut self, job: &Job, operation: Operation) -> Work {
        let mut phase = job.phase(operation);
        if operation == Operation::Create {
            self.tag += 1;
            self.written.clear();
        }
        if operation.writes() {
            self.generation += 1;
        }
        phase.files = Files::Scratch(self.tag);
        phase.generation = self.generation;
        phase.visits.clone_from(&self.written);
        Work::Io(phase)
    }

    /// Remembers how many records a write reached. After a stonewall only these can be read back.
    fn note(&mut self, operation: Operation, outcome: &PhaseOutcome) {
        if operation.writes() {
            self.written = outcome.operations_by_rank();
        }
    }
}

/// Runs a job with each of its numbers of tasks. Returns the phases in order.
pub fn run_job(job: &Job, crews: &mut Crews) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    let hosts = crews.hosts();
    crews.check_shift(job.shift)?;
    for &tasks in &job.tasks {
        for iteration in 1..=job.iterations {
            let mut state = DataState::default();
            for &operation in &job.operations {
                if operation == Operation::Create {
                    crews.tidy()?;
                }
                let work = state.next(job, operation);
                let label = format!("{} with {tasks} tasks per host", operation.name());
                let outcome = crews.run(&label, &work, tasks)?;
                state.note(operation, &outcome);
                measured.push(Measured::new(operation, hosts, tasks, iteration, &outcome));
            }
            crews.tidy()?;
        }
    }
    Ok(measured)
}

/// One operation of two jobs: each job alone, then both together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mixed {
    /// The operation of both jobs.
    pub operation: Operation,
    /// The first job alone.
    pub first_alone: Rates,
    /// The second job alone.
    pub second_alone: Rates,
    /// The first job while the second ran too.
    pub first_together: Rates,
    /// The second job while the first ran too.
    pub second_together: Rates,
    /// How much the jobs disturbed each other.
    pub interference: Interference,
}

/// Runs two jobs alone and together. Each job uses the first of its numbers of tasks. The second
/// job does the operations of the first, so that both fill the same rows of the table.
pub fn run_mixed(jobs: [&Job; 2], crews: [&mut Crews; 2]) -> Result<Vec<Mixed>> {
    let [first, second] = crews;
    let tasks = jobs.map(|job| job.tasks[0]);
    let mut alone = Vec::new();
    for (index, crews) in [&mut *first, &mut *second].into_iter().enumerate() {
        let mut state = DataState::default();
        let mut rates = Vec::new();
        for &operation in &jobs[0].operations {
            let work = state.next(jobs[index], operation);
            let label = format!("job {} alone, {}", index + 1, operation.name());
            let outcome = crews.run(&label, &work, tasks[index])?;
            state.note(operation, &outcome);
            rates.push(outcome.rates());
        }
        crews.tidy()?;
        alone.push(rates);
    }
    let mut states = [DataState::default(), DataState::default()];
    let mut mixed = Vec::new();
    for (step, &operation) in jobs[0].operations.iter().enumerate() {
        let works = [states[0].next(jobs[0], operation), states[1].next(jobs[1], operation)];
        let mut pair = [(&mut *first, &works[0], tasks[0]), (&mut *second, &works[1], tasks[1])];
        let label = format!("both jobs, {}", operation.name());
        let outcomes = crew::run_together(&mut pair, &label)?;
        states[0].note(operation, &outcomes[0]);
        states[1].note(operation, &outcomes[1]);
        let together = [outcomes[0].rates(), outcomes[1].rates()];
        let apart = [alone[0][step], alone[1][step]];
        mixed.push(Mixed {
            operation,
            first_alone: apart[0],
            second_alone: apart[1],
            first_together: together[0],
            second_together: together[1],
            interference: metric::interference(
                [&apart[0], &apart[1]],
                [&together[0], &together[1]],
            ),
        });
    }
    first.tidy()?;
    second.tidy()?;
    Ok(mixed)
}

/// The bytes that a job needs on disk at one time, per host.
fn bytes_needed(job: &Job) -> u64 {
    job.bytes_per_task().saturating_mul(u64::from(job.tasks_max()))
}

/// Runs `bench io`; returns the report and its text.
pub fn run(args: &IoArgs, stop: &Stop, relaunch: Relaunch<'_>) -> Result<(Report, String)> {
    let job = &args.job;
    job.validate()?;
    let local = args.place.hosts.is_empty();
    let target: Option<Target> = match local {
        true => Some(check_space(&args.directory, bytes_needed(job))?),
        false => None,
    };
    let tasks = job.tasks_max();
    let mut crews = Crews::assemble(&args.directory, &args.place, tasks, stop, relaunch)?;
    let mut report = Report::new("io", crews.facts()?, target);
    if let Some(path) = &args.with {
        let other = Job::from_file(path)?;
        let directory = other.directory.clone().unwrap_or_else(|| args.directory.clone());
        if local {
            check_space(&directory, bytes_needed(job) + bytes_needed(&other))?;
        }
        let tasks = other.tasks_max();
        let mut second = Crews::assemble(&directory, &args.place, tasks, stop, relaunch)?;
        let mixed = run_mixed([job, &other], [&mut crews, &mut second])?;
        report.settings = serde_json::json!({"first": value_of(job), "second": value_of(&other)});
        for line in &mixed {
            let name = format!("io mixed {} combined", line.operation.name());
            let combined = line.interference.combined_harmonic_aggregate / MIB;
            report.sample(&name, "MiB/s", Better::Higher, combined);
        }
        report.detail = value_of(&mixed);
        let text = report::mixed(&args.directory, [job, &other], &mixed);
        return Ok((report, text));
    }
    let measured = run_job(job, &mut crews)?;
    report.settings = value_of(job);
    add_metrics(&mut report, job, &measured);
    report.detail = value_of(&measured);
    let text = report::table(&head(&args.directory, report.target.as_ref()), job, &measured);
    Ok((report, text))
}

const MIB: f64 = (1 << 20) as f64;

fn add_metrics(report: &mut Report, job: &Job, measured: &[Measured]) {
    for line in measured {
        let name = line.metric_name(job);
        let rate = line.rates.natural_aggregate / MIB;
        report.sample(&name, "MiB/s", Better::Higher, rate);
        let p99 = line.latency.p99_us;
        report.sample(&format!("{name} p99"), "µs", Better::Lower, p99);
    }
}

/// Says where a job ran, for the first line of a report.
pub fn head(directory: &Path, target: Option<&Target>) -> String {
    match target {
        Some(target) => format!("{} ({} on {})", directory.display(), target.kind, target.source),
        None => format!("{} below each agent's directory", directory.display()),
    }
}
