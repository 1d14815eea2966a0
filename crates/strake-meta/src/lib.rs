//! The metadata state machine on an ordered key-value store, its log and its copies.
//!
//! [`machine`] and [`query`] are the pure core: they know neither disks nor threads. [`MemoryMeta`]
//! runs the core on a map in memory. [`MetaStore`] runs it on equal copies in the containers of
//! several NSDs of one machine. [`replicated`] runs it on several nodes of a cluster with one log,
//! over [`ahead`], the state of a replica that may lead.

#![warn(missing_docs)]

pub mod ahead;
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
pub mod replicated;
pub mod store;
mod transaction;

pub use kv::MemoryKv;
pub use memory::MemoryMeta;
pub use store::{MetaOptions, MetaStore, MetaWorker, WITNESS_BYTES};

#[cfg(test)]
mod testing;

#[cfg(test)]
mod model;
