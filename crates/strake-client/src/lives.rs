//! The lives of a mount beside others, one after the other.
//!
//! The leader declares a mount dead that it has not heard of for longer than a lease. Others have
//! then taken what the mount held, so this life can never go on. [`Lives`] goes on with the next
//! one under the same adapter: inodes keep their numbers, so working directories and paths stay
//! valid. Files that were open in an earlier life give `Io` until they are opened again, because
//! what was written to them may be lost. Of files that were closed before, the next sync says so.
//!
//! **Between two lives** operations on names and on inodes wait for the next one, up to
//! `standstill_max` after the death was seen. They hold nothing meanwhile, as no operation of the
//! last life may be under way when that is buried. What is known to be lost does not wait: handles
//! of before, and syncs.
//!
//! **What an earlier life answered** reaches the adapter's caches before that life is buried, or is
//! not believed: the burial waits for its operations, and has the caches drop all that they
//! answered ([`Tokens::bury`](crate::Tokens::bury)). Handles and the marks of names carry the
//! number of their life.
//!
//! **A program may store to pages that it mapped in an earlier life.** Its handle may write, so
//! later lives have pages of that file only under its exclusive token, until it is closed.

use crate::client::StrakeVfs;
use crate::invalidate::Invalidate;
use crate::lease::dead;
use crate::mode::MountMode;
use crate::vfs::{
    DirItem, Entry, FallocateMode, Handle, LockDone, LockHeld, LockWant, MakeNode, NameMark,
    OpenFlags, Opened, Renamed, SeekFor, SetAttr, Vfs,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, RwLock};
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, Ino, Result, StatFs};

/// Numbers of one life are below `1 << LIFE_SHIFT`.
const LIFE_SHIFT: u32 = 48;

/// A number of a life, made one of the mount.
fn with_life(number: u64, life: u16) -> u64 {
    assert!(number >> LIFE_SHIFT == 0, "a life has fewer handles and orders");
    u64::from(life) << LIFE_SHIFT | number
}

/// The number of a life, if it is one of this life.
fn of_life(number: u64, life: u16) -> Option<u64> {
    (number >> LIFE_SHIFT == u64::from(life)).then_some(number & ((1 << LIFE_SHIFT) - 1))
}

struct Life {
    number: u16,
    vfs: Arc<StrakeVfs>,
}

/// The time after the last life.
#[derive(Default)]
struct Pause {
    /// The number of the last life, and when an operation first saw that it is dead.
    last: Option<(u16, Duration)>,
    /// No life comes any more.
    ended: bool,
}

/// See the head of this file.
pub struct Lives {
    now: RwLock<Life>,
    /// The files of open handles of earlier lives that may write.
    strays: Mutex<HashMap<Handle, Ino>>,
    pause: Mutex<Pause>,
    begun: Condvar,
    adapter: OnceLock<Arc<dyn Invalidate>>,
}

impl Lives {
    /// The first life.
    pub fn new(vfs: Arc<StrakeVfs>) -> Lives {
        let now = RwLock::new(Life { number: 0, vfs });
        let (strays, pause, begun) = (Mutex::default(), Mutex::default(), Condvar::new());
        Lives { now, strays, pause, begun, adapter: OnceLock::new() }
    }

    /// No life comes any more: nobody waits for one.
    pub fn end(&self) {
        self.pause.lock().ended = true;
        self.begun.notify_all();
    }

    /// Goes on with the next life. The one before is buried. False if there were too many.
    pub fn begin(&self, vfs: &Arc<StrakeVfs>) -> bool {
        let mut now = self.now.write();
        let Some(number) = now.number.checked_add(1) else { return false };
        vfs.set_mode(now.vfs.mode());
        if let Some(adapter) = self.adapter.get() {
            vfs.attach_adapter(Arc::clone(adapter));
        }
        let mut strays = self.strays.lock();
        let life = now.number;
        strays.extend(now.vfs.writers().map(|(it, ino)| (Handle(with_life(it.0, life)), ino)));
        if let Some(tokens) = &vfs.mount.tokens {
            strays.values().for_each(|ino| tokens.stray_found(*ino));
        }
        // The adapter knows these inodes still, and gives its lookups back to this life.
        vfs.mount.table.adopt(&now.vfs.mount.table);
        vfs.mount.losses.inherit(&now.vfs.mount.losses);
        *now = Life { number, vfs: Arc::clone(vfs) };
        drop(now);
        // An operation that has seen the last life waits by now, or looks once more before it does.
        drop(self.pause.lock());
        self.begun.notify_all();
        true
    }

    fn now(&self) -> Arc<StrakeVfs> {
        Arc::clone(&self.now.read().vfs)
    }

    fn numbered(&self) -> (Arc<StrakeVfs>, u16) {
        let now = self.now.read();
        (Arc::clone(&now.vfs), now.number)
    }

