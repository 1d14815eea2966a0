//! Truncate, DeleteBlocks, DeleteBeyond: they remove bytes. The removed ranges are queued until
//! every NSD has applied them.
//!
//! Objects that are only reserved are cut as well, because the client may have written strips to
//! them that it will name later.

use super::require_regular;
use crate::ops::update::cut_inline;
use crate::records::Place;
use crate::transaction::Transaction;
use strake_proto::limits::FILE_BYTES_MAX;
use strake_proto::meta::MetaReply;
use strake_proto::{BlockIndex, Error, ErrorKind, Ino, ObjectLayout, Result, Version};

/// The fields of a Truncate.
pub(crate) struct NewSize {
    pub(crate) size: u64,
    pub(crate) from_block: Option<BlockIndex>,
    pub(crate) version: Version,
    pub(crate) allocated_delta: i64,
}

pub(crate) fn truncate(txn: &mut Transaction<'_>, ino: Ino, new: &NewSize) -> Result<MetaReply> {
    let time = txn.time;
    if new.size > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooBig.into());
    }
    require_regular(txn.inode(ino)?)?;
    txn.cut_hardened(ino, new.size)?;
    let record = txn.inode_mut(ino)?;
    record.size = new.size;
    record.mtime = time;
    record.ctime = time;
    cut_inline(&mut record.tail, new.size);
    if new.size == 0 {
        // The whole content goes, whatever the deltas added up to.
        record.tail.clear();
        let old = std::mem::replace(&mut record.place, Place::Empty);
        if let Place::Objects(objects) = old {
            for layout in objects {
                txn.queue_object(layout)?;
            }
        }
        txn.set_allocated(ino, 0)?;
    } else {
        txn.add_allocated(ino, new.allocated_delta)?;
    }
    if let Some(from) = new.from_block {
        for layout in objects(txn, ino)? {
            txn.queue_range(layout, from, BlockIndex::END, new.version, false)?;
        }
    }
    txn.reply_inode(ino)
}

/// The blocks that a DeleteBlocks removes.
pub(crate) struct Hole {
    pub(crate) from: BlockIndex,
    pub(crate) to: BlockIndex,
    pub(crate) version: Version,
    pub(crate) allocated_delta: i64,
}

pub(crate) fn delete_blocks(txn: &mut Transaction<'_>, ino: Ino, hole: &Hole) -> Result<MetaReply> {
    let time = txn.time;
    if hole.from > hole.to {
        return Err(Error::new(ErrorKind::Invalid, "a range ends before it begins"));
    }
    let record = txn.inode_mut(ino)?;
    require_regular(record)?;
    record.mtime = time;
    record.ctime = time;
    txn.add_allocated(ino, hole.allocated_delta)?;
    txn.punch_hardened(ino, hole.from, hole.to)?;
    for layout in objects(txn, ino)? {
        txn.queue_range(layout, hole.from, hole.to, hole.version, false)?;
    }
    txn.reply_inode(ino)
}

pub(crate) fn delete_beyond(
    txn: &mut Transaction<'_>,
    ino: Ino,
    from: BlockIndex,
    version: Version,
) -> Result<MetaReply> {
    require_regular(txn.inode(ino)?)?;
    for layout in objects(txn, ino)? {
        txn.queue_range(layout, from, BlockIndex::END, version, false)?;
    }
    txn.reply_inode(ino)
}

/// Every object that may hold strips of a file.
fn objects(txn: &mut Transaction<'_>, ino: Ino) -> Result<Vec<ObjectLayout>> {
    let record = txn.inode(ino)?.clone();
    let mut layouts = txn.reserved_layouts(&record)?;
    if let Place::Objects(linked) = record.place {
        layouts.extend(linked);
    }
    Ok(layouts)
}
