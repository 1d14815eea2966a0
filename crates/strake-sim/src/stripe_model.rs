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

use std::collections::{HashSet, VecDeque};

/// A scope with more is too large for a test.
const STATES_MAX: usize = 4_000_000;
/// NSDs of the stripe.
const MAX: usize = 4;

/// A rule that is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The NSD drops a version that a commit has begun to cover when it is overwritten.
    DropsWhatACommitCovers,
    /// The NSD keeps no previous version at all.
    KeepsNoPrevious,
    /// A stripe is settled once N strips are stable, not all.
    SettlesEarly,
    /// Recovery looks at the current versions only.
    IgnoresKeptVersions,
    /// Recovery takes the newest version for whole without counting its strips.
    BelievesTheNewest,
    /// Recovery rolls back with more NSDs away than the code tolerates.
    RollsBackBlindly,
    /// Recovery serves what it found without writing it anew.
    WritesNoOutcome,
    /// A write that left an NSD out is acknowledged before anybody is told of that.
    DoesNotNote,
    /// An NSD that was away is read as soon as it is back.
    BelievesTheReturned,
    /// A new life of the client counts its versions from the same number.
    ReusesVersions,
    /// A write is acknowledged when it is accepted.
    AcknowledgesTheAccepted,
    /// An heir takes its place before it has everything: what it lacks, it votes absent.
    HeirsVoteEarly,
    /// An heir does not get what is written while it gets its copy.
    HeirsGetNoWrites,
    /// An heir takes its place although it missed a write.
    IgnoresWhatHeirsMiss,
    /// An heir takes its place before what it accepted is durable.
    HeirsNeedNotBeStable,
    /// An heir takes its place although it was started anew since it got its copy.
    TrustsHeirsThatRestarted,
    /// A deletion that a crash interrupted takes for copied what was copied before.
    TrustsCopiesAfterACrash,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 17] = [
        Bug::DropsWhatACommitCovers,
        Bug::KeepsNoPrevious,
        Bug::SettlesEarly,
        Bug::IgnoresKeptVersions,
        Bug::BelievesTheNewest,
        Bug::RollsBackBlindly,
        Bug::WritesNoOutcome,
        Bug::DoesNotNote,
        Bug::BelievesTheReturned,
        Bug::ReusesVersions,
        Bug::AcknowledgesTheAccepted,
        Bug::HeirsVoteEarly,
        Bug::HeirsGetNoWrites,
        Bug::IgnoresWhatHeirsMiss,
        Bug::HeirsNeedNotBeStable,
        Bug::TrustsHeirsThatRestarted,
        Bug::TrustsCopiesAfterACrash,
    ];
}

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

/// What a check came to.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Different states visited.
    pub states: usize,
    /// What is wrong and how it came to be, if anything.
    pub fault: Option<String>,
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
    let mut seen = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    while let Some(state) = queue.pop_front() {
        assert!(seen.len() < STATES_MAX, "{scope:?} has too many states to visit");
        let next = match successors(&scope, &state) {
            Ok(next) => next,
            Err(fault) => {
                let fault = Some(format!("{fault} after {state:?}"));
                return Verdict { states: seen.len(), fault };
            }
        };
        for state in next {
            if seen.insert(state.clone()) {
                queue.push_back(state);
            }
        }
    }
    Verdict { states: seen.len(), fault: None }
}

fn successors(scope: &Scope, state: &State) -> Result<Vec<State>, String> {
    let mut next = Vec::new();
    if state.dead {
        recoveries(scope, state, &mut next)?;
    } else {
        begin_write(scope, state, &mut next);
        accept(scope, state, &mut next);
        acknowledge(scope, state, &mut next);
        settle(scope, state, &mut next);
        lose_and_return(scope, state, &mut next);
        delete(scope, state, &mut next);
    }
    harden(state, &mut next);
    if state.crashes < scope.crashes {
        next.push(crash(scope, state));
    }
    Ok(next)
}

/// A write begins when the one before it is accepted everywhere: a block's writes are sent one
/// after the other, not made stable one after the other.
fn begin_write(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if is_busy(scope, state) || state.next_value > scope.writes {
        return;
    }
    let mut after = state.clone();
    let left_out = mask(state, |nsd| nsd.away);
    after.write = Some(Write {
        version: state.next_version,
        value: state.next_value,
        accepted: 0,
        left_out,
        inherited: scope.has(Bug::HeirsGetNoWrites) || following(state).is_none(),
        acknowledged: false,
    });
    after.next_version += 1;
    after.next_value += 1;
    next.push(after);
}

