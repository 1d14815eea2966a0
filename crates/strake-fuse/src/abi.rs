//! The kernel's FUSE protocol, version 7.45, byte by byte. The file has every struct with its size
//! and the offset of each field, and every number that is sent or understood. The source is
//! `linux/fuse.h`.
//!
//! Nothing is cast. Bytes are read and written at the offsets given here with bounds checks, so a
//! short or malformed message is an error and never a wild read. Integers have the machine's byte
//! order, because the device speaks only to its own kernel. Fields that we do not need are left
//! out. The bytes between the fields are zero in what we send and ignored in what we receive.

/// Declares structs with the size and field offsets of the protocol.
macro_rules! layouts {
    ($( $(#[$doc:meta])* $name:ident[$size:literal] {
        $( $offset:literal $field:ident: $type:ty, )*
    } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $( pub(crate) $field: $type, )*
        }

        #[allow(dead_code, reason = "most structs travel one way only; tests use both")]
        impl $name {
            pub(crate) const SIZE: usize = $size;

            /// Reads the struct at the start of `bytes`. `None` if there are too few bytes.
            pub(crate) fn decode(bytes: &[u8]) -> Option<$name> {
                let bytes = bytes.first_chunk::<$size>()?;
                Some($name {
                    $( $field: <$type>::from_ne_bytes(*bytes[$offset..].first_chunk()?), )*
                })
            }

            /// The struct's bytes.
            pub(crate) fn encode(&self) -> [u8; $size] {
                let mut bytes = [0u8; $size];
                $( bytes[$offset..$offset + size_of::<$type>()]
                    .copy_from_slice(&self.$field.to_ne_bytes()); )*
                bytes
            }
        }
    )* };
}

