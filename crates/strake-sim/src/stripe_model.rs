//! Model checking of the stripe-commit protocol for one block. The model visits every interleaving
//! of a writer's steps, NSDs that make things durable on their own, crashes, lost and returning
//! NSDs, and recovery. Decisions 0007 and 0010 describe the protocol. This is the same protocol in
//! a form small enough to visit every state.
//!
//! A *value* is what the application wrote to a unit. A *version* is the protocol's number of a
//! write. Both are only compared. Every strip records which values it is made of. No NSD or client
//! may look at that; only the invariants do. A block has two units, so that a part of it can be
//! written: a patch (decision 0031).
//!
//! **Invariants**, after every recovery:
//!
//! * The block can be read from every choice of the NSDs that are up, after any losses that the
//!   code tolerates.
//! * Every choice of N strips decodes to the same value of each unit.
//! * No unit is older than its last acknowledged value, nor than a value that was read before.
//! * A block that was written never reads as a hole.
//!
//! At every moment the same holds of the version that the client takes for stable everywhere.
//!
//! **What is assumed:** one client, which sends a block's writes one after the other; blocks keep
//! their length; bytes on disks do not rot.
//!
//! **Deleting an NSD** (decision 0013): the NSD of the first position is deleted, and an *heir* is
//! to take its place. The heir follows writes and gets a copy. If it missed nothing, it takes the
//! place in one step. Until then nobody asks the heir what it holds. Like any NSD, it can be lost,
//! and it can return without anybody noticing.
//!
//! **Bugs** ([`Bug`]) each take one rule away. The test requires that each is found.

mod after_crash;
mod bugs;
mod canon;
mod client;
mod deletion;
mod strips;
mod writing;

pub use bugs::{Bug, Shows};

use crate::explore::{Step, Verdict, explore};
use after_crash::{crash, judge, recoveries};
use canon::canonical;
use client::Client;
use deletion::delete;
use strips::{NOTHING, Nsd, Strip, UNITS, Units, decode, part};

/// The most NSDs that a stripe has.
const MAX: usize = 4;

/// The limits within which states are visited.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// N: the number of data strips.
    pub data: usize,
    /// P: the number of parity strips.
    pub parity: usize,
    /// How many times the application writes.
    pub writes: u8,
    /// How many crashes there are.
    pub crashes: u8,
    /// How many times NSDs are lost.
    pub losses: u8,
    /// Whether the NSD of the first position may be deleted.
    pub deletes: bool,
    /// Whether the application also writes parts of the block, which are sent as patches.
    pub patches: bool,
    /// Whether written data stays in a page pool before it is sent.
    pub pool: bool,
    /// Whether small synchronous writes are hardened in the metadata's log.
    pub hardens: bool,
    /// Whether the block's range may be deleted.
    pub punches: bool,
    /// Whether the metadata does not know the block at the beginning.
    pub unnamed: bool,
    /// The rule that is broken, if any.
    pub bug: Option<Bug>,
}

impl Scope {
    fn width(&self) -> usize {
        self.data + self.parity
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// How far the writer has come with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Write {
    version: u8,
    /// The version that it patches; 0 if the write is a whole block.
    base: u8,
    content: Units,
    /// The units that it contains: a mask.
    changed: u8,
    /// Three masks of NSDs: those that accepted the write, those it was not sent to, and those that
    /// refused it because they do not hold the base.
    accepted: u8,
    left_out: u8,
    refused: u8,
    /// The heir has the write, or does not get it.
    inherited: bool,
    acknowledged: bool,
}

/// The NSD that is to take over the first position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Heir {
    nsd: Nsd,
    /// It is sent the writes.
    follows: bool,
    /// It was compared after it began to follow.
    complete: bool,
    /// It missed something after it was compared.
    missed: bool,
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    nsds: Vec<Nsd>,
    heir: Option<Heir>,
    /// The heir has taken the deleted NSD's place.
    deleted: bool,
    client: Client,
    /// The latest write, if the client is alive and has written.
    write: Option<Write>,
    /// A version that is stable on all NSDs and must be settled, with a mask of the NSDs that were
    /// told.
    settling: Option<(u8, u8)>,
    next_version: u8,
    /// How often the application has written.
    writes: u8,
    /// The newest value of each unit that was acknowledged or read.
    promised: Units,
    /// The newest deletion that the metadata knows: strips up to this version are deleted.
    floor: u8,
    /// What a read without strips returns, if a hole is correct here.
    hole: Option<Units>,
    /// Whether the metadata knows the block.
    named: bool,
    crashes: u8,
    losses: u8,
    /// The client is dead. Recovery comes next.
    dead: bool,
}

impl State {
    /// Records that these values were acknowledged or read: no later read may return older ones.
    fn promise(&mut self, content: Units) {
        for (promised, value) in self.promised.iter_mut().zip(content) {
            *promised = (*promised).max(value);
        }
    }
}

