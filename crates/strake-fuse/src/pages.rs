//! Writes that go past the kernel's pages, and pages that it fills meanwhile.
//!
//! Before such a write (of a file that is open the direct way, or with `O_DIRECT`) the kernel
//! writes back and drops its pages of the range; then it hands us the bytes. In between somebody
//! who has the file mapped, or reads it through pages, may have a page filled with what was there
//! before. Nobody drops that one, and where a mapping changes another part of it, it is written
//! back with the old bytes. So here
//!
//! - it is noted *before* it is read that pages of the file are filled ([`Pages::note_filled`]);
//! - a direct write is *under way* ([`Pages::begin`]) from before its bytes are there;
//! - when they are there, and pages were ever filled while the file was open, the kernel has to
//!   drop those of the range ([`crate::notify`]), and the write is answered after that;
//! - what is written back leaves out what is under way ([`Pages::write_back`]): there the page has
//!   bytes from before, or what was stored before the write was answered, which may come first.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::sync::RwLock;
use strake_proto::Result;

/// What is known of the pages of one open inode.
#[derive(Default)]
pub(crate) struct Pages {
    filled: AtomicBool,
    /// The ranges of direct writes under way.
    under_way: RwLock<Vec<Range<u64>>>,
}

/// A direct write from before its bytes are there until no page has older ones.
pub(crate) struct UnderWay {
    pages: Arc<Pages>,
    range: Range<u64>,
}

impl Pages {
    /// Notes that the kernel fills pages, before what they get is read.
    pub(crate) fn note_filled(&self) {
        self.filled.store(true, Ordering::SeqCst);
    }

    /// Begins a direct write, when no write-back is half done.
    pub(crate) fn begin(self: Arc<Self>, range: Range<u64>) -> UnderWay {
        self.under_way.write().push(range.clone());
        UnderWay { pages: self, range }
    }

    /// Has `write` called for the parts of pages that no direct write is about to replace; returns
    /// how many bytes are done with, fewer than asked for where `write` did fewer.
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
    /// Where the write goes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Whether pages may hold older bytes; asked when those of the write are there.
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
    /// The bytes that direct writes have, of those of a page; a mapping stores to the others.
    const WRITTEN: Range<usize> = 2..5;
    const STEPS: usize = 60;

    /// One page of a file, as the kernel, the daemon, one who writes and one who maps it see it.
    #[derive(Default)]
    struct World {
        pages: Arc<Pages>,
        stored: [u8; PAGE],
        page: Option<Kept>,
        /// The bytes of what is being written, and where that is.
        write: Option<(u8, Option<UnderWay>, bool)>,
        expected: [u8; PAGE],
    }

    struct Kept {
        bytes: [u8; PAGE],
        is_dirty: bool,
    }

    impl World {
        /// As the kernel does before it drops a page, or when it likes.
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

        /// One step of whoever writes past the pages.
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
                    // From now on whoever looks has to see it.
                    let seen = self.page.as_ref().map_or(self.stored, |kept| kept.bytes);
                    assert_eq!(seen[WRITTEN], self.expected[WRITTEN]);
                    None
                }
            };
        }

        /// One look or store of whoever maps it.
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
