//! The NSD block store and server role: variable-length strips on one disk's container.
//!
//! The pure parts decide (`admission`, `allocator`, `grants`, `record`, `rules`). `store` carries
//! out their decisions on the disk, the journal and the key-value index.

#![warn(missing_docs)]

pub mod admission;
pub mod allocator;
pub mod discards;
pub mod edits;
pub mod extent;
pub mod gather;
pub mod grants;
pub mod keys;
pub mod reclaim;
pub mod record;
pub mod rules;
pub mod store;

pub use store::{BlockStore, BlockStoreOptions, Service};
