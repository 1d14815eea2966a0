//! Leases in every state: the real [`Membership`], the real [`Watch`] of each client, the real
//! [`Admission`] of each NSD server. Between them is a network that delivers in any order, loses,
//! and delivers late.
//!
//! **Clocks.** The leader's clock shows the time. Any other clock is ahead of it by nothing or by
//! one. So no two clocks differ by more than one in what they measure, which is the margin.
//!
//! **Steps:** a clock's second passes; a client sends a renewal, which ends the one before; the
//! process of a client is proven to have ended; a client joins; a message reaches its server; an
//! answer arrives or is lost; the leader gives a message up, which may reach its server later; a
//! server is started anew; a leader dies and the next one takes over.
//!
//! **Invariants**, in every state:
//! 1. no server serves a client that is dead: what it held is free;
//! 2. a client that is dead does not use what it held;
//! 3. a client is not declared dead for being silent before a lease and the margin have passed
//!    since it was last heard;
//! 4. no server with a lease misses a client on its list that has joined and was never declared
//!    dead;
//! 5. where no message is under way, a few rounds without faults end every join and every death,
//!    and each server serves the living clients.
//!
//! An older leader gives no leases once the next one has begun. Those who choose the leader see to
//! that; it is not modelled.

use crate::explore::{Next, Step, Verdict};
use foldhash::fast::FixedState;
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash};
use std::time::Duration;
use strake_env::Rng;
use strake_lease::membership::{Effect, Lane, Reason};
use strake_lease::message::Message;
use strake_lease::{Member, Membership, Renewal, Standing, Times, Watch};
use strake_nsd::admission::{Admission, Refusal};
use strake_proto::nsd::{AdmissionReply, AllowList, NsdContext};
use strake_proto::{ClientId, Epoch, ErrorKind, MapVersion, NsdId, Term};

/// The unit of time.
const SECOND: Duration = Duration::from_secs(1);
/// A lease is as short as it can be with a renewal in its midst.
const TIMES: Times =
    Times { renew: SECOND, lease: Duration::from_secs(2), margin: SECOND, repeat: SECOND };
/// A scope with more states is too large for a test.
const STATES_MAX: usize = 1_500_000;
/// Rounds without faults after which everything must have come to its end.
const ROUNDS_MAX: usize = 12;

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// NSD servers.
    pub servers: usize,
    /// Clients that have joined before the leader began.
    pub members: usize,
    /// Clients that may join.
    pub joins: usize,
    /// Seconds that pass.
    pub seconds: u32,
    /// Renewals that clients send.
    pub renewals: u8,
    /// Messages that the leader gives up; they may arrive later. Answers that are lost count too.
    pub losses: u8,
    /// Servers that are started anew.
    pub restarts: u8,
    /// Clients that are proven to have ended.
    pub ends: u8,
    /// Leaders that die.
    pub leaders: u8,
    /// Clocks that may be ahead: a mask, the servers' first, then the clients'.
    pub drift: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Packet {
    /// To a server. The leader waits for the answer on a lane, or has given the message up.
    ToServer(usize, Term, Option<Lane>, Message),
    /// From a server.
    Answer(usize, Lane, Result<Admitted, Refused>),
    /// A renewal that a client sent at a moment of its clock.
    Renew(usize, Duration),
    /// The answer.
    Renewed(usize, Duration),
    /// The client was declared dead.
    Dead(usize),
}

/// An [`AdmissionReply`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Admitted {
    boot: u64,
    clock: Duration,
    term: Term,
}

/// Why a server refused a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Refused {
    Stale,
    Fenced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    admission: Admission,
    boot: u64,
    is_ahead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    /// `None` before it asked to join, and when it has ended.
    watch: Option<Watch>,
    is_ahead: bool,
    /// It may use the NSDs.
    has_joined: bool,
    /// Some leader has declared it dead.
    is_declared: bool,
    /// What it held is free.
    is_freed: bool,
    /// When a leader last heard of it.
    heard: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    leader: Membership,
    now: Duration,
    servers: Vec<Server>,
    clients: Vec<Client>,
    network: BTreeSet<Packet>,
    renewals: u8,
    losses: u8,
    restarts: u8,
    ends: u8,
    leaders: u8,
    fault: Option<String>,
}

