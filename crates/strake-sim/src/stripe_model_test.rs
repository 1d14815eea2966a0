//! The scopes that are visited as a whole, and each rule taken away.

use super::*;

/// The last ones of [`Bug::ALL`] show only where an NSD is deleted.
const BUGS_OF_DELETION: usize = 6;

/// The scopes that are visited as a whole.
fn scopes(bug: Option<Bug>) -> Vec<Scope> {
    let scope = |data, parity, writes, crashes, losses| Scope {
        data,
        parity,
        writes,
        crashes,
        losses,
        deletes: false,
        bug,
    };
    let deletes = |scope| Scope { deletes: true, ..scope };
    vec![
        scope(1, 1, 2, 2, 1),
        scope(2, 1, 2, 1, 1),
        scope(1, 1, 3, 2, 1),
        scope(1, 2, 2, 1, 1),
        scope(2, 1, 2, 2, 1),
        deletes(scope(1, 1, 2, 1, 1)),
        deletes(scope(2, 1, 1, 1, 1)),
        deletes(scope(1, 1, 1, 2, 1)),
        deletes(scope(1, 2, 1, 1, 2)),
    ]
}

#[test]
fn every_state_keeps_the_promises() {
    for scope in scopes(None) {
        let verdict = check(scope);
        println!("{}+{}: {} states", scope.data, scope.parity, verdict.states);
        assert_eq!(verdict.fault, None, "{scope:?}");
        assert!(verdict.states > 1000, "{scope:?} visits only {} states", verdict.states);
    }
}

#[test]
fn every_bug_is_found() {
    for (at, bug) in Bug::ALL.into_iter().enumerate() {
        let deletes = at >= Bug::ALL.len() - BUGS_OF_DELETION;
        let scopes = scopes(Some(bug)).into_iter().filter(|scope| scope.deletes == deletes);
        let found = scopes.map(check).find_map(|verdict| verdict.fault);
        println!("{bug:?}: {}", found.as_deref().unwrap_or("not found"));
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
