//! What every adapter calls: POSIX file operations on inode numbers, without a word of FUSE.
//!
//! Calls block until answered and come from many threads at once. Every error's errno is in
//! `strake_proto::errno`. Names are bytes; `.` and `..` are accepted by `lookup` only.
//!
//! References: each [`Entry`] returned counts as one lookup of its inode, given back by
//! [`Vfs::forget`]. An inode without names stays usable until its lookups are forgotten and its
//! handles released.

use crate::invalidate::Invalidate;
use std::ops::Range;
use std::sync::Arc;
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, FileType, Ino, Result, StatFs, Timestamp};

/// An open file or directory of one mount. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The inode's attributes, its number among them.
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
    /// To use in further calls, and to release.
    pub handle: Handle,
    /// Whether the kernel may keep the pages it has of this inode: nothing changed them behind it.
    pub keep_cache: bool,
}

/// Wanted changes of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits, `& 0o7777`.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: truncate or extend.
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
    /// The time of the call (`UTIME_NOW`): write permission suffices.
    Now,
    /// This time: only the owner may.
    At(Timestamp),
}

/// One entry of a directory listing, `.` and `..` included.
#[derive(Clone, Debug)]
pub struct DirItem {
    /// Continue after this one with this cookie.
    pub cookie: Cookie,
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its type.
    pub file_type: FileType,
    /// Its attributes, where asked for; counts as a lookup only if the adapter takes it with
    /// [`Vfs::remember`].
    pub attr: Option<Attr>,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocates; grows the file unless `keep_size`.
    Allocate {
        /// Leave the size.
        keep_size: bool,
    },
    /// Makes a hole; never changes the size.
    PunchHole,
    /// Zeros a range; grows the file unless `keep_size`.
    ZeroRange {
        /// Leave the size.
        keep_size: bool,
    },
}

/// Where `lseek` looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What is made besides regular files opened with `create`.
#[derive(Clone, Copy, Debug)]
pub struct MakeNode {
    /// The type (not a directory or symlink: those have calls of their own).
    pub file_type: FileType,
    /// Permission bits before the umask.
    pub permissions: u32,
    /// For device files.
    pub rdev: u32,
}

/// A mounted file system.
pub trait Vfs: Send + Sync {
    /// Hands over the way to tell the adapter's caches what is outdated, before the first request.
    /// A file system that nobody else changes has no use for it.
    fn attach_adapter(&self, _adapter: Arc<dyn Invalidate>) {}

    /// Space and inodes of the file system.
    fn statfs(&self) -> Result<StatFs>;

    /// What `name` in `parent` leads to; for `.` the inode `parent` itself, of any type, whoever
    /// asks: that is how a kernel finds what a file handle names.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Counts one more lookup of an inode that a listing returned.
    fn remember(&self, ino: Ino);
    /// Gives back `count` lookups.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes, exact.
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    /// Changes attributes. `handle` is the open file of an `ftruncate`, permitted at its open.
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
    /// Renames.
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()>;

    /// Makes a regular file, or opens the one there (unless `exclusive`).
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
    /// Reads at `offset` into `out`; fewer bytes only at the end of the file.
    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize>;
    /// Tells that whoever reads through this handle keeps what it has read (the kernel's page
    /// cache), so that keeping it here as well is of little use.
    fn pages_are_kept(&self, _handle: Handle) {}
    /// Writes at `offset`, or at the end for `append` handles. Writes all bytes, or as many as
    /// there is space for. Fails only if nothing was written. Clears capabilities, but not setuid
    /// and setgid: see [`SetAttr::kill_privileges`].
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;
    /// Writes pages that a mapping changed: exactly at `offset`, through an `append` handle as well
    /// (the kernel takes any handle that may write), and not durable on return.
    fn write_mapped(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;
    /// On every `close(2)`: reports a latched write error.
    fn flush(&self, handle: Handle) -> Result<()>;
    /// Makes the file and the path to it durable.
    fn fsync(&self, handle: Handle) -> Result<()>;
    /// The last close of a handle.
    fn release(&self, handle: Handle);
    /// See [`FallocateMode`].
    fn fallocate(&self, handle: Handle, range: Range<u64>, mode: FallocateMode) -> Result<()>;
    /// The next data or hole at or after `offset`; `NoDevice` beyond the end.
    fn seek(&self, handle: Handle, offset: u64, what: SeekFor) -> Result<u64>;
    /// Copies within the file system; may copy less.
    fn copy_range(&self, source: (Handle, u64), target: (Handle, u64), length: u64) -> Result<u64>;

    /// Entries of a directory after `cookie` (0: from the start), until `take` says no more
    /// (returns false: that entry was not taken). Cookies hold across changes: what existed all the
    /// time is listed exactly once. Whether the caller may read the directory is looked at when it
    /// is opened, which the adapter does.
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
    /// Sets an extended attribute. `clear_setgid`: as `FUSE_SETXATTR_ACL_KILL_SGID` asks.
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

    /// Makes everything durable (`strake fs sync`, fsync of the root directory); returns the
    /// bytes of file data that it had to write.
    fn sync(&self) -> Result<u64>;
}

#[cfg(test)]
#[path = "vfs_test.rs"]
pub(crate) mod vfs_test;
