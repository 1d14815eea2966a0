//! A node's server process: its port, its disks, and who asks it what.
//!
//! **Start.** It takes the directory's lock, binds its port, starts its replica of the records (if
//! it is of the quorum), asks other nodes for newer ones, opens its disks, and then answers. A file
//! system that cannot be opened keeps no other from being served: it is tried again, and
//! `strake node state` says what is wrong.
//!
//! **End.** On SIGTERM, SIGINT or `strake node stop` it ends its services, then closes its disks in
//! order. Mounts are other processes and stay.
//!
//! Locks, in this order: `changing` (one change of the cluster at a time, held across requests to
//! other nodes), `served`, `storing` (while the records are taken over), `cluster`. Only `changing`
//! is held while another node is asked, and `served` while the records get a new file system.

use super::dir::{NodeDir, NodeFile};
use super::errands::{Errands, run_errands};
use super::issuer::{become_issuer, open_desk};
use super::messages::{
    ACTIVE, Answerer, LeaderRequest, NodeRequest, NodeState, ReplicaState, Request,
};
use super::peer::Peer;
use super::quorum::{self, Quorum};
use super::recover;
use crate::admin::{LINE_BYTES_MAX, Reply};
use crate::backend::member::Member;
use crate::cluster::{Cluster, FsRecord, NodeNumber, NsdRecord};
use crate::daemon::{listen, start_thread, threads};
use crate::data_dir::{DataDir, NodeConfig, NsdConfig, SharedConfig};
use crate::registry;
use crate::service;
use crate::settings::Settings;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_crew::Place;
use strake_env::net::UnixStream;
use strake_env::process;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock, Rng, Stops};
use strake_net::{
    ControlPort, DeskPlace, Door, Endpoint, Listener, Members, NodeCredentials, NodeServer, Passes,
    Pings, ProvenPeer, ServerOptions, Service,
};
use strake_observe::{LinkRow, Observe};
use strake_proto::{Error, ErrorKind, FsId, NodeIdentity, NodeName, NsdId, Result, Role, feature};
use tracing::{error, info, warn};

/// How often a node looks for file systems that could not be opened, and for newer records.
const TEND_INTERVAL: Duration = Duration::from_secs(2);
/// How often it looks, and for how long, while the quorum changes: until all have their votes, the
/// loss of one node can be too much.
const HURRIED_INTERVAL: Duration = Duration::from_millis(100);
const HURRIED: Duration = Duration::from_secs(5);
/// How long a start waits for the port of the process before, and how often it looks.
const PORT_WAIT_MAX: Duration = Duration::from_secs(2);
const PORT_WAIT_STEP: Duration = Duration::from_millis(20);

/// Something that a node does for a file system, and that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doing {
    /// It opens its disks.
    Opening,
    /// It works for mounts.
    Mounts,
}

/// A node's server process; see the head of this file.
pub(super) struct Node {
    pub(super) dir: NodeDir,
    pub(super) file: NodeFile,
    pub(super) own: Arc<NodeCredentials>,
    /// Where nodes join, if this node issues certificates.
    pub(super) desk: DeskPlace,
    pub(super) door: Arc<Door>,
    pub(super) changing: Mutex<()>,
    /// Checks under way that can be ended early.
    pub(super) stops: Stops,
    pub(super) served: Mutex<BTreeMap<FsId, Member>>,
    /// The NSDs that this node looks after because it reaches them beside others.
    pub(super) standing_by: Mutex<BTreeSet<NsdId>>,
    /// Why file systems of this node are not served, or their mounts wait.
    faults: Mutex<BTreeMap<(FsId, Doing), String>>,
    pub(super) cluster: Arc<Mutex<Cluster>>,
    storing: Mutex<()>,
    /// This node's replica of the records, if it is of the quorum.
    pub(super) quorum: Mutex<Option<Arc<Quorum>>>,
    /// Why it has none although it is of the quorum.
    pub(super) quorum_fault: Mutex<Option<String>>,
    pub(super) observe: Arc<Observe>,
    /// What nodes that may not serve are asked, while this node leads.
    pub(super) errands: Errands,
    _pings: Pings,
    /// True while no other node answers, so that the log says so once.
    pub(super) is_alone: AtomicBool,
    /// Until that time of the clock the tender looks often.
    hurried_until: Mutex<Duration>,
    /// Counts the times that other nodes were asked for newer records.
    pub(super) round: AtomicUsize,
    /// The reason to end, once there is one.
    end: Mutex<Option<&'static str>>,
    /// Wakes the tender: there is a reason to end, a mount is dead, or the quorum changes.
    pub(super) ended: Arc<Condvar>,
}

