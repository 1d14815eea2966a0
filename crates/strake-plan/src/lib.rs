//! Sizing of storage systems from building blocks, before they are bought.
//!
//! `library` holds what components can do, each constant with its source; `design` is a system as
//! a user writes it; `stage`, `evaluate`, `inventory` and `rule` are the pure calculation, whose
//! every result is a `figure` that carries its derivation. `solve`, `tune` and `compare` build on
//! it. `measure` alone touches the machine and `calibrate` makes library entries of what it
//! finds; `cli`, `text`, `report` and `svg` render.

pub mod adopt;
pub mod calibrate;
pub mod catalogue;
pub mod cli;
pub mod compare;
pub mod design;
pub mod elevation;
pub mod error;
pub mod evaluate;
pub mod figure;
pub mod inventory;
pub mod library;
mod library_check;
pub mod loss;
pub mod measure;
pub mod mix;
pub mod montecarlo;
pub mod operation;
pub mod outputs;
mod parts;
mod rack;
pub mod rebuild;
pub mod reliability;
pub mod report;
pub mod rule;
pub mod solve;
pub mod spread;
pub mod stage;
mod svg;
pub mod text;
pub mod tune;
mod tune_nfs;
pub mod unit;
pub mod whatif;

pub use cli::{PlanArgs, run};
