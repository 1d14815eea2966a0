//! `strake fs recover`: the metadata of one file system goes on without a majority of its copies,
//! while the cluster goes on as it was. It is for disks that are lost when their nodes are not.
//!
//! The change of the records is what `strake cluster recover` would write. Nodes hear of it and
//! follow: the copy that goes on begins a log of its own, the others are void.

use super::super::server::Node;
use super::metadata::{LostMajority, while_records_agree};
use crate::cluster::Change;
use std::sync::Arc;
use strake_proto::{Error, ErrorKind, NsdId, Result};
use tracing::warn;

impl Node {
    /// Looks with which copy a file system would go on. If a user has agreed to that one, it goes
    /// on.
    ///
    /// # Errors
    /// `Invalid` if there is nothing to recover, or no copy; `Busy` if the copy is another one than
    /// the user has seen.
    pub(in super::super) fn recover_file_system(
        self: &Arc<Node>,
        name: &str,
        agreed: Option<NsdId>,
    ) -> Result<LostMajority> {
        let _alone = self.changing.lock();
        let records = self.newest_records()?;
        let record = records.fs_named(name)?;
        let found = while_records_agree(&records, record, &self.node_states())?;
        let Some(agreed) = agreed else { return Ok(found) };
        let copy = match &found.goes_on {
            Ok(copy) if copy.nsd.0 == agreed => copy,
            Ok(copy) => {
                let detail = format!("the newest copy is that of {} now: look again", copy.node);
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            Err(reason) => return Err(Error::new(ErrorKind::Invalid, reason.clone())),
        };
        warn!(
            target: "node",
            "the metadata of {name} goes on without a majority, with the copy of {} on {}",
            copy.node, copy.nsd.1
        );
        let lost = found.lost_nsds.iter().map(|(nsd, _)| *nsd).collect();
        let change = Change::GoOn { fs: record.id, origin: agreed, lost };
        let after = self.change_at(Some(records.revision), &change)?;
        self.serve_file_systems();
        let record = after.fs(record.id).ok_or(ErrorKind::NotFound)?;
        self.wait_until_served(record, "recovered")?;
        Ok(found)
    }
}