/// Runs the server process of the node at `root` until it is told to end.
pub(crate) fn serve(root: &Path) -> Result<()> {
    let dir = NodeDir::at(root)?;
    let _ = rustix::process::setsid();
    let file = dir.read()?;
    let lock = dir.base().lock(&RealClock)?;
    let node = Arc::new(Node::open(dir.clone(), file)?);
    end_on_signals(&node)?;
    node.join_quorum_or_say();
    node.look_for_records();
    node.serve_file_systems();
    node.door.serve_node(Arc::new(Control(Arc::downgrade(&node))))?;
    let listener = listen(dir.base())?;
    start_thread("admin", {
        let node = Arc::clone(&node);
        move || {
            for stream in listener.incoming().filter_map(std::io::Result::ok) {
                let node = Arc::clone(&node);
                if let Err(error) = start_thread("admin-request", move || converse(&node, &stream))
                {
                    error!(target: "node", "no thread for an admin request: {error}");
                }
            }
        }
    })?;
    start_thread("node-tender", {
        let node = Arc::downgrade(&node);
        move || tend(&node)
    })?;
    if node.is_of_quorum() {
        let node = Arc::downgrade(&node);
        start_thread("issuer", move || become_issuer(&node))?;
    }
    if !node.own.identity().roles.may_serve() {
        let node = Arc::downgrade(&node);
        start_thread("errands", move || run_errands(&node))?;
    }
    registry::add_node(&node.file.cluster, &node.dir);
    info!(target: "node", "{} serves at {}", node.file.node, node.file.address);
    println!("ready");
    let reason = node.wait_for_end();
    info!(target: "node", "ending: {reason}");
    service::ends(reason);
    node.close();
    registry::remove_node(&node.file.cluster, &node.dir);
    let _ = std::fs::remove_file(dir.base().socket_path());
    drop(lock);
    Ok(())
}

/// Listens at the node's port. This process has the node's lock, so whoever has the port may be the
/// process of before, which ends: the host frees its lock first.
///
/// # Errors
/// `Busy` if the port is not free within [`PORT_WAIT_MAX`]; the host's.
fn bind(endpoint: &Endpoint, clock: &dyn Clock) -> Result<Listener> {
    let end = clock.monotonic() + PORT_WAIT_MAX;
    loop {
        match Listener::bind(endpoint) {
            Err(error) if error.kind() == ErrorKind::Busy && clock.monotonic() < end => {
                clock.sleep(PORT_WAIT_STEP);
            }
            bound => return bound,
        }
    }
}

fn end_on_signals(node: &Arc<Node>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])?;
    let node = Arc::downgrade(node);
    start_thread("signals", move || {
        if signals.forever().next().is_some()
            && let Some(node) = node.upgrade()
        {
            node.end_because("a signal asked for it");
        }
    })
}

/// Admits the nodes that the records name, with the roles that they have there.
struct Admitted(Arc<Mutex<Cluster>>);

impl Members for Admitted {
    fn admit(&self, node: &NodeIdentity) -> Result<()> {
        let cluster = self.0.lock();
        let mut known = cluster.nodes.iter();
        if known.any(|known| known.name == node.name.as_str() && known.roles == node.roles) {
            return Ok(());
        }
        let detail = format!("{node} is not, or not any more, one of cluster {}", cluster.name);
        Err(Error::new(ErrorKind::Access, detail))
    }
}

/// Passes connections on to the nodes that the records name.
impl Passes for Admitted {
    fn place_of(&self, node: &NodeName) -> Option<Endpoint> {
        let cluster = self.0.lock();
        let known = cluster.nodes.iter().find(|known| known.name == node.as_str())?;
        known.address.map(Endpoint::Tcp)
    }
}

