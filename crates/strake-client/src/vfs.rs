//! The interface for adapters: POSIX file operations on inode numbers. It knows nothing of FUSE.
//!
//! Calls come from many threads at once, and each blocks until it is answered. The errno of every
//! error is in `strake_proto::errno`. Names are bytes. Only `lookup` accepts `.` and `..`.
//!
//! **References.** Each returned [`Entry`] counts as one lookup of its inode. [`Vfs::forget`] gives
//! lookups back. An inode without names stays usable until its lookups are forgotten and its
//! handles released.

use crate::invalidate::Invalidate;
use crate::mode::MountMode;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, StatFs, Timestamp};
pub use strake_token::Mode as LockMode;
pub use strake_token::locks::{ByteRange, LockHeld, LockKind, LockOwner, LockWant};

/// Called once with the outcome of a lock that may have waited.
pub type LockDone = Box<dyn FnOnce(Result<()>) + Send>;

/// The number of an open file or directory of one mount. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The inode's attributes, including its number.
    pub attr: Attr,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reads are allowed.
    pub read: bool,
    /// Writes are allowed.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Cut to 0 on open.
    pub truncate: bool,
    /// Each write is durable before it returns (O_SYNC and O_DSYNC alike).
    pub sync: bool,
    /// The application asked for O_DIRECT.
    pub direct: bool,
    /// Opened to execute: reading needs only the execute permission.
    pub execute: bool,
    /// Do not move the access time (O_NOATIME).
    pub no_atime: bool,
}

impl OpenFlags {
    /// For reading and writing, and nothing else.
    pub const READ_WRITE: OpenFlags = OpenFlags {
        read: true,
        write: true,
        append: false,
        truncate: false,
        sync: false,
        direct: false,
        execute: false,
        no_atime: false,
    };
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The handle for further calls. The adapter releases it at the end.
    pub handle: Handle,
    /// Whether the kernel may keep its pages of this inode, because nothing has changed them.
    pub keep_cache: bool,
    /// Whether the open has made the inode, so that the adapter's caches cannot know it yet.
    pub is_new: bool,
}

/// Wanted changes of attributes. `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits, `& 0o7777`.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: the file is cut or extended.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time, where the kernel owns it.
    pub ctime: Option<Timestamp>,
    /// The kernel asks to clear setuid/setgid (HANDLE_KILLPRIV_V2) with this change.
    pub kill_privileges: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call (`UTIME_NOW`). Write permission suffices.
    Now,
    /// This time. Only the owner may set it.
    At(Timestamp),
}

/// One entry of a directory listing, `.` and `..` included.
#[derive(Clone, Debug)]
pub struct DirItem {
    /// The cookie with which the next listing continues after this entry.
    pub cookie: Cookie,
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its type.
    pub file_type: FileType,
    /// Its attributes, if the caller asked for them. The entry counts as a lookup only if the
    /// adapter calls [`Vfs::remember`].
    pub attr: Option<Attr>,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocates. Extends the file unless `keep_size`.
    Allocate {
        /// Leaves the size as it is. `NotSupported` for a range that ends beyond the file.
        keep_size: bool,
    },
    /// Makes a hole. Never changes the size.
    PunchHole,
    /// Zeros a range. Extends the file unless `keep_size`.
    ZeroRange {
        /// As in `Allocate`.
        keep_size: bool,
    },
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// A new inode of [`Vfs::mknod`].
#[derive(Clone, Copy, Debug)]
pub struct MakeNode {
    /// The type (not a directory or symlink: those have calls of their own).
    pub file_type: FileType,
    /// Permission bits before the umask.
    pub permissions: u32,
    /// For device files.
    pub rdev: u32,
}

/// Announces that an answer may show a name; see [`Vfs::show_name`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameMark(pub(crate) Option<u64>);

/// The outcome of a rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// The inodes that have another name now: one, or two if names were exchanged, or none.
    pub moved: [Option<Ino>; 2],
}

/// A mounted file system.
pub trait Vfs: Send + Sync {
    /// Called before the first request. Hands over the interface to the adapter's caches, which
    /// tells them what is outdated. A file system without other writers has no use for it.
    fn attach_adapter(&self, _adapter: Arc<dyn Invalidate>) {}

    /// Whether other mounts change the file system at the same time. Then an adapter's caches hold
    /// nothing but what the `Vfs` can have dropped (`attach_adapter`).
    fn is_shared(&self) -> bool {
        false
    }

    /// How long an adapter's caches may keep attributes of an inode that were just answered. They
    /// drop them earlier when they are told to. `None` if nobody else changes them.
    fn attributes_hold(&self, _ino: Ino) -> Option<Duration> {
        None
    }

    /// Announces an operation whose answer may show a name of a directory to the adapter's caches,
    /// also that the name leads nowhere. To be called before the operation.
    fn show_name(&self, _directory: Ino) -> NameMark {
        NameMark::default()
    }

    /// How long the adapter's caches may keep the name that an operation has answered after it was
    /// announced. They drop it earlier when they are told to. `None` if nobody else changes names.
    fn name_holds(&self, _directory: Ino, _mark: NameMark) -> Option<Duration> {
        None
    }

    /// Says how the file system is mounted from now on.
    fn set_mode(&self, _mode: MountMode) {}

    /// How the file system is mounted.
    fn mode(&self) -> MountMode {
        MountMode::default()
    }

    /// Space and inodes of the file system.
    fn statfs(&self) -> Result<StatFs>;

