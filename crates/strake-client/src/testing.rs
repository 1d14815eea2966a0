//! A client over NSDs and metadata in memory.

use crate::block_io::send::flush_block;
use crate::client::{FlushReport, StrakeVfs};
use crate::memory::file::Content;
use crate::settings::Settings;
use crate::tokens::Tokens;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use strake_array::{Array, ArrayOptions, Exclusion, FindNsd};
use strake_env::sync::{Condvar, Mutex, RwLock};
use strake_env::{Clock, RealClock, Rng};
use strake_manager::{Manager, RecoveryReport, TokenService, after_crash};
use strake_observe::Observe;
use strake_proto::feature;
use strake_proto::meta::{
    AttrChange, Configuration, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply, apply_in_order,
};
use strake_proto::nsd::NsdPort;
use strake_proto::{
    BlockIndex, ClientId, ClusterId, Code, Ino, NsdId, PoolMap, Result, SlotIndex, Timestamp,
};
use strake_testing::{CrashMeta, MemoryNsd};
use strake_token::authority::Times;
use strake_token::message::{Request, Term};
use strake_token::port::{ToAuthority, ToClient};

/// A client and the manager on one array. Dropping it is a killed process: nothing is flushed.
pub(crate) struct Mounted {
    /// First, so that its threads end before what they use.
    pub(crate) manager: Manager,
    pub(crate) vfs: Arc<StrakeVfs>,
    pub(crate) recovered: RecoveryReport,
}

impl Deref for Mounted {
    type Target = StrakeVfs;

    fn deref(&self) -> &StrakeVfs {
        &self.vfs
    }
}

impl Mounted {
    /// What the threads do when their time has come, at once.
    pub(crate) fn tend(&self) {
        self.vfs.tend();
        self.manager.recover_nsds();
    }

    /// An orderly end.
    pub(crate) fn shutdown(&self) -> Result<FlushReport> {
        self.manager.stop();
        self.vfs.shutdown()
    }
}

/// A file system in memory that can be started again and again.
pub(crate) struct Rig {
    pub(crate) nsds: Vec<Arc<MemoryNsd>>,
    pub(crate) meta: Arc<CrashMeta>,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
}

pub(crate) const BLOCK_SIZE: u32 = 256 << 10;
/// The tokens of so few files that they are given back for room in most tests.
pub(crate) const FILES_KEPT: usize = 6;

impl Rig {
    pub(crate) fn new(code: &str, count: u16) -> Rig {
        Rig::with_block_size(code, count, BLOCK_SIZE)
    }

    pub(crate) fn with_block_size(code: &str, count: u16, block_size: u32) -> Rig {
        let code: Code = code.parse().expect("a code");
        Rig::of(count, Configuration { block_size, ..configuration(code, count) })
    }

    /// With so many NSDs in each failure group.
    pub(crate) fn in_groups(code: &str, count: u16, group: u16) -> Rig {
        let code: Code = code.parse().expect("a code");
        let group_of = |at: u16| (NsdId(u32::from(at) + 1), u32::from(at / group));
        let pool = PoolMap::new((0..count).map(group_of));
        Rig::of(count, Configuration { pool, ..configuration(code, count) })
    }

    fn of(count: u16, configuration: Configuration) -> Rig {
        let meta = CrashMeta::new();
        let format = MetaOp::Format(Box::new(configuration));
        let time = Timestamp { seconds: 1_000, nanos: 0 };
        let entry = MetaEntry { client: ClientId(1), sequence: 0, time, op: format };
        meta.apply(&entry).expect("formats");
        meta.sync().expect("syncs");
        let nsds = (0..count).map(|at| MemoryNsd::new(NsdId(u32::from(at) + 1))).collect();
        Rig { nsds, meta, settings: Settings::test_min(), clock: RealClock::shared() }
    }

    /// With NSDs that have no slot yet.
    pub(crate) fn with_spares(code: &str, count: u16, spares: u16) -> Rig {
        let mut rig = Rig::new(code, count);
        let spare = |at: u16| MemoryNsd::new(NsdId(u32::from(at) + 1));
        rig.nsds.extend((count..count + spares).map(spare));
        rig
    }

