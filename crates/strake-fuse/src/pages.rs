//! Keeps the kernel's pages equal to what direct writes put past them.
//!
//! A write is *direct* if the file is open the direct way or with `O_DIRECT`. Before a direct write
//! the kernel writes back and drops its pages of the range. Then it sends us the bytes. In between,
//! a program that has the file mapped, or reads it through pages, may fill a page with the old
//! bytes. The kernel does not drop that page by itself. If a mapping then changes another part of
//! the page, the kernel writes it back with the old bytes. So this file does four things:
//!
//! - Before bytes are read for a page, [`Pages::note_filled`] notes that pages of the file exist.
//! - [`Pages::begin`] notes that a direct write is *under way*, before its bytes are there.
//! - When the bytes are there, and pages were ever filled while the file was open, the kernel is
//!   told to drop the pages of the range ([`crate::notify`]). The write is answered after that.
//! - [`Pages::write_back`] leaves out the ranges that are under way. There the page has either old
//!   bytes, or bytes that a mapping stored before the write was answered. The latter count as
//!   written before the direct write.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::sync::WatchedRwLock;
use strake_proto::Result;

strake_env::lock_names! {
    /// Held shared while the kernel's pages are written back.
    WriteBack = "write-back of the same file";
}

/// The state of the kernel's pages of one open inode.
#[derive(Default)]
pub(crate) struct Pages {
    filled: AtomicBool,
    /// The ranges of direct writes under way.
    under_way: WatchedRwLock<WriteBack, Vec<Range<u64>>>,
}

/// A direct write under way. It begins before its bytes are there, and ends when no page has older
/// ones.
pub(crate) struct UnderWay {
    pages: Arc<Pages>,
    range: Range<u64>,
}

impl Pages {
    /// Notes that the kernel fills pages. Called before the bytes for the pages are read.
    pub(crate) fn note_filled(&self) {
        self.filled.store(true, Ordering::SeqCst);
    }

    /// Begins a direct write. Waits for write-backs that have begun.
    pub(crate) fn begin(self: Arc<Self>, range: Range<u64>) -> UnderWay {
        self.under_way.write().push(range.clone());
        UnderWay { pages: self, range }
    }

    /// Calls `write` for the parts of `range` that no direct write under way covers. Returns how
    /// many bytes are done with: all, unless `write` wrote fewer than it was given.
    pub(crate) fn write_back(
        &self,
        range: Range<u64>,
        mut write: impl FnMut(Range<u64>) -> Result<usize>,
    ) -> Result<usize> {
        let under_way = self.under_way.read();
        let mut at = range.start;
        while at < range.end {
            if let Some(over) = under_way.iter().find(|over| over.contains(&at)) {
                at = over.end.min(range.end);
                continue;
            }
            let next = under_way.iter().map(|over| over.start).filter(|start| *start > at).min();
            let end = next.unwrap_or(range.end).min(range.end);
            at += write(at..end)? as u64;
            if at < end {
                break;
            }
        }
        Ok((at - range.start) as usize)
    }
}

