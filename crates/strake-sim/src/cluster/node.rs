//! A node: a disk, and the process that serves it. The process has a door, behind which are the
//! NSD, the node's replica of the metadata, and, while the node leads, the crew. A tender looks
//! after mounts that are dead. All of it is the product's code but for what the cluster's records
//! say, which all nodes know at once here ([`Records`]).

use super::disk::AttachedDisk;
use super::invariants::a_fenced_client_changes_nothing::WatchedNsd;
use super::place::{
    BLOCK_SIZE, CLUSTER, FS, NODES, credentials, introduce, locate, nsd, place, places,
};
use super::record::Recorder;
use super::replicas::Others;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_crew::crew::LEASE_LIMITS;
use strake_crew::metadata::LogId;
use strake_crew::{Crew, Lead, Metadata, MetadataParts, NsdWays, metadata};
use strake_env::simulation::{in_process, undisturbed};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{self, JoinHandle};
use strake_env::{Clock, Disk, RealClock, Rng, SimDisk};
use strake_net::{
    ControlPort, Door, Endpoint, Introduction, Listener, ProvenPeer, ServerOptions, Service,
    SessionEnv, SessionLimits,
};
use strake_nsd::{BlockStore, BlockStoreOptions, Service as Served};
use strake_observe::Observe;
use strake_proto::meta::Configuration;
use strake_proto::nsd::NsdPort;
use strake_proto::{ByteCount, ClientId, Code, Error, ErrorKind, PoolMap, Result, Timestamp};
use strake_replica::types::ReplicaId;
use strake_store::Container;
use strake_store::container::FormatOptions;

/// The tender looks that often, and when a client is dead.
const TEND: Duration = Duration::from_secs(2);
/// The first client that is no part of a crew.
const CLIENTS_FROM: u64 = 16;

/// What the records of the cluster say of the file system's mounts.
#[derive(Default)]
pub(crate) struct Records(Mutex<(u64, BTreeSet<(usize, ClientId)>)>);

impl Records {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeSet<(usize, ClientId)>) -> T) -> T {
        undisturbed(|| work(&mut self.0.lock().1))
    }

    fn clients(&self) -> BTreeSet<ClientId> {
        self.with(|mounts| mounts.iter().map(|(_, client)| *client).collect())
    }

    fn of_host(&self, host: usize) -> BTreeSet<ClientId> {
        self.with(|mounts| {
            mounts.iter().filter(|(at, _)| *at == host).map(|(_, client)| *client).collect()
        })
    }

    fn add(&self, host: usize) -> ClientId {
        undisturbed(|| {
            let mut records = self.0.lock();
            records.0 += 1;
            let client = ClientId(CLIENTS_FROM + records.0);
            records.1.insert((host, client));
            client
        })
    }

    fn remove(&self, gone: &BTreeSet<ClientId>) {
        self.with(|mounts| mounts.retain(|(_, client)| !gone.contains(client)));
    }
}

/// What mounts ask nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// Whether the node serves the file system.
    Serves,
    /// The name of the last mount of this host; 0 if there is none.
    Last(usize),
    /// To mount on this host, in place of its last mount.
    Open(usize, u64),
    /// A mount of this name has ended in order.
    Close(ClientId),
}

impl Ask {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (kind, one, other) = match self {
            Ask::Serves => (0, 0, 0),
            Ask::Last(host) => (1, host as u64, 0),
            Ask::Open(host, last) => (2, host as u64, last),
            Ask::Close(client) => (3, client.0, 0),
        };
        [&[kind], &one.to_le_bytes()[..], &other.to_le_bytes()[..]].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Ask> {
        let (kind, numbers) = bytes.split_first()?;
        let (one, other) = numbers.split_first_chunk()?;
        let (one, other) = (u64::from_le_bytes(*one), u64::from_le_bytes(other.try_into().ok()?));
        match kind {
            0 => Some(Ask::Serves),
            1 => Some(Ask::Last(one as usize)),
            2 => Some(Ask::Open(one as usize, other)),
            3 => Some(Ask::Close(ClientId(one))),
            _ => None,
        }
    }
}

/// What outlives a node's process.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) number: u32,
    pub(crate) records: Arc<Records>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) code: Code,
}

