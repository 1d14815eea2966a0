//! Tokens in every state: the real [`Authority`] and real [`Holder`]s, and between them a network
//! that delivers in any order, loses and repeats.
//!
//! **Steps:** a client begins an operation, ends it, makes durable what was revoked; it closes a
//! file that it has opened, and perhaps lets it go; a message
//! arrives, arrives and stays in the network, or is lost; numbers are reserved; a client dies and
//! is fenced; a leader dies and the next one takes over.
//!
//! **Invariants**, in every state:
//! 1. no two living clients may use what conflicts;
//! 2. what a client may use is in the table, unless the client is yet to reassert it;
//! 3. an operation has a higher number than every earlier operation of another client that
//!    conflicts with it: so what it writes has a higher version;
//! 4. an operation begins only where no other client has used a conflicting thing and not flushed
//!    it since, and where the client itself has not used the inode beside others and not flushed
//!    it;
//! 5. what a client that is gone left is put right while nobody else writes to that file;
//! 6. a file that a client has open is open in the client's view; and where no message is under
//!    way, the table has a client for one that has a file open only if it has, or if it holds the
//!    inode token and has not let the file go;
//! 7. where no message is under way, a few rounds of repetitions bring every operation to its end.
//!
//! Small scopes are visited as a whole, larger ones at random.

use crate::explore::{Next, Step, Verdict};
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash};
use std::time::Duration;
use strake_env::Rng;
use strake_proto::{BlockIndex, ClientId, GrantNumber, Ino};
use strake_token::authority::{Authority, Effect as Order, Times};
use strake_token::held::{Held, Limit, Mode, RangeWant, Want};
use strake_token::holder::{Effect, Holder, UseId};
use strake_token::message::{Reply, Request, Term};
use strake_token::ranges::BlockRange;

/// Numbers are reserved in portions of so few that they are used up.
const PORTION: u64 = 2;
/// One more where a file is made that another client has already.
const PORTION_OF_MAKERS: u64 = 3;
/// Time stands still but for repetitions: a revoke is due at once, and is sent again once.
const TIMES: Times = Times { hold_min: Duration::ZERO, repeat: Duration::from_secs(1) };
const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(2);
/// Rounds of repetitions after which everything must have come to its end.
const ROUNDS_MAX: usize = 60;

/// What is modelled.
#[derive(Clone, Debug)]
pub struct Scope {
    /// For each client the operations that it does, one after the other; it may begin the next one
    /// while the one before is under way.
    pub operations: Vec<Vec<Vec<Want>>>,
    /// The client whose first operation asks for the tokens of its second one, and holds its own
    /// until that has begun: it makes a file in a directory.
    pub nested: Option<usize>,
    /// The nested client learns of the file, which is the one of its second operation, from the
    /// answer to a message that makes it. The token comes along.
    pub brought: bool,
    /// Messages that are lost.
    pub losses: u8,
    /// Messages that arrive and stay in the network.
    pub repetitions: u8,
    /// Clients that die.
    pub deaths: u8,
    /// Leaders that die.
    pub leaders: u8,
    /// How often the leader asks a client whether it has file 1 open.
    pub recalls: u8,
    /// Grants beyond one for each operation. Where revokes overtake grants time and again, clients
    /// ask for ever; from the last grant on a world is only brought to rest.
    pub more_grants: u64,
}

