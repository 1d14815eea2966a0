//! Verifies everything on a disk but its strips while it is in use: superblocks, log, and pages of
//! the index. It reads past all caches, one part at a time. The client verifies strips, because it
//! can rebuild them.
//!
//! 1. *Superblocks and log* are in memory as well, and are written again.
//! 2. *The index* is written anew elsewhere if no live page is lost: the damaged page was free, or
//!    a cache still has it. Otherwise the records on that page are gone. The client then notes that
//!    this disk has missed something. Only after that does it ask for a *salvage*: the rest of the
//!    index is written anew, and the store refuses everything. So its owner opens it again, and
//!    nothing in memory still counts on lost records. What is missing is then copied, like writes
//!    that a disk has missed.

use super::BlockStore;
use strake_proto::nsd::{NsdReply, ScrubPart};
use strake_proto::{Error, ErrorKind, Result};
use strake_store::{Lsn, Renewed};
use tracing::error;

/// One part of a scrub has this many pages of the index: 1 MiB.
const PAGES_PER_PART: u64 = 256;
/// The length in bytes of the two copies of the superblock.
const SUPERBLOCKS_BYTES: u64 = 2 * strake_store::superblock::SUPERBLOCK_BYTES as u64;

impl BlockStore {
    pub(super) fn scrub(&self, part: u64) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let found = match part.checked_sub(1) {
            None => self.scrub_head()?,
            Some(run) => self.scrub_index(run)?,
        };
        if let Some(fault) = &found.fault {
            error!(target: "nsd", "NSD {}: {fault}", self.nsd);
        }
        Ok(NsdReply::Scrubbed(found))
    }

    fn scrub_head(&self) -> Result<ScrubPart> {
        let bytes = SUPERBLOCKS_BYTES + self.journal.used();
        let mut found = ScrubPart { next: Some(1), bytes, ..ScrubPart::default() };
        let mut faults = Vec::new();
        found.mended = self.container.verify_superblocks()?;
        if found.mended > 0 {
            faults.push("its superblock was damaged and has been written again".to_owned());
        }
        if let Some(chunk) = self.verify_log()? {
            found.mended += 1;
            let what = format!("its log was damaged at chunk {chunk} and has been written anew");
            faults.push(what);
        }
        found.bad = found.mended;
        found.fault = (!faults.is_empty()).then(|| faults.join("; "));
        Ok(found)
    }

    fn scrub_index(&self, run: u64) -> Result<ScrubPart> {
        let pages = self.index.verify(run.saturating_mul(PAGES_PER_PART), PAGES_PER_PART)?;
        let mut found = pages.part(run.saturating_add(2), "pages of its index");
        if found.bad == found.mended {
            return Ok(found);
        }
        let what = found.fault.take().unwrap_or_default();
        // Afterwards the whole index is new, or it cannot be mended.
        found.next = None;
        found.fault = Some(match self.renew_index(false) {
            Ok(_) => {
                found.mended = found.bad;
                format!("{what}; it has been written anew")
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                found.is_lost = true;
                format!("{what}: {error}")
            }
            Err(error) => format!("{what}, and it cannot be written anew: {error}"),
        });
        Ok(found)
    }

    pub(super) fn salvage(&self) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        if !self.renew_index(true)?.is_whole {
            // The allocator still counts units that no record names any more.
            let detail = "its index was damaged; what is left of it has been written anew";
            self.fail(Error::new(ErrorKind::Io, detail));
        }
        Ok(NsdReply::Done)
    }

    /// Forgets everything that caches have of the index. For tests of data that a disk has lost.
    pub fn forget_caches(&self) {
        self.index.forget_caches();
    }

    fn renew_index(&self, salvage: bool) -> Result<Renewed> {
        let _guard = self.checkpointing.lock();
        self.make_durable()?;
        let renewed = match self.index.renew(salvage) {
            // The same cases as for a checkpoint.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.discard_all() => {
                self.index.renew(salvage)?
            }
            other => other?,
        };
        self.journal.trim(Lsn(renewed.applied.0 + 1)).map_err(|error| self.fail(error))?;
        Ok(renewed)
    }
}

#[cfg(test)]
#[path = "scrub_test.rs"]
mod scrub_test;
