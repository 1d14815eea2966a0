//! An open file.

use crate::data::prefetch::ReadAhead;
use crate::inode::core::InodeState;
use crate::memory::file::FileState;
use crate::vfs::OpenFlags;
use std::sync::Arc;
use strake_env::sync::Mutex;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<InodeState>,
    pub(crate) file: Arc<FileState>,
    pub(crate) flags: OpenFlags,
    /// The errors of write-behind that were reported through this handle.
    pub(crate) seen: Mutex<u64>,
    pub(crate) ahead: Mutex<ReadAhead>,
}
