//! Between applications and the contents of files in memory.

pub(crate) mod fold;
pub(crate) mod neighbours;
mod new_object;
pub(crate) mod of;
pub(crate) mod prefetch;
pub(crate) mod read;
pub(crate) mod write;
