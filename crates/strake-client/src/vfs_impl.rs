//! [`Vfs`] for [`StrakeVfs`]. Each call finds its inode or handle and calls a function in `ops`.

use crate::client::StrakeVfs;
use crate::data::of::Of;
use crate::data::write::Position;
use crate::flush::sync::{sync_for_program, sync_inode};
use crate::inode::core::InodeState;
use crate::invalidate::Invalidate;
use crate::locks::Locks;
use crate::memory::file::FileState;
use crate::mode::MountMode;
use crate::open_file::OpenFile;
use crate::ops::{attributes, copy, directory, names, open, xattr};
use crate::tokens::{Access, exclusive, shared, want};
use crate::vfs::{
    DirItem, Entry, FallocateMode, Handle, LockDone, LockHeld, LockWant, MakeNode, NameMark,
    OpenFlags, Opened, Renamed, SeekFor, SetAttr, Vfs,
};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;
use strake_array::meta_link::wrong_reply;
use strake_array::stripe_io::Access as BlockAccess;
use strake_observe::Trace;
use strake_proto::limits::SYMLINK_BYTES_MAX;
use strake_proto::meta::{Cookie, MetaQuery, MetaReply, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, StatFs};
use strake_token::Mode;

/// The contents of an open file: those of its open, or found anew.
enum Contents<'a> {
    Kept(&'a Arc<FileState>),
    Found(Arc<FileState>),
}

impl Deref for Contents<'_> {
    type Target = Arc<FileState>;

    fn deref(&self) -> &Arc<FileState> {
        match self {
            Contents::Kept(file) => file,
            Contents::Found(file) => file,
        }
    }
}

impl StrakeVfs {
    fn of<'a>(&'a self, open: &'a OpenFile, file: &'a Arc<FileState>) -> Of<'a> {
        Of { mount: &self.mount, inode: &open.inode, file }
    }

    /// The contents of an open file. A lone mount has had them since the open. Another one may have
    /// dropped them since, with the token; the caller holds the token now.
    fn file<'a>(&self, open: &'a OpenFile) -> Result<Contents<'a>> {
        match &self.mount.tokens {
            None => Ok(Contents::Kept(&open.file)),
            Some(_) => self.mount.file(&open.inode).map(Contents::Found),
        }
    }

    fn opened(&self, open: OpenFile, is_new: bool) -> Opened {
        // Pages that the kernel has kept are right: a lone mount is the only one, and another one
        // has had them dropped before it gave its token up. But a read of them does not come here,
        // and the first one may have to move the access time.
        let times = self.mount.mode.get().access_times;
        let notes = open.flags.read && !open.flags.no_atime;
        let keep_cache = !(notes && self.mount.is_read_noted(&open.inode, times));
        Opened { handle: self.files.insert(open), keep_cache, is_new }
    }

    /// The locks, and the file of an open handle.
    fn locks(&self, handle: Handle) -> Result<(&Locks, Ino)> {
        let tokens = self.mount.tokens.as_ref().ok_or(ErrorKind::NoSystem)?;
        Ok((&tokens.locks, self.files.get(handle)?.inode.ino))
    }

    /// The locks, and what is wanted of the file of an open handle.
    fn wanted(&self, handle: Handle, want: &LockWant) -> Result<(&Locks, LockWant)> {
        let (locks, ino) = self.locks(handle)?;
        Ok((locks, LockWant { ino, ..*want }))
    }

    fn writable(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let open = self.files.get(handle)?;
        if !open.flags.write {
            return Err(ErrorKind::BadHandle.into());
        }
        self.mount.may_write()?;
        Ok(open)
    }

    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: strake_proto::meta::NewInode,
    ) -> Result<Entry> {
        self.mount.may_write()?;
        let _tokens = self.mount.take([exclusive(parent)])?;
        let entry = names::make(&self.mount, caller, parent, name, new, None)?.1;
        self.trace().note_file(entry.attr.ino, parent, name);
        self.settle_entry(entry)
    }
}

impl StrakeVfs {
    /// The trace, which learns the names of files here.
    fn trace(&self) -> &Trace {
        &self.mount.array.observe.trace
    }

