//! Crashes, and the recovery that decides between the versions that a crash leaves.

use super::client::{Client, over};
use super::strips::{NOTHING, Nsd, UNITS, Units, decode, part};
use super::writing::is_settled;
use super::{Bug, Scope, State, count_missing, has, is_read, mask};

/// A crash: everything that was not durable is gone, and the client is dead.
pub(super) fn crash(scope: &Scope, state: &State) -> State {
    let mut after = state.clone();
    after.crashes += 1;
    after.dead = true;
    after.write = None;
    after.settling = None;
    after.client = after.client.crash();
    after.nsds.iter_mut().for_each(Nsd::restart);
    if let Some(heir) = &mut after.heir {
        heir.nsd.restart();
        (heir.follows, heir.missed) = (false, false);
        heir.complete &= scope.has(Bug::TrustsCopiesAfterACrash);
    }
    if scope.has(Bug::ReusesVersions) {
        // The counter continues from what the metadata remembers, which is the start of the last
        // life.
        after.next_version = 2;
    }
    after
}

/// Recovers with every choice of NSDs away that the code tolerates.
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
        // NSDs that came back are still noted and are not read. They count among the losses.
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

/// One recovery: it decides and writes the outcome. The result includes the states in which a crash
/// cut it short. `None` means that it rightly waits for NSDs.
pub(super) fn recover(scope: &Scope, mut state: State) -> Result<Option<Vec<State>>, String> {
    let missing: Vec<bool> = state.nsds.iter().map(|nsd| !is_read(nsd)).collect();
    let away = missing.iter().filter(|missing| **missing).count();
    if !scope.has(Bug::DoesNotNote) && away <= scope.parity {
        state.nsds.iter_mut().filter(|nsd| nsd.away).for_each(|nsd| nsd.noted = true);
    }
    let floor = state.floor;
    state.nsds.iter_mut().filter(|nsd| !nsd.away).for_each(|nsd| nsd.delete(scope, floor));
    if !state.named {
        return delete_unnamed(scope, state).map(Some);
    }
    let readable = || state.nsds.iter().enumerate().filter(|(_, nsd)| is_read(nsd));
    let kept = !scope.has(Bug::IgnoresKeptVersions);
    let mut versions: Vec<u8> = readable()
        .flat_map(|(_, nsd)| {
            let from = if kept { 0 } else { nsd.strips.len().saturating_sub(1) };
            nsd.strips[from..].iter().map(|strip| strip.version)
        })
        .filter(|version| *version > floor)
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let whole =
        versions.last().is_some_and(|newest| readable().all(|(_, nsd)| nsd.newest() == *newest));
    let Some((version, content)) = decide(scope, &state, &versions, away)? else {
        return Ok(None);
    };
    judge(&state, over(content, state.client.kept))?;
    let outcome = match version {
        // The block is served as it is found.
        _ if whole || scope.has(Bug::WritesNoOutcome) => Outcome::Found(version),
        0 if versions.is_empty() => Outcome::Found(0),
        0 => Outcome::Deleted,
        _ => Outcome::Anew,
    };
    Ok(Some(outcomes(scope, state, content, outcome)))
}

/// The version that stands, and its content; version 0 is a hole. `None` means that recovery waits
/// for NSDs.
fn decide(
    scope: &Scope,
    state: &State,
    versions: &[u8],
    away: usize,
) -> Result<Option<(u8, Units)>, String> {
    let readable = || state.nsds.iter().enumerate().filter(|(_, nsd)| is_read(nsd));
    for &version in versions.iter().rev() {
        let strips: Vec<(usize, Units)> =
            readable().filter_map(|(at, nsd)| Some((at, nsd.content(version)?))).collect();
        if strips.len() >= scope.data {
            let content = decode(scope, &strips);
            return match content {
                Ok(content) => Ok(Some((version, content))),
                Err(fault) => Err(format!("version {version}: {fault}")),
            };
        }
        if scope.has(Bug::BelievesTheNewest) {
            return Err(format!("version {version} has {} strips", strips.len()));
        }
        // All other NSDs that can be read lack this version and promise to refuse it. The code
        // tolerates the NSDs that are away, so had the version been acknowledged, at least one of
        // the others would have it.
        if away > scope.parity && !scope.has(Bug::RollsBackBlindly) {
            return Ok(None);
        }
    }
    match state.hole {
        Some(content) => Ok(Some((0, content))),
        None => Err("a block that was written reads as a hole".to_owned()),
    }
}

/// Checks that what is read is at least as new as what was promised.
pub(super) fn judge(state: &State, content: Units) -> Result<(), String> {
    let promised = state.promised;
    match (0..UNITS).find(|unit| content[*unit] < promised[*unit]) {
        Some(unit) => Err(format!("unit {unit}: {content:?} was read, {promised:?} was promised")),
        None => Ok(()),
    }
}

/// Deletes a block that the metadata never learnt of. Such a block must not be settled, or no
/// recovery would find it.
fn delete_unnamed(scope: &Scope, state: State) -> Result<Vec<State>, String> {
    let readable = || state.nsds.iter().filter(|nsd| is_read(nsd));
    if readable().any(|nsd| is_settled(nsd, nsd.newest())) {
        return Err("a settled strip is nobody's".to_owned());
    }
    let content = state.hole.unwrap_or([0; UNITS]);
    judge(&state, content)?;
    Ok(outcomes(scope, state, content, Outcome::Deleted))
}

/// What a recovery does with the block.
enum Outcome {
    /// This version is already on all NSDs; 0 for a hole.
    Found(u8),
    /// The block becomes a hole. Its versions were never acknowledged.
    Deleted,
    /// The block is written as a new version.
    Anew,
}

/// Writes the outcome as a new version to the NSDs that are up, durably, before anybody reads it. A
/// crash may come after any of these NSDs has it.
fn outcomes(scope: &Scope, mut state: State, content: Units, outcome: Outcome) -> Vec<State> {
    let mut after = Vec::new();
    let mut stable = 0;
    match outcome {
        Outcome::Found(version) => stable = version,
        Outcome::Deleted => {
            state.floor = state.next_version;
            state.next_version += 1;
        }
        Outcome::Anew => {
            let version = state.next_version;
            state.next_version += 1;
            let told = mask(&state, is_read);
            // A crash may leave the outcome on only some of them.
            for some in (0..=told).filter(|some| some & told == *some) {
                let mut written = state.clone();
                for at in (0..scope.width()).filter(|at| has(some, *at)) {
                    write_outcome(scope, &mut written, at, content);
                }
                if some == told {
                    state = written;
                } else if some != 0 && state.crashes < scope.crashes {
                    after.push(crash(scope, &written));
                }
            }
            stable = version;
            state.settling = Some((version, 0));
        }
    }
    // The block is served: nobody who reads it may later read an older version. It is settled with
    // the next commit.
    state.client = Client::begin(content, state.client.kept, stable);
    state.promise(state.client.memory);
    state.dead = false;
    after.push(state);
    after
}

/// Writes the outcome to one NSD as a whole version, whatever the NSD holds.
fn write_outcome(scope: &Scope, state: &mut State, at: usize, content: Units) {
    let nsd = &mut state.nsds[at];
    let version = state.next_version - 1;
    if scope.has(Bug::PatchesTheOutcome) && nsd.newest() != 0 {
        nsd.patch(scope, version, [NOTHING; UNITS], nsd.newest());
    } else {
        nsd.put(scope, version, part(scope, at, content), 0);
    }
    nsd.commit();
}