/// Answers what other nodes ask.
struct Control(Weak<Node>);

impl ControlPort for Control {
    fn answer(&self, peer: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>> {
        let node = self.0.upgrade().ok_or(ErrorKind::Unreachable)?;
        let reply = Reply::of(node.answer_bytes(Some(peer), request));
        serde_json::to_vec(&reply)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }
}

/// Answers one command on the admin socket.
fn converse(node: &Arc<Node>, stream: &UnixStream) {
    let answer = || -> Result<()> {
        let mut line = String::new();
        BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
        if line.is_empty() {
            // A command connected only to see whether the node is up.
            return Ok(());
        }
        let reply = Reply::of(node.answer_bytes(None, line.as_bytes()));
        let mut text = serde_json::to_string(&reply)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        text.push('\n');
        let mut stream = stream;
        Ok(stream.write_all(text.as_bytes())?)
    };
    if let Err(error) = answer() {
        warn!(target: "node", "an admin request was not answered: {error}");
    }
}

/// Opens what could not be opened before, and looks after the records.
fn tend(node: &Weak<Node>) {
    while let Some(node) = node.upgrade() {
        if node.ends_within(node.tend_interval()) {
            return;
        }
        node.look_for_records();
        if let Err(error) = node.change_generation() {
            warn!(target: "node", "the new log of the records does not begin: {error}");
        }
        node.serve_file_systems();
        node.watch_shared();
        node.look_after_mounts();
    }
}

impl Node {
    /// The quorum changes, or is to change.
    pub(super) fn hurry(&self) {
        *self.hurried_until.lock() = RealClock.monotonic() + HURRIED;
        self.ended.notify_all();
    }

    pub(super) fn tend_interval(&self) -> Duration {
        let is_hurried = RealClock.monotonic() < *self.hurried_until.lock();
        if is_hurried { HURRIED_INTERVAL } else { TEND_INTERVAL }
    }

    fn open(dir: NodeDir, file: NodeFile) -> Result<Node> {
        let own = dir.credentials()?;
        let (records, has_log) = dir.records_and_log()?;
        records.level.check_understood(&format!("cluster {}", records.name))?;
        if !has_log {
            // Of a version of before, in which the first node kept the records alone.
            if own.identity().roles.has(Role::Quorum) {
                quorum::make_journal(&dir, &records, file.id, records.keeper == file.id)?;
            }
            dir.store_records(&records)?;
        }
        let cluster = Arc::new(Mutex::new(records));
        let desk = open_desk(&dir)?;
        let admitted = Arc::new(Admitted(Arc::clone(&cluster)));
        let server = NodeServer::new(&own)?.with_members(Arc::clone(&admitted) as _);
        let server = server.with_passes(admitted);
        let observe = Observe::new(RealClock::shared(), 512);
        let pings = Pings::start(&observe.links)?;
        let server = server.with_links(&observe.links);
        let server = server.with_desk(Arc::clone(&desk));
        let listener = bind(&Endpoint::Tcp(file.address), &RealClock)?;
        // Zero is reserved: to a client it means that it has met no server yet.
        let options = ServerOptions::new(Rng::from_entropy()?.next_u64().max(1));
        let door = Arc::new(Door::open(listener, server, options)?);
        Ok(Node {
            dir,
            file,
            own,
            desk,
            door,
            changing: Mutex::new(()),
            stops: Stops::default(),
            served: Mutex::default(),
            standing_by: Mutex::default(),
            faults: Mutex::default(),
            cluster,
            observe,
            errands: Errands::new(RealClock::shared()),
            _pings: pings,
            storing: Mutex::new(()),
            quorum: Mutex::new(None),
            quorum_fault: Mutex::new(None),
            hurried_until: Mutex::default(),
            is_alone: AtomicBool::new(false),
            round: AtomicUsize::new(0),
            end: Mutex::new(None),
            ended: Arc::new(Condvar::new()),
        })
    }

    /// The records as this node has them.
    pub(super) fn cluster(&self) -> Cluster {
        self.cluster.lock().clone()
    }

    /// This node's replica of the records, if it is of the quorum.
    pub(super) fn quorum(&self) -> Option<Arc<Quorum>> {
        self.quorum.lock().clone()
    }

