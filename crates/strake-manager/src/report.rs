//! What a recovery did, counted.

use strake_proto::{Error, ErrorKind, NsdId, Result};
use tracing::error;

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Stripes looked at.
    pub stripes: u64,
    /// Of these, written anew or copied.
    pub rewritten: u64,
    /// Of these, deleted.
    pub deleted: u64,
    /// Of these, not to be had: too many NSDs are away.
    pub failed: u64,
    /// Bytes of files that were stable and are gone.
    pub lost: u64,
    /// Whether everything was compared, because it was not known what a returning NSD had missed.
    pub full: bool,
}

impl RecoveryReport {
    /// Counts a block that cannot be had now; the log names the first. Other errors are returned.
    pub(crate) fn count_failure(&mut self, nsd: NsdId, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Io {
            return Err(error);
        }
        if self.failed == 0 {
            error!(target: "disks", "NSD {nsd}: recovery: {error}");
        }
        self.failed += 1;
        Ok(())
    }
}
