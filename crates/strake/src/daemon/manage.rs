//! Answers the requests that add and delete disks, or change how they are used.

use super::serve::Daemon;
use crate::assemble;
use crate::background::Order;
use crate::data_dir::{NodeConfig, NsdConfig};
use crate::rebalance::{self, RebalanceReport};
use crate::scrub::{self, ScrubReport};
use crate::show::availability_name;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_array::NsdView;
use strake_env::{Clock, RealClock};
use strake_manager::{Deletion, Replacement};
use strake_proto::layout::NsdAvailability;
use strake_proto::nsd::{NsdPort, NsdRequest};
use strake_proto::{ByteCount, Error, ErrorKind, NsdId, Result};
use tracing::error;

/// How long `disk start` waits for the disk to answer.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
const START_WAIT_STEP: Duration = Duration::from_millis(50);

/// How often replacements and deletions are checked.
const TEND_INTERVAL: Duration = Duration::from_secs(1);

/// The new disk of a replacement.
pub(super) struct NewDisk {
    /// A directory or a block device; `None` for the place of the old disk.
    pub(super) path: Option<PathBuf>,
    /// Bytes of its container.
    pub(super) size: Option<u64>,
    /// Use the device even if it holds something else.
    pub(super) force: bool,
    /// In the user's words.
    pub(super) given: Option<String>,
}

/// Starts pending replacements and deletions that are not running, after a start of the daemon or
/// when a disk was away. Takes disks off the list that have been replaced or deleted.
pub(super) fn tend(daemon: &Weak<Daemon>) {
    while let Some(daemon) = daemon.upgrade() {
        if daemon.is_stopped() {
            return;
        }
        if let Err(error) = daemon.tend_disks() {
            error!(target: "disks", "{error}");
        }
        drop(daemon);
        RealClock.sleep(TEND_INTERVAL);
    }
}

impl Daemon {
    fn tend_disks(&self) -> Result<()> {
        let Some(_alone) = self.managing.try_lock() else { return Ok(()) };
        let Ok(manager) = self.manager() else { return self.follow_list() };
        let pending = manager.replacement()?;
        if let Some((replacement, false)) = pending
            && let Some(port) = self.answering(replacement.new)
        {
            manager.replace_nsd(replacement, port)?;
        }
        if let Some((deletion, false)) = manager.deletion()? {
            manager.delete_nsd(deletion)?;
        }
        manager.resume_rebalance()?;
        let held: Vec<NsdId> = self.life().array.nsds().iter().map(|view| view.nsd).collect();
        let coming = pending.map(|(replacement, _)| replacement.new);
        let mut config = self.config();
        let before = config.nsd.len();
        config.nsd.retain(|nsd| held.contains(&NsdId(nsd.id)) || coming == Some(NsdId(nsd.id)));
        if config.nsd.len() < before {
            self.change_config(config)?;
        }
        Ok(())
    }

    /// In a cluster the leader looks after replacements and deletions. This mount only learns the
    /// names of disks that have come, and forgets those that have gone.
    fn follow_list(&self) -> Result<()> {
        let Some(cluster) = self.life().backend.cluster() else { return Ok(()) };
        let mut config = self.config();
        let ids = |list: &[NsdConfig]| list.iter().map(|nsd| nsd.id).collect::<BTreeSet<u32>>();
        let held: BTreeSet<u32> = self.life().array.nsds().iter().map(|view| view.nsd.0).collect();
        let before = ids(&config.nsd);
        if before == held {
            return Ok(());
        }
        // The records may know a disk for longer, or later, than the array.
        config.nsd = cluster.listed()?;
        config.nsd.retain(|nsd| held.contains(&nsd.id));
        if ids(&config.nsd) == before {
            return Ok(());
        }
        self.change_config(config)
    }

    /// The way to an NSD; `None` if the NSD does not answer.
    fn answering(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        let port = self.life().backend.port(nsd)?;
        port.call(self.nsd_context(), &NsdRequest::Status, &[], &mut []).ok().map(|_| port)
    }

