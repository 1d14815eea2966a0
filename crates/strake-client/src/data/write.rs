//! Writes the contents of a file in memory, block by block.
//!
//! Each step first makes room in the page pool, without a lock. Then it locks `content` (shared)
//! and one block, and works on that block alone.

use crate::block_io::load::{load, stored_length};
use crate::data::new_object::new_object;
use crate::data::of::Of;
use crate::flush::make_room::with_room;
use crate::flush::writers::enqueue;
use crate::memory::block::{Block, BlockData, STORED_UNKNOWN};
use crate::memory::file::Content;
use crate::memory::page_pool::{Fill, PARTS_BYTES_MIN};
use std::sync::atomic::Ordering;
use strake_array::room::Claim;
use strake_array::stripe_io::{Access, on_disk};
use strake_proto::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX, UNIT_BYTES};
use strake_proto::{Error, ErrorKind, ObjectLayout, Result};

/// Where to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    At(u64),
    End,
}

/// If the first write to a block is longer than one part in so many of it (64 KiB of 4 MiB), it
/// belongs to a stream.
const PARTS: usize = 64;
/// It also belongs to a stream if it begins within the first so many parts of the block, and the
/// block before was written to its end.
const ALONE_FROM_PARTS: usize = 4;

/// The two ends of a write are read at once if they are no further apart than this.
const EDGES_BYTES_MAX: usize = 256 << 10;

/// The buffer of a file's first block grows with the file while it is shorter than this, half a
/// huge page.
const SMALL_BYTES: usize = 1 << 20;

/// What a step does where bytes are there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// Writes over them.
    Writes,
    /// Leaves them alone.
    Keeps,
}

/// The result of a step.
enum Step {
    Done(usize),
    /// A buffer of so many bytes is needed. The caller makes room and repeats the step.
    Room(usize),
    /// The content changed its kind, or the block left the map. The caller repeats the step.
    Again,
}

