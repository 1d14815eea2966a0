//! `strake plan`: the command line. Reads files, calls the core, prints.

use crate::design::Design;
use crate::error::PlanError;
use crate::evaluate::evaluate;
use crate::library::Library;
use crate::text;
use clap::{Args, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Size a storage system before it is bought, and hold it against what was measured.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake plan evaluate docs/plan/examples/solution-2a.toml --explain
  strake plan solve --usable 500TB --write 9GB/s --read 10GB/s --network qdr
  strake plan report docs/plan/examples/solution-2a.toml --out report

Units: raw capacity in powers of ten; TB and GB/s otherwise 2^40 and 2^30; Gb/s in bits.")]
pub struct PlanArgs {
    /// Directory with component files of your own (repeatable); same names replace built-in ones.
    #[arg(long, global = true, value_name = "DIR")]
    library: Vec<PathBuf>,
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Subcommand, Debug)]
enum PlanCommand {
    /// Capacity, rates, bottlenecks, losses and warnings of a design.
    #[command(after_help = "Examples:
  strake plan evaluate docs/plan/examples/solution-2a.toml
  strake plan evaluate docs/plan/examples/solution-2a.toml --explain
  strake plan evaluate docs/plan/examples/nss-large.toml --json")]
    Evaluate {
        /// The design file.
        design: PathBuf,
        /// Print the derivation of every figure with the source of each constant.
        #[arg(long)]
        explain: bool,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command; prints to standard output, errors to standard error.
pub fn run(args: PlanArgs) -> ExitCode {
    match execute(&args) {
        Ok(out) => print(&out),
        Err(error) => {
            eprintln!("strake plan: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

/// Writes the answer; a reader that closed the pipe early (`| head`) is no failure.
fn print(out: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strake plan: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(args: &PlanArgs) -> Result<String, PlanError> {
    let mut library = Library::built_in();
    for directory in &args.library {
        library.add_directory(directory)?;
    }
    match &args.command {
        PlanCommand::Evaluate { design, explain, json } => {
            let evaluation = evaluate(&Design::read(design)?.resolve(&library)?);
            if *json { to_json(&evaluation) } else { Ok(text::render(&evaluation, *explain)) }
        }
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String, PlanError> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| PlanError::Usage(error.to_string()))
}
