//! Model checking of the stripe-commit protocol: one block, every interleaving of a writer's steps,
//! NSDs that make things durable on their own, crashes, lost and returning NSDs, and recovery.
//! Decisions 0007 and 0010 describe the protocol; this is the same in a form small enough to
//! visit every state.
//!
//! A *value* is what the application wrote, counted from 0; a *version* is what the protocol calls
//! a write. Every strip says which value it is of, which no NSD or client may look at: only the
//! invariants do.
//!
//! **Invariants**, after every recovery: the block can be read from every choice of the NSDs that
//! are up and tolerated losses; it is of one value; not older than the last acknowledged one, nor
//! than one that was read before; never a hole.
//!
//! **Deleting an NSD** (decision 0013): the NSD of the first position goes, and an *heir* is to
//! take its place: it follows writes, gets a copy, and takes the place in one step, if it missed
//! nothing. Until then nobody asks it. It can be lost, return without anybody noticing, and so can
//! all else.
//!
//! **Bugs** ([`Bug`]) take one rule away each. The test requires that each is found.

mod after_crash;
mod bugs;
mod deletion;
mod writing;

pub use bugs::Bug;

use crate::explore::{Step, Verdict, explore};
use after_crash::{crash, recoveries};
use deletion::delete;
use writing::{accept, acknowledge, begin_write, harden, lose_and_return, settle};

/// NSDs of the stripe.
const MAX: usize = 4;

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// N.
    pub data: usize,
    /// P.
    pub parity: usize,
    /// Writes of the application.
    pub writes: u8,
    /// Crashes.
    pub crashes: u8,
    /// Times that NSDs are lost.
    pub losses: u8,
    /// Whether the NSD of the first position may be deleted.
    pub deletes: bool,
    /// The rule that is not obeyed, if any.
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

/// A strip on an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Strip {
    version: u8,
    value: u8,
    durable: bool,
    settled: bool,
}

/// An NSD: its strips, oldest first, and whether it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Nsd {
    strips: Vec<Strip>,
    away: bool,
    /// The metadata says that it missed something.
    noted: bool,
}

/// Where the writer is with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    version: u8,
    value: u8,
    /// Sent to these, accepted by these: masks.
    accepted: u8,
    left_out: u8,
    /// The heir has it, or is not to get it.
    inherited: bool,
    acknowledged: bool,
}

/// Who is to take over the first position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Heir {
    nsd: Nsd,
    /// It gets what is written.
    follows: bool,
    /// It was compared, since it follows.
    complete: bool,
    /// It missed something since then.
    missed: bool,
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nsds: Vec<Nsd>,
    heir: Option<Heir>,
    /// The heir has taken its place.
    deleted: bool,
    /// The latest write, if the client is alive and has written.
    write: Option<Write>,
    /// Stable on all, to be settled: a version and who was told.
    settling: Option<(u8, u8)>,
    next_version: u8,
    next_value: u8,
    /// The newest value acknowledged or read.
    promised: u8,
    crashes: u8,
    losses: u8,
    /// The client is dead: recovery comes next.
    dead: bool,
}

/// Visits every state within a scope.
pub fn check(scope: Scope) -> Verdict {
    let strip = Strip { version: 1, value: 0, durable: true, settled: true };
    let nsd = Nsd { strips: vec![strip], ..Nsd::default() };
    let first = State {
        nsds: vec![nsd; scope.width()],
        heir: None,
        deleted: false,
        write: None,
        settling: None,
        next_version: 2,
        next_value: 1,
        promised: 0,
        crashes: 0,
        losses: 0,
        dead: false,
    };
    assert!(scope.width() <= MAX, "the model is for small stripes");
    explore(first, &|state| successors(&scope, state))
}

fn successors(scope: &Scope, state: &State) -> Result<Vec<(Step, State)>, String> {
    let mut steps = Vec::new();
    let mut add = |what: &'static str, next: Vec<State>| {
        steps.extend(next.into_iter().map(|state| (Step::new(what), state)));
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
        add("a write begins", of(begin_write));
        add("a strip is accepted", of(accept));
        add("the write is acknowledged", of(acknowledge));
        add("an NSD is told that the stripe is settled", of(settle));
        add("an NSD is lost or returns", of(lose_and_return));
        add("a step of the deletion", of(delete));
    }
    add("an NSD makes durable what it has", of(|_, state, next| harden(state, next)));
    if state.crashes < scope.crashes {
        add("a crash", vec![crash(scope, state)]);
    }
    Ok(steps)
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

/// As [`count_missing`], with the heir.
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
