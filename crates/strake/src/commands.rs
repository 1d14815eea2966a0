//! The commands, one file for each group. Each file turns arguments into calls and results into
//! text.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod cluster_fs;
pub(crate) mod config;
pub(crate) mod diag;
pub(crate) mod disk;
pub(crate) mod down;
mod empty;
pub(crate) mod fs;
pub(crate) mod health;
pub(crate) mod help;
pub(crate) mod lab;
pub(crate) mod manuals;
pub(crate) mod mm;
pub(crate) mod mon;
pub(crate) mod mount;
pub(crate) mod node;
pub(crate) mod plan;
mod recover;
pub(crate) mod stat;
pub(crate) mod top;
pub(crate) mod up;

use std::process::ExitCode;

/// Prints the version, as `--version` does.
pub(crate) fn version() -> ExitCode {
    println!("strake {}", env!("CARGO_PKG_VERSION"));
    ExitCode::SUCCESS
}
