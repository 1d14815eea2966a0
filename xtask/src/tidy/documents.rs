//! Compares the documents with the repository: whatever a document names must exist.
//!
//! - Links between documents lead to a file, and to a heading if they name one.
//! - Tests cited as `crate/file::test` exist in the file that the citation names.
//! - Source files, decisions and suites that documents or comments name exist.
//! - A name that documents cite as `crate/src/file.rs::name` is defined in that file.
//! - ARCHITECTURE lists each crate and which crates of ours it uses, as the manifests say. The
//!   threads that it lists have names that the code gives.
//! - Waits that `operating.md` explains have names that the code gives, and the other way round.
//!   Each watched lock has a name of its own.
//! - Listings are at most 100 columns wide, the glossary is in order, and `bench/runs` holds one
//!   small file for each run.
//!
//! Checks that need the product's own tables (settings, codes, commands) are a unit test of the
//! binary, `crates/strake/src/documented_test.rs`. The suite `documents` compares the list of
//! threads with a running daemon.

use super::Faults;
use super::edges::dependencies;
use super::repository::Repository;
use super::rust::Rust;
use std::collections::{BTreeMap, BTreeSet};

const LISTING_COLUMNS_MAX: usize = 100;
/// The limit for one run's file. A run of all contenders takes 8 KiB.
const RUN_BYTES_MAX: usize = 32 << 10;

/// The text of each file, by path.
type Files = BTreeMap<String, String>;

/// All faults of all documents.
pub(super) fn faults(repository: &Repository) -> Faults {
    let files = repository.files.iter().map(|file| (file.path.clone(), file.text.clone()));
    let files: Files = files.collect();
    let mut faults = Faults::new();
    for (path, text) in &files {
        if path.ends_with(".md") {
            faults.extend(link_faults(&files, path, text));
            faults.extend(listing_faults(path, text));
            faults.extend(citation_faults(&files, path, text));
            faults.extend(definition_faults(&files, path, text));
        }
        if !path.starts_with("xtask/src/tidy") {
            faults.extend(path_faults(&files, path, text));
        }
        if path.starts_with("bench/runs/") && !is_run(path, text) {
            faults.push(format!("{path}: a run is kept as one small Markdown file"));
        }
    }
    faults.extend(crate_faults(&files));
    faults.extend(uses_faults(&files));
    faults.extend(decision_faults(&files));
    faults.extend(name_faults(&files, "docs/ARCHITECTURE.md", "Threads", true));
    faults.extend(name_faults(&files, "docs/operating.md", "Waits", false));
    let waits = repository.rust().flat_map(|(file, rust)| named_waits(&files, &file.path, rust));
    faults.extend(wait_faults(&files, &waits.collect::<Vec<_>>()));
    faults.extend(glossary_faults(&files));
    faults
}

fn is_run(path: &str, text: &str) -> bool {
    path.ends_with(".md") && path.matches('/').count() == 2 && text.len() <= RUN_BYTES_MAX
}

/// The lines of a document outside its listings, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_listing = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_listing ^= fence;
        (!in_listing && !fence).then_some((index + 1, line))
    })
}

fn listing_faults(path: &str, text: &str) -> Vec<String> {
    let outside: BTreeSet<usize> = prose(text).map(|(number, _)| number).collect();
    let wide = |line: &str| line.chars().count() > LISTING_COLUMNS_MAX;
    text.lines()
        .enumerate()
        .filter(|(index, line)| wide(line) && !outside.contains(&(index + 1)))
        .map(|(index, _)| {
            format!("{path}:{}: a listing wider than {LISTING_COLUMNS_MAX} columns", index + 1)
        })
        .collect()
}

/// The texts between `open` and `close`, everywhere in a line.
fn between<'a>(line: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    let parts = line.split(open).skip(1);
    parts.filter_map(|rest| rest.split_once(close)).map(|(inside, _)| inside).collect()
}

/// The texts in backquotes.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn link_faults(files: &Files, path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in prose(text) {
        for target in between(line, "](", ")") {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.to_owned() } else { join(path, file) };
            let folder = format!("{}/", file.trim_end_matches('/'));
            let is_folder = files.keys().any(|known| known.starts_with(&folder));
            match files.get(&file) {
                None if is_folder => {}
                None => faults.push(format!("{path}:{number}: the link leads nowhere: {target}")),
                Some(text) if !anchor.is_empty() && !anchors(text).contains(anchor) => {
                    faults.push(format!("{path}:{number}: no such heading: {target}"));
                }
                Some(_) => {}
            }
        }
    }
    faults
}

