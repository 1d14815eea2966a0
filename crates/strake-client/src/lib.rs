//! The client core: the [`Vfs`], which adapters (FUSE, NFS) call, and below it the page pool,
//! write-behind, prefetch, stripes and the sessions to NSD servers and metadata.
//!
//! Data flows one way: adapter ▶ `Vfs` ▶ page pool ▶ stripe ▶ NSD session.

#![warn(missing_docs)]

#[allow(dead_code, reason = "the parts above it come next")]
mod nsds;
#[allow(dead_code, reason = "the parts above it come next")]
mod scratch;
#[allow(dead_code, reason = "the parts above it come next")]
mod stripe_io;
pub mod vfs;

#[cfg(test)]
#[allow(dead_code, reason = "the parts above it come next")]
mod testing;

pub use nsds::NsdView;
pub use vfs::Vfs;