    /// The inode that `name` in `parent` leads to. For `.` this is the inode `parent` itself, of
    /// any type and for any caller: a kernel finds the inode of a file handle in this way.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Counts one more lookup of an inode that a listing returned.
    fn remember(&self, ino: Ino);
    /// Gives back `count` lookups.
    fn forget(&self, ino: Ino, count: u64);

    /// The exact attributes of an inode.
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    /// Changes attributes. `handle` is the open file of an `ftruncate`, which needs no other
    /// permission than that of the `open`.
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
        change: &SetAttr,
    ) -> Result<Attr>;
    /// Whether `caller` may read (4), write (2), execute (1), as in `access(2)`.
    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()>;

    /// A symbolic link's target.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// Makes a file, FIFO, socket or device.
    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: MakeNode) -> Result<Entry>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], permissions: u32) -> Result<Entry>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
    /// Makes one more name.
    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Removes a name of a non-directory.
    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Renames. Returns whose change time has moved, beside the directories.
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed>;

    /// Makes a regular file and opens it. If the name exists, opens its file unless `exclusive`.
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Entry, Opened)>;
    /// Makes and opens a regular file without a name (`O_TMPFILE`).
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        permissions: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)>;
    /// Opens a regular file.
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened>;
    /// Reads at `offset` into `out`. Returns fewer bytes only at the end of the file.
    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize>;
    /// Like [`Vfs::read`], to fill pages of the adapter's caches. Until the answer these pages are
    /// locked and hold nothing, and whoever has them dropped waits.
    fn fill(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read(handle, offset, out)
    }
    /// Tells that the kernel's page cache keeps what is read through this handle, so that keeping
    /// it here as well is of little use.
    fn pages_are_kept(&self, _handle: Handle) {}
    /// Writes at `offset`, or at the end for `append` handles. Writes all bytes, or as many as
    /// there is space for. Fails only if nothing was written. Clears capabilities, but not setuid
    /// and setgid: see [`SetAttr::kill_privileges`].
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;
    /// Writes pages that were changed through a mapping. They go exactly to `offset`, even with an
    /// `append` handle, because the kernel uses any handle that may write. They are not durable on
    /// return.
    fn write_mapped(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;
    /// Called on every `close(2)`. Reports a latched write error.
    fn flush(&self, handle: Handle) -> Result<()>;
    /// Makes the file and the path to it durable.
    fn fsync(&self, handle: Handle) -> Result<()>;
    /// Called on the last close of a handle.
    fn release(&self, handle: Handle);
    /// See [`FallocateMode`].
    fn fallocate(&self, handle: Handle, range: Range<u64>, mode: FallocateMode) -> Result<()>;
    /// The next data or hole at or after `offset`. `NoDevice` beyond the end.
    fn seek(&self, handle: Handle, offset: u64, what: SeekFor) -> Result<u64>;
    /// Copies within the file system. May copy fewer bytes. Returns how many it copied.
    fn copy_range(&self, source: (Handle, u64), target: (Handle, u64), length: u64) -> Result<u64>;

    /// Calls `take` for the entries of a directory after `cookie` (0: from the start). Ends when
    /// `take` returns false, which means that it has not taken the entry. Cookies hold across
    /// changes: an entry that exists all the time is listed exactly once. The adapter checks
    /// whether the caller may read the directory when it is opened.
    fn readdir(
        &self,
        ino: Ino,
        cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()>;
    /// Makes the directory's entries durable.
    fn fsyncdir(&self, ino: Ino) -> Result<()>;

    /// An extended attribute's value.
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// The names of an inode's extended attributes that `caller` may see.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// Sets an extended attribute. With `clear_setgid` the setgid bit is cleared, as
    /// `FUSE_SETXATTR_ACL_KILL_SGID` asks.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()>;
    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;

    /// A lock that is in the way of a lock, or `None`. Like all that is about locks, this is for
    /// file systems that other mounts use at the same time ([`Vfs::is_shared`]).
    fn test_lock(&self, _handle: Handle, _want: &LockWant) -> Result<Option<LockHeld>> {
        Err(ErrorKind::NoSystem.into())
    }
    /// Locks or unlocks; does not wait for others. `WouldBlock` if one is in the way.
    fn set_lock(&self, _handle: Handle, _want: &LockWant) -> Result<()> {
        Err(ErrorKind::NoSystem.into())
    }
    /// Locks as soon as nobody is in the way, and then calls `then`: at once, or later on another
    /// thread. `Interrupted` if [`Vfs::cancel_lock`] was called with the same `ticket`, which no
    /// other lock has had.
    fn set_lock_later(&self, _handle: Handle, _want: &LockWant, _ticket: u64, then: LockDone) {
        then(Err(ErrorKind::NoSystem.into()));
    }
    /// Ends a wait for a lock, if it has not ended. It may come before the lock is asked for.
    fn cancel_lock(&self, _ticket: u64) {}
    /// Releases the POSIX locks of a process in a file. Called on every `close(2)` of that file.
    fn unlock_at_close(&self, _handle: Handle, _owner: u64) -> Result<()> {
        Ok(())
    }
    /// Releases the locks that belong to an open file. Called before [`Vfs::release`]. `flock` is
    /// the owner of its `flock` lock, if it may have one.
    fn unlock_at_release(&self, _handle: Handle, _flock: Option<u64>) {}

    /// Makes everything durable (`strake fs sync`, fsync of the root directory). Returns the bytes
    /// of file data that had to be written.
    fn sync(&self) -> Result<u64>;
}

#[cfg(test)]
#[path = "vfs_test.rs"]
pub(crate) mod vfs_test;
