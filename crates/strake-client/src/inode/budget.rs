//! How many names a mount may know.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A mount knows so many names, and entries of listings. Each takes about 100 bytes.
pub(crate) const NAMES_MAX: usize = 1 << 18;

/// The names that all directories of a mount know together.
#[derive(Default)]
pub(crate) struct NameBudget(AtomicUsize);

impl NameBudget {
    /// Takes room for so many. False if there is not enough.
    pub(crate) fn take(&self, count: usize) -> bool {
        if self.0.fetch_add(count, Ordering::Relaxed) + count <= NAMES_MAX {
            return true;
        }
        self.give_back(count);
        false
    }

    pub(crate) fn give_back(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}
