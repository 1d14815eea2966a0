//! The rule about what has no place in the product: marks of unfinished work, and calls that panic
//! for causes in the outside world.

use proc_macro2::{TokenStream, TokenTree};

use super::Faults;
use super::repository::{File, Repository};
use super::rust::{Rust, first_line, is_punct};

const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    for (file, rust) in repository.rust() {
        let mut words = Vec::new();
        find_words(rust.tokens.clone(), &mut words);
        for (line, word) in words.into_iter().filter(|(line, _)| !rust.is_test(*line)) {
            faults.push(format!("{}:{line}: `{word}` has no place in product code", file.path));
        }
        find_marks(file, rust, &mut faults);
    }
    faults
}

/// Adds the calls and macros, at any depth, with the lines that they stand on.
fn find_words(tokens: TokenStream, words: &mut Vec<(usize, String)>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        match (tree, trees.get(at + 1), trees.get(at + 2)) {
            (TokenTree::Group(group), ..) => find_words(group.stream(), words),
            (dot, Some(TokenTree::Ident(name)), Some(TokenTree::Group(arguments)))
                if is_punct(dot, '.') && name == "unwrap" && arguments.stream().is_empty() =>
            {
                words.push((first_line(&trees[at + 1]), format!(".{name}()")));
            }
            (TokenTree::Ident(name), Some(bang), Some(TokenTree::Group(_)))
                if is_punct(bang, '!') && MACROS.iter().any(|known| name == known) =>
            {
                words.push((first_line(tree), format!("{name}!")));
            }
            _ => {}
        }
    }
}

/// Finds marks, which stand in comments and so are no tokens.
fn find_marks(file: &File, rust: &Rust, faults: &mut Faults) {
    for (index, line) in file.text.lines().enumerate().filter(|(at, _)| !rust.is_test(at + 1)) {
        let Some((_, comment)) = line.split_once("//") else { continue };
        for mark in MARKS.iter().filter(|mark| comment.contains(**mark)) {
            faults.push(format!(
                "{}:{}: `{mark}` has no place in product code",
                file.path,
                index + 1
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        faults(&Repository::of(&[("crates/a/src/a.rs", text)])).join("\n")
    }

    #[test]
    fn words_are_found_in_the_product_only() {
        assert!(found("fn f() {\n    a\n        .unwrap();\n}\n").contains("a.rs:3: `.unwrap()`"));
        assert!(found("fn f() {\n    todo!()\n}\n").contains("a.rs:2: `todo!`"));
        assert!(
            found("#[cfg(test)]\nuse a::b;\nfn f() {\n    a.unwrap();\n}\n").contains("a.rs:4")
        );
        assert_eq!(found("#[cfg(test)]\nmod tests {\n    fn f() { a.unwrap(); }\n}\n"), "");
        assert_eq!(found("/// `.unwrap()`\nfn f() { a.unwrap_or(\"dbg!()\"); }\n"), "");
    }

    #[test]
    fn marks_are_found_in_comments() {
        let text = format!("fn f() {{}} // {}: later\n", MARKS[0]);
        assert!(found(&text).contains("a.rs:1"));
        assert_eq!(found(&format!("const A: &str = \"{}\";\n", MARKS[1])), "");
    }
}
