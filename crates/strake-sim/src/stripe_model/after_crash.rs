//! Crashes, and the recovery that decides between the versions that they leave.

use super::writing::put;
use super::{Bug, Nsd, Scope, State, Strip, count_missing, has, is_read};

/// Everything that was not durable is gone, the client with it.
pub(super) fn crash(scope: &Scope, state: &State) -> State {
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
pub(super) fn recoveries(
    scope: &Scope,
    state: &State,
    next: &mut Vec<State>,
) -> Result<(), String> {
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
pub(super) fn recover(scope: &Scope, mut state: State) -> Result<Option<Vec<State>>, String> {
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
        let strips: Vec<Strip> = readable
            .iter()
            .filter_map(|nsd| nsd.strips.iter().find(|strip| strip.version == *version).copied())
            .collect();
        if strips.len() >= scope.data || scope.has(Bug::BelievesTheNewest) {
            decided = Some((*version, strips));
            break;
        }
        // Everybody else that can be read lacks it and promises to refuse it; those away are
        // within what the code tolerates, so one witness at least would have it were it
        // acknowledged.
        if away > scope.parity && !scope.has(Bug::RollsBackBlindly) {
            return Ok(None);
        }
    }
    let Some((version, strips)) = decided else {
        return Err("a block that was written reads as a hole".to_owned());
    };
    if strips.len() < scope.data {
        return Err(format!("version {version} has {} strips", strips.len()));
    }
    let value = strips[0].value;
    if strips.iter().any(|strip| strip.value != value) {
        return Err(format!("version {version} is a mixture of values"));
    }
    if value < state.promised {
        return Err(format!("value {value} was read, {} was promised", state.promised));
    }
    Ok(Some(outcomes(scope, state, value, whole)))
}

/// The outcome is written as a new version by those that are up, durably, before it is read. A
/// crash may come after any of them.
pub(super) fn outcomes(scope: &Scope, mut state: State, value: u8, whole: bool) -> Vec<State> {
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
