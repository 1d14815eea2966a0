//! The rule that a message has a level or a reader. The product reports to the log (`tracing`).
//! Only commands write to standard error, each crate in one function.

use proc_macro2::{TokenStream, TokenTree};

use super::Faults;
use super::repository::Repository;
use super::rust::{first_line, is_punct};

/// The files that contain the function which writes to the person at the terminal.
const VOICES: &[&str] = &[
    "crates/strake/src/output.rs",
    "crates/strake-bench/src/lib.rs",
    "crates/strake-plan/src/cli.rs",
];

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    for (file, rust) in repository.rust() {
        let path = file.path.as_str();
        let is_product = path.starts_with("crates/") && path.contains("/src/");
        if !is_product || VOICES.contains(&path) {
            continue;
        }
        let mut lines = Vec::new();
        find_prints(rust.tokens.clone(), &mut lines);
        for line in lines.into_iter().filter(|line| !rust.is_test(*line)) {
            faults.push(format!(
                "{path}:{line}: log it with `tracing` (error!, warn!, info!, debug!); what a \
                 command tells its user goes through the crate's one function ({})",
                VOICES.join(", ")
            ));
        }
    }
    faults
}

/// Adds the lines of `eprintln!` and `eprint!`, at any depth.
fn find_prints(tokens: TokenStream, lines: &mut Vec<usize>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        match (tree, trees.get(at + 1)) {
            (TokenTree::Group(group), _) => find_prints(group.stream(), lines),
            (TokenTree::Ident(name), Some(bang))
                if (name == "eprintln" || name == "eprint") && is_punct(bang, '!') =>
            {
                lines.push(first_line(tree));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_voices_write_to_standard_error() {
        let found = |path: &str, text: &str| faults(&Repository::of(&[(path, text)])).join("\n");
        let text = "fn f() {\n    eprintln!(\"a\");\n}\n";
        assert!(found("crates/strake-nsd/src/a.rs", text).contains("a.rs:2: log it"));
        assert_eq!(found("crates/strake/src/output.rs", text), "");
        assert_eq!(found("crates/strake-nsd/examples/a.rs", text), "");
        assert_eq!(found("crates/strake-nsd/src/a_test.rs", text), "");
    }
}