fn member(at: usize) -> Member {
    (ClientId(at as u64 + 1), Epoch(1))
}

fn nsd(at: usize) -> NsdId {
    NsdId(at as u32 + 1)
}

fn at_of(member: Member) -> usize {
    member.0.0 as usize - 1
}

/// Visits a whole scope, depth first. Of the states that were visited only two hashes are kept.
///
/// # Panics
/// If there are more states than a test has time for.
pub fn check(scope: &Scope) -> Verdict {
    let first = World::new(scope);
    let mut seen = HashSet::from([first.mark()]);
    let mut way: Vec<(Step, std::vec::IntoIter<(Step, World)>)> = Vec::new();
    let mut next = match successors(scope, &first) {
        Ok(next) => next.into_iter(),
        Err(fault) => return Verdict { states: 1, fault: Some(fault) },
    };
    loop {
        let Some((step, world)) = next.next() else {
            let Some((_, rest)) = way.pop() else { break };
            next = rest;
            continue;
        };
        if !seen.insert(world.mark()) {
            continue;
        }
        assert!(seen.len() < STATES_MAX, "too many states to visit: {scope:?}");
        match successors(scope, &world) {
            Ok(after) => way.push((step, std::mem::replace(&mut next, after.into_iter()))),
            Err(fault) => {
                let steps: Vec<String> =
                    way.iter().map(|(step, _)| step).chain([&step]).map(Step::text).collect();
                let fault = Some(format!("{fault}. Steps: {}. {world:?}", steps.join("; ")));
                return Verdict { states: seen.len(), fault };
            }
        }
    }
    Verdict { states: seen.len(), fault: None }
}

/// Walks through a scope at random; returns what went wrong.
pub fn wander(scope: &Scope, seed: u64, steps: usize) -> Result<usize, String> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(scope);
    for step in 0..steps {
        let mut next =
            successors(scope, &world).map_err(|fault| format!("step {step}: {fault}"))?;
        if next.is_empty() {
            return Ok(step);
        }
        world = next.swap_remove(rng.index(next.len())).1;
    }
    world.come_to_rest().map(|()| steps)
}

fn successors(scope: &Scope, world: &World) -> Next<World> {
    world.judge()?;
    if world.network.is_empty() {
        world.clone().come_to_rest()?;
    }
    let mut next: Vec<(Step, World)> = Vec::new();
    let mut add = |step: Step, change: &dyn Fn(&mut World)| {
        let mut changed = world.clone();
        change(&mut changed);
        if changed != *world {
            next.push((step, changed));
        }
    };
    if world.now < SECOND * scope.seconds {
        let clocks = world.servers.len() + world.clients.len();
        for ahead in (0..1u32 << clocks).filter(|ahead| ahead & !scope.drift == 0) {
            add(Step::new("a second passes"), &|world| world.pass(ahead));
        }
    }
    for (at, client) in world.clients.iter().enumerate() {
        if client.watch.is_some() && world.renewals > 0 {
            add(Step::of("client {} renews", at), &|world| {
                world.renewals -= 1;
                world.renew(at);
            });
        }
        if client.watch.is_some() && world.ends > 0 {
            add(Step::of("client {} has ended", at), &|world| world.end(at));
        }
        if at >= scope.members && client.watch.is_none() && !client.is_declared {
            add(Step::of("client {} joins", at), &|world| world.join(at));
        }
    }
    for packet in &world.network {
        packet_steps(world, packet, &mut add);
    }
    for at in 0..world.servers.len() {
        if world.restarts > 0 {
            add(Step::of("server {} is started anew", at), &|world| world.restart(at));
        }
    }
    if world.leaders > 0 {
        add(Step::new("a new leader"), &World::change_leader);
    }
    Ok(next)
}

type Add<'a> = &'a mut dyn FnMut(Step, &dyn Fn(&mut World));

