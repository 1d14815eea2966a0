//! Mapped files of several mounts, with pages as a kernel has them: a page that is being read is
//! locked until the answer, and whoever drops pages waits for those that are locked.

use crate::StrakeVfs;
use crate::coherence_test::World;
use crate::invalidate::{Dropped, Dropping, Found, Invalidate, Outdated};
use crate::vfs::{Handle, OpenFlags, Vfs};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use strake_env::channel::{RecvTimeoutError, channel};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread;
use strake_proto::{Caller, Ino, Result};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const PAGE: usize = 4096;
const ROUNDS: usize = 200;
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A page of one file in one kernel.
#[derive(Clone, Copy, Default)]
struct Page {
    is_locked: bool,
    /// The first byte, if the page is there.
    first: Option<u8>,
    /// A program has stored to it since it was read or written back.
    is_dirty: bool,
}

/// One kernel, which knows the pages of one file.
#[derive(Default)]
struct Kernel {
    pages: Mutex<BTreeMap<usize, Page>>,
    changed: Condvar,
    /// Writes pages back.
    file: OnceLock<(Weak<StrakeVfs>, Handle)>,
    /// How often it was told to drop pages.
    told: AtomicU32,
}

impl Kernel {
    /// A program looks at a page. It is read if it is not there.
    fn load(&self, vfs: &dyn Vfs, handle: Handle, at: usize) -> u8 {
        let mut pages = self.pages.lock();
        let is_locked = |pages: &mut BTreeMap<usize, Page>| pages.entry(at).or_default().is_locked;
        self.changed.wait_while(&mut pages, is_locked);
        let page = pages.entry(at).or_default();
        if let Some(first) = page.first {
            return first;
        }
        page.is_locked = true;
        drop(pages);
        let mut bytes = [0; PAGE];
        vfs.fill(handle, (at * PAGE) as u64, &mut bytes).expect("readable");
        let page = Page { first: Some(bytes[0]), ..Page::default() };
        self.pages.lock().insert(at, page);
        self.changed.notify_all();
        bytes[0]
    }

    /// A program stores to a page, which is read if it is not there.
    fn store(&self, vfs: &dyn Vfs, handle: Handle, at: usize, byte: u8) {
        loop {
            self.load(vfs, handle, at);
            let mut pages = self.pages.lock();
            let page = pages.entry(at).or_default();
            if page.first.is_some() && !page.is_locked {
                (page.first, page.is_dirty) = (Some(byte), true);
                return;
            }
        }
    }

    /// Writes a page back that is about to be dropped.
    fn write_back(&self, at: usize, first: u8) {
        let (vfs, handle) = self.file.get().expect("a file whose pages are stored to");
        let vfs = vfs.upgrade().expect("the mount is there");
        let bytes = [first; PAGE];
        let written = vfs.write_mapped(*handle, (at * PAGE) as u64, &bytes).expect("there is room");
        assert_eq!(written, PAGE);
    }
}

impl Invalidate for Kernel {
    fn invalidate(&self, what: Outdated) -> Result<Dropping> {
        let (dropping, dropped): (Dropping, Dropped) = Dropping::begin(what);
        if let Outdated::Contents { range, .. } = dropped.what() {
            self.told.fetch_add(1, Ordering::AcqRel);
            let page_of = |at: u64| (at / PAGE as u64) as usize;
            let mut pages = self.pages.lock();
            let (mut next, last) = (page_of(range.start), page_of(range.end - 1));
            while next <= last
                && let Some((&at, _)) = pages.range(next..=last).next()
            {
                let is_locked = |pages: &mut BTreeMap<usize, Page>| {
                    pages.get(&at).is_some_and(|it| it.is_locked)
                };
                self.changed.wait_while(&mut pages, is_locked);
                if let Some(Page { first: Some(first), is_dirty: true, .. }) =
                    pages.get(&at).copied()
                {
                    pages.entry(at).or_default().is_locked = true;
                    drop(pages);
                    self.write_back(at, first);
                    pages = self.pages.lock();
                }
                pages.remove(&at);
                self.changed.notify_all();
                next = at + 1;
            }
        }
        dropped.tell(Ok(Found::Something));
        Ok(dropping)
    }

    fn can_drop_all_names(&self) -> bool {
        true
    }
}

/// Three kernels with the first page of one file mapped, to load and store.
struct Mapped {
    world: World,
    kernels: Vec<Arc<Kernel>>,
    ino: Ino,
    handles: Vec<Handle>,
}

impl Mapped {
    fn new() -> Mapped {
        let world = World::new("1", 1);
        let (entry, opened) =
            world.mounts[0].create(ROOT, Ino::ROOT, b"mapped", 0o644, RW, true).expect("created");
        let ino = entry.attr.ino;
        world.mounts[0].write(opened.handle, 0, &[1; PAGE]).expect("there is room");
        let others = world.mounts[1..].iter().map(|mount| {
            mount.lookup(ROOT, Ino::ROOT, b"mapped").expect("seen");
            mount.open(ROOT, ino, RW).expect("opened").handle
        });
        let handles = std::iter::once(opened.handle).chain(others).collect();
        let kernels: Vec<Arc<Kernel>> = world.mounts.iter().map(|_| Arc::default()).collect();
        for (mount, kernel) in world.mounts.iter().zip(&kernels) {
            mount.attach_adapter(Arc::clone(kernel) as Arc<dyn Invalidate>);
        }
        Mapped { world, kernels, ino, handles }
    }

