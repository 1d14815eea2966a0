//! The layout of `bench md`, letter by letter.

use super::super::job::Job;
use super::super::phase::Step;
use super::super::run::Measured;
use super::*;
use crate::outcome::LatencySummary;

fn measured(step: Step, iteration: u32, operations_per_second: f64) -> Measured {
    Measured {
        step,
        hosts: 4,
        tasks_per_host: 1,
        iteration,
        operations: 32_000,
        seconds: 32_000.0 / operations_per_second,
        operations_per_second,
        latency: LatencySummary {
            mean_us: 100.0,
            deviation_us: 1.0,
            min_us: 50.0,
            p50_us: 90.0,
            p95_us: 200.0,
            p99_us: 1_500.0,
            p999_us: 2_500.0,
            max_us: 2_000_000.0,
        },
    }
}

/// The layout is mdtest's, and its means are those of row 1 of the storage document (np=4, three
/// iterations of 8,000 files): file creation 8344.002, stat 1978.817, removal 2097.736.
#[test]
fn the_summary_is_laid_out_as_mdtest_lays_it_out() {
    let job = Job {
        items: 8_000,
        unique: true,
        files_only: true,
        shift: 1,
        iterations: 3,
        ..Job::default()
    };
    let mut lines = Vec::new();
    for (step, mean, deviation) in [
        (Step::TreeCreate, 66.907, 1.0),
        (Step::FileCreate, 8344.002, 100.0),
        (Step::FileStat, 1978.817, 10.0),
        (Step::FileRead, 3000.0, 0.0),
        (Step::FileRemove, 2097.736, 20.0),
        (Step::TreeRemove, 12.596, 0.5),
    ] {
        for (iteration, offset) in [(1, -deviation), (2, 0.0), (3, deviation)] {
            lines.push(measured(step, iteration, mean + offset));
        }
    }
    let wanted = "\
md: /gpfs (gpfs on fs1)
    8000 items per task, a directory per task, looking at the items of the task 1 further

4 hosts, 4 tasks

SUMMARY rate (in ops/sec): (of 3 iterations)
   Operation                       Max            Min           Mean        Std Dev
   ---------                       ---            ---           ----        -------
   Tree creation                67.907         65.907         66.907          1.000
   File creation              8444.002       8244.002       8344.002        100.000
   File stat                  1988.817       1968.817       1978.817         10.000
   File read                  3000.000       3000.000       3000.000          0.000
   File removal               2117.736       2077.736       2097.736         20.000
   Tree removal                 13.096         12.096         12.596          0.500

Latency            p50     p95      p99    p99.9     max
Tree creation  90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
File creation  90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
File stat      90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
File read      90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
File removal   90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
Tree removal   90.0 µs  200 µs  1.50 ms  2.50 ms  2.00 s
";
    assert_eq!(summary("/gpfs (gpfs on fs1)", &job, &lines), wanted);
}
