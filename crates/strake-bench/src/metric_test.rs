//! Tests the metrics against hand-worked cases and against every table of the p690/x335 report.
//!
//! Source of the tables: "Native GPFS Benchmarks in an Integrated p690/AIX and x335/Linux
//! Environment", appendix B (tests 1 to 20); MB/s with two decimals. A figure that was left
//! empty there is `NAN` here.

use super::*;

fn sample(bytes: u64, seconds: f64) -> TaskSample {
    TaskSample { bytes, operations: bytes / 10, seconds, busy_seconds: seconds / 2.0 }
}

#[test]
fn two_tasks_by_hand() {
    // 100 bytes in 1 s and 300 bytes in 4 s: natural 400/4, mean 400/5, aggregate 2·400/5.
    let rates = rates(&[sample(100, 1.0), sample(300, 4.0)]);
    assert_eq!(rates.natural_aggregate, 100.0);
    assert_eq!(rates.harmonic_mean, 80.0);
    assert_eq!(rates.harmonic_aggregate, 160.0);
    assert_eq!(rates.operations_per_second, 10.0);
    assert_eq!(rates.thread_utilization, 2.5 / 8.0);
}

#[test]
fn one_task_has_one_rate() {
    let rates = rates(&[sample(4 << 30, 12.6)]);
    assert_eq!(rates.natural_aggregate, rates.harmonic_aggregate);
    assert_eq!(rates.natural_aggregate, rates.harmonic_mean);
}

#[test]
fn nothing_done_is_zero_and_not_a_division() {
    assert_eq!(rates(&[]), Rates::default());
    assert_eq!(rates(&[sample(0, 0.0)]).natural_aggregate, 0.0);
}

#[test]
fn natural_never_exceeds_harmonic_whatever_the_tasks_did() {
    let mut dice = crate::pattern::Dice::new(11);
    for round in 0..2_000 {
        let tasks: Vec<_> = (0..1 + dice.below(20))
            .map(|_| sample(dice.below(1 << 40), (1 + dice.below(1_000_000)) as f64 / 1e3))
            .collect();
        let rates = rates(&tasks);
        assert!(
            rates.natural_aggregate <= rates.harmonic_aggregate * (1.0 + 1e-12),
            "round {round}: {tasks:?}"
        );
        let product = rates.harmonic_mean * tasks.len() as f64;
        assert!(
            (product / rates.harmonic_aggregate.max(1e-300) - 1.0).abs() < 1e-9 || product == 0.0
        );
    }
}

#[test]
fn interference_by_hand() {
    // Alone 100 and 200 per second; together each takes twice as long.
    let alone = [rates(&[sample(100, 1.0)]), rates(&[sample(200, 1.0)])];
    let together = [rates(&[sample(100, 2.0)]), rates(&[sample(200, 2.0)])];
    let found = interference([&alone[0], &alone[1]], [&together[0], &together[1]]);
    assert_eq!(found.combined_harmonic_aggregate, 150.0);
    assert_eq!((found.first_kept, found.second_kept), (0.5, 0.5));
    assert_eq!(found.length_ratio, 1.0);
}

const X: f64 = f64::NAN;

/// (test, tasks, natural write, natural read, harmonic write, read, mean write, read).
type Row = (u32, u32, f64, f64, f64, f64, f64, f64);