/// An operation on one file: the inode token, and of blocks `from..to`, wished for as `wished`.
pub fn want(ino: u64, inode: Mode, range: Option<(u64, u64, Mode, BlockRange)>) -> Want {
    let range = range.map(|(from, to, mode, desired)| RangeWant {
        required: BlockRange::new(BlockIndex(from), BlockIndex(to)),
        desired,
        mode,
    });
    Want { ino: Ino(ino), inode: Some(inode), open: false, range }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Packet {
    Up(usize, Term, Request),
    Down(usize, Term, Reply),
    /// A change that makes a file, to whoever leads.
    Make(usize, Ino),
    /// Its answer, perhaps with a grant.
    Made(usize, Term, Ino, Option<GrantNumber>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    holder: Holder,
    is_alive: bool,
    /// It is fenced, and what it left is not put right yet.
    is_left: bool,
    /// What it has used and not flushed since: inodes (`None`) and blocks.
    dirt: BTreeSet<Thing>,
    /// Files of which a flush was ordered.
    flushing: BTreeMap<Ino, Limit>,
    /// Files that it has open.
    open: BTreeSet<Ino>,
    /// Files that it has closed and let go, and not opened since.
    let_go: BTreeSet<Ino>,
    /// Operations under way, or waiting, that open each file.
    opening: BTreeMap<Ino, u32>,
    /// How many operations it has begun.
    begun: usize,
    /// The file that it is making.
    making: Option<Ino>,
}

impl Client {
    fn uses(&self, number: u64) -> bool {
        self.holder.uses().any(|(other, _)| other == UseId(number))
    }

    /// Whether the next operation may begin: see [`Scope::nested`].
    fn may_begin(&self, scope: &Scope, at: usize) -> bool {
        let is_nested = scope.nested == Some(at) && self.begun == 1;
        self.making.is_none() && (!is_nested || self.uses(0))
    }

    /// The uses that may end: see [`Scope::nested`].
    fn that_may_end(&self, scope: &Scope, at: usize) -> Vec<UseId> {
        let is_held = |number: u64| match number {
            0 => scope.nested == Some(at) && !self.uses(1),
            1 => scope.nested == Some(at) && self.uses(0),
            _ => false,
        };
        self.holder.uses().map(|(number, _)| number).filter(|number| !is_held(number.0)).collect()
    }
}

impl Client {
    /// Open files that no operation opens now.
    fn that_may_close(&self) -> Vec<Ino> {
        let open = self.open.iter().copied();
        open.filter(|ino| !self.opening.contains_key(ino)).collect()
    }
}

/// The last operation that used a token of a file or a block in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LastUse {
    client: usize,
    number: GrantNumber,
}

/// A thing that operations use: a file's inode (`None`), or a block of it; and how.
type Thing = (Ino, Option<u64>, Mode);

/// The whole: authority, clients, network, and what is known of the past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    authority: Authority,
    clients: Vec<Client>,
    network: BTreeSet<Packet>,
    /// Numbers that the log reserves for the leader, if it asked.
    reserving: Option<GrantNumber>,
    portion: u64,
    losses: u8,
    repetitions: u8,
    deaths: u8,
    leaders: u8,
    recalls: u8,
    /// Files that some leader has made.
    made: BTreeSet<Ino>,
    last: BTreeMap<Thing, LastUse>,
}

/// A scope with more states is too large for a test.
const STATES_MAX: usize = 1_500_000;

/// Visits a whole scope, depth first. Worlds are large, so of those that were visited only two
/// hashes are kept, 128 bits.
///
/// # Panics
/// If there are more states than a test has time for.
pub fn check(scope: &Scope) -> Verdict {
    let first = World::new(scope);
    let mut seen = HashSet::from([first.mark()]);
    // The way to where the search stands, and what is left to try from each world on it.
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
        assert!(seen.len() < STATES_MAX, "too many states to visit");
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
    world.come_to_rest(scope).map(|()| steps)
}

