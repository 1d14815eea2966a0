//! NSDs that come and go while the metadata is in use, and how an old copy of one is recognised.
//!
//! **Marks.** Every life (a start, until the next) begins with a new generation in the superblocks
//! of all NSDs, and then notes in the metadata itself which generation that was ([`MARK`]). An NSD
//! whose superblock is older than the mark was away when it was made, or is an old copy put in
//! the place of the disk: what it holds must not be believed. It is marked `Unrecovered` before
//! anybody reads it, and before its superblock gets another generation. A generation that a crash
//! left half written is newer than the mark, so an NSD that lacks it is not suspected.

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
    /// Begins a life: marks what is out of date, then all that are there with a new generation.
    /// With more NSDs away than are tolerated nothing can be marked, and nothing is.
    ///
    /// # Errors
    /// The metadata's own.
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

    /// Ends a life in order: marks once more, so that a copy of a disk made before is recognised.
    ///
    /// # Errors
    /// The metadata's own.
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

    /// Takes an NSD in that has come (back). `doubted` says that it may not be what it was.
    /// Returns whether it is `Unrecovered` now because of that or of an old mark. If the metadata
    /// had stopped for want of NSDs it goes on once they are enough.
    ///
    /// # Errors
    /// `NotFound` if it is not in the pool; the metadata's and the disk's own.
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

    /// Goes on without an NSD that has gone. False if it holds the last copy of the metadata, which
    /// is kept in use as long as it can be.
    pub fn detach(&self, nsd: NsdId, reason: &str) -> bool {
        let mut state = self.state.write();
        if state.holders.iter().all(|holder| holder.nsd == nsd) {
            return false;
        }
        state.containers.retain(|container| container.superblock().nsd != nsd);
        let lost = [(nsd, Error::new(ErrorKind::Unreachable, reason))];
        // If the others do not suffice, the next change is told so.
        let _ = self.lose(&mut state, &lost);
        true
    }

    /// As [`MetaStore::detach`], for an NSD that is there and not wanted any more (it was
    /// replaced): a copy of the metadata that it has is made on another one first, if there is one.
    pub fn release(&self, nsd: NsdId, reason: &str) -> bool {
        let is_holder = self.state.read().holders.iter().any(|holder| holder.nsd == nsd);
        if is_holder && let Err(error) = self.add_copy() {
            warn!(target: "metadata", "NSD {nsd} is let go before there is another copy: {error}");
        }
        self.detach(nsd, reason)
    }

    /// Keeps the copy of an NSD that is being emptied elsewhere: another is made before this one is
    /// given up, so there are never fewer. Nothing to do where it has none.
    ///
    /// # Errors
    /// `Unreachable` where no other NSD can take one; the disks' own.
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

    /// Counts an NSD that was deleted, durably, no longer among those that have generations.
    pub(super) fn forget(&self, nsd: NsdId, pool: &PoolMap) {
        let mut state = self.state.write();
        if state.holders.iter().all(|holder| holder.nsd != nsd) {
            state.containers.retain(|container| container.superblock().nsd != nsd);
        }
        state.suspects.retain(|suspect| *suspect != nsd);
        state.nsd_count = pool_nsds(pool).len();
    }

    /// Whether this NSD takes part now.
    pub fn is_member(&self, nsd: NsdId) -> bool {
        let state = self.state.read();
        state.containers.iter().any(|container| container.superblock().nsd == nsd)
    }

    /// Marks an NSD as one that missed writes, durably.
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

/// Whether an NSD of this generation has missed the mark. One without any was made a moment ago and
/// has replaced another: it has the slot because it has everything, or is known to lack it.
pub(super) fn is_outdated(generation: u64, mark: u64) -> bool {
    generation > 0 && generation < mark
}

/// The generation with which the last life began or ended, which was in force then; 0 before that.
pub(super) fn mark(configuration: &Configuration) -> u64 {
    let mark = configuration.settings.iter().find(|(name, _)| name == MARK);
    mark.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}
