//! Three replicas with one log, and leaders that decide ahead of it. A leader is replaced at any
//! moment, and what it decided and nobody committed is gone.
//!
//! The model is the log itself: a replica that only ever commits. All others must have the same
//! bytes at the same position. What is read ahead must be what one flat store would have.

use super::*;
use crate::MemoryKv;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::testing::{configuration, create, entry, link, new_inode, unlink};
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::meta::{CountedEntry, MetaEntry, MetaOp};
use strake_proto::{ClientId, Error, ErrorKind, FileType, Ino, Timestamp};

const REPLICAS: usize = 3;
const CLIENTS: u64 = 3;
const STEPS: usize = 600;

/// The log: bytes for the state machine, or the beginning of a term.
#[derive(Default)]
struct Log {
    committed: Vec<Option<Vec<u8>>>,
    /// The entries that the leader has proposed.
    proposed: VecDeque<Option<Vec<u8>>>,
}

/// A client: what it was told, in order, and how much of that is durable.
struct Client {
    life: u64,
    told: Vec<(CountedEntry, CountedAnswer)>,
    synced: usize,
}

struct World {
    rng: Rng,
    log: Log,
    replicas: Vec<Ahead<MemoryKv>>,
    leader: usize,
    clients: Vec<Client>,
    /// How many entries were decided ahead and dropped.
    dropped: usize,
}

fn plain(op: MetaOp) -> Vec<u8> {
    let entry = entry(1, op);
    encode_entry(LogEntryRef::Plain(&entry)).expect("encodes")
}

impl World {
    fn new(seed: u64) -> World {
        let format = plain(MetaOp::Format(Box::new(configuration())));
        let log = Log { committed: vec![None, Some(format)], ..Log::default() };
        let replicas = (0..REPLICAS).map(|_| Ahead::new(MemoryKv::default(), 0)).collect();
        let client = |number| Client { life: number + 1, told: Vec::new(), synced: 0 };
        let clients = (0..CLIENTS).map(client).collect();
        let rng = Rng::new(seed);
        let mut world = World { rng, log, replicas, leader: 0, clients, dropped: 0 };
        world.catch_up(0, 2);
        for client in 0..CLIENTS as usize {
            world.call(client, MetaOp::Join);
        }
        world
    }

    /// A replica hears that the log is committed up to a position.
    fn catch_up(&mut self, replica: usize, position: u64) {
        let replica = &mut self.replicas[replica];
        while replica.committed() < position {
            let next = replica.committed() + 1;
            let bytes = self.log.committed[next as usize - 1].as_deref();
            replica.commit(bytes, next).expect("what was committed applies");
        }
        replica.check();
    }

    fn end(&self) -> u64 {
        self.log.committed.len() as u64
    }

    /// Sends an entry to the leader.
    fn send(&mut self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let bytes = encode_entry(LogEntryRef::Counted(counted))?;
        let position = self.end() + self.log.proposed.len() as u64 + 1;
        let leader = &mut self.replicas[self.leader];
        let (answer, changes) = leader.decide(&bytes, position)?;
        if !changes.is_empty() {
            leader.add(&bytes, position, changes);
            self.log.proposed.push_back(Some(bytes));
        }
        leader.check();
        Ok(answer)
    }

    fn call(&mut self, client: usize, op: MetaOp) {
        let Client { life, told, .. } = &self.clients[client];
        let sequence = told.len() as u64 + 1;
        let time = Timestamp { seconds: sequence as i64, nanos: 0 };
        let entry = MetaEntry { client: ClientId(client as u64 + 1), sequence, time, op };
        let counted = CountedEntry { life: *life, oldest: sequence, entry };
        let answer = self.send(&counted).expect("it has a place in the window");
        self.clients[client].told.push((counted, answer));
    }

    /// The majority gets some of what was proposed.
    fn commit_some(&mut self) {
        let count = self.rng.index(self.log.proposed.len() + 1);
        self.log.committed.extend(self.log.proposed.drain(..count));
        if self.rng.one_in(2) {
            self.catch_up(self.leader, self.end());
        }
    }

    /// Everything that a client was told is durable.
    fn sync(&mut self, client: usize) {
        self.log.committed.extend(self.log.proposed.drain(..));
        let client = &mut self.clients[client];
        client.synced = client.told.len();
    }

