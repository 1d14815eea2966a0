//! A journal in use is read again and compared with what was written. Everything that is in force
//! is in memory too, so a damaged journal is written anew into its other area.
//!
//! A caller reads without the thread that writes, which goes on meanwhile. If that has begun
//! another epoch by then, what the caller finds damaged is not in force any more.

use super::record::BLOCK_BYTES;
use super::{Identity, Journal, JournalError, area_at, newest_superblock, read_records};
use std::sync::Arc;
use strake_env::{AlignedBuffer, Disk};

/// The part of a journal that is in force at a moment.
#[derive(Clone)]
pub(crate) struct Span {
    disk: Arc<dyn Disk>,
    identity: Identity,
    area_bytes: u64,
    /// The epoch.
    pub(crate) epoch: u64,
    /// The number of records written in this epoch.
    sequence: u64,
    /// Their length in bytes.
    pub(super) at: u64,
}

impl Span {
    /// The bytes that [`Span::verify`] reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.at + BLOCK_BYTES as u64
    }

    /// Reads the newest superblock and all records.
    ///
    /// # Errors
    /// `Damaged`, and the disk's errors. If another epoch has begun meanwhile, they mean nothing
    /// ([`Journal::renew`]).
    pub(crate) fn verify(&self) -> Result<(), JournalError> {
        if newest_superblock(&*self.disk, self.area_bytes)? != (self.identity, self.epoch) {
            return Err(JournalError::Damaged("its newest superblock is lost"));
        }
        let mut area = AlignedBuffer::zeroed(self.at as usize);
        self.disk.read_at(area_at(self.area_bytes, self.epoch), &mut area)?;
        match read_records(&area, self.identity, self.epoch)? {
            (_, found) if found == self.sequence => Ok(()),
            _ => Err(JournalError::Damaged("its last records are bad")),
        }
    }
}

impl Journal {
    /// The part that is in force now.
    pub(crate) fn span(&self) -> Span {
        let Journal { identity, area_bytes, epoch, sequence, at, .. } = *self;
        Span { disk: Arc::clone(&self.disk), identity, area_bytes, epoch, sequence, at }
    }

    /// Writes everything anew if `epoch` is still in force. Returns whether it was.
    ///
    /// # Errors
    /// As [`Journal::write`].
    pub(crate) fn renew(&mut self, epoch: u64) -> Result<bool, JournalError> {
        self.refuse_if_failed()?;
        if self.epoch != epoch {
            return Ok(false);
        }
        let outcome = self.begin_epoch();
        self.has_failed |= outcome.is_err();
        outcome.map(|()| true)
    }
}
