//! `strake plan`: sizing, see `strake-plan`.

use std::process::ExitCode;

/// Runs `strake plan …`.
pub(crate) fn run(args: strake_plan::PlanArgs) -> ExitCode {
    strake_plan::run(args)
}
