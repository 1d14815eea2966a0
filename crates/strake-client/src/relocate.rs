//! Moves the bytes of a file to an object of the newest layout, while the file is used.
//!
//! A file without a name gets the copy, by the same way as any file, so it has room and is durable
//! before anything depends on it. Blocks are copied as the NSDs have them, without keeping anybody
//! away. What was copied is noted with its version. At the end the file is taken from everybody,
//! what has changed since is copied again, and one entry of the metadata gives the file the bytes
//! of the copy. A version is never given twice, so a block whose version is the one that was copied
//! has the bytes that were copied.
//!
//! Until that entry the file is as it was. A crash leaves a file without a name, which is removed
//! like any other. The object of before is deleted like that of a removed file.

use crate::client::StrakeVfs;
use crate::flush::sync::sync_inode_whole;
use crate::inode::core::InodeState;
use crate::memory::file::{Content, FileState};
use crate::ops::open;
use crate::tokens::exclusive;
use crate::vfs::{FallocateMode, Handle, OpenFlags, SetAttr, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::exclusion::{Exclusion, Moved};
use strake_array::stripe_io::Access;
use strake_env::AlignedBuffer;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{FileData, MetaOp, MetaQuery};
use strake_proto::{BlockIndex, Caller, Error, ErrorKind, Ino, ObjectLayout, Result, Version};

/// The most that is copied while everybody is kept away from the file.
const ALONE_BYTES_MAX: u64 = 16 << 20;
/// How often what has changed is copied again, before the file is left where it is.
const PASSES_MAX: u32 = 6;

/// The blocks of an object, each with its version and its length.
type Blocks = BTreeMap<BlockIndex, (Version, u32)>;

/// See the file's head.
pub(crate) fn move_file(
    vfs: &StrakeVfs,
    ino: Ino,
    layout: &ObjectLayout,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Moved> {
    let mut copy = Copy::begin(vfs, ino, layout)?;
    for _ in 0..PASSES_MAX {
        let stale = copy.stale()?;
        if bytes(&stale) > ALONE_BYTES_MAX {
            copy.bring(&stale, go_on)?;
        }
        // Otherwise the file would be kept from its users for all of it.
        copy.sync()?;
        if let Some(moved) = copy.finish()? {
            return Ok(moved);
        }
        copy.mend()?;
    }
    copy.unread.take().map_or(Ok(Moved::InUse), |(_, error)| Err(error))
}

fn bytes(blocks: &Blocks) -> u64 {
    blocks.values().map(|(_, length)| u64::from(*length)).sum()
}

/// A copy of a file's bytes, as far as it is made.
struct Copy<'a> {
    vfs: &'a StrakeVfs,
    ino: Ino,
    layout: &'a ObjectLayout,
    /// The file without a name.
    spare: Ino,
    handle: Handle,
    copied: Blocks,
    /// A block that could not be read, and why.
    unread: Option<(BlockIndex, Error)>,
    /// For one block.
    buffer: AlignedBuffer,
}

impl<'a> Copy<'a> {
    fn begin(vfs: &'a StrakeVfs, ino: Ino, layout: &'a ObjectLayout) -> Result<Copy<'a>> {
        let mount = &*vfs.mount;
        mount.may_write()?;
        let buffer = AlignedBuffer::zeroed(layout.block_size as usize);
        // The directory is not changed, so no token of it is needed.
        let flags = OpenFlags::READ_WRITE;
        let (entry, open) = open::tmpfile(mount, &Caller::ROOT, Ino::ROOT, 0o600, flags)?;
        let (spare, handle) = (entry.attr.ino, vfs.files.insert(open));
        let (copied, unread) = (Blocks::new(), None);
        Ok(Copy { vfs, ino, layout, spare, handle, copied, unread, buffer })
    }

    /// The blocks that are not copied as the NSDs have them now.
    fn stale(&self) -> Result<Blocks> {
        let mut blocks = self.listed()?;
        blocks.retain(|block, shape| self.copied.get(block) != Some(shape));
        Ok(blocks)
    }

    fn listed(&self) -> Result<Blocks> {
        let array = &self.vfs.mount.array;
        let floor = |block| array.floors.floor(self.layout.object, block);
        array.io.blocks(self.layout, (BlockIndex(0), BlockIndex::END), &floor)
    }

    /// Copies blocks. One that cannot be read now, or is not what was listed any more, is left out.
    fn bring(&mut self, stale: &Blocks, go_on: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let array = &self.vfs.mount.array;
        self.unread = None;
        for (block, (version, length)) in stale {
            let padded = (*length as usize).next_multiple_of(UNIT_BYTES);
            let floor = array.floors.floor(self.layout.object, *block);
            let out = &mut self.buffer[..padded];
            let access = Access::Shared;
            let found = array.io.read(self.layout, *block, floor, *length, 0, out, access);
            let is_as_listed = match found {
                Ok(found) => found
                    .is_some_and(|found| (found.version, found.block_bytes) == (*version, *length)),
                Err(error) => {
                    self.unread = Some((*block, error));
                    false
                }
            };
            if !is_as_listed {
                continue;
            }
            let start = block.0 * u64::from(self.layout.block_size);
            let bytes = &self.buffer[..*length as usize];
            let written = self.vfs.write(self.handle, start, bytes)?;
            if written < bytes.len() {
                return Err(ErrorKind::Io.into());
            }
            self.copied.insert(*block, (*version, *length));
            go_on(u64::from(*length))?;
        }
        Ok(())
    }

    /// Has a block written anew whose strips differ or are bad. That takes exclusive access.
    fn mend(&self) -> Result<()> {
        match &self.unread {
            Some((block, error)) if error.kind() == ErrorKind::Retry => {
                self.vfs.rewrite(self.ino, self.layout, *block)
            }
            _ => Ok(()),
        }
    }

    /// Takes the file from everybody, and gives it the bytes of the copy. `None` if that must be
    /// tried again, because too much has changed or something cannot be read as it is.
    fn finish(&mut self) -> Result<Option<Moved>> {
        let vfs = self.vfs;
        let mount = &*vfs.mount;
        let _tokens = mount.take([exclusive(self.ino)])?;
        let inode = mount.table.pin(self.ino);
        let file = match mount.file(&inode) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(Some(Moved::Elsewhere)),
            file => file?,
        };
        sync_inode_whole(mount, &inode)?;
        let _extend = file.extend.lock();
        // Readers and writers of the file wait, as in a truncation.
        let mut content = file.content.write();
        let _serial = file.meta.lock();
        if !matches!(&*content, Content::Object(now) if now.object == self.layout.object) {
            return Ok(Some(Moved::Elsewhere));
        }
        let stale = self.stale()?;
        if !is_told(&inode, &file) || bytes(&stale) > ALONE_BYTES_MAX {
            return Ok(None);
        }
        self.bring(&stale, &mut |_| Ok(()))?;
        let listed = self.listed()?;
        if listed.iter().any(|(block, shape)| self.copied.get(block) != Some(shape)) {
            return Ok(None);
        }
        self.cut(&listed, file.size())?;
        self.take_over(&inode, &file, &mut content)?;
        Ok(Some(Moved::Done))
    }

    /// Makes the copy as long as the file, without the blocks that the file has no more, and
    /// durable.
    fn cut(&mut self, listed: &Blocks, size: u64) -> Result<()> {
        let block_size = u64::from(self.layout.block_size);
        let gone: Vec<BlockIndex> =
            self.copied.keys().filter(|block| !listed.contains_key(block)).copied().collect();
        for block in gone {
            let range = block.0 * block_size..(block.0 + 1) * block_size;
            self.vfs.fallocate(self.handle, range, FallocateMode::PunchHole)?;
            self.copied.remove(&block);
        }
        let cut = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.setattr(&Caller::ROOT, self.spare, Some(self.handle), &cut)?;
        self.sync()
    }

    /// Makes the copy durable, in its object: an `fsync` alone could keep small writes in the
    /// metadata. It says whether anything of the copy was lost since it was begun.
    fn sync(&self) -> Result<()> {
        let spare = self.vfs.mount.table.pin(self.spare);
        sync_inode_whole(&self.vfs.mount, &spare)?;
        self.vfs.fsync(self.handle)
    }

    /// The file has the bytes of the copy from now on.
    fn take_over(
        &self,
        inode: &Arc<InodeState>,
        file: &Arc<FileState>,
        content: &mut Content,
    ) -> Result<()> {
        let mount = &*self.vfs.mount;
        let spare = mount.table.pin(self.spare);
        // With the copy's file in memory. It is dropped there before anybody else finds it.
        let (object, from) = (self.layout.object, self.spare);
        let copied = mount.file(&spare)?.content.read().clone();
        if let Err(error) = mount.change(inode, MetaOp::MoveData { ino: self.ino, object, from })
            && !self.is_moved(inode, file)?
        {
            return Err(error);
        }
        file.drop_blocks(&mount.array.room, 0, u64::MAX);
        let block_size = u64::from(self.layout.block_size);
        let is_object = matches!(copied, Content::Object(_));
        let stored = if is_object { file.size().div_ceil(block_size) } else { 0 };
        file.stored_blocks.store(stored, Ordering::Release);
        file.tail_stale.store(true, Ordering::Release);
        file.linked.store(is_object, Ordering::Release);
        file.moves.fetch_add(1, Ordering::AcqRel);
        // A crash must not forget the move and keep what was written after it.
        file.barrier.store(mount.array.meta.changes(), Ordering::Release);
        *content = copied;
        mount.discard(&spare);
        spare.core.lock().forget();
        mount.array.meta.sync()
    }
}

