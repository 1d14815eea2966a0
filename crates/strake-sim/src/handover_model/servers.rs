//! NSD servers: what they publish, keep and make durable.

use super::invariants::{at_publish, at_stale};
use super::{Bug, Message, Nsd, Scope, State, Steps, Strip, Write, has};
use crate::explore::Step;

pub(super) fn steps(scope: &Scope, state: &State, next: &mut Steps) -> Result<(), String> {
    for message in &state.network {
        if state.nsds[usize::from(message.to)].serving {
            next.push((
                Step::of("NSD {} gets a strip", message.to.into()),
                deliver(scope, state, message)?,
            ));
        }
    }
    for (at, nsd) in state.nsds.iter().enumerate().filter(|(_, nsd)| nsd.serving) {
        let waits = |write: &Write| has(write.accepted & !write.stable, at);
        let is_waited_for = state.clients.iter().filter_map(|it| it.write.as_ref()).any(waits);
        if is_waited_for || nsd.strips.iter().any(|strip| !strip.durable) {
            let mut after = state.clone();
            after.nsds[at].strips.iter_mut().for_each(|strip| strip.durable = true);
            for write in after.clients.iter_mut().filter_map(|client| client.write.as_mut()) {
                write.stable |= write.accepted & 1 << at;
            }
            next.push((Step::of("NSD {} makes durable what it has", at), after));
        }
    }
    Ok(())
}

fn deliver(scope: &Scope, state: &State, message: &Message) -> Result<State, String> {
    let mut after = state.clone();
    after.network.retain(|other| other != message);
    let (to, client) = (usize::from(message.to), usize::from(message.client));
    let nsd = &mut after.nsds[to];
    let is_below = message.map < nsd.floor && !scope.has(Bug::TestsNoFloor);
    let is_fenced = has(nsd.fenced, client) && !scope.has(Bug::TestsNoFence);
    let is_stale = message.version <= nsd.current().max(nsd.tombstone);
    if is_below || is_fenced || is_stale {
        if !is_below && !is_fenced {
            at_stale(state, message)?;
        }
        let client = &mut after.clients[client];
        let write = client.write.as_mut().filter(|write| write.version == message.version);
        if let Some(write) = write {
            write.refused = true;
            // The client now knows that it was declared dead.
            client.holding &= !is_fenced;
        }
        return Ok(after);
    }
    at_publish(state, message)?;
    let Message { version, value, lacks, stable, .. } = *message;
    put(scope, nsd, Strip { version, value, durable: false, settled: false, lacks }, stable);
    let write = after.clients[client].write.as_mut();
    if let Some(write) = write.filter(|write| write.version == message.version) {
        write.accepted |= 1 << to;
    }
    Ok(after)
}

/// What an NSD does with a version that it accepts. The rules are those of `put_in_front` in
/// `strake-nsd`.
pub(super) fn put(scope: &Scope, nsd: &mut Nsd, strip: Strip, stable: u8) {
    if nsd.holds(stable).is_some() {
        nsd.strips.retain(|held| held.version >= stable);
    }
    if nsd.strips.last().is_some_and(|last| !last.settled && !last.durable) {
        nsd.strips.pop();
    }
    if nsd.strips.len() == scope.kept {
        nsd.strips.remove(least_needed(scope, &nsd.strips));
    }
    nsd.strips.push(strip);
}

/// Returns which version to drop when there are too many: the one before the current, as in
/// `strake-nsd`. Grants are not compared.
///
/// The oldest stays, as it may be the last acknowledged one: every writer names the version it
/// found (R7), so nothing older is held. The current one stays, as it may be an outcome that is
/// stable everywhere. The versions between these come from a write that was never acknowledged, or
/// from managers that died while they resolved.
fn least_needed(scope: &Scope, strips: &[Strip]) -> usize {
    if scope.has(Bug::DropsTheOldest) {
        return 0;
    }
    let current = strips.len() - 1;
    if scope.has(Bug::DropsTheCurrent) { current } else { current - 1 }
}
