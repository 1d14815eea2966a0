//! The disks of this process. They are opened at the start, watched while they are in use, let go
//! when they fail or vanish, and taken in again when they are back.
//!
//! Each NSD has a thread of its own that watches it, so a disk that hangs does not delay the
//! others. Every second the thread compares the path with the file that is open, because a removed
//! container would go on working unnoticed. It also asks whether the disk has failed.
//!
//! **A disk goes.** The user of the disks (the array, or the servers) is told first. Then the
//! metadata is told, and makes its copy elsewhere.
//!
//! **A disk returns.** It is opened as at a start. The metadata takes it in and says whether it can
//! have missed anything. Then the user gets the way to it. If the file in its place is not the one
//! that went, everything on the disk is doubted.
//!
//! A node of a cluster that does not have the metadata has NSDs all the same. There nobody is told
//! but the user, and clients that see an NSD return compare what it may have missed.
//!
//! An NSD that other nodes reach, too, is opened only under a reservation, and closed when that is
//! over ([`reserved`]).
//!
//! The list of NSDs is read again when `strake.toml` changes. In this way the server process of
//! `rpc=socket` learns of a new disk.

mod reserved;

pub(crate) use reserved::{Marks, Reserved};

use crate::assemble::{self, OpenNsd};
use crate::data_dir::{DataDir, NodeConfig, NsdConfig};
use reserved::Reservations;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};
use strake_env::channel;
use strake_env::disk::guarded::Permit;
use strake_env::disk::relieved::Hosts;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock};
use strake_meta::MetaStore;
use strake_observe::Observe;
use strake_proto::nsd::NsdPort;
use strake_proto::{ErrorKind, NsdId, Result};
use strake_store::Container;
use tracing::{error, info, warn};

/// How often each NSD is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long an NSD that failed is left alone. Each further failure doubles it, up to the maximum.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How long the start waits for disks to open if `nsd_io_limit` is 0.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(120);

/// The user of the disks: the array in this process, or the servers for another process.
pub(crate) trait DiskUser: Send + Sync {
    /// The NSD can be used through `port` from now on.
    fn came(&self, nsd: NsdId, port: Arc<dyn NsdPort>);
    /// The NSD cannot be used any more.
    fn went(&self, nsd: NsdId);
}

/// One NSD that is open.
struct OpenDisk {
    nsd: OpenNsd,
    /// True if it is not used for data and stays open only for the last copy of the metadata.
    withdrawn: bool,
    /// True if the metadata knows it. The new disk of a replacement becomes known when it takes
    /// over.
    member: bool,
}

/// The disks of this process; see the head of this file.
pub(crate) struct Disks {
    dir: DataDir,
    observe: Arc<Observe>,
    /// The metadata, if this process has it.
    meta: OnceLock<Option<Arc<MetaStore>>>,
    user: OnceLock<Arc<dyn DiskUser>>,
    /// The file systems that the containers lie on.
    hosts: Arc<Hosts>,
    /// Reservations of NSDs that other nodes reach, too.
    reservations: Arc<Reservations>,
    config: Mutex<(NodeConfig, Option<SystemTime>)>,
    open: Mutex<BTreeMap<NsdId, OpenDisk>>,
    /// The identities of the files of NSDs that went.
    identities: Mutex<BTreeMap<NsdId, (u64, u64)>>,
    /// Why each unused NSD is not used. The log names a fault only when it differs from this.
    faults: Mutex<BTreeMap<NsdId, String>>,
    watched: Mutex<BTreeSet<NsdId>>,
    /// Increased to have all NSDs looked at now, without a pause.
    kicks: Mutex<u64>,
    kicked: Condvar,
    stopped: AtomicBool,
}

/// The metadata's answer about an NSD that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    /// The NSD is in the pool.
    Member,
    /// The NSD is in the pool, and its contents cannot be what they were when it went.
    Missed,
    /// The NSD is not in the pool.
    Stranger,
}

/// The state of the thread that watches one NSD.
#[derive(Default)]
struct Watch {
    nsd: NsdId,
    pause: Duration,
    /// The NSD is not tried again before this time.
    until: Duration,
    /// The kick that was last seen.
    kicks: u64,
    /// The kick that was last acted upon.
    kicked: u64,
}

