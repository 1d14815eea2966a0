//! How NSDs come and go while the metadata is in use, and how an old copy of an NSD is recognised.
//!
//! **Marks.** A life lasts from one start until the next. Each life begins with a new generation in
//! the superblocks of all NSDs. It then notes the number of this generation in the metadata itself
//! ([`MARK`]). If an NSD's superblock is older than the mark, the NSD was away when the mark was
//! made, or an old copy was put in the place of the disk. Its contents must not be believed. The
//! NSD is marked `Unrecovered` before anybody reads it, and before its superblock gets another
//! generation. A generation that a crash left half written is newer than the mark, so an NSD that
//! lacks it is not suspected.

use super::open::pool_nsds;
use super::{MetaStore, State};
use strake_proto::layout::{NsdAvailability, NsdState, PoolMap};
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{ClientId, Error, ErrorKind, NsdId, Result, Timestamp};
use strake_store::Container;
use tracing::{info, warn};

/// The name of the setting that holds the mark.
const MARK: &str = "nsd_generation";

impl MetaStore {
    /// Begins a life. First marks the NSDs that are out of date, then writes a new generation to
    /// all NSDs that are there. If more NSDs are away than are tolerated, it does nothing, because
    /// nothing can be changed.
    ///
    /// # Errors
    /// The metadata's own errors.
    pub fn begin_life(&self, now: Timestamp) -> Result<()> {
        if self.are_too_few() {
            return Ok(());
        }
        let mark = self.mark()?;
        for (nsd, generation) in &self.found {
            if is_outdated(*generation, mark) {
                self.distrust(*nsd, now)?;
            }
        }
        self.state.write().suspects.clear();
        self.renew(now)
    }

    /// Ends a life in order. It marks once more, so that a copy of a disk made before is
    /// recognised.
    ///
    /// # Errors
    /// The metadata's own errors.
    pub fn end_life(&self, now: Timestamp) -> Result<()> {
        if self.are_too_few() {
            return Ok(());
        }
        self.renew(now)
    }

    fn are_too_few(&self) -> bool {
        let state = self.state.read();
        state.containers.len() + self.losses_max < state.nsd_count
    }

    fn renew(&self, now: Timestamp) -> Result<()> {
        let generation = {
            let mut state = self.state.write();
            self.begin_generation(&mut state)?;
            state.generation
        };
        let (name, value) = (MARK.to_owned(), generation.to_string());
        self.apply_own(MetaOp::SetConfig { name, value }, now)?;
        self.sync()
    }

    /// Takes in an NSD that has come or come back. `doubted` says that its contents may not be what
    /// they were. Returns true if the NSD is `Unrecovered` now, because of that or of an old mark.
    /// If the metadata had stopped for lack of NSDs, it goes on once there are enough.
    ///
    /// # Errors
    /// `NotFound` if the NSD is not in the pool. Errors of the metadata and of the disk.
    pub fn attach(&self, container: Container, doubted: bool, now: Timestamp) -> Result<bool> {
        let nsd = container.superblock().nsd;
        let pool = self.configuration()?.pool;
        if pool.live().all(|(_, slot)| slot.nsd != nsd) {
            let detail = format!("NSD {nsd} is not one of this file system");
            return Err(Error::new(ErrorKind::NotFound, detail));
        }
        let generation = container.superblock().metadata_generation;
        let missed = doubted || is_outdated(generation, self.mark()?);
        let stopped = self.state.read().stopped.clone();
        if missed && stopped.is_none() {
            self.distrust(nsd, now)?;
        }
        let mut state = self.state.write();
        state.failed_nsds.retain(|failed| *failed != nsd);
        state.suspects.retain(|suspect| *suspect != nsd);
        state.containers.retain(|other| other.superblock().nsd != nsd);
        state.containers.push(container.clone());
        state.containers.sort_by_key(|container| container.superblock().nsd);
        if stopped.is_none() {
            let holders: Vec<NsdId> = state.holders.iter().map(|holder| holder.nsd).collect();
            let generation = state.generation;
            container.update_superblock(|superblock| {
                superblock.metadata_generation = generation;
                superblock.metadata_holders = holders;
            })?;
            return Ok(missed);
        }
        state.stopped = None;
        if self.begin_generation(&mut state).is_ok() {
            info!(target: "metadata", "enough NSDs are back; changes are accepted again");
        }
        drop(state);
        if missed {
            self.distrust(nsd, now)?;
        }
        Ok(missed)
    }

