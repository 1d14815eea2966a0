//! Tests the window against a slow model. The clients' changes arrive twice, late and in any order.
//! The server may forget the end of its log.
//!
//! The clients keep the rules of a session (`strake-net/src/meta.rs`):
//! - The answers of one connection arrive in the order of their positions.
//! - After a lost connection a client first sends all changes without an answer again. Their
//!   answers count once all of them have arrived.
//! - After a crash a client first replays the answered changes, in the order of their positions.
//!
//! The model is a plain replay. The log holds what the server applied, in that order. The model
//! applies each change once, without any count. The answers must be those that the clients were
//! told, and the state must be the same. So the test finds a change that is lost, applied twice or
//! answered in two ways.

use crate::keys::Table;
use crate::kv::MemoryKv;
use crate::machine;
use crate::ops::window::admit;
use crate::records::{AnswerRecord, Outcome, decode};
use crate::testing::{configuration, create, entry, link, new_inode, unlink};
use crate::transaction::Transaction;
use std::collections::{BTreeMap, BTreeSet};
use strake_env::Rng;
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaEntry, MetaOp, RenameMode};
use strake_proto::{ClientId, ErrorKind, FileType, Ino, NsdId};
use strake_store::{Batch, KvRead};

/// A rule that the test removes, to prove that the loss is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    Nothing,
    /// The server keeps no answers.
    NoWindow,
    /// The server keeps no refusals.
    NoRefusals,
    /// A client replays in the order of its own count.
    ReplayInSequence,
    /// A client claims to have all answers.
    OldestTooHigh,
    /// The server accepts changes of a closed life.
    NoLives,
    /// Answers of one connection overtake each other.
    AnswersOvertake,
    /// The answers of changes that are sent again count one by one, as they arrive.
    AgainOneByOne,
}

const CLIENTS: u64 = 3;
const STEPS: usize = 500;

#[derive(Clone, Debug)]
struct Server {
    kv: MemoryKv,
    /// All entries from the beginning, and the state after each. The counted entries are the
    /// clients'.
    log: Vec<(CountedEntry, MemoryKv)>,
    durable: usize,
}

#[derive(Default)]
struct Client {
    life: u64,
    next: u64,
    /// Changes sent and not answered yet.
    open: BTreeMap<u64, CountedEntry>,
    /// Changes that were answered. After a crash the client replays those that the server may have
    /// forgotten.
    answered: BTreeMap<u64, (CountedEntry, CountedAnswer)>,
    durable: BTreeSet<u64>,
    /// The number of the client's connection, and the answers on their way to it.
    connection: u64,
    answers: Vec<(CountedEntry, CountedAnswer)>,
}

struct World {
    rng: Rng,
    mutation: Mutation,
    server: Server,
    clients: Vec<Client>,
    /// Copies of requests on their way, each on one connection.
    network: Vec<(u64, CountedEntry)>,
    connections: u64,
    /// The state without any client's records.
    first: MemoryKv,
    /// The answers that clients of closed lives were told.
    former: Vec<(CountedEntry, CountedAnswer)>,
    seen: BTreeSet<&'static str>,
}

type Found = Result<(), String>;

fn directory(client: u64) -> Ino {
    Ino(Ino::ROOT.0 + 1 + client)
}

impl World {
    fn new(seed: u64, mutation: Mutation) -> World {
        let mut first = MemoryKv::default();
        let mut ops = vec![MetaOp::Format(Box::new(configuration()))];
        for client in 0..CLIENTS {
            ops.push(create(Ino::ROOT, &client.to_string(), new_inode(FileType::Directory)));
        }
        for client in 0..CLIENTS {
            for name in ["a", "b", "c", "d"] {
                ops.push(create(directory(client), name, new_inode(FileType::Regular)));
            }
        }
        for (second, op) in (1..).zip(ops) {
            let (_, changes) = machine::apply(&first, &entry(second, op)).expect("made");
            first.apply(&changes);
        }
        let server = Server { kv: first.clone(), log: Vec::new(), durable: 0 };
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        let mut world = World {
            rng: Rng::new(seed),
            mutation,
            server,
            clients,
            network: Vec::new(),
            connections: 0,
            first,
            former: Vec::new(),
            seen: BTreeSet::new(),
        };
        (0..CLIENTS as usize).for_each(|client| world.begin_life(client));
        world
    }

