//! The rule of where unit tests stand:
//!
//! 1. Tests of a file, up to 200 lines, stand in its `mod tests`.
//! 2. Longer tests of `x.rs` stand in `x_test.rs` beside it, declared as
//!    `#[cfg(test)] #[path = "x_test.rs"] mod x_test;`.
//! 3. Tests of a folder or a crate as a whole stand in `what_test.rs` in it. The module that owns
//!    the folder (`store.rs`, `lib.rs`) declares it with `#[cfg(test)] mod what_test;`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Faults;
use super::repository::Repository;
use super::rust::{attribute, first_line, is_cfg_test, is_punct, last_line};

const INLINE_LINES_MAX: usize = 200;

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    let units: Vec<Unit> = repository
        .rust()
        .filter(|(file, _)| file.path.contains("/src/"))
        .map(|(file, rust)| Unit { path: &file.path, modules: modules(rust.tokens.clone()) })
        .collect();
    for unit in &units {
        unit.modules.iter().for_each(|module| judge_module(unit.path, module, &mut faults));
        if let Some(stem) = unit.path.strip_suffix("_test.rs") {
            judge_file(unit.path, stem, &units, &mut faults);
        }
    }
    faults
}

/// A file with the modules that it declares.
struct Unit<'a> {
    path: &'a str,
    modules: Vec<Module>,
}

struct Module {
    name: String,
    line: usize,
    /// The number of lines of its braces, or none if the module is a file.
    inline_lines: Option<usize>,
    is_test: bool,
    /// The value of `#[path]`, with its quotes.
    path: Option<String>,
}

/// Judges the declaration of a module.
fn judge_module(path: &str, module: &Module, faults: &mut Faults) {
    let Module { name, line, .. } = module;
    let base = base(path.trim_end_matches(".rs"));
    let wired = (format!("{base}_test"), Some(format!("\"{base}_test.rs\"")));
    if module.path.is_some() && (name, &module.path) != (&wired.0, &wired.1) {
        faults.push(format!(
            "{path}:{line}: #[path] serves only `#[path = \"{base}_test.rs\"] mod {base}_test;`"
        ));
    }
    match module.inline_lines {
        Some(lines) if lines > INLINE_LINES_MAX && module.is_test => faults.push(format!(
            "{path}:{line}: {lines} lines of tests; above {INLINE_LINES_MAX} they move to \
             {base}_test.rs beside the file"
        )),
        None if name == "tests" => faults.push(format!(
            "{path}:{line}: tests stand in the file as `mod tests {{ … }}`, or beside it in \
             {base}_test.rs"
        )),
        _ => {}
    }
}

/// Judges where a test file stands, and whether the right module declares it.
fn judge_file(path: &str, stem: &str, units: &[Unit], faults: &mut Faults) {
    let name = format!("{}_test", base(stem));
    let unit = |path: &str| units.iter().find(|unit| unit.path == path);
    let declares = |unit: &Unit, beside: bool| {
        let declared = unit.modules.iter().find(|module| module.name == name);
        declared.is_some_and(|module| module.is_test && module.path.is_some() == beside)
    };
    if let Some(tested) = unit(&format!("{stem}.rs")) {
        if !declares(tested, true) {
            faults.push(format!(
                "{path}:1: {} declares it: `#[cfg(test)] #[path = \"{name}.rs\"] mod {name};`",
                tested.path
            ));
        }
        return;
    }
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    if base(folder) == base(stem) {
        faults.push(format!("{path}:1: it tests {folder}.rs and stands beside that file"));
        return;
    }
    let owners = [format!("{folder}.rs"), format!("{folder}/lib.rs"), format!("{folder}/main.rs")];
    if !owners.iter().filter_map(|owner| unit(owner)).any(|owner| declares(owner, false)) {
        faults.push(format!(
            "{path}:1: it tests no file beside it, so the module of its folder declares it: \
             `#[cfg(test)] mod {name};`"
        ));
    }
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, base)| base)
}

