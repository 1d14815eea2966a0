//! Makes NSDs and file systems: the part of the node that chooses and records, and each node's
//! part, which writes to its own disks.

use super::messages::{Described, FsWanted, NewReplicas, NodeRequest};
use super::metadata::replica_on;
use super::replicas;
use super::server::Node;
use crate::assemble;
use crate::cluster::{Change, Cluster, FsRecord, NewNsd, NodeNumber, NsdRecord};
use crate::create::{self, check_block_size};
use crate::data_dir::{DataDir, NodeConfig, NsdConfig};
use crate::disks::Reserved;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use strake_crew::metadata;
use strake_env::{Clock, RealClock};
use strake_proto::feature::Feature;
use strake_proto::{ByteCount, Code, Error, ErrorKind, NsdId, PoolMap, Result};
use strake_replica::types::ReplicaId;
use strake_store::Container;
use strake_stripe::Placement;
use tracing::warn;

/// How long the disks of a file system that was deleted may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(20);
const CLOSE_STEP: Duration = Duration::from_millis(20);
/// How long the first election of a file system may take, and how often is looked.
const SERVED_MAX: Duration = Duration::from_secs(30);
const SERVED_STEP: Duration = Duration::from_millis(100);

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Node {
    /// Chooses and records for `strake nsd create`.
    pub(super) fn create_nsds(
        self: &Arc<Node>,
        nsds: &[Described],
        force: bool,
    ) -> Result<Vec<NsdRecord>> {
        let _alone = self.changing.lock();
        let before = self.newest_records()?;
        let (mut new, mut others) = (Vec::new(), Vec::new());
        for nsd in nsds {
            let about = |error: Error| error.context(format!("line {}", nsd.line));
            let node = before.node_named(&nsd.server).map_err(about)?.id;
            let found = nsd.others.iter().map(|name| Ok(before.node_named(name)?.id));
            others.push(found.collect::<Result<Vec<NodeNumber>>>().map_err(about)?);
            new.push(NewNsd {
                name: nsd.name.clone(),
                node,
                device: nsd.device.clone().into(),
                usage: nsd.usage(),
                failure_group: nsd.failure_group,
                pool: nsd.pool.clone().unwrap_or_else(|| "system".to_owned()),
            });
        }
        if others.iter().any(|others| !others.is_empty()) {
            Feature::SharedDisks.check_level(before.level, "servers=… with several nodes")?;
        }
        let change = Change::AddNsds { nsds: new };
        let mut after = before.clone();
        after.apply(&change)?;
        let made: Vec<NsdRecord> = after.nsds[before.nsds.len()..].to_vec();
        let shares = shares(&made, &others);
        shares.iter().try_for_each(|share| after.apply(share))?;
        let mut by_node: BTreeMap<NodeNumber, Vec<(NsdRecord, Option<u64>)>> = BTreeMap::new();
        for (record, described) in made.iter().zip(nsds) {
            by_node.entry(record.node).or_default().push((record.clone(), described.size));
        }
        let mut done = Vec::new();
        let outcome = by_node.into_iter().try_for_each(|(node, nsds)| {
            self.ask::<()>(node, &NodeRequest::MakeNsds { nsds: nsds.clone(), force })?;
            done.push((node, nsds.into_iter().map(|(nsd, _)| nsd).collect::<Vec<_>>()));
            Ok(())
        });
        let mut seen = made.iter().zip(&others);
        let outcome =
            outcome.and_then(|()| seen.try_for_each(|(nsd, others)| self.check_seen(nsd, others)));
        let changed = outcome.and_then(|()| self.change_at(Some(before.revision), &change));
        if let Err(error) = changed {
            if error.kind() == ErrorKind::TimedOut {
                // The records may name the containers, or do so later.
                return Err(error);
            }
            for (node, nsds) in done {
                if let Err(error) = self.ask::<()>(node, &NodeRequest::DropNsds { nsds }) {
                    warn!(target: "node", "containers that were just made stay: {error}");
                }
            }
            return Err(error);
        }
        for share in shares {
            self.change(&share).map_err(|error| {
                error.context("the NSDs are made, and not all have the servers that were named")
            })?;
        }
        Ok(made)
    }

    /// Chooses and records for `strake fs create`.
    pub(super) fn create_file_system(self: &Arc<Node>, wanted: &FsWanted) -> Result<FsRecord> {
        Node::check_wanted(wanted)?;
        check_block_size(ByteCount(wanted.block_size.into()))?;
        let _alone = self.changing.lock();
        let before = self.newest_records()?;
        let nsds = chosen(&before, &wanted.nsds)?;
        check_groups(&before, &nsds, wanted.code, wanted.force)?;
        let change = Change::AddFs {
            name: wanted.name.clone(),
            code: wanted.code,
            block_size: wanted.block_size,
            mount: wanted.mount.clone(),
            nsds: nsds.iter().map(|nsd| nsd.id).collect(),
        };
        let mut after = before.clone();
        after.apply(&change)?;
        let record = after.fs_named(&wanted.name)?.clone();
        let places = after.metadata_places(&record.nsds);
        if places.is_empty() {
            return invalid(
                "the nodes of the quorum keep the metadata, so the file system needs an NSD with \
                 usage=dataAndMetadata on one of them, better on three"
                    .into(),
            );
        }
        let replicas: BTreeSet<ReplicaId> =
            places.iter().map(|(_, nsd)| replica_on(*nsd)).collect();
        let voters = replicas::first_voters(&replicas).into_iter().map(|id| NsdId(id.0)).collect();
        let nsds_with_it = places.into_iter().map(|(_, nsd)| nsd).collect();
        let metadata = Some(NewReplicas { fs: record.id, nsds: nsds_with_it, voters });
        let nodes: BTreeSet<NodeNumber> = nsds.iter().map(|nsd| nsd.node).collect();
        for node in nodes {
            let nsds = nsds.iter().filter(|nsd| nsd.node == node).cloned().collect();
            let metadata = metadata.clone();
            self.ask::<()>(node, &NodeRequest::FormatNsds { nsds, metadata })?;
        }
        // The nodes serve their disks when this returns, so that a mount finds them.
        self.change_at(Some(before.revision), &change)?;
        self.serve_file_systems();
        self.wait_until_served(&record, "made")?;
        Ok(record)
    }

    /// Waits until a node serves a file system. `done` says what was just done to it.
    pub(super) fn wait_until_served(&self, fs: &FsRecord, done: &str) -> Result<()> {
        let search = self.search(fs.id);
        let _wait = self.observe.waiters.enter("first leader of a file system", fs.name.clone());
        let end = RealClock.monotonic() + SERVED_MAX;
        loop {
            match search.find() {
                Ok(_) => return Ok(()),
                Err(_) if RealClock.monotonic() < end => RealClock.sleep(SERVED_STEP),
                Err(error) => {
                    let detail = format!(
                        "{} is {done}, and {error} yet: `strake node state` says why",
                        fs.name
                    );
                    return Err(Error::new(ErrorKind::TimedOut, detail));
                }
            }
        }
    }

    /// This node's part of `strake nsd create`.
    pub(super) fn make_nsds(&self, nsds: &[(NsdRecord, Option<u64>)], force: bool) -> Result<()> {
        let (dir, config) = self.place_of(nsds.iter().map(|(nsd, _)| nsd))?;
        std::fs::create_dir_all(self.dir.root().join("nsd"))?;
        let directories: Vec<NsdConfig> =
            config.nsd.iter().filter(|nsd| !assemble::is_device(&nsd.path)).cloned().collect();
        let mut made = Vec::new();
        let outcome = config.nsd.iter().zip(nsds).try_for_each(|(nsd, (_, size))| {
            let size = match size {
                None if directories.contains(nsd) => {
                    Some(create::default_size(&dir, &directories)?)
                }
                size => *size,
            };
            if let Some(size) = size.map(ByteCount)
                && size < ByteCount::mib(64)
            {
                return invalid(format!("size={size}: an NSD has at least 64 MiB"));
            }
            assemble::format_one(&dir, &config, nsd, size, force)?;
            made.push(nsd.clone());
            Ok(())
        });
        outcome.map_err(|error: Error| {
            for nsd in &made {
                if let Err(error) = assemble::clear_place(&dir, nsd) {
                    warn!(target: "node", "{} stays: {error}", nsd.path.display());
                }
            }
            error.context(format!("node {}", self.file.node))
        })
    }

    /// Removes the containers of NSDs that are not, or not any more, in the records.
    pub(super) fn drop_nsds(&self, nsds: &[NsdRecord]) -> Result<()> {
        if let Some(known) = nsds.iter().find(|nsd| self.cluster().nsd(nsd.id).is_some()) {
            return invalid(format!("NSD {} is in use", known.name));
        }
        let (dir, config) = self.place_of(nsds)?;
        config.nsd.iter().try_for_each(|nsd| assemble::clear_place(&dir, nsd))
    }

    /// This node's part of `strake fs create` and `strake disk add`.
    pub(super) fn format_nsds(
        &self,
        nsds: &[NsdRecord],
        metadata: Option<&NewReplicas>,
    ) -> Result<()> {
        let cluster = self.cluster();
        for nsd in nsds {
            if cluster.nsd(nsd.id).is_some_and(|nsd| nsd.fs.is_some()) {
                return invalid(format!("NSD {} belongs to a file system", nsd.name));
            }
        }
        let (dir, config) = self.place_of(nsds)?;
        let prepare = |container: &Container| {
            let nsd = container.superblock().nsd;
            let Some(new) = metadata.filter(|new| new.nsds.contains(&nsd)) else { return Ok(()) };
            let voters = new.voters.iter().map(|nsd| replica_on(*nsd)).collect();
            let log = cluster.metadata_log(new.fs);
            let identity = metadata::identity(cluster.id, new.fs, log, replica_on(nsd));
            metadata::format(container, identity, &voters)
        };
        let formatted =
            config.nsd.iter().try_for_each(|nsd| self.format_closed(&dir, &config, nsd, &prepare));
        formatted.map_err(|error| error.context(format!("node {}", self.file.node)))
    }

    /// Makes an NSD empty once it is closed. A moment ago it may have been a disk of a file system
    /// that was deleted, whose last threads are about to end.
    fn format_closed(
        &self,
        dir: &DataDir,
        config: &NodeConfig,
        nsd: &NsdConfig,
        prepare: &dyn Fn(&Container) -> Result<()>,
    ) -> Result<()> {
        let _wait = self.observe.waiters.enter("disk of a deleted file system", nsd.name.clone());
        let end = RealClock.monotonic() + CLOSE_MAX;
        let (path, of) = (dir.container_path(nsd), (config.cluster_id()?, NsdId(nsd.id)));
        let start = |shared| Reserved::start(&path, of, shared, &self.observe);
        let reserved = nsd.shared.as_ref().map(start).transpose()?;
        let done = loop {
            let permit = reserved.as_ref().map_or(Ok(()), |reserved| reserved.permit().map(drop));
            match permit.and_then(|()| assemble::format_again(dir, config, nsd, prepare)) {
                Err(error) if error.kind() == ErrorKind::Busy && RealClock.monotonic() < end => {
                    RealClock.sleep(CLOSE_STEP);
                }
                done => break done,
            }
        };
        if let Some(reserved) = reserved {
            reserved.leave();
            reserved.wait_for_end(end);
        }
        done
    }

    /// NSDs of this node in the form in which disks are opened.
    fn place_of<'a>(
        &self,
        nsds: impl IntoIterator<Item = &'a NsdRecord>,
    ) -> Result<(DataDir, NodeConfig)> {
        let cluster = self.cluster();
        let nothing = FsRecord {
            id: cluster.next_fs(),
            name: String::new(),
            code: Code { data: 1, parity: 0 },
            block_size: 0,
            mount: Default::default(),
            nsds: Vec::new(),
            mounts: Vec::new(),
        };
        let mut config = self.config_of(&cluster, &nothing);
        for nsd in nsds {
            if nsd.node != self.file.id {
                return invalid(format!("NSD {} is not on {}", nsd.name, self.file.node));
            }
            config.nsd.push(self.nsd_config(&cluster, nsd));
        }
        Ok((DataDir::at(self.dir.root())?, config))
    }
}

