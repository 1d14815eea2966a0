//! Threads, as all product crates take them.
//!
//! There is no `sleep` here, because only background workers with a rate or an interval may sleep:
//! they take it from their [`Clock`](crate::Clock). There is no `park` either: a condition variable
//! says what a thread waits for.

pub use std::thread::{
    Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, available_parallelism, current,
    scope, spawn, yield_now,
};
