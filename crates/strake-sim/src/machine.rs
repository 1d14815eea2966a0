//! A machine of simulated disks, and the real stack opened on it: containers, block stores,
//! metadata copies, client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use strake_array::{Array, ArrayOptions, Exclusion};
use strake_client::{FlushReport, Patches, Settings, StrakeVfs};
use strake_env::disk::sim::Sequence;
use strake_env::simulation::{in_process, is_simulated};
use strake_env::{Clock, ManualClock, SimDisk};
use strake_manager::{Manager, RecoveryReport, after_crash};
use strake_meta::{MetaOptions, MetaStore, WITNESS_BYTES};
use strake_net::{
    Endpoint, Listener, MetaClientSession, NsdClientSession, RpcServer, ServerOptions, SessionEnv,
    SessionLimits, SharedSecret, WaitNames, serve_meta, serve_nsd,
};
use strake_nsd::{BlockStore, BlockStoreOptions};
use strake_observe::Observe;
use strake_proto::meta::{Configuration, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::NsdPort;
use strake_proto::{
    ByteCount, ClientId, ClusterId, Code, Error, ErrorKind, FsId, Ino, NsdId, PoolMap, Result,
    SlotIndex, Timestamp,
};
use strake_store::Container;
use strake_store::container::{CONTAINER_BYTES_MIN, FormatOptions};

/// The size of a block. It is the smallest that the product accepts and whose full blocks are cut
/// into N strips.
pub const BLOCK_SIZE: u32 = 256 << 10;

/// How long a start waits for the threads of an earlier stack that nobody joins. These sync the
/// journals of the metadata.
const CLOSE_MAX: Duration = Duration::from_secs(10);

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// Simulated disks, the witness's disk and a clock.
pub struct Machine {
    /// The code of its file system.
    pub code: Code,
    /// One disk per NSD, by slot, followed by the disks that are to replace others. `None` is a
    /// disk that is away.
    pub disks: Vec<Option<Arc<SimDisk>>>,
    /// The disks that are away, by slot, as they were when they went away.
    pub away: Vec<Option<Arc<SimDisk>>>,
    /// The witness's disk. It is no NSD; the daemon has the witness in its data directory.
    pub witness: Arc<SimDisk>,
    /// A clock that moves only when the history says so.
    pub clock: Arc<ManualClock>,
    /// Whether the client reaches metadata and NSDs over the simulated network ([`SERVER`]).
    pub is_remote: bool,
    /// Whether the client sends blocks as patches.
    pub patches: Patches,
}

/// The simulated process in which the servers of a remote machine run.
pub const SERVER: u32 = 1;

/// The real stack, open on a machine. To drop it is to kill the process: nothing is flushed.
pub struct Stack {
    /// Repair. It is the first field, so its threads end before the things that they use.
    pub manager: Manager,
    /// The client.
    pub vfs: Arc<StrakeVfs>,
    /// What recovery found at the start.
    pub recovered: RecoveryReport,
    /// The servers of a remote machine.
    pub servers: Vec<RpcServer>,
    /// The metadata.
    pub meta: Arc<MetaStore>,
    /// The block stores that could be opened, by slot.
    pub stores: Vec<Option<Arc<BlockStore>>>,
    /// An NSD that is present but has no slot.
    pub spare: Option<(Container, Arc<BlockStore>)>,
    /// The units that the metadata had hardened when it was opened, by inode. The start wrote them
    /// into the stripes' blocks again.
    pub hardened: BTreeMap<u64, BTreeSet<u64>>,
    /// The last field, so that nothing uses the stores any more when their workers end.
    ending: Ending,
}

/// Ends block stores when it is dropped. A process that is killed takes its threads along, so
/// nothing of a dropped stack may use the disks any more.
#[derive(Default)]
struct Ending(Vec<Arc<BlockStore>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.iter().for_each(|store| store.end());
    }
}

impl Machine {
    /// Makes a machine with `count` new disks and a file system on them. The disks share one
    /// counter of events.
    ///
    /// # Errors
    /// The stack's.
    pub fn format(code: Code, count: usize, sequence: &Sequence) -> Result<Machine> {
        let disk = |length| SimDisk::with_sequence(length, sequence);
        let disks = (0..count).map(|_| Some(disk(CONTAINER_BYTES_MIN))).collect();
        let machine = Machine::new(code, disks, disk(WITNESS_BYTES));
        let observe = machine.observe();
        // Metadata asks the block stores for space.
        let mut stores = Ending::default();
        let mut containers = Vec::new();
        for (at, disk) in machine.disks.iter().flatten().enumerate() {
            let container = format_disk(disk, at, at)?;
            stores.0.push(BlockStore::open(container.clone(), store_options(&observe))?);
            containers.push(container);
        }
        let configuration = configuration(code, count);
        let meta = MetaStore::format(&containers, &configuration, machine.meta_options(&observe)?)?;
        meta.checkpoint()?;
        Ok(machine)
    }

