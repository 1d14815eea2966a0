//! `strake plan`: the command line. Reads files, calls the core, prints.

use crate::adopt::{self, Like};
use crate::calibrate::{self, Measured};
use crate::catalogue;
use crate::compare;
use crate::design::Design;
use crate::error::PlanError;
use crate::evaluate::evaluate;
use crate::library::Library;
use crate::measure::{self, Budget};
use crate::montecarlo;
use crate::outputs;
use crate::report;
use crate::solve::{self, Objective, Wanted};
use crate::text;
use crate::tune::{self, Wishes};
use crate::unit::{Unit, parse_capacity, parse_rate};
use crate::whatif;
use clap::{Args, Subcommand};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use strake_env::RealClock;

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
  strake plan evaluate docs/plan/examples/nss-large.toml --json
  strake plan evaluate docs/plan/examples/nvme-cluster.toml --set tier.nvme.blocks=12

With --set the design as it is stands beside the changed one at the end.")]
    Evaluate {
        /// The design file.
        design: PathBuf,
        /// Change a field before evaluating (repeatable): tier.NAME.storage.disk=nvme-15360gb.
        #[arg(long, value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// Print the derivation of every figure with the source of each constant.
        #[arg(long)]
        explain: bool,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Probability of data loss: a Markov model, and a simulation on Strake's own placement.
    #[command(after_help = "Examples:
  strake plan reliability docs/plan/examples/nvme-cluster.toml
  strake plan reliability design.toml --trials 100000 --stripes 100000 --seed 7

The simulation takes stripes as Strake's placement makes them, forces failures into the time of
rebuilds, and weighs them. It counts all stripes of a full file system. Rates of failure are `afr`, `ure` and `destroyed` of the library.")]
    Reliability {
        /// The design file.
        design: PathBuf,
        /// Exactly so many trials [default: until the error is below 3 %, or some seconds of work].
        #[arg(long, value_parser = count())]
        trials: Option<u64>,
        /// Stripes that it looks at one by one; the rest of a full file system follow a rule.
        #[arg(long, default_value_t = 2000, value_parser = count())]
        stripes: u64,
        /// Seed of its chance.
        #[arg(long, default_value_t = 1)]
        seed: u64,
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
    /// What there is to choose from, with sources.
    #[command(after_help = "Examples:
  strake plan library list
  strake plan library list disk
  strake plan library show nvme-7680gb")]
    Library {
        #[command(subcommand)]
        command: LibraryCommand,
    },
    /// A commented design to begin with; it evaluates as it stands.
    #[command(after_help = "Examples:
  strake plan new first        writes first.toml
  strake plan evaluate first.toml")]
    New {
        /// Name of the file to write, without .toml.
        name: String,
    },
    /// Measure this machine's disks and network, and write them as library entries.
    #[command(after_help = "Examples:
  strake plan calibrate --dir /data --out calibrated
  strake plan calibrate --dir /disk1 --dir /disk2 --mount /mnt --code 4+2p --out calibrated
  strake plan evaluate calibrated/this-machine.design --library calibrated
  strake plan calibrate --from fio.json --disk nvme-gen4-7680gb --out calibrated
  strake plan calibrate --from ior.txt --server nvme-server --from mdtest.txt --filesystem strake

With --from it measures nothing: it copies entries as NAME-measured and puts in what fio, IOR,
mdtest or `strake bench` measured. Figures that find no place are named. Without --from it writes
a scratch file of --size into each directory and removes it, which takes about a minute.")]
    Calibrate(CalibrateArgs),
    /// Designs side by side; or predicted beside measured, with the likely cause of a gap.
    #[command(after_help = "Examples:
  strake plan compare docs/plan/examples/solution-2a.toml docs/plan/examples/solution-2c1.toml
  strake bench io /mnt --record 4M --tasks 8 --json > result.json
  strake plan compare design.toml --bench result.json
  strake plan compare design.toml --bench streams.json --bench random.json
  strake plan compare design.toml --bench ior.txt --bench mdtest.txt

Rows that have no prediction are named.")]
    Compare {
        /// The design file; without --bench two of them or more.
        #[arg(required = true)]
        designs: Vec<PathBuf>,
        /// A report of `strake bench --json`, or the output of fio (JSON), IOR or mdtest
        /// (repeatable).
        #[arg(long, value_name = "RESULT.json")]
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
        #[arg(long, allow_hyphen_values = true, value_parser = parse_rate)]
        client_rate: Option<f64>,
        /// NFS transfer size (`rsize` in /proc/mounts of a client).
        #[arg(long, allow_hyphen_values = true, value_parser = capacity)]
        rsize: Option<f64>,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Trials and stripes: some, and not so many that memory ends.
fn count() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=10_000_000)
}

fn capacity(text: &str) -> Result<f64, String> {
    parse_capacity(text, 1024.0)
}

fn operations(text: &str) -> Result<f64, String> {
    let number = text.replace([',', '_'], "").parse::<f64>().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| {
        format!("'{text}' is no number of operations a second; write for example 100000")
    })
}

