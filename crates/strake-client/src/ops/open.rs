//! Opening, closing and syncing files.

use crate::data::of::Of;
use crate::data::prefetch::ReadAhead;
use crate::flush::last_close::release_handle;
use crate::flush::sync::sync_inode;
use crate::inode::core::InodeState;
use crate::inode::require_regular;
use crate::memory::file::FileState;
use crate::mount::Mount;
use crate::open_file::OpenFile;
use crate::ops::names::{enter_new, find, make, new_inode, while_stale};
use crate::permissions::{EXECUTE, READ, WRITE};
use crate::tokens::{exclusive, shared};
use crate::vfs::{Entry, OpenFlags};
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_proto::meta::{Inode, MetaOp};
use strake_proto::{Caller, ErrorKind, FileType, Ino, Result};
use strake_token::held::Want;

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
    let file = FileState::new(made, Arc::clone(&mount.page_pool), false)?;
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
    let _tokens = mount.take_open(to_open(inode.ino, flags), flags)?;
    open_held(mount, caller, inode, flags).inspect_err(|_| mount.close(inode, flags))
}

/// The token of a file that is opened.
fn to_open(ino: Ino, flags: OpenFlags) -> Want {
    if flags.truncate || flags.write { exclusive(ino) } else { shared(ino) }
}

/// Opens a file. The caller holds its tokens.
fn open_held(
    mount: &Mount,
    caller: &Caller,
    inode: &Arc<InodeState>,
    flags: OpenFlags,
) -> Result<OpenFile> {
    if flags.write || flags.truncate {
        mount.may_write()?;
    }
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
            release_handle(mount, &open.inode);
            return Err(error);
        }
    }
    Ok(open)
}

/// See [`crate::Vfs::create`]. True if the file was made.
pub(crate) fn create(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    permissions: u32,
    flags: OpenFlags,
    only_new: bool,
) -> Result<(Entry, OpenFile, bool)> {
    while_stale(mount, || match create_new(mount, caller, (parent, name), permissions, flags) {
        Err(error)
            if !only_new
                && matches!(
                    error.kind(),
                    ErrorKind::Exists | ErrorKind::Access | ErrorKind::ReadOnly
                ) =>
        {
            let (entry, open) = open_existing(mount, caller, (parent, name), flags, error)?;
            Ok((entry, open, false))
        }
        result => result.map(|(entry, open)| (entry, open, true)),
    })
}

fn create_new(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    permissions: u32,
    flags: OpenFlags,
) -> Result<(Entry, OpenFile)> {
    mount.may_write()?;
    let _tokens = mount.take([exclusive(parent)])?;
    let new = new_inode(caller, FileType::Regular, permissions);
    let (inode, entry, made) = make(mount, caller, parent, name, new, Some(flags))?;
    // The caller that makes a file may open it, whatever its mode says.
    let open = open_inode(mount, &inode, flags, Some(&made)).inspect_err(|_| {
        mount.table.remove_lookups(inode.ino, 1);
        mount.close(&inode, flags);
    })?;
    Ok((entry, open))
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
    let found = {
        let _tokens = mount.take_to_look(parent)?;
        let dir = mount.table.pin(parent);
        mount.check_access(caller, &dir, EXECUTE)?;
        match find(mount, &dir, name) {
            // Beside others it may have been removed since the attempt to make it.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let retry = mount.tokens.is_some() && refusal.kind() == ErrorKind::Exists;
                return Err(if retry { ErrorKind::Stale.into() } else { refusal });
            }
            found => found?,
        }
    };
    let inode = mount.table.pin(found.ino);
    if mount.tokens.is_none()
        && let Some((found, before)) = &found.inode
    {
        mount.learn(&inode, found, *before);
    }
    let _tokens = mount.take_open(to_open(inode.ino, flags), flags)?;
    let open = open_held(mount, caller, &inode, flags).inspect_err(|_| {
        mount.close(&inode, flags);
    })?;
    let attr = mount.attr(&inode).inspect_err(|_| {
        release_handle(mount, &open.inode);
        mount.close(&inode, flags);
    })?;
    // Not before this waits for nothing any more: the adapter does not know the inode before it is
    // answered, and a thread that gives up the token waits until it does.
    mount.table.add_lookups(inode.ino, 1);
    Ok((Entry { attr }, open))
}

/// See [`crate::Vfs::tmpfile`]. The caller holds the directory's token.
pub(crate) fn tmpfile(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    permissions: u32,
    flags: OpenFlags,
) -> Result<(Entry, OpenFile)> {
    let dir = mount.table.pin(parent);
    mount.check_directory_change(caller, &dir)?;
    // The file inherits from the directory.
    mount.tell_kept_of(&dir)?;
    let new = new_inode(caller, FileType::Regular, permissions);
    let made = mount.array.meta.apply_inode(MetaOp::CreateOrphan { parent, new })?;
    let new = mount.table.pin(made.attr.ino);
    new.core.lock().begin_as(&made);
    let (inode, entry) = enter_new(mount, &made, Some(flags))?;
    let open = open_inode(mount, &inode, flags, Some(&made))
        .inspect_err(|_| mount.close(&inode, flags))?;
    let mut core = inode.core.lock();
    core.set_removed(made.attr, made.attr.ctime);
    core.orphan = true;
    drop(core);
    Ok((entry, open))
}

/// The last close of a handle.
pub(crate) fn release(mount: &Mount, open: &OpenFile) {
    release_handle(mount, &open.inode);
    mount.close(&open.inode, open.flags);
}

/// See [`crate::Vfs::fsync`].
pub(crate) fn fsync(mount: &Mount, open: &OpenFile) -> Result<()> {
    let lost = mount.losses.tell_of(open.inode.ino);
    let result = sync_inode(mount, &open.inode).and(lost);
    let mut core = open.inode.core.lock();
    if let Err(error) = result {
        core.latch.set(error);
    }
    core.latch.report(&mut open.seen.lock())
}