    pub(crate) fn port(&self, at: usize) -> Option<Arc<dyn NsdPort>> {
        Some(Arc::clone(&self.nsds[at]) as Arc<dyn NsdPort>)
    }

    /// Starts with all NSDs but those in `away` (a mask).
    pub(crate) fn start(&self, away: u32) -> Mounted {
        self.try_start(away).expect("starts")
    }

    fn open(
        &self,
        away: u32,
        client: ClientId,
        meta: Arc<dyn MetaPort>,
        beside_others: bool,
    ) -> Result<Arc<Array>> {
        let nsds = (0..self.nsds.len())
            .map(|at| {
                let there = away >> at & 1 == 0;
                (SlotIndex(at as u16), if there { self.port(at) } else { None })
            })
            .collect();
        let all = self.nsds.clone();
        let find = move |nsd: NsdId| {
            let found = all.get((nsd.0 as usize).checked_sub(1)?)?;
            Some(Arc::clone(found) as Arc<dyn NsdPort>)
        };
        Array::open(ArrayOptions {
            meta,
            nsds,
            clock: Arc::clone(&self.clock),
            observe: Observe::new(Arc::clone(&self.clock), 512),
            client,
            io_threads: self.settings.io_threads,
            beside_others,
            find: beside_others.then(|| Arc::new(find) as FindNsd),
        })
    }

    /// The service of tokens of a file system that was repaired before.
    pub(crate) fn tokens(&self, clients: &[ClientId]) -> Arc<TokenService> {
        let meta = Arc::clone(&self.meta) as Arc<dyn MetaPort>;
        let times =
            Times { hold_min: Duration::from_micros(200), repeat: Duration::from_millis(500) };
        TokenService::start(clients, times, meta, Arc::clone(&self.clock), Arc::new(()))
            .expect("starts")
    }

    /// One of several mounts.
    pub(crate) fn start_beside(
        &self,
        leader: &Arc<Leader>,
        client: ClientId,
    ) -> (Arc<StrakeVfs>, Arc<Tokens>) {
        self.start_keeping(FILES_KEPT, leader, client)
    }

    /// One of several mounts, which keeps the tokens of so many files.
    pub(crate) fn start_keeping(
        &self,
        files: usize,
        leader: &Arc<Leader>,
        client: ClientId,
    ) -> (Arc<StrakeVfs>, Arc<Tokens>) {
        let meta = Arc::clone(leader) as Arc<dyn MetaPort>;
        let array = self.open(0, client, meta, true).expect("opens");
        let (clock, observe) = (Arc::clone(&self.clock), Arc::clone(&array.observe));
        let service = leader.service();
        let way = Arc::new(WayToLeader { leader: Arc::clone(leader), client });
        let own = Tokens::new(service.term(), way, clock, observe, files);
        service.join(client, Arc::clone(&own) as Arc<dyn ToClient>);
        let vfs = StrakeVfs::start_with_tokens(array, self.settings.clone(), Arc::clone(&own));
        (vfs.expect("starts"), own)
    }

    /// The manager of a file system with several mounts, after it has put right what the mounts
    /// before left. The leader's service was started with [`CREW`] among those that had joined.
    pub(crate) fn start_crew(&self, leader: &Arc<Leader>) -> Crew {
        let service = leader.service();
        let array = self.open(0, CREW, service.metadata(), true).expect("opens");
        let (clock, observe) = (Arc::clone(&self.clock), Arc::clone(&array.observe));
        let way = Arc::new(WayToLeader { leader: Arc::clone(leader), client: CREW });
        let own = Tokens::new(service.term(), way, clock, observe, FILES_KEPT);
        let settings = self.settings.clone();
        let vfs = StrakeVfs::start_with_tokens(Arc::clone(&array), settings, Arc::clone(&own));
        let vfs = vfs.expect("starts");
        bury(&service, &vfs, CREW);
        service.join(CREW, own);
        array.io.nsds().follow_map().expect("followed");
        let exclusion = Arc::clone(&vfs) as Arc<dyn Exclusion>;
        let manager = Manager::start_beside(array, exclusion, Arc::clone(&service));
        Crew { manager: manager.expect("starts"), vfs, service }
    }