fn usable(text: &str) -> Result<f64, String> {
    solve::requirement(text, false)
}

fn raw(text: &str) -> Result<f64, String> {
    solve::requirement(text, true)
}

#[derive(Subcommand, Debug)]
enum LibraryCommand {
    /// Names and descriptions, of all kinds or of one: disk, enclosure, server, adapter, code…
    #[command(after_help = "Examples:
  strake plan library list
  strake plan library list disk")]
    List {
        /// The kind.
        kind: Option<String>,
    },
    /// One entry as a library file holds it, with the source of every constant.
    #[command(after_help = "Examples:
  strake plan library show nvme-7680gb
  strake plan library show 8+2p")]
    Show {
        /// Its name.
        name: String,
    },
}

#[derive(Args, Debug)]
struct CalibrateArgs {
    /// Directory on a disk to measure (repeatable; several on one device count once).
    #[arg(long)]
    dir: Vec<PathBuf>,
    /// Output of fio (JSON), IOR, mdtest or `strake bench --json` to take constants from
    /// (repeatable).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "mount"])]
    from: Vec<PathBuf>,
    /// Entry that the disk under fio is like.
    #[arg(long, value_name = "NAME", requires = "from")]
    disk: Option<String>,
    /// Entry that each client under IOR or `strake bench io` is like.
    #[arg(long, value_name = "NAME", requires = "from")]
    server: Option<String>,
    /// Entry that the file system under mdtest is like.
    #[arg(long, value_name = "NAME", requires = "from")]
    filesystem: Option<String>,
    /// A mount of the file system whose own path is to be measured; best with its data in memory,
    /// so that no disk gates.
    #[arg(long)]
    mount: Option<PathBuf>,
    /// Bytes written and read in each place.
    #[arg(long, default_value = "512M", value_parser = capacity)]
    size: f64,
    /// Most seconds of each single run.
    #[arg(long, default_value_t = 3.0, allow_hyphen_values = true)]
    seconds: f64,
    /// Code of the design that is written beside the library.
    #[arg(long, default_value = "4+2p")]
    code: String,
    /// Block size of that design.
    #[arg(long, default_value = "4M")]
    block_size: String,
    /// Directory for this-machine.toml (library) and this-machine.design.
    #[arg(long, default_value = "calibrated", value_name = "DIR")]
    out: PathBuf,
}

