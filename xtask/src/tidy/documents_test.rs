//! Each check finds its fault, and accepts what is right.

use super::*;

fn files(of: &[(&str, &str)]) -> Files {
    of.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let files = files(&[("a.md", "x"), ("docs/b.md", "# One\n\n## Two words: `code`!\n")]);
    let found = |text: &str| link_faults(&files, "docs/c.md", text).len();
    assert_eq!(found("[a](../a.md) [b](b.md#two-words-code) [out](https://x.y/z)"), 0);
    assert_eq!(found("[folder](../docs)"), 0);
    assert_eq!(found("[gone](d.md) and [no heading](b.md#three)"), 2);
    assert_eq!(found("```\n[in a listing](d.md)\n```\n"), 0);
}

#[test]
fn cited_tests_exist() {
    let files = files(&[
        ("crates/strake-nsd/src/store_test.rs", "fn a_full_disk_says_so() {}"),
        ("crates/strake-nsd/src/store/space.rs", "fn inline() {}"),
        ("crates/strake-sim/src/cut_test.rs", "macro_rules! m {}\nm!(holds_with_2x);"),
    ]);
    let found = |text: &str| citation_faults(&files, "docs/c.md", text);
    assert_eq!(found("`nsd/store_test::a_full_disk_says_so`, `nsd/store/space::inline`"), [""; 0]);
    assert_eq!(
        found("`nsd/store_test`, `sim/cut_test::holds_with_*`, `nsd/store_test::a_…`"),
        [""; 0]
    );
    assert_eq!(found("`nsd/store_test::a_full`").len(), 1, "a name is whole");
    assert_eq!(found("`nsd/gone_test`, `nsd/store_test::gone`").len(), 2);
    assert!(found("`nsd/cut_test`")[0].contains("crates/strake-sim"), "says where it went");
    assert_eq!(found("`other/thing`"), [""; 0], "no crate of ours");
    assert_eq!(found("`a_full_disk_says_so`, `a_full_disk_that_says_nothing`").len(), 1);
}

#[test]
fn named_files_exist() {
    let files = files(&[("crates/strake-nsd/src/keys.rs", ""), ("docs/decisions/0001-kv.md", "")]);
    let found = |path: &str, text: &str| path_faults(&files, path, text).len();
    assert_eq!(found("a.md", "see `strake-nsd/src/keys.rs` and docs/decisions/0001."), 0);
    assert_eq!(found("a.md", "docs/decisions/NNNN-title.md, crates/strake-nsd/src"), 0);
    assert_eq!(found("a.md", "see `strake-nsd/src/gone.rs` and docs/decisions/0002"), 2);
    assert_eq!(found("a.rs", "//! See docs/gone.md.\nlet path = \"docs/none\";"), 1);
}

#[test]
fn what_is_named_with_its_file_is_defined_there() {
    let code =
        "pub(crate) fn list(&self) {}\n    pub size: u64,\n    Opcode::Open => {}\n// fn gone(";
    let files = files(&[("crates/strake-nsd/src/keys.rs", code)]);
    let found = |name: &str| {
        definition_faults(&files, "a.md", &format!("see `strake-nsd/src/keys.rs::{name}`, too"))
            .len()
    };
    assert_eq!(["list", "size", "Open"].map(found), [0; 3]);
    assert_eq!(["lis", "gone", "u64", "listed"].map(found), [1; 4]);
}

#[test]
fn listings_are_narrow_and_prose_may_be_wide() {
    let wide = "w".repeat(101);
    let text = format!("{wide}\n```\n{wide}\n```\n");
    assert_eq!(listing_faults("a.md", &text).len(), 1);
}