    pub(crate) fn try_start(&self, away: u32) -> Result<Mounted> {
        let meta = Arc::clone(&self.meta) as Arc<dyn MetaPort>;
        let array = self.open(away, ClientId(1), meta, false)?;
        let recovered = after_crash::recover(&array)?;
        let vfs = StrakeVfs::start(Arc::clone(&array), self.settings.clone())?;
        let manager = Manager::start(array, Arc::clone(&vfs) as Arc<dyn Exclusion>)?;
        Ok(Mounted { manager, vfs, recovered })
    }

    /// A power cut: everything not durable is lost everywhere.
    pub(crate) fn crash(&self) {
        self.meta.crash(0);
        self.nsds.iter().for_each(|nsd| nsd.crash());
    }

    /// From now on nothing answers.
    pub(crate) fn freeze(&self) {
        // The metadata first: what it does not get can not be acknowledged.
        self.meta.freeze();
        self.nsds.iter().for_each(|nsd| nsd.set_down(true));
    }

    /// A power cut that may leave more than was promised: some NSDs had made all durable, and the
    /// metadata some entries more.
    pub(crate) fn power_cut(&self, rng: &mut Rng) {
        let more = if rng.one_in(2) { 0 } else { rng.index(20) };
        self.meta.crash(more);
        let mask = if rng.one_in(2) { rng.next_u64() } else { 0 };
        for (at, nsd) in self.nsds.iter().enumerate() {
            if mask >> at & 1 == 1 {
                nsd.keep_all();
            }
            nsd.crash();
        }
    }

    /// Inodes that the metadata has.
    pub(crate) fn inodes(&self) -> u64 {
        match self.meta.query(&MetaQuery::Counts).expect("answers") {
            MetaReply::Counts(counts) => counts.inodes,
            other => panic!("{other:?}"),
        }
    }

    /// Patches that NSDs have accepted.
    pub(crate) fn patches(&self) -> u64 {
        self.nsds.iter().map(|nsd| nsd.patches()).sum()
    }

    /// Strips and kept versions that a clean shutdown should not leave unsettled.
    pub(crate) fn unsettled(&self) -> usize {
        self.nsds.iter().map(|nsd| nsd.unsettled()).sum()
    }
}

/// The manager's client.
pub(crate) const CREW: ClientId = ClientId(1);

/// The manager of several mounts, and its client.
pub(crate) struct Crew {
    /// First, so that its threads end before what they use.
    pub(crate) manager: Manager,
    pub(crate) vfs: Arc<StrakeVfs>,
    pub(crate) service: Arc<TokenService>,
}

impl Crew {
    /// A mount has died. What it left is put right.
    pub(crate) fn bury(&self, client: ClientId) {
        bury(&self.service, &self.vfs, client);
    }

    pub(crate) fn end(self) {
        self.manager.stop();
        self.vfs.shutdown().expect("ends");
        self.service.gone(CREW);
    }
}

fn bury(service: &TokenService, vfs: &StrakeVfs, client: ClientId) {
    if client != CREW {
        service.close(&[client].into()).expect("closed");
    }
    let heal = |number, of: &dyn Fn(Ino) -> bool| {
        vfs.array().io.versions().raise(number);
        after_crash::recover_files(vfs.array(), of)?;
        vfs.fold(of).map(drop)
    };
    service.bury(&[client].into(), &heal).expect("buried");
}

/// The leader of the moment.
pub(crate) struct Leader {
    service: RwLock<Arc<TokenService>>,
    gate: Mutex<Gate>,
    /// Holds up some answers: see [`Leader::shut_reserving`].
    reserving: Mutex<Gate>,
    moved: Condvar,
    /// Calls of the metadata and messages about tokens that it was sent.
    heard: AtomicU64,
    /// Directories that it was asked to list.
    listings: AtomicU64,
    /// Names that it was asked for.
    lookups: AtomicU64,
    /// How often it was asked to make changes durable.
    syncs: AtomicU64,
    /// Changes that programs did not wait for.
    pub(crate) told_later: AtomicU64,
    /// Whether it refuses such changes, which must not happen.
    pub(crate) refuses_later: AtomicBool,
    older: AtomicBool,
}

