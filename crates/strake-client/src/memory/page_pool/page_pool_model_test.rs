//! The pool against a model that knows every page by heart.

use super::*;
use std::sync::atomic::AtomicBool;
use strake_env::{ManualClock, Rng};

#[derive(Default)]
struct FakePage {
    buffer: Mutex<Option<AlignedBuffer>>,
    used: AtomicBool,
    dirty: AtomicBool,
}

impl Page for FakePage {
    fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
    fn take_clean(&self) -> Option<AlignedBuffer> {
        if self.dirty.load(Ordering::Relaxed) {
            return None;
        }
        self.buffer.lock().take()
    }
    fn is_resident(&self) -> bool {
        self.buffer.lock().is_some()
    }
}

const BLOCK: usize = 256 << 10;
const BUDGET: usize = 16 * BLOCK;
/// What touching a block takes where the host has to find the memory.
const SLOW: Duration = Duration::from_micros(160);

struct Model {
    page_pool: PagePool,
    waiters: Waiters,
    pages: Vec<Arc<FakePage>>,
    dirty: usize,
}

impl Model {
    fn new(budget: usize) -> Model {
        Model {
            page_pool: PagePool::new(budget, BLOCK),
            waiters: Waiters::new(Arc::new(ManualClock::default())),
            pages: Vec::new(),
            dirty: 0,
        }
    }

    fn resident(&self) -> usize {
        let lengths =
            self.pages.iter().map(|page| page.buffer.lock().as_ref().map_or(0, |b| b.touched()));
        lengths.sum()
    }

    fn check(&self) {
        self.page_pool.check();
        let view = self.page_pool.view();
        assert_eq!(view.used, self.resident() as u64, "every buffer is accounted for");
        assert_eq!(view.dirty, self.dirty as u64);
        assert!(view.used + view.spare + view.withheld <= BUDGET as u64, "{view:?}");
        for page in &self.pages {
            if page.dirty.load(Ordering::Relaxed) {
                assert!(page.is_resident(), "dirty pages are never taken");
            }
        }
    }

    fn fill(&mut self, rng: &mut Rng) {
        let fill = if rng.one_in(4) { Fill::Parts } else { Fill::Whole };
        self.put(1 + rng.index(BLOCK), fill);
    }

    fn put(&mut self, bytes: usize, fill: Fill) {
        self.page_pool.admit(bytes, &self.waiters, WAIT_STEP, &|| {});
        let buffer = self.page_pool.allocate(bytes, fill);
        assert!(buffer.len() >= bytes && buffer.len().is_power_of_two());
        let page = Arc::new(FakePage::default());
        *page.buffer.lock() = Some(buffer);
        self.page_pool.enter(Arc::clone(&page) as Arc<dyn Page>);
        self.pages.push(page);
    }

    /// A part of a buffer is used of which others were not.
    fn touch(&self, rng: &mut Rng) {
        let page = &self.pages[rng.index(self.pages.len())];
        if let Some(buffer) = &mut *page.buffer.lock()
            && buffer.is_sparse()
        {
            let bytes = rng.index(2 * buffer.len());
            let more = bytes.min(buffer.len()).saturating_sub(buffer.touched());
            if self.page_pool.has_room(more) {
                self.page_pool.note_touched(buffer, bytes);
            }
        }
    }

    fn dirty(&mut self, rng: &mut Rng) {
        let page = &self.pages[rng.index(self.pages.len())];
        let whole = |buffer: &AlignedBuffer| (!buffer.is_sparse()).then(|| buffer.len());
        let Some(length) = page.buffer.lock().as_ref().and_then(whole) else { return };
        if self.dirty + length <= self.page_pool.dirty_max()
            && !page.dirty.swap(true, Ordering::Relaxed)
        {
            self.page_pool.add_dirty(length);
            self.dirty += length;
        }
    }

    fn clean(&mut self, rng: &mut Rng) {
        let page = &self.pages[rng.index(self.pages.len())];
        if page.dirty.swap(false, Ordering::Relaxed) {
            let length = page.buffer.lock().as_ref().map_or(0, |buffer| buffer.len());
            self.page_pool.remove_dirty(length);
            self.dirty -= length;
        }
    }

    /// The process has more than it may have, or less.
    fn hold(&self, rng: &mut Rng) {
        let resident = BUDGET + REST_BYTES_MIN + BUDGET / 8 - rng.index(BUDGET / 2);
        let before = self.page_pool.view();
        self.page_pool.hold(resident, 0);
        let above = before.withheld as i64 + resident as i64 - (BUDGET + REST_BYTES_MIN) as i64;
        let withheld = above.clamp(0, self.page_pool.withheld_max as i64);
        assert_eq!(self.page_pool.view().withheld as i64, withheld);
    }

    fn give_up(&mut self, rng: &mut Rng) {
        let page = self.pages.swap_remove(rng.index(self.pages.len()));
        if page.dirty.load(Ordering::Relaxed) {
            self.pages.push(page);
        } else if let Some(buffer) = page.buffer.lock().take() {
            self.page_pool.release(buffer);
        }
    }
}

