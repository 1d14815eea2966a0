//! Consensus: a log of opaque entries on 1, 3 or 5 replicas, and a state machine behind it. An
//! entry is acknowledged when a majority has it on disk. The cluster's records are kept so.
//!
//! - [`core`] decides. It is pure: inputs and the time go in, outputs come out.
//! - [`message`] has what replicas say to each other, and its bytes.
//! - [`journal`] keeps on a disk what a replica must not forget.
//! - [`replica`] drives the three with threads, and has the calls. [`machine`] has the traits that
//!   a caller implements.
//! - [`log`], [`entry`], [`membership`] and [`types`] are what they talk about.
//!
//! **The promise.** Replicas that apply the same position have applied the same entries. What was
//! committed is never lost while a majority of the disks keeps what it was told is durable. One
//! disk at a time may even come back as it was some time ago, as long as the members are the same
//! (rule R26; [`core`] says how).
//!
//! **The proof** is in `cluster_test.rs`: whole groups under faults that a seed chooses. Each rule
//! of `rule.rs` is taken away once in a test, which must find that. Decision 0041 has the reasons.

#![warn(missing_docs)]

pub mod core;
pub mod entry;
pub mod journal;
pub mod log;
pub mod machine;
pub mod membership;
pub mod message;
pub mod replica;
mod rule;
pub mod types;

pub use machine::{KeepingMachine, Machine, StateMachine, Transport};
pub use replica::Replica;

#[cfg(test)]
mod cluster_test;
