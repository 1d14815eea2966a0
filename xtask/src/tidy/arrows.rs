//! The rule that imports point only downwards. It holds between the crates and between the folders
//! of the client. Files of the client, the manager and the array must also not import each other in
//! a circle (docs/ARCHITECTURE.md). `xtask arrows` prints all arrows.
//!
//! A file and the folder of the same name count as one: `nsds.rs` and `nsds/`. The client's folders
//! ([`CLIENT_LAYERS`]) are different: each file in them counts for itself, and must stand below the
//! files that import it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use super::Faults;
use super::edges::{CRATE_EDGES, dependencies};
use super::repository::{File, Repository};
use super::rust::Rust;

/// Crates whose files must not import each other in a circle.
const WITHOUT_CIRCLES: &[&str] =
    &["strake-array", "strake-client", "strake-crew", "strake-manager"];

/// The files and folders of the client from the ground up. Each may use itself and those before it.
const CLIENT_LAYERS: &[&str] = &[
    "settings",
    "timings",
    "invalidate",
    "mode",
    "vfs",
    "lease",
    "locks",
    "losses",
    "tokens",
    "memory",
    "inode",
    "mount",
    "block_io",
    "flush",
    "data",
    "give_up",
    "permissions",
    "open_file",
    "ops",
    "tender",
    "client",
    "lives",
    "relocate",
    "exclusion",
    "explain",
    "vfs_impl",
];

/// The imports of a crate's product: for each file, the files it uses and the line of the first
/// use.
type Imports = BTreeMap<String, BTreeMap<String, usize>>;

pub(super) fn faults(repository: &Repository) -> Faults {
    let mut faults = Faults::new();
    for (file, rust) in repository.rust() {
        faults.extend(crate_faults(file, rust));
    }
    for (from, uses) in imports(repository, "strake-client") {
        for (to, line) in uses {
            faults.extend(layer_fault(&from, &to, line));
        }
    }
    for name in WITHOUT_CIRCLES {
        let circles = circles(&imports(repository, name));
        faults.extend(circles.iter().map(|circle| circle_text(name, circle)));
    }
    faults
}

