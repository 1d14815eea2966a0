//! Range deletions on their way: recorded in the metadata, not yet applied by every NSD.
//!
//! A truncate or punch is one metadata entry; the NSDs delete later. Until then two rules keep it
//! exact:
//!
//! * **Floor.** Whatever is stored in the range below the deletion's version does not count. Floors
//!   are kept here per object and asked by every read of a block.
//! * **Durable first.** NSDs are told only after the metadata entry is durable, and no block of the
//!   file is sent before either (`FileState::barrier`): else a crash could forget the truncation
//!   and remember that its data is gone.
//!
//! The reaper ([`Ranges::apply_pending`]) makes the metadata durable, tells the NSDs, makes that
//! durable, and tells the metadata who is done. It also brings an NSD that was away up to date.

use crate::shared::Shared;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use strake_proto::meta::{MetaOp, MetaQuery, MetaReply, PendingRange};
use strake_proto::{BlockIndex, Error, ErrorKind, NsdId, ObjectId, Result, Version};

#[derive(Clone, Copy, Debug)]
struct Floor {
    from: BlockIndex,
    to: BlockIndex,
    version: Version,
}

/// The floors of one object at some moment.
pub(crate) struct Floors(Vec<Floor>);

impl Floors {
    /// As [`Ranges::floor`].
    pub(crate) fn at(&self, block: BlockIndex) -> Version {
        let covering = self.0.iter().filter(|floor| floor.from <= block && block < floor.to);
        covering.map(|floor| floor.version).max().unwrap_or(Version::NONE)
    }
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Ranges {
    floors: Mutex<HashMap<ObjectId, Vec<Floor>>>,
    count: AtomicUsize,
    /// One reaper at a time.
    reaping: Mutex<()>,
}

impl Ranges {
    /// Notes a deletion that the metadata has recorded.
    pub(crate) fn add(&self, object: ObjectId, from: BlockIndex, to: BlockIndex, version: Version) {
        let mut floors = self.floors.lock();
        let list = floors.entry(object).or_default();
        // What the new one covers says nothing more; a file cut again and again stays one floor.
        list.retain(|old| !(from <= old.from && old.to <= to));
        list.push(Floor { from, to, version });
        self.count.store(floors.len(), Ordering::Release);
    }

    /// The floors of an object as they are now.
    pub(crate) fn floors_of(&self, object: ObjectId) -> Floors {
        Floors(self.floors.lock().get(&object).cloned().unwrap_or_default())
    }

    /// Strips of this block below this version are deleted in effect.
    pub(crate) fn floor(&self, object: ObjectId, block: BlockIndex) -> Version {
        if self.count.load(Ordering::Acquire) == 0 {
            return Version::NONE;
        }
        let floors = self.floors.lock();
        let covering = floors
            .get(&object)
            .into_iter()
            .flatten()
            .filter(|floor| floor.from <= block && block < floor.to);
        covering.map(|floor| floor.version).max().unwrap_or(Version::NONE)
    }

    fn remove(&self, object: ObjectId, version: Version) {
        let mut floors = self.floors.lock();
        if let Some(list) = floors.get_mut(&object) {
            list.retain(|floor| floor.version > version);
            if list.is_empty() {
                floors.remove(&object);
            }
        }
        self.count.store(floors.len(), Ordering::Release);
    }

    /// Applies all pending deletions on the NSDs that can be written. Those away stay pending.
    /// Returns how many deletions are pending still.
    pub(crate) fn apply_pending(shared: &Shared) -> Result<usize> {
        let ranges = &shared.ranges;
        let _alone = ranges.reaping.lock();
        if shared.meta.has_unsynced() {
            shared.meta.sync()?;
        }
        let mut left = 0;
        let mut after = 0;
        let mut owed = HashSet::new();
        loop {
            let query = MetaQuery::PendingRanges { after, limit: 1000 };
            let MetaReply::PendingRanges(page) = shared.meta.query(&query)? else {
                return Err(crate::shared::wrong_reply());
            };
            let Some(last) = page.last().map(|range| range.id) else { break };
            after = last;
            left += ranges.apply_page(shared, &page, &mut owed)?;
        }
        Ok(left)
    }

