//! The slot that is being deleted, and who takes over its strips.
//!
//! The *heir* of a strip is the NSD that the placement gives it once the slot is lost. Until the
//! slot is deleted, heirs *follow*: they get every change that the slot's own NSD would get, and
//! what was there before is copied to them, but nobody reads them or asks them what there is. So
//! an heir that lacks a strip tells nothing, and what is deleted stays as readable as it was.
//! Then, in one metadata entry and with no write under way, all heirs take their places at once.
//!
//! **An heir that misses a change** must not take its place: that is noted here ([`Heirs::missed`])
//! before the change is acknowledged, and everything is compared again. One that is noted in the
//! metadata as out of date needs no other note: it is compared in full before it is read, its
//! inheritance included.
//!
//! **Decided.** From the moment at which the metadata is asked to delete the slot, a crash may find
//! either placement in force. If it could not be asked to the end, an heir that misses a change is
//! therefore noted like any NSD, before anything is acknowledged.

use super::{NsdSet, Route};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::MetaOp;
use strake_proto::{
    BlockIndex, Code, Error, ErrorKind, ObjectLayout, Result, SlotIndex, StripIndex,
};
use strake_stripe::{Placement, StripeSlots};

/// What `slot` holds if none is being deleted.
const NOBODY: u32 = u32::MAX;

/// See the file's head.
pub(super) struct Heirs {
    /// Whose strips they take over.
    slot: AtomicU32,
    /// Whether they get changes.
    following: AtomicBool,
    /// Whether one of them missed a change since they follow.
    missed: AtomicBool,
    /// Whether the metadata was asked to delete the slot.
    decided: AtomicBool,
}

impl Heirs {
    pub(super) fn of(slot: Option<SlotIndex>) -> Heirs {
        Heirs {
            slot: AtomicU32::new(slot.map_or(NOBODY, |slot| u32::from(slot.0))),
            following: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            decided: AtomicBool::new(false),
        }
    }
}

impl NsdSet {
    /// The slot that is being deleted.
    pub fn being_emptied(&self) -> Option<SlotIndex> {
        u16::try_from(self.heirs.slot.load(Ordering::Acquire)).ok().map(SlotIndex)
    }

    /// Where the strips of a block are, by position; which of them has an heir, and who that is.
    /// Both as of one moment.
    pub fn stripe_and_heir(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
    ) -> Result<(StripeSlots, Option<(StripIndex, SlotIndex)>)> {
        let placement = self.placement(layout)?;
        let mut slots = placement.stripe(layout.object, block);
        let deleted = self.deleted.read();
        placement.substitute(layout.object, block, &mut slots, &deleted);
        let Some(gone) = self.being_emptied() else { return Ok((slots, None)) };
        let Some(at) = slots.iter().position(|slot| *slot == gone) else {
            return Ok((slots, None));
        };
        let mut after = slots;
        let and_gone: Vec<SlotIndex> = deleted.iter().copied().chain([gone]).collect();
        placement.substitute(layout.object, block, &mut after, &and_gone);
        let heir = (after[at] != gone).then_some((StripIndex(at as u8), after[at]));
        Ok((slots, heir))
    }

    /// As [`NsdSet::stripe_and_heir`], for who writes the block: without an heir also while heirs
    /// do not follow. The caller holds the gate.
    pub(crate) fn stripe_to_write(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
    ) -> Result<(StripeSlots, Option<(StripIndex, SlotIndex)>)> {
        if !self.heirs.following.load(Ordering::Acquire) {
            return Ok((self.stripe(layout, block)?, None));
        }
        self.stripe_and_heir(layout, block)
    }

    /// How many slots were deleted: changes when heirs take their places.
    pub fn deleted_count(&self) -> usize {
        self.deleted.read().len()
    }

