//! [`StrakeVfs`]: the client as a whole. Its start and its end.

use crate::data::fold::fold_at_start;
use crate::flush::sync::{sync_all, sync_for_program};
use crate::inode::fetched::Fetched;
use crate::inode::kept_open::KeptOpen;
use crate::inode::listed::Neighbours;
use crate::inode::open_table::{HandleTable, IDLE_STATES_BESIDE, IDLE_STATES_LONE, OpenTable};
use crate::inode::queue::Queue;
use crate::inode::reserved::Reserved;
use crate::inode::turns::Turns;
use crate::inode::untold::Untold;
use crate::lease::dead;
use crate::losses::Losses;
use crate::memory::page_pool::{PagePool, PagePoolView};
use crate::mode::ModeCell;
use crate::mount::Mount;
use crate::open_file::OpenFile;
use crate::settings::Settings;
use crate::tender::{Background, tend_now};
use crate::timings::{SendTimings, Timings};
use crate::tokens::Tokens;
use crate::vfs::Handle;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use strake_array::Array;
use strake_array::reaper;
use strake_env::FanOut;
use strake_env::sync::Mutex;
use strake_proto::limits::{INODES_RESERVED_MAX, OBJECTS_RESERVED_MAX};
use strake_proto::{Error, ErrorKind, Ino, Result};

/// What a shutdown made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Bytes of file data that had to be sent.
    pub bytes: u64,
    /// Files that had something to sync.
    pub files: u64,
}

/// What the client holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientView {
    /// The page pool.
    pub page_pool: PagePoolView,
    /// Inodes in use.
    pub inodes: u64,
    /// Open files and directories.
    pub handles: u64,
    /// Inodes with something to sync.
    pub dirty_inodes: u64,
    /// Blocks rewritten because a strip was bad.
    pub mended: u64,
}

/// A mounted Strake file system. See the crate's head.
pub struct StrakeVfs {
    pub(crate) mount: Arc<Mount>,
    pub(crate) files: HandleTable<OpenFile>,
    pub(crate) timings: Timings,
    background: Background,
}

impl StrakeVfs {
    /// Starts serving on an array that was repaired after a crash.
    ///
    /// # Errors
    /// The metadata's; `NoMemory` when there are no more threads.
    pub fn start(array: Arc<Array>, settings: Settings) -> Result<Arc<StrakeVfs>> {
        let vfs = StrakeVfs::begin(array, settings, None)?;
        fold_at_start(&vfs.mount, &|_| true)
            .map_err(|error| error.context("hardened writes at start"))?;
        Ok(vfs)
    }

    /// Starts serving beside other clients of the same file system. `tokens` are of this client,
    /// and the array was opened for clients with tokens.
    ///
    /// # Errors
    /// `NoMemory` when there are no more threads.
    pub fn start_with_tokens(
        array: Arc<Array>,
        settings: Settings,
        tokens: Arc<Tokens>,
    ) -> Result<Arc<StrakeVfs>> {
        StrakeVfs::begin(array, settings, Some(tokens))
    }

    /// Writes the small synchronous writes that dead clients have left in the metadata into the
    /// files for which `of` says true. Nobody else uses these files meanwhile, and this client
    /// keeps nothing of them.
    ///
    /// # Errors
    /// If they cannot be made durable.
    pub fn fold(&self, of: &dyn Fn(Ino) -> bool) -> Result<u64> {
        let folded = Mutex::new(BTreeSet::new());
        let result = fold_at_start(&self.mount, &|ino| {
            let is_meant = of(ino);
            if is_meant {
                folded.lock().insert(ino);
            }
            is_meant
        });
        for inode in folded.into_inner().iter().filter_map(|ino| self.mount.table.find(*ino)) {
            // After a failure the metadata still has all that is dropped here.
            self.mount.discard(&inode);
            inode.core.lock().forget();
        }
        result
    }