/// Whether a write is being sent.
fn is_busy(scope: &Scope, state: &State) -> bool {
    state.write.is_some_and(|write| {
        let done = write.accepted | write.left_out;
        (0..scope.width()).any(|at| !state.nsds[at].away && !has(done, at))
            || (!write.inherited && following(state).is_some())
    })
}

/// The heir, if it can be sent what is written.
fn following(state: &State) -> Option<&Heir> {
    state.heir.as_ref().filter(|heir| heir.follows && !heir.nsd.away)
}

fn accept(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write else { return };
    if !write.inherited && following(state).is_some() {
        let mut after = state.clone();
        if let Some(heir) = &mut after.heir
            && put(scope, &mut heir.nsd, write.version, write.value)
        {
            after.write = Some(Write { inherited: true, ..write });
            next.push(after);
        }
    }
    for at in 0..scope.width() {
        if state.nsds[at].away || has(write.accepted | write.left_out, at) {
            continue;
        }
        let mut after = state.clone();
        if put(scope, &mut after.nsds[at], write.version, write.value) {
            after.write = Some(Write { accepted: write.accepted | 1 << at, ..write });
            next.push(after);
        }
    }
}

/// The NSD's rules for a new version. False if it refuses.
fn put(scope: &Scope, nsd: &mut Nsd, version: u8, value: u8) -> bool {
    if nsd.strips.last().is_some_and(|strip| strip.version >= version) {
        return false;
    }
    if let Some(last) = nsd.strips.last()
        && !last.settled
        && (!last.durable || scope.has(Bug::DropsWhatACommitCovers))
    {
        nsd.strips.pop();
    }
    if scope.has(Bug::KeepsNoPrevious) {
        nsd.strips.clear();
    }
    nsd.strips.push(Strip { version, value, durable: false, settled: false });
    true
}

/// An NSD makes durable what it has: a commit, or its log is full.
fn harden(state: &State, next: &mut Vec<State>) {
    if let Some(heir) = &state.heir
        && !heir.nsd.away
        && heir.nsd.strips.iter().any(|strip| !strip.durable)
    {
        let mut after = state.clone();
        if let Some(heir) = &mut after.heir {
            heir.nsd.strips.iter_mut().for_each(|strip| strip.durable = true);
        }
        next.push(after);
    }
    for (at, nsd) in state.nsds.iter().enumerate() {
        if !nsd.away && nsd.strips.iter().any(|strip| !strip.durable) {
            let mut after = state.clone();
            after.nsds[at].strips.iter_mut().for_each(|strip| strip.durable = true);
            next.push(after);
        }
    }
}

fn acknowledge(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write.filter(|write| !write.acknowledged) else { return };
    let up = mask(state, |nsd| !nsd.away);
    let waits = up & !write.left_out & !write.accepted;
    let unsent = !write.inherited && following(state).is_some();
    if waits != 0 || unsent || (write.accepted & up).count_ones() < scope.data as u32 {
        return;
    }
    let is_stable =
        |nsd: &Nsd| nsd.strips.iter().any(|strip| strip.version == write.version && strip.durable);
    let stable = mask(state, is_stable);
    if write.accepted & up & !stable != 0 && !scope.has(Bug::AcknowledgesTheAccepted) {
        if scope.has(Bug::SettlesEarly) && stable.count_ones() >= scope.data as u32 {
            let mut after = state.clone();
            after.settling = Some((write.version, 0));
            next.push(after);
        }
        return;
    }
    let mut after = state.clone();
    // Whoever missed it is noted, durably, before anybody hears of it.
    let missed = !stable | write.left_out;
    for (at, nsd) in after.nsds.iter_mut().enumerate() {
        let missed = has(missed, at) && nsd.away;
        nsd.noted |= missed && !scope.has(Bug::DoesNotNote);
    }
    if count_noted(&after) > scope.parity {
        return;
    }
    if let Some(heir) = &mut after.heir {
        let has_it = heir.nsd.strips.iter().any(|strip| strip.version == write.version);
        let missed = heir.nsd.away || !has_it;
        let known = !scope.has(Bug::IgnoresWhatHeirsMiss) && !scope.has(Bug::HeirsGetNoWrites);
        heir.missed |= heir.follows && missed && known && !heir.nsd.noted;
    }
    after.write = Some(Write { acknowledged: true, ..write });
    after.promised = after.promised.max(write.value);
    if !scope.has(Bug::AcknowledgesTheAccepted) {
        after.settling = Some((write.version, 0));
    }
    next.push(after);
}