layouts! {
    /// Stands before every request.
    InHeader[40] {
        0 len: u32,
        4 opcode: u32,
        8 unique: u64,
        16 nodeid: u64,
        24 uid: u32,
        28 gid: u32,
        32 pid: u32,
        36 total_extlen: u16,
    }
    /// Stands beside every request and reply that travels through a ring.
    RingInOut[32] {
        8 commit_id: u64,
        16 payload_size: u32,
    }
    /// Goes to the ring with each command.
    RingCommand[80] {
        8 commit_id: u64,
        16 queue: u16,
    }
    /// Stands before every reply and notification. In a notification `unique` is 0 and `error` is
    /// the notification's code.
    OutHeader[16] {
        0 len: u32,
        4 error: i32,
        8 unique: u64,
    }
    /// The attributes that `stat` shows.
    AttrOut[88] {
        0 ino: u64,
        8 size: u64,
        16 blocks: u64,
        24 atime: i64,
        32 mtime: i64,
        40 ctime: i64,
        48 atime_nanos: u32,
        52 mtime_nanos: u32,
        56 ctime_nanos: u32,
        60 mode: u32,
        64 links: u32,
        68 uid: u32,
        72 gid: u32,
        76 rdev: u32,
        80 blksize: u32,
        84 flags: u32,
    }
    /// `fuse_entry_out` without the [`AttrOut`] that follows it.
    EntryOut[40] {
        0 nodeid: u64,
        8 generation: u64,
        16 entry_valid: u64,
        24 attr_valid: u64,
        32 entry_valid_nanos: u32,
        36 attr_valid_nanos: u32,
    }
    /// `fuse_attr_out` without the [`AttrOut`] that follows it.
    AttrReply[16] {
        0 attr_valid: u64,
        8 attr_valid_nanos: u32,
    }
    /// STATX.
    StatxIn[24] {
        0 getattr_flags: u32,
        8 fh: u64,
        16 sx_flags: u32,
        20 sx_mask: u32,
    }
    /// `fuse_statx_out` with its `fuse_statx`, which starts at offset 32.
    StatxOut[288] {
        0 attr_valid: u64,
        8 attr_valid_nanos: u32,
        12 flags: u32,
        32 mask: u32,
        36 blksize: u32,
        40 attributes: u64,
        48 links: u32,
        52 uid: u32,
        56 gid: u32,
        60 mode: u16,
        64 ino: u64,
        72 size: u64,
        80 blocks: u64,
        88 attributes_mask: u64,
        96 atime: i64,
        104 atime_nanos: u32,
        112 btime: i64,
        120 btime_nanos: u32,
        128 ctime: i64,
        136 ctime_nanos: u32,
        144 mtime: i64,
        152 mtime_nanos: u32,
        160 rdev_major: u32,
        164 rdev_minor: u32,
    }
    /// FORGET.
    ForgetIn[8] {
        0 nlookup: u64,
    }
    /// BATCH_FORGET, followed by `count` of [`ForgetOne`].
    BatchForgetIn[8] {
        0 count: u32,
    }
    /// One of a batch.
    ForgetOne[16] {
        0 nodeid: u64,
        8 nlookup: u64,
    }
    /// SETATTR.
    SetAttrIn[88] {
        0 valid: u32,
        8 fh: u64,
        16 size: u64,
        24 lock_owner: u64,
        32 atime: i64,
        40 mtime: i64,
        48 ctime: i64,
        56 atime_nanos: u32,
        60 mtime_nanos: u32,
        64 ctime_nanos: u32,
        68 mode: u32,
        76 uid: u32,
        80 gid: u32,
    }
    /// MKNOD, followed by the name.
    MknodIn[16] {
        0 mode: u32,
        4 rdev: u32,
        8 umask: u32,
    }
    /// MKDIR, followed by the name.
    MkdirIn[8] {
        0 mode: u32,
        4 umask: u32,
    }
    /// RENAME, followed by the two names.
    RenameIn[8] {
        0 newdir: u64,
    }
    /// RENAME2, followed by the two names.
    Rename2In[16] {
        0 newdir: u64,
        8 flags: u32,
    }
    /// LINK, followed by the new name.
    LinkIn[8] {
        0 oldnodeid: u64,
    }
    /// OPEN and OPENDIR.
    OpenIn[8] {
        0 flags: u32,
        4 open_flags: u32,
    }
    /// CREATE and TMPFILE, followed by the name.
    CreateIn[16] {
        0 flags: u32,
        4 mode: u32,
        8 umask: u32,
        12 open_flags: u32,
    }
    /// The answer to OPEN and OPENDIR, and the end of the one to CREATE and TMPFILE.
    OpenOut[16] {
        0 fh: u64,
        8 open_flags: u32,
        12 backing_id: i32,
    }
    /// RELEASE and RELEASEDIR.
    ReleaseIn[24] {
        0 fh: u64,
        8 flags: u32,
        12 release_flags: u32,
        16 lock_owner: u64,
    }
    /// FLUSH.
    FlushIn[24] {
        0 fh: u64,
        16 lock_owner: u64,
    }
    /// READ, READDIR, READDIRPLUS.
    ReadIn[40] {
        0 fh: u64,
        8 offset: u64,
        16 size: u32,
        20 read_flags: u32,
        24 lock_owner: u64,
        32 flags: u32,
    }
    /// WRITE, followed by the bytes.
    WriteIn[40] {
        0 fh: u64,
        8 offset: u64,
        16 size: u32,
        20 write_flags: u32,
        24 lock_owner: u64,
        32 flags: u32,
    }
    /// Follows a header with [`NOTIFY_INVAL_INODE`]. The kernel drops the attributes, and also the
    /// pages of the range unless `offset` is negative. `length` 0 means to the end.
    InvalInodeOut[24] {
        0 ino: u64,
        8 offset: i64,
        16 length: i64,
    }
    /// Follows a header with [`NOTIFY_INVAL_ENTRY`]. The name and a zero byte come after it.
    InvalEntryOut[16] {
        0 parent: u64,
        8 namelen: u32,
        12 flags: u32,
    }
    /// Follows a header with [`NOTIFY_DELETE`]. The name and a zero byte come after it.
    DeleteOut[24] {
        0 parent: u64,
        8 child: u64,
        16 namelen: u32,
    }
    /// Bytes written or copied.
    WriteOut[8] {
        0 size: u32,
    }
    /// STATFS.
    StatFsOut[80] {
        0 blocks: u64,
        8 bfree: u64,
        16 bavail: u64,
        24 files: u64,
        32 ffree: u64,
        40 bsize: u32,
        44 namelen: u32,
        48 frsize: u32,
    }
    /// GETLK, SETLK and SETLKW. `end` is the last byte.
    LkIn[48] {
        0 fh: u64,
        8 owner: u64,
        16 start: u64,
        24 end: u64,
        32 kind: u32,
        36 pid: u32,
        40 lk_flags: u32,
    }
    /// GETLK's answer: the lock that is in the way, or [`lock_kind::UNLOCK`] if there is none.
    LkOut[24] {
        0 start: u64,
        8 end: u64,
        16 kind: u32,
        20 pid: u32,
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn[16] {
        0 fh: u64,
        8 fsync_flags: u32,
    }
    /// SETXATTR as extended by `SETXATTR_EXT`, followed by name and value.
    SetxattrIn[16] {
        0 size: u32,
        4 flags: u32,
        8 setxattr_flags: u32,
    }
    /// GETXATTR (followed by the name) and LISTXATTR.
    GetxattrIn[8] {
        0 size: u32,
    }
    /// The size of a value or list, if only the size was asked for.
    GetxattrOut[8] {
        0 size: u32,
    }
    /// ACCESS.
    AccessIn[8] {
        0 mask: u32,
    }
    /// INIT, as extended by `INIT_EXT`. Kernels before 7.36 send a shorter one.
    InitIn[64] {
        0 major: u32,
        4 minor: u32,
        8 max_readahead: u32,
        12 flags: u32,
        16 flags2: u32,
    }
    /// The answer to INIT.
    InitOut[64] {
        0 major: u32,
        4 minor: u32,
        8 max_readahead: u32,
        12 flags: u32,
        16 max_background: u16,
        18 congestion_threshold: u16,
        20 max_write: u32,
        24 time_granularity: u32,
        28 max_pages: u16,
        30 map_alignment: u16,
        32 flags2: u32,
    }
    /// INTERRUPT.
    InterruptIn[8] {
        0 unique: u64,
    }
    /// FALLOCATE.
    FallocateIn[32] {
        0 fh: u64,
        8 offset: u64,
        16 length: u64,
        24 mode: u32,
    }
    /// Stands before each name in READDIR's answer. After the name follows padding to 8 bytes.
    DirentOut[24] {
        0 ino: u64,
        8 cookie: u64,
        16 namelen: u32,
        20 file_type: u32,
    }
    /// LSEEK.
    LseekIn[24] {
        0 fh: u64,
        8 offset: u64,
        16 whence: u32,
    }
    /// LSEEK's answer.
    LseekOut[8] {
        0 offset: u64,
    }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn[56] {
        0 fh_in: u64,
        8 off_in: u64,
        16 nodeid_out: u64,
        24 fh_out: u64,
        32 off_out: u64,
        40 len: u64,
        48 flags: u64,
    }
    /// COPY_FILE_RANGE_64's answer.
    CopyFileRangeOut[8] {
        0 bytes_copied: u64,
    }
    /// IOCTL.
    IoctlIn[32] {
        0 fh: u64,
        8 flags: u32,
        12 cmd: u32,
        16 arg: u64,
        24 in_size: u32,
        28 out_size: u32,
    }

}

/// The major version that this file describes. No other is supported.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version this file describes.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that is served: `INIT_EXT` and `SETXATTR_EXT` exist (Linux 5.17).
pub(crate) const MINOR_OLDEST: u32 = 36;

/// Declares the operations once: number, variant and the name shown in statistics.
macro_rules! opcodes {
    ($( $number:literal $variant:ident $name:literal )*) => {
        /// The operation that a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode { $( $variant, )* }

        impl Opcode {
            /// The operation with this number. `None` if we do not know it.
            pub(crate) fn from_number(number: u32) -> Option<Opcode> {
                Some(match number { $( $number => Opcode::$variant, )* _ => return None })
            }

            /// Its name in statistics and waits.
            pub(crate) fn name(self) -> &'static str {
                match self { $( Opcode::$variant => concat!("fuse_", $name), )* }
            }
        }
    };
}

