//! A file gets an object for its first bytes.
//!
//! Beside others the client gives it one whose number it has reserved, and the metadata is told
//! later, as it is of names ([`crate::ops::later`]). No strip of the object is sent before that is
//! durable: a client that dies leaves none that nobody knows of.

use crate::inode::core::InodeState;
use crate::mount::Mount;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{MetaOp, MetaReply};
use strake_proto::{ObjectId, ObjectLayout, Result};

/// Gives a file an object. The caller holds the file exclusively, so that no other client gives it
/// one or removes it.
pub(super) fn new_object(mount: &Mount, inode: &InodeState) -> Result<ObjectLayout> {
    if let Some(layout) = new_object_later(mount, inode)? {
        return Ok(layout);
    }
    match mount.array.meta.apply(MetaOp::NewObject { ino: inode.ino })? {
        MetaReply::Object(layout) => Ok(layout),
        _ => Err(wrong_reply()),
    }
}

/// Gives a file an object that was reserved. `None`: the metadata has to be asked.
fn new_object_later(mount: &Mount, inode: &InodeState) -> Result<Option<ObjectLayout>> {
    if mount.tokens.is_none() || !mount.reserved.is_understood() {
        return Ok(None);
    }
    let Some(object) = next_object(mount)? else { return Ok(None) };
    let layout = mount.array.layout_of_new(object);
    let taken = layout.filter(|layout| tell_later(mount, inode, *layout));
    if taken.is_none() {
        // It was named to nobody.
        mount.reserved_objects.give_back(object);
    }
    Ok(taken)
}

/// Has the metadata told later of an object. False if that is not possible.
fn tell_later(mount: &Mount, inode: &InodeState, layout: ObjectLayout) -> bool {
    // Held until the change is taken: a removal of the file that is noted before is seen here, and
    // one that is noted after it comes after it. A file without a name may be gone by now.
    let core = inode.core.lock();
    let (meta, op) = (&mount.array.meta, MetaOp::NewObjectAs { ino: inode.ino, layout });
    core.stays() && meta.apply_later(op, meta.time(), MetaReply::Object(layout)).is_ok()
}

fn next_object(mount: &Mount) -> Result<Option<ObjectId>> {
    let now = mount.array.clock.monotonic();
    mount.reserved_objects.take(now, |count| {
        match mount.array.meta.apply(MetaOp::ReserveObjects { count })? {
            MetaReply::Objects(objects) => Ok(objects.into()),
            _ => Err(wrong_reply()),
        }
    })
}
