//! Runs of whole clusters.

use super::canary::Canary;
use super::{judge, run};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use strake_env::rng::{test_scale, test_seeds};
use strake_env::thread;

/// Faults of a run.
const FAULTS: usize = 6;
/// Runs of `make check`. `make test` has as many as the environment says.
const SEEDS: u64 = 8;
const SEEDS_VARIABLE: &str = "STRAKE_SIM_CLUSTERS";
/// Runs of a round of `make soak`, which takes other seeds in each.
const SOAK_SEEDS: u64 = 400;
/// The seeds that run beside each other: a simulation keeps one processor busy.
const WORKERS: usize = 2;
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

/// Runs a seed, judges it, and says how to do that again if it fails.
fn try_seed(seed: u64) {
    match outcome(seed, None) {
        Ok(text) => println!("seed {seed}: {text}"),
        Err(report) => panic!(
            "seed {seed}: {report}\n\
             STRAKE_SEED={seed} cargo test -p strake-sim clusters_of_which_parts_die"
        ),
    }
}

/// Tries all seeds, on several processors. After one has failed no other one begins.
fn try_all(seeds: &[u64], try_one: impl Fn(u64) + Sync) {
    let (next, all_passed) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while all_passed.load(Ordering::SeqCst) {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::SeqCst)) else { return };
            let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| try_one(*seed)));
            if let Err(panic) = tried {
                all_passed.store(false, Ordering::SeqCst);
                std::panic::resume_unwind(panic);
            }
        }
    };
    thread::scope(|scope| {
        let workers = [(); WORKERS].map(|()| scope.spawn(work));
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[test]
fn clusters_of_which_parts_die() {
    let said = std::env::var(SEEDS_VARIABLE).ok().and_then(|count| count.parse().ok());
    let count = if test_scale() == 1 { said.unwrap_or(SEEDS) } else { SOAK_SEEDS };
    let seeds: Vec<u64> = test_seeds(0, count).collect();
    try_all(&seeds, try_seed);
}

#[test]
fn every_seed_is_tried_once_and_one_that_fails_is_told() {
    let seeds: Vec<u64> = (0..50).collect();
    let tries = [(); 50].map(|()| AtomicUsize::new(0));
    try_all(&seeds, |seed| {
        tries[seed as usize].fetch_add(1, Ordering::SeqCst);
    });
    assert!(tries.iter().all(|tries| tries.load(Ordering::SeqCst) == 1));
    let failed = std::panic::catch_unwind(|| try_all(&seeds, |seed| assert_ne!(seed, 49)));
    assert!(failed.is_err(), "the last seed fails");
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
