//! The slot that is being emptied, and the NSDs that take over its strips.
//!
//! The *heir* of a strip is the NSD that the placement gives it once the slot is deleted. Until
//! then heirs *follow*: they get every change that the slot's own NSD gets, and older strips are
//! copied to them. No reader reads them or asks them which strips there are. So a strip that an
//! heir still lacks misleads no reader, and the strips of the slot stay as readable as they were.
//! At the end one metadata entry, with no write under way, gives all heirs their places at once.
//!
//! **An heir that misses a change** must not take its place. The miss is noted in memory
//! ([`Heirs::missed`]) before the change is acknowledged, and then everything is compared again. An
//! heir whose NSD the metadata calls out of date needs no other note: before it is read, its
//! recovery compares all of it, including the strips that it takes over.
//!
//! **Beside other clients** every client follows: the manager has all of them do so before it
//! compares anything ([`NsdSet::follow_pool`]). A client whose heir misses a change tells that in
//! the metadata ([`HEIRS_LACK`]) before the change is acknowledged. The leader deletes the slot
//! only while nobody has told so. Clients hear of the deletion one after the other. In between some
//! look for strips at the slot and some at the heirs. So the slot's NSD is *left* by all clients
//! before: it is noted like one that missed writes, and nobody reads it any more. Then a client
//! that does not know of the deletion yet does without one strip, and writes what the others write.
//!
//! **Decided.** From the moment at which the metadata is asked to delete the slot, a crash may find
//! either placement in force. So while the answer is not known, an heir that misses a change is
//! noted in the metadata like any NSD, before the change is acknowledged.

use super::{NsdSet, Route};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{Configuration, MetaEntry, MetaOp};
use strake_proto::{
    BlockIndex, Code, Error, ErrorKind, MapVersion, ObjectLayout, Result, SlotIndex, StripIndex,
};
use strake_stripe::{Placement, StripeSlots};

/// The value of `slot` while no slot is being emptied.
const NONE: u32 = u32::MAX;

/// The setting that is not empty while some client knows of a change that an heir did not get.
const HEIRS_LACK: &str = "heirs_lack";

/// How a change of the metadata concerns the deletion under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfDeletion {
    /// A client tells that an heir has missed a change.
    HeirMissed,
    /// The heirs take their places.
    End,
}

impl OfDeletion {
    /// How `op` concerns the deletion under way, if it does.
    pub fn of(op: &MetaOp) -> Option<OfDeletion> {
        match op {
            MetaOp::SetConfig { name, value } if name == HEIRS_LACK && !value.is_empty() => {
                Some(OfDeletion::HeirMissed)
            }
            MetaOp::DeleteNsd { .. } => Some(OfDeletion::End),
            _ => None,
        }
    }

    /// Whether the change may be made now. The caller lets no other one in between.
    ///
    /// # Errors
    /// `NotFound` for an heir that has its place by now; `Unreachable` for the end of a deletion
    /// while an heir lacks something.
    pub fn check(self, known: &Configuration) -> Result<()> {
        match self {
            OfDeletion::HeirMissed if known.pool.being_emptied().is_none() => {
                Err(Error::new(ErrorKind::NotFound, "no disk is being deleted"))
            }
            OfDeletion::End if heirs_lack(known) => Err(compared_again()),
            _ => Ok(()),
        }
    }
}

fn heirs_lack(known: &Configuration) -> bool {
    known.settings.iter().any(|(name, value)| name == HEIRS_LACK && !value.is_empty())
}

fn compared_again() -> Error {
    let detail = "a disk missed a change meanwhile: everything is compared again";
    Error::new(ErrorKind::Unreachable, detail)
}

/// See the file's head.
pub(super) struct Heirs {
    /// The slot whose strips the heirs take over.
    slot: AtomicU32,
    /// Whether the heirs get changes.
    following: AtomicBool,
    /// Whether an heir has missed a change since the heirs follow.
    missed: AtomicBool,
    /// Whether the metadata was asked to delete the slot, and the answer is not known.
    decided: AtomicBool,
    /// Whether the metadata was told that an heir has missed a change, since the clients last
    /// followed.
    told: AtomicBool,
    /// The newest pool map that was followed.
    version: AtomicU64,
}

