//! A write on its way: accepted, stable, settled. Also NSDs that are lost and return.

use super::client::told;
use super::strips::{Nsd, Strip, Strips, decode, part, patched_part};
use super::{Bug, Heir, Scope, State, Write, count_lost, count_noted, has, is_read, mask};

/// True if a write is being sent.
pub(super) fn is_busy(scope: &Scope, state: &State) -> bool {
    state.write.filter(|write| !write.acknowledged).is_some_and(|write| {
        let done = write.accepted | write.left_out | write.refused;
        (0..scope.width()).any(|at| !state.nsds[at].away && !has(done, at))
            || (!write.inherited && following(state).is_some())
    })
}

/// The heir, if writes can be sent to it.
pub(super) fn following(state: &State) -> Option<&Heir> {
    state.heir.as_ref().filter(|heir| heir.follows && !heir.nsd.away)
}

pub(super) fn accept(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write.filter(|write| !write.acknowledged) else { return };
    if !write.inherited && following(state).is_some() {
        let mut after = state.clone();
        let units = part(scope, 0, write.content);
        if let Some(heir) = &mut after.heir
            && heir.nsd.put(scope, write.version, units, state.client.stable)
        {
            after.write = Some(Write { inherited: true, ..write });
            next.push(after);
        }
    }
    for at in 0..scope.width() {
        if state.nsds[at].away || has(write.accepted | write.left_out | write.refused, at) {
            continue;
        }
        let mut after = state.clone();
        if send_strip(scope, &mut after, &write, at) {
            after.write = Some(Write { accepted: write.accepted | 1 << at, ..write });
            next.push(after);
        } else if write.base != 0 {
            // Patches may pass over an NSD that is being brought up to date, or not.
            let passes = state.nsds[at].noted || scope.has(Bug::PassesOverAnyRefusal);
            if passes {
                let mut passed = after.clone();
                passed.write = Some(Write { left_out: write.left_out | 1 << at, ..write });
                next.push(passed);
            }
            after.write = Some(Write { refused: write.refused | 1 << at, ..write });
            next.push(after);
        }
    }
}

/// Sends one strip. False if the NSD refuses it.
fn send_strip(scope: &Scope, after: &mut State, write: &Write, at: usize) -> bool {
    let Write { version, base, changed, mut content, .. } = *write;
    let nsd = &mut after.nsds[at];
    if base == 0 {
        return nsd.put(scope, version, part(scope, at, content), after.client.stable);
    }
    if scope.has(Bug::ReadsOldBytesFromThePool) && at >= scope.data {
        let pool = after.client.memory;
        content = std::array::from_fn(|it| if has(changed, it) { content[it] } else { pool[it] });
    }
    nsd.patch(scope, version, patched_part(scope, at, changed, content), base)
}

/// An NSD makes durable what it has, because of a commit or because its log is full.
pub(super) fn harden(state: &State, next: &mut Vec<State>) {
    if let Some(heir) = &state.heir
        && !heir.nsd.away
        && heir.nsd.strips != heir.nsd.disk
    {
        let mut after = state.clone();
        after.heir.iter_mut().for_each(|heir| heir.nsd.commit());
        next.push(after);
    }
    for (at, nsd) in state.nsds.iter().enumerate() {
        if !nsd.away && nsd.strips != nsd.disk {
            let mut after = state.clone();
            after.nsds[at].commit();
            next.push(after);
        }
    }
}

pub(super) fn acknowledge(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write.filter(|write| !write.acknowledged) else { return };
    let up = mask(state, |nsd| !nsd.away);
    let ignored = if scope.has(Bug::IgnoresNotBase) { write.refused } else { 0 };
    let waits = up & !write.left_out & !write.accepted & !ignored;
    let unsent = !write.inherited && following(state).is_some();
    if waits != 0 || unsent || (write.accepted & up).count_ones() < scope.data as u32 {
        return;
    }
    let stable = mask(state, |nsd| nsd.is_durable(write.version) && nsd.holds(write.version));
    if write.accepted & up & !stable != 0 && !scope.has(Bug::AcknowledgesTheAccepted) {
        if scope.has(Bug::SettlesEarly) && stable.count_ones() >= scope.data as u32 {
            let mut after = state.clone();
            after.settling = Some((write.version, 0));
            next.push(after);
        }
        return;
    }
    let mut after = state.clone();
    // An NSD that missed the write is noted durably before the write is acknowledged.
    let missed = !stable | write.left_out;
    for (at, nsd) in after.nsds.iter_mut().enumerate() {
        let missed = has(missed, at) && nsd.away;
        nsd.noted |= missed && !scope.has(Bug::DoesNotNote);
    }
    if count_noted(&after) > scope.parity {
        return;
    }
    if let Some(heir) = &mut after.heir {
        let missed = heir.nsd.away || !heir.nsd.holds(write.version);
        let known = !scope.has(Bug::IgnoresWhatHeirsMiss)
            && !scope.has(Bug::HeirsGetNoWrites)
            && !scope.has(Bug::PatchesPastHeirs);
        heir.missed |= heir.follows && missed && known && !heir.nsd.noted;
    }
    after.write = None;
    if !scope.has(Bug::AcknowledgesTheAccepted) {
        after.client.stable = write.version;
    }
    if scope.hardens {
        // Nobody waits for this write, so the metadata is not told.
        next.push(after.clone());
    }
    if state.named {
        told(scope, &mut after, write.content);
    } else {
        after.write = Some(Write { acknowledged: true, ..write });
    }
    let settles = state.named || write.base != 0 && scope.has(Bug::SettlesPatchesAtOnce);
    if settles && !scope.has(Bug::AcknowledgesTheAccepted) {
        after.settling = Some((write.version, 0));
    }
    next.push(after);
}

