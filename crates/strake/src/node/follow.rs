//! How a node reaches the cluster's records: it finds the node that leads, hands changes and
//! questions on to it, and learns of changes that others made.
//!
//! **Finding the leader.** A node of the quorum knows from its own replica who leads. Whoever that
//! is must say so itself, because the one that led may be gone. If it does not, all nodes of the
//! quorum are asked. After the death of a leader the others elect one within seconds, so this is
//! repeated for [`LEADER_WAIT_MAX`].
//!
//! **Once or not at all.** A request that reaches a node which does not lead is refused there, and
//! goes on to the next one. A change whose answer does not come is not sent again: it may be made.
//!
//! **Newer records.** What any node has is committed, so it may be taken from any. That also
//! reaches a node which was away while all that it knew have gone.

use super::messages::{NodeRequest, ReplicaState};
use super::peer::introduce;
use super::quorum::{self, Quorum, QuorumParts};
use super::replicas::Find;
use super::server::Node;
use crate::cluster::machine::Entry;
use crate::cluster::{Change, Cluster, NodeNumber};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_net::{Service, WaitNames};
use strake_proto::{Error, ErrorKind, Result};
use tracing::{error, warn};

/// For the nodes of the quorum to agree on a leader, and for it to answer.
const LEADER_WAIT_MAX: Duration = Duration::from_secs(15);
/// Between attempts to find it.
const LEADER_PAUSE: Duration = Duration::from_millis(200);

impl Node {
    /// Starts this node's replica of the records, if it is of the quorum. Without it the node still
    /// serves its disks; `strake node state` says what is wrong.
    pub(super) fn join_quorum_or_say(self: &Arc<Node>) {
        if let Err(fault) = self.join_quorum() {
            error!(target: "node", "this node does not keep the cluster's records: {fault}");
            *self.quorum_fault.lock() = Some(fault.to_string());
        }
    }

    /// Starts this node's replica of the records, if it is of the quorum.
    ///
    /// # Errors
    /// Those of its journal.
    pub(super) fn join_quorum(self: &Arc<Node>) -> Result<()> {
        if !self.is_of_quorum() {
            return Ok(());
        }
        let first = self.cluster();
        let of_publish = Arc::downgrade(self);
        let of_find = Arc::downgrade(self);
        let find: Find = Arc::new(move |id| of_find.upgrade()?.place(NodeNumber(id.0)));
        let quorum = Quorum::start(QuorumParts {
            own: self.file.id,
            introduce: introduce(&self.own),
            disk: quorum::open_journal(&self.dir, &first)?,
            find: Arc::clone(&find),
            publish: Box::new(move |cluster| {
                let Some(node) = of_publish.upgrade() else { return };
                if let Err(error) = node.take_records(cluster) {
                    // The log has them.
                    warn!(target: "node", "the copy of the records is not written: {error}");
                }
            }),
            waits: Arc::clone(&self.observe) as _,
            links: Some(Arc::clone(&self.observe.links)),
            config: quorum::config(self.file.id),
            first,
        })?;
        let inbox = quorum.inbox(find);
        *self.quorum.lock() = Some(Arc::new(quorum));
        self.door.serve_replica(None, inbox)
    }

    /// This node's replica.
    ///
    /// # Errors
    /// `Stale` if it has none.
    pub(super) fn replica(&self) -> Result<Arc<Quorum>> {
        self.quorum().ok_or_else(|| {
            let detail = format!("{} does not keep the cluster's records", self.file.node);
            Error::new(ErrorKind::Stale, detail)
        })
    }

    /// The records as a majority of the quorum has them.
    ///
    /// # Errors
    /// `Unreachable` if there is no majority.
    pub(super) fn newest_records(self: &Arc<Node>) -> Result<Cluster> {
        let cluster: Cluster = self.ask_leading(&NodeRequest::Committed)?;
        if let Err(error) = self.take_records(&cluster) {
            warn!(target: "node", "the copy of the records is not written: {error}");
        }
        Ok(cluster)
    }

    /// How the replica is that leads.
    ///
    /// # Errors
    /// `Unreachable` if none does.
    pub(super) fn leading_replica(self: &Arc<Node>) -> Result<ReplicaState> {
        let leader = self.wait_for_leader(&|leader| self.ask(leader, &NodeRequest::Replica))?;
        Ok(leader)
    }

    /// Makes a change of the records durable with a majority, and tells the nodes. The caller holds
    /// `changing` if the change is one of several steps.
    ///
    /// # Errors
    /// Why it is refused. `Unreachable` if there is no majority, and then nothing is changed;
    /// `TimedOut` if it may be changed.
    pub(super) fn change(self: &Arc<Node>, change: &Change) -> Result<Cluster> {
        self.change_at(None, change)
    }

    /// As [`Node::change`]; refused unless the records have the revision `at`.
    ///
    /// # Errors
    /// As [`Node::change`]; `Busy` at another revision.
    pub(super) fn change_at(self: &Arc<Node>, at: Option<u64>, change: &Change) -> Result<Cluster> {
        let next: Cluster =
            self.ask_leading(&NodeRequest::Propose { at, change: change.clone() })?;
        if let Err(error) = self.take_records(&next) {
            warn!(target: "node", "the copy of the records is not written: {error}");
        }
        for node in &next.nodes {
            if node.id == self.file.id || node.address.is_none() {
                continue;
            }
            let follow = NodeRequest::Follow { cluster: Box::new(next.clone()) };
            // A node that joins listens only after it has its answer.
            let joins = matches!(change, Change::Join { name, .. } if *name == node.name);
            if let Err(error) = self.ask::<()>(node.id, &follow)
                && !joins
            {
                warn!(target: "node", "{} learns of the change later: {error}", node.name);
            }
        }
        Ok(next)
    }

