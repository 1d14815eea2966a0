//! The leader: it grants the token, keeps the map and the fence, and declares clients dead.

use super::invariants::at_grant;
use super::{Availability, Bug, CLIENTS, Phase, Recovery, Scope, State, Steps, has};
use crate::explore::Step;

pub(super) fn steps(scope: &Scope, state: &State, next: &mut Steps) -> Result<(), String> {
    for who in (0..CLIENTS).filter(|who| !has(state.dead, *who)) {
        draw_early(scope, state, who, next);
        grant(scope, state, who, next)?;
        grant_another(scope, state, who, next);
    }
    for at in 0..scope.width() {
        lose(scope, state, at, next);
        end_lease(state, at, next);
        take_back(state, at, next);
        renew(state, at, next);
    }
    declare_dead(scope, state, next);
    free(scope, state, next);
    Ok(())
}

fn draw_early(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let is_held = state.token_holder.is_some_and(|holder| holder != who);
    if scope.has(Bug::DrawsEarly) && is_held && state.drawn.is_none() {
        let mut after = state.clone();
        after.drawn = Some((who, after.draw()));
        next.push((Step::of("a number is drawn for client {}", who), after));
    }
}

/// Grants the token. Its number is drawn only when the token is free (R6). The grant names the
/// newest map. What the client finds counts as read at once, because the client could read it.
fn grant(scope: &Scope, state: &State, who: usize, next: &mut Steps) -> Result<(), String> {
    let is_free = state.token_holder.is_none() && state.outcome.is_none() && !state.orphaned;
    let is_for_another = state.drawn.is_some_and(|(other, _)| other != who);
    if !is_free || is_for_another || state.clients[who].holding || state.grants >= scope.grants {
        return Ok(());
    }
    let (version, value) = at_grant(state)?;
    let mut after = state.clone();
    after.grants += 1;
    after.promised = after.promised.max(value);
    after.token_holder = Some(who);
    let number = match after.drawn.take() {
        Some((_, number)) => number,
        None => after.draw(),
    };
    let client = &mut after.clients[who];
    client.first = if client.first == 0 { number } else { client.first };
    (client.holding, client.newest) = (true, client.newest.max(number));
    (client.map, client.down) = (state.map, state.down());
    client.stable = if scope.has(Bug::NamesNothingStable) { 0 } else { version };
    next.push((Step::of("client {} gets the token", who), after));
    Ok(())
}

fn grant_another(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    if state.token_holder == Some(who) && state.others < scope.others {
        let mut after = state.clone();
        after.others += 1;
        after.clients[who].newest = after.draw();
        next.push((Step::of("client {} gets another token", who), after));
    }
}

/// The leader loses sight of a server and marks its NSD down. Either the server has crashed, or it
/// is cut off and serves until its lease ends.
fn lose(scope: &Scope, state: &State, at: usize, next: &mut Steps) {
    let is_last = state.missing() >= scope.parity && state.nsds[at].is_up();
    if !state.nsds[at].is_reached() || state.losses >= scope.losses || is_last {
        return;
    }
    let mut after = state.clone();
    after.losses += 1;
    after.map += 1;
    after.nsds[at].availability = Availability::Down;
    after.recovery = after.recovery.filter(|recovery| recovery.at != at);
    next.push((Step::of("NSD {} is cut off and marked down", at), after.clone()));
    let nsd = &mut after.nsds[at];
    nsd.serving = false;
    nsd.strips.retain(|strip| strip.durable);
    // The NSD's boot number tells clients that what it had only accepted is gone.
    for write in after.clients.iter_mut().filter_map(|client| client.write.as_mut()) {
        write.accepted &= write.stable | !(1 << at);
    }
    next.push((Step::of("NSD {} crashes and is marked down", at), after));
}

fn end_lease(state: &State, at: usize, next: &mut Steps) {
    if !state.nsds[at].is_reached() && state.nsds[at].serving {
        let mut after = state.clone();
        after.nsds[at].serving = false;
        next.push((Step::of("the lease of NSD {} ends", at), after));
    }
}

/// A server is back. It gets a lease with the newest floor and fence, and its NSD will be compared.
fn take_back(state: &State, at: usize, next: &mut Steps) {
    if state.nsds[at].is_reached() || state.recovery.is_some() {
        return;
    }
    let mut after = state.clone();
    after.map += 1;
    let (map, dead) = (after.map, after.dead);
    let nsd = &mut after.nsds[at];
    (nsd.serving, nsd.floor, nsd.fenced) = (true, map, dead);
    nsd.availability = Availability::Recovering;
    after.recovery = Some(Recovery { at, phase: Phase::Begun });
    next.push((Step::of("NSD {} returns and is written", at), after));
}

/// A server gets the newest floor and fence. The changes that it took before are already published.
fn renew(state: &State, at: usize, next: &mut Steps) {
    let nsd = &state.nsds[at];
    let needs_floor = state.recovery.is_some() && nsd.floor < state.map;
    if nsd.serving && nsd.is_reached() && (needs_floor || nsd.fenced != state.dead) {
        let mut after = state.clone();
        (after.nsds[at].floor, after.nsds[at].fenced) = (state.map, state.dead);
        next.push((Step::of("the server of NSD {} raises floor and fence", at), after));
    }
}

/// Declares the holder dead because it does not renew its lease. The holder may go on, as it does
/// not know.
fn declare_dead(scope: &Scope, state: &State, next: &mut Steps) {
    let Some(who) = state.token_holder.filter(|who| !has(state.dead, *who)) else { return };
    if state.dead.count_ones() < u32::from(scope.deaths) {
        let mut after = state.clone();
        after.dead |= 1 << who;
        next.push((Step::of("client {} is declared dead", who), after));
    }
}

/// Frees the token of a dead client once every server has fenced the client or has no lease (R9).
fn free(scope: &Scope, state: &State, next: &mut Steps) {
    let Some(who) = state.token_holder.filter(|who| has(state.dead, *who)) else { return };
    let is_fenced = state.all_serving(|nsd| has(nsd.fenced, who));
    if is_fenced || scope.has(Bug::FreesBeforeTheFence) {
        let mut after = state.clone();
        (after.token_holder, after.orphaned) = (None, true);
        next.push((Step::of("the token of client {} is free", who), after));
    }
}
