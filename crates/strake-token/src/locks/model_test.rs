//! The real table and real holders, and between them a network that delivers in any order, loses
//! and repeats; clients die, and leaders change. Programs do what they like, with two threads for
//! each owner.
//!
//! **Judged after every step:** no two owners are *certain* of locks that conflict, byte by byte;
//! the table has whatever an owner is certain of. An owner is certain of what its calls have
//! returned, less what a call under way may unlock, and of nothing where two of its calls met.
//! **Judged when faults cease** for a while: clients believe what the table has. **At the end**
//! programs unlock: every call returns, and the table is empty.

use super::holder::{Effect, LockHolder};
use super::table::{LockTable, Message};
use super::*;
use crate::message::Term;
use crate::rule::{Rule, without};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

const CLIENTS: usize = 3;
const BYTES: u64 = 8;
const FILES: u64 = 2;
const OWNERS: [LockOwner; 4] = [
    LockOwner { kind: LockKind::Posix, id: 0 },
    LockOwner { kind: LockKind::Posix, id: 1 },
    LockOwner { kind: LockKind::Flock, id: 0 },
    LockOwner { kind: LockKind::Flock, id: 1 },
];

type Bytes = [Option<Mode>; BYTES as usize];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Packet {
    Up(ClientId, Term, LockRequest),
    Down(ClientId, Term, LockReply),
}

/// A call of a program.
#[derive(Clone, Debug)]
struct Call {
    op: LockOp,
    /// What was certain before.
    before: Bytes,
    /// Another call of the owner about the same bytes was under way at the same time.
    met: bool,
}

struct Client {
    id: ClientId,
    holder: LockHolder,
    calls: BTreeMap<RequestId, Call>,
    certain: BTreeMap<(Ino, LockOwner), Bytes>,
    /// What programs gave up waiting for and had not locked before, until they call again.
    given_up: Vec<LockWant>,
}

struct World {
    rng: Rng,
    table: LockTable,
    term: Term,
    clients: Vec<Client>,
    network: Vec<Packet>,
    next_client: u64,
    outcomes: BTreeSet<LockOutcome>,
}

