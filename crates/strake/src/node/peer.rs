//! Asking nodes: another node over the network, or this machine's over its admin socket.

use super::dir::NodeDir;
use super::messages::{ClientRequest, LeaderRequest, NodeRequest, Request};
use crate::admin;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::Introduce;
use strake_env::net::SocketAddr;
use strake_net::{Endpoint, Introduction, NodeCredentials, ask_node};
use strake_proto::{Error, ErrorKind, NodeName, Result};

/// For a node to greet. A node that takes longer counts as one that does not answer.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// For a node to answer. Making NSDs, and flushing at the end of a mount, take time.
const ANSWER_MAX: Duration = Duration::from_secs(3600);
/// For a node to answer what it knows at once.
const QUICK_ANSWER_MAX: Duration = Duration::from_secs(10);
/// For the node that leads to answer a node that may not serve. It answers after half a minute, if
/// there is nothing to do.
const CALL_ANSWER_MAX: Duration = Duration::from_secs(40);
/// For a node that leads to answer what takes a majority. It gives up earlier itself.
const MAJORITY_ANSWER_MAX: Duration = Duration::from_secs(20);

/// Introductions of the node that proves itself as `own`.
pub(crate) fn introduce(own: &Arc<NodeCredentials>) -> Introduce {
    let own = Arc::clone(own);
    Arc::new(move |node| Introduction::node(&own, node))
}

/// Another node.
#[derive(Clone)]
pub(crate) struct Peer {
    name: NodeName,
    address: SocketAddr,
    own: Arc<NodeCredentials>,
}

impl Peer {
    /// The node of that name at `address`, to which this node proves itself as `own`.
    pub(crate) fn new(name: NodeName, address: SocketAddr, own: &Arc<NodeCredentials>) -> Peer {
        Peer { name, address, own: Arc::clone(own) }
    }

    /// Asks about the cluster.
    ///
    /// # Errors
    /// The node's; `Unreachable` if it does not answer.
    pub(crate) fn ask_leader<T: DeserializeOwned>(&self, request: &LeaderRequest) -> Result<T> {
        read(self.call(&Request::Leader(request.clone()))?)
    }

    /// Asks about the node.
    ///
    /// # Errors
    /// The node's; `Unreachable` if it does not answer.
    pub(crate) fn ask<T: DeserializeOwned>(&self, request: &NodeRequest) -> Result<T> {
        read(self.call(&Request::Node(request.clone()))?)
    }

    /// Asks for errands of the node that asks, or answers one.
    ///
    /// # Errors
    /// The node's; `Unreachable` if it does not answer.
    pub(crate) fn call_as_client<T: DeserializeOwned>(&self, request: &ClientRequest) -> Result<T> {
        read(self.call(&Request::Client(request.clone()))?)
    }

    /// Sends a request and returns the value of the answer.
    ///
    /// # Errors
    /// As [`Peer::ask`].
    pub(crate) fn call(&self, request: &Request) -> Result<serde_json::Value> {
        let bytes = serde_json::to_vec(request)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let endpoint = Endpoint::Tcp(self.address);
        let introduction = Introduction::node(&self.own, &self.name);
        let answer = ask_node(&endpoint, &introduction, &bytes, CONNECT_MAX, limit_of(request));
        let answer = answer.map_err(|error| match error.kind() {
            ErrorKind::Unreachable | ErrorKind::TimedOut => Error::new(
                ErrorKind::Unreachable,
                format!("node {} at {} does not answer ({error})", self.name, self.address),
            ),
            _ => error.context(format!("node {}", self.name)),
        })?;
        admin::read_reply(&answer)
    }
}

/// Whether nobody waits long for the answer. A node that stands still, or dies when it has fetched
/// an errand, must not hold up changes of the records: it learns of them later.
fn ends_soon(request: &NodeRequest) -> bool {
    request.is_quick() || matches!(request, NodeRequest::Follow { .. } | NodeRequest::Authority)
}

/// How long a node may take to answer a request.
pub(super) fn limit_of(request: &Request) -> Duration {
    match request {
        Request::Node(request) if ends_soon(request) => QUICK_ANSWER_MAX,
        Request::Node(NodeRequest::Committed | NodeRequest::Propose { .. }) => MAJORITY_ANSWER_MAX,
        Request::Node(NodeRequest::HandOn { request, .. }) if ends_soon(request) => {
            MAJORITY_ANSWER_MAX
        }
        Request::Leader(
            LeaderRequest::Holders { .. }
            | LeaderRequest::Tokens { .. }
            | LeaderRequest::EndCheckStrips { .. },
        ) => QUICK_ANSWER_MAX,
        Request::Client(_) => CALL_ANSWER_MAX,
        _ => ANSWER_MAX,
    }
}

/// Asks the server process of the node of `dir`, over its admin socket.
///
/// # Errors
/// `Unreachable` if it does not run; the message says how to start it. Otherwise its own.
pub(crate) fn ask_own<T: DeserializeOwned>(dir: &NodeDir, request: &Request) -> Result<T> {
    ask_own_soon(dir, request, ANSWER_MAX)
}

/// As [`ask_own`], with a limit.
pub(crate) fn ask_own_soon<T: DeserializeOwned>(
    dir: &NodeDir,
    request: &Request,
    limit: Duration,
) -> Result<T> {
    let absent = || {
        let root = dir.root().display();
        format!("the node of {root} is down: `strake node start --dir {root}`")
    };
    read(admin::exchange(dir.base(), request, limit, &absent)?)
}

fn read<T: DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, NodeNumber};
    use strake_env::net::SocketAddr;
    use strake_proto::ClusterId;

    /// Regression: a change of the records waited for an hour for a client that died when it had
    /// fetched the news, and all later changes waited for that one.
    #[test]
    fn nobody_waits_long_for_a_node_that_is_told_of_a_change() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let cluster = Cluster::new(ClusterId([1; 16]), "demo", "n1", address).expect("names");
        let follow = NodeRequest::Follow { cluster: Box::new(cluster) };
        let request = Box::new(follow.clone());
        let hand_on = NodeRequest::HandOn { client: NodeNumber(4), request };
        assert_eq!(limit_of(&Request::Node(follow)), QUICK_ANSWER_MAX);
        assert_eq!(limit_of(&Request::Node(hand_on)), MAJORITY_ANSWER_MAX);
        let mount = NodeRequest::IsMounted { fs: "fs".to_owned() };
        assert_eq!(limit_of(&Request::Node(mount)), QUICK_ANSWER_MAX);
        assert_eq!(limit_of(&Request::Node(NodeRequest::Stop { force: false })), ANSWER_MAX);
    }
}
