//! [`StrakeVfs`]: the client as a whole, its start and its end.

use crate::background::{Background, look_after_nsds, tend_now};
use crate::check::StripCheck;
use crate::commit::sync_all;
use crate::file::FileState;
use crate::harden::fold_at_start;
use crate::inode::InodeState;
use crate::neighbours::Neighbours;
use crate::open_table::{HandleTable, OpenTable};
use crate::pool::{PagePool, PoolView};
use crate::prefetch::ReadAhead;
use crate::recovery::{RecoveryReport, at_start};
use crate::rehome::Deletion;
use crate::replace::{Replacement, Replacer};
use crate::scrub::{ScrubView, Scrubber};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::vfs::OpenFlags;
use crate::vfs_impl::Timings;
use crate::write_behind::Queue;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use strake_array::reaper;
use strake_array::{Array, ArrayOptions, NsdView};
use strake_env::sync::Mutex;
use strake_env::{Clock, FanOut};
use strake_observe::Observe;
use strake_proto::layout::NsdStatus;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{ClientId, Error, ErrorKind, NsdId, Result, SlotIndex};

/// What a client is started with.
pub struct StartOptions {
    /// The metadata.
    pub meta: Arc<dyn MetaPort>,
    /// A way to the NSD of each slot, where there is one.
    pub nsds: Vec<(SlotIndex, Option<Arc<dyn NsdPort>>)>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Settings.
    pub settings: Settings,
    /// Where waits and operations are recorded.
    pub observe: Arc<Observe>,
    /// Who this client is among the clients of the metadata.
    pub client: ClientId,
}

/// What the end of a client made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Bytes of file data that had to be sent.
    pub bytes: u64,
    /// Files that had something to commit.
    pub files: u64,
}

/// What the client holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientView {
    /// The page pool.
    pub pool: PoolView,
    /// Inodes in use.
    pub inodes: u64,
    /// Open files and directories.
    pub handles: u64,
    /// Inodes with something to commit.
    pub dirty_inodes: u64,
    /// Blocks rewritten because a strip was bad.
    pub mended: u64,
}

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<InodeState>,
    pub(crate) file: Arc<FileState>,
    pub(crate) flags: OpenFlags,
    /// Errors of write-behind that this handle knows of.
    pub(crate) seen: Mutex<u64>,
    pub(crate) ahead: Mutex<ReadAhead>,
}

/// A mounted Strake file system. See the crate's head.
pub struct StrakeVfs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) files: HandleTable<OpenFile>,
    pub(crate) timings: Timings,
    background: Background,
    recovered: RecoveryReport,
}

impl StrakeVfs {
    /// Starts: joins the metadata, recovers what a crash left, serves.
    ///
    /// # Errors
    /// Of the metadata; `Io` if too many NSDs are away to recover.
    pub fn start(options: StartOptions) -> Result<Arc<StrakeVfs>> {
        let StartOptions { meta, nsds, clock, settings, observe, client } = options;
        let io_threads = settings.io_threads;
        let array = Array::open(ArrayOptions { meta, nsds, clock, observe, client, io_threads })?;
        let no_threads =
            |error| Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"));
        let flush_fan = FanOut::new("flush", settings.flushers).map_err(no_threads)?;
        let budget = usize::try_from(settings.page_pool.0).unwrap_or(usize::MAX / 2);
        let shared = Arc::new(Shared {
            pool: Arc::new(PagePool::new(budget, array.block_size as usize)),
            table: OpenTable::new(),
            write_behind: Queue::default(),
            prefetch: Queue::default(),
            neighbours: Neighbours::default(),
            flush_fan,
            scrubber: Scrubber::default(),
            replacer: Replacer::default(),
            settings,
            array,
            dirty: Mutex::default(),
            pressed_last: AtomicU64::new(0),
        });
        let recovered = at_start(&shared).map_err(|error| error.context("recovery at start"))?;
        let background = Background::start(&shared)?;
        fold_at_start(&shared).map_err(|error| error.context("hardened writes at start"))?;
        let timings = Timings::new(&shared.array.observe);
        let files = HandleTable::new();
        Ok(Arc::new(StrakeVfs { shared, files, timings, background, recovered }))
    }

    /// Ends: makes everything durable and stops all threads. Calls after this fail or are not
    /// durable.
    ///
    /// # Errors
    /// If something could not be made durable.
    pub fn shutdown(&self) -> Result<FlushReport> {
        self.background.stop(&self.shared);
        let files = self.shared.dirty.lock().len() as u64;
        let bytes = sync_all(&self.shared)?;
        // Once more for what these commits have settled, so that the next start finds nothing to
        // do.
        reaper::apply_pending(&self.shared.array)?;
        self.shared.array.rounds.run(false)?;
        self.shared.array.meta.sync()?;
        Ok(FlushReport { bytes, files })
    }

    /// Puts a way to an NSD in place, or takes it away (`None`). One that returns is brought up to
    /// date in the background.
    pub fn attach_nsd(&self, slot: SlotIndex, port: Option<Arc<dyn NsdPort>>) {
        self.shared.array.io.nsds().attach(slot, port);
    }

