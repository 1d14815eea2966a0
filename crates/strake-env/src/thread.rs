//! Threads, as all product crates take them.
//!
//! There is no `sleep` here, because only background workers with a rate or an interval may sleep:
//! they take it from their [`Clock`](crate::Clock). There is no `park` either: a condition variable
//! says what a thread waits for.

#[cfg(any(test, feature = "simulation"))]
pub use crate::simulation::seam::{
    Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, scope, spawn,
    yield_now,
};
pub use std::thread::available_parallelism;
#[cfg(not(any(test, feature = "simulation")))]
pub use std::thread::{
    Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, scope, spawn,
    yield_now,
};

/// The number by which the kernel knows this thread, as `top -H` and `/proc` show it. All threads
/// of a simulation have the same one, because they run on one thread of the kernel's.
#[inline]
pub fn number() -> u32 {
    thread_local! {
        static NUMBER: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    }
    NUMBER.get()
}

/// Calls `work` from within a call of another crate that may hold a lock of its own. A simulation
/// lets nobody else run meanwhile, because that thread might wait for the lock, and the simulation
/// would not know. In the product it is a plain call.
#[inline]
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(any(test, feature = "simulation"))]
    return crate::simulation::undisturbed(work);
    #[cfg(not(any(test, feature = "simulation")))]
    work()
}
