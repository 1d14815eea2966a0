//! [`Manager`]: starts and ends repair, and offers all that callers can ask of it.

use crate::background::{Background, View};
use crate::check::StripCheck;
use crate::context::Repair;
use crate::delete::Deletion;
use crate::job::Job;
use crate::mender::{Mender, look_after_nsds};
use crate::pace::Pace;
use crate::rebalance::{Rebalanced, Rebalancer};
use crate::replace::Replacement;
use crate::report::RecoveryReport;
use crate::returning::recover_nsd;
use crate::scrub::{Scrubbed, Scrubber};
use crate::tokens::TokenService;
use crate::{check, delete, rebalance, replace, scrub};
use std::sync::Arc;
use strake_array::{Array, Exclusion, NsdView};
use strake_proto::layout::NsdStatus;
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result, SlotIndex};
use tracing::warn;

/// See the file's head.
pub struct Manager {
    repair: Arc<Repair>,
    scrubber: Arc<Scrubber>,
    rebalancer: Arc<Rebalancer>,
    mender: Mender,
}

impl Manager {
    /// Starts the manager: from now on NSDs that return are brought up to date. The caller has run
    /// [`crate::after_crash`] before. `exclusion` is the client, which may have dirty data.
    ///
    /// # Errors
    /// `NoMemory` when there are no more threads.
    pub fn start(array: Arc<Array>, exclusion: Arc<dyn Exclusion>) -> Result<Manager> {
        Manager::begin(array, exclusion, None)
    }

    /// Like [`Manager::start`], where many clients use the file system. `exclusion` is the
    /// manager's own client, which has tokens of `clients`.
    ///
    /// # Errors
    /// As [`Manager::start`].
    pub fn start_beside(
        array: Arc<Array>,
        exclusion: Arc<dyn Exclusion>,
        clients: Arc<TokenService>,
    ) -> Result<Manager> {
        Manager::begin(array, exclusion, Some(clients))
    }

    fn begin(
        array: Arc<Array>,
        exclusion: Arc<dyn Exclusion>,
        clients: Option<Arc<TokenService>>,
    ) -> Result<Manager> {
        let (pace, job) = (Pace::default(), Job::default());
        let repair = Arc::new(Repair { array, exclusion, clients, pace, job });
        let scrubber = Background::new(&repair);
        let rebalancer = Background::new(&repair);
        let mender = Mender::start(&repair)?;
        Ok(Manager { repair, scrubber, rebalancer, mender })
    }

    /// Ends all work. The next start takes it up again. A second call does nothing.
    pub fn stop(&self) {
        self.mender.stop(&self.repair);
        self.scrubber.stop();
        self.rebalancer.stop();
        self.repair.pace.stop();
        self.repair.job.join();
        self.mender.join();
    }

    /// Looks for NSDs that have returned and brings them up to date, on the caller's thread.
    pub fn recover_nsds(&self) {
        look_after_nsds(&self.repair);
    }

    /// Brings one NSD that missed writes up to date. `None` if it has missed none, or went down
    /// again.
    ///
    /// # Errors
    /// Those of the comparison. The mender tries again the next time that it looks.
    pub fn recover_nsd(&self, slot: SlotIndex) -> Result<Option<RecoveryReport>> {
        recover_nsd(&self.repair, slot)
    }

    /// Has the mender look now for NSDs that have returned.
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

    /// Ends the scrub. Returns when it has ended.
    pub fn stop_scrub(&self) {
        self.scrubber.stop();
    }

    /// The progress of the scrub, or the result of the last one.
    pub fn scrub(&self) -> View<Scrubbed> {
        self.scrubber.view()
    }

    /// Replaces an NSD by an empty one, or continues an interrupted replacement. `port` is the way
    /// to the new NSD. The work is done in the background, and the listing of NSDs shows its
    /// progress.
    ///
    /// # Errors
    /// `Busy` if another replacement or deletion is under way; `NotFound` for an NSD without a
    /// slot; the new NSD's.
    pub fn replace_nsd(&self, replacement: Replacement, port: Arc<dyn NsdPort>) -> Result<()> {
        replace::start(&self.repair, replacement, port)
    }

    /// Gives an empty NSD a slot of its own. New files are placed on it, too, from then on.
    ///
    /// # Errors
    /// `Busy` while an NSD is replaced or deleted; `Unreachable` if it does not answer; the
    /// metadata's.
    pub fn add_nsd(&self, nsd: NsdId, failure_group: u32, port: Arc<dyn NsdPort>) -> Result<()> {
        self.check_idle()?;
        let nsds = self.repair.array.io.nsds();
        nsds.add(nsd, failure_group, port)?;
        if let Err(error) = self.have_clients_follow() {
            // They follow when they meet a file that lies there.
            warn!(target: "disks", "NSD {nsd} is added: {error}");
        }
        Ok(())
    }

    /// Has all clients place new files by the pool map as it is now, and waits until they do.
    ///
    /// # Errors
    /// `TimedOut` if one does not follow.
    fn have_clients_follow(&self) -> Result<()> {
        let own = self.repair.array.io.nsds().client();
        self.repair.clients.as_ref().map_or(Ok(()), |clients| clients.have_placed(own))
    }

    /// Refuses while a disk is being replaced or deleted, or files are being moved.
    ///
    /// # Errors
    /// `Busy`; the metadata's.
    pub fn check_idle(&self) -> Result<()> {
        self.check_disks_stay()?;
        self.check_not_moving()
    }

