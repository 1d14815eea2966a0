//! The NSD block store and server role: variable-length strips on one disk's container.
//!
//! Pure parts decide (`allocator`, `record`, `rules`); `store` drives the disk, the journal and the
//! key-value index after their decisions.

#![warn(missing_docs)]

pub mod allocator;
pub mod discards;
pub mod edits;
pub mod extent;
pub mod keys;
pub mod reclaim;
pub mod record;
pub mod rules;
pub mod store;

pub use store::{BlockStore, BlockStoreOptions};
