//! A file in use, with all that reading and writing need.

use crate::inode::core::InodeState;
use crate::memory::file::FileState;
use crate::mount::Mount;
use std::sync::Arc;

/// A file, its inode and the mount, which most functions here need together.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) inode: &'a Arc<InodeState>,
    pub(crate) file: &'a Arc<FileState>,
}
