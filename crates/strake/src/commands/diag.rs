//! `strake diag`: shows what the daemon did, what it does, and what it waits for.

mod all;
pub(crate) mod everywhere;
pub(crate) mod explain;
mod file;
mod network;
mod picture;
pub(crate) mod slow;
mod tar;
mod threads;
mod tokens;
mod trace;
mod waiters;

use crate::admin::Request;
use crate::commands::fs::Target;
use crate::registry;
use crate::show::ShowMemory;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strake_observe::{IoRecord, OperationSnapshot, print_io_history, print_operations};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// Show what the daemon did, what it does, and what it waits for.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake diag explain slow       why it is slow, in words, and what to do
  strake diag iohist | tail      the last I/Os: which disk, how large, how long
  strake diag waiters            everything that waits, for what, and who holds that
  strake diag waiters --watch    the same, again each second
  strake diag waiters --all      in a cluster, what waits on each node
  strake diag threads            what each thread of the daemon does now
  strake diag network            round trips to other nodes, silence, packets sent again
  strake diag tokens             files that nodes take from each other, and who waits
  strake diag stats              count, rate and latency of every operation
  strake diag metrics            what Prometheus gets, for a file or a pipe
  strake diag memory             the page pool, inodes in use, and the memory of the process
  strake diag config             the settings in force, and from what each is derived
  strake diag explain FILE       where a file lies, and what of it is in memory
  strake diag trace start        record what happens from now on: see `strake diag trace`
  strake diag all                everything for a support case, in one archive")]
pub(crate) enum DiagCommand {
    /// List the last I/Os, oldest first.
    Iohist(Target),
    Waiters(waiters::WaitersArgs),
    Threads(threads::ThreadsArgs),
    Network(network::NetworkArgs),
    Tokens(tokens::TokensArgs),
    /// Show the count and latency of every operation since the start.
    Stats(Asked),
    /// Print all metrics in the text format of Prometheus.
    Metrics(Target),
    /// Show what the daemon holds in memory.
    Memory(Asked),
    /// Show the settings in force, and from what each value is derived.
    Config(Target),
    /// Show what is known of a file: where it lies, how healthy that is, what is in memory.
    Explain(explain::ExplainArgs),
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    All(all::AllArgs),
}

/// A question to the mount of this machine, or to those of all nodes.
#[derive(Args, Debug)]
pub(crate) struct Asked {
    #[command(flatten)]
    target: Target,
    /// In a cluster: ask the mounts of all nodes.
    #[arg(long)]
    all: bool,
}

impl Asked {
    /// Asks, and prints the answers.
    fn show<T: DeserializeOwned + Serialize>(
        &self,
        request: &Request,
        print: &dyn Fn(&T) -> Result<String>,
    ) -> Result<()> {
        everywhere::show(&self.target, self.all, request, print)
    }
}

/// Runs a `strake diag` command.
pub(crate) fn run(command: &DiagCommand) -> Result<()> {
    match command {
        DiagCommand::Iohist(target) => iohist(target),
        DiagCommand::Stats(asked) => {
            asked.show(&Request::Stats, &|all: &Vec<OperationSnapshot>| {
                text(|out| print_operations(out, all))
            })
        }
        DiagCommand::Memory(asked) => {
            asked.show(&Request::Memory, &|memory: &ShowMemory| Ok(memory.table().render()))
        }
        DiagCommand::Metrics(target) => {
            everywhere::show(target, false, &Request::Metrics, &|text: &String| Ok(text.clone()))
        }
        DiagCommand::Config(target) => crate::commands::config::why(target),
        DiagCommand::Waiters(args) => waiters::run(args),
        DiagCommand::Threads(args) => threads::run(args),
        DiagCommand::All(args) => all::run(args),
        DiagCommand::Network(args) => network::run(args),
        DiagCommand::Tokens(args) => tokens::run(args),
        DiagCommand::Explain(args) => explain::run(args),
        DiagCommand::Trace(command) => trace::run(command),
    }
}

fn iohist(target: &Target) -> Result<()> {
    let config = registry::find(target.data.as_deref())?.read_config()?;
    let node = node_name();
    let names = |nsd: NsdId| (config.nsd_name(nsd), node.clone());
    everywhere::show(target, false, &Request::IoHistory, &|records: &Vec<IoRecord>| {
        text(|out| print_io_history(out, records, &names, 0))
    })
}

/// The text that `print` prints.
///
/// # Errors
/// `Internal` if it fails.
pub(crate) fn text(print: impl FnOnce(&mut String) -> std::fmt::Result) -> Result<String> {
    let mut text = String::new();
    print(&mut text).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(text)
}

/// This machine's name.
pub(crate) fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