impl Disks {
    /// Opens every NSD that is there.
    ///
    /// # Errors
    /// When no threads can be started.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        observe: &Arc<Observe>,
    ) -> Result<Arc<Disks>> {
        let (sender, receiver) = channel::channel();
        let (hosts, reservations) = (Arc::<Hosts>::default(), Arc::<Reservations>::default());
        for nsd in config.nsd.clone() {
            let (dir, config) = (dir.clone(), config.clone());
            let (observe, sender) = (Arc::clone(observe), sender.clone());
            let (hosts, reservations) = (Arc::clone(&hosts), Arc::clone(&reservations));
            strake_env::thread::Builder::new().name(format!("open {}", nsd.name)).spawn(
                move || {
                    // If the start does not wait any more, the NSD is closed again here, and its
                    // watcher opens it later.
                    let opened =
                        reservations.reserve(&dir, &config, &nsd, &observe).and_then(|permit| {
                            assemble::open_nsd(&dir, &config, &nsd, permit, &hosts, &observe)
                        });
                    let _ = sender.send((nsd.id, opened));
                },
            )?;
        }
        drop(sender);
        let limit = match config.settings.time("nsd_io_limit") {
            Duration::ZERO => OPEN_WAIT_MAX,
            limit => limit,
        };
        let mut open = BTreeMap::new();
        let mut faults = BTreeMap::new();
        while let Ok((id, opened)) = receiver.recv_timeout(limit) {
            match opened {
                Ok(nsd) => {
                    open.insert(NsdId(id), OpenDisk { nsd, withdrawn: false, member: false });
                }
                Err(error) => {
                    warn!(target: "disks", "NSD missing: {error}");
                    faults.insert(NsdId(id), error.to_string());
                }
            }
        }
        Ok(Arc::new(Disks {
            dir: dir.clone(),
            observe: Arc::clone(observe),
            meta: OnceLock::new(),
            user: OnceLock::new(),
            hosts,
            reservations,
            config: Mutex::new((config.clone(), changed_at(dir))),
            open: Mutex::new(open),
            identities: Mutex::default(),
            faults: Mutex::new(faults),
            watched: Mutex::default(),
            kicks: Mutex::new(0),
            kicked: Condvar::new(),
            stopped: AtomicBool::new(false),
        }))
    }

    /// The containers of the NSDs that are open.
    pub(crate) fn containers(&self) -> Vec<Container> {
        self.open.lock().values().map(|held| held.nsd.container.clone()).collect()
    }

    /// The container of an NSD, if it is open.
    pub(crate) fn container(&self, nsd: NsdId) -> Option<Container> {
        let open = self.open.lock();
        Some(open.get(&nsd).filter(|held| !held.withdrawn)?.nsd.container.clone())
    }

    /// The ways to the NSDs that are open.
    pub(crate) fn ports(&self) -> BTreeMap<NsdId, Arc<dyn NsdPort>> {
        let open = self.open.lock();
        let usable = open.iter().filter(|(_, held)| !held.withdrawn);
        usable.map(|(nsd, held)| (*nsd, Arc::clone(&held.nsd.store) as Arc<dyn NsdPort>)).collect()
    }

    /// Why an NSD is not used, if it has a fault.
    pub(crate) fn fault_of(&self, nsd: NsdId) -> Option<String> {
        self.faults.lock().get(&nsd).cloned()
    }

    /// Ends the work of the block stores, so that the disks can be opened again. Then tells the
    /// hosts of the containers which space in them is free. All disks do so at the same time,
    /// because it takes long.
    pub(crate) fn give_back(&self) {
        let open = self.open.lock();
        let stores: Vec<_> = open.values().map(|held| Arc::clone(&held.nsd.store)).collect();
        drop(open);
        strake_env::thread::scope(|scope| {
            for store in &stores {
                scope.spawn(|| {
                    store.end();
                    store.give_back();
                });
            }
        });
        self.reservations.leave_all();
    }

    /// Begins to watch the disks, and from now on tells `meta` and `user` what happens to them.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn watch(
        self: &Arc<Disks>,
        meta: Option<Arc<MetaStore>>,
        user: Arc<dyn DiskUser>,
    ) -> Result<()> {
        for held in self.open.lock().values_mut() {
            let nsd = held.nsd.container.superblock().nsd;
            held.member = meta.as_ref().is_none_or(|meta| meta.is_member(nsd));
        }
        assert!(self.meta.set(meta).is_ok(), "watched once");
        assert!(self.user.set(user).is_ok(), "watched once");
        self.watch_all()?;
        let disks = Arc::downgrade(self);
        strake_env::thread::Builder::new().name("disk-list".to_owned()).spawn(move || {
            let mut kicks = 0;
            while let Some(disks) = next_look(&disks, &mut kicks) {
                disks.read_list();
            }
        })?;
        Ok(())
    }

    fn watch_all(self: &Arc<Disks>) -> Result<()> {
        let listed: Vec<NsdId> = self.config.lock().0.nsd.iter().map(|nsd| NsdId(nsd.id)).collect();
        for nsd in listed {
            if !self.watched.lock().insert(nsd) {
                continue;
            }
            let disks = Arc::downgrade(self);
            strake_env::thread::Builder::new().name(format!("watch {nsd}")).spawn(move || {
                let mut watch = Watch { nsd, ..Watch::default() };
                while let Some(disks) = next_look(&disks, &mut watch.kicks) {
                    if !disks.look(&mut watch) {
                        disks.watched.lock().remove(&nsd);
                        return;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Reads the list of NSDs again if it was changed.
    fn read_list(self: &Arc<Disks>) {
        let changed = changed_at(&self.dir);
        if self.config.lock().1 == changed {
            return;
        }
        match self.dir.read_config() {
            Ok(config) => {
                *self.config.lock() = (config, changed);
                if let Err(error) = self.watch_all() {
                    error!(target: "disks", "{error}");
                }
            }
            Err(error) => error!(target: "disks", "{error}"),
        }
    }

    /// Has every NSD looked at now, including those that are being left alone for a while.
    pub(crate) fn kick(&self) {
        *self.kicks.lock() += 1;
        self.kicked.notify_all();
    }

    /// Ends the watching. It does not wait for threads that are stuck in a disk.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.kick();
    }

    /// Checks one NSD and acts on what it finds. False if the NSD is not on the list any more.
    fn look(&self, watch: &mut Watch) -> bool {
        let config = self.config.lock().0.clone();
        let Some(nsd) = config.nsd.iter().find(|nsd| nsd.id == watch.nsd.0) else {
            // The disk that took its place may be the next to hold a copy of the metadata, so it
            // must be known first.
            let open: Vec<NsdId> = self.open.lock().keys().copied().collect();
            open.into_iter().for_each(|nsd| self.join_if_new(nsd));
            self.let_go(watch.nsd, "it was taken off the list", true);
            self.identities.lock().remove(&watch.nsd);
            self.faults.lock().remove(&watch.nsd);
            return false;
        };
        let now = RealClock.monotonic();
        if std::mem::replace(&mut watch.kicked, watch.kicks) != watch.kicks {
            watch.until = now;
        }
        if self.reservations.is_of_another_time(nsd) && self.fault(watch.nsd).is_some() {
            self.let_go(watch.nsd, "its servers have changed meanwhile", true);
        }
        match self.fault(watch.nsd) {
            Some(None) => {
                // An NSD that has worked for a while starts again with the shortest pause.
                if now >= watch.until + PAUSE_MAX {
                    watch.pause = Duration::ZERO;
                }
                self.join_if_new(watch.nsd);
            }
            Some(Some(fault)) => {
                let path = self.dir.container_path(nsd);
                error!(target: "disks", "{} ({}) is not used any more: {fault}", nsd.name, path.display());
                self.faults.lock().insert(watch.nsd, fault.clone());
                watch.pause = (watch.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                watch.until = now + watch.pause;
                self.let_go(watch.nsd, &fault, false);
            }
            None if now >= watch.until => self.take_in(&config, nsd, watch),
            None => {}
        }
        true
    }

    /// The fault of an open NSD: `Some(None)` if it has none, `None` if the NSD is not open.
    fn fault(&self, nsd: NsdId) -> Option<Option<String>> {
        let (file, guard, store, withdrawn) = {
            let open = self.open.lock();
            let held = open.get(&nsd)?;
            let OpenNsd { file, guard, store, .. } = &held.nsd;
            (Arc::clone(file), Arc::clone(guard), Arc::clone(store), held.withdrawn)
        };
        // The lock is not held here, because a host that hangs would then delay all other disks.
        let there = file.verify().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "its container is gone".to_owned(),
            _ => error.to_string(),
        });
        let failed = self.reservations.is_over(nsd).or_else(|| guard.cause_of_death());
        let failed = failed.or(store.failure().map(|error| error.to_string()));
        match (there, failed, withdrawn) {
            (Ok(()), None, false) => Some(None),
            (Ok(()), None, true) => {
                // The NSD stayed open for the last copy of the metadata. Its file is still the
                // same, so it goes on.
                info!(target: "disks", "NSD {nsd} is back");
                self.open.lock().get_mut(&nsd)?.withdrawn = false;
                self.user().came(nsd, store as Arc<dyn NsdPort>);
                Some(None)
            }
            (_, _, true) => Some(None),
            (Err(fault), _, false) | (Ok(()), Some(fault), false) => Some(Some(fault)),
        }
    }

    /// Closes an NSD, unless it holds the last copy of the metadata. If the NSD still works
    /// (`is_fit`), its copy of the metadata is made elsewhere first.
    fn let_go(&self, nsd: NsdId, reason: &str, is_fit: bool) {
        self.user().went(nsd);
        let is_gone = match self.meta() {
            Some(meta) if is_fit => meta.release(nsd, reason),
            Some(meta) => meta.detach(nsd, reason),
            None => true,
        };
        if !is_gone {
            warn!(target: "disks", "NSD {nsd} holds the last copy of the metadata, which stays in use");
            if let Some(held) = self.open.lock().get_mut(&nsd) {
                held.withdrawn = true;
            }
            return;
        }
        let held = self.open.lock().remove(&nsd);
        self.reservations.leave(nsd);
        let Some(held) = held else { return };
        held.nsd.guard.retire(reason);
        if let Ok(identity) = held.nsd.file.identity() {
            self.identities.lock().insert(nsd, identity);
        }
    }

    /// Opens an NSD that is not open. If that fails, notes why.
    fn take_in(&self, config: &NodeConfig, nsd: &NsdConfig, watch: &mut Watch) {
        let permit = self.reservations.reserve(&self.dir, config, nsd, &self.observe);
        let is_permitted = permit.is_ok();
        match permit.and_then(|permit| self.try_take_in(config, nsd, permit)) {
            Ok(()) => {
                self.faults.lock().remove(&watch.nsd);
                info!(target: "disks", "{} is back", nsd.name);
            }
            Err(error) => {
                if is_permitted && nsd.shared.is_some() {
                    // Another node may be able to use it.
                    self.reservations.leave(watch.nsd);
                    watch.pause = (watch.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                    watch.until = RealClock.monotonic() + watch.pause;
                }
                let fault = error.to_string();
                let is_there = self.dir.container_path(nsd).exists();
                let named = self.faults.lock().insert(watch.nsd, fault.clone());
                if is_there && named.as_ref() != Some(&fault) {
                    error!(target: "disks", "{} cannot be used: {fault}", nsd.name);
                }
            }
        }
    }

    fn try_take_in(
        &self,
        config: &NodeConfig,
        nsd: &NsdConfig,
        permit: Option<Arc<Permit>>,
    ) -> Result<()> {
        let id = NsdId(nsd.id);
        let (hosts, observe) = (&self.hosts, &self.observe);
        let opened = assemble::open_nsd(&self.dir, config, nsd, permit, hosts, observe)?;
        let identity = opened.file.identity()?;
        let doubted = self.identities.lock().get(&id).is_some_and(|before| *before != identity);
        let joined = self.join(&opened.container, doubted)?;
        if joined == Joined::Missed {
            opened.store.doubt();
        }
        let member = joined != Joined::Stranger;
        let port = Arc::clone(&opened.store) as Arc<dyn NsdPort>;
        self.identities.lock().remove(&id);
        self.open.lock().insert(id, OpenDisk { nsd: opened, withdrawn: false, member });
        self.user().came(id, port);
        Ok(())
    }

    /// Makes an NSD known to the metadata. `doubted` says that its file is not the one that went.
    fn join(&self, container: &Container, doubted: bool) -> Result<Joined> {
        let Some(meta) = self.meta() else {
            return Ok(if doubted { Joined::Missed } else { Joined::Member });
        };
        match meta.attach(container.clone(), doubted, RealClock.wall()) {
            Ok(true) => Ok(Joined::Missed),
            Ok(false) => Ok(Joined::Member),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Joined::Stranger),
            Err(error) => Err(error),
        }
    }

    /// Makes an NSD known to the metadata if it is a new disk that has taken over by now.
    fn join_if_new(&self, nsd: NsdId) {
        let container = {
            let open = self.open.lock();
            let held = open.get(&nsd).filter(|held| !held.member);
            held.map(|held| held.nsd.container.clone())
        };
        if let Some(container) = container
            && matches!(self.join(&container, false), Ok(Joined::Member | Joined::Missed))
            && let Some(held) = self.open.lock().get_mut(&nsd)
        {
            held.member = true;
        }
    }

    fn meta(&self) -> Option<&Arc<MetaStore>> {
        self.meta.get().expect("invariant: set before anything is watched").as_ref()
    }

    fn user(&self) -> &Arc<dyn DiskUser> {
        self.user.get().expect("invariant: set before anything is watched")
    }
}

/// Waits until the next look is due. `None` if the watching has ended.
fn next_look(disks: &Weak<Disks>, seen: &mut u64) -> Option<Arc<Disks>> {
    let disks = disks.upgrade()?;
    let mut kicks = disks.kicks.lock();
    if *kicks == *seen {
        disks.kicked.wait_for(&mut kicks, LOOK);
    }
    *seen = *kicks;
    drop(kicks);
    (!disks.stopped.load(Ordering::Acquire)).then_some(disks)
}

fn changed_at(dir: &DataDir) -> Option<SystemTime> {
    std::fs::metadata(dir.config_path()).and_then(|found| found.modified()).ok()
}
