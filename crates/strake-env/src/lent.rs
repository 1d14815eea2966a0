//! Memory that a disk may read into although the read may be given up.
//!
//! A read with a time limit cannot go into the caller's memory: a disk that wakes up late would
//! write into memory that has another owner by then. So such a read goes into the disk's own memory
//! and is copied. The copy of a megabyte costs as much as the rest of the read. This file avoids
//! the copy.
//!
//! A thread *lends* a buffer for one piece of work ([`LentBuffer::fill`]). Disks from which this
//! thread reads meanwhile may have the kernel read into the buffer. A disk that gives up a read
//! *keeps* the buffer, and says so. The result of the work is then thrown away, the memory is left
//! to the kernel for good, and the work is repeated with other memory. So no thread ever looks at
//! bytes that may still change.

use crate::AlignedBuffer;
use std::cell::Cell;

#[derive(Clone, Copy)]
struct Loan {
    start: usize,
    end: usize,
    kept: bool,
}

crate::local! {
    /// The memory that this thread lends at this moment.
    static LOAN: Cell<Option<Loan>> = const { Cell::new(None) };
}

/// Whether this thread lends all of `bytes`, and they are where direct I/O can go.
pub(crate) fn is_lent(bytes: &[u8]) -> bool {
    let (start, length) = (bytes.as_ptr() as usize, bytes.len());
    LOAN.get().is_some_and(|loan| loan.start <= start && start + length <= loan.end)
        && start.is_multiple_of(4096)
        && length.is_multiple_of(4096)
}

/// Notes that a disk gives up a read into the memory that this thread lends: the kernel may still
/// write there.
pub(crate) fn keep() {
    LOAN.set(LOAN.get().map(|loan| Loan { kept: true, ..loan }));
}

/// A buffer that can be lent.
#[derive(Debug)]
pub struct LentBuffer {
    buffer: AlignedBuffer,
}

impl LentBuffer {
    /// `length` bytes.
    pub fn new(length: usize) -> LentBuffer {
        LentBuffer { buffer: AlignedBuffer::zeroed(length) }
    }

    /// Makes `work` fill the buffer, which is lent meanwhile to the disks that `work` reads from.
    /// If a disk kept the memory, that disk is dead, and the work is done again in other memory.
    /// This ends when no more disks die.
    ///
    /// # Panics
    /// If this thread is lending a buffer already.
    pub fn fill<R>(&mut self, mut work: impl FnMut(&mut [u8]) -> R) -> R {
        loop {
            let loan = Lending::begin(self);
            let result = work(&mut loan.owner.buffer);
            if !loan.is_kept() {
                return result;
            }
        }
    }
}

impl std::ops::Deref for LentBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

/// As long as it lives, its owner's buffer is lent.
struct Lending<'a> {
    owner: &'a mut LentBuffer,
}

impl Lending<'_> {
    fn begin(owner: &mut LentBuffer) -> Lending<'_> {
        assert!(LOAN.get().is_none(), "a thread lends one buffer at a time");
        let start = owner.buffer.as_ptr() as usize;
        LOAN.set(Some(Loan { start, end: start + owner.buffer.len(), kept: false }));
        Lending { owner }
    }

    fn is_kept(&self) -> bool {
        LOAN.get().is_some_and(|loan| loan.kept)
    }
}

impl Drop for Lending<'_> {
    /// If a disk has kept the memory, leaves it to that disk, also if the work has panicked.
    fn drop(&mut self) {
        if self.is_kept() {
            let fresh = AlignedBuffer::zeroed(self.owner.buffer.len());
            std::mem::forget(std::mem::replace(&mut self.owner.buffer, fresh));
        }
        LOAN.set(None);
    }
}
