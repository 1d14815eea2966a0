//! `strake diag network`: how the network to other nodes is.

use super::{Asked, text};
use crate::admin::Request;
use crate::node::{self, NodeDir, NodeRequest};
use crate::output;
use clap::Args;
use std::path::PathBuf;
use strake_observe::{LinkRow, print_links};
use strake_proto::Result;

/// Show how the network to other nodes is: round trips, silence, packets sent again.
///
/// A row is about one node. Once a second it is sent a ping: *smallest*, *median* and *last* are
/// round trips. *silent* says how long nothing has come from it. *queued* bytes wait in the kernel
/// to be sent. A packet is sent *again* when it, or its acknowledgement, was lost on the way. *by
/// it* is the same of what the node has sent to this one. `--json` has the numbers of packets.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag network                        as the mount of this machine sees it
  strake diag network --node-dir /srv/strake as the node's server process sees it
  strake diag network --all                  as the mount of each node sees it
  strake diag network --json")]
pub(crate) struct NetworkArgs {
    #[command(flatten)]
    asked: Asked,
    /// The directory of a node: its server process is asked, not a mount.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data", "all"])]
    node_dir: Option<PathBuf>,
}

/// Runs `strake diag network`.
pub(super) fn run(args: &NetworkArgs) -> Result<()> {
    let print = |rows: &Vec<LinkRow>| text(|out| print_links(out, rows));
    let Some(dir) = &args.node_dir else { return args.asked.show(&Request::Network, &print) };
    let request = node::Request::Node(NodeRequest::Network);
    let rows: Vec<LinkRow> = node::ask_own(&NodeDir::at(dir)?, &request)?;
    if args.asked.target.json {
        return output::print_json(&rows);
    }
    print!("{}", print(&rows)?);
    Ok(())
}
