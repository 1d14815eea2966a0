//! The records of a cluster, and every change of them.
//!
//! Invariants, which [`Cluster::check`] verifies after each change and each reading:
//!
//! 1. Numbers of nodes, NSDs and file systems rise and are never given twice.
//! 2. Names of nodes, of NSDs and of file systems are unique among their kind.
//! 3. The keeper is one of the nodes, and has an address. Others that issue certificates are of the
//!    quorum (`issuers.rs`).
//! 4. Each NSD belongs to a node that has the role *server*. A file system's NSDs exist, and know
//!    that they belong to it; no NSD belongs to two.
//! 5. A file system is mounted at most once on a node, which has the role *client*. Each mount has
//!    a client id and a life of its own.
//!
//! 6. An NSD that several nodes reach is served by one of them (`shared.rs`).
//! 7. A file system whose metadata has gone on without a majority is named once with its log.
//!
//! A change that is refused leaves the records as they were.

use super::metadata_logs::MetadataLog;
use super::shared::SharedNsd;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use strake_env::net::SocketAddr;
use strake_proto::{
    ClientId, ClusterId, Code, Error, ErrorKind, FeatureLevel, FsId, NodeName, NsdId, Result, Role,
    Roles,
};

/// A node's number. It is given once and never again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub(crate) struct NodeNumber(pub(crate) u32);

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    /// Its number.
    pub(crate) id: NodeNumber,
    /// Its name in commands and listings.
    pub(crate) name: String,
    /// Where its server process listens. `None` until the node has joined.
    pub(crate) address: Option<SocketAddr>,
    /// What it does. Its certificate says the same.
    pub(crate) roles: Roles,
}

impl NodeRecord {
    /// Its name as certificates have it.
    pub(crate) fn certified_name(&self) -> NodeName {
        self.name.parse().expect("invariant: the records were checked")
    }
}

/// What an NSD is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Usage {
    /// Data, and a copy of the metadata if there is reason to.
    DataAndMetadata,
    /// Data alone.
    DataOnly,
}

impl std::fmt::Display for Usage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Usage::DataAndMetadata => "dataAndMetadata",
            Usage::DataOnly => "dataOnly",
        })
    }
}

/// One NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NsdRecord {
    /// Its number.
    pub(crate) id: NsdId,
    /// Its name in commands and listings.
    pub(crate) name: String,
    /// The node that serves it.
    pub(crate) node: NodeNumber,
    /// Its block device or directory on that node, absolute.
    pub(crate) device: PathBuf,
    /// What it is used for.
    pub(crate) usage: Usage,
    /// NSDs of one group fail together.
    pub(crate) failure_group: u32,
    /// The storage pool.
    pub(crate) pool: String,
    /// The file system it belongs to.
    pub(crate) fs: Option<FsId>,
}

/// One file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FsRecord {
    /// Its number.
    pub(crate) id: FsId,
    /// Its name in commands and listings.
    pub(crate) name: String,
    /// Redundancy code of new files.
    pub(crate) code: Code,
    /// Block size in bytes.
    pub(crate) block_size: u32,
    /// Where nodes mount it.
    pub(crate) mount: PathBuf,
    /// Its NSDs: those it was made of, in slot order, then those that it got later.
    pub(crate) nsds: Vec<NsdId>,
    /// The nodes that have it mounted, as far as is known.
    #[serde(default)]
    pub(crate) mounts: Vec<MountRecord>,
}

impl FsRecord {
    /// The mount on a node, if it has one.
    pub(crate) fn mount_on(&self, node: NodeNumber) -> Option<MountRecord> {
        self.mounts.iter().find(|mount| mount.node == node).copied()
    }

    /// The life of the last mount on a node; 0 if nothing is mounted there.
    pub(crate) fn last_life_on(&self, node: NodeNumber) -> u64 {
        self.mount_on(node).map_or(0, |mount| mount.life)
    }

