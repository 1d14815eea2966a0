//! The `strake` binary: command line, daemon roles, and the only wiring of the crates.

mod commands;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A parallel POSIX file system: one binary, no kernel module.
#[derive(Parser)]
#[command(name = "strake", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what a directory, a network or a disk can do.
    #[command(subcommand)]
    Bench(strake_bench::Bench),
    Plan(strake_plan::PlanArgs),
    /// Print the version.
    #[command(hide = true)]
    Version,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Plan(args) => commands::plan::run(args),
        Command::Version => commands::version(),
    }
}
