//! `strake plan`: the command line. Reads files, calls the core, prints.

use crate::compare;
use crate::design::Design;
use crate::error::PlanError;
use crate::evaluate::evaluate;
use crate::library::Library;
use crate::report;
use crate::solve::{self, Objective, Wanted};
use crate::text;
use crate::tune::{self, Wishes};
use crate::unit::{parse_capacity, parse_rate};
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
    /// Designs that satisfy requirements, from the library.
    #[command(after_help = "Examples:
  strake plan solve --usable 500TB --write 9GB/s --read 10GB/s --network qdr
  strake plan solve --iops-read 100000 --usable 20TB --objective servers
  strake plan solve --raw 1PB --disk nl-sas --max-racks 2 --out designs

The designs written with --out can be evaluated, tuned and reported.")]
    Solve(SolveArgs),
    /// Predicted beside measured, with the likely cause of a gap.
    #[command(after_help = "Examples:
  strake bench io /mnt --record 4M --tasks 8 --json > result.json
  strake plan compare design.toml --bench result.json
  strake plan compare design.toml --bench streams.json --bench random.json")]
    Compare {
        /// The design file.
        design: PathBuf,
        /// A report of `strake bench io --json` (repeatable).
        #[arg(long, required = true, value_name = "RESULT.json")]
        bench: Vec<PathBuf>,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
    /// A report of a design: one HTML page that needs nothing else, and Markdown.
    #[command(after_help = "Examples:
  strake plan report docs/plan/examples/solution-2a.toml --out solution-2a
  strake plan report design.toml --out /tmp/design    writes /tmp/design.html and /tmp/design.md")]
    Report {
        /// The design file.
        design: PathBuf,
        /// Name of the files to write, without .html and .md.
        #[arg(long, default_value = "plan-report", value_name = "PREFIX")]
        out: PathBuf,
    },
    /// Settings that follow from a design: for Strake, for the original system, for Linux.
    #[command(after_help = "Examples:
  strake plan tune docs/plan/examples/solution-2a.toml
  strake plan tune docs/plan/examples/solution-1a.toml --client-rate 1.5GB/s
  strake plan tune docs/plan/examples/nss-large.toml")]
    Tune {
        /// The design file.
        design: PathBuf,
        /// Rate that one client is to reach; else what its adapter carries.
        #[arg(long, value_parser = parse_rate)]
        client_rate: Option<f64>,
        /// NFS transfer size (`rsize` in /proc/mounts of a client).
        #[arg(long, value_parser = |text: &str| parse_capacity(text, 1024.0))]
        rsize: Option<f64>,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
struct SolveArgs {
    /// Usable capacity (TB = 2^40 bytes).
    #[arg(long, value_parser = |text: &str| solve::requirement(text, false))]
    usable: Option<f64>,
    /// Raw capacity (TB = 10^12 bytes).
    #[arg(long, value_parser = |text: &str| solve::requirement(text, true))]
    raw: Option<f64>,
    /// Streaming write (GB/s = 2^30 bytes per second).
    #[arg(long, value_parser = parse_rate)]
    write: Option<f64>,
    /// Streaming read.
    #[arg(long, value_parser = parse_rate)]
    read: Option<f64>,
    /// Random 4 KiB writes per second.
    #[arg(long)]
    iops_write: Option<f64>,
    /// Random 4 KiB reads per second.
    #[arg(long)]
    iops_read: Option<f64>,
    /// Network of the servers: an adapter of the library or the end of its name (qdr, 2xtbe).
    #[arg(long)]
    network: Option<String>,
    /// Disks to consider, by name or class (repeatable).
    #[arg(long)]
    disk: Vec<String>,
    /// Enclosures to consider (repeatable).
    #[arg(long)]
    enclosure: Vec<String>,
    /// Most racks allowed.
    #[arg(long)]
    max_racks: Option<u64>,
    /// Rack of the library.
    #[arg(long, default_value = "rack-42u")]
    rack: String,
    /// What to keep small; cost needs prices in the library.
    #[arg(long, value_enum, default_value = "racks")]
    objective: Objective,
    /// How many designs to show.
    #[arg(long, default_value_t = 5)]
    count: usize,
    /// Write each design as a TOML file into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

impl SolveArgs {
    fn run(&self, library: &Library) -> Result<String, PlanError> {
        let wanted = Wanted {
            usable: self.usable,
            raw: self.raw,
            write: self.write,
            read: self.read,
            iops_write: self.iops_write,
            iops_read: self.iops_read,
            network: self.network.clone(),
            disks: self.disk.clone(),
            enclosures: self.enclosure.clone(),
            racks_max: self.max_racks,
            rack: Some(self.rack.clone()),
        };
        let answers = solve::solve(library, &wanted, self.objective, self.count)?;
        if let Some(directory) = &self.out {
            let io = |error| PlanError::read(directory, error);
            std::fs::create_dir_all(directory).map_err(io)?;
            for (index, answer) in answers.iter().enumerate() {
                let text = toml::to_string(&answer.design);
                let text = text.map_err(|error| PlanError::Usage(error.to_string()))?;
                let path = directory.join(format!("design-{}.toml", index + 1));
                std::fs::write(&path, text).map_err(|error| PlanError::read(&path, error))?;
            }
        }
        if self.json { to_json(&answers) } else { Ok(text::render_answers(&answers)) }
    }
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
        PlanCommand::Solve(solve) => solve.run(&library),
        PlanCommand::Compare { design, bench, json } => {
            let design = Design::read(design)?;
            let system = design.resolve(&library)?;
            let mut measurements = Vec::new();
            for path in bench {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| PlanError::read(path, error))?;
                measurements.extend(compare::read_bench(&path.display().to_string(), &text)?);
            }
            let comparisons = compare::compare(&system, &measurements);
            if *json {
                to_json(&comparisons)
            } else {
                Ok(compare::render(&system.title, &comparisons))
            }
        }
        PlanCommand::Report { design, out } => {
            let design = Design::read(design)?;
            let system = design.resolve(&library)?;
            let evaluation = evaluate(&system);
            let pages = [
                ("html", report::html(&system, &evaluation)),
                ("md", report::markdown(&evaluation)),
            ];
            let mut written = String::new();
            for (extension, page) in pages {
                // A dot in the prefix belongs to the name, so the extension is appended.
                let path = PathBuf::from(format!("{}.{extension}", out.display()));
                std::fs::write(&path, page).map_err(|error| PlanError::read(&path, error))?;
                written.push_str(&format!("wrote {}\n", path.display()));
            }
            Ok(written)
        }
        PlanCommand::Tune { design, client_rate, rsize, json } => {
            let design = Design::read(design)?;
            let system = design.resolve(&library)?;
            let wishes = Wishes { client_rate: *client_rate, rsize: *rsize };
            let settings = tune::tune(&system, wishes);
            if *json { to_json(&settings) } else { Ok(tune::render(&system.title, &settings)) }
        }
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String, PlanError> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| PlanError::Usage(error.to_string()))
}
