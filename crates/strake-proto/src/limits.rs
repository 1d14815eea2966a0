//! Limits that every part agrees on, each with the reason for its value.

use crate::units::ByteCount;

/// Checksums, space and direct I/O count in units of this many bytes.
pub const UNIT_BYTES: usize = 4096;
/// `NAME_MAX` of Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// `PATH_MAX` less its terminator: the longest symbolic link.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// The largest file, 8 EiB − 1: what `off_t` can name.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Files up to this size live in their inode.
pub const INLINE_BYTES_MAX: usize = 4000;
/// The most 4 KiB units that one entry of the metadata's log hardens: 512 KiB.
pub const HARDENED_UNITS_MAX: usize = 128;
/// Counted changes of one client that may lack an answer at one time. The metadata keeps as many
/// answers of up to about 4 KiB for each client, 256 KiB in all; a mount seldom has more than its
/// request threads and flushers in the metadata at once, which are fewer than 64.
pub const WINDOW_CHANGES: u64 = 64;
/// `XATTR_SIZE_MAX` of Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// `XATTR_LIST_MAX` of Linux.
pub const XATTR_LIST_BYTES_MAX: usize = 65536;
/// Names one inode can have; fits every `nlink_t` and leaves 0 for orphans.
pub const LINK_COUNT_MAX: u32 = 65000;
/// A block up to this size is one data strip and P parity strips.
pub const SHORT_BLOCK_BYTES_MAX: u64 = 128 * 1024;
/// The smallest block size.
pub const BLOCK_SIZE_MIN: ByteCount = ByteCount::kib(256);
/// The largest block size.
pub const BLOCK_SIZE_MAX: ByteCount = ByteCount::mib(16);
/// The block size if none is named.
pub const BLOCK_SIZE_DEFAULT: ByteCount = ByteCount::mib(4);
/// No message header (all but bulk data) is longer; a longer one is refused unread.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// No bulk payload is longer: one strip of the largest block.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
