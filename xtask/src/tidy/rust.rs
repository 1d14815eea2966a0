//! A Rust file as the rules see it: its tokens, and which of its lines are tests. A whole file is a
//! test if its place or its name says so. In other files exactly the items that `#[cfg(test)]`
//! covers are tests.

use std::ops::RangeInclusive;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::Faults;
use super::repository::Repository;

/// The tokens of a file and the lines of its tests.
pub(super) struct Rust {
    /// Empty if the file cannot be read as Rust.
    pub(super) tokens: TokenStream,
    error: Option<String>,
    /// The lines of the tests, numbered from 1.
    tests: Vec<RangeInclusive<usize>>,
}

impl Rust {
    pub(super) fn read(path: &str, text: &str) -> Rust {
        let (tokens, error) = match TokenStream::from_str(text) {
            Ok(tokens) => (tokens, None),
            Err(error) => (TokenStream::new(), Some(error.to_string())),
        };
        let mut tests = Vec::new();
        if is_test_file(path) {
            tests.push(1..=usize::MAX);
        } else {
            find_tests(tokens.clone(), &mut tests);
        }
        Rust { tokens, error, tests }
    }

    /// True if the line (from 1) belongs to a test.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }
}

/// Finds the files that cannot be read as Rust, because no other rule can look into them.
pub(super) fn faults(repository: &Repository) -> Faults {
    let faulty = repository.rust().filter_map(|(file, rust)| Some((file, rust.error.as_ref()?)));
    faulty
        .map(|(file, error)| format!("{}:1: cannot be read as Rust: {error}", file.path))
        .collect()
}

/// True for files whose place or name says that they are tests or only used by tests.
fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.contains("/examples/")
        || path.contains("/benches/")
        || path.ends_with("_test.rs")
        || path.contains("_test/")
        || path.contains("/testing/")
        || path.starts_with("crates/strake-sim/")
}

/// Adds the lines of each item below `#[cfg(test)]`, at any depth.
fn find_tests(tokens: TokenStream, tests: &mut Vec<RangeInclusive<usize>>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        if let Some((attribute, after)) = attribute(&trees, at) {
            if is_cfg_test(&attribute) {
                let end = item_end(&trees, after);
                tests.push(first_line(&trees[at])..=last_line(&trees[end]));
                at = end;
            } else {
                at = after - 1;
            }
        } else if let TokenTree::Group(group) = &trees[at] {
            find_tests(group.stream(), tests);
        }
        at += 1;
    }
}

/// The attribute that begins at `at`, and the index after it.
pub(super) fn attribute(trees: &[TokenTree], at: usize) -> Option<(Group, usize)> {
    if !is_punct(trees.get(at)?, '#') {
        return None;
    }
    let inner = usize::from(trees.get(at + 1).is_some_and(|tree| is_punct(tree, '!')));
    match trees.get(at + 1 + inner)? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
            Some((group.clone(), at + 2 + inner))
        }
        _ => None,
    }
}

/// True for `cfg(test)` and for `cfg(all(test, …))`. What these cover is in no product.
pub(super) fn is_cfg_test(attribute: &Group) -> bool {
    let trees: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Group(condition)] = trees.as_slice() else {
        return false;
    };
    name == "cfg" && requires_test(condition.stream())
}

