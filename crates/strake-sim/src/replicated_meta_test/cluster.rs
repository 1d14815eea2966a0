//! Three nodes: each with a disk for the journal of its replica, a disk for its store, and a way to
//! the others that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::disk::sim::Sequence;
use strake_env::sync::Mutex;
use strake_env::{AlignedBuffer, Clock, Disk, RealClock, Rng, SimDisk};
use strake_meta::replicated::{
    ReplicatedMeta, ReplicatedOptions, Rule, Rules, TermPort, open_store,
};
use strake_proto::meta::MetaOp;
use strake_proto::nsd::ScrubPart;
use strake_proto::{ClusterId, Error, ErrorKind, FeatureLevel, FsId, NsdId};
use strake_replica::core::{Config, RoleName};
use strake_replica::journal::{Identity, Journal};
use strake_replica::membership::Membership;
use strake_replica::replica::Parts;
use strake_replica::types::ReplicaId;
use strake_replica::{Replica, Transport};
use strake_store::{ChunkSource, Container, FormatOptions, Kv, KvRead, UnusedChunks};

pub(super) const CLUSTER: ClusterId = ClusterId([9; 16]);
const JOURNAL_BYTES: u64 = 512 << 10;
const STORE_BYTES: u64 = 32 << 20;
/// A call to a paused node looks so often whether the pause is over.
const STEP: Duration = Duration::from_millis(5);

/// The level that changes of the configuration need here, and programs understand.
pub(super) const LEVEL: FeatureLevel = FeatureLevel(2);

fn level_of(op: &MetaOp) -> FeatureLevel {
    match op {
        MetaOp::SetConfig { .. } => LEVEL,
        _ => FeatureLevel::FIRST,
    }
}

/// What a node loses when its power goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// What was not synced.
    Unsynced,
    /// That, and the disk of its store.
    Store,
}

struct Node {
    sequence: Sequence,
    journal: Arc<SimDisk>,
    store: Arc<SimDisk>,
    meta: Option<Arc<ReplicatedMeta>>,
    kv: Option<Arc<Kv>>,
}

/// What is between the nodes.
pub(super) struct Room {
    there: Mutex<BTreeMap<ReplicaId, Weak<Replica>>>,
    rng: Mutex<Rng>,
    /// Counts the starts of each node. Earlier ones reach nobody.
    starts: Mutex<BTreeMap<ReplicaId, usize>>,
    cuts: Mutex<BTreeSet<(ReplicaId, ReplicaId)>>,
    paused: Mutex<BTreeSet<ReplicaId>>,
    /// The feature level that the programs of these nodes understand. All others understand
    /// [`LEVEL`].
    older: Mutex<BTreeMap<ReplicaId, u32>>,
}

impl Room {
    /// Waits while a node is paused.
    pub(super) fn pass(&self, id: ReplicaId) {
        while self.paused.lock().contains(&id) {
            RealClock.sleep(STEP);
        }
    }
}

/// The way from one start of a node into the room.
struct Way {
    room: Arc<Room>,
    from: ReplicaId,
    start: usize,
}

impl Transport for Way {
    fn send(&self, to: ReplicaId, message: Vec<u8>) {
        self.room.pass(self.from);
        let is_up = self.room.starts.lock().get(&self.from) == Some(&self.start);
        let is_cut = self.room.cuts.lock().contains(&(self.from, to));
        let is_paused = self.room.paused.lock().contains(&to);
        if !is_up || is_cut || is_paused || self.room.rng.lock().one_in(20) {
            return;
        }
        let there = self.room.there.lock().get(&to).and_then(Weak::upgrade);
        if let Some(replica) = there {
            replica.deliver(|id| id == self.from, &message).expect("what was sent arrives");
        }
    }
}

pub(super) struct Cluster {
    pub(super) room: Arc<Room>,
    nodes: Mutex<BTreeMap<ReplicaId, Node>>,
    source: Arc<dyn ChunkSource>,
    rules: Rules,
}

