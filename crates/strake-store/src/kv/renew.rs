//! Verifies the base on the disk while it is used, and writes it anew elsewhere.
//!
//! **Renewing.** With checkpoints shut out, a *draft* of the base is written to chunks of its own:
//! every pair of the old base, with the changes in memory on top. One superblock puts the draft in
//! the old base's place. A crash before it leaves the old base and free chunks. A crash after it
//! leaves the new base. None of the old pages are left then. It does not matter which of them were
//! damaged: pages that no live page names, pages of redb's own, or pages that redb's cache still
//! knew.
//!
//! **Salvaging.** If a live page is lost, the pairs before the first lost page and those behind the
//! last one are kept. The pairs between are gone. An owner may ask for this only if it can get
//! those pairs elsewhere, and only after it has made sure that nobody takes the rest for
//! everything.

use super::base::{self, Base, Snapshot};
use super::overlay::Overlay;
use super::pages::Verified;
use super::{Kv, Writer, close, reopen};
use crate::KvRegion;
use crate::journal::Lsn;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::{Error, ErrorKind, Result};

/// One commit writes pairs of about this many bytes to a draft.
const PART_BYTES: u64 = 8 << 20;

/// The contents of a renewed base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The entry up to which the base has everything that is left.
    pub applied: Lsn,
    /// True if nothing was lost.
    pub is_whole: bool,
}

impl Kv {
    /// Reads up to `count` units of 4 KiB of the base from the disk, from `first` on, past all
    /// caches, and verifies them. A store in memory has no units.
    ///
    /// # Errors
    /// The disk's errors. `Io` once the base is gone.
    pub fn verify(&self, first: u64, count: u64) -> Result<Verified> {
        let pages = self.layers.read().pages.clone();
        match pages {
            Some(pages) => Ok(pages.verify_units(first, count)?),
            None if self.region.is_none() => Ok(Verified::default()),
            None => Err(Error::new(ErrorKind::Io, "the key-value store's disk failed")),
        }
    }

    /// Writes a base with damaged pages anew in other chunks, with everything applied so far, while
    /// readers and appliers go on. With `salvage`, the contents of damaged pages are given up; see
    /// the file's head. The journal must be synced before, as for a checkpoint.
    ///
    /// # Errors
    /// `Corrupt` if something cannot be read and must not be given up. `NoSpace` if no chunks are
    /// free. The disk's errors. After an error the base is as it was.
    pub fn renew(&self, salvage: bool) -> Result<Renewed> {
        let mut writer = self.checkpointing.lock();
        let Some(writer) = &mut *writer else {
            return Ok(Renewed { applied: self.layers.read().applied, is_whole: true });
        };
        if writer.is_closed {
            return Err(Error::new(ErrorKind::Io, "the key-value store is closed"));
        }
        let (frozen, applied) = {
            let mut layers = self.layers.write();
            let frozen = Arc::new(std::mem::take(&mut layers.active));
            layers.frozen = Some(frozen.clone());
            (frozen, layers.applied)
        };
        let role = writer.region.role;
        let container = writer.region.container.clone();
        let written = self.write_draft(writer, &frozen, applied, salvage).and_then(|is_whole| {
            let mut layers = self.layers.write();
            // The base may write to its chunks until it is closed, so it is closed before the
            // chunks get another owner.
            self.cut_views();
            close(writer, &mut layers);
            let before = container.adopt_draft(role)?;
            layers.frozen = None;
            reopen(writer, &mut layers);
            container.release(&before);
            match layers.snapshot {
                Some(_) => Ok(is_whole),
                None => Err(Error::new(ErrorKind::Io, "the new base cannot be opened")),
            }
        });
        match written {
            Ok(is_whole) => {
                self.note_weight(writer);
                self.checkpoints.fetch_add(1, Ordering::Relaxed);
                Ok(Renewed { applied, is_whole })
            }
            Err(error) => {
                container.drop_draft(role);
                self.undo_freeze(writer, frozen);
                Err(error)
            }
        }
    }

