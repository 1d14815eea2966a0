//! What solve chooses, and what it says when it cannot choose.

use super::*;
use crate::unit::GIB;

fn wanted() -> Wanted {
    Wanted {
        usable: Some(500.0 * TIB),
        write: Some(9.0 * GIB),
        read: Some(10.0 * GIB),
        network: Some("qdr".into()),
        ..Wanted::default()
    }
}

#[test]
fn the_balanced_small_block_of_the_documents_is_found() {
    let wanted = Wanted { enclosures: vec!["dcs3700".into()], ..wanted() };
    let answers = solve(&Library::built_in(), &wanted, Objective::Racks, 5).unwrap();
    let best = &answers[0];
    let tier = &best.design.tier[0];
    // Solution #2a with 1U servers: three controllers, two servers.
    assert_eq!((tier.blocks, tier.storage.per_block, tier.storage.trays), (2, 3, 0));
    assert_eq!(best.kind, "balanced");
    assert!(best.why.iter().any(|line| line.contains("streaming write 9.6 GB/s for 9 GB/s")));
}

#[test]
fn requirements_that_nothing_satisfies_fail_without_being_wrong_usage() {
    let wanted = Wanted { racks_max: Some(1), disks: vec!["nl-sas".into()], ..wanted() };
    let huge = Wanted { usable: Some(1e6 * TIB), ..wanted };
    let error = solve(&Library::built_in(), &huge, Objective::Racks, 5).unwrap_err();
    assert!(!error.is_usage(), "{error}");
}

#[test]
fn cost_ranks_what_has_prices() {
    let mut library = Library::built_in();
    let unpriced = solve(&library, &wanted(), Objective::Cost, 5).unwrap_err();
    assert!(unpriced.is_usage() && unpriced.to_string().contains("price"), "{unpriced}");
    let price = |value| Some(crate::library::Sourced { value, source: "public: x".into() });
    for name in ["nl-sas-2tb", "nl-sas-3tb"] {
        library.disks.get_mut(name).unwrap().price = price(300.0);
    }
    library.enclosures.get_mut("dcs3700").unwrap().price = price(20_000.0);
    library.servers.get_mut("x3550-m3").unwrap().price = price(4000.0);
    for name in ["ib-qdr", "sas6-quad"] {
        library.adapters.get_mut(name).unwrap().price = price(500.0);
    }
    let answers = solve(&library, &wanted(), Objective::Cost, 5).unwrap();
    let best = &answers[0].design.tier[0];
    assert_eq!((best.storage.enclosure.as_str(), best.storage.trays), ("dcs3700", 0));
    // Six controllers by the write rate with either disk: 360 disks, 4 servers, 12 adapters.
    let total = 360.0 * 300.0 + 6.0 * 20_000.0 + 4.0 * 4000.0 + 12.0 * 500.0;
    assert_eq!(answers[0].evaluation.inventory.price.as_ref().unwrap().value, total);
}

#[test]
fn networks_are_found_by_name_or_its_end() {
    let library = Library::built_in();
    for (name, found) in [("ib-qdr", "ib-qdr"), ("qdr", "ib-qdr"), ("2xtbe", "2xtbe")] {
        let wanted = Wanted { network: Some(name.into()), ..Wanted::default() };
        let names: Vec<_> = networks(&library, &wanted)
            .unwrap()
            .iter()
            .map(|adapter| adapter.name.clone())
            .collect();
        assert_eq!(names, [found]);
    }
}
