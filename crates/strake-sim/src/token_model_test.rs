//! Small scopes as a whole, each rule taken away, and crowds at random.

use super::*;
use crate::explore::all_keep;
use std::panic::{AssertUnwindSafe, catch_unwind};
use strake_token::rule::{Rule, without};

const ALL: BlockRange = BlockRange::ALL;

fn read(ino: u64) -> Vec<Want> {
    vec![want(ino, Mode::Shared, None)]
}

fn change(ino: u64) -> Vec<Want> {
    vec![want(ino, Mode::Exclusive, None)]
}

fn write(from: u64, to: u64) -> Vec<Want> {
    vec![want(1, Mode::Shared, Some((from, to, Mode::Exclusive, ALL)))]
}

fn read_blocks(from: u64, to: u64) -> Vec<Want> {
    vec![want(1, Mode::Shared, Some((from, to, Mode::Shared, ALL)))]
}

/// A write beside others, of blocks `from..to`.
fn beside(from: u64, to: u64) -> Vec<Want> {
    let needed = BlockRange::new(BlockIndex(from), BlockIndex(to));
    vec![want(1, Mode::Writing, Some((from, to, Mode::Exclusive, needed)))]
}

fn open(inode: Mode) -> Vec<Want> {
    vec![Want { open: true, ..want(1, inode, None) }]
}

fn rename() -> Vec<Want> {
    vec![want(1, Mode::Exclusive, None), want(2, Mode::Exclusive, None)]
}

fn scope(operations: Vec<Vec<Vec<Want>>>) -> Scope {
    Scope {
        operations,
        nested: None,
        brought: false,
        recalls: 0,
        losses: 0,
        repetitions: 0,
        deaths: 0,
        leaders: 0,
        more_grants: 1,
    }
}

/// A client makes file 2 in directory 1. Another one wants something.
fn made(wanted: Vec<Want>) -> Scope {
    Scope {
        nested: Some(0),
        brought: true,
        ..scope(vec![vec![change(1), change(2)], vec![wanted]])
    }
}

fn scopes() -> Vec<(&'static str, Scope)> {
    let pair = || vec![vec![change(1)], vec![change(1)]];
    vec![
        ("two writers", scope(pair())),
        ("repeated", Scope { repetitions: 1, ..scope(pair()) }),
        ("lost", Scope { losses: 1, ..scope(pair()) }),
        ("a death", Scope { deaths: 1, ..scope(pair()) }),
        ("a new leader", Scope { leaders: 1, ..scope(pair()) }),
        ("a reader that writes", scope(vec![vec![read(1), change(1)], vec![read(1)]])),
        (
            "a leader that dies with a client",
            Scope { leaders: 1, deaths: 1, more_grants: 0, ..scope(pair()) },
        ),
        (
            "a leader that dies with one of two writers",
            Scope {
                leaders: 1,
                deaths: 1,
                more_grants: 0,
                ..scope(vec![vec![beside(0, 1)], vec![beside(1, 2)]])
            },
        ),
        ("blocks", scope(vec![vec![write(0, 1)], vec![write(1, 2), read_blocks(0, 1)]])),
        ("blocks and attributes", scope(vec![vec![write(0, 1)], vec![change(1)]])),
        (
            "two writers beside each other",
            Scope {
                more_grants: 0,
                ..scope(vec![vec![beside(0, 1), beside(0, 1)], vec![beside(1, 2), beside(0, 1)]])
            },
        ),
        ("the same block", scope(vec![vec![beside(0, 1)], vec![beside(0, 1)]])),
        ("writers and a reader", scope(vec![vec![beside(0, 1), read(1)], vec![beside(1, 2)]])),
        (
            "a writer dies beside another",
            Scope { deaths: 1, ..scope(vec![vec![beside(0, 1)], vec![beside(1, 2)]]) },
        ),
        (
            "a new leader of writers",
            Scope { leaders: 1, ..scope(vec![vec![beside(0, 1)], vec![beside(1, 2)]]) },
        ),
        (
            "a file is open while another client removes it",
            Scope {
                recalls: 1,
                ..scope(vec![vec![open(Mode::Shared), open(Mode::Shared)], vec![change(1)]])
            },
        ),
        (
            "a new leader of open files",
            Scope {
                leaders: 1,
                more_grants: 0,
                ..scope(vec![vec![open(Mode::Exclusive)], vec![open(Mode::Shared)]])
            },
        ),
        (
            "a file is let go while it is asked for",
            scope(vec![vec![open(Mode::Shared), change(1)], vec![read(1)]]),
        ),
        ("a new file comes with its token", made(change(2))),
        ("a new file, and a new leader", Scope { leaders: 1, more_grants: 0, ..made(change(2)) }),
        ("a new file, and a message that comes twice", Scope { repetitions: 1, ..made(change(2)) }),
        ("a new file of a client that dies", Scope { deaths: 1, ..made(change(2)) }),
        ("two files at once", scope(vec![vec![rename()], vec![change(2)]])),
        (
            "a file is made while others have seen its name",
            Scope {
                nested: Some(0),
                ..scope(vec![vec![change(1), change(2)], vec![rename()], vec![change(2)]])
            },
        ),
    ]
}