    /// A client begins a life. Changes it sent before may still arrive.
    fn begin_life(&mut self, at: usize) {
        let life = self.rng.next_u64().max(1);
        let old = std::mem::replace(&mut self.clients[at], Client { life, ..Client::default() });
        self.former.extend(old.answered.into_values());
        self.connect(at);
        self.send(at, MetaOp::Join);
        let (_, join) = self.network.pop().expect("it was sent");
        let joined = self.serve(join).and_then(|joined| joined.ok_or("no answer".to_owned()));
        let (join, answer) = joined.expect("a life begins");
        self.told(at, join, answer).expect("for the first time");
        // A client makes its grant durable before it uses it, because all clients share the
        // numbers.
        self.sync();
    }

    fn connect(&mut self, at: usize) {
        self.connections += 1;
        self.clients[at].connection = self.connections;
        self.clients[at].answers.clear();
    }

    fn send(&mut self, at: usize, op: MetaOp) {
        let client = &mut self.clients[at];
        client.next += 1;
        let sequence = client.next;
        let oldest = client.open.keys().next().copied().unwrap_or(sequence);
        let oldest = if self.mutation == Mutation::OldestTooHigh { sequence } else { oldest };
        let (life, id) = (client.life, ClientId(at as u64));
        let entry = MetaEntry { client: id, sequence, ..entry(100 + sequence as i64, op) };
        let counted = CountedEntry { life, oldest, entry };
        client.open.insert(sequence, counted.clone());
        self.network.push((client.connection, counted));
    }

    fn op(&mut self, at: usize) -> MetaOp {
        let dir = directory(at as u64);
        let mut name = || ["a", "b", "c", "d", "e"][self.rng.index(5)];
        let (one, other) = (name(), name());
        let ino = Ino(directory(CLIENTS).0 + at as u64 * 4 + self.rng.below(4));
        match self.rng.below(8) {
            0 => unlink(dir, one, false),
            1 | 2 => link(ino, dir, one),
            3 if at == 0 => MetaOp::SetConfig { name: "x".to_owned(), value: one.to_owned() },
            _ => MetaOp::Rename {
                parent: dir,
                name: one.into(),
                new_parent: dir,
                new_name: other.into(),
                mode: if self.rng.one_in(3) { RenameMode::NoReplace } else { RenameMode::Replace },
                open: false,
            },
        }
    }