impl Heirs {
    pub(super) fn of(slot: Option<SlotIndex>) -> Heirs {
        Heirs {
            slot: AtomicU32::new(slot.map_or(NONE, |slot| u32::from(slot.0))),
            following: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            decided: AtomicBool::new(false),
            told: AtomicBool::new(false),
            version: AtomicU64::new(0),
        }
    }

    /// The heirs of this slot follow from now on, if there is one.
    pub(super) fn follow_for(&self, slot: Option<SlotIndex>) {
        self.slot.store(slot.map_or(NONE, |slot| u32::from(slot.0)), Ordering::Release);
        self.following.store(slot.is_some(), Ordering::Release);
    }

    /// Whether no newer pool map was followed. Notes this one then.
    pub(super) fn is_newest(&self, version: MapVersion) -> bool {
        self.version.fetch_max(version.0, Ordering::AcqRel) <= version.0
    }
}

impl NsdSet {
    /// The slot that is being emptied.
    pub fn being_emptied(&self) -> Option<SlotIndex> {
        u16::try_from(self.heirs.slot.load(Ordering::Acquire)).ok().map(SlotIndex)
    }

    /// The slots of the strips of a block, by position, and the strip that has an heir with the
    /// heir's slot. Both are of the same moment.
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

    /// Like [`NsdSet::stripe_and_heir`], for a writer of the block. There is no heir while heirs do
    /// not follow. The caller holds the gate.
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

    /// How many slots were deleted. This changes when heirs take their places.
    pub fn deleted_count(&self) -> usize {
        self.deleted.read().len()
    }

    /// Whether `slot` can be deleted: the others suffice for new files of this code, within the
    /// limit per failure group.
    pub fn can_delete(&self, slot: SlotIndex, code: Code) -> Result<bool> {
        let layouts = self.configuration()?.pool.layouts;
        let Some(newest) = layouts.last() else { return Ok(false) };
        Ok(Placement::new(newest, code)?.can_delete(&self.deleted_and(slot)))
    }

    /// Whether each strip of a file on `slot` has an heir, within the limit per failure group.
    pub fn has_heirs(&self, layout: &ObjectLayout, slot: SlotIndex) -> Result<bool> {
        Ok(self.placement(layout)?.can_delete(&self.deleted_and(slot)))
    }

    fn deleted_and(&self, slot: SlotIndex) -> Vec<SlotIndex> {
        self.deleted.read().iter().copied().chain([slot]).collect()
    }

    /// Whether `slot` belongs to the layout.
    pub fn is_member(&self, layout: &ObjectLayout, slot: SlotIndex) -> Result<bool> {
        Ok(self.placement(layout)?.has(slot))
    }

    /// Whether the metadata says that a slot is being emptied. A client that had not heard of that
    /// may have noted the status of before at the same time.
    ///
    /// # Errors
    /// The metadata's.
    pub fn is_emptied_by_metadata(&self, slot: SlotIndex) -> Result<bool> {
        Ok(self.configuration()?.pool.being_emptied() == Some(slot))
    }

    /// Whether the metadata has deleted a slot of which this client knows that it is being emptied.
    /// Without parity no client has left the slot's NSD before.
    ///
    /// # Errors
    /// The metadata's.
    pub(super) fn is_deleted_by_metadata(&self, slot: SlotIndex) -> Result<bool> {
        Ok(self.being_emptied() == Some(slot)
            && self.configuration()?.pool.deleted().contains(&slot))
    }

    /// Durably begins to delete a slot: it is being emptied from now on. Nothing is copied yet.
    ///
    /// # Errors
    /// `Busy` if another slot is being emptied; the metadata's.
    pub fn begin_deletion(&self, slot: SlotIndex) -> Result<()> {
        use strake_proto::layout::NsdStatus::BeingEmptied;
        self.set_status(slot, BeingEmptied)?;
        self.heirs.slot.store(u32::from(slot.0), Ordering::Release);
        Ok(())
    }

    /// Has the heirs follow from now on. This waits for changes under way. What heirs missed before
    /// is forgotten, because the caller compares everything.
    pub fn follow_with_heirs(&self) {
        let _alone = self.gate.write();
        self.distrust_absent();
        self.heirs.missed.store(false, Ordering::Release);
        self.heirs.following.store(true, Ordering::Release);
    }

