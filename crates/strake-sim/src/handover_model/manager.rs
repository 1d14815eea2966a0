//! The manager: it resolves what a dead client left, and compares NSDs that return.

use super::clients::is_writable;
use super::servers::put;
use super::{
    Availability, Bug, Nsd, Outcome, Phase, Recovery, Scope, State, Steps, Strip, has, version,
};
use crate::explore::Step;

pub(super) fn steps(scope: &Scope, state: &State, next: &mut Steps) -> Result<(), String> {
    decide(scope, state, next)?;
    write_outcome(scope, state, next);
    list_own(scope, state, next);
    list_partners(scope, state, next);
    compare(state, next);
    Ok(())
}

fn is_unsettled(nsd: &Nsd) -> bool {
    nsd.strips.iter().any(|strip| !strip.settled)
}

/// Decides between the versions that are held, if no living client holds the token (R4).
fn decide(scope: &Scope, state: &State, next: &mut Steps) -> Result<(), String> {
    let is_held = state.token_holder.is_some() && !scope.has(Bug::ResolvesWhatIsHeld);
    let readable = || state.nsds.iter().filter(|nsd| nsd.is_up());
    if is_held || state.outcome.is_some() || !(state.orphaned || readable().any(is_unsettled)) {
        return Ok(());
    }
    let mut versions: Vec<u8> =
        readable().flat_map(|nsd| nsd.strips.iter().map(|strip| strip.version)).collect();
    versions.sort_unstable();
    versions.dedup();
    let newest = versions.last().copied().unwrap_or(0);
    let mut after = state.clone();
    if readable().all(|nsd| nsd.current() == newest) {
        make_settled(scope, &mut after, newest);
        next.push((Step::new("the manager finds the block whole"), after));
        return Ok(());
    }
    // The code tolerates the NSDs that are away. The others lack what is rolled back.
    let strips = |version: u8| readable().filter_map(move |nsd| nsd.holds(version));
    let chosen = versions.iter().rev().find(|at| strips(**at).count() >= scope.data);
    let value = chosen.and_then(|at| strips(*at).next()).map(|strip| strip.value);
    if value.is_none() && !scope.is_new {
        return Err("a block that was written is lost".to_owned());
    }
    if value.unwrap_or(0) < state.promised {
        return Err(format!("value {value:?} is chosen, {} was promised", state.promised));
    }
    let settled = readable().flat_map(|nsd| &nsd.strips).filter(|strip| strip.settled);
    let stable = settled.map(|strip| strip.version).max().unwrap_or(0);
    let version = version(after.draw(), 0);
    after.outcome = Some(Outcome { version, value, stable, done: 0 });
    next.push((Step::new("the manager decides"), after));
    Ok(())
}

/// Writes the outcome durably to one NSD after the other. The manager may die in between.
fn write_outcome(scope: &Scope, state: &State, next: &mut Steps) {
    let Some(outcome) = state.outcome else { return };
    let waits = |at: usize| is_writable(state.nsds[at].availability) && !has(outcome.done, at);
    for at in (0..scope.width()).filter(|at| waits(*at)) {
        let mut after = state.clone();
        let nsd = &mut after.nsds[at];
        let Outcome { version, value, stable, .. } = outcome;
        if version > nsd.current().max(nsd.tombstone) {
            match value {
                Some(value) => {
                    let strip = Strip { version, value, durable: true, settled: false, lacks: 0 };
                    nsd.strips.iter_mut().for_each(|strip| strip.durable = true);
                    put(scope, nsd, strip, stable);
                }
                None => {
                    nsd.strips.clear();
                    nsd.tombstone = version;
                }
            }
        }
        after.outcome = Some(Outcome { done: outcome.done | 1 << at, ..outcome });
        next.push((Step::of("the manager writes the outcome to NSD {}", at), after));
    }
    if !(0..scope.width()).any(waits) {
        let mut after = state.clone();
        after.outcome = None;
        make_settled(scope, &mut after, outcome.version);
        next.push((Step::new("the manager has resolved the block"), after));
    }
    if state.manager_deaths < scope.manager_deaths {
        let mut after = state.clone();
        after.manager_deaths += 1;
        after.outcome = None;
        next.push((Step::new("the manager dies"), after));
    }
}

