//! What the leader answers about the whole cluster.
//!
//! One change is made at a time. Its order is: look whether it may be made, have the nodes do their
//! part, write the records durably, tell the nodes. After a crash in between, the nodes may have
//! done work that no record names; it is done anew, or undone, when the change is tried again.

use super::messages::{
    FsWanted, Grant, LeaderRequest, MountAnswer, NodeRequest, NodeState, NsdPlace, Place,
};
use super::server::{Node, encode};
use crate::cluster::{Change, Cluster, NodeNumber};
use serde_json::Value;
use std::time::Duration;
use strake_proto::{Error, ErrorKind, FsId, Result, Role, Roles};
use tracing::{info, warn};

/// Why a second mount of a file system is refused.
const ONE_MOUNT: &str = "more than one mount needs tokens, which this version does not have";

/// How long a join token is good for.
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);

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
            LeaderRequest::Join { node, address } => {
                let _alone = self.changing.lock();
                let (name, address) = (node.clone(), *address);
                let cluster = self.change(&Change::Join { name, address })?;
                info!(target: "node", "{node} has joined at {address}");
                encode(&cluster)
            }
            LeaderRequest::DeleteNode { node } => {
                let _alone = self.changing.lock();
                let record = self.cluster().node_named(node)?.clone();
                let node = record.id;
                if let Some(desk) = &self.desk {
                    desk.withdraw(&record.certified_name())?;
                }
                encode(&self.change(&Change::DeleteNode { node })?.revision)
            }
            LeaderRequest::NodeStates => encode(&self.node_states()),
            LeaderRequest::CreateNsds { nsds, force } => encode(&self.create_nsds(nsds, *force)?),
            LeaderRequest::CreateFs(wanted) => encode(&self.create_file_system(wanted)?),
            LeaderRequest::MountFs { fs, nodes, settings } => {
                encode(&self.mount_on(fs, nodes, settings)?)
            }
            LeaderRequest::MayMount { fs, node } => encode(&self.refuse_second_mount(fs, *node)?),
            LeaderRequest::ForgetMount { fs } => encode(&self.forget_lost_mount(fs)?),
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
        let Some(desk) = &self.desk else {
            return invalid(format!("{} issues no certificates", self.file.node));
        };
        // All names are looked at before the first node is added.
        let mut trial = self.cluster();
        let invite = |name: &String| Change::Invite { name: name.clone(), roles };
        names.iter().try_for_each(|name| trial.apply(&invite(name)))?;
        let mut tokens = Vec::new();
        for name in names {
            self.change(&invite(name))?;
            let token = desk.issue(&name.parse()?, roles, self.file.address, TOKEN_LIFE)?;
            tokens.push((name.clone(), format!("{token}@{}", self.file.node)));
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
            let all = cluster
                .nodes
                .iter()
                .filter(|node| node.roles.has(Role::Client) && node.address.is_some());
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
    ) -> Result<Vec<MountAnswer>> {
        let mut known = crate::settings::Settings::default();
        settings.iter().try_for_each(|text| known.set(text))?;
        let record = self.cluster().fs_named(fs)?.clone();
        let nodes = self.clients(nodes)?;
        let mut answers = Vec::new();
        for (id, node) in nodes {
            let (fs, settings) = (record.clone(), settings.to_vec());
            // The mount's process asks the same. Here no mount point is touched yet.
            let answer = self
                .refuse_second_mount(&record.name, id)
                .and_then(|()| self.ask::<String>(id, &NodeRequest::Mount { fs, settings }));
            let done = answer.is_ok();
            let message = answer.unwrap_or_else(|error| error.to_string());
            answers.push(MountAnswer { node, done, message });
        }
        Ok(answers)
    }

    /// Takes a user's word that the node that has the file system mounted is off.
    fn forget_lost_mount(&self, fs: &str) -> Result<()> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let record = cluster.fs_named(fs)?;
        let Some(node) = record.mounted else { return Ok(()) };
        let fs = record.id;
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

    /// Refuses a mount while another node has the file system mounted.
    fn refuse_second_mount(&self, fs: &str, node: NodeNumber) -> Result<()> {
        let cluster = self.cluster();
        let record = cluster.fs_named(fs)?;
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
        Ok(())
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
        self.refuse_second_mount(fs, node)?;
        let cluster = self.change(&Change::Mounted { fs: record.id, node: Some(node) })?;
        let record = cluster.fs(record.id).ok_or(ErrorKind::Internal)?.clone();
        let place = |id: &strake_proto::NsdId| {
            let at = cluster.node(cluster.nsd(*id)?.node)?;
            let place = Place { node: at.certified_name(), address: at.address? };
            Some(NsdPlace { nsd: *id, place })
        };
        let nsds = record.nsds.iter().filter_map(place).collect();
        let leader = Place { node: self.file.node.parse()?, address: self.file.address };
        Ok(Grant { fs: record, node, leader, nsds })
    }

    /// Notes that a node does not have the file system mounted any more.
    pub(super) fn close_mount(&self, fs: FsId, node: NodeNumber) -> Result<()> {
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
