//! Short-lived buffers: parity on its way out, strips on their way in. Their lengths are rounded up
//! to powers of two. They are kept for reuse, because the first touch of fresh memory costs more
//! than the copy into it.

use std::ops::{Deref, DerefMut};
use strake_env::AlignedBuffer;
use strake_env::sync::Mutex;

/// At most so many bytes are kept. Buffers beyond that go back to the system.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Buffers smaller than this are cheap to allocate and are not kept.
const KEPT_BUFFER_MIN: usize = 32 << 10;

#[derive(Default)]
struct Kept {
    /// By log2 of the length.
    classes: Vec<Vec<AlignedBuffer>>,
    bytes: usize,
}

/// The store of kept buffers.
#[derive(Default)]
pub struct Scratch {
    kept: Mutex<Kept>,
}

/// A borrowed buffer of the length asked for; its contents are arbitrary.
pub struct ScratchBuffer<'a> {
    scratch: &'a Scratch,
    buffer: Option<AlignedBuffer>,
    length: usize,
}

impl Scratch {
    /// A buffer of `length` bytes.
    pub fn take(&self, length: usize) -> ScratchBuffer<'_> {
        let rounded = length.max(4096).next_power_of_two();
        let found = (rounded >= KEPT_BUFFER_MIN)
            .then(|| {
                let mut kept = self.kept.lock();
                let class = rounded.trailing_zeros() as usize;
                let found = kept.classes.get_mut(class).and_then(Vec::pop);
                kept.bytes -= found.as_ref().map_or(0, |buffer| buffer.len());
                found
            })
            .flatten();
        let buffer = found.unwrap_or_else(|| AlignedBuffer::zeroed(rounded));
        ScratchBuffer { scratch: self, buffer: Some(buffer), length }
    }
}

impl Drop for ScratchBuffer<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if buffer.len() < KEPT_BUFFER_MIN {
            return;
        }
        let class = buffer.len().trailing_zeros() as usize;
        let mut kept = self.scratch.kept.lock();
        if kept.bytes + buffer.len() <= KEPT_BYTES_MAX {
            kept.bytes += buffer.len();
            if kept.classes.len() <= class {
                kept.classes.resize_with(class + 1, Vec::new);
            }
            kept.classes[class].push(buffer);
        }
    }
}

impl Deref for ScratchBuffer<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer.as_ref().expect("invariant: taken only by drop")[..self.length]
    }
}

impl DerefMut for ScratchBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut().expect("invariant: taken only by drop")[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_length_asked_for_and_are_kept_within_bounds() {
        let scratch = Scratch::default();
        for length in [1, 4096, 5000, 40_000, 1 << 20] {
            assert_eq!(scratch.take(length).len(), length);
        }
        let many: Vec<_> = (0..40).map(|_| scratch.take(4 << 20)).collect();
        drop(many);
        assert!(scratch.kept.lock().bytes <= KEPT_BYTES_MAX);
        assert!(scratch.kept.lock().bytes > 0);
    }
}