#[test]
fn random_use_keeps_the_budget_and_every_dirty_page() {
    for seed in strake_env::rng::test_seeds(0, 20) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut model = Model::new(BUDGET);
        for _ in 0..2000 {
            match rng.below(8) {
                _ if model.pages.is_empty() => model.fill(&mut rng),
                0 | 1 => model.fill(&mut rng),
                2 => model.dirty(&mut rng),
                3 => model.clean(&mut rng),
                6 => model.hold(&mut rng),
                7 => model.touch(&mut rng),
                4 => {
                    let at = rng.index(model.pages.len());
                    model.pages[at].used.store(true, Ordering::Relaxed);
                }
                _ => model.give_up(&mut rng),
            }
            model.check();
            model.pages.retain(|page| page.is_resident());
        }
    }
}

#[test]
fn a_page_in_use_outlives_the_others() {
    let mut rng = Rng::new(1);
    let mut model = Model::new(BUDGET);
    model.fill(&mut rng);
    let hot = Arc::clone(&model.pages[0]);
    for _ in 0..200 {
        hot.used.store(true, Ordering::Relaxed);
        model.fill(&mut rng);
        assert!(hot.is_resident());
    }
    assert!(model.pages.iter().filter(|page| !page.is_resident()).count() > 50);
}

#[test]
fn writers_wait_until_pages_are_clean_and_no_longer_than_the_limit() {
    let page_pool = PagePool::new(BUDGET, BLOCK);
    let waiters = Waiters::new(Arc::new(ManualClock::default()));
    page_pool.add_dirty(page_pool.dirty_max() + 1);
    assert!(!page_pool.wait_for_clean(&waiters, WAIT_STEP, &|| {}), "nothing moves");
    let cleaned = || {
        if page_pool.dirty() > page_pool.dirty_max() {
            page_pool.remove_dirty(1);
        }
    };
    assert!(page_pool.wait_for_clean(&waiters, WAIT_STEP, &cleaned));
}

/// Where memory is touched ahead, a stream goes on in the memory that it left behind.
#[test]
fn a_new_block_takes_what_was_left_behind_and_nobody_uses() {
    let mut model = Model::new(WARM_BUDGET_MIN);
    model.page_pool.assume_memory(true);
    (0..4).for_each(|_| model.put(BLOCK, Fill::Whole));
    let admit = |model: &Model, bytes| {
        model.page_pool.admit(bytes, &model.waiters, WAIT_STEP, &|| {});
    };
    let [used, written, first, second] = &model.pages.clone()[..] else { unreachable!() };
    for page in [used, written, first, second] {
        model.page_pool.leave_behind(Arc::clone(page) as Arc<dyn Page>);
    }
    used.used.store(true, Ordering::Relaxed);
    written.dirty.store(true, Ordering::Relaxed);
    let resident = || [used, written, first, second].map(|page| page.is_resident());
    admit(&model, BLOCK / 2);
    assert_eq!(resident(), [true; 4], "a smaller buffer would not fit");
    assert!(!model.page_pool.warm_one(false), "a stream goes on: nothing is touched");
    admit(&model, BLOCK);
    assert_eq!(resident(), [true, true, false, true]);
    admit(&model, BLOCK);
    assert_eq!(resident(), [true, true, false, true], "one is at hand");
    drop(model.page_pool.allocate(BLOCK, Fill::Whole));
    admit(&model, BLOCK);
    assert_eq!(resident(), [true, true, false, false]);
    assert!(model.page_pool.warm_one(true), "when all is quiet the pool grows");
    model.page_pool.check();
}

/// Nobody touches memory ahead for a small pool, so it would never grow.
#[test]
fn in_a_small_pool_what_was_left_behind_stays_until_the_budget_is_used() {
    let mut model = Model::new(BUDGET);
    model.page_pool.assume_memory(true);
    model.put(BLOCK, Fill::Whole);
    let page = Arc::clone(&model.pages[0]);
    model.page_pool.leave_behind(Arc::clone(&page) as Arc<dyn Page>);
    model.put(BLOCK, Fill::Whole);
    assert!(page.is_resident());
}

/// Where memory is there at once, what a stream wrote is worth more.
#[test]
fn where_memory_is_fast_the_pool_grows_to_its_budget() {
    let mut model = Model::new(WARM_BUDGET_MIN);
    let leave = |model: &mut Model| {
        model.put(BLOCK, Fill::Whole);
        let page = Arc::clone(model.pages.last().expect("just put"));
        model.page_pool.leave_behind(Arc::clone(&page) as Arc<dyn Page>);
        page
    };
    let first = leave(&mut model);
    assert!(model.page_pool.warm_one(true));
    // Whatever it took here.
    (0..32).for_each(|_| model.page_pool.first_touch.note(BLOCK, SLOW / 100));
    drop(model.page_pool.allocate(BLOCK, Fill::Whole));
    let second = leave(&mut model);
    assert!(first.is_resident());
    // It becomes slow: a host that has no memory left, say.
    (0..8).for_each(|_| model.page_pool.first_touch.note(BLOCK, SLOW));
    model.put(BLOCK, Fill::Whole);
    assert!(!first.is_resident() && second.is_resident());
    (0..32).for_each(|_| model.page_pool.first_touch.note(BLOCK, SLOW / 100));
    model.put(BLOCK, Fill::Whole);
    assert!(second.is_resident());
}
