//! Names: looking up, making, linking, removing, renaming.

use crate::context::Shared;
use crate::inode::core::{Core, InodeState};
use crate::inode::open_table::Pinned;
use crate::permissions::{EXECUTE, WRITE, check_sticky};
use crate::vfs::Entry;
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{Inode, MetaOp, MetaQuery, MetaReply, NewInode, Removed, RenameMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, Timestamp};

/// What `name` leads to, as the metadata has it, with the count of changes before the question.
fn find(shared: &Shared, parent: Ino, name: &[u8]) -> Result<(Inode, u64)> {
    let before = shared.array.meta.changes();
    let query = MetaQuery::Lookup { parent, name: name.to_vec() };
    Ok((shared.array.meta.query_inode(&query)?, before))
}

/// Counts a lookup of an inode that was just found or made.
pub(crate) fn enter(shared: &Shared, found: &Inode, before: u64) -> (Pinned, Entry) {
    let inode = shared.table.pin(found.attr.ino);
    shared.table.add_lookups(found.attr.ino, 1);
    let attr = shared.learn(&inode, found, before);
    (inode, Entry { attr })
}

/// See [`crate::Vfs::lookup`].
pub(crate) fn lookup(shared: &Shared, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
    if name == b"." {
        let before = shared.array.meta.changes();
        let found = shared.array.meta.query_inode(&MetaQuery::GetInode { ino: parent })?;
        return Ok(enter(shared, &found, before).1);
    }
    let dir = shared.table.pin(parent);
    let attr = shared.loaded(&dir, Core::attr)?;
    if attr.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    shared.check_access(caller, &dir, EXECUTE)?;
    if dir.core.lock().removed {
        return Err(ErrorKind::NotFound.into());
    }
    let (found, before) = find(shared, parent, name)?;
    Ok(enter(shared, &found, before).1)
}

/// Makes an inode with a name; returns it in use, with one lookup counted.
pub(crate) fn make(
    shared: &Shared,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    new: NewInode,
) -> Result<(Pinned, Entry, Inode)> {
    let dir = shared.table.pin(parent);
    let device = matches!(new.file_type, FileType::CharDevice | FileType::BlockDevice);
    shared.check_directory_change(caller, &dir)?;
    if device && caller.uid != 0 {
        return Err(ErrorKind::NotPermitted.into());
    }
    let result = shared.array.meta.apply_inode(MetaOp::Create { parent, name: name.to_vec(), new });
    let made = result?;
    dir.core.lock().forget();
    // Nobody else knows the inode yet, so whatever else changed, this is what it is.
    let (inode, entry) = enter(shared, &made, shared.array.meta.changes());
    Ok((inode, entry, made))
}

/// What a caller wants to make, as the metadata wants to be told.
pub(crate) fn new_inode(caller: &Caller, file_type: FileType, permissions: u32) -> NewInode {
    NewInode {
        file_type,
        permissions: permissions & 0o7777,
        umask: caller.umask,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        target: Vec::new(),
    }
}