    /// The server gets a copy of a change. Returns the answer, if the change has one.
    fn serve(
        &mut self,
        sent: CountedEntry,
    ) -> Result<Option<(CountedEntry, CountedAnswer)>, String> {
        let at = sent.entry.client.0 as usize;
        let mut counted = sent.clone();
        if self.mutation == Mutation::NoLives {
            counted.life = self.clients[at].life;
        }
        let position = self.server.log.len() as u64 + 1;
        let is_old = sent.life != self.clients[at].life;
        match machine::apply_counted(&self.server.kv, &counted, position) {
            Ok((answer, changes)) => {
                self.seen.insert(if changes.is_empty() { "again" } else { "applied" });
                if !changes.is_empty() {
                    self.server.kv.apply(&changes);
                    self.forget_answers();
                    self.server.log.push((sent.clone(), self.server.kv.clone()));
                }
                match is_old {
                    true => Err(format!("a closed life is answered: {sent:?}")),
                    false => Ok(Some((sent, answer))),
                }
            }
            Err(error) if error.kind() == ErrorKind::Fenced && is_old => {
                self.seen.insert("fenced");
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::Stale => {
                self.seen.insert("stale");
                match !is_old && self.clients[at].open.contains_key(&sent.entry.sequence) {
                    true => Err(format!("{sent:?} has no answer: {error}")),
                    false => Ok(None),
                }
            }
            Err(error) => Err(format!("{sent:?}: {error}")),
        }
    }

    /// The server gets a copy that was on its way.
    fn deliver(&mut self, which: usize, stays: bool) -> Found {
        let (connection, copy) = self.network[which].clone();
        if !stays {
            self.network.swap_remove(which);
        }
        let Some(answer) = self.serve(copy)? else { return Ok(()) };
        let client = &mut self.clients[answer.0.entry.client.0 as usize];
        if client.connection == connection {
            client.answers.push(answer);
        }
        Ok(())
    }

    /// A client receives its next answers.
    fn receive(&mut self, at: usize, count: usize) -> Found {
        for _ in 0..count.min(self.clients[at].answers.len()) {
            let next = match self.mutation {
                Mutation::AnswersOvertake => self.rng.index(self.clients[at].answers.len()),
                _ => 0,
            };
            let (counted, answer) = self.clients[at].answers.remove(next);
            self.told(at, counted, answer)?;
        }
        Ok(())
    }

    /// A connection is lost, with some of its answers. The client sends the changes without an
    /// answer again.
    fn reconnect(&mut self, at: usize) -> Found {
        let count = self.rng.index(self.clients[at].answers.len() + 1);
        self.receive(at, count)?;
        self.connect(at);
        self.send_again(at)
    }

    fn send_again(&mut self, at: usize) -> Found {
        let mut open: Vec<CountedEntry> = self.clients[at].open.values().cloned().collect();
        self.rng.shuffle(&mut open);
        let mut answers = Vec::new();
        for counted in open {
            if self.rng.one_in(200) {
                // The answers so far count for nothing, so the client is told nothing here.
                self.seen.insert("interrupted");
                return self.crash();
            }
            if !self.network.is_empty() && self.rng.one_in(2) {
                let late = self.rng.index(self.network.len());
                self.deliver(late, false)?;
            }
            let answer = self.serve(counted)?.ok_or("no answer again")?;
            match self.mutation {
                Mutation::AgainOneByOne => self.told(at, answer.0, answer.1)?,
                _ => answers.push(answer),
            }
        }
        answers.into_iter().try_for_each(|(counted, answer)| self.told(at, counted, answer))
    }

    fn told(&mut self, at: usize, counted: CountedEntry, answer: CountedAnswer) -> Found {
        let sequence = counted.entry.sequence;
        let client = &mut self.clients[at];
        client.open.remove(&sequence);
        let refused = answer.outcome.is_err();
        self.seen.insert(if refused { "refused" } else { "done" });
        match client.answered.get(&sequence) {
            Some((_, before)) if !is_same(before, &answer) => {
                Err(format!("{counted:?} was answered {before:?} and then {answer:?}"))
            }
            _ => {
                client.answered.insert(sequence, (counted, answer));
                Ok(())
            }
        }
    }

    /// Applies the mutations of the server.
    fn forget_answers(&mut self) {
        let is_kept = |value: &[u8]| match (self.mutation, decode::<AnswerRecord>(value)) {
            (Mutation::NoWindow, Ok(_)) => false,
            (Mutation::NoRefusals, Ok(answer)) => !matches!(answer.outcome, Outcome::Refused(..)),
            _ => true,
        };
        let mut batch = Batch::new();
        for (key, value) in records(&self.server.kv) {
            if key[0] == Table::Session as u8 && key.len() > 11 && !is_kept(&value) {
                batch.delete(key);
            }
        }
        self.server.kv.apply(&batch);
    }

    /// The server dies. It loses the part of its log that was not durable, or less.
    fn crash(&mut self) -> Found {
        let (durable, all) = (self.server.durable, self.server.log.len());
        let kept = durable + self.rng.index(all - durable + 1);
        self.server.log.truncate(kept);
        self.server.kv = self.server.log.last().map_or(&self.first, |(_, kv)| kv).clone();
        self.server.durable = kept;
        // Requests on their way are lost with the connections. Some answers still get through.
        self.network.clear();
        for at in 0..self.clients.len() {
            let count = self.rng.index(self.clients[at].answers.len() + 1);
            self.receive(at, count)?;
            self.connect(at);
        }
        (0..self.clients.len()).try_for_each(|at| self.replay(at))?;
        (0..self.clients.len()).try_for_each(|at| self.send_again(at))
    }

    fn replay(&mut self, at: usize) -> Found {
        let client = &self.clients[at];
        let mut kept: Vec<(CountedEntry, CountedAnswer)> = client
            .answered
            .iter()
            .filter(|(sequence, _)| !client.durable.contains(sequence))
            .map(|(_, kept)| kept.clone())
            .collect();
        if self.mutation != Mutation::ReplayInSequence {
            kept.sort_by_key(|(_, answer)| answer.position);
        }
        for (counted, before) in kept {
            let sequence = counted.entry.sequence;
            let position = self.server.log.len() as u64 + 1;
            match machine::apply_counted(&self.server.kv, &counted, position) {
                Ok((answer, changes)) => {
                    self.seen.insert(if changes.is_empty() { "kept" } else { "replayed" });
                    if !changes.is_empty() {
                        self.server.kv.apply(&changes);
                        self.server.log.push((counted.clone(), self.server.kv.clone()));
                    }
                    if !is_same(&before, &answer) && !changes.is_empty()
                        || before.outcome.is_ok() != answer.outcome.is_ok()
                    {
                        return Err(format!("{counted:?}: {before:?}, replayed {answer:?}"));
                    }
                    self.clients[at].answered.insert(sequence, (counted, answer));
                }
                Err(error) if error.kind() == ErrorKind::Stale => {
                    self.seen.insert("passed");
                }
                Err(error) => return Err(format!("replay of {counted:?}: {error}")),
            }
        }
        Ok(())
    }

    fn sync(&mut self) {
        self.server.durable = self.server.log.len();
        for client in &mut self.clients {
            client.durable = client.answered.keys().copied().collect();
        }
    }

    fn step(&mut self) -> Found {
        let at = self.rng.index(self.clients.len());
        match self.rng.below(400) {
            0 => self.begin_life(at),
            1..=5 => self.crash()?,
            6..=12 => self.sync(),
            13..=25 => self.reconnect(at)?,
            26..=130 => {
                let client = &self.clients[at];
                let oldest = client.open.keys().next().copied().unwrap_or(client.next + 1);
                for _ in 0..1 + self.rng.below(6) {
                    if self.clients[at].next + 1 < oldest + WINDOW_CHANGES {
                        let op = self.op(at);
                        self.send(at, op);
                    } else {
                        self.seen.insert("full");
                    }
                }
            }
            131..=200 => {
                let count = self.rng.index(8);
                self.receive(at, count)?;
            }
            _ if self.network.is_empty() => {}
            _ => {
                let which = self.rng.index(self.network.len());
                let stays = self.rng.one_in(10);
                self.deliver(which, stays)?;
            }
        }
        Ok(())
    }

    /// In the end everything is answered, and agrees with the plain replay.
    fn finish(&mut self) -> Found {
        for at in 0..self.clients.len() {
            self.receive(at, usize::MAX)?;
            self.reconnect(at)?;
        }
        if self.clients.iter().any(|client| !client.open.is_empty()) {
            return Err("something is never answered".to_owned());
        }
        let mut plain = self.first.clone();
        let mut outcomes = BTreeMap::new();
        for (counted, _) in &self.server.log {
            let uncounted = MetaEntry { sequence: 0, ..counted.entry.clone() };
            let outcome = machine::apply(&plain, &uncounted).map(|(reply, changes)| {
                plain.apply(&changes);
                reply
            });
            let key = (counted.life, counted.entry.sequence);
            if outcomes.insert(key, outcome).is_some() {
                return Err(format!("applied twice: {counted:?}"));
            }
        }
        let of_clients = self.clients.iter().flat_map(|client| client.answered.values());
        for (counted, answer) in of_clients.chain(&self.former) {
            let key = (counted.life, counted.entry.sequence);
            match outcomes.get(&key) {
                Some(outcome) if is_same_outcome(outcome, &answer.outcome) => {}
                // A client that died replays nothing, so changes it had not made durable may be
                // lost.
                None if self.former.iter().any(|(old, _)| old == counted) => {}
                other => return Err(format!("{counted:?}: {answer:?}, and plainly {other:?}")),
            }
        }
        let files = |kv: &MemoryKv| {
            let mut all = records(kv);
            all.retain(|(key, _)| key[0] != Table::Session as u8);
            all
        };
        match files(&plain) == files(&self.server.kv) {
            true => Ok(()),
            false => Err("the states differ".to_owned()),
        }
    }
}

fn records(kv: &MemoryKv) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    kv.scan(&[], &[0xff], &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        true
    })
    .expect("in memory");
    found
}

