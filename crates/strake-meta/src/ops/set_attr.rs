//! SetAttr: mode, owner, times. A new mode also changes the access ACL, as `chmod(2)` says.

use crate::keys;
use crate::ops::xattr;
use crate::transaction::Transaction;
use strake_proto::acl::{ACCESS_NAME, Acl};
use strake_proto::meta::{AttrChange, CAPABILITY_NAME, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, Result, Timestamp};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

pub(crate) fn set_attr(
    txn: &mut Transaction<'_>,
    ino: Ino,
    change: &AttrChange,
) -> Result<MetaReply> {
    for time in [change.atime, change.mtime, change.ctime].into_iter().flatten() {
        check_time(time)?;
    }
    txn.inode(ino)?;
    if change.kill_privileges {
        kill_privileges(txn, ino)?;
    }
    if let Some(permissions) = change.permissions {
        set_permissions(txn, ino, permissions)?;
    }
    let now = txn.time;
    let record = txn.inode_mut(ino)?;
    record.uid = change.uid.unwrap_or(record.uid);
    record.gid = change.gid.unwrap_or(record.gid);
    record.atime = change.atime.unwrap_or(record.atime);
    record.mtime = change.mtime.unwrap_or(record.mtime);
    if !change.quiet {
        record.ctime = change.ctime.unwrap_or(now);
    }
    txn.reply_inode(ino)
}

/// Refuses a time that no clock can show.
pub(crate) fn check_time(time: Timestamp) -> Result<()> {
    if time.nanos < 1_000_000_000 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "a time's nanoseconds are below 1,000,000,000"))
}

fn set_permissions(txn: &mut Transaction<'_>, ino: Ino, permissions: u32) -> Result<()> {
    let record = txn.inode_mut(ino)?;
    record.permissions = permissions & 0o7777;
    if !record.has_acl {
        return Ok(());
    }
    let key = keys::xattr(ino, ACCESS_NAME);
    let stored = txn.get_raw(&key)?.map_or(Ok(None), |bytes| Acl::from_xattr(&bytes))?;
    // The ACL's length does not change, so the inode's sums stay right.
    if let Some(mut acl) = stored {
        acl.change_mode(permissions);
        txn.put_raw(key, acl.to_xattr());
    }
    Ok(())
}

/// Removes the bits and capabilities that a file loses when an unprivileged user writes or chowns
/// it. Directories keep them all.
fn kill_privileges(txn: &mut Transaction<'_>, ino: Ino) -> Result<()> {
    let record = txn.inode_mut(ino)?;
    if record.is_directory() {
        return Ok(());
    }
    record.permissions &= !SETUID;
    if record.permissions & GROUP_EXECUTE != 0 {
        record.permissions &= !SETGID;
    }
    if record.xattr_count > 0 {
        xattr::remove_if_there(txn, ino, CAPABILITY_NAME)?;
    }
    Ok(())
}
