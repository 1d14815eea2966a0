//! The attributes that `stat` and `statfs` show, and the credentials of a caller.

use crate::ids::{Generation, Ino};
use serde::{Deserialize, Serialize};

/// A point in time as the distance from the Unix epoch, exact to the nanosecond. It may be
/// negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0..1,000,000,000.
    pub nanos: u32,
}

/// The type bits of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    /// `S_IF…` of Linux.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileType::Fifo => 0o010_000,
            FileType::CharDevice => 0o020_000,
            FileType::Directory => 0o040_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Regular => 0o100_000,
            FileType::Symlink => 0o120_000,
            FileType::Socket => 0o140_000,
        }
    }

    /// The type in a mode. `None` if the bits name no type. A mode without type bits is regular, as
    /// for `mknod(2)`.
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & 0o170_000 {
            0o010_000 => FileType::Fifo,
            0o020_000 => FileType::CharDevice,
            0o040_000 => FileType::Directory,
            0o060_000 => FileType::BlockDevice,
            0o100_000 | 0 => FileType::Regular,
            0o120_000 => FileType::Symlink,
            0o140_000 => FileType::Socket,
            _ => return None,
        })
    }
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// Distinguishes the lives of the number.
    pub generation: Generation,
    /// Its type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid, sticky: `mode & 0o7777`.
    pub permissions: u32,
    /// How many names it has; 0 for an orphan.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device number of a device file, in Linux's 32-bit encoding of `dev_t`.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes held on disks, parity not counted; `st_blocks` is this over 512, rounded up.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

/// The credentials of the process that makes a call, as the kernel reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Process id, for the log.
    pub pid: u32,
    /// File-mode creation mask (`umask`). Only calls that create look at it.
    pub umask: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

/// A caller's supplementary groups. FUSE does not send them, and most checks need none of them.
/// They are looked up only for a check that does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Groups {
    /// The groups are known.
    Known(Vec<u32>),
    /// They are those of the process `Caller::pid` on this machine.
    OfProcess,
}

impl Caller {
    /// The superuser, for Strake's own work.
    pub const ROOT: Caller =
        Caller { uid: 0, gid: 0, pid: 0, umask: 0, groups: Groups::Known(Vec::new()) };
}

/// The numbers that `statfs` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Usable bytes after the code's parity.
    pub total: u64,
    /// Of these, not used.
    pub free: u64,
    /// Of these, available to ordinary users.
    pub available: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// The block size.
    pub block_size: u32,
}