/// Prints the arrows. Fails if there is a circle.
pub(crate) fn main() -> ExitCode {
    let repository = match Repository::read() {
        Ok(repository) => repository,
        Err(error) => {
            eprintln!("arrows: cannot list the repository's files: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("crates:");
    for (name, uses) in crates(&repository) {
        println!("  {name} -> {}", list(&uses));
    }
    println!("folders of strake-client:");
    let folders = folders(&imports(&repository, "strake-client"));
    for name in CLIENT_LAYERS {
        let none = BTreeMap::new();
        let uses = folders.get(*name).unwrap_or(&none);
        println!("  {name} -> {}", list(&uses.keys().cloned().collect()));
    }
    let mut found: Vec<String> = Vec::new();
    for name in WITHOUT_CIRCLES {
        let imports = imports(&repository, name);
        println!("{name}: {} files", imports.len());
        found.extend(circles(&imports).iter().map(|circle| circle_text(name, circle)));
    }
    found.extend(circles(&folders).iter().map(|circle| circle_text("folders", circle)));
    let uses = crates(&repository).into_iter();
    let crates = uses.map(|(name, uses)| (name, uses.into_iter().map(|to| (to, 1)).collect()));
    found.extend(circles(&crates.collect()).iter().map(|circle| circle_text("crates", circle)));
    if found.is_empty() {
        println!("no circle");
        return ExitCode::SUCCESS;
    }
    found.iter().for_each(|circle| println!("{circle}"));
    ExitCode::FAILURE
}

fn list(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn circle_text(place: &str, circle: &[String]) -> String {
    format!("{place}: a circle of imports: {}", circle.join(", "))
}

/// The crates of the product, and the other crates that each uses, without those used only by
/// tests.
fn crates(repository: &Repository) -> BTreeMap<String, BTreeSet<String>> {
    let manifests = repository.files.iter().filter_map(|file| {
        let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        Some((name.to_owned(), dependencies(&file.text)))
    });
    manifests.collect()
}

/// The lines of a crate that name another crate which it may not use. This also finds crates that
/// it has only for its tests.
fn crate_faults(file: &File, rust: &Rust) -> Faults {
    let Some((name, _)) =
        file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
    else {
        return Faults::new();
    };
    let Some((_, allowed)) = CRATE_EDGES.iter().find(|(from, _)| *from == name) else {
        return Faults::new();
    };
    let mut faults = Faults::new();
    for (line, code) in product_lines(file, rust) {
        for (other, _) in CRATE_EDGES.iter().filter(|(other, _)| *other != name) {
            let path = format!("{}::", other.replace('-', "_"));
            if !allowed.contains(other) && starts(code, &path).next().is_some() {
                faults.push(format!(
                    "{}:{line}: {name} may not use {other}: arrows point only downwards",
                    file.path
                ));
            }
        }
    }
    faults
}

/// The lines of a file that are code of the product, numbered from 1.
fn product_lines<'a>(file: &'a File, rust: &'a Rust) -> impl Iterator<Item = (usize, &'a str)> {
    // A module of test doubles, which only `#[cfg(test)]` declares.
    let is_double = file.path.ends_with("/src/testing.rs");
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(move |(line, text)| {
        !is_double && !rust.is_test(*line) && !text.trim_start().starts_with("//")
    })
}

/// The positions in `code` at which `path` begins as a path of its own.
fn starts<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(path).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

fn layer_fault(from: &str, to: &str, line: usize) -> Option<String> {
    let rank = |file: &str| CLIENT_LAYERS.iter().position(|layer| *layer == folder(file));
    let place = format!("crates/strake-client/src/{from}.rs:{line}");
    match (rank(from), rank(to)) {
        (Some(own), Some(other)) if other <= own => None,
        (Some(_), Some(_)) => {
            let (from, to) = (folder(from), folder(to));
            Some(format!("{place}: `{from}` may not use `{to}`, which stands above it"))
        }
        (None, _) => Some(format!("{place}: `{from}` has no place in the layers of the client")),
        (_, None) => Some(format!("{place}: `{to}` has no place in the layers of the client")),
    }
}

fn folder(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

/// The folders of a crate that each folder uses.
fn folders(imports: &Imports) -> Imports {
    let mut folders = Imports::new();
    for (from, uses) in imports {
        let own = folders.entry(folder(from).to_owned()).or_default();
        for (to, line) in uses.iter().filter(|(to, _)| folder(to) != folder(from)) {
            own.entry(folder(to).to_owned()).or_insert(*line);
        }
    }
    folders
}

/// The files of a crate that each file uses.
fn imports(repository: &Repository, name: &str) -> Imports {
    let root = format!("crates/{name}/src/");
    let module = |file: &File| {
        let path = file.path.strip_prefix(&root)?.strip_suffix(".rs")?;
        (path != "lib" && path != "testing" && !path.ends_with("_test")).then(|| path.to_owned())
    };
    let modules: BTreeSet<String> = repository.files.iter().filter_map(module).collect();
    let mut imports = Imports::new();
    for (file, rust) in repository.rust() {
        let Some(module) = module(file) else { continue };
        let unit = unit_of(&modules, &module);
        let own = imports.entry(unit.clone()).or_default();
        for (line, path) in paths(file, rust, &module) {
            let named = (1..=path.len()).rev().map(|count| path[..count].join("/"));
            let Some(found) = { named }.find(|path| modules.contains(path)) else { continue };
            let found = unit_of(&modules, &found);
            if found != unit {
                own.entry(found).or_insert(line);
            }
        }
    }
    imports
}

/// The file that a module counts to. This is the file above it, unless the module is in a folder of
/// the client.
fn unit_of(modules: &BTreeSet<String>, module: &str) -> String {
    match module.rsplit_once('/') {
        Some((above, _)) if modules.contains(above) && !CLIENT_LAYERS.contains(&above) => {
            unit_of(modules, above)
        }
        _ => module.to_owned(),
    }
}

/// The paths within its crate that a file names, with their lines.
fn paths(file: &File, rust: &Rust, module: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let lines: Vec<(usize, &str)> = product_lines(file, rust).collect();
    for (at, (line, code)) in lines.iter().enumerate() {
        for (root, prefix) in [("crate::", String::new()), ("super::", above(module))] {
            for start in starts(code, root) {
                // An import may continue over several lines, up to its semicolon.
                let rest: Vec<&str> = lines[at + 1..].iter().map(|(_, code)| *code).collect();
                let text = format!("{} {}", &code[start + root.len()..], rest.join(" "));
                let text = text.split(';').next().unwrap_or("");
                let before = prefix.split('/').filter(|name| !name.is_empty());
                let before: Vec<String> = before.map(str::to_owned).collect();
                let mut expanded = Vec::new();
                expand(&mut text.chars().peekable(), before, &mut expanded);
                found.extend(expanded.into_iter().map(|path| (*line, path)));
            }
        }
    }
    found
}

fn above(module: &str) -> String {
    module.rsplit_once('/').map(|(above, _)| above.to_owned()).unwrap_or_default()
}

/// Reads one path, or a group of paths, that follows `prefix`.
fn expand(
    text: &mut std::iter::Peekable<std::str::Chars<'_>>,
    mut prefix: Vec<String>,
    found: &mut Vec<Vec<String>>,
) {
    loop {
        while text.next_if(|c| c.is_whitespace()).is_some() {}
        if text.next_if_eq(&'{').is_some() {
            loop {
                expand(text, prefix.clone(), found);
                while text.next_if(|c| c.is_whitespace()).is_some() {}
                if text.next_if_eq(&',').is_none() {
                    break;
                }
            }
            text.next_if_eq(&'}');
            return;
        }
        let mut word = String::new();
        while let Some(c) = text.next_if(|c| c.is_alphanumeric() || *c == '_') {
            word.push(c);
        }
        if word.is_empty() {
            break;
        }
        prefix.push(word);
        if text.next_if_eq(&':').is_none() || text.next_if_eq(&':').is_none() {
            break;
        }
    }
    found.push(prefix);
}

/// The groups of files that all reach each other, each group in order.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut left: Vec<&String> = vec![from];
        while let Some(at) = left.pop() {
            for to in imports.get(at).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to) {
                    left.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|file| (file, reached(file))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, others) in reach.iter().filter(|(file, others)| others.contains(*file)) {
        let back = |other: &&&String| reach.get(**other).is_some_and(|far| far.contains(*file));
        circles.insert(others.iter().filter(back).map(|other| (*other).clone()).collect());
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> String {
        faults(&Repository::of(files)).join("\n")
    }

    #[test]
    fn an_import_from_client_to_manager_is_found() {
        let text = "//! A.\nuse strake_manager::Manager;\n";
        let found = found(&[("crates/strake-client/src/client.rs", text)]);
        assert_eq!(
            found,
            "crates/strake-client/src/client.rs:2: strake-client may not use strake-manager: \
             arrows point only downwards"
        );
    }

    #[test]
    fn an_import_from_manager_to_client_is_found_within_an_expression() {
        let text = "//! A.\nfn f() {\n    strake_client::settings::f();\n}\n";
        let found = found(&[("crates/strake-manager/src/check.rs", text)]);
        assert!(found.contains("check.rs:3: strake-manager may not use strake-client"), "{found}");
    }

    #[test]
    fn tests_and_comments_may_name_any_crate() {
        let text = "//! See [`strake_manager::Manager`].\n#[cfg(test)]\nmod tests {\n    use \
                    strake_manager::Manager;\n}\n";
        assert_eq!(found(&[("crates/strake-client/src/client.rs", text)]), "");
    }

    #[test]
    fn a_folder_that_uses_one_above_it_is_found() {
        let files = [
            ("crates/strake-client/src/memory.rs", "//! A.\n"),
            ("crates/strake-client/src/memory/file.rs", "//! A.\nuse crate::flush::told::Told;\n"),
            ("crates/strake-client/src/flush.rs", "//! A.\n"),
            ("crates/strake-client/src/flush/told.rs", "//! A.\nuse crate::memory::file::F;\n"),
        ];
        let found = found(&files);
        let upwards = "memory/file.rs:2: `memory` may not use `flush`, which stands above it";
        assert!(found.contains(upwards), "{found}");
        assert!(found.contains("a circle of imports: flush/told, memory/file"), "{found}");
        assert_eq!(found.lines().count(), 2, "{found}");
    }

    #[test]
    fn a_circle_through_a_group_over_lines_and_a_folder_is_found() {
        let files = [
            ("crates/strake-array/src/a.rs", "//! A.\nuse crate::{\n    b::X,\n    c,\n};\n"),
            ("crates/strake-array/src/a/part.rs", "//! A.\nuse super::A;\n"),
            ("crates/strake-array/src/b.rs", "//! A.\nfn f() { crate::c::f() }\n"),
            ("crates/strake-array/src/c.rs", "//! A.\nuse crate::a::part::P;\n"),
        ];
        assert_eq!(found(&files), "strake-array: a circle of imports: a, b, c");
    }

    #[test]
    fn a_file_without_a_place_in_the_client_is_found() {
        let files = [
            ("crates/strake-client/src/new.rs", "//! A.\nuse crate::vfs::Vfs;\n"),
            ("crates/strake-client/src/vfs.rs", "//! A.\n"),
        ];
        assert!(found(&files).contains("`new` has no place in the layers of the client"));
    }
}
