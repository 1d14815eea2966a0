//! Doubles for tests of the array, the client and the manager: NSDs in memory with faults to
//! inject, and metadata that loses unsynced entries in a crash. No product crate depends on this
//! crate.

pub mod crash_meta;
mod memory_grants;
pub mod memory_nsd;

pub use crash_meta::CrashMeta;
pub use memory_nsd::MemoryNsd;
