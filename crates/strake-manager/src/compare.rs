//! Compares the strips of one NSD with those of the others.
//!
//! A strip that the NSD lacks is rebuilt from the others and copied with its version. The NSD takes
//! it only if it has nothing newer, so a concurrent writer wins. A strip that only this NSD has is
//! deleted.
//!
//! **Deleting waits for writers.** A writer sends the strips of a block side by side. When the NSDs
//! are listed, this one may have accepted its strip while its partners have not yet accepted
//! theirs. So a strip that the listings show on this NSD alone is looked for again under the
//! block's lock. It is deleted only if the partners still lack the block ([`drop_surplus`]).

use crate::context::Repair;
use crate::objects::{objects_on, unowned};
use crate::report::RecoveryReport;
use crate::scan::{allocated, scan_objects};
use std::collections::{BTreeMap, BTreeSet};
use strake_array::nsds::Place;
use strake_proto::nsd::NsdRequest;
use strake_proto::{
    BlockIndex, ErrorKind, GrantNumber, Ino, ObjectId, ObjectLayout, Result, SlotIndex, Version,
};

/// Deletes the strips of objects that no file has. Deletions wait for an NSD that is away. But an
/// older copy of an NSD brings back strips that were deleted from it long ago, and those deletions
/// are not pending any more.
pub(crate) fn delete_unowned(
    repair: &Repair,
    slot: SlotIndex,
    report: &mut RecoveryReport,
) -> Result<()> {
    let mut objects: BTreeSet<ObjectId> = objects_on(&repair.array, slot)?.into_iter().collect();
    scan_objects(&repair.array, &mut |_, layout| {
        objects.remove(&layout.object);
        Ok(())
    })?;
    let (nsds, fs) = (repair.array.io.nsds(), repair.array.io.nsds().fs());
    for object in unowned(&repair.array, objects)? {
        let (from, to) = (BlockIndex(0), BlockIndex::END);
        let version = repair.array.io.versions().next();
        let delete = NsdRequest::DeleteRange { fs, object, from, to, version };
        nsds.call(slot, &delete, &[], &mut [])?;
        // An object that is gone is never written again, so its tombstone guards nothing.
        let forget = NsdRequest::ForgetTombstones { fs, object, version };
        nsds.call(slot, &forget, &[], &mut [])?;
        report.deleted += 1;
    }
    Ok(())
}

/// Compares every object. After each stripe it calls `go_on` with the bytes copied.
pub(crate) fn compare_files(
    repair: &Repair,
    target: (SlotIndex, Place),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let nsds = repair.array.io.nsds();
    // The metadata's scan does not list objects that are only reserved. After a flush it does.
    repair.exclusion.flush_all()?;
    let total = allocated(&repair.array)?;
    let mut done = 0;
    nsds.show_progress(target.0, Some((0, total)));
    scan_objects(&repair.array, &mut |inode, layout| {
        let all = (BlockIndex(0), BlockIndex::END);
        compare(repair, target, inode.attr.ino, layout, all, report, go_on)?;
        go_on(0)?;
        done += inode.attr.allocated;
        nsds.show_progress(target.0, Some((done.min(total), total)));
        Ok(())
    })
}

/// A strip that an NSD should have.
pub(crate) struct Strip<'a> {
    pub(crate) ino: Ino,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) block: BlockIndex,
    pub(crate) at: u8,
    /// The version and length of the block on the other NSDs.
    pub(crate) newest: (Version, u32),
    /// Whether the NSD keeps older versions of the strip, which it must forget.
    pub(crate) keeps_older: bool,
}

/// Makes an NSD that holds version `held` of a strip equal to the others.
pub(crate) fn bring(
    repair: &Repair,
    strip: &Strip<'_>,
    target: (SlotIndex, Place),
    held: Option<Version>,
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let Strip { ino, layout, block, at, newest: (version, block_bytes), keeps_older } = *strip;
    report.stripes += 1;
    let stored = strake_proto::Geometry::is_stored(layout.code, u64::from(block_bytes), at);
    let outcome = match held {
        Some(held) if held > version => {
            let written = repair.exclusion.rewrite(ino, layout, block);
            if written.is_ok() && !stored {
                // The new version has no strip in this place.
                delete_one(repair, target, layout, block, held);
            }
            written.map(|()| 0)
        }
        Some(held) if stored && held == version && !keeps_older => return Ok(()),
        _ if stored => copy(repair, ino, layout, block, at, target),
        Some(_) => {
            delete_one(repair, target, layout, block, version);
            Ok(0)
        }
        None => return Ok(()),
    };
    match outcome {
        Ok(bytes) => {
            report.rewritten += 1;
            go_on(bytes)
        }
        Err(error) if error.kind() == ErrorKind::Stale => {
            match write_above(repair, strip, target.0) {
                Ok(()) => go_on(0),
                Err(error) => report.count_failure(repair.array.io.nsds().nsd(target.0), error),
            }
        }
        Err(error) => report.count_failure(repair.array.io.nsds().nsd(target.0), error),
    }
}

/// Writes a block anew of which an NSD does not take the strip that it lacks. If a writer or a
/// deletion has come in between, nothing is to be done. Otherwise the NSD has carried out a
/// deletion that the metadata has lost (R31). If that was of the whole object, its tombstone is
/// above every version. The object has a file, so the tombstone is void.
fn write_above(repair: &Repair, strip: &Strip<'_>, slot: SlotIndex) -> Result<()> {
    let Strip { ino, layout, block, newest, .. } = *strip;
    let floor = repair.array.floors.floor(layout.object, block);
    if repair.array.io.head(layout, block, floor)? != Some(newest) {
        return Ok(());
    }
    match repair.exclusion.rewrite(ino, layout, block) {
        Err(error) if error.kind() == ErrorKind::Stale => {}
        written => return written,
    }
    let nsds = repair.array.io.nsds();
    let version = Version { grant: GrantNumber(u64::MAX), counter: u64::MAX };
    let forget = NsdRequest::ForgetTombstones { fs: nsds.fs(), object: layout.object, version };
    // The file keeps its object meanwhile.
    repair.exclusively(ino, layout, block, &mut |_| nsds.call(slot, &forget, &[], &mut []))?;
    repair.exclusion.rewrite(ino, layout, block)
}

