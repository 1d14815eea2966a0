//! The log of a run, on the standard error if the environment variable `STRAKE_SIM_LOG` is set:
//! what the product's parts say, and the faults, with the simulated time.

use std::fmt;
use std::sync::Once;
use strake_env::simulation;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// The simulated time, and the process that speaks.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        let process = simulation::process().unwrap_or_default();
        let now = simulation::now().unwrap_or_default();
        write!(out, "{:>11.6} [{process}]", now.saturating_sub(simulation::BOOT).as_secs_f64())
    }
}

/// Begins to log, if that is wanted.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    if std::env::var_os("STRAKE_SIM_LOG").is_none() {
        return;
    }
    STARTED.call_once(|| {
        let log = tracing_subscriber::fmt().with_timer(SimulatedTime).with_ansi(false);
        log.with_writer(std::io::stderr).init();
    });
}