fn packet_steps(world: &World, packet: &Packet, add: Add<'_>) {
    let (what, who) = match packet {
        Packet::ToServer(at, _, _, Message::Ask) => ("server {} is asked", *at),
        Packet::ToServer(at, _, _, Message::Lease { list: None, .. }) => {
            ("server {}: renewal", *at)
        }
        Packet::ToServer(at, _, _, Message::Lease { .. }) => ("server {}: lease and list", *at),
        Packet::ToServer(at, _, _, Message::Allow { .. }) => ("server {}: addition", *at),
        Packet::ToServer(at, _, _, Message::Fence { .. }) => ("server {}: fence", *at),
        Packet::ToServer(at, _, _, Message::RaiseFloor { .. }) => ("server {}: floor", *at),
        Packet::Answer(at, Lane::Lease, _) => ("the lease of server {} is answered", *at),
        Packet::Answer(at, Lane::Change, _) => ("the change of server {} is answered", *at),
        Packet::Renew(at, _) => ("client {} is heard", *at),
        Packet::Renewed(at, _) => ("client {} hears: renewed", *at),
        Packet::Dead(at) => ("client {} hears: dead", *at),
    };
    add(Step::of(what, who), &|world| {
        world.network.remove(packet);
        world.deliver(packet.clone());
    });
    if world.losses == 0 {
        return;
    }
    match packet {
        Packet::ToServer(at, term, Some(lane), message) => {
            add(Step::of("server {}: the leader gives up", *at), &|world| {
                world.losses -= 1;
                world.network.remove(packet);
                world.network.insert(Packet::ToServer(*at, *term, None, message.clone()));
                world.answer(*at, *lane, Err(ErrorKind::TimedOut));
            });
        }
        Packet::Answer(at, lane, _) => {
            add(Step::of("server {}: its answer is lost", *at), &|world| {
                world.losses -= 1;
                world.network.remove(packet);
                world.answer(*at, *lane, Err(ErrorKind::TimedOut));
            });
        }
        _ => {}
    }
}

impl World {
    fn mark(&self) -> (u64, u64) {
        let hash = |salt| FixedState::with_seed(salt).hash_one(self);
        (hash(0), hash(1))
    }

    fn new(scope: &Scope) -> World {
        let members: Vec<Member> = (0..scope.members).map(member).collect();
        let servers: Vec<NsdId> = (0..scope.servers).map(nsd).collect();
        let now = Duration::ZERO;
        let server = Server { admission: Admission::new(1, Term(0)), boot: 1, is_ahead: false };
        let client = |at: usize| Client {
            watch: (at < scope.members).then(|| Watch::new(TIMES.lease, now)),
            is_ahead: false,
            has_joined: at < scope.members,
            is_declared: false,
            is_freed: false,
            heard: now,
        };
        let mut world = World {
            leader: Membership::new(Term(1), TIMES, &members, &servers, MapVersion(0), now),
            now,
            servers: vec![server; scope.servers],
            clients: (0..scope.members + scope.joins).map(client).collect(),
            network: BTreeSet::new(),
            renewals: scope.renewals,
            losses: scope.losses,
            restarts: scope.restarts,
            ends: scope.ends,
            leaders: scope.leaders,
            fault: None,
        };
        let effects = world.leader.tick(now);
        world.obey(effects);
        world
    }

    fn clock(&self, is_ahead: bool) -> Duration {
        self.now + if is_ahead { SECOND } else { Duration::ZERO }
    }

    /// A second passes. `ahead` has a bit for each clock beside the leader's.
    fn pass(&mut self, ahead: u32) {
        self.now += SECOND;
        let servers = self.servers.iter_mut().map(|server| &mut server.is_ahead);
        let clients = self.clients.iter_mut().map(|client| &mut client.is_ahead);
        for (at, is_ahead) in servers.chain(clients).enumerate() {
            *is_ahead = ahead >> at & 1 == 1;
        }
        let effects = self.leader.tick(self.now);
        self.obey(effects);
    }

    /// A client sends a renewal. What is under way of an earlier one is lost.
    fn renew(&mut self, at: usize) {
        self.network.retain(|packet| match packet {
            Packet::Renew(of, _) | Packet::Renewed(of, _) => *of != at,
            _ => true,
        });
        let sent = self.clock(self.clients[at].is_ahead);
        self.network.insert(Packet::Renew(at, sent));
    }