    /// Notes that an heir did not get a change. Called before the change is acknowledged.
    ///
    /// # Errors
    /// Those of [`NsdSet::note`], if the note has to be durable.
    pub(crate) fn heir_missed(&self, heir: SlotIndex) -> Result<()> {
        self.missed().distrust(heir);
        if self.is_noted(heir) {
            return Ok(());
        }
        if self.heirs.decided.load(Ordering::Acquire) {
            return self.note(heir);
        }
        if self.holdings.is_none() {
            self.heirs.missed.store(true, Ordering::Release);
            return Ok(());
        }
        match self.tell_of_heir(heir) {
            // It has its place by now.
            Err(error) if error.kind() == ErrorKind::NotFound => self.note(heir),
            told => told,
        }
    }

    /// Durably tells that an heir lacks something.
    fn tell_of_heir(&self, heir: SlotIndex) -> Result<()> {
        let _serial = self.noting.lock();
        if self.heirs.told.load(Ordering::Acquire) {
            return Ok(());
        }
        self.set_heirs_lack(&self.nsd(heir).to_string())?;
        self.heirs.told.store(true, Ordering::Release);
        Ok(())
    }

    /// Misses of heirs are told again from now on. A word that is under way ends before: it may
    /// be among those that the manager has just forgotten.
    pub(super) fn forget_that_it_was_told(&self) {
        let _serial = self.noting.lock();
        self.heirs.told.store(false, Ordering::Release);
    }

    fn set_heirs_lack(&self, value: &str) -> Result<()> {
        let op = MetaOp::SetConfig { name: HEIRS_LACK.to_owned(), value: value.to_owned() };
        let (client, time) = (self.client, self.clock.wall());
        self.meta.apply(&MetaEntry { client, sequence: 0, time, op })?;
        self.meta.sync()
    }

    /// Forgets what clients have told of heirs so far: the caller has all of them follow now, and
    /// compares everything.
    ///
    /// # Errors
    /// The metadata's.
    pub fn forget_told(&self) -> Result<()> {
        self.set_heirs_lack("")
    }

    /// Notes that heirs may lack something of a client that died.
    pub fn heirs_may_lack(&self) {
        self.heirs.missed.store(true, Ordering::Release);
    }

    /// Has all clients leave a slot of which the heirs have everything: nobody reads it any more.
    ///
    /// # Errors
    /// `Unreachable` if an heir lacks something; those of [`NsdSet::note`].
    pub fn have_left(&self, gone: SlotIndex) -> Result<()> {
        self.require_heirs(gone)?;
        if heirs_lack(&*self.configuration()?) {
            return Err(compared_again());
        }
        self.note(gone)
    }

    /// Checks that all heirs have everything. An heir whose NSD the metadata calls out of date does
    /// not count, because it is compared before it is read. It counts, however, while the slot's
    /// own NSD is readable: a strip that only this NSD has would be lost.
    ///
    /// # Errors
    /// `Unreachable` if an heir lacks something. A caller that relies on the answer holds the gate
    /// alone.
    pub fn require_heirs(&self, gone: SlotIndex) -> Result<()> {
        let not_yet = |detail: String| Err(Error::new(ErrorKind::Unreachable, detail));
        if self.heirs.missed.load(Ordering::Acquire) {
            return Err(compared_again());
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

    /// Durably deletes the slot: the heirs have their places when this returns. The caller holds
    /// the gate alone, and all heirs have everything.
    ///
    /// # Errors
    /// The metadata's. The slot may be deleted or not in that case, so the caller tries again.
    pub fn end_deletion(&self, slot: SlotIndex) -> Result<()> {
        let _serial = self.noting.lock();
        self.heirs.decided.store(true, Ordering::Release);
        self.distrust_absent();
        self.change_pool(MetaOp::DeleteNsd { nsd: self.nsd(slot) })?;
        {
            let mut deleted = self.deleted.write();
            deleted.push(slot);
            self.heirs.slot.store(NONE, Ordering::Release);
        }
        self.forget_deleted(slot);
        self.heirs.following.store(false, Ordering::Release);
        self.heirs.decided.store(false, Ordering::Release);
        Ok(())
    }

    /// Forgets the way to the NSD of a slot that is deleted, and its state.
    pub(super) fn forget_deleted(&self, slot: SlotIndex) {
        let entry = self.slot(slot);
        entry.noted.store(false, Ordering::Release);
        *entry.route.write() = Route::default();
        self.set_availability(slot, NsdAvailability::Down);
    }
}

#[cfg(test)]
#[path = "heirs_test.rs"]
mod heirs_test;
