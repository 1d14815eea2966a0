//! Operations on attributes.

use crate::data::of::Of;
use crate::inode::core::InodeState;
use crate::inode::require_regular;
use crate::mount::Mount;
use crate::open_file::OpenFile;
use crate::ops::xattr;
use crate::permissions::{WRITE, check_owner, has_privileges, in_group};
use crate::vfs::{SetAttr, SetTime};
use std::sync::Arc;
use strake_proto::meta::{AttrChange, MetaOp};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Result};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Changes attributes: see [`crate::Vfs::setattr`].
pub(crate) fn setattr(
    mount: &Mount,
    caller: &Caller,
    inode: &Arc<InodeState>,
    open: Option<&OpenFile>,
    wanted: &SetAttr,
) -> Result<Attr> {
    let attr = mount.attr(inode)?;
    let change = permitted(mount, caller, inode, &attr, wanted)?;
    if let Some(size) = wanted.size {
        require_regular(attr.file_type)?;
        match open {
            Some(open) if open.flags.write => {}
            Some(_) => return Err(ErrorKind::Invalid.into()),
            None => {
                mount.check_access(caller, inode, WRITE)?;
            }
        }
        let file = match open {
            Some(open) if mount.tokens.is_none() => Arc::clone(&open.file),
            _ => mount.file(inode)?,
        };
        Of { mount, inode, file: &file }.set_size(size)?;
    }
    if let Some(change) = change {
        apply(mount, inode, change)?;
    }
    mount.attr(inode)
}

/// The change of everything but the size. Fails if the caller may not make it. `None` if there is
/// nothing to change.
fn permitted(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    attr: &Attr,
    wanted: &SetAttr,
) -> Result<Option<AttrChange>> {
    let root = caller.uid == 0;
    let mut change = AttrChange { ctime: wanted.ctime, ..AttrChange::default() };
    if let Some(permissions) = wanted.permissions {
        check_owner(caller, attr)?;
        let gid = wanted.gid.unwrap_or(attr.gid);
        let keeps = root || permissions & SETGID == 0 || in_group(caller, gid);
        change.permissions = Some(if keeps { permissions } else { permissions & !SETGID });
    }
    if let Some(uid) = wanted.uid {
        // An owner may "change" the owner to itself.
        let unchanged = caller.uid == attr.uid && uid == attr.uid;
        if !root && !unchanged {
            return Err(ErrorKind::NotPermitted.into());
        }
        change.uid = Some(uid);
    }
    if let Some(gid) = wanted.gid {
        let own = caller.uid == attr.uid && (gid == attr.gid || in_group(caller, gid));
        if !root && !own {
            return Err(ErrorKind::NotPermitted.into());
        }
        change.gid = Some(gid);
    }
    let moves_owner = change.uid.is_some() || change.gid.is_some();
    change.kill_privileges = wanted.kill_privileges || (moves_owner && !root);
    for time in [wanted.atime, wanted.mtime].into_iter().flatten() {
        if check_owner(caller, attr).is_err() {
            match time {
                SetTime::Now => mount.check_access(caller, inode, WRITE).map(|_| ())?,
                SetTime::At(_) => return Err(ErrorKind::NotPermitted.into()),
            }
        }
    }
    let at = |time: SetTime| match time {
        SetTime::Now => mount.now(),
        SetTime::At(at) => at,
    };
    change.atime = wanted.atime.map(at);
    change.mtime = wanted.mtime.map(at);
    if asks_nothing(wanted) {
        // `chown(-1, -1)`: Linux moves the change time and clears privileges all the same.
        change.ctime = Some(mount.now());
        change.kill_privileges = true;
    } else if change.kill_privileges && !has_privileges(attr.permissions) {
        // Clearing only privileges that are not there is no change at all.
        change.kill_privileges = xattr::has_capability(mount, inode)?;
    }
    // Without group execution setgid is no privilege. But only a member of the group may keep it.
    let marked = attr.permissions & SETGID != 0 && attr.file_type != FileType::Directory;
    let asked = wanted.kill_privileges || moves_owner || asks_nothing(wanted);
    if asked && marked && change.permissions.is_none() && !root && !in_group(caller, attr.gid) {
        change.permissions = Some(attr.permissions & !(SETUID | SETGID));
    }
    Ok((change != AttrChange::default()).then_some(change))
}

fn asks_nothing(wanted: &SetAttr) -> bool {
    let SetAttr { permissions, uid, gid, size, atime, mtime, ctime, kill_privileges } = wanted;
    let ids = permissions.is_none() && uid.is_none() && gid.is_none();
    let times = atime.is_none() && mtime.is_none() && ctime.is_none();
    ids && times && size.is_none() && !kill_privileges
}

/// Applies a change, or keeps it for a moment: a program that unpacks an archive sets owner,
/// permissions and times of each file, and others take the file's token before they look.
///
/// A change that is applied drops our own times that it overrides. This is serialised with syncs of
/// the file's own times, so that an older time never comes after this one.
fn apply(mount: &Mount, inode: &Arc<InodeState>, change: AttrChange) -> Result<()> {
    if mount.tokens.is_some() && mount.untold.has_room() {
        let now = mount.now();
        let mut core = inode.core.lock();
        if core.may_keep(&change) {
            core.keep(&change, now);
            mount.untold.insert(inode.ino);
            mount.register(inode, &mut core);
            return Ok(());
        }
    }
    let file = inode.core.lock().file.clone();
    let serial = file.as_ref().map(|file| file.meta.lock());
    let (atime, mtime) = (change.atime.is_some(), change.mtime.is_some());
    let now = mount.now();
    match mount.change(inode, MetaOp::SetAttr { ino: inode.ino, change: change.clone() }) {
        // The last name is gone, but the kernel still uses the inode: an open FIFO, device or
        // directory.
        Err(error) if error.kind() == ErrorKind::Stale => {
            if !inode.core.lock().change_removed(&change, now) {
                return Err(error);
            }
        }
        result => drop(result?),
    }
    let mut core = inode.core.lock();
    if atime {
        core.atime = None;
    }
    if mtime {
        core.mtime = None;
    }
    drop(core);
    drop(serial);
    Ok(())
}

/// Like `access(2)`.
pub(crate) fn access(mount: &Mount, caller: &Caller, inode: &InodeState, mask: u32) -> Result<()> {
    let attr = mount.check_access(caller, inode, mask & 7)?;
    let kept_here = [FileType::Regular, FileType::Directory, FileType::Symlink];
    if mask & WRITE != 0 && kept_here.contains(&attr.file_type) {
        mount.may_write()?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "attributes_test.rs"]
mod attributes_test;
