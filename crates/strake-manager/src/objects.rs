//! The objects of which NSDs hold strips, and the *unowned* ones among them, which belong to no
//! file.

use crate::scan::scan_objects;
use std::collections::{BTreeSet, HashSet};
use strake_array::Array;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{MetaQuery, MetaReply};
use strake_proto::nsd::{NsdReply, NsdRequest};
use strake_proto::{BlockIndex, ErrorKind, ObjectId, Result, SlotIndex, StripIndex};

/// The objects of which an NSD holds strips.
pub(crate) fn objects_on(array: &Array, slot: SlotIndex) -> Result<Vec<ObjectId>> {
    let (mut objects, mut next) = (Vec::new(), ObjectId(0));
    while let Some(object) = object_from(array, slot, next)? {
        objects.push(object);
        next = ObjectId(object.0.saturating_add(1));
    }
    Ok(objects)
}

/// The unowned ones among `objects`, of which NSDs hold strips: no file has them or will have them.
pub(crate) fn unowned(
    array: &Array,
    mut objects: BTreeSet<ObjectId>,
) -> Result<BTreeSet<ObjectId>> {
    if objects.is_empty() {
        return Ok(objects);
    }
    // An object is reserved for a file, then the file's, then its deletion is pending, then its
    // strips are gone. It only moves forward, so it is looked for in this order.
    let mut found: HashSet<ObjectId> = HashSet::new();
    for object in &objects {
        match array.meta.query(&MetaQuery::IsReserved { object: *object }) {
            Ok(_) => {
                found.insert(*object);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    scan_objects(array, &mut |_, layout| {
        found.insert(layout.object);
        Ok(())
    })?;
    found.extend(pending_objects(array)?);
    objects.retain(|object| !found.contains(object));
    Ok(objects)
}

/// The first object at or after `from` of which the NSD holds a strip.
pub(crate) fn object_from(
    array: &Array,
    slot: SlotIndex,
    from: ObjectId,
) -> Result<Option<ObjectId>> {
    let request = NsdRequest::List {
        fs: array.io.nsds().fs(),
        object: from,
        block: BlockIndex(0),
        strip: StripIndex(0),
        until: ObjectId(u64::MAX),
        limit: 1,
    };
    match array.io.nsds().call(slot, &request, &[], &mut [])? {
        NsdReply::Strips { entries, .. } => match entries.first() {
            Some(entry) if entry.key.object < from => Err(wrong_reply()),
            first => Ok(first.map(|entry| entry.key.object)),
        },
        _ => Err(wrong_reply()),
    }
}

fn pending_objects(array: &Array) -> Result<HashSet<ObjectId>> {
    let mut objects = HashSet::new();
    let mut after = 0;
    loop {
        let query = MetaQuery::PendingRanges { after, limit: 1000 };
        let MetaReply::PendingRanges(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last() else { return Ok(objects) };
        after = last.id;
        objects.extend(page.iter().map(|range| range.layout.object));
    }
}
