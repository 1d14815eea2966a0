//! Memory that direct I/O accepts: aligned to 4 KiB, zeroed, of fixed length.
//!
//! Small buffers come from the allocator. Large ones are mapped. The kernel hands out zeroed pages,
//! so they need not be filled with zeros a second time. It hands out huge pages, so the first touch
//! of a block of several MiB takes a few faults instead of a thousand. A buffer of which only parts
//! are used ([`AlignedBuffer::sparse`]) has small pages, because a fault in a huge page would bring
//! 2 MiB for the sake of 4 KiB.
#![allow(unsafe_code, reason = "the allocator interface is unsafe; this is the one place for it")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;
/// Buffers of this size and more are mapped.
const MAPPED_BYTES_MIN: usize = 256 << 10;
/// One huge page has this many bytes, on every machine with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A zeroed, 4 KiB-aligned run of bytes.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    length: usize,
    touched: usize,
}

// SAFETY: the buffer owns its memory exclusively, like a Vec<u8>; moving the owner between threads
// moves the only pointer to it.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read, as for a Vec<u8>.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `length` zero bytes.
    pub fn zeroed(length: usize) -> AlignedBuffer {
        AlignedBuffer::new(length, length)
    }

    /// A buffer of `length` zero bytes that is used in few places. Only these take memory.
    pub fn sparse(length: usize) -> AlignedBuffer {
        AlignedBuffer::new(length, 0)
    }

    /// The bytes that count as in memory: all bytes, or those noted of an
    /// [`AlignedBuffer::sparse`] one.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Notes that at least this many bytes have been used.
    pub fn note_touched(&mut self, bytes: usize) {
        self.touched = self.touched.max(bytes.min(self.length));
    }

    /// Whether some of the buffer may take no memory yet.
    pub fn is_sparse(&self) -> bool {
        self.touched < self.length
    }

    fn new(length: usize, touched: usize) -> AlignedBuffer {
        if length == 0 {
            return AlignedBuffer { start: NonNull::dangling(), length, touched };
        }
        let layout = Self::layout(length);
        if length >= MAPPED_BYTES_MIN {
            let huge = touched > 0 && length.is_multiple_of(HUGE_PAGE_BYTES);
            let Some(start) = map(length, huge) else { handle_alloc_error(layout) };
            return AlignedBuffer { start, length, touched };
        }
        // SAFETY: the layout has a non-zero size (checked above) and a valid alignment.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuffer { start, length, touched }
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, ALIGNMENT).expect("invariant: buffers are below 2^62 bytes")
    }
}

/// Zeroed pages from the kernel, or `None` if it has none left.
fn map(length: usize, huge: bool) -> Option<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE) }.ok()?;
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: the range is the mapping just made; the advice changes no contents. Kernels without
    // huge pages refuse it, and small ones serve as well.
    let _ = unsafe { madvise(start, length, advice) };
    NonNull::new(start.cast())
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.length >= MAPPED_BYTES_MIN {
            // SAFETY: `start` came from `map` with this very length, is unmapped once, and nobody
            // borrows the buffer any more. A failure would leave the memory mapped, no more.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        } else if self.length > 0 {
            // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.length)) }
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `length` initialised bytes (zeroed at allocation) that live as
        // long as `self`; with length 0 a dangling, well-aligned pointer is allowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "AlignedBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        for length in [0, 1, 4096, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, 1 << 20, 4 << 20] {
            for mut buffer in [AlignedBuffer::zeroed(length), AlignedBuffer::sparse(length)] {
                assert_eq!(buffer.as_ptr() as usize % if length == 0 { 1 } else { ALIGNMENT }, 0);
                assert!(buffer.iter().all(|&byte| byte == 0));
                buffer.fill(7);
                assert_eq!(buffer.len(), length);
            }
        }
    }
}