/// NSDs are told one by one that a version is stable on all, and free what is older.
fn settle(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some((version, told)) = state.settling else { return };
    for at in (0..scope.width()).filter(|at| !state.nsds[*at].away && !has(told, *at)) {
        let mut after = state.clone();
        let nsd = &mut after.nsds[at];
        if nsd.strips.last().is_some_and(|last| last.version >= version) {
            nsd.strips.retain(|strip| strip.version >= version);
            for strip in nsd.strips.iter_mut().filter(|strip| strip.version == version) {
                strip.settled = true;
            }
        }
        after.settling = Some((version, told | 1 << at));
        next.push(after);
    }
}

/// An NSD is lost, or comes back; then it has what was durable, and is compared before it is read.
fn lose_and_return(scope: &Scope, state: &State, next: &mut Vec<State>) {
    for at in 0..scope.width() {
        if state.nsds[at].away {
            let mut after = state.clone();
            after.nsds[at].away = false;
            if bring_up_to_date(scope, &mut after, at) {
                next.push(after);
            }
        } else if state.losses < scope.losses && count_lost(state) < scope.parity {
            let mut after = state.clone();
            after.losses += 1;
            after.nsds[at].away = true;
            after.nsds[at].strips.retain(|strip| strip.durable);
            next.push(after);
        }
    }
}

/// Begins a deletion, goes on with it, ends it; the heir is lost, or returns.
fn delete(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if !scope.deletes || state.deleted {
        return;
    }
    let busy = is_busy(scope, state);
    let mut after = state.clone();
    let Some(heir) = &mut after.heir else {
        let nsd = Nsd::default();
        if !busy {
            after.heir = Some(Heir { nsd, follows: true, complete: false, missed: false });
            next.push(after);
        }
        return;
    };
    if heir.nsd.away {
        let is_noted = heir.nsd.noted;
        next.extend(return_heir(state));
        if !is_noted && count_noted(state) < scope.parity {
            // A write of another block left it out.
            heir.nsd.noted = true;
            next.push(after);
        } else if is_noted && heir.follows && !busy {
            next.extend(take_place(scope, state));
        }
        return;
    }
    if !heir.follows && !busy {
        heir.follows = true;
        next.push(after);
    } else if heir.follows && !busy {
        next.extend(inherit(scope, state));
        next.extend(take_place(scope, state));
    }
    if state.losses < scope.losses && count_lost(state) < scope.parity {
        for restarts in [false, true] {
            let mut after = state.clone();
            after.losses += 1;
            if let Some(heir) = &mut after.heir {
                heir.nsd.away = true;
                if restarts {
                    heir.nsd.strips.retain(|strip| strip.durable);
                    // Its boot number tells that what it had only accepted is gone.
                    heir.complete &= scope.has(Bug::TrustsHeirsThatRestarted);
                }
            }
            next.push(after);
        }
    }
}

/// The heir is there again: as it was, or, if it is noted, with everything that it is to have.
fn return_heir(state: &State) -> Option<State> {
    let mut after = state.clone();
    let heir = after.heir.as_mut()?;
    heir.nsd.away = false;
    if std::mem::take(&mut heir.nsd.noted) {
        if state.write.is_some_and(|write| !write.acknowledged) {
            return None;
        }
        let others = state.nsds.iter().filter(|nsd| is_read(nsd));
        let newest = others.filter_map(|nsd| nsd.strips.last()).max_by_key(|one| one.version)?;
        heir.nsd.strips = vec![Strip { durable: true, ..*newest }];
        heir.complete = heir.follows;
    }
    Some(after)
}

/// The heir is compared and gets what it lacks, while nobody writes.
fn inherit(scope: &Scope, state: &State) -> Option<State> {
    let readable = || state.nsds.iter().filter(|nsd| is_read(nsd));
    let newest = readable().filter_map(|nsd| nsd.strips.last()).max_by_key(|one| one.version)?;
    let holds = |nsd: &&Nsd| nsd.strips.iter().any(|strip| strip.version == newest.version);
    if readable().filter(holds).count() < scope.data {
        return None;
    }
    let mut after = state.clone();
    let heir = after.heir.as_mut()?;
    let own = heir.nsd.strips.last().map_or(0, |strip| strip.version);
    // One that has a newer version, of a writer that died, is written anew like any block.
    if own > newest.version
        || own < newest.version && !put(scope, &mut heir.nsd, newest.version, newest.value)
    {
        return None;
    }
    (heir.complete, heir.missed) = (true, false);
    Some(after)
}