/// See [`crate::Vfs::link`].
pub(crate) fn link(
    shared: &Shared,
    caller: &Caller,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<Entry> {
    let dir = shared.table.pin(parent);
    shared.check_directory_change(caller, &dir)?;
    let inode = shared.table.pin(ino);
    let epoch = inode.core.lock().epoch();
    let linked =
        shared.array.meta.apply_inode(MetaOp::Link { ino, parent, name: name.to_vec() })?;
    dir.core.lock().forget();
    shared.table.add_lookups(ino, 1);
    let mut core = inode.core.lock();
    // An orphan has a name again.
    core.removed = false;
    core.orphan = false;
    core.absorb_change(&linked, epoch);
    Ok(Entry { attr: core.merge(linked.attr) })
}

/// Removes a name; see [`crate::Vfs::unlink`] and [`crate::Vfs::rmdir`].
pub(crate) fn remove(
    shared: &Shared,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    directory: bool,
) -> Result<()> {
    let dir = shared.table.pin(parent);
    let dir_attr = shared.check_directory_change(caller, &dir)?;
    let _names = dir.names.lock();
    if name == b"." || name == b".." {
        // The metadata knows which error each of them is.
        shared.array.meta.apply(removal(parent, name, directory, false))?;
        return Ok(());
    }
    let (found, _) = find(shared, parent, name)?;
    check_sticky(caller, &dir_attr, &found.attr)?;
    let inode = shared.table.pin(found.attr.ino);
    let _last_name = inode.lifetime.write();
    // A directory that is open stays listable as empty without the metadata's help.
    let open = !directory && shared.table.handles(inode.ino) > 0;
    let reply = shared.array.meta.apply_timed(removal(parent, name, directory, open));
    dir.core.lock().forget();
    match reply? {
        (MetaReply::Removed(Some(removed)), time) => {
            lost_name(shared, &inode, (&found.attr, time), removed, open);
            Ok(())
        }
        _ => Err(wrong_reply()),
    }
}

fn removal(parent: Ino, name: &[u8], directory: bool, open: bool) -> MetaOp {
    let name = name.to_vec();
    if directory {
        MetaOp::Rmdir { parent, name, open }
    } else {
        MetaOp::Unlink { parent, name, open }
    }
}

/// Notes that an inode lost a name. The caller holds `lifetime` exclusively.
fn lost_name(
    shared: &Shared,
    inode: &InodeState,
    (last, time): (&Attr, Timestamp),
    removed: Removed,
    open: bool,
) {
    if removed.links > 0 {
        inode.core.lock().forget();
        return;
    }
    {
        let mut core = inode.core.lock();
        core.set_removed(*last, time);
        core.orphan = open;
    }
    if !open {
        shared.discard(inode);
    }
}

/// See [`crate::Vfs::rename`].
pub(crate) fn rename(
    shared: &Shared,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    (new_parent, new_name): (Ino, &[u8]),
    mode: RenameMode,
) -> Result<()> {
    let dirs = (shared.table.pin(parent), shared.table.pin(new_parent));
    let attr = shared.check_directory_change(caller, &dirs.0)?;
    let new_attr = shared.check_directory_change(caller, &dirs.1)?;
    let _names = lock_names(&dirs.0, &dirs.1);
    let (source, _) = find(shared, parent, name)?;
    let target = match find(shared, new_parent, new_name) {
        Ok((target, _)) => Some(target),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    check_sticky(caller, &attr, &source.attr)?;
    let moved = shared.table.pin(source.attr.ino);
    check_parent_change(shared, caller, &moved, &source.attr, parent != new_parent)?;
    if let Some(target) = target.as_ref().filter(|_| mode != RenameMode::NoReplace) {
        check_sticky(caller, &new_attr, &target.attr)?;
        if mode == RenameMode::Exchange {
            let other = shared.table.pin(target.attr.ino);
            check_parent_change(shared, caller, &other, &target.attr, parent != new_parent)?;
        }
    }
    let victim = target
        .filter(|target| target.attr.ino != source.attr.ino)
        .map(|target| (shared.table.pin(target.attr.ino), target.attr));
    let _last_name = victim.as_ref().map(|(victim, _)| victim.lifetime.write());
    let open = victim.as_ref().is_some_and(|(victim, attr)| {
        attr.file_type != FileType::Directory && shared.table.handles(victim.ino) > 0
    });
    let reply = shared.array.meta.apply_timed(MetaOp::Rename {
        parent,
        name: name.to_vec(),
        new_parent,
        new_name: new_name.to_vec(),
        mode,
        open,
    });
    dirs.0.core.lock().forget();
    dirs.1.core.lock().forget();
    moved.core.lock().forget();
    match (reply?, victim.as_ref()) {
        ((MetaReply::Removed(Some(removed)), time), Some((victim, attr)))
            if removed.ino == victim.ino =>
        {
            lost_name(shared, victim, (attr, time), removed, open);
        }
        ((MetaReply::Removed(_), _), Some((victim, _))) => victim.core.lock().forget(),
        ((MetaReply::Removed(_), _), None) => {}
        _ => return Err(wrong_reply()),
    }
    Ok(())
}

/// Locks the names of one or two directories, always in the order of their numbers.
fn lock_names<'a>(
    one: &'a Arc<InodeState>,
    other: &'a Arc<InodeState>,
) -> (strake_env::sync::MutexGuard<'a, ()>, Option<strake_env::sync::MutexGuard<'a, ()>>) {
    if one.ino == other.ino {
        return (one.names.lock(), None);
    }
    let (first, second) = if one.ino < other.ino { (one, other) } else { (other, one) };
    let guard = first.names.lock();
    (guard, Some(second.names.lock()))
}

/// A directory that gets another parent is itself written to: its `..` changes.
fn check_parent_change(
    shared: &Shared,
    caller: &Caller,
    inode: &InodeState,
    attr: &Attr,
    moves: bool,
) -> Result<()> {
    if moves && attr.file_type == FileType::Directory {
        shared.check_access(caller, inode, WRITE)?;
    }
    Ok(())
}