/// A version that is whole becomes stable and settled.
fn make_settled(scope: &Scope, state: &mut State, version: u8) {
    // An NSD that is down may have accepted the version, and may still lose it.
    let trusts = scope.has(Bug::TrustsTheAccepted);
    let is_missing = |nsd: &Nsd| !nsd.is_reached() && !trusts || nsd.holds(version).is_none();
    let lacks = state.mask(is_missing);
    for nsd in state.nsds.iter_mut().filter(|nsd| nsd.is_reached()) {
        nsd.strips.iter_mut().for_each(|strip| strip.durable = true);
        if nsd.current() >= version {
            nsd.strips.retain(|strip| strip.version >= version);
        }
        for strip in nsd.strips.iter_mut().filter(|strip| strip.version == version) {
            (strip.settled, strip.lacks) = (true, lacks);
        }
    }
    state.orphaned = false;
}

/// Lists the returned NSD before its partners. What is written in between is then found on the
/// partners.
fn list_own(scope: &Scope, state: &State, next: &mut Steps) {
    let Some(Recovery { at, phase: Phase::Begun }) = state.recovery else { return };
    let is_raised = state.all_serving(|nsd| nsd.floor >= state.nsds[at].floor);
    if is_raised || scope.has(Bug::ListsBelowTheFloor) {
        let mut after = state.clone();
        let phase = Phase::ListedOwn(state.nsds[at].current());
        after.recovery = Some(Recovery { at, phase });
        next.push((Step::of("NSD {} is listed", at), after));
    }
}

/// Decides whether the block must be compared: it is unsettled anywhere, or a partner says that the
/// NSD lacks it. If only the returned NSD has the block, its strips must be deleted.
fn list_partners(scope: &Scope, state: &State, next: &mut Steps) {
    let Some(Recovery { at, phase: Phase::ListedOwn(own) }) = state.recovery else { return };
    let partners = || state.nsds.iter().filter(|nsd| nsd.is_up());
    let lacks = |strip: &Strip| !strip.settled || has(strip.lacks, at);
    let is_listed = partners().any(|nsd| nsd.strips.iter().any(lacks));
    let is_surplus = own != 0 && partners().all(|nsd| nsd.strips.is_empty());
    let mut after = state.clone();
    if is_surplus && scope.has(Bug::DeletesWithoutTheToken) {
        let nsd = &mut after.nsds[at];
        nsd.strips.retain(|strip| strip.version > own);
        nsd.tombstone = own;
        end_recovery(&mut after, at);
    } else if is_listed || is_surplus || is_unsettled(&state.nsds[at]) {
        after.recovery = Some(Recovery { at, phase: Phase::Needed });
    } else {
        end_recovery(&mut after, at);
    }
    next.push((Step::of("the partners of NSD {} are listed", at), after));
}

/// Under the token, copies to the NSD what it lacks, and deletes what only it has.
fn compare(state: &State, next: &mut Steps) {
    let Some(Recovery { at, phase: Phase::Needed }) = state.recovery else { return };
    if state.token_holder.is_some() || state.orphaned || state.outcome.is_some() {
        return;
    }
    let newest = state.nsds.iter().filter(|nsd| nsd.is_up()).filter_map(|nsd| nsd.strips.last());
    let newest = newest.max_by_key(|strip| strip.version).copied();
    let mut after = state.clone();
    let nsd = &mut after.nsds[at];
    match newest {
        Some(newest) if newest.version > nsd.tombstone => {
            nsd.strips = vec![Strip { durable: true, ..newest }];
        }
        Some(_) => {}
        None => {
            nsd.tombstone = nsd.tombstone.max(nsd.current());
            nsd.strips.clear();
        }
    }
    end_recovery(&mut after, at);
    next.push((Step::of("NSD {} is compared under the token", at), after));
}

fn end_recovery(state: &mut State, at: usize) {
    state.nsds[at].availability = Availability::Up;
    state.map += 1;
    state.recovery = None;
}
