//! `strake node`: adds, starts, stops, deletes and lists the nodes of a cluster.

use crate::admin::LINE_BYTES_MAX;
use crate::cluster::{Cluster, NodeNumber};
use crate::commands::up::start_daemon;
use crate::node::{
    LeaderRequest, MetadataState, NodeDir, NodeFile, NodeRequest, NodeState, PORT_DEFAULT, Peer,
    ReplicaState, Request, ask_own, voters_of,
};
use crate::output;
use crate::registry;
use crate::service;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use strake_env::net::{IpAddr, SocketAddr, TcpStream};
use strake_env::{Clock, RealClock};
use strake_net::{Endpoint, JoinToken, Listener};
use strake_proto::feature::Feature;
use strake_proto::{ByteCount, Error, ErrorKind, NodeName, Result, Role, Roles};
use strake_report::Table;

/// For a connection to the leader, made only to learn this machine's address.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a node that has joined waits for its place in the quorum, and how often it looks.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(15);
const PLACE_LOOK: Duration = Duration::from_millis(100);
/// How long a server process may take to close its disks.
const END_WAIT_MAX: Duration = Duration::from_secs(120);
const END_WAIT_STEP: Duration = Duration::from_millis(20);

/// Selects a node of this machine, and the form of the answer.
#[derive(Args, Debug)]
pub(crate) struct NodeTarget {
    /// The node's directory [default: $STRAKE_NODE, or the only node that is up here].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl NodeTarget {
    /// Asks the node's server process.
    ///
    /// # Errors
    /// The node's, or the leader's.
    pub(crate) fn ask<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<T> {
        ask_own(&registry::find_node(self.dir.as_deref())?, request)
    }

    /// Asks about the cluster through the node.
    ///
    /// # Errors
    /// Those of the node that answers.
    pub(crate) fn ask_leader<T>(&self, request: LeaderRequest) -> Result<T>
    where
        T: serde::de::DeserializeOwned,
    {
        self.ask(&Request::Leader(request))
    }

    /// The cluster's records, as a majority of the quorum has them.
    ///
    /// # Errors
    /// `Unreachable` if no majority answers.
    pub(crate) fn cluster(&self) -> Result<Cluster> {
        let newest: Option<Cluster> = self.ask_leader(LeaderRequest::Records { newer_than: 0 })?;
        newest.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the cluster has no records"))
    }

    /// How the replica of the records is that leads.
    ///
    /// # Errors
    /// `Unreachable` if none does.
    pub(crate) fn replica(&self) -> Result<ReplicaState> {
        self.ask_leader(LeaderRequest::Replica)
    }

    /// Who the node is.
    ///
    /// # Errors
    /// Those of its directory.
    pub(crate) fn file(&self) -> Result<NodeFile> {
        registry::find_node(self.dir.as_deref())?.read()
    }
}

/// Add, start, stop, delete and list the nodes of a cluster.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake node add n2 n3 --roles quorum,server,client    on a node: prints a join token for each
  strake node join TOKEN --dir /srv/strake              on the new machine
  strake node list
  strake node state                                     asks every node how it is
  strake node stop
  strake node start --dir /srv/strake
  strake node delete n3")]
