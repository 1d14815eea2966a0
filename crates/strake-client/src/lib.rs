//! The client core: the [`Vfs`], which adapters (FUSE, NFS) call, and below it the page pool,
//! write-behind, prefetch, stripes and the sessions to NSD servers and metadata.
//!
//! Data flows one way: adapter ▶ `Vfs` ▶ page pool ▶ stripe ▶ NSD session.

#![warn(missing_docs)]

pub mod vfs;

pub use vfs::Vfs;