type Replied = strake_proto::Result<strake_proto::meta::MetaReply>;

/// Compares outcomes. Descriptions of the file system always count as equal, because they show the
/// state at the time of the question.
fn is_same_outcome(one: &Replied, other: &Replied) -> bool {
    use strake_proto::meta::MetaReply::Configuration;
    matches!((one, other), (Ok(Configuration(_)), Ok(Configuration(_)))) || one == other
}

fn is_same(one: &CountedAnswer, other: &CountedAnswer) -> bool {
    is_same_outcome(&one.outcome, &other.outcome)
}

fn run(seed: u64, mutation: Mutation) -> Result<BTreeSet<&'static str>, String> {
    let mut world = World::new(seed, mutation);
    for step in 0..STEPS {
        world.step().map_err(|fault| format!("seed {seed} step {step}: {fault}"))?;
        if step % 50 > 0 {
            continue;
        }
        let faults = crate::check::check(&world.server.kv).expect("walks").faults;
        assert!(faults.is_empty(), "seed {seed} step {step}: {faults:?}");
    }
    world.finish().map_err(|fault| format!("seed {seed} end: {fault}"))?;
    Ok(world.seen)
}

#[test]
fn changes_are_applied_once_whatever_comes_twice_or_late_or_is_forgotten() {
    let mut seen = BTreeSet::new();
    for seed in strake_env::rng::test_seeds(0, 40) {
        seen.extend(run(seed, Mutation::Nothing).unwrap_or_else(|fault| panic!("{fault}")));
    }
    let wanted = [
        "again",
        "applied",
        "done",
        "fenced",
        "full",
        "interrupted",
        "kept",
        "passed",
        "refused",
        "replayed",
        "stale",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), wanted, "the test reaches every case");
}