pub(crate) enum NodeCommand {
    /// Add nodes to the cluster, and print a one-time join token for each.
    ///
    /// A token is good for one day. Whoever has it can join in the node's place: carry it like a
    /// password.
    Add {
        /// Names of the new nodes.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// What they do: any of quorum, server and client, separated by commas.
        #[arg(long, value_name = "ROLES", default_value = "server,client")]
        roles: String,
        #[command(flatten)]
        target: NodeTarget,
    },
    /// Make this machine the node that a join token was made for, and start it.
    Join {
        /// What `strake node add` printed.
        #[arg(value_name = "TOKEN")]
        token: String,
        /// The node's directory: new or empty.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// This machine's address, at which other nodes reach it [default: the one from which the
        /// leader is reached; default port: 7790].
        #[arg(long, value_name = "ADDRESS[:PORT]")]
        address: Option<String>,
    },
    /// List the nodes.
    List(NodeTarget),
    /// Ask every node how it is.
    State(NodeTarget),
    /// Start the server process of a node of this machine.
    Start {
        /// The node's directory [default: $STRAKE_NODE].
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// End the server process of a node of this machine. Its disks are closed in order.
    Stop {
        #[command(flatten)]
        target: NodeTarget,
        /// Even if file systems are mounted here, or need this node.
        #[arg(long)]
        force: bool,
    },
    /// Remove a node from the cluster.
    ///
    /// The node has nothing mounted and no NSD, or its disks are emptied first with --empty: what
    /// they hold gets places on the disks of the other nodes while file systems are in use.
    Delete {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        /// Have its disks leave their file systems, and delete them. This waits for as long as it
        /// takes. If the command is ended, the disk that is being emptied goes on, and the command
        /// can be given again.
        #[arg(long)]
        empty: bool,
        /// Move at most this much per second [default: no limit].
        #[arg(long, value_name = "SIZE", requires = "empty")]
        rate: Option<ByteCount>,
        #[command(flatten)]
        target: NodeTarget,
    },
}

/// Runs a `strake node` command.
pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Add { names, roles, target } => add(names, roles, target),
        NodeCommand::Join { token, dir, address } => join(token, dir, address.as_deref()),
        NodeCommand::List(target) => list(target),
        NodeCommand::State(target) => state(target),
        NodeCommand::Start { dir } => start(dir.clone()),
        NodeCommand::Stop { target, force } => stop(target, *force),
        NodeCommand::Delete { name, empty, rate, target } => {
            if *empty {
                super::empty::empty(name, rate.map_or(0, |rate| rate.0), target)?;
            }
            let request = LeaderRequest::DeleteNode { node: name.clone() };
            let revision: u64 = target.ask_leader(request)?;
            if target.json {
                return output::print_json(&json!({ "deleted": name, "revision": revision }));
            }
            println!("{name} is no node of the cluster any more");
            Ok(())
        }
    }
}

/// Reads `ADDRESS[:PORT]`.
///
/// # Errors
/// `Invalid` with advice.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr> {
    let whole = text.parse::<SocketAddr>();
    let plain = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT_DEFAULT));
    let address = whole.or_else(|_| plain()).map_err(|_| {
        let detail = format!("--address {text}: an address like 10.0.0.1, or 10.0.0.1:7790");
        Error::new(ErrorKind::Invalid, detail)
    })?;
    if address.ip().is_unspecified() || address.port() == 0 {
        let detail = format!("--address {text}: other nodes cannot reach this");
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    Ok(address)
}

/// Starts the server process of a node, and returns when it serves.
///
/// # Errors
/// The error that it reports.
pub(crate) fn start_process(dir: &NodeDir) -> Result<u32> {
    start_daemon(dir.base(), &["daemon", "--role", "node"], &dir.log_path()).map(|child| child.id())
}

fn add(names: &[String], roles: &str, target: &NodeTarget) -> Result<()> {
    let roles: Roles = roles.parse()?;
    let request = LeaderRequest::AddNodes { names: names.to_vec(), roles };
    let tokens: Vec<(String, String)> = target.ask_leader(request)?;
    if target.json {
        let listed = tokens.iter().map(|(node, token)| json!({ "node": node, "token": token }));
        return output::print_json(&listed.collect::<Vec<_>>());
    }
    for (node, token) in tokens {
        println!("on {node}: strake node join {token} --dir DIR");
    }
    Ok(())
}

fn join(token: &str, dir: &std::path::Path, address: Option<&str>) -> Result<()> {
    let dir = NodeDir::at(dir)?;
    dir.refuse_used()?;
    let (token, leader) = parse_token(token)?;
    let address = match address {
        Some(text) => parse_address(text)?,
        None => own_address(&token)?,
    };
    // What would fail later is tried before the token is used up.
    drop(Listener::bind(&Endpoint::Tcp(address))?);
    std::fs::create_dir_all(dir.root())
        .map_err(|error| Error::from(error).context(dir.root().display()))?;
    let own = Arc::new(strake_net::join(&token, &RealClock::shared(), CONNECT_MAX)?);
    let node = own.identity().name.to_string();
    let leader = Peer::new(leader, token.address, &own);
    let request = LeaderRequest::Join { node: node.clone(), address };
    let cluster: Cluster = leader.ask_leader(&request)?;
    let file = NodeFile {
        version: 1,
        cluster_name: cluster.name.clone(),
        cluster: cluster.id.to_string(),
        node: node.clone(),
        id: cluster.node_named(&node)?.id,
        address,
    };
    dir.make(&file, &cluster, &own, None)?;
    start_process(&dir)?;
    println!("{node} at {address} is a node of cluster {}", cluster.name);
    if own.identity().roles.has(Role::Quorum) {
        await_place(dir.root(), file.id);
    }
    Ok(())
}

