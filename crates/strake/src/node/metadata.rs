//! What a node gives its parts of the metadata (`strake-crew`), and what it says of them.

use super::create;
use super::messages::MetadataState;
use super::peer::introduce;
use super::replicas::{self, Find};
use super::server::Node;
use crate::assemble::give_root_directory;
use crate::backend::member::{Member, PartsFor};
use crate::cluster::{Cluster, FsRecord, NodeNumber};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_crew::metadata::{self, Peers, Ways};
use strake_crew::{Introduce, Lead, MetadataParts};
use strake_env::{Clock, Links, RealClock};
use strake_net::{ReplicaPort, WaitNames};
use strake_proto::meta::Configuration;
use strake_proto::{Error, ErrorKind, FsId, NsdId, Result};
use strake_replica::Replica;
use strake_replica::core::{ChangeRefusal, RoleName};
use strake_replica::replica::Failure;
use strake_replica::types::ReplicaId;
use tracing::warn;

/// The number of the replica on an NSD. Numbers of NSDs are never given twice, and an NSD that has
/// lost its place never gets it back ([`Cluster::metadata_places`]), so no replica comes back
/// without its log.
pub(super) fn replica_on(nsd: NsdId) -> ReplicaId {
    ReplicaId(nsd.0)
}

/// The node with the replica on an NSD.
fn node_of(cluster: &Cluster, replica: ReplicaId) -> Option<NodeNumber> {
    cluster.nsd(NsdId(replica.0)).map(|nsd| cluster.home_of(nsd))
}

impl Node {
    /// The NSD with this node's part of the metadata of a file system, if it has one. While another
    /// node serves that NSD, there is none.
    pub(super) fn metadata_place(&self, cluster: &Cluster, fs: &FsRecord) -> Option<NsdId> {
        let mut places = cluster.metadata_places(&fs.nsds).into_iter();
        let (_, nsd) = places.find(|(node, _)| *node == self.file.id)?;
        cluster.nsd(nsd).filter(|record| record.node == self.file.id).map(|record| record.id)
    }

    /// What this node needs for its part of the metadata of a file system, if it has one.
    pub(super) fn metadata_of(
        self: &Arc<Node>,
        cluster: &Cluster,
        fs: &FsRecord,
    ) -> Option<PartsFor> {
        let nsd = self.metadata_place(cluster, fs)?;
        let weak = || Arc::downgrade(self);
        let (of_find, of_begin) = (weak(), weak());
        let id = fs.id;
        let peers = OtherNodes {
            fs: id,
            node: weak(),
            find: Arc::new(move |replica| {
                let node = of_find.upgrade()?;
                let number = node_of(&node.cluster.lock(), replica)?;
                node.place(number)
            }),
            own: replica_on(nsd),
            introduce: introduce(&self.own),
            waits: Arc::clone(&self.observe) as _,
            links: Arc::clone(&self.observe.links),
        };
        let (of_cluster, log, replica) = (cluster.id, cluster.metadata_log(id), replica_on(nsd));
        let (bell, lost) = (Arc::clone(&self.ended), cluster.lost_before_log(id));
        Some(Box::new(move |container_of| MetadataParts {
            fs: id,
            nsd,
            cluster: of_cluster,
            log,
            lost,
            replica,
            container_of,
            peers: Box::new(peers),
            furnish: give_root_directory,
            begin: Box::new(move || of_begin.upgrade().ok_or(ErrorKind::Unreachable)?.begin(id)),
            bell,
            earlier: None,
        }))
    }

    /// Has this node's part of the metadata be where the records say, and of the log in force.
    pub(super) fn follow_place(
        self: &Arc<Node>,
        cluster: &Cluster,
        fs: &FsRecord,
        member: &mut Member,
    ) {
        let log = cluster.metadata_log(fs.id);
        let place = self.metadata_place(cluster, fs).map(|nsd| (nsd, log));
        if place == member.metadata_place() {
            return;
        }
        let parts = self.metadata_of(cluster, fs);
        if let Err(error) = member.begin_metadata(parts, &self.door, &self.observe) {
            warn!(target: "node", "the metadata of {}: {error}", fs.name);
        }
    }

    /// Makes an NSD of this node ready for a replica that joins. It is in use, and what it has of
    /// data stays. A leader tells the replica all else.
    ///
    /// # Errors
    /// `Invalid` if it has the replica already; the disk's.
    pub(super) fn prepare_metadata(&self, fs: FsId, nsd: NsdId) -> Result<()> {
        let served = self.served.lock();
        let cluster = self.cluster();
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        if self.metadata_place(&cluster, record) == Some(nsd) {
            let detail = format!("NSD {nsd} holds a copy of the metadata");
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let container = served.get(&fs).and_then(|member| member.container(nsd));
        let container = container.ok_or_else(|| {
            let detail = format!("NSD {nsd} on {} cannot be used", self.file.node);
            Error::new(ErrorKind::Unreachable, detail)
        })?;
        let log = cluster.metadata_log(fs);
        let identity = metadata::identity(cluster.id, fs, log, replica_on(nsd));
        metadata::format(&container, identity, &BTreeSet::new())
    }

    /// Whether the replica on an NSD is, or may be, a member of the group that keeps the metadata.
    pub(super) fn keeps_metadata(&self, fs: FsId, nsd: NsdId) -> bool {
        let replica = self.served.lock().get(&fs).and_then(Member::replica);
        // Nothing is known without one, so nothing may be taken away.
        replica.is_none_or(|replica| replica.status().membership.all().contains(&replica_on(nsd)))
    }

    /// Refuses to take the replica on an NSD away while the others are no majority.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn check_goes_on_without(&self, fs: FsId, nsd: NsdId) -> Result<()> {
        let replica = self.served.lock().get(&fs).and_then(Member::replica);
        let members = replica.ok_or(ErrorKind::Unreachable)?.status().members;
        let voters: Vec<_> = members.iter().filter(|member| member.is_voter).collect();
        let others = voters.iter().filter(|it| it.id != replica_on(nsd) && it.is_heard).count();
        if others > voters.len() / 2 {
            return Ok(());
        }
        let detail = format!(
            "NSD {nsd} holds a copy of the metadata, and {others} of {} that vote on it answer \
             besides: a majority must. `strake node state` says which node is missing; with fewer \
             than three nodes of the quorum one alone votes",
            voters.len()
        );
        Err(Error::new(ErrorKind::Busy, detail))
    }

