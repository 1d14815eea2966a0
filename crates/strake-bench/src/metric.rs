//! The arithmetic of every figure: pure functions of task times and byte counts.
//!
//! Definitions (p690/x335 report, "Metrics used to assess results"). With n tasks that moved
//! bᵢ bytes in tᵢ seconds each:
//!
//! * natural aggregate  = Σb ÷ max t: what the job feels; biased by its slowest task;
//! * harmonic mean      = Σb ÷ Σt: the rate of a typical task;
//! * harmonic aggregate = n · Σb ÷ Σt: the rate of the system while the tasks ran.
//!
//! Since Σt ≤ n · max t, the natural aggregate never exceeds the harmonic aggregate, and with
//! one task the two are equal. A printed row that says otherwise is wrong; `row_faults` finds it.

use serde::{Deserialize, Serialize};

/// What one task did in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskSample {
    /// Bytes read or written.
    pub bytes: u64,
    /// Operations completed.
    pub operations: u64,
    /// Seconds from the barrier to the end of the task. They include the close unless the user says
    /// otherwise.
    pub seconds: f64,
    /// Time spent inside operations.
    pub busy_seconds: f64,
}

/// The rates of a job. Bytes per second; the caller chooses the unit to print.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Rates {
    /// Number of tasks.
    pub tasks: usize,
    /// Bytes of all tasks.
    pub bytes: u64,
    /// Operations of all tasks.
    pub operations: u64,
    /// Time of the longest task.
    pub longest_seconds: f64,
    /// Sum of all task times.
    pub sum_seconds: f64,
    /// Bytes ÷ longest task.
    pub natural_aggregate: f64,
    /// Bytes ÷ sum of task times.
    pub harmonic_mean: f64,
    /// Harmonic mean × tasks.
    pub harmonic_aggregate: f64,
    /// Operations ÷ longest task.
    pub operations_per_second: f64,
    /// Time inside operations ÷ (tasks × longest task): 1 if every thread was always in a call.
    pub thread_utilization: f64,
}

/// The rates of a job from its tasks. An empty job has only zeroes.
pub fn rates(samples: &[TaskSample]) -> Rates {
    let bytes: u64 = samples.iter().map(|sample| sample.bytes).sum();
    let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
    let sum: f64 = samples.iter().map(|sample| sample.seconds).sum();
    let busy: f64 = samples.iter().map(|sample| sample.busy_seconds).sum();
    let longest = samples.iter().map(|sample| sample.seconds).fold(0.0, f64::max);
    let tasks = samples.len();
    Rates {
        tasks,
        bytes,
        operations,
        longest_seconds: longest,
        sum_seconds: sum,
        natural_aggregate: ratio(bytes as f64, longest),
        harmonic_mean: ratio(bytes as f64, sum),
        harmonic_aggregate: ratio(bytes as f64 * tasks as f64, sum),
        operations_per_second: ratio(operations as f64, longest),
        thread_utilization: ratio(busy, longest * tasks as f64),
    }
}

/// `above ÷ below`, or 0 where there is nothing to divide by.
pub fn ratio(above: f64, below: f64) -> f64 {
    if below > 0.0 { above / below } else { 0.0 }
}

/// How two jobs that ran at the same time compare with each job alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interference {
    /// Harmonic aggregate over the tasks of both jobs while they ran together.
    pub combined_harmonic_aggregate: f64,
    /// Harmonic aggregate of the first job together ÷ alone; 1 means undisturbed.
    pub first_kept: f64,
    /// The same of the second job.
    pub second_kept: f64,
    /// The time of the longer job ÷ the time of the shorter. If this is far from 1, the combined
    /// figure understates what the system did while both ran.
    pub length_ratio: f64,
}

/// Compares two jobs alone with the same two jobs together.
pub fn interference(alone: [&Rates; 2], together: [&Rates; 2]) -> Interference {
    let bytes = together[0].bytes + together[1].bytes;
    let tasks = together[0].tasks + together[1].tasks;
    let sum = together[0].sum_seconds + together[1].sum_seconds;
    let longest = together.map(|rates| rates.longest_seconds);
    Interference {
        combined_harmonic_aggregate: ratio(bytes as f64 * tasks as f64, sum),
        first_kept: ratio(together[0].harmonic_aggregate, alone[0].harmonic_aggregate),
        second_kept: ratio(together[1].harmonic_aggregate, alone[1].harmonic_aggregate),
        length_ratio: ratio(longest[0].max(longest[1]), longest[0].min(longest[1])),
    }
}

/// One direction (write or read) of a printed row, with the figures that were printed.
#[derive(Debug, Clone, Copy)]
pub struct PrintedRow {
    /// Tasks of the job.
    pub tasks: u32,
    /// Natural aggregate as printed.
    pub natural: f64,
    /// Harmonic aggregate as printed, if it was.
    pub harmonic: Option<f64>,
    /// Harmonic mean as printed, if it was.
    pub mean: Option<f64>,
}

/// Why a printed row cannot be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFault {
    /// The natural aggregate is above the harmonic one.
    NaturalAboveHarmonic,
    /// The harmonic aggregate is not tasks × harmonic mean.
    AggregateIsNotTasksTimesMean,
}

/// Finds the contradictions in a row whose figures were rounded to `step` (0.01 for two decimals).
/// A fault is reported only if no rounding explains it.
pub fn row_faults(row: PrintedRow, step: f64) -> Vec<RowFault> {
    let half = step / 2.0;
    let mut faults = Vec::new();
    if let Some(harmonic) = row.harmonic
        && row.natural - half > harmonic + half
    {
        faults.push(RowFault::NaturalAboveHarmonic);
    }
    if let (Some(harmonic), Some(mean)) = (row.harmonic, row.mean) {
        let tasks = f64::from(row.tasks);
        // The rounding error of the mean is multiplied by the number of tasks. The last term covers
        // the binary representation of decimals.
        let slack = half * tasks + half + 1e-9;
        if (harmonic - mean * tasks).abs() > slack {
            faults.push(RowFault::AggregateIsNotTasksTimesMean);
        }
    }
    faults
}

/// The harmonic aggregate over two jobs from their printed harmonic aggregates, task counts and
/// data sizes: each job's Σt is n·b ÷ its harmonic aggregate.
pub fn combined_from_printed(jobs: [(u32, f64, f64); 2]) -> f64 {
    let bytes: f64 = jobs.iter().map(|(_, _, bytes)| bytes).sum();
    let tasks: f64 = jobs.iter().map(|(tasks, _, _)| f64::from(*tasks)).sum();
    let sum: f64 = jobs
        .iter()
        .map(|(tasks, harmonic, bytes)| ratio(f64::from(*tasks) * bytes, *harmonic))
        .sum();
    ratio(bytes * tasks, sum)
}

/// The interval in which the combined harmonic aggregate of two jobs must lie, however the data was
/// divided. Both jobs must have equally many tasks. The aggregate is then a mean of twice each
/// job's rate, weighted by time.
pub fn combined_bounds(first: f64, second: f64) -> (f64, f64) {
    (2.0 * first.min(second), 2.0 * first.max(second))
}

#[cfg(test)]
#[path = "metric_test.rs"]
mod metric_test;