    fn read_as(
        &self,
        access: Access,
        handle: Handle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize> {
        let start = self.timings.read.begin();
        let result = self.files.get(handle).and_then(|open| {
            if !(open.flags.read || open.flags.execute) {
                return Err(ErrorKind::BadHandle.into());
            }
            let (mount, ino) = (&self.mount, open.inode.ino);
            let mut read = |blocks| {
                let _tokens = match blocks {
                    BlockAccess::Shared => mount.take_to_read(ino, access)?,
                    BlockAccess::Exclusive => mount.take_to_change(ino, access)?,
                };
                let file = self.file(&open)?;
                let count = self.of(&open, &file).read(&open.ahead, offset, out, blocks)?;
                if !open.flags.no_atime {
                    mount.note_read(&open.inode, mount.mode.get().access_times);
                }
                Ok(count)
            };
            mount.with_disks(ino, || mount.read_or_mend(&mut read))
        });
        self.timings.read.end(start, *result.as_ref().unwrap_or(&0) as u64, result.is_ok());
        result
    }

    /// Makes a change of names durable if the mount has it so.
    fn settle_names(&self) -> Result<()> {
        if self.mount.mode.get().sync_names { self.mount.array.meta.sync() } else { Ok(()) }
    }

    /// Like [`StrakeVfs::settle_names`], for a change that returns an entry.
    fn settle_entry(&self, entry: Entry) -> Result<Entry> {
        self.settle_names().inspect_err(|_| self.forget(entry.attr.ino, 1))?;
        Ok(entry)
    }

    /// Makes a change of a file durable if the mount has it so.
    fn settle(&self, inode: &Arc<InodeState>) -> Result<()> {
        if self.mount.mode.get().sync { sync_inode(&self.mount, inode) } else { Ok(()) }
    }

    fn remove(&self, caller: &Caller, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        self.mount.may_write()?;
        names::remove(&self.mount, caller, parent, name, directory)?;
        self.settle_names()
    }
}

impl Vfs for StrakeVfs {
    fn statfs(&self) -> Result<StatFs> {
        let counts = self.mount.array.meta.counts()?;
        let (total, free) = self.mount.array.room.usable();
        // An inode with its name takes about half a KiB of metadata, in pages that are half full.
        // As long as data has plenty of space, the metadata may get more of it.
        let plenty = free.saturating_sub(total / 8);
        let inodes_free = (counts.metadata_free / 1024).saturating_add(plenty / 16 / 1024);
        Ok(StatFs {
            total,
            free,
            available: free,
            inodes_used: counts.inodes,
            inodes_free,
            block_size: self.mount.array.block_size,
        })
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.timings.lookup.run(|| names::lookup(&self.mount, caller, parent, name))?;
        self.trace().note_file(entry.attr.ino, parent, name);
        Ok(entry)
    }

    fn remember(&self, ino: Ino) {
        self.mount.table.remember(ino);
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.mount.table.remove_lookups(ino, count);
    }

    fn is_shared(&self) -> bool {
        self.mount.tokens.is_some()
    }

    fn attributes_hold(&self, ino: Ino) -> Option<Duration> {
        self.mount.tokens.as_ref().map(|tokens| tokens.hold_of(ino))
    }

    fn show_name(&self, directory: Ino) -> NameMark {
        NameMark(self.mount.show_name(directory))
    }

    fn name_holds(&self, directory: Ino, mark: NameMark) -> Option<Duration> {
        let tokens = self.mount.tokens.as_ref()?;
        let NameMark(Some(epoch)) = mark else { return Some(Duration::ZERO) };
        let holds = tokens.hold_of(directory);
        let until = self.mount.array.clock.monotonic() + holds;
        let is_kept = !holds.is_zero() && self.mount.shown.lock().is_kept(epoch, until);
        Some(if is_kept { holds } else { Duration::ZERO })
    }

    fn set_mode(&self, mode: MountMode) {
        self.mount.mode.set(mode);
    }

    fn mode(&self) -> MountMode {
        self.mount.mode.get()
    }

