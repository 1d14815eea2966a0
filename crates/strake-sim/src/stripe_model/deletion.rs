//! An NSD that is being deleted, and the heir that takes its place.

use super::writing::{is_busy, put};
use super::{Bug, Heir, Nsd, Scope, State, Strip, count_lost, count_noted, is_read};

/// Begins a deletion, goes on with it, ends it; the heir is lost, or returns.
pub(super) fn delete(scope: &Scope, state: &State, next: &mut Vec<State>) {
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
pub(super) fn return_heir(state: &State) -> Option<State> {
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
pub(super) fn inherit(scope: &Scope, state: &State) -> Option<State> {
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
pub(super) fn take_place(scope: &Scope, state: &State) -> Option<State> {
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