fn bytes(range: ByteRange) -> std::ops::Range<usize> {
    range.from.min(BYTES) as usize..range.to.min(BYTES) as usize
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            rng: Rng::new(seed),
            table: LockTable::new(Term(1), &[]),
            term: Term(1),
            clients: Vec::new(),
            network: Vec::new(),
            next_client: 1,
            outcomes: BTreeSet::new(),
        };
        (0..CLIENTS).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.table.join(id);
        let (calls, certain) = (BTreeMap::new(), BTreeMap::new());
        let (holder, given_up) = (LockHolder::new(self.term), Vec::new());
        self.clients.push(Client { id, holder, calls, certain, given_up });
    }

    fn want(&mut self) -> LockWant {
        let owner = OWNERS[self.rng.index(OWNERS.len())];
        let from = self.rng.below(BYTES);
        let to = from + 1 + self.rng.below(BYTES - from);
        let range = match owner.kind {
            LockKind::Posix if !self.rng.one_in(8) => ByteRange { from, to },
            _ => ByteRange::ALL,
        };
        let mode = [Some(Mode::Shared), Some(Mode::Exclusive), None][self.rng.index(3)];
        LockWant { ino: Ino(1 + self.rng.below(FILES)), owner, range, mode, pid: 7 }
    }

    fn step(&mut self) {
        let at = self.rng.index(self.clients.len());
        match self.rng.below(40) {
            0..=9 => self.begin(at),
            10..=28 if !self.network.is_empty() => {
                let packet = self.rng.index(self.network.len());
                let packet = match self.rng.below(6) {
                    0 => self.network[packet].clone(),
                    _ => self.network.swap_remove(packet),
                };
                self.deliver(packet);
            }
            29 | 30 if !self.network.is_empty() => {
                let lost = self.rng.index(self.network.len());
                self.network.swap_remove(lost);
            }
            31..=33 => self.cancel(at),
            34 => {
                let effects = self.clients[at].holder.repeat();
                self.absorb(at, effects);
            }
            35 => {
                let messages = self.table.tick();
                self.send(messages);
            }
            36 | 37 => self.hear_of_leader(at),
            38 if self.rng.one_in(5) => self.change_leader(),
            39 if self.rng.one_in(8) => self.die(at),
            _ => {}
        }
        self.judge();
    }

    fn begin(&mut self, at: usize) {
        let want = self.want();
        let op = match self.rng.below(6) {
            0 if want.mode.is_some() => LockOp::Test(want),
            1 | 2 => LockOp::Set(want),
            _ => LockOp::SetWaiting(want),
        };
        let same = |call: &&mut Call| {
            let other = call.op.want();
            (other.ino, other.owner) == (want.ino, want.owner)
        };
        let Client { calls, holder, .. } = &mut self.clients[at];
        let may_ask = want.mode.is_none() || !holder.is_unsettled(want.ino, want.owner);
        if may_ask && calls.values_mut().filter(same).count() < 2 {
            self.call(at, op);
        }
    }

    /// A program calls.
    fn call(&mut self, at: usize, op: LockOp) {
        let want = *op.want();
        let client = &mut self.clients[at];
        client.given_up.retain(|other| (other.ino, other.owner) != (want.ino, want.owner));
        let certain = client.certain.entry((want.ino, want.owner)).or_default();
        let mut call = Call { op, before: *certain, met: false };
        if op.changes() {
            for other in client.calls.values_mut().filter(|call| call.op.changes()) {
                let theirs = other.op.want();
                if (theirs.ino, theirs.owner) == (want.ino, want.owner)
                    && theirs.range.overlaps(want.range)
                {
                    (other.met, call.met) = (true, true);
                }
            }
            for byte in &mut certain[bytes(want.range)] {
                *byte = (*byte).min(want.mode);
                // A shared lock of `flock` is let go before its owner waits for an exclusive one.
                let raises = want.mode == Some(Mode::Exclusive) && *byte == Some(Mode::Shared);
                if want.owner.kind == LockKind::Flock && (raises || call.met) {
                    *byte = None;
                }
            }
        }
        let (request, effect) = client.holder.ask(op);
        client.calls.insert(request, call);
        self.absorb(at, vec![effect]);
    }

    /// A signal ends a call that waits, or the one who waits for it gives up.
    fn cancel(&mut self, at: usize) {
        let waiting =
            |call: &Call| matches!(call.op, LockOp::SetWaiting(want) if want.mode.is_some());
        let client = &self.clients[at];
        let known: Vec<RequestId> = client
            .calls
            .iter()
            .filter(|(_, call)| waiting(call))
            .map(|(request, _)| *request)
            .collect();
        if known.is_empty() {
            return;
        }
        let request = known[self.rng.index(known.len())];
        let client = &mut self.clients[at];
        let call = &client.calls[&request];
        let effect = if self.rng.one_in(4) && !call.met {
            let want = *call.op.want();
            client.calls.remove(&request);
            let certain = client.certain.entry((want.ino, want.owner)).or_default();
            certain[bytes(want.range)].fill(None);
            let mut held = client.holder.held(want.ino, want.owner).into_iter();
            let is_posix = want.owner.kind == LockKind::Posix;
            if is_posix && !held.any(|lock| lock.range.overlaps(want.range)) {
                client.given_up.push(want);
            }
            client.holder.abandon(request)
        } else {
            client.holder.cancel(request)
        };
        self.absorb(at, effect.into_iter().collect());
    }

    fn absorb(&mut self, at: usize, effects: Vec<Effect>) {
        for effect in effects {
            let client = &mut self.clients[at];
            match effect {
                Effect::Send(message) => {
                    self.network.push(Packet::Up(client.id, client.holder.term(), message));
                }
                Effect::Done { request, outcome, lost } => {
                    self.outcomes.insert(outcome);
                    client.done(request, outcome, lost);
                }
                Effect::Waits(..) => {}
            }
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        let term = self.term;
        let down = messages.into_iter().map(|(client, reply)| Packet::Down(client, term, reply));
        self.network.extend(down);
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Up(client, term, message) => match self.table.receive(client, term, message) {
                Ok(messages) => self.send(messages),
                Err(refusal) => {
                    let is_gone = self.clients.iter().all(|other| other.id != client);
                    assert!(is_gone, "client {client} is refused: {refusal:?}");
                }
            },
            Packet::Down(client, term, reply) => {
                let found = self.clients.iter().position(|other| other.id == client);
                if let Some(at) = found {
                    let effects = self.clients[at].holder.receive(term, reply);
                    self.absorb(at, effects);
                }
            }
        }
    }

    fn hear_of_leader(&mut self, at: usize) {
        if self.clients[at].holder.term() < self.term {
            let effects = self.clients[at].holder.reassert(self.term);
            self.absorb(at, effects);
        }
    }

    fn change_leader(&mut self) {
        self.term = Term(self.term.0 + 1);
        let clients: Vec<ClientId> = self.clients.iter().map(|client| client.id).collect();
        self.table = LockTable::new(self.term, &clients);
    }

    fn die(&mut self, at: usize) {
        let client = self.clients.remove(at);
        let messages = self.table.dead(client.id);
        self.send(messages);
        self.join();
    }

    fn judge(&self) {
        self.table.check();
        for (at, one) in self.clients.iter().enumerate() {
            for ((ino, owner), certain) in &one.certain {
                let others = self.clients[at..].iter().flat_map(|two| {
                    two.certain.iter().map(move |(place, bytes)| (two.id, place, bytes))
                });
                for (id, (other_ino, other), bytes) in others {
                    let is_other = (ino, owner.kind) == (other_ino, other.kind)
                        && (one.id, owner) != (id, other);
                    let conflict = (0..BYTES as usize).any(|byte| {
                        certain[byte].zip(bytes[byte]).is_some_and(|(a, b)| !a.agrees(b))
                    });
                    assert!(!is_other || !conflict, "{ino}: {owner:?} of {} and {id}", one.id);
                }
                if self.table.is_in_grace() || one.holder.term() != self.term {
                    continue;
                }
                let mut held = Bytes::default();
                for lock in self.table.held(one.id, *ino, *owner) {
                    held[bytes(lock.range)].fill(Some(lock.mode));
                }
                let is_there = (0..BYTES as usize).all(|byte| held[byte] >= certain[byte]);
                assert!(is_there, "{ino}: {owner:?} of {}: {certain:?}, not {held:?}", one.id);
            }
        }
    }

    /// No more faults: every message arrives, and what waits for an answer is sent again.
    fn deliver_all(&mut self) {
        for _ in 0..8 {
            for at in 0..self.clients.len() {
                self.hear_of_leader(at);
                let effects = self.clients[at].holder.repeat();
                self.absorb(at, effects);
            }
            let late = self.table.tick();
            self.send(late);
            while let Some(packet) = self.network.pop() {
                self.deliver(packet);
            }
        }
        self.judge();
        self.judge_beliefs();
    }

    /// No message is under way: clients believe what the table has. Of `flock` the table may have
    /// more, where a request was cancelled before it came.
    fn judge_beliefs(&self) {
        for client in &self.clients {
            for want in &client.given_up {
                let mut held = self.table.held(client.id, want.ino, want.owner).into_iter();
                let is_kept = held.any(|lock| lock.range.overlaps(want.range));
                assert!(!is_kept, "{want:?} was given up, and is held");
            }
            let places = (1..=FILES).flat_map(|ino| OWNERS.map(|owner| (Ino(ino), owner)));
            for (ino, owner) in places {
                let waits = client.calls.values().any(|call| {
                    let want = call.op.want();
                    (want.ino, want.owner) == (ino, owner)
                });
                let held = self.table.held(client.id, ino, owner);
                let believed = client.holder.held(ino, owner);
                let is_less = owner.kind == LockKind::Flock && (believed.is_empty() || waits);
                assert!(is_less || held == believed, "{ino}: {held:?}, not {believed:?}");
            }
        }
    }

    fn come_to_rest(mut self) -> BTreeSet<LockOutcome> {
        for _ in 0..60 {
            self.deliver_all();
            let is_idle = self.clients.iter().all(|client| client.holder.is_idle());
            if is_idle && self.table.files() == 0 {
                assert!(self.clients.iter().all(|client| client.calls.is_empty()));
                assert!(self.table.is_idle() && self.table.tick().is_empty());
                return self.outcomes;
            }
            for at in 0..self.clients.len() {
                for (ino, owner) in
                    (1..=FILES).flat_map(|ino| OWNERS.map(|owner| (Ino(ino), owner)))
                {
                    let want = LockWant { ino, owner, range: ByteRange::ALL, mode: None, pid: 0 };
                    self.call(at, LockOp::Set(want));
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.table.waits());
    }
}

impl Client {
    fn done(&mut self, request: RequestId, outcome: LockOutcome, lost: bool) {
        let call = self.calls.remove(&request).expect("a call returns once");
        let want = *call.op.want();
        let certain = self.certain.entry((want.ino, want.owner)).or_default();
        for byte in bytes(want.range) {
            if !call.op.changes() {
                continue;
            }
            certain[byte] = match outcome {
                _ if call.met || lost => None,
                LockOutcome::Granted => want.mode,
                _ if want.owner.kind == LockKind::Flock => None,
                _ => call.before[byte],
            };
        }
    }
}

fn wander(seed: u64) -> BTreeSet<LockOutcome> {
    let mut world = World::new(seed);
    for _ in 0..3 {
        (0..200).for_each(|_| world.step());
        world.deliver_all();
    }
    world.come_to_rest()
}

#[test]
fn nobody_is_certain_of_what_another_has() {
    let mut outcomes = BTreeSet::new();
    for seed in test_seeds(0, 300 * test_scale()) {
        let outcome = catch_unwind(|| wander(seed));
        outcomes.extend(outcome.unwrap_or_else(|_| panic!("STRAKE_SEED={seed}")));
    }
    for wanted in [
        LockOutcome::Granted,
        LockOutcome::WouldBlock,
        LockOutcome::Deadlock,
        LockOutcome::Cancelled,
        LockOutcome::Free,
    ] {
        assert!(outcomes.contains(&wanted), "no request came out as {wanted:?}");
    }
}

/// Three owners of three clients, each with a byte, ask for that of the next one.
fn circle() {
    let mut table = LockTable::new(Term(1), &[]);
    let clients = [ClientId(1), ClientId(2), ClientId(3)];
    clients.into_iter().for_each(|client| table.join(client));
    let mut last = Vec::new();
    for (round, shift) in [(0, 0), (1, 1)] {
        for (at, client) in clients.into_iter().enumerate() {
            let from = (at as u64 + shift) % 3;
            let range = ByteRange { from, to: from + 1 };
            let mode = Some(Mode::Exclusive);
            let want = LockWant { ino: Ino(1), owner: OWNERS[0], range, mode, pid: 7 };
            let (request, op) = (RequestId(round), LockOp::SetWaiting(want));
            let message = LockRequest::Do { request, below: request, op };
            last = table.receive(client, Term(1), message).expect("it is sound");
            table.check();
        }
    }
    let refused = last.iter().any(|(client, reply)| {
        let outcome = LockOutcome::Deadlock;
        *client == ClientId(3)
            && matches!(reply, LockReply::Answer { outcome: it, .. } if *it == outcome)
    });
    assert!(refused, "the third one closes the circle: {last:?}");
}

/// A reader that comes after a writer waits behind it.
fn order() {
    let mut table = LockTable::new(Term(1), &[]);
    let clients = [ClientId(1), ClientId(2), ClientId(3)];
    clients.into_iter().for_each(|client| table.join(client));
    let modes = [Mode::Shared, Mode::Exclusive, Mode::Shared];
    for (client, mode) in clients.into_iter().zip(modes) {
        let (range, mode) = (ByteRange::ALL, Some(mode));
        let want = LockWant { ino: Ino(1), owner: OWNERS[0], range, mode, pid: 7 };
        let (request, op) = (RequestId(0), LockOp::SetWaiting(want));
        let message = LockRequest::Do { request, below: request, op };
        table.receive(client, Term(1), message).expect("it is sound");
    }
    let waits: Vec<ClientId> = table.waits().into_iter().map(|wait| wait.client).collect();
    assert_eq!(waits, [ClientId(2), ClientId(3)]);
}

#[test]
fn a_circle_over_three_clients_is_refused() {
    circle();
}

#[test]
fn a_reader_waits_behind_a_writer() {
    order();
}

#[test]
fn each_rule_is_needed() {
    for rule in Rule::OF_LOCKS {
        let is_found = without(rule, || {
            let fails = |test: &dyn Fn()| catch_unwind(AssertUnwindSafe(test)).is_err();
            match rule {
                Rule::LockCirclesAreRefused => fails(&circle),
                Rule::LockersWaitInOrder => fails(&order),
                _ => (0..3000).any(|seed| fails(&|| drop(wander(seed)))),
            }
        });
        assert!(is_found, "{rule:?} can be taken away, and nobody notices");
    }
}
