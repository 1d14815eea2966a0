//! NSDs that return: what they vouch for, what they missed, how their recovery begins and ends.

use super::NsdSet;
use super::missed::Missed;
use std::sync::atomic::Ordering;
use strake_env::sync::MutexGuard;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::nsd::NsdStatusReply;
use strake_proto::{Result, SlotIndex};
use tracing::warn;

/// What the end of a recovery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryEnd {
    /// The NSD is up.
    Up,
    /// There is more to compare.
    More,
    /// It went down again.
    Down,
}

/// How much an NSD is to have when it comes back.
#[derive(Default)]
pub(super) struct Vouched {
    /// The boot number whose state was looked at; 0 for none.
    boot: u64,
    /// How many changes the NSD called stable last under it.
    stable: u64,
    /// The same of a later boot number, which nobody has looked at yet.
    unseen: Option<(u64, u64)>,
}

impl Vouched {
    /// With so many changes called stable.
    pub(super) fn stable(boot: u64, stable: u64) -> Vouched {
        Vouched { boot, stable, unseen: None }
    }

    /// Whether who has this much has less than it called stable.
    fn is_older(&self, status: &NsdStatusReply) -> bool {
        let (of, unseen) = self.unseen.unwrap_or_default();
        let needed = if of == status.boot { self.stable } else { unseen.max(self.stable) };
        self.boot != 0 && (status.recovered == 0 || status.recovered < needed)
    }

    /// What is known once it was looked at.
    fn after(&self, status: &NsdStatusReply) -> Vouched {
        match self.unseen {
            Some((boot, stable)) if boot == status.boot => Vouched::stable(boot, stable),
            _ => Vouched::stable(status.boot, status.recovered),
        }
    }
}

impl NsdSet {
    /// What NSDs have missed.
    pub fn missed(&self) -> MutexGuard<'_, Missed> {
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

    /// Notes how much an NSD called stable.
    pub(crate) fn saw_stable(&self, slot: SlotIndex, boot: u64, stable: u64) {
        let mut vouched = self.slot(slot).vouched.lock();
        match vouched.boot == boot {
            true => vouched.stable = stable,
            false => vouched.unseen = Some((boot, stable)),
        }
        drop(vouched);
        self.saw_boot(slot, boot);
    }

    /// Begins to write to an NSD that missed writes, without reading it. False if it is not one, or
    /// went down again.
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

    /// Brings a recovered NSD into full use, unless it has missed something meanwhile.
    pub fn end_recovery(&self, slot: SlotIndex) -> Result<RecoveryEnd> {
        let _serial = self.noting.lock();
        if self.availability(slot) != NsdAvailability::Recovering {
            return Ok(RecoveryEnd::Down);
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
