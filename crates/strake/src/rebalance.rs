//! Files that are moved to the newest layout: what a user orders, and what the one who repairs
//! answers. That is the daemon of a file system of one machine, and the leader in a cluster.

use crate::scrub::Order;
use serde::{Deserialize, Serialize};
use strake_manager::{Manager, RebalanceView};
use strake_proto::Result;

/// How far the moving of files is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RebalanceReport {
    /// `never`, `running`, `complete` or `stopped`.
    pub(crate) state: String,
    /// When it began, in seconds since 1970.
    pub(crate) started_seconds: Option<i64>,
    /// When it ended.
    pub(crate) ended_seconds: Option<i64>,
    /// Bytes per second at most; 0 for no limit.
    pub(crate) rate: u64,
    /// Bytes of files moved.
    pub(crate) done_bytes: u64,
    /// Bytes of files that lay by an older layout when it began.
    pub(crate) total_bytes: u64,
    /// Files moved.
    pub(crate) moved_files: u64,
    /// Files left where they were, because they were in use or could not be read.
    pub(crate) left_files: u64,
}

impl From<RebalanceView> for RebalanceReport {
    fn from(view: RebalanceView) -> RebalanceReport {
        let state = match (view.running, view.started.is_some(), view.complete) {
            (true, _, _) => "running",
            (false, false, _) => "never",
            (false, true, true) => "complete",
            (false, true, false) => "stopped",
        };
        RebalanceReport {
            state: state.to_owned(),
            started_seconds: view.started.map(|time| time.seconds),
            ended_seconds: view.ended.map(|time| time.seconds),
            rate: view.rate,
            done_bytes: view.done,
            total_bytes: view.total,
            moved_files: view.moved,
            left_files: view.left,
        }
    }
}

/// Does what is ordered, and says how far it is after that.
///
/// # Errors
/// `Busy` if files are to be moved while they are, or while a disk is being replaced or deleted;
/// the metadata's.
pub(crate) fn obey(manager: &Manager, order: Order) -> Result<RebalanceReport> {
    match order {
        Order::Start { rate } => manager.start_rebalance(rate)?,
        Order::Stop => manager.stop_rebalance()?,
        Order::Status => {}
    }
    Ok(manager.rebalance().into())
}