#[test]
fn tables_name_what_the_code_has() {
    let page = "## Threads\n\n| name | x |\n|---|---|\n| `fuse-N`, `open N`, `nN-work` | a |\n| `gone` | b |\n";
    let code = "spawn(format!(\"fuse-{index}\")); spawn(format!(\"open {name}\")); \
                format!(\"n{}-{name}\"); start(\"work\")";
    assert!(has_string(code, "fuse-"));
    let files = files(&[("docs/ARCHITECTURE.md", page), ("crates/a/src/a.rs", code)]);
    let found = name_faults(&files, "docs/ARCHITECTURE.md", "Threads", true);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn every_crate_has_a_row() {
    let page = "## Crates\n\n| crate | x |\n|---|---|\n| `strake-a` | a |\n| `strake-b` | b |\n";
    let files = files(&[
        ("docs/ARCHITECTURE.md", page),
        ("crates/strake-a/src/lib.rs", ""),
        ("crates/strake-c/src/lib.rs", ""),
    ]);
    let found = crate_faults(&files).join("\n");
    assert!(found.contains("no row for strake-c") && found.contains("no crate strake-b"));
}

#[test]
fn what_a_crate_uses_is_what_its_manifest_says() {
    let found = |uses: [&str; 3]| {
        let [a, b, top] = uses;
        let page = format!(
            "## Crates\n\n| crate | x | uses |\n|---|---|---|\n| `strake-a` | a | {a} |\n\
             | `strake-b` | b | {b} |\n| `strake` | all | {top} |\n"
        );
        let top = "[dependencies]\nstrake-a.workspace = true\nstrake-b.workspace = true\n";
        let tests = "[dependencies]\nserde.workspace = true\nstrake-a.workspace = true\n\
                     [dev-dependencies]\nstrake-c.workspace = true\n";
        let files = files(&[
            ("docs/ARCHITECTURE.md", page.as_str()),
            ("crates/strake-a/Cargo.toml", "[dependencies]\n"),
            ("crates/strake-b/Cargo.toml", tests),
            ("crates/strake/Cargo.toml", top),
        ]);
        uses_faults(&files)
    };
    assert_eq!(found(["", "a", "a, b"]), [""; 0]);
    assert_eq!(found(["", "a", "b, a"]), [""; 0], "in any order");
    let missing = found(["", "", "a, b"]);
    assert_eq!(missing, ["docs/ARCHITECTURE.md: strake-b uses a, and its row says "]);
    assert_eq!(found(["", "a, c", "a, b"]).len(), 1, "one for tests does not count");
    assert_eq!(found(["", "a", "all but b"]).len(), 1, "b is left out and used");
    assert_eq!(found(["", "all but b", "a, b"]).len(), 1, "strake itself is not used");
    assert_eq!(found(["", "all but strake", "a, b"]), [""; 0]);
}

#[test]
fn every_decision_is_listed() {
    let list = "| [0001](0001-a.md) | a |\n";
    let files = files(&[
        ("docs/decisions/README.md", list),
        ("docs/decisions/0001-a.md", ""),
        ("docs/decisions/0002-b.md", ""),
    ]);
    assert_eq!(decision_faults(&files).len(), 1);
}

#[test]
fn runs_are_single_small_files_and_the_glossary_is_in_order() {
    assert!(is_run("bench/runs/2026-01-01.md", "x"));
    assert!(!is_run("bench/runs/2026-01-01/raw.json", "x"));
    assert!(!is_run("bench/runs/2026-01-01.md", &"x".repeat(RUN_BYTES_MAX + 1)));
    let files = files(&[("docs/GLOSSARY.md", "**Block**: b\n\n**Accepted**: a\n")]);
    assert_eq!(glossary_faults(&files).len(), 1);
}

#[test]
fn every_named_wait_has_a_row() {
    let page = "## Waits\n\n| wait | x |\n|---|---|\n| `known` | a |\n";
    let code = "fn f() { waiters.enter(\n\"known\", \"\"); waiters.enter(\"unknown\", \"\"); }";
    let path = "crates/a/src/a.rs";
    let repository = Repository::of(&[("docs/operating.md", page), (path, code)]);
    let found = faults(&repository).join("\n");
    assert!(found.contains("wait `unknown`") && !found.contains("wait `known`"), "{found}");
}

#[test]
fn every_lock_has_a_row_and_a_name_of_its_own() {
    let page =
        "## Waits\n\n| wait | x |\n|---|---|\n| `wait` | a |\n| `lock` | b |\n| `twin` | c |\n";
    let locks = |names: &[&str]| {
        let lines = names.iter().map(|name| format!("    /// A lock.\n    A = \"{name}\";\n"));
        format!("strake_env::lock_names! {{\n{}}}\n", lines.collect::<String>())
    };
    let first = locks(&["lock", "unknown", "twin"]) + "const B: &str = \"none\";\n";
    let second = locks(&["twin", "wait"]) + "fn f() { waiters.enter(\"wait\", \"\"); }\n";
    let repository = Repository::of(&[
        ("docs/operating.md", page),
        ("crates/a/src/a.rs", &first),
        ("crates/a/src/b.rs", &second),
    ]);
    let found = faults(&repository);
    let found: Vec<_> = found.iter().filter(|fault| fault.contains(" wait `")).collect();
    assert_eq!(found.len(), 4, "{found:?}");
    for (place, name) in [("a.rs:5", "unknown"), ("a.rs:7", "twin"), ("b.rs:3", "twin")] {
        let is_it = |fault: &&&String| fault.contains(place) && fault.contains(name);
        assert!(found.iter().any(|fault| is_it(&fault)), "{place} {name}: {found:?}");
    }
    assert!(found.iter().any(|fault| fault.contains("b.rs:5") && fault.contains("`wait` as well")));
}
