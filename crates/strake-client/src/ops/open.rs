//! Opening, closing and syncing files.

use crate::data::of::Of;
use crate::data::prefetch::ReadAhead;
use crate::flush::sync::sync_inode;
use crate::inode::core::InodeState;
use crate::inode::require_regular;
use crate::memory::file::FileState;
use crate::mount::Mount;
use crate::open_file::OpenFile;
use crate::ops::names::{enter, make, new_inode};
use crate::permissions::{EXECUTE, READ, WRITE};
use crate::vfs::{Entry, OpenFlags};
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_proto::meta::{Inode, MetaOp, MetaQuery};
use strake_proto::{Caller, ErrorKind, FileType, Ino, Result};

/// Opens an inode after all checks, and counts the handle.
fn open_inode(
    mount: &Mount,
    inode: &Arc<InodeState>,
    flags: OpenFlags,
    made: Option<&Inode>,
) -> Result<OpenFile> {
    let _no_removal = inode.lifetime.read();
    mount.table.add_handle(inode.ino);
    let file = match made {
        Some(made) => fresh_file(mount, inode, made),
        None => mount.file(inode),
    };
    let file = file.inspect_err(|_| {
        mount.table.remove_handle(inode.ino);
    })?;
    let seen = inode.core.lock().latch.seen();
    Ok(OpenFile {
        inode: Arc::clone(inode),
        file,
        flags,
        seen: Mutex::new(seen),
        ahead: Mutex::new(ReadAhead::default()),
    })
}

/// The contents of a file that was just made, without another query.
fn fresh_file(mount: &Mount, inode: &InodeState, made: &Inode) -> Result<Arc<FileState>> {
    let file = FileState::new(made, Arc::clone(&mount.page_pool))?;
    let mut core = inode.core.lock();
    Ok(Arc::clone(core.file.get_or_insert(file)))
}

/// See [`crate::Vfs::open`].
pub(crate) fn open(
    mount: &Mount,
    caller: &Caller,
    inode: &Arc<InodeState>,
    flags: OpenFlags,
) -> Result<OpenFile> {
    let mut want = 0;
    if flags.execute {
        want |= EXECUTE;
    } else if flags.read {
        want |= READ;
    }
    if flags.write || flags.truncate {
        want |= WRITE;
    }
    let attr = mount.check_access(caller, inode, want)?;
    require_regular(attr.file_type)?;
    let open = open_inode(mount, inode, flags, None)?;
    if flags.truncate {
        let of = Of { mount, inode, file: &open.file };
        if let Err(error) = of.set_size(0) {
            release(mount, &open);
            return Err(error);
        }
    }
    Ok(open)
}

/// See [`crate::Vfs::create`].
pub(crate) fn create(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    permissions: u32,
    flags: OpenFlags,
    exclusive: bool,
) -> Result<(Entry, OpenFile)> {
    let new = new_inode(caller, FileType::Regular, permissions);
    match make(mount, caller, parent, name, new) {
        Ok((inode, entry, made)) => {
            // The caller that makes a file may open it, whatever its mode says.
            let open = open_inode(mount, &inode, flags, Some(&made)).inspect_err(|_| {
                mount.table.remove_lookups(inode.ino, 1);
            })?;
            Ok((entry, open))
        }
        Err(error)
            if !exclusive && matches!(error.kind(), ErrorKind::Exists | ErrorKind::Access) =>
        {
            open_existing(mount, caller, (parent, name), flags, error)
        }
        Err(error) => Err(error),
    }
}

/// Opens the file that has the name already. If there is none, returns `refusal`, the error of the
/// attempt to make it.
fn open_existing(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    flags: OpenFlags,
    refusal: strake_proto::Error,
) -> Result<(Entry, OpenFile)> {
    let dir = mount.table.pin(parent);
    mount.check_access(caller, &dir, EXECUTE)?;
    let before = mount.array.meta.changes();
    let query = MetaQuery::Lookup { parent, name: name.to_vec() };
    let found = match mount.array.meta.query_inode(&query) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(refusal),
        found => found?,
    };
    let (inode, entry) = enter(mount, &found, before);
    match open(mount, caller, &inode, flags) {
        Ok(open) => Ok((Entry { attr: mount.attr(&inode).unwrap_or(entry.attr) }, open)),
        Err(error) => {
            mount.table.remove_lookups(inode.ino, 1);
            Err(error)
        }
    }
}

/// See [`crate::Vfs::tmpfile`].
pub(crate) fn tmpfile(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    permissions: u32,
    flags: OpenFlags,
) -> Result<(Entry, OpenFile)> {
    let dir = mount.table.pin(parent);
    mount.check_directory_change(caller, &dir)?;
    let new = new_inode(caller, FileType::Regular, permissions);
    let made = mount.array.meta.apply_inode(MetaOp::CreateOrphan { parent, new })?;
    let (inode, entry) = enter(mount, &made, mount.array.meta.changes());
    let open = open_inode(mount, &inode, flags, Some(&made))?;
    let mut core = inode.core.lock();
    core.set_removed(made.attr, made.attr.ctime);
    core.orphan = true;
    drop(core);
    Ok((entry, open))
}

/// The last close of a handle.
pub(crate) fn release(mount: &Mount, open: &OpenFile) {
    let inode = &open.inode;
    // Pinned, so that the entry stays until the inode is reaped.
    let pinned = mount.table.pin(inode.ino);
    if mount.table.remove_handle(inode.ino) > 0 {
        return;
    }
    let removed = inode.core.lock().removed;
    if removed {
        reap(mount, &pinned);
    }
}

/// Removes an orphan that is not open any more.
fn reap(mount: &Mount, inode: &Arc<InodeState>) {
    let _last_use = inode.lifetime.write();
    // A path descriptor may still refer to the inode, so the kernel may ask for its attributes
    // again. The last answer is kept.
    let _ = mount.attr(inode);
    let orphan = {
        let mut core = inode.core.lock();
        if !core.removed || mount.table.handles(inode.ino) > 0 {
            return;
        }
        core.keep_last();
        std::mem::take(&mut core.orphan)
    };
    mount.discard(inode);
    if orphan {
        // After a failure the next start reaps it, with all orphans of this client.
        let _ = mount.array.meta.apply(MetaOp::Reap { ino: inode.ino });
    }
}

/// See [`crate::Vfs::fsync`].
pub(crate) fn fsync(mount: &Mount, open: &OpenFile) -> Result<()> {
    let result = sync_inode(mount, &open.inode);
    let mut core = open.inode.core.lock();
    if let Err(error) = result {
        core.latch.set(error);
    }
    core.latch.report(&mut open.seen.lock())
}
