//! Whole groups in one process, from one seed: replicas with journals on simulated disks, a network
//! that loses, repeats, delays and overtakes, crashes that tear writes, disks that are put back,
//! pauses, disks that hang, and changes of membership. `judge.rs` says what must always hold.
//!
//! `STRAKE_SEED` moves the seeds, and `STRAKE_SIM_SCALE` multiplies their number.

mod judge;
mod machine;
mod world;

use crate::rule::{Rule, without};
use std::panic::{AssertUnwindSafe, catch_unwind};
use strake_env::rng::{test_scale, test_seeds};
use world::{Kind, World};

fn seeds(count: u64) -> std::ops::Range<u64> {
    test_seeds(0, count * test_scale())
}

/// Runs a seed to its end and judges it. Returns the hash of everything that happened.
fn run(kind: Kind, seed: u64) -> u64 {
    let mut world = World::new(kind, seed);
    world.run();
    world.hash()
}

fn run_all(kind: Kind, count: u64) {
    let mut total = world::Counts::default();
    for seed in seeds(count) {
        let outcome = catch_unwind(|| {
            let mut world = World::new(kind, seed);
            world.run();
            world.counts
        });
        match outcome {
            Ok(counts) => total.add(&counts),
            Err(panic) => {
                println!("{kind:?}, seed {seed}: STRAKE_SEED={seed} replays it as the first seed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{kind:?}: {total:?}");
    total.assert_enough(kind, count);
}

#[test]
fn three_replicas_keep_what_they_commit() {
    run_all(Kind::Three, 250);
}

#[test]
fn five_replicas_keep_what_they_commit() {
    run_all(Kind::Five, 150);
}

#[test]
fn groups_change_their_members_and_keep_what_they_commit() {
    run_all(Kind::Changing, 150);
}

#[test]
fn a_replica_alone_keeps_what_is_stable_and_grows() {
    run_all(Kind::Solo, 100);
}

#[test]
fn machines_that_keep_their_state_are_equal_also_after_copies() {
    run_all(Kind::Keeping, 250);
    run_all(Kind::KeepingChanging, 100);
    run_all(Kind::KeepingSolo, 60);
}

#[test]
fn two_runs_of_a_seed_are_equal() {
    for kind in Kind::ALL {
        for seed in seeds(2) {
            assert_eq!(run(kind, seed), run(kind, seed), "{kind:?}, seed {seed}");
        }
    }
}

/// Without a rule, some seed must fail.
fn finds(rule: Rule, kind: Kind, count: u64) {
    let found = seeds(count).find(|&seed| {
        catch_unwind(AssertUnwindSafe(|| without(rule, || run(kind, seed)))).is_err()
    });
    println!("without {rule:?}: seed {found:?} of {kind:?} fails");
    assert!(found.is_some(), "{count} seeds do not miss {rule:?}");
}

#[test]
fn each_rule_is_missed() {
    // `core_test.rs` and `membership.rs` take away the rules that chance misses too seldom.
    for (rule, kind) in [
        (Rule::DurableBeforePromised, Kind::Three),
        (Rule::VotesAreWritten, Kind::Three),
        (Rule::SyncsReachTheDisk, Kind::Three),
        (Rule::LongerLogsWin, Kind::Three),
        (Rule::ReadsAskAMajority, Kind::Three),
        (Rule::StartersAsk, Kind::Three),
        (Rule::OthersLearnTheDurable, Kind::Solo),
        (Rule::KeepersGetTheDurable, Kind::KeepingSolo),
        (Rule::LackersTakeNoEntries, Kind::Keeping),
        (Rule::LackersStepDown, Kind::Keeping),
        (Rule::WordsAreCompared, Kind::Three),
    ] {
        finds(rule, kind, 2000);
    }
}