    fn attach_adapter(&self, adapter: Arc<dyn Invalidate>) {
        assert!(self.mount.adapter.set(adapter).is_ok(), "a mount has one adapter");
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.timings.getattr.run(|| {
            let _tokens = self.mount.take_to_look(ino)?;
            self.mount.attr(&self.mount.table.pin(ino))
        })
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
        change: &SetAttr,
    ) -> Result<Attr> {
        self.timings.setattr.run(|| {
            self.mount.may_write()?;
            let open = handle.map(|handle| self.files.get(handle)).transpose()?;
            let open = open.as_deref().filter(|open| open.inode.ino == ino);
            let inode = self.mount.table.pin(ino);
            let (attr, _tokens) = self.mount.with_disks(ino, || {
                let tokens = self.mount.take([exclusive(ino)])?;
                Ok((attributes::setattr(&self.mount, caller, &inode, open, change)?, tokens))
            })?;
            self.settle(&inode)?;
            Ok(attr)
        })
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        let _tokens = self.mount.take([shared(ino)])?;
        attributes::access(&self.mount, caller, &self.mount.table.pin(ino), mask)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.mount.hold_lease()?;
        match self.mount.array.meta.query(&MetaQuery::ReadLink { ino })? {
            MetaReply::Bytes(target) => Ok(target),
            _ => Err(wrong_reply()),
        }
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: MakeNode) -> Result<Entry> {
        self.timings.mknod.run(|| {
            if matches!(node.file_type, FileType::Directory | FileType::Symlink) {
                return Err(ErrorKind::Invalid.into());
            }
            let mut new = names::new_inode(caller, node.file_type, node.permissions);
            new.rdev = node.rdev;
            self.make(caller, parent, name, new)
        })
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], permissions: u32) -> Result<Entry> {
        self.timings.mkdir.run(|| {
            let new = names::new_inode(caller, FileType::Directory, permissions);
            self.make(caller, parent, name, new)
        })
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.timings.symlink.run(|| {
            if target.len() > SYMLINK_BYTES_MAX {
                return Err(ErrorKind::NameTooLong.into());
            }
            let mut new = names::new_inode(caller, FileType::Symlink, 0o777);
            new.umask = 0;
            new.target = target.to_vec();
            self.make(caller, parent, name, new)
        })
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.timings.link.run(|| {
            self.mount.may_write()?;
            let _tokens = self.mount.take([exclusive(parent), exclusive(ino)])?;
            let entry = names::link(&self.mount, caller, ino, parent, name)?;
            self.settle_entry(entry)
        })
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.timings.unlink.run(|| self.remove(caller, parent, name, false))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.timings.rmdir.run(|| self.remove(caller, parent, name, true))
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.timings.rename.run(|| {
            self.mount.may_write()?;
            let _renaming = self.mount.renaming([source.0, target.0]);
            let renamed = names::rename(&self.mount, caller, source, target, mode)?;
            self.settle_names()?;
            Ok(renamed)
        })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Entry, Opened)> {
        self.timings.create.run(|| {
            let place = (parent, name);
            let (entry, open, is_new) =
                open::create(&self.mount, caller, place, permissions, flags, exclusive)?;
            let opened = self.opened(open, is_new);
            self.trace().note_file(entry.attr.ino, parent, name);
            let settled = self.settle_entry(entry).inspect_err(|_| self.release(opened.handle))?;
            Ok((settled, opened))
        })
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        permissions: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.mount.may_write()?;
        let _tokens = self.mount.take([exclusive(parent)])?;
        let made = open::tmpfile(&self.mount, caller, parent, permissions, flags)?;
        Ok((made.0, self.opened(made.1, true)))
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.timings.open.run(|| {
            let inode = self.mount.table.pin(ino);
            Ok(self.opened(open::open(&self.mount, caller, &inode, flags)?, false))
        })
    }

