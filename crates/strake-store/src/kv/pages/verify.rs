//! Reads units back from the disk, past all caches, while redb uses them.
//!
//! A unit must match its checksum. A table and unit 0 must equal what memory has of them. If one of
//! these two does not, it is written anew from memory with the same bytes, so a torn write changes
//! nothing. The contents of a damaged unit are not known here; `Kv::renew` mends it.

use super::{ENTRIES_PER_TABLE, Pages, UNIT_BYTES, checksum};
use crate::superblock::u32_at;
use std::io;
use strake_env::AlignedBuffer;
use strake_proto::nsd::ScrubPart;

/// The findings in some units of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The unit to go on with; `None` at the end.
    pub next: Option<u64>,
    /// Bytes read.
    pub bytes: u64,
    /// Units that were damaged or unreadable.
    pub damaged: u64,
    /// The number of these that were written anew.
    pub mended: u64,
}

impl Verified {
    /// These pages as a part of a scrub. `next` is the part after it, if there is one, and `pages`
    /// names them in a sentence ("of its pages"). If not all damage is mended, the caller says what
    /// became of it.
    pub fn part(&self, next: u64, pages: &str) -> ScrubPart {
        let fault = (self.damaged > 0).then(|| format!("{} {pages} are damaged", self.damaged));
        let are_mended = self.damaged == self.mended;
        ScrubPart {
            next: self.next.map(|_| next),
            bytes: self.bytes,
            bad: self.damaged,
            mended: self.mended,
            fault: fault.map(|fault| match are_mended {
                true => format!("{fault}; they have been written again"),
                false => fault,
            }),
            ..ScrubPart::default()
        }
    }
}

impl Pages {
    /// Verifies up to `count` units from `first` on. Writers wait meanwhile.
    pub(crate) fn verify_units(&self, first: u64, count: u64) -> io::Result<Verified> {
        let _writing = self.writing.lock();
        let end = self.state.read().space.length.div_ceil(UNIT_BYTES);
        let last = first.saturating_add(count).min(end);
        let mut found = Verified { next: (last < end).then_some(last), ..Verified::default() };
        let mut unit = first;
        while unit < last {
            let (offset, together) = self.place(&self.state.read().space, unit);
            let run = together.min(last - unit);
            if unit.is_multiple_of(self.layout.data_units) {
                self.verify_tables(unit, &mut found)?;
            }
            self.load_tables(unit, unit + run)?;
            let mut buffer = AlignedBuffer::zeroed((run * UNIT_BYTES) as usize);
            let is_read = self.disk().read_at(offset, &mut buffer).is_ok();
            for (at, bytes) in (0..).zip(buffer.chunks_exact_mut(UNIT_BYTES as usize)) {
                // A unit that cannot be read must not hide the others.
                let place = offset + at * UNIT_BYTES;
                let is_read = is_read || self.disk().read_at(place, bytes).is_ok();
                found.bytes += UNIT_BYTES;
                self.verify_unit(unit + at, is_read.then_some(bytes), &mut found)?;
            }
            unit += run;
        }
        Ok(found)
    }

    /// Compares the tables of a chunk with memory. `unit` is the chunk's first unit. Tables that
    /// are not in memory are verified through their units.
    fn verify_tables(&self, unit: u64, found: &mut Verified) -> io::Result<()> {
        let end = unit + self.layout.data_units;
        for first in (unit..end).step_by(ENTRIES_PER_TABLE as usize) {
            let index = self.table_of(first).0;
            let (known, offset) = {
                let state = self.state.read();
                let known = state.tables.get(&index).filter(|table| !table.dirty);
                let known = known.map(|table| AlignedBuffer::from_slice(&table.entries));
                (known, self.table_offset(&state.space, index))
            };
            if let Some(known) = known {
                self.compare(offset, &known, found)?;
            }
        }
        Ok(())
    }

    fn verify_unit(
        &self,
        unit: u64,
        bytes: Option<&mut [u8]>,
        found: &mut Verified,
    ) -> io::Result<()> {
        let state = self.state.read();
        if state.dirty.contains_key(&unit) {
            return Ok(());
        }
        if unit == 0 {
            let known = state.header.as_ref().map(|header| AlignedBuffer::from_slice(header));
            let (offset, _) = self.place(&state.space, 0);
            drop(state);
            return known.map_or(Ok(()), |known| self.compare(offset, &known, found));
        }
        let (table, entry) = self.table_of(unit);
        let table = state.tables.get(&table).expect("invariant: tables were loaded");
        let wanted = u32_at(&table.entries, entry);
        // A unit that was never written holds nothing.
        if wanted != 0 && bytes.is_none_or(|bytes| checksum(bytes) != wanted) {
            found.damaged += 1;
        }
        Ok(())
    }

    /// Writes a unit anew if it differs from what memory has of it.
    fn compare(&self, offset: u64, known: &AlignedBuffer, found: &mut Verified) -> io::Result<()> {
        let mut buffer = AlignedBuffer::zeroed(known.len());
        found.bytes += UNIT_BYTES;
        let is_read = self.disk().read_at(offset, &mut buffer).is_ok();
        if is_read && buffer[..] == known[..] {
            return Ok(());
        }
        found.damaged += 1;
        self.disk().write_at(offset, known)?;
        self.disk().sync()?;
        found.mended += 1;
        Ok(())
    }
}
