//! [`Manager`]: repair as a whole, its start and its end.

use crate::check::StripCheck;
use crate::context::Repair;
use crate::delete::Deletion;
use crate::job::Job;
use crate::mender::{Mender, look_after_nsds};
use crate::pace::Pace;
use crate::replace::Replacement;
use crate::report::RecoveryReport;
use crate::returning::recover_nsd;
use crate::scrub::{ScrubView, Scrubber};
use crate::{check, delete, replace, scrub};
use std::sync::Arc;
use strake_array::{Array, Exclusion};
use strake_proto::layout::NsdStatus;
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result, SlotIndex};

/// See the file's head.
pub struct Manager {
    repair: Arc<Repair>,
    scrubber: Arc<Scrubber>,
    mender: Mender,
}

impl Manager {
    /// Starts: from now on NSDs that return are brought up to date. What a crash left was put right
    /// before ([`crate::after_crash`]). `exclusion` is whoever may hold dirty data.
    ///
    /// # Errors
    /// `NoMemory` when there are no more threads.
    pub fn start(array: Arc<Array>, exclusion: Arc<dyn Exclusion>) -> Result<Manager> {
        let (pace, job) = (Pace::default(), Job::default());
        let repair = Arc::new(Repair { array, exclusion, pace, job });
        let scrubber = Arc::new(Scrubber::new(Arc::clone(&repair)));
        let mender = Mender::start(&repair)?;
        Ok(Manager { repair, scrubber, mender })
    }

    /// Ends all its work, which is taken up again at the next start. Does nothing the second time.
    pub fn stop(&self) {
        self.mender.stop(&self.repair);
        self.scrubber.stop();
        self.repair.pace.stop();
        self.repair.job.join();
        self.mender.join();
    }

    /// Looks at once for NSDs that have returned, and brings them up to date, instead of at the
    /// next look of the background.
    pub fn recover_nsds(&self) {
        look_after_nsds(&self.repair);
    }

    /// Brings one NSD that missed writes up to date; `None` if it was not one, or went down again.
    ///
    /// # Errors
    /// Of the comparison: it is tried again at the next look.
    pub fn recover_nsd(&self, slot: SlotIndex) -> Result<Option<RecoveryReport>> {
        recover_nsd(&self.repair, slot)
    }

    /// Has the background look for NSDs that have returned now.
    pub fn look_after_nsds(&self) {
        self.repair.array.io.nsds().call_for_attention();
    }

    /// Begins to verify and mend every strip in the background, at `rate` bytes per second (0: as
    /// fast as it goes).
    ///
    /// # Errors
    /// `Busy` if that is under way.
    pub fn start_scrub(&self, rate: u64) -> Result<()> {
        scrub::start(&self.scrubber, rate)
    }

    /// Ends it; returns when it has ended.
    pub fn stop_scrub(&self) {
        self.scrubber.stop();
    }

    /// How far it is, or how the last one ended.
    pub fn scrub(&self) -> ScrubView {
        self.scrubber.view()
    }

    /// Replaces an NSD by one that is empty, or goes on with that; `port` is the way to it. Goes on
    /// in the background; the listing of NSDs shows how far it is.
    ///
    /// # Errors
    /// `Busy` if another is under way; `NotFound` for an NSD without a slot; the new NSD's.
    pub fn replace_nsd(&self, replacement: Replacement, port: Arc<dyn NsdPort>) -> Result<()> {
        replace::start(&self.repair, replacement, port)
    }

    /// Sets how fast NSDs are filled from now on, in bytes per second; 0 for no limit.
    pub fn set_rebuild_rate(&self, rate: u64) {
        self.repair.pace.set_rate(rate);
    }

    /// The replacement that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn replacement(&self) -> Result<Option<(Replacement, bool)>> {
        // Asked first: what has ended is not pending.
        let running = self.is_rebuilding();
        Ok(replace::pending(&self.repair)?.map(|it| (it, running)))
    }

    /// Deletes an NSD without another in its place, or goes on with that: each of its strips gets a
    /// place on another NSD. Goes on in the background; the listing of NSDs shows how far it is.
    ///
    /// # Errors
    /// `Busy` if a replacement or deletion is under way; `NotSupported`, `NoSpace` or `Unreachable`
    /// if the others cannot take it, now or at all; `NotFound` for an NSD without a slot.
    pub fn delete_nsd(&self, deletion: Deletion) -> Result<()> {
        delete::start(&self.repair, deletion)
    }

    /// The deletion that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn deletion(&self) -> Result<Option<(Deletion, bool)>> {
        // Asked first: what has ended is not pending.
        let running = self.is_rebuilding();
        Ok(delete::pending(&self.repair)?.map(|it| (it, running)))
    }

    /// Whether a replacement or a deletion is at work.
    pub fn is_rebuilding(&self) -> bool {
        self.repair.job.is_running()
    }

    /// Sets whether new data is placed on an NSD. Returns false if it still is because too few
    /// others are left for the code.
    ///
    /// # Errors
    /// `NotFound` for an NSD without a slot; the metadata's.
    pub fn set_suspended(&self, nsd: NsdId, suspended: bool) -> Result<bool> {
        let nsds = self.repair.array.io.nsds();
        let slot = nsds
            .slot_of(nsd)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("NSD {nsd} holds no slot")))?;
        if nsds.being_emptied() == Some(slot) {
            return Err(Error::new(ErrorKind::Busy, format!("NSD {nsd} is being deleted")));
        }
        let status = if suspended { NsdStatus::Suspended } else { NsdStatus::Ready };
        nsds.set_status(slot, status)?;
        Ok(nsds.is_left_out(slot) == suspended)
    }

    /// Compares what files say they have with what the NSDs list, in use; changes nothing.
    ///
    /// # Errors
    /// Of the metadata, or `Io` where too many NSDs are away to tell.
    pub fn check_strips(&self) -> Result<StripCheck> {
        check::check(&self.repair)
    }
}

impl Drop for Manager {
    /// Stops the threads.
    fn drop(&mut self) {
        self.stop();
    }
}
