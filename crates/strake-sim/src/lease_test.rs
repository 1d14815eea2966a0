//! Mounts with leases over real NSDs under a manager, in simulated time: one is cut off or paused
//! while it has changes that nobody else has, a server is started anew, the leader changes.
//!
//! All mounts have one client, one authority and one lease service each or together, in one process
//! of the test. What a network would carry are calls here, which a test can cut.

use crate::machine::{BLOCK_SIZE, Machine, nsd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_array::{Array, ArrayOptions};
use strake_client::vfs::{Handle, OpenFlags, Vfs};
use strake_client::{Settings, StrakeVfs, Tokens};
use strake_env::disk::sim::Sequence;
use strake_env::rng::test_seeds;
use strake_env::simulation::{self, Options, in_process};
use strake_env::sync::{Mutex, RwLock};
use strake_env::{Clock, Disk, RealClock, thread};
use strake_lease::Times;
use strake_lease::membership::Reason;
use strake_manager::TokenService;
use strake_manager::leases::{Deaths, LeaseOptions, LeaseService};
use strake_meta::{MetaOptions, MetaStore};
use strake_nsd::{BlockStore, BlockStoreOptions, Service};
use strake_observe::Observe;
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{
    ByteCount, Caller, ClientId, ErrorKind, Ino, MapVersion, Result, SlotIndex, Term,
};
use strake_store::Container;
use strake_token::authority;
use strake_token::message::{Reply, Request, Term as TokenTerm};
use strake_token::port::{ToAuthority, ToClient};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const SECOND: Duration = Duration::from_secs(1);
const MOUNTS: usize = 3;
/// The bytes of a change. They are part of a block, so nobody sends them unasked.
const BYTES: usize = 8192;
/// The longest that a dead client holds up others: what is left of its lease, the margin, and the
/// time for messages.
const FREE_WITHIN: Duration = Duration::from_secs(13);

/// An NSD server that can be started anew.
struct Server(RwLock<Arc<BlockStore>>);

impl NsdPort for Server {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let store = Arc::clone(&self.0.read());
        store.call(context, request, send, receive)
    }
}

/// A wire between a mount and the leader.
#[derive(Clone, Default)]
struct Wire(Arc<AtomicBool>);

impl Wire {
    fn is_cut(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn cut(&self, is_cut: bool) {
        self.0.store(is_cut, Ordering::SeqCst);
    }
}

/// The simulated process of the leader and the servers; mounts have the next ones.
const LEADER: u32 = 0;

/// What one end of a wire says to the other, which lives in a simulated process.
struct Way<T: ?Sized>(Wire, u32, Arc<T>);

impl ToAuthority for Way<dyn ToAuthority> {
    fn send(&self, term: TokenTerm, message: Request) {
        if !self.0.is_cut() {
            in_process(self.1, || self.2.send(term, message));
        }
    }
}

impl ToClient for Way<dyn ToClient> {
    fn send(&self, term: TokenTerm, message: Reply) {
        if !self.0.is_cut() {
            in_process(self.1, || self.2.send(term, message));
        }
    }

    fn new_term(&self, term: TokenTerm) {
        in_process(self.1, || self.2.new_term(term));
    }
}

impl MetaPort for Way<dyn MetaPort> {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.ask(|meta| meta.query(query))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.ask(|meta| meta.apply(entry))
    }

    fn sync(&self) -> Result<()> {
        self.ask(|meta| meta.sync())
    }
}

impl Way<dyn MetaPort> {
    fn ask<T>(&self, ask: impl FnOnce(&dyn MetaPort) -> Result<T>) -> Result<T> {
        // As sessions do.
        for _ in 0..600 {
            if !self.0.is_cut() {
                return in_process(self.1, || ask(&*self.2));
            }
            RealClock.sleep(SECOND / 10);
        }
        Err(ErrorKind::Unreachable.into())
    }
}

/// Frees what a dead client held.
struct Undertaker(Arc<TokenService>);

impl Deaths for Undertaker {
    fn declared(&self, _client: ClientId, _reason: Reason) {}