    fn load(&self, at: usize) -> u8 {
        self.kernels[at].load(&*self.world.mounts[at], self.handles[at], 0)
    }
}

/// Runs `work` on a thread of its own, which is left behind if it hangs.
fn within_limit(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, heard) = channel();
    let worker = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match heard.recv_timeout(HANGS) {
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => worker.join().expect("no panic"),
    }
}

/// Each mount holds the file shared. Then all read the page, which they may store to: each needs
/// the others to give it up, while a read of its own waits, with the page locked.
#[test]
fn a_read_of_a_locked_page_keeps_the_file_from_nobody() {
    within_limit("a read of a page", || {
        let mapped = Mapped::new();
        for _ in 0..ROUNDS {
            for mount in &mapped.world.mounts {
                mount.getattr(mapped.ino).expect("attributes");
            }
            thread::scope(|scope| {
                for at in 0..mapped.kernels.len() {
                    let mapped = &mapped;
                    scope.spawn(move || assert_eq!(mapped.load(at), 1));
                }
            });
        }
        mapped.world.end();
    });
}

/// Handles that may write come and go on one mount, so that its pages are read under either token,
/// while another mount writes.
#[test]
fn pages_are_right_whoever_may_store_to_them() {
    within_limit("a read of a page beside opens", || {
        let mapped = Mapped::new();
        let reader = &mapped.world.mounts[1];
        let flags = OpenFlags { write: false, ..RW };
        let handle = reader.open(ROOT, mapped.ino, flags).expect("opened").handle;
        reader.release(mapped.handles[1]);
        thread::scope(|scope| {
            let opening = scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let opened = reader.open(ROOT, mapped.ino, RW).expect("opened");
                    reader.release(opened.handle);
                }
            });
            let mut turn = 1;
            while !opening.is_finished() {
                // A read sees the write that came before it.
                turn = turn % 250 + 1;
                let writer = &mapped.world.mounts[0];
                writer.write(mapped.handles[0], 0, &[turn]).expect("there is room");
                assert_eq!(mapped.kernels[1].load(&**reader, handle, 0), turn);
            }
        });
        mapped.world.end();
    });
}

/// Regression: the kernel waited for each page that the program read, one after the other, and the
/// other mount had the file minutes later.
#[test]
fn a_program_that_goes_through_a_mapping_keeps_the_file_from_nobody() {
    const PAGES: usize = 1024;
    within_limit("a write beside loads", || {
        let mapped = Mapped::new();
        let (own, other) = (&mapped.world.mounts[0], &mapped.world.mounts[1]);
        own.write(mapped.handles[0], 0, &[1; PAGES * PAGE]).expect("there is room");
        thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..PAGES {
                    assert_eq!(mapped.kernels[0].load(&**own, mapped.handles[0], at), 1);
                }
            });
            for _ in 0..ROUNDS / 10 {
                other.write(mapped.handles[1], 0, &[1; PAGE]).expect("there is room");
            }
        });
        mapped.world.end();
    });
}

/// Regression: each page that was dropped was written back first, which waited until reads were
/// served, too. So the program had all pages again, and the other mount waited for seconds.
#[test]
fn a_program_that_stores_to_all_pages_keeps_the_file_from_nobody() {
    const PAGES: usize = 256;
    within_limit("a read beside stores", || {
        let mapped = Mapped::new();
        let (own, other) = (&mapped.world.mounts[0], &mapped.world.mounts[1]);
        let (kernel, handle) = (&mapped.kernels[0], mapped.handles[0]);
        assert!(kernel.file.set((Arc::downgrade(own), handle)).is_ok());
        own.write(handle, 0, &[1; PAGES * PAGE]).expect("there is room");
        let (stores, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let turn = stores.load(Ordering::Acquire);
                    kernel.store(&**own, handle, turn % PAGES, (turn / PAGES) as u8);
                    stores.store(turn + 1, Ordering::Release);
                }
            });
            let mut bytes = [0; PAGE];
            for _ in 0..ROUNDS / 10 {
                // The program has all pages again.
                let before = stores.load(Ordering::Acquire);
                while stores.load(Ordering::Acquire) < before + 2 * PAGES {
                    thread::yield_now();
                }
                other.read(mapped.handles[1], 0, &mut bytes).expect("readable");
            }
            is_over.store(true, Ordering::Release);
        });
        // In the first turn pages are written back, and in the second one nothing is left to do.
        let told = kernel.told.load(Ordering::Acquire);
        assert!(told < 5 * ROUNDS as u32 / 10, "the kernel was told {told} times to drop pages");
        mapped.world.end();
    });
}
