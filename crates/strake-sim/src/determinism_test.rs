//! Runs the whole stack under the scheduler. Two runs of a seed are equal, a planted race is found,
//! and histories of several application threads keep what was promised.

use crate::recording::Recording;
use crate::{history, point};
use std::time::Duration;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::simulation::{self, Options, Outcome};
use strake_env::{Clock, RealClock};
use strake_proto::Code;

/// Operations of one history. A third of them are done by several threads at once.
const STEPS: usize = 30;
/// The planted race must be found within this many seeds.
const CANARY_SEEDS: u64 = 10;

/// The longest simulated time a history may take. Histories take seconds.
const TIME_MAX: Duration = Duration::from_secs(300);

/// One history under the scheduler.
fn simulate(code: &str, count: usize, is_remote: bool, options: Options) -> Outcome<Recording> {
    let code: Code = code.parse().expect("a code");
    let seed = options.seed;
    let options = Options { time_max: TIME_MAX, ..options };
    simulation::run(options, move || match is_remote {
        true => history::run_remote_crowd(code, count, seed, STEPS),
        false => history::run_crowd(code, count, seed, STEPS),
    })
}

/// Runs each seed twice and compares every decision and every I/O.
fn compare(code: &str, count: usize, is_remote: bool, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let options = Options { keep_trace: true, ..Options::new(seed) };
        let one = simulate(code, count, is_remote, options);
        let other = simulate(code, count, is_remote, options);
        if let Some(difference) = one.trace.difference(&other.trace) {
            panic!("two runs of seed {seed}, {code}, remote {is_remote}, differ: {difference}");
        }
        assert_eq!(one.left, Vec::<String>::new(), "seed {seed}: these threads did not end");
        println!(
            "seed {seed}, {code}, remote {is_remote}: {} decisions, trace {:016x}, {:?}",
            one.points,
            one.trace.hash(),
            one.time
        );
        assert_eq!(one.time, other.time);
        one.expect();
    }
}

#[test]
fn same_seed_same_trace_of_the_whole_stack() {
    compare("4+2p", 6, false, test_seeds(0, 3));
    compare("2x", 2, false, test_seeds(0, 2));
}

#[test]
fn same_seed_same_trace_over_the_network() {
    compare("4+2p", 6, true, test_seeds(0, 3));
}

#[test]
fn the_canary_is_found() {
    for seed in 0..CANARY_SEEDS {
        let options = Options { has_canary: true, ..Options::new(seed) };
        let outcome = simulate("4+2p", 6, false, options);
        let Err(report) = outcome.result else { continue };
        assert!(report.contains("no end in time") && report.contains("fan_out.rs"), "{report}");
        println!("found by seed {seed}, one of {CANARY_SEEDS}, after {} decisions", outcome.points);
        return;
    }
    panic!("no seed of {CANARY_SEEDS} finds the planted race");
}

/// Power cuts at points of histories with several application threads.
fn cut_power(code: &str, count: usize, is_remote: bool, points: u64) {
    for seed in test_seeds(0, 6 * test_scale()) {
        let begun = RealClock.monotonic();
        let recording = simulate(code, count, is_remote, Options::new(seed)).expect();
        let recorded = RealClock.monotonic();
        match point::run(&recording, points) {
            Ok(tally) => println!(
                "seed {seed}, {code}, remote {is_remote}: {:?}; {tally:?} in {:?}",
                recorded - begun,
                RealClock.monotonic() - recorded
            ),
            Err((point, fault)) => crate::power_cut_test::fail(&recording, point, &fault),
        }
    }
}

#[test]
fn promises_hold_for_threads_with_2_copies() {
    cut_power("2x", 2, false, 100);
}

#[test]
fn promises_hold_for_threads_with_4_2p() {
    cut_power("4+2p", 6, false, 100);
}

#[test]
fn promises_hold_for_threads_over_the_network() {
    cut_power("4+2p", 6, true, 60);
}
