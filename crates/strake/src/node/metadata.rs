//! What a node gives its parts of the metadata (`strake-crew`), and what it says of them.

use super::create;
use super::messages::MetadataState;
use super::peer::introduce;
use super::replicas::{self, Find, NumberOf};
use super::server::Node;
use crate::assemble::give_root_directory;
use crate::backend::member::PartsFor;
use crate::cluster::{Cluster, FsRecord};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_crew::metadata::{self, Peers, Ways};
use strake_crew::{Introduce, Lead, MetadataParts};
use strake_env::{Clock, Links, RealClock};
use strake_net::{ReplicaPort, WaitNames};
use strake_proto::meta::Configuration;
use strake_proto::{ErrorKind, FsId, Result};
use strake_replica::Replica;
use strake_replica::replica::Failure;
use strake_replica::types::ReplicaId;

impl Node {
    /// What this node needs for its part of the metadata of a file system, if it has one.
    pub(super) fn metadata_of(
        self: &Arc<Node>,
        cluster: &Cluster,
        fs: &FsRecord,
    ) -> Option<PartsFor> {
        let places = cluster.metadata_places(&fs.nsds);
        let (_, nsd) = *places.iter().find(|(node, _)| *node == self.file.id)?;
        let weak = || Arc::downgrade(self);
        let (of_find, of_name, of_begin) = (weak(), weak(), weak());
        let id = fs.id;
        let peers = OtherNodes {
            fs: id,
            node: weak(),
            find: Arc::new(move |node| of_find.upgrade()?.place(node)),
            number_of: Arc::new(move |name| {
                Some(of_name.upgrade()?.cluster().node_named(name).ok()?.id)
            }),
            introduce: introduce(&self.own),
            waits: Arc::clone(&self.observe) as _,
            links: Arc::clone(&self.observe.links),
        };
        let identity = metadata::identity(cluster.id, id, ReplicaId(self.file.id.0));
        let bell = Arc::clone(&self.ended);
        Some(Box::new(move |container_of| MetadataParts {
            fs: id,
            nsd,
            identity,
            container_of,
            peers: Box::new(peers),
            furnish: give_root_directory,
            begin: Box::new(move || of_begin.upgrade().ok_or(ErrorKind::Unreachable)?.begin(id)),
            bell,
        }))
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
    find: Find,
    number_of: NumberOf,
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
        replicas::inbox(replica, Arc::clone(&self.number_of))
    }

    fn tend(&self, replica: &Replica, limit: Duration) -> std::result::Result<(), Box<Failure>> {
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        let (own, wanted) = (ReplicaId(node.file.id.0), wanted(&node, self.fs));
        let kept = format!("the metadata of file system {} is kept", self.fs);
        replicas::tend(replica, own, &wanted, &kept, limit)
    }
}

/// The nodes that are to have a replica of a file system's metadata.
fn wanted(node: &Node, fs: FsId) -> BTreeSet<ReplicaId> {
    let cluster = node.cluster();
    let nsds = cluster.fs(fs).map(|fs| fs.nsds.clone()).unwrap_or_default();
    let places = cluster.metadata_places(&nsds).into_iter();
    places.map(|(node, _)| ReplicaId(node.0)).collect()
}