/// Waits until a node has its place in the quorum, issues certificates, and as many of its nodes
/// have votes as may. If one of them was lost before, the others could not go on.
fn await_place(dir: &std::path::Path, node: NodeNumber) {
    let target = NodeTarget { dir: Some(dir.to_owned()), json: false };
    let end = RealClock.monotonic() + PLACE_WAIT_MAX;
    let is_so = |state: ReplicaState| {
        let votes = state.members.iter().filter(|member| member.votes).count();
        let own = state.members.iter().find(|member| member.node == node);
        own.is_some_and(|own| own.is_heard) && votes == voters_of(state.members.len())
    };
    let issues =
        |cluster: Cluster| cluster.issues(node) || cluster.level < Feature::Issuers.level();
    while !target.replica().is_ok_and(is_so) || !target.cluster().is_ok_and(issues) {
        if RealClock.monotonic() >= end {
            let why = "`strake node state` says why";
            return output::tell(&format!("the node has no place in the quorum yet; {why}"));
        }
        RealClock.sleep(PLACE_LOOK);
    }
}

/// Reads a token as `strake node add` prints it: the network layer's, `@`, and the leader's name,
/// which the leader's certificate must have.
fn parse_token(text: &str) -> Result<(JoinToken, NodeName)> {
    let (token, leader) = text.trim().rsplit_once('@').ok_or_else(|| {
        let detail = "the token is not whole: copy the whole line that `strake node add` printed";
        Error::new(ErrorKind::Invalid, detail)
    })?;
    Ok((token.parse()?, leader.parse()?))
}

/// This machine's address on the way to the leader.
fn own_address(token: &JoinToken) -> Result<SocketAddr> {
    let stream = TcpStream::connect_timeout(&token.address, CONNECT_MAX).map_err(|error| {
        let leader = token.address;
        let detail = format!("the leader of the cluster at {leader} cannot be reached: {error}");
        Error::new(ErrorKind::Unreachable, detail)
    })?;
    Ok(SocketAddr::new(stream.local_addr()?.ip(), PORT_DEFAULT))
}

