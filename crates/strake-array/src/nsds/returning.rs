//! NSDs that return: how much they must have, what they missed, and how their recovery begins and
//! ends.

use super::missed::Missed;
use super::{AVAILABILITIES, NsdSet, code_of, name_of};
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::sync::MutexGuard;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::nsd::NsdStatusReply;
use strake_proto::{NsdId, Result, SlotIndex};
use tracing::{info, warn};

/// The result of the end of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryEnd {
    /// The NSD is up.
    Up,
    /// There is more to compare.
    More,
    /// The NSD went down again.
    Down,
}

/// How much an NSD must have when it comes back.
#[derive(Default)]
pub(super) struct Vouched {
    /// The boot number under which the NSD was last compared with this record; 0 for none.
    boot: u64,
    /// How many changes the NSD last called stable under that boot number.
    stable: u64,
    /// A later boot number, not compared yet, and how many changes the NSD called stable under it.
    unseen: Option<(u64, u64)>,
}

impl Vouched {
    /// An NSD that called so many changes stable under this boot number.
    pub(super) fn stable(boot: u64, stable: u64) -> Vouched {
        Vouched { boot, stable, unseen: None }
    }

    /// True if an NSD that reports `recovered` changes holds fewer than it once called stable, so
    /// that it is an older copy.
    fn is_older(&self, status: &NsdStatusReply) -> bool {
        let (of, unseen) = self.unseen.unwrap_or_default();
        let needed = if of == status.boot { self.stable } else { unseen.max(self.stable) };
        self.boot != 0 && (status.recovered == 0 || status.recovered < needed)
    }

    /// The record after the NSD was compared with this one.
    fn after(&self, status: &NsdStatusReply) -> Vouched {
        match self.unseen {
            Some((boot, stable)) if boot == status.boot => Vouched::stable(boot, stable),
            _ => Vouched::stable(status.boot, status.recovered),
        }
    }
}

impl NsdSet {
    pub(super) fn set_availability(&self, slot: SlotIndex, availability: NsdAvailability) {
        let (entry, code) = (self.slot(slot), code_of(availability));
        let before = entry.availability.swap(code, Ordering::AcqRel);
        if before == code {
            return;
        }
        if AVAILABILITIES[usize::from(before)].readable() && !availability.readable() {
            *entry.went.lock() = self.clock.monotonic();
        }
        let (nsd, state) = (self.nsd(slot), name_of(availability));
        match availability {
            NsdAvailability::Up => info!(target: "disks", "NSD {nsd} is {state}"),
            _ => warn!(target: "disks", "NSD {nsd} is {state}"),
        }
    }

    /// Waits no longer for answers of an NSD that is noted: what they would say is compared anyway.
    pub(super) fn abandon(&self, slot: SlotIndex) {
        let port = self.slot(slot).route.read().port.clone();
        port.into_iter().for_each(|port| port.abandon());
    }

    /// Whether some NSD is away that may be back soon: this client could read it less than `limit`
    /// ago, or began then.
    pub fn went_within(&self, limit: Duration) -> bool {
        let now = self.clock.monotonic();
        let is_recent = |slot| now.saturating_sub(*self.slot(slot).went.lock()) < limit;
        self.slots().any(|slot| !self.availability(slot).readable() && is_recent(slot))
    }