    /// A life for an operation that depends on none of before. If none comes in time, it is the
    /// last one, which fails.
    fn living(&self) -> (Arc<StrakeVfs>, u16) {
        loop {
            let (vfs, number) = self.numbered();
            // A lease that is over may end with the word that this life is dead.
            let is_dead = vfs.mount.hold_lease().is_err() && vfs.mount.is_dead();
            if !is_dead || !self.await_next(&vfs, number) {
                return (vfs, number);
            }
        }
    }

    /// Waits until the life of this number is not the last one any more. False if that takes too
    /// long.
    fn await_next(&self, vfs: &StrakeVfs, number: u16) -> bool {
        let (clock, observe) = (&vfs.mount.array.clock, &vfs.mount.array.observe);
        let _wait = observe.waiters.enter("a new life of this mount", "");
        let mut pause = self.pause.lock();
        loop {
            // `begin` takes the lock of the pause after this one, and never both.
            if self.now.read().number != number {
                return true;
            }
            let now = clock.monotonic();
            let (_, since) = match pause.last {
                Some(last) if last.0 == number => last,
                _ => *pause.last.insert((number, now)),
            };
            let end = since + vfs.mount.settings.standstill_max;
            if pause.ended || now >= end {
                return false;
            }
            self.begun.wait_for(&mut pause, end - now);
        }
    }

    /// Does what changes nothing. If the life dies in the midst of it, the next one does it. Says
    /// which one did.
    fn looked_in<T>(&self, look: impl Fn(&StrakeVfs) -> Result<T>) -> (Result<T>, u16) {
        loop {
            let (vfs, number) = self.living();
            let result = look(&vfs);
            let has_died = result.is_err() && vfs.mount.is_dead();
            if !has_died || !self.await_next(&vfs, number) {
                return (result, number);
            }
        }
    }

    /// As [`Lives::looked_in`].
    fn looked<T>(&self, look: impl Fn(&StrakeVfs) -> Result<T>) -> Result<T> {
        self.looked_in(look).0
    }

    /// The life of a handle, and its number there.
    ///
    /// # Errors
    /// `Io` if it is of an earlier life. The next sync of its file need not tell that again.
    fn of(&self, handle: Handle) -> Result<(Arc<StrakeVfs>, Handle)> {
        let now = self.now.read();
        if let Some(own) = of_life(handle.0, now.number) {
            return Ok((Arc::clone(&now.vfs), Handle(own)));
        }
        if let Some(ino) = self.strays.lock().get(&handle) {
            let _ = now.vfs.mount.losses.tell_of(*ino);
        }
        Err(dead())
    }

    /// Makes a file in the life of now, and opens it.
    fn opened<T>(
        &self,
        open: impl FnOnce(&StrakeVfs) -> Result<T>,
        handle: impl FnOnce(&mut T) -> &mut Handle,
    ) -> Result<T> {
        let (vfs, life) = self.living();
        let mut opened = open(&vfs)?;
        let handle = handle(&mut opened);
        *handle = Handle(with_life(handle.0, life));
        Ok(opened)
    }
}

impl Vfs for Lives {
    fn attach_adapter(&self, adapter: Arc<dyn Invalidate>) {
        let now = self.now.write();
        now.vfs.attach_adapter(Arc::clone(&adapter));
        assert!(self.adapter.set(adapter).is_ok(), "a mount has one adapter");
    }

    fn is_shared(&self) -> bool {
        self.now().is_shared()
    }

    fn attributes_hold(&self, ino: Ino) -> Option<Duration> {
        self.now().attributes_hold(ino)
    }

    fn show_name(&self, directory: Ino) -> NameMark {
        let now = self.now.read();
        NameMark(now.vfs.show_name(directory).0.map(|order| with_life(order, now.number)))
    }

    fn name_holds(&self, directory: Ino, mark: NameMark) -> Option<Duration> {
        let now = self.now.read();
        let own = NameMark(mark.0.and_then(|order| of_life(order, now.number)));
        now.vfs.name_holds(directory, own)
    }

    fn set_mode(&self, mode: MountMode) {
        self.now.read().vfs.set_mode(mode);
    }

    fn mode(&self) -> MountMode {
        self.now().mode()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.looked(|vfs| vfs.statfs())
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.looked(|vfs| vfs.lookup(caller, parent, name))
    }

