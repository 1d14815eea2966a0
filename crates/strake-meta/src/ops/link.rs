//! Link: adds a name to an inode. For an inode made without a name (O_TMPFILE), it is the first
//! name.

use super::Target;
use crate::keys;
use crate::names::{check_name, is_dot};
use crate::transaction::Transaction;
use strake_proto::limits::LINK_COUNT_MAX;
use strake_proto::meta::MetaReply;
use strake_proto::{Error, ErrorKind, Ino, Result};

pub(crate) fn link(
    txn: &mut Transaction<'_>,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<MetaReply> {
    check_name(name)?;
    txn.live_directory(parent)?;
    if is_dot(name) || txn.dentry(parent, name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    let time = txn.time;
    let record = txn.inode(ino)?;
    if record.is_directory() {
        return Err(ErrorKind::NotPermitted.into());
    }
    if record.links >= LINK_COUNT_MAX {
        return Err(ErrorKind::TooManyLinks.into());
    }
    let target = Target { ino, generation: record.generation, file_type: record.file_type };
    if record.links == 0 {
        // An inode that lost its last name never gets another, as on Linux.
        if !txn.orphan(ino)?.is_some_and(|orphan| orphan.linkable) {
            return Err(Error::new(ErrorKind::NotFound, format!("inode {ino} was unlinked")));
        }
        txn.remove(keys::orphan(ino));
    }
    let record = txn.inode_mut(ino)?;
    record.links += 1;
    record.ctime = time;
    txn.add_entry(parent, name, target)?;
    txn.reply_inode(ino)
}
