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
//! So an `fsync` saves the units that were written since they were last saved, and those that are
//! on their way to the NSDs ([`Block::flying`]). Of what is kept, the metadata forgets with the
//! same sync whatever a stable stripe has newer ([`crate::memory::kept`]).
//!
//! In these cases no entry is made, and the file is synced the long way:
//!
//! * A block was sent and is not stable yet, and it is not known which of its units must be saved:
//!   the block is new or longer, or may have been lost before.
//! * Such a block was sent since something of the file was kept.
//! * Stripes may have newer bytes of a kept unit, and none of them is stable.
//! * The metadata does not name the object yet, and knows bytes of the file that are elsewhere.
//! * A block must be sent whole because its stored version is stale.
//!
//! What is kept is *folded* piece by piece, so that it never fills up under a sustained load: see
//! `flush/folding.rs`.

use crate::flush::folding::{forget, wait_for_folding};
use crate::flush::told::{Told, lacking, took};
use crate::inode::core::InodeState;
use crate::memory::block::{Block, BlockData, UnitSet};
use crate::memory::file::{Content, FileState};
use crate::memory::kept::UnitOfFile;
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::limits::{HARDENED_UNITS_MAX, UNIT_BYTES};
use strake_proto::meta::{HardenedUnit, MetaOp};
use strake_proto::{ErrorKind, Result};

/// More than the threshold is hardened if the blocks concerned have at most this many unsaved units
/// each, on average. To send so little of so many blocks would take much longer.
const SCATTERED_UNITS: usize = 4;

/// What was taken from the blocks for an entry.
#[derive(Default)]
struct Taken {
    units: Vec<HardenedUnit>,
    from: Vec<(Arc<Block>, Vec<UnitOfFile>)>,
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
    // What is hardened counts for the whole file, of which others may write other blocks.
    let is_possible = units_max > 0 && !file.is_beside && file.has_something_to_harden();
    if !is_possible || !wait_for_folding(mount) {
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
    let was_hardened = file.is_hardened();
    if !was_hardened {
        file.sent.store(false, Ordering::Release);
    }
    // The size is read before the blocks, because a writer raises the size after its bytes are in
    // place.
    let size = file.size();
    inode.core.lock().size_target = Some(size);
    let mut taken = Taken::default();
    // Before the copy: what is forgotten between copy and entry would stay, known to nobody.
    let _serial = file.meta.lock();
    // What lags behind only later was written after this call.
    let lagging = file.kept(|kept| kept.lagging());
    let complete = take(file, layout.block_size, size, units_max, &mut taken);
    let is_lagging = file.kept(|kept| kept.are_lagging(&lagging));
    // Checked after the blocks: a block that was sent before we looked at it is now counted as
    // opaque. If something of the file was hardened before, it has also set `sent`.
    let outdated = was_hardened && file.sent.load(Ordering::Acquire);
    if !complete || is_lagging || outdated || file.opaque.load(Ordering::Acquire) > 0 {
        give_back(file, taken);
        return Ok(false);
    }
    // Both entries become durable with the same sync.
    if let Err(error) = forget(mount, inode, file, layout.block_size, true) {
        give_back(file, taken);
        return Err(error);
    }
    let told = lacking(inode, file, &content);
    if taken.units.is_empty() && told.is_none() {
        return Ok(true);
    }
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
        Ok(()) => Ok(true),
        Err(error) => {
            give_back(file, taken);
            if full { Ok(false) } else { Err(error) }
        }
    }
}

/// Takes the units below the size that are on no disk. Returns false if there are more than
/// `units_max`, unless they are scattered, or if a block must be sent whole.
fn take(file: &FileState, block_size: u32, size: u64, units_max: usize, taken: &mut Taken) -> bool {
    let Some(indexes) = file.unsaved_blocks(HARDENED_UNITS_MAX) else { return false };
    let scattered = (indexes.len() * SCATTERED_UNITS).min(HARDENED_UNITS_MAX);
    let units_max = units_max.max(scattered);
    // A block that has left the map was sent, or was dropped with its bytes.
    indexes.into_iter().filter_map(|index| file.find_block(index)).all(|block| {
        let bounds =
            Bounds { block_size: block_size.into(), size, room: units_max - taken.units.len() };
        take_block(file, &block, &bounds, taken)
    })
}

/// What may be taken of a block.
struct Bounds {
    block_size: u64,
    /// The size of the file.
    size: u64,
    /// So many units at most.
    room: usize,
}

