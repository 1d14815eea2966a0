//! Small synchronous writes go into the metadata's log now, and into stripes later.
//!
//! An `fsync` that finds few unsaved bytes in a file writes them, with the size and the times, as
//! one entry into the metadata's log. The log is made durable on p + 1 disks with one write each.
//! The blocks stay dirty. They are sent as whole stripes when the sync interval or the pool asks
//! for it. When they are stable, the metadata is told to forget what it kept ([`MetaOp::Folded`]).
//! Whatever is still kept at a start is written into its file again before anything is served.
//!
//! The entry may be made only under two conditions:
//!
//! * After the entry, everything below the file's size is on some disk: in this entry, in an
//!   earlier one, or in stable stripes.
//! * Nothing that is kept is older than what stable stripes hold, because a start writes it over
//!   them.
//!
//! So in these cases no entry is made, and the file is synced the long way:
//!
//! * A block was sent and is not stable yet.
//! * A block was sent since something of the file was kept.
//! * The metadata does not name the object yet, and knows bytes of the file that are elsewhere.
//! * A block must be sent whole because its stored version is stale.

use crate::flush::told::{Told, lacking, took};
use crate::inode::core::InodeState;
use crate::memory::block::{Block, BlockData};
use crate::memory::file::{Content, FileState};
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::limits::{HARDENED_UNITS_MAX, UNIT_BYTES};
use strake_proto::meta::{HardenedUnit, MetaOp};
use strake_proto::{ErrorKind, Result};

/// The most bytes that are kept for all files together. Beyond this, files are synced the long way.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// More than the threshold is hardened if the blocks concerned have at most this many unsaved units
/// each, on average. To send so little of so many blocks would take much longer.
const SCATTERED_UNITS: usize = 4;

/// What was taken from the blocks for an entry.
#[derive(Default)]
struct Taken {
    units: Vec<HardenedUnit>,
    from: Vec<(Arc<Block>, Vec<usize>)>,
}

/// Hardens a file's small write. Returns false if the file must be synced the long way. The caller
/// holds `inode.syncing`.
pub(crate) fn harden(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
) -> Result<bool> {
    let threshold = usize::try_from(mount.settings.write_cache_threshold.0).unwrap_or(usize::MAX);
    let units_max = (threshold / UNIT_BYTES).min(HARDENED_UNITS_MAX);
    // What is hardened counts for the whole file, of which others write other blocks.
    if units_max == 0 || file.is_beside || !file.has_dirty_blocks() || is_full(mount) {
        return Ok(false);
    }
    // Held until the entry is made, so that what lies below the size does not change.
    let content = file.content.read();
    let Content::Object(layout) = &*content else { return Ok(false) };
    // An object can be named before its bytes are anywhere, if nothing is lost when only that
    // entry survives.
    let is_named =
        file.linked.load(Ordering::Acquire) && !file.content_changed.load(Ordering::Acquire);
    if !is_named && file.told_size.load(Ordering::Acquire) > 0 {
        return Ok(false);
    }
    if !file.is_hardened() {
        file.sent.store(false, Ordering::Release);
    }
    // The size is read before the blocks, because a writer raises the size after its bytes are in
    // place.
    let size = file.size();
    inode.core.lock().size_target = Some(size);
    let block_size = u64::from(layout.block_size);
    let mut taken = Taken::default();
    let complete = take(file, block_size, size, units_max, &mut taken);
    // Checked after the blocks: a block that was sent before we looked at it is now counted as
    // unstable. If something of the file is hardened, it has also set `sent`.
    let outdated = file.is_hardened() && file.sent.load(Ordering::Acquire);
    if !complete || outdated || file.unstable.load(Ordering::Acquire) > 0 {
        give_back(file, taken);
        return Ok(false);
    }
    let _serial = file.meta.lock();
    let told = lacking(inode, file, &content);
    if taken.units.is_empty() && told.is_none() {
        return Ok(true);
    }
    let bytes = taken.units.iter().map(|unit| unit.bytes.len()).sum();
    let told = told.unwrap_or_else(|| Told::nothing(inode, file));
    let units = std::mem::take(&mut taken.units);
    let named = told.naming(inode.ino).map_or(Ok(()), |naming| {
        // Both entries become durable with the same sync.
        mount.array.meta.apply_inode(naming).map(|_| ())
    });
    let harden = || mount.array.meta.apply_inode(told.hardening(inode.ino, units));
    let result = named.and_then(|()| harden());
    let full = matches!(&result, Err(error) if error.kind() == ErrorKind::NoSpace);
    match took(inode, file, &content, &told, result) {
        Ok(()) => {
            file.add_hardened(bytes);
            Ok(true)
        }
        Err(error) => {
            give_back(file, taken);
            if full { Ok(false) } else { Err(error) }
        }
    }
}

