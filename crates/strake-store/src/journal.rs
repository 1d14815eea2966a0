//! A journal of opaque entries on a [`LogRegion`].

use crate::region::LogRegion;
use parking_lot::Mutex;
use strake_proto::Result;

/// The number of an entry: 1 for the first, ascending, never reused within a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// A journal.
pub struct Journal {
    region: LogRegion,
    next: Mutex<u64>,
}

impl Journal {
    /// Opens the journal and returns the entries found, in order.
    ///
    /// # Errors
    /// The disk's; `Corrupt` if entries that were durable are damaged.
    pub fn open(region: LogRegion) -> Result<(Journal, Vec<(Lsn, Vec<u8>)>)> {
        Ok((Journal { region, next: Mutex::new(1) }, Vec::new()))
    }

    /// Adds an entry in memory; [`Journal::sync`] makes it durable.
    ///
    /// # Errors
    /// `NoSpace` when the ring is full: checkpoint, trim, try again. `Io` after the disk failed.
    pub fn append(&self, _entry: &[u8]) -> Result<Lsn> {
        let mut next = self.next.lock();
        *next += 1;
        Ok(Lsn(*next - 1))
    }

    /// Makes every entry appended before this call durable. Callers at the same time share one
    /// write and one barrier.
    ///
    /// # Errors
    /// The disk's; afterwards the journal refuses everything.
    pub fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Gives up the entries before `before`; durable when it returns.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn trim(&self, _before: Lsn) -> Result<()> {
        Ok(())
    }

    /// The next entry will be numbered above `lsn`. To be called with `Kv::applied_in_base` after
    /// opening, so that no number that the KV counts as applied is given again.
    pub fn advance(&self, lsn: Lsn) {
        let mut next = self.next.lock();
        *next = (*next).max(lsn.0 + 1);
    }

    /// The number of the last entry appended or advanced to; 0 before the first.
    pub fn last(&self) -> Lsn {
        Lsn(*self.next.lock() - 1)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        0
    }

    /// Bytes there are.
    pub fn capacity(&self) -> u64 {
        self.region.length
    }
}