    /// What a crew of a file system begins with. The records are the newest ones: mounts that an
    /// earlier leader has granted are in them.
    fn begin(self: &Arc<Node>, fs: FsId) -> Result<(Configuration, Lead)> {
        let cluster = self.newest_records()?;
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        let nsds: Vec<_> =
            record.nsds.iter().filter_map(|nsd| cluster.nsd(*nsd)).cloned().collect();
        let configuration = Configuration {
            cluster: cluster.id,
            name: record.name.clone(),
            code: record.code,
            block_size: record.block_size,
            pool: create::pool(&nsds),
            created: RealClock.wall(),
            settings: Vec::new(),
            incompat_flags: 0,
            compat_flags: 0,
        };
        Ok((configuration, self.lead(&cluster, record)?))
    }

    /// How this node's replicas of metadata are.
    pub(super) fn metadata_states(&self, cluster: &Cluster) -> Vec<MetadataState> {
        let served = self.served.lock();
        let state = |fs: &FsRecord| {
            let replica = served.get(&fs.id)?.replica()?;
            let replica = replicas::state(&replica, &|id| node_of(cluster, id));
            Some(MetadataState { fs: fs.name.clone(), serves: self.serves(fs.id), replica })
        };
        cluster.file_systems.iter().filter_map(state).collect()
    }

    /// The mounted file systems that nobody can serve without this node, as far as it knows.
    pub(super) fn needed_for(&self, cluster: &Cluster) -> Vec<String> {
        let states = self.metadata_states(cluster);
        let is_mounted = |state: &&MetadataState| {
            cluster.fs_named(&state.fs).is_ok_and(|fs| !fs.mounts.is_empty())
        };
        let is_needed = |state: &&MetadataState| {
            let voters = state.replica.members.iter().filter(|member| member.votes);
            let own = self.file.id;
            let others = voters.clone().filter(|it| it.is_heard && it.node != own).count();
            state.serves && others <= voters.count() / 2
        };
        let needed = states.iter().filter(is_mounted).filter(is_needed);
        needed.map(|state| state.fs.clone()).collect()
    }
}

/// The other nodes, for one node's replica.
struct OtherNodes {
    fs: FsId,
    node: Weak<Node>,
    own: ReplicaId,
    find: Find,
    introduce: Introduce,
    waits: Arc<dyn WaitNames>,
    links: Arc<Links>,
}

impl Peers for OtherNodes {
    fn ways(&self) -> Arc<dyn Ways> {
        let (find, introduce) = (Arc::clone(&self.find), Arc::clone(&self.introduce));
        let (waits, links) = (Arc::clone(&self.waits), Some(Arc::clone(&self.links)));
        replicas::Ways::new(Some(self.fs), find, introduce, waits, links)
    }

    fn inbox(&self, replica: &Arc<Replica>) -> Arc<dyn ReplicaPort> {
        replicas::inbox(replica, Arc::clone(&self.find))
    }

    fn tend(&self, replica: &Replica, limit: Duration) -> std::result::Result<(), Box<Failure>> {
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        if replica.status().role == RoleName::Asking {
            let gone = node.cluster().nsds_without_copy().map(replica_on).collect();
            replica.give_up_on(&gone);
        }
        let wanted = wanted(&node, self.fs);
        let kept = format!("the metadata of file system {} is kept by NSDs", self.fs);
        replicas::tend(replica, self.own, &wanted, &kept, limit)?;
        if replica.status().role != RoleName::Leader {
            return Ok(());
        }
        match replicas::raise(replica, node.cluster().level, limit) {
            // A member has not said yet. It is tried again.
            Err(Failure::NotChanged(ChangeRefusal::Unsupported(_))) => Ok(()),
            raised => raised.map_err(Box::new),
        }
    }
}

/// The replicas that there are to be of a file system's metadata.
fn wanted(node: &Node, fs: FsId) -> BTreeSet<ReplicaId> {
    let cluster = node.cluster();
    let nsds = cluster.fs(fs).map(|fs| fs.nsds.clone()).unwrap_or_default();
    let places = cluster.metadata_places(&nsds).into_iter();
    places.map(|(_, nsd)| replica_on(nsd)).collect()
}
