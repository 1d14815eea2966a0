//! Files that are moved to the newest layout: `strake fs rebalance`.

use crate::background::{Order, Progress};
use serde::{Deserialize, Serialize};
use strake_manager::Manager;
use strake_proto::Result;

/// How far the moving of files is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RebalanceReport {
    /// The progress. The total is of the files that lay by an older layout.
    #[serde(flatten)]
    pub(crate) progress: Progress,
    /// Files moved.
    pub(crate) moved_files: u64,
    /// Files left where they were, because they were in use or could not be read.
    pub(crate) left_files: u64,
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
    let view = manager.rebalance();
    let (progress, found) = (Progress::from(&view), view.found);
    Ok(RebalanceReport { progress, moved_files: found.moved, left_files: found.left })
}