/// The heir takes its place.
fn take_place(scope: &Scope, state: &State) -> Option<State> {
    let heir = state.heir.as_ref()?;
    let ready = (heir.complete || scope.has(Bug::HeirsVoteEarly)) && !heir.missed;
    let gone_is_read = is_read(&state.nsds[0]);
    // One that is noted is compared before it is read, in its new place as well.
    let waits = |nsd: &Nsd| !is_read(nsd) && (gone_is_read || !nsd.noted);
    if !ready && !heir.nsd.noted
        || state.nsds[1..].iter().any(waits)
        || waits(&heir.nsd)
        || state.nsds[1..].iter().chain([&heir.nsd]).filter(|nsd| nsd.noted).count() > scope.parity
    {
        return None;
    }
    let mut after = state.clone();
    let mut nsd = after.heir.take()?.nsd;
    after.deleted = true;
    for nsd in after.nsds.iter_mut().filter(|nsd| !nsd.away) {
        nsd.strips.iter_mut().for_each(|strip| strip.durable = true);
    }
    if !scope.has(Bug::HeirsNeedNotBeStable) && !nsd.away {
        nsd.strips.iter_mut().for_each(|strip| strip.durable = true);
    }
    if let Some(write) = &mut after.write {
        // It was sent to the heir, or the heir would have missed it or be noted.
        let left_out = u8::from(nsd.away);
        write.accepted = write.accepted & !1 | (1 - left_out);
        write.left_out = write.left_out & !1 | left_out;
    }
    after.nsds[0] = nsd;
    Some(after)
}

/// Copies to a returned NSD what it lacks, with the version it has there. Only while no write is
/// under way, which the gate of the client sees to.
fn bring_up_to_date(scope: &Scope, state: &mut State, at: usize) -> bool {
    if state.write.is_some_and(|write| !write.acknowledged) {
        return false;
    }
    if state.nsds[at].noted && !scope.has(Bug::BelievesTheReturned) {
        let newest = (0..scope.width())
            .filter(|other| *other != at && is_read(&state.nsds[*other]))
            .filter_map(|other| state.nsds[other].strips.last().copied())
            .max_by_key(|strip| strip.version);
        let Some(newest) = newest else { return false };
        let nsd = &mut state.nsds[at];
        nsd.strips = vec![Strip { durable: true, ..newest }];
    }
    state.nsds[at].noted = false;
    true
}

/// Everything that was not durable is gone, the client with it.
fn crash(scope: &Scope, state: &State) -> State {
    let mut after = state.clone();
    after.crashes += 1;
    after.dead = true;
    after.write = None;
    after.settling = None;
    after.nsds.iter_mut().for_each(|nsd| nsd.strips.retain(|strip| strip.durable));
    if let Some(heir) = &mut after.heir {
        heir.nsd.strips.retain(|strip| strip.durable);
        (heir.follows, heir.missed) = (false, false);
        heir.complete &= scope.has(Bug::TrustsCopiesAfterACrash);
    }
    if scope.has(Bug::ReusesVersions) {
        // The counter goes on from what the metadata remembers, which is the last life's start.
        after.next_version = 2;
    }
    after
}

/// Recovery with every choice of NSDs away that the code tolerates.
fn recoveries(scope: &Scope, state: &State, next: &mut Vec<State>) -> Result<(), String> {
    for away in 0..1u8 << scope.width() {
        let mut after = state.clone();
        for (at, nsd) in after.nsds.iter_mut().enumerate() {
            nsd.away = has(away, at);
        }
        // Those that came back are noted still, and not read; they count among the losses.
        if count_missing(&after) > scope.parity && !scope.has(Bug::RollsBackBlindly) {
            continue;
        }
        if scope.has(Bug::RollsBackBlindly) && away.count_ones() as usize > scope.parity + 1 {
            continue;
        }
        if let Some(after) = recover(scope, after)? {
            next.extend(after);
        }
    }
    Ok(())
}