    /// The tables of missed writes.
    pub fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock()
    }

    /// Whether no NSD may miss anything, so that nothing is kept about missed writes.
    pub(crate) fn tolerates_none(&self) -> bool {
        self.code.parity == 0
    }

    /// Distrusts the table of every NSD that is not up just now.
    pub(super) fn distrust_absent(&self) {
        for slot in self.slots() {
            if self.availability(slot) != NsdAvailability::Up {
                self.missed().distrust(slot);
            }
        }
    }

    /// Looks at how much an NSD has after it was started anew. If it has less than it had called
    /// stable, it is noted, and everything on it will be compared.
    ///
    /// # Errors
    /// If it cannot be noted. The NSD must not be used then.
    pub(super) fn vouch(&self, slot: SlotIndex, status: &NsdStatusReply) -> Result<()> {
        let vouched = &self.slot(slot).vouched;
        let is_older = {
            let vouched = vouched.lock();
            if vouched.boot == status.boot {
                return Ok(());
            }
            vouched.is_older(status)
        };
        if is_older {
            self.missed().distrust(slot);
            self.note(slot)?;
            warn!(target: "disks", "NSD {} has come back older than it went", self.nsd(slot));
        }
        let mut vouched = vouched.lock();
        *vouched = vouched.after(status);
        Ok(())
    }

    /// Notes how many changes an NSD called stable.
    pub(crate) fn saw_stable(&self, slot: SlotIndex, boot: u64, stable: u64) {
        let mut vouched = self.slot(slot).vouched.lock();
        match vouched.boot == boot {
            true => vouched.stable = stable,
            false => vouched.unseen = Some((boot, stable)),
        }
        drop(vouched);
        self.saw_boot(slot, boot);
    }

    /// Begins to write to an NSD that missed writes, without reading it. False if the NSD has not
    /// missed any, or went down again.
    pub fn begin_recovery(&self, slot: SlotIndex) -> bool {
        let _alone = self.gate.write();
        let _serial = self.noting.lock();
        if self.availability(slot) != NsdAvailability::Unrecovered
            || self.slot(slot).route.read().port.is_none()
        {
            return false;
        }
        self.set_availability(slot, NsdAvailability::Recovering);
        true
    }

    /// Notes durably that an NSD is being brought up to date, for mounts that begin meanwhile.
    ///
    /// # Errors
    /// The metadata's.
    pub fn announce_recovery(&self, slot: SlotIndex) -> Result<()> {
        let _serial = self.noting.lock();
        self.record(slot, NsdAvailability::Recovering)
    }

    /// Writes from now on to an NSD that the manager brings up to date, without reading it. False
    /// if this client does not reach it, or has left an NSD since it had done so `leaves` times
    /// ([`NsdSet::leaves`]).
    ///
    /// Afterwards no write is under way that left the NSD out. What it has missed until now, and is
    /// not durable yet, is not noted anew: the NSD is noted until [`NsdSet::note_again`].
    pub fn write_again(&self, nsd: NsdId, leaves: u64) -> bool {
        if self.slot_of(nsd).is_none() && self.follow_pool().is_err() {
            return false;
        }
        let Some(slot) = self.slot_of(nsd) else { return false };
        if self.availability(slot).writable() {
            return true;
        }
        if !self.probe(slot) {
            return false;
        }
        let _alone = self.gate.write();
        let _serial = self.noting.lock();
        let left = self.left.lock();
        if *left != leaves {
            return false;
        }
        if !self.availability(slot).writable() {
            self.set_availability(slot, NsdAvailability::Recovering);
        }
        true
    }

    /// Everything that the NSD had missed at [`NsdSet::write_again`] is durable, so the manager
    /// compares it. What the NSD misses from now on is noted anew. False if this client writes to
    /// it no more.
    pub fn note_again(&self, nsd: NsdId, leaves: u64) -> bool {
        let Some(slot) = self.slot_of(nsd) else { return false };
        let _serial = self.noting.lock();
        let left = self.left.lock();
        if *left != leaves || !self.availability(slot).writable() {
            return false;
        }
        self.slot(slot).noted.store(false, Ordering::Release);
        true
    }

    /// Whether other clients use the NSDs, too.
    pub fn is_beside_others(&self) -> bool {
        self.holdings.is_some()
    }

    /// For a client beside others: asks NSDs that are away and have missed nothing, and reads again
    /// those that the manager has brought up to date. Finds out whether one that it has left is
    /// deleted.
    pub fn look_after(&self) {
        let is_left = |slot| self.availability(slot) == NsdAvailability::Unrecovered;
        if (self.being_emptied().is_some() || self.slots().any(is_left))
            && let Ok(configuration) = self.configuration()
        {
            self.follow_deletions(&configuration.pool);
        }
        for slot in self.slots() {
            if self.slot(slot).route.read().port.is_none() {
                self.find_again(slot);
            }
            match self.availability(slot) {
                NsdAvailability::Down if !self.is_noted(slot) => {
                    let _ = self.probe(slot);
                }
                NsdAvailability::Recovering => self.use_if_whole(slot),
                _ => {}
            }
        }
    }

    /// For a request that finds too few NSDs: asks at once what [`NsdSet::look_after`] asks now and
    /// then. An NSD that others use again may be out of use at this client, and nothing tells it.
    /// False for a lone mount, which knows everything, and if all NSDs are in use.
    ///
    /// The caller does not hold the gate. Requests that come meanwhile share the next look.
    pub(crate) fn look_again(&self) -> bool {
        let is_up = |slot| self.availability(slot) == NsdAvailability::Up;
        if !self.is_beside_others() || self.slots().all(is_up) {
            return false;
        }
        let looks = self.looks.load(Ordering::Acquire);
        let _one_at_a_time = self.looking.lock();
        // The first look that ends may have begun before this request failed.
        if self.looks.load(Ordering::Acquire) < looks + 2 {
            self.look_after();
            self.looks.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Reads an NSD again if the metadata says that it has everything.
    fn use_if_whole(&self, slot: SlotIndex) {
        let before = *self.left.lock();
        // It is asked again the next time.
        let Ok(configuration) = self.configuration() else { return };
        let known = configuration.pool.slots.get(usize::from(slot.0));
        let is_whole = known.is_some_and(|slot| slot.state.availability == NsdAvailability::Up);
        self.take_pool(*configuration);
        let _serial = self.noting.lock();
        let left = self.left.lock();
        // Another client may have noted since that it misses something.
        if is_whole && *left == before && self.availability(slot) == NsdAvailability::Recovering {
            self.set_availability(slot, NsdAvailability::Up);
        }
    }

    /// Brings a recovered NSD into full use, unless it has missed something meanwhile.
    pub fn end_recovery(&self, slot: SlotIndex) -> Result<RecoveryEnd> {
        let _serial = self.noting.lock();
        if self.availability(slot) != NsdAvailability::Recovering {
            return Ok(RecoveryEnd::Down);
        }
        // A thread that notes a miss from now on takes the NSD out of use afterwards. It needs
        // `noting` for that, so it finds the NSD up.
        if !self.missed().is_clean(slot) {
            return Ok(RecoveryEnd::More);
        }
        if *self.slot(slot).status.lock() == NsdStatus::Replacement {
            *self.slot(slot).status.lock() = NsdStatus::Ready;
        }
        self.record(slot, NsdAvailability::Up)?;
        self.slot(slot).noted.store(false, Ordering::Release);
        self.set_availability(slot, NsdAvailability::Up);
        Ok(RecoveryEnd::Up)
    }
}

#[cfg(test)]
#[path = "returning_test.rs"]
mod returning_test;
