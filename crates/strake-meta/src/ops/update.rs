//! NewObject, NewObjectAs, Update and MoveData: how an inode comes to name a file's bytes.
//!
//! A client reserves an object, writes strips of it and makes them stable. Only then does it name
//! the object in an Update. A reserved object that is never named is deleted when its file or its
//! client's life ends, so a crash leaks nothing.

use super::require_regular;
use crate::keys;
use crate::ops::set_attr::check_time;
use crate::records::{InodeRecord, Place, ReservedRecord};
use crate::transaction::Transaction;
use strake_proto::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
use strake_proto::meta::{FileData, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, ObjectId, ObjectLayout, Result, Timestamp};

/// One file may have this many objects, and may reserve as many. One is in use today. The others
/// leave room for a change of layout. The limit stops a client that reserves without end.
const OBJECTS_MAX: usize = 16;

/// The fields of an Update.
pub(crate) struct NewContent<'a> {
    pub(crate) size: u64,
    pub(crate) data: Option<&'a FileData>,
    pub(crate) allocated_delta: i64,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
}

pub(crate) fn new_object(txn: &mut Transaction<'_>, ino: Ino) -> Result<MetaReply> {
    check_may_reserve(txn, ino)?;
    let configuration = txn.configuration()?;
    let Some(layout) = configuration.pool.layouts.last() else {
        return Err(invalid("the pool has no layout yet"));
    };
    let object = txn.next_object()?;
    let layout = ObjectLayout {
        object,
        code: configuration.code,
        block_size: configuration.block_size,
        layout: layout.version,
        key: 0,
    };
    reserve(txn, ino, layout)
}

/// Reserves an object whose number was given to the client before.
pub(crate) fn new_object_as(
    txn: &mut Transaction<'_>,
    ino: Ino,
    layout: ObjectLayout,
) -> Result<MetaReply> {
    let record = txn.inode(ino)?;
    require_regular(record)?;
    if linked_objects(record).contains(&layout) {
        return Ok(MetaReply::Object(layout));
    }
    match txn.reserved(layout.object)? {
        Some(found) if found.ino == ino && found.layout == layout => {
            return Ok(MetaReply::Object(layout));
        }
        Some(_) => return Err(invalid("the object is reserved already")),
        None => {}
    }
    check_may_reserve(txn, ino)?;
    let configuration = txn.configuration()?;
    let ObjectLayout { code, block_size, layout: version, key, .. } = layout;
    let is_usual = (code, block_size, key) == (configuration.code, configuration.block_size, 0);
    if !is_usual || configuration.pool.layout(version).is_none() {
        return Err(invalid("no file may have such an object"));
    }
    reserve(txn, ino, layout)
}

fn check_may_reserve(txn: &mut Transaction<'_>, ino: Ino) -> Result<()> {
    let record = txn.inode(ino)?;
    require_regular(record)?;
    if record.reserved.len() >= OBJECTS_MAX {
        return Err(invalid("too many objects are reserved for this file"));
    }
    Ok(())
}

fn reserve(txn: &mut Transaction<'_>, ino: Ino, layout: ObjectLayout) -> Result<MetaReply> {
    let reserved = ReservedRecord { client: txn.client, ino, layout };
    txn.put(keys::reserved(layout.object), &reserved);
    txn.inode_mut(ino)?.reserved.push(layout.object);
    Ok(MetaReply::Object(layout))
}

pub(crate) fn update(
    txn: &mut Transaction<'_>,
    ino: Ino,
    new: &NewContent<'_>,
) -> Result<MetaReply> {
    if new.size > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooBig.into());
    }
    for time in [new.mtime, new.ctime].into_iter().flatten() {
        check_time(time)?;
    }
    require_regular(txn.inode(ino)?)?;
    if let Some(data) = new.data {
        set_data(txn, ino, data, new.size)?;
    }
    txn.cut_hardened(ino, new.size)?;
    let record = txn.inode_mut(ino)?;
    record.size = new.size;
    cut_inline(&mut record.tail, new.size);
    record.mtime = new.mtime.unwrap_or(record.mtime);
    record.ctime = new.ctime.unwrap_or(record.ctime).max(record.ctime);
    txn.add_allocated(ino, new.allocated_delta)?;
    txn.reply_inode(ino)
}

