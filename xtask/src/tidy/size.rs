//! The rules of size: lines of a file, columns of a line, and lines of a function of the product.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Faults;
use super::repository::{File, Repository};
use super::rust::{Rust, first_line, is_punct, last_line};

const LINES_MAX: usize = 1000;
const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    for (file, rust) in repository.rust() {
        let count = file.text.lines().count();
        if count > LINES_MAX {
            faults.push(format!("{}:{count}: more than {LINES_MAX} lines; split it", file.path));
        }
        wide_lines(file, &mut faults);
        let mut functions = Vec::new();
        find_functions(rust.tokens.clone(), &mut functions);
        long_functions(file, rust, &functions, &mut faults);
    }
    faults
}

/// Finds lines that are too wide. A line with a string or a web address may be wider, because
/// neither can be broken well.
fn wide_lines(file: &File, faults: &mut Faults) {
    for (index, line) in file.text.lines().enumerate() {
        if line.chars().count() > COLUMNS_MAX && !line.contains("://") && !line.contains('"') {
            faults.push(format!("{}:{}: wider than {COLUMNS_MAX} columns", file.path, index + 1));
        }
    }
}

/// A function with a body.
struct Function {
    name: String,
    /// The lines (from 1) of `fn` and of the closing brace.
    first: usize,
    last: usize,
}

fn long_functions(file: &File, rust: &Rust, functions: &[Function], faults: &mut Faults) {
    for Function { name, first, last } in functions {
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX && !rust.is_test(*first) {
            faults.push(format!(
                "{}:{first}: `{name}` has {lines} lines; {FUNCTION_LINES_MAX} are the limit",
                file.path
            ));
        }
    }
}

/// Adds each `fn name … { … }`, at any depth and in macros too.
fn find_functions(tokens: TokenStream, functions: &mut Vec<Function>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree {
            find_functions(group.stream(), functions);
        }
        let [TokenTree::Ident(word), TokenTree::Ident(name), rest @ ..] = &trees[at..] else {
            continue;
        };
        if word != "fn" {
            continue;
        }
        let body = rest.iter().find(|tree| is_punct(tree, ';') || is_braces(tree));
        if let Some(body @ TokenTree::Group(_)) = body {
            let (first, last) = (first_line(tree), last_line(body));
            functions.push(Function { name: name.to_string(), first, last });
        }
    }
}

fn is_braces(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        faults(&Repository::of(&[("crates/a/src/a.rs", text)])).join("\n")
    }

    #[test]
    fn files_and_lines_have_limits() {
        assert_eq!(found(&"//! A.\n".repeat(LINES_MAX)), "");
        assert!(found(&"//! A.\n".repeat(LINES_MAX + 1)).contains("split it"));
        assert!(found(&format!("// {}\n", "a".repeat(COLUMNS_MAX))).contains("wider than"));
    }

    #[test]
    fn functions_have_a_limit_after_tests_and_inside_anything() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert_eq!(found(&function(FUNCTION_LINES_MAX)), "");
        let long = function(FUNCTION_LINES_MAX + 1);
        assert!(found(&long).contains("a.rs:1: `f` has 71 lines"));
        assert!(found(&format!("impl A {{\n{long}}}\n")).contains("a.rs:2: `f` has 71 lines"));
        assert!(found(&format!("#[cfg(test)]\nuse a::b;\n{long}")).contains("a.rs:3: `f`"));
        assert_eq!(found(&format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")), "");
        // A function without a body does not take the next function's body.
        assert!(found(&format!("trait A {{\n fn a();\n{long}}}\n")).contains("a.rs:3: `f`"));
    }
}
