//! Visits whole scopes, and checks that each bug is found.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use strake_env::rng::test_scale;

use Shows::*;

/// N, P, writes, crashes, losses.
type Size = (usize, usize, u8, u8, u8);

/// The scopes that are visited as a whole.
const SCOPES: [(Shows, Size); 20] = [
    (Writing, (1, 1, 2, 2, 1)),
    (Writing, (2, 1, 2, 1, 1)),
    (Writing, (1, 1, 3, 2, 1)),
    (Writing, (1, 2, 2, 1, 1)),
    (Writing, (2, 1, 2, 2, 1)),
    (Deleting, (1, 1, 2, 1, 1)),
    (Deleting, (2, 1, 1, 1, 1)),
    (Deleting, (1, 1, 1, 2, 1)),
    (Deleting, (1, 2, 1, 1, 2)),
    (Patching, (1, 1, 2, 1, 1)),
    (Patching, (2, 1, 1, 1, 1)),
    (Patching, (2, 1, 2, 1, 0)),
    (Pooling, (1, 1, 2, 1, 1)),
    (Pooling, (2, 1, 2, 1, 0)),
    (Hardening, (1, 1, 2, 1, 0)),
    (Hardening, (2, 1, 1, 1, 0)),
    (Hardening, (1, 1, 1, 1, 1)),
    (Punching, (1, 1, 2, 1, 1)),
    (Naming, (1, 1, 2, 1, 1)),
    (PatchingHeirs, (1, 1, 1, 1, 1)),
];

/// Scopes that only `make soak` has time for. They are also searched for bugs that no smaller scope
/// shows.
const LARGE_SCOPES: [(Shows, Size); 12] = [
    (Patching, (1, 1, 2, 2, 1)),
    (Patching, (2, 1, 2, 1, 1)),
    (Patching, (1, 2, 2, 1, 1)),
    (Patching, (2, 2, 1, 1, 1)),
    (Pooling, (2, 1, 2, 1, 1)),
    // Shows in a moment what the next two do not show.
    (Hardening, (1, 1, 3, 1, 0)),
    (Hardening, (2, 1, 1, 2, 0)),
    (Hardening, (1, 1, 2, 2, 0)),
    (Punching, (1, 1, 3, 1, 1)),
    (Punching, (2, 1, 2, 1, 0)),
    (Naming, (2, 1, 2, 1, 1)),
    (PatchingHeirs, (2, 1, 1, 1, 1)),
];

fn scopes(bug: Option<Bug>) -> Vec<(Shows, Scope)> {
    let large: &[_] = if test_scale() > 1 || bug.is_some() { &LARGE_SCOPES } else { &[] };
    let scope = |(shows, (data, parity, writes, crashes, losses))| {
        let scope = Scope {
            data,
            parity,
            writes,
            crashes,
            losses,
            deletes: matches!(shows, Deleting | PatchingHeirs),
            patches: !matches!(shows, Writing | Deleting),
            pool: matches!(shows, Pooling | Hardening),
            hardens: shows == Hardening,
            punches: shows == Punching,
            unnamed: shows == Naming,
            bug,
        };
        (shows, scope)
    };
    SCOPES.iter().chain(large).copied().map(scope).collect()
}

/// Does `work` for all items, on as many threads as the machine has processors. The scopes differ
/// much in size, so each thread takes the next one when it is free.
fn for_all<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    strake_env::thread::scope(|scope| {
        for _ in 0..strake_env::thread::available_parallelism().map_or(1, usize::from) {
            let take = || items.get(next.fetch_add(1, Ordering::Relaxed));
            let work = &work;
            scope.spawn(move || std::iter::from_fn(take).for_each(work));
        }
    });
}

#[test]
fn every_state_keeps_the_promises() {
    for_all(&scopes(None), |(shows, scope)| {
        let verdict = check(*scope);
        println!(
            "{shows:?} {}+{}, {} writes, {} crashes, {} losses: {} states",
            scope.data, scope.parity, scope.writes, scope.crashes, scope.losses, verdict.states
        );
        assert_eq!(verdict.fault, None, "{scope:?}");
        assert!(verdict.states > 1000, "{scope:?} visits only {} states", verdict.states);
    });
}

#[test]
fn every_bug_is_found() {
    for_all(&Bug::ALL, |(bug, shows)| {
        let scopes = scopes(Some(*bug)).into_iter().filter(|(it, _)| it == shows);
        let found = scopes.map(|(_, scope)| check(scope)).find_map(|verdict| verdict.fault);
        println!("{bug:?}: {}", found.as_deref().unwrap_or("not found"));
        assert!(found.is_some(), "{bug:?} is not found");
    });
}