    /// Refuses a request to mount on a node in the place of the mount of life `after`, if that is
    /// not the last one any more. The process that asked may have been killed before its request
    /// came, and the mount of now would end for it.
    ///
    /// # Errors
    /// `Stale`.
    pub(crate) fn check_place(&self, node: NodeNumber, after: Option<u64>) -> Result<()> {
        if after.is_none_or(|after| after == self.last_life_on(node)) {
            return Ok(());
        }
        let detail = format!("another mount of {} has come on this node", self.name);
        Err(Error::new(ErrorKind::Stale, detail))
    }
}

/// A mount of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// The node that it is on.
    pub(crate) node: NodeNumber,
    /// Follows from the generation and the revision of the records that began it. No two mounts
    /// have the same.
    pub(crate) life: u64,
}

/// A life's bits below this one count revisions, those above generations. So records that go on
/// from an older copy give no life again ([`Cluster::generation`]).
const GENERATION_BIT: u32 = 40;

/// The first client id that mounts get. Those below are for the leader.
const CLIENTS_FROM: u64 = 16;

impl MountRecord {
    /// The name under which the file system knows the mount. No other life has it, so what a server
    /// holds against a dead mount never meets a living one.
    pub(crate) fn client(self) -> ClientId {
        ClientId(CLIENTS_FROM.saturating_add(self.life))
    }
}

/// An NSD that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewNsd {
    /// `None` for `nsdN`, where N is its number.
    pub(crate) name: Option<String>,
    pub(crate) node: NodeNumber,
    pub(crate) device: PathBuf,
    pub(crate) usage: Usage,
    /// `None` for the group that all NSDs of its node share.
    pub(crate) failure_group: Option<u32>,
    pub(crate) pool: String,
}

/// A change of the records. A new variant goes at the end: changes are stored in a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// Adds a node that has not joined yet, or invites a node that has no NSD once more.
    Invite { name: String, roles: Roles },
    /// The node that was invited has its certificate, and listens here.
    Join { name: String, address: SocketAddr },
    /// Removes a node.
    DeleteNode { node: NodeNumber },
    /// Adds NSDs that belong to no file system.
    AddNsds { nsds: Vec<NewNsd> },
    /// Makes a file system of NSDs that belong to none.
    AddFs { name: String, code: Code, block_size: u32, mount: PathBuf, nsds: Vec<NsdId> },
    /// The node mounts it.
    Mount { fs: FsId, node: NodeNumber },
    /// The node does not have it mounted any more.
    Unmount { fs: FsId, node: NodeNumber },
    /// Removes a file system that no node has mounted. Its NSDs belong to none.
    DeleteFs { fs: FsId },
    /// Removes NSDs that belong to no file system.
    DeleteNsds { nsds: Vec<NsdId> },
    /// Gives a file system an NSD that belongs to none.
    AttachNsd { fs: FsId, nsd: NsdId },
    /// An NSD of a file system belongs to none any more. One that does not is left as it is.
    DetachNsd { fs: FsId, nsd: NsdId },
    /// An NSD is used for data alone from now on.
    KeepNoMetadata { nsd: NsdId },
    /// All nodes understand this level from now on. A log below takes no such entry
    /// ([`Feature::RecordedLevel`](strake_proto::feature::Feature::RecordedLevel)).
    Level { level: FeatureLevel },
    /// These nodes reach an NSD that belongs to no file system, its own node first.
    ShareNsd { nsd: NsdId, servers: Vec<NodeNumber> },
    /// One of an NSD's servers serves it from now on, in the place of the one with number `after`.
    ServeNsd { nsd: NsdId, node: NodeNumber, after: u64 },
    /// A node of the quorum has the authority's key, and issues certificates.
    Issue { node: NodeNumber },
    /// The metadata of a file system has lost its majority, and goes on with the copy on the NSD
    /// `origin`. NSDs of it that are lost may have carried out what the metadata lost.
    GoOn { fs: FsId, origin: NsdId, lost: Vec<NsdId> },
}