#[test]
fn every_state_keeps_the_promises() {
    all_keep(scopes(), check, 100);
}

#[test]
fn every_rule_taken_away_is_missed() {
    for rule in Rule::ALL {
        let mut scopes = scopes();
        scopes.sort_by_key(|(name, _)| *name != where_missed(rule));
        let found = scopes.into_iter().find_map(|(name, scope)| {
            // A broken rule may break an invariant that asserts.
            let verdict =
                without(rule, || catch_unwind(AssertUnwindSafe(|| check(&scope).fault.is_some())));
            without_is_over();
            verdict.unwrap_or(true).then_some(name)
        });
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be taken away unnoticed");
    }
}

/// The scope in which a rule is missed, for those that are not missed in one of the first.
fn where_missed(rule: Rule) -> &'static str {
    match rule {
        Rule::OpenOutlivesTheInode | Rule::UnusedOpenGoesWithTheInode | Rule::ClosesAreTold => {
            "a file is open while another client removes it"
        }
        Rule::ReassertedClosesAreTold => "a new leader of open files",
        Rule::StaleOpensAreTold => "a file is let go while it is asked for",
        Rule::NewFilesAreFree | Rule::LateTokensOfNewFilesAreVoid => {
            "a new file comes with its token"
        }
        Rule::OnlyExclusiveIsAlone => "a leader that dies with one of two writers",
        Rule::WritersLeaveFirst => "writers and a reader",
        Rule::RepairIsAlone => "a writer dies beside another",
        Rule::HoldersPassThoseWhoWait => "a file is made while others have seen its name",
        _ => "",
    }
}

/// After a panic the rule would still be missing on this thread.
fn without_is_over() {
    without(Rule::ALL[0], || ());
}

/// Many clients, files and blocks, at random.
#[test]
fn crowds_keep_the_promises() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let clients = 2 + rng.index(3);
        let operations = (0..clients).map(|_| (0..8).map(|_| any(&mut rng)).collect()).collect();
        let scope = Scope {
            operations,
            nested: None,
            brought: false,
            recalls: 3,
            losses: 4,
            repetitions: 6,
            deaths: 1,
            leaders: 2,
            more_grants: 1000,
        };
        if let Err(fault) = wander(&scope, seed, 400) {
            panic!("seed {seed}: {fault}");
        }
    }
}

fn any(rng: &mut Rng) -> Vec<Want> {
    let mode = |rng: &mut Rng| Mode::ALL[rng.index(2)];
    match rng.below(7) {
        0 => rename(),
        5 | 6 => {
            let from = rng.below(6);
            let mut wants = beside(from, from + 1 + rng.below(2));
            wants[0].ino = Ino(1 + rng.below(3));
            wants
        }
        1 => vec![want(1 + rng.below(3), mode(rng), None)],
        _ => {
            let from = rng.below(6);
            let to = from + 1 + rng.below(3);
            let desired = match rng.below(2) {
                0 => ALL,
                _ => BlockRange::new(BlockIndex(from), BlockIndex(to)),
            };
            let range = Some((from, to, mode(rng), desired));
            let mut wants = vec![want(1 + rng.below(3), mode(rng), range)];
            wants[0].open = rng.below(4) == 0;
            wants
        }
    }
}