impl UnderWay {
    /// The range that the write covers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// True if pages may hold older bytes. Asked when the bytes of the write are there.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages.filled.load(Ordering::SeqCst)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.pages.under_way.write();
        let place = under_way.iter().position(|range| *range == self.range);
        under_way.swap_remove(place.expect("invariant: it was put there"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;
    use strake_env::rng::{test_scale, test_seeds};

    const PAGE: usize = 8;
    /// The bytes of a page that direct writes change. A mapping stores to the others.
    const WRITTEN: Range<usize> = 2..5;
    const STEPS: usize = 60;

    /// One page of a file, as seen by the kernel, the daemon, a writer and a program with a
    /// mapping.
    #[derive(Default)]
    struct World {
        pages: Arc<Pages>,
        stored: [u8; PAGE],
        page: Option<Kept>,
        /// The bytes that are being written, and how far the write is.
        write: Option<(u8, Option<UnderWay>, bool)>,
        expected: [u8; PAGE],
    }

    struct Kept {
        bytes: [u8; PAGE],
        is_dirty: bool,
    }

    impl World {
        /// Writes the page back, as the kernel may do at any time and does before it drops the
        /// page.
        fn write_back(&mut self) {
            let Some(kept) = self.page.as_mut().filter(|kept| kept.is_dirty) else { return };
            kept.is_dirty = false;
            let (stored, bytes) = (&mut self.stored, kept.bytes);
            let put = |part: Range<u64>| {
                let part = part.start as usize..part.end as usize;
                stored[part.clone()].copy_from_slice(&bytes[part.clone()]);
                Ok(part.len())
            };
            assert_eq!(self.pages.write_back(0..PAGE as u64, put).expect("written"), PAGE);
        }

        fn drop_page(&mut self) {
            self.write_back();
            self.page = None;
        }

        /// One step of the writer that goes past the pages.
        fn write(&mut self, rng: &mut Rng) {
            self.write = match self.write.take() {
                None => {
                    self.drop_page();
                    Some((rng.below(256) as u8, None, false))
                }
                Some((byte, None, _)) => {
                    let range = WRITTEN.start as u64..WRITTEN.end as u64;
                    Some((byte, Some(Arc::clone(&self.pages).begin(range)), false))
                }
                Some((byte, under_way, false)) => {
                    self.stored[WRITTEN].fill(byte);
                    Some((byte, under_way, true))
                }
                Some((byte, under_way, true)) => {
                    if under_way.as_ref().is_some_and(UnderWay::has_pages) {
                        self.drop_page();
                    }
                    self.expected[WRITTEN].fill(byte);
                    drop(under_way);
                    // From now on every reader must see the bytes.
                    let seen = self.page.as_ref().map_or(self.stored, |kept| kept.bytes);
                    assert_eq!(seen[WRITTEN], self.expected[WRITTEN]);
                    None
                }
            };
        }

        /// One load or store of the program with the mapping.
        fn touch(&mut self, rng: &mut Rng) {
            let stored = self.stored;
            let pages = &self.pages;
            let kept = self.page.get_or_insert_with(|| {
                pages.note_filled();
                Kept { bytes: stored, is_dirty: false }
            });
            if rng.one_in(2) {
                let places: Vec<usize> = (0..PAGE).filter(|at| !WRITTEN.contains(at)).collect();
                let (at, byte) = (places[rng.index(places.len())], rng.below(256) as u8);
                (kept.bytes[at], self.expected[at], kept.is_dirty) = (byte, byte, true);
            }
        }
    }

    #[test]
    fn nothing_is_lost_or_stale_however_writes_and_mappings_cross() {
        for seed in test_seeds(0, 2000 * test_scale()) {
            let mut rng = Rng::new(seed);
            let mut world = World::default();
            for _ in 0..STEPS {
                match rng.below(5) {
                    0 | 1 => world.write(&mut rng),
                    2 | 3 => world.touch(&mut rng),
                    _ => world.write_back(),
                }
            }
            while world.write.is_some() {
                world.write(&mut rng);
            }
            world.write_back();
            assert_eq!(world.stored, world.expected, "seed {seed}");
            assert!(world.pages.under_way.read().is_empty());
        }
    }

    #[test]
    fn what_is_under_way_is_left_out_of_what_is_written_back() {
        let pages = Arc::new(Pages::default());
        let parts = |range: Range<u64>, most: usize| {
            let mut parts = Vec::new();
            let done = pages.write_back(range, |part| {
                parts.push(part.clone());
                Ok(most.min((part.end - part.start) as usize))
            });
            (parts, done.expect("written"))
        };
        assert_eq!(parts(0..0, 100), (vec![], 0));
        let writes = [10..20, 15..30, 50..60, 90..120].map(|it| Arc::clone(&pages).begin(it));
        assert_eq!(parts(0..100, 100), (vec![0..10, 30..50, 60..90], 100));
        assert_eq!(parts(12..28, 100), (vec![], 16));
        assert_eq!(parts(0..100, 15), (vec![0..10, 30..50], 45));
        drop(writes);
        assert_eq!(parts(12..28, 9).1, 9);
    }
}