/// One life of a node's process.
pub(crate) struct Node {
    site: Site,
    pub(crate) process: u32,
    pub(crate) disk: Arc<AttachedDisk>,
    pub(crate) observe: Arc<Observe>,
    door: Arc<Door>,
    store: Arc<BlockStore>,
    metadata: Arc<Metadata>,
    /// Held while mounts come and go.
    changing: Arc<Mutex<()>>,
    bell: Arc<Condvar>,
    has_ended: Arc<AtomicBool>,
    tender: Mutex<Option<JoinHandle<()>>>,
}

/// What a node's tender and its answers to others use.
struct Office {
    site: Site,
    door: Arc<Door>,
    metadata: Arc<Metadata>,
    changing: Arc<Mutex<()>>,
}

fn store_options(observe: &Arc<Observe>) -> BlockStoreOptions {
    BlockStoreOptions {
        cache_bytes: 1 << 20,
        service: Served::UnderManager,
        ..BlockStoreOptions::new(observe)
    }
}

/// Makes a node's disk: an empty NSD with a replica of the metadata.
pub(crate) fn format(number: u32, disk: &Arc<SimDisk>) -> Result<()> {
    let options = FormatOptions {
        cluster: CLUSTER,
        nsd: nsd(number),
        fs: FS,
        failure_group: number,
        seed: u64::from(number),
    };
    let container = Container::format(Arc::clone(disk) as Arc<dyn Disk>, &options)?;
    let observe = Observe::new(RealClock::shared(), 64);
    let store = BlockStore::open(container.clone(), BlockStoreOptions::new(&observe))?;
    let voters: BTreeSet<ReplicaId> = NODES.map(ReplicaId).collect();
    let identity = metadata::identity(CLUSTER, FS, LogId::default(), ReplicaId(number));
    let prepared = metadata::format(&container, identity, &voters);
    store.end();
    prepared
}

