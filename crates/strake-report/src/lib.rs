//! How results are shown to people: tables for terminals, drawings as SVG, text made safe for HTML.
//!
//! The commands, the benchmarks and the planner all show results, and none of them uses another.
//! This crate is pure: it turns values into text. What a report contains stays with whoever
//! measured or computed it.

mod drawing;
mod table;

pub use drawing::{Drawing, escape};
pub use table::Table;