/// The path of `target` as seen from the document at `from`.
fn join(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The names by which links refer to a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings
        .map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Crates as citations call them: `client` for `strake-client`.
fn short_crates(files: &Files) -> BTreeSet<&str> {
    let folders = files.keys().filter_map(|path| path.strip_prefix("crates/strake-"));
    folders.filter_map(|path| path.split('/').next()).collect()
}

/// Checks citations. A citation is `crate/file::test`, or `crate/file` for all tests of a file. `*`
/// or `…` at the end of a name stands for any end. A bare name of six or more words must be a
/// test's name too: some file must have a function of that name.
fn citation_faults(files: &Files, path: &str, text: &str) -> Vec<String> {
    let crates = short_crates(files);
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in quoted(line) {
            let (place, test) = word.split_once("::").unwrap_or((word, ""));
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let is_test = word.chars().all(is_name) && word.matches('_').count() >= 5;
            let head = format!("fn {word}");
            if is_test && !files.values().any(|text| text.contains(&head)) {
                faults.push(format!("{path}:{}: `{word}`: no test of this name", number + 1));
            }
            let Some((name, file)) = place.split_once('/') else { continue };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '/';
            if !crates.contains(name) || !file.chars().all(plain) || file.is_empty() {
                continue;
            }
            // `bench/compare` is a script, not a test of strake-bench.
            if files.contains_key(place) || place.starts_with("bench/runs") {
                continue;
            }
            if let Err(fault) = cited(files, name, file, test) {
                faults.push(format!("{path}:{}: `{word}`: {fault}", number + 1));
            }
        }
    }
    faults
}

fn cited(files: &Files, name: &str, file: &str, test: &str) -> Result<(), String> {
    let (folder, end) = (format!("crates/strake-{name}/"), format!("/{file}.rs"));
    let inside = format!("/{file}/");
    let places: Vec<&String> = files
        .iter()
        .filter(|(path, _)| path.starts_with(&folder))
        .filter(|(path, _)| path.ends_with(&end) || path.contains(&inside))
        .map(|(_, text)| text)
        .collect();
    if places.is_empty() {
        let elsewhere = files.keys().find(|path| path.ends_with(&end));
        let hint = elsewhere.map(|path| format!("; there is {path}")).unwrap_or_default();
        return Err(format!("no file {folder}…{end}{hint}"));
    }
    let wanted = test.trim_end_matches(['*', '…']);
    let is_open = wanted != test;
    let has = |text: &&String| {
        let mut heads = text.match_indices("fn ").map(|(at, _)| &text[at + 3..]);
        heads.any(|head| match head.strip_prefix(wanted) {
            Some(rest) => is_open || rest.starts_with(['(', '<']),
            None => false,
        }) || (is_open || text.contains("macro_rules!")) && text.contains(wanted)
    };
    if test.is_empty() || places.iter().any(has) {
        return Ok(());
    }
    Err(format!("no test of this name in {folder}…{end}"))
}

/// Checks that the files and decisions that documents and comments name exist:
/// `strake-nsd/src/keys.rs`, `docs/decisions/0015`, `crates/…`.
fn path_faults(files: &Files, path: &str, text: &str) -> Vec<String> {
    let is_rust = path.ends_with(".rs");
    if !is_rust && !path.ends_with(".md") && !path.ends_with(".toml") && path != "Makefile" {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if is_rust && !line.trim_start().starts_with("//") {
            continue;
        }
        let cut = |c: char| c.is_whitespace() || "`()[],;:'\"<>*".contains(c);
        for word in line.split(cut) {
            let word = word.trim_end_matches(['.', '/']);
            if !is_named(files, word) {
                faults.push(format!("{path}:{}: there is no {word}", number + 1));
            }
        }
    }
    faults
}

/// Checks names that documents cite as `strake-nsd/src/keys.rs::strip`. Each must be a function, a
/// type, a constant, a field or the arm of a match.
fn definition_faults(files: &Files, path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in quoted(line) {
            let Some((file, name)) = word.split_once(".rs::") else { continue };
            let Some(code) = files.get(&format!("crates/{file}.rs")) else { continue };
            if !code.lines().any(|line| defines(line, name)) {
                faults.push(format!("{path}:{}: {file}.rs defines no {name}", number + 1));
            }
        }
    }
    faults
}

fn defines(line: &str, name: &str) -> bool {
    let line = line.trim_start();
    let is_word_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let heads = ["fn ", "struct ", "enum ", "trait ", "const ", "static "];
    let mut items =
        heads.iter().flat_map(|head| line.match_indices(head).map(|(at, _)| at + head.len()));
    let is_item = items.any(|at| line[at..].strip_prefix(name).is_some_and(is_word_end));
    let field = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
    let is_field = field.strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
    let is_arm = line.contains(&format!("::{name} =>"));
    !line.starts_with("//") && (is_item || is_field || is_arm)
}