fn format_store(id: ReplicaId, disk: &Arc<SimDisk>) {
    let options = FormatOptions {
        cluster: CLUSTER,
        nsd: NsdId(id.0),
        fs: FsId(1),
        failure_group: id.0,
        seed: u64::from(id.0),
    };
    Container::format(disk.clone() as Arc<dyn Disk>, &options).expect("formats");
}

/// Flips a bit of a byte that is not 0.
fn flip(disk: &SimDisk, within: Range<u64>, rng: &mut Rng) {
    let mut bytes = AlignedBuffer::zeroed((within.end - within.start) as usize);
    disk.read_at(within.start, &mut bytes).expect("reads");
    let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = within.start + written[rng.index(written.len())] as u64;
    disk.flip(at, 1 << rng.below(8));
}

impl Cluster {
    pub(super) fn new(seed: u64, without: Option<Rule>) -> Cluster {
        let room = Room {
            there: Mutex::default(),
            rng: Mutex::new(Rng::new(seed)),
            starts: Mutex::default(),
            cuts: Mutex::default(),
            paused: Mutex::default(),
            older: Mutex::default(),
        };
        let (source, nodes) = (UnusedChunks::shared(), Mutex::default());
        let cluster = Cluster { room: Arc::new(room), nodes, source, rules: Rules { without } };
        for id in [1, 2, 3].map(ReplicaId) {
            let sequence = Sequence::default();
            let journal = SimDisk::with_sequence(JOURNAL_BYTES, &sequence);
            let store = SimDisk::with_sequence(STORE_BYTES, &sequence);
            let members = Membership::of([1, 2, 3].map(ReplicaId));
            let identity = Identity { cluster: CLUSTER, replica: id };
            Journal::create(journal.clone(), identity, Some(members)).expect("the disk is new");
            format_store(id, &store);
            let node = Node { sequence, journal, store, meta: None, kv: None };
            cluster.nodes.lock().insert(id, node);
            cluster.start(id);
        }
        cluster
    }

