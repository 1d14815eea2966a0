//! Deletes ranges of blocks on the NSDs, and has them forget tombstones.
//!
//! An NSD gets up to [`RANGES_MAX`] changes in one request: a program that removes many files would
//! cost several requests for each. An NSD of an older program gets them one by one.

use super::StripeIo;
use crate::nsds::is_nsd_fault;
use strake_proto::meta::PendingRange;
use strake_proto::nsd::{NsdReply, NsdRequest, RANGES_MAX, RangeChange};
use strake_proto::{Error, ErrorKind, NsdId, ObjectId, Result, SlotIndex, Version};

impl StripeIo {
    /// Deletes what each of `page` names, on every NSD that can be written and that `is_asked`.
    /// Returns for each the NSDs that did so. The deletions are accepted, not stable.
    pub(crate) fn delete_ranges(
        &self,
        page: &[PendingRange],
        is_asked: impl Fn(&PendingRange, NsdId) -> bool,
    ) -> Vec<Vec<NsdId>> {
        let mut applied = vec![Vec::new(); page.len()];
        for slot in self.nsds.slots() {
            let nsd = self.nsds.nsd(slot);
            let asked: Vec<usize> =
                (0..page.len()).filter(|at| is_asked(&page[*at], nsd)).collect();
            let change = |at: &usize| {
                let PendingRange { layout, from, to, version, .. } = page[*at];
                RangeChange::Delete { object: layout.object, from, to, version }
            };
            let changes: Vec<RangeChange> = asked.iter().map(change).collect();
            self.change_ranges(slot, &changes, |done| applied[asked[done]].push(nsd));
        }
        applied
    }

    /// Has all NSDs that can be written forget the tombstones of objects, each up to a version. A
    /// tombstone that stays takes space in an NSD's index, and guards nothing.
    pub(crate) fn forget_tombstones(&self, objects: &[(ObjectId, Version)]) {
        let forget = |(object, version): &(ObjectId, Version)| RangeChange::Forget {
            object: *object,
            version: *version,
        };
        self.change_everywhere(&objects.iter().map(forget).collect::<Vec<_>>());
    }

    /// Has all NSDs that can be written make changes.
    pub(super) fn change_everywhere(&self, changes: &[RangeChange]) {
        self.nsds.slots().for_each(|slot| self.change_ranges(slot, changes, |_| {}));
    }

    /// Has an NSD make changes, for as long as it can be written. Calls `done` with the place of
    /// each that it has made. An NSD that fails is taken out of use. A change that it refuses is
    /// left out.
    fn change_ranges(&self, slot: SlotIndex, changes: &[RangeChange], mut done: impl FnMut(usize)) {
        let mut at = 0;
        while at < changes.len() {
            let _under_way = self.nsds.gate().read();
            if !self.nsds.availability(slot).writable() {
                return;
            }
            let rest = &changes[at..changes.len().min(at + RANGES_MAX)];
            match self.change_some(slot, rest) {
                Ok(count) => {
                    (at..at + count).for_each(&mut done);
                    at += count;
                }
                Err(error) if is_nsd_fault(error.kind()) => return self.nsds.fail(slot),
                Err(_) => at += 1,
            }
        }
    }

    /// Has an NSD make some of these changes, from the first one on. Returns how many.
    fn change_some(&self, slot: SlotIndex, changes: &[RangeChange]) -> Result<usize> {
        let fs = self.nsds.fs();
        let alone = || self.nsds.call(slot, &changes[0].alone(fs), &[], &mut []).map(|_| 1);
        if changes.len() == 1 {
            return alone();
        }
        let request = NsdRequest::ChangeRanges { fs, changes: changes.to_vec() };
        match self.nsds.call(slot, &request, &[], &mut []) {
            Ok(NsdReply::Changed { done, .. })
                if (1..=changes.len()).contains(&(done as usize)) =>
            {
                Ok(done as usize)
            }
            Ok(_) => Err(Error::new(ErrorKind::Corrupt, "a reply that does not fit the request")),
            Err(error) if error.kind() == ErrorKind::NotSupported => alone(),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "ranges_test.rs"]
mod ranges_test;
