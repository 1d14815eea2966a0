//! The summary of a metadata job, in the layout of mdtest's, and latencies below it.

use super::job::Job;
use super::phase::Step;
use super::run::Measured;
use crate::figures::micros;
use crate::statistics::summarize;
use strake_report::Table;

/// The report of one job: one summary per number of tasks.
pub fn summary(place: &str, job: &Job, measured: &[Measured]) -> String {
    let mut text = format!("md: {place}\n    {}\n", job.words());
    for &tasks in &job.tasks {
        let lines: Vec<&Measured> =
            measured.iter().filter(|line| line.tasks_per_host == tasks).collect();
        let hosts = lines.first().map_or(1, |line| line.hosts);
        text.push_str(&format!(
            "\n{hosts} host{}, {} tasks\n\nSUMMARY rate (in ops/sec): (of {} iterations)\n",
            if hosts == 1 { "" } else { "s" },
            hosts as u32 * tasks,
            job.iterations
        ));
        text.push_str(&rates(job, &lines));
        text.push('\n');
        text.push_str(&latencies(job, &lines));
    }
    text
}

fn of_step<'a>(lines: &'a [&Measured], step: Step) -> impl Iterator<Item = &'a Measured> {
    lines.iter().copied().filter(move |line| line.step == step)
}

fn rates(job: &Job, lines: &[&Measured]) -> String {
    let mut text = format!(
        "   {:<20} {:>14} {:>14} {:>14} {:>14}\n",
        "Operation", "Max", "Min", "Mean", "Std Dev"
    );
    text.push_str(&format!(
        "   {:<20} {:>14} {:>14} {:>14} {:>14}\n",
        "---------", "---", "---", "----", "-------"
    ));
    for step in job.steps() {
        let samples: Vec<f64> =
            of_step(lines, step).map(|line| line.operations_per_second).collect();
        let summary = summarize(&samples);
        text.push_str(&format!(
            "   {:<20} {:>14.3} {:>14.3} {:>14.3} {:>14.3}\n",
            step.title(),
            summary.max,
            summary.min,
            summary.mean,
            summary.deviation
        ));
    }
    text
}

fn latencies(job: &Job, lines: &[&Measured]) -> String {
    let mut table = Table::new(&["Latency", "p50", "p95", "p99", "p99.9", "max"], &[0]);
    for step in job.steps() {
        // Of several iterations the last is shown: its caches are the warmest.
        if let Some(line) = of_step(lines, step).last() {
            let latency = &line.latency;
            let shown =
                [latency.p50_us, latency.p95_us, latency.p99_us, latency.p999_us, latency.max_us];
            let mut row = vec![step.title().to_string()];
            row.extend(shown.map(micros));
            table.row(row);
        }
    }
    table.render()
}

#[cfg(test)]
#[path = "report_test.rs"]
mod report_test;
