//! `strake bench`: the benchmarks of any directory, network or disk.

use std::process::ExitCode;

/// Runs a benchmark.
pub(crate) fn run(bench: &strake_bench::Bench) -> ExitCode {
    strake_bench::run(bench, &["bench"])
}
