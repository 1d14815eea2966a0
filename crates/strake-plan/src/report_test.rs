//! The pages are whole, need nothing else, and say what the evaluation says.

use super::*;
use crate::design::Design;
use crate::evaluate::evaluate;
use crate::library::Library;

fn pages(design: &str) -> (String, String) {
    let library = Library::built_in();
    let design = Design::parse("design", design).unwrap();
    let system = design.resolve(&library).unwrap();
    let evaluation = evaluate(&system);
    (html(&system, &evaluation), markdown(&evaluation))
}

const MULTI_TIER: &str = include_str!("../../../docs/plan/examples/solution-3.toml");
const BALANCED: &str = include_str!("../../../docs/plan/examples/solution-2a.toml");

/// Every opened element is closed in order.
fn check_nesting(page: &str) {
    const EMPTY: [&str; 4] = ["meta", "line", "br", "!DOCTYPE"];
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closing {name}");
        } else if !EMPTY.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_page_is_whole_and_self_contained() {
    for design in [MULTI_TIER, BALANCED] {
        let (page, _) = pages(design);
        check_nesting(&page);
        for outside in ["http://", "https://", "<script", "<link", "src=", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("<svg") && page.contains("rack elevation"));
    }
}

#[test]
fn the_bottleneck_is_marked_and_the_figures_are_those_of_evaluate() {
    let (page, text) = pages(BALANCED);
    assert!(page.contains("9.6 GB/s") && text.contains("9.6 GB/s"));
    assert!(page.contains("523.9 TB") && text.contains("523.9 TB"));
    assert!(page.contains("class=\"bar gate\"") && page.contains("class=\"box gate\""));
    assert!(page.contains("dcs3700: Capacity vs. Performance"));
    assert!(text.contains("storage-ports"));
}

/// Cells of a row, with those that span several columns.
fn cells(row: &str) -> usize {
    let tags = row.split('<').filter(|tag| tag.starts_with("td") || tag.starts_with("th"));
    tags.map(|tag| match tag.split_once("colspan=\"") {
        Some((_, rest)) => rest.split('"').next().unwrap().parse().unwrap(),
        None => 1,
    })
    .sum()
}

#[test]
fn every_example_makes_a_page_whose_tables_are_rectangles() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan/examples");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let (page, text) = pages(&std::fs::read_to_string(&path).unwrap());
        check_nesting(&page);
        for table in page.split("<table>").skip(1) {
            let table = table.split("</table>").next().unwrap();
            let rows: Vec<usize> = table.split("<tr>").skip(1).map(cells).collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{}: {table}", path.display());
        }
        for wrong in ["NaN", "inf ", "e308"] {
            assert!(!page.contains(wrong) && !text.contains(wrong), "{}: {wrong}", path.display());
        }
    }
}

#[test]
fn mixes_and_reliability_are_on_the_page() {
    let (page, text) = pages(include_str!("../../../docs/plan/examples/audit-12-mix.toml"));
    for said in ["waiting for answers", "probability of data loss in a year", "checkpoint"] {
        assert!(page.contains(said) && text.contains(said), "{said}");
    }
    let (page, _) = pages(include_str!("../../../docs/plan/examples/audit-01-four-disks.toml"));
    assert!(page.contains("ERROR: <b>promise-broken</b>"));
}

#[test]
fn titles_cannot_break_out_of_the_page() {
    let evil = BALANCED.replace("title = \"", "title = \"<script>alert(1)</script> & ");
    let (page, _) = pages(&evil);
    assert!(!page.contains("<script>"));
    check_nesting(&page);
}

#[test]
fn the_elevation_has_as_many_racks_as_the_inventory() {
    let library = Library::built_in();
    for (text, racks) in [(BALANCED, 1), (MULTI_TIER, 2)] {
        let design = Design::parse("design", text).unwrap();
        let system = design.resolve(&library).unwrap();
        let views = crate::elevation::elevation(&system, 100);
        assert_eq!(views.len(), racks);
        assert_eq!(views.len() as f64, evaluate(&system).inventory.racks.value);
        for view in &views {
            let mut next = 1;
            for place in &view.places {
                assert_eq!(place.unit, next, "parts stand on each other");
                next += place.units;
            }
            assert!(next - 1 <= view.units, "{} is full", view.title);
        }
    }
}