    fn begin(
        array: Arc<Array>,
        settings: Settings,
        tokens: Option<Arc<Tokens>>,
    ) -> Result<Arc<StrakeVfs>> {
        let no_threads =
            |error| Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"));
        let flush_fan = FanOut::new("flush", settings.flushers).map_err(no_threads)?;
        let idle = if tokens.is_some() { IDLE_STATES_BESIDE } else { IDLE_STATES_LONE };
        let budget = usize::try_from(settings.page_pool.0).unwrap_or(usize::MAX / 2);
        let mount = Arc::new(Mount {
            losses: Losses::default(),
            stuck: Mutex::default(),
            page_pool: Arc::new(PagePool::new(budget, array.block_size as usize)),
            table: OpenTable::new(idle),
            write_behind: Queue::default(),
            prefetch: Queue::default(),
            folding: Turns::default(),
            neighbours: Neighbours::default(),
            fetched: Fetched::default(),
            kept_open: KeptOpen::default(),
            names: Arc::default(),
            shown: Mutex::default(),
            untold: Untold::default(),
            reserved: Reserved::new(INODES_RESERVED_MAX),
            reserved_objects: Reserved::new(OBJECTS_RESERVED_MAX),
            flush_fan,
            timings: SendTimings::new(&array.observe),
            settings,
            mode: ModeCell::default(),
            array,
            tokens,
            adapter: OnceLock::new(),
            dirty: Mutex::default(),
            pressed: Mutex::default(),
        });
        // Adapters use the root without a lookup. Every path begins there, so what is known of it
        // stays.
        mount.table.remember(Ino::ROOT);
        if let Some(tokens) = &mount.tokens {
            let keeper: Weak<Mount> = Arc::downgrade(&mount);
            tokens.attach(keeper);
        }
        let background = Background::start(&mount)?;
        let timings = Timings::new(&mount.array.observe);
        let files = HandleTable::new();
        Ok(Arc::new(StrakeVfs { mount, files, timings, background }))
    }

    /// Makes everything durable and stops all threads. Later calls fail or are not durable.
    ///
    /// # Errors
    /// If something could not be made durable.
    pub fn shutdown(&self) -> Result<FlushReport> {
        if let Some(tokens) = self.mount.tokens.as_ref().filter(|_| !self.mount.has_lease()) {
            // Nobody else waits for these threads, and they would wait for the lease.
            tokens.stop();
        }
        self.background.stop(&self.mount);
        let result = if self.mount.is_dead() { Err(dead()) } else { self.save_all() };
        self.mount.array.room.end();
        self.mount.tokens.iter().for_each(|tokens| tokens.stop());
        result
    }

    /// As [`StrakeVfs::shutdown`], for a person who unmounts. Beside other mounts it first waits
    /// for disks that may be back soon, as a sync for a program does. The end of a node that serves
    /// must not.
    ///
    /// # Errors
    /// As [`StrakeVfs::shutdown`].
    pub fn unmount(&self) -> Result<FlushReport> {
        let files = self.mount.dirty.lock().len() as u64;
        let waits = self.mount.tokens.is_some() && self.mount.has_lease();
        // The threads that follow the disks are still there. What fails here is tried once more by
        // the end itself, and told then.
        let early = if waits { sync_for_program(&self.mount).unwrap_or(0) } else { 0 };
        self.shutdown().map(|report| FlushReport { bytes: early + report.bytes, files })
    }

    fn save_all(&self) -> Result<FlushReport> {
        let files = self.mount.dirty.lock().len() as u64;
        let bytes = sync_all(&self.mount)?;
        // Another round hands over what these syncs have settled, so that the next start finds
        // nothing to do.
        reaper::apply_pending(&self.mount.array)?;
        self.mount.array.rounds.run(false)?;
        self.mount.array.meta.sync()?;
        Ok(FlushReport { bytes, files })
    }

    /// The array that it stands on.
    pub fn array(&self) -> &Arc<Array> {
        &self.mount.array
    }

    /// Does at once what the tender does in the background: makes durable what has been dirty for
    /// long enough by the clock, runs a round, and applies range deletions.
    pub fn tend(&self) {
        tend_now(&self.mount);
    }

    /// The open handles that may write, and their files.
    pub(crate) fn writers(&self) -> impl Iterator<Item = (Handle, Ino)> {
        self.files.all().filter(|(_, it)| it.flags.write).map(|(handle, it)| (handle, it.inode.ino))
    }

    /// Counts of what is in memory.
    pub fn view(&self) -> ClientView {
        ClientView {
            page_pool: self.mount.page_pool.view(),
            inodes: self.mount.table.count() as u64,
            handles: self.files.count() as u64,
            dirty_inodes: self.mount.dirty.lock().len() as u64,
            mended: self.mount.array.io.mended(),
        }
    }
}

impl Drop for StrakeVfs {
    /// Stops the threads without flushing. [`StrakeVfs::shutdown`] flushes.
    fn drop(&mut self) {
        self.background.stop(&self.mount);
        self.mount.tokens.iter().for_each(|tokens| tokens.stop());
    }
}