/// One recovery: decides, writes the outcome. Also the states in which a crash cut it short.
/// `None` where it rightly waits for NSDs.
fn recover(scope: &Scope, mut state: State) -> Result<Option<Vec<State>>, String> {
    let missing: Vec<bool> = state.nsds.iter().map(|nsd| !is_read(nsd)).collect();
    let away = missing.iter().filter(|missing| **missing).count();
    if !scope.has(Bug::DoesNotNote) && away <= scope.parity {
        state.nsds.iter_mut().filter(|nsd| nsd.away).for_each(|nsd| nsd.noted = true);
    }
    let readable: Vec<&Nsd> = state.nsds.iter().filter(|nsd| is_read(nsd)).collect();
    let kept = !scope.has(Bug::IgnoresKeptVersions);
    let mut versions: Vec<u8> = readable
        .iter()
        .flat_map(|nsd| {
            let from = if kept { 0 } else { nsd.strips.len().saturating_sub(1) };
            nsd.strips[from..].iter().map(|strip| strip.version)
        })
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let whole = versions.last().is_some_and(|newest| {
        readable.iter().all(|nsd| nsd.strips.last().is_some_and(|it| it.version == *newest))
    });
    let mut decided = None;
    for version in versions.iter().rev() {
        let holders: Vec<Strip> = readable
            .iter()
            .filter_map(|nsd| nsd.strips.iter().find(|strip| strip.version == *version).copied())
            .collect();
        if holders.len() >= scope.data || scope.has(Bug::BelievesTheNewest) {
            decided = Some((*version, holders));
            break;
        }
        // Everybody else that can be read lacks it and promises to refuse it; those away are
        // within what the code tolerates, so one witness at least would have it were it
        // acknowledged.
        if away > scope.parity && !scope.has(Bug::RollsBackBlindly) {
            return Ok(None);
        }
    }
    let Some((version, holders)) = decided else {
        return Err("a block that was written reads as a hole".to_owned());
    };
    if holders.len() < scope.data {
        return Err(format!("version {version} has {} strips", holders.len()));
    }
    let value = holders[0].value;
    if holders.iter().any(|strip| strip.value != value) {
        return Err(format!("version {version} is a mixture of values"));
    }
    if value < state.promised {
        return Err(format!("value {value} was read, {} was promised", state.promised));
    }
    Ok(Some(outcomes(scope, state, value, whole)))
}

/// The outcome is written as a new version by those that are up, durably, before it is read. A
/// crash may come after any of them.
fn outcomes(scope: &Scope, mut state: State, value: u8, whole: bool) -> Vec<State> {
    let mut after = Vec::new();
    if !whole && !scope.has(Bug::WritesNoOutcome) {
        let version = state.next_version;
        state.next_version += 1;
        for at in 0..scope.width() {
            if is_read(&state.nsds[at]) && put(scope, &mut state.nsds[at], version, value) {
                state.nsds[at].strips.iter_mut().for_each(|strip| strip.durable = true);
                if state.crashes < scope.crashes {
                    after.push(crash(scope, &state));
                }
            }
        }
    }
    // Served: whoever reads it will not read an older one. Settled with the next commit.
    state.promised = state.promised.max(value);
    state.dead = false;
    if !whole && !scope.has(Bug::WritesNoOutcome) {
        state.settling = Some((state.next_version - 1, 0));
    }
    after.push(state);
    after
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
mod tests {
    use super::*;

    /// The last ones of [`Bug::ALL`] show only where an NSD is deleted.
    const BUGS_OF_DELETION: usize = 6;

    /// The scopes that are visited as a whole.
    fn scopes(bug: Option<Bug>) -> Vec<Scope> {
        let scope = |data, parity, writes, crashes, losses| Scope {
            data,
            parity,
            writes,
            crashes,
            losses,
            deletes: false,
            bug,
        };
        let deletes = |scope| Scope { deletes: true, ..scope };
        vec![
            scope(1, 1, 2, 2, 1),
            scope(2, 1, 2, 1, 1),
            scope(1, 1, 3, 2, 1),
            scope(1, 2, 2, 1, 1),
            scope(2, 1, 2, 2, 1),
            deletes(scope(1, 1, 2, 1, 1)),
            deletes(scope(2, 1, 1, 1, 1)),
            deletes(scope(1, 1, 1, 2, 1)),
            deletes(scope(1, 2, 1, 1, 2)),
        ]
    }

    #[test]
    fn every_state_keeps_the_promises() {
        for scope in scopes(None) {
            let verdict = check(scope);
            println!("{}+{}: {} states", scope.data, scope.parity, verdict.states);
            assert_eq!(verdict.fault, None, "{scope:?}");
            assert!(verdict.states > 1000, "{scope:?} visits only {} states", verdict.states);
        }
    }

    #[test]
    fn every_bug_is_found() {
        for (at, bug) in Bug::ALL.into_iter().enumerate() {
            let deletes = at >= Bug::ALL.len() - BUGS_OF_DELETION;
            let scopes = scopes(Some(bug)).into_iter().filter(|scope| scope.deletes == deletes);
            let found = scopes.map(check).find_map(|verdict| verdict.fault);
            println!("{bug:?}: {}", found.as_deref().unwrap_or("not found"));
            assert!(found.is_some(), "{bug:?} is not found");
        }
    }
}