/// Visits every state within a scope.
pub fn check(scope: Scope) -> Verdict {
    assert!(scope.width() <= MAX && scope.data <= UNITS, "the model is for small stripes");
    let zeros = [0; UNITS];
    let nsd = |at| {
        let units = part(&scope, at, zeros);
        let strip = Strip { version: 1, is_patch: false, units, settled: true };
        Nsd::with((!scope.unnamed).then_some(strip))
    };
    let stable = u8::from(!scope.unnamed);
    let first = State {
        nsds: (0..scope.width()).map(nsd).collect(),
        heir: None,
        deleted: false,
        client: Client::begin(zeros, [NOTHING; UNITS], stable),
        write: None,
        settling: None,
        next_version: 2,
        writes: 0,
        promised: zeros,
        floor: 0,
        hole: scope.unnamed.then_some(zeros),
        named: !scope.unnamed,
        crashes: 0,
        losses: 0,
        dead: false,
    };
    explore(canonical(&scope, first), &|state| successors(&scope, state))
}

fn successors(scope: &Scope, state: &State) -> Result<Vec<(Step, State)>, String> {
    let mut steps = Vec::new();
    let mut add = |what: &'static str, next: Vec<State>| {
        let next = next.into_iter().map(|state| canonical(scope, state));
        steps.extend(next.map(|state| (Step::new(what), state)));
    };
    let of = |group: fn(&Scope, &State, &mut Vec<State>)| {
        let mut next = Vec::new();
        group(scope, state, &mut next);
        next
    };
    if state.dead {
        let mut next = Vec::new();
        recoveries(scope, state, &mut next)?;
        add("a recovery", next);
    } else {
        what_is_stable_is_there(scope, state)?;
        add("the application writes", of(client::write));
        if scope.patches {
            add("what is dirty is sent", of(client::send));
            add("the block is sent as a whole instead", of(client::fall_back));
            add("the commit finds the write lost", of(client::lose_write));
            add("an fsync is hardened", of(client::keep));
            add("an fsync ends", of(client::sync));
            add("the range is deleted", of(client::punch));
            add("an NSD applies the deletion", of(client::apply_floor));
            add("the metadata learns of the block", of(writing::name));
            add("NSDs are started anew", of(writing::start_anew));
        }
        add("a strip is accepted or refused", of(writing::accept));
        add("the write is acknowledged", of(writing::acknowledge));
        add("an NSD is told that the stripe is settled", of(writing::settle));
        add("an NSD is lost or returns", of(writing::lose_and_return));
        add("a step of the deletion", of(delete));
    }
    add("an NSD makes durable what it has", of(|_, state, next| writing::harden(state, next)));
    if state.crashes < scope.crashes {
        add("a crash", vec![crash(scope, state)]);
    }
    Ok(steps)
}

/// Checks the version that the client takes for stable everywhere. Every NSD that is read holds it,
/// and all choices of N of its strips decode to what was promised.
fn what_is_stable_is_there(scope: &Scope, state: &State) -> Result<(), String> {
    let stable = state.client.stable;
    if stable <= state.floor {
        return Ok(());
    }
    let mut strips = Vec::new();
    for (at, nsd) in state.nsds.iter().enumerate().filter(|(_, nsd)| is_read(nsd)) {
        match nsd.content(stable) {
            Some(units) => strips.push((at, units)),
            // The NSD got a copy, or took a place, while something newer was on its way.
            None if nsd.newest() > stable => {}
            None => return Err(format!("version {stable} is not on NSD {at}")),
        }
    }
    if strips.len() < scope.data {
        return Ok(());
    }
    judge(state, client::over(decode(scope, &strips)?, state.client.kept))
}

fn is_read(nsd: &Nsd) -> bool {
    !nsd.away && !nsd.noted
}

fn has(mask: u8, at: usize) -> bool {
    mask >> at & 1 == 1
}

fn mask(state: &State, wanted: impl Fn(&Nsd) -> bool) -> u8 {
    (0..).zip(&state.nsds).filter(|(_, nsd)| wanted(nsd)).fold(0, |all, (at, _)| all | 1 << at)
}

fn count_missing(state: &State) -> usize {
    state.nsds.iter().filter(|nsd| !is_read(nsd)).count()
}

/// Like `count_missing`, with the heir.
fn count_lost(state: &State) -> usize {
    let heir = state.heir.as_ref().is_some_and(|heir| heir.nsd.away);
    count_missing(state) + usize::from(heir)
}

fn count_noted(state: &State) -> usize {
    let heir = state.heir.iter().map(|heir| &heir.nsd);
    state.nsds.iter().chain(heir).filter(|nsd| nsd.noted).count()
}

#[cfg(test)]
#[path = "stripe_model_test.rs"]
mod stripe_model_test;