/// Everything that is known of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    /// Its identity, which is on every disk.
    pub(crate) id: ClusterId,
    /// Its name.
    pub(crate) name: String,
    /// Counts the changes.
    pub(crate) revision: u64,
    /// The node that issues certificates for the longest time: at first the one that made the
    /// cluster.
    #[serde(rename = "leader")]
    pub(crate) keeper: NodeNumber,
    /// The last number given to a node, an NSD, a file system.
    last: (u32, u32, u32),
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) nsds: Vec<NsdRecord>,
    pub(crate) file_systems: Vec<FsRecord>,
    /// How often the records had to go on without a majority of the nodes that kept them. Each
    /// time a new log begins, and the one before is void.
    #[serde(default)]
    pub(crate) generation: u32,
    /// The logs of metadata that went on without a majority of their replicas
    /// ([`Cluster::metadata_log`]).
    #[serde(default)]
    pub(super) metadata_logs: Vec<MetadataLog>,
    /// What all nodes understand (R32). It never falls. Records of the first level are kept
    /// without it, and without what follows.
    #[serde(default)]
    pub(crate) level: FeatureLevel,
    /// The NSDs that several nodes reach, by number. Records without any, and without what follows,
    /// are kept without it.
    #[serde(default)]
    pub(super) shared: Vec<SharedNsd>,
    /// The nodes beside the keeper that issue certificates, by number. It stays the last field, as
    /// above.
    #[serde(default)]
    pub(super) issuers: Vec<NodeNumber>,
}

/// The failure group of all NSDs of a node that were given none. The numbers of most users' own
/// groups are small, so these begin above.
const NODE_GROUPS: u32 = 4000;

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Refuses what is no name. Names become names of files and stand in listings.
///
/// # Errors
/// `Invalid`; the message says what a name consists of.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() > 63 || !begins_well || !name.chars().all(fits) {
        return invalid(format!(
            "{what} '{name}': a letter or digit, then letters, digits, '-', '_' and '.', at most 63"
        ));
    }
    Ok(())
}

impl Cluster {
    /// A cluster of one node, which leads it and does everything.
    ///
    /// # Errors
    /// `Invalid` for what is no name.
    pub(crate) fn new(
        id: ClusterId,
        name: &str,
        node: &str,
        address: SocketAddr,
    ) -> Result<Cluster> {
        check_name("cluster name", name)?;
        node.parse::<NodeName>()?;
        let first = NodeRecord {
            id: NodeNumber(1),
            name: node.to_owned(),
            address: Some(address),
            roles: Roles::ALL,
        };
        Ok(Cluster {
            id,
            name: name.to_owned(),
            revision: 1,
            keeper: NodeNumber(1),
            last: (1, 0, 0),
            nodes: vec![first],
            nsds: Vec::new(),
            file_systems: Vec::new(),
            generation: 0,
            metadata_logs: Vec::new(),
            level: FeatureLevel::FIRST,
            shared: Vec::new(),
            issuers: Vec::new(),
        })
    }

    /// The nodes that keep the records: those of the quorum that have joined.
    pub(crate) fn quorum(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.iter().filter(|node| node.roles.has(Role::Quorum) && node.address.is_some())
    }

    /// No mount's life is above this one.
    pub(super) fn last_life(&self) -> u64 {
        (u64::from(self.generation) << GENERATION_BIT).saturating_add(self.revision)
    }

    /// True if these records come after `other`.
    pub(crate) fn is_newer_than(&self, other: &Cluster) -> bool {
        (self.generation, self.revision) > (other.generation, other.revision)
    }

    /// The node with that number.
    pub(crate) fn node(&self, id: NodeNumber) -> Option<&NodeRecord> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node's name for messages.
    pub(crate) fn node_name(&self, id: NodeNumber) -> String {
        self.node(id).map_or_else(|| format!("node {}", id.0), |node| node.name.clone())
    }

    /// The node with that name.
    ///
    /// # Errors
    /// `Invalid`, naming the nodes there are.
    pub(crate) fn node_named(&self, name: &str) -> Result<&NodeRecord> {
        let found = self.nodes.iter().find(|node| node.name == name);
        let names = || self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>();
        found.map_or_else(
            || invalid(format!("no node '{name}'; there are {}", names().join(", "))),
            Ok,
        )
    }

