//! Which slots hold the strips of a block.

use crate::code::WIDTH_MAX;
use strake_proto::{BlockIndex, Code, Error, ErrorKind, LayoutMap, ObjectId, Result, SlotIndex};

/// The slots of one stripe, by position. At most [`WIDTH_MAX`], inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StripeSlots {
    slots: [SlotIndex; WIDTH_MAX],
    width: u8,
}

impl std::ops::Deref for StripeSlots {
    type Target = [SlotIndex];
    fn deref(&self) -> &[SlotIndex] {
        &self.slots[..usize::from(self.width)]
    }
}

impl std::fmt::Debug for StripeSlots {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.iter().map(|slot| slot.0)).finish()
    }
}

/// Placement over the members of one layout version with one code; made once, asked often.
#[derive(Clone, Debug)]
pub struct Placement {
    members: Vec<(SlotIndex, u32)>,
    width: usize,
}

impl Placement {
    /// Prepares placement over the members of `layout`.
    ///
    /// # Errors
    /// `Invalid` if the layout has fewer members than the code is wide.
    pub fn new(layout: &LayoutMap, code: Code) -> Result<Placement> {
        let (have, width) = (layout.members.len(), code.width());
        if have < width {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "code {code} needs {width} NSDs and there are {have}: add NSDs or choose a narrower code"
                ),
            ));
        }
        Ok(Placement { members: layout.members.clone(), width })
    }

    /// The slots of block `block` of `object`: position in the code ▶ slot. All different. Positions
    /// that a short block does not store have a slot as well.
    pub fn stripe(&self, object: ObjectId, block: BlockIndex) -> StripeSlots {
        let start = object.0.wrapping_mul(7).wrapping_add(block.0) % self.members.len() as u64;
        let mut slots = [SlotIndex(0); WIDTH_MAX];
        for (at, slot) in slots[..self.width].iter_mut().enumerate() {
            *slot = self.members[(start as usize + at) % self.members.len()].0;
        }
        StripeSlots { slots, width: self.width as u8 }
    }

    /// Replaces the slots that are lost for good, in the order in which they were lost, by others of
    /// the same layout that hold no strip of this stripe. Only lost strips move. With no candidate
    /// left the position keeps its lost slot: the stripe stays degraded there.
    pub fn substitute(
        &self,
        _object: ObjectId,
        _block: BlockIndex,
        stripe: &mut StripeSlots,
        lost: &[SlotIndex],
    ) {
        for (done, gone) in lost.iter().enumerate() {
            let Some(at) = stripe.iter().position(|slot| slot == gone) else { continue };
            let free = self
                .members
                .iter()
                .map(|(slot, _)| *slot)
                .find(|slot| !stripe.contains(slot) && !lost[..=done].contains(slot));
            if let Some(free) = free {
                stripe.slots[at] = free;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::LayoutVersion;

    #[test]
    fn a_stripe_has_no_slot_twice_and_too_few_slots_are_refused() {
        let members = (0..7).map(|slot| (SlotIndex(slot), u32::from(slot))).collect();
        let layout = LayoutMap { version: LayoutVersion(1), members };
        let code = Code { data: 4, parity: 2 };
        let placement = Placement::new(&layout, code).expect("wide enough");
        for block in 0..50 {
            let stripe = placement.stripe(ObjectId(3), BlockIndex(block));
            let mut sorted = stripe.to_vec();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), 6);
        }
        assert!(Placement::new(&layout, Code { data: 8, parity: 2 }).is_err());
    }
}