fn list(target: &NodeTarget) -> Result<()> {
    let cluster = target.cluster()?;
    let leader = target.replica()?.leader;
    let address = |node: &crate::cluster::NodeRecord| {
        node.address.map_or_else(|| "not joined yet".to_owned(), |address| address.to_string())
    };
    if target.json {
        let nodes = cluster.nodes.iter().map(|node| {
            json!({
                "id": node.id,
                "name": node.name,
                "address": node.address,
                "roles": node.roles.to_string(),
                "leader": Some(node.id) == leader,
                "keeper": node.id == cluster.keeper,
                "issues": cluster.issues(node.id),
                "nsds": cluster.nsds_of(node.id).map(|nsd| &nsd.name).collect::<Vec<_>>(),
            })
        });
        return output::print_json(&nodes.collect::<Vec<_>>());
    }
    let remarks = |node| match (Some(node) == leader, cluster.issues(node)) {
        (true, true) => "leader, certificates",
        (true, false) => "leader",
        (false, true) => "certificates",
        (false, false) => "",
    };
    let mut table = Table::listing(&["node", "name", "address", "roles", "NSDs", "remarks"]);
    for node in &cluster.nodes {
        table.row(vec![
            node.id.0.to_string(),
            node.name.clone(),
            address(node),
            node.roles.to_string(),
            cluster.nsds_of(node.id).count().to_string(),
            remarks(node.id).to_owned(),
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

fn state(target: &NodeTarget) -> Result<()> {
    let states: Vec<NodeState> = target.ask_leader(LeaderRequest::NodeStates)?;
    if target.json {
        return output::print_json(&states);
    }
    let records = |replica: &Option<ReplicaState>| {
        let shown = |replica: &ReplicaState| {
            let does = match replica.role.as_str() {
                "leader" => "leads",
                "asking" => "asks what it promised",
                "ended" => "has ended",
                _ => "keeps",
            };
            format!("{does}, term {}, entry {}", replica.term, replica.applied)
        };
        replica.as_ref().map_or_else(|| "-".to_owned(), shown)
    };
    let metadata = |states: &[MetadataState]| {
        let shown = |state: &MetadataState| match state.serves {
            true => format!("{} (serves)", state.fs),
            false => state.fs.clone(),
        };
        let shown: Vec<String> = states.iter().map(shown).collect();
        if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
    };
    let heads =
        ["name", "state", "process", "version", "records", "metadata", "mounted", "remarks"];
    let mut table = Table::listing(&heads);
    for node in states {
        table.row(vec![
            node.node,
            node.state,
            node.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            node.version.unwrap_or_else(|| "-".to_owned()),
            records(&node.replica),
            metadata(&node.metadata),
            node.mounts.join(", "),
            node.faults.join("; "),
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

fn start(dir: Option<PathBuf>) -> Result<()> {
    let named = dir.or_else(|| std::env::var_os("STRAKE_NODE").map(Into::into));
    let path = named.ok_or_else(|| {
        let detail = "name the node to start: --dir DIR, or STRAKE_NODE";
        Error::new(ErrorKind::Invalid, detail)
    })?;
    let dir = NodeDir::at(&path)?;
    let file = dir.read()?;
    let up = ask_own::<NodeState>(&dir, &Request::Node(NodeRequest::State)).ok();
    let pid = match up.and_then(|state| state.pid) {
        Some(pid) => pid,
        None => start_process(&dir)?,
    };
    let is_up = format!("{} is up at {}", file.node, file.address);
    println!("{is_up}");
    service::serves(pid, &is_up);
    Ok(())
}

fn stop(target: &NodeTarget, force: bool) -> Result<()> {
    let dir = registry::find_node(target.dir.as_deref())?;
    let file = dir.read()?;
    let is_down = || dir.base().try_lock().map(|lock| lock.is_some());
    let was_up = match ask_own::<u32>(&dir, &Request::Node(NodeRequest::Stop { force })) {
        Ok(_) => true,
        // It may end before its answer is sent, and then its lock is free a moment later.
        Err(error) if error.kind() == ErrorKind::Unreachable => !is_down()?,
        Err(error) => return Err(error),
    };
    let end = RealClock.monotonic() + END_WAIT_MAX;
    while !is_down()? {
        if RealClock.monotonic() >= end {
            let detail = format!("{} still runs; see {}", file.node, dir.log_path().display());
            return Err(Error::new(ErrorKind::TimedOut, detail));
        }
        RealClock.sleep(END_WAIT_STEP);
    }
    registry::remove_node(&file.cluster, &dir);
    if target.json {
        return output::print_json(&json!({ "node": file.node, "wasUp": was_up }));
    }
    println!("{} is down", file.node);
    Ok(())
}

/// Reads a file that a user names, of a size that a request can carry.
///
/// # Errors
/// `Invalid` if it is too long; the host's.
pub(crate) fn read_text(path: &std::path::Path) -> Result<String> {
    let about = |error: std::io::Error| {
        Error::new(ErrorKind::Invalid, format!("{}: {error}", path.display()))
    };
    if std::fs::metadata(path).map_err(about)?.len() > LINE_BYTES_MAX / 64 {
        let detail = format!("{}: too long for a list of NSDs", path.display());
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    std::fs::read_to_string(path).map_err(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_or_gets_the_usual_one() {
        assert_eq!(parse_address("10.0.0.1").expect("plain").to_string(), "10.0.0.1:7790");
        assert_eq!(parse_address("[::1]:80").expect("whole").to_string(), "[::1]:80");
        for bad in ["n1", "", "10.0.0.1:", "0.0.0.0", "10.0.0.1:0"] {
            assert_eq!(parse_address(bad).expect_err(bad).kind(), ErrorKind::Invalid);
        }
    }
}
