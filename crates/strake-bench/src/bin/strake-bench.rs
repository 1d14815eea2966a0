//! The benchmarks alone: `strake bench` for hosts that shall only run an agent or a test, where
//! a small program is easier to copy than the whole. Also what the tests of this crate start.

use std::process::ExitCode;

use clap::Parser;

/// Benchmarks of any directory, network or disk.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    bench: strake_bench::Bench,
}

fn main() -> ExitCode {
    strake_bench::run(&Cli::parse().bench, &[])
}
