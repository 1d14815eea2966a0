//! Scrubs of a file system: what a user orders, and what the one who repairs answers. That is the
//! daemon of a file system of one machine, and the leader in a cluster.

use serde::{Deserialize, Serialize};
use strake_manager::{Manager, ScrubView};
use strake_proto::Result;

/// A user's order about work in the background.
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

/// The progress and findings of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScrubReport {
    /// `never`, `running`, `complete` or `stopped`.
    pub(crate) state: String,
    /// When it began, in seconds since 1970.
    pub(crate) started_seconds: Option<i64>,
    /// When it ended.
    pub(crate) ended_seconds: Option<i64>,
    /// Bytes per second at most; 0 for no limit.
    pub(crate) rate: u64,
    /// Bytes of files looked at.
    pub(crate) done_bytes: u64,
    /// Bytes of files there were when it began.
    pub(crate) total_bytes: u64,
    /// Strips verified.
    pub(crate) strips: u64,
    /// Of these, bad or missing.
    pub(crate) bad_strips: u64,
    /// Blocks mended.
    pub(crate) mended_blocks: u64,
    /// Blocks that could not be mended.
    pub(crate) failed_blocks: u64,
    /// Bytes of superblocks, logs, indexes and copies of the metadata verified.
    #[serde(default)]
    pub(crate) own_bytes: u64,
    /// Damaged pages of these.
    #[serde(default)]
    pub(crate) bad_pages: u64,
    /// Of these, mended.
    #[serde(default)]
    pub(crate) mended_pages: u64,
}

impl From<ScrubView> for ScrubReport {
    fn from(view: ScrubView) -> ScrubReport {
        let state = match (view.running, view.started.is_some(), view.complete) {
            (true, _, _) => "running",
            (false, false, _) => "never",
            (false, true, true) => "complete",
            (false, true, false) => "stopped",
        };
        ScrubReport {
            state: state.to_owned(),
            started_seconds: view.started.map(|time| time.seconds),
            ended_seconds: view.ended.map(|time| time.seconds),
            rate: view.rate,
            done_bytes: view.done,
            total_bytes: view.total,
            strips: view.strips,
            bad_strips: view.bad,
            mended_blocks: view.mended,
            failed_blocks: view.failed,
            own_bytes: view.own_bytes,
            bad_pages: view.bad_pages,
            mended_pages: view.mended_pages,
        }
    }
}

/// Does what is ordered, and says how the scrub is after it.
///
/// # Errors
/// `Busy` if a scrub is to begin and one is under way.
pub(crate) fn obey(manager: &Manager, order: Order) -> Result<ScrubReport> {
    match order {
        Order::Start { rate } => manager.start_scrub(rate)?,
        Order::Stop => manager.stop_scrub(),
        Order::Status => {}
    }
    Ok(manager.scrub().into())
}
