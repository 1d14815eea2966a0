//! The rule that every file first says what it is and why it exists.

use super::Faults;
use super::repository::Repository;

pub(super) fn faults(repository: &Repository) -> Faults {
    repository
        .rust()
        .filter(|(file, _)| !file.text.starts_with("//!") && !file.text.starts_with("#!["))
        .map(|(file, _)| {
            format!("{}:1: a file opens with //! saying what it is and why", file.path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_opening_is_found() {
        let files = [("a.rs", "//! What.\nfn f() {}\n"), ("b.rs", "fn f() {}\n"), ("c.md", "C\n")];
        let found = faults(&Repository::of(&files));
        assert_eq!(found, ["b.rs:1: a file opens with //! saying what it is and why"]);
    }
}