    /// Another replica leads. What nobody committed is gone, and clients send it again.
    fn change_leader(&mut self) {
        self.log.proposed.clear();
        // A term may come and go without an entry of the old leader's hearing of it.
        let before = self.leader;
        self.leader = (before + 1 + self.rng.index(REPLICAS - 1)) % REPLICAS;
        self.log.committed.push(None);
        if self.rng.one_in(2) {
            self.dropped += self.replicas[before].drop_tail();
        }
        self.catch_up(self.leader, self.end());
        // Each client sends again in its order. They share no names, so theirs may be mixed.
        for client in 0..self.clients.len() {
            let synced = self.clients[client].synced;
            let again: Vec<_> = self.clients[client].told[synced..].to_vec();
            for (counted, told) in again {
                match self.send(&counted) {
                    Ok(answer) => assert_eq!(kind(&answer), kind(&told), "the same answer"),
                    // A later change of the client is in the log, so this one is too.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Stale, "{error}"),
                }
            }
        }
    }

    fn step(&mut self) {
        let client = self.rng.index(self.clients.len());
        match self.rng.index(12) {
            0..6 => {
                let name = |rng: &mut Rng| format!("c{client}-{}", rng.index(6));
                let (name, other) = (name(&mut self.rng), name(&mut self.rng));
                let op = match self.rng.index(4) {
                    0 | 1 => create(Ino::ROOT, &name, new_inode(FileType::Regular)),
                    2 => unlink(Ino::ROOT, &name, false),
                    _ => {
                        let known = query_name(&self.replicas[self.leader], &name);
                        known.map_or_else(
                            || unlink(Ino::ROOT, &other, false),
                            |ino| link(ino, Ino::ROOT, &other),
                        )
                    }
                };
                self.call(client, op);
            }
            6..9 => self.commit_some(),
            9 => self.sync(client),
            10 => {
                let replica = self.rng.index(REPLICAS);
                let position = self.replicas[replica].committed();
                let more = self.rng.index((self.end() - position) as usize + 1) as u64;
                self.catch_up(replica, position + more);
            }
            _ => self.change_leader(),
        }
        self.judge();
    }

    /// The layer reads as a flat store with the same entries does.
    fn judge(&mut self) {
        let leader = &self.replicas[self.leader];
        let mut flat = leader.base().clone();
        for Decided { changes, .. } in &leader.tail {
            flat.apply(changes);
        }
        let (one, other) = (self.rng.index(256) as u8, self.rng.index(256) as u8);
        for (from, to) in [(vec![], vec![0xff]), (vec![one], vec![other]), (vec![one], vec![])] {
            let limit = 1 + self.rng.index(9);
            for is_back in [false, true] {
                let (seen, wanted) = (
                    read(leader, &from, &to, is_back, limit),
                    read(&flat, &from, &to, is_back, limit),
                );
                assert_eq!(seen, wanted);
                for (key, value) in &wanted {
                    assert_eq!(leader.get(key).expect("reads").as_deref(), Some(value.as_slice()));
                }
            }
        }
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn read(kv: &dyn KvRead, from: &[u8], to: &[u8], is_back: bool, limit: usize) -> Pairs {
    let mut pairs = Pairs::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        pairs.push((key.to_vec(), value.to_vec()));
        pairs.len() < limit
    };
    match is_back {
        true => kv.scan_back(from, to, &mut visit),
        false => kv.scan(from, to, &mut visit),
    }
    .expect("reads");
    pairs
}

fn query_name(kv: &dyn KvRead, name: &str) -> Option<Ino> {
    let query =
        strake_proto::meta::MetaQuery::Lookup { parent: Ino::ROOT, name: name.as_bytes().to_vec() };
    let reply = crate::query::query(kv, &query).ok()?;
    Some(crate::testing::inode_of(reply).attr.ino)
}

/// Whether it was done. Numbers of inodes may differ, since clients' changes may be mixed anew.
fn kind(answer: &CountedAnswer) -> std::result::Result<(), ErrorKind> {
    answer.outcome.as_ref().map(|_| ()).map_err(Error::kind)
}

#[test]
fn replicas_that_were_ahead_have_what_those_have_that_never_were() {
    let (mut dropped, mut committed) = (0, 0);
    for seed in test_seeds(0, 60 * test_scale()) {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.log.committed.extend(world.log.proposed.drain(..));
        let mut model = Ahead::new(MemoryKv::default(), 0);
        for (position, bytes) in (1..).zip(&world.log.committed) {
            model.commit(bytes.as_deref(), position).expect("applies");
        }
        for replica in 0..REPLICAS {
            world.catch_up(replica, world.end());
            assert_eq!(world.replicas[replica].last(), world.end(), "nothing is ahead any more");
            let is_same = world.replicas[replica].base() == model.base();
            assert!(is_same, "seed {seed}: replica {replica} differs");
        }
        dropped += world.dropped;
        committed += world.end();
    }
    assert!(dropped > 100 && committed > 1000, "{dropped} dropped, {committed} committed");
}

#[test]
fn what_no_leader_proposed_is_refused() {
    let mut replica = Ahead::new(MemoryKv::default(), 0);
    let error = replica.commit(Some(b"\x07garbage"), 1).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(replica.committed(), 0);
}
