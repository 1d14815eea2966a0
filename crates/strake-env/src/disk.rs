//! A disk as the block store sees it: bytes at offsets, and a barrier.

pub mod file;
pub mod guarded;
pub mod sim;

use std::io;

/// A disk or container file.
///
/// Offsets, lengths and memory are multiples of 4 KiB (implementations may assert it), so that
/// every access can be direct I/O. Calls come from many threads.
///
/// Durability: a write is durable only after a later `sync` returned success; before that a crash
/// may keep, lose or tear it (at 512-byte sectors), each write independently of the others. After
/// a failed `sync` nothing written since the last good one may be relied upon, and the disk
/// refuses all further writes and syncs.
pub trait Disk: Send + Sync {
    /// Fills `bytes` from `offset`. Never-written space reads as zeros.
    ///
    /// # Errors
    /// The device's, or `UnexpectedEof` beyond the end.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The device's; `StorageFull` where a sparse container's host is full.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// The device's; afterwards the disk is dead (see the trait).
    fn sync(&self) -> io::Result<()>;

    /// Its size in bytes; fixed while open.
    fn len(&self) -> u64;

    /// Whether it has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells that the contents of a range are not needed any more; reads may return anything
    /// until it is written again. A hint.
    fn discard(&self, offset: u64, length: u64);

    /// Takes space for a range from the host now, so that writes there cannot find it full later;
    /// its contents stay. Disks that own their space have nothing to do.
    ///
    /// # Errors
    /// `StorageFull`; the device's.
    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk/conformance_test.rs"]
mod conformance_test;
