//! Every solution, table and rule of the reference documents against what the planner computes.
//!
//! A row *agrees* when our figure, rounded to the printed digits, is the printed one. A row that
//! cannot agree is *marked* with the reason (derated by hand, inconsistent in the document); a
//! marked row that does agree fails, so no mark outlives its reason. A *measured* row states the
//! band in which our ceiling lies; nothing is fitted to it. The table of all rows is
//! `docs/plan/documents-reproduced.md`; this test fails when that file is stale, and
//! `STRAKE_REGENERATE=1 cargo test -p strake-plan --test documents` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

#[path = "documents/dcs3700.rs"]
mod dcs3700;
#[path = "documents/dell_nss.rs"]
mod dell_nss;
#[path = "documents/ess3000.rs"]
mod ess3000;
#[path = "documents/p690_x335.rs"]
mod p690_x335;
#[path = "documents/performance.rs"]
mod performance;
#[path = "documents/row.rs"]
mod row;
#[path = "documents/rules.rs"]
mod rules;

use row::{Row, Verdict};
use std::path::PathBuf;

const INTRODUCTION: &str = "# The documents, reproduced

Every figure that the reference documents print for a storage solution, and what `strake plan`
computes for it from the component library. Generated and checked by the tests; write it anew with
`STRAKE_REGENERATE=1 cargo test -p strake-plan --test documents`.

**agrees**: our figure, rounded to the printed digits, is the printed one. **marked**: the document
derated by hand, rounded or contradicts itself; both figures stand, with the reason, and no
constant is tuned to fit. **measured**: the document prints a measurement; ours is the ceiling that
the design allows, and the band says how far apart the two may lie.
";

fn all_rows() -> Vec<Row> {
    let mut rows = dcs3700::rows();
    rows.extend(dell_nss::rows());
    rows.extend(p690_x335::rows());
    rows.extend(performance::rows());
    rows.extend(ess3000::rows());
    rows.extend(rules::rows());
    rows
}

#[test]
fn every_row_is_what_it_says() {
    let faults: Vec<String> = all_rows().iter().filter_map(Row::fault).collect();
    assert!(faults.is_empty(), "{} rows:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_generated_document_is_current() {
    let rows = all_rows();
    let mut text = String::from(INTRODUCTION);
    let count = |pick: fn(&Verdict) -> bool| rows.iter().filter(|r| pick(&r.verdict)).count();
    text.push_str(&format!(
        "\n{} figures: {} agree, {} marked, {} measured.\n",
        rows.len(),
        count(|v| matches!(v, Verdict::Agrees)),
        count(|v| matches!(v, Verdict::Marked(_))),
        count(|v| matches!(v, Verdict::Measured(..))),
    ));
    let mut group = "";
    for row in &rows {
        if row.group != group {
            group = row.group;
            text.push_str(&format!(
                "\n## {group}\n\nSource: {}\n\n| figure | printed | computed | difference | |\n\
                 |---|---:|---:|---:|---|\n",
                row.place
            ));
        }
        text.push_str(&row.line());
    }
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/plan/documents-reproduced.md");
    if std::env::var_os("STRAKE_REGENERATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "docs/plan/documents-reproduced.md is stale; write it anew with\n  \
         STRAKE_REGENERATE=1 cargo test -p strake-plan --test documents"
    );
}
