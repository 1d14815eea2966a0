//! The benchmarks alone. Some hosts only run an agent or a test, and a small program is easier to
//! copy there than the whole of `strake`. The tests of this crate start this program too.

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
