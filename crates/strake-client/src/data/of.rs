//! A file in use, as reading and writing need it.

use crate::inode::core::InodeState;
use crate::memory::file::FileState;
use crate::mount::Mount;
use std::sync::Arc;

/// A file and its inode, as every function here needs them.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) inode: &'a Arc<InodeState>,
    pub(crate) file: &'a Arc<FileState>,
}
