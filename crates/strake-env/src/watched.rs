//! Watched locks: a wait for one has a name in `strake diag waiters`, with the threads that hold
//! the lock and how long they have ([`crate::lock_waits`]).
//!
//! Every lock that is held across I/O or across a call of another process is a watched one. Taking
//! a free one costs some 15 ns more than taking a plain one, and no memory. A lock that is held for
//! moments only is a plain one (decision 0050).
//!
//! ```
//! strake_env::lock_names! {
//!     /// Held while somebody cooks.
//!     Kitchen = "the kitchen";
//! }
//! let kitchen: strake_env::sync::WatchedMutex<Kitchen> = Default::default();
//! let _alone = kitchen.lock();
//! ```

use crate::lock_waits::{Held, Wait};
use crate::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const SHARED: &str = "shared";
const EXCLUSIVE: &str = "exclusive";

/// The name of the locks of one kind in lists of waits. [`crate::lock_names`] makes the types.
pub trait LockName {
    /// The name, in a user's words. The table of waits in `docs/operating.md` explains it.
    const NAME: &'static str;
}

/// Names locks; see [`crate::watched`]. No two names are equal (`xtask tidy`).
#[macro_export]
macro_rules! lock_names {
    ($($(#[$doc:meta])* $visible:vis $type:ident = $name:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            $visible struct $type;

            impl $crate::watched::LockName for $type {
                const NAME: &'static str = $name;
            }
        )*
    };
}

/// The guard of a watched lock, around the plain guard.
pub struct Watched<G> {
    // Dropped first: the thread is named as a holder only while it is one.
    #[allow(dead_code, reason = "it is there to be dropped")]
    held: Held,
    guard: G,
}

impl<G: Deref> Deref for Watched<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Watched<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G> fmt::Debug for Watched<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// Holds a [`WatchedMutex`].
pub type WatchedMutexGuard<'a, T> = Watched<MutexGuard<'a, T>>;
/// Holds a [`WatchedRwLock`] for reading.
pub type WatchedReadGuard<'a, T> = Watched<RwLockReadGuard<'a, T>>;
/// Holds a [`WatchedRwLock`] for reading, and may write later.
pub type WatchedUpgradableGuard<'a, T> = Watched<RwLockUpgradableReadGuard<'a, T>>;
/// Holds a [`WatchedRwLock`] for writing.
pub type WatchedWriteGuard<'a, T> = Watched<RwLockWriteGuard<'a, T>>;

/// The address of a lock, by which waits and holds are matched.
fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// A mutual exclusion; see the module.
pub struct WatchedMutex<N, T = ()> {
    inner: Mutex<T>,
    name: PhantomData<fn() -> N>,
}

impl<N: LockName, T> WatchedMutex<N, T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> WatchedMutex<N, T> {
        WatchedMutex { inner: Mutex::new(value), name: PhantomData }
    }

    fn held<'a>(&self, guard: MutexGuard<'a, T>) -> WatchedMutexGuard<'a, T> {
        Watched { held: Held::new(address(self)), guard }
    }

    fn wait(&self) -> Wait {
        Wait::new(address(self), N::NAME, "")
    }

    /// Takes it.
    #[track_caller]
    pub fn lock(&self) -> WatchedMutexGuard<'_, T> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        let wait = self.wait();
        let guard = self.inner.lock();
        drop(wait);
        self.held(guard)
    }

    /// Takes it if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<WatchedMutexGuard<'_, T>> {
        let guard = self.inner.try_lock()?;
        Some(self.held(guard))
    }

    /// Takes it if it is free within `limit`.
    #[track_caller]
    pub fn try_lock_for(&self, limit: Duration) -> Option<WatchedMutexGuard<'_, T>> {
        if let Some(guard) = self.try_lock() {
            return Some(guard);
        }
        let wait = self.wait();
        let guard = self.inner.try_lock_for(limit)?;
        drop(wait);
        Some(self.held(guard))
    }

    /// True if somebody holds it.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}

