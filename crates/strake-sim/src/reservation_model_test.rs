//! Small scopes as a whole, each rule taken away, and crowds at random.

use super::*;
use crate::explore::all_keep;
use strake_lease::rule::without;

const BASE: Scope = Scope {
    servers: 2,
    names: &[0, 1],
    first: 1,
    kills: 0,
    stops: 0,
    is_claimed: false,
    unreadable: 0,
    reads_at_once: false,
    drift: 0,
    hold: 2,
    patience: 3,
    bug: None,
};
/// The records name the first server again.
const BACK: Scope = Scope { names: &[0, 1, 0], hold: 1, patience: 2, ..BASE };
/// A new process relies on what is over after `patience - hold`, not only on permits.
const KILLED: Scope = Scope { kills: 1, hold: 1, patience: 3, ..BASE };
const CLOCKS: Scope = Scope { drift: 0b11, patience: 5, ..BASE };
const THREE: Scope = Scope { servers: 3, names: &[0, 1, 2], first: 3, reads_at_once: true, ..BACK };

fn scopes() -> Vec<(&'static str, Scope)> {
    vec![
        ("the records name another server", BASE),
        ("a mark cannot be read", Scope { unreadable: 1, ..BASE }),
        ("a process is killed", KILLED),
        ("killed, and named again", Scope { kills: 1, first: 3, patience: 3, ..BACK }),
        ("killed while it leaves", Scope { stops: 1, first: 2, ..KILLED }),
        ("killed, and a clock", Scope { drift: 0b01, patience: 4, ..KILLED }),
        ("killed, and nothing is under way", Scope { kills: 1, is_claimed: true, ..BACK }),
        ("a server is named again", Scope { hold: 2, patience: 3, ..BACK }),
        ("the records change three times", Scope { names: &[0, 1, 0, 1], ..BACK }),
        ("clocks differ", CLOCKS),
        ("three servers", THREE),
    ]
}

#[test]
fn every_state_keeps_the_promises() {
    all_keep(scopes(), check, 10_000);
}

#[test]
fn every_rule_taken_away_is_missed() {
    for rule in Rule::OF_RESERVATIONS {
        let is_missed = |scope: &Scope| without(rule, || check(scope).fault.is_some());
        let found = scopes().into_iter().find(|(_, scope)| is_missed(scope));
        println!("{rule:?}: {:?}", found.map(|(name, _)| name));
        assert!(found.is_some(), "{rule:?} can be taken away unnoticed");
    }
}

#[test]
fn every_mistake_around_a_reservation_is_missed() {
    for bug in [Bug::LeavesAmidIo, Bug::ReadsBeforeItsMark] {
        let is_missed = |scope: &Scope| check(&Scope { bug: Some(bug), ..*scope }).fault.is_some();
        let found = scopes().into_iter().find(|(_, scope)| is_missed(scope));
        println!("{bug:?}: {:?}", found.map(|(name, _)| name));
        assert!(found.is_some(), "{bug:?} is not noticed");
    }
}

/// The scopes come to what they are about: a second less is too little.
#[test]
fn shorter_patience_is_too_short() {
    for scope in [BASE, BACK, KILLED, CLOCKS] {
        let scope = Scope { patience: scope.patience - 1, ..scope };
        assert!(check(&scope).fault.is_some(), "{scope:?}");
    }
}

/// Three servers, many changes and faults, at random.
#[test]
fn crowds_keep_the_promises() {
    for seed in 0..100 {
        let scope = Scope {
            servers: 3,
            names: &[0, 1, 2, 0, 2, 1, 2, 1, 0, 1, 2, 0, 1, 0, 2],
            kills: 6,
            stops: 4,
            unreadable: 10,
            drift: 0b111,
            patience: 5,
            ..BASE
        };
        if let Err(fault) = wander(&scope, seed, 1500) {
            panic!("seed {seed}: {fault}");
        }
    }
}
