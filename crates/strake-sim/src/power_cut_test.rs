//! Cuts the power at every moment of random histories, with every code.

use crate::point::{self, Point};
use crate::{history, recording::Recording};
use std::path::PathBuf;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::{Clock, RealClock};
use strake_proto::Code;

/// The histories of each code in `make test`; `make soak` has many times as many.
const SEEDS: u64 = 4;

/// The seeds of each code's histories. `STRAKE_SIM_SCALE` multiplies their number.
fn seeds() -> std::ops::Range<u64> {
    test_seeds(0, SEEDS * test_scale())
}

/// Runs histories of a code and looks at `points` points of each.
fn cut_power(code: &str, count: usize, seeds: std::ops::Range<u64>, points: u64) {
    let clock = RealClock;
    let code: Code = code.parse().expect("a code");
    for seed in seeds {
        let begun = clock.monotonic();
        let recording = history::run(code, count, seed, 40);
        let recorded = clock.monotonic();
        let last = recording.positions().end().to_owned();
        match point::run(&recording, points) {
            Ok(tally) => {
                let (history, rest) = (recorded - begun, clock.monotonic() - recorded);
                println!(
                    "seed {seed}, {code}: {last} events in {history:?}; {tally:?} in {rest:?}"
                );
            }
            Err((point, fault)) => fail(&recording, point, &fault),
        }
    }
}

pub(crate) fn fail(recording: &Recording, point: Point, fault: &str) -> ! {
    let name = format!("strake-sim-{}-{}.recording", recording.code, recording.seed);
    let path = std::env::temp_dir().join(name);
    recording.save(&path).expect("saves the recording");
    describe(recording, point);
    panic!(
        "{}, seed {}: {fault}\nTo look at this point again:\n  STRAKE_SIM_REPLAY={} \
         STRAKE_SIM_POINT={}.{} cargo test -p strake-sim replays -- --nocapture",
        recording.code,
        recording.seed,
        path.display(),
        point.cut,
        point.number
    );
}

/// Prints what happened around a point.
fn describe(recording: &Recording, point: Point) {
    let marks = &recording.marks;
    let at = marks.iter().take_while(|mark| mark.begin < point.cut).count();
    for (index, mark) in marks.iter().enumerate().take(at) {
        println!("  {index}: {}..{} {} ({:?})", mark.begin, mark.end, mark.what, mark.sync);
    }
    println!("  the power goes at {}", point.cut);
}

/// Looks at the point that `STRAKE_SIM_REPLAY` and `STRAKE_SIM_POINT` name. If only the first is
/// set, looks at the usual points of that recording.
#[test]
fn replays() {
    let Some(path) = std::env::var_os("STRAKE_SIM_REPLAY") else { return };
    let recording = Recording::load(&PathBuf::from(path)).expect("a recording");
    let Ok(name) = std::env::var("STRAKE_SIM_POINT") else {
        if let Err((point, fault)) = point::run(&recording, 250) {
            describe(&recording, point);
            panic!("{}.{}: {fault}", point.cut, point.number);
        }
        return;
    };
    let (cut, number) = name.split_once('.').expect("POSITION.NUMBER");
    let point =
        Point { cut: cut.parse().expect("a position"), number: number.parse().expect("a number") };
    describe(&recording, point);
    point::replay(&recording, point).expect("keeps what was promised");
}

/// Histories that never send patches would prove nothing about patches.
#[test]
fn histories_send_patches() {
    for (code, count) in [("1", 1), ("2x", 2), ("4+2p", 6)] {
        let sends = history::sends(code.parse().expect("a code"), count, 1, 120);
        println!("{code}: {sends:?}");
        assert!(sends.patches >= 10 && sends.whole >= 10, "{code}: {sends:?}");
    }
}

/// The canary: a few points must reveal disks that lie about syncs.
#[test]
fn disks_whose_syncs_do_nothing_are_found_out() {
    let code = "4+2p".parse().expect("a code");
    let recording = history::run(code, 6, 1, 40).on_lying_disks();
    // Every position: fewer points lie at the beginning, where little was promised yet.
    let wanted = recording.positions().count() as u64;
    let (point, fault) = point::run(&recording, wanted).expect_err("nothing was durable");
    println!("{point:?}: {fault}");
}

/// With this seed the power went during a recovery, while NSDs held as many versions of a strip as
/// they keep. 4+1p then lost the last acknowledged version.
const SEED_OF_FULL_RECORDS: u64 = 700_090;

/// One block is overwritten again and again, and becomes durable on some NSDs here and there. The
/// power goes, and often goes again during the recovery.
#[test]
fn promises_hold_for_a_block_that_is_overwritten() {
    for (code, count) in [("4+1p", 5), ("4+2p", 6), ("2x", 2), ("3x", 3)] {
        let code: Code = code.parse().expect("a code");
        for seed in seeds().chain([SEED_OF_FULL_RECORDS]) {
            let recording = history::run_overwrites(code, count, seed, 12);
            match point::run(&recording, 60) {
                Ok(tally) => println!("seed {seed}, {code}: {tally:?}"),
                Err((point, fault)) => fail(&recording, point, &fault),
            }
        }
    }
}

/// One test for each code, so that the tests run on several processors at once. A point of a wide
/// code takes several times as long as a point of a narrow code, and the rules are the same, so
/// wide codes have fewer points.
macro_rules! codes {
    ($($name:ident = $code:literal on $count:literal, $points:literal points;)*) => {
        $(#[test]
        fn $name() {
            cut_power($code, $count, seeds(), $points);
        })*
    };
}

codes! {
    promises_hold_with_one_copy = "1" on 1, 250 points;
    promises_hold_with_2_copies = "2x" on 2, 250 points;
    promises_hold_with_3_copies = "3x" on 4, 250 points;
    promises_hold_with_4_copies = "4x" on 4, 250 points;
    promises_hold_with_4_1p = "4+1p" on 5, 250 points;
    promises_hold_with_4_2p = "4+2p" on 6, 250 points;
    promises_hold_with_4_3p = "4+3p" on 8, 250 points;
    promises_hold_with_8_2p = "8+2p" on 10, 120 points;
    promises_hold_with_8_3p = "8+3p" on 11, 120 points;
}