/// The changes that give new NSDs the servers beside the first.
fn shares(made: &[NsdRecord], others: &[Vec<NodeNumber>]) -> Vec<Change> {
    let shared = made.iter().zip(others).filter(|(_, others)| !others.is_empty());
    let share = |(nsd, others): (&NsdRecord, &Vec<NodeNumber>)| {
        let servers = [nsd.node].into_iter().chain(others.iter().copied()).collect();
        Change::ShareNsd { nsd: nsd.id, servers }
    };
    shared.map(share).collect()
}

/// The NSDs that a file system is made of.
fn chosen(cluster: &Cluster, names: &[String]) -> Result<Vec<NsdRecord>> {
    let free = || cluster.nsds.iter().filter(|nsd| nsd.fs.is_none());
    if names.is_empty() {
        let all: Vec<NsdRecord> = free().cloned().collect();
        if all.is_empty() {
            return invalid("there is no free NSD: `strake nsd create -F FILE` makes some".into());
        }
        return Ok(all);
    }
    let mut found: Vec<NsdRecord> = Vec::new();
    for name in names {
        let Some(nsd) = free().find(|nsd| nsd.name == *name) else {
            let names: Vec<&str> = free().map(|nsd| nsd.name.as_str()).collect();
            return invalid(format!("no free NSD '{name}'; there are {}", names.join(", ")));
        };
        if found.contains(nsd) {
            return invalid(format!("NSD {name} is named twice"));
        }
        found.push(nsd.clone());
    }
    found.sort_by_key(|nsd| nsd.id);
    Ok(found)
}

