//! The disks and the metadata of a mount whose file system belongs to a cluster.
//!
//! The node that serves the file system, its leader, says where they are, and notes that this node
//! has the file system mounted. From then on the mount's process talks to the nodes itself, so its
//! own node's server process may end and start again without it. What the mount may use beside
//! others it learns from the leader ([`MountWays`]). Each connection to the leader begins with a
//! search for the node that leads ([`Search`]).
//!
//! **A node that is gone.** The metadata is needed for everything, so calls wait until a node leads
//! again, as they do with `rpc=socket`. NSDs of the node that led wait for that too: they come back
//! with it if its process was started anew. The NSDs of another node are given up after moments:
//! other nodes hold the data too, and the array goes on without them until they return.

use super::{RESTART_WAIT_MAX, call_limit};
use crate::background::Order;
use crate::cluster::{Cluster, NodeNumber};
use crate::data_dir::{NodeConfig, NsdConfig};
use crate::node::{
    Grant, LeaderRequest, NodeDir, Peer, Request, StripsChecked, ask_own, disks_of_mount, search,
    serving_peer,
};
use crate::rebalance::RebalanceReport;
use crate::scrub::ScrubReport;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use strake_client::tokens::Tokens;
use strake_crew::{Locate, MountLimits, MountWays, Search};
use strake_env::{Clock, RealClock};
use strake_net::{Introduction, NodeCredentials, Pings, SessionEnv, SessionLimits};
use strake_observe::{Observe, TokensView};
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{ClientId, ErrorKind, NodeName, NsdId, Result, feature};
use tracing::warn;

/// How often a node asks to mount if another request of it came in between.
const OPEN_ATTEMPTS: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// See the head of this file.
pub(crate) struct ClusterBackend {
    dir: NodeDir,
    own_name: String,
    /// Finds the leader.
    search: Arc<Search>,
    grant: Grant,
    /// The credentials of this node.
    own: Arc<NodeCredentials>,
    /// Metadata, tokens and NSDs.
    ways: MountWays,
    _pings: Pings,
}

/// Asks to mount on this node, whose mount's lock the caller has.
///
/// # Errors
/// `Unreachable` if no node serves the file system; why it is refused.
fn ask_to_mount(dir: &NodeDir, fs: &str, node: NodeNumber, observe: &Observe) -> Result<Grant> {
    for attempt in 1.. {
        let records = Request::Leader(LeaderRequest::Records { newer_than: 0 });
        let cluster: Option<Cluster> = ask_own(dir, &records)?;
        let record = cluster.as_ref().map(|cluster| cluster.fs_named(fs)).transpose()?;
        let after = record.map(|record| record.last_life_on(node));
        let request = LeaderRequest::OpenMount {
            fs: fs.to_owned(),
            node,
            after,
            understands: feature::understood(),
        };
        match ask_own(dir, &Request::Leader(request)) {
            // A late request of a process that was killed came in between, or the node that serves
            // the file system does not have the newest records yet.
            Err(error) if error.kind() == ErrorKind::Stale && attempt < OPEN_ATTEMPTS => {
                let _wait = observe.waiters.enter("other requests to mount here", fs.to_owned());
                RealClock.sleep(OPEN_PAUSE);
            }
            answer => return answer,
        }
    }
    unreachable!("the last attempt returns")
}