    /// The NSD with that number.
    pub(crate) fn nsd(&self, id: NsdId) -> Option<&NsdRecord> {
        self.nsds.iter().find(|nsd| nsd.id == id)
    }

    /// The file system with that number.
    pub(crate) fn fs(&self, id: FsId) -> Option<&FsRecord> {
        self.file_systems.iter().find(|fs| fs.id == id)
    }

    /// The file system with that name.
    ///
    /// # Errors
    /// `Invalid`, naming the file systems there are.
    pub(crate) fn fs_named(&self, name: &str) -> Result<&FsRecord> {
        let found = self.file_systems.iter().find(|fs| fs.name == name);
        let names = || self.file_systems.iter().map(|fs| fs.name.as_str()).collect::<Vec<_>>();
        match (found, self.file_systems.is_empty()) {
            (Some(fs), _) => Ok(fs),
            (None, true) => {
                invalid(format!("no file system '{name}': `strake fs create` makes one"))
            }
            (None, false) => {
                invalid(format!("no file system '{name}'; there are {}", names().join(", ")))
            }
        }
    }

    /// Which nodes have a replica of a file system's metadata, and on which NSD: each node of the
    /// quorum that has an NSD of it for metadata, on the first one that the file system got. An NSD
    /// that comes later takes the place of none, and one that lost it ([`Change::KeepNoMetadata`])
    /// does not get it back.
    pub(crate) fn metadata_places(&self, nsds: &[NsdId]) -> Vec<(NodeNumber, NsdId)> {
        let of_node = |node: &NodeRecord| {
            let is_place = |nsd: &&NsdRecord| {
                self.home_of(nsd) == node.id && nsd.usage == Usage::DataAndMetadata
            };
            let first = nsds.iter().filter_map(|nsd| self.nsd(*nsd)).find(is_place)?;
            Some((node.id, first.id))
        };
        self.quorum().filter_map(of_node).collect()
    }

    /// The NSDs that a node serves.
    pub(crate) fn nsds_of(&self, node: NodeNumber) -> impl Iterator<Item = &NsdRecord> {
        self.nsds.iter().filter(move |nsd| nsd.node == node)
    }

    /// The failure group of an NSD for which none was named.
    pub(crate) fn group_of(node: NodeNumber) -> u32 {
        NODE_GROUPS.saturating_add(node.0)
    }

    /// All numbers of NSDs that were given so far.
    pub(super) fn numbers_of_nsds(&self) -> impl Iterator<Item = NsdId> + use<> {
        (1..=self.last.1).map(NsdId)
    }

    /// The nodes that were deleted.
    pub(crate) fn deleted_nodes(&self) -> impl Iterator<Item = NodeNumber> {
        (1..=self.last.0).map(NodeNumber).filter(|id| self.node(*id).is_none())
    }

    /// The number that the next file system will have.
    pub(crate) fn next_fs(&self) -> FsId {
        FsId(self.last.2 + 1)
    }

