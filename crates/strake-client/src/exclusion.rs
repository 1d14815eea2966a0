//! A mount keeps programs away from a block while repair works on it: the trait
//! [`strake_array::exclusion`], implemented with the mount's tokens and locks. Beside other mounts
//! it takes the file from them first, so what they had not sent is stable then.

use crate::block_io::load::load;
use crate::block_io::send::flush_block;
use crate::client::StrakeVfs;
use crate::data::of::Of;
use crate::flush::sync::sync_all;
use crate::memory::block::Owner;
use crate::memory::file::Content;
use crate::relocate::move_file;
use crate::tokens::exclusive;
use std::sync::atomic::Ordering;
use strake_array::exclusion::{Exclusion, FileNow, Moved};
use strake_array::stripe_io::Access;
use strake_proto::{BlockIndex, ErrorKind, Ino, ObjectLayout, Result};

impl Exclusion for StrakeVfs {
    fn flush_all(&self) -> Result<u64> {
        sync_all(&self.mount)
    }

    fn settle(&self, ino: Ino) -> Result<()> {
        self.mount.take([exclusive(ino)]).map(drop)
    }

    fn with_block(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        block: BlockIndex,
        work: &mut dyn FnMut(bool) -> Result<()>,
    ) -> Result<bool> {
        let mount = &*self.mount;
        let _tokens = mount.take([exclusive(ino)])?;
        let inode = mount.table.pin(ino);
        let file = match mount.file(&inode) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(false),
            file => file?,
        };
        let result = loop {
            let content = file.content.read();
            if !matches!(&*content, Content::Object(now) if now.object == layout.object) {
                break Ok(false);
            }
            let held = file.block(layout, block.0);
            let mut data = held.data.write();
            if data.detached {
                continue;
            }
            let is_stable = !data.dirty && held.pinned.load(Ordering::Acquire) == 0;
            let result = work(is_stable).map(|()| true);
            if data.buffer.is_none() && !data.dirty && held.pinned.load(Ordering::Acquire) == 0 {
                // The block was made only for its lock.
                data.detached = true;
                file.forget_block(block.0);
            }
            break result;
        };
        drop(file);
        mount.drop_idle_file(&inode);
        result
    }

    fn with_file(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        work: &mut dyn FnMut(FileNow) -> Result<()>,
    ) -> Result<bool> {
        let mount = &*self.mount;
        let _tokens = mount.take([exclusive(ino)])?;
        let inode = mount.table.pin(ino);
        let file = match mount.file(&inode) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(false),
            file => file?,
        };
        // This lock is held across NSD I/O, as in a truncation. Readers and writers of the file
        // wait.
        let content = file.content.write();
        let result = match &*content {
            Content::Object(now) if now.object == layout.object => {
                let untold = {
                    let core = inode.core.lock();
                    core.allocated_delta + core.unstable_gain
                };
                work(FileNow { size: file.size(), untold }).map(|()| true)
            }
            _ => Ok(false),
        };
        drop(content);
        drop(file);
        mount.drop_idle_file(&inode);
        result
    }

    fn rewrite(&self, ino: Ino, layout: &ObjectLayout, block: BlockIndex) -> Result<()> {
        let mount = &*self.mount;
        let _tokens = mount.take([exclusive(ino)])?;
        let inode = mount.table.pin(ino);
        let file = match mount.file(&inode) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
            file => file?,
        };
        let of = Of { mount, inode: &inode, file: &file };
        let found = loop {
            let content = file.content.read();
            let is_elsewhere =
                !matches!(&*content, Content::Object(now) if now.object == layout.object);
            if is_elsewhere || file.stored_limit(layout, block.0) == 0 {
                return Ok(());
            }
            let found = file.block(layout, block.0);
            let mut data = found.data.write();
            if data.detached {
                continue;
            }
            let end = data.limit as usize;
            load(mount, &inode, &file, layout, &found, &mut data, (0, end), Access::Exclusive)?;
            let length = data.length;
            of.make_whole_dirty(layout, &found, &mut data, length)?;
            drop(data);
            break found;
        };
        flush_block(mount, &inode, &file, &found)
    }

    fn move_file(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        go_on: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Moved> {
        move_file(self, ino, layout, go_on)
    }
}