    /// Writes the draft durably. Returns true if it has everything.
    fn write_draft(
        &self,
        writer: &mut Writer,
        frozen: &Overlay,
        applied: Lsn,
        salvage: bool,
    ) -> Result<bool> {
        let mut draft = Draft {
            base: Base::open(writer.region.draft(), writer.cache_bytes, &writer.trust)?,
            part: Overlay::default(),
        };
        let is_whole = match draft.copy(self.base_now()?.as_ref(), false, &[]) {
            (_, None) => true,
            (_, Some(error)) if !salvage || error.kind() != ErrorKind::Corrupt => {
                return Err(error);
            }
            (last, Some(_)) => {
                // redb answers nothing more after an error.
                self.cut_views();
                reopen(writer, &mut self.layers.write());
                match draft.copy(self.base_now()?.as_ref(), true, &last).1 {
                    Some(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                    _ => false,
                }
            }
        };
        draft.write_part()?;
        draft.base.write(frozen, applied, self.promise())?;
        Ok(is_whole)
    }

    /// Closes the base, even for callers that still have a handle. Another base will take the
    /// place.
    pub fn close_base(&self) {
        let mut guard = self.checkpointing.lock();
        if let Some(writer) = &mut *guard {
            self.cut_views();
            close(writer, &mut self.layers.write());
            // A caller that finds the base gone must not open it again.
            writer.is_closed = true;
        }
    }

    /// Closes the base, and empties it: the next opening finds a store without anything.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn give_up_base(&self) -> Result<()> {
        self.close_base();
        self.region.as_ref().map_or(Ok(()), KvRegion::clear)
    }

    /// Forgets everything that caches have of the base. For tests of data that a disk has lost.
    pub fn forget_caches(&self) {
        if let Some(writer) = &mut *self.checkpointing.lock() {
            self.cut_views();
            reopen(writer, &mut self.layers.write());
        }
    }

    fn base_now(&self) -> Result<Option<Snapshot>> {
        self.base_of(&self.layers.read())
    }
}

/// A base in the making.
struct Draft {
    base: Base,
    part: Overlay,
}

impl Draft {
    /// Copies the pairs behind `after` in one direction until one cannot be read. Returns the last
    /// key that was read, and the error that ended the copy.
    fn copy(
        &mut self,
        snapshot: Option<&Snapshot>,
        is_back: bool,
        after: &[u8],
    ) -> (Vec<u8>, Option<Error>) {
        let mut last = Vec::new();
        let Some(snapshot) = snapshot else { return (last, None) };
        let low = match after {
            [] => Bound::Unbounded,
            _ => Bound::Excluded(after),
        };
        let mut pairs = match snapshot.range((low, Bound::Unbounded)) {
            Ok(pairs) => pairs,
            Err(error) => return (last, Some(base::from_storage(error))),
        };
        loop {
            let (key, value) = match pairs.next(is_back) {
                None => return (last, None),
                Some(Ok(pair)) => pair,
                Some(Err(error)) => return (last, Some(base::from_storage(error))),
            };
            last.clear();
            last.extend_from_slice(key.value());
            self.part.set(key.value().into(), Some(value.value().into()));
            if self.part.bytes() > PART_BYTES
                && let Err(error) = self.write_part()
            {
                // This error is never damage of the old base, so it must not read as `Corrupt`.
                let is_other = error.kind() != ErrorKind::Corrupt;
                let other = |error: Error| Error::new(ErrorKind::Io, error.to_string());
                return (last, Some(if is_other { error } else { other(error) }));
            }
        }
    }

    fn write_part(&mut self) -> Result<()> {
        let part = std::mem::take(&mut self.part);
        if part.is_empty() { Ok(()) } else { self.base.write(&part, Lsn(0), 0) }
    }
}