impl ClusterBackend {
    /// Asks the leader of the node at `node` for the file system that `config` names.
    ///
    /// # Errors
    /// `Unreachable` if the leader does not answer, or lacks NSDs.
    pub(super) fn open(
        node: &Path,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<ClusterBackend> {
        let dir = NodeDir::at(node)?;
        let file = dir.read()?;
        let grant = ask_to_mount(&dir, &config.name, file.id, observe)?;
        let (own, fs) = (dir.mount_credentials()?, grant.fs.id);
        let of_search = dir.clone();
        let search = search(&own, fs, move || of_search.records(), Arc::clone(observe) as _);
        let env = SessionEnv {
            // Each session gets that of its node.
            introduction: Introduction::node(&own, &grant.leader.node),
            clock: RealClock::shared(),
            waits: Arc::clone(observe) as _,
            process: None,
            links: Some(Arc::clone(&observe.links)),
        };
        let limits = MountLimits {
            leader_wait_max: RESTART_WAIT_MAX,
            nsd: SessionLimits { call: call_limit(config), ..SessionLimits::NSD },
        };
        let _pings = Pings::start(&observe.links)?;
        let id = (fs, grant.mount.client());
        let of_locate = dir.clone();
        let locate: Locate = Arc::new(move |nsd| of_locate.records().ok()?.place_of_nsd(nsd));
        let places = (grant.nsds.clone(), locate);
        let ways = MountWays::open(&search, id, places, limits, &env, observe)?;
        Ok(ClusterBackend { dir, own_name: file.node, own, search, grant, ways, _pings })
    }

    /// The node that leads, to be asked something.
    fn leader(&self) -> Result<Peer> {
        serving_peer(&self.own, &self.search)
    }

    /// The way to an NSD; `None` if the file system has no such NSD. The leader is asked for an NSD
    /// that the file system has got since this mount began.
    pub(crate) fn port(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        if !self.ways.nsds().knows(nsd) {
            let request = LeaderRequest::Places { fs: self.grant.fs.id };
            let places = self.leader().and_then(|leader| leader.ask_leader(&request));
            match places {
                Ok(places) => self.ways.nsds().learn(places),
                Err(error) => warn!(target: "disks", "where NSD {nsd} is, is not known: {error}"),
            }
        }
        self.ways.port(nsd)
    }

    /// The way to the metadata.
    pub(super) fn meta(&self) -> Arc<dyn MetaPort> {
        Arc::clone(&self.ways.meta)
    }

    /// The name under which the file system knows this mount, and what the mount holds.
    pub(super) fn client(&self) -> (ClientId, Arc<Tokens>) {
        (self.grant.mount.client(), Arc::clone(&self.ways.tokens))
    }

    /// The nodes that this mount only reaches through others: which, and through which.
    pub(crate) fn detours(&self) -> Vec<(String, String)> {
        let taken = self.own.detours().map(|detours| detours.taken()).unwrap_or_default();
        let names = |(to, through): (NodeName, NodeName)| (to.to_string(), through.to_string());
        taken.into_iter().map(names).collect()
    }

    /// The name of this node.
    pub(crate) fn own_name(&self) -> &str {
        &self.own_name
    }

    /// Asks the leader which files nodes take from each other, and what waits for files.
    pub(crate) fn hot_tokens(&self) -> Result<TokensView> {
        self.leader()?.ask_leader(&LeaderRequest::Tokens { fs: self.grant.fs.id })
    }

    /// The NSDs that hold the metadata, as the leader says.
    pub(crate) fn metadata_holders(&self) -> Result<Vec<NsdId>> {
        let request = LeaderRequest::Holders { fs: self.grant.fs.id };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader compare the metadata with the strips. The check has a number, by which it
    /// can be ended.
    pub(crate) fn check_strips(&self, number: u64) -> Result<StripsChecked> {
        let request = LeaderRequest::CheckStrips { fs: self.grant.fs.id, number };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader end that check soon.
    pub(crate) fn end_check_strips(&self, number: u64) -> Result<()> {
        let request = LeaderRequest::EndCheckStrips { fs: self.grant.fs.id, number };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader scrub.
    pub(crate) fn scrub(&self, order: Order) -> Result<ScrubReport> {
        let request = LeaderRequest::Scrub { fs: self.grant.fs.id, order };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader move files to the newest layout.
    pub(crate) fn rebalance(&self, order: Order) -> Result<RebalanceReport> {
        let request = LeaderRequest::Rebalance { fs: self.grant.fs.id, order };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader place no new files on an NSD, or place them there again. Returns whether that
    /// is so.
    pub(crate) fn suspend_nsd(&self, nsd: NsdId, suspended: bool) -> Result<bool> {
        let request = LeaderRequest::SuspendNsd { fs: self.grant.fs.id, nsd, suspended };
        self.leader()?.ask_leader(&request)
    }

    /// Has the leader replace an NSD by the free one of that name. Returns a sentence about it.
    pub(crate) fn replace_nsd(&self, old: NsdId, new: &str, rate: u64) -> Result<String> {
        let (fs, new) = (self.grant.fs.id, new.to_owned());
        self.leader()?.ask_leader(&LeaderRequest::ReplaceNsd { fs, old, new, rate })
    }

    /// Has the leader delete an NSD without another one in its place. Returns a sentence about it.
    pub(crate) fn delete_nsd(&self, nsd: NsdId, rate: u64) -> Result<String> {
        let fs = self.grant.fs.id;
        self.leader()?.ask_leader(&LeaderRequest::DeleteDisk { fs, nsd, rate })
    }

    /// Has the leader give the file system the free NSDs of these names. Returns a sentence about
    /// it.
    pub(crate) fn add_nsds(&self, nsds: Vec<String>) -> Result<String> {
        let fs = self.grant.fs.id;
        self.leader()?.ask_leader(&LeaderRequest::AddDisks { fs, nsds })
    }

    /// The file system's NSDs by their names in the node's copy of the records.
    pub(crate) fn listed(&self) -> Result<Vec<NsdConfig>> {
        let cluster = self.dir.records()?;
        let fs = cluster.fs(self.grant.fs.id).ok_or(ErrorKind::NotFound)?;
        Ok(disks_of_mount(&cluster, fs))
    }

    /// Ends the way to the leader, which has declared this mount dead.
    pub(super) fn leave(&self) {
        self.ways.stop();
    }

    /// Tells the leader that this node does not have the file system mounted any more. Everything
    /// is durable, unless this mount was declared dead.
    pub(super) fn finish(&self) -> Result<()> {
        self.ways.stop();
        let (fs, mount, flushed) =
            (self.grant.fs.id, self.grant.mount, !self.ways.tokens.is_dead());
        let request = LeaderRequest::CloseMount { fs, mount, flushed };
        let told = self.leader().and_then(|leader| leader.ask_leader::<()>(&request));
        if let Err(error) = told {
            // The node tells the leader later that no process has this mount.
            warn!(target: "daemon", "the leader was not told of the end of this mount: {error}");
        }
        Ok(())
    }
}
