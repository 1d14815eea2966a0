//! `strake plan` alone, without building the rest of the binary:
//! `cargo run -p strake-plan --example plan -- evaluate docs/plan/examples/solution-2a.toml`

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "strake plan")]
struct Cli {
    #[command(flatten)]
    args: strake_plan::PlanArgs,
}

fn main() -> ExitCode {
    strake_plan::run(Cli::parse().args)
}