/// Deletes the strip of a block that the listings showed on no other NSD; see the file's head. If
/// the others have the block by now, the NSD gets the strip that it lacks instead. If the file is
/// gone or has its bytes elsewhere, the strip stays for now: the deletion of its object is pending
/// in the metadata until every NSD has applied it.
pub(crate) fn drop_surplus(
    repair: &Repair,
    (ino, layout, block): (Ino, &ObjectLayout, BlockIndex),
    target: (SlotIndex, Place),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let range = (block, BlockIndex(block.0 + 1));
    let mut deleted = false;
    let mut look = |_| {
        let mut own: Option<(Version, bool)> = None;
        repair.array.io.list_slot(target, layout.object, range, 16, &mut |entry| {
            own = own.max(Some((entry.header.version, !entry.kept.is_empty())));
            true
        })?;
        let Some((held, keeps_older)) = own else { return Ok(None) };
        if let Some(at) = place_of(repair, layout, block, target.0)? {
            let floor = repair.array.floors.floor(layout.object, block);
            if let Some(newest) = repair.array.io.head(layout, block, floor)? {
                return Ok(Some((Strip { ino, layout, block, at, newest, keeps_older }, held)));
            }
        }
        delete_one(repair, target, layout, block, held);
        deleted = true;
        Ok(None)
    };
    let looked = repair.exclusively(ino, layout, block, &mut look);
    report.deleted += u64::from(deleted);
    match looked {
        Ok(Some(Some((strip, held)))) => bring(repair, &strip, target, Some(held), report, go_on),
        Ok(_) => go_on(0),
        Err(error) => report.count_failure(repair.array.io.nsds().nsd(target.0), error),
    }
}

/// The position of the strip that the NSD of `slot` has, or is to take over, of the block.
fn place_of(
    repair: &Repair,
    layout: &ObjectLayout,
    block: BlockIndex,
    slot: SlotIndex,
) -> Result<Option<u8>> {
    let (slots, heir) = repair.array.io.nsds().stripe_and_heir(layout, block)?;
    let own = slots.iter().position(|other| *other == slot).map(|at| at as u8);
    Ok(own.or(heir.filter(|(_, heir)| *heir == slot).map(|(at, _)| at.0)))
}

/// Compares the blocks of a range of one object.
pub(crate) fn compare(
    repair: &Repair,
    target: (SlotIndex, Place),
    ino: Ino,
    layout: &ObjectLayout,
    range: (BlockIndex, BlockIndex),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let slot = target.0;
    // The returning NSD is listed first. A block written in between is then among the others'.
    let mut own: BTreeMap<BlockIndex, (Version, bool)> = BTreeMap::new();
    repair.array.io.list_slot(target, layout.object, range, 1024, &mut |entry| {
        // Older versions, kept from before, would be in the way of those it must keep from now on.
        own.insert(entry.key.block, (entry.header.version, !entry.kept.is_empty()));
        true
    })?;
    let floor = |block| repair.array.floors.floor(layout.object, block);
    let others = repair.array.io.blocks(layout, range, &floor)?;
    for (block, (version, block_bytes)) in &others {
        // Strips that it is to take over from an NSD that is being emptied count, too.
        let Some(at) = place_of(repair, layout, *block, slot)? else { continue };
        let (held, keeps_older) = own.remove(block).unzip();
        let newest = (*version, *block_bytes);
        let keeps_older = keeps_older.unwrap_or(false);
        let strip = Strip { ino, layout, block: *block, at, newest, keeps_older };
        bring(repair, &strip, target, held, report, go_on)?;
    }
    for block in own.into_keys() {
        drop_surplus(repair, (ino, layout, block), target, report, go_on)?;
    }
    Ok(())
}

/// Copies the strip of a block that an NSD lacks. No other thread writes the block meanwhile. A
/// version that is just being written is not complete, and a copy of it would take its place.
fn copy(
    repair: &Repair,
    ino: Ino,
    layout: &ObjectLayout,
    block: BlockIndex,
    at: u8,
    target: (SlotIndex, Place),
) -> Result<u64> {
    let mut work = |is_stable: bool| {
        let floor = repair.array.floors.floor(layout.object, block);
        repair.array.io.copy_strip(layout, block, floor, at, target, is_stable)
    };
    match repair.exclusively(ino, layout, block, &mut work) {
        Ok(copied) => Ok(copied.unwrap_or(0)),
        // If versions do not agree, a rewrite decides between them, as it does for every writer.
        Err(error) if error.kind() == ErrorKind::Io => {
            repair.exclusion.rewrite(ino, layout, block).map(|()| 0)
        }
        Err(error) => Err(error),
    }
}

fn delete_one(
    repair: &Repair,
    target: (SlotIndex, Place),
    layout: &ObjectLayout,
    block: BlockIndex,
    version: Version,
) {
    let request = NsdRequest::DeleteRange {
        fs: repair.array.io.nsds().fs(),
        object: layout.object,
        from: block,
        to: BlockIndex(block.0 + 1),
        version,
    };
    // An NSD that fails here is compared again, and that comparison finds the strip.
    if repair.array.io.nsds().call_at(target, &request, &[], &mut []).is_err() {
        repair.array.io.nsds().fail_at(target);
    }
}