fn configuration(code: Code) -> Configuration {
    Configuration {
        cluster: CLUSTER,
        name: "simulated".to_owned(),
        code,
        block_size: BLOCK_SIZE,
        pool: PoolMap::new(NODES.map(|number| (nsd(number), number))),
        created: Timestamp { seconds: 1_000, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}

fn lead(site: &Site, observe: &Arc<Observe>, bell: &Arc<Condvar>) -> Lead {
    let env = SessionEnv {
        introduction: Introduction::from(credentials()),
        clock: RealClock::shared(),
        waits: Arc::clone(observe) as _,
        process: None,
        links: None,
    };
    let ways = |limits| NsdWays::new(&introduce(), locate(), places(), env.clone(), limits);
    Lead {
        mounts: site.records.clients().into_iter().collect(),
        all: NODES.map(nsd).collect(),
        nsds: ways(SessionLimits::NSD),
        leases: ways(LEASE_LIMITS),
        bell: Arc::clone(bell),
        page_pool: ByteCount::mib(4),
        since: RealClock.monotonic(),
        leads: Arc::new(|| true),
    }
}

impl Node {
    /// Starts the node's process as the simulated process `process`.
    pub(crate) fn start(site: &Site, process: u32, disk: &Arc<SimDisk>) -> Result<Arc<Node>> {
        in_process(process, || Node::open(site, process, disk))
    }

    fn open(site: &Site, process: u32, disk: &Arc<SimDisk>) -> Result<Arc<Node>> {
        let site = site.clone();
        let disk = AttachedDisk::new(disk);
        let observe = Observe::new(RealClock::shared(), 256);
        let container = Container::open(Arc::clone(&disk) as Arc<dyn Disk>)?;
        let store = BlockStore::open(container.clone(), store_options(&observe))?;
        let boot = Rng::from_entropy()?.next_u64().max(1);
        let options = ServerOptions { workers: 4, ..ServerOptions::new(boot) };
        let listener = Listener::bind(&Endpoint::Tcp(place(site.number).address))?;
        let door = Arc::new(Door::open(listener, credentials(), options)?);
        let inner = Arc::clone(&store) as Arc<dyn NsdPort>;
        let watched = WatchedNsd { inner, recorder: Arc::clone(&site.recorder) };
        door.serve_nsd(nsd(site.number), Arc::new(watched))?;
        let bell = Arc::new(Condvar::new());
        let parts = MetadataParts {
            fs: FS,
            nsd: nsd(site.number),
            cluster: CLUSTER,
            log: LogId::default(),
            lost: Vec::new(),
            replica: ReplicaId(site.number),
            container_of: Box::new(move |_| Some(container.clone())),
            peers: Box::new(Others::new(ReplicaId(site.number), &observe)),
            furnish: |_| Ok(()),
            begin: {
                let (site, observe) = (site.clone(), Arc::clone(&observe));
                let bell = Arc::clone(&bell);
                Box::new(move || Ok((configuration(site.code), lead(&site, &observe, &bell))))
            },
            bell: Arc::clone(&bell),
            earlier: None,
        };
        let metadata = Arc::new(Metadata::start(parts, &door, &observe)?);
        let (changing, has_ended) = (Arc::default(), Arc::default());
        let tender = Mutex::default();
        let node = Node {
            site,
            process,
            disk,
            observe,
            door,
            store,
            metadata,
            changing,
            bell,
            has_ended,
            tender,
        };
        node.door.serve_node(Arc::new(node.office()))?;
        let (office, bell, has_ended) =
            (node.office(), Arc::clone(&node.bell), Arc::clone(&node.has_ended));
        let tender = thread::spawn(move || {
            let lock = Mutex::new(());
            while !has_ended.load(Ordering::SeqCst) {
                bell.wait_for(&mut lock.lock(), TEND);
                office.tend();
            }
        });
        *node.tender.lock() = Some(tender);
        Ok(Arc::new(node))
    }

    fn office(&self) -> Office {
        Office {
            site: self.site.clone(),
            door: Arc::clone(&self.door),
            metadata: Arc::clone(&self.metadata),
            changing: Arc::clone(&self.changing),
        }
    }

    /// What the mounts share, if this node leads.
    pub(crate) fn crew(&self) -> Option<Arc<Crew>> {
        self.metadata.crew()
    }

    /// The node's part of the metadata.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Ends the process in order.
    pub(crate) fn stop(&self) {
        in_process(self.process, || {
            self.has_ended.store(true, Ordering::SeqCst);
            self.bell.notify_all();
            if let Some(tender) = self.tender.lock().take() {
                tender.join().expect("no panic");
            }
            self.metadata.stop();
            for service in [Service::Nsd(nsd(self.site.number)), Service::Node] {
                self.door.end(service);
            }
            self.store.end();
        });
    }
}

impl Office {
    /// What the product's node does every two seconds, for this one file system.
    fn tend(&self) {
        let Some(crew) = self.metadata.crew() else { return };
        crew.leave_out_silent();
        let _alone = self.changing.lock();
        // What fails is tried again.
        let _ = crew.attend(&self.site.records.clients(), &|dead| self.bury(&crew, dead));
    }

    fn bury(&self, crew: &Crew, gone: &BTreeSet<ClientId>) -> Result<()> {
        crew.work(gone)?;
        gone.iter().for_each(|client| self.site.recorder.buried(*client));
        self.site.records.remove(gone);
        Ok(())
    }

    fn crew(&self) -> Result<Arc<Crew>> {
        let nobody = || Error::new(ErrorKind::Unreachable, "this node does not lead");
        self.metadata.crew().ok_or_else(nobody)
    }

    fn answer(&self, ask: Ask) -> Result<u64> {
        match ask {
            Ask::Serves => Ok(u64::from(self.door.serves_meta(FS))),
            Ask::Last(host) => {
                let last = self.site.records.of_host(host);
                Ok(last.first().map_or(0, |client| client.0))
            }
            Ask::Open(host, last) => {
                let _alone = self.changing.lock();
                let crew = self.crew()?;
                let gone = self.site.records.of_host(host);
                // Else it is late, and the mount of now would end for it.
                if gone.first().map_or(0, |client| client.0) != last {
                    return Err(Error::new(ErrorKind::Stale, "another mount has come"));
                }
                self.bury(&crew, &gone)?;
                let client = self.site.records.add(host);
                crew.admit(client)?;
                Ok(client.0)
            }
            Ask::Close(client) => {
                let _alone = self.changing.lock();
                if !self.site.records.clients().contains(&client) {
                    return Ok(0);
                }
                let crew = self.crew()?;
                let gone = BTreeSet::from([client]);
                if !crew.closed(client)? {
                    return self.bury(&crew, &gone).map(|()| 0);
                }
                self.site.records.remove(&gone);
                Ok(0)
            }
        }
    }
}

impl ControlPort for Office {
    fn answer(&self, _: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>> {
        let ask = Ask::decode(request).ok_or(ErrorKind::Corrupt)?;
        Ok(match Office::answer(self, ask) {
            Ok(number) => [&[0], &number.to_le_bytes()[..]].concat(),
            Err(error) => [b"\x01", error.to_string().as_bytes()].concat(),
        })
    }
}