    fn remember(&self, ino: Ino) {
        self.now.read().vfs.remember(ino);
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.now.read().vfs.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.looked(|vfs| vfs.getattr(ino))
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
        change: &SetAttr,
    ) -> Result<Attr> {
        match handle.map(|handle| self.of(handle)).transpose()? {
            Some((vfs, handle)) => vfs.setattr(caller, ino, Some(handle), change),
            None => self.living().0.setattr(caller, ino, None, change),
        }
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.looked(|vfs| vfs.access(caller, ino, mask))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.looked(|vfs| vfs.readlink(ino))
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: MakeNode) -> Result<Entry> {
        self.living().0.mknod(caller, parent, name, node)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], permissions: u32) -> Result<Entry> {
        self.living().0.mkdir(caller, parent, name, permissions)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.living().0.symlink(caller, parent, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.living().0.link(caller, ino, parent, name)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.living().0.unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.living().0.rmdir(caller, parent, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.living().0.rename(caller, source, target, mode)
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
        let create =
            |vfs: &StrakeVfs| vfs.create(caller, parent, name, permissions, flags, exclusive);
        self.opened(create, |(_, opened)| &mut opened.handle)
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        permissions: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let make = |vfs: &StrakeVfs| vfs.tmpfile(caller, parent, permissions, flags);
        self.opened(make, |(_, opened)| &mut opened.handle)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        // An attempt with O_TRUNC may have cut the file already. The caller wants it cut anyhow.
        let (opened, life) = self.looked_in(|vfs| vfs.open(caller, ino, flags));
        opened.map(|opened| Opened { handle: Handle(with_life(opened.handle.0, life)), ..opened })
    }

    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let (vfs, handle) = self.of(handle)?;
        vfs.read(handle, offset, out)
    }

    fn fill(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let (vfs, handle) = self.of(handle)?;
        vfs.fill(handle, offset, out)
    }

    fn pages_are_kept(&self, handle: Handle) {
        if let Ok((vfs, handle)) = self.of(handle) {
            vfs.pages_are_kept(handle);
        }
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (vfs, handle) = self.of(handle)?;
        vfs.write(handle, offset, bytes)
    }

    fn write_mapped(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (vfs, handle) = self.of(handle)?;
        vfs.write_mapped(handle, offset, bytes)
    }

    fn flush(&self, handle: Handle) -> Result<()> {
        let (vfs, handle) = self.of(handle)?;
        vfs.flush(handle)
    }

    fn fsync(&self, handle: Handle) -> Result<()> {
        let (vfs, handle) = self.of(handle)?;
        vfs.fsync(handle)
    }

    fn release(&self, handle: Handle) {
        // No life begins meanwhile.
        let now = self.now.read();
        if let Some(own) = of_life(handle.0, now.number) {
            return now.vfs.release(Handle(own));
        }
        let stray = self.strays.lock().remove(&handle);
        if let (Some(ino), Some(tokens)) = (stray, &now.vfs.mount.tokens) {
            tokens.stray_closed(ino);
        }
    }

    fn fallocate(&self, handle: Handle, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let (vfs, handle) = self.of(handle)?;
        vfs.fallocate(handle, range, mode)
    }

    fn seek(&self, handle: Handle, offset: u64, what: SeekFor) -> Result<u64> {
        let (vfs, handle) = self.of(handle)?;
        vfs.seek(handle, offset, what)
    }

    fn copy_range(&self, source: (Handle, u64), target: (Handle, u64), length: u64) -> Result<u64> {
        let ((vfs, from), (same, to)) = (self.of(source.0)?, self.of(target.0)?);
        if !Arc::ptr_eq(&vfs, &same) {
            return Err(dead());
        }
        vfs.copy_range((from, source.1), (to, target.1), length)
    }

    fn readdir(
        &self,
        ino: Ino,
        cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()> {
        self.living().0.readdir(ino, cookie, with_attrs, take)
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.now().fsyncdir(ino)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.looked(|vfs| vfs.getxattr(caller, ino, name))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.looked(|vfs| vfs.listxattr(caller, ino))
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
        self.living().0.setxattr(caller, ino, name, value, mode, clear_setgid)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.living().0.removexattr(caller, ino, name)
    }

    fn test_lock(&self, handle: Handle, want: &LockWant) -> Result<Option<LockHeld>> {
        let (vfs, handle) = self.of(handle)?;
        vfs.test_lock(handle, want)
    }

    fn set_lock(&self, handle: Handle, want: &LockWant) -> Result<()> {
        let (vfs, handle) = self.of(handle)?;
        vfs.set_lock(handle, want)
    }

    fn set_lock_later(&self, handle: Handle, want: &LockWant, ticket: u64, then: LockDone) {
        match self.of(handle) {
            Ok((vfs, handle)) => vfs.set_lock_later(handle, want, ticket, then),
            Err(error) => then(Err(error)),
        }
    }

    fn cancel_lock(&self, ticket: u64) {
        self.now().cancel_lock(ticket);
    }

    fn unlock_at_close(&self, handle: Handle, owner: u64) -> Result<()> {
        match self.of(handle) {
            Ok((vfs, handle)) => vfs.unlock_at_close(handle, owner),
            // Its locks went with its life.
            Err(_) => Ok(()),
        }
    }

    fn unlock_at_release(&self, handle: Handle, flock: Option<u64>) {
        if let Ok((vfs, handle)) = self.of(handle) {
            vfs.unlock_at_release(handle, flock);
        }
    }

    fn sync(&self) -> Result<u64> {
        self.now().sync()
    }
}

#[cfg(test)]
#[path = "lives_test.rs"]
mod lives_test;
