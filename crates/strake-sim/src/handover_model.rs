//! Model checking of one block that two clients hand over to each other.
//!
//! This model extends [`crate::stripe_model`], which has one writer. Here a leader grants the
//! block's token, NSDs sit behind servers of their own, messages arrive late, and a manager
//! resolves and recovers.
//!
//! A *value* is what an application wrote, counted from 0. A *version* is a grant number and a
//! counter. Every strip records its value, but only the invariants look at it.
//!
//! **What happens.** The leader grants the token to a client that asks, once the token is free. The
//! holder writes: it sends one strip to every NSD that its map calls writable. A strip may stay in
//! the network for any time. Its server may publish it after the holder gave up on it, gave the
//! token back, or died. An NSD can be lost in two ways: it crashes, or the leader loses sight of it
//! while it goes on serving until its lease ends. A lost NSD returns and is compared with its
//! partners. The leader may declare a client dead that in truth goes on. The manager resolves what
//! a dead client left, and may die while it does so.
//!
//! **Rules.** They come from the design for many mounts (decision 0022): map floor (R2), what the
//! manager resolves (R4), versions that rise (R6), hand-over of what is stable (R7), deletion under
//! the token (R8), the fence (R9). [`Bug`] takes each rule away, and the test requires that the
//! model then finds a fault. `handover_model/servers.rs` explains what an NSD drops when a strip
//! has too many versions.
//!
//! **Invariants** are in `handover_model/invariants.rs`.
//!
//! **Not modelled**: changes of the leader and of its term, token messages that cross (R22),
//! several blocks, tombstones of ranges, and substitution and promotion of NSDs (they change the
//! map as a return does). A settling reaches all NSDs at once; in [`crate::stripe_model`] it
//! reaches them one by one.

mod bugs;
mod clients;
mod invariants;
mod leader;
mod manager;
mod normal;
mod servers;

pub use bugs::Bug;

use crate::explore::{Verdict, explore};

/// The most NSDs that a stripe has.
const WIDTH_MAX: usize = 3;
/// The number of clients.
const CLIENTS: usize = 2;
/// Counters stay below this, so the next grant's versions are above all versions of this grant.
const COUNTERS: u8 = 8;

/// The limits within which states are visited.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// N: the number of data strips.
    pub data: usize,
    /// P: the number of parity strips.
    pub parity: usize,
    /// True if the block was never written before.
    pub is_new: bool,
    /// How many times the applications write.
    pub writes: u8,
    /// How many times the token is granted.
    pub grants: u8,
    /// How many times the holder is granted another token.
    pub others: u8,
    /// How many times NSDs are lost.
    pub losses: u8,
    /// How many clients the leader declares dead.
    pub deaths: u8,
    /// How many times the manager dies while it resolves.
    pub manager_deaths: u8,
    /// Whether to visit states only once that differ only in the order of NSDs or clients. The
    /// steps of a fault then use the numbers that NSDs and clients had at that step.
    pub is_symmetric: bool,
    /// How many versions of a strip an NSD keeps, the current one included.
    pub kept: usize,
    /// The rules that are broken.
    pub bugs: &'static [Bug],
}

impl Scope {
    fn width(&self) -> usize {
        self.data + self.parity
    }

    fn has(&self, bug: Bug) -> bool {
        self.bugs.contains(&bug)
    }
}

/// A version of a strip on an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Strip {
    version: u8,
    value: u8,
    durable: bool,
    settled: bool,
    /// The positions that the write left out, or that were not stable when it was settled: a mask.
    lacks: u8,
}

/// The state of an NSD in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Availability {
    Up,
    Down,
    Recovering,
}

/// An NSD with its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Nsd {
    /// The versions of its strip, oldest first.
    strips: Vec<Strip>,
    /// Versions up to this one are deleted.
    tombstone: u8,
    /// The server has a lease, and serves.
    serving: bool,
    /// The server refuses changes that were sent under a map older than this.
    floor: u8,
    /// The clients whose changes the server refuses: a mask.
    fenced: u8,
    availability: Availability,
}

impl Nsd {
    fn current(&self) -> u8 {
        self.strips.last().map_or(0, |strip| strip.version)
    }

    fn holds(&self, version: u8) -> Option<&Strip> {
        self.strips.iter().find(|strip| strip.version == version)
    }

    /// True if the NSD is read. It must then have everything.
    fn is_up(&self) -> bool {
        self.availability == Availability::Up
    }

    /// True if the manager and the leader reach the NSD.
    fn is_reached(&self) -> bool {
        self.availability != Availability::Down
    }
}

/// A strip on its way to an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    to: u8,
    client: u8,
    version: u8,
    value: u8,
    /// The map under which it was sent.
    map: u8,
    /// The version that the writer knows to be stable everywhere.
    stable: u8,
    lacks: u8,
}

