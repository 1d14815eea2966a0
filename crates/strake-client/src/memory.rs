//! Contents of files in memory. These modules know no inodes and no I/O.

pub(crate) mod block;
pub(crate) mod file;
pub(crate) mod kept;
pub(crate) mod numbers;
pub(crate) mod page_pool;
pub(crate) mod unsettled;
