//! The `strake` binary: command line, daemon roles, and the only wiring of the crates.

use clap::{Parser, Subcommand};

/// A parallel POSIX file system: one binary, no kernel module.
#[derive(Parser)]
#[command(name = "strake", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    match cli.command {}
}