fn successors(scope: &Scope, world: &World) -> Next<World> {
    world.judge()?;
    if world.network.is_empty() {
        world.clone().come_to_rest(scope)?;
    }
    let operations: usize = scope.operations.iter().map(Vec::len).sum();
    if world.authority.grants() > operations as u64 + scope.more_grants {
        world.clone().come_to_rest(scope)?;
        return Ok(Vec::new());
    }
    let mut next: Vec<(Step, World)> = Vec::new();
    let mut add = |step: Step, change: &dyn Fn(&mut World) -> Result<(), String>| {
        let mut changed = world.clone();
        change(&mut changed)?;
        if changed != *world {
            next.push((step, changed));
        }
        Ok::<(), String>(())
    };
    for (at, client) in world.clients.iter().enumerate().filter(|(_, client)| client.is_alive) {
        if client.begun < scope.operations[at].len() && client.may_begin(scope, at) {
            add(Step::of("client {} begins", at), &|world| world.begin(scope, at))?;
        }
        for number in client.that_may_end(scope, at) {
            add(Step::of("client {} ends", at), &|world| world.end(at, number))?;
        }
        for (ino, limit) in &client.flushing {
            add(Step::of("client {} has flushed", at), &|world| world.flushed(at, *ino, false))?;
            let is_whole = client.holder.in_use(*ino).inode == Some(Mode::Exclusive);
            if is_whole && limit.inode == Some(Mode::Writing) {
                let step = Step::of("client {} has dropped all", at);
                add(step, &|world| world.flushed(at, *ino, true))?;
            }
        }
        for ino in client.that_may_close() {
            add(Step::of("client {} closes", at), &|world| world.close(at, ino, false))?;
            let step = Step::of("client {} closes what has no name", at);
            add(step, &|world| world.close(at, ino, true))?;
        }
        if client.holder.term() != world.authority.term() {
            add(Step::of("client {} hears of the leader", at), &|world| world.reassert(at))?;
        }
        if world.deaths > 0 {
            add(Step::of("client {} dies", at), &|world| world.die(at))?;
        }
    }
    for at in 0..world.clients.len() {
        add(Step::of("what client {} left is put right", at), &|world| world.heal(at))?;
    }
    for packet in &world.network {
        add(arrival(packet), &|world| {
            world.network.remove(packet);
            world.deliver(scope, packet.clone())
        })?;
        if world.repetitions > 0 {
            add(Step::new("a message arrives, and will again"), &|world| {
                world.repetitions -= 1;
                world.deliver(scope, packet.clone())
            })?;
        }
        if world.losses > 0 {
            add(Step::new("a message is lost"), &|world| {
                world.losses -= 1;
                world.network.remove(packet);
                Ok(())
            })?;
        }
    }
    if world.reserving.is_some() {
        add(Step::new("numbers are reserved"), &World::reserve)?;
    }
    if world.recalls > 0 {
        for at in 0..world.clients.len() {
            add(Step::of("client {} is asked what it has open", at), &|world| world.recall(at))?;
        }
    }
    if world.leaders > 0 {
        add(Step::new("a new leader"), &World::change_leader)?;
    }
    // Where nothing is lost, bringing to rest tries that.
    if world.network.is_empty() && scope.losses > 0 {
        add(Step::new("messages are sent again"), &|world| world.repeat(LATER))?;
    }
    Ok(next)
}

fn arrival(packet: &Packet) -> Step {
    match packet {
        Packet::Up(at, _, Request::Ask { .. }) => Step::of("client {} is heard: ask", *at),
        Packet::Up(at, _, Request::GivenUp { .. }) => Step::of("client {} is heard: given up", *at),
        Packet::Up(at, _, _) => Step::of("client {} is heard: reassert", *at),
        Packet::Make(at, _) => Step::of("client {} is heard: make", *at),
        Packet::Made(at, ..) => Step::of("client {} hears: made", *at),
        Packet::Down(at, _, Reply::Grant { .. }) => Step::of("client {} hears: grant", *at),
        Packet::Down(at, _, Reply::Revoke { .. }) => Step::of("client {} hears: revoke", *at),
        Packet::Down(at, _, Reply::Reasserted) => Step::of("client {} hears: reasserted", *at),
        Packet::Down(
            at,
            _,
            Reply::Unusable { .. } | Reply::Writable { .. } | Reply::Places { .. } | Reply::Lock(_),
        ) => {
            unreachable!("the table does not send that to client {at}")
        }
    }
}

impl World {
    /// Two worlds that have the same mark are the same.
    fn mark(&self) -> (u64, u64) {
        let hash = |salt| FixedState::with_seed(salt).hash_one(self);
        (hash(0), hash(1))
    }