    fn dead(&self, client: ClientId) {
        self.0.gone(client);
    }

    fn deposed(&self, _term: Term) {}
}

/// The lease service of the moment.
type Leader = Arc<RwLock<Arc<LeaseService>>>;

/// The metadata through the lease service of the moment.
struct LeaderMeta(Leader, Arc<dyn MetaPort>);

impl LeaderMeta {
    fn now(&self) -> Arc<dyn MetaPort> {
        let service = Arc::clone(&self.0.read());
        service.metadata(Arc::clone(&self.1))
    }
}

impl MetaPort for LeaderMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.now().query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.now().apply(entry)
    }

    fn sync(&self) -> Result<()> {
        self.now().sync()
    }
}

struct Mount {
    client: ClientId,
    vfs: Arc<StrakeVfs>,
    tokens: Arc<Tokens>,
    wire: Wire,
    has_ended: Arc<AtomicBool>,
    pulse: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Mount {
    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(pulse) = self.pulse.lock().take() {
            pulse.join().expect("no panic");
        }
    }
}

struct World {
    machine: Machine,
    clock: Arc<dyn Clock>,
    observe: Arc<Observe>,
    servers: Vec<Arc<Server>>,
    meta: Arc<MetaStore>,
    authority: Arc<TokenService>,
    leases: Leader,
    mounts: Vec<Mount>,
}

fn client(at: usize) -> ClientId {
    ClientId(10 + at as u64)
}

fn simulation_process(client: ClientId) -> u32 {
    client.0 as u32
}

