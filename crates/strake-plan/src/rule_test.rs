//! Each rule warns where the documents say so, and only there.

use crate::design::Design;
use crate::library::Library;
use crate::rule::warnings;

const BASE: &str = r#"
title = "base"
[[tier]]
name = "data"
blocks = 2
[tier.storage]
enclosure = "dcs3700"
per_block = 2
trays = 0
disk = "nl-sas-2tb"
code = "8+2p"
[tier.servers]
model = "x3550-m3"
per_block = 2
lan = "ib-qdr"
hba = "sas6-quad"
"#;

/// The rules that warn about `BASE` with `from` replaced by `to`.
fn rules(replacements: &[(&str, &str)]) -> Vec<String> {
    let mut text = BASE.to_string();
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let library = Library::built_in();
    let design = Design::parse("base", &text).unwrap();
    let found = warnings(&design.resolve(&library).unwrap());
    assert!(found.iter().all(|warning| warning.source.contains(": ")), "{found:?}");
    found.into_iter().map(|warning| warning.rule).collect()
}

#[test]
fn a_balanced_block_has_no_warning() {
    assert!(rules(&[]).is_empty());
}

#[test]
fn each_rule_warns() {
    for (rule, replacements) in [
        ("uneven-trays", [("trays = 0", "trays = 1\ndisks_per_tray = [60, 40]"), ("", "")]),
        ("tray-instead-of-controller", [("trays = 0", "trays = 2"), ("", "")]),
        ("nl-sas-for-iops", [("blocks = 2", "blocks = 2\nworkload = \"iops\""), ("", "")]),
        ("one-parity-on-nl-sas", [("8+2p", "4+1p"), ("", "")]),
        ("disks-in-no-array", [("8+2p", "8+1p"), ("", "")]),
        ("unmirrored-write-cache", [("trays = 0", "write_cache = \"unmirrored\""), ("", "")]),
        ("segment", [("trays = 0", "segment = \"384K\""), ("", "")]),
        ("segment", [("trays = 0", "segment = \"256K\""), ("", "")]),
        ("storage-ports", [("sas6-quad", "sas6-single"), ("", "")]),
        ("long-sas-cables", [("[[tier]]", "[rack]\nservers_apart = true\n[[tier]]"), ("", "")]),
        ("rack-loaded-on-site", [("[[tier]]", "[rack]\nmodel = \"rack-47u\"\n[[tier]]"), ("", "")]),
        ("block-higher-than-rack", [("per_block = 2\ntrays", "per_block = 11\ntrays"), ("", "")]),
        ("one-server", [("m3\"\nper_block = 2", "m3\"\nper_block = 1"), ("", "")]),
        (
            "promise-broken",
            [
                ("trays = 0", "parity = \"server\"\ndisks_per_tray = [2]"),
                ("blocks = 2", "blocks = 1"),
            ],
        ),
        (
            "enclosure-loss-not-tolerated",
            [("trays = 0", "parity = \"client\""), ("blocks = 2", "blocks = 1")],
        ),
    ] {
        let replacements: Vec<_> =
            replacements.into_iter().filter(|(from, _)| !from.is_empty()).collect();
        let found = rules(&replacements);
        assert!(found.iter().any(|name| name == rule), "{rule}: {found:?}");
    }
}

#[test]
fn designs_that_cannot_be_built_say_what_to_write() {
    let library = Library::built_in();
    for (from, to, says) in [
        ("trays = 0", "trays = 3", "at most 2 trays"),
        ("nl-sas-2tb", "nvme-7680gb", "does not take nvme"),
        ("trays = 0", "disks_per_tray = [61]", "[60]"),
        ("trays = 0", "disks_per_tray = [8]", "narrower code"),
        ("blocks = 2", "blocks = 0", "at least 1"),
        ("lan = \"ib-qdr\"", "lan = \"sas6-quad\"", "give it as hba"),
        ("hba = \"sas6-quad\"", "hba = \"ib-qdr\"", "give it as lan"),
        ("trays = 0", "rebuild_share = 0.0", "0.01"),
        ("\"dcs3700\"", "\"ds4500\"", "does not take nl-sas"),
        ("trays = 0", "spares = 120", "lower spares"),
    ] {
        let design = Design::parse("base", &BASE.replace(from, to)).unwrap();
        let error = design.resolve(&library).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains(says), "{to}: {error}");
    }
    let error = Design::parse("base.toml", &BASE.replace("trays", "trais")).unwrap_err();
    assert!(error.to_string().contains("trais") && error.to_string().contains("base.toml"));
    assert!(Design::parse("x", "title = \"x\"\ntier = []\n").unwrap().resolve(&library).is_err());
}
