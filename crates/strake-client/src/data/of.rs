//! A file in use, as reading and writing need it.

use crate::context::Shared;
use crate::inode::core::InodeState;
use crate::memory::file::FileState;
use std::sync::Arc;

/// A file and its inode, as every function here needs them.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) inode: &'a Arc<InodeState>,
    pub(crate) file: &'a Arc<FileState>,
}
