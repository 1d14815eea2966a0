//! The slots as a client beside others follows them: the manager has replaced or deletes an NSD,
//! and the metadata says so.
//!
//! **Deleted.** See `nsds/heirs.rs`. The manager has all clients follow twice: when the slot begins
//! to be emptied, and when it is deleted. A client that was not told, because the leader died
//! in between, finds out by itself ([`NsdSet::look_after`]).
//!
//! **Replaced.** The NSD of before was out of use at every client before that ([`NsdSet::leave`]),
//! so nobody writes to it any more, and what it has is not read. The new one is empty, and
//! `Unrecovered` like an NSD that has missed everything. So nothing is lost between the moment at
//! which the metadata gives it the slot and the one at which this client hears of it.

use super::{NsdSet, Route, Vouched};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::layout::{NsdAvailability, NsdStatus, Slot};
use strake_proto::nsd::NsdPort;
use strake_proto::{NsdId, PoolMap, Result, SlotIndex};
use tracing::info;

/// Gives the way to an NSD that this client has not met yet.
pub type FindNsd = Arc<dyn Fn(NsdId) -> Option<Arc<dyn NsdPort>> + Send + Sync>;

impl NsdSet {
    /// From now on NSDs that get a slot later are found by `find`.
    pub(crate) fn find_by(&mut self, find: Option<FindNsd>) {
        self.find = find;
    }

    /// Brings the slots in line with the pool map that the metadata has: each slot gets the NSD
    /// that has it now, and strips lie where they belong now.
    ///
    /// Afterwards no write is under way that went by other places.
    ///
    /// # Errors
    /// The metadata's.
    pub fn follow_pool(&self) -> Result<()> {
        // Once more only if another client has noted an NSD meanwhile.
        while !self.follow_pool_once()? {}
        Ok(())
    }

    /// As above. False if this client was told to leave an NSD meanwhile: what was read of the
    /// metadata may be older than that.
    fn follow_pool_once(&self) -> Result<bool> {
        let leaves = self.leaves();
        let configuration = self.configuration()?;
        let pool = configuration.pool.clone();
        self.take_pool(*configuration);
        if let Some(newest) = pool.layouts.last() {
            self.meet(newest)?;
        }
        self.follow_deletions(&pool);
        let slots = pool.slots;
        for (slot, known) in (0..).map(SlotIndex).zip(&slots).take(self.slots.len()) {
            let is_deleted = matches!(known.state.status, NsdStatus::Deleted { .. });
            if !is_deleted && self.nsd(slot) != known.nsd && !self.adopt(slot, known, leaves) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has strips where they belong by this pool map, unless a newer one was followed.
    pub(super) fn follow_deletions(&self, pool: &PoolMap) {
        self.forget_that_it_was_told();
        let (deleted, emptied) = (pool.deleted(), pool.being_emptied());
        if emptied == self.being_emptied() && deleted == *self.deleted.read() {
            return;
        }
        let _alone = self.gate.write();
        let _serial = self.noting.lock();
        if !self.heirs.is_newest(pool.version) {
            return;
        }
        let before = std::mem::replace(&mut *self.deleted.write(), deleted.clone());
        self.heirs.follow_for(emptied);
        if let Some(slot) = emptied {
            *self.slot(slot).status.lock() = NsdStatus::BeingEmptied;
        }
        for slot in deleted.into_iter().filter(|slot| !before.contains(slot)) {
            self.forget_deleted(slot);
        }
    }

    /// Looks for the way to an NSD that was not found before.
    pub(super) fn find_again(&self, slot: SlotIndex) {
        let nsd = self.nsd(slot);
        let coming = self.coming.lock().clone().filter(|(coming, _)| *coming == nsd);
        let found = || self.find.as_ref().and_then(|find| find(nsd));
        let Some(port) = coming.map(|(_, port)| port).or_else(found) else { return };
        let mut route = self.slot(slot).route.write();
        if route.port.is_none() && self.nsd(slot) == nsd {
            route.port = Some(port);
        }
    }

    /// False, and nothing is changed, if this client has left an NSD since it had done so `leaves`
    /// times.
    fn adopt(&self, slot: SlotIndex, known: &Slot, leaves: u64) -> bool {
        let port = self.find.as_ref().and_then(|find| find(known.nsd));
        let entry = self.slot(slot);
        let serial = self.noting.lock();
        let old = self.nsd(slot);
        if old == known.nsd {
            return true;
        }
        let left = self.left.lock();
        if *left != leaves {
            return false;
        }
        let is_up = known.state.availability == NsdAvailability::Up;
        self.missed().distrust(slot);
        entry.nsd.store(known.nsd.0, Ordering::Release);
        entry.noted.store(!is_up, Ordering::Release);
        self.set_availability(
            slot,
            match is_up {
                true => NsdAvailability::Down,
                false => NsdAvailability::Unrecovered,
            },
        );
        drop(left);
        *entry.status.lock() = known.state.status;
        entry.boot.store(0, Ordering::Release);
        *entry.vouched.lock() = Vouched::default();
        if let Some(holdings) = &self.holdings {
            holdings.forget(slot);
        }
        *entry.route.write() = Route { port, shadow: None };
        info!(target: "disks", "NSD {} has taken the place of NSD {old}", known.nsd);
        drop(serial);
        if is_up {
            self.probe(slot);
        }
        true
    }
}