    /// Answers `strake disk suspend` and `resume`.
    pub(super) fn suspend_disk(&self, disk: &str, suspended: bool) -> Result<Value> {
        let view = self.view(disk)?;
        let is_so = match self.life().backend.cluster() {
            Some(cluster) => cluster.suspend_nsd(view.nsd, suspended)?,
            None => self.manager()?.set_suspended(view.nsd, suspended)?,
        };
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

    /// Answers `strake disk replace`: makes the new disk, waits until it answers, and begins the
    /// replacement.
    pub(super) fn replace_disk(&self, disk: &str, new: NewDisk, rate: u64) -> Result<Value> {
        if let Some(cluster) = self.life().backend.cluster() {
            let old = self.view(disk)?.nsd;
            let name = name_in_cluster(&format!("replace {disk}"), &new)?;
            let message = cluster.replace_nsd(old, &name, rate)?;
            return Ok(json!({ "old": disk, "new": new.given, "message": message }));
        }
        let _alone = self.managing.lock();
        let view = self.view(disk)?;
        if let Some((pending, _)) = self.manager()?.replacement()? {
            let name = self.nsd_name(pending.old);
            let detail = format!("{name} is being replaced: wait until that is done");
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        if let Some((deletion, _)) = self.manager()?.deletion()?
            && (deletion.nsd == view.nsd || view.state.availability.readable())
        {
            let name = self.nsd_name(deletion.nsd);
            let detail = format!("{name} is being deleted: wait until that is done");
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        let mut config = self.config();
        let path = match &new.path {
            Some(path) => {
                self.check_new_disk(&config, Some(&view), path, new.size)?;
                if !view.state.availability.readable() && self.is_needed(&view)? {
                    let detail = format!(
                        "{disk} is not replaced: it cannot be read, and so many others are missing \
                         or behind that what it holds may be needed; bring it or them back first"
                    );
                    return Err(Error::new(ErrorKind::Io, detail));
                }
                path.clone()
            }
            None => self.place_of_lost(&config, &view)?,
        };
        let id = self.next_nsd(&config);
        let old = config.nsd.iter().find(|nsd| nsd.id == view.nsd.0);
        let failure_group = old.map_or(id, |nsd| nsd.failure_group);
        let name = format!("nsd{id}");
        let size = match (&new.path, new.size, old) {
            (None, None, Some(old)) => assemble::container_bytes(&self.dir, old),
            _ => new.size,
        };
        let added =
            NsdConfig { id, name: name.clone(), path: path.clone(), failure_group, shared: None };
        if new.path.is_none() {
            assemble::clear_place(&self.dir, &added)?;
        }
        let force = new.force || new.path.is_none();
        assemble::format_one(&self.dir, &config, &added, size, force)?;
        config.nsd.push(added);
        self.change_config(config)?;
        let port = self.await_answer(NsdId(id), &name)?;
        self.manager()?.replace_nsd(Replacement { old: view.nsd, new: NsdId(id), rate }, port)?;
        let message = format!(
            "{disk} is being replaced by {name} ({}); `strake disk list` shows how far it is",
            path.display()
        );
        Ok(json!({ "old": disk, "new": name, "message": message }))
    }

    /// Answers `strake disk add`: makes each new disk, waits until it answers, and gives it a slot.
    pub(super) fn add_disks(
        &self,
        disks: &[(PathBuf, String)],
        size: Option<u64>,
        force: bool,
    ) -> Result<Value> {
        if let Some(cluster) = self.life().backend.cluster() {
            let named = disks.iter().map(|(_, given)| {
                let given = Some(given.clone());
                name_in_cluster("add", &NewDisk { path: None, size, force, given })
            });
            let names: Vec<String> = named.collect::<Result<_>>()?;
            let message = cluster.add_nsds(names.clone())?;
            return Ok(json!({ "added": names, "message": message }));
        }
        let _alone = self.managing.lock();
        self.manager()?.check_idle()?;
        for (path, _) in disks {
            self.check_new_disk(&self.config(), None, path, size)?;
        }
        let mut added: Vec<String> = Vec::new();
        for (path, _) in disks {
            let name =
                self.add_disk(path, size, force).map_err(|error| match added.is_empty() {
                    true => error,
                    false => error.context(format!("{} are added", added.join(", "))),
                })?;
            added.push(name);
        }
        let (names, are) = (added.join(", "), if added.len() == 1 { "is" } else { "are" });
        let message = format!("{names} {are} added: new files are placed there, too");
        Ok(json!({ "added": added, "message": message }))
    }

    /// Makes one new disk. If that fails in between, it is taken off the list again
    /// ([`Daemon::tend_disks`]).
    fn add_disk(&self, path: &Path, size: Option<u64>, force: bool) -> Result<String> {
        let mut config = self.config();
        let id = self.next_nsd(&config);
        let name = format!("nsd{id}");
        let new = NsdConfig {
            id,
            name: name.clone(),
            path: path.to_owned(),
            failure_group: id,
            shared: None,
        };
        assemble::format_one(&self.dir, &config, &new, size, force)?;
        config.nsd.push(new);
        self.change_config(config)?;
        let port = self.await_answer(NsdId(id), &name)?;
        self.manager()?.add_nsd(NsdId(id), id, port)?;
        Ok(name)
    }

    /// The number of the next NSD. Numbers are never used again, so it is above those of deleted
    /// disks, too.
    fn next_nsd(&self, config: &NodeConfig) -> u32 {
        let listed = config.nsd.iter().map(|nsd| nsd.id).max().unwrap_or(0);
        listed.max(self.life().array.largest_nsd().0) + 1
    }

    /// Waits until a new NSD answers.
    fn await_answer(&self, nsd: NsdId, name: &str) -> Result<Arc<dyn NsdPort>> {
        let end = RealClock.monotonic() + START_WAIT_MAX;
        loop {
            if let Some(port) = self.answering(nsd) {
                return Ok(port);
            }
            if RealClock.monotonic() >= end {
                let detail = format!("{name} was made and does not answer; see the log");
                return Err(Error::new(ErrorKind::Unreachable, detail));
            }
            RealClock.sleep(START_WAIT_STEP);
        }
    }

    /// Answers `strake disk delete`.
    pub(super) fn delete_disk(&self, disk: &str, rate: u64) -> Result<Value> {
        let view = self.view(disk)?;
        if let Some(cluster) = self.life().backend.cluster() {
            let message = cluster.delete_nsd(view.nsd, rate)?;
            return Ok(json!({ "disk": disk, "message": message }));
        }
        let _alone = self.managing.lock();
        self.manager()?.delete_nsd(Deletion { nsd: view.nsd, rate })?;
        let message = format!(
            "{disk} is being deleted: what it holds gets places on the other disks; `strake disk \
             list` shows how far that is"
        );
        Ok(json!({ "disk": disk, "message": message }))
    }

    /// Refuses a new disk that cannot be used, or not in the place of the old one. Nothing has
    /// changed then.
    fn check_new_disk(
        &self,
        config: &NodeConfig,
        old: Option<&NsdView>,
        path: &Path,
        size: Option<u64>,
    ) -> Result<()> {
        let refused =
            |why: String| Err(Error::new(ErrorKind::Invalid, format!("{}: {why}", path.display())));
        if path.starts_with(&config.mount) {
            return refused("it lies in the file system itself: name another place".to_owned());
        }
        let inside = |nsd: &&NsdConfig| path.starts_with(self.dir.root().join(&nsd.path));
        if let Some(nsd) = config.nsd.iter().find(inside) {
            let advice = match old {
                Some(_) => {
                    "name another place, or --in-place to fill a disk anew that cannot be used"
                }
                None => "name another place",
            };
            return refused(format!("it is in use by {}: {advice}", nsd.name));
        }
        if let Some(size) = size.map(ByteCount) {
            if size < ByteCount::mib(64) {
                return refused(format!("--size {size}: a disk has at least 64 MiB"));
            }
            let used = ByteCount(old.map_or(0, |old| old.total.saturating_sub(old.free)));
            if size < used {
                return refused(format!("--size {size}: the old disk holds {used}"));
            }
        }
        Ok(())
    }

    /// The place of a disk that is to be made anew there. Refuses if the disk can be used, or if
    /// the others may need what it holds.
    fn place_of_lost(&self, config: &NodeConfig, old: &NsdView) -> Result<PathBuf> {
        let name = self.nsd_name(old.nsd);
        let refused = |why: &str| {
            Err(Error::new(ErrorKind::Invalid, format!("{name} is not filled anew: {why}")))
        };
        let Some(nsd) = config.nsd.iter().find(|nsd| nsd.id == old.nsd.0) else {
            return refused("its place is not known; name a new disk");
        };
        if old.state.availability != NsdAvailability::Down
            && old.state.availability != NsdAvailability::Unrecovered
            || self.answering(old.nsd).is_some()
        {
            return refused("it can be used, so it is brought up to date and not deleted");
        }
        if self.is_needed(old)? {
            return refused("too many others are missing or behind; bring them back first");
        }
        Ok(nsd.path.clone())
    }

    /// True if as many other disks are missing or behind as the code has parity strips. Then the
    /// contents of `old` may be needed, although it cannot be read now.
    fn is_needed(&self, old: &NsdView) -> Result<bool> {
        let is_short =
            |view: &NsdView| view.nsd != old.nsd && view.state.availability != NsdAvailability::Up;
        let short = self.life().array.nsds().iter().filter(|view| is_short(view)).count();
        Ok(short >= usize::from(self.code()?.parity))
    }

    /// Answers `strake fs scrub`.
    pub(super) fn scrub(&self, order: Order) -> Result<ScrubReport> {
        match self.life().backend.cluster() {
            Some(cluster) => cluster.scrub(order),
            None => scrub::obey(self.manager()?, order),
        }
    }

    /// Answers `strake fs rebalance`.
    pub(super) fn rebalance(&self, order: Order) -> Result<RebalanceReport> {
        match self.life().backend.cluster() {
            Some(cluster) => cluster.rebalance(order),
            None => rebalance::obey(self.manager()?, order),
        }
    }

    /// The state of the disk with that name.
    fn view(&self, disk: &str) -> Result<NsdView> {
        let views = self.life().array.nsds();
        let found = views.iter().find(|view| self.nsd_name(view.nsd) == disk);
        found.cloned().ok_or_else(|| {
            let names: Vec<String> = views.iter().map(|view| self.nsd_name(view.nsd)).collect();
            let detail = format!("no disk '{disk}'; there are {}", names.join(", "));
            Error::new(ErrorKind::Invalid, detail)
        })
    }

    /// Answers `strake disk start`.
    pub(super) fn start_disk(&self, disk: &str) -> Result<Value> {
        self.view(disk)?;
        let end = RealClock.monotonic() + START_WAIT_MAX;
        self.life().backend.kick();
        match &self.manager() {
            Ok(manager) => manager.look_after_nsds(),
            Err(_) => self.life().array.io.nsds().look_after(),
        }
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

/// The name of the NSD that `strake disk COMMAND` gives to a file system of a cluster.
fn name_in_cluster(command: &str, new: &NewDisk) -> Result<String> {
    let refused = |what: &str| {
        let detail = format!(
            "{what}: in a cluster, make an NSD first (`strake nsd create -F FILE`), and name it: \
             `strake disk {command} NSD`"
        );
        Err(Error::new(ErrorKind::Invalid, detail))
    };
    match &new.given {
        None => refused("--in-place"),
        Some(_) if new.size.is_some() => refused("--size"),
        Some(_) if new.force => refused("--force"),
        Some(given) if given.contains('/') => refused(given),
        Some(given) => Ok(given.clone()),
    }
}