    /// Adds a new disk that is to replace the disk of a slot.
    ///
    /// # Errors
    /// The container's.
    pub fn add_spare(&mut self, slot: usize, sequence: &Sequence) -> Result<()> {
        let disk = SimDisk::with_sequence(CONTAINER_BYTES_MIN, sequence);
        format_disk(&disk, self.disks.len(), slot)?;
        self.disks.push(Some(disk));
        self.away.push(None);
        Ok(())
    }

    /// Makes a machine of existing disks.
    pub fn new(code: Code, disks: Vec<Option<Arc<SimDisk>>>, witness: Arc<SimDisk>) -> Machine {
        let away = vec![None; disks.len()];
        let clock = Arc::new(ManualClock::default());
        let (is_remote, patches) = (false, Patches::Auto);
        Machine { code, disks, away, witness, clock, is_remote, patches }
    }

    /// The same machine with some slots away; `away` is a mask.
    #[must_use]
    pub fn less(&self, away: u32) -> Machine {
        let mut machine = Machine::new(self.code, self.disks.clone(), Arc::clone(&self.witness));
        machine.clock = Arc::clone(&self.clock);
        machine.is_remote = self.is_remote;
        machine.patches = self.patches;
        for slot in (0..machine.disks.len()).filter(|slot| away >> slot & 1 == 1) {
            machine.away[slot] = machine.disks[slot].take();
        }
        machine
    }

    /// Copies what a killed process leaves. The copy can change without changing this machine.
    #[must_use]
    pub fn copy(&self) -> Machine {
        let disks = self.disks.iter().map(|disk| disk.as_ref().map(|disk| disk.copy())).collect();
        Machine::new(self.code, disks, self.witness.copy())
    }

    /// The same machine with all disks back.
    #[must_use]
    pub fn whole(&self) -> Machine {
        let disks = self.disks.iter().zip(&self.away);
        let disks = disks.map(|(disk, away)| disk.clone().or_else(|| away.clone())).collect();
        Machine::new(self.code, disks, Arc::clone(&self.witness))
    }

    /// The position of the last event on any of its disks.
    pub fn position(&self) -> u64 {
        self.witness.position()
    }

    fn observe(&self) -> Arc<Observe> {
        Observe::new(Arc::clone(&self.clock) as Arc<dyn Clock>, 512)
    }

    fn meta_options(&self, observe: &Arc<Observe>) -> Result<MetaOptions> {
        Ok(MetaOptions {
            cache_bytes: 1 << 20,
            witness: Some(self.witness.open(CLOSE_MAX)?),
            ..MetaOptions::new(Arc::clone(&observe.waiters))
        })
    }

    /// Opens the block store of one disk, for example when the disk has returned.
    ///
    /// # Errors
    /// The container's and the block store's.
    pub fn open_store(&self, disk: &Arc<SimDisk>) -> Result<(Container, Arc<BlockStore>)> {
        let container = Container::open(disk.open(CLOSE_MAX)?)?;
        let store = BlockStore::open(container.clone(), store_options(&self.observe()))?;
        Ok((container, store))
    }

    /// Opens the whole stack on the disks that are present. This includes recovery.
    ///
    /// # Errors
    /// The stack's.
    pub fn open(&self) -> Result<Stack> {
        let observe = self.observe();
        let mut ending = Ending::default();
        let mut opened = Vec::new();
        for disk in self.disks.iter().flatten() {
            let container = Container::open(disk.open(CLOSE_MAX)?)?;
            let mut options = BlockStoreOptions { cache_bytes: 1 << 20, ..store_options(&observe) };
            if self.patches == Patches::Always {
                // Straightening runs beside everything, and not only on an idle disk.
                options.straighten_delay = Duration::ZERO;
            }
            let store = BlockStore::open(container.clone(), options)?;
            ending.0.push(Arc::clone(&store));
            opened.push((container, store));
        }
        let containers: Vec<Container> = opened.iter().map(|(it, _)| it.clone()).collect();
        let meta = Arc::new(MetaStore::open(&containers, self.meta_options(&observe)?)?);
        meta.begin_life(self.clock.wall())?;
        let MetaReply::Configuration(found) = meta.query(&MetaQuery::Configuration)? else {
            return Err(Error::new(ErrorKind::Internal, "the metadata has no configuration"));
        };
        let mut take = |nsd: NsdId| {
            let at = opened.iter().position(|(_, store)| store.nsd() == nsd)?;
            Some(opened.remove(at))
        };
        let stores: Vec<_> =
            found.pool.slots.iter().map(|slot| take(slot.nsd).map(|(_, store)| store)).collect();
        let spare = opened.pop();
        let hardened = hardened(&meta)?;
        let port = |store: &Arc<BlockStore>| Arc::clone(store) as Arc<dyn NsdPort>;
        let mut ports = Ports {
            meta: Arc::clone(&meta) as Arc<dyn MetaPort>,
            nsds: (0..)
                .zip(&stores)
                .map(|(slot, store)| (SlotIndex(slot), store.as_ref().map(port)))
                .collect(),
        };
        let servers = if self.is_remote { self.serve(&mut ports, &observe)? } else { Vec::new() };
        let settings = Settings { patches: self.patches, ..settings() };
        let array = Array::open(ArrayOptions {
            meta: ports.meta,
            nsds: ports.nsds,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            observe,
            client: ClientId(1),
            io_threads: settings.io_threads,
            beside_others: false,
            find: None,
        })?;
        let recovered = after_crash::recover(&array)?;
        let vfs = StrakeVfs::start(Arc::clone(&array), settings)?;
        let manager = Manager::start(array, Arc::clone(&vfs) as Arc<dyn Exclusion>)?;
        Ok(Stack { manager, vfs, recovered, servers, meta, stores, spare, hardened, ending })
    }