/// Opens the store of a disk as a server under a manager.
fn open(disk: &Arc<strake_env::SimDisk>, observe: &Arc<Observe>) -> (Container, Arc<BlockStore>) {
    let container = Container::open(Arc::clone(disk) as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions {
        cache_bytes: 1 << 20,
        service: Service::UnderManager,
        clock: RealClock::shared(),
        ..BlockStoreOptions::new(observe)
    };
    let store = BlockStore::open(container.clone(), options).expect("block store");
    (container, store)
}

impl World {
    fn new() -> World {
        let sequence = Sequence::default();
        let machine = Machine::format("2x".parse().expect("a code"), 3, &sequence);
        let machine = machine.expect("formats");
        let clock = RealClock::shared();
        let observe = Observe::new(Arc::clone(&clock), 512);
        let disks = machine.disks.iter().flatten();
        let (containers, stores): (Vec<_>, Vec<_>) = disks.map(|disk| open(disk, &observe)).unzip();
        let witness = Some(Arc::clone(&machine.witness) as Arc<dyn Disk>);
        let options = MetaOptions {
            cache_bytes: 1 << 20,
            witness,
            ..MetaOptions::new(Arc::clone(&observe.waiters))
        };
        let meta = Arc::new(MetaStore::open(&containers, options).expect("metadata"));
        let servers: Vec<Arc<Server>> =
            stores.into_iter().map(|store| Arc::new(Server(RwLock::new(store)))).collect();
        let times = authority::Times {
            hold_min: Duration::from_millis(1),
            repeat: Duration::from_millis(500),
        };
        let port = Arc::clone(&meta) as Arc<dyn MetaPort>;
        let authority = TokenService::start(&[], times, port, Arc::clone(&clock), Arc::new(()))
            .expect("starts");
        let leases = serve(Term(1), &[], &servers, &authority, &clock, &observe);
        let leases = Arc::new(RwLock::new(leases));
        let mounts = Vec::new();
        let mut world = World { machine, clock, observe, servers, meta, authority, leases, mounts };
        for at in 0..MOUNTS {
            let mount = in_process(simulation_process(client(at)), || world.mount(client(at)));
            world.mounts.push(mount);
        }
        world
    }

    fn mount(&self, client: ClientId) -> Mount {
        let (wire, clock) = (Wire::default(), Arc::clone(&self.clock));
        let leader = Arc::clone(&self.leases);
        let sent = clock.monotonic();
        let process = simulation_process(client);
        let service = leader.read().clone();
        in_process(LEADER, || service.join(client)).expect("let in");
        let meta = Arc::new(LeaderMeta(Arc::clone(&leader), self.authority.metadata()));
        let port = |server: &Arc<Server>| Some(Arc::clone(server) as Arc<dyn NsdPort>);
        let array = Array::open(ArrayOptions {
            meta: Arc::new(Way(wire.clone(), LEADER, meta as Arc<dyn MetaPort>)),
            nsds: (0..).map(SlotIndex).zip(self.servers.iter().map(port)).collect(),
            clock: Arc::clone(&clock),
            observe: Arc::clone(&self.observe),
            client,
            io_threads: 2,
            beside_others: true,
            find: None,
        });
        let way = Arc::new(Way(wire.clone(), LEADER, self.authority.way_of(client)));
        let observe = Arc::clone(&self.observe);
        let term = self.authority.term();
        let tokens = Tokens::new(term, way, Arc::clone(&clock), observe, 100);
        tokens.need_lease(Times::CLUSTER.lease, sent);
        let back = Arc::clone(&tokens) as Arc<dyn ToClient>;
        self.authority.join(client, Arc::new(Way(wire.clone(), process, back)));
        let settings = Settings {
            page_pool: ByteCount::mib(4),
            flushers: 2,
            io_threads: 2,
            sync_interval: Duration::from_secs(3600),
            ..Settings::test_min()
        };
        let vfs =
            StrakeVfs::start_with_tokens(array.expect("opens"), settings, Arc::clone(&tokens));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (of_thread, renewing, its_wire) =
            (Arc::clone(&has_ended), Arc::clone(&tokens), wire.clone());
        let pulse = thread::spawn(move || {
            while !of_thread.load(Ordering::SeqCst) {
                clock.sleep(SECOND);
                let sent = clock.monotonic();
                if its_wire.is_cut() {
                    continue;
                }
                let service = leader.read().clone();
                match service.renew(client) {
                    Ok(()) => renewing.renewed(sent),
                    Err(error) if error.kind() == ErrorKind::Fenced => renewing.declared_dead(),
                    Err(_) => {}
                }
            }
        });
        let (vfs, pulse) = (vfs.expect("starts"), Mutex::new(Some(pulse)));
        Mount { client, vfs, tokens, wire, has_ended, pulse }
    }

    /// The leader dies, and the next one knows who has joined and is not known to be dead.
    fn change_leader(&self, term: u64, clients: &[ClientId]) {
        let (servers, authority) = (&self.servers, &self.authority);
        self.leases.read().stop();
        let next = serve(Term(term), clients, servers, authority, &self.clock, &self.observe);
        *self.leases.write() = next;
    }

    fn restart_server(&self, at: usize) {
        let disk = self.machine.disks[at].as_ref().expect("there");
        let mut server = self.servers[at].0.write();
        server.end();
        let (_, store) = open(disk, &self.observe);
        *server = store;
    }

    /// What each server says to a client that commits.
    fn refusals(&self, client: ClientId) -> Vec<Option<ErrorKind>> {
        let context = NsdContext { client, ..NsdContext::default() };
        let commit = NsdRequest::Commit { settled: Vec::new() };
        let ask = |server: &Arc<Server>| server.call(context, &commit, &[], &mut []);
        self.servers.iter().map(|server| ask(server).err().map(|error| error.kind())).collect()
    }

    fn assert_all_nsds_are_up(&self) {
        let Ok(MetaReply::Configuration(known)) = self.meta.query(&MetaQuery::Configuration) else {
            panic!("no configuration");
        };
        for slot in &known.pool.slots {
            assert_eq!(slot.state.availability, NsdAvailability::Up, "NSD {}", slot.nsd);
        }
    }

    fn end(self) {
        self.mounts.iter().for_each(|mount| mount.wire.cut(false));
        self.clock.sleep(3 * SECOND);
        for mount in &self.mounts {
            if !mount.tokens.is_dead() {
                mount.vfs.shutdown().expect("ends");
                self.authority.gone(mount.client);
            }
            mount.end();
        }
        self.leases.read().stop();
        self.authority.stop();
    }
}

fn serve(
    term: Term,
    clients: &[ClientId],
    servers: &[Arc<Server>],
    authority: &Arc<TokenService>,
    clock: &Arc<dyn Clock>,
    observe: &Arc<Observe>,
) -> Arc<LeaseService> {
    let port =
        |(at, server): (usize, &Arc<Server>)| (nsd(at), Arc::clone(server) as Arc<dyn NsdPort>);
    let options = LeaseOptions {
        term,
        times: Times::CLUSTER,
        clients: clients.to_vec(),
        own: Vec::new(),
        servers: servers.iter().enumerate().map(port).collect(),
        since: Duration::MAX,
        leads: Arc::new(|| true),
        floor: MapVersion(0),
        clock: Arc::clone(clock),
        waits: Arc::clone(observe) as _,
    };
    LeaseService::start(options, Arc::new(Undertaker(Arc::clone(authority)))).expect("starts")
}

/// A file that all mounts have open. Its first byte says who wrote last.
struct File {
    handles: Vec<Handle>,
}

impl File {
    fn new(world: &World) -> File {
        let first = &world.mounts[0].vfs;
        let (entry, opened) =
            first.create(ROOT, Ino::ROOT, b"file", 0o644, RW, true).expect("created");
        let ino = entry.attr.ino;
        let mut handles = vec![opened.handle];
        for mount in &world.mounts[1..] {
            handles.push(mount.vfs.open(ROOT, ino, RW).expect("opened").handle);
        }
        // Whole blocks. Little bytes would be kept in the metadata, where repair finds them, which
        // is not part of this test.
        let all = vec![1; 2 * BLOCK_SIZE as usize];
        first.write(handles[0], 0, &all).expect("written");
        first.fsync(handles[0]).expect("durable");
        File { handles }
    }

    fn write(&self, world: &World, at: usize, byte: u8) -> Result<()> {
        let data = vec![byte; BYTES];
        world.mounts[at].vfs.write(self.handles[at], 0, &data).map(drop)
    }

    fn fsync(&self, world: &World, at: usize) -> Result<()> {
        world.mounts[at].vfs.fsync(self.handles[at])
    }

    fn read(&self, world: &World, at: usize) -> Result<u8> {
        let mut out = vec![0; BYTES];
        let count = world.mounts[at].vfs.read(self.handles[at], 0, &mut out)?;
        assert!(count == out.len() && out.iter().all(|byte| *byte == out[0]), "torn");
        Ok(out[0])
    }
}

fn simulate(test: impl Fn(u64) + Send + Copy + 'static) {
    for seed in test_seeds(0, 3) {
        println!("STRAKE_SEED={seed}");
        let options = Options { time_max: Duration::from_secs(600), ..Options::new(seed) };
        simulation::run(options, move || test(seed)).expect();
    }
}

/// A mount with changes of its own is not heard any more, and comes back. `is_paused` says whether
/// it was stopped, or only cut off from the leader.
fn a_silent_mount(is_paused: bool) {
    let world = World::new();
    let file = File::new(&world);
    file.write(&world, 0, 2).expect("only in memory");
    let start = world.clock.monotonic();
    world.mounts[0].wire.cut(true);
    simulation::pause(simulation_process(client(0)), is_paused);
    assert_eq!(file.read(&world, 1).expect("readable"), 1, "what was durable");
    let waited = world.clock.monotonic() - start;
    assert!(waited > Times::CLUSTER.lease - 2 * SECOND && waited < FREE_WITHIN, "{waited:?}");
    file.write(&world, 2, 3).expect("written");
    file.fsync(&world, 2).expect("durable");
    assert_eq!(world.refusals(client(0)), vec![Some(ErrorKind::Fenced); 3]);
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            if !is_paused {
                assert!(!world.mounts[0].tokens.is_dead(), "it has not heard of it");
                return file.read(&world, 0).expect_err("no old answer").kind();
            }
            ErrorKind::Io
        });
        world.clock.sleep(5 * SECOND);
        simulation::pause(simulation_process(client(0)), false);
        world.mounts[0].wire.cut(false);
        assert_eq!(late.join().expect("no panic"), ErrorKind::Io);
    });
    world.clock.sleep(5 * SECOND);
    assert!(world.mounts[0].tokens.is_dead(), "it has heard of its death");
    for result in [file.write(&world, 0, 4), file.fsync(&world, 0)] {
        assert_eq!(result.expect_err("dead").kind(), ErrorKind::Io);
    }
    let told = world.mounts[0].vfs.flush(file.handles[0]).expect_err("the handle hears of it");
    assert!(matches!(told.kind(), ErrorKind::Io | ErrorKind::Fenced), "{told}");
    assert_eq!(world.mounts[0].vfs.view().dirty_inodes, 0, "nothing is kept");
    for at in [1, 2] {
        assert_eq!(file.read(&world, at).expect("readable"), 3);
    }
    world.assert_all_nsds_are_up();
    assert_eq!(world.leases.read().ending(), []);
    world.end();
}