/// Cuts inline data at the size, so that a file which grows later shows zeros there.
pub(crate) fn cut_inline(tail: &mut Vec<u8>, size: u64) {
    if size < tail.len() as u64 {
        tail.truncate(size as usize);
    }
}

/// Gives a file's bytes a new place. Objects that the file no longer names are queued for deletion.
fn set_data(txn: &mut Transaction<'_>, ino: Ino, data: &FileData, size: u64) -> Result<()> {
    let (place, tail) = match data {
        FileData::Empty => (Place::Empty, Vec::new()),
        FileData::Inline(bytes) => {
            if bytes.len() > INLINE_BYTES_MAX || bytes.len() as u64 > size {
                return Err(invalid("inline data is beyond its limit or the size"));
            }
            (Place::Inline, bytes.clone())
        }
        FileData::Objects(objects) => {
            check_objects(txn, ino, objects)?;
            (Place::Objects(objects.clone()), Vec::new())
        }
    };
    let named: &[ObjectLayout] = match &place {
        Place::Objects(objects) => objects,
        _ => &[],
    };
    let is_named = |object: ObjectId| named.iter().any(|layout| layout.object == object);
    if *named != *linked_objects(txn.inode(ino)?) {
        txn.drop_hardened(ino)?;
    }
    let record = txn.inode_mut(ino)?;
    let (linked, reserved): (Vec<_>, Vec<_>) =
        record.reserved.iter().partition(|object| is_named(**object));
    record.reserved = reserved;
    record.tail = tail;
    let old = std::mem::replace(&mut record.place, place.clone());
    for object in linked {
        txn.remove(keys::reserved(object));
    }
    if let Place::Objects(objects) = old {
        for layout in objects.into_iter().filter(|layout| !is_named(layout.object)) {
            txn.queue_object(layout)?;
        }
    }
    Ok(())
}

/// Gives `ino`, whose bytes are in `object`, the bytes of `from`.
pub(crate) fn move_data(
    txn: &mut Transaction<'_>,
    ino: Ino,
    object: ObjectId,
    from: Ino,
) -> Result<MetaReply> {
    let target = txn.inode(ino)?.clone();
    require_regular(&target)?;
    let source = txn.inode(from)?.clone();
    require_regular(&source)?;
    let old = match *linked_objects(&target) {
        [old] if old.object == object => old,
        _ => return Err(Error::new(ErrorKind::Stale, "the file has its bytes elsewhere by now")),
    };
    if ino == from || source.tail.len() as u64 > target.size {
        return Err(invalid("these bytes are not the file's"));
    }
    if target.hardened > 0 || source.hardened > 0 {
        return Err(Error::new(ErrorKind::Busy, "small writes are not in the object yet"));
    }
    let record = txn.inode_mut(ino)?;
    (record.place, record.tail) = (source.place, source.tail);
    let record = txn.inode_mut(from)?;
    (record.place, record.tail, record.size) = (Place::Empty, Vec::new(), 0);
    txn.set_allocated(from, 0)?;
    txn.set_allocated(ino, source.allocated)?;
    txn.queue_object(old)?;
    txn.reply_inode(ino)
}

/// The objects that hold a file's bytes.
fn linked_objects(record: &InodeRecord) -> &[ObjectLayout] {
    match &record.place {
        Place::Objects(objects) => objects,
        _ => &[],
    }
}

/// Checks that each object already belongs to the file or is reserved for it, with the same layout.
fn check_objects(txn: &mut Transaction<'_>, ino: Ino, objects: &[ObjectLayout]) -> Result<()> {
    let record = txn.inode(ino)?;
    let linked = linked_objects(record).to_vec();
    let distinct = objects
        .iter()
        .enumerate()
        .all(|(index, layout)| objects[..index].iter().all(|other| other.object != layout.object));
    if objects.is_empty() || objects.len() > OBJECTS_MAX || !distinct {
        return Err(invalid("a file has 1 to 16 different objects"));
    }
    for layout in objects {
        if linked.contains(layout) {
            continue;
        }
        let reserved = txn.reserved(layout.object)?;
        if !reserved.is_some_and(|found| found.ino == ino && found.layout == *layout) {
            return Err(invalid("an object is not reserved for this file"));
        }
    }
    Ok(())
}

fn invalid(detail: &str) -> Error {
    Error::new(ErrorKind::Invalid, detail)
}
