//! `strake cluster`: makes a cluster of one node, and shows one.

use crate::cluster::{Cluster, NodeNumber};
use crate::commands::diag::node_name;
use crate::commands::node::{NodeTarget, parse_address, start_process};
use crate::node::{NodeDir, NodeFile};
use crate::output;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use strake_env::{RealClock, Rng};
use strake_net::ClusterAuthority;
use strake_proto::{ClusterId, Error, NodeIdentity, Result, Roles};
use strake_report::Table;

/// Make a cluster, and show it.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake cluster create demo --dir /srv/strake --address 10.0.0.1
  strake cluster create demo --dir /srv/strake --address 10.0.0.1:7800 --node n1
  strake cluster show
  strake cluster show --json

The first node leads the cluster and keeps the metadata of its file systems. `strake node add` adds
the others.")]
pub(crate) enum ClusterCommand {
    /// Make a cluster whose first node is this machine, and start the node.
    Create(CreateArgs),
    /// Show the cluster's name, leader, nodes and file systems.
    Show(NodeTarget),
}

/// The options of `strake cluster create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// The cluster's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// The node's directory: new or empty.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// This machine's address, at which other nodes reach it [default port: 7790].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    address: String,
    /// The node's name [default: this machine's].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// Runs a `strake cluster` command.
pub(crate) fn run(command: &ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Create(args) => create(args),
        ClusterCommand::Show(target) => show(target),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let dir = NodeDir::at(&args.dir)?;
    let address = parse_address(&args.address)?;
    let node = args.node.clone().unwrap_or_else(|| node_name().to_lowercase());
    let mut rng = Rng::from_entropy()?;
    let mut id = ClusterId([0; 16]);
    rng.fill(&mut id.0);
    let cluster = Cluster::new(id, &args.name, &node, address)?;
    let authority = ClusterAuthority::create(id, RealClock::shared())?;
    let identity = NodeIdentity { cluster: id, name: node.parse()?, roles: Roles::ALL };
    let own = authority.issue(&identity)?;
    let file = NodeFile {
        version: 1,
        cluster_name: args.name.clone(),
        cluster: id.to_string(),
        node: node.clone(),
        id: NodeNumber(1),
        address,
    };
    dir.make(&file, &cluster, &own, Some(&authority))?;
    if let Err(error) = start_process(&dir) {
        let root = dir.root().display();
        let detail = format!(
            "the cluster is made, but its node does not start: {error}. When that is mended: \
             `strake node start --dir {root}`"
        );
        return Err(Error::new(error.kind(), detail));
    }
    println!("cluster {} is made; {node} at {address} leads it", args.name);
    Ok(())
}

fn show(target: &NodeTarget) -> Result<()> {
    let cluster = target.cluster()?;
    let leader = cluster.node_name(cluster.leader);
    if target.json {
        return output::print_json(&json!({
            "name": cluster.name,
            "id": cluster.id.to_string(),
            "leader": leader,
            "revision": cluster.revision,
            "nodes": cluster.nodes.iter().map(|node| &node.name).collect::<Vec<_>>(),
            "nsds": cluster.nsds.iter().map(|nsd| &nsd.name).collect::<Vec<_>>(),
            "fileSystems": cluster.file_systems.iter().map(|fs| &fs.name).collect::<Vec<_>>(),
        }));
    }
    let names: Vec<&str> = cluster.file_systems.iter().map(|fs| fs.name.as_str()).collect();
    let mut table = Table::listing(&["what", "value"]);
    let mut row = |what: &str, value: String| table.row(vec![what.to_owned(), value]);
    row("cluster name", cluster.name.clone());
    row("cluster id", cluster.id.to_string());
    row("leader", leader);
    row("nodes", cluster.nodes.len().to_string());
    row("NSDs", cluster.nsds.len().to_string());
    row("file systems", names.join(", "));
    print!("{}", table.render());
    Ok(())
}
