//! `make soak`: runs the seeded tests, optimised, again and again with seeds that nobody has run.
//! After each such round it runs the long forms of the suites on real mounts. It stops when the
//! time is up or something fails. The line printed before each round is the command that replays
//! the round.

use crate::runner::{Step, Tally, run_step};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Seeds of one round. No test runs more than this at once.
const SEEDS_PER_ROUND: u64 = 1000;
/// How many times as many histories as in `make test` one round simulates: 160,000 power cuts.
const SIM_SCALE: &str = "20";
/// A round that takes longer than this hangs. Two otherwise idle processors take about 50 minutes.
const ROUND_MINUTES_MAX: u64 = 180;
/// A limit for the long forms, which include a directory of a million names.
const SUITES_MINUTES_MAX: u64 = 180;

/// Runs `soak --seed N --minutes M`.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let Some((seed, minutes)) = read(arguments) else {
        eprintln!("usage: soak --seed N --minutes M");
        return ExitCode::from(2);
    };
    let end = now() + Duration::from_secs(minutes * 60);
    let mut total = Tally::default();
    let mut round_seed = seed;
    while now() < end && total.failed == 0 {
        println!(
            "==== STRAKE_SEED={round_seed} STRAKE_SIM_SCALE={SIM_SCALE} cargo test --release --workspace"
        );
        let command = ["cargo", "test", "-q", "--release", "--workspace"];
        let step = Step::new("soak", &command, ROUND_MINUTES_MAX)
            .with("STRAKE_SEED", &round_seed.to_string())
            .with("STRAKE_SIM_SCALE", SIM_SCALE);
        let (counted, _) = run_step(&step);
        total.passed += counted.passed;
        total.failed += counted.failed;
        total.skipped += counted.skipped;
        if now() < end && total.failed == 0 {
            println!("==== STRAKE_SEED={round_seed} cargo run -p xtask -- suites");
            let command = ["cargo", "run", "-q", "-p", "xtask", "--", "suites"];
            let step = Step::new("suites", &command, SUITES_MINUTES_MAX)
                .with("STRAKE_SEED", &round_seed.to_string());
            let (counted, _) = run_step(&step);
            total.passed += counted.passed;
            total.failed += counted.failed;
            total.skipped += counted.skipped;
        }
        round_seed += SEEDS_PER_ROUND;
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(arguments: &[String]) -> Option<(u64, u64)> {
    let (mut seed, mut minutes) = (SEEDS_PER_ROUND, 60);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--seed" => seed = value.parse().ok()?,
            "--minutes" => minutes = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((seed, minutes))
}

#[allow(clippy::disallowed_methods, reason = "the soak ends by the machine's clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(read(&words("--seed 7 --minutes 2")), Some((7, 2)));
        assert_eq!(read(&[]), Some((SEEDS_PER_ROUND, 60)));
        for bad in ["--seed", "--seed x", "--hours 2"] {
            assert_eq!(read(&words(bad)), None, "{bad}");
        }
    }
}
