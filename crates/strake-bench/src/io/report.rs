//! The layouts of `bench io`: the table of the p690/x335 report, the details of each phase, and
//! the table of two jobs at once.

use std::path::Path;

use super::job::Job;
use super::phase::Operation;
use super::run::{Measured, Mixed};
use crate::figures::{figure, mib, micros};
use crate::metric::{Rates, ratio};
use crate::size::ByteSize;
use strake_report::Table;

/// The report of one job.
pub fn table(place: &str, job: &Job, measured: &[Measured]) -> String {
    let mut text = format!("io: {place}\n    {}\n    {}\n\n", job.words(), job.conditions());
    text.push_str(&aggregates(job, measured));
    text.push('\n');
    text.push_str(&details(job, measured));
    if measured.iter().any(|line| line.hosts > 1) {
        text.push('\n');
        text.push_str(&by_host(job, measured));
    }
    text
}

/// The rates of each host: its bytes and operations ÷ the time of its longest task.
fn by_host(job: &Job, measured: &[Measured]) -> String {
    let heads = ["operation", "run", "host", "tasks", "MiB/s", "op/s"];
    let mut table = Table::new(&heads, &[0, 2]);
    for line in measured {
        let mut hosts: Vec<&str> = Vec::new();
        for task in &line.tasks {
            if !hosts.contains(&task.host.as_str()) {
                hosts.push(&task.host);
            }
        }
        for host in hosts {
            let tasks = || line.tasks.iter().filter(|task| task.host == host);
            let longest = tasks().map(|task| task.seconds).fold(0.0, f64::max);
            let bytes: u64 = tasks().map(|task| task.bytes).sum();
            let operations: f64 =
                tasks().map(|task| task.operations_per_second * task.seconds).sum();
            table.row(vec![
                line.operation.name().into(),
                format!("{}/{}", line.iteration, job.iterations),
                host.into(),
                tasks().count().to_string(),
                mib(ratio(bytes as f64, longest)),
                figure(ratio(operations, longest)),
            ]);
        }
    }
    table.render()
}

/// The phases of one row: the same tasks, one operation, all iterations.
fn of_row(
    measured: &[Measured],
    tasks: u32,
    operation: Operation,
) -> impl Iterator<Item = &Measured> {
    measured.iter().filter(move |line| line.tasks_per_host == tasks && line.operation == operation)
}

/// The operations in the order they were done, each once.
fn operations(job: &Job) -> Vec<Operation> {
    let mut distinct = Vec::new();
    for &operation in &job.operations {
        if !distinct.contains(&operation) {
            distinct.push(operation);
        }
    }
    distinct
}

/// A row for each number of tasks. The columns are natural aggregate, harmonic aggregate and
/// harmonic mean of each operation, as means over the iterations.
fn aggregates(job: &Job, measured: &[Measured]) -> String {
    let operations = operations(job);
    type Rate = fn(&Rates) -> f64;
    let groups: [(&str, Rate); 3] = [
        ("natural", |rates| rates.natural_aggregate),
        ("harmonic", |rates| rates.harmonic_aggregate),
        ("mean", |rates| rates.harmonic_mean),
    ];
    let mut heads = vec!["hosts".to_string(), "tasks per host".to_string()];
    for (name, _) in groups {
        heads.extend(operations.iter().map(|op| format!("{name} {}", op.name())));
    }
    heads.push("data".into());
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(&heads, &[]);
    for &tasks in &job.tasks {
        let mut hosts = 1;
        let mut cells = Vec::new();
        for (_, rate) in groups {
            for &operation in &operations {
                let rates: Vec<f64> = of_row(measured, tasks, operation)
                    .inspect(|line| hosts = line.hosts)
                    .map(|line| rate(&line.rates))
                    .collect();
                cells.push(mib(rates.iter().sum::<f64>() / rates.len().max(1) as f64));
            }
        }
        let bytes = job.bytes_per_task() * u64::from(tasks) * hosts as u64;
        let mut row = vec![hosts.to_string(), tasks.to_string()];
        row.extend(cells);
        row.push(ByteSize(bytes).to_string());
        table.row(row);
    }
    format!("MiB/s: natural aggregate, harmonic aggregate, harmonic mean\n{}", table.render())
}

fn details(job: &Job, measured: &[Measured]) -> String {
    let heads = [
        "operation",
        "tasks",
        "run",
        "MiB/s",
        "op/s",
        "slowest",
        "fastest",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "max",
        "cpu",
        "threads",
    ];
    let mut table = Table::new(&heads, &[0]);
    for line in measured {
        let rates: Vec<f64> = line.tasks.iter().map(|task| task.bytes_per_second).collect();
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = rates.iter().copied().fold(0.0, f64::max);
        table.row(vec![
            line.operation.name().into(),
            (line.tasks_per_host * line.hosts as u32).to_string(),
            format!("{}/{}", line.iteration, job.iterations),
            mib(line.rates.natural_aggregate),
            figure(line.rates.operations_per_second),
            mib(slowest),
            mib(fastest),
            micros(line.latency.p50_us),
            micros(line.latency.p95_us),
            micros(line.latency.p99_us),
            micros(line.latency.p999_us),
            micros(line.latency.max_us),
            format!("{:.0}%", line.cpu.busy() * 100.0),
            format!("{:.3}", line.rates.thread_utilization),
        ]);
    }
    format!(
        "MiB/s over all tasks, of the slowest and the fastest task; latency; processors of the \
         host in use;\nshare of the time that threads spent inside operations\n{}",
        table.render()
    )
}

/// The report of two jobs at once, in the shape of tests 5, 10 and 20 of the p690/x335 report.
pub fn mixed(directory: &Path, jobs: [&Job; 2], mixed: &[Mixed]) -> String {
    let second = jobs[1].directory.as_deref().unwrap_or(directory);
    let mut text = format!(
        "io, two jobs\n  A: {}: {}\n  B: {}: {}\n",
        directory.display(),
        jobs[0].words(),
        second.display(),
        jobs[1].words()
    );
    for line in mixed {
        text.push_str(&format!("\n{}, MiB/s\n", line.operation.name()));
        let heads = ["", "tasks", "natural", "harmonic", "kept", "A and B harmonic"];
        let mut table = Table::new(&heads, &[0]);
        let effect = &line.interference;
        let combined = mib(effect.combined_harmonic_aggregate);
        let rows = [
            ("A only", &line.first_alone, None, None),
            ("B only", &line.second_alone, None, None),
            ("A with B", &line.first_together, Some(effect.first_kept), None),
            ("B with A", &line.second_together, Some(effect.second_kept), Some(combined)),
        ];
        for (name, rates, kept, combined) in rows {
            table.row(vec![
                name.into(),
                rates.tasks.to_string(),
                mib(rates.natural_aggregate),
                mib(rates.harmonic_aggregate),
                kept.map_or(String::new(), |kept| format!("{:.0}%", kept * 100.0)),
                combined.unwrap_or_default(),
            ]);
        }
        text.push_str(&table.render());
        if effect.length_ratio > 1.1 {
            text.push_str(&format!(
                "The longer job ran {:.1} times as long as the shorter one; the combined figure \
                 understates\nwhat the system did while both ran. Adjust --size until they end \
                 together.\n",
                effect.length_ratio
            ));
        }
    }
    text
}

#[cfg(test)]
#[path = "report_test.rs"]
mod report_test;