    fn end(&mut self, at: usize) {
        self.ends -= 1;
        self.clients[at].watch = None;
        let effects = self.leader.ended(member(at), self.now);
        self.obey(effects);
    }

    fn join(&mut self, at: usize) {
        let sent = self.clock(self.clients[at].is_ahead);
        self.clients[at].watch = Some(Watch::new(TIMES.lease, sent));
        self.clients[at].heard = self.now;
        let effects = self.leader.join(member(at), self.now);
        self.obey(effects);
    }

    fn restart(&mut self, at: usize) {
        self.restarts -= 1;
        let server = &mut self.servers[at];
        server.boot += 1;
        server.admission = Admission::new(server.boot, server.admission.term());
    }

    fn change_leader(&mut self) {
        self.leaders -= 1;
        let old = std::mem::take(&mut self.network);
        // What is under way may still arrive, but nobody waits for it.
        self.network = old
            .into_iter()
            .filter_map(|packet| match packet {
                Packet::ToServer(at, term, _, message) => {
                    Some(Packet::ToServer(at, term, None, message))
                }
                Packet::Answer(..) => None,
                other => Some(other),
            })
            .collect();
        let is_member = |at: &usize| {
            let client = &self.clients[*at];
            client.has_joined && !client.is_freed
        };
        let members: Vec<Member> = (0..self.clients.len()).filter(is_member).map(member).collect();
        let servers: Vec<NsdId> = (0..self.servers.len()).map(nsd).collect();
        let term = Term(self.leader.term().0 + 1);
        self.clients.iter_mut().for_each(|client| client.heard = self.now);
        self.leader = Membership::new(term, TIMES, &members, &servers, MapVersion(0), self.now);
        let effects = self.leader.tick(self.now);
        self.obey(effects);
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::ToServer(at, term, lane, message) => {
                let answer = self.serve(at, term, &message);
                if let Some(lane) = lane {
                    self.network.insert(Packet::Answer(at, lane, answer));
                }
            }
            Packet::Answer(at, lane, answer) => {
                let answer = answer.map_err(|refused| match refused {
                    Refused::Stale => ErrorKind::Stale,
                    Refused::Fenced => ErrorKind::Fenced,
                });
                self.answer(at, lane, answer);
            }
            Packet::Renew(at, sent) => match self.leader.renew(member(at), self.now) {
                Renewal::Renewed => {
                    self.clients[at].heard = self.now;
                    self.network.insert(Packet::Renewed(at, sent));
                }
                Renewal::Dead => drop(self.network.insert(Packet::Dead(at))),
                Renewal::NotLeader => self.fault = Some("the leader was deposed".to_owned()),
            },
            Packet::Renewed(at, sent) => {
                let client = &mut self.clients[at];
                let clock = self.now + if client.is_ahead { SECOND } else { Duration::ZERO };
                if let Some(watch) = &mut client.watch {
                    watch.renewed(sent, clock);
                }
            }
            Packet::Dead(at) => {
                if let Some(watch) = &mut self.clients[at].watch {
                    watch.declared_dead();
                }
            }
        }
    }

    fn answer(&mut self, at: usize, lane: Lane, answer: Result<Admitted, ErrorKind>) {
        let answer = answer.map(|Admitted { boot, clock, term }| AdmissionReply {
            boot,
            clock,
            until: None,
            term,
            floor: MapVersion(0),
            number: 0,
        });
        let effects = self.leader.answered(nsd(at), lane, answer, self.now);
        self.obey(effects);
    }

    /// What a server does with a message of the leader of a term.
    fn serve(&mut self, at: usize, term: Term, message: &Message) -> Result<Admitted, Refused> {
        let clock = self.clock(self.servers[at].is_ahead);
        let server = &mut self.servers[at];
        let admission = &mut server.admission;
        let context = NsdContext { client: ClientId::MANAGER, term, ..NsdContext::default() };
        if *message != Message::Ask
            && admission.judge_manager(&context).map_err(|_| Refused::Fenced)?
        {
            admission.begin_term(term);
        }
        let taken = match message {
            Message::Ask => Ok(()),
            Message::Lease { boot, until, floor, list } => {
                let list = list.as_ref().map(|(number, clients)| AllowList {
                    number: *number,
                    clients: clients.clone(),
                });
                admission.lease(*boot, *until, *floor, list.as_ref())
            }
            Message::Allow { number, member: (client, epoch) } => {
                admission.allow(*number, *client, *epoch)
            }
            Message::Fence { number, member: (client, epoch) } => {
                admission.fence(*number, *client, *epoch);
                Ok(())
            }
            Message::RaiseFloor { floor } => {
                admission.raise_floor(*floor);
                Ok(())
            }
        };
        let admitted = Admitted { boot: server.boot, clock, term: admission.term() };
        taken.map(|()| admitted).map_err(|_| Refused::Stale)
    }

    fn obey(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(nsd, lane, message) => {
                    let (at, term) = (nsd.0 as usize - 1, self.leader.term());
                    self.network.insert(Packet::ToServer(at, term, Some(lane), message));
                }
                Effect::Joined(member) => self.clients[at_of(member)].has_joined = true,
                Effect::Declared(member, reason) => {
                    let client = &mut self.clients[at_of(member)];
                    client.is_declared = true;
                    let end = client.heard + TIMES.lease + TIMES.margin;
                    // Invariant 3.
                    if reason == Reason::Silent && self.now < end {
                        self.fault = Some(format!("client {} was not silent", at_of(member)));
                    }
                }
                Effect::Dead(member) => self.clients[at_of(member)].is_freed = true,
                Effect::Raised(_) => {}
                Effect::Deposed(_) => self.fault = Some("nobody else leads".to_owned()),
            }
        }
    }

    /// Invariants 1 to 4.
    fn judge(&self) -> Result<(), String> {
        self.leader.check();
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        for (at, client) in self.clients.iter().enumerate() {
            let standing =
                client.watch.as_ref().map(|watch| watch.standing(self.clock(client.is_ahead)));
            if client.is_freed && standing == Some(Standing::Held) {
                return Err(format!("client {at} uses what is free"));
            }
            for (of, server) in self.servers.iter().enumerate() {
                let (client_id, epoch) = member(at);
                let context = NsdContext { client: client_id, epoch, ..NsdContext::default() };
                let clock = self.clock(server.is_ahead);
                let judged = server.admission.judge(&context, clock);
                if client.is_freed && judged.is_ok() {
                    return Err(format!("server {of} serves client {at}, which is dead"));
                }
                let must_be_listed =
                    client.has_joined && !client.is_declared && client.watch.is_some();
                if must_be_listed && matches!(judged, Err(Refusal::NotListed(..))) {
                    return Err(format!("server {of} does not know client {at}"));
                }
            }
        }
        Ok(())
    }

    /// Invariant 5.
    fn come_to_rest(mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            for at in 0..self.clients.len() {
                if self.clients[at].watch.is_some() {
                    self.renew(at);
                }
            }
            while !self.network.is_empty() {
                for packet in std::mem::take(&mut self.network) {
                    self.deliver(packet);
                }
            }
            self.judge()?;
            let ahead = self.servers.iter().map(|server| server.is_ahead);
            let ahead = ahead.chain(self.clients.iter().map(|client| client.is_ahead));
            let ahead =
                (0..).zip(ahead).fold(0, |mask, (at, is)| if is { mask | 1 << at } else { mask });
            self.pass(ahead);
        }
        for packet in std::mem::take(&mut self.network) {
            self.deliver(packet);
        }
        let ending = self.leader.ending();
        if !ending.is_empty() {
            return Err(format!("{ending:?} does not end: {self:?}"));
        }
        for member in self.leader.living() {
            let (client, epoch) = member;
            let context = NsdContext { client, epoch, ..NsdContext::default() };
            for server in &self.servers {
                let judged = server.admission.judge(&context, self.clock(server.is_ahead));
                if let Err(refusal) = judged {
                    return Err(format!("{member:?} is refused: {refusal}: {self:?}"));
                }
            }
            if !self.clients[at_of(member)].has_joined {
                return Err(format!("{member:?} has not joined: {self:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "lease_model_test.rs"]
mod lease_model_test;
