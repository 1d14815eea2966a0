//! Doubles for tests: NSDs in memory with faults to inject, metadata that loses what was not synced.

pub(crate) mod memory_nsd;

pub(crate) use memory_nsd::MemoryNsd;
