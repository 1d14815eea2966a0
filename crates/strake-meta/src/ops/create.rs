//! Create and CreateOrphan: a new inode, with or without a name.
//!
//! A setgid directory passes its group on to new inodes, and the bit itself to new directories. A
//! default ACL replaces the umask. The client decides whether to drop a non-member's setgid bit
//! from a new file, because the answer depends on the caller's groups.

use super::{FIRST_COOKIE, Target};
use crate::keys;
use crate::names::{check_name, is_dot};
use crate::records::{InodeRecord, OrphanRecord, Place};
use crate::transaction::Transaction;
use strake_proto::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use strake_proto::limits::SYMLINK_BYTES_MAX;
use strake_proto::meta::{MetaReply, NewInode};
use strake_proto::{Error, ErrorKind, FileType, Generation, Ino, Result};

const SETGID: u32 = 0o2000;

pub(crate) fn create(
    txn: &mut Transaction<'_>,
    parent: Ino,
    name: &[u8],
    new: &NewInode,
) -> Result<MetaReply> {
    check_name(name)?;
    txn.live_directory(parent)?;
    if is_dot(name) || txn.dentry(parent, name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    let links = if new.file_type == FileType::Directory { 2 } else { 1 };
    let target = insert(txn, parent, new, links)?;
    txn.add_entry(parent, name, target)?;
    txn.reply_inode(target.ino)
}

pub(crate) fn create_orphan(
    txn: &mut Transaction<'_>,
    parent: Ino,
    new: &NewInode,
) -> Result<MetaReply> {
    txn.live_directory(parent)?;
    if new.file_type != FileType::Regular {
        return Err(Error::new(ErrorKind::Invalid, "only a regular file can be without a name"));
    }
    let target = insert(txn, parent, new, 0)?;
    let orphan = OrphanRecord { client: txn.client, linkable: true };
    txn.put(keys::orphan(target.ino), &orphan);
    txn.reply_inode(target.ino)
}

/// Makes the inode, with everything it inherits from `parent`.
fn insert(txn: &mut Transaction<'_>, parent: Ino, new: &NewInode, links: u32) -> Result<Target> {
    check_new(new)?;
    let is_directory = new.file_type == FileType::Directory;
    let is_symlink = new.file_type == FileType::Symlink;
    let directory = txn.inode(parent)?;
    let mut permissions = new.permissions & 0o7777;
    let mut gid = new.gid;
    if directory.permissions & SETGID != 0 {
        gid = directory.gid;
        permissions |= if is_directory { SETGID } else { 0 };
    }
    let default_acl =
        if directory.has_default_acl && !is_symlink { inherited(txn, parent)? } else { None };
    let mut access = None;
    match &default_acl {
        _ if is_symlink => permissions = 0o777,
        Some(acl) => (permissions, access) = acl.inherit(permissions),
        None => permissions &= !(new.umask & 0o777),
    }
    let ino = txn.next_ino()?;
    txn.counters()?.inodes += 1;
    let mut record = InodeRecord {
        generation: Generation(1),
        file_type: new.file_type,
        permissions,
        links,
        uid: new.uid,
        gid,
        rdev: new.rdev,
        size: new.target.len() as u64,
        allocated: 0,
        atime: txn.time,
        mtime: txn.time,
        ctime: txn.time,
        btime: txn.time,
        parent: if is_directory { parent } else { Ino(0) },
        next_cookie: FIRST_COOKIE,
        entries: 0,
        has_acl: false,
        has_default_acl: false,
        xattr_count: 0,
        xattr_name_bytes: 0,
        xattr_value_bytes: 0,
        hardened: 0,
        reserved: Vec::new(),
        place: if is_symlink { Place::Target } else { Place::Empty },
        tail: new.target.clone(),
    };
    if let Some(access) = access {
        let value = access.to_xattr();
        record.has_acl = true;
        record.xattr_name_bytes += ACCESS_NAME.len() as u32 + 1;
        record.xattr_value_bytes += value.len() as u32;
        txn.put_raw(keys::xattr(ino, ACCESS_NAME), value);
    }
    if let Some(acl) = default_acl.filter(|_| is_directory) {
        let value = acl.to_xattr();
        record.has_default_acl = true;
        record.xattr_name_bytes += DEFAULT_NAME.len() as u32 + 1;
        record.xattr_value_bytes += value.len() as u32;
        txn.put_raw(keys::xattr(ino, DEFAULT_NAME), value);
    }
    let target = Target { ino, generation: record.generation, file_type: record.file_type };
    txn.insert_inode(ino, record);
    Ok(target)
}

/// A directory's default ACL.
fn inherited(txn: &Transaction<'_>, directory: Ino) -> Result<Option<Acl>> {
    let value = txn.get_raw(&keys::xattr(directory, DEFAULT_NAME))?;
    value.map_or(Ok(None), |bytes| Acl::from_xattr(&bytes))
}

fn check_new(new: &NewInode) -> Result<()> {
    if new.target.len() > SYMLINK_BYTES_MAX {
        return Err(ErrorKind::NameTooLong.into());
    }
    let is_symlink = new.file_type == FileType::Symlink;
    if is_symlink == new.target.is_empty() || new.target.contains(&0) {
        let detail = "a symbolic link, and nothing else, has a target without zero bytes";
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    Ok(())
}
