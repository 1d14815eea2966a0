//! `strake lab`: a cluster of several nodes on this machine, for tests and for trying things out.

use crate::lab::{self, Action, LabFile, NSD_SIZE_DEFAULT, Row};
use crate::output;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use strake_proto::{ByteCount, Code, Error, ErrorKind, Result};
use strake_report::Table;

/// Make a cluster of several nodes on this machine, kill, pause and cut them, and remove it.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake lab up --nodes 3 --dir /var/tmp/lab        mounts at /var/tmp/lab/node1/mnt, …
  strake lab up --nodes 6 --dir /var/tmp/lab --code 4+2p --nsds-per-node 1
  strake lab up --nodes 3 --dir /var/tmp/lab --code 1 --servers-per-nsd 2 --force
  strake lab status --dir /var/tmp/lab
  strake lab node 3 kill --dir /var/tmp/lab         as when its power fails
  strake lab node 3 start --dir /var/tmp/lab
  strake lab node 2 partition --dir /var/tmp/lab    until heal
  strake lab node 2 partition --from 3 --dir /var/tmp/lab
  strake lab node 2 slow 20 --dir /var/tmp/lab      milliseconds, until slow 0 or heal
  strake lab down --dir /var/tmp/lab

Each node has a network of its own: `ip netns list` names them, and `ip netns exec NAME ping
10.90.0.1` tries one. The commands need root and iproute2, and `lose` and
`partition --from` need nftables.")]
pub(crate) enum LabCommand {
    /// Make a lab, and mount its file system on every node.
    Up(UpArgs),
    /// Kill, start, stop, pause, resume or cut off one node, or make its network slow or lossy.
    #[command(after_help = "Examples:
  strake lab node 3 kill --dir /var/tmp/lab
  strake lab node 2 lose 1.5 --dir /var/tmp/lab")]
    Node {
        /// The node's number.
        #[arg(value_name = "I")]
        node: u16,
        #[command(flatten)]
        target: LabTarget,
        #[command(subcommand)]
        action: Action,
    },
    /// Show how every node is.
    Status {
        #[command(flatten)]
        target: LabTarget,
        /// Answer in JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove the lab: its processes, mounts, networks and files.
    Down(LabTarget),
}

/// Selects a lab.
#[derive(Args, Debug)]
pub(crate) struct LabTarget {
    /// The lab's directory [default: $STRAKE_LAB].
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

impl LabTarget {
    fn dir(&self) -> Result<PathBuf> {
        let named = self.dir.clone();
        named
            .or_else(|| std::env::var_os("STRAKE_LAB").map(Into::into))
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "name the lab: --dir DIR, or STRAKE_LAB"))
    }
}

/// The options of `strake lab up`.
#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// How many nodes with NSDs, 1 to 32.
    #[arg(long, value_name = "N")]
    nodes: u16,
    /// How many nodes more, which have no NSDs and only mount.
    #[arg(long, value_name = "N", default_value_t = 0)]
    clients: u16,
    #[command(flatten)]
    target: LabTarget,
    /// How many NSDs each node serves.
    #[arg(long, value_name = "K", default_value_t = 1)]
    nsds_per_node: u16,
    /// How many nodes reach each NSD: its own node and the next ones, which take its place.
    #[arg(long, value_name = "S", default_value_t = 1)]
    servers_per_nsd: u16,
    /// Redundancy code: 1 2x 3x 4x 4+1p 4+2p 4+3p 8+2p 8+3p [default: 2x, and 1 for one node].
    #[arg(long, value_name = "CODE")]
    code: Option<Code>,
    /// How many nodes have the role quorum [default: 3, and 1 for less than three nodes].
    #[arg(long, value_name = "Q")]
    quorum: Option<u16>,
    /// Size of each NSD, a file that grows as it fills.
    #[arg(long, value_name = "SIZE", default_value_t = NSD_SIZE_DEFAULT)]
    nsd_size: ByteCount,
    /// Change a setting of the mounts. They have pagepool=128M and stay_awake=off already.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Even if the loss of one node loses data.
    #[arg(long)]
    force: bool,
}

/// Runs a `strake lab` command.
pub(crate) fn run(command: &LabCommand) -> Result<()> {
    match command {
        LabCommand::Up(args) => up(args),
        LabCommand::Node { node, target, action } => {
            println!("{}", lab::act(&target.dir()?, *node, *action)?);
            Ok(())
        }
        LabCommand::Status { target, json } => {
            let rows = lab::status(&target.dir()?)?;
            if *json {
                return output::print_json(&rows);
            }
            print!("{}", table(rows).render());
            Ok(())
        }
        LabCommand::Down(target) => {
            println!("{}", lab::down(&target.dir()?)?);
            Ok(())
        }
    }
}

fn up(args: &UpArgs) -> Result<()> {
    let dir = args.target.dir()?;
    let file = LabFile::new(args.nodes, args.nsds_per_node, args.nsd_size, args.code, args.quorum)?
        .with_clients(args.clients)?
        .with_servers(args.servers_per_nsd)?
        .with_settings(&args.set)?;
    for mounting in lab::up(&dir, file, args.force)? {
        match mounting.outcome {
            Ok(at) => println!("{} is up, and mounted at {at}", mounting.node),
            Err(why) => println!("{} is up, and not mounted: {why}", mounting.node),
        }
    }
    Ok(())
}

fn table(rows: Vec<Row>) -> Table {
    let heads = ["node", "state", "server", "mount", "process", "network", "memory", "remarks"];
    let mut table = Table::listing(&heads);
    let number = |pid: Option<i32>| pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    for row in rows {
        let mut network = row.network.to_owned();
        if !row.apart_from.is_empty() {
            network += &format!(", not to {}", row.apart_from.join(" and "));
        }
        if row.delay_ms > 0 {
            network += &format!(", slow {} ms", row.delay_ms);
        }
        if row.loss_percent > 0.0 {
            network += &format!(", loses {} %", row.loss_percent);
        }
        let leads = row.leads.then(|| "leader".to_owned());
        let remarks: Vec<String> = leads.into_iter().chain(row.faults).collect();
        table.row(vec![
            row.node,
            row.state.to_owned(),
            number(row.server),
            row.mount.to_owned(),
            number(row.mount_process),
            network,
            format!("{}M", row.resident_bytes >> 20),
            remarks.join("; "),
        ]);
    }
    table
}
