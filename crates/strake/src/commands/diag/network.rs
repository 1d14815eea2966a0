//! `strake diag network`: how the network to other nodes is.

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::node::{self, NodeDir, NodeRequest};
use crate::output;
use crate::registry;
use clap::Args;
use std::path::PathBuf;
use strake_observe::{LinkRow, print_links};
use strake_proto::{Error, ErrorKind, Result};

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
  strake diag network --json")]
pub(crate) struct NetworkArgs {
    #[command(flatten)]
    target: Target,
    /// The directory of a node: its server process is asked, not a mount.
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    node_dir: Option<PathBuf>,
}

/// Runs `strake diag network`.
pub(super) fn run(args: &NetworkArgs) -> Result<()> {
    let rows: Vec<LinkRow> = match &args.node_dir {
        Some(dir) => node::ask_own(&NodeDir::at(dir)?, &node::Request::Node(NodeRequest::Network))?,
        None => admin::ask(&registry::find(args.target.data.as_deref())?, &Request::Network)?,
    };
    if args.target.json {
        return output::print_json(&rows);
    }
    let mut text = String::new();
    print_links(&mut text, &rows)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}
