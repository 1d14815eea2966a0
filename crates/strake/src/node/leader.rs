//! What the leader answers about the whole cluster.
//!
//! One change is made at a time. Its order is: look whether it may be made, have the nodes do their
//! part, write the records durably, tell the nodes. After a crash in between, the nodes may have
//! done work that no record names; it is done anew, or undone, when the change is tried again.

use super::messages::{
    FsWanted, Grant, LeaderRequest, MountAnswer, NodeRequest, NodeState, NsdPlace,
};
use super::server::{Node, encode};
use crate::cluster::join_token::JoinToken;
use crate::cluster::{Change, Cluster, Invitation, NodeNumber, Roles};
use serde_json::Value;
use strake_env::Rng;
use strake_proto::{Error, ErrorKind, FsId, Result};
use tracing::{info, warn};

/// Why a second mount of a file system is refused.
const ONE_MOUNT: &str = "more than one mount needs tokens, which this version does not have";

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Node {
    /// Answers a request about the cluster.
    pub(super) fn answer_leader(&self, request: &LeaderRequest) -> Result<Value> {
        match request {
            LeaderRequest::Records { newer_than } => {
                encode(&Some(self.cluster()).filter(|cluster| cluster.revision > *newer_than))
            }
            LeaderRequest::AddNodes { names, roles } => encode(&self.add_nodes(names, *roles)?),
            LeaderRequest::Join { node, invitation, address } => {
                let _alone = self.changing.lock();
                let (name, invitation, address) = (node.clone(), *invitation, *address);
                let cluster = self.change(&Change::Join { name, invitation, address })?;
                info!(target: "node", "{node} has joined at {address}");
                encode(&cluster)
            }
            LeaderRequest::DeleteNode { node } => {
                let _alone = self.changing.lock();
                let node = self.cluster().node_named(node)?.id;
                encode(&self.change(&Change::DeleteNode { node })?.revision)
            }
            LeaderRequest::NodeStates => encode(&self.node_states()),
            LeaderRequest::CreateNsds { nsds, force } => encode(&self.create_nsds(nsds, *force)?),
            LeaderRequest::CreateFs(wanted) => encode(&self.create_file_system(wanted)?),
            LeaderRequest::MountFs { fs, nodes, settings, force } => {
                encode(&self.mount_on(fs, nodes, settings, *force)?)
            }
            LeaderRequest::UnmountFs { fs, nodes, force } => {
                encode(&self.unmount_on(fs, nodes, *force)?)
            }
            LeaderRequest::OpenMount { fs, node } => encode(&self.open_mount(fs, *node)?),
            LeaderRequest::CloseMount { fs, node } => encode(&self.close_mount(*fs, *node)?),
            LeaderRequest::Holders { fs } => {
                let served = self.served.lock();
                let member = served.get(fs);
                encode(&member.and_then(|member| member.metadata_holders()).unwrap_or_default())
            }
        }
    }

    /// Changes the records durably, and tells the nodes. The caller holds `changing`.
    pub(super) fn change(&self, change: &Change) -> Result<Cluster> {
        let mut next = self.cluster();
        next.apply(change)?;
        self.take_records(&next)?;
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

    fn add_nodes(&self, names: &[String], roles: Roles) -> Result<Vec<(String, String)>> {
        let _alone = self.changing.lock();
        let secret = std::fs::read_to_string(self.dir.base().secret_path())?;
        let mut rng = Rng::from_entropy()?;
        let mut tokens = Vec::new();
        // All names are looked at before the first node is added.
        let mut trial = self.cluster();
        let mut changes = Vec::new();
        for name in names {
            let mut invitation = Invitation([0; 16]);
            rng.fill(&mut invitation.0);
            let change = Change::Invite { name: name.clone(), roles, invitation };
            trial.apply(&change)?;
            changes.push(change);
            let token = JoinToken {
                cluster: trial.id,
                leader: self.file.address,
                node: name.clone(),
                secret: secret.trim().to_owned(),
                invitation,
            };
            tokens.push((name.clone(), token.text()?));
        }
        for change in changes {
            self.change(&change)?;
        }
        Ok(tokens)
    }

    fn node_states(&self) -> Vec<NodeState> {
        let cluster = self.cluster();
        let ask = |node: NodeNumber, name: &str, is_there: bool| {
            let silent = |state: &str, fault: Option<Error>| NodeState {
                node: name.to_owned(),
                state: state.to_owned(),
                pid: None,
                version: None,
                mounts: Vec::new(),
                faults: fault.iter().map(Error::to_string).collect(),
            };
            if !is_there {
                return silent("invited", None);
            }
            let state = self.ask(node, &NodeRequest::State);
            state.unwrap_or_else(|error| silent("down", Some(error)))
        };
        cluster.nodes.iter().map(|node| ask(node.id, &node.name, node.address.is_some())).collect()
    }

    /// The nodes that are meant: the named ones, or all clients that have joined.
    fn clients(&self, names: &[String]) -> Result<Vec<(NodeNumber, String)>> {
        let cluster = self.cluster();
        if names.is_empty() {
            let all = cluster.nodes.iter().filter(|it| it.roles.client && it.address.is_some());
            return Ok(all.map(|node| (node.id, node.name.clone())).collect());
        }
        let found = names.iter().map(|name| cluster.node_named(name));
        found.map(|node| node.map(|node| (node.id, node.name.clone()))).collect()
    }

    fn mount_on(
        &self,
        fs: &str,
        nodes: &[String],
        settings: &[String],
        force: bool,
    ) -> Result<Vec<MountAnswer>> {
        let mut known = crate::settings::Settings::default();
        settings.iter().try_for_each(|text| known.set(text))?;
        let record = self.cluster().fs_named(fs)?.clone();
        let nodes = self.clients(nodes)?;
        if force {
            self.forget_lost_mount(record.id)?;
        }
        let mut answers = Vec::new();
        for (id, node) in nodes {
            let (fs, settings) = (record.clone(), settings.to_vec());
            let answer = self.ask::<String>(id, &NodeRequest::Mount { fs, settings });
            let done = answer.is_ok();
            let message = answer.unwrap_or_else(|error| error.to_string());
            answers.push(MountAnswer { node, done, message });
        }
        Ok(answers)
    }

    /// Takes a user's word that the node that has the file system mounted is off.
    fn forget_lost_mount(&self, fs: FsId) -> Result<()> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let Some(node) = cluster.fs(fs).and_then(|fs| fs.mounted) else { return Ok(()) };
        if self.peer(node).is_ok_and(|peer| peer.ask::<NodeState>(&NodeRequest::State).is_ok()) {
            return Ok(());
        }
        let name = cluster.node_name(node);
        warn!(target: "node", "{name} is off, somebody says: its mount counts as gone");
        self.change(&Change::Mounted { fs, node: None }).map(drop)
    }

    fn unmount_on(&self, fs: &str, nodes: &[String], force: bool) -> Result<Vec<MountAnswer>> {
        let record = self.cluster().fs_named(fs)?.clone();
        let nodes = match (nodes.is_empty(), record.mounted) {
            (true, None) => return invalid(format!("{fs} is not mounted")),
            (true, Some(node)) => vec![(node, self.cluster().node_name(node))],
            (false, _) => self.clients(nodes)?,
        };
        let mut answers = Vec::new();
        for (id, node) in nodes {
            let fs = record.name.clone();
            let answer = self.ask::<String>(id, &NodeRequest::Unmount { fs, force });
            let done = answer.is_ok();
            if done {
                self.close_mount(record.id, id)?;
            }
            let message = answer.unwrap_or_else(|error| error.to_string());
            answers.push(MountAnswer { node, done, message });
        }
        Ok(answers)
    }

    /// Grants a mount, unless another node has the file system mounted.
    fn open_mount(&self, fs: &str, node: NodeNumber) -> Result<Grant> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let record = cluster.fs_named(fs)?;
        if !self.served.lock().contains_key(&record.id) {
            let leader = cluster.node_name(self.file.id);
            let detail = format!(
                "the metadata of {fs} is not served: `strake node state` says what {leader} lacks"
            );
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        if let Some(other) = record.mounted.filter(|other| *other != node) {
            let name = cluster.node_name(other);
            // The node's own lock says whether the mount's process is alive.
            match self.ask::<bool>(other, &NodeRequest::IsMounted { fs: fs.to_owned() }) {
                Ok(false) => info!(target: "node", "the mount of {fs} on {name} is gone"),
                Ok(true) => {
                    let detail = format!("{fs} is mounted on {name}; {ONE_MOUNT}");
                    return Err(Error::new(ErrorKind::Busy, detail));
                }
                Err(error) => {
                    let detail = format!(
                        "{fs} is mounted on {name}, as far as is known; {ONE_MOUNT}. {error}: \
                         start it, or if it is switched off, mount with --force"
                    );
                    return Err(Error::new(ErrorKind::Busy, detail));
                }
            }
        }
        let cluster = self.change(&Change::Mounted { fs: record.id, node: Some(node) })?;
        let record = cluster.fs(record.id).ok_or(ErrorKind::Internal)?.clone();
        let place = |id: &strake_proto::NsdId| {
            let nsd = cluster.nsd(*id)?;
            Some(NsdPlace { nsd: *id, address: cluster.node(nsd.node)?.address? })
        };
        let nsds = record.nsds.iter().filter_map(place).collect();
        Ok(Grant { fs: record, node, leader: self.file.address, nsds })
    }

    fn close_mount(&self, fs: FsId, node: NodeNumber) -> Result<()> {
        let _alone = self.changing.lock();
        if self.cluster().fs(fs).is_some_and(|fs| fs.mounted == Some(node)) {
            self.change(&Change::Mounted { fs, node: None })?;
        }
        Ok(())
    }

    /// What the user wants of a new file system, checked by itself.
    pub(super) fn check_wanted(wanted: &FsWanted) -> Result<()> {
        if !wanted.mount.is_absolute() {
            return invalid(format!("--mount {}: an absolute path", wanted.mount.display()));
        }
        Ok(())
    }
}