    /// Makes one change, or none.
    ///
    /// # Errors
    /// `Invalid` or `Busy`; the message says why the change is refused.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<()> {
        let mut next = self.clone();
        match change {
            Change::Invite { name, roles } => next.invite(name, *roles)?,
            Change::Join { name, address } => next.join(name, *address)?,
            Change::DeleteNode { node } => next.delete_node(*node)?,
            Change::AddNsds { nsds } => nsds.iter().try_for_each(|nsd| next.add_nsd(nsd))?,
            Change::AddFs { name, code, block_size, mount, nsds } => {
                next.add_fs(name, *code, *block_size, mount.clone(), nsds)?;
            }
            Change::DeleteFs { fs } => next.delete_fs(*fs)?,
            Change::DeleteNsds { nsds } => nsds.iter().try_for_each(|nsd| next.delete_nsd(*nsd))?,
            Change::AttachNsd { fs, nsd } => next.attach_nsd(*fs, *nsd)?,
            Change::DetachNsd { fs, nsd } => next.detach_nsd(*fs, *nsd)?,
            Change::KeepNoMetadata { nsd } => {
                let Some(found) = next.nsds.iter_mut().find(|it| it.id == *nsd) else {
                    return invalid(format!("no NSD {nsd}"));
                };
                found.usage = Usage::DataOnly;
            }
            Change::Level { level } if *level < next.level => {
                let now = next.level;
                return invalid(format!("the cluster has feature level {now}, which never falls"));
            }
            Change::Level { level } => next.level = *level,
            Change::ShareNsd { nsd, servers } => next.share_nsd(*nsd, servers)?,
            Change::ServeNsd { nsd, node, after } => next.serve_nsd(*nsd, *node, *after)?,
            Change::Issue { node } => next.add_issuer(*node)?,
            Change::GoOn { fs, origin, lost } => next.go_on(*fs, *origin, lost)?,
            Change::Mount { fs, node } => next.add_mount(*fs, *node)?,
            Change::Unmount { fs, node } => {
                next.fs_mut(*fs)?.mounts.retain(|mount| mount.node != *node);
            }
        }
        next.bring_home();
        next.revision += 1;
        next.check().map_err(|fault| Error::new(ErrorKind::Internal, fault))?;
        *self = next;
        Ok(())
    }

    fn invite(&mut self, name: &str, roles: Roles) -> Result<()> {
        name.parse::<NodeName>()?;
        if let Some(at) = self.nodes.iter().position(|node| node.name == name) {
            let id = self.nodes[at].id;
            let has_mount = self.file_systems.iter().any(|fs| fs.mount_on(id).is_some());
            if has_mount || self.nsds_of(id).next().is_some() {
                return invalid(format!("{name} is a node of this cluster already"));
            }
            self.remove_issuer(id)?;
            // It may have kept the log under its number, and comes back without it.
            self.nodes.remove(at);
        }
        self.last.0 += 1;
        self.nodes.push(NodeRecord {
            id: NodeNumber(self.last.0),
            name: name.to_owned(),
            address: None,
            roles,
        });
        Ok(())
    }

    fn join(&mut self, name: &str, address: SocketAddr) -> Result<()> {
        let is_other = |node: &&NodeRecord| node.name != name && node.address == Some(address);
        if let Some(other) = self.nodes.iter().find(is_other) {
            return invalid(format!(
                "{} is at {address} already: name another --address",
                other.name
            ));
        }
        let Some(node) = self.nodes.iter_mut().find(|node| node.name == name) else {
            return invalid(format!("{name} is no node of this cluster any more"));
        };
        if node.address.is_some_and(|before| before != address) {
            return invalid(format!("{name} has joined at another address already"));
        }
        node.address = Some(address);
        Ok(())
    }

    fn delete_node(&mut self, id: NodeNumber) -> Result<()> {
        let name = self.node_name(id);
        let used: Vec<&str> = self.nsds_of(id).map(|nsd| nsd.name.as_str()).collect();
        if !used.is_empty() {
            let detail =
                format!("{name} serves {}: a node with NSDs is not deleted", used.join(", "));
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        if let Some(fs) = self.file_systems.iter().find(|fs| fs.mount_on(id).is_some()) {
            let detail =
                format!("{name} has {} mounted: `strake fs umount {}` first", fs.name, fs.name);
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        if let Some(shared) = self.shared.iter().find(|shared| shared.place_of(id).is_some())
            && let Some(nsd) = self.nsd(shared.nsd)
        {
            let detail = format!("{name} is a server of {}: delete that NSD first", nsd.name);
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        self.remove_issuer(id)?;
        self.nodes.retain(|node| node.id != id);
        Ok(())
    }

    fn add_nsd(&mut self, new: &NewNsd) -> Result<()> {
        let Some(node) = self.node(new.node) else {
            return invalid(format!("no node {}", new.node.0));
        };
        let node_name = node.name.clone();
        if !node.roles.has(Role::Server) || node.address.is_none() {
            return invalid(format!(
                "{node_name} cannot serve NSDs: it has not joined, or lacks the role server"
            ));
        }
        self.last.1 += 1;
        let id = NsdId(self.last.1);
        let name = new.name.clone().unwrap_or_else(|| format!("nsd{id}"));
        check_name("NSD name", &name)?;
        if self.nsds.iter().any(|nsd| nsd.name == name) {
            return invalid(format!("there is an NSD {name} already: choose another name"));
        }
        let same = |nsd: &&NsdRecord| nsd.node == new.node && nsd.device == new.device;
        if let Some(nsd) = self.nsds.iter().find(same) {
            return invalid(format!("{} on {node_name} is NSD {}", new.device.display(), nsd.name));
        }
        self.nsds.push(NsdRecord {
            id,
            name,
            node: new.node,
            device: new.device.clone(),
            usage: new.usage,
            failure_group: new.failure_group.unwrap_or_else(|| Cluster::group_of(new.node)),
            pool: new.pool.clone(),
            fs: None,
        });
        Ok(())
    }

    fn add_fs(
        &mut self,
        name: &str,
        code: Code,
        block_size: u32,
        mount: PathBuf,
        nsds: &[NsdId],
    ) -> Result<()> {
        check_name("file system name", name)?;
        if self.file_systems.iter().any(|fs| fs.name == name) {
            return invalid(format!("there is a file system {name} already"));
        }
        if let Some(fs) = self.file_systems.iter().find(|fs| fs.mount == mount) {
            return invalid(format!("{} is mounted at {} already", fs.name, mount.display()));
        }
        let id = self.next_fs();
        self.last.2 = id.0;
        for nsd in nsds {
            let Some(record) = self.nsds.iter_mut().find(|record| record.id == *nsd) else {
                return invalid(format!("no NSD {nsd}"));
            };
            if record.fs.replace(id).is_some() {
                return invalid(format!("NSD {} belongs to a file system already", record.name));
            }
        }
        let nsds = nsds.to_vec();
        let name = name.to_owned();
        let mounts = Vec::new();
        self.file_systems.push(FsRecord { id, name, code, block_size, mount, nsds, mounts });
        Ok(())
    }

    fn delete_fs(&mut self, id: FsId) -> Result<()> {
        let fs = self.fs_mut(id)?;
        let (name, mounts) = (fs.name.clone(), fs.mounts.clone());
        if !mounts.is_empty() {
            let nodes: Vec<String> =
                mounts.iter().map(|mount| self.node_name(mount.node)).collect();
            let detail = format!(
                "{name} is mounted on {}: `strake fs umount {name}` first",
                nodes.join(", ")
            );
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        self.file_systems.retain(|fs| fs.id != id);
        self.metadata_logs.retain(|known| known.fs != id);
        for nsd in self.nsds.iter_mut().filter(|nsd| nsd.fs == Some(id)) {
            nsd.fs = None;
        }
        Ok(())
    }

    fn delete_nsd(&mut self, id: NsdId) -> Result<()> {
        let Some(nsd) = self.nsd(id) else { return invalid(format!("no NSD {id}")) };
        if let Some(fs) = nsd.fs.and_then(|fs| self.fs(fs)) {
            let detail = format!("NSD {} belongs to file system {}", nsd.name, fs.name);
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        self.nsds.retain(|nsd| nsd.id != id);
        self.shared.retain(|shared| shared.nsd != id);
        Ok(())
    }

    fn attach_nsd(&mut self, fs: FsId, nsd: NsdId) -> Result<()> {
        self.fs_mut(fs)?;
        let Some(record) = self.nsds.iter_mut().find(|record| record.id == nsd) else {
            return invalid(format!("no NSD {nsd}"));
        };
        if record.fs.replace(fs).is_some() {
            return invalid(format!("NSD {} belongs to a file system already", record.name));
        }
        self.fs_mut(fs)?.nsds.push(nsd);
        Ok(())
    }

    fn detach_nsd(&mut self, fs: FsId, nsd: NsdId) -> Result<()> {
        self.fs_mut(fs)?.nsds.retain(|own| *own != nsd);
        for record in self.nsds.iter_mut().filter(|it| it.id == nsd && it.fs == Some(fs)) {
            record.fs = None;
        }
        Ok(())
    }

    pub(super) fn fs_mut(&mut self, id: FsId) -> Result<&mut FsRecord> {
        let found = self.file_systems.iter_mut().find(|fs| fs.id == id);
        found.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("no file system {id}")))
    }

    fn add_mount(&mut self, fs: FsId, node: NodeNumber) -> Result<()> {
        match self.node(node) {
            None => return invalid("the node that mounts is no node of the cluster".into()),
            Some(node) if !node.roles.has(Role::Client) => {
                return invalid(format!("{} lacks the role client: it mounts nothing", node.name));
            }
            Some(_) => {}
        }
        let (life, name) = (self.last_life() + 1, self.node_name(node));
        let fs = self.fs_mut(fs)?;
        if fs.mount_on(node).is_some() {
            let detail = format!("{name} has {} mounted already", fs.name);
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        fs.mounts.push(MountRecord { node, life });
        Ok(())
    }

    /// Verifies the invariants. A fault is a sentence.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
            let mut seen = BTreeSet::new();
            let mut names = names;
            match names.find(|name| !seen.insert(*name)) {
                Some(name) => Err(format!("two {what} have the name {name}")),
                None => Ok(()),
            }
        }
        fn rising(what: &str, last: u32, ids: impl Iterator<Item = u32>) -> Result<(), String> {
            let mut before = 0;
            for id in ids {
                if id <= before || id > last {
                    return Err(format!("{what} {id} is out of order"));
                }
                before = id;
            }
            Ok(())
        }
        use std::result::Result;
        let (node, nsd, fs) = self.last;
        rising("node", node, self.nodes.iter().map(|node| node.id.0))?;
        rising("NSD", nsd, self.nsds.iter().map(|nsd| nsd.id.0))?;
        rising("file system", fs, self.file_systems.iter().map(|fs| fs.id.0))?;
        unique("nodes", self.nodes.iter().map(|node| &node.name))?;
        unique("NSDs", self.nsds.iter().map(|nsd| &nsd.name))?;
        unique("file systems", self.file_systems.iter().map(|fs| &fs.name))?;
        if let Some(node) = self.nodes.iter().find(|node| node.name.parse::<NodeName>().is_err()) {
            return Err(format!("{:?} is no name of a node", node.name));
        }
        self.check_issuers()?;
        for nsd in &self.nsds {
            if self.node(nsd.node).is_none_or(|node| !node.roles.has(Role::Server)) {
                return Err(format!("NSD {} is on no node that serves", nsd.name));
            }
            let owner = nsd.fs.map(|fs| self.fs(fs));
            if owner.is_some_and(|fs| fs.is_none_or(|fs| !fs.nsds.contains(&nsd.id))) {
                return Err(format!("NSD {} belongs to a file system that lacks it", nsd.name));
            }
        }
        self.check_shared()?;
        self.check_metadata_logs()?;
        for fs in &self.file_systems {
            let mut seen = BTreeSet::new();
            let own = |nsd: &NsdId| self.nsd(*nsd).is_some_and(|nsd| nsd.fs == Some(fs.id));
            if !fs.nsds.iter().all(|nsd| own(nsd) && seen.insert(*nsd)) {
                return Err(format!("file system {} names an NSD that is not its own", fs.name));
            }
            let mut seen = BTreeSet::new();
            for mount in &fs.mounts {
                let node = self.node(mount.node);
                if node.is_none_or(|node| !node.roles.has(Role::Client)) {
                    return Err(format!("file system {} is mounted on no client", fs.name));
                }
                if !seen.insert(mount.node) || mount.life > self.last_life() {
                    return Err(format!("file system {} has a mount from nowhere", fs.name));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "records_test.rs"]
pub(in crate::cluster) mod records_test;
