//! Rename: moves a name, and may replace another or exchange the two. It is atomic in every case.
//!
//! Errors come in the order in which Linux finds them: names, existence, one inside the other,
//! types, emptiness. The times of both directories move. So does the change time of each inode that
//! gets or loses a name.

use super::Target;
use crate::names::{check_name, is_dot};
use crate::records::DentryRecord;
use crate::transaction::Transaction;
use strake_proto::meta::{MetaReply, RenameMode};
use strake_proto::{Error, ErrorKind, FileType, Ino, Result};

/// A place where a name can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    pub(crate) parent: Ino,
    pub(crate) name: &'a [u8],
}

/// No walk to the root is longer than this. A damaged chain of parents must not loop.
const DEPTH_MAX: usize = 1 << 20;

pub(crate) fn rename(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    mode: RenameMode,
    open: bool,
) -> Result<MetaReply> {
    check_name(source.name)?;
    check_name(target.name)?;
    txn.live_directory(source.parent)?;
    txn.live_directory(target.parent)?;
    if is_dot(source.name) || is_dot(target.name) {
        let kind = if mode == RenameMode::NoReplace { ErrorKind::Exists } else { ErrorKind::Busy };
        return Err(kind.into());
    }
    let moved: DentryRecord = txn.dentry(source.parent, source.name)?.ok_or(ErrorKind::NotFound)?;
    let old = txn.dentry(target.parent, target.name)?;
    match (mode, &old) {
        (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists.into()),
        (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
        _ => {}
    }
    check_nesting(txn, source.parent, target.parent, &moved, old.as_ref(), mode)?;
    match old {
        Some(old) if old.ino == moved.ino => Ok(MetaReply::Removed(None)),
        Some(old) if mode == RenameMode::Exchange => exchange(txn, source, target, &moved, &old),
        Some(old) => replace(txn, source, target, &moved, &old, open),
        None => {
            if source.parent == target.parent {
                txn.rename_entry(source.parent, (source.name, target.name), &moved)?;
            } else {
                txn.remove_entry(source.parent, source.name, &moved)?;
                txn.add_entry(target.parent, target.name, Target::from(moved))?;
            }
            arrive(txn, &moved, target.parent)?;
            Ok(MetaReply::Removed(None))
        }
    }
}

/// Refuses to move a directory into itself, and to replace a directory that contains the source.
fn check_nesting(
    txn: &mut Transaction<'_>,
    source_parent: Ino,
    target_parent: Ino,
    moved: &DentryRecord,
    old: Option<&DentryRecord>,
    mode: RenameMode,
) -> Result<()> {
    if source_parent == target_parent {
        return Ok(());
    }
    let into_itself = Error::new(ErrorKind::Invalid, "a directory cannot move into itself");
    if moved.file_type == FileType::Directory && is_inside(txn, target_parent, moved.ino)? {
        return Err(into_itself);
    }
    if let Some(old) = old.filter(|old| old.file_type == FileType::Directory)
        && is_inside(txn, source_parent, old.ino)?
    {
        return Err(match mode {
            RenameMode::Exchange => into_itself,
            _ => ErrorKind::NotEmpty.into(),
        });
    }
    Ok(())
}

/// True if directory `inner` is `outer` or lies below it.
fn is_inside(txn: &Transaction<'_>, inner: Ino, outer: Ino) -> Result<bool> {
    let mut at = inner;
    for _ in 0..DEPTH_MAX {
        if at == outer {
            return Ok(true);
        }
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = txn.parent(at)?;
    }
    Err(Error::new(ErrorKind::Corrupt, format!("directory {inner} has no way to the root")))
}

fn replace(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    moved: &DentryRecord,
    old: &DentryRecord,
    open: bool,
) -> Result<MetaReply> {
    match (moved.file_type == FileType::Directory, old.file_type == FileType::Directory) {
        (true, false) => return Err(ErrorKind::NotDirectory.into()),
        (false, true) => return Err(ErrorKind::IsDirectory.into()),
        (true, true) if txn.inode(old.ino)?.entries > 0 => return Err(ErrorKind::NotEmpty.into()),
        _ => {}
    }
    txn.remove_entry(source.parent, source.name, moved)?;
    txn.replace_entry(target.parent, target.name, old, Target::from(*moved))?;
    arrive(txn, moved, target.parent)?;
    Ok(MetaReply::Removed(Some(txn.drop_link(old.ino, open)?)))
}

fn exchange(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    moved: &DentryRecord,
    old: &DentryRecord,
) -> Result<MetaReply> {
    txn.replace_entry(source.parent, source.name, moved, Target::from(*old))?;
    txn.replace_entry(target.parent, target.name, old, Target::from(*moved))?;
    arrive(txn, moved, target.parent)?;
    arrive(txn, old, source.parent)?;
    Ok(MetaReply::Removed(None))
}

/// Updates an inode that has just got a name in `parent`.
fn arrive(txn: &mut Transaction<'_>, moved: &DentryRecord, parent: Ino) -> Result<()> {
    let time = txn.time;
    let record = txn.inode_mut(moved.ino)?;
    record.ctime = time;
    if moved.file_type == FileType::Directory {
        record.parent = parent;
    }
    Ok(())
}

#[cfg(test)]
#[path = "rename_test.rs"]
mod rename_test;
