//! Lists directories.

use crate::inode::core::InodeState;
use crate::mount::Mount;
use crate::vfs::DirItem;
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{Cookie, DirEntry, MetaQuery, MetaReply};
use strake_proto::{Attr, FileType, Ino, Result};

/// Cookies of `.` and `..`.
const SELF: Cookie = 1;
const PARENT: Cookie = 2;
/// The most entries asked for at once, without their inodes.
const PAGE: u32 = 512;
/// The most entries asked for at once, with their inodes.
const PAGE_WITH_INODES: u32 = 128;
/// The entries that the first query of a call asks for. They fit the kernel's smallest buffer; more
/// would often be fetched for nothing. Each further query asks for twice as many.
const PAGE_FIRST: u32 = 128;
/// Like [`PAGE_FIRST`], with inodes.
const PAGE_FIRST_WITH_INODES: u32 = 24;

/// See [`crate::Vfs::readdir`].
pub(crate) fn readdir(
    mount: &Mount,
    dir: &Arc<InodeState>,
    cookie: Cookie,
    with_attrs: bool,
    take: &mut dyn FnMut(&DirItem) -> bool,
) -> Result<()> {
    let (parent, removed) = mount.loaded(dir, |core| (core.parent, core.removed))?;
    for (own, name, ino) in [(SELF, &b"."[..], dir.ino), (PARENT, &b".."[..], parent)] {
        let item = DirItem {
            cookie: own,
            name: name.to_vec(),
            ino,
            file_type: FileType::Directory,
            attr: None,
        };
        if cookie < own && !take(&item) {
            return Ok(());
        }
    }
    if removed {
        return Ok(());
    }
    let mut after = cookie.max(PARENT);
    let (mut limit, limit_max) =
        if with_attrs { (PAGE_FIRST_WITH_INODES, PAGE_WITH_INODES) } else { (PAGE_FIRST, PAGE) };
    loop {
        let before = mount.array.meta.changes();
        let (entries, end) = page(mount, dir, after, limit, with_attrs)?;
        for entry in entries {
            after = entry.cookie;
            if !take(&item(mount, entry, before)) {
                return Ok(());
            }
        }
        if end {
            return Ok(());
        }
        limit = (limit * 2).min(limit_max);
    }
}

/// At most `limit` entries after a cookie, and whether the directory ends with them. Beside others
/// the caller holds the directory's token, and what is known under it is asked of nobody.
fn page(
    mount: &Mount,
    dir: &InodeState,
    after: Cookie,
    limit: u32,
    with_inodes: bool,
) -> Result<(Vec<DirEntry>, bool)> {
    let is_kept = mount.tokens.is_some() && !with_inodes;
    let changes = {
        let core = dir.core.lock();
        if is_kept && let Some(known) = core.names.listed(after, limit as usize) {
            return Ok(known);
        }
        core.names.changes()
    };
    let query = MetaQuery::ReadDir { dir: dir.ino, after, limit, with_inodes };
    let (entries, end) = match mount.array.meta.query(&query)? {
        MetaReply::Entries { entries, end } => (entries, end),
        _ => return Err(wrong_reply()),
    };
    if is_kept {
        let learnt = (&entries[..], end);
        dir.core.lock().names.learn_listing(changes, after, learnt, &mount.names);
    }
    Ok((entries, end))
}

fn item(mount: &Mount, entry: DirEntry, before: u64) -> DirItem {
    let attr = entry.inode.map(|inode| {
        mount.neighbours.list(&inode);
        current(mount, entry.ino, &inode.attr, before)
    });
    DirItem {
        cookie: entry.cookie,
        name: entry.name,
        ino: entry.ino,
        file_type: entry.file_type,
        attr,
    }
}

/// An entry's attributes, with changes that the metadata does not know yet.
fn current(mount: &Mount, ino: Ino, listed: &Attr, before: u64) -> Attr {
    let Some(inode) = mount.table.find(ino) else { return *listed };
    let core = inode.core.lock();
    if core.is_loaded() || mount.array.meta.changes() != before {
        if core.is_loaded() {
            return core.attr();
        }
        drop(core);
        return mount.attr(&inode).unwrap_or(*listed);
    }
    core.merge(*listed)
}