    /// Applies all pending deletions on one NSD, those too that it has applied already: it may have
    /// come back as it was before. Accepted, not stable.
    pub(crate) fn apply_again(shared: &Shared, nsd: NsdId) -> Result<()> {
        let mut after = 0;
        loop {
            let query = MetaQuery::PendingRanges { after, limit: 1000 };
            let MetaReply::PendingRanges(page) = shared.meta.query(&query)? else {
                return Err(crate::shared::wrong_reply());
            };
            let Some(last) = page.last().map(|range| range.id) else { return Ok(()) };
            after = last;
            for PendingRange { layout, from, to, version, .. } in &page {
                if shared.io.delete_range(layout, (*from, *to), *version, Some(&[nsd])).is_empty() {
                    let detail = format!("NSD {nsd} was lost again");
                    return Err(Error::new(ErrorKind::Unreachable, detail));
                }
            }
        }
    }

    /// Frees what deletions still hold, for somebody who finds no space; false if there was nothing
    /// to free. `before` are the metadata's changes when that somebody began: what another reaper
    /// has freed since counts, too. The caller holds no block and no content.
    pub(crate) fn reclaim(shared: &Shared, before: u64) -> bool {
        let freed = Ranges::apply_pending(shared).is_ok() && shared.meta.changes() != before;
        if freed {
            shared.space.refresh(&shared.io);
        }
        freed
    }

    /// `owed` are the objects of which some deletion has not reached every NSD that may be read.
    fn apply_page(
        &self,
        shared: &Shared,
        page: &[PendingRange],
        owed: &mut HashSet<ObjectId>,
    ) -> Result<usize> {
        let restarts = shared.io.nsds().restarts();
        let mut done: Vec<(&PendingRange, Vec<NsdId>)> = Vec::new();
        for range in page {
            let applied = shared.io.delete_range(
                &range.layout,
                (range.from, range.to),
                range.version,
                Some(&range.waiting),
            );
            done.push((range, applied));
        }
        if done.iter().any(|(_, applied)| !applied.is_empty()) {
            // Stable before it is called applied; an NSD that fails now is asked again when it
            // returns.
            shared.committer.commit(shared, true)?;
        }
        let mut finished = 0;
        for (range, mut nsds) in done {
            let slot_of = |nsd: &NsdId| shared.io.nsds().slot_of(*nsd);
            // What one that was started anew had only accepted may be gone.
            nsds.retain(|nsd| {
                restarts == shared.io.nsds().restarts()
                    && slot_of(nsd)
                        .is_some_and(|slot| shared.io.nsds().availability(slot).writable())
            });
            // An NSD that is away and was not noted is read again as soon as it answers: the floor
            // stays for it.
            let is_owed = range
                .waiting
                .iter()
                .filter(|nsd| !nsds.contains(nsd))
                .any(|nsd| slot_of(nsd).is_some_and(|slot| !shared.io.nsds().is_noted(slot)));
            if is_owed {
                owed.insert(range.layout.object);
                self.add(range.layout.object, range.from, range.to, range.version);
            } else if !owed.contains(&range.layout.object) {
                self.remove(range.layout.object, range.version);
            }
            if range.waiting.iter().all(|nsd| nsds.contains(nsd)) {
                finished += 1;
                if range.object_gone {
                    // Nobody writes to an object that is gone, so its tombstones guard nothing.
                    let _ = shared.io.forget_tombstones(&range.layout, range.version);
                }
            }
            if !nsds.is_empty() {
                shared.meta.apply(MetaOp::RangeApplied { id: range.id, nsds })?;
            }
        }
        Ok(page.len() - finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::GrantNumber;

    fn version(counter: u64) -> Version {
        Version { grant: GrantNumber(1), counter }
    }

    #[test]
    fn the_highest_covering_version_is_the_floor() {
        let ranges = Ranges::default();
        let object = ObjectId(1);
        ranges.add(object, BlockIndex(5), BlockIndex(9), version(1));
        ranges.add(object, BlockIndex(7), BlockIndex::END, version(3));
        assert_eq!(ranges.floor(object, BlockIndex(4)), Version::NONE);
        assert_eq!(ranges.floor(object, BlockIndex(5)), version(1));
        assert_eq!(ranges.floor(object, BlockIndex(8)), version(3));
        assert_eq!(ranges.floor(ObjectId(2), BlockIndex(8)), Version::NONE);
        ranges.remove(object, version(1));
        assert_eq!(ranges.floor(object, BlockIndex(5)), Version::NONE);
        ranges.remove(object, version(3));
        assert_eq!(ranges.floor(object, BlockIndex(8)), Version::NONE);
    }
}
