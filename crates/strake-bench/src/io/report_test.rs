//! The layouts of `bench io`, letter by letter.

use super::super::job::Job;
use super::super::phase::Operation;
use super::super::run::{Measured, Mixed, TaskLine};
use super::*;
use crate::metric::{self, TaskSample, interference, rates};
use crate::outcome::{CpuUse, LatencySummary};

const GB: u64 = 1 << 30;
const MB: f64 = (1 << 20) as f64;

/// Tasks of equal data that give the rates printed in a row of the p690/x335 report. One task takes
/// the longest time. Each of the others takes the time that the harmonic aggregate leaves for it.
fn tasks_of_row(tasks: u64, natural: f64, harmonic: f64) -> Vec<TaskSample> {
    let bytes = 4 * GB;
    let total = (bytes * tasks) as f64;
    let longest = total / (natural * MB);
    let sum = total * tasks as f64 / (harmonic * MB);
    let others = (sum - longest) / (tasks - 1).max(1) as f64;
    (0..tasks)
        .map(|task| {
            let seconds = if task == 0 { longest } else { others };
            TaskSample { bytes, operations: bytes >> 20, seconds, busy_seconds: seconds * 0.9 }
        })
        .collect()
}

fn measured(operation: Operation, samples: &[TaskSample]) -> Measured {
    let latency = LatencySummary {
        mean_us: 3_000.0,
        deviation_us: 100.0,
        min_us: 900.0,
        p50_us: 2_900.0,
        p95_us: 4_000.0,
        p99_us: 5_000.0,
        p999_us: 6_000.0,
        max_us: 70_000.0,
    };
    let line = |(rank, sample): (usize, &TaskSample)| TaskLine {
        host: format!("x335-{}", rank / 2),
        rank: rank as u32,
        bytes: sample.bytes,
        seconds: sample.seconds,
        bytes_per_second: metric::ratio(sample.bytes as f64, sample.seconds),
        operations_per_second: metric::ratio(sample.operations as f64, sample.seconds),
        latency,
    };
    Measured {
        operation,
        hosts: samples.len(),
        tasks_per_host: 1,
        iteration: 1,
        rates: rates(samples),
        latency,
        cpu: CpuUse { user: 0.02, system: 0.1, idle: 0.88, wait: 0.0 },
        tasks: samples.iter().enumerate().map(line).collect(),
    }
}

fn job() -> Job {
    let text = "size = '4G'\noperations = ['create', 'read']\n";
    toml::from_str(text).unwrap()
}

/// Test 7 of the p690/x335 report, four clients of one task each: natural 269.91 and 435.37,
/// harmonic aggregate 269.95 and 437.68, harmonic mean 67.49 and 109.42, 16 GB.
#[test]
fn a_row_of_the_report_prints_as_it_was_printed_there() {
    let write = measured(Operation::Create, &tasks_of_row(4, 269.91, 269.95));
    let read = measured(Operation::Read, &tasks_of_row(4, 435.37, 437.68));
    let text = table("/gpfs (gpfs on fs1)", &job(), &[write, read]);
    assert_eq!(text, include_str!("golden/table.txt"));
}

/// Test 10 of the report: two jobs of four tasks, alone 267.33/268.29 and 632.45/650.98, together
/// 233.03/233.03 and 470.22/477.30, 8 and 16 GB, combined 707.48 (707.42 recomputed).
#[test]
fn two_jobs_print_as_the_mixed_tests_do() {
    let scale = |samples: Vec<TaskSample>, factor: f64| -> Vec<TaskSample> {
        let scaled = samples.into_iter().map(|sample| TaskSample {
            bytes: (sample.bytes as f64 * factor) as u64,
            seconds: sample.seconds * factor,
            ..sample
        });
        scaled.collect()
    };
    let first_alone = rates(&tasks_of_row(4, 267.33, 268.29));
    let second_alone = rates(&tasks_of_row(4, 632.45, 650.98));
    let first_together = rates(&scale(tasks_of_row(4, 233.03, 233.03), 0.5));
    let second_together = rates(&tasks_of_row(4, 470.22, 477.30));
    let line = Mixed {
        operation: Operation::Create,
        first_alone,
        second_alone,
        first_together,
        second_together,
        interference: interference(
            [&first_alone, &second_alone],
            [&first_together, &second_together],
        ),
    };
    let job = job();
    let wanted = "\
io, two jobs
  A: /gpfs: seq records of 1M, one file per task, 4G per task
  B: /gpfs: seq records of 1M, one file per task, 4G per task

create, MiB/s
          tasks  natural  harmonic  kept  A and B harmonic
A only        4   267.33    268.29
B only        4   632.45    650.98
A with B      4   233.03    233.03   87%
B with A      4   470.22    477.30   73%            707.42
";
    assert_eq!(mixed(Path::new("/gpfs"), [&job, &job], &[line]), wanted);
}
