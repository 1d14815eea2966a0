//! Inodes in use, open handles, and queues of blocks for background threads.

pub(crate) mod budget;
pub(crate) mod core;
pub(crate) mod fetched;
pub(crate) mod kept_open;
pub(crate) mod known;
pub(crate) mod listed;
pub(crate) mod listing;
pub(crate) mod open_table;
pub(crate) mod queue;
pub(crate) mod reserved;
pub(crate) mod shown;
pub(crate) mod turns;
pub(crate) mod untold;

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
