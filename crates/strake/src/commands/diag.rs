//! `strake diag`: shows what the daemon did, what it does, and what it waits for.

pub(crate) mod explain;
mod file;
mod network;
mod picture;
pub(crate) mod slow;
mod tokens;
mod trace;

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::output;
use crate::registry;
use crate::show::ShowMemory;
use clap::Subcommand;
use strake_observe::{
    IoRecord, OperationSnapshot, WaiterSnapshot, print_io_history, print_operations, print_waiters,
};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// Show what the daemon did, what it does, and what it waits for.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake diag explain slow       why it is slow, in words, and what to do
  strake diag iohist | tail      the last I/Os: which disk, how large, how long
  strake diag waiters            everything that waits, and for what
  strake diag network            round trips to other nodes, silence, packets sent again
  strake diag tokens             files that nodes take from each other, and who waits
  strake diag stats              count, rate and latency of every operation
  strake diag metrics            what Prometheus gets, for a file or a pipe
  strake diag memory             the page pool, inodes in use, and the memory of the process
  strake diag config             the settings in force, and from what each is derived
  strake diag explain FILE       where a file lies, and what of it is in memory
  strake diag trace start        record what happens from now on: see `strake diag trace`")]
pub(crate) enum DiagCommand {
    /// List the last I/Os, oldest first.
    Iohist(Target),
    /// List everything that waits now, longest first.
    Waiters(Target),
    Network(network::NetworkArgs),
    Tokens(tokens::TokensArgs),
    /// Show the count and latency of every operation since the start.
    Stats(Target),
    /// Print all metrics in the text format of Prometheus.
    Metrics(Target),
    /// Show what the daemon holds in memory.
    Memory(Target),
    /// Show the settings in force, and from what each value is derived.
    Config(Target),
    /// Show what is known of a file: where it lies, how healthy that is, what is in memory.
    Explain(explain::ExplainArgs),
    #[command(subcommand)]
    Trace(trace::TraceCommand),
}

/// Runs a `strake diag` command.
pub(crate) fn run(command: &DiagCommand) -> Result<()> {
    let (target, request) = match command {
        DiagCommand::Iohist(target) => (target, Request::IoHistory),
        DiagCommand::Waiters(target) => (target, Request::Waiters),
        DiagCommand::Stats(target) => (target, Request::Stats),
        DiagCommand::Memory(target) => (target, Request::Memory),
        DiagCommand::Metrics(target) => (target, Request::Metrics),
        DiagCommand::Config(target) => return crate::commands::config::why(target),
        DiagCommand::Network(args) => return network::run(args),
        DiagCommand::Tokens(args) => return tokens::run(args),
        DiagCommand::Explain(args) => return explain::run(args),
        DiagCommand::Trace(command) => return trace::run(command),
    };
    let dir = registry::find(target.data.as_deref())?;
    let value: serde_json::Value = admin::ask(&dir, &request)?;
    if target.json {
        return output::print_json(&value);
    }
    let unreadable = |error: serde_json::Error| {
        Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}"))
    };
    let mut text = String::new();
    let printed = match command {
        DiagCommand::Iohist(_) => {
            let records: Vec<IoRecord> = serde_json::from_value(value).map_err(unreadable)?;
            let config = dir.read_config()?;
            let node = node_name();
            let names = |nsd: NsdId| (config.nsd_name(nsd), node.clone());
            print_io_history(&mut text, &records, &names, 0)
        }
        DiagCommand::Waiters(_) => {
            let waiters: Vec<WaiterSnapshot> = serde_json::from_value(value).map_err(unreadable)?;
            if waiters.is_empty() {
                text.push_str("nothing waits\n");
            }
            print_waiters(&mut text, &waiters, 0)
        }
        DiagCommand::Stats(_) => {
            let stats: Vec<OperationSnapshot> =
                serde_json::from_value(value).map_err(unreadable)?;
            print_operations(&mut text, &stats)
        }
        DiagCommand::Memory(_) => {
            let memory: ShowMemory = serde_json::from_value(value).map_err(unreadable)?;
            text = memory.table().render();
            Ok(())
        }
        DiagCommand::Metrics(_) => {
            text = serde_json::from_value(value).map_err(unreadable)?;
            Ok(())
        }
        DiagCommand::Network(_)
        | DiagCommand::Config(_)
        | DiagCommand::Tokens(_)
        | DiagCommand::Explain(_)
        | DiagCommand::Trace(_) => Ok(()),
    };
    printed.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}

/// This machine's name.
pub(crate) fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
