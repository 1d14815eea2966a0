//! The limits that all parts of Strake share.

use crate::units::ByteCount;

/// Checksums, space and direct I/O count in units of this many bytes.
pub const UNIT_BYTES: usize = 4096;
/// The longest name, which is `NAME_MAX` of Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest target of a symbolic link, which is `PATH_MAX` of Linux without its terminator.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// The size of the largest file, 8 EiB − 1. It is the largest value of `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The contents of a file up to this size are in its inode.
pub const INLINE_BYTES_MAX: usize = 4000;
/// The most 4 KiB units that one entry of the metadata's log hardens: 512 KiB.
pub const HARDENED_UNITS_MAX: usize = 128;
/// At most this many hardened units are forgotten with one change of the metadata.
pub const FOLDED_UNITS_MAX: usize = 1024;
/// At most this many inode numbers are reserved with one change.
pub const INODES_RESERVED_MAX: u32 = 256;
/// At most this many object numbers are reserved with one change.
pub const OBJECTS_RESERVED_MAX: u32 = 256;
/// How many counted changes of one client may lack an answer at one time. For each client the
/// metadata keeps this many answers of up to about 4 KiB, 256 KiB in all. A mount seldom needs
/// more: its request threads and flushers together are fewer than 64.
pub const WINDOW_CHANGES: u64 = 64;
/// The longest value of an extended attribute, which is `XATTR_SIZE_MAX` of Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// The longest list of an inode's attribute names, which is `XATTR_LIST_MAX` of Linux.
pub const XATTR_LIST_BYTES_MAX: usize = 65536;
/// The most names that one inode can have. The number fits every `nlink_t`.
pub const LINK_COUNT_MAX: u32 = 65000;
/// The most slots of a file system, those of deleted NSDs included.
pub const SLOTS_MAX: usize = 1024;
/// A block up to this size has one data strip and P parity strips.
pub const SHORT_BLOCK_BYTES_MAX: u64 = 128 * 1024;
/// The smallest block size.
pub const BLOCK_SIZE_MIN: ByteCount = ByteCount::kib(256);
/// The largest block size.
pub const BLOCK_SIZE_MAX: ByteCount = ByteCount::mib(16);
/// The block size if `up` names none.
pub const BLOCK_SIZE_DEFAULT: ByteCount = ByteCount::mib(4);
/// The longest header of a message, which is everything but bulk data. A longer one is refused
/// unread.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The longest bulk payload, which is one strip of the largest block.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