#[test]
fn a_mount_that_is_cut_off_is_fenced_and_learns_of_its_death() {
    simulate(|_| a_silent_mount(false));
}

#[test]
fn a_mount_that_was_paused_changes_nothing_when_it_wakes_up() {
    simulate(|_| a_silent_mount(true));
}

#[test]
fn a_mount_that_is_cut_off_for_less_than_a_lease_goes_on() {
    simulate(|_| {
        let world = World::new();
        let file = File::new(&world);
        file.write(&world, 0, 2).expect("only in memory");
        world.mounts[0].wire.cut(true);
        world.clock.sleep(7 * SECOND);
        world.mounts[0].wire.cut(false);
        assert_eq!(file.read(&world, 1).expect("readable"), 2, "nothing is lost");
        file.write(&world, 0, 3).expect("it lives");
        file.fsync(&world, 0).expect("durable");
        assert_eq!(file.read(&world, 2).expect("readable"), 3);
        world.end();
    });
}

#[test]
fn a_server_that_is_started_anew_serves_the_living_and_refuses_the_dead() {
    simulate(|_| {
        let world = World::new();
        let file = File::new(&world);
        file.write(&world, 1, 1).expect("written");
        file.fsync(&world, 1).expect("durable");
        world.mounts[0].wire.cut(true);
        world.clock.sleep(FREE_WITHIN);
        world.restart_server(0);
        world.clock.sleep(4 * SECOND);
        assert_eq!(world.refusals(client(0)), vec![Some(ErrorKind::Fenced); 3]);
        assert_eq!(world.refusals(client(1)), vec![None; 3]);
        file.write(&world, 2, 2).expect("written");
        file.fsync(&world, 2).expect("durable");
        assert_eq!(file.read(&world, 1).expect("readable"), 2);
        world.assert_all_nsds_are_up();
        world.end();
    });
}

#[test]
fn the_next_leader_keeps_the_living_and_declares_the_silent_dead() {
    simulate(|_| {
        let world = World::new();
        let file = File::new(&world);
        world.mounts[0].wire.cut(true);
        world.clock.sleep(5 * SECOND);
        let clients: Vec<ClientId> = (0..MOUNTS).map(client).collect();
        world.change_leader(2, &clients);
        let start = world.clock.monotonic();
        for byte in 2..6 {
            file.write(&world, 1, byte).expect("written");
            file.fsync(&world, 1).expect("durable");
            world.clock.sleep(SECOND);
        }
        let waited = world.clock.monotonic() - start;
        assert!(waited >= Times::CLUSTER.lease, "the silent mount has a whole lease: {waited:?}");
        assert_eq!(file.read(&world, 2).expect("readable"), 5);
        assert_eq!(world.refusals(client(0)), vec![Some(ErrorKind::Fenced); 3]);
        world.mounts[0].wire.cut(false);
        world.clock.sleep(3 * SECOND);
        assert!(world.mounts[0].tokens.is_dead());
        world.assert_all_nsds_are_up();
        world.end();
    });
}
