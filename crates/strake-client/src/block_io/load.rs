//! From the NSDs to a block in memory.

use crate::block_io::accepted::AcceptedBlock;
use crate::inode::core::InodeState;
use crate::memory::block::{Block, BlockData, STORED_UNKNOWN};
use crate::memory::file::FileState;
use crate::memory::page_pool::Fill;
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::stripe_io::{Access, Found, Written, padded_bytes};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{BlockIndex, ObjectLayout, Result};

/// The length with which a block is stored. Asks the NSDs if it is not known.
pub(crate) fn stored_length(mount: &Mount, layout: &ObjectLayout, block: &Block) -> Result<u32> {
    let stored = block.stored.load(Ordering::Acquire);
    if stored != STORED_UNKNOWN {
        return Ok(stored);
    }
    let index = BlockIndex(block.index);
    let floor = mount.array.floors.floor(layout.object, index);
    Ok(block.note_stored(mount.array.io.head(layout, index, floor)?))
}

/// Reads the missing units of `from..to` of a block from the NSDs into its buffer. The caller holds
/// the block's lock exclusively. `access` says whether it excludes other mounts, too.
///
/// # Errors
/// `Retry` if the block must be written anew, and access is shared. Those of [`StripeIo::read`].
///
/// [`StripeIo::read`]: strake_array::stripe_io::StripeIo::read
#[allow(clippy::too_many_arguments, reason = "the block, its place and the range")]
pub(crate) fn load(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    layout: &ObjectLayout,
    block: &Block,
    data: &mut BlockData,
    (from, to): (usize, usize),
    access: Access,
) -> Result<()> {
    let to = to.min(data.limit as usize).next_multiple_of(UNIT_BYTES);
    let mut first = from / UNIT_BYTES;
    let mut end = to / UNIT_BYTES;
    while first < end && data.valid.contains(first) {
        first += 1;
    }
    while first < end && data.valid.contains(end - 1) {
        end -= 1;
    }
    if first == end {
        return Ok(());
    }
    block.grow(data, &mount.page_pool, end * UNIT_BYTES, Fill::Whole);
    let (start, stop) = (first * UNIT_BYTES, end * UNIT_BYTES);
    let index = BlockIndex(block.index);
    let floor = mount.array.floors.floor(layout.object, index);
    let expected = expected_length(file, layout, block, data.limit);
    let read =
        |out: &mut [u8]| mount.array.io.read(layout, index, floor, expected, start, out, access);
    let untouched = (first..end).all(|unit| !data.valid.contains(unit));
    let limit = data.limit as usize;
    let buffer = data.buffer.as_mut().expect("invariant: just grown");
    let found = if untouched {
        read(&mut buffer[start..stop])?
    } else {
        let mut bytes = mount.array.io.scratch().take(stop - start);
        let found = read(&mut bytes)?;
        for unit in (first..end).filter(|unit| !data.valid.contains(*unit)) {
            let at = unit * UNIT_BYTES;
            buffer[at..at + UNIT_BYTES]
                .copy_from_slice(&bytes[at - start..at - start + UNIT_BYTES]);
        }
        found
    };
    // Only the last unit can have stale bytes beyond the end of the file.
    if limit < stop {
        buffer[limit..stop].fill(0);
    }
    data.valid.insert_range(first, end);
    data.count(&mount.page_pool);
    if let Some(Found { rewritten: Some(written), .. }) = found {
        note_rewritten(mount, inode, file, block, layout, written);
    }
    // Comes after the rewritten block was pinned: while it is pinned its version does not count as
    // stable.
    block.note_stored(found.map(|found| (found.version, found.block_bytes)));
    Ok(())
}

/// Completes a block of which NSDs may hold different versions. The missing units are read at the
/// version that is known to be stable; they are the same in all versions. Returns false if that
/// version cannot be read. The caller holds the block's lock exclusively.
pub(crate) fn load_stable(
    mount: &Mount,
    layout: &ObjectLayout,
    block: &Block,
    data: &mut BlockData,
) -> bool {
    let (version, length) = (block.stable(), block.stored.load(Ordering::Acquire));
    let (index, io) = (BlockIndex(block.index), &mount.array.io);
    if !block.is_unsure()
        || version <= mount.array.floors.floor(layout.object, index)
        || [0, STORED_UNKNOWN].contains(&length)
    {
        return false;
    }
    let mut bytes = io.scratch().take(padded_bytes(layout.code, length));
    if io.read_version(layout, index, (version, length), &mut bytes).is_err() {
        return false;
    }
    let limit = data.limit as usize;
    bytes.get_mut(limit..).into_iter().for_each(|stale| stale.fill(0));
    let units = limit.div_ceil(UNIT_BYTES);
    block.grow(data, &mount.page_pool, units * UNIT_BYTES, Fill::Whole);
    for unit in 0..units {
        if data.valid.contains(unit) {
            continue;
        }
        data.zero_unit(unit);
        let stored = bytes.chunks_exact(UNIT_BYTES).nth(unit);
        if let (Some(stored), Some(buffer)) = (stored, &mut data.buffer) {
            buffer[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES].copy_from_slice(stored);
        }
    }
    data.count(&mount.page_pool);
    true
}

/// A read had to write the block anew. The new version is accepted, and becomes stable like any
/// other write.
fn note_rewritten(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    block: &Block,
    layout: &ObjectLayout,
    written: Written,
) {
    let Some(block) = block.shared() else { return };
    block.pinned.fetch_add(1, Ordering::AcqRel);
    file.opaque.fetch_add(1, Ordering::AcqRel);
    mount.register(inode, &mut inode.core.lock());
    let (inode, file) = (Arc::clone(inode), Arc::clone(file));
    let restarts = mount.array.io.nsds().restarts();
    let array = Arc::downgrade(&mount.array);
    let (charge, claimed, gained) = (0, 0, 0);
    let (in_parts, in_place, reusable, is_tracked) = (false, false, false, false);
    let accepted = AcceptedBlock {
        array,
        inode,
        file,
        block,
        charge,
        claimed,
        gained,
        in_parts,
        in_place,
        reusable,
        is_tracked,
    };
    accepted.hand_over(layout, written, restarts);
}

/// The length that the block is probably stored with.
pub(crate) fn expected_length(
    file: &FileState,
    layout: &ObjectLayout,
    block: &Block,
    limit: u32,
) -> u32 {
    match block.stored.load(Ordering::Acquire) {
        0 | STORED_UNKNOWN => {}
        stored => return stored,
    }
    let start = block.index * u64::from(layout.block_size);
    let whole = file.told_size.load(Ordering::Acquire).saturating_sub(start);
    whole.min(u64::from(layout.block_size)).max(u64::from(limit)) as u32
}
