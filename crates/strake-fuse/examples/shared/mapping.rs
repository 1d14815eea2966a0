//! A file mapped into memory, which needs `unsafe`: for examples that probe a mount.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::File;

/// A shared mapping of a whole file.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// The first `bytes` of a file, to load and store.
    pub(crate) fn of(file: &File, bytes: usize) -> std::io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// The byte at `index`.
    pub(crate) fn load(&self, index: usize) -> u8 {
        assert!(index < self.bytes);
        // SAFETY: inside the mapping, which lives as long as `self`; volatile, because another
        // process or thread changes it.
        unsafe { self.start.add(index).read_volatile() }
    }

    /// Changes the byte at `index`.
    pub(crate) fn store(&self, index: usize, value: u8) {
        assert!(index < self.bytes);
        // SAFETY: as for `load`.
        unsafe { self.start.add(index).write_volatile(value) }
    }

    /// Writes back what was stored.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the whole mapping, and nothing else.
        unsafe { msync(self.start.cast(), self.bytes, MsyncFlags::SYNC)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this start and length and is not used again.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

// SAFETY: loads and stores are volatile single bytes, which other processes race with as well.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}
