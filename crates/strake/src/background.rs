//! Work in the background that goes through all files (`strake fs scrub`, `strake fs rebalance`): a
//! user's order, and the progress that the one who repairs answers. That is the daemon of a file
//! system of one machine, and the leader in a cluster.

use serde::{Deserialize, Serialize};
use strake_manager::View;

/// A user's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Begin.
    Start {
        /// Bytes per second at most; 0 for no limit.
        rate: u64,
    },
    /// Say how far it is.
    Status,
    /// End early.
    Stop,
}

/// The progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Progress {
    /// `never`, `running`, `complete` or `stopped`.
    pub(crate) state: String,
    /// When it began, in seconds since 1970.
    pub(crate) started_seconds: Option<i64>,
    /// When it ended.
    pub(crate) ended_seconds: Option<i64>,
    /// Bytes per second at most; 0 for no limit.
    pub(crate) rate: u64,
    /// Bytes of files that are done.
    pub(crate) done_bytes: u64,
    /// Bytes of files that were to be done when it began.
    pub(crate) total_bytes: u64,
}

impl<F> From<&View<F>> for Progress {
    fn from(view: &View<F>) -> Progress {
        let state = match (view.running, view.started.is_some(), view.complete) {
            (true, _, _) => "running",
            (false, false, _) => "never",
            (false, true, true) => "complete",
            (false, true, false) => "stopped",
        };
        Progress {
            state: state.to_owned(),
            started_seconds: view.started.map(|time| time.seconds),
            ended_seconds: view.ended.map(|time| time.seconds),
            rate: view.rate,
            done_bytes: view.done,
            total_bytes: view.total,
        }
    }
}