    /// True if this node is one of those that keep the cluster's records.
    pub(super) fn is_of_quorum(&self) -> bool {
        self.own.identity().roles.has(Role::Quorum)
    }

    /// Where a node is, if it has joined.
    pub(super) fn place(&self, node: NodeNumber) -> Option<Place> {
        let cluster = self.cluster.lock();
        let record = cluster.node(node)?;
        Some(Place { node: record.certified_name(), address: record.address? })
    }

    /// Another node, if it has joined.
    pub(super) fn peer(&self, node: NodeNumber) -> Result<Peer> {
        let Place { node: name, address } = self.place(node).ok_or_else(|| {
            let name = self.cluster().node_name(node);
            Error::new(ErrorKind::Unreachable, format!("node {name} has not joined yet"))
        })?;
        Ok(Peer::new(name, address, &self.own))
    }

    /// Asks a node, which may be this one. One that may not serve is asked through the node that
    /// leads.
    pub(super) fn ask<T>(self: &Arc<Node>, node: NodeNumber, request: &NodeRequest) -> Result<T>
    where
        T: serde::de::DeserializeOwned,
    {
        if node != self.file.id {
            let may_serve = self.cluster.lock().node(node).is_none_or(|it| it.roles.may_serve());
            return match may_serve {
                true => self.peer(node)?.ask(request),
                false => self.ask_client(node, request),
            };
        }
        let value = self.answer_node(request)?;
        serde_json::from_value(value)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    /// Takes over records if they are newer.
    ///
    /// # Errors
    /// If the file cannot be written. They count all the same, until this process ends.
    pub(super) fn take_records(&self, cluster: &Cluster) -> Result<()> {
        let _storing = self.storing.lock();
        let before = {
            let mut held = self.cluster.lock();
            if cluster.id != held.id || !cluster.is_newer_than(&held) {
                return Ok(());
            }
            if recover::is_void(&held, cluster) && self.is_of_quorum() {
                recover::begin_anew(&self.dir, cluster, self.file.id)?;
            }
            std::mem::replace(&mut *held, cluster.clone())
        };
        // Before the file is written, so that it is done again if this process ends in between.
        for node in before.nodes.iter().filter(|node| cluster.node(node.id).is_none()) {
            let name = node.certified_name();
            self.door.disconnect(&name);
            if let Some(desk) = self.desk.get() {
                desk.withdraw(&name)?;
            }
        }
        self.dir.store_records(cluster)?;
        if cluster.level > feature::understood() {
            self.end_because("the cluster has a feature level that this program does not know");
        }
        Ok(())
    }

    /// Opens and serves every file system of which this node has disks and that is not served. Ends
    /// those that were deleted.
    pub(super) fn serve_file_systems(self: &Arc<Node>) {
        let mut served = self.served.lock();
        let cluster = self.cluster();
        self.end_deleted(&mut served, &cluster);
        for fs in &cluster.file_systems {
            let config = self.config_of(&cluster, fs);
            if let Some(member) = served.get_mut(&fs.id) {
                if self.metadata_place(&cluster, fs).is_none() {
                    // The replica ends before its disk goes.
                    self.follow_place(&cluster, fs, member);
                }
                self.follow_list(fs, config, member);
                self.follow_place(&cluster, fs, member);
                continue;
            }
            if config.nsd.is_empty() {
                continue;
            }
            let opened = self.prepare(fs, &config).and_then(|dir| {
                let metadata = self.metadata_of(&cluster, fs);
                Member::open(&dir, &config, metadata, &self.door, &self.observe)
            });
            let fault = match opened {
                Ok(member) => {
                    served.insert(fs.id, member);
                    None
                }
                Err(error) => Some(format!("{} is not served: {error}", fs.name)),
            };
            self.set_fault((fs.id, Doing::Opening), fault);
        }
    }

    /// Forgets what was wrong with file systems that were deleted.
    pub(super) fn forget_faults(&self, cluster: &Cluster) {
        self.faults.lock().retain(|(fs, _), _| cluster.fs(*fs).is_some());
    }

    /// Notes what is wrong with a file system here, or that nothing is. The log says it once.
    pub(super) fn set_fault(&self, what: (FsId, Doing), fault: Option<String>) {
        let mut faults = self.faults.lock();
        let before = faults.get(&what).cloned();
        match fault {
            Some(fault) => {
                if before.as_ref() != Some(&fault) {
                    error!(target: "node", "{fault}");
                }
                faults.insert(what, fault);
            }
            None => drop(faults.remove(&what)),
        }
    }

    /// Makes the place of a file system's disks on this node, or brings it up to date.
    pub(super) fn prepare(&self, fs: &FsRecord, config: &NodeConfig) -> Result<DataDir> {
        let dir = self.dir.fs_dir(&fs.name)?;
        std::fs::create_dir_all(dir.root())?;
        if !dir.is_formatted() || dir.read_config()? != *config {
            dir.write_config(config)?;
        }
        Ok(dir)
    }

    /// What this node has of a file system.
    pub(super) fn config_of(&self, cluster: &Cluster, fs: &FsRecord) -> NodeConfig {
        let own = || {
            let of_fs = fs.nsds.iter().filter_map(|nsd| cluster.nsd(*nsd));
            of_fs.filter(|nsd| nsd.node == self.file.id)
        };
        let nsd = own().map(|nsd| self.nsd_config(cluster, nsd));
        NodeConfig {
            version: 1,
            name: fs.name.clone(),
            cluster: cluster.id.to_string(),
            code: fs.code.to_string(),
            block_size: fs.block_size,
            mount: fs.mount.clone(),
            node: Some(self.dir.root().to_owned()),
            nsd: nsd.collect(),
            settings: Settings::default(),
        }
    }

    /// This node's directory, in the form in which disks are opened.
    pub(super) fn data_dir(&self) -> DataDir {
        self.dir.base().clone()
    }

    /// An NSD that this node serves, in the form in which disks are opened.
    pub(super) fn nsd_config(&self, cluster: &Cluster, nsd: &NsdRecord) -> NsdConfig {
        let shared = cluster.shared(nsd.id).and_then(|shared| {
            Some(SharedConfig {
                number: shared.number,
                place: shared.place_of(self.file.id)?,
                servers: cluster.server_names(nsd),
            })
        });
        NsdConfig {
            id: nsd.id.0,
            name: nsd.name.clone(),
            path: self.dir.device(nsd),
            failure_group: nsd.failure_group,
            shared,
        }
    }

    /// Answers a request of another node, or of a command on this machine.
    fn answer_bytes(self: &Arc<Node>, peer: Option<&ProvenPeer>, bytes: &[u8]) -> Result<Value> {
        let request: Request = serde_json::from_slice(bytes).map_err(|error| {
            let detail = format!("node {} does not understand this: {error}", self.file.node);
            Error::new(ErrorKind::Invalid, detail)
        })?;
        peer.map_or(Ok(()), |peer| self.may_ask(peer, &request))?;
        match &request {
            Request::Node(request) => self.answer_node(request),
            Request::Client(request) => match peer {
                Some(ProvenPeer::Node(peer)) => self.answer_client(peer.name.as_str(), request),
                _ => Err(Error::new(ErrorKind::Access, "only nodes ask for errands")),
            },
            Request::Leader(about) => match about.answerer() {
                Answerer::Any => self.answer_leader(about),
                Answerer::Quorum if self.quorum().is_some() => self.answer_leader(about),
                Answerer::Quorum => self.ask_quorum(&request),
                Answerer::Issuing => self.answer_issuing(about, peer.is_none()),
                Answerer::Serving => self.answer_serving(about, peer.is_none()),
            },
        }
    }

    /// Hands a request on to a node of the quorum that answers.
    pub(super) fn ask_quorum(self: &Arc<Node>, request: &Request) -> Result<Value> {
        let nodes: Vec<NodeNumber> = self.cluster().quorum().map(|node| node.id).collect();
        let answers =
            |id: &NodeNumber| self.ask::<ReplicaState>(*id, &NodeRequest::Replica).is_ok();
        let node = nodes.into_iter().find(answers).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "no node of the cluster's quorum answers")
        })?;
        self.peer(node)?.call(request)
    }

    /// Refuses what a node may not ask. Only nodes of the quorum tell other nodes what to do, and
    /// each node speaks for itself alone.
    fn may_ask(&self, peer: &ProvenPeer, request: &Request) -> Result<()> {
        let ProvenPeer::Node(peer) = peer else {
            return Err(Error::new(ErrorKind::Access, "a node proves itself by its certificate"));
        };
        let cluster = self.cluster.lock();
        let is = |node: NodeNumber| cluster.node_name(node) == peer.name.as_str();
        let may = match request {
            Request::Client(_) => true,
            Request::Node(NodeRequest::HandOn { request, .. }) => {
                request.is_quick() || peer.roles.has(Role::Quorum)
            }
            Request::Node(request) if request.is_quick() => true,
            Request::Node(NodeRequest::Committed) => true,
            Request::Node(_) => peer.roles.has(Role::Quorum),
            Request::Leader(LeaderRequest::Join { node, .. }) => node == peer.name.as_str(),
            Request::Leader(LeaderRequest::OpenMount { node, .. }) => is(*node),
            Request::Leader(LeaderRequest::CloseMount { mount, .. }) => is(mount.node),
            Request::Leader(LeaderRequest::ServeNsd { node, .. }) => is(*node),
            Request::Leader(_) => true,
        };
        if may {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Access, format!("{peer} may not ask that of another node")))
    }

    pub(super) fn answer_node(self: &Arc<Node>, request: &NodeRequest) -> Result<Value> {
        match request {
            NodeRequest::State => encode(&self.state()),
            NodeRequest::Network => {
                let rows = self.observe.links.view().into_iter().map(LinkRow::from);
                encode(&rows.collect::<Vec<LinkRow>>())
            }
            NodeRequest::Waiters => encode(&self.observe.waiters.snapshot_with_locks()),
            NodeRequest::Threads => {
                let waits = self.observe.waiters.snapshot_with_locks();
                encode(&threads::described(process::threads()?, &waits, &[]))
            }
            NodeRequest::Stop { force } => self.stop(*force),
            NodeRequest::MakeNsds { nsds, force } => encode(&self.make_nsds(nsds, *force)?),
            NodeRequest::DropNsds { nsds } => encode(&self.drop_nsds(nsds)?),
            NodeRequest::PrepareMetadata { fs, nsd } => encode(&self.prepare_metadata(*fs, *nsd)?),
            NodeRequest::FormatNsds { nsds, metadata } => {
                encode(&self.format_nsds(nsds, metadata.as_ref())?)
            }
            NodeRequest::Follow { cluster } => {
                self.take_records(cluster)?;
                self.serve_file_systems();
                encode(&())
            }
            NodeRequest::Mount { fs, settings, options } => {
                encode(&self.mount(fs, settings, options)?)
            }
            NodeRequest::Unmount { fs, force } => encode(&self.unmount(fs, *force)?),
            NodeRequest::IsMounted { fs } => encode(&self.is_mounted(fs)?),
            NodeRequest::Records { generation, newer_than } => {
                let own = self.cluster();
                let is_newer = (own.generation, own.revision) > (*generation, *newer_than);
                encode(&Some(own).filter(|_| is_newer))
            }
            NodeRequest::Replica => encode(&self.replica()?.state()),
            NodeRequest::Mounted { fs, request } => self.ask_mount(fs, request),
            NodeRequest::HandOn { client, request } => self.hand_on(*client, request),
            NodeRequest::Programs => encode(&self.own_programs()),
            NodeRequest::SeesNsd { nsd } => encode(&self.sees_nsd(nsd)?),
            NodeRequest::Serves { fs } => encode(&self.serves(*fs)),
            NodeRequest::Committed => encode(&self.replica()?.committed()?),
            NodeRequest::Propose { at, change } => encode(&self.propose(*at, change)?),
            NodeRequest::Authority => encode(&self.authority_copy()?),
        }
    }

    /// How this node is.
    pub(super) fn state(&self) -> NodeState {
        let mut faults: Vec<String> = self.faults.lock().values().cloned().collect();
        let cluster = self.cluster();
        let metadata = self.metadata_states(&cluster);
        let mut unusable = Vec::new();
        {
            let served = self.served.lock();
            faults.extend(served.values().filter_map(Member::metadata_fault));
            for nsd in cluster.nsds_of(self.file.id).filter(|nsd| nsd.fs.is_some()) {
                let member = nsd.fs.and_then(|fs| served.get(&fs));
                if member.is_none_or(|member| member.container(nsd.id).is_none()) {
                    unusable.push(nsd.id);
                }
                if let Some(fault) = member.and_then(|member| member.fault_of(nsd.id)) {
                    faults.push(format!("{}: {fault}", nsd.name));
                }
            }
        }
        let replica = self.quorum().map(|quorum| quorum.state());
        faults.extend(replica.iter().filter_map(|replica| replica.fault.clone()));
        faults.extend(self.quorum_fault.lock().clone());
        let names = cluster.file_systems.iter().map(|fs| fs.name.clone());
        NodeState {
            node: self.file.node.clone(),
            state: ACTIVE.to_owned(),
            pid: Some(std::process::id()),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            mounts: names.filter(|fs| self.is_mounted(fs).unwrap_or(false)).collect(),
            faults,
            unusable,
            replica,
            metadata,
        }
    }

    /// Answers `strake node stop`.
    fn stop(&self, force: bool) -> Result<Value> {
        let mounts = self.state().mounts;
        let elsewhere = self.needed_for(&self.cluster());
        if let Some(fs) = mounts.first().filter(|_| !force) {
            let detail = format!("{fs} is mounted here: `strake fs umount {fs}` first, or --force");
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        if let Some(fs) = elsewhere.first().filter(|_| !force) {
            let detail = format!(
                "{fs} is mounted, and no majority of its metadata is left without this node: \
                 `strake fs umount {fs}` first. With --force programs wait until the node is \
                 started again"
            );
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        self.end_because("`strake node stop` asked for it");
        encode(&std::process::id())
    }

    fn end_because(&self, reason: &'static str) {
        self.end.lock().get_or_insert(reason);
        self.ended.notify_all();
    }

    /// Waits, and says whether there is a reason to end.
    pub(super) fn ends_within(&self, wait: Duration) -> bool {
        let mut end = self.end.lock();
        if end.is_none() {
            self.ended.wait_for(&mut end, wait);
        }
        end.is_some()
    }

    fn wait_for_end(&self) -> &'static str {
        let mut end = self.end.lock();
        loop {
            if let Some(reason) = *end {
                return reason;
            }
            self.ended.wait(&mut end);
        }
    }

    /// Ends the services and closes the disks.
    fn close(&self) {
        // A request that changes the cluster ends first.
        let _alone = self.changing.lock();
        let served = std::mem::take(&mut *self.served.lock());
        let cluster = self.cluster();
        for (fs, member) in served {
            let nsds: Vec<NsdId> = cluster.fs(fs).map_or_else(Vec::new, |fs| fs.nsds.clone());
            member.finish(&self.door, &nsds);
        }
        self.door.end(Service::Replica);
        if let Some(quorum) = self.quorum() {
            quorum.stop();
        }
    }
}

/// A value as the answer to a request.
pub(super) fn encode(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

/// Waits until the lock of a process that ends is free, at most `limit`.
pub(super) fn wait_for_lock(dir: &DataDir, limit: Duration) -> Result<bool> {
    let end = RealClock.monotonic() + limit;
    loop {
        if dir.try_lock()?.is_some() {
            return Ok(true);
        }
        if RealClock.monotonic() >= end {
            return Ok(false);
        }
        RealClock.sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::net::{SocketAddr, TcpListener};
    use strake_proto::Timestamp;

    /// Whoever has the port gives it up while another sleeps.
    struct GivesUp(Mutex<Option<TcpListener>>);

    impl Clock for GivesUp {
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn wall(&self) -> Timestamp {
            Timestamp::default()
        }

        fn sleep(&self, _: Duration) {
            drop(self.0.lock().take());
        }
    }

    #[test]
    fn a_port_that_the_process_before_gives_up_is_waited_for() {
        let taken = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let endpoint = Endpoint::Tcp(taken.local_addr().expect("an address"));
        let clock = GivesUp(Mutex::new(Some(taken)));
        bind(&endpoint, &clock).expect("it is free now");
        assert!(clock.0.lock().is_none());
    }
}