    fn pages_are_kept(&self, handle: Handle) {
        if let Ok(open) = self.files.get(handle) {
            open.ahead.lock().kept = !open.flags.direct;
        }
    }

    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_as(Access::Read, handle, offset, out)
    }

    fn fill(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let to = offset.saturating_add(out.len() as u64);
        self.read_as(Access::Fill { from: offset, to }, handle, offset, out)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let start = self.timings.write.begin();
        let result = self.writable(handle).and_then(|open| {
            let ino = open.inode.ino;
            // The token is held until the bytes are synced: what is lost with it is told.
            let (count, _tokens) = self.mount.with_disks(ino, || {
                let (tokens, position) = match open.flags.append {
                    true => (self.mount.take_to_change(ino, Access::Write)?, Position::End),
                    false => {
                        let tokens = self.mount.take_to_write(ino, offset, bytes.len())?;
                        (tokens, Position::At(offset))
                    }
                };
                if let Some(newest) = tokens.beside() {
                    self.mount.learn_size(&open.inode, newest)?;
                }
                xattr::remove_capability(&self.mount, &open.inode)?;
                let count = self.of(&open, &*self.file(&open)?).write(position, bytes)?;
                Ok((count, tokens))
            })?;
            if open.flags.sync || self.mount.mode.get().sync {
                sync_inode(&self.mount, &open.inode)?;
            }
            Ok(count)
        });
        self.timings.write.end(start, *result.as_ref().unwrap_or(&0) as u64, result.is_ok());
        result
    }

    fn write_mapped(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let start = self.timings.write.begin();
        let result = self.files.get(handle).and_then(|open| {
            if !open.flags.write {
                return Err(ErrorKind::BadHandle.into());
            }
            self.mount.with_disks(open.inode.ino, || {
                // The page stays in the kernel, so no other client may write beside.
                let _tokens = self.mount.take_to_change(open.inode.ino, Access::WriteBack)?;
                self.of(&open, &*self.file(&open)?).write(Position::At(offset), bytes)
            })
        });
        self.timings.write.end(start, *result.as_ref().unwrap_or(&0) as u64, result.is_ok());
        result
    }

    fn flush(&self, handle: Handle) -> Result<()> {
        let open = self.files.get(handle)?;
        let result = open.inode.core.lock().latch.report(&mut open.seen.lock());
        // The next sync of the file need not tell it again.
        result.inspect_err(|_| drop(self.mount.losses.tell_of(open.inode.ino)))
    }

    fn fsync(&self, handle: Handle) -> Result<()> {
        self.timings.fsync.run(|| {
            self.mount.hold_lease()?;
            open::fsync(&self.mount, &*self.files.get(handle)?)
        })
    }

    fn release(&self, handle: Handle) {
        if let Some(open) = self.files.remove(handle) {
            open::release(&self.mount, &open);
            let inode = Arc::clone(&open.inode);
            drop(open);
            self.mount.drop_idle_file(&inode);
        }
    }

    fn fallocate(&self, handle: Handle, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        self.timings.fallocate.run(|| {
            let open = self.writable(handle)?;
            let _tokens = self.mount.with_disks(open.inode.ino, || {
                let tokens = self.mount.take([exclusive(open.inode.ino)])?;
                self.of(&open, &*self.file(&open)?).fallocate(range.clone(), mode)?;
                Ok(tokens)
            })?;
            self.settle(&open.inode)
        })
    }

    fn seek(&self, handle: Handle, offset: u64, what: SeekFor) -> Result<u64> {
        let open = self.files.get(handle)?;
        let _tokens = self.mount.take([shared(open.inode.ino)])?;
        self.of(&open, &*self.file(&open)?).seek(offset, what)
    }

    fn copy_range(&self, source: (Handle, u64), target: (Handle, u64), length: u64) -> Result<u64> {
        self.timings.copy_range.run(|| {
            let from = self.files.get(source.0)?;
            let to = self.writable(target.0)?;
            if !from.flags.read || to.flags.append {
                return Err(ErrorKind::BadHandle.into());
            }
            let distance = source.1.abs_diff(target.1);
            if Arc::ptr_eq(&from.inode, &to.inode) && distance < length {
                return Err(ErrorKind::Invalid.into());
            }
            let (copied, _tokens) = self.mount.with_disks(from.inode.ino, || {
                self.mount.read_or_mend(|blocks| {
                    let mode = match blocks {
                        BlockAccess::Shared => Mode::Shared,
                        BlockAccess::Exclusive => Mode::Exclusive,
                    };
                    let wants = [want(from.inode.ino, mode), exclusive(to.inode.ino)];
                    let tokens = self.mount.take(wants)?;
                    let (source_file, target_file) = (self.file(&from)?, self.file(&to)?);
                    let source = (&self.of(&from, &source_file), source.1);
                    let target = (&self.of(&to, &target_file), target.1);
                    Ok((copy::copy_range(source, target, length, blocks)?, tokens))
                })
            })?;
            self.settle(&to.inode)?;
            Ok(copied)
        })
    }

    fn readdir(
        &self,
        ino: Ino,
        cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()> {
        self.timings.readdir.run(|| {
            let _tokens = self.mount.take([shared(ino)])?;
            let dir = self.mount.table.pin(ino);
            // Attributes of the entries would need their tokens as well.
            let with_attrs = with_attrs && self.mount.tokens.is_none();
            let mut take = |item: &DirItem| {
                self.trace().note_file(item.ino, ino, &item.name);
                take(item)
            };
            directory::readdir(&self.mount, &dir, cookie, with_attrs, &mut take)?;
            self.mount.note_read(&dir, self.mount.mode.get().directory_times());
            Ok(())
        })
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        if ino == Ino::ROOT {
            return self.sync().map(|_| ());
        }
        self.timings.fsync.run(|| {
            self.mount.hold_lease()?;
            self.mount.tell_kept()?;
            self.mount.array.meta.sync()?;
            self.mount.learn_refusals();
            self.mount.losses.tell_of(ino)
        })
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.mount.table.pin(ino);
        self.timings.getxattr.run(|| {
            let _tokens = self.mount.take([shared(ino)])?;
            xattr::get(&self.mount, caller, &inode, name)
        })
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.mount.table.pin(ino);
        self.timings.listxattr.run(|| {
            let _tokens = self.mount.take([shared(ino)])?;
            xattr::list(&self.mount, caller, &inode)
        })
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()> {
        let inode = self.mount.table.pin(ino);
        self.timings.setxattr.run(|| {
            self.mount.may_write()?;
            let _tokens = self.mount.take([exclusive(ino)])?;
            xattr::set(&self.mount, caller, &inode, (name, value), mode, clear_setgid)?;
            self.settle(&inode)
        })
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let inode = self.mount.table.pin(ino);
        self.timings.removexattr.run(|| {
            self.mount.may_write()?;
            let _tokens = self.mount.take([exclusive(ino)])?;
            xattr::remove(&self.mount, caller, &inode, name)?;
            self.settle(&inode)
        })
    }

    fn test_lock(&self, handle: Handle, want: &LockWant) -> Result<Option<LockHeld>> {
        let (locks, want) = self.wanted(handle, want)?;
        locks.test(want)
    }

    fn set_lock(&self, handle: Handle, want: &LockWant) -> Result<()> {
        let (locks, want) = self.wanted(handle, want)?;
        locks.set(handle, want)
    }

    fn set_lock_later(&self, handle: Handle, want: &LockWant, ticket: u64, then: LockDone) {
        match self.wanted(handle, want) {
            Ok((locks, want)) => locks.set_later(handle, want, ticket, then),
            Err(error) => then(Err(error)),
        }
    }

    fn cancel_lock(&self, ticket: u64) {
        if let Some(tokens) = &self.mount.tokens {
            tokens.locks.cancel(ticket);
        }
    }

    fn unlock_at_close(&self, handle: Handle, owner: u64) -> Result<()> {
        let (locks, ino) = self.locks(handle)?;
        locks.closed(ino, owner)
    }

    fn unlock_at_release(&self, handle: Handle, flock: Option<u64>) {
        if let Ok((locks, ino)) = self.locks(handle) {
            locks.released(ino, handle, flock);
        }
    }

    fn sync(&self) -> Result<u64> {
        self.timings.sync.run(|| {
            self.mount.hold_lease()?;
            let bytes = sync_for_program(&self.mount)?;
            self.mount.learn_refusals();
            self.mount.losses.tell().map(|()| bytes)
        })
    }
}