/// True if so much is kept that files with hardened units should be synced.
pub(crate) fn is_full(mount: &Mount) -> bool {
    mount.page_pool.hardened.load(Ordering::Acquire)
        >= KEPT_BYTES_MAX.min(mount.page_pool.dirty_max() / 2)
}

/// Takes the unsaved units below the size. Returns false if there are more than `units_max`, unless
/// they are scattered, or if a block must be sent whole.
fn take(file: &FileState, block_size: u64, size: u64, units_max: usize, taken: &mut Taken) -> bool {
    let Some(indexes) = file.unsaved_blocks(HARDENED_UNITS_MAX) else { return false };
    let scattered = (indexes.len() * SCATTERED_UNITS).min(HARDENED_UNITS_MAX);
    let units_max = units_max.max(scattered);
    for index in indexes {
        // A block that has left the map was sent, or was dropped with its bytes.
        let Some(block) = file.find_block(index) else { continue };
        let mut data = block.data.write();
        if data.detached || !data.dirty {
            continue;
        }
        if data.whole {
            return false;
        }
        let room = units_max - taken.units.len();
        let first = index * (block_size / UNIT_BYTES as u64);
        let Some(mut units) = copy_units(&data, first, size, room) else { return false };
        let mut numbers: Vec<usize> =
            units.iter().map(|unit| (unit.unit - first) as usize).collect();
        // The last unit also has bytes of a writer that has yet to raise the size, so it stays
        // unsaved.
        let goes_on = index * block_size + u64::from(data.length) > size;
        if goes_on && !size.is_multiple_of(UNIT_BYTES as u64) {
            numbers.retain(|number| first + *number as u64 != size / UNIT_BYTES as u64);
        }
        numbers.iter().for_each(|unit| data.unsaved.remove(*unit));
        if !data.is_unsaved() {
            file.remove_unsaved(index);
        }
        taken.units.append(&mut units);
        drop(data);
        taken.from.push((block, numbers));
    }
    true
}

/// The unsaved units of a block up to the size; `first` is the file's number of the block's first
/// unit. `None` if there are more than `room`.
fn copy_units(data: &BlockData, first: u64, size: u64, room: usize) -> Option<Vec<HardenedUnit>> {
    let mut units = Vec::new();
    for number in data.unsaved.iter() {
        let unit = first + number as u64;
        let left = size.saturating_sub(unit * UNIT_BYTES as u64);
        if left == 0 {
            break;
        }
        if units.len() == room {
            return None;
        }
        let mut bytes = vec![0; UNIT_BYTES.min(usize::try_from(left).unwrap_or(UNIT_BYTES))];
        data.copy_out(number * UNIT_BYTES, &mut bytes);
        units.push(HardenedUnit { unit, bytes });
    }
    Some(units)
}

/// Makes the taken units unsaved again.
fn give_back(file: &FileState, taken: Taken) {
    for (block, numbers) in taken.from {
        let mut data = block.data.write();
        // A block that was sent meanwhile has nothing unsaved, or has something newer.
        if data.detached || !data.dirty {
            continue;
        }
        numbers.into_iter().for_each(|unit| data.unsaved.insert(unit));
        if data.is_unsaved() {
            file.insert_unsaved(block.index);
        }
    }
}

/// Tells the metadata that everything hardened of a file is in stable stripes. The caller holds
/// `inode.syncing`, and has made all of the file stable since it took that lock.
pub(crate) fn fold(mount: &Mount, inode: &InodeState, file: &FileState) -> Result<()> {
    if !file.is_hardened() {
        return Ok(());
    }
    match mount.change(inode, MetaOp::Folded { ino: inode.ino }) {
        Ok(_) => {}
        // The file is gone, and so is what was kept of it.
        Err(error) if error.kind() == ErrorKind::Stale => {}
        Err(error) => return Err(error),
    }
    file.clear_hardened();
    Ok(())
}

#[cfg(test)]
#[path = "harden_test.rs"]
mod harden_test;