    /// As [`StrakeVfs::attach_nsd`], for the slot that `nsd` holds; nothing if it holds none.
    pub fn attach(&self, nsd: NsdId, port: Option<Arc<dyn NsdPort>>) {
        if let Some(slot) = self.shared.array.io.nsds().slot_of(nsd) {
            self.attach_nsd(slot, port);
        }
    }

    /// Looks at once for NSDs that have returned, and brings them up to date, instead of at the
    /// next look of the background.
    pub fn recover_nsds(&self) {
        look_after_nsds(&self.shared);
    }

    /// Has the background look for NSDs that have returned now.
    pub fn look_after_nsds(&self) {
        self.shared.array.io.nsds().call_for_attention();
    }

    /// Does at once what the background does when its time has come: makes durable what has been
    /// dirty for long enough by the clock, commits, applies range deletions, looks after NSDs.
    pub fn tend(&self) {
        tend_now(&self.shared);
    }

    /// Begins to verify and mend every strip in the background, at `rate` bytes per second (0: as
    /// fast as it goes).
    ///
    /// # Errors
    /// `Busy` if that is under way.
    pub fn start_scrub(&self, rate: u64) -> Result<()> {
        crate::scrub::start(&self.shared, rate)
    }

    /// Ends it; returns when it has ended.
    pub fn stop_scrub(&self) {
        self.shared.scrubber.stop();
    }

    /// How far it is, or how the last one ended.
    pub fn scrub(&self) -> ScrubView {
        self.shared.scrubber.view()
    }

    /// Replaces an NSD by one that is empty, or goes on with that; `port` is the way to it. Goes on
    /// in the background; the listing of NSDs shows how far it is.
    ///
    /// # Errors
    /// `Busy` if another is under way; `NotFound` for an NSD without a slot; the new NSD's.
    pub fn replace_nsd(&self, replacement: Replacement, port: Arc<dyn NsdPort>) -> Result<()> {
        crate::replace::start(&self.shared, replacement, port)
    }

    /// Sets how fast NSDs are filled from now on, in bytes per second; 0 for no limit.
    pub fn set_rebuild_rate(&self, rate: u64) {
        self.shared.replacer.pace.set_rate(rate);
    }

    /// The replacement that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn replacement(&self) -> Result<Option<(Replacement, bool)>> {
        // Asked first: what has ended is not pending.
        let running = self.shared.replacer.is_running();
        Ok(crate::replace::pending(&self.shared)?.map(|it| (it, running)))
    }

    /// Deletes an NSD without another in its place, or goes on with that: each of its strips gets a
    /// place on another NSD. Goes on in the background; the listing of NSDs shows how far it is.
    ///
    /// # Errors
    /// `Busy` if a replacement or deletion is under way; `NotSupported`, `NoSpace` or `Unreachable`
    /// if the others cannot take it, now or at all; `NotFound` for an NSD without a slot.
    pub fn delete_nsd(&self, deletion: Deletion) -> Result<()> {
        crate::rehome::start(&self.shared, deletion)
    }

    /// The deletion that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn deletion(&self) -> Result<Option<(Deletion, bool)>> {
        // Asked first: what has ended is not pending.
        let running = self.shared.replacer.is_running();
        Ok(crate::rehome::pending(&self.shared)?.map(|it| (it, running)))
    }

    /// Sets whether new data is placed on an NSD. Returns false if it still is because too few
    /// others are left for the code.
    ///
    /// # Errors
    /// `NotFound` for an NSD without a slot; the metadata's.
    pub fn set_suspended(&self, nsd: NsdId, suspended: bool) -> Result<bool> {
        let nsds = self.shared.array.io.nsds();
        let slot = nsds
            .slot_of(nsd)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("NSD {nsd} holds no slot")))?;
        if nsds.rehoming() == Some(slot) {
            return Err(Error::new(ErrorKind::Busy, format!("NSD {nsd} is being deleted")));
        }
        let status = if suspended { NsdStatus::Suspended } else { NsdStatus::Ready };
        nsds.set_status(slot, status)?;
        Ok(nsds.is_left_out(slot) == suspended)
    }

    /// The NSDs as this client sees them.
    pub fn nsds(&self) -> Vec<NsdView> {
        self.shared.array.io.nsds().views()
    }

    /// The largest id that an NSD of the pool has or had, those that are deleted among them.
    pub fn largest_nsd(&self) -> NsdId {
        self.shared.array.io.nsds().largest_nsd()
    }

    /// What the start found to recover.
    pub fn recovered(&self) -> RecoveryReport {
        self.recovered
    }

    /// Compares what files say they have with what the NSDs list, in use; changes nothing.
    ///
    /// # Errors
    /// Of the metadata, or `Io` where too many NSDs are away to tell.
    pub fn check_strips(&self) -> Result<StripCheck> {
        crate::check::check(&self.shared)
    }

    /// What is in memory.
    pub fn view(&self) -> ClientView {
        ClientView {
            pool: self.shared.pool.view(),
            inodes: self.shared.table.count() as u64,
            handles: self.files.count() as u64,
            dirty_inodes: self.shared.dirty.lock().len() as u64,
            mended: self.shared.array.io.mended(),
        }
    }
}

impl Drop for StrakeVfs {
    /// Stops the threads. Nothing is flushed: that is what [`StrakeVfs::shutdown`] is for.
    fn drop(&mut self) {
        self.background.stop(&self.shared);
    }
}
