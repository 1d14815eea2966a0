//! Benchmarks of any directory, network or disk: `strake bench`.
//!
//! Pure parts (patterns, contents, metrics, statistics, layouts of reports) are separate from the
//! parts that drive them (threads, files, sockets). A phase of work runs the same way on one host
//! or many; see `crew` and `team`. `docs/bench.md` says what each figure means and when it
//! misleads.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;

pub mod clock;
pub mod compare;
pub mod content;
pub mod crew;
pub mod disk;
pub mod error;
pub mod figures;
pub mod host;
pub mod io;
pub mod md;
pub mod metric;
pub mod net;
pub mod outcome;
pub mod pattern;
pub mod perf;
pub mod remote;
pub mod report;
pub mod sas;
pub mod scratch;
pub mod size;
pub mod statistics;
pub mod stop;
pub mod suite;
pub mod team;
pub mod work;

use crate::crew::Relaunch;
use crate::error::{BenchError, Result};
use crate::report::Report;
use crate::stop::Stop;

/// The benchmarks.
#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// Write and read data: patterns, shared files, verification, many hosts.
    #[command(after_long_help = IO_EXAMPLES)]
    Io(Box<io::run::IoArgs>),
    /// Make, look at and remove files and directories.
    #[command(after_long_help = MD_EXAMPLES)]
    Md(Box<md::run::MdArgs>),
    /// Send messages between hosts: what the network carries, and whether it is good enough.
    #[command(after_long_help = NET_EXAMPLES)]
    Net(Box<net::run::NetArgs>),
    /// One file, said and reported as gpfsperf does.
    #[command(after_help = perf::HELP)]
    Perf(perf::PerfArgs),
    /// Read devices: which disk is the slow one? Writes only with --destroy.
    #[command(after_long_help = DISK_EXAMPLES)]
    Disk(disk::DiskArgs),
    /// The I/O test of SAS sites: MB/s per physical core.
    #[command(after_long_help = SAS_EXAMPLES)]
    Sas(Box<sas::SasArgs>),
    /// Everything that matters in ten minutes, with a report as Markdown and HTML.
    #[command(after_long_help = SUITE_EXAMPLES)]
    Suite(suite::SuiteArgs),
    /// What changed between two reports, and whether it is more than noise.
    #[command(after_long_help = COMPARE_EXAMPLES)]
    Compare(compare::CompareArgs),
    /// Let drivers on other hosts run tasks here.
    #[command(after_long_help = AGENT_EXAMPLES)]
    Agent(remote::agent::AgentArgs),
    /// A task of another process of this program.
    #[command(hide = true)]
    Worker(remote::worker::WorkerArgs),
}

const IO_EXAMPLES: &str = "\
Examples (any directory will do; nothing is left behind):
  strake bench io /tmp
  strake bench io . --tasks 1,2,4,8,16 --size 512M
  strake bench io . --pattern rand --record 4K --size 64M --cache keep
  strake bench io . --pattern strided:100 --record 16K --verify
  strake bench io . --tasks 2 --layout interleaved --record 47008 --records 8000 \\
      --shift 1 --fsync counted                       as IOR hard does
  strake bench io . --operations create,rewrite,read --direct --stonewall 30s
  strake bench io data --tasks 4 --hosts node1,node2,node3 --secret-file secret
  strake bench io . --with second-job.toml            two jobs at the same time";

const MD_EXAMPLES: &str = "\
Examples (any directory will do; nothing is left behind):
  strake bench md /tmp
  strake bench md . --tasks 2 -n 5000 -u -F                   as mdtest easy does
  strake bench md . --tasks 2 -n 2500 -F -w 3901 -e 3901      as mdtest hard does
  strake bench md . --tasks 4 -n 2000 -u -N 1 -i 3 -z 2 -b 4
  strake bench md . --list 20k,50k,100k                       create, ls -l, rm -r";

