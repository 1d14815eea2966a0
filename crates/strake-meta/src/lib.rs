//! The metadata state machine on an ordered key-value store, its log and copies.
//!
//! [`machine`] and [`query`] are the pure core: they know neither disk nor thread. [`MemoryMeta`]
//! runs them on a map in memory.

#![warn(missing_docs)]

pub mod check;
pub mod keys;
pub mod kv;
pub mod machine;
pub mod memory;
mod names;
mod ops;
pub mod query;
mod records;
mod transaction;

pub use kv::{Changes, KvRead, MemoryKv};
pub use memory::MemoryMeta;

#[cfg(test)]
mod testing;
