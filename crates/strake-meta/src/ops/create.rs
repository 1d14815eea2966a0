//! Create, CreateAs and CreateOrphan: a new inode, with or without a name.
//!
//! A default ACL replaces the umask. The client decides whether to drop a non-member's setgid bit
//! from a new file, because the answer depends on the caller's groups.

use super::{FIRST_COOKIE, Target};
use crate::keys;
use crate::names::{check_name, is_dot};
use crate::records::{InodeRecord, OrphanRecord, Place};
use crate::transaction::Transaction;
use strake_proto::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use strake_proto::limits::SYMLINK_BYTES_MAX;
use strake_proto::meta::{Inode, MetaReply, NewInode};
use strake_proto::{Error, ErrorKind, FileType, Ino, Result};

pub(crate) fn create(
    txn: &mut Transaction<'_>,
    parent: Ino,
    name: &[u8],
    new: &NewInode,
) -> Result<MetaReply> {
    check_absent(txn, parent, name)?;
    let target = insert(txn, parent, new, None)?;
    txn.add_entry(parent, name, target)?;
    txn.reply_inode(target.ino)
}

/// Like [`create`], with a number that was reserved. If the name leads to that number already, the
/// client has lost the answer to an earlier attempt.
pub(crate) fn create_as(
    txn: &mut Transaction<'_>,
    (parent, name): (Ino, &[u8]),
    new: &NewInode,
    ino: Ino,
) -> Result<MetaReply> {
    if txn.dentry(parent, name)?.is_some_and(|entry| entry.ino == ino) {
        return txn.reply_inode(ino);
    }
    check_absent(txn, parent, name)?;
    if ino <= Ino::ROOT || ino.0 >= txn.counters()?.next_ino || txn.has_inode(ino)? {
        return Err(Error::new(ErrorKind::Invalid, format!("number {ino} is not reserved")));
    }
    let target = insert(txn, parent, new, Some(ino))?;
    txn.add_entry(parent, name, target)?;
    txn.reply_inode(target.ino)
}

fn check_absent(txn: &mut Transaction<'_>, parent: Ino, name: &[u8]) -> Result<()> {
    check_name(name)?;
    txn.live_directory(parent)?;
    if is_dot(name) || txn.dentry(parent, name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    Ok(())
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
    let target = insert(txn, parent, new, None)?;
    txn.inode_mut(target.ino)?.links = 0;
    let orphan = OrphanRecord { client: txn.client, linkable: true };
    txn.put(keys::orphan(target.ino), &orphan);
    txn.reply_inode(target.ino)
}

/// Makes the inode. One without a number gets the client's next one, and everything that it
/// inherits from `parent`.
fn insert(
    txn: &mut Transaction<'_>,
    parent: Ino,
    new: &NewInode,
    ino: Option<Ino>,
) -> Result<Target> {
    check_new(new)?;
    let is_directory = new.file_type == FileType::Directory;
    let is_symlink = new.file_type == FileType::Symlink;
    let (resolved, access, default_acl) = match ino {
        Some(_) => (new.clone(), None, None),
        None => inherit(txn, parent, new)?,
    };
    let ino = ino.map_or_else(|| txn.next_ino(), Ok)?;
    let Inode { attr, parent, .. } = resolved.made(parent, ino, txn.time);
    txn.counters()?.inodes += 1;
    let mut record = InodeRecord {
        generation: attr.generation,
        file_type: attr.file_type,
        permissions: attr.permissions,
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        allocated: attr.allocated,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        parent,
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

/// The inode with all that it inherits, its access ACL, and the directory's default ACL.
fn inherit(
    txn: &mut Transaction<'_>,
    parent: Ino,
    new: &NewInode,
) -> Result<(NewInode, Option<Acl>, Option<Acl>)> {
    let directory = txn.inode(parent)?;
    let passes_on = (directory.permissions, directory.gid);
    let has_acl = directory.has_default_acl && new.file_type != FileType::Symlink;
    let default_acl = if has_acl { inherited(txn, parent)? } else { None };
    let (mut resolved, mut access) = (new.resolved(passes_on), None);
    if let Some(acl) = &default_acl {
        let (permissions, _) = new.inherited(passes_on);
        (resolved.permissions, access) = acl.inherit(permissions);
    }
    Ok((resolved, access, default_acl))
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