    fn check_disks_stay(&self) -> Result<()> {
        let busy = |nsd: NsdId, what: &str| {
            let detail = format!("NSD {nsd} is being {what}: wait until that is done");
            Err(Error::new(ErrorKind::Busy, detail))
        };
        if let Some((pending, _)) = self.replacement()? {
            return busy(pending.old, "replaced");
        }
        match self.deletion()? {
            Some((pending, _)) => busy(pending.nsd, "deleted"),
            None => Ok(()),
        }
    }

    fn check_not_moving(&self) -> Result<()> {
        if rebalance::pending(&self.repair)?.is_none() {
            return Ok(());
        }
        let detail =
            "files are being moved: wait until that is done, or `strake fs rebalance stop`";
        Err(Error::new(ErrorKind::Busy, detail))
    }

    /// Begins to move files that lie by an older layout to the newest one, at `rate` bytes per
    /// second, or goes on with it; 0 for no limit.
    ///
    /// # Errors
    /// `Busy` if it is at work, or a disk is being replaced or deleted; the metadata's.
    pub fn start_rebalance(&self, rate: u64) -> Result<()> {
        self.check_disks_stay()?;
        rebalance::start(&self.rebalancer, rate)
    }

    /// Ends the moving of files for good. What is moved stays so.
    ///
    /// # Errors
    /// The metadata's.
    pub fn stop_rebalance(&self) -> Result<()> {
        rebalance::give_up(&self.rebalancer)
    }

    /// The progress of moving files.
    pub fn rebalance(&self) -> View<Rebalanced> {
        self.rebalancer.view()
    }

    /// Goes on with moving files if the metadata says that it is under way. A disk that is being
    /// replaced is waited for.
    ///
    /// # Errors
    /// The metadata's.
    pub fn resume_rebalance(&self) -> Result<()> {
        match rebalance::pending(&self.repair)? {
            Some(rate) if !self.rebalance().running => match self.start_rebalance(rate) {
                Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
                started => started,
            },
            _ => Ok(()),
        }
    }

    /// The NSDs of the pool as they are seen here.
    pub fn nsds(&self) -> Vec<NsdView> {
        self.repair.array.nsds()
    }

    /// What the fullest NSD holds, in bytes. All NSDs in use are asked.
    pub fn most_held(&self) -> u64 {
        self.repair.array.io.nsds().refresh_space();
        let held = |view: &NsdView| view.total.saturating_sub(view.free);
        self.nsds().iter().map(held).max().unwrap_or(0)
    }

    /// Sets the rate at which NSDs are filled from now on, in bytes per second; 0 for no limit.
    pub fn set_rebuild_rate(&self, rate: u64) {
        self.repair.pace.set_rate(rate);
    }

    /// The replacement that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn replacement(&self) -> Result<Option<(Replacement, bool)>> {
        // Asked first: work that ends in between is then not reported as idle and pending.
        let running = self.is_rebuilding();
        Ok(replace::pending(&self.repair)?.map(|it| (it, running)))
    }

    /// Deletes an NSD, or continues an interrupted deletion. Each of its strips gets a place on
    /// another NSD. The work is done in the background, and the listing of NSDs shows its progress.
    ///
    /// # Errors
    /// `Busy` if a replacement or another deletion is under way; `NotSupported`, `NoSpace` or
    /// `Unreachable` if the other NSDs cannot take the strips; `NotFound` for an NSD without a
    /// slot.
    pub fn delete_nsd(&self, deletion: Deletion) -> Result<()> {
        if self.deletion()?.is_none() {
            self.check_not_moving()?;
        }
        delete::start(&self.repair, deletion)
    }

    /// The deletion that the metadata says is under way, and whether it is at work here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn deletion(&self) -> Result<Option<(Deletion, bool)>> {
        // Asked first: work that ends in between is then not reported as idle and pending.
        let running = self.is_rebuilding();
        Ok(delete::pending(&self.repair)?.map(|it| (it, running)))
    }

    /// Whether a replacement or a deletion is at work.
    pub fn is_rebuilding(&self) -> bool {
        self.repair.job.is_running()
    }

    /// Suspends an NSD, so that new files are not placed on it, or ends that. Returns false if new
    /// files are placed on it all the same, because too few other NSDs are left for the code.
    ///
    /// # Errors
    /// `NotFound` for an NSD without a slot; `TimedOut` if a mount does not follow, and may still
    /// place new files as before; the metadata's.
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
        self.have_clients_follow().map_err(|error| {
            let detail = format!(
                "the status of NSD {nsd} is changed, but a mount may place new files as before: \
                 {error}; give the command again"
            );
            Error::new(error.kind(), detail)
        })?;
        Ok(nsds.is_left_out(slot) == suspended)
    }

    /// Compares the metadata of files with the strips that the NSDs list, while the file system is
    /// in use. Changes nothing.
    ///
    /// # Errors
    /// The metadata's; `Io` if too many NSDs are away for a check.
    pub fn check_strips(&self) -> Result<StripCheck> {
        self.check_strips_while(&|_| Ok(()))
    }

    /// Like [`Manager::check_strips`]. `watch` is called at short intervals with the number of
    /// files looked at so far. If it fails with `Interrupted`, the check ends with what it has
    /// found.
    ///
    /// # Errors
    /// As [`Manager::check_strips`].
    pub fn check_strips_while(&self, watch: &dyn Fn(u64) -> Result<()>) -> Result<StripCheck> {
        check::check(&self.repair, watch)
    }
}

impl Drop for Manager {
    /// Stops the threads.
    fn drop(&mut self) {
        self.stop();
    }
}
