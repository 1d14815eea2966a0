//! The operations of [`crate::Vfs`]. Each kind has a file.

pub(crate) mod ahead;
pub(crate) mod attributes;
pub(crate) mod copy;
pub(crate) mod directory;
pub(crate) mod fallocate;
pub(crate) mod later;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod seek;
pub(crate) mod truncate;
pub(crate) mod xattr;
