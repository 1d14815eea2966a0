//! Reading. Bytes in memory are copied. Other bytes are loaded into the page pool with their block,
//! or read past the pool.
//!
//! Two kinds of reads go *past the pool*: small parts of a block that belong to no sequence, and
//! the reads of a kernel that keeps the pages (a *stream*). Such a read holds `content` shared, so
//! nothing is cut meanwhile. A concurrent write may be seen or not, strip by strip, because each
//! strip is of one version. The read takes no lock of a block, and writes no block anew. A block
//! that needs that is loaded instead.

use crate::block_io::load::load;
use crate::data::neighbours;
use crate::data::of::Of;
use crate::data::prefetch::ReadAhead;
use crate::memory::block::Block;
use crate::memory::file::Content;
use crate::memory::page_pool::Page;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::stripe_io::Access;
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{BlockIndex, ObjectLayout, Result};

/// The way in which a handle is read.
#[derive(Clone, Copy)]
struct Way {
    /// Whether the reader excludes other mounts.
    access: Access,
    sequential: bool,
    /// See [`ReadAhead::kept`].
    kept: bool,
    /// The page pool need not keep the bytes: the kernel keeps them, or the file is longer than the
    /// pool. If a reader goes through it, the pool drops each block before its turn comes again,
    /// and those of other files with it.
    passes: bool,
}

/// Blocks up to this length are read whole. They have one data strip, so that takes one I/O.
const READ_WHOLE_BYTES: usize = 64 << 10;
/// If the kernel keeps the pages, a read of so many bytes is worth its own I/O: see
/// [`Of::streams`].
pub(crate) const STREAM_BYTES_MIN: usize = 128 << 10;

/// The result of a step.
enum Step {
    Done(usize),
    /// So many bytes were read past the pool.
    Past(usize),
    /// A buffer of so many bytes is needed. The caller makes room and repeats the step.
    Room(usize),
    /// The content changed its kind, or the block left the map. The caller repeats the step.
    Again,
}

