//! Puts bad strips right by the version that they have (rule R12 of the cluster).
//!
//! A strip that is bad on its disk is rebuilt from the others of its stripe, and its NSD gets it
//! with the same version. The NSD looks for itself, and takes the bytes only if what it has of this
//! very version is bad ([`NsdRequest::Mend`]). So the versions on all NSDs stay as they were.
//! Nobody has to be excluded: a writer of the block, another reader that mends it, and a deletion
//! may come before, at the same time or later.
//!
//! The holder of the block writes everything else anew: a strip that is missing, a strip of which
//! the NSD has lost the record, parity that does not match the data.

use super::read::{Survey, Verdict};
use super::{StripFault, StripeIo, padded_bytes};
use crate::nsds::Place;
use strake_proto::nsd::NsdRequest;
use strake_proto::{BlockIndex, Geometry, ObjectLayout, Result, StripIndex, Version};
use strake_stripe::{StripeCode, StripeSlots, strip_checksums};

impl StripeIo {
    /// Puts those strips of a block right by the version that they have. False if not all of them
    /// are bad and could be put right, as it is while a writer is at work. Strips below `floor` do
    /// not count.
    ///
    /// # Errors
    /// If the block has no place.
    pub fn mend(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
        wrong: &[StripIndex],
    ) -> Result<bool> {
        let survey = self.survey(layout, block, floor)?;
        let Verdict::Whole(version, block_bytes) = self.judge(layout, &survey) else {
            return Ok(false);
        };
        let shape = (version, block_bytes);
        if !wrong.iter().all(|at| self.is_bad_at(layout, block, &survey, *at, shape)) {
            return Ok(false);
        }
        let mut bytes = self.scratch.take(padded_bytes(layout.code, block_bytes));
        if self.gather(layout, block, &survey.slots, shape, &mut bytes).is_err() {
            return Ok(false);
        }
        Ok(self.mend_strips(layout, block, &survey.slots, shape, &bytes, wrong))
    }

    fn is_bad_at(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
        at: StripIndex,
        (version, block_bytes): (Version, u32),
    ) -> bool {
        let strip_bytes = Geometry::of(layout.code, u64::from(block_bytes)).strip_bytes;
        let mut strip = self.scratch.take(strip_bytes);
        let (slot, key) = (survey.slots[usize::from(at.0)], self.key(layout, block, at));
        let read = self.read_strip(slot, key, Some(version), 0, &mut strip);
        matches!(read, Err(StripFault::Bad))
    }

    /// Sends the NSDs of bad strips the right bytes, which follow from the block's. True if all of
    /// these strips are good now.
    pub(super) fn mend_strips(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        (version, block_bytes): (Version, u32),
        bytes: &[u8],
        bad: &[StripIndex],
    ) -> bool {
        let stripe = StripeCode::of_block(layout.code, u64::from(block_bytes));
        let strip_bytes = bytes.len() / stripe.data_strips();
        let data: Vec<&[u8]> = bytes.chunks_exact(strip_bytes).collect();
        let parity = match bad.iter().any(|at| at.0 >= layout.code.data) {
            true => self.encode(&stripe, &data, strip_bytes),
            false => Vec::new(),
        };
        let mend = |at: &StripIndex| {
            let strip = match at.0.checked_sub(layout.code.data) {
                None => data[usize::from(at.0)],
                Some(_) if data.len() == 1 => data[0],
                Some(row) => &parity[usize::from(row)],
            };
            let key = self.key(layout, block, *at);
            let checksums = strip_checksums(&key, version, strip);
            let target = (slots[usize::from(at.0)], Place::Current);
            let request = NsdRequest::Mend { key, version, checksums };
            self.call_for_strip(target, &request, strip).is_ok()
        };
        let is_good = bad.iter().all(mend);
        if is_good && !bad.is_empty() {
            self.note_mended();
            self.count_repaired(layout, block, slots, bad);
        }
        is_good
    }
}

#[cfg(test)]
#[path = "mend_test.rs"]
mod mend_test;
