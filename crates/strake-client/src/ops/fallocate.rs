//! Allocation, holes and zeroed ranges.
//!
//! The whole blocks of a hole are deleted with one metadata entry, as in a truncate. The blocks at
//! its edges are zeroed in memory.
//!
//! An allocation writes zeros where the file has nothing. So the space is counted as used, on each
//! disk that it will take, and outlives restarts. Writing over it needs no more room than any
//! overwriting does (docs/decisions/0019, 0030, 0049). Beyond the end of the file nothing can be
//! stored, so an allocation with `keep_size` is refused there: what it promised could not be kept.

use crate::data::of::Of;
use crate::flush::make_room::with_room;
use crate::memory::file::Content;
use crate::memory::page_pool::Fill;
use crate::vfs::FallocateMode;
use std::ops::Range;
use std::sync::atomic::Ordering;
use strake_proto::limits::{FILE_BYTES_MAX, UNIT_BYTES};
use strake_proto::meta::MetaOp;
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout, Result};

impl Of<'_> {
    /// See [`FallocateMode`].
    pub(crate) fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        if range.start >= range.end {
            return Err(ErrorKind::Invalid.into());
        }
        if range.end > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooBig.into());
        }
        with_room(self.mount, || self.fallocate_once(range.clone(), mode))
    }

    fn fallocate_once(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        match mode {
            FallocateMode::Allocate { keep_size: true }
            | FallocateMode::ZeroRange { keep_size: true }
                if range.end > self.file.size() =>
            {
                let detail = "space beyond the end of a file cannot be kept for it";
                Err(Error::new(ErrorKind::NotSupported, detail))
            }
            FallocateMode::Allocate { keep_size } => {
                let new = range.end.saturating_sub(range.start.max(self.file.size()));
                if !self.mount.array.room.would_fit(new) {
                    return Err(ErrorKind::NoSpace.into());
                }
                self.allocate(&range, keep_size)?;
                self.grow_to(range.end, keep_size)
            }
            FallocateMode::PunchHole => self.punch(range),
            FallocateMode::ZeroRange { keep_size } => {
                self.punch(range.clone())?;
                self.allocate(&range, keep_size)?;
                self.grow_to(range.end, keep_size)
            }
        }
    }

    /// Gives each block of the range space up to the range's end, within the file if `keep_size`.
    fn allocate(&self, range: &Range<u64>, keep_size: bool) -> Result<()> {
        let block_size = u64::from(self.mount.array.block_size);
        let extend = (!keep_size && range.end > self.file.size()).then(|| self.file.extend.lock());
        let size = self.file.size();
        let end = if keep_size { range.end.min(size) } else { range.end };
        if end > size {
            self.trim_tail(size)?;
        }
        let mut at = range.start;
        while at < end {
            let next = end.min((at / block_size + 1) * block_size);
            self.allocate_to(next - 1, extend.is_some())?;
            at = next;
        }
        Ok(())
    }

    fn grow_to(&self, end: u64, keep_size: bool) -> Result<()> {
        if !keep_size && end > self.file.size() {
            self.set_size_at_least(end)?;
        } else {
            self.note_written(0);
        }
        Ok(())
    }

    fn set_size_at_least(&self, size: u64) -> Result<()> {
        let _extend = self.file.extend.lock();
        let old = self.file.size();
        if size > old {
            self.trim_tail(old)?;
        }
        self.note_written(size);
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        let (mount, file) = (self.mount, self.file);
        let block_size = u64::from(mount.array.block_size);
        for _ in 0..2 {
            mount.admit(block_size as usize);
        }
        let mut content = file.content.write();
        let size = file.size();
        let range = range.start.min(size)..range.end.min(size);
        match &mut *content {
            _ if range.is_empty() => {}
            Content::Empty => {}
            Content::Inline(bytes) => {
                let end = (range.end as usize).min(bytes.len());
                if (range.start as usize) < end {
                    bytes[range.start as usize..end].fill(0);
                    file.content_changed.store(true, Ordering::Release);
                }
            }
            Content::Object(layout) => {
                let layout = *layout;
                self.punch_blocks(&layout, range, size)?;
            }
        }
        drop(content);
        self.note_written(0);
        Ok(())
    }

    fn punch_blocks(&self, layout: &ObjectLayout, range: Range<u64>, size: u64) -> Result<()> {
        let block_size = u64::from(layout.block_size);
        // At the end of the file the last block counts as whole, however long it is.
        let past =
            if range.end == size { size.div_ceil(block_size) } else { range.end / block_size };
        let first = range.start.div_ceil(block_size);
        let zero = |index: u64, start: u64, end: u64| {
            let base = index * block_size;
            self.zero_in_block(layout, index, (start - base) as usize, (end - base) as usize)
        };
        if first > past {
            // The range lies within one block.
            return zero(past, range.start, range.end);
        }
        if !range.start.is_multiple_of(block_size) {
            zero(first - 1, range.start, range.end.min(first * block_size))?;
        }
        if range.end > past * block_size {
            zero(past, range.start.max(past * block_size), range.end)?;
        }
        if first < past { self.delete_blocks(layout, first, past) } else { Ok(()) }
    }

    fn delete_blocks(&self, layout: &ObjectLayout, from: u64, to: u64) -> Result<()> {
        let (mount, file) = (self.mount, self.file);
        let gains = file.take_gains(from, to);
        let fresh = file.drop_blocks(&mount.array.room, from, to);
        {
            let mut core = self.inode.core.lock();
            core.unstable_gain -= gains.unstable();
            core.fresh = core.fresh.saturating_sub(fresh);
        }
        if file.stored_blocks.load(Ordering::Acquire) <= from && !file.is_hardened() {
            return Ok(());
        }
        let (from, to) = (BlockIndex(from), BlockIndex(to));
        let removed = self.stable_bytes(layout, (from, to), &gains)?;
        let _serial = file.meta.lock();
        let version = mount.array.io.versions().next();
        let ino = self.inode.ino;
        let allocated_delta = self.told_delta(removed);
        let op = MetaOp::DeleteBlocks { ino, from, to, version, allocated_delta };
        mount.change(self.inode, op).inspect_err(|_| {
            self.inode.core.lock().allocated_delta += allocated_delta + removed;
        })?;
        file.kept(|kept| kept.forget_blocks(from.0, to.0));
        file.barrier.store(mount.array.meta.changes(), Ordering::Release);
        mount.array.floors.add(layout.object, from, to, version);
        Ok(())
    }

    /// Zeros a part of a block in memory, unless the block is a hole.
    fn zero_in_block(
        &self,
        layout: &ObjectLayout,
        index: u64,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let mount = self.mount;
        if self.file.find_block(index).is_none() && self.is_hole(layout, index)? {
            return Ok(());
        }
        loop {
            let block = self.file.block(layout, index);
            let mut data = block.data.write();
            if data.detached {
                continue;
            }
            let to = to.min(data.length as usize);
            if from >= to {
                return Ok(());
            }
            self.fill_edges(layout, &block, &mut data, from, to)?;
            let end = to.next_multiple_of(UNIT_BYTES);
            block.grow(&mut data, &mount.page_pool, end, Fill::Whole);
            self.make_whole_dirty(layout, &block, &mut data, 0)?;
            let (first, last) = (from.div_ceil(UNIT_BYTES), to / UNIT_BYTES);
            for unit in first..last {
                data.zero_unit(unit);
            }
            data.zero_valid(from, to);
            return Ok(());
        }
    }

    /// Whether a block that is not in memory is a hole.
    pub(crate) fn is_hole(&self, layout: &ObjectLayout, index: u64) -> Result<bool> {
        if self.file.stored_limit(layout, index) == 0 {
            return Ok(true);
        }
        let block = BlockIndex(index);
        let floor = self.mount.array.floors.floor(layout.object, block);
        Ok(self.mount.array.io.head(layout, block, floor)?.is_none())
    }
}