    /// Goes on without an NSD that has gone. Returns false if the NSD holds the last copy of the
    /// metadata. That copy is kept in use as long as possible.
    pub fn detach(&self, nsd: NsdId, reason: &str) -> bool {
        let mut state = self.state.write();
        if state.holders.iter().all(|holder| holder.nsd == nsd) {
            return false;
        }
        state.containers.retain(|container| container.superblock().nsd != nsd);
        let lost = [(nsd, Error::new(ErrorKind::Unreachable, reason))];
        // If the remaining copies do not suffice, the next change gets the error.
        let _ = self.lose(&mut state, &lost);
        true
    }

    /// Like [`MetaStore::detach`], for an NSD that is there but no longer wanted, because it was
    /// replaced. If it has a copy of the metadata, another NSD gets a copy first, if there is one.
    pub fn release(&self, nsd: NsdId, reason: &str) -> bool {
        let is_holder = self.state.read().holders.iter().any(|holder| holder.nsd == nsd);
        if is_holder && let Err(error) = self.add_copy() {
            warn!(target: "metadata", "NSD {nsd} is let go before there is another copy: {error}");
        }
        self.detach(nsd, reason)
    }

    /// Moves the copy of an NSD that is being emptied to another NSD. The new copy is made before
    /// the old one is given up, so there are never fewer copies. Does nothing if the NSD has no
    /// copy.
    ///
    /// # Errors
    /// `Unreachable` if no other NSD can take a copy. The disks' own errors.
    pub(super) fn move_copy(&self, nsd: NsdId) -> Result<()> {
        let others = |state: &State| state.holders.iter().filter(|it| it.nsd != nsd).count();
        let before = {
            let state = self.state.read();
            if others(&state) == state.holders.len() {
                return Ok(());
            }
            state.holders.len()
        };
        self.add_copy()?;
        let mut state = self.state.write();
        if others(&state) == state.holders.len() {
            return Ok(());
        }
        if others(&state) < before.min(self.copies_wanted) {
            let detail = format!("no other NSD can take NSD {nsd}'s copy of the metadata now");
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        state.holders.retain(|holder| holder.nsd != nsd);
        self.begin_generation(&mut state)
    }

    /// Forgets an NSD that was durably deleted: it no longer counts among those that have
    /// generations.
    pub(super) fn forget(&self, nsd: NsdId, pool: &PoolMap) {
        let mut state = self.state.write();
        if state.holders.iter().all(|holder| holder.nsd != nsd) {
            state.containers.retain(|container| container.superblock().nsd != nsd);
        }
        state.suspects.retain(|suspect| *suspect != nsd);
        state.nsd_count = pool_nsds(pool).len();
    }

    /// True if this NSD takes part now.
    pub fn is_member(&self, nsd: NsdId) -> bool {
        let state = self.state.read();
        state.containers.iter().any(|container| container.superblock().nsd == nsd)
    }

    /// Durably marks an NSD as one that missed writes.
    fn distrust(&self, nsd: NsdId, now: Timestamp) -> Result<()> {
        let pool = self.configuration()?.pool;
        let found = pool.live().find(|(_, slot)| slot.nsd == nsd);
        let Some((_, slot)) = found else { return Ok(()) };
        if slot.state.availability == NsdAvailability::Unrecovered {
            return Ok(());
        }
        warn!(target: "metadata", "NSD {nsd} has missed writes: it is compared before it is read");
        let state = NsdState { availability: NsdAvailability::Unrecovered, ..slot.state };
        self.apply_own(MetaOp::SetNsdState { nsd, state }, now)?;
        self.sync()
    }

    fn mark(&self) -> Result<u64> {
        Ok(mark(&*self.configuration()?))
    }

    fn configuration(&self) -> Result<Box<Configuration>> {
        match self.query(&MetaQuery::Configuration)? {
            MetaReply::Configuration(configuration) => Ok(configuration),
            _ => Err(Error::new(ErrorKind::Internal, "the metadata has no configuration")),
        }
    }

    fn apply_own(&self, op: MetaOp, time: Timestamp) -> Result<()> {
        let entry = MetaEntry { client: ClientId(0), sequence: 0, time, op };
        self.apply(&entry).map(drop)
    }
}

/// True if an NSD with this generation missed the mark. An NSD without a generation was made a
/// moment ago and has replaced another. It got the slot because it has everything, or is known to
/// lack data.
pub(super) fn is_outdated(generation: u64, mark: u64) -> bool {
    generation > 0 && generation < mark
}

/// The generation with which the last life began or ended. It was in force then. 0 if there is
/// none.
pub(super) fn mark(configuration: &Configuration) -> u64 {
    let mark = configuration.settings.iter().find(|(name, _)| name == MARK);
    mark.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}
