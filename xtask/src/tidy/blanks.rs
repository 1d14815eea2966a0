//! The rules about ends of lines and of files. Editors differ, and diffs should not show it.

use super::Faults;
use super::repository::Repository;

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    for file in &repository.files {
        let (path, text) = (&file.path, &file.text);
        if ![".rs", ".toml", ".md", "Makefile"].iter().any(|end| path.ends_with(end)) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) && !path.ends_with(".md") {
                faults.push(format!("{path}:{}: trailing blanks", index + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{path}: the last line has no end"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_missing_ends_are_found() {
        let found = |path: &str, text: &str| faults(&Repository::of(&[(path, text)]));
        assert_eq!(found("a.toml", "a \n"), ["a.toml:1: trailing blanks"]);
        assert_eq!(found("a.toml", "a"), ["a.toml: the last line has no end"]);
        // Two blanks end a line in Markdown. The rule does not look at other kinds of files.
        assert!(found("a.md", "a  \n").is_empty());
        assert!(found("a.bin", "a ").is_empty());
    }
}
