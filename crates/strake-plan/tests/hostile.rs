//! Broken designs, libraries and bench reports are refused or evaluated, never a panic.
//!
//! Seeded mutations of good files: bytes changed, numbers replaced, lines dropped and repeated.
//! `STRAKE_SEED=… cargo test -p strake-plan --test hostile` replays one seed.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use strake_env::Rng;
use strake_plan::compare::{compare, read_bench};
use strake_plan::design::Design;
use strake_plan::evaluate::evaluate;
use strake_plan::library::Library;
use strake_plan::tune::{Wishes, tune};
use strake_plan::{report, text};

const DESIGNS: [&str; 4] = [
    include_str!("../../../docs/plan/examples/solution-2a.toml"),
    include_str!("../../../docs/plan/examples/solution-3.toml"),
    include_str!("../../../docs/plan/examples/p690-x335.toml"),
    include_str!("../../../docs/plan/examples/nvme-cluster.toml"),
];

const LIBRARIES: [&str; 4] = [
    include_str!("../library/disks.toml"),
    include_str!("../library/enclosures.toml"),
    include_str!("../library/adapters.toml"),
    include_str!("../library/codes.toml"),
];

const REPORT: &str = r#"{"tool": "strake bench", "format": 1, "kind": "io", "metrics": [
 {"name": "io create seq 4M 1x4", "unit": "MiB/s", "better": "higher", "samples": [531.7, 3]},
 {"name": "io read rand 4K 2x4", "unit": "MiB/s", "better": "higher", "samples": [10.5]},
 {"name": "net nwrite 4-2", "unit": "MB/s", "better": "higher", "samples": [3930]}],
 "detail": [{"operation": "create", "tasks_per_host": 4, "cpu": {"user": 0.5, "system": 0.5}}]}"#;

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "1000",
    "99999",
    "18446744073709551615",
    "9223372036854775807",
    "0.5",
    "1e308",
    "nan",
    "inf",
    "\"\"",
];

fn seeds() -> Vec<u64> {
    match std::env::var("STRAKE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=400).collect(),
    }
}

/// A few random changes to a text.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut text = text.to_string();
    for _ in 0..=rng.below(3) {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        let index = rng.index(lines.len().max(1)).min(lines.len().saturating_sub(1));
        match rng.below(5) {
            0 => {
                lines.remove(index);
            }
            1 => lines.insert(index, lines[index].clone()),
            2 | 3 => lines[index] = replace_a_number(&lines[index], rng),
            _ => {
                let mut bytes = lines[index].clone().into_bytes();
                if !bytes.is_empty() {
                    let at = rng.index(bytes.len());
                    bytes[at] = b' ' + rng.below(95) as u8;
                }
                lines[index] = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
        text = lines.join("\n");
    }
    text
}

fn replace_a_number(line: &str, rng: &mut Rng) -> String {
    let digit = |c: char| c.is_ascii_digit();
    let starts: Vec<usize> = line
        .char_indices()
        .filter(|(at, c)| digit(*c) && !line[..*at].ends_with(digit))
        .map(|(at, _)| at)
        .collect();
    if starts.is_empty() {
        return line.to_string();
    }
    let start = starts[rng.index(starts.len())];
    let length = line[start..].find(|c: char| !digit(c)).unwrap_or(line.len() - start);
    let number = NUMBERS[rng.index(NUMBERS.len())];
    format!("{}{number}{}", &line[..start], &line[start + length..])
}

/// Everything that can be said about a design, if it resolves.
fn exercise(library: &Library, design: &str) -> bool {
    let Ok(design) = Design::parse("design", design) else { return false };
    let Ok(system) = design.resolve(library) else { return false };
    let evaluation = evaluate(&system);
    evaluation.check();
    assert!(!text::render(&evaluation, true).contains("NaN"));
    assert!(!report::html(&system, &evaluation).contains("NaN"));
    report::markdown(&evaluation);
    tune(&system, Wishes::default());
    compare(&system, &read_bench("report", REPORT).unwrap());
    true
}

fn no_panic(seed: u64, what: &str, run: impl FnOnce() -> bool) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(evaluated) => evaluated,
        Err(_) => panic!("seed {seed} panics; input:\n{what}"),
    }
}

#[test]
fn broken_designs() {
    let library = Library::built_in();
    let mut evaluated = 0;
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let design = mutate(DESIGNS[rng.index(DESIGNS.len())], &mut rng);
        evaluated += usize::from(no_panic(seed, &design, || exercise(&library, &design)));
    }
    assert!(evaluated > 0 || std::env::var_os("STRAKE_SEED").is_some(), "all were refused");
}

#[test]
fn broken_libraries() {
    let mut evaluated = 0;
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let file = mutate(LIBRARIES[rng.index(LIBRARIES.len())], &mut rng);
        evaluated += usize::from(no_panic(seed, &file, || {
            let mut library = Library::built_in();
            if library.add("user.toml", &file).is_err() || library.check().is_err() {
                return false;
            }
            DESIGNS.iter().any(|design| exercise(&library, design))
        }));
    }
    assert!(evaluated > 0 || std::env::var_os("STRAKE_SEED").is_some(), "all were refused");
}

#[test]
fn broken_reports() {
    let library = Library::built_in();
    let design = Design::parse("design", DESIGNS[2]).unwrap();
    let system = design.resolve(&library).unwrap();
    let mut read = 0;
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let report = mutate(REPORT, &mut rng);
        read += usize::from(no_panic(seed, &report, || {
            let Ok(measurements) = read_bench("report", &report) else { return false };
            compare(&system, &measurements);
            true
        }));
    }
    assert!(read > 0 || std::env::var_os("STRAKE_SEED").is_some(), "all were refused");
}
