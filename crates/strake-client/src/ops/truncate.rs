//! Cuts and extends files.
//!
//! A cut is one metadata entry, and a floor under the strips that the NSDs still hold beyond it
//! ([`strake_array::floors`]). A cut never gives the metadata a larger size than it has, because
//! bytes written since then may not be stable. An extension is a change in memory. The next sync
//! tells the metadata of it.

use crate::data::of::Of;
use crate::flush::make_room::with_room;
use crate::memory::file::{Content, Gains};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use strake_proto::limits::FILE_BYTES_MAX;
use strake_proto::meta::MetaOp;
use strake_proto::{BlockIndex, ErrorKind, ObjectLayout, Result, Version};

use strake_array::stripe_io::on_disk;

impl Of<'_> {
    /// Sets the size.
    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooBig.into());
        }
        with_room(self.mount, || self.set_size_once(size))
    }

    fn set_size_once(&self, size: u64) -> Result<()> {
        let _extend = self.file.extend.lock();
        let old = self.file.size();
        if size < old {
            return self.shrink(size);
        }
        if size > old {
            self.trim_tail(old)?;
        }
        self.note_written(size);
        Ok(())
    }

    /// Cuts the file. Holds `content` exclusively across metadata calls. To count the bytes on
    /// disks that go, it may also list the NSDs.
    fn shrink(&self, size: u64) -> Result<()> {
        let (mount, file) = (self.mount, self.file);
        let mut content = file.content.write();
        let _serial = file.meta.lock();
        let mut op = None;
        let told = file.told_size.load(Ordering::Acquire);
        // A cut to 0 makes the metadata drop an object that it knows. An object that is only
        // reserved stays.
        let dropped = size == 0 && told > 0 && file.linked.load(Ordering::Acquire);
        if let Content::Object(layout) = &*content {
            let block_size = u64::from(layout.block_size);
            let from = size.div_ceil(block_size);
            let stored = file.stored_blocks.load(Ordering::Acquire);
            if stored > from || size < told {
                op = Some((*layout, (stored > from).then_some(BlockIndex(from))));
            }
        }
        if let Some((layout, from)) = op {
            self.record_cut(&layout, (size, told), from, dropped)?;
        } else if size < told {
            self.apply_cut(size, None, mount.array.io.versions().next(), 0)?;
        }
        self.cut_memory(&mut content, size, dropped);
        file.size.store(size, Ordering::Release);
        // No block is sent before the cut is durable: see `strake_array::floors`.
        file.barrier.store(mount.array.meta.changes(), Ordering::Release);
        let mut core = self.inode.core.lock();
        core.size_target = core.size_target.map(|target| target.min(size));
        core.size_changed = size != file.told_size.load(Ordering::Acquire);
        core.note_write(mount.now());
        mount.register(self.inode, &mut core);
        Ok(())
    }

    /// Stable bytes on disks, without parity, in a range of blocks whose `gains` were taken. The
    /// metadata counts only these.
    pub(crate) fn stable_bytes(
        &self,
        layout: &ObjectLayout,
        range: (BlockIndex, BlockIndex),
        gains: &Gains,
    ) -> Result<i64> {
        let floor = |block| self.mount.array.floors.floor(layout.object, block);
        let blocks = self.mount.array.io.blocks(layout, range, &floor)?;
        let listed = blocks.iter().map(|(at, (_, length))| (at.0, i64::from(on_disk(*length))));
        let mut bytes: BTreeMap<u64, i64> = listed.collect();
        bytes.extend(gains.stable());
        Ok(bytes.values().sum())
    }

    /// Records a cut from `told` to `size` bytes of a file with blocks, and the floor under the
    /// blocks beyond. If the metadata only knows a size up to `size`, this only deletes blocks.
    fn record_cut(
        &self,
        layout: &ObjectLayout,
        (size, told): (u64, u64),
        from: Option<BlockIndex>,
        dropped: bool,
    ) -> Result<()> {
        let mount = self.mount;
        let version = mount.array.io.versions().next();
        let first = from.map_or(u64::MAX, |from| from.0);
        let gains = self.file.take_gains(first, u64::MAX);
        self.inode.core.lock().unstable_gain -= gains.unstable();
        let removed = match from {
            Some(from) if !dropped => self.stable_bytes(layout, (from, BlockIndex::END), &gains),
            _ => Ok(0),
        };
        let result = removed.and_then(|removed| {
            let delta = self.told_delta(removed);
            let result = match from {
                Some(from) if size >= told => {
                    let (ino, to, allocated_delta) = (self.inode.ino, BlockIndex::END, delta);
                    let op = MetaOp::DeleteBlocks { ino, from, to, version, allocated_delta };
                    mount.change(self.inode, op).map(|_| ())
                }
                _ => self.apply_cut(size, from, version, delta),
            };
            result.inspect_err(|_| self.inode.core.lock().allocated_delta += delta + removed)
        });
        if let Err(error) = result {
            let stable = gains.give_back();
            let mut core = self.inode.core.lock();
            core.unstable_gain += gains.unstable() - stable;
            core.allocated_delta += stable;
            return Err(error);
        }
        if let Some(from) = from {
            mount.array.floors.add(layout.object, from, BlockIndex::END, version);
        }
        Ok(())
    }

    /// Takes the change of the bytes on disks that the metadata is to be told, after `removed`
    /// bytes were removed. If the metadata does not know the object yet, it is told nothing: after
    /// a crash the object would be gone, and its bytes would count for ever.
    pub(crate) fn told_delta(&self, removed: i64) -> i64 {
        let mut core = self.inode.core.lock();
        core.allocated_delta -= removed;
        if self.file.linked.load(Ordering::Acquire) {
            std::mem::take(&mut core.allocated_delta)
        } else {
            0
        }
    }

    fn apply_cut(
        &self,
        size: u64,
        from_block: Option<BlockIndex>,
        version: Version,
        allocated_delta: i64,
    ) -> Result<()> {
        let ino = self.inode.ino;
        let op = MetaOp::Truncate { ino, size, from_block, version, allocated_delta };
        self.mount.change(self.inode, op)?;
        self.file.told_size.store(size, Ordering::Release);
        Ok(())
    }

    /// Cuts the contents in memory.
    fn cut_memory(&self, content: &mut Content, size: u64, dropped: bool) {
        let file = self.file;
        match content {
            Content::Empty => {}
            Content::Inline(bytes) => {
                bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                file.content_changed.store(true, Ordering::Release);
            }
            Content::Object(layout) => {
                let block_size = u64::from(layout.block_size);
                let from = size.div_ceil(block_size);
                let fresh = file.drop_blocks(&self.mount.array.room, from, u64::MAX);
                // The metadata has forgotten them with the cut.
                file.kept(|kept| kept.forget_blocks(from, u64::MAX));
                {
                    let mut core = self.inode.core.lock();
                    core.fresh = core.fresh.saturating_sub(fresh);
                    if dropped {
                        core.allocated_delta = 0;
                    }
                }
                file.stored_blocks.fetch_min(from, Ordering::AcqRel);
                let within = (size % block_size) as usize;
                if within > 0
                    && let Some(block) = file.find_block(size / block_size)
                {
                    block.data.write().cut(within);
                }
                file.tail_stale.store(true, Ordering::Release);
                if dropped {
                    *content = Content::Empty;
                    file.moves.fetch_add(1, Ordering::AcqRel);
                    file.content_changed.store(false, Ordering::Release);
                }
            }
        }
    }
}
