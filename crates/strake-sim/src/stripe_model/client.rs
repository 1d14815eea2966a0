//! The client: its page pool, what it sends, and the small synchronous writes that it keeps in the
//! metadata's log.

use super::strips::{ALL_UNITS, NOTHING, UNITS, Units, decode};
use super::writing::is_busy;
use super::{Bug, Scope, State, Write, has, is_read, mask};

/// A value above all others. It never collides, because values are renumbered after each step.
const NEW_VALUE: u8 = 63;

/// What the client knows of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Client {
    /// The values in the page pool.
    pub memory: Units,
    /// The units that differ from what is stored: a mask.
    pub changed: u8,
    /// The version that the client knows to be stable everywhere; 0 if none is.
    pub stable: u8,
    /// The values kept in the metadata's log. They survive a crash.
    pub kept: Units,
    /// The kept units that have been sent since they were kept: a mask.
    pub sent_since: u8,
}

impl Client {
    /// A client that starts with what is stored and what is kept.
    pub(super) fn begin(stored: Units, kept: Units, stable: u8) -> Client {
        let memory = over(stored, kept);
        Client { memory, changed: units(kept), stable, kept, sent_since: 0 }
    }

    /// What a crash leaves.
    pub(super) fn crash(self) -> Client {
        let memory = [NOTHING; UNITS];
        Client { memory, changed: 0, stable: 0, kept: self.kept, sent_since: 0 }
    }
}

/// The values of a block when what is kept is written over what is stored.
pub(super) fn over(stored: Units, kept: Units) -> Units {
    std::array::from_fn(|unit| if kept[unit] == NOTHING { stored[unit] } else { kept[unit] })
}

/// The units that have a value: a mask.
fn units(values: Units) -> u8 {
    (0..UNITS).filter(|unit| values[*unit] != NOTHING).fold(0, |all, unit| all | 1 << unit)
}

/// The application writes the whole block or one unit of it. In scopes without a page pool the
/// block is sent at once.
pub(super) fn write(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if state.writes >= scope.writes || (!scope.pool && is_busy(scope, state)) {
        return;
    }
    let choices: &[u8] = if scope.patches { &[1, 2, ALL_UNITS] } else { &[ALL_UNITS] };
    for &written in choices {
        let mut after = state.clone();
        for unit in (0..UNITS).filter(|unit| has(written, *unit)) {
            after.client.memory[unit] = NEW_VALUE;
        }
        after.client.changed |= written;
        after.writes += 1;
        if scope.pool {
            next.push(after);
        } else {
            send(scope, &after, next);
        }
    }
}

/// Sends what is dirty, as a patch or as a whole block. A write begins when the one before it is
/// accepted everywhere. So writes of a block are sent one after the other, but need not be stable
/// one after the other.
pub(super) fn send(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if is_busy(scope, state) || state.client.changed == 0 {
        return;
    }
    let base = base(scope, state);
    if let Some((base, stored)) = base {
        let (changed, memory) = (state.client.changed, state.client.memory);
        let new = |unit| if has(changed, unit) { memory[unit] } else { stored[unit] };
        next.push(sending(scope, state, base, changed, std::array::from_fn(new)));
    }
    if base.is_none() || scope.pool || state.client.changed == ALL_UNITS {
        next.push(sending(scope, state, 0, ALL_UNITS, state.client.memory));
    }
}

/// The version that can be patched and the values of its units, which are read from the NSDs.
fn base(scope: &Scope, state: &State) -> Option<(u8, Units)> {
    let under_way = state.write.filter(|write| !write.acknowledged);
    let base = match under_way {
        Some(write) if scope.has(Bug::PatchesTheUnstable) => write.version,
        Some(_) => return None,
        None => state.client.stable,
    };
    let has_heir = state.heir.as_ref().is_some_and(|heir| heir.follows);
    if !scope.patches
        || base == 0
        || (has_heir && !scope.has(Bug::PatchesPastHeirs))
        || (base <= state.floor && !scope.has(Bug::PatchesBeneathAFloor))
    {
        return None;
    }
    let any = scope.has(Bug::ReadsOldBytesOfAnyVersion);
    let strips: Vec<_> = state
        .nsds
        .iter()
        .enumerate()
        .filter(|(_, nsd)| is_read(nsd) || any && !nsd.away)
        .filter_map(|(at, nsd)| Some((at, nsd.content(if any { nsd.newest() } else { base })?)))
        .collect();
    if strips.len() < scope.data {
        return None;
    }
    if any {
        return Some((base, first_of_each(scope, &strips)));
    }
    Some((base, decode(scope, &strips).ok()?))
}

/// What a reader gets who does not look at versions: each unit from the first NSD that has it.
fn first_of_each(scope: &Scope, strips: &[(usize, Units)]) -> Units {
    strips.iter().fold([NOTHING; UNITS], |content, holder| {
        over(decode(scope, &[*holder]).unwrap_or(content), content)
    })
}

fn sending(scope: &Scope, state: &State, base: u8, changed: u8, content: Units) -> State {
    let mut after = state.clone();
    let patched_past = base != 0 && scope.has(Bug::PatchesPastHeirs);
    let heirless = super::writing::following(state).is_none();
    after.write = Some(Write {
        version: state.next_version,
        base,
        content,
        changed,
        accepted: 0,
        left_out: mask(state, |nsd| nsd.away),
        refused: 0,
        inherited: scope.has(Bug::HeirsGetNoWrites) || heirless || patched_past,
        acknowledged: false,
    });
    after.next_version += 1;
    after.client.sent_since |= changed & units(state.client.kept);
    after.client.changed &= !changed;
    after
}

