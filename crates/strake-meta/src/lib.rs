//! The metadata state machine on an ordered key-value store, its log and copies.
//!
//! [`machine`] and [`query`] are the pure core: they know neither disk nor thread. [`MemoryMeta`]
//! runs them on a map in memory, [`MetaStore`] on equal copies in several NSDs' containers.

#![warn(missing_docs)]

pub mod check;
pub mod keys;
pub mod kv;
mod log_entry;
pub mod machine;
pub mod memory;
mod names;
mod ops;
pub mod query;
mod records;
pub mod store;
mod transaction;

pub use kv::MemoryKv;
pub use memory::MemoryMeta;
pub use store::{MetaOptions, MetaStore, MetaWorker, WITNESS_BYTES};

#[cfg(test)]
mod testing;

#[cfg(test)]
mod model;
