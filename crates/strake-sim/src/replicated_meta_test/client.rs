//! A client: counts its changes, keeps them until a sync, and sends them again to another leader,
//! as a session does (`strake-net`).

use super::HEALED;
use super::cluster::{CLUSTER, Cluster};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock, Rng};
use strake_meta::replicated::TermPort;
use strake_proto::layout::PoolMap;
use strake_proto::meta::{
    Configuration, CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
    NewInode,
};
use strake_proto::{
    ClientId, Code, Error, ErrorKind, FileType, Ino, NsdId, ObjectLayout, Result, Term, Timestamp,
};
use strake_replica::types::ReplicaId;

/// A client does so much.
const STEPS: usize = 60;
/// Names that come and go.
const NAMES: usize = 8;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    changes: usize,
    syncs: usize,
    /// Answers about names that are durable.
    answers: usize,
    /// How often a client went to another leader.
    moves: usize,
    /// Changes that were sent again after they were answered.
    replayed: usize,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        self.changes += other.changes;
        self.syncs += other.syncs;
        self.answers += other.answers;
        self.moves += other.moves;
        self.replayed += other.replayed;
    }

    /// A simulation in which little happens proves little.
    pub(super) fn assert_enough(&self, seeds: u64) {
        let seeds = seeds as usize;
        assert!(self.changes > 80 * seeds && self.syncs > 10 * seeds, "{self:?}");
        assert!(self.answers > 15 * seeds && self.moves > 4 * seeds, "{self:?}");
        assert!(self.replayed > 2 * seeds, "{self:?}");
    }
}

/// What the clients share.
pub(super) struct World {
    cluster: Arc<Cluster>,
    /// Names that somebody was told are durable, and that nobody removes.
    durable: Mutex<Vec<String>>,
    done: Mutex<u64>,
}

impl World {
    pub(super) fn new(cluster: Arc<Cluster>) -> World {
        World { cluster, durable: Mutex::default(), done: Mutex::default() }
    }