opcodes! {
    1 Lookup "lookup"
    2 Forget "forget"
    3 GetAttr "getattr"
    4 SetAttr "setattr"
    5 ReadLink "readlink"
    6 Symlink "symlink"
    8 Mknod "mknod"
    9 Mkdir "mkdir"
    10 Unlink "unlink"
    11 Rmdir "rmdir"
    12 Rename "rename"
    13 Link "link"
    14 Open "open"
    15 Read "read"
    16 Write "write"
    17 StatFs "statfs"
    18 Release "release"
    20 Fsync "fsync"
    21 SetXattr "setxattr"
    22 GetXattr "getxattr"
    23 ListXattr "listxattr"
    24 RemoveXattr "removexattr"
    25 Flush "flush"
    26 Init "init"
    27 OpenDir "opendir"
    28 ReadDir "readdir"
    29 ReleaseDir "releasedir"
    30 FsyncDir "fsyncdir"
    31 GetLk "getlk"
    32 SetLk "setlk"
    33 SetLkW "setlkw"
    34 Access "access"
    35 Create "create"
    36 Interrupt "interrupt"
    38 Destroy "destroy"
    39 Ioctl "ioctl"
    42 BatchForget "batch_forget"
    43 Fallocate "fallocate"
    44 ReadDirPlus "readdirplus"
    45 Rename2 "rename2"
    46 Lseek "lseek"
    47 CopyFileRange "copy_file_range"
    50 SyncFs "syncfs"
    51 TmpFile "tmpfile"
    52 Statx "statx"
    53 CopyFileRange64 "copy_file_range_64"
}

