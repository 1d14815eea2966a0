//! A scrub of one node's copy of the metadata, part by part, while it is in use. A copy that does
//! not lead is never read until its turn comes, so nobody else would find that it is damaged.
//!
//! 1. *The journal* has nothing that is not in memory too. It is written anew.
//! 2. *The store* is written anew from itself, if everything that counts can be read.
//! 3. Otherwise this node gives its store up, and gets one from the others.

use super::ReplicatedMeta;
use crate::store::scrub::{PAGES_PER_PART, is_damage};
use strake_proto::nsd::ScrubPart;
use strake_proto::{Error, ErrorKind, Result};
use strake_replica::replica::Failure;
use tracing::error;

impl ReplicatedMeta {
    /// Scrubs one part: the journal is part 0, and the pages of the store are the next ones.
    ///
    /// # Errors
    /// `Busy` if this node's part of the metadata has ended; the disk's.
    pub fn scrub(&self, part: u64) -> Result<ScrubPart> {
        let found = match part.checked_sub(1) {
            None => self.scrub_journal()?,
            Some(run) => self.scrub_store(run)?,
        };
        if let Some(fault) = &found.fault {
            error!(target: "metadata", "the copy on NSD {}: {fault}", self.options.nsd);
        }
        Ok(found)
    }

    fn scrub_journal(&self) -> Result<ScrubPart> {
        let verified = self.replica.verify_journal(self.options.wait_max);
        let verified = verified.map_err(|failure| match failure {
            Failure::Ended(_) => Error::new(ErrorKind::Busy, failure.to_string()),
            _ => Error::new(ErrorKind::TimedOut, failure.to_string()),
        })?;
        let pages = u64::from(verified.damage.is_some());
        Ok(ScrubPart {
            next: Some(1),
            bytes: verified.bytes,
            bad: pages,
            mended: pages,
            fault: verified.damage.map(|damage| format!("{damage}; it has been written anew")),
            ..ScrubPart::default()
        })
    }

    fn scrub_store(&self, run: u64) -> Result<ScrubPart> {
        let pages = match self.kv.verify(run.saturating_mul(PAGES_PER_PART), PAGES_PER_PART) {
            // A checkpoint has met the damage, or the disk has failed.
            Err(fault) if is_damage(&fault) && self.has_others() => {
                let what = format!("it cannot be read: {fault}");
                self.give_way(fault);
                return Ok(ScrubPart { bad: 1, fault: Some(what), ..ScrubPart::default() });
            }
            pages => pages?,
        };
        let mut found = pages.part(run.saturating_add(2), "of its pages");
        if found.bad == found.mended {
            return Ok(found);
        }
        let what = found.fault.take().unwrap_or_default();
        // Afterwards the whole store is new, or comes from another node, or cannot be mended.
        found.next = None;
        found.fault = Some(match self.kv.renew(false) {
            Ok(_) => {
                found.mended = found.bad;
                format!("{what}; it has been made anew")
            }
            Err(fault) if is_damage(&fault) && self.has_others() => {
                self.give_way(fault);
                format!("{what}; it is made anew from another node's")
            }
            Err(fault) => format!("{what}, and it cannot be made anew: {fault}"),
        });
        Ok(found)
    }

    /// This node leads no more, and its owner ends its part ([`ReplicatedMeta::fault`]).
    pub(super) fn give_way(&self, fault: Error) {
        let mut known = self.fault.lock();
        if known.is_none() {
            error!(target: "metadata", "NSD {}: {fault}", self.options.nsd);
            *known = Some(fault);
        }
    }
}