impl Of<'_> {
    /// Reads at `offset`. Returns fewer bytes only at the end of the file. `access` says whether
    /// the caller excludes other mounts.
    ///
    /// # Errors
    /// `Retry` if a block must be written anew, and access is shared. Those of the NSDs.
    pub(crate) fn read(
        &self,
        ahead: &Mutex<ReadAhead>,
        offset: u64,
        out: &mut [u8],
        access: Access,
    ) -> Result<usize> {
        let (goes_on, kept) = {
            let mut ahead = ahead.lock();
            (ahead.note(offset, out.len() as u64), ahead.kept)
        };
        let sequential = goes_on && !(kept && self.fills_gaps(out.len()));
        let passes = kept || !self.mount.page_pool.can_hold(self.file.size());
        let way = Way { access, sequential, kept, passes };
        if offset == 0 {
            neighbours::run_ahead(self.mount, self.inode.ino);
        }
        let mut done = 0;
        let mut room = false;
        let mut past = false;
        while done < out.len() {
            match self.read_step(offset + done as u64, &mut out[done..], way, room)? {
                Step::Done(0) => break,
                Step::Done(count) => {
                    done += count;
                    room = false;
                }
                Step::Past(count) => {
                    done += count;
                    past = true;
                }
                Step::Room(bytes) => {
                    self.mount.admit(bytes);
                    room = true;
                }
                Step::Again => {}
            }
        }
        // For a stream the kernel reads ahead.
        if sequential && done > 0 && !past {
            crate::data::prefetch::run_ahead(self, ahead, offset + done as u64);
        }
        Ok(done)
    }

    /// Whether a kernel that keeps the pages asks for `count` bytes because it has the bytes around
    /// them. When a program reads pages in order that the kernel does not have, the kernel reads
    /// ahead, far more at once. Of pages that it has, it gives up some here and there, and later
    /// asks for them. If such reads counted as a sequence, their blocks would be loaded whole, and
    /// so would the blocks behind them. If other handles are open, small reads may have another
    /// cause.
    fn fills_gaps(&self, count: usize) -> bool {
        count < STREAM_BYTES_MIN && !self.has_other_handles()
    }

    fn has_other_handles(&self) -> bool {
        self.mount.table.handles(self.inode.ino) > 1
    }

    fn read_step(&self, offset: u64, out: &mut [u8], way: Way, room: bool) -> Result<Step> {
        let content = self.file.content.read();
        let left = self.file.size().saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        if count == 0 {
            return Ok(Step::Done(0));
        }
        match &*content {
            Content::Empty => {
                out[..count].fill(0);
                Ok(Step::Done(count))
            }
            Content::Inline(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let part = (bytes.len() - start).min(count);
                out[..part].copy_from_slice(&bytes[start..start + part]);
                out[part..count].fill(0);
                Ok(Step::Done(count))
            }
            Content::Object(layout) => {
                let block_size = u64::from(layout.block_size);
                let (index, within) = (offset / block_size, (offset % block_size) as usize);
                let count = count.min(layout.block_size as usize - within);
                self.read_block(layout, index, within, &mut out[..count], way, room)
            }
        }
    }

    fn read_block(
        &self,
        layout: &ObjectLayout,
        index: u64,
        within: usize,
        out: &mut [u8],
        way: Way,
        room: bool,
    ) -> Result<Step> {
        let end = within + out.len();
        let known = self.file.find_block(index);
        if let Some(block) = &known {
            let data = block.data.read();
            if data.detached {
                return Ok(Step::Again);
            }
            if !data.is_missing(within, end) {
                data.copy_out(within, out);
                let limit = data.limit as usize;
                drop(data);
                self.note_served(block, way, out.len(), limit);
                return Ok(Step::Done(out.len()));
            }
        }
        let limit = self.file.stored_limit(layout, index) as usize;
        if known.is_none() && limit == 0 {
            out.fill(0);
            return Ok(Step::Done(out.len()));
        }
        let large = way.sequential || out.len() * 2 >= limit || limit <= READ_WHOLE_BYTES;
        let whole = large && !self.streams(layout, index, way, out.len());
        if known.is_none() && !whole {
            // A read that fails is repeated with the block's lock: a concurrent writer may have
            // replaced the version of which this read had seen a part.
            if self.read_past_pool(layout, index, within, out, limit).is_ok() {
                return Ok(Step::Past(out.len()));
            }
        }
        let block = self.file.block(layout, index);
        let mut data = block.data.write();
        if data.detached {
            return Ok(Step::Again);
        }
        let (from, to) = if whole { (0, data.limit as usize) } else { (within, end) };
        // A buffer for parts grows by the bytes that are read.
        let (wanted, has_room) = if data.is_sparse() {
            let more = (to - from).next_multiple_of(UNIT_BYTES);
            (more, self.mount.page_pool.has_room(more))
        } else {
            let wanted = (data.limit as usize).max(end).next_multiple_of(UNIT_BYTES);
            (wanted, data.capacity() >= wanted)
        };
        if !room && !has_room {
            return Ok(Step::Room(wanted));
        }
        let range = (from, to);
        load(self.mount, self.inode, self.file, layout, &block, &mut data, range, way.access)?;
        data.copy_out(within, out);
        drop(data);
        self.note_served(&block, way, out.len(), limit);
        Ok(Step::Done(out.len()))
    }

    /// Whether `count` bytes are better read alone than with their whole block. They are if the
    /// kernel keeps them: it does not ask for them again, and it reads the rest of the block side
    /// by side. They are not if strips have to be rebuilt, because each such read then needs as
    /// many bytes of other strips.
    fn streams(&self, layout: &ObjectLayout, index: u64, way: Way, count: usize) -> bool {
        way.kept
            && count >= STREAM_BYTES_MIN
            && self.mount.array.io.is_whole(layout, BlockIndex(index))
    }

    /// Notes that `count` bytes of a block of `limit` bytes went to a reader. Once the whole block
    /// went in order to a reader who [passes](Way::passes), the block's buffer is better used for
    /// the next block. If other handles are open, their readers may want the same block soon. Then
    /// it is only left behind. A block of a long file that is read once more stays, because
    /// programs may read the same part again and again.
    fn note_served(&self, block: &Arc<Block>, way: Way, count: usize, limit: usize) {
        let is_again = !way.kept && block.index < self.file.passed.load(Ordering::Relaxed);
        if !(way.sequential && way.passes) || is_again {
            block.touch();
            return;
        }
        let before = block.served.fetch_add(count as u32, Ordering::AcqRel) as usize;
        if before + count < limit {
            return;
        }
        if self.has_other_handles() {
            if before < limit {
                // Clears the mark of use: if the block is used from now on, it stays in memory.
                block.was_used();
                self.mount.page_pool.leave_behind(Arc::clone(block) as Arc<dyn Page>);
            } else {
                block.touch();
            }
        } else if let Some(buffer) = block.take_clean() {
            self.mount.page_pool.release(buffer);
            self.file.passed.fetch_max(block.index + 1, Ordering::Relaxed);
        }
    }

    /// Reads a part of a block that is not in memory, and does not bring the block there.
    fn read_past_pool(
        &self,
        layout: &ObjectLayout,
        index: u64,
        within: usize,
        out: &mut [u8],
        limit: usize,
    ) -> Result<()> {
        let block = BlockIndex(index);
        let floor = self.mount.array.floors.floor(layout.object, block);
        let told = self.file.told_size.load(Ordering::Acquire);
        let start = index * u64::from(layout.block_size);
        let expected = told.saturating_sub(start).min(u64::from(layout.block_size));
        let expected = (expected as u32).max(limit as u32);
        let (from, end) = (within / UNIT_BYTES * UNIT_BYTES, within + out.len());
        let to = end.next_multiple_of(UNIT_BYTES);
        let io = &self.mount.array.io;
        if from == within && to == end {
            io.read(layout, block, floor, expected, from, out, Access::Shared)?;
        } else {
            let mut bytes = io.scratch().take(to - from);
            io.read(layout, block, floor, expected, from, &mut bytes, Access::Shared)?;
            out.copy_from_slice(&bytes[within - from..end - from]);
        }
        Ok(())
    }
}