/// A write of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Write {
    version: u8,
    value: u8,
    /// Positions that were down in the client's map when it was sent: a mask.
    skipped: u8,
    /// Positions whose NSD accepted it and has not been restarted since: a mask.
    accepted: u8,
    /// The positions in `accepted` whose NSD reported it stable: a mask.
    stable: u8,
    /// A server refused it.
    refused: bool,
    acknowledged: bool,
}

/// A client with what it believes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Client {
    /// The client has the token.
    holding: bool,
    /// The newest grant number it was given.
    newest: u8,
    /// The first grant number it was given.
    first: u8,
    counter: u8,
    map: u8,
    /// Positions that are down in its map: a mask.
    down: u8,
    /// The version that it knows to be stable everywhere.
    stable: u8,
    write: Option<Write>,
}

/// How far the comparison of a returned NSD has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Begun,
    /// The NSD's own strips were listed. The number is its newest version, 0 for none.
    ListedOwn(u8),
    /// The strips of its partners were listed too. The block must be compared under the token.
    Needed,
}

/// A returned NSD that is being compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Recovery {
    at: usize,
    phase: Phase,
}

/// The outcome of a resolving, while the manager writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome {
    version: u8,
    /// `None`: the block is deleted.
    value: Option<u8>,
    stable: u8,
    /// The NSDs that have it: a mask.
    done: u8,
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nsds: Vec<Nsd>,
    clients: [Client; CLIENTS],
    /// The strips on their way, sorted.
    network: Vec<Message>,
    // What the leader knows.
    map: u8,
    token_holder: Option<usize>,
    /// A number that was drawn before the token was free, and the client it is for.
    drawn: Option<(usize, u8)>,
    next_grant: u8,
    /// The clients that were declared dead: a mask.
    dead: u8,
    /// A dead client held the token, so the block must be resolved.
    orphaned: bool,
    recovery: Option<Recovery>,
    outcome: Option<Outcome>,
    // What the applications did.
    next_value: u8,
    /// The newest value acknowledged or read.
    promised: u8,
    // What has happened so far.
    grants: u8,
    others: u8,
    losses: u8,
    manager_deaths: u8,
}

impl State {
    fn first(scope: &Scope) -> State {
        let strip = Strip { version: 1, value: 0, durable: true, settled: true, lacks: 0 };
        let nsd = Nsd {
            strips: if scope.is_new { Vec::new() } else { vec![strip] },
            tombstone: 0,
            serving: true,
            floor: 0,
            fenced: 0,
            availability: Availability::Up,
        };
        State {
            nsds: vec![nsd; scope.width()],
            clients: Default::default(),
            network: Vec::new(),
            map: 0,
            token_holder: None,
            drawn: None,
            next_grant: 1,
            dead: 0,
            orphaned: false,
            recovery: None,
            outcome: None,
            next_value: 1,
            promised: 0,
            grants: 0,
            others: 0,
            losses: 0,
            manager_deaths: 0,
        }
    }

    fn draw(&mut self) -> u8 {
        self.next_grant += 1;
        assert!(self.next_grant < u8::MAX / COUNTERS, "the model's numbers are too small");
        self.next_grant - 1
    }

    /// A mask of the NSDs for which `wanted` is true.
    fn mask(&self, wanted: impl Fn(&Nsd) -> bool) -> u8 {
        (0..).zip(&self.nsds).filter(|(_, nsd)| wanted(nsd)).fold(0, |all, (at, _)| all | 1 << at)
    }

    fn down(&self) -> u8 {
        self.mask(|nsd| nsd.availability == Availability::Down)
    }

    /// NSDs that are not up.
    fn missing(&self) -> usize {
        self.nsds.iter().filter(|nsd| !nsd.is_up()).count()
    }

    /// True if `wanted` is true for every NSD whose server serves.
    fn all_serving(&self, wanted: impl Fn(&Nsd) -> bool) -> bool {
        self.nsds.iter().filter(|nsd| nsd.serving).all(wanted)
    }
}

type Steps = Vec<(crate::explore::Step, State)>;

/// Visits every state within a scope.
pub fn check(scope: Scope) -> Verdict {
    assert!(scope.width() <= WIDTH_MAX, "the model is for small stripes");
    explore(State::first(&scope), &|state| {
        let mut steps = Vec::new();
        clients::steps(&scope, state, &mut steps);
        servers::steps(&scope, state, &mut steps)?;
        leader::steps(&scope, state, &mut steps)?;
        manager::steps(&scope, state, &mut steps)?;
        for (_, state) in &mut steps {
            invariants::always(state)?;
            normal::normalise(&scope, state);
        }
        Ok(steps)
    })
}

fn has(mask: u8, at: usize) -> bool {
    mask >> at & 1 == 1
}

/// A version of a grant.
fn version(grant: u8, counter: u8) -> u8 {
    assert!(counter < COUNTERS, "the model's numbers are too small");
    grant * COUNTERS + counter
}

#[cfg(test)]
#[path = "handover_model_test.rs"]
mod handover_model_test;
