//! Locks and condition variables, as all product crates take them: locks that do not poison.
//!
//! In the product they are `parking_lot`'s. In tests with the feature `simulation` they ask the
//! scheduler where a thread is simulated. The watched ones are for locks that are held across I/O.

#[cfg(any(test, feature = "simulation"))]
pub use crate::simulation::seam::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(not(any(test, feature = "simulation")))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard, WaitTimeoutResult,
};

pub use crate::watched::{
    WatchedMutex, WatchedMutexGuard, WatchedReadGuard, WatchedRwLock, WatchedUpgradableGuard,
    WatchedWriteGuard,
};
