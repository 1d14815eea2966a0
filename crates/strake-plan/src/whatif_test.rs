//! Changes reach every field, and what is wrong with one is said.

use super::*;
use crate::library::Library;

const DESIGN: &str = include_str!("../../../docs/plan/examples/nvme-cluster.toml");

fn changed(changes: &[&str]) -> Result<Design, PlanError> {
    let changes: Vec<String> = changes.iter().map(|change| change.to_string()).collect();
    parse_with("design.toml", DESIGN, &changes)
}

#[test]
fn a_change_reaches_tables_lists_and_what_is_not_there_yet() {
    let design = changed(&[
        "tier.nvme.blocks=12",
        "tier.0.storage.disk=nvme-15360gb",
        "tier.nvme.storage.disks_per_tray=[12]",
        "clients.model=xeon-8160",
        "clients.count=4",
        "title=what if",
    ])
    .unwrap();
    assert_eq!(design.tier[0].blocks, 12);
    assert_eq!(design.tier[0].storage.disk, "nvme-15360gb");
    assert_eq!(design.tier[0].storage.disks_per_tray, Some(vec![12]));
    assert_eq!(design.clients.as_ref().unwrap().count, 4);
    assert_eq!(design.title, "what if");
    assert!(design.resolve(&Library::built_in()).is_ok());
}

#[test]
fn wrong_changes_say_what_is_wrong() {
    for (change, says) in [
        ("tier.nvme.blocks", "no ="),
        ("tier.other.blocks=2", "no entry 'other'; there are nvme"),
        ("tier.nvme.blokcs=2", "blokcs"),
        ("tier.nvme.blocks=many", "invalid type"),
        ("title.x=2", "has no fields"),
        ("=2", "no field"),
    ] {
        let error = changed(&[change]).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(says), "{change}: {error}");
    }
}

#[test]
fn designs_stand_side_by_side_with_the_change_against_the_first() {
    let library = Library::built_in();
    let (one, two) = (changed(&[]).unwrap(), changed(&["tier.nvme.blocks=16"]).unwrap());
    let systems = [one.resolve(&library).unwrap(), two.resolve(&library).unwrap()];
    let text = side_by_side(&systems);
    let line = text.lines().find(|line| line.starts_with("usable capacity")).unwrap();
    assert!(line.contains("894.1 TB") && line.contains("1.75 PB (x2)"), "{text}");
    assert!(text.contains("B nvme gated by: server bus"), "{text}");
    assert!(!text.contains("price"), "nothing has a price");
}

#[test]
fn one_more_block_has_a_price_where_all_its_parts_have() {
    let mut library = Library::built_in();
    let price = |value| Some(crate::library::Sourced { value, source: "public: x".into() });
    library.disks.get_mut("nvme-7680gb").unwrap().price = price(1000.0);
    library.enclosures.get_mut("nvme-bays-24").unwrap().price = price(0.0);
    library.servers.get_mut("nvme-server").unwrap().price = price(8000.0);
    library.adapters.get_mut("100gbe").unwrap().price = price(700.0);
    let design = changed(&[]).unwrap();
    let system = design.resolve(&library).unwrap();
    assert_eq!(step_price(&system, &system.tiers[0]), Some(24_000.0 + 8000.0 + 1400.0));
    let text = crate::text::render(&crate::evaluate::evaluate(&system), false);
    assert!(text.contains("one more block   33,400 (tier nvme)"), "{text}");
    assert!(side_by_side(&[system.clone(), system]).contains("price of one more block"));
}
