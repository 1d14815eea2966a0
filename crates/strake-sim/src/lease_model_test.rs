//! Small scopes as a whole, each rule taken away, and crowds at random.

use super::*;
use crate::explore::all_keep;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use strake_lease::rule::{Rule, without};

/// The server's clock is ahead at times, or the client's.
const OF_SERVER: u32 = 0b01;
const OF_CLIENT: u32 = 0b10;

const BASE: Scope = Scope {
    servers: 1,
    members: 1,
    joins: 0,
    seconds: 4,
    renewals: 1,
    losses: 0,
    restarts: 0,
    ends: 0,
    leaders: 0,
    drift: 0,
};

fn scopes() -> Vec<(&'static str, Scope)> {
    vec![
        ("a client falls silent", Scope { drift: OF_CLIENT, ..BASE }),
        ("a server cannot be reached", Scope { drift: OF_SERVER, ends: 1, renewals: 0, ..BASE }),
        ("messages are lost", Scope { losses: 1, ends: 1, renewals: 0, ..BASE }),
        ("a late answer", Scope { seconds: 6, renewals: 0, ..BASE }),
        ("a client joins", Scope { joins: 1, members: 0, losses: 1, renewals: 0, ..BASE }),
        ("a server restarts", Scope { restarts: 1, ends: 1, renewals: 0, ..BASE }),
        ("a new leader", Scope { leaders: 1, renewals: 0, ends: 1, seconds: 3, ..BASE }),
        ("two servers", Scope { servers: 2, ends: 1, seconds: 2, renewals: 0, ..BASE }),
    ]
}

#[test]
fn every_state_keeps_the_promises() {
    all_keep(scopes(), check, 100);
}

#[test]
fn every_rule_taken_away_is_missed() {
    for rule in Rule::ALL {
        let found = scopes().into_iter().find_map(|(name, scope)| {
            // A broken rule may break an invariant that asserts.
            let verdict =
                without(rule, || catch_unwind(AssertUnwindSafe(|| check(&scope).fault.is_some())));
            without_is_over();
            verdict.unwrap_or_else(|panic| is_a_finding(&*panic)).then_some(name)
        });
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be taken away unnoticed");
    }
}

/// A scope that is too large is none.
fn is_a_finding(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>().expect("an invariant asserts with a text");
    assert!(!text.contains("too many states"), "{text}");
    true
}

/// After a panic the rule would still be missing on this thread.
fn without_is_over() {
    without(Rule::ALL[0], || ());
}

/// Many clients, servers and faults, at random.
#[test]
fn crowds_keep_the_promises() {
    for seed in 0..60 {
        let scope = Scope {
            servers: 3,
            members: 2,
            joins: 1,
            seconds: 30,
            renewals: 200,
            losses: 10,
            restarts: 3,
            ends: 1,
            leaders: 2,
            drift: 0b111_111,
        };
        if let Err(fault) = wander(&scope, seed, 300) {
            panic!("seed {seed}: {fault}");
        }
    }
}
