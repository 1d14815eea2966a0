//! Unlink, Remove and Rmdir: they remove a name, and with the last name the inode.

use crate::names::check_name;
use crate::records::DentryRecord;
use crate::transaction::Transaction;
use strake_proto::meta::MetaReply;
use strake_proto::{ErrorKind, FileType, Ino, Result};

pub(crate) fn unlink(
    txn: &mut Transaction<'_>,
    parent: Ino,
    name: &[u8],
    open: bool,
) -> Result<MetaReply> {
    check_name(name)?;
    if name == b"." || name == b".." {
        return Err(ErrorKind::IsDirectory.into());
    }
    let dentry = find(txn, parent, name)?;
    if dentry.file_type == FileType::Directory {
        return Err(ErrorKind::IsDirectory.into());
    }
    txn.remove_entry(parent, name, &dentry)?;
    Ok(MetaReply::Removed(Some(txn.drop_link(dentry.ino, open)?)))
}

/// Like [`unlink`], if the name leads to `ino`. If not, the client has lost the answer to an
/// earlier attempt.
pub(crate) fn remove(
    txn: &mut Transaction<'_>,
    (parent, name): (Ino, &[u8]),
    ino: Ino,
    open: bool,
) -> Result<MetaReply> {
    match txn.dentry(parent, name)? {
        Some(dentry) if dentry.ino == ino => unlink(txn, parent, name, open),
        _ => Ok(MetaReply::Removed(None)),
    }
}

pub(crate) fn rmdir(
    txn: &mut Transaction<'_>,
    parent: Ino,
    name: &[u8],
    open: bool,
) -> Result<MetaReply> {
    check_name(name)?;
    match name {
        b"." => return Err(ErrorKind::Invalid.into()),
        b".." => return Err(ErrorKind::NotEmpty.into()),
        _ => {}
    }
    let dentry = find(txn, parent, name)?;
    if dentry.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    if txn.inode(dentry.ino)?.entries > 0 {
        return Err(ErrorKind::NotEmpty.into());
    }
    txn.remove_entry(parent, name, &dentry)?;
    Ok(MetaReply::Removed(Some(txn.drop_link(dentry.ino, open)?)))
}

fn find(txn: &mut Transaction<'_>, parent: Ino, name: &[u8]) -> Result<DentryRecord> {
    txn.live_directory(parent)?;
    txn.dentry(parent, name)?.ok_or_else(|| ErrorKind::NotFound.into())
}

#[cfg(test)]
#[path = "unlink_test.rs"]
mod unlink_test;