fn is_named(files: &Files, word: &str) -> bool {
    let rust = word.starts_with("strake") && word.contains("/src/");
    let place = if rust { format!("crates/{word}") } else { word.to_owned() };
    let folders = ["docs/", "crates/", "bench/", "scripts/", "xtask/", "examples/", ".ci/"];
    if !folders.iter().any(|folder| place.starts_with(folder)) || place.contains(['…', '{', '$'])
    {
        return true;
    }
    // A placeholder for a date, a number or a name stands for many paths.
    if place.contains("DATE") || place.contains("NNNN") || place.starts_with("bench/runs/tmp") {
        return true;
    }
    let decision = place.starts_with("docs/decisions/") && !place.ends_with(".md");
    let folder = format!("{place}/");
    files.contains_key(&place)
        || files.keys().any(|known| {
            known.starts_with(&folder) || decision && known.starts_with(&format!("{place}-"))
        })
}

/// The rows of the table under a heading, without the table's head.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let title = format!("## {heading}");
    let section = prose(text).map(|(_, line)| line).skip_while(|line| *line != title).skip(1);
    let rows = section.take_while(|line| !line.starts_with("## "));
    rows.filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

fn crate_faults(files: &Files) -> Vec<String> {
    let page = "docs/ARCHITECTURE.md";
    let Some(text) = files.get(page) else { return Vec::new() };
    let listed: BTreeSet<&str> =
        table(text, "Crates").iter().flat_map(|row| quoted(row[0])).collect();
    let folders = files.keys().filter_map(|path| path.strip_prefix("crates/"));
    let there: BTreeSet<&str> = folders.filter_map(|path| path.split('/').next()).collect();
    let missing = there.difference(&listed).map(|name| format!("{page}: no row for {name}"));
    let gone = listed.difference(&there).filter(|name| **name != "xtask");
    missing.chain(gone.map(|name| format!("{page}: there is no crate {name}"))).collect()
}

/// Checks that the column `uses` names exactly the crates that the product of a crate uses. The
/// column has their short names, or `all but` and the names of the others.
fn uses_faults(files: &Files) -> Faults {
    let page = "docs/ARCHITECTURE.md";
    let rows = files.get(page).map(|text| table(text, "Crates")).unwrap_or_default();
    let short = |name: &str| name.trim_start_matches("strake-").to_owned();
    let all: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| quoted(row[0]))
        .filter(|name| *name != "xtask")
        .map(short)
        .collect();
    let mut faults = Faults::new();
    for row in &rows {
        let cell = row.get(2).copied().unwrap_or_default();
        let (is_rest, list) = match cell.strip_prefix("all but ") {
            Some(list) => (true, list),
            None => (false, cell),
        };
        let named: BTreeSet<String> =
            list.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        for name in quoted(row[0]) {
            let Some(manifest) = files.get(&format!("crates/{name}/Cargo.toml")) else { continue };
            let used: BTreeSet<String> =
                dependencies(manifest).iter().map(|used| short(used)).collect();
            let mut listed = named.clone();
            if is_rest {
                listed = all
                    .difference(&named)
                    .filter(|other| **other != short(name))
                    .cloned()
                    .collect();
            }
            if listed != used {
                let used: Vec<String> = used.into_iter().collect();
                let used = used.join(", ");
                faults.push(format!("{page}: {name} uses {used}, and its row says {cell}"));
            }
        }
    }
    faults
}

/// Checks that each decision is in the list of decisions.
fn decision_faults(files: &Files) -> Faults {
    let page = "docs/decisions/README.md";
    let list = files.get(page).map_or("", String::as_str);
    let names = files.keys().filter_map(|path| path.strip_prefix("docs/decisions/"));
    names
        .filter(|name| *name != "README.md" && !list.contains(&format!("]({name})")))
        .map(|name| format!("{page}: {name} is not in the list"))
        .collect()
}

/// The names in the first column of the table under a heading.
pub(crate) fn names(text: &str, heading: &str) -> Vec<String> {
    let rows = table(text, heading);
    rows.iter().flat_map(|row| quoted(row[0])).map(str::to_owned).collect()
}

