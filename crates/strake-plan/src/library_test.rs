//! The library's schema refuses what it cannot mean.

use super::*;
use crate::unit::TERA;

const DISK: &str = r#"
[[disk]]
name = "mine"
description = "my disk"
class = "nvme"
capacity = { value = "1TB", source = "mine: bench" }
stream_write = { value = "1GB/s", source = "mine: bench" }
stream_read = { value = "2GB/s", source = "mine: bench" }
iops_write = { value = 1000, source = "mine: bench" }
iops_read = { value = 2000, source = "mine: bench" }
"#;

const SOURCE: &str = "[[source]]\nkey = \"mine\"\ntitle = \"measured here\"\n";

fn with(text: &str) -> Result<Library, PlanError> {
    let mut library = Library::built_in();
    library.add("user.toml", text)?;
    library.check().map(|()| library)
}

#[test]
fn a_user_adds_and_replaces_components() {
    let library = with(&format!("{SOURCE}{DISK}")).unwrap();
    assert_eq!(library.disks["mine"].capacity.value.0, TERA);
    let replaced = DISK.replace("mine\"\ndesc", "nl-sas-2tb\"\ndesc");
    let library = with(&format!("{SOURCE}{replaced}")).unwrap();
    assert_eq!(library.disks["nl-sas-2tb"].capacity.value.0, TERA);
}

#[test]
fn constants_without_a_known_source_are_refused() {
    let error = with(DISK).unwrap_err();
    assert!(error.to_string().contains("[[source]]"), "{error}");
    assert!(error.is_usage());
    let bare = DISK.replace("{ value = 1000, source = \"mine: bench\" }", "1000");
    assert!(with(&format!("{SOURCE}{bare}")).is_err());
}

#[test]
fn misspelt_fields_and_kinds_are_refused_by_name() {
    let misspelt = DISK.replace("iops_read", "iop_read");
    let error = with(&format!("{SOURCE}{misspelt}")).unwrap_err().to_string();
    assert!(error.contains("iop_read") && error.contains("user.toml"), "{error}");
    assert!(with("[[dsik]]\nname = \"x\"\n").is_err());
}

#[test]
fn impossible_values_are_refused() {
    for (from, to) in [("1TB", "0TB"), ("1GB/s", "fast"), ("1GB/s", "1GB")] {
        let text = format!("{SOURCE}{}", DISK.replace(from, to));
        assert!(with(&text).is_err(), "{to}");
    }
    let code = "[[code]]\nname = \"c\"\ndescription = \"\"\ndata = 0\nredundant = 1\nsource = \"public: x\"\n";
    assert!(with(code).is_err());
}

#[test]
fn unknown_names_list_the_known_ones() {
    let library = Library::built_in();
    let error = Library::find(&library.codes, "code", "9+9p").unwrap_err();
    assert!(error.to_string().contains("8+2p"), "{error}");
}

#[test]
fn small_writes_cost_what_the_code_makes_them() {
    let library = Library::built_in();
    for (code, operations) in
        [("1", 1), ("2x", 2), ("3x", 3), ("raid10-2+2", 2), ("4+1p", 4), ("8+2p", 6), ("8+3p", 8)]
    {
        assert_eq!(library.codes[code].small_write_operations(), operations, "{code}");
    }
}
