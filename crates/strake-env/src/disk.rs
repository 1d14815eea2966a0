//! A disk as the block store sees it: bytes at offsets, and a barrier.
#![allow(unsafe_code, reason = "addresses that threads may pass on")]

pub mod file;
pub mod guarded;
pub mod relieved;
mod ring;
pub mod sim;

use std::io;
use std::os::fd::BorrowedFd;

/// Offsets, lengths and addresses of memory are multiples of this.
const ALIGNMENT: usize = 4096;

/// A place in memory that only the kernel looks into. So it may be gone by then.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes {
    /// The address of the first byte.
    pub start: *const u8,
    /// Its bytes.
    pub length: usize,
}

// SAFETY: an address is a number; the code that looks at what is there answers for it.
unsafe impl Send for RawBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawBytes {}

impl RawBytes {
    /// The place of `bytes` as it is now.
    pub fn of(bytes: &[u8]) -> RawBytes {
        RawBytes { start: bytes.as_ptr(), length: bytes.len() }
    }
}

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
    /// The device's errors. `UnexpectedEof` beyond the end.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Fills two runs of bytes, each from its offset, side by side if the disk can.
    ///
    /// # Errors
    /// As [`Disk::read_at`].
    fn read_two_at(&self, parts: [(u64, &mut [u8]); 2]) -> io::Result<()> {
        parts.into_iter().try_for_each(|(offset, bytes)| self.read_at(offset, bytes))
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The device's errors. `StorageFull` if the host of a sparse container is full.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes `first` and, directly behind it, `second`, in one I/O if the disk can. If the write
    /// fails because it takes too long, arbitrary bytes may be written there later. So call this
    /// only for a place that nothing durable names.
    ///
    /// # Errors
    /// As [`Disk::write_at`].
    fn write_both_at(&self, offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        self.write_at(offset, first)?;
        if second.is_empty() {
            return Ok(());
        }
        self.write_at(offset + first.len() as u64, second)
    }

    /// Writes each of `parts` at its offset, several at a time if the disk can. No two of them
    /// overlap. After an error each may be written, in part, or not; none is under way any more.
    ///
    /// # Errors
    /// As [`Disk::write_at`].
    fn write_many_at(&self, parts: &[(u64, &[u8])]) -> io::Result<()> {
        parts.iter().try_for_each(|(offset, bytes)| self.write_at(*offset, bytes))
    }

    /// Does [`Disk::write_at`] and then [`Disk::sync`]. One call saves a change of threads.
    ///
    /// # Errors
    /// The errors of either.
    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync()
    }

    /// The open file behind the disk, if reads may go to the kernel without the disk.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Checks a request to a disk of this length.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end.
    fn check_range(&self, offset: u64, length: usize) -> io::Result<()> {
        assert_eq!(offset % ALIGNMENT as u64, 0, "offsets are multiples of 4 KiB");
        assert_eq!(length % ALIGNMENT, 0, "lengths are multiples of 4 KiB");
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the disk")),
        }
    }

    /// Whether [`Disk::write_raw`] writes.
    fn has_raw_writes(&self) -> bool {
        false
    }

    /// Like [`Disk::write_both_at`], from memory that may be gone by the time of the write. If it
    /// is gone, arbitrary bytes are written, or the write fails. This serves callers that may have
    /// to abandon a write that hangs. All parts are aligned to 4 KiB.
    ///
    /// # Errors
    /// As [`Disk::write_at`]; `Unsupported` unless [`Disk::has_raw_writes`].
    fn write_raw(&self, _offset: u64, _parts: [RawBytes; 2]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether a host keeps account of the bytes that were ever written. Then a first write takes
    /// longer to become durable than an overwrite.
    fn is_hosted(&self) -> bool {
        false
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// The device's errors. After an error the disk is dead (see the trait).
    fn sync(&self) -> io::Result<()>;

    /// Its size in bytes; fixed while open.
    fn len(&self) -> u64;

    /// Whether it has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells the disk that the contents of a range are not needed any more. Reads may return
    /// anything until it is written again. This is a hint.
    fn discard(&self, offset: u64, length: u64);

    /// Takes space for a range from the host now. So writes there cannot find the host full later.
    /// The contents stay. Disks that own their space have nothing to do.
    ///
    /// # Errors
    /// `StorageFull`; the device's.
    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod conformance_test;
