//! `strake cluster`: makes a cluster of one node, shows one, raises its level, and goes on with one
//! that has lost a majority.

use crate::cluster::{Cluster, NodeNumber};
use crate::commands::diag::node_name;
use crate::commands::node::{NodeTarget, parse_address, start_process};
use crate::commands::recover;
use crate::node::{LeaderRequest, NodeDir, NodeFile, NodePrograms, next_level};
use crate::output;
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use strake_env::{RealClock, Rng};
use strake_net::ClusterAuthority;
use strake_proto::{ClusterId, Error, FeatureLevel, NodeIdentity, Result, Roles, feature};
use strake_report::Table;

/// Make a cluster, and show it.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake cluster create demo --dir /srv/strake --address 10.0.0.1
  strake cluster create demo --dir /srv/strake --address 10.0.0.1:7800 --node n1
  strake cluster show
  strake cluster show --json
  strake cluster upgrade                       when all nodes and mounts run a newer program
  strake cluster recover --dir /srv/strake     only if a majority is lost for good

The first node keeps the metadata of all file systems, and issues certificates. `strake node add`
adds the others. With three nodes or more of the role quorum, the cluster's records outlive the loss
of one.")]
pub(crate) enum ClusterCommand {
    /// Make a cluster whose first node is this machine, and start the node.
    Create(CreateArgs),
    /// Show the cluster's name, nodes and file systems, who leads, and who keeps its records.
    Show(NodeTarget),
    /// Use what a newer program brings, when all nodes and mounts run it. Says what it will do, and
    /// asks.
    ///
    /// Nodes get a newer program one after the other, and the cluster works meanwhile. Until this
    /// command is given, new programs do nothing that older ones do not understand. The command
    /// raises the cluster's feature level. If a node or a mount runs an older program or does not
    /// answer, the command names it and changes nothing. Afterwards no older program can take part,
    /// and there is no way back.
    #[command(after_help = "Examples:
  strake cluster show
  strake cluster upgrade
  strake cluster upgrade --yes")]
    Upgrade {
        #[command(flatten)]
        target: NodeTarget,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Go on without a majority of the nodes that kept the cluster's records, when it is lost for
    /// good. Says what is lost, and asks.
    ///
    /// Run it on one node that is left, while its server process is down. If several are left, the
    /// command says which of them has the newest records. The other nodes follow when they hear of
    /// it. File systems whose metadata has lost its majority too go on with the copy of this node,
    /// and must be mounted again. What only the lost nodes had is gone.
    Recover {
        /// The node's directory.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
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
        ClusterCommand::Upgrade { target, yes } => upgrade(target, *yes),
        ClusterCommand::Recover { dir, yes } => recover::of_cluster(NodeDir::at(dir)?, *yes),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let dir = NodeDir::at(&args.dir)?;
    let address = parse_address(&args.address)?;
    let node = args.node.clone().unwrap_or_else(|| node_name().to_lowercase());
    let mut rng = Rng::from_entropy()?;
    let mut id = ClusterId([0; 16]);
    rng.fill(&mut id.0);
    let mut cluster = Cluster::new(id, &args.name, &node, address)?;
    cluster.level = feature::understood();
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
    println!("cluster {} is made; its first node is {node} at {address}", args.name);
    Ok(())
}

fn upgrade(target: &NodeTarget, is_agreed: bool) -> Result<()> {
    let cluster = target.cluster()?;
    let (name, before) = (&cluster.name, cluster.level);
    let programs: Vec<NodePrograms> = target.ask_leader(LeaderRequest::Programs)?;
    let next = next_level(before, &programs)?;
    let level = match next {
        None => before,
        Some(next) => {
            if !target.json {
                let mounts: usize = programs.iter().map(|program| program.mounts.len()).sum();
                let nodes = programs.len();
                println!("{name} has feature level {before}.");
                println!("All {nodes} nodes and {mounts} mounts understand level {next}.");
                println!(
                    "Once the cluster has it, no older program can take part, and there is no way \
                     back."
                );
            }
            if !is_agreed {
                recover::ask_for_name("To raise the level", "cluster's", name)?;
            }
            target.ask_leader(LeaderRequest::Upgrade)?
        }
    };
    if target.json {
        return output::print_json(&json!({ "name": name, "before": before, "level": level }));
    }
    match next {
        None => println!("{name} has feature level {level}, the newest that its nodes understand"),
        Some(_) => println!("{name} has feature level {level} now"),
    }
    Ok(())
}

fn show(target: &NodeTarget) -> Result<()> {
    let cluster = target.cluster()?;
    let replica = target.replica()?;
    let leader = replica.leader.map(|leader| cluster.node_name(leader)).unwrap_or_default();
    let issuers: Vec<String> = cluster.issuers().map(|node| cluster.node_name(node)).collect();
    let programs: Vec<NodePrograms> = target.ask_leader(LeaderRequest::Programs)?;
    if target.json {
        let members = replica.members.iter().map(|member| {
            json!({
                "node": cluster.node_name(member.node),
                "votes": member.votes,
                "agrees": member.agrees,
                "behind": member.behind,
                "isHeard": member.is_heard,
            })
        });
        return output::print_json(&json!({
            "name": cluster.name,
            "id": cluster.id.to_string(),
            "leader": leader,
            "term": replica.term,
            "entries": replica.last,
            "replicas": members.collect::<Vec<_>>(),
            "level": cluster.level,
            "programs": programs,
            "keeper": cluster.node_name(cluster.keeper),
            "issuers": issuers,
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
    row("leader", format!("{leader}, term {}", replica.term));
    let shown = replica.members.iter().map(|member| {
        let name = cluster.node_name(member.node);
        let what = if member.votes { "" } else { ", does not vote" };
        match (member.is_heard, member.behind) {
            (true, 0) => format!("{name} (entry {}{what})", member.agrees),
            (true, behind) => format!("{name} (entry {}, {behind} behind{what})", member.agrees),
            (false, _) => format!("{name} (does not answer{what})"),
        }
    });
    row("records kept by", shown.collect::<Vec<_>>().join(", "));
    row("certificates issued by", issuers.join(", "));
    row("feature level", level_shown(cluster.level, &programs));
    row("programs", programs_shown(&programs));
    row("nodes", cluster.nodes.len().to_string());
    row("NSDs", cluster.nsds.len().to_string());
    row("file systems", names.join(", "));
    print!("{}", table.render());
    Ok(())
}

/// The level, and what to do if there is a newer one.
fn level_shown(level: FeatureLevel, programs: &[NodePrograms]) -> String {
    match next_level(level, programs) {
        Ok(None) => level.to_string(),
        Ok(Some(next)) => format!("{level}; all understand {next}: `strake cluster upgrade`"),
        Err(_) => format!("{level}; not all understand the next one"),
    }
}

/// The versions of programs, each with the nodes that run it.
fn programs_shown(programs: &[NodePrograms]) -> String {
    let mut nodes_of: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for NodePrograms { node, version, understands, .. } in programs {
        let program = match (version, understands) {
            (Some(version), Some(level)) => format!("strake {version} (level {level})"),
            (None, Some(_)) => "an older strake".to_owned(),
            (_, None) => "no answer".to_owned(),
        };
        nodes_of.entry(program).or_default().push(node);
    }
    let shown = nodes_of.iter().map(|(program, nodes)| format!("{program}: {}", nodes.join(", ")));
    shown.collect::<Vec<_>>().join("; ")
}
