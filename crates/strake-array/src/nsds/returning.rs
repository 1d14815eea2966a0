//! NSDs that return: how much they must have, what they missed, and how their recovery begins and
//! ends.

use super::NsdSet;
use super::missed::Missed;
use std::sync::atomic::Ordering;
use strake_env::sync::MutexGuard;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::nsd::NsdStatusReply;
use strake_proto::{Result, SlotIndex};
use tracing::warn;

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
    /// The tables of missed writes.
    pub fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock()
    }

    /// Whether no NSD may miss anything, so that nothing is kept about missed writes.
    pub(crate) fn tolerates_none(&self) -> bool {
        self.tolerance == 0
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