#[rustfmt::skip]
const TABLES: &[Row] = &[
    (1, 1, 325.05, 388.97, X, X, X, X),
    (1, 2, 336.30, 397.73, 325.74, 388.19, 162.87, 194.10),
    (1, 4, 330.86, 402.15, 319.38, 387.25, 79.84, 96.81),
    (1, 8, 328.93, 417.80, 316.73, 385.73, 39.59, 48.22),
    (1, 16, 328.04, 392.83, 316.22, 390.09, 19.76, 24.38),
    (2, 1, 109.27, 110.89, X, X, X, X),
    (2, 2, 180.27, 219.73, 181.18, 219.81, 90.59, 109.91),
    (2, 4, 256.28, 388.48, 257.37, 389.79, 64.34, 97.45),
    (2, 8, 260.75, 390.53, 260.93, 392.65, 32.62, 49.08),
    (2, 16, 266.58, 390.52, 267.51, 392.00, 16.72, 24.50),
    (3, 1, 15.64, 25.66, X, X, X, X),
    (3, 2, 9.25, 36.92, 9.25, 37.15, 4.63, 18.58),
    (3, 4, 10.12, 13.49, 10.23, 14.26, 2.56, 3.57),
    (3, 8, 10.06, 16.82, 10.21, 17.48, 1.28, 2.19),
    (6, 1, 640.10, 765.28, X, X, X, X),
    (6, 2, 641.07, 760.75, 648.02, 761.71, 324.01, 380.85),
    (6, 4, 631.84, 739.31, 646.62, 758.13, 161.65, 189.53),
    (6, 8, 649.14, 724.88, 670.83, 755.63, 83.85, 94.45),
    (6, 16, 646.97, 721.26, 671.29, 788.48, 41.96, 49.28),
    (7, 1, 109.27, 110.89, X, X, X, X),
    (7, 2, 198.92, 218.65, 198.92, 219.51, 99.46, 109.76),
    (7, 4, 269.91, 435.37, 269.95, 437.68, 67.49, 109.42),
    (7, 8, 282.44, 624.19, 283.44, 626.81, 35.43, 78.35),
    (7, 16, 253.23, 595.50, 281.78, 598.18, 17.61, 37.39),
    (7, 32, 269.77, 577.53, 269.83, 581.23, 8.43, 18.16),
    (8, 1, 25.44, 35.79, X, X, X, X),
    (8, 2, 18.14, 54.53, 18.16, 55.00, 9.08, 27.50),
    (8, 4, 17.34, 23.22, 17.44, 23.87, 4.36, 5.97),
    (8, 8, 18.88, 26.80, 19.18, 28.01, 2.40, 3.50),
    (8, 16, 20.48, 34.95, 20.71, 36.06, 1.29, 2.25),
    (11, 1, 768.21, 620.57, X, X, X, X),
    (11, 2, 774.97, 771.37, 775.80, 773.59, 387.90, 386.80),
    (11, 4, 767.94, 735.78, 784.99, 751.72, 196.25, 187.93),
    (11, 8, 776.23, 720.27, 810.23, 751.22, 101.28, 93.90),
    (11, 16, 721.80, 724.33, 755.05, 781.48, 47.19, 48.84),
    (12, 1, 110.19, 110.88, X, X, X, X),
    (12, 2, 189.97, 219.18, 189.97, 219.76, 94.99, 109.88),
    (12, 4, 271.39, 433.87, 272.78, 435.99, 68.19, 109.00),
    (12, 8, 270.35, 648.30, 301.89, 654.39, 37.74, 81.80),
    (12, 16, 286.21, 645.56, 287.15, 666.74, 17.95, 41.67),
    (12, 32, 280.56, 580.72, 282.29, 587.63, 8.82, 18.36),
    (13, 2, 11.63, 49.86, 11.63, 49.87, 5.82, 24.93),
    (13, 4, 15.11, 34.48, 15.12, 35.36, 3.78, 8.84),
    (13, 8, 23.32, 55.96, 23.96, 59.41, 2.99, 7.43),
    (14, 1, 1.77, 62.44, X, X, X, X),
    (14, 2, 5.80, 8.85, 6.17, 15.09, 3.08, 7.55),
    (14, 4, 7.58, 14.87, 7.77, 24.88, 1.94, 6.22),
    (14, 8, 7.67, 79.85, 7.91, 86.53, 0.99, 10.82),
    (16, 1, 1233.84, 1259.48, X, X, X, X),
    (16, 2, 1205.22, 1507.61, 1207.57, 1515.52, 603.79, 757.76),
    (16, 4, 1220.48, 1541.19, 1221.24, 1543.55, 305.31, 385.89),
    (16, 8, 1230.79, 1435.37, 1255.06, 1478.34, 156.88, 184.79),
    (16, 16, 1261.76, 1388.82, 1314.27, 1472.10, 82.14, 92.01),
    (17, 2, 177.47, 215.71, 177.61, 217.44, 88.80, 108.72),
    (17, 4, 207.42, 427.55, 236.79, 432.29, 59.20, 108.07),
    (17, 8, 244.68, 692.17, 245.77, 698.91, 30.72, 87.36),
    (17, 16, 249.66, 574.91, 250.03, 610.65, 15.63, 38.17),
    (18, 1, 35.90, 48.88, X, X, X, X),
    (18, 2, 30.12, 109.31, 30.17, 109.80, 15.08, 54.90),
    (18, 4, 33.34, 78.74, 33.50, 79.44, 8.38, 19.86),
    (18, 8, 35.19, 61.40, 35.43, 64.04, 4.43, 8.01),
    // The mixed tests print no means: each job alone, then each beside the other.
    (5, 4, 253.85, 389.03, 254.11, 390.08, X, X),
    (5, 4, 313.95, 381.33, 324.05, 402.66, X, X),
    (5, 4, 167.23, 267.50, 167.23, 268.30, X, X),
    (5, 4, 196.76, 199.97, 195.32, 200.35, X, X),
    (10, 4, 267.33, 435.72, 268.29, 437.23, X, X),
    (10, 4, 632.45, 771.00, 650.98, 788.25, X, X),
    (10, 4, 233.03, 386.27, 233.03, 389.61, X, X),
    (10, 4, 470.22, 407.79, 477.30, 412.81, X, X),
    (20, 8, 224.45, 625.55, 253.99, 683.67, X, X),
    (20, 8, 1219.18, 1358.67, 1253.33, 1404.92, X, X),
    (20, 8, 223.25, 590.99, 226.07, 646.43, X, X),
    (20, 8, 1067.09, 991.81, 1081.95, 1011.34, X, X),
];

