//! Merges states that differ in nothing that matters. Versions and values are only compared, so
//! they are renumbered from the lowest. Positions that are alike change places, and so do the two
//! units.

use super::strips::{GARBAGE, UNITS, Units};
use super::{Bug, Nsd, Scope, State, has};

/// Returns the one state that stands for all states like this one.
pub(super) fn canonical(scope: &Scope, mut state: State) -> State {
    if !scope.has(Bug::ReusesVersions) {
        renumber_versions(&mut state);
    }
    renumber_values(&mut state);
    // Positions of data strips change places with their units. While an NSD may be deleted, the
    // first position differs from the others.
    let mirrored = (scope.data == 1 || !scope.deletes).then(|| mirror(scope, &state));
    sort(scope, &mut state);
    match mirrored {
        Some(mut mirrored) => {
            sort(scope, &mut mirrored);
            mirrored.min(state)
        }
        None => state,
    }
}

fn renumber_versions(state: &mut State) {
    let mut used = 0u64;
    each_version(state, &mut |version| used |= 1 << *version);
    // Version 0 means that there is none.
    used |= 1;
    each_version(state, &mut |version| {
        *version = (used & ((1 << *version) - 1)).count_ones() as u8
    });
    state.next_version = used.count_ones() as u8;
}

fn each_version(state: &mut State, what: &mut dyn FnMut(&mut u8)) {
    let heir = state.heir.iter_mut().map(|heir| &mut heir.nsd);
    for nsd in state.nsds.iter_mut().chain(heir) {
        nsd.strips.iter_mut().chain(nsd.disk.iter_mut()).for_each(|strip| what(&mut strip.version));
        what(&mut nsd.floor);
    }
    if let Some(write) = &mut state.write {
        what(&mut write.version);
        what(&mut write.base);
    }
    if let Some((version, _)) = &mut state.settling {
        what(version);
    }
    what(&mut state.client.stable);
    what(&mut state.floor);
}

fn renumber_values(state: &mut State) {
    let mut used = [0u64; UNITS];
    let mut look = |units: &mut Units| {
        for (unit, value) in units.iter().enumerate().filter(|(_, value)| **value < GARBAGE) {
            used[unit] |= 1 << value;
        }
    };
    each_value(state, &mut look);
    each_value(state, &mut |units| {
        for (unit, value) in units.iter_mut().enumerate().filter(|(_, value)| **value < GARBAGE) {
            *value = (used[unit] & ((1 << *value) - 1)).count_ones() as u8;
        }
    });
}

fn each_value(state: &mut State, what: &mut dyn FnMut(&mut Units)) {
    let heir = state.heir.iter_mut().map(|heir| &mut heir.nsd);
    for nsd in state.nsds.iter_mut().chain(heir) {
        nsd.strips.iter_mut().chain(nsd.disk.iter_mut()).for_each(|strip| what(&mut strip.units));
    }
    state.write.iter_mut().for_each(|write| what(&mut write.content));
    state.hole.iter_mut().for_each(&mut *what);
    what(&mut state.client.memory);
    what(&mut state.client.kept);
    what(&mut state.promised);
}

/// Swaps the two units. With two data strips, swaps the data strips as well.
fn mirror(scope: &Scope, state: &State) -> State {
    let mut after = state.clone();
    each_value(&mut after, &mut |units| units.reverse());
    let swap = |units: u8| (units & 1) << 1 | units >> 1;
    after.write.iter_mut().for_each(|write| write.changed = swap(write.changed));
    after.client.changed = swap(after.client.changed);
    after.client.sent_since = swap(after.client.sent_since);
    if scope.data == UNITS {
        let mut order: Vec<usize> = (0..scope.width()).collect();
        order.swap(0, 1);
        arrange(&mut after, &order);
    }
    after
}

/// Sorts the positions that are alike.
fn sort(scope: &Scope, state: &mut State) {
    let from = if scope.data > 1 { scope.data } else { usize::from(scope.deletes) };
    let mut order: Vec<usize> = (0..scope.width()).collect();
    order[from..].sort_by_key(|at| key(state, *at));
    arrange(state, &order);
}

/// Everything that a state says of a position.
fn key(state: &State, at: usize) -> (&Nsd, [bool; 4]) {
    let of_write = state.write.map_or([0; 3], |it| [it.accepted, it.left_out, it.refused]);
    let [accepted, left_out, refused] = of_write.map(|mask| has(mask, at));
    let told = state.settling.is_some_and(|(_, told)| has(told, at));
    (&state.nsds[at], [accepted, left_out, refused, told])
}

fn arrange(state: &mut State, order: &[usize]) {
    if order.is_sorted() {
        return;
    }
    let moved = |mask: u8| {
        let is_set = |(_, from): &(usize, &usize)| has(mask, **from);
        order.iter().enumerate().filter(is_set).fold(0, |all, (to, _)| all | 1 << to)
    };
    state.nsds = order.iter().map(|from| state.nsds[*from]).collect();
    if let Some(write) = &mut state.write {
        write.accepted = moved(write.accepted);
        write.left_out = moved(write.left_out);
        write.refused = moved(write.refused);
    }
    if let Some((_, told)) = &mut state.settling {
        *told = moved(*told);
    }
}