/// A mode that the gate holds up.
pub(crate) const HELD_UP: u32 = 0o001;
/// A file's size that the gate holds up.
pub(crate) const HELD_UP_SIZE: u64 = 4321;

/// Holds up access times that are told to the metadata, a mode, and a size.
#[derive(PartialEq)]
enum Gate {
    Open,
    Shut,
    /// It is shut, and somebody waits.
    Reached,
}

impl Leader {
    pub(crate) fn new(service: Arc<TokenService>) -> Arc<Leader> {
        let (gate, moved) = (Mutex::new(Gate::Open), Condvar::new());
        let [heard, listings, lookups, syncs] = [0; 4].map(AtomicU64::new);
        Arc::new(Leader {
            service: RwLock::new(service),
            gate,
            reserving: Mutex::new(Gate::Open),
            moved,
            heard,
            told_later: AtomicU64::new(0),
            refuses_later: AtomicBool::new(false),
            older: AtomicBool::new(false),
            listings,
            lookups,
            syncs,
        })
    }

    pub(crate) fn service(&self) -> Arc<TokenService> {
        Arc::clone(&self.service.read())
    }

    /// How many calls and messages it was sent.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::SeqCst)
    }

    /// How often it was asked to list a directory.
    pub(crate) fn listings(&self) -> u64 {
        self.listings.load(Ordering::SeqCst)
    }

    /// How often it was asked for a name.
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::SeqCst)
    }

    /// How often it was asked to make changes durable.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::SeqCst)
    }

    /// Whether it runs a program of the first feature level.
    pub(crate) fn set_older(&self, older: bool) {
        self.older.store(older, Ordering::SeqCst);
    }

    fn hear(&self) {
        self.heard.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on another one leads. What is on its way to the old one is lost or void.
    pub(crate) fn change(&self, service: Arc<TokenService>) {
        *self.service.write() = service;
    }

    /// Holds up the next access time that a client tells, the next mode that is [`HELD_UP`], or the
    /// next [`HELD_UP_SIZE`].
    pub(crate) fn shut_gate(&self) {
        *self.gate.lock() = Gate::Shut;
    }

    pub(crate) fn await_gate_reached(&self) {
        self.moved.wait_while(&mut self.gate.lock(), |gate| *gate != Gate::Reached);
    }

    pub(crate) fn open_gate(&self) {
        *self.gate.lock() = Gate::Open;
        self.moved.notify_all();
    }

    /// Holds up the next answer that gives a client an object, removes a directory or gives an
    /// inode another name.
    pub(crate) fn shut_reserving(&self) {
        *self.reserving.lock() = Gate::Shut;
    }

    pub(crate) fn await_reserved(&self) {
        self.moved.wait_while(&mut self.reserving.lock(), |gate| *gate != Gate::Reached);
    }

    pub(crate) fn open_reserving(&self) {
        *self.reserving.lock() = Gate::Open;
        self.moved.notify_all();
    }

    fn pass_gate(&self, op: &MetaOp) {
        let is_held_up = match op {
            MetaOp::SetAttr { change: AttrChange { quiet, permissions, .. }, .. } => {
                *quiet || *permissions == Some(HELD_UP)
            }
            MetaOp::Update { size, .. } => *size == HELD_UP_SIZE,
            _ => false,
        };
        if is_held_up {
            self.wait_at(&self.gate);
        }
    }

    fn wait_at(&self, gate: &Mutex<Gate>) {
        let mut gate = gate.lock();
        if *gate == Gate::Shut {
            *gate = Gate::Reached;
            self.moved.notify_all();
            self.moved.wait_while(&mut gate, |gate| *gate != Gate::Open);
        }
    }
}

