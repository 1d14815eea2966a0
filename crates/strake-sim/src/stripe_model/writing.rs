//! The writer's steps, what NSDs do of themselves, and NSDs that go and return.

use super::{
    Bug, Heir, Nsd, Scope, State, Strip, Write, count_lost, count_noted, has, is_read, mask,
};

/// A write begins when the one before it is accepted everywhere: a block's writes are sent one
/// after the other, not made stable one after the other.
pub(super) fn begin_write(scope: &Scope, state: &State, next: &mut Vec<State>) {
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
pub(super) fn is_busy(scope: &Scope, state: &State) -> bool {
    state.write.is_some_and(|write| {
        let done = write.accepted | write.left_out;
        (0..scope.width()).any(|at| !state.nsds[at].away && !has(done, at))
            || (!write.inherited && following(state).is_some())
    })
}

/// The heir, if it can be sent what is written.
pub(super) fn following(state: &State) -> Option<&Heir> {
    state.heir.as_ref().filter(|heir| heir.follows && !heir.nsd.away)
}

pub(super) fn accept(scope: &Scope, state: &State, next: &mut Vec<State>) {
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
pub(super) fn put(scope: &Scope, nsd: &mut Nsd, version: u8, value: u8) -> bool {
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
pub(super) fn harden(state: &State, next: &mut Vec<State>) {
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

pub(super) fn acknowledge(scope: &Scope, state: &State, next: &mut Vec<State>) {
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
pub(super) fn settle(scope: &Scope, state: &State, next: &mut Vec<State>) {
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
pub(super) fn lose_and_return(scope: &Scope, state: &State, next: &mut Vec<State>) {
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

/// Copies to a returned NSD what it lacks, with the version it has there. Only while no write is
/// under way, which the gate of the client sees to.
pub(super) fn bring_up_to_date(scope: &Scope, state: &mut State, at: usize) -> bool {
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