impl<N: LockName, T: Default> Default for WatchedMutex<N, T> {
    fn default() -> WatchedMutex<N, T> {
        WatchedMutex::new(T::default())
    }
}

/// A read-write lock; see the module.
pub struct WatchedRwLock<N, T = ()> {
    inner: RwLock<T>,
    name: PhantomData<fn() -> N>,
}

impl<N: LockName, T> WatchedRwLock<N, T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> WatchedRwLock<N, T> {
        WatchedRwLock { inner: RwLock::new(value), name: PhantomData }
    }

    fn held<G>(&self, guard: G) -> Watched<G> {
        Watched { held: Held::new(address(self)), guard }
    }

    /// Takes it shared with other readers.
    #[track_caller]
    pub fn read(&self) -> WatchedReadGuard<'_, T> {
        if let Some(guard) = self.try_read() {
            return guard;
        }
        let wait = Wait::new(address(self), N::NAME, SHARED);
        let guard = self.inner.read();
        drop(wait);
        self.held(guard)
    }

    /// Takes it alone.
    #[track_caller]
    pub fn write(&self) -> WatchedWriteGuard<'_, T> {
        if let Some(guard) = self.try_write() {
            return guard;
        }
        let wait = Wait::new(address(self), N::NAME, EXCLUSIVE);
        let guard = self.inner.write();
        drop(wait);
        self.held(guard)
    }

    /// Takes it shared, if nobody has it alone or waits for that.
    #[track_caller]
    pub fn try_read(&self) -> Option<WatchedReadGuard<'_, T>> {
        let guard = self.inner.try_read()?;
        Some(self.held(guard))
    }

    /// Takes it alone if it is free.
    #[track_caller]
    pub fn try_write(&self) -> Option<WatchedWriteGuard<'_, T>> {
        let guard = self.inner.try_write()?;
        Some(self.held(guard))
    }

    /// Takes it alone if it is free within `limit`.
    #[track_caller]
    pub fn try_write_for(&self, limit: Duration) -> Option<WatchedWriteGuard<'_, T>> {
        if let Some(guard) = self.try_write() {
            return Some(guard);
        }
        let wait = Wait::new(address(self), N::NAME, EXCLUSIVE);
        let guard = self.inner.try_write_for(limit)?;
        drop(wait);
        Some(self.held(guard))
    }
}

impl<N: LockName, T> WatchedRwLock<N, T> {
    /// Goes on alone, once the other readers have left.
    #[track_caller]
    pub fn upgrade<'a>(&self, guard: WatchedUpgradableGuard<'a, T>) -> WatchedWriteGuard<'a, T> {
        let Watched { held, guard } = guard;
        let guard = RwLockUpgradableReadGuard::try_upgrade(guard).unwrap_or_else(|guard| {
            // The list names the readers alone as those who hold it.
            drop(held);
            let _wait = Wait::new(address(self), N::NAME, EXCLUSIVE);
            RwLockUpgradableReadGuard::upgrade(guard)
        });
        self.held(guard)
    }
}

impl<'a, T> WatchedWriteGuard<'a, T> {
    /// Goes on beside readers.
    #[track_caller]
    pub fn downgrade(self) -> WatchedReadGuard<'a, T> {
        Watched { held: self.held, guard: RwLockWriteGuard::downgrade(self.guard) }
    }

    /// Goes on beside readers, and may write again later ([`WatchedRwLock::upgrade`]).
    #[track_caller]
    pub fn downgrade_to_upgradable(self) -> WatchedUpgradableGuard<'a, T> {
        let guard = RwLockWriteGuard::downgrade_to_upgradable(self.guard);
        Watched { held: self.held, guard }
    }
}

impl<N: LockName, T: Default> Default for WatchedRwLock<N, T> {
    fn default() -> WatchedRwLock<N, T> {
        WatchedRwLock::new(T::default())
    }
}
