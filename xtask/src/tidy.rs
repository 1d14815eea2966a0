//! The rules of the house that clippy does not know. Read-only: it prints `file:line: rule` and
//! fails. Looks at every file git knows (or would add), so it judges what is committed.

use std::process::{Command, ExitCode};

const LINES_MAX: usize = 1000;
const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;

/// Which crate may use which (ARCHITECTURE, crates): arrows only downwards. Tests may use more.
const CRATE_EDGES: &[(&str, &[&str])] = &[
    ("strake-proto", &[]),
    ("strake-env", &["strake-proto"]),
    ("strake-observe", &["strake-proto", "strake-env"]),
    ("strake-stripe", &["strake-proto"]),
    ("strake-store", &["strake-proto", "strake-env", "strake-observe"]),
    (
        "strake-nsd",
        &["strake-proto", "strake-env", "strake-observe", "strake-stripe", "strake-store"],
    ),
    ("strake-meta", &["strake-proto", "strake-env", "strake-observe", "strake-store"]),
    ("strake-client", &["strake-proto", "strake-env", "strake-observe", "strake-stripe"]),
    ("strake-fuse", &["strake-proto", "strake-env", "strake-observe", "strake-client"]),
    ("strake-plan", &["strake-env", "strake-proto"]),
    ("strake-bench", &["strake-env", "strake-proto"]),
    ("xtask", &[]),
];

/// Runs all rules on the repository.
pub(crate) fn main() -> ExitCode {
    let files = match repository_files() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: cannot list the repository's files: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut faults = Vec::new();
    for path in &files {
        // A file removed but not yet committed is listed all the same.
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        if path.ends_with(".rs") {
            faults.extend(rust_faults(path, &text));
        }
        if path.ends_with("Cargo.toml") {
            faults.extend(edge_faults(path, &text));
        }
        faults.extend(text_faults(path, &text));
    }
    for fault in &faults {
        println!("{fault}");
    }
    println!("tidy: {} files, {} faults", files.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn repository_files() -> std::io::Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()?;
    if !output.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.contains("/examples/")
        || path.contains("/benches/")
        || path.ends_with("_test.rs")
        || path.contains("_test/")
        || path.contains("/testing/")
        || path.starts_with("crates/strake-sim/")
}

fn rust_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") && !text.starts_with("#![") {
        faults.push(format!("{path}:1: a file opens with //! saying what it is and why"));
    }
    let line_count = text.lines().count();
    if line_count > LINES_MAX {
        faults.push(format!("{path}:{line_count}: more than {LINES_MAX} lines; split it"));
    }
    let mut in_tests = is_test_file(path);
    let mut function: Option<(usize, usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = line.trim_start();
        let indent = line.len() - code.len();
        in_tests |= code.starts_with("#[cfg(test)]");
        if line.chars().count() > COLUMNS_MAX && !line.contains("://") && !code.contains('"') {
            faults.push(format!("{path}:{number}: wider than {COLUMNS_MAX} columns"));
        }
        if in_tests || path.starts_with("xtask/src/tidy.rs") {
            continue;
        }
        for word in [".unwrap()", "todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
            if code.contains(word) && !code.starts_with("//") {
                faults.push(format!("{path}:{number}: `{word}` has no place in product code"));
            }
        }
        if function.is_none() && is_function_head(code) {
            function = Some((number, indent, code.to_owned()));
        } else if let Some((start, at, head)) = &function
            && indent == *at
            && (code == "}" || code.ends_with(';') && number == *start + 1)
        {
            if number - start > FUNCTION_LINES_MAX {
                let length = number - start;
                faults.push(format!("{path}:{start}: a function of {length} lines: {head}"));
            }
            function = None;
        }
        if let Some((start, at, _)) = &function
            && indent == *at
            && number >= *start
            && (code.ends_with(';') || code.ends_with('}'))
        {
            function = None;
        }
    }
    faults
}

fn is_function_head(code: &str) -> bool {
    let mut words = code.split_whitespace();
    words
        .by_ref()
        .find(|word| {
            !word.starts_with("pub")
                && !matches!(*word, "const" | "unsafe" | "async" | "extern" | "\"C\"")
        })
        .is_some_and(|word| word == "fn")
}

fn edge_faults(path: &str, text: &str) -> Vec<String> {
    let name = path.trim_end_matches("/Cargo.toml").trim_start_matches("crates/");
    let Some((_, allowed)) = CRATE_EDGES.iter().find(|(from, _)| *from == name) else {
        return Vec::new();
    };
    let mut section = "";
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let Some(dependency) = line.split(['.', ' ', '=']).next() else { continue };
        let ours = dependency.starts_with("strake");
        if ours && section == "[dependencies]" && !allowed.contains(&dependency) {
            faults.push(format!(
                "{path}:{}: {name} may not use {dependency}: arrows point only downwards",
                index + 1
            ));
        }
    }
    faults
}

fn text_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let source = [".rs", ".toml", ".md", "Makefile"].iter().any(|end| path.ends_with(end));
    if !source {
        return faults;
    }
    for (index, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) && !path.ends_with(".md") {
            faults.push(format!("{path}:{}: trailing blanks", index + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(format!("{path}: the last line has no end"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_fault_and_spares_good_code() {
        let good = "//! What.\n\nfn short() {\n    work();\n}\n";
        assert_eq!(rust_faults("crates/a/src/a.rs", good), Vec::<String>::new());
        let found = |text: &str| rust_faults("crates/a/src/a.rs", text).join("\n");
        assert!(found("fn f() {}\n").contains("opens with //!"));
        assert!(found("//! A.\nfn f() { x.unwrap(); }\n").contains("unwrap"));
        let body = "    work();\n".repeat(80);
        assert!(
            found(&format!("//! A.\nfn long() {{\n{body}}}\n")).contains("82 lines")
                || found(&format!("//! A.\nfn long() {{\n{body}}}\n")).contains("81 lines")
        );
        let many = "//! A.\n".repeat(LINES_MAX + 1);
        assert!(found(&many).contains("split it"));
    }

    #[test]
    fn an_arrow_upwards_is_found() {
        let manifest = "[dependencies]\nstrake-client.workspace = true\n";
        assert_eq!(edge_faults("crates/strake-nsd/Cargo.toml", manifest).len(), 1);
        let dev = "[dev-dependencies]\nstrake-client.workspace = true\n";
        assert!(edge_faults("crates/strake-nsd/Cargo.toml", dev).is_empty());
    }
}