impl MetaPort for Leader {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.hear();
        let is_listing = matches!(query, MetaQuery::ReadDir { .. });
        self.listings.fetch_add(u64::from(is_listing), Ordering::SeqCst);
        let is_lookup = matches!(query, MetaQuery::Lookup { .. } | MetaQuery::LookupOrNext { .. });
        self.lookups.fetch_add(u64::from(is_lookup), Ordering::SeqCst);
        if self.older.load(Ordering::SeqCst) {
            feature::check_spoken(feature::of_query(query), feature::OLDEST_PROTOCOL)?;
        }
        self.service().metadata().query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.hear();
        self.apply_one(entry)
    }

    fn apply_all(&self, entries: &[MetaEntry]) -> Vec<Result<MetaReply>> {
        self.hear();
        apply_in_order(entries, |entry| self.apply_one(entry))
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.service().metadata().sync()
    }
}

impl Leader {
    fn apply_one(&self, entry: &MetaEntry) -> Result<MetaReply> {
        if self.older.load(Ordering::SeqCst) {
            feature::check_spoken(feature::of_change(&entry.op), feature::OLDEST_PROTOCOL)?;
        }
        let is_later = matches!(entry.op, MetaOp::CreateAs { .. } | MetaOp::Remove { .. });
        let is_object = matches!(entry.op, MetaOp::NewObjectAs { .. });
        self.told_later.fetch_add(u64::from(is_later || is_object), Ordering::SeqCst);
        if is_later && self.refuses_later.load(Ordering::SeqCst) {
            return Err(strake_proto::ErrorKind::Exists.into());
        }
        self.pass_gate(&entry.op);
        let reply = self.service().metadata().apply(entry);
        use MetaOp::{Link, NewObject, Rmdir};
        if matches!(entry.op, NewObject { .. } | Rmdir { .. } | Link { .. }) {
            self.wait_at(&self.reserving);
        }
        reply
    }
}

struct WayToLeader {
    leader: Arc<Leader>,
    client: ClientId,
}

impl ToAuthority for WayToLeader {
    fn send(&self, term: Term, message: Request) {
        self.leader.hear();
        self.leader.service().way_of(self.client).send(term, message);
    }

    fn send_all(&self, term: Term, messages: Vec<Request>) {
        self.leader.hear();
        self.leader.service().way_of(self.client).send_all(term, messages);
    }
}

/// Asserts that all strips of a file are there, match their checksums, and decode together.
pub(crate) fn assert_whole(vfs: &StrakeVfs, ino: Ino, context: &str) {
    let inode = vfs.mount.table.pin(ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let content = file.content.read();
    let Content::Object(layout) = &*content else { return };
    let (array, all) = (&vfs.mount.array, (BlockIndex(0), BlockIndex::END));
    let floor = |block| array.floors.floor(layout.object, block);
    for block in array.io.blocks(layout, all, &floor).expect("listed").into_keys() {
        let health = array.io.examine(layout, block, floor(block)).expect("readable");
        assert_eq!(health.wrong, [], "{context}: block {block} of inode {ino}");
    }
}

/// Sends a block, if it is in memory, as a writer behind does it: it is accepted then, and nobody
/// has committed yet.
pub(crate) fn send_block(vfs: &StrakeVfs, ino: Ino, index: u64) {
    try_send_block(vfs, ino, index).expect("sent");
}

/// Like [`send_block`], where NSDs may be away.
pub(crate) fn try_send_block(vfs: &StrakeVfs, ino: Ino, index: u64) -> Result<()> {
    let inode = vfs.mount.table.pin(ino);
    let file = vfs.mount.file(&inode).expect("a file");
    match file.find_block(index) {
        Some(block) => flush_block(&vfs.mount, &inode, &file, &block),
        None => Ok(()),
    }
}

fn configuration(code: Code, count: u16) -> Configuration {
    Configuration {
        cluster: ClusterId([7; 16]),
        name: "tests".to_owned(),
        code,
        block_size: BLOCK_SIZE,
        pool: PoolMap::new((0..u32::from(count)).map(|at| (NsdId(at + 1), at))),
        created: Timestamp { seconds: 1_000, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}
