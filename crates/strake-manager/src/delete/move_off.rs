//! Moves every file off an NSD that is being deleted, while all mounts use the files.
//!
//! The metadata says already that the NSD is being emptied, so it gives no object a layout with the
//! NSD any more. An object that it gave before is named by its file, or is *reserved*: a client
//! writes to it and has not told the metadata yet. No scan lists reserved objects. So each file is
//! taken from all clients once ([`strake_array::Exclusion::settle`]), whatever the metadata says of
//! it. What they had reserved is named afterwards, or nobody knows of it. Then the file is moved if
//! it names an object with the NSD. After one pass over all files no file can have a strip there.
//!
//! A file that cannot be moved now does not keep others from being moved. Everything is gone
//! through again for it.

use super::go_on;
use crate::context::Repair;
use crate::scan::{allocated, scan_inodes};
use strake_array::exclusion::Moved;
use strake_proto::meta::{FileData, MetaQuery};
use strake_proto::{Error, ErrorKind, FileType, Ino, ObjectLayout, Result, SlotIndex};
use tracing::info;

/// Moves all files off the slot.
///
/// # Errors
/// `Unreachable` if the work is to stop; that of the first file that could not be moved.
pub(super) fn all(repair: &Repair, slot: SlotIndex) -> Result<()> {
    let nsds = repair.array.io.nsds();
    // The manager's own client is not among those from which files are taken.
    repair.exclusion.flush_all()?;
    let total = allocated(&repair.array)?;
    let (mut done, mut moved) = (0, 0);
    let mut left = None;
    nsds.show_progress(slot, Some((0, total)));
    scan_inodes(&repair.array, &mut |inode| {
        if inode.attr.file_type == FileType::Regular {
            go_on(repair, 0)?;
            match move_off(repair, slot, inode.attr.ino) {
                Ok(count) => moved += count,
                // A dead client moves none.
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                Err(error) => {
                    left.get_or_insert((inode.attr.ino, error));
                }
            }
        }
        done += inode.attr.allocated;
        nsds.show_progress(slot, Some((done.min(total), total)));
        Ok(())
    })?;
    info!(target: "disks", "{moved} files moved off NSD {}", nsds.nsd(slot));
    match left {
        None => Ok(()),
        Some((ino, error)) => {
            Err(Error::new(error.kind(), format!("inode {ino} is moved later: {error}")))
        }
    }
}

/// Moves one file, if it has an object with the slot. Returns how often it was moved.
fn move_off(repair: &Repair, slot: SlotIndex, ino: Ino) -> Result<u64> {
    let mut moved = 0;
    loop {
        repair.exclusion.settle(ino)?;
        let Some((layout, bytes)) = object_on(repair, slot, ino)? else { return Ok(moved) };
        let mut copied = 0;
        let outcome = repair.exclusion.move_file(ino, &layout, &mut |bytes| {
            copied += bytes;
            go_on(repair, bytes)
        })?;
        match outcome {
            Moved::Done => moved += 1,
            Moved::Elsewhere => {}
            Moved::InUse => return Err(Error::new(ErrorKind::Unreachable, "it is in use")),
        }
        // What was copied while everybody was kept away from the file counts afterwards.
        go_on(repair, bytes.saturating_sub(copied))?;
    }
}

/// An object of the file whose layout has the slot, and the bytes that the file has on disks.
fn object_on(repair: &Repair, slot: SlotIndex, ino: Ino) -> Result<Option<(ObjectLayout, u64)>> {
    let inode = match repair.array.meta.query_inode(&MetaQuery::GetInode { ino }) {
        Err(error) if error.kind() == ErrorKind::Stale => return Ok(None),
        inode => inode?,
    };
    let FileData::Objects(layouts) = inode.data else { return Ok(None) };
    for layout in layouts {
        if repair.array.io.nsds().is_member(&layout, slot)? {
            return Ok(Some((layout, inode.attr.allocated)));
        }
    }
    Ok(None)
}
