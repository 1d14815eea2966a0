//! SetXattr and RemoveXattr, POSIX ACLs among them.
//!
//! Some access ACLs say no more than mode bits can. Such an ACL is not stored: only the mode is
//! set. Setting an access ACL sets the mode's nine bits. Removing it leaves those bits as they are,
//! like Linux's own file systems. Removing an ACL that is not there succeeds. The flags of
//! `setxattr(2)` do not apply to ACLs.

use crate::keys;
use crate::transaction::Transaction;
use strake_proto::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use strake_proto::limits::{NAME_BYTES_MAX, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use strake_proto::meta::{MetaReply, XattrMode};
use strake_proto::{Error, ErrorKind, FileType, Ino, Result};

/// Limit of the bytes of all values of one inode. Larger data belongs in a file.
pub(crate) const XATTR_TOTAL_BYTES_MAX: u32 = 1 << 20;

const SETGID: u32 = 0o2000;
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The fields of a SetXattr.
pub(crate) struct NewXattr<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) mode: XattrMode,
    pub(crate) clear_setgid: bool,
}

pub(crate) fn set(txn: &mut Transaction<'_>, ino: Ino, new: &NewXattr<'_>) -> Result<MetaReply> {
    check_name(new.name)?;
    if new.value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(ErrorKind::TooBig.into());
    }
    if new.name == ACCESS_NAME {
        set_access_acl(txn, ino, Acl::from_xattr(new.value)?, new.clear_setgid)?;
    } else if new.name == DEFAULT_NAME {
        set_default_acl(txn, ino, Acl::from_xattr(new.value)?)?;
    } else {
        let exists =
            txn.inode(ino)?.xattr_count > 0 && txn.get_raw(&keys::xattr(ino, new.name))?.is_some();
        match (new.mode, exists) {
            (XattrMode::Create, true) => return Err(ErrorKind::Exists.into()),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute.into()),
            _ => {}
        }
        put(txn, ino, new.name, new.value)?;
    }
    touch(txn, ino)
}

pub(crate) fn remove(txn: &mut Transaction<'_>, ino: Ino, name: &[u8]) -> Result<MetaReply> {
    check_name(name)?;
    let removed = remove_if_there(txn, ino, name)?;
    let is_acl = name == ACCESS_NAME || name == DEFAULT_NAME;
    if !removed && !is_acl {
        return Err(ErrorKind::NoAttribute.into());
    }
    if removed { touch(txn, ino) } else { Ok(MetaReply::Done) }
}

fn touch(txn: &mut Transaction<'_>, ino: Ino) -> Result<MetaReply> {
    let time = txn.time;
    txn.inode_mut(ino)?.ctime = time;
    Ok(MetaReply::Done)
}

/// Stores an access ACL and the mode that goes with it.
fn set_access_acl(
    txn: &mut Transaction<'_>,
    ino: Ino,
    acl: Option<Acl>,
    clear_setgid: bool,
) -> Result<()> {
    let record = txn.inode_mut(ino)?;
    if record.file_type == FileType::Symlink {
        return Err(ErrorKind::NotSupported.into());
    }
    let Some(acl) = acl else {
        remove_if_there(txn, ino, ACCESS_NAME)?;
        return Ok(());
    };
    record.permissions = (record.permissions & !0o777) | acl.mode();
    if clear_setgid {
        record.permissions &= !SETGID;
    }
    if acl.is_mode_alone() {
        remove_if_there(txn, ino, ACCESS_NAME)?;
        return Ok(());
    }
    put(txn, ino, ACCESS_NAME, &acl.to_xattr())
}

fn set_default_acl(txn: &mut Transaction<'_>, ino: Ino, acl: Option<Acl>) -> Result<()> {
    let record = txn.inode(ino)?;
    match acl {
        _ if record.file_type == FileType::Symlink => Err(ErrorKind::NotSupported.into()),
        Some(_) if !record.is_directory() => Err(ErrorKind::Access.into()),
        Some(acl) => put(txn, ino, DEFAULT_NAME, &acl.to_xattr()),
        None => remove_if_there(txn, ino, DEFAULT_NAME).map(|_| ()),
    }
}

/// Stores a value and updates the inode's sums.
fn put(txn: &mut Transaction<'_>, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
    let key = keys::xattr(ino, name);
    let old = txn.get_raw(&key)?;
    let record = txn.inode_mut(ino)?;
    let old_bytes = old.as_ref().map_or(0, |old| old.len() as u32);
    let value_bytes = record.xattr_value_bytes.saturating_sub(old_bytes) + value.len() as u32;
    let mut name_bytes = record.xattr_name_bytes;
    if old.is_none() {
        name_bytes += name.len() as u32 + 1;
    }
    if value_bytes > XATTR_TOTAL_BYTES_MAX || name_bytes as usize > XATTR_LIST_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NoSpace,
            "an inode's attributes take 64 KiB of names and 1 MiB of values at most",
        ));
    }
    record.xattr_value_bytes = value_bytes;
    record.xattr_name_bytes = name_bytes;
    match name {
        ACCESS_NAME => record.has_acl = true,
        DEFAULT_NAME => record.has_default_acl = true,
        _ if old.is_none() => record.xattr_count += 1,
        _ => {}
    }
    txn.put_raw(key, value.to_vec());
    Ok(())
}

/// Removes an attribute. Returns true if it was there.
pub(crate) fn remove_if_there(txn: &mut Transaction<'_>, ino: Ino, name: &[u8]) -> Result<bool> {
    txn.inode(ino)?;
    let key = keys::xattr(ino, name);
    let Some(old) = txn.get_raw(&key)? else { return Ok(false) };
    let record = txn.inode_mut(ino)?;
    record.xattr_name_bytes = record.xattr_name_bytes.saturating_sub(name.len() as u32 + 1);
    record.xattr_value_bytes = record.xattr_value_bytes.saturating_sub(old.len() as u32);
    match name {
        ACCESS_NAME => record.has_acl = false,
        DEFAULT_NAME => record.has_default_acl = false,
        _ => record.xattr_count = record.xattr_count.saturating_sub(1),
    }
    txn.remove(key);
    Ok(true)
}

/// Refuses names with the errors that Linux uses, and names outside the known namespaces.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ErrorKind::Range.into());
    }
    if name == ACCESS_NAME || name == DEFAULT_NAME {
        return Ok(());
    }
    let Some(space) = NAMESPACES.iter().find(|space| name.starts_with(space)) else {
        return Err(Error::new(
            ErrorKind::NotSupported,
            "attributes are in user, trusted, security, or are POSIX ACLs",
        ));
    };
    if name.len() == space.len() || name.contains(&0) {
        return Err(ErrorKind::Invalid.into());
    }
    Ok(())
}

#[cfg(test)]
#[path = "xattr_test.rs"]
mod xattr_test;
