//! The `strake` binary: the command line, the daemon, and the only place that puts the crates
//! together.

mod admin;
mod assemble;
mod backend;
mod background;
mod cluster;
mod commands;
mod create;
mod daemon;
mod data_dir;
mod disks;
#[cfg(test)]
mod documented_test;
mod journal;
mod lab;
mod log;
mod mount_options;
mod mounts;
mod node;
mod output;
mod rebalance;
mod registry;
mod scrub;
mod service;
mod settings;
mod show;
mod supervisor;
mod utab;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use strake_proto::{FeatureLevel, feature};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A parallel POSIX file system: one binary, no kernel module.
#[derive(Parser)]
#[command(
    name = "strake",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  strake up --data /srv/strake --mount /mnt/strake      from nothing to a mounted file system
  strake fs show                                        the attributes of the file system
  strake health                                         how each component is
  strake top                                            what happens, in the terminal
  strake diag explain slow                              why it is slow, in words
  strake down --data /srv/strake                        flush, unmount, and end the daemon
  strake cluster create demo --dir /srv/strake --address 10.0.0.1     several machines
  strake lab up --nodes 3 --dir /var/tmp/lab            several nodes on this machine, to try"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(commands::up::UpArgs),
    Down(commands::down::DownArgs),
    #[command(subcommand)]
    Cluster(commands::cluster::ClusterCommand),
    #[command(subcommand)]
    Node(commands::node::NodeCommand),
    #[command(subcommand)]
    Lab(commands::lab::LabCommand),
    #[command(subcommand)]
    Fs(commands::fs::FsCommand),
    #[command(subcommand)]
    Nsd(commands::disk::NsdCommand),
    #[command(subcommand)]
    Disk(commands::disk::DiskCommand),
    #[command(subcommand)]
    Diag(commands::diag::DiagCommand),
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
    Mon(commands::mon::MonArgs),
    Health(commands::health::HealthArgs),
    Stat(commands::stat::StatArgs),
    Top(commands::top::TopArgs),
    /// Measure what a directory, a network or a disk can do.
    #[command(subcommand)]
    Bench(strake_bench::Bench),
    Plan(strake_plan::PlanArgs),
    #[command(subcommand)]
    Mm(commands::mm::MmCommand),
    Help(commands::help::HelpArgs),
    #[command(hide = true)]
    Manuals(commands::manuals::ManualsArgs),
    #[command(hide = true)]
    Daemon(daemon::DaemonArgs),
    /// Print the version.
    #[command(hide = true)]
    Version,
}

/// For tests of upgrades, which need an older program: the highest feature level that this program
/// is to understand. It then speaks no newer protocol either, and so do the processes that it
/// starts.
const LEVEL_MAX: &str = "STRAKE_FEATURE_LEVEL_MAX";

fn main() -> ExitCode {
    if let Some(level) = std::env::var(LEVEL_MAX).ok().and_then(|text| text.parse().ok()) {
        feature::understand_at_most(FeatureLevel(level));
    }
    let by_name = commands::mount::run_by_name().or_else(commands::mm::run_by_name);
    if let Some(ended) = by_name.or_else(commands::mm::run_after_mm) {
        return ended;
    }
    run(Cli::parse().command)
}

/// Runs a command that other commands are translated into, by its words.
fn run_words(words: &[String]) -> ExitCode {
    let program = std::iter::once("strake").chain(words.iter().map(String::as_str));
    match Cli::try_parse_from(program) {
        Ok(cli) => run(cli.command),
        Err(error) => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Up(args) => output::finish(commands::up::run(args)),
        Command::Down(args) => output::finish(commands::down::run(&args)),
        Command::Cluster(command) => output::finish(commands::cluster::run(&command)),
        Command::Node(command) => output::finish(commands::node::run(&command)),
        Command::Lab(command) => output::finish(commands::lab::run(&command)),
        Command::Fs(command) => output::finish(commands::fs::run(&command)),
        Command::Nsd(command) => output::finish(commands::disk::run_nsd(&command)),
        Command::Disk(command) => output::finish(commands::disk::run_disk(&command)),
        Command::Diag(command) => output::finish(commands::diag::run(&command)),
        Command::Mon(args) => output::finish(commands::mon::run(&args)),
        Command::Health(args) => commands::health::run(&args),
        Command::Stat(args) => output::finish(commands::stat::run(&args)),
        Command::Top(args) => output::finish(commands::top::run(&args)),
        Command::Config(command) => output::finish(commands::config::run(&command)),
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Plan(args) => commands::plan::run(args),
        Command::Mm(command) => commands::mm::run(command),
        Command::Help(args) => output::finish(commands::help::run(&args)),
        Command::Manuals(args) => output::finish(commands::manuals::run(&args)),
        Command::Daemon(args) => daemon::run(&args),
        Command::Version => commands::version(),
    }
}