/// Flags of INIT. Those above bit 31 travel in `flags2`.
pub(crate) mod init_flag {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetAttrIn::valid`.
pub(crate) mod setattr_flag {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of `open(2)`'s flags. Linux has the same numbers on x86-64 and aarch64, except for
/// `O_DIRECT`.
pub(crate) mod open_flag {
    pub(crate) const ACCESS_MODE: u32 = 0o3;
    pub(crate) const WRONLY: u32 = 0o1;
    pub(crate) const RDWR: u32 = 0o2;
    pub(crate) const EXCL: u32 = 0o200;
    pub(crate) const TRUNC: u32 = 0o1000;
    pub(crate) const APPEND: u32 = 0o2000;
    pub(crate) const DSYNC: u32 = 0o10000;
    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) const DIRECT: u32 = 0o40000;
    #[cfg(target_arch = "aarch64")]
    pub(crate) const DIRECT: u32 = 0o200000;
    pub(crate) const NOATIME: u32 = 0o1000000;
    /// `__FMODE_EXEC`: the kernel opens a program to run it.
    pub(crate) const EXEC: u32 = 0o40;
}

/// `LkIn::kind` and `LkOut::kind`: `F_RDLCK`, `F_WRLCK` and `F_UNLCK`.
pub(crate) mod lock_kind {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const UNLOCK: u32 = 2;
}

/// `LkIn::lk_flags`, `FUSE_LK_FLOCK`: the lock is one of `flock(2)`.
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// `ReleaseIn::release_flags`, `FUSE_RELEASE_FLOCK_UNLOCK`: the open file may have a `flock` lock,
/// whose owner stands in `lock_owner`.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// `OpenOut::open_flags`.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `WriteIn::write_flags`, `FUSE_WRITE_CACHE`: the kernel writes back pages that a mapping changed.
/// The handle is any that may write.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `ReadIn::read_flags`, `FUSE_READ_LOCKOWNER`: the read goes past the pages. Reads that fill pages
/// lack this flag.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`, `FUSE_WRITE_LOCKOWNER`: the write goes past the pages. Writes through
/// pages lack this flag.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `OutHeader::error` of a notification: `FUSE_NOTIFY_INVAL_INODE`.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// `OutHeader::error` of a notification: `FUSE_NOTIFY_INVAL_ENTRY`.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `OutHeader::error` of a notification: `FUSE_NOTIFY_DELETE`.
pub(crate) const NOTIFY_DELETE: i32 = 6;
/// `OutHeader::error` of a notification: `FUSE_NOTIFY_INC_EPOCH`. It has no body. Kernels know it
/// from version 7.44 on.
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;
/// The first minor version with [`NOTIFY_INC_EPOCH`].
pub(crate) const MINOR_WITH_EPOCHS: u32 = 44;
/// `WriteIn::write_flags`: clear setuid and setgid.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `SetxattrIn::setxattr_flags`: clear setgid with this access ACL.
pub(crate) const SETXATTR_KILL_SGID: u32 = 1 << 0;
/// `STATX_BASIC_STATS | STATX_BTIME`.
pub(crate) const STATX_MASK: u32 = 0x7ff | 0x800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_come_back_as_they_went() {
        let header = InHeader {
            len: 56,
            opcode: 14,
            unique: 7,
            nodeid: 1 << 40,
            uid: 1000,
            gid: 100,
            pid: 4711,
            total_extlen: 0,
        };
        assert_eq!(InHeader::decode(&header.encode()), Some(header));
        let statx = StatxOut { mtime: -5, mtime_nanos: 9, rdev_minor: 3, ..StatxOut::default() };
        assert_eq!(StatxOut::decode(&statx.encode()), Some(statx));
    }

    #[test]
    fn offsets_are_those_of_the_kernel_header() {
        // The last field of a struct ends where the C compiler ends it.
        let attr = AttrOut { blksize: 0x0102_0304, ..AttrOut::default() };
        assert_eq!(attr.encode()[80..84], 0x0102_0304u32.to_ne_bytes());
        let init = InitOut { max_pages: 256, flags2: 1 << 4, ..InitOut::default() };
        assert_eq!(init.encode()[28..30], 256u16.to_ne_bytes());
        assert_eq!(init.encode()[32..36], 16u32.to_ne_bytes());
    }

    #[test]
    fn short_messages_are_refused() {
        assert_eq!(WriteIn::decode(&[0; 39]), None);
        assert_eq!(InHeader::decode(&[]), None);
        assert!(WriteIn::decode(&[0; 40]).is_some());
    }

    #[test]
    fn operations_have_distinct_names() {
        let mut names: Vec<_> =
            (0..=64).filter_map(Opcode::from_number).map(Opcode::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(count, 46);
        assert_eq!(Opcode::from_number(37), None);
    }
}