fn requires_test(condition: TokenStream) -> bool {
    let trees: Vec<TokenTree> = condition.into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(parts)] if name == "all" => {
            let parts: Vec<TokenTree> = parts.stream().into_iter().collect();
            parts
                .split(|tree| is_punct(tree, ','))
                .any(|part| requires_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// The index of the last token of what an attribute covers. That is further attributes and then an
/// item, a field, a variant, a statement or an arm, which ends with `;`, `,` or its braces.
fn item_end(trees: &[TokenTree], mut at: usize) -> usize {
    while let Some((_, after)) = attribute(trees, at) {
        at = after;
    }
    let comma_ends = !is_item(trees, at);
    let mut angles = 0_usize;
    while at < trees.len() {
        match &trees[at] {
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => return at,
                ',' if comma_ends && angles == 0 => return at,
                '<' => angles += 1,
                '>' if !is_arrow(trees, at) => angles = angles.saturating_sub(1),
                _ => {}
            },
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && !goes_on(trees.get(at + 1)) =>
            {
                return at;
            }
            _ => {}
        }
        at += 1;
    }
    trees.len() - 1
}

/// True if an item or a `let` begins here. A comma in it is not its end.
fn is_item(trees: &[TokenTree], at: usize) -> bool {
    const KEYWORDS: &[&str] = &[
        "mod",
        "fn",
        "impl",
        "struct",
        "enum",
        "union",
        "trait",
        "use",
        "const",
        "static",
        "type",
        "unsafe",
        "async",
        "extern",
        "let",
        "macro_rules",
    ];
    let mut words = trees[at.min(trees.len())..].iter().filter(|tree| match tree {
        TokenTree::Ident(word) => word != "pub",
        // `pub(crate)`.
        TokenTree::Group(group) => group.delimiter() != Delimiter::Parenthesis,
        _ => true,
    });
    match words.next() {
        Some(TokenTree::Ident(word)) => KEYWORDS.iter().any(|known| word == known),
        _ => false,
    }
}

/// True if the token after braces shows that they are not the end: `use a::{b};`, `A {} => …`.
fn goes_on(next: Option<&TokenTree>) -> bool {
    match next {
        Some(TokenTree::Punct(punct)) => ";,.=?>".contains(punct.as_char()),
        Some(TokenTree::Ident(word)) => word == "else" || word == "as",
        _ => false,
    }
}

/// True for the second half of `->` and `=>`.
fn is_arrow(trees: &[TokenTree], at: usize) -> bool {
    matches!(at.checked_sub(1).map(|before| &trees[before]), Some(TokenTree::Punct(punct))
        if "-=".contains(punct.as_char()) && punct.spacing() == Spacing::Joint)
}

/// True if the token is this character.
pub(super) fn is_punct(tree: &TokenTree, character: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// The line (from 1) that a token begins on.
pub(super) fn first_line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

/// The line (from 1) that a token ends on.
pub(super) fn last_line(tree: &TokenTree) -> usize {
    tree.span().end().line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text` that count as tests.
    fn tests_of(text: &str) -> Vec<usize> {
        let rust = Rust::read("crates/a/src/a.rs", text);
        assert_eq!(rust.error, None);
        (1..=text.lines().count()).filter(|line| rust.is_test(*line)).collect()
    }

    #[test]
    fn the_attribute_covers_one_item_and_what_follows_is_product() {
        for (item, lines) in [
            ("#[cfg(test)]\nmod tests;", 2),
            ("#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;", 3),
            ("#[cfg(test)]\nmod tests {\n fn f() {}\n}", 4),
            ("#[cfg(test)]\nuse a::{b, c};", 2),
            ("#[cfg(test)]\npub(crate) fn f<A, B>(a: A) -> B\nwhere\n A: C<B>,\n{\n}", 6),
            ("#[cfg(test)]\nimpl<A, B> C<A, B> for D {\n}", 3),
            ("#[cfg(test)]\nconst A: B = B { c: 1 };", 2),
            ("#[cfg(all(test, unix))]\nstruct A(\n u8,\n);", 4),
            ("#[cfg(test)] // {\n/// Said of it: }\nstruct A {\n b: &'static str,\n}", 5),
        ] {
            let text = format!("fn before() {{}}\n{item}\nfn after() {{}}\n");
            let expected: Vec<usize> = (2..2 + lines).collect();
            assert_eq!(tests_of(&text), expected, "{text}");
        }
    }

    #[test]
    fn fields_variants_statements_and_arms_end_with_themselves() {
        assert_eq!(
            tests_of("struct A {\n #[cfg(test)]\n a: B<C, D>,\n e: u8,\n}\nfn f() {}\n"),
            [2, 3]
        );
        assert_eq!(tests_of("enum A {\n #[cfg(test)]\n B { c: u8 },\n D,\n}\n"), [2, 3]);
        assert_eq!(
            tests_of(
                "fn f() {\n #[cfg(test)]\n let a = b(c, d);\n g();\n #[cfg(test)]\n h();\n}\n"
            ),
            [2, 3, 5, 6]
        );
        assert_eq!(
            tests_of("fn f() {\n match a {\n #[cfg(test)]\n B { .. } => c(),\n D => e(),\n }\n}\n"),
            [3, 4]
        );
        assert_eq!(tests_of("impl A {\n #[cfg(test)]\n fn b() {\n }\n fn c() {}\n}\n"), [2, 3, 4]);
    }

    #[test]
    fn text_that_only_looks_like_the_attribute_covers_nothing() {
        let none: [usize; 0] = [];
        assert_eq!(
            tests_of("// #[cfg(test)]\nconst A: &str = \"#[cfg(test)]\";\nfn f() {}\n"),
            none
        );
        assert_eq!(
            tests_of("#[cfg(not(test))]\nfn f() {}\n#[cfg(any(test, unix))]\nfn g() {}\n"),
            none
        );
    }

    #[test]
    fn a_test_is_known_by_its_place_and_a_broken_file_is_a_fault() {
        for path in ["crates/a/tests/b.rs", "crates/a/src/b_test.rs", "crates/strake-sim/src/a.rs"]
        {
            assert!(Rust::read(path, "fn f() {}\n").is_test(1), "{path}");
        }
        let broken = Repository::of(&[("a.rs", "fn f() {\n"), ("b.rs", "fn f() {}\n")]);
        assert_eq!(faults(&broken).len(), 1);
    }
}
