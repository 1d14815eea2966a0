//! The operations of [`crate::Vfs`], a file for each kind.

pub(crate) mod attributes;
pub(crate) mod copy;
pub(crate) mod directory;
pub(crate) mod fallocate;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod seek;
pub(crate) mod truncate;
pub(crate) mod xattr;

use strake_proto::{ErrorKind, FileType, Result};

/// Checks that an inode has file contents.
///
/// # Errors
/// `IsDirectory`, or `Invalid` for anything else.
pub(crate) fn require_regular(file_type: FileType) -> Result<()> {
    match file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(ErrorKind::IsDirectory.into()),
        _ => Err(ErrorKind::Invalid.into()),
    }
}
