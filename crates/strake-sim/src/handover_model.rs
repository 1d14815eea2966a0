//! Model checking of one block that two clients hand over to each other. It reads on from
//! [`crate::stripe_model`], which has one writer: here a leader grants the block's token, NSDs sit
//! behind servers of their own, messages arrive late, and a manager resolves and recovers.
//!
//! A *value* is what an application wrote, counted from 0. A *version* is a grant number and a
//! counter. Every strip says which value it is of; only the invariants look at that.
//!
//! **What happens.** The leader grants the token to a client that asks, once it is free. The holder
//! writes: it sends one strip to every NSD that its map calls writable. A strip stays in the
//! network for any time; its server may publish it after the holder gave up on it, gave the token
//! back, or died. An NSD is lost: it crashes, or the leader loses sight of it while it goes on
//! serving until its lease ends. It returns, and is compared with its partners. The leader declares
//! a client dead that in truth goes on. The manager resolves what a dead client left, and may die
//! over it.
//!
//! **Rules.** They are those of the design for many mounts: map floor (R2), what the manager
//! resolves (R4), versions that rise (R6), hand-over of what is stable (R7), deletion under the
//! token (R8), the fence (R9). Decision 0022 has them. [`Bug`] takes each away; the test requires
//! that each is missed. For a strip with too many versions, and what replaces the comparison of
//! grants, see `handover_model/servers.rs`.
//!
//! **Invariants** are in `handover_model/invariants.rs`.
//!
//! **Not modelled**: change of the leader and of its term, crossing messages of tokens (R22),
//! several blocks, tombstones of ranges, substitution and promotion of NSDs (they change the map as
//! a return does). A settling reaches all NSDs at once; [`crate::stripe_model`] has it one by one.

mod bugs;
mod clients;
mod invariants;
mod leader;
mod manager;
mod normal;
mod servers;

pub use bugs::Bug;

use crate::explore::{Verdict, explore};

/// NSDs of the stripe at most.
const WIDTH_MAX: usize = 3;
/// Clients.
const CLIENTS: usize = 2;
/// The next grant number is above the counters that a life can reach.
const COUNTERS: u8 = 8;

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// N.
    pub data: usize,
    /// P.
    pub parity: usize,
    /// Whether the block was never written before.
    pub is_new: bool,
    /// Writes of the applications.
    pub writes: u8,
    /// Grants of the token.
    pub grants: u8,
    /// Grants of other tokens to the holder.
    pub others: u8,
    /// Times that NSDs are lost.
    pub losses: u8,
    /// Clients that the leader declares dead.
    pub deaths: u8,
    /// Deaths of the manager while it resolves.
    pub manager_deaths: u8,
    /// Whether states that differ only in the order of NSDs or clients are visited once. Steps of a
    /// fault then name them as they stand at that step.
    pub is_symmetric: bool,
    /// Versions of a strip that an NSD keeps, the current one included.
    pub kept: usize,
    /// The rules that are not obeyed.
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
    /// Positions that the write left out, or that were not stable when it was settled: a mask.
    lacks: u8,
}

/// What the map says of an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Availability {
    Up,
    Down,
    Recovering,
}

/// An NSD and its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Nsd {
    /// Oldest first.
    strips: Vec<Strip>,
    /// Versions up to this one are deleted.
    tombstone: u8,
    /// It has a lease, and serves.
    serving: bool,
    /// Changes that were sent under an older map are refused.
    floor: u8,
    /// Clients whose changes are refused: a mask.
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

    /// Whether it is read and must have everything.
    fn is_up(&self) -> bool {
        self.availability == Availability::Up
    }

    /// Whether the manager and the leader reach it.
    fn is_reached(&self) -> bool {
        self.availability != Availability::Down
    }
}

/// A strip on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    to: u8,
    client: u8,
    version: u8,
    value: u8,
    /// The map under which it was sent.
    map: u8,
    /// What the writer knows to be stable everywhere.
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
    /// Positions whose NSD accepted it, and has not been started anew since: a mask.
    accepted: u8,
    /// Of these, those that called it stable: a mask.
    stable: u8,
    /// A server refused it.
    refused: bool,
    acknowledged: bool,
}

/// A client as it sees itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Client {
    /// It has the token.
    holding: bool,
    /// The newest grant number it was ever given.
    newest: u8,
    /// The first one.
    first: u8,
    counter: u8,
    map: u8,
    /// Positions that are down in its map: a mask.
    down: u8,
    /// The version that it knows to be stable everywhere.
    stable: u8,
    write: Option<Write>,
}

/// How far the comparison of a returned NSD is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Begun,
    /// Its own strips were listed: the newest version, 0 for none.
    ListedOwn(u8),
    /// Its partners' were; the block is to be compared under the token.
    Needed,
}

/// A returned NSD that is being compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Recovery {
    at: usize,
    phase: Phase,
}

/// An outcome that the manager is writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome {
    version: u8,
    /// `None`: the block is deleted.
    value: Option<u8>,
    stable: u8,
    /// NSDs that have it: a mask.
    done: u8,
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nsds: Vec<Nsd>,
    clients: [Client; CLIENTS],
    /// In order.
    network: Vec<Message>,
    // What the leader knows.
    map: u8,
    token_holder: Option<usize>,
    /// A number that was drawn before the token was free, and for whom.
    drawn: Option<(usize, u8)>,
    next_grant: u8,
    /// Declared dead: a mask.
    dead: u8,
    /// A dead client held the token: the block is to be resolved.
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

    /// A mask of the NSDs that are so.
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

    /// Whether every server that serves is so.
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