    /// Puts servers, which run in another simulated process, in front of the ports.
    fn serve(&self, ports: &mut Ports, observe: &Arc<Observe>) -> Result<Vec<RpcServer>> {
        let shared = SharedSecret::generate()?;
        let env = SessionEnv {
            introduction: shared.clone().into(),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            waits: Arc::clone(&observe.waiters) as Arc<dyn WaitNames>,
            process: None,
            links: None,
        };
        let options = ServerOptions { workers: 2, ..ServerOptions::new(1) };
        let at = |name: &str| Endpoint::Unix(format!("/simulated/{name}").into());
        let mut servers = Vec::new();
        for (slot, port) in &mut ports.nsds {
            let Some(served) = port.take() else { continue };
            let (endpoint, id) = (at(&format!("nsd-{}", slot.0)), nsd(usize::from(slot.0)));
            servers.push(in_process(SERVER, || {
                let listener = Listener::bind(&endpoint)?;
                serve_nsd(listener, id, served, shared.clone(), options)
            })?);
            let session = NsdClientSession::new(endpoint, id, SessionLimits::NSD, env.clone());
            *port = Some(Arc::new(session));
        }
        let endpoint = at("meta");
        servers.push(in_process(SERVER, || {
            let served = Arc::clone(&ports.meta);
            serve_meta(Listener::bind(&endpoint)?, served, shared.clone(), options)
        })?);
        ports.meta = Arc::new(MetaClientSession::new(endpoint, SessionLimits::META, env));
        Ok(servers)
    }
}

impl Stack {
    /// Notes the store of an NSD that has returned.
    pub fn put_store(&mut self, slot: usize, store: Arc<BlockStore>) {
        self.ending.0.push(Arc::clone(&store));
        self.stores[slot] = Some(store);
    }

    /// Does at once what the background threads would do in time.
    pub fn tend(&self) {
        self.vfs.tend();
        self.manager.recover_nsds();
    }

    /// An orderly end.
    ///
    /// # Errors
    /// If something could not be made durable.
    pub fn shutdown(&self) -> Result<FlushReport> {
        self.manager.stop();
        self.vfs.shutdown()
    }
}

/// The ports on which a client starts.
struct Ports {
    meta: Arc<dyn MetaPort>,
    nsds: Vec<(SlotIndex, Option<Arc<dyn NsdPort>>)>,
}

fn format_disk(disk: &Arc<SimDisk>, at: usize, failure_group: usize) -> Result<Container> {
    let options = FormatOptions {
        cluster: CLUSTER,
        nsd: nsd(at),
        fs: FsId(1),
        failure_group: failure_group as u32,
        seed: 0x5eed + at as u64,
    };
    Container::format(disk.open(CLOSE_MAX)?, &options)
}

fn hardened(meta: &MetaStore) -> Result<BTreeMap<u64, BTreeSet<u64>>> {
    let mut kept: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let (mut ino, mut unit) = (Ino(0), 0);
    loop {
        let query = MetaQuery::Hardened { ino, unit, limit: 256 };
        let MetaReply::Hardened(page) = meta.query(&query)? else { return Ok(kept) };
        let Some((last, at)) = page.last() else { return Ok(kept) };
        (ino, unit) = (*last, at.unit + 1);
        for (ino, unit) in page {
            kept.entry(ino.0).or_default().insert(unit.unit);
        }
    }
}

/// The NSD of a slot.
pub fn nsd(slot: usize) -> NsdId {
    NsdId(slot as u32 + 1)
}

/// Options of a block store. It discards at once, so that power cuts meet discards among the other
/// events.
fn store_options(observe: &Arc<Observe>) -> BlockStoreOptions {
    BlockStoreOptions { discard_delay: Duration::ZERO, ..BlockStoreOptions::new(observe) }
}

fn settings() -> Settings {
    // Few threads, because a run looks at tens of thousands of points. Under the scheduler there
    // must be some.
    let threads = if is_simulated() { 2 } else { 0 };
    Settings {
        page_pool: ByteCount::mib(4),
        flushers: threads,
        io_threads: threads,
        prefetch_blocks: threads as u64,
        ..Settings::test_min()
    }
}

fn configuration(code: Code, count: usize) -> Configuration {
    Configuration {
        cluster: CLUSTER,
        name: "simulated".to_owned(),
        code,
        block_size: BLOCK_SIZE,
        pool: PoolMap::new((0..count).map(|at| (nsd(at), at as u32))),
        created: Timestamp { seconds: 1_000, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}
