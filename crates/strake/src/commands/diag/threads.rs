//! `strake diag threads`: what each thread of the daemon does now.

use super::Asked;
use crate::admin::Request;
use crate::show::ShowThread;
use clap::Args;
use strake_proto::Result;

/// Show each thread of the daemon: what it does or waits for, and the time it took of processors.
///
/// *cpu s* is its time on processors since it began, and *queued s* the time in which it was ready
/// and had to wait for its turn. Threads that do nothing come last. docs/ARCHITECTURE.md says
/// what each thread is there for.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag threads
  strake diag threads --all          of the mounts of all nodes
  strake diag threads --json")]
pub(crate) struct ThreadsArgs {
    #[command(flatten)]
    asked: Asked,
}

/// Runs `strake diag threads`.
pub(super) fn run(args: &ThreadsArgs) -> Result<()> {
    args.asked.show(&Request::Threads, &|all: &Vec<ShowThread>| Ok(ShowThread::table(all).render()))
}