pub(super) fn pool(nsds: &[NsdRecord]) -> PoolMap {
    PoolMap::new(nsds.iter().map(|nsd| (nsd.id, nsd.failure_group)))
}

/// Refuses a code that does not survive the loss of one failure group, unless the user insists.
fn check_groups(cluster: &Cluster, nsds: &[NsdRecord], code: Code, force: bool) -> Result<()> {
    let pool = pool(nsds);
    let layout = pool.layouts.first().expect("invariant: a new pool has one layout");
    let placement = Placement::new(layout, code)?;
    let (limit, parity) = (placement.group_limit(), usize::from(code.parity));
    if limit <= parity || parity == 0 || force {
        return Ok(());
    }
    let mut groups: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for nsd in nsds {
        groups.entry(nsd.failure_group).or_default().insert(cluster.node_name(nsd.node));
    }
    let shown: Vec<String> = groups
        .iter()
        .map(|(group, nodes)| {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            format!("{group} ({})", nodes.join(", "))
        })
        .collect();
    invalid(format!(
        "code {code} survives the loss of {parity} of a stripe's {} strips, and these {} failure \
         groups get up to {limit} of them: {}. The loss of one would lose data. Add NSDs in more \
         failure groups, choose another code, or accept it with --force",
        code.width(),
        groups.len(),
        shown.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::records::Usage;
    use strake_env::net::SocketAddr;
    use strake_proto::{ClusterId, NsdId};

    /// NSDs in these failure groups.
    fn nsds(groups: &[u32]) -> Vec<NsdRecord> {
        let record = |(id, group): (u32, &u32)| NsdRecord {
            id: NsdId(id),
            name: format!("nsd{id}"),
            node: NodeNumber(1),
            device: format!("d{id}").into(),
            usage: Usage::DataAndMetadata,
            failure_group: *group,
            pool: "system".into(),
            fs: None,
        };
        (1..).zip(groups).map(record).collect()
    }

    fn check(groups: &[u32], code: &str, force: bool) -> Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let cluster = Cluster::new(ClusterId([0; 16]), "c", "n1", address).expect("names");
        check_groups(&cluster, &nsds(groups), code.parse().expect("a code"), force)
    }

    #[test]
    fn a_code_must_survive_the_loss_of_a_failure_group() {
        check(&[1, 2, 3], "2x", false).expect("one strip in each");
        check(&[1, 1, 2, 2, 3, 3], "4+2p", false).expect("two strips in each");
        check(&[1, 1, 1, 2, 2, 2], "1", false).expect("nothing is promised");
        let error = check(&[1, 1, 2, 2], "3x", false).err();
        assert_eq!(error, None, "two strips in one group, and two may be lost");
        let error = check(&[1, 1, 1, 2, 2, 2], "4+2p", false).expect_err("three in each");
        assert!(error.to_string().contains("up to 3 of them: 1 (n1), 2 (n1)"), "{error}");
        assert!(error.to_string().contains("--force"), "{error}");
        check(&[1, 1, 1, 2, 2, 2], "4+2p", true).expect("the user insists");
        let error = check(&[1, 1], "2x", false).expect_err("both in one");
        assert!(error.to_string().contains("The loss of one would lose data"), "{error}");
        assert!(check(&[1, 2], "4+2p", true).is_err(), "too few NSDs for the code");
    }
}
