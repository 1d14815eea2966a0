//! How a lab's nodes are: `strake lab status`. Everything is looked up anew. A node that does not
//! answer costs at most two seconds, and no mount is touched, so the command does not hang where
//! the lab does.

use super::network::{self, Cable};
use super::plan::Names;
use super::processes::{Kind, Process};
use super::{Lab, refuse_without_root};
use crate::admin;
use crate::mounts;
use crate::node::{NodeDir, NodeRequest, NodeState, Request};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use strake_proto::{Error, Result};

/// How long a node may take to say how it is.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// How one node is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Its name.
    pub(crate) node: String,
    /// Its network namespace, for `ip netns exec`.
    pub(crate) namespace: String,
    /// Whether it leads the cluster, as far as it knows itself.
    pub(crate) leads: bool,
    /// `active`; `silent` if its server process runs and does not answer; `paused`; `down`.
    pub(crate) state: &'static str,
    /// The server process.
    pub(crate) server: Option<i32>,
    /// `mounted`; `dead` if the mount's process is gone; `no`.
    pub(crate) mount: &'static str,
    /// The mount's process.
    pub(crate) mount_process: Option<i32>,
    /// `joined`, `cut off`, or `none` if its namespace or cable is gone.
    pub(crate) network: &'static str,
    /// The nodes from which it is cut off alone.
    pub(crate) apart_from: Vec<String>,
    /// How much later arrives what it sends.
    pub(crate) delay_ms: u64,
    /// Percent of what it sends that is lost.
    pub(crate) loss_percent: f64,
    /// What its processes have in memory.
    pub(crate) resident_bytes: u64,
    /// What is wrong, as the node or the machine says.
    pub(crate) faults: Vec<String>,
}

/// A row for each node of the lab in `dir`.
///
/// # Errors
/// `Invalid` if there is no lab.
pub(crate) fn status(dir: &Path) -> Result<Vec<Row>> {
    refuse_without_root()?;
    let lab = Lab::open(dir)?;
    Ok(lab.nodes().map(|node| look(&lab, node)).collect())
}

fn look(lab: &Lab, node: u16) -> Row {
    let place = lab.processes(node);
    let processes = place.find();
    let of = |kind: Kind| processes.iter().find(|process| process.kind == kind);
    let (server, mount) = (of(Kind::Server), of(Kind::Mount));
    let (mut faults, mut leads) = (Vec::new(), false);
    let state = match server {
        None => "down",
        Some(server) if place.is_paused(server) => "paused",
        Some(_) => match ask(lab, node) {
            Ok(state) => {
                faults.extend(state.faults);
                leads = state.replica.is_some_and(|replica| replica.role == "leader");
                "active"
            }
            Err(error) => {
                faults.push(error.to_string());
                "silent"
            }
        },
    };
    let (network, cable) = match network::state(&lab.names, node) {
        Ok(cable) => (if cable.is_cut { "cut off" } else { "joined" }, cable),
        Err(error) => {
            faults.push(error.to_string());
            ("none", Cable::default())
        }
    };
    let is_listed = mounts::strake_mounts().contains(&lab.mount_point(node));
    let number = |process: &Process| process.pid.as_raw_nonzero().get();
    Row {
        node: Names::node(node),
        namespace: lab.names.namespace(node),
        leads,
        state,
        server: server.map(number),
        mount: match (is_listed, mount) {
            (true, Some(_)) => "mounted",
            (true, None) => "dead",
            (false, _) => "no",
        },
        mount_process: mount.map(number),
        network,
        apart_from: network::apart_from(&lab.names, node).into_iter().map(Names::node).collect(),
        delay_ms: u64::try_from(cable.delay.as_millis()).unwrap_or(u64::MAX),
        loss_percent: cable.loss_percent,
        resident_bytes: processes.iter().map(|process| process.resident_bytes).sum(),
        faults,
    }
}

/// Asks a node's server process how the node is.
fn ask(lab: &Lab, node: u16) -> Result<NodeState> {
    let dir = NodeDir::at(&lab.node_root(node))?;
    let request = Request::Node(NodeRequest::State);
    let absent = || "its server process does not listen yet".to_owned();
    let value = admin::exchange(dir.base(), &request, ANSWER_MAX, &absent)?;
    serde_json::from_value(value)
        .map_err(|error| Error::new(strake_proto::ErrorKind::Corrupt, error.to_string()))
}
