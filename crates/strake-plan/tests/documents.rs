//! Every solution, table and rule of the reference documents against what the planner computes.
//!
//! Each row says how the planner stands to a figure: computed (it *agrees*, is *marked* with the
//! fault of the document, or is beside a measurement), taken as *input*, or *not modelled*. Only
//! what was computed counts as agreeing. One band for all measurements tells *close* from *off*;
//! nothing is fitted. A mark that has lost its reason fails. The table of all rows is
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

use row::Row;
use std::path::PathBuf;

const INTRODUCTION: &str = "# The documents, reproduced

Every figure that the reference documents print for a storage solution, and how `strake plan` stands
to it. Generated and checked by the tests; write it anew with
`STRAKE_REGENERATE=1 cargo test -p strake-plan --test documents`.

Computed from the component library:

- **agrees**: our figure, rounded to the printed digits, is the printed one.
- **marked**: the document derated by hand, rounded or contradicts itself. Both figures stand, with
  the reason.
- **close**: the document prints a measurement, and ours lies within 15 % of it.
- **off**: the document prints a measurement, and ours lies further away. The row says what the
  model lacks, or that nobody knows.

Not computed:

- **input**: the library holds this figure. The planner reads it back, so it proves nothing.
- **not modelled**: nothing of the planner stands for this figure.

No constant is tuned to fit a row. Our rates are upper bounds, so a difference above zero is the
rule. Charts without numbers, traces and profiles of the documents have no rows.
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
    let count = |kind: &str| rows.iter().filter(|row| row.kind() == kind).count();
    let kinds = ["agrees", "marked", "close", "off", "input", "not modelled"];
    let [agrees, marked, close, off, input, not_modelled] = kinds.map(count);
    let computed = agrees + marked + close + off;
    text.push_str(&format!(
        "\n{} figures, {computed} of them computed: {agrees} agree, {marked} are marked, {close} are \
         close to a measurement and {off} are off. {input} are input and {not_modelled} not \
         modelled.\n",
        rows.len(),
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