/// After an NSD did not have the base of a patch, sends the whole block under a newer version.
pub(super) fn fall_back(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write else { return };
    if write.refused == 0 || is_busy(scope, state) || scope.has(Bug::IgnoresNotBase) {
        return;
    }
    let memory = state.client.memory;
    if scope.has(Bug::SendsTheRestUnderTheSameVersion) {
        let mut after = state.clone();
        after.write = Some(Write { base: 0, content: memory, refused: 0, ..write });
        next.push(after);
    } else {
        next.push(sending(scope, state, 0, ALL_UNITS, memory));
    }
}

/// The commit finds that an NSD was restarted and may have lost the write. Then the units that were
/// sent count as changed again.
pub(super) fn lose_write(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let Some(write) = state.write.filter(|write| !write.acknowledged) else { return };
    let lost = mask(state, |nsd| !nsd.away && !nsd.holds(write.version)) & write.accepted;
    if !scope.patches || is_busy(scope, state) || lost == 0 {
        return;
    }
    let mut after = state.clone();
    after.write = None;
    after.client.sent_since &= !write.changed;
    if !scope.has(Bug::ForgetsWhatWasLost) {
        after.client.changed |= write.changed;
    }
    next.push(after);
}

/// A small `fsync`: units that are not on disks yet go into the metadata's log. Those that wait to
/// be sent stay dirty, and those on their way to the NSDs stay on it.
pub(super) fn keep(scope: &Scope, state: &State, next: &mut Vec<State>) {
    let client = &state.client;
    let unstable = state.write.filter(|write| !write.acknowledged).map_or(0, |it| it.changed);
    let unsafe_units = match scope.has(Bug::HardensNothingOnItsWay) {
        true => client.changed,
        false => client.changed | unstable,
    };
    let unsaved = (0..UNITS)
        .filter(|unit| has(unsafe_units, *unit) && client.kept[*unit] != client.memory[*unit])
        .fold(0, |all, unit| all | 1 << unit);
    if !scope.hardens || unsaved == 0 || !state.named {
        return;
    }
    // No unit that stays kept may be older than what was sent of it, because a start writes kept
    // units again.
    let outdated = (0..UNITS)
        .filter(|unit| has(client.sent_since, *unit) && client.kept[*unit] != client.memory[*unit])
        .fold(0, |all, unit| all | 1 << unit)
        & units(client.kept)
        & !unsaved;
    if outdated != 0 && !scope.has(Bug::HardensBesideWhatWasSent) {
        return;
    }
    let mut after = state.clone();
    for unit in (0..UNITS).filter(|unit| has(unsaved, *unit)) {
        after.client.kept[unit] = client.memory[unit];
    }
    after.client.sent_since &= !unsaved;
    if scope.has(Bug::HardeningClearsChanged) {
        after.client.changed &= !unsaved;
    }
    after.promise(client.memory);
    next.push(after);
}

/// An `fsync` ends. The block has become stable before without anybody waiting for it. Or the
/// metadata only forgets units that are in stable stripes, at any time: also while newer values of
/// them are on their way.
pub(super) fn sync(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if !scope.hardens || state.client.sent_since == 0 {
        return;
    }
    if state.write.is_none() {
        let mut after = state.clone();
        told(scope, &mut after, [0; UNITS]);
        next.push(after);
    }
    let under_way = state.write.filter(|write| !write.acknowledged).map_or(0, |it| it.changed);
    let stored = match scope.has(Bug::FoldsWhatIsOnItsWay) {
        true => state.client.sent_since,
        false => state.client.sent_since & !under_way,
    };
    for unit in (0..UNITS).filter(|unit| has(stored, *unit)) {
        let mut after = state.clone();
        after.client.kept[unit] = NOTHING;
        after.client.sent_since &= !(1 << unit);
        next.push(after);
    }
}

/// The block is stable and the metadata knows it. Promises `content`, and everything in the page
/// pool that is not waiting to be sent. Forgets what was kept, unit by unit.
pub(super) fn told(scope: &Scope, after: &mut State, content: Units) {
    let client = &mut after.client;
    let folded = match scope.has(Bug::FoldsEverything) {
        true => ALL_UNITS,
        // As far as the client knows, units that are not changed are stored.
        false => client.sent_since | !client.changed,
    };
    for unit in (0..UNITS).filter(|unit| has(folded, *unit)) {
        client.kept[unit] = NOTHING;
        client.sent_since &= !(1 << unit);
    }
    let (changed, memory) = (client.changed, client.memory);
    let durable = |unit| if has(changed, unit) { content[unit] } else { memory[unit] };
    after.named = true;
    after.promise(std::array::from_fn(durable));
}

/// The application deletes the block's range. The metadata records it durably at once, and NSDs
/// apply it later.
pub(super) fn punch(scope: &Scope, state: &State, next: &mut Vec<State>) {
    if !scope.punches || is_busy(scope, state) || state.writes >= scope.writes {
        return;
    }
    let mut after = state.clone();
    let zeros = [NEW_VALUE; UNITS];
    after.writes += 1;
    after.floor = state.next_version;
    after.next_version += 1;
    after.hole = Some(zeros);
    (after.write, after.settling) = (None, None);
    let stable = if scope.has(Bug::PatchesBeneathAFloor) { state.client.stable } else { 0 };
    after.client = Client::begin(zeros, [NOTHING; UNITS], stable);
    after.promise(zeros);
    next.push(after);
}

/// NSDs apply the deletion one by one.
pub(super) fn apply_floor(scope: &Scope, state: &State, next: &mut Vec<State>) {
    for at in (0..scope.width()).filter(|at| !state.nsds[*at].away) {
        if state.nsds[at].floor < state.floor {
            let mut after = state.clone();
            after.nsds[at].delete(scope, state.floor);
            next.push(after);
        }
    }
}