    /// Makes the file system.
    pub(super) fn format(&self) {
        let configuration = Configuration {
            cluster: CLUSTER,
            name: "simulated".to_owned(),
            code: Code { data: 1, parity: 1 },
            block_size: 4 << 20,
            pool: PoolMap::new((1..=3).map(|nsd| (NsdId(nsd), nsd))),
            created: Timestamp { seconds: 1, nanos: 0 },
            settings: Vec::new(),
            incompat_flags: 0,
            compat_flags: 0,
        };
        let op = MetaOp::Format(Box::new(configuration));
        let time = Timestamp { seconds: 1, nanos: 0 };
        let entry = MetaEntry { client: ClientId(0), sequence: 0, time, op };
        let end = RealClock.monotonic() + HEALED;
        loop {
            assert!(RealClock.monotonic() < end, "nobody leads");
            let is_made = |(_, port): (ReplicaId, TermPort)| {
                let made = port.apply(&entry);
                made.is_ok() && port.sync().is_ok()
            };
            if self.cluster.leader().is_some_and(is_made) {
                return;
            }
            RealClock.sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn are_done(&self, count: u64) -> bool {
        *self.done.lock() == count
    }

    pub(super) fn tally(&self, clients: &[Client]) -> Tally {
        let mut tally = Tally::default();
        clients.iter().for_each(|client| tally.add(&client.tally));
        tally
    }
}

/// A change that makes a name. It is not counted.
pub(super) fn new_name(name: &str) -> MetaEntry {
    let new = NewInode {
        file_type: FileType::Regular,
        permissions: 0o644,
        umask: 0,
        uid: 1,
        gid: 1,
        rdev: 0,
        target: Vec::new(),
    };
    let op = MetaOp::Create { parent: Ino::ROOT, name: name.as_bytes().to_vec(), new };
    let time = Timestamp { seconds: 1, nanos: 0 };
    MetaEntry { client: ClientId(0), sequence: 0, time, op }
}

pub(super) struct Client {
    number: u64,
    rng: Rng,
    told: Vec<(CountedEntry, CountedAnswer)>,
    /// So many changes are durable.
    synced: usize,
    port: Option<(ReplicaId, TermPort)>,
    /// Who has seen all changes that were answered.
    serving: Option<(ReplicaId, Term)>,
    /// The names that it made and did not remove, and when they were made.
    names: BTreeMap<String, usize>,
    kept_count: usize,
    tally: Tally,
}

fn is_elsewhere(error: &Error) -> bool {
    error.kind() == ErrorKind::Unreachable
}

impl Client {
    pub(super) fn new(number: u64, rng: Rng) -> Client {
        Client {
            number,
            rng,
            told: Vec::new(),
            synced: 0,
            port: None,
            serving: None,
            names: BTreeMap::new(),
            kept_count: 0,
            tally: Tally::default(),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(super) fn run(mut self, world: &World) -> Client {
        self.change(world, MetaOp::Join);
        for _ in 0..STEPS {
            match self.rng.index(10) {
                0..6 => self.change_a_name(world),
                6 | 7 => self.sync(world),
                _ => self.ask(world),
            }
            RealClock.sleep(Duration::from_millis(self.rng.below(30)));
        }
        self.sync(world);
        *world.done.lock() += 1;
        self
    }

    fn change_a_name(&mut self, world: &World) {
        let name = match self.rng.one_in(3) {
            true => {
                self.kept_count += 1;
                format!("kept-{}-{}", self.number, self.kept_count)
            }
            false => format!("name-{}-{}", self.number, self.rng.index(NAMES)),
        };
        if self.names.remove(&name).is_some() {
            let name = name.into_bytes();
            return self.change(world, MetaOp::Unlink { parent: Ino::ROOT, name, open: false });
        }
        let op = new_name(&name).op;
        self.names.insert(name, self.told.len());
        self.change(world, op);
        let made = self.told.last().map(|(_, answer)| &answer.outcome);
        if let Some(Ok(MetaReply::Inode(inode))) = made
            && self.rng.one_in(2)
        {
            let ino = inode.attr.ino;
            self.change(world, MetaOp::NewObject { ino });
            self.change(world, MetaOp::ReserveObjects { count: 2 });
            let answers: Vec<_> =
                self.told.iter().rev().take(2).map(|(_, it)| &it.outcome).collect();
            let [Ok(MetaReply::Objects(objects)), Ok(MetaReply::Object(layout))] = answers[..]
            else {
                panic!("{answers:?}");
            };
            let layout = ObjectLayout { object: objects[1], ..*layout };
            self.change(world, MetaOp::NewObjectAs { ino, layout });
        }
    }

    /// Makes a change, whoever leads.
    fn change(&mut self, world: &World, op: MetaOp) {
        let sequence = self.told.len() as u64 + 1;
        let time = Timestamp { seconds: sequence as i64, nanos: 0 };
        let entry = MetaEntry { client: ClientId(self.number), sequence, time, op };
        let counted = CountedEntry { life: self.number, oldest: sequence, entry };
        let answer = self.at_leader(world, |port| port.apply_counted(&counted));
        assert!(answer.outcome.is_ok(), "{:?} of {counted:?}", answer.outcome);
        self.told.push((counted, answer));
        self.tally.changes += 1;
    }

    fn sync(&mut self, world: &World) {
        let count = self.told.len();
        self.at_leader(world, |port| port.sync());
        self.synced = count;
        self.tally.syncs += 1;
        let kept = |(name, at): (&String, &usize)| {
            (name.starts_with("kept") && *at < count).then(|| name.clone())
        };
        world.durable.lock().extend(self.names.iter().filter_map(kept));
    }

    /// Asks for a name that was durable before the question. Mostly asks whom it knows, who may not
    /// lead any more.
    fn ask(&mut self, world: &World) {
        let durable = world.durable.lock().clone();
        if durable.is_empty() {
            return;
        }
        let name = durable[self.rng.index(durable.len())].clone();
        let query = MetaQuery::Lookup { parent: Ino::ROOT, name: name.clone().into_bytes() };
        let known = self.port.as_ref().filter(|_| !self.rng.one_in(3));
        let others = world.cluster.ports();
        for (id, port) in known.into_iter().chain(&others) {
            world.cluster.room.pass(*id);
            match port.query(&query) {
                Ok(_) => self.tally.answers += 1,
                Err(error) => assert!(is_elsewhere(&error), "{name} was durable: {error}"),
            }
        }
    }

    /// Does something where the metadata is, when that has all that this client was told.
    fn at_leader<T>(&mut self, world: &World, call: impl Fn(&TermPort) -> Result<T>) -> T {
        let end = RealClock.monotonic() + HEALED;
        loop {
            assert!(RealClock.monotonic() < end, "client {} finds no leader", self.number);
            let (id, port) = match self.port.take().or_else(|| world.cluster.leader()) {
                Some(port) => port,
                None => {
                    RealClock.sleep(Duration::from_millis(20));
                    continue;
                }
            };
            world.cluster.room.pass(id);
            let outcome = self.replay(id, &port).and_then(|()| call(&port));
            // A pause may come before the answer is read.
            world.cluster.room.pass(id);
            match outcome {
                Ok(outcome) => {
                    self.port = Some((id, port));
                    return outcome;
                }
                Err(error) => assert!(is_elsewhere(&error), "{error}"),
            }
        }
    }

    /// Brings another leader up to date.
    fn replay(&mut self, id: ReplicaId, port: &TermPort) -> Result<()> {
        if self.serving == Some((id, port.term())) {
            return Ok(());
        }
        self.tally.moves += 1;
        for (counted, told) in &mut self.told[self.synced..] {
            self.tally.replayed += 1;
            match port.apply_counted(counted) {
                Ok(answer) => {
                    let is_done = answer.outcome.is_ok();
                    assert!(is_done, "{:?} of {counted:?} again", answer.outcome);
                    assert_eq!(answer.outcome, told.outcome, "another answer to {counted:?}");
                    *told = answer;
                }
                // The answer is not kept any more, so it was applied.
                Err(error) if error.kind() == ErrorKind::Stale => {}
                Err(error) => return Err(error),
            }
        }
        self.serving = Some((id, port.term()));
        Ok(())
    }
}