impl CalibrateArgs {
    /// Takes constants from what other tools printed.
    fn adopt(&self, library: &Library) -> Result<String, PlanError> {
        let (mut files, mut unused) = (Vec::new(), Vec::new());
        for path in &self.from {
            let file = path.display().to_string();
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| PlanError::read(path, error))?;
            let (rows, not) = match outputs::read(&file, &text) {
                Some(rows) => rows?,
                None => {
                    let (measurements, not) = compare::read_any(&file, &text)?;
                    (adopt::of_bench(&measurements), not)
                }
            };
            files.push((file, rows));
            unused.extend(not);
        }
        let like = Like {
            disk: self.disk.clone(),
            server: self.server.clone(),
            filesystem: self.filesystem.clone(),
        };
        let (text, not) = adopt::adopt(library, &like, &files)?;
        unused.extend(not);
        std::fs::create_dir_all(&self.out).map_err(|error| PlanError::read(&self.out, error))?;
        let path = self.out.join("measured.toml");
        std::fs::write(&path, text).map_err(|error| PlanError::read(&path, error))?;
        Ok(format!("wrote {}\n{}", path.display(), compare::render_unused(&unused)))
    }

    fn run(&self, library: &Library) -> Result<String, PlanError> {
        if !self.from.is_empty() {
            return self.adopt(library);
        }
        if self.dir.is_empty() {
            return Err(PlanError::Usage(
                "say what to measure: --dir DIR on each disk; or give what other tools measured \
                 with --from FILE"
                    .into(),
            ));
        }
        if !(0.01..=600.0).contains(&self.seconds) {
            return Err(PlanError::Usage("--seconds must lie in 0.01 to 600".into()));
        }
        Library::find(&library.codes, "code", &self.code)?;
        let time = Duration::from_secs_f64(self.seconds);
        let budget = Budget { bytes: self.size as u64, time };
        let clock = RealClock;
        let mut measured = Measured {
            cores: strake_env::thread::available_parallelism().map_or(1, usize::from),
            interfaces: measure::interfaces(),
            ..Measured::default()
        };
        let mut out = String::new();
        for directory in &self.dir {
            let disk = measure::disk(&clock, directory, budget)?;
            let same = if measured.add_disk(disk) { "" } else { " (same device as before)" };
            out.push_str(&format!(
                "{}{same}: write {}, read {}, IOPS write {}, read {}\n",
                directory.display(),
                Unit::BytesPerSecond.show(disk.write),
                Unit::BytesPerSecond.show(disk.read),
                Unit::OperationsPerSecond.show(disk.iops_write),
                Unit::OperationsPerSecond.show(disk.iops_read),
            ));
        }
        if let Some(directory) = &self.mount {
            let mount = measure::mount(&clock, directory, budget)?;
            out.push_str(&format!(
                "{} (mount): write {}, read {}\n",
                directory.display(),
                Unit::BytesPerSecond.show(mount.write),
                Unit::BytesPerSecond.show(mount.read),
            ));
            measured.mount = Some(mount);
        }
        measured.loopback = measure::loopback(&clock, time.min(Duration::from_secs(2)))?;
        let loopback = Unit::BytesPerSecond.show(measured.loopback);
        out.push_str(&format!("loopback network: {loopback}\n"));
        let io = |error| PlanError::read(&self.out, error);
        std::fs::create_dir_all(&self.out).map_err(io)?;
        let files = [
            ("this-machine.toml", calibrate::library_text(&measured)),
            (
                "this-machine.design",
                calibrate::design_text(&measured, &self.code, &self.block_size),
            ),
        ];
        for (name, text) in files {
            let path = self.out.join(name);
            std::fs::write(&path, text).map_err(|error| PlanError::read(&path, error))?;
            out.push_str(&format!("wrote {}\n", path.display()));
        }
        let directory = self.out.display();
        out.push_str(&format!(
            "next: strake plan evaluate {directory}/this-machine.design --library {directory}\n"
        ));
        Ok(out)
    }
}

