//! The whole stack on simulated disks: histories, power cuts, lost NSDs, and a judge.
//!
//! ```text
//! machine     disks in memory; opens containers, block stores, metadata and client on them
//! tree        what the names and attributes are; what each file has held
//! history     random POSIX operations on the real stack, each also told to the model
//! recording   the disks' one log and the operations' places in it
//! point       a moment of the log, what became of unsynced writes, which NSDs are lost
//! judge       what was promised there, and whether the recovered file system keeps it
//! explore     visits every state of a model
//! stripe_model  every state of the stripe-commit protocol, for one block and one writer
//! handover_model  the same for two clients that hand the block over
//! token_model  every state of tokens: the real authority, real clients, a network that loses,
//!             repeats and overtakes
//! lease_model  every state of leases: the real membership, watches and admissions, clocks that
//!             differ, a network that loses and delivers late
//! reservation_model  every state of reservations: the real ones of two or three servers, marks
//!             on their NSD, records that name one server after the other
//! cluster     three nodes and three mounts, programs on them, and faults of all kinds
//! ```
//!
//! A history runs once. Every crash is then derived from its log, so looking at one point costs one
//! recovery and no second run of the history. On a failure, the recording is written to a file and
//! the test prints the command that replays exactly that point.
//!
//! A history of several application threads can run under the scheduler
//! ([`strake_env::simulation`]). Its seed then also decides the order of the threads, so two runs
//! of a seed are equal (`determinism_test.rs`).
//!
//! This crate is for tests only. The product contains none of it.

pub mod explore;
pub mod handover_model;
pub mod history;
pub mod judge;
pub mod lease_model;
pub mod machine;
pub mod point;
pub mod recording;
pub mod reservation_model;
pub mod stripe_model;
pub mod token_model;
pub mod tree;

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod determinism_test;
#[cfg(test)]
mod lease_test;
#[cfg(test)]
mod power_cut_test;
#[cfg(test)]
mod replica_test;
#[cfg(test)]
mod replicated_meta_test;
#[cfg(test)]
mod scenario_test;