/// The metadata learns of a block that it did not know. Only then may the block be settled.
pub(super) fn name(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write.filter(|write| write.acknowledged && !state.named) else {
        return;
    };
    let mut after = state.clone();
    told(scope, &mut after, write.content);
    after.write = None;
    after.settling = Some((write.version, 0));
    next.push(after);
}

/// NSDs are told one by one that a version is stable on all, and free what is older. They are told
/// with a commit.
pub(super) fn settle(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some((version, told)) = state.settling else { return };
    for at in (0..scope.width()).filter(|at| !state.nsds[*at].away && !has(told, *at)) {
        let mut after = state.clone();
        after.nsds[at].settle(scope, version);
        after.nsds[at].commit();
        let told = told | 1 << at;
        after.settling = (told + 1 != 1 << scope.width()).then_some((version, told));
        next.push(after);
    }
}

/// An NSD is lost or comes back. One that comes back has what was durable, and is compared before
/// it is read.
pub(super) fn lose_and_return(scope: &Scope, state: &State, next: &mut Vec<State>) {
    for at in 0..scope.width() {
        if !is_read(&state.nsds[at]) {
            let mut after = state.clone();
            let nsd = &mut after.nsds[at];
            // In scopes with patches, an NSD that returns is written before it is compared.
            let returns = std::mem::take(&mut nsd.away);
            if returns && nsd.noted && scope.patches || bring_up_to_date(scope, &mut after, at) {
                next.push(after);
            }
        } else if state.losses < scope.losses && count_lost(state) < scope.parity {
            let mut after = state.clone();
            after.losses += 1;
            after.nsds[at].away = true;
            after.nsds[at].restart();
            next.push(after);
        }
    }
}

/// One NSD or all of them are restarted, and are back before anybody notices. Their boot numbers
/// tell.
pub(super) fn start_anew(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let has_lost = |nsd: &Nsd| !nsd.away && nsd.strips != nsd.disk;
    let all = mask(state, has_lost);
    let one = (0..scope.width()).map(|at| 1 << at).filter(|one| one & all != 0 && *one != all);
    for some in one.chain((all != 0).then_some(all)).filter(|_| state.losses < scope.losses) {
        let mut after = state.clone();
        after.losses += 1;
        for at in (0..scope.width()).filter(|at| has(some, *at)) {
            after.nsds[at].restart();
        }
        // Boot numbers tell that the heir may have a copy of something that is gone.
        after.heir.iter_mut().for_each(|heir| heir.complete = false);
        next.push(after);
    }
}

/// Copies to a returned NSD what it lacks, with the version that the other NSDs have. This happens
/// only while no write is under way; the client's gate ensures that.
pub(super) fn bring_up_to_date(scope: &Scope, state: &mut State, at: usize) -> bool {
    if state.write.is_some_and(|write| !write.acknowledged) {
        return false;
    }
    if state.nsds[at].noted && !scope.has(Bug::BelievesTheReturned) {
        let Some((version, copy)) = copy_for(scope, state, (at, at)) else { return false };
        let stable = state.client.stable;
        let nsd = &mut state.nsds[at];
        nsd.delete(scope, state.floor);
        // If the NSD has this version, it got it after its return. Its older versions go if the
        // copy is known to be stable everywhere.
        if nsd.newest() != version {
            if version == stable || version == 0 {
                nsd.strips = copy;
            } else if !nsd.put(scope, version, copy[0].units, 0) {
                return false;
            }
        }
        nsd.commit();
    }
    state.nsds[at].noted = false;
    true
}

/// What the readable NSDs, without the one at `except`, have of the block, as the strip of position
/// `at`. Version 0 is a hole. `None` if the block cannot be had.
pub(super) fn copy_for(
    scope: &Scope,
    state: &State,
    (at, except): (usize, usize),
) -> Option<(u8, Strips)> {
    let readable =
        || state.nsds.iter().enumerate().filter(|(it, nsd)| *it != except && is_read(nsd));
    let version = readable().map(|(_, nsd)| nsd.newest()).max()?;
    if version <= state.floor {
        return state.hole.map(|_| (0, Strips::default()));
    }
    let strips: Vec<_> =
        readable().filter_map(|(it, nsd)| Some((it, nsd.content(version)?))).collect();
    // Where they differ, the block is written anew before anything is copied.
    if strips.len() < scope.data || strips.len() < readable().count() {
        return None;
    }
    let units = part(scope, at, decode(scope, &strips).ok()?);
    let settled = readable().any(|(_, nsd)| is_settled(nsd, version));
    let mut copy = Strips::default();
    copy.push(Strip { version, is_patch: false, units, settled });
    Some((version, copy))
}

pub(super) fn is_settled(nsd: &Nsd, version: u8) -> bool {
    nsd.strips.iter().any(|strip| strip.version == version && strip.settled)
}