#[derive(Args, Debug)]
struct SolveArgs {
    /// Usable capacity (TB = 2^40 bytes).
    #[arg(long, allow_hyphen_values = true, value_parser = usable)]
    usable: Option<f64>,
    /// Raw capacity (TB = 10^12 bytes).
    #[arg(long, allow_hyphen_values = true, value_parser = raw)]
    raw: Option<f64>,
    /// Streaming write (GB/s = 2^30 bytes per second).
    #[arg(long, allow_hyphen_values = true, value_parser = parse_rate)]
    write: Option<f64>,
    /// Streaming read.
    #[arg(long, allow_hyphen_values = true, value_parser = parse_rate)]
    read: Option<f64>,
    /// Random 4 KiB writes per second.
    #[arg(long, allow_hyphen_values = true, value_parser = operations)]
    iops_write: Option<f64>,
    /// Random 4 KiB reads per second.
    #[arg(long, allow_hyphen_values = true, value_parser = operations)]
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
        Ok(answer) => match print(&answer.text) {
            ExitCode::SUCCESS if answer.broken => {
                tell(&"the design does not keep what its code promises; see Errors above");
                ExitCode::from(1)
            }
            code => code,
        },
        Err(error) => {
            tell(&error);
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

/// Tells the person at the terminal something that is no result.
fn tell(message: &dyn std::fmt::Display) {
    eprintln!("strake plan: {message}");
}

/// Writes the answer; a reader that closed the pipe early (`| head`) is no failure.
fn print(out: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format_args!("standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What a command prints, and whether it found a design that does not keep its promise.
#[derive(Debug)]
struct Answer {
    text: String,
    broken: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, broken: false }
    }
}

fn execute(args: &PlanArgs) -> Result<Answer, PlanError> {
    let mut library = Library::built_in();
    for directory in &args.library {
        library.add_directory(directory)?;
    }
    match &args.command {
        PlanCommand::Evaluate { design, set, explain, json } => {
            evaluate_command(&library, design, set, (*explain, *json))
        }
        PlanCommand::Library { command: LibraryCommand::List { kind } } => {
            Ok(catalogue::list(&library, kind.as_deref())?.into())
        }
        PlanCommand::Library { command: LibraryCommand::Show { name } } => {
            Ok(catalogue::show(&library, name)?.into())
        }
        PlanCommand::New { name } => Ok(catalogue::new(name)?.into()),
        PlanCommand::Reliability { design, trials, stripes, seed, json } => {
            let system = Design::read(design)?;
            let system = system.resolve(&library)?;
            let plan = montecarlo::Plan { trials: *trials, stripes: *stripes, seed: *seed };
            let tiers = montecarlo::of_system(&system, plan)?;
            Ok(if *json { to_json(&tiers)? } else { text::render_reliability(&tiers) }.into())
        }
        PlanCommand::Solve(solve) => Ok(solve.run(&library)?.into()),
        PlanCommand::Calibrate(calibrate) => Ok(calibrate.run(&library)?.into()),
        PlanCommand::Compare { designs, bench, json } => {
            Ok(compare_command(&library, designs, bench, *json)?.into())
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
            Ok(Answer { text: written, broken: evaluation.broken() })
        }
        PlanCommand::Tune { design, client_rate, rsize, json } => {
            let design = Design::read(design)?;
            let system = design.resolve(&library)?;
            let wishes = Wishes { client_rate: *client_rate, rsize: *rsize };
            let settings = tune::tune(&system, wishes);
            Ok(match json {
                true => to_json(&settings)?,
                false => tune::render(&system.title, &settings),
            }
            .into())
        }
    }
}

fn evaluate_command(
    library: &Library,
    design: &Path,
    set: &[String],
    (explain, json): (bool, bool),
) -> Result<Answer, PlanError> {
    let changed = whatif::read_with(design, set)?;
    let system = changed.resolve(library)?;
    let evaluation = evaluate(&system);
    let broken = evaluation.broken();
    if json {
        return Ok(Answer { text: to_json(&evaluation)?, broken });
    }
    let mut text = text::render(&evaluation, explain);
    if !set.is_empty() {
        let mut before = Design::read(design)?;
        before.title += " (as it is)";
        let before = before.resolve(library)?;
        text.push_str(&format!("\n{}", whatif::side_by_side(&[before, system])));
    }
    Ok(Answer { text, broken })
}

fn compare_command(
    library: &Library,
    designs: &[PathBuf],
    bench: &[PathBuf],
    json: bool,
) -> Result<String, PlanError> {
    let read: Result<Vec<Design>, _> = designs.iter().map(|path| Design::read(path)).collect();
    let read = read?;
    let systems: Result<Vec<_>, _> = read.iter().map(|design| design.resolve(library)).collect();
    let systems = systems?;
    match (&systems[..], bench) {
        ([_], []) => Err(PlanError::Usage(
            "give a second design to compare with, or measurements with --bench".into(),
        )),
        (_, []) if json => to_json(&systems.iter().map(evaluate).collect::<Vec<_>>()),
        (_, []) => Ok(whatif::side_by_side(&systems)),
        ([system], _) => {
            let (mut measurements, mut unused) = (Vec::new(), Vec::new());
            for path in bench {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| PlanError::read(path, error))?;
                let (found, not) = compare::read_any(&path.display().to_string(), &text)?;
                measurements.extend(found);
                unused.extend(not);
            }
            let comparisons = compare::compare(system, &measurements);
            match json {
                true => to_json(&serde_json::json!({
                    "comparisons": comparisons,
                    "not_used": unused,
                })),
                false => {
                    Ok(compare::render(&system.title, &comparisons)
                        + &compare::render_unused(&unused))
                }
            }
        }
        _ => Err(PlanError::Usage("--bench is held against one design".into())),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String, PlanError> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| PlanError::Usage(error.to_string()))
}

#[cfg(test)]
#[path = "cli_test.rs"]
mod cli_test;