const NET_EXAMPLES: &str = "\
Examples (with `strake bench agent` running on every host named):
  strake bench net --hosts a,b,c --secret-file secret                  ready or not?
  strake bench net --clients a,b --servers c --secret-file secret
  strake bench net --clients a,b --servers c,d --tests nwrite,read --workers 200 --hist
  strake bench net --clients a --servers b --tests rw --threads 8 --buffer 1M --verify";

const DISK_EXAMPLES: &str = "\
Examples:
  strake bench disk /dev/sdb /dev/sdc /dev/sdd           one after the other, reads only
  strake bench disk /dev/sd[b-y] --together              all at once: what do they share?
  strake bench disk large-file --class ssd --time 2s     a file will do";

const SAS_EXAMPLES: &str = "\
Examples (any directory will do; nothing is left behind):
  strake bench sas /mnt/strake
  strake bench sas . --file-size 2G                      shorter, and it says what that means
  strake bench sas work --hosts node1,node2 --secret-file secret";

const SUITE_EXAMPLES: &str = "\
Examples (any directory will do; only the reports stay):
  strake bench suite /mnt/strake --quick
  strake bench suite . --output /tmp
  strake bench compare strake-bench-suite-1.json strake-bench-suite-2.json";

const COMPARE_EXAMPLES: &str = "\
Example:
  strake bench io . --iterations 5 --json > before.json
  strake bench io . --iterations 5 --json > after.json
  strake bench compare before.json after.json";

const AGENT_EXAMPLES: &str = "\
Example:
  head -c 24 /dev/urandom | base64 > secret           once; copy it to every host
  strake bench agent --dir /mnt/strake --secret-file secret        on every host
  strake bench io . --hosts node1,node2 --secret-file secret       on any host";

/// Tells the person at the terminal something that is not a result. `who` is the command: `bench`,
/// or `bench agent`.
pub(crate) fn tell(who: &str, message: &dyn std::fmt::Display) {
    eprintln!("strake {who}: {message}");
}

/// Runs a benchmark and prints its result. `relaunch` holds the words that come before `worker`
/// when this program starts itself again.
pub fn run(bench: &Bench, relaunch: Relaunch<'_>) -> ExitCode {
    match dispatch(bench, relaunch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell("bench", &error);
            match error {
                BenchError::Usage(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn dispatch(bench: &Bench, relaunch: Relaunch<'_>) -> Result<()> {
    let stop = Stop::on_signals()?;
    match bench {
        Bench::Io(args) => print(args.place.json, io::run::run(args, &stop, relaunch)?),
        Bench::Md(args) => print(args.place.json, md::run::run(args, &stop, relaunch)?),
        Bench::Net(args) => {
            let (report, text) = net::run::run(args, &stop)?;
            let is_refused = net::run::is_refused(&report);
            print(args.json, (report, text))?;
            match is_refused {
                true => Err(BenchError::NotReady),
                false => Ok(()),
            }
        }
        Bench::Perf(args) => {
            let (json, report, text) = perf::run(args, &stop)?;
            print(json, (report, text))
        }
        Bench::Disk(args) => print(args.json, disk::run(args, &stop)?),
        Bench::Sas(args) => print(args.place.json, sas::run(args, &stop, relaunch)?),
        Bench::Suite(args) => {
            let (report, text) = suite::run(args, &stop)?;
            print(args.json, (report, text))
        }
        Bench::Compare(args) => write_out(&compare::run(args)?),
        Bench::Agent(args) => remote::agent::run(args, &stop),
        Bench::Worker(args) => remote::worker::run(args, &stop),
    }
}

/// Prints a report as JSON or as text.
fn print(json: bool, (report, text): (Report, String)) -> Result<()> {
    write_out(&if json { report.to_json() } else { text })
}

fn write_out(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // `strake bench … | head` is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| BenchError::system("cannot print the report", error)),
    }
}
