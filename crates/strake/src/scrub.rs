//! Scrubs of a file system: `strake fs scrub`.

use crate::background::{Order, Progress};
use serde::{Deserialize, Serialize};
use strake_manager::Manager;
use strake_proto::Result;

/// The progress and findings of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScrubReport {
    /// The progress.
    #[serde(flatten)]
    pub(crate) progress: Progress,
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
    let view = manager.scrub();
    let (progress, found) = (Progress::from(&view), view.found);
    Ok(ScrubReport {
        progress,
        strips: found.strips,
        bad_strips: found.bad,
        mended_blocks: found.mended,
        failed_blocks: found.failed,
        own_bytes: found.own_bytes,
        bad_pages: found.bad_pages,
        mended_pages: found.mended_pages,
    })
}