/// The modules that a file declares, at any depth.
fn modules(tokens: TokenStream) -> Vec<Module> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut modules = Vec::new();
    let mut attributes: Vec<Group> = Vec::new();
    let mut at = 0;
    while at < trees.len() {
        if let Some((group, after)) = attribute(&trees, at) {
            attributes.push(group);
            at = after;
            continue;
        }
        match &trees[at..] {
            [TokenTree::Ident(word), TokenTree::Ident(name), end, ..]
                if word == "mod" && (is_punct(end, ';') || matches!(end, TokenTree::Group(_))) =>
            {
                let inline = matches!(end, TokenTree::Group(_));
                let line = first_line(&trees[at]);
                modules.push(Module {
                    name: name.to_string(),
                    line,
                    inline_lines: inline.then(|| last_line(end) - line + 1),
                    is_test: attributes.iter().any(is_cfg_test),
                    path: attributes.iter().find_map(path_of),
                });
            }
            [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
                modules.extend(self::modules(group.stream()));
            }
            _ => {}
        }
        // `pub` and `pub(crate)` stand between the attributes and `mod`.
        let visibility = match &trees[at] {
            TokenTree::Ident(word) => word == "pub",
            TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
            _ => false,
        };
        if !visibility {
            attributes.clear();
        }
        at += 1;
    }
    modules
}

/// The value of `path = "…"`.
fn path_of(attribute: &Group) -> Option<String> {
    let trees: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name), equals, TokenTree::Literal(value)]
            if name == "path" && is_punct(equals, '=') =>
        {
            Some(value.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BESIDE: &str = "#[cfg(test)]\n#[path = \"x_test.rs\"]\nmod x_test;\n";
    const IN_FOLDER: &str = "#[cfg(test)]\nmod y_test;\n";

    fn found(files: &[(&str, &str)]) -> String {
        faults(&Repository::of(files)).join("\n")
    }

    #[test]
    fn the_three_places_are_right() {
        assert_eq!(found(&[("a/src/x.rs", "#[cfg(test)]\nmod tests {\n}\n")]), "");
        assert_eq!(found(&[("a/src/x.rs", BESIDE), ("a/src/x_test.rs", "")]), "");
        assert_eq!(found(&[("a/src/lib.rs", IN_FOLDER), ("a/src/y_test.rs", "")]), "");
        assert_eq!(found(&[("a/src/x.rs", IN_FOLDER), ("a/src/x/y_test.rs", "")]), "");
        // This rule does not judge tests of a whole crate.
        assert_eq!(found(&[("a/tests/z_test.rs", "mod tests;\n")]), "");
    }

    #[test]
    fn other_places_are_found() {
        let lines = "\n".repeat(INLINE_LINES_MAX);
        let long = format!("#[cfg(test)]\npub(crate) mod tests {{{lines}}}\n");
        assert!(found(&[("a/src/x.rs", &long)]).contains("x.rs:2: 201 lines of tests"));
        assert!(found(&[("a/src/x.rs", "#[cfg(test)]\nmod tests;\n")]).contains("x.rs:2: tests"));
        let elsewhere = "#[cfg(test)]\n#[path = \"x/x_test.rs\"]\nmod x_test;\n";
        let files = [("a/src/x.rs", elsewhere), ("a/src/x/x_test.rs", "")];
        assert!(found(&files).contains("x.rs:3: #[path] serves only"));
        assert!(found(&files).contains("x_test.rs:1: it tests a/src/x.rs and stands beside"));
        let renamed = BESIDE.replace("mod x_test", "mod tests");
        assert!(found(&[("a/src/x.rs", &renamed)]).contains("#[path] serves only"));
        // A test of `y.rs` that the folder declares, and a test that nothing declares.
        let sibling = [("a/src/lib.rs", IN_FOLDER), ("a/src/y.rs", ""), ("a/src/y_test.rs", "")];
        assert!(found(&sibling).contains("y_test.rs:1: a/src/y.rs declares it"));
        assert!(found(&[("a/src/lib.rs", ""), ("a/src/y_test.rs", "")]).contains("tests no file"));
    }
}