    fn new(scope: &Scope) -> World {
        let mut authority = Authority::new(Term(0), TIMES, &[], GrantNumber(1));
        let client = |at: usize| {
            authority.join(ClientId(at as u64));
            Client {
                holder: Holder::default(),
                is_alive: true,
                is_left: false,
                dirt: BTreeSet::new(),
                flushing: BTreeMap::new(),
                open: BTreeSet::new(),
                let_go: BTreeSet::new(),
                opening: BTreeMap::new(),
                begun: 0,
                making: None,
            }
        };
        let clients = (0..scope.operations.len()).map(client).collect();
        World {
            authority,
            clients,
            network: BTreeSet::new(),
            reserving: None,
            portion: if scope.brought { PORTION_OF_MAKERS } else { PORTION },
            losses: scope.losses,
            repetitions: scope.repetitions,
            deaths: scope.deaths,
            leaders: scope.leaders,
            recalls: scope.recalls,
            made: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    fn begin(&mut self, scope: &Scope, at: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        if scope.brought && scope.nested == Some(at) && client.begun == 1 {
            let ino = scope.operations[at][1][0].ino;
            client.holder.begin_making();
            client.making = Some(ino);
            self.network.insert(Packet::Make(at, ino));
            return Ok(());
        }
        self.begin_use(scope, at)
    }

    fn begin_use(&mut self, scope: &Scope, at: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        let wants = scope.operations[at][client.begun].clone();
        client.begun += 1;
        for want in wants.iter().filter(|want| want.open) {
            client.holder.opening(want.ino);
            client.let_go.remove(&want.ino);
            *client.opening.entry(want.ino).or_default() += 1;
        }
        let (_, effects) = client.holder.begin(wants);
        self.carry_out(at, effects)
    }

    /// Ends an operation. What it opened stays open.
    fn end(&mut self, at: usize, number: UseId) -> Result<(), String> {
        let client = &mut self.clients[at];
        let wants = client.holder.uses().find(|(found, _)| *found == number);
        let wants = wants.map(|(_, wants)| wants.to_vec()).unwrap_or_default();
        for want in wants.iter().filter(|want| want.open) {
            client.open.insert(want.ino);
            let left = client.opening.get_mut(&want.ino).expect("invariant: it has begun");
            *left -= 1;
            if *left == 0 {
                client.opening.remove(&want.ino);
            }
        }
        let effects = client.holder.end(number);
        self.carry_out(at, effects)
    }

    fn close(&mut self, at: usize, ino: Ino, lets_go: bool) -> Result<(), String> {
        let client = &mut self.clients[at];
        client.open.remove(&ino);
        let mut effects: Vec<Effect> = client.holder.closed(ino).into_iter().collect();
        if lets_go {
            client.let_go.insert(ino);
            effects.extend(client.holder.let_go(ino));
        }
        self.carry_out(at, effects)
    }

    fn flushed(&mut self, at: usize, ino: Ino, drops_all: bool) -> Result<(), String> {
        let client = &mut self.clients[at];
        let limit = client.flushing.remove(&ino).expect("invariant: ordered before");
        let stays = client.holder.in_use(ino).is_writing() && limit.inode == Some(Mode::Writing);
        let is_dropped = |block: &Option<u64>| {
            let range = |block| BlockRange::new(BlockIndex(block), BlockIndex(block + 1));
            let mut limits = limit.ranges.iter();
            !stays || block.is_some_and(|block| limits.any(|(one, _)| one.contains(range(block))))
        };
        client.dirt.retain(|(of, block, _)| *of != ino || !is_dropped(block));
        let effects = match drops_all {
            true => client.holder.dropped(ino),
            false => client.holder.flushed(ino),
        };
        self.carry_out(at, effects)
    }

    fn reassert(&mut self, at: usize) -> Result<(), String> {
        let effects = self.clients[at].holder.reassert(self.authority.term());
        self.carry_out(at, effects)
    }

    fn die(&mut self, at: usize) -> Result<(), String> {
        self.deaths -= 1;
        (self.clients[at].is_alive, self.clients[at].is_left) = (false, true);
        let orders = self.authority.fenced(&[ClientId(at as u64)].into(), NOW);
        self.obey(orders);
        Ok(())
    }

    /// Invariant 5. Does nothing as long as it must wait.
    fn heal(&mut self, at: usize) -> Result<(), String> {
        let is_known = |id: &ClientId| !self.clients[id.0 as usize].is_alive;
        if !self.clients[at].is_left
            || !self.authority.is_cleared()
            || !self.authority.awaited().iter().all(is_known)
        {
            return Ok(());
        }
        for (other, client) in self.clients.iter().enumerate().filter(|(_, one)| one.is_alive) {
            for ino in [Ino(1), Ino(2), Ino(3)] {
                let both = [at, other].map(|one| self.clients[one].holder.in_use(ino));
                if both.iter().all(Held::is_writing) || both[0].conflicts_with(&both[1]) {
                    return Err(format!("client {other} writes where {at} left something"));
                }
                let used = client.holder.uses().flat_map(|(_, wants)| wants);
                let writes = |want: &Want| want.inode == Some(Mode::Writing) && want.ino == ino;
                if both[0].is_writing() && used.into_iter().any(writes) {
                    return Err(format!("client {other} uses what {at} left"));
                }
            }
        }
        self.clients[at].is_left = false;
        let orders = self.authority.dead(ClientId(at as u64), NOW);
        self.obey(orders);
        Ok(())
    }

    fn reserve(&mut self) -> Result<(), String> {
        let upto = self.reserving.take().expect("invariant: asked before");
        let from = GrantNumber(upto.0 - self.portion);
        let orders = self.authority.reserved(from, upto, NOW);
        self.obey(orders);
        Ok(())
    }

    fn recall(&mut self, at: usize) -> Result<(), String> {
        let order = self.authority.recall(ClientId(at as u64), Ino(1), NOW);
        self.recalls -= u8::from(order.is_some());
        self.obey(order.into_iter().collect());
        Ok(())
    }

    fn change_leader(&mut self) -> Result<(), String> {
        self.leaders -= 1;
        let term = Term(self.authority.term().0 + 1);
        let alive: Vec<ClientId> = (0..self.clients.len())
            .filter(|at| self.clients[*at].is_alive || self.clients[*at].is_left)
            .map(|at| ClientId(at as u64))
            .collect();
        // A reservation that was asked for may be in the log already.
        let free = self.reserving.take().unwrap_or(self.authority.first_free_number());
        self.authority = Authority::new(term, TIMES, &alive, free);
        let left = (0..self.clients.len()).filter(|at| self.clients[*at].is_left);
        let left: BTreeSet<ClientId> = left.map(|at| ClientId(at as u64)).collect();
        let orders = self.authority.fenced(&left, NOW);
        self.obey(orders);
        Ok(())
    }

    fn repeat(&mut self, now: Duration) -> Result<(), String> {
        for at in 0..self.clients.len() {
            if self.clients[at].is_alive {
                let effects = self.clients[at].holder.repeat();
                self.carry_out(at, effects)?;
                if let Some(ino) = self.clients[at].making {
                    self.network.insert(Packet::Make(at, ino));
                }
            }
        }
        let orders = self.authority.tick(now);
        self.obey(orders);
        Ok(())
    }

    /// The answer to a change that makes a file. Of several only the first one counts.
    fn made(
        &mut self,
        scope: &Scope,
        at: usize,
        (term, ino, number): (Term, Ino, Option<GrantNumber>),
    ) -> Result<(), String> {
        let client = &mut self.clients[at];
        if !client.is_alive || client.making.take().is_none() {
            return Ok(());
        }
        if let Some(number) = number {
            client.holder.made(term, ino, number);
        }
        client.holder.end_making();
        self.begin_use(scope, at)
    }

    fn deliver(&mut self, scope: &Scope, packet: Packet) -> Result<(), String> {
        match packet {
            Packet::Make(at, ino) => {
                // Another client that has begun with the file has heard of it.
                let is_heard_of = self.clients.iter().enumerate().any(|(other, client)| {
                    let mut begun = scope.operations[other].iter().take(client.begun).flatten();
                    other != at && begun.any(|want| want.ino == ino)
                });
                let is_first = self.made.insert(ino) && !is_heard_of;
                let client = ClientId(at as u64);
                let number = self.authority.grant_new(client, ino, is_first, NOW);
                self.network.insert(Packet::Made(at, self.authority.term(), ino, number));
            }
            Packet::Made(at, term, ino, number) => self.made(scope, at, (term, ino, number))?,
            Packet::Up(at, term, request) => {
                let received = self.authority.receive(ClientId(at as u64), term, request, NOW);
                match received {
                    Ok(orders) => self.obey(orders),
                    Err(_) if !self.clients[at].is_alive => {}
                    Err(refusal) => return Err(format!("client {at} is refused: {refusal:?}")),
                }
            }
            Packet::Down(at, term, reply) => {
                if self.clients[at].is_alive {
                    let effects = self.clients[at].holder.receive(term, reply);
                    self.carry_out(at, effects)?;
                }
            }
        }
        Ok(())
    }

    fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Send(client, reply) => {
                    let (at, term) = (client.0 as usize, self.authority.term());
                    self.network.insert(Packet::Down(at, term, reply));
                }
                // Large portions would do no harm, but numbers are part of the state.
                Order::Reserve(_) => {
                    let free = self.authority.first_free_number();
                    self.reserving = Some(GrantNumber(free.0 + self.portion));
                }
            }
        }
    }

    fn carry_out(&mut self, at: usize, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Send(request) => {
                    let term = self.clients[at].holder.term();
                    self.network.insert(Packet::Up(at, term, request));
                }
                Effect::Flush(ino, limit) => {
                    self.clients[at].flushing.insert(ino, limit);
                }
                Effect::Begun(number) => self.note_begun(at, number)?,
            }
        }
        Ok(())
    }

    /// Invariants 3 and 4.
    fn note_begun(&mut self, at: usize, number: UseId) -> Result<(), String> {
        let holder = &self.clients[at].holder;
        let wants: Vec<Want> = holder
            .uses()
            .find(|(found, _)| *found == number)
            .map(|(_, wants)| wants.to_vec())
            .ok_or("a use that has not begun")?;
        for want in &wants {
            let newest = self.clients[at].holder.newest(want.ino).unwrap_or_default();
            let blocks = want.range.into_iter().flat_map(|range| {
                let blocks = range.required.from.0..range.required.to.0;
                blocks.map(move |block| (Some(block), range.mode))
            });
            let things = want.inode.into_iter().map(|mode| (None, mode)).chain(blocks);
            for (block, mode) in things {
                for other in Mode::ALL.into_iter().filter(|other| !other.agrees(mode)) {
                    let last = self.last.get(&(want.ino, block, other));
                    if last.is_some_and(|last| last.client != at && last.number >= newest) {
                        return Err(format!("client {at} uses {want:?} under an old number"));
                    }
                }
                self.see_no_dirt(at, (want.ino, block, mode))?;
                self.clients[at].dirt.insert((want.ino, block, mode));
                self.last.insert((want.ino, block, mode), LastUse { client: at, number: newest });
            }
        }
        Ok(())
    }

    /// Invariant 4.
    fn see_no_dirt(&self, at: usize, (ino, block, mode): Thing) -> Result<(), String> {
        for (other, client) in self.clients.iter().enumerate() {
            let mut dirt = client.dirt.iter().filter(|thing| (thing.0, thing.1) == (ino, block));
            // What a client knows of a file that it writes beside others may be wrong for all else.
            let is_other = |it: Mode| (it == Mode::Writing) != (mode == Mode::Writing);
            let is_seen = client.is_alive
                && dirt.any(|it| match other == at {
                    true => block.is_none() && is_other(it.2),
                    false => !it.2.agrees(mode),
                });
            if is_seen {
                let what = format!("{block:?} of inode {ino}");
                return Err(format!("client {at} uses {what}, which {other} has not flushed"));
            }
        }
        Ok(())
    }

    /// Invariants 1 and 2, and those of the table and the clients.
    fn judge(&self) -> Result<(), String> {
        self.authority.check();
        let files: BTreeSet<Ino> = [Ino(1), Ino(2), Ino(3)].into();
        let alive = || self.clients.iter().enumerate().filter(|(_, client)| client.is_alive);
        for (at, client) in alive() {
            client.holder.check();
            for ino in &files {
                let held = client.holder.in_use(*ino);
                if client.open.contains(ino) && !held.open {
                    return Err(format!("client {at} has inode {ino} open, and does not say so"));
                }
                for (other, theirs) in alive().filter(|(other, _)| *other > at) {
                    if held.conflicts_with(&theirs.holder.in_use(*ino)) {
                        return Err(format!("clients {at} and {other} conflict"));
                    }
                }
                let is_known = client.holder.term() == self.authority.term()
                    && !client.holder.is_reasserting();
                let known = self.authority.held(ClientId(at as u64), *ino);
                if is_known && !held.is_within(&known) {
                    return Err(format!("client {at} holds {held:?}, the table says {known:?}"));
                }
            }
        }
        Ok(())
    }

    /// Invariant 6, where no message is under way. A message that a file is closed is not repeated,
    /// so this does not hold where messages are lost.
    fn judge_opens(&self, scope: &Scope) -> Result<(), String> {
        if scope.losses > 0 {
            return Ok(());
        }
        for (at, client) in self.clients.iter().enumerate().filter(|(_, one)| one.is_alive) {
            for ino in [Ino(1), Ino(2), Ino(3)] {
                let known = self.authority.held(ClientId(at as u64), ino);
                let may_be = known.inode.is_some() && !client.let_go.contains(&ino);
                if known.open && !may_be && !client.open.contains(&ino) {
                    return Err(format!("client {at} has inode {ino} open for ever"));
                }
            }
        }
        Ok(())
    }

    /// Invariant 7: everything is delivered, ended, flushed and repeated until all is at rest.
    fn come_to_rest(mut self, scope: &Scope) -> Result<(), String> {
        for round in 0..ROUNDS_MAX as u32 {
            for at in 0..self.clients.len() {
                if !self.clients[at].is_alive {
                    continue;
                }
                if self.clients[at].holder.term() != self.authority.term() {
                    self.reassert(at)?;
                }
                let client = &self.clients[at];
                if client.begun == 1 && scope.nested == Some(at) && client.may_begin(scope, at) {
                    self.begin(scope, at)?;
                }
                for number in self.clients[at].that_may_end(scope, at) {
                    self.end(at, number)?;
                }
                for ino in self.clients[at].flushing.clone().into_keys() {
                    self.flushed(at, ino, false)?;
                }
            }
            for at in 0..self.clients.len() {
                self.heal(at)?;
            }
            if self.reserving.is_some() {
                self.reserve()?;
            }
            for packet in std::mem::take(&mut self.network) {
                self.deliver(scope, packet)?;
            }
            let mut alive = self.clients.iter().filter(|client| client.is_alive);
            if self.network.is_empty()
                && !self.clients.iter().any(|client| client.is_left)
                && self.authority.is_idle()
                && alive.all(|client| client.holder.is_idle())
            {
                self.judge_opens(scope)?;
                return self.judge();
            }
            self.repeat(LATER * (round + 2))?;
        }
        Err(format!("does not come to rest in {scope:?}: {self:?}"))
    }
}

#[cfg(test)]
#[path = "token_model_test.rs"]
mod token_model_test;
