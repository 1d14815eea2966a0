//! Clients: they write under the token, learn maps, and give the token back.

use super::{Availability, Bug, Message, Scope, State, Steps, Write, has, version};
use crate::explore::Step;

pub(super) fn steps(scope: &Scope, state: &State, next: &mut Steps) {
    for who in 0..state.clients.len() {
        begin_write(scope, state, who, next);
        send_again(scope, state, who, next);
        acknowledge(scope, state, who, next);
        settle(scope, state, who, next);
        learn(state, who, next);
        give_back(scope, state, who, next);
    }
}

fn begin_write(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let client = &state.clients[who];
    let is_busy = client.write.is_some_and(|write| !write.acknowledged);
    if !client.holding || is_busy || state.next_value > scope.writes {
        return;
    }
    let mut after = state.clone();
    after.next_value += 1;
    send(scope, &mut after, who, state.next_value);
    next.push((Step::of("client {} writes", who), after));
}

/// Sends a value under a new version to all NSDs that are writable in the client's map.
fn send(scope: &Scope, state: &mut State, who: usize, value: u8) {
    let client = &mut state.clients[who];
    client.counter += 1;
    let grant = if scope.has(Bug::OneGrantPerLife) { client.first } else { client.newest };
    let (version, map) = (version(grant, client.counter), client.map);
    let (skipped, known) = (client.down, client.stable);
    let (accepted, refused, acknowledged) = (0, false, false);
    client.write =
        Some(Write { version, value, skipped, accepted, stable: 0, refused, acknowledged });
    for to in (0..scope.width()).filter(|at| !has(skipped, *at)) {
        let (to, client, lacks) = (to as u8, who as u8, skipped);
        state.network.push(Message { to, client, version, value, map, stable: known, lacks });
    }
    state.network.sort_unstable();
}

/// Sends a write again, under the newest map, if some NSD does not have it and will not get it.
/// Under one grant this happens once for each loss.
fn send_again(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let client = &state.clients[who];
    let Some(write) = client.write.filter(|write| !write.acknowledged && client.holding) else {
        return;
    };
    let is_lost = |at: usize| {
        !has(write.skipped | client.down, at)
            && state.nsds[at].holds(write.version).is_none()
            && !state
                .network
                .iter()
                .any(|it| usize::from(it.to) == at && it.version == write.version)
    };
    let is_current = client.map == state.map && client.counter < scope.writes + scope.losses;
    if is_current && (write.refused || (0..scope.width()).any(is_lost)) {
        let mut after = state.clone();
        send(scope, &mut after, who, write.value);
        next.push((Step::of("client {} sends its write again", who), after));
    }
}

/// Acknowledges a write once every NSD that was sent it reported it stable or is down in the
/// client's map. The client does not look at what the NSDs hold.
fn acknowledge(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let client = &state.clients[who];
    let Some(write) = client.write.filter(|write| !write.acknowledged && client.holding) else {
        return;
    };
    let is_stable = |at: usize| has(write.stable, at);
    let left_out = |at: usize| has(write.skipped | client.down, at);
    let stable = (0..scope.width()).filter(|at| is_stable(*at)).count();
    if stable < scope.data || (0..scope.width()).any(|at| !left_out(at) && !is_stable(at)) {
        return;
    }
    let mut after = state.clone();
    after.promised = after.promised.max(write.value);
    let client = &mut after.clients[who];
    client.stable = write.version;
    client.write = Some(Write { acknowledged: true, ..write });
    next.push((Step::of("client {} acknowledges its write", who), after));
}

/// Settles the stripe: the NSDs that have it free older versions and note which NSDs lack it.
fn settle(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let client = &state.clients[who];
    let Some(write) = client.write.filter(|write| write.acknowledged) else {
        return;
    };
    let is_reached = |at: usize| {
        let nsd = &state.nsds[at];
        nsd.serving && client.map >= nsd.floor && !has(nsd.fenced, who)
    };
    let asked: Vec<usize> = (0..state.nsds.len()).filter(|at| !has(client.down, *at)).collect();
    if !client.holding || !asked.iter().all(|at| is_reached(*at)) {
        return;
    }
    let mut after = state.clone();
    let lacks = match scope.has(Bug::TrustsTheAccepted) {
        true => state.mask(|nsd| nsd.holds(write.version).is_none()),
        false => client.down | state.mask(|_| true) & !write.stable,
    };
    for at in asked {
        let nsd = &mut after.nsds[at];
        if nsd.current() >= write.version {
            nsd.strips.retain(|strip| strip.version >= write.version);
        }
        for strip in nsd.strips.iter_mut().filter(|strip| strip.version == write.version) {
            (strip.settled, strip.lacks) = (true, lacks);
        }
    }
    after.clients[who].write = None;
    next.push((Step::of("client {} settles its write", who), after));
}

/// Gives the client the newest map. The leader gives no maps to clients it has declared dead.
fn learn(state: &State, who: usize, next: &mut Steps) {
    let is_known = state.clients[who].holding && !has(state.dead, who);
    if is_known && state.clients[who].map < state.map {
        let mut after = state.clone();
        (after.clients[who].map, after.clients[who].down) = (state.map, state.down());
        next.push((Step::of("client {} learns the map", who), after));
    }
}

/// Gives the token back. Everything written must be stable. Each strip on its way must be answered,
/// or addressed to an NSD that is down in the client's map (R3).
fn give_back(scope: &Scope, state: &State, who: usize, next: &mut Steps) {
    let client = &state.clients[who];
    let answered = |message: &Message| {
        usize::from(message.client) != who || has(client.down, message.to.into())
    };
    if !client.holding || !state.network.iter().all(answered) {
        return;
    }
    let is_accepted = |write: Write| {
        scope.has(Bug::HandsOverTheAccepted)
            && !write.refused
            && (0..scope.width()).all(|at| has(write.skipped | client.down | write.accepted, at))
    };
    if client.write.is_some_and(|write| !write.acknowledged && !is_accepted(write)) {
        return;
    }
    let mut after = state.clone();
    let client = &mut after.clients[who];
    (client.holding, client.write) = (false, None);
    if state.token_holder == Some(who) {
        after.token_holder = None;
    }
    next.push((Step::of("client {} gives the token back", who), after));
}

/// True if the NSD may be sent a write.
pub(super) fn is_writable(availability: Availability) -> bool {
    availability != Availability::Down
}
