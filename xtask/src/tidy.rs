//! The rules of the house that clippy does not know. Tidy only reads: it prints `file:line: rule`
//! and fails if there is a fault. It looks at every file that git knows or would add, so it judges
//! what would be committed.
//!
//! Each rule is a file in `tidy/`, with its test, and one line in `RULES`.

pub(crate) mod arrows;
mod blanks;
pub(crate) mod documents;
mod edges;
mod opening;
mod repository;
mod rust;
mod seam;
mod size;
mod tests_place;
mod voice;
mod words;

use std::process::ExitCode;

use repository::Repository;

/// What a rule found: one line for each fault, `file:line: what is wrong and what to do`.
type Faults = Vec<String>;

const RULES: &[fn(&Repository) -> Faults] = &[
    rust::faults,
    opening::faults,
    size::faults,
    words::faults,
    edges::faults,
    arrows::faults,
    blanks::faults,
    documents::faults,
    seam::faults,
    tests_place::faults,
    voice::faults,
];

/// Runs all rules on the repository.
pub(crate) fn main() -> ExitCode {
    let repository = match Repository::read() {
        Ok(repository) => repository,
        Err(error) => {
            eprintln!("tidy: cannot list the repository's files: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut faults: Faults = RULES.iter().flat_map(|rule| rule(&repository)).collect();
    faults.sort();
    for fault in &faults {
        println!("{fault}");
    }
    println!("tidy: {} files, {} faults", repository.files.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