#[test]
fn every_rule_of_the_window_is_needed() {
    for mutation in [
        Mutation::NoWindow,
        Mutation::NoRefusals,
        Mutation::ReplayInSequence,
        Mutation::OldestTooHigh,
        Mutation::NoLives,
        Mutation::AnswersOvertake,
        Mutation::AgainOneByOne,
    ] {
        let found = (0..60).find_map(|seed| run(seed, mutation).err());
        let found = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        println!("{mutation:?}: {found}");
    }
}

#[test]
fn the_window_has_ends() {
    let mut world = World::new(1, Mutation::Nothing);
    let life = world.clients[0].life;
    let op = MetaOp::RangeApplied { id: 1, nsds: vec![NsdId(1)] };
    let entry = |sequence| MetaEntry { client: ClientId(0), sequence, ..entry(200, op.clone()) };
    let mut kind = |life, oldest, sequence| {
        let counted = CountedEntry { life, oldest, entry: entry(sequence) };
        let applied = machine::apply_counted(&world.server.kv, &counted, 9);
        applied.map(|(_, changes)| world.server.kv.apply(&changes)).map_err(|error| error.kind())
    };
    assert_eq!(kind(life, 2, 2 + WINDOW_CHANGES), Err(ErrorKind::Invalid));
    assert_eq!(kind(life, 2, 1 + WINDOW_CHANGES), Ok(()));
    assert_eq!(kind(life, 3, 2), Err(ErrorKind::Invalid), "below its own oldest");
    assert_eq!(kind(life, 0, 2), Err(ErrorKind::Invalid), "no count");
    assert_eq!(kind(life + 1, 2, 2), Err(ErrorKind::Fenced));
    assert_eq!(kind(life, 1000, 1000), Ok(()), "refused ones leave gaps");
    assert_eq!(kind(life, 2, 1 + WINDOW_CHANGES), Err(ErrorKind::Stale));
    let join = MetaEntry { op: MetaOp::Join, ..entry(1001) };
    let again = CountedEntry { life, oldest: 1001, entry: join };
    let txn = Transaction::new(&world.server.kv, ClientId(0), again.entry.time);
    assert_eq!(
        admit(&txn, &again).map(drop).map_err(|error| error.kind()),
        Err(ErrorKind::Invalid)
    );
    let answers = records(&world.server.kv)
        .into_iter()
        .filter(|(key, _)| key.starts_with(&crate::keys::session(ClientId(0))) && key.len() > 11);
    assert_eq!(answers.count(), 1, "what the client has is dropped");
}
