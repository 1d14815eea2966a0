//! Deletes file systems and NSDs: the part of the node that takes them out of the records, and each
//! node's part, which closes its disks and removes what it kept.
//!
//! The records come first. A node that is down meanwhile does its part when it learns of them. A
//! file system that is made later begins with empty NSDs, whatever was left on them.

use super::messages::{NodeRequest, ReplicaState};
use super::server::Node;
use crate::backend::member::Member;
use crate::cluster::{Change, Cluster, FsRecord, NodeNumber, NsdRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, FsId, Result};
use tracing::{info, warn};

/// How long a node that is deleted may take to leave the group that keeps the records, and how
/// often is looked.
const LEAVE_MAX: Duration = Duration::from_secs(10);
const LEAVE_STEP: Duration = Duration::from_millis(100);

impl Node {
    /// Takes a file system out of the records for `strake fs delete`.
    pub(super) fn delete_file_system(self: &Arc<Node>, fs: &str) -> Result<FsRecord> {
        let _alone = self.changing.lock();
        let record = self.newest_records()?.fs_named(fs)?.clone();
        self.change(&Change::DeleteFs { fs: record.id })?;
        self.serve_file_systems();
        info!(target: "node", "file system {fs} is deleted");
        Ok(record)
    }

    /// Takes a node out of the records for `strake node delete`, and waits until it votes no more:
    /// another node may be stopped right after that. Returns the revision of the records.
    pub(super) fn delete_node(self: &Arc<Node>, name: &str) -> Result<u64> {
        let _alone = self.changing.lock();
        let node = self.newest_records()?.node_named(name)?.id;
        let revision = self.change(&Change::DeleteNode { node })?.revision;
        let _wait = self.observe.waiters.enter("deleted node that votes", name.to_owned());
        let end = RealClock.monotonic() + LEAVE_MAX;
        let votes = |state: ReplicaState| {
            state.members.is_empty() || state.members.iter().any(|it| it.node == node && it.votes)
        };
        // Without a majority it stays a voter until there is one. It is deleted all the same.
        while RealClock.monotonic() < end && self.leading_replica().map_or(true, votes) {
            RealClock.sleep(LEAVE_STEP);
        }
        Ok(revision)
    }

    /// Takes NSDs out of the records for `strake nsd delete`. Returns a sentence for each node
    /// whose containers stay.
    pub(super) fn delete_nsds(self: &Arc<Node>, names: &[String]) -> Result<Vec<String>> {
        let _alone = self.changing.lock();
        let cluster = self.newest_records()?;
        let mut by_node: BTreeMap<NodeNumber, Vec<NsdRecord>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let Some(nsd) = cluster.nsds.iter().find(|nsd| nsd.name == *name) else {
                return Err(Error::new(ErrorKind::Invalid, format!("no NSD '{name}'")));
            };
            if seen.insert(nsd.id) {
                by_node.entry(nsd.node).or_default().push(nsd.clone());
            }
        }
        self.change(&Change::DeleteNsds { nsds: seen.into_iter().collect() })?;
        let mut left = Vec::new();
        for (node, nsds) in by_node {
            let shown: Vec<&str> = nsds.iter().map(|nsd| nsd.name.as_str()).collect();
            let shown = shown.join(", ");
            if let Err(error) = self.ask::<()>(node, &NodeRequest::DropNsds { nsds: nsds.clone() })
            {
                let node = cluster.node_name(node);
                left.push(format!("what {node} has of {shown} stays there: {error}"));
            }
        }
        Ok(left)
    }

    /// Closes the disks of file systems that are not in the records any more, and removes what this
    /// node kept beside the disks.
    pub(super) fn end_deleted(&self, served: &mut BTreeMap<FsId, Member>, cluster: &Cluster) {
        let deleted: Vec<FsId> =
            served.keys().copied().filter(|fs| cluster.fs(*fs).is_none()).collect();
        for fs in deleted {
            let Some(member) = served.remove(&fs) else { continue };
            let nsds = member.nsds();
            member.finish(&self.door, &nsds);
        }
        self.forget_faults(cluster);
        let root = self.dir.root();
        if let Err(error) = remove_unknown(root, cluster) {
            warn!(target: "node", "what was kept of a deleted file system stays: {error}");
        }
    }
}

/// Removes what the node at `root` kept of file systems that the records do not name: the folder of
/// disks, which has no data in it, and the settings of the mount.
fn remove_unknown(root: &Path, cluster: &Cluster) -> Result<()> {
    for folder in ["fs", "mount"] {
        let entries = match std::fs::read_dir(root.join(folder)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if cluster.file_systems.iter().any(|fs| *fs.name == *entry.file_name()) {
                continue;
            }
            let removed = match folder {
                "fs" => std::fs::remove_dir_all(entry.path()),
                _ => std::fs::remove_file(entry.path().join("strake.toml")),
            };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
    }
    Ok(())
}
