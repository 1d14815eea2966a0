//! NSDs that return: what they vouch for, what they missed, how their recovery begins and ends.

use super::NsdSet;
use super::missed::Missed;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::nsd::NsdStatusReply;
use strake_proto::{Result, SlotIndex};

/// What the end of a recovery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryEnd {
    /// The NSD is up.
    Up,
    /// There is more to compare.
    More,
    /// It was lost again.
    Lost,
}

impl NsdSet {
    /// What NSDs have missed.
    pub(crate) fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock()
    }

    /// Whether nothing is kept about what NSDs miss: none may miss anything.
    pub(crate) fn tolerates_none(&self) -> bool {
        self.tolerance == 0
    }

    /// What the NSDs lack that are not up just now cannot be told from their tables.
    pub(super) fn distrust_absent(&self) {
        for slot in self.slots() {
            if self.availability(slot) != NsdAvailability::Up {
                self.missed().distrust(slot);
            }
        }
    }

    /// Looks at what an NSD has that was started anew. One that has less than it had called stable
    /// is noted: everything on it is compared.
    ///
    /// # Errors
    /// Where that cannot be noted: it is not to be used.
    pub(super) fn vouch(&self, slot: SlotIndex, status: &NsdStatusReply) -> Result<()> {
        let entry = self.slot(slot);
        let (boot, stable) = *entry.vouched.lock();
        if boot == status.boot {
            return Ok(());
        }
        if boot != 0 && status.recovered < stable {
            self.missed().distrust(slot);
            self.note(slot)?;
            eprintln!("disks: NSD {} has come back older than it went", self.nsd(slot));
        }
        *entry.vouched.lock() = (status.boot, status.recovered);
        Ok(())
    }

    /// Notes how much an NSD called stable.
    pub(crate) fn saw_stable(&self, slot: SlotIndex, boot: u64, stable: u64) {
        let mut vouched = self.slot(slot).vouched.lock();
        // What was started anew since is looked at first.
        if vouched.0 == boot {
            vouched.1 = stable;
        }
        drop(vouched);
        self.saw_boot(slot, boot);
    }

    /// Begins to write to an NSD that missed writes, without reading it. False if it is not one, or
    /// has been lost again.
    pub(crate) fn begin_recovery(&self, slot: SlotIndex) -> bool {
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

    /// Brings a recovered NSD into full use, unless it has missed something meanwhile.
    pub(crate) fn end_recovery(&self, slot: SlotIndex) -> Result<RecoveryEnd> {
        let _serial = self.noting.lock();
        if self.availability(slot) != NsdAvailability::Recovering {
            return Ok(RecoveryEnd::Lost);
        }
        // Whoever notes something from now on takes it out of use after that, and finds it up.
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
