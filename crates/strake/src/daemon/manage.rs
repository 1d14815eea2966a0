//! Answers to the requests that change what disks there are and how they are used.

use super::serve::Daemon;
use crate::assemble;
use crate::data_dir::NsdConfig;
use crate::show::{ScrubReport, availability_name};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_client::{NsdView, Replacement};
use strake_env::{Clock, RealClock};
use strake_proto::layout::NsdAvailability;
use strake_proto::nsd::{NsdContext, NsdPort, NsdRequest};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// How long `disk start` waits for the disk to answer.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
const START_WAIT_STEP: Duration = Duration::from_millis(50);

/// How often replacements are looked after.
const TEND_INTERVAL: Duration = Duration::from_secs(1);

/// A disk that is to be taken into use.
pub(super) struct NewDisk {
    /// A directory or a block device.
    pub(super) path: PathBuf,
    /// Bytes of its container.
    pub(super) size: Option<u64>,
    /// Whatever it holds.
    pub(super) force: bool,
}

/// Takes up replacements that are not at work (after a start, or when a disk was away), and takes
/// disks off the list that have been replaced.
pub(super) fn tend(daemon: &Weak<Daemon>) {
    while let Some(daemon) = daemon.upgrade() {
        if daemon.is_stopped() {
            return;
        }
        if let Err(error) = daemon.tend_disks() {
            eprintln!("disks: {error}");
        }
        drop(daemon);
        RealClock.sleep(TEND_INTERVAL);
    }
}

impl Daemon {
    fn tend_disks(&self) -> Result<()> {
        let Some(_alone) = self.managing.try_lock() else { return Ok(()) };
        let pending = self.vfs.replacement()?;
        if let Some((replacement, false)) = pending
            && let Some(port) = self.answering(replacement.new)
        {
            self.vfs.replace_nsd(replacement, port)?;
        }
        let held: Vec<NsdId> = self.vfs.nsds().iter().map(|view| view.nsd).collect();
        let coming = pending.map(|(replacement, _)| replacement.new);
        let mut config = self.config();
        let before = config.nsd.len();
        config.nsd.retain(|nsd| held.contains(&NsdId(nsd.id)) || coming == Some(NsdId(nsd.id)));
        if config.nsd.len() < before {
            self.change_config(config)?;
        }
        Ok(())
    }

    /// The way to an NSD that answers.
    fn answering(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        let port = self.backend.lock().port(nsd)?;
        port.call(NsdContext::default(), &NsdRequest::Status, &[], &mut []).ok().map(|_| port)
    }

    /// `strake disk suspend` and `resume`.
    pub(super) fn suspend_disk(&self, disk: &str, suspended: bool) -> Result<Value> {
        let view = self.view(disk)?;
        let is_so = self.vfs.set_suspended(view.nsd, suspended)?;
        let message = match (suspended, is_so) {
            (true, true) => format!("{disk} is suspended: new files are placed on the others"),
            (true, false) => format!(
                "{disk} is suspended, but new files still use it: the other disks are too few for \
                 the code"
            ),
            (false, _) => format!("{disk} is ready"),
        };
        Ok(json!({ "disk": disk, "suspended": suspended, "avoided": is_so && suspended,
                   "message": message }))
    }

    /// `strake disk replace`: makes the new disk, has it opened, and begins.
    pub(super) fn replace_disk(&self, disk: &str, new: &NewDisk, rate: u64) -> Result<Value> {
        let _alone = self.managing.lock();
        let view = self.view(disk)?;
        if let Some((pending, _)) = self.vfs.replacement()? {
            let name = self.nsd_name(pending.old);
            let detail = format!("{name} is being replaced: wait until that is done");
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        let mut config = self.config();
        let id = config.nsd.iter().map(|nsd| nsd.id).max().unwrap_or(0) + 1;
        let old = config.nsd.iter().find(|nsd| nsd.id == view.nsd.0);
        let failure_group = old.map_or(id, |nsd| nsd.failure_group);
        let name = format!("nsd{id}");
        let added = NsdConfig { id, name: name.clone(), path: new.path.clone(), failure_group };
        if config.nsd.iter().any(|nsd| self.dir.root().join(&nsd.path) == new.path) {
            let detail = format!("{} is in use: name another place", new.path.display());
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        assemble::format_one(&self.dir, &config, &added, new.size, new.force)?;
        config.nsd.push(added);
        self.change_config(config)?;
        let end = RealClock.monotonic() + START_WAIT_MAX;
        let port = loop {
            if let Some(port) = self.answering(NsdId(id)) {
                break port;
            }
            if RealClock.monotonic() >= end {
                let detail = format!("{name} was made and does not answer; see the log");
                return Err(Error::new(ErrorKind::Unreachable, detail));
            }
            RealClock.sleep(START_WAIT_STEP);
        };
        self.vfs.replace_nsd(Replacement { old: view.nsd, new: NsdId(id), rate }, port)?;
        let message = format!(
            "{disk} is being replaced by {name} ({}); `strake disk list` shows how far it is",
            new.path.display()
        );
        Ok(json!({ "old": disk, "new": name, "message": message }))
    }

    /// How far the scrub is.
    pub(super) fn scrub(&self) -> ScrubReport {
        let view = self.vfs.scrub();
        let state = match (view.running, view.started.is_some(), view.complete) {
            (true, _, _) => "running",
            (false, false, _) => "never",
            (false, true, true) => "complete",
            (false, true, false) => "stopped",
        };
        ScrubReport {
            state: state.to_owned(),
            started_seconds: view.started.map(|time| time.seconds),
            ended_seconds: view.ended.map(|time| time.seconds),
            rate: view.rate,
            done_bytes: view.done,
            total_bytes: view.total,
            strips: view.strips,
            bad_strips: view.bad,
            mended_blocks: view.mended,
            failed_blocks: view.failed,
        }
    }

    /// What is known of the disk of that name.
    fn view(&self, disk: &str) -> Result<NsdView> {
        let views = self.vfs.nsds();
        let found = views.iter().find(|view| self.nsd_name(view.nsd) == disk);
        found.cloned().ok_or_else(|| {
            let names: Vec<String> = views.iter().map(|view| self.nsd_name(view.nsd)).collect();
            let detail = format!("no disk '{disk}'; there are {}", names.join(", "));
            Error::new(ErrorKind::Invalid, detail)
        })
    }

    /// `strake disk start`.
    pub(super) fn start_disk(&self, disk: &str) -> Result<Value> {
        self.view(disk)?;
        let end = RealClock.monotonic() + START_WAIT_MAX;
        self.backend.lock().kick();
        self.vfs.look_after_nsds();
        loop {
            let availability = self.view(disk)?.state.availability;
            let name = availability_name(availability);
            match availability {
                NsdAvailability::Up | NsdAvailability::Recovering => {
                    let message = format!("{disk} is {name}");
                    return Ok(json!({ "disk": disk, "availability": name, "message": message }));
                }
                NsdAvailability::Down | NsdAvailability::Unrecovered => {}
            }
            if RealClock.monotonic() >= end {
                let detail = format!(
                    "{disk} is {name} and cannot be used: bring its container or device back to \
                     its place; the end of {} says what is wrong",
                    self.dir.log_path().display()
                );
                return Err(Error::new(ErrorKind::Unreachable, detail));
            }
            RealClock.sleep(START_WAIT_STEP);
        }
    }
}