impl Of<'_> {
    /// Writes all of `bytes`, or as many as there is space for. Fails only if nothing was written.
    pub(crate) fn write(&self, position: Position, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        let result = with_room(self.mount, || match position {
            // Another thread may have appended since.
            Position::End if done > 0 => Ok(()),
            _ => self.write_rest(position, bytes, &mut done),
        });
        if done > 0 { Ok(done) } else { result.map(|()| 0) }
    }

    /// Writes the bytes after the first `done` ones, and adds the written ones to `done`.
    fn write_rest(&self, position: Position, bytes: &[u8], done: &mut usize) -> Result<()> {
        let mount = self.mount;
        if bytes.is_empty() {
            return Ok(());
        }
        let waiters = &mount.array.observe.waiters;
        let limit = mount.settings.standstill_max;
        if !mount.page_pool.wait_for_clean(waiters, limit, &|| mount.kick()) {
            return Err(Error::new(ErrorKind::Io, "dirty pages cannot be written to the NSDs"));
        }
        if let Position::At(offset) = position {
            let bytes = clip(offset, bytes)?;
            if offset + bytes.len() as u64 <= self.file.size() {
                self.write_steps(offset, bytes, done, false)?;
                if *done == bytes.len() {
                    return Ok(());
                }
            }
        }
        let _extend = self.file.extend.lock();
        let offset = match position {
            Position::At(offset) => offset,
            Position::End => self.file.size(),
        };
        let bytes = clip(offset, bytes)?;
        if offset + bytes.len() as u64 > self.file.size() {
            self.trim_tail(self.file.size())?;
        }
        self.write_steps(offset, bytes, done, true)
    }

    /// Writes the bytes after the first `done` ones step by step. Stops at an error, and where the
    /// file turns out too short while `extend` is not held.
    fn write_steps(&self, offset: u64, bytes: &[u8], done: &mut usize, extend: bool) -> Result<()> {
        let before = *done;
        let mut room = false;
        let mut result = Ok(());
        while *done < bytes.len() {
            let (at, rest) = (offset + *done as u64, &bytes[*done..]);
            match self.write_step(at, rest, extend, room, Over::Writes) {
                Ok(Step::Done(0)) => break,
                Ok(Step::Done(count)) => {
                    *done += count;
                    room = false;
                }
                Ok(Step::Room(size)) => {
                    self.mount.admit(size);
                    room = true;
                }
                Ok(Step::Again) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if *done > before {
            self.note_written(offset + *done as u64);
        }
        result
    }

    /// Gives a block space up to the byte at `last`, if it has less: that byte becomes zero, which
    /// it reads as anyway. The caller holds `extend` if the byte may lie beyond the size.
    pub(crate) fn allocate_to(&self, last: u64, extend: bool) -> Result<()> {
        let mount = self.mount;
        let (waiters, limit) = (&mount.array.observe.waiters, mount.settings.standstill_max);
        if !mount.page_pool.wait_for_clean(waiters, limit, &|| mount.kick()) {
            return Err(Error::new(ErrorKind::Io, "dirty pages cannot be written to the NSDs"));
        }
        let mut room = false;
        loop {
            match self.write_step(last, &[0], extend, room, Over::Keeps)? {
                // Without `extend`: the file was cut meanwhile, and has nothing there.
                Step::Done(_) => return Ok(()),
                Step::Room(size) => {
                    mount.admit(size);
                    room = true;
                }
                Step::Again => {}
            }
        }
    }

    /// Up to where a block has bytes, in memory or stored.
    fn length(&self, layout: &ObjectLayout, block: &Block, data: &BlockData) -> Result<u32> {
        Ok(data.length.max(stored_length(self.mount, layout, block)?))
    }

    /// Raises the size and notes the times, after the bytes are in place.
    pub(crate) fn note_written(&self, end: u64) {
        let now = self.mount.now();
        let mut core = self.inode.core.lock();
        self.raise_size(end);
        core.size_changed = self.file.size() != self.file.told_size.load(Ordering::Acquire);
        core.note_write(now);
        self.mount.register(self.inode, &mut core);
    }

    /// Writes within one block or the inode. `Done(0)` says that the file is too short.
    fn write_step(
        &self,
        offset: u64,
        bytes: &[u8],
        extend: bool,
        room: bool,
        over: Over,
    ) -> Result<Step> {
        let content = self.file.content.read();
        if self.file.is_dropped.load(Ordering::Acquire) {
            let detail = "the file's changes could not be made durable";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        if !extend && offset + bytes.len() as u64 > self.file.size() {
            return Ok(Step::Done(0));
        }
        let Content::Object(layout) = &*content else {
            drop(content);
            return self.write_inline(offset, bytes, extend, over);
        };
        let block_size = u64::from(layout.block_size);
        let (index, within) = (offset / block_size, (offset % block_size) as usize);
        let count = bytes.len().min(layout.block_size as usize - within);
        self.write_block(layout, index, within, &bytes[..count], room, over)
    }

    /// Writes into the inode. If the bytes do not fit there, or the metadata is short of space, the
    /// file gets an object.
    fn write_inline(&self, offset: u64, bytes: &[u8], extend: bool, over: Over) -> Result<Step> {
        let mut content = self.file.content.write();
        if !extend && offset + bytes.len() as u64 > self.file.size() {
            return Ok(Step::Done(0));
        }
        let end = offset + bytes.len() as u64;
        let before = match &*content {
            Content::Object(_) => return Ok(Step::Again),
            Content::Empty => 0,
            Content::Inline(held) => held.len(),
        };
        if over == Over::Keeps && end <= before as u64 {
            return Ok(Step::Done(bytes.len()));
        }
        let more = usize::try_from(end).unwrap_or(usize::MAX).saturating_sub(before);
        let fits = end <= INLINE_BYTES_MAX as u64
            && (more == 0 || self.file.hold_inline(&self.mount.array.meta, more)?);
        let mut held = match &mut *content {
            Content::Inline(held) => std::mem::take(held),
            _ => Vec::new(),
        };
        if !fits {
            let result = self.leave_inode(&held);
            *content = match &result {
                Ok(layout) => Content::Object(*layout),
                Err(_) if held.is_empty() => Content::Empty,
                Err(_) => Content::Inline(held),
            };
            return result.map(|_| Step::Again);
        }
        held.resize(before.max(end as usize), 0);
        held[offset as usize..end as usize].copy_from_slice(bytes);
        *content = Content::Inline(held);
        self.file.content_changed.store(true, Ordering::Release);
        // Under `content`, because inline data must not be longer than the size.
        self.raise_size(end);
        Ok(Step::Done(bytes.len()))
    }

    /// Gets an object for a file that has none, and puts the bytes of the inode into its first
    /// block. The caller holds `content` exclusively, across a metadata call.
    fn leave_inode(&self, held: &[u8]) -> Result<ObjectLayout> {
        let mount = self.mount;
        if !held.is_empty() {
            // An object is not given back. So the file asks for one only if there is room.
            let bytes = held.len().next_multiple_of(UNIT_BYTES) as u64;
            let room = Claim { bytes, ..Claim::default() };
            mount.array.room.claim(Claim::default(), room)?;
            mount.array.room.release(room);
        }
        let layout = new_object(mount, self.inode)?;
        self.file.barrier.store(mount.array.meta.changes(), Ordering::Release);
        self.file.moves.fetch_add(1, Ordering::AcqRel);
        self.file.linked.store(false, Ordering::Release);
        self.file.content_changed.store(true, Ordering::Release);
        self.file.stored_blocks.store(0, Ordering::Release);
        if !held.is_empty() {
            let block = self.file.block(&layout, 0);
            let mut data = block.data.write();
            self.put(&layout, &block, &mut data, 0, held)?;
        }
        Ok(layout)
    }

    /// Makes the size at least `size`. Only a thread that holds `extend` passes a larger size than
    /// the current one.
    fn raise_size(&self, size: u64) {
        if size > self.file.size() {
            self.file.size.store(size, Ordering::Release);
        }
    }

    fn write_block(
        &self,
        layout: &ObjectLayout,
        index: u64,
        within: usize,
        bytes: &[u8],
        room: bool,
        over: Over,
    ) -> Result<Step> {
        let block = self.file.block(layout, index);
        let mut data = block.data.write();
        if data.detached {
            return Ok(Step::Again);
        }
        let end = within + bytes.len();
        if over == Over::Keeps && self.length(layout, &block, &data)? as usize >= end {
            return Ok(Step::Done(bytes.len()));
        }
        let fill = self.fill_of(layout, index, &data, within, bytes.len());
        let capacity = match fill {
            Fill::Parts => layout.block_size as usize,
            Fill::Whole => wanted_capacity(&data, index, end, layout.block_size),
        };
        let (wanted, has_room) = match fill {
            Fill::Parts => (PARTS_BYTES_MIN, false),
            Fill::Whole if data.is_sparse() => {
                let more = bytes.len().next_multiple_of(UNIT_BYTES);
                (more, self.mount.page_pool.has_room(more))
            }
            Fill::Whole => (capacity, data.capacity() >= capacity),
        };
        if !room && !has_room {
            return Ok(Step::Room(wanted));
        }
        block.grow(&mut data, &self.mount.page_pool, capacity, fill);
        let put = self
            .fill_edges(layout, &block, &mut data, within, end)
            .and_then(|()| self.put(layout, &block, &mut data, within, bytes));
        if put.is_err() && !data.dirty {
            // The block stays clean, so no flush will enter it into the clock.
            block.enter(&mut data, &self.mount.page_pool);
        }
        put?;
        // The size is raised before the block can be sent and evicted, because bytes beyond the
        // size do not count.
        self.raise_size(index * u64::from(layout.block_size) + end as u64);
        let full = end == layout.block_size as usize && data.valid.is_full(end / UNIT_BYTES);
        drop(data);
        block.touch();
        if full {
            enqueue(self.mount, self.inode, self.file, index);
        }
        Ok(Step::Done(bytes.len()))
    }

    /// Loads or zeros the units that the range `from..to` covers only in part.
    pub(crate) fn fill_edges(
        &self,
        layout: &ObjectLayout,
        block: &Block,
        data: &mut BlockData,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let is_partial = |at: usize, data: &BlockData| {
            !at.is_multiple_of(UNIT_BYTES) && !data.valid.contains(at / UNIT_BYTES)
        };
        // A unit that is overwritten up to the end of the stored bytes need not be read.
        let is_read = |at: usize, data: &BlockData| {
            let start = at / UNIT_BYTES * UNIT_BYTES;
            let covered = from <= start && to >= data.limit as usize;
            is_partial(at, data) && start < data.limit as usize && !covered
        };
        let load_until = |data: &mut BlockData, at: usize, stop: usize| {
            let start = at / UNIT_BYTES * UNIT_BYTES;
            let (range, access) = ((start, stop), Access::Exclusive);
            load(self.mount, self.inode, self.file, layout, block, data, range, access)
        };
        // One read that brings both edges, and what lies between them, takes less time than two.
        if to - from <= EDGES_BYTES_MAX && is_read(from, data) && is_read(to, data) {
            // If what lies between cannot be read, the edges are read below. The write heals it.
            let _ = load_until(data, from, to.next_multiple_of(UNIT_BYTES));
        }
        for at in [from, to] {
            if is_read(at, data) {
                load_until(data, at, at.next_multiple_of(UNIT_BYTES))?;
            }
            if is_partial(at, data) {
                let start = at / UNIT_BYTES * UNIT_BYTES;
                block.grow(data, &self.mount.page_pool, start + UNIT_BYTES, Fill::Whole);
                data.zero_unit(at / UNIT_BYTES);
            }
        }
        Ok(())
    }

    /// Puts bytes into a block whose edges are in place and makes it dirty.
    fn put(
        &self,
        layout: &ObjectLayout,
        block: &Block,
        data: &mut BlockData,
        within: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let end = within + bytes.len();
        let capacity = wanted_capacity(data, block.index, end, layout.block_size);
        block.grow(data, &self.mount.page_pool, capacity, Fill::Whole);
        self.make_dirty(layout, block, data, end as u32)?;
        let (first, last) = (within / UNIT_BYTES, end.div_ceil(UNIT_BYTES));
        let buffer = data.buffer.as_mut().expect("invariant: just grown");
        if !end.is_multiple_of(UNIT_BYTES) && !data.valid.contains(last - 1) {
            buffer[end..last * UNIT_BYTES].fill(0);
        }
        buffer[within..end].copy_from_slice(bytes);
        data.valid.insert_range(first, last);
        self.count_dirty(data);
        if !data.is_unsaved() {
            self.file.insert_unsaved(block.index);
        }
        data.unsaved.insert_range(first, last);
        data.changed.units.insert_range(first, last);
        Ok(())
    }

    /// Makes a block dirty of which more than some units has changed: see [`Of::make_dirty`].
    pub(crate) fn make_whole_dirty(
        &self,
        layout: &ObjectLayout,
        block: &Block,
        data: &mut BlockData,
        length: u32,
    ) -> Result<()> {
        self.make_dirty(layout, block, data, length)?;
        data.whole = true;
        data.changed.whole = true;
        self.file.insert_unsaved(block.index);
        Ok(())
    }

    /// Makes a block dirty and at least `length` bytes long. The block has its buffer already.
    ///
    /// # Errors
    /// `NoSpace`. The block is as it was then.
    fn make_dirty(
        &self,
        layout: &ObjectLayout,
        block: &Block,
        data: &mut BlockData,
        length: u32,
    ) -> Result<()> {
        let mount = self.mount;
        self.claim_room(layout, block, data, data.length.max(length))?;
        self.count_dirty(data);
        if !data.dirty {
            data.dirty = true;
            self.file.insert_dirty(block.index);
        }
        data.length = data.length.max(length);
        let stored = block.stored.load(Ordering::Acquire);
        let mut core = self.inode.core.lock();
        if stored == 0 && on_disk(data.length) > data.fresh {
            core.fresh += u64::from(on_disk(data.length) - data.fresh);
            data.fresh = on_disk(data.length);
        }
        mount.register(self.inode, &mut core);
        Ok(())
    }

    /// Claims room on the disks for a block that becomes dirty and `length` bytes long.
    ///
    /// # Errors
    /// `NoSpace`. The claim is as it was then.
    fn claim_room(
        &self,
        layout: &ObjectLayout,
        block: &Block,
        data: &mut BlockData,
        length: u32,
    ) -> Result<()> {
        let space = &self.mount.array.room;
        let charge = data.charge.max(data.capacity()).max(UNIT_BYTES);
        let growth = || -> Result<usize> {
            let stored = stored_length(self.mount, layout, block)?;
            Ok(on_disk(length).saturating_sub(on_disk(stored)) as usize)
        };
        let is_claimed = || -> Result<bool> {
            Ok(match data.claim() {
                Claim { overwrites: true, .. } => {
                    length <= stored_length(self.mount, layout, block)?
                }
                Claim { replaces: 0, .. } => true,
                _ => growth()? <= charge - data.replaces,
            })
        };
        if data.charge == charge && is_claimed()? {
            return Ok(());
        }
        let all = Claim { bytes: charge as u64, ..Claim::default() };
        // While there is plenty of room, the NSDs are not asked how much of the block is stored.
        let is_known = block.stored.load(Ordering::Acquire) != STORED_UNKNOWN;
        if (is_known || !space.is_plentiful(all.bytes))
            && let Ok(stored) = stored_length(self.mount, layout, block)
            && length <= stored
            && self.file.is_settled(block)
            && space.can_overwrite()
        {
            let claim = Claim { replaces: all.bytes, overwrites: true, ..all };
            assert!(
                space.try_claim(data.claim(), claim),
                "a block that overwrites claims nothing yet"
            );
            data.set_claim(claim);
            return Ok(());
        }
        if space.claim(data.claim(), all).is_ok() {
            data.set_claim(all);
            return Ok(());
        }
        // There is not so much room. But the stored version of the block will be freed.
        let claim = Claim { replaces: charge.saturating_sub(growth()?) as u64, ..all };
        if !space.try_claim(data.claim(), claim) {
            return Err(ErrorKind::NoSpace.into());
        }
        data.set_claim(claim);
        Ok(())
    }

    /// Counts the memory of a dirty block that is not available until the block is sent.
    fn count_dirty(&self, data: &mut BlockData) {
        if data.count(&self.mount.page_pool) && self.mount.page_pool.is_pressed() {
            self.mount.kick();
        }
    }

    /// The kind of the block's first buffer, if this is the first write to the block.
    fn fill_of(
        &self,
        layout: &ObjectLayout,
        index: u64,
        data: &BlockData,
        within: usize,
        count: usize,
    ) -> Fill {
        let block_size = layout.block_size as usize;
        let part = block_size / PARTS;
        if data.capacity() > 0 || index == 0 && within < part * ALONE_FROM_PARTS || count > part {
            return Fill::Whole;
        }
        // Whether a stream comes from the block before.
        let goes_on = within < part * ALONE_FROM_PARTS
            && self.file.find_block(index - 1).is_some_and(|before| {
                before
                    .data
                    .try_read()
                    .is_none_or(|data| data.valid.contains(block_size / UNIT_BYTES - 1))
            });
        if goes_on || !self.mount.page_pool.has_parts(block_size) {
            Fill::Whole
        } else {
            Fill::Parts
        }
    }

    /// Called before the file grows beyond `size`. If the last block is stored longer than that,
    /// its bytes beyond the size are stale. They do not count from now on, and the block is written
    /// anew.
    pub(crate) fn trim_tail(&self, size: u64) -> Result<()> {
        if !self.file.tail_stale.load(Ordering::Acquire) {
            return Ok(());
        }
        let content = self.file.content.read();
        if let Content::Object(layout) = &*content {
            let block_size = u64::from(layout.block_size);
            let (index, within) = (size / block_size, (size % block_size) as u32);
            if within > 0 && index < self.file.stored_blocks.load(Ordering::Acquire) {
                self.trim_block(layout, index, within)?;
            }
        }
        self.file.tail_stale.store(false, Ordering::Release);
        Ok(())
    }

    fn trim_block(&self, layout: &ObjectLayout, index: u64, within: u32) -> Result<()> {
        loop {
            let block = self.file.block(layout, index);
            let mut data = block.data.write();
            if data.detached {
                continue;
            }
            data.cut(within as usize);
            if stored_length(self.mount, layout, &block)? > within {
                self.make_whole_dirty(layout, &block, &mut data, within)?;
            }
            return Ok(());
        }
    }
}

/// The part of `bytes` that lies below the largest size of a file.
///
/// # Errors
/// `FileTooBig` if there is no such part.
fn clip(offset: u64, bytes: &[u8]) -> Result<&[u8]> {
    let room = FILE_BYTES_MAX.saturating_sub(offset);
    if room == 0 {
        return Err(ErrorKind::FileTooBig.into());
    }
    Ok(&bytes[..usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len())])
}

/// The capacity that a block's buffer should have for bytes up to `end`. The buffer of a file's
/// first block grows with the file, because most files are small: a whole buffer lies in huge
/// pages, and touching one byte of a huge page takes as long as touching all of it. Other blocks
/// get whole buffers at once.
fn wanted_capacity(data: &BlockData, index: u64, end: usize, block_size: u32) -> usize {
    let end = end.max(data.limit as usize);
    let whole = block_size as usize;
    if index > 0 || end >= SMALL_BYTES { whole } else { end.max(data.capacity()) }
}
