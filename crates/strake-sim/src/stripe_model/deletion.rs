//! An NSD that is being deleted, and the heir that takes its place.

use super::strips::Nsd;
use super::writing::{copy_for, is_busy};
use super::{Bug, Heir, Scope, State, count_lost, count_noted, is_read};

/// Begins a deletion, continues it, or ends it. The heir may be lost or return.
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
        next.extend(return_heir(scope, state));
        if !is_noted && count_noted(state) < scope.parity {
            // A write of another block left the heir out.
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
                    heir.nsd.restart();
                    // The heir's boot number tells that what it had only accepted is gone.
                    heir.complete &= scope.has(Bug::TrustsHeirsThatRestarted);
                }
            }
            next.push(after);
        }
    }
}

/// The heir is back. It has what it had, or, if it was noted, a copy of everything that it should
/// have.
pub(super) fn return_heir(scope: &Scope, state: &State) -> Option<State> {
    let mut after = state.clone();
    let heir = after.heir.as_mut()?;
    heir.nsd.away = false;
    if std::mem::take(&mut heir.nsd.noted) {
        if state.write.is_some_and(|write| !write.acknowledged) {
            return None;
        }
        heir.nsd.strips = copy_for(scope, state, (0, scope.width()))?.1;
        heir.nsd.commit();
        heir.complete = heir.follows;
    }
    Some(after)
}

/// The heir is compared and gets what it lacks while nobody writes.
pub(super) fn inherit(scope: &Scope, state: &State) -> Option<State> {
    let (version, copy) = copy_for(scope, state, (0, scope.width()))?;
    let units = copy.first()?.units;
    let mut after = state.clone();
    let heir = after.heir.as_mut()?;
    let own = heir.nsd.newest();
    // An heir with a newer version, from a writer that died, is written anew like any block.
    if own > version || own < version && !heir.nsd.put(scope, version, units, 0) {
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
    // An NSD that is noted is compared before it is read, in its new place too.
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
    after.nsds.iter_mut().filter(|nsd| !nsd.away).for_each(Nsd::commit);
    if !scope.has(Bug::HeirsNeedNotBeStable) && !nsd.away {
        nsd.commit();
    }
    if let Some(write) = &mut after.write {
        // The write was sent to the heir. Otherwise the heir would have missed it or be noted.
        let left_out = u8::from(nsd.away);
        write.accepted = write.accepted & !1 | (1 - left_out);
        write.left_out = write.left_out & !1 | left_out;
    }
    after.nsds[0] = nsd;
    Some(after)
}
