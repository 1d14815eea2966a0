//! The reaper of range deletions. It makes the metadata durable, tells the NSDs, makes what they
//! did durable, and tells the metadata which NSDs are done. It also brings an NSD that was away up
//! to date. [`crate::floors`] says why it is done in this order.

use crate::array::Array;
use crate::meta_link::wrong_reply;
use std::collections::HashSet;
use strake_proto::meta::{MetaOp, MetaQuery, MetaReply, PendingRange};
use strake_proto::{Error, ErrorKind, NsdId, ObjectId, Result};

/// Applies all pending deletions on the NSDs that can be written. A deletion stays pending while
/// one of its NSDs is away. Returns how many are still pending.
pub fn apply_pending(array: &Array) -> Result<usize> {
    let _alone = array.reaping.lock();
    let mut left = 0;
    let mut after = 0;
    let mut owed = HashSet::new();
    loop {
        let query = MetaQuery::PendingRanges { after, limit: 1000 };
        let MetaReply::PendingRanges(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last().map(|range| range.id) else { break };
        after = last;
        // Also what other clients have recorded must be durable before an NSD is told of it.
        array.meta.sync()?;
        left += apply_page(array, &page, &mut owed)?;
    }
    Ok(left)
}

/// All pending deletions, of every client.
///
/// # Errors
/// The metadata's.
pub fn pending(array: &Array) -> Result<Vec<PendingRange>> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let query = MetaQuery::PendingRanges { after, limit: 1000 };
        let MetaReply::PendingRanges(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last().map(|range| range.id) else { return Ok(all) };
        after = last;
        all.extend(page);
    }
}

/// Applies all pending deletions on one NSD. Deletions that it has already applied are repeated,
/// because the NSD may have come back in an older state. Afterwards they are accepted, not stable.
pub fn apply_again(array: &Array, nsd: NsdId) -> Result<()> {
    let mut after = 0;
    loop {
        let query = MetaQuery::PendingRanges { after, limit: 1000 };
        let MetaReply::PendingRanges(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last().map(|range| range.id) else { return Ok(()) };
        after = last;
        let applied = array.io.delete_ranges(&page, |_, asked| asked == nsd);
        if applied.iter().any(Vec::is_empty) {
            let detail = format!("NSD {nsd} went down again");
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
    }
}

/// Frees the space of pending deletions, for a caller that found no space. False if there was
/// nothing to free. `before` is the metadata's count of changes when the caller began, so that what
/// another reaper has freed since counts, too. The caller holds neither a block nor `content`.
pub fn reclaim(array: &Array, before: u64) -> bool {
    let freed = apply_pending(array).is_ok() && array.meta.changes() != before;
    if freed {
        array.room.refresh();
    }
    freed
}

/// `owed` are the objects of which some deletion has not reached every NSD that may be read.
fn apply_page(array: &Array, page: &[PendingRange], owed: &mut HashSet<ObjectId>) -> Result<usize> {
    let restarts = array.io.nsds().restarts();
    let applied = array.io.delete_ranges(page, |range, nsd| range.waiting.contains(&nsd));
    if applied.iter().any(|nsds| !nsds.is_empty()) {
        // A deletion is stable before it is reported as applied. An NSD that fails now is asked
        // again when it returns.
        array.rounds.run(true)?;
    }
    let (mut finished, mut gone, mut told) = (0, Vec::new(), Vec::new());
    for (range, mut nsds) in page.iter().zip(applied) {
        let slot_of = |nsd: &NsdId| array.io.nsds().slot_of(*nsd);
        // An NSD that was started anew may have lost what it had only accepted.
        nsds.retain(|nsd| {
            restarts == array.io.nsds().restarts()
                && slot_of(nsd).is_some_and(|slot| array.io.nsds().availability(slot).writable())
        });
        // An NSD that is away without being noted is read again as soon as it answers. The floor
        // stays until then.
        let is_owed = range
            .waiting
            .iter()
            .filter(|nsd| !nsds.contains(nsd))
            .any(|nsd| slot_of(nsd).is_some_and(|slot| !array.io.nsds().is_noted(slot)));
        if is_owed {
            owed.insert(range.layout.object);
            array.floors.add(range.layout.object, range.from, range.to, range.version);
        } else if !owed.contains(&range.layout.object) {
            array.floors.remove(range.layout.object, range.version);
        }
        if range.waiting.iter().all(|nsd| nsds.contains(nsd)) {
            finished += 1;
            if range.object_gone {
                // Nobody writes to an object that is gone, so its tombstones guard nothing.
                gone.push((range.layout.object, range.version));
            }
        }
        if !nsds.is_empty() {
            told.push(MetaOp::RangeApplied { id: range.id, nsds });
        }
    }
    array.io.forget_tombstones(&gone);
    array.meta.apply_many(told).into_iter().try_for_each(|result| result.map(drop))?;
    Ok(page.len() - finished)
}
