//! One disk's container: superblock, regions, journal, and an ordered key-value store on them.
//!
//! A [`Container`] lies on a [`strake_env::Disk`] and divides it into two log rings and equal
//! chunks (picture in `container.rs`). A [`Journal`] on a [`LogRegion`] makes entries durable
//! cheaply. A [`Kv`] on a [`KvRegion`] holds the state that the entries lead to. Recovery is always
//! the same: the KV is opened as of its last checkpoint, and its owner applies the journal's
//! entries after [`Kv::applied_in_base`] again.

pub mod container;
pub mod journal;
pub mod kv;
pub mod region;
pub mod superblock;

pub use container::{Container, FormatOptions};
pub use journal::{Journal, Lsn};
pub use kv::{Batch, Kv, KvRead, KvStats, Renewed, Verified};
pub use region::{ChunkSource, KvRegion, KvRole, LogRegion, UnusedChunks};
pub use superblock::Superblock;
