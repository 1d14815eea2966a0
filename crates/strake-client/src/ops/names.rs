//! Operations on names: lookup, create, link, remove, rename.

use crate::inode::core::{Core, InodeState};
use crate::inode::open_table::Pinned;
use crate::mount::Mount;
use crate::permissions::{EXECUTE, WRITE, check_sticky};
use crate::vfs::Entry;
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{Inode, MetaOp, MetaQuery, MetaReply, NewInode, Removed, RenameMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, Timestamp};

/// The inode that `name` leads to, from the metadata, and the count of changes before the query.
fn find(mount: &Mount, parent: Ino, name: &[u8]) -> Result<(Inode, u64)> {
    let before = mount.array.meta.changes();
    let query = MetaQuery::Lookup { parent, name: name.to_vec() };
    Ok((mount.array.meta.query_inode(&query)?, before))
}

/// Counts a lookup of an inode that was just found or made.
pub(crate) fn enter(mount: &Mount, found: &Inode, before: u64) -> (Pinned, Entry) {
    let inode = mount.table.pin(found.attr.ino);
    mount.table.add_lookups(found.attr.ino, 1);
    let attr = mount.learn(&inode, found, before);
    (inode, Entry { attr })
}

/// See [`crate::Vfs::lookup`].
pub(crate) fn lookup(mount: &Mount, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
    if name == b"." {
        let before = mount.array.meta.changes();
        let found = mount.array.meta.query_inode(&MetaQuery::GetInode { ino: parent })?;
        return Ok(enter(mount, &found, before).1);
    }
    let dir = mount.table.pin(parent);
    let attr = mount.loaded(&dir, Core::attr)?;
    if attr.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    mount.check_access(caller, &dir, EXECUTE)?;
    if dir.core.lock().removed {
        return Err(ErrorKind::NotFound.into());
    }
    let (found, before) = find(mount, parent, name)?;
    Ok(enter(mount, &found, before).1)
}

/// Makes an inode with a name. Returns it pinned, with one lookup counted.
pub(crate) fn make(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    new: NewInode,
) -> Result<(Pinned, Entry, Inode)> {
    let dir = mount.table.pin(parent);
    let device = matches!(new.file_type, FileType::CharDevice | FileType::BlockDevice);
    mount.check_directory_change(caller, &dir)?;
    if device && caller.uid != 0 {
        return Err(ErrorKind::NotPermitted.into());
    }
    let result = mount.array.meta.apply_inode(MetaOp::Create { parent, name: name.to_vec(), new });
    let made = result?;
    dir.core.lock().forget();
    // No other thread knows the inode yet, so its attributes are right whatever else changed.
    let (inode, entry) = enter(mount, &made, mount.array.meta.changes());
    Ok((inode, entry, made))
}

/// The description of a new inode for the metadata.
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
    mount: &Mount,
    caller: &Caller,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<Entry> {
    let dir = mount.table.pin(parent);
    mount.check_directory_change(caller, &dir)?;
    let inode = mount.table.pin(ino);
    let epoch = inode.core.lock().epoch();
    let linked = mount.array.meta.apply_inode(MetaOp::Link { ino, parent, name: name.to_vec() })?;
    dir.core.lock().forget();
    mount.table.add_lookups(ino, 1);
    let mut core = inode.core.lock();
    // If the inode was an orphan, it has a name again.
    core.removed = false;
    core.orphan = false;
    core.absorb_change(&linked, epoch);
    Ok(Entry { attr: core.merge(linked.attr) })
}

/// Removes a name: see [`crate::Vfs::unlink`] and [`crate::Vfs::rmdir`].
pub(crate) fn remove(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    directory: bool,
) -> Result<()> {
    let dir = mount.table.pin(parent);
    let dir_attr = mount.check_directory_change(caller, &dir)?;
    let _names = dir.names.lock();
    if name == b"." || name == b".." {
        // The metadata knows the error for each of them.
        mount.array.meta.apply(removal(parent, name, directory, false))?;
        return Ok(());
    }
    let (found, _) = find(mount, parent, name)?;
    check_sticky(caller, &dir_attr, &found.attr)?;
    let inode = mount.table.pin(found.attr.ino);
    let _last_name = inode.lifetime.write();
    // An open directory can still be listed, as empty, without the metadata.
    let open = !directory && mount.table.handles(inode.ino) > 0;
    let reply = mount.array.meta.apply_timed(removal(parent, name, directory, open));
    dir.core.lock().forget();
    match reply? {
        (MetaReply::Removed(Some(removed)), time) => {
            lost_name(mount, &inode, (&found.attr, time), removed, open);
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
    mount: &Mount,
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
        mount.discard(inode);
    }
}

/// See [`crate::Vfs::rename`].
pub(crate) fn rename(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    (new_parent, new_name): (Ino, &[u8]),
    mode: RenameMode,
) -> Result<()> {
    let dirs = (mount.table.pin(parent), mount.table.pin(new_parent));
    let attr = mount.check_directory_change(caller, &dirs.0)?;
    let new_attr = mount.check_directory_change(caller, &dirs.1)?;
    let _names = lock_names(&dirs.0, &dirs.1);
    let (source, _) = find(mount, parent, name)?;
    let target = match find(mount, new_parent, new_name) {
        Ok((target, _)) => Some(target),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    check_sticky(caller, &attr, &source.attr)?;
    let moved = mount.table.pin(source.attr.ino);
    check_parent_change(mount, caller, &moved, &source.attr, parent != new_parent)?;
    if let Some(target) = target.as_ref().filter(|_| mode != RenameMode::NoReplace) {
        check_sticky(caller, &new_attr, &target.attr)?;
        if mode == RenameMode::Exchange {
            let other = mount.table.pin(target.attr.ino);
            check_parent_change(mount, caller, &other, &target.attr, parent != new_parent)?;
        }
    }
    let victim = target
        .filter(|target| target.attr.ino != source.attr.ino)
        .map(|target| (mount.table.pin(target.attr.ino), target.attr));
    let _last_name = victim.as_ref().map(|(victim, _)| victim.lifetime.write());
    let open = victim.as_ref().is_some_and(|(victim, attr)| {
        attr.file_type != FileType::Directory && mount.table.handles(victim.ino) > 0
    });
    let reply = mount.array.meta.apply_timed(MetaOp::Rename {
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
            lost_name(mount, victim, (attr, time), removed, open);
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

/// Checks that the caller may move an inode to another directory. If it is a directory itself, it
/// is written to, because its `..` changes.
fn check_parent_change(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    attr: &Attr,
    moves: bool,
) -> Result<()> {
    if moves && attr.file_type == FileType::Directory {
        mount.check_access(caller, inode, WRITE)?;
    }
    Ok(())
}
