//! Finds the next data and the next hole, in whole blocks.

use crate::data::of::Of;
use crate::memory::file::Content;
use crate::vfs::SeekFor;
use std::collections::BTreeSet;
use strake_proto::{BlockIndex, ErrorKind, ObjectLayout, Result};

/// So many blocks are looked at together in the search for a hole.
const WINDOW: u64 = 1024;

impl Of<'_> {
    /// The next data or hole at or after `offset`. The end of the file is a hole.
    pub(crate) fn seek(&self, offset: u64, what: SeekFor) -> Result<u64> {
        let content = self.file.content.read();
        let size = self.file.size();
        if offset >= size {
            return Err(ErrorKind::NoDevice.into());
        }
        let found = match &*content {
            Content::Empty => (what == SeekFor::Hole).then_some(offset),
            Content::Inline(bytes) => {
                let held = bytes.len() as u64;
                match what {
                    SeekFor::Data => (offset < held).then_some(offset),
                    SeekFor::Hole => Some(offset.max(held)),
                }
            }
            Content::Object(layout) => match what {
                SeekFor::Data => self.seek_data(layout, offset)?,
                SeekFor::Hole => Some(self.seek_hole(layout, offset, size)?),
            },
        };
        match found.map(|found| found.min(size)) {
            Some(found) if what == SeekFor::Hole || found < size => Ok(found),
            _ => Err(ErrorKind::NoDevice.into()),
        }
    }

    fn seek_data(&self, layout: &ObjectLayout, offset: u64) -> Result<Option<u64>> {
        let block_size = u64::from(layout.block_size);
        let from = offset / block_size;
        let floor = |block| self.mount.array.floors.floor(layout.object, block);
        let range = (BlockIndex(from), BlockIndex::END);
        // Dirty blocks are looked at first. A block that is sent in between is then found stored.
        let dirty = self.file.first_dirty_block(from);
        let stored = self.mount.array.io.first_block(layout, range, &floor)?.map(|block| block.0);
        let first = stored.into_iter().chain(dirty).min();
        Ok(first.map(|index| offset.max(index * block_size)))
    }

    fn seek_hole(&self, layout: &ObjectLayout, offset: u64, size: u64) -> Result<u64> {
        let block_size = u64::from(layout.block_size);
        let end = size.div_ceil(block_size);
        let mut index = offset / block_size;
        while index < end {
            let until = (index + WINDOW).min(end);
            let range = (BlockIndex(index), BlockIndex(until));
            let floor = |block| self.mount.array.floors.floor(layout.object, block);
            // Dirty blocks first, as above.
            let mut data: BTreeSet<u64> = self.file.dirty_blocks().into_iter().collect();
            let stored = self.mount.array.io.blocks(layout, range, &floor)?;
            data.extend(stored.keys().map(|block| block.0));
            if let Some(hole) = (index..until).find(|index| !data.contains(index)) {
                return Ok(offset.max(hole * block_size));
            }
            index = until;
        }
        Ok(size)
    }
}
