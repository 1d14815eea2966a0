//! Runs of whole clusters.

use super::canary::Canary;
use super::{judge, run};
use strake_env::rng::{test_scale, test_seeds};

/// Faults of a run.
const FAULTS: usize = 6;
/// Runs of `make test`; `make soak` has many times as many.
const SEEDS: u64 = 8;
/// Seeds that once failed.
const FOUND: [u64; 4] = [1097, 1108, 1118, 1120];
/// A rule that is taken away is missed within so many runs.
const CANARY_SEEDS: u64 = 12;

/// Runs a seed, and judges it.
fn outcome(seed: u64, without: Option<Canary>) -> Result<String, String> {
    let outcome = run(seed, FAULTS, without);
    let (time, points) = (outcome.time, outcome.points);
    let record = outcome.result?;
    judge(&record)?;
    let (ops, deaths) = (record.ops.len(), record.deaths.len());
    Ok(format!("{ops} operations, {deaths} deaths, {time:?}, {points} decisions"))
}

#[test]
fn clusters_of_which_parts_die() {
    let moved = test_seeds(0, 1).start;
    let found = FOUND.into_iter().filter(|_| moved == 0);
    for seed in test_seeds(0, SEEDS * test_scale()).chain(found) {
        match outcome(seed, None) {
            Ok(text) => println!("seed {seed}: {text}"),
            Err(report) => panic!(
                "seed {seed}: {report}\n\
                 STRAKE_SEED={seed} cargo test -p strake-sim clusters_of_which_parts_die"
            ),
        }
    }
}

#[test]
fn two_runs_of_a_cluster_are_equal() {
    let hashes = [(); 2].map(|()| {
        let outcome = run(3, FAULTS, None);
        (outcome.trace.hash(), outcome.trace.count(), outcome.time)
    });
    assert_eq!(hashes[0], hashes[1]);
}

/// Runs seeds without a rule until one fails that does not fail with all rules.
fn is_missed(rule: Canary) {
    for seed in test_seeds(0, CANARY_SEEDS) {
        let Err(report) = outcome(seed, Some(rule)) else { continue };
        if outcome(seed, None).is_ok() {
            return println!("without {rule:?}, seed {seed}: {report}");
        }
    }
    panic!("nobody misses {rule:?} in {CANARY_SEEDS} runs");
}

#[test]
fn a_token_that_is_given_up_while_it_is_used_is_found() {
    is_missed(Canary::UsesAreWaitedFor);
}

#[test]
fn a_use_that_a_revoke_does_not_limit_is_found() {
    is_missed(Canary::RevokesLimitNewUses);
}

#[test]
fn a_leader_that_does_not_wait_for_reassertions_is_found() {
    is_missed(Canary::AllReassertFirst);
}