    /// Whether every strip of `slot` has a place elsewhere, in every layout that has the slot and
    /// for files of this code, and none that makes failure groups weaker.
    pub fn can_delete(&self, slot: SlotIndex, code: Code) -> Result<bool> {
        let deleted: Vec<SlotIndex> = self.deleted.read().iter().copied().chain([slot]).collect();
        let layouts = self.configuration()?.pool.layouts;
        for layout in layouts.iter().filter(|layout| layout.members.len() >= code.width()) {
            let placement = Placement::new(layout, code)?;
            if placement.has(slot) && !placement.can_delete(&deleted) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether `slot` belongs to the layout.
    pub fn is_member(&self, layout: &ObjectLayout, slot: SlotIndex) -> Result<bool> {
        Ok(self.placement(layout)?.has(slot))
    }

    /// Begins to delete a slot, durably. Nothing is copied yet.
    ///
    /// # Errors
    /// `Busy` if another is being deleted; the metadata's.
    pub fn begin_deletion(&self, slot: SlotIndex) -> Result<()> {
        use strake_proto::layout::NsdStatus::BeingEmptied;
        self.set_status(slot, BeingEmptied)?;
        self.heirs.slot.store(u32::from(slot.0), Ordering::Release);
        Ok(())
    }

    /// Has the heirs follow from now on; changes under way are waited for. What they missed before
    /// is forgotten: the caller compares everything.
    pub fn follow_with_heirs(&self) {
        let _alone = self.gate.write();
        self.distrust_absent();
        self.heirs.missed.store(false, Ordering::Release);
        self.heirs.following.store(true, Ordering::Release);
    }

    /// Notes that an heir did not get a change; before the change is acknowledged.
    ///
    /// # Errors
    /// Where that has to be durable: as [`NsdSet::note`].
    pub(crate) fn heir_missed(&self, heir: SlotIndex) -> Result<()> {
        self.missed().distrust(heir);
        if self.is_noted(heir) {
            return Ok(());
        }
        if self.heirs.decided.load(Ordering::Acquire) {
            return self.note(heir);
        }
        self.heirs.missed.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether all heirs have everything, those apart that are compared before they are read. With
    /// the slot's own NSD readable there are none of these: what only it has would be lost.
    ///
    /// # Errors
    /// `Unreachable` if not. Whoever relies on it holds the gate alone.
    pub fn require_heirs(&self, gone: SlotIndex) -> Result<()> {
        let not_yet = |detail: String| Err(Error::new(ErrorKind::Unreachable, detail));
        if self.heirs.missed.load(Ordering::Acquire) {
            return not_yet(
                "a disk missed a change meanwhile: everything is compared again".into(),
            );
        }
        let needed = self.availability(gone).readable();
        for slot in self.slots().filter(|slot| *slot != gone) {
            let up = self.availability(slot) == NsdAvailability::Up;
            if !up && (needed || !self.is_noted(slot)) {
                return not_yet(format!("NSD {} is not up: it is waited for", self.nsd(slot)));
            }
        }
        Ok(())
    }

    /// Deletes the slot, durably: the heirs have their places when it returns. The caller holds the
    /// gate alone, and all heirs have everything.
    ///
    /// # Errors
    /// The metadata's. It may or may not have happened then; the caller tries again.
    pub fn end_deletion(&self, slot: SlotIndex) -> Result<()> {
        let _serial = self.noting.lock();
        self.heirs.decided.store(true, Ordering::Release);
        self.distrust_absent();
        self.change_pool(MetaOp::DeleteNsd { nsd: self.nsd(slot) })?;
        {
            let mut deleted = self.deleted.write();
            deleted.push(slot);
            self.heirs.slot.store(NOBODY, Ordering::Release);
        }
        let entry = self.slot(slot);
        entry.noted.store(false, Ordering::Release);
        *entry.route.write() = Route::default();
        self.set_availability(slot, NsdAvailability::Down);
        self.heirs.following.store(false, Ordering::Release);
        self.heirs.decided.store(false, Ordering::Release);
        Ok(())
    }
}