    /// Answers [`NodeRequest::Propose`]: this node must lead.
    ///
    /// # Errors
    /// `Stale` if it does not.
    pub(super) fn propose(self: &Arc<Node>, at: Option<u64>, change: &Change) -> Result<Cluster> {
        self.replica()?.propose(&Entry::Change { at, change: change.clone() })
    }

    /// Has the node that leads answer.
    fn ask_leading<T: serde::de::DeserializeOwned>(
        self: &Arc<Node>,
        request: &NodeRequest,
    ) -> Result<T> {
        self.wait_for_leader(&|leader| {
            self.ask(leader, request).map_err(|error| match (error.kind(), request) {
                // Whether it was made is not known.
                (ErrorKind::Unreachable, NodeRequest::Propose { .. }) => Error::new(
                    ErrorKind::TimedOut,
                    format!("{error}. The change may be made: look before you try again"),
                ),
                _ => error,
            })
        })
    }

    /// Does something with the node that leads, when there is one.
    fn wait_for_leader<T>(self: &Arc<Node>, call: &dyn Fn(NodeNumber) -> Result<T>) -> Result<T> {
        let end = RealClock.monotonic() + LEADER_WAIT_MAX;
        let wait = self.observe.begin_wait("for the node that leads", "the cluster");
        let outcome = loop {
            let outcome = self.find_leader().and_then(call);
            let is_over = match &outcome {
                Err(error) => !matches!(error.kind(), ErrorKind::Stale | ErrorKind::Unreachable),
                Ok(_) => true,
            };
            if is_over || RealClock.monotonic() >= end {
                break outcome;
            }
            RealClock.sleep(LEADER_PAUSE);
        };
        self.observe.end_wait(wait);
        outcome.map_err(|error| match error.kind() {
            ErrorKind::Stale => Error::new(ErrorKind::Unreachable, error.to_string()),
            _ => error,
        })
    }

    /// The node that leads, by its own word.
    pub(super) fn find_leader(self: &Arc<Node>) -> Result<NodeNumber> {
        let own = self.quorum();
        if own.as_ref().is_some_and(|quorum| quorum.leads()) {
            return Ok(self.file.id);
        }
        let leads = |id: NodeNumber| {
            let state: Result<ReplicaState> = self.ask(id, &NodeRequest::Replica);
            state.map(|state| state.role == "leader")
        };
        let hint = own.and_then(|quorum| quorum.state().leader);
        if let Some(hint) = hint.filter(|hint| *hint != self.file.id)
            && leads(hint) == Ok(true)
        {
            return Ok(hint);
        }
        let cluster = self.cluster();
        let mut silent = Vec::new();
        for node in cluster.quorum().filter(|node| node.id != self.file.id && Some(node.id) != hint)
        {
            match leads(node.id) {
                Ok(true) => return Ok(node.id),
                Ok(false) => {}
                Err(_) => silent.push(node.name.as_str()),
            }
        }
        let gone = hint.filter(|hint| *hint != self.file.id).map(|hint| cluster.node_name(hint));
        silent.extend(gone.as_deref());
        let mut detail =
            "no node leads the cluster: a majority of the quorum must answer".to_owned();
        for name in silent {
            detail.push_str(&format!("; {name} does not answer"));
        }
        Err(Error::new(ErrorKind::Unreachable, detail))
    }

    /// Ends a replica of an earlier generation, and starts one of the records' own: others went on
    /// without a majority (`recover.rs`). What the earlier one had is void.
    ///
    /// # Errors
    /// Those of the new journal. It is tried again.
    pub(super) fn change_generation(self: &Arc<Node>) -> Result<()> {
        let generation = self.cluster().generation;
        let Some(quorum) = self.quorum().filter(|quorum| quorum.generation() < generation) else {
            return Ok(());
        };
        self.door.end(Service::Replica);
        quorum.stop();
        self.join_quorum()?;
        // Of no use any more, and in nobody's way if it stays.
        let _ = std::fs::remove_file(self.dir.journal_path(quorum.generation()));
        Ok(())
    }

    /// Takes newer records from the first node of the quorum that answers, if it has any.
    pub(super) fn look_for_records(self: &Arc<Node>) {
        match self.quorum().map(|quorum| quorum.tend()) {
            Some(Ok(true)) => self.hurry(),
            Some(Err(error)) => {
                warn!(target: "node", "the quorum's members are not changed yet: {error}");
            }
            Some(Ok(false)) | None => {}
        }
        let cluster = self.cluster();
        let nodes: Vec<NodeNumber> =
            cluster.quorum().map(|node| node.id).filter(|id| *id != self.file.id).collect();
        if nodes.is_empty() || self.quorum().is_some_and(|quorum| quorum.leads()) {
            return;
        }
        // A node may lag behind, so the next time another one is asked first.
        let round = self.round.fetch_add(1, Ordering::Relaxed) % nodes.len();
        let request =
            NodeRequest::Records { generation: cluster.generation, newer_than: cluster.revision };
        let ask = |id: &NodeNumber| self.ask::<Option<Cluster>>(*id, &request);
        let mut answers = nodes[round..].iter().chain(&nodes[..round]).map(ask);
        let found = answers.find(Result::is_ok).unwrap_or(Err(ErrorKind::Unreachable.into()));
        let taken = found.and_then(|newer| newer.map_or(Ok(()), |newer| self.take_records(&newer)));
        let was_alone = self.is_alone.swap(taken.is_err(), Ordering::Relaxed);
        if let Err(error) = taken
            && !was_alone
        {
            warn!(target: "node", "nobody can be asked for newer records: {error}");
        }
    }
}
