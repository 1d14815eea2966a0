//! The rule that the arrows between crates point only downwards (docs/ARCHITECTURE.md, crates).

use std::collections::BTreeSet;

use super::Faults;
use super::repository::{File, Repository};

/// Which crates each crate may use in its product. Tests may use more.
pub(super) const CRATE_EDGES: &[(&str, &[&str])] = &[
    ("strake-proto", &[]),
    ("strake-env", &["strake-proto"]),
    ("strake-net", &["strake-proto", "strake-env", "strake-token"]),
    ("strake-observe", &["strake-proto", "strake-env"]),
    ("strake-stripe", &["strake-proto"]),
    ("strake-token", &["strake-proto"]),
    ("strake-lease", &["strake-proto"]),
    ("strake-replica", &["strake-proto", "strake-env"]),
    ("strake-store", &["strake-proto", "strake-env", "strake-observe"]),
    (
        "strake-nsd",
        &["strake-proto", "strake-env", "strake-observe", "strake-stripe", "strake-store"],
    ),
    (
        "strake-meta",
        &["strake-proto", "strake-env", "strake-observe", "strake-replica", "strake-store"],
    ),
    ("strake-array", &["strake-proto", "strake-env", "strake-observe", "strake-stripe"]),
    (
        "strake-client",
        &[
            "strake-proto",
            "strake-env",
            "strake-observe",
            "strake-stripe",
            "strake-token",
            "strake-lease",
            "strake-array",
        ],
    ),
    (
        "strake-manager",
        &[
            "strake-proto",
            "strake-env",
            "strake-stripe",
            "strake-token",
            "strake-lease",
            "strake-array",
        ],
    ),
    (
        "strake-crew",
        &[
            "strake-proto",
            "strake-env",
            "strake-net",
            "strake-observe",
            "strake-token",
            "strake-lease",
            "strake-replica",
            "strake-store",
            "strake-meta",
            "strake-array",
            "strake-client",
            "strake-manager",
        ],
    ),
    ("strake-testing", &["strake-proto", "strake-env", "strake-stripe", "strake-meta"]),
    ("strake-fuse", &["strake-proto", "strake-env", "strake-observe", "strake-client"]),
    ("strake-report", &[]),
    ("strake-plan", &["strake-env", "strake-proto", "strake-report", "strake-stripe"]),
    ("strake-bench", &["strake-env", "strake-net", "strake-proto", "strake-report"]),
    ("xtask", &[]),
];

pub(super) fn faults(repository: &Repository) -> Faults {
    let manifests = repository.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.flat_map(edge_faults).collect()
}

fn edge_faults(file: &File) -> Faults {
    let File { path, text, .. } = file;
    let name = path.trim_end_matches("/Cargo.toml").trim_start_matches("crates/");
    let Some((_, allowed)) = CRATE_EDGES.iter().find(|(from, _)| *from == name) else {
        return Faults::new();
    };
    let mut section = "";
    let mut faults = Faults::new();
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

/// The crates of ours that the product of a manifest's crate uses.
pub(super) fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or("");
        if section == "[dependencies]" && name.starts_with("strake") {
            found.insert(name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_upwards_is_found() {
        let found = |text: &str| {
            faults(&Repository::of(&[("crates/strake-nsd/Cargo.toml", text)])).join("\n")
        };
        let upwards = found("[dependencies]\nstrake-client.workspace = true\n");
        assert!(upwards.contains("Cargo.toml:2: strake-nsd may not use strake-client"));
        assert_eq!(found("[dependencies]\nstrake-env.workspace = true\n"), "");
        assert_eq!(found("[dev-dependencies]\nstrake-client.workspace = true\n"), "");
    }
}
