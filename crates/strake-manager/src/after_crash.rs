//! Repair after a crash, before anything is served:
//!
//! 1. Range deletions that the metadata has recorded are applied.
//! 2. Every stripe that was never settled is looked at. Its versions are made equal
//!    ([`strake_array::stripe_io`]), and its file's allocated bytes are counted anew. A stripe
//!    beyond the end of its file is deleted, because the metadata was never told of it.

use crate::report::RecoveryReport;
use crate::scan::scan_objects;
use std::collections::{BTreeSet, HashMap};
use strake_array::stripe_io::on_disk;
use strake_array::{Array, reaper};
use strake_proto::meta::{Inode, MetaOp};
use strake_proto::nsd::SettledStripe;
use strake_proto::{
    BlockIndex, Error, ErrorKind, Ino, ObjectId, ObjectLayout, Result, SlotIndex, Version,
};
use tracing::error;

/// Repairs; see the file's head.
///
/// # Errors
/// The metadata's; `Io` if too many NSDs are away to recover.
pub fn recover(array: &Array) -> Result<RecoveryReport> {
    recover_files(array, &|_| true)
}

/// Like [`recover`], for the files for which `of` says true. No client writes them meanwhile.
///
/// # Errors
/// As [`recover`].
pub fn recover_files(array: &Array, of: &dyn Fn(Ino) -> bool) -> Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    let restarts = array.io.nsds().restarts();
    reaper::apply_pending(array)?;
    let mut unsettled: HashMap<ObjectId, BTreeSet<BlockIndex>> = HashMap::new();
    for (object, block) in array.io.unsettled()? {
        unsettled.entry(object).or_default().insert(block);
    }
    if unsettled.is_empty() {
        return Ok(report);
    }
    let mut concerned: Vec<(Inode, ObjectLayout, BTreeSet<BlockIndex>)> = Vec::new();
    scan_objects(array, &mut |inode, layout| {
        if let Some(blocks) = unsettled.remove(&layout.object)
            && of(inode.attr.ino)
        {
            concerned.push((inode.clone(), *layout, blocks));
        }
        Ok(())
    })?;
    let mut settled = Vec::new();
    for (inode, layout, blocks) in &concerned {
        report.stripes += blocks.len() as u64;
        for &block in blocks.range(..end_of(inode, layout)) {
            match array.io.recover(layout, block, Version::NONE) {
                Ok(Some(found)) => {
                    report.rewritten += u64::from(found.rewritten.is_some());
                    let (fs, object) = (array.io.nsds().fs(), layout.object);
                    let version = found.version;
                    let stripe = SettledStripe { fs, object, block, version, lacks: 0 };
                    settled.push((*layout, stripe));
                }
                Ok(None) => report.deleted += 1,
                // The stripe stays unsettled. It is looked at again when more NSDs are there.
                Err(error) if error.kind() == ErrorKind::Io => report.failed += 1,
                Err(error) => return Err(error),
            }
        }
    }
    // Stripes written anew are made stable before they are counted. Otherwise a second power cut
    // could leave the count without the stripe.
    array.rounds.run(true)?;
    if array.io.nsds().restarts() != restarts {
        let detail = "a disk was started anew meanwhile: start again";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    }
    for (inode, layout, blocks) in &concerned {
        let end = end_of(inode, layout);
        // The count and the deletion are durable before any stripe is settled or deleted. Until
        // then the next start finds the stripe unsettled and counts the file anew.
        report.lost += recount(array, inode, layout, end)?;
        let beyond = blocks.range(end..).count();
        if beyond > 0 {
            report.deleted += beyond as u64;
            delete_beyond(array, inode, end)?;
        }
    }
    array.meta.sync()?;
    reaper::apply_pending(array)?;
    array.rounds.run(true)?;
    array.rounds.settle(&mut with_masks(array, settled)?);
    array.rounds.run(true)?;
    Ok(report)
}

/// Names the positions that may lack stripes which are stable on all NSDs that are up now.
fn with_masks(
    array: &Array,
    stripes: Vec<(ObjectLayout, SettledStripe)>,
) -> Result<Vec<SettledStripe>> {
    let nsds = array.io.nsds();
    let is_up = |slot: &SlotIndex| nsds.availability(*slot).readable();
    let away: Vec<SlotIndex> = nsds.slots().filter(|slot| !is_up(slot)).collect();
    let mask = |(layout, stripe): (ObjectLayout, SettledStripe)| {
        let lacks = nsds.positions_on(&layout, stripe.block, &away)?;
        Ok(SettledStripe { lacks, ..stripe })
    };
    stripes.into_iter().map(mask).collect()
}

/// The first block beyond a file.
fn end_of(inode: &Inode, layout: &ObjectLayout) -> BlockIndex {
    BlockIndex(inode.attr.size.div_ceil(u64::from(layout.block_size)))
}

fn delete_beyond(array: &Array, inode: &Inode, from: BlockIndex) -> Result<()> {
    let version = array.io.versions().next();
    array.meta.apply(MetaOp::DeleteBeyond { ino: inode.attr.ino, from, version }).map(|_| ())
}

/// Bytes that the blocks of a range take on disks.
fn held_bytes(
    array: &Array,
    layout: &ObjectLayout,
    range: (BlockIndex, BlockIndex),
) -> Result<u64> {
    let blocks = array.io.blocks(layout, range, &|_| Version::NONE)?;
    Ok(blocks.values().map(|(_, length)| u64::from(on_disk(*length))).sum())
}

/// Counts a file's bytes on disks below the block `end` anew. Returns how many are lost.
///
/// The metadata is told of bytes only when they are stable. So after a crash there may be more
/// bytes than it knows, and never fewer. If there are fewer, data was lost that had been safe. The
/// count stays as it is in that case, and `fs check` names the file until it is written anew or
/// deleted.
fn recount(array: &Array, inode: &Inode, layout: &ObjectLayout, end: BlockIndex) -> Result<u64> {
    let held = held_bytes(array, layout, (BlockIndex(0), end))?;
    // The metadata's count may include blocks beyond the end.
    let beyond = held_bytes(array, layout, (end, BlockIndex::END))?;
    let lost = inode.attr.allocated.saturating_sub(held + beyond);
    if lost > 0 {
        error!(
            target: "recovery",
            "inode {}: {lost} bytes that were stable are gone; `strake fs check` names \
             its blocks",
            inode.attr.ino
        );
        return Ok(lost);
    }
    let delta = held as i64 - inode.attr.allocated as i64;
    if delta != 0 {
        let (ino, size) = (inode.attr.ino, inode.attr.size);
        array.meta.apply(MetaOp::Update {
            ino,
            size,
            data: None,
            allocated_delta: delta,
            mtime: None,
            ctime: None,
        })?;
    }
    Ok(0)
}