/// Checks that each name in the first column of a table is in the code. The name is a whole string
/// there, or with `in_parts` each of its words is in some string. `N` then stands for a number that
/// the code inserts.
fn name_faults(files: &Files, page: &str, heading: &str, in_parts: bool) -> Vec<String> {
    let Some(text) = files.get(page) else { return Vec::new() };
    let listed = names(text, heading);
    if listed.is_empty() {
        return vec![format!("{page}: no table under the heading {heading}")];
    }
    let product = |path: &&String| path.starts_with("crates/") && path.ends_with(".rs");
    let code: Vec<&String> =
        files.iter().filter(|(path, _)| product(path)).map(|(_, text)| text).collect();
    let has = |part: &str| code.iter().any(|text| has_string(text, part));
    let is_known = |name: &&String| match in_parts {
        true => {
            let parts = name.split(['N', ' ']).map(|part| part.trim_matches('-'));
            parts.filter(|part| part.len() > 1).all(has)
        }
        false => code.iter().any(|text| text.contains(&format!("\"{name}\""))),
    };
    let unknown = listed.iter().filter(|name| !is_known(name));
    unknown.map(|name| format!("{page}: {heading}: the code has no `{name}`")).collect()
}

/// A wait that the product names.
struct NamedWait<'a> {
    /// `path:line`.
    place: String,
    name: &'a str,
    /// Whether it is the name of a lock.
    is_lock: bool,
}

/// The waits that a product's file names: in a call of `enter`, or for locks in `lock_names!`.
fn named_waits<'a>(files: &'a Files, path: &str, rust: &Rust) -> Vec<NamedWait<'a>> {
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    let Some(code) = files.get(path).filter(|_| is_product) else { return Vec::new() };
    let mut waits = Vec::new();
    let mut add = |line: usize, name: &'a str, is_lock: bool| {
        if !rust.is_test(line) {
            waits.push(NamedWait { place: format!("{path}:{line}"), name, is_lock });
        }
    };
    let is_registry = path.starts_with("crates/strake-observe/");
    for (at, call) in code.match_indices(".enter(").filter(|_| !is_registry) {
        let argument = code[at + call.len()..].trim_start();
        let Some(rest) = argument.strip_prefix('"') else { continue };
        add(code[..at].lines().count(), rest.split('"').next().unwrap_or_default(), false);
    }
    let mut in_names = false;
    for (index, line) in code.lines().enumerate().filter(|(_, line)| !line.starts_with("//")) {
        in_names = line.ends_with("lock_names! {") || in_names && line.trim() != "}";
        let name = line.split_once(" = \"").and_then(|(_, rest)| rest.strip_suffix("\";"));
        if let Some(name) = name.filter(|_| in_names) {
            add(index + 1, name, true);
        }
    }
    waits
}

/// Checks that each wait that the product names in one place is in the table of waits, and that a
/// lock shares its name with no other wait.
fn wait_faults(files: &Files, waits: &[NamedWait<'_>]) -> Faults {
    let page = "docs/operating.md";
    let Some(text) = files.get(page) else { return Faults::new() };
    let listed = names(text, "Waits");
    let mut faults = Faults::new();
    for NamedWait { place, name, is_lock } in waits {
        if !listed.iter().any(|known| known == name) {
            faults.push(format!("{place}: {page} has no row for the wait `{name}`"));
        }
        let is_other = |other: &&NamedWait<'_>| other.name == *name && other.place != *place;
        if *is_lock && let Some(other) = waits.iter().find(is_other) {
            faults.push(format!("{place}: {} has a wait `{name}` as well", other.place));
        }
    }
    faults
}

/// True if a string of the code begins or ends with `part`, or has it beside a placeholder.
fn has_string(text: &str, part: &str) -> bool {
    text.match_indices(part).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + part.len()..]);
        before.ends_with(['"', '}', '-', ' ']) && after.starts_with(['"', '{', '-', ' '])
    })
}

/// Checks that the words of each part of the glossary are in order, and that no word occurs twice.
fn glossary_faults(files: &Files) -> Vec<String> {
    let page = "docs/GLOSSARY.md";
    let Some(text) = files.get(page) else { return Vec::new() };
    let mut faults = Vec::new();
    let (mut all, mut last) = (BTreeSet::new(), String::new());
    for (number, line) in prose(text) {
        if line.starts_with('#') {
            last.clear();
        }
        let Some((word, _)) = line.strip_prefix("**").and_then(|line| line.split_once("**")) else {
            continue;
        };
        let word = word.to_lowercase();
        if last > word || !all.insert(word.clone()) {
            faults.push(format!("{page}:{number}: `{word}` is not in its place, or there twice"));
        }
        last = word;
    }
    faults
}

#[cfg(test)]
#[path = "documents_test.rs"]
mod documents_test;