fn printed(figure: f64) -> Option<f64> {
    (!figure.is_nan()).then_some(figure)
}

#[test]
fn the_printed_rows_that_do_not_add_up() {
    let mut found = Vec::new();
    for &(test, tasks, natural_write, natural_read, write, read, mean_write, mean_read) in TABLES {
        for (direction, natural, harmonic, mean) in
            [("write", natural_write, write, mean_write), ("read", natural_read, read, mean_read)]
        {
            let row =
                PrintedRow { tasks, natural, harmonic: printed(harmonic), mean: printed(mean) };
            for fault in row_faults(row, 0.01) {
                found.push((test, tasks, direction, fault));
            }
        }
    }
    use RowFault::NaturalAboveHarmonic as Above;
    // All eight natural figures of rows 2 to 5 of test 1, and one of test 5: a job that ran beside
    // another.
    let expected = [
        (1, 2, "write", Above),
        (1, 2, "read", Above),
        (1, 4, "write", Above),
        (1, 4, "read", Above),
        (1, 8, "write", Above),
        (1, 8, "read", Above),
        (1, 16, "write", Above),
        (1, 16, "read", Above),
        (5, 4, "write", Above),
    ];
    assert_eq!(found, expected);
}

#[test]
fn harmonic_aggregates_recompute_from_the_printed_means() {
    let mut recomputed = 0;
    for &(test, tasks, _, _, write, read, mean_write, mean_read) in TABLES {
        for (aggregate, mean) in [(write, mean_write), (read, mean_read)] {
            if let (Some(aggregate), Some(mean)) = (printed(aggregate), printed(mean)) {
                let slack = 0.005 * f64::from(tasks) + 0.005 + 1e-9;
                assert!(
                    (mean * f64::from(tasks) - aggregate).abs() <= slack,
                    "test {test}, {tasks} tasks: {mean} × {tasks} is not {aggregate}"
                );
                recomputed += 1;
            }
        }
    }
    assert_eq!(recomputed, 100);
}

/// The mixed tests print only the sum of the two data sizes. The divisions used here reproduce the
/// combined figure to 0.02 %. Every other division into whole multiples of 4 GB is off by 0.7 % or
/// more.
#[test]
fn combined_figures_of_tests_10_and_20_recompute() {
    let cases = [
        ([(4, 233.03, 8.0), (4, 477.30, 16.0)], 707.48),
        ([(4, 389.61, 16.0), (4, 412.81, 16.0)], 801.66),
        ([(8, 226.07, 8.0), (8, 1081.95, 32.0)], 1231.42),
        ([(8, 646.43, 16.0), (8, 1011.34, 32.0)], 1702.23),
    ];
    for (jobs, printed) in cases {
        let found = combined_from_printed(jobs);
        assert!((found / printed - 1.0).abs() < 2e-4, "{found} is not {printed}");
    }
}

#[test]
fn the_combined_read_figure_of_test_5_is_impossible() {
    // Write: some division of the data gives 369.01. Read: no division gives 341.64, because the
    // slower job alone would give twice 200.35.
    let (low, high) = combined_bounds(167.23, 195.32);
    assert!(low <= 369.01 && 369.01 <= high);
    let (low, _) = combined_bounds(268.30, 200.35);
    assert!(341.64 < low);
}
