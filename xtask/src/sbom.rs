//! What the program is made of, as a bill of materials (CycloneDX 1.5), and whether each licence is
//! one that we accept.
//!
//! The parts are those of the program for this machine, without what only tests and build tools
//! use. They come from `cargo tree`, and their checksums from `Cargo.lock`, so the list is that of
//! the locked build. Known faults of the parts are not looked up: that needs a list from elsewhere.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

/// Licences whose terms the packages keep.
const ACCEPTED: &[&str] =
    &["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Unlicense", "Zlib"];

/// A crate from the registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    name: String,
    version: String,
    /// An expression as SPDX has them.
    licence: String,
}

/// Prints the bill, or says which part has a licence that is not accepted.
pub(crate) fn main() -> ExitCode {
    let told = parts().and_then(|(version, parts)| {
        let lock = std::fs::read_to_string("Cargo.lock").map_err(|e| format!("Cargo.lock: {e}"))?;
        let refused: Vec<String> = parts.iter().filter_map(refusal).collect();
        if refused.is_empty() {
            Ok(bill(&version, &parts, &checksums(&lock)))
        } else {
            Err(refused.join("\n"))
        }
    });
    match told {
        Ok(bill) => {
            print!("{bill}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sbom: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The program's version, and its parts by name.
fn parts() -> Result<(String, Vec<Part>), String> {
    let tree = ["tree", "--locked", "--package", "strake", "--edges", "normal", "--prefix", "none"];
    let output = Command::new("cargo").args(tree).args(["--format", "{p}|{l}"]).output();
    let output = output.map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    read_tree(&String::from_utf8_lossy(&output.stdout))
}

/// Lines `name vVERSION[ (path or kind)]|LICENCE[ (*)]`; the first is the program.
fn read_tree(text: &str) -> Result<(String, Vec<Part>), String> {
    let mut program = None;
    let mut parts = Vec::new();
    for line in text.lines() {
        let (package, licence) = line.split_once('|').ok_or(format!("unreadable: {line}"))?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let version = version.trim_start_matches('v').to_owned();
        // Crates of the workspace are the program itself.
        if words.next().is_some_and(|place| place.starts_with("(/")) {
            program.get_or_insert(version);
            continue;
        }
        let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
        parts.push(Part { name: name.to_owned(), version, licence });
    }
    parts.sort();
    parts.dedup();
    Ok((program.ok_or("cargo tree names no program")?, parts))
}

/// Why a part's licence is not accepted. Of alternatives one is enough; all of a sum are needed.
fn refusal(part: &Part) -> Option<String> {
    let accepted = |alternative: &str| {
        let name = alternative.split(" WITH ").next().unwrap_or_default();
        ACCEPTED.contains(&name.trim_matches(['(', ')', ' ']))
    };
    let all = part.licence.split(" AND ").all(|needed| needed.split(" OR ").any(accepted));
    (!all).then(|| format!("{} {} has the licence '{}'", part.name, part.version, part.licence))
}

/// Name and version ▶ SHA-256 of the crate's archive.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let prefix = format!("{key} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map(|text| text.trim_end_matches('"').to_owned())
    };
    let package = |block: &str| {
        Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

fn bill(version: &str, parts: &[Part], checksums: &BTreeMap<(String, String), String>) -> String {
    let component = |part: &Part| {
        let Part { name, version, licence } = part;
        let hash = checksums.get(&(name.clone(), version.clone()));
        let hashes = hash.map_or_else(String::new, |hash| {
            format!(", \"hashes\": [{{\"alg\": \"SHA-256\", \"content\": \"{hash}\"}}]")
        });
        let purl = format!("pkg:cargo/{name}@{version}");
        format!(
            "    {{\"type\": \"library\", \"bom-ref\": \"{purl}\", \"name\": \"{name}\", \
             \"version\": \"{version}\", \"purl\": \"{purl}\", \
             \"licenses\": [{{\"expression\": \"{licence}\"}}]{hashes}}}"
        )
    };
    let components: Vec<String> = parts.iter().map(component).collect();
    format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \
         \"metadata\": {{\"component\": {{\"type\": \"application\", \"name\": \"strake\", \
         \"version\": \"{version}\", \"licenses\": [{{\"expression\": \"Apache-2.0\"}}]}}}},\n  \
         \"components\": [\n{}\n  ]\n}}\n",
        components.join(",\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(licence: &str) -> Part {
        Part { name: "a".into(), version: "1.0.0".into(), licence: licence.into() }
    }

    #[test]
    fn a_tree_and_a_lock_become_a_bill() {
        let tree = "strake v0.1.0 (/somewhere/crates/strake)|Apache-2.0\n\
                    b v2.0.0|MIT/Apache-2.0\na v1.0.0 (proc-macro)|MIT\nb v2.0.0|MIT/Apache-2.0 (*)\n";
        let (version, parts) = read_tree(tree).unwrap();
        assert_eq!((version.as_str(), parts.len()), ("0.1.0", 2));
        assert_eq!(parts[1].licence, "MIT OR Apache-2.0");
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"\n";
        let bill = bill(&version, &parts, &checksums(lock));
        assert!(bill.contains(
            "pkg:cargo/a@1.0.0\", \"licenses\": [{\"expression\": \"MIT\"}], \"hashes\""
        ));
        assert_eq!(bill.matches("SHA-256").count(), 1, "{bill}");
    }

    #[test]
    fn licences_are_accepted_by_alternative_and_refused_by_need() {
        for good in ["MIT", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert_eq!(refusal(&part(good)), None, "{good}");
        }
        assert_eq!(refusal(&part("Apache-2.0 WITH LLVM-exception OR MIT")), None);
        for bad in ["GPL-3.0", "", "MIT AND GPL-3.0", "SSPL-1.0 OR GPL-3.0"] {
            assert!(refusal(&part(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn every_part_of_the_program_has_a_licence_that_is_accepted() {
        let (_, parts) = parts().unwrap();
        assert!(parts.len() > 50, "{}", parts.len());
        let refused: Vec<String> = parts.iter().filter_map(refusal).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}