fn take_block(file: &FileState, block: &Arc<Block>, bounds: &Bounds, taken: &mut Taken) -> bool {
    let data = block.data.read();
    // A block that is being sent is clean, and others may read it meanwhile.
    if data.detached || !data.dirty {
        return data.detached || take_units(file, block, &data, bounds, taken).is_some();
    }
    drop(data);
    let mut data = block.data.write();
    if data.detached {
        return true;
    }
    let Some(numbers) = take_units(file, block, &data, bounds, taken) else { return false };
    numbers.iter().for_each(|unit| data.unsaved.remove(*unit));
    if data.dirty && !data.is_unsaved() {
        file.remove_unsaved(block.index);
    }
    true
}

/// Copies the units of a block that are on no disk. Returns those that are saved then. `None` if
/// there are too many, or if the block must be sent. The caller holds the block's lock.
fn take_units(
    file: &FileState,
    block: &Arc<Block>,
    data: &BlockData,
    &Bounds { block_size, size, room }: &Bounds,
    taken: &mut Taken,
) -> Option<Vec<usize>> {
    if data.dirty && data.whole {
        return None;
    }
    let mut wanted = if data.dirty { data.unsaved.clone() } else { UnitSet::default() };
    let flying = block.flying.lock().clone().unwrap_or_default();
    let is_current = |unit: usize| file.kept(|kept| kept.is_current((block.index, unit as u32)));
    flying.iter().filter(|unit| !is_current(*unit)).for_each(|unit| wanted.insert(unit));
    let first = block.index * (block_size / UNIT_BYTES as u64);
    let mut units = copy_units(data, &wanted, first, size, room)?;
    let mut numbers: Vec<usize> = units.iter().map(|unit| (unit.unit - first) as usize).collect();
    let hardened: Vec<UnitOfFile> =
        numbers.iter().map(|unit| (block.index, *unit as u32)).collect();
    // The last unit also has bytes of a writer that has yet to raise the size, so it stays unsaved.
    let goes_on = block.index * block_size + u64::from(data.length) > size;
    if goes_on && !size.is_multiple_of(UNIT_BYTES as u64) {
        let last = size / UNIT_BYTES as u64;
        let is_last = |number: &usize| first + *number as u64 == last;
        if numbers.iter().any(|it| is_last(it) && !(data.dirty && data.unsaved.contains(*it))) {
            return None;
        }
        numbers.retain(|number| !is_last(number));
    }
    file.kept(|kept| hardened.iter().for_each(|at| kept.harden(*at)));
    taken.units.append(&mut units);
    taken.from.push((Arc::clone(block), hardened));
    Some(numbers)
}

/// The wanted units of a block up to the size; `first` is the file's number of the block's first
/// unit. `None` if there are more than `room`.
fn copy_units(
    data: &BlockData,
    wanted: &UnitSet,
    first: u64,
    size: u64,
    room: usize,
) -> Option<Vec<HardenedUnit>> {
    let mut units = Vec::new();
    for number in wanted.iter() {
        let unit = first + number as u64;
        let left = size.saturating_sub(unit * UNIT_BYTES as u64);
        if left == 0 {
            break;
        }
        if units.len() == room {
            return None;
        }
        assert!(data.valid.contains(number), "what is on no disk is in memory");
        let mut bytes = vec![0; UNIT_BYTES.min(usize::try_from(left).unwrap_or(UNIT_BYTES))];
        data.copy_out(number * UNIT_BYTES, &mut bytes);
        units.push(HardenedUnit { unit, bytes });
    }
    Some(units)
}

/// Makes the taken units unsaved again. It is not known which bytes of them the metadata keeps.
fn give_back(file: &FileState, taken: Taken) {
    for (block, units) in taken.from {
        let mut data = block.data.write();
        file.kept(|kept| units.iter().for_each(|at| kept.doubt(*at)));
        if data.detached {
            continue;
        }
        if data.dirty {
            units.iter().for_each(|(_, unit)| data.unsaved.insert(*unit as usize));
            file.insert_unsaved(block.index);
        } else {
            // Unless it is stable by now, it was sent after the units had been taken.
            file.fly_again(&block, &units);
        }
    }
}

/// Tells the metadata that everything hardened of a file is in stable stripes. The caller holds
/// `inode.syncing`, and has made all of the file stable since it took that lock.
pub(crate) fn fold(mount: &Mount, inode: &InodeState, file: &FileState) -> Result<()> {
    // Others forget some units. What they name must not be hardened by another client meanwhile.
    let _serial = file.meta.lock();
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
