//! Making and removing names without waiting for the metadata.
//!
//! Beside others a client holds the directory exclusively. So it often knows what the metadata
//! would answer, and the program goes on at once. The metadata is told with the changes that
//! follow, and before anything else is asked of it
//! ([`strake_array::meta_link::MetaLink::apply_later`]).
//!
//! An error of an earlier change (`Io`) goes to the program, whichever question brings it.
//!
//! - *A name is made* that is known to be absent. The inode is known then, all but its number. So
//!   the client keeps numbers that it has reserved, each with its token.
//! - *A name is removed* whose inode is known, and not open here.

use crate::inode::core::InodeState;
use crate::inode::known::is_plain_name;
use crate::inode::open_table::Pinned;
use crate::mount::Mount;
use crate::ops::xattr::may_have_default_acl;
use std::collections::VecDeque;
use strake_proto::limits::SYMLINK_BYTES_MAX;
use strake_proto::meta::{Inode, MetaOp, MetaReply, NewInode, Removed};
use strake_proto::{Attr, FileType, Ino, Result, Timestamp};

/// A reserved number. `None` if the metadata gives none now.
fn next_ino(mount: &Mount) -> Result<Option<Ino>> {
    let now = mount.array.clock.monotonic();
    mount.reserved.take(now, |count| reserve(mount, count))
}

/// Whether the metadata takes such changes.
fn is_understood(mount: &Mount) -> Result<bool> {
    if !mount.reserved.is_understood()
        && let Some(ino) = next_ino(mount)?
    {
        mount.reserved.give_back(ino);
    }
    Ok(mount.reserved.is_understood())
}

/// Reserves inode numbers. Those that come without a token are of no use: the leader has just
/// changed.
fn reserve(mount: &Mount, count: u32) -> Result<VecDeque<Ino>> {
    let making = mount.tokens.as_ref().map(|tokens| tokens.make());
    let reply = mount.array.meta.apply(MetaOp::ReserveInodes { count })?;
    let (Some(making), MetaReply::Reserved { inodes, grants, term }) = (making, reply) else {
        return Ok(VecDeque::new());
    };
    let granted = inodes.into_iter().zip(grants);
    Ok(granted
        .map(|(ino, grant)| {
            making.reserved(ino, (term, grant));
            ino
        })
        .collect())
}

/// Makes an inode with a name, if all that the metadata would decide is known here. The caller
/// holds the directory exclusively, and may change it. Returns it pinned. `None`: the metadata has
/// to be asked.
pub(crate) fn make_later(
    mount: &Mount,
    dir: &InodeState,
    name: &[u8],
    new: &NewInode,
) -> Result<Option<(Pinned, Inode)>> {
    let Some(tokens) = &mount.tokens else { return Ok(None) };
    let is_plain =
        matches!(new.file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
    let is_valid = is_plain_name(name) && new.target.len() <= SYMLINK_BYTES_MAX;
    let is_absent = || dir.core.lock().names.leads_alone_to(name, None);
    if !is_plain || !is_valid || !is_absent() || may_have_default_acl(mount, dir)? {
        return Ok(None);
    }
    let Some(ino) = next_ino(mount)? else { return Ok(None) };
    // Nobody can know the number before the change is taken.
    let inode = mount.table.pin(ino);
    {
        let mut core = inode.core.lock();
        core.no_default_acl = true;
        if new.file_type == FileType::Directory {
            core.names.begin_empty(&mount.names);
        }
    }
    // Held until the change is taken: another change of the name, or a removal of the directory,
    // that is noted before is seen here, and one that is noted after it comes after it.
    let core = dir.core.lock();
    let is_known = core.is_access_known() && core.no_default_acl && core.stays();
    if !is_known || !core.names.leads_alone_to(name, None) {
        mount.reserved.give_back(ino);
        return Ok(None);
    }
    let attr = core.attr();
    let (new, time) = (new.resolved((attr.permissions, attr.gid)), mount.array.meta.time());
    let made = new.made(dir.ino, ino, time);
    let op = MetaOp::CreateAs { parent: dir.ino, name: name.to_vec(), new, ino };
    let outcome = MetaReply::Inode(Box::new(made.clone()));
    if mount.array.meta.apply_later(op, time, outcome).is_err() {
        // The caller asks the metadata. There it waits for the earlier ones, or gets their error.
        return Ok(None);
    }
    drop(core);
    tokens.keep(ino);
    Ok(Some((inode, made)))
}

/// Removes the name of an inode, if all that the metadata would decide is known here. The caller
/// holds directory and inode exclusively, may change them, and holds the inode's `lifetime`, so
/// that it gets and loses no other name. Returns what the name was, and the time.
pub(crate) fn remove_later(
    mount: &Mount,
    dir: &InodeState,
    name: &[u8],
    inode: &InodeState,
) -> Result<Option<(Removed, Timestamp)>> {
    if mount.tokens.is_none() || !is_understood(mount)? {
        return Ok(None);
    }
    let removed = {
        let core = inode.core.lock();
        let Attr { ino, generation, file_type, links, .. } = core.attr();
        let is_known = core.is_loaded() && !core.removed && file_type != FileType::Directory;
        let Some(links) = links.checked_sub(1).filter(|_| is_known) else { return Ok(None) };
        Removed { ino, generation, file_type, links }
    };
    // Held until the change is taken, as above.
    let core = dir.core.lock();
    if !core.names.leads_alone_to(name, Some(inode.ino)) {
        return Ok(None);
    }
    let time = mount.array.meta.time();
    let (parent, name) = (dir.ino, name.to_vec());
    let op = MetaOp::Remove { parent, name, ino: inode.ino, open: false };
    let outcome = MetaReply::Removed(Some(removed));
    let is_taken = mount.array.meta.apply_later(op, time, outcome).is_ok();
    Ok(is_taken.then_some((removed, time)))
}
