//! The disks and the metadata of a mount whose file system belongs to a cluster.
//!
//! The leader says where they are, and notes that this node has the file system mounted. From then
//! on the mount's process talks to the nodes itself, so its own node's server process may end and
//! start again without it.
//!
//! **A node that is gone.** The metadata is needed for everything, so calls wait until the leader's
//! process is back, as they do with `rpc=socket`; the leader's NSDs come back with it. The NSDs of
//! another node are given up after moments: other nodes hold the data too, and the array goes on
//! without them until they return.

use super::{RESTART_WAIT_MAX, call_limit};
use crate::data_dir::NodeConfig;
use crate::node::{Grant, LeaderRequest, NodeDir, Peer, Place};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use strake_env::RealClock;
use strake_env::sync::Mutex;
use strake_net::{
    Endpoint, Introduction, MetaClientSession, NsdClientSession, ServerProcess, Service,
    SessionEnv, SessionLimits,
};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{NsdId, Result};
use tracing::warn;

/// See the head of this file.
pub(crate) struct ClusterBackend {
    leader: Peer,
    grant: Grant,
    meta: Arc<dyn MetaPort>,
    /// What sessions with the leader's NSDs need; others do without the process.
    env: SessionEnv,
    limits: SessionLimits,
    /// Ways to the NSDs, made when first asked for.
    sessions: Mutex<BTreeMap<NsdId, Arc<dyn NsdPort>>>,
}

impl ClusterBackend {
    /// Asks the leader of the node at `node` for the file system that `config` names.
    ///
    /// # Errors
    /// `Busy` if another node has it mounted, `Unreachable` if the leader does not answer.
    pub(super) fn open(
        node: &Path,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<ClusterBackend> {
        let dir = NodeDir::at(node)?;
        let file = dir.read()?;
        let leader = Peer::leader(&dir)?;
        let request = LeaderRequest::OpenMount { fs: config.name.clone(), node: file.id };
        let grant: Grant = leader.ask_leader(&request)?;
        let introduce = |place: &Place| Introduction::node(leader.own(), &place.node);
        let env = SessionEnv {
            introduction: introduce(&grant.leader),
            clock: RealClock::shared(),
            waits: Arc::clone(observe) as _,
            process: None,
        };
        let endpoint = Endpoint::Tcp(grant.leader.address);
        let service = Service::MetaOf(grant.fs.id);
        let limits = SessionLimits {
            absent: RESTART_WAIT_MAX,
            broken: RESTART_WAIT_MAX,
            ..SessionLimits::META
        };
        let meta = MetaClientSession::of(endpoint.clone(), service, limits, env.clone());
        let process = ServerProcess::new(
            (endpoint, service),
            env.introduction.clone(),
            Arc::clone(&env.clock),
            Arc::clone(&env.waits),
            RESTART_WAIT_MAX,
        );
        let env = SessionEnv { process: Some(Arc::new(process)), ..env };
        let limits = SessionLimits { call: call_limit(config), ..SessionLimits::NSD };
        let meta = Arc::new(meta) as Arc<dyn MetaPort>;
        Ok(ClusterBackend { leader, grant, meta, env, limits, sessions: Mutex::default() })
    }

    /// The way to an NSD; `None` if the file system has no such NSD.
    pub(super) fn port(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        let place = &self.grant.nsds.iter().find(|place| place.nsd == nsd)?.place;
        let connect = || {
            let introduction = Introduction::node(self.leader.own(), &place.node);
            let process = self.env.process.clone().filter(|_| *place == self.grant.leader);
            let env = SessionEnv { introduction, process, ..self.env.clone() };
            let endpoint = Endpoint::Tcp(place.address);
            let session = NsdClientSession::new(endpoint, nsd, self.limits, env);
            Arc::new(session) as Arc<dyn NsdPort>
        };
        Some(Arc::clone(self.sessions.lock().entry(nsd).or_insert_with(connect)))
    }

    /// The way to the metadata.
    pub(super) fn meta(&self) -> Arc<dyn MetaPort> {
        Arc::clone(&self.meta)
    }

    /// The NSDs that hold the metadata; none if the leader does not say.
    pub(super) fn metadata_holders(&self) -> Vec<NsdId> {
        let request = LeaderRequest::Holders { fs: self.grant.fs.id };
        self.leader.ask_leader(&request).unwrap_or_default()
    }

    /// Tells the leader that this node does not have the file system mounted any more.
    pub(super) fn finish(&self) -> Result<()> {
        let request = LeaderRequest::CloseMount { fs: self.grant.fs.id, node: self.grant.node };
        if let Err(error) = self.leader.ask_leader::<()>(&request) {
            // The leader asks this node when it matters, and learns that no mount is there.
            warn!(target: "daemon", "the leader was not told of the end of this mount: {error}");
        }
        Ok(())
    }
}
