//! A file gets an object for its first bytes.
//!
//! Beside others the client gives it one whose number it has reserved, and the metadata is told
//! later, as it is of names ([`crate::ops::later`]). No strip of the object is sent before that is
//! durable: a client that dies leaves none that nobody knows of.

use crate::mount::Mount;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{MetaOp, MetaReply};
use strake_proto::{Ino, ObjectId, ObjectLayout, Result};

/// Gives a file an object. The caller holds the file exclusively, so that nobody else gives it one
/// or removes it.
pub(super) fn new_object(mount: &Mount, ino: Ino) -> Result<ObjectLayout> {
    if let Some(layout) = new_object_later(mount, ino)? {
        return Ok(layout);
    }
    match mount.array.meta.apply(MetaOp::NewObject { ino })? {
        MetaReply::Object(layout) => Ok(layout),
        _ => Err(wrong_reply()),
    }
}

/// Gives a file an object that was reserved. `None`: the metadata has to be asked.
fn new_object_later(mount: &Mount, ino: Ino) -> Result<Option<ObjectLayout>> {
    if mount.tokens.is_none() || !mount.reserved.is_understood() {
        return Ok(None);
    }
    let Some(object) = next_object(mount)? else { return Ok(None) };
    let (meta, layout) = (&mount.array.meta, mount.array.layout_of_new(object));
    let is_taken = layout.is_some_and(|layout| {
        let op = MetaOp::NewObjectAs { ino, layout };
        meta.apply_later(op, meta.time(), MetaReply::Object(layout)).is_ok()
    });
    if !is_taken {
        // It was named to nobody.
        mount.reserved_objects.give_back(object);
    }
    Ok(layout.filter(|_| is_taken))
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