    pub(super) fn start(&self, id: ReplicaId) {
        let (journal, store) = {
            let nodes = self.nodes.lock();
            (nodes[&id].journal.clone(), nodes[&id].store.clone())
        };
        let container = Container::open(store as Arc<dyn Disk>).expect("a superblock survives");
        container.set_chunk_source(&self.source);
        let identity = Identity { cluster: CLUSTER, replica: id };
        let disk = journal.clone() as Arc<dyn Disk>;
        let kv = open_store(&container, &disk, identity, 1 << 20).expect("opens");
        let kv = Arc::new(kv);
        let config = Config {
            heartbeat: Duration::from_millis(20),
            election: Duration::from_millis(150),
            lease: Duration::from_millis(100),
            log_bytes_max: 12_000,
            part_bytes: 200,
            kept_entries: 5,
            linger: Duration::from_millis(3),
            supports: self.room.older.lock().get(&id).copied().unwrap_or(LEVEL.0),
            ..Config::new(id)
        };
        let start = *self.room.starts.lock().entry(id).or_default();
        let transport = Arc::new(Way { room: Arc::clone(&self.room), from: id, start });
        let clock = RealClock::shared();
        let (wait_max, waits) = (Duration::from_secs(1), Arc::new(()));
        let rules = self.rules;
        let options = ReplicatedOptions {
            nsd: NsdId(id.0),
            wait_max,
            clock: clock.clone(),
            waits: waits.clone(),
            rules,
            level_of,
        };
        let meta = ReplicatedMeta::start(Arc::clone(&kv), options, |machine| {
            let parts =
                Parts { cluster: CLUSTER, config, disk: journal, machine, transport, clock, waits };
            Replica::start(parts).map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))
        });
        let meta = Arc::new(meta.expect("its disks are there"));
        self.room.there.lock().insert(id, Arc::downgrade(meta.replica()));
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(&id).expect("it exists");
        (node.meta, node.kv) = (Some(meta), Some(kv));
    }

    /// The power of a node goes.
    pub(super) fn crash(&self, id: ReplicaId, loss: Loss, rng: &mut Rng) {
        *self.room.starts.lock().entry(id).or_default() += 1;
        self.room.there.lock().remove(&id);
        let (meta, left) = {
            let mut nodes = self.nodes.lock();
            let node = nodes.get_mut(&id).expect("it exists");
            node.kv = None;
            // What it does from here on is on disks that nobody sees again.
            let position = node.journal.position();
            let left = [&node.journal, &node.store].map(|disk| {
                let mut cuts = disk.power_cuts().counting_in(&node.sequence);
                cuts.advance(position);
                cuts.crash(rng)
            });
            (node.meta.take(), left)
        };
        if let Some(meta) = meta {
            meta.replica().stop();
        }
        let [journal, mut store] = left;
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(&id).expect("it exists");
        if loss == Loss::Store {
            store = SimDisk::with_sequence(STORE_BYTES, &node.sequence);
            format_store(id, &store);
        }
        (node.journal, node.store) = (journal, store);
    }

    pub(super) fn pause(&self, id: ReplicaId, is_paused: bool) {
        match is_paused {
            true => self.room.paused.lock().insert(id),
            false => self.room.paused.lock().remove(&id),
        };
    }

    /// Cuts a node off: in both directions, or so that the others do not hear it.
    pub(super) fn cut(&self, id: ReplicaId, one_way: bool) {
        let mut cuts = self.room.cuts.lock();
        for other in [1, 2, 3].map(ReplicaId) {
            cuts.insert((id, other));
            if !one_way {
                cuts.insert((other, id));
            }
        }
    }

    pub(super) fn heal(&self) {
        self.room.cuts.lock().clear();
    }

    fn metas(&self) -> Vec<(ReplicaId, Arc<ReplicatedMeta>)> {
        let nodes = self.nodes.lock();
        let up = nodes.iter().filter_map(|(&id, node)| Some((id, Arc::clone(node.meta.as_ref()?))));
        up.collect()
    }

    /// The ports of all nodes that think that they lead, the newest term last.
    pub(super) fn ports(&self) -> Vec<(ReplicaId, TermPort)> {
        let ports = self.metas().into_iter().filter_map(|(id, meta)| Some((id, meta.port()?)));
        let mut ports: Vec<_> = ports.collect();
        ports.sort_by_key(|(_, port)| port.term());
        ports
    }

    pub(super) fn leader(&self) -> Option<(ReplicaId, TermPort)> {
        self.ports().pop()
    }

    /// Whether all nodes are up and have their states and their words.
    pub(super) fn all_are_whole(&self) -> bool {
        let metas = self.metas();
        let is_whole = |role| !matches!(role, RoleName::Asking | RoleName::Lacking);
        metas.len() == 3 && metas.iter().all(|(_, meta)| is_whole(meta.replica().status().role))
    }

    /// A node to which a copy comes.
    pub(super) fn lacking(&self) -> Option<ReplicaId> {
        let is_lacking = |meta: &ReplicatedMeta| meta.replica().status().role == RoleName::Lacking;
        self.metas().into_iter().find(|(_, meta)| is_lacking(meta)).map(|(id, _)| id)
    }

    /// Whether all nodes have applied the same entries, the last one of the log.
    pub(super) fn all_are_level(&self) -> bool {
        let statuses: Vec<_> =
            self.metas().iter().map(|(_, meta)| meta.replica().status()).collect();
        let last = statuses.iter().map(|status| status.last.position).max();
        for status in &statuses {
            assert_eq!(status.ended, None);
        }
        self.all_are_whole() && statuses.iter().all(|status| Some(status.applied) == last)
    }

    /// A node's power goes, and its next program understands this feature level.
    pub(super) fn start_as(&self, id: ReplicaId, level: FeatureLevel) {
        self.crash(id, Loss::Unsynced, &mut Rng::new(u64::from(id.0)));
        self.room.older.lock().insert(id, level.0);
        self.start(id);
    }

    /// The node's replica.
    pub(super) fn replica(&self, id: ReplicaId) -> Arc<Replica> {
        let nodes = self.nodes.lock();
        Arc::clone(nodes[&id].meta.as_ref().expect("it is up").replica())
    }

    /// All records of each node's store.
    pub(super) fn records(&self) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
        let nodes = self.nodes.lock();
        let all = nodes.values().map(|node| {
            let mut records = Vec::new();
            let kv = node.kv.as_ref().expect("all are up");
            let mut visit = |key: &[u8], value: &[u8]| {
                records.push((key.to_vec(), value.to_vec()));
                true
            };
            kv.scan(&[], &[0xff], &mut visit).expect("reads");
            records
        });
        all.collect()
    }

    /// Flips a bit in every page of what a node's store has on its disk.
    pub(super) fn damage(&self, id: ReplicaId) {
        let nodes = self.nodes.lock();
        let node = &nodes[&id];
        let kv = node.kv.as_ref().expect("it is up");
        kv.checkpoint().expect("there is space");
        let container = Container::open(node.store.clone() as Arc<dyn Disk>).expect("opens");
        for chunk in &container.superblock().metadata_kv.chunks {
            for at in container.geometry().chunk_range(*chunk).step_by(4096) {
                node.store.flip(at + 100, 4);
            }
        }
        kv.forget_caches();
    }

    /// Makes a checkpoint of a node's store, and forgets what caches have of it.
    pub(super) fn settle(&self, id: ReplicaId) {
        let nodes = self.nodes.lock();
        let kv = nodes[&id].kv.as_ref().expect("it is up");
        kv.checkpoint().expect("there is space");
        kv.forget_caches();
    }

    /// Flips a bit of what is written on the disk of a node's journal.
    pub(super) fn flip_in_journal(&self, id: ReplicaId, rng: &mut Rng) {
        let journal = Arc::clone(&self.nodes.lock()[&id].journal);
        flip(&journal, 0..JOURNAL_BYTES, rng);
    }

    /// Flips a bit of what is written in a node's store.
    pub(super) fn flip_in_store(&self, id: ReplicaId, rng: &mut Rng) {
        let store = Arc::clone(&self.nodes.lock()[&id].store);
        let container = Container::open(store.clone() as Arc<dyn Disk>).expect("opens");
        let chunk = container.superblock().metadata_kv.chunks[0];
        flip(&store, container.geometry().chunk_range(chunk), rng);
    }

    /// Scrubs all parts of a node's copy.
    pub(super) fn scrub(&self, id: ReplicaId) -> ScrubPart {
        let meta = Arc::clone(self.nodes.lock()[&id].meta.as_ref().expect("it is up"));
        let (mut sum, mut next) = (ScrubPart::default(), Some(0));
        while let Some(part) = next {
            let found = meta.scrub(part).expect("its disks can be read");
            assert_eq!(found.bad > 0, found.fault.is_some(), "{found:?}");
            sum.bytes += found.bytes;
            sum.bad += found.bad;
            sum.mended += found.mended;
            next = found.next;
        }
        sum
    }

    /// Ends nodes that cannot go on, and starts them again on what their disks have.
    pub(super) fn start_ended(&self) -> Vec<ReplicaId> {
        let ended = self.metas().into_iter().filter(|(_, meta)| meta.fault().is_some());
        let ended: Vec<_> = ended.collect();
        for (id, meta) in &ended {
            self.room.there.lock().remove(id);
            meta.stop();
            let mut nodes = self.nodes.lock();
            let node = nodes.get_mut(id).expect("it exists");
            (node.meta, node.kv) = (None, None);
            drop(nodes);
            self.start(*id);
        }
        ended.into_iter().map(|(id, _)| id).collect()
    }

    pub(super) fn stop(&self) {
        self.metas().iter().for_each(|(_, meta)| meta.stop());
    }
}
