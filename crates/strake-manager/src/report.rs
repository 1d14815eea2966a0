//! Counts of what a recovery did.

use strake_proto::{Error, ErrorKind, NsdId, Result};
use tracing::error;

/// Counts of what a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Stripes looked at.
    pub stripes: u64,
    /// The stripes among them that were written anew or copied.
    pub rewritten: u64,
    /// The stripes among them that were deleted.
    pub deleted: u64,
    /// The stripes among them that cannot be read, because too many NSDs are away.
    pub failed: u64,
    /// Bytes of files that were stable and are lost.
    pub lost: u64,
    /// Whether everything was compared, because it was not known what a returning NSD had missed.
    pub full: bool,
}

impl RecoveryReport {
    /// Counts a block that cannot be read now. The log names the first one. Errors of another kind
    /// are returned.
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