impl Copy<'_> {
    /// Whether the metadata has moved the file although it answered with an error. If it does not
    /// say, nobody may use what is known of the file here.
    fn is_moved(&self, inode: &InodeState, file: &FileState) -> Result<bool> {
        let mount = &*self.vfs.mount;
        match mount.array.meta.query_inode(&MetaQuery::GetInode { ino: self.ino }) {
            Ok(found) => Ok(!matches!(&found.data, FileData::Objects(objects)
                if objects.iter().any(|layout| layout.object == self.layout.object))),
            Err(error) => {
                file.is_dropped.store(true, Ordering::Release);
                file.drop_blocks(&mount.array.room, 0, u64::MAX);
                inode.core.lock().file.take();
                Err(error)
            }
        }
    }
}

impl Drop for Copy<'_> {
    /// Without a name and not open, it is removed.
    fn drop(&mut self) {
        self.vfs.release(self.handle);
        self.vfs.forget(self.spare, 1);
    }
}

/// Whether the NSDs and the metadata have all of a file. The caller holds its `content`.
fn is_told(inode: &InodeState, file: &FileState) -> bool {
    let core = inode.core.lock();
    let is_counted = core.allocated_delta == 0 && core.unstable_gain == 0;
    let is_sent = !file.has_dirty_blocks()
        && file.unstable.load(Ordering::Acquire) == 0
        && file.unsettled.lock().is_empty()
        && !file.is_hardened();
    let told = file.told_size.load(Ordering::Acquire);
    is_counted && is_sent && told == file.size() && !file.content_changed.load(Ordering::Acquire)
}

#[cfg(test)]
#[path = "relocate_test.rs"]
mod relocate_test;
