//! Locks and condition variables that ask the scheduler where a thread is simulated.
//!
//! Each wraps its plain counterpart. A thread that is not simulated uses that one. A simulated
//! thread *tries* the plain operation, and waits with the scheduler where it does not succeed: so
//! a lock never blocks a thread that holds the baton.
#![allow(unsafe_code, reason = "the traits of raw locks are unsafe")]

use super::scheduler::{Awaited, Here};
use super::stacks::here;
use parking_lot::lock_api::{self, GuardNoSend, RawMutex as _, RawRwLock as _};
use std::panic::Location;
use std::time::{Duration, Instant};

/// A mutual exclusion; see the module.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// Holds a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// A read-write lock; see the module.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// Holds a [`RwLock`] for reading.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
/// Holds a [`RwLock`] for writing.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;
/// Holds a [`RwLock`] for reading, and may write later.
pub type RwLockUpgradableReadGuard<'a, T> = lock_api::RwLockUpgradableReadGuard<'a, RawRwLock, T>;

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

/// Tries until it succeeds, waiting for `on` meanwhile, at most `limit`.
#[track_caller]
fn acquire(
    here: &Here,
    on: Awaited,
    what: &'static str,
    limit: Option<Duration>,
    attempt: impl Fn() -> bool,
) -> bool {
    let place = Location::caller();
    here.point("lock", place);
    let end = limit.map(|limit| here.with(|state| state.now).saturating_add(limit));
    loop {
        if attempt() {
            return true;
        }
        let left = end.map(|end| end.saturating_sub(here.with(|state| state.now)));
        if !here.block(on, what, left, place) {
            return attempt();
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a limit of the plain locks' interface")]
fn until(moment: Instant) -> Duration {
    moment.saturating_duration_since(Instant::now())
}

/// What is below a [`Mutex`].
pub struct RawMutex(parking_lot::RawMutex);

impl RawMutex {
    /// Releases it and wakes those who wait for it, with no decision point.
    ///
    /// # Safety
    /// As `unlock`.
    unsafe fn release(&self, here: &Here) {
        // SAFETY: the caller holds it.
        unsafe { self.0.unlock() };
        here.wake(Awaited::Lock(address(self)), true);
    }
}

// SAFETY: all exclusion is that of the plain lock inside.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: RawMutex = RawMutex(parking_lot::RawMutex::INIT);
    type GuardMarker = GuardNoSend;

    #[track_caller]
    fn lock(&self) {
        let Some(here) = here() else { return self.0.lock() };
        acquire(&here, Awaited::Lock(address(self)), "a lock", None, || self.0.try_lock());
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        if let Some(here) = here() {
            here.point("try lock", Location::caller());
        }
        self.0.try_lock()
    }

    #[track_caller]
    unsafe fn unlock(&self) {
        match here() {
            // SAFETY: the caller holds it.
            None => unsafe { self.0.unlock() },
            Some(here) => {
                // SAFETY: the caller holds it.
                unsafe { self.release(&here) };
                here.point("unlock", Location::caller());
            }
        }
    }

    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_for(&self, limit: Duration) -> bool {
        let Some(here) = here() else { return self.0.try_lock_for(limit) };
        let on = Awaited::Lock(address(self));
        acquire(&here, on, "a lock", Some(limit), || self.0.try_lock())
    }

    #[track_caller]
    fn try_lock_until(&self, moment: Instant) -> bool {
        self.try_lock_for(until(moment))
    }
}

/// What is below a [`RwLock`].
pub struct RawRwLock(parking_lot::RawRwLock);

impl RawRwLock {
    /// Those who wait for it try again.
    #[track_caller]
    fn changed(&self, what: &'static str) {
        if let Some(here) = here() {
            here.wake(Awaited::Lock(address(self)), true);
            here.wake(Awaited::Write(address(self)), true);
            here.point(what, Location::caller());
        }
    }

    /// As a plain lock: readers queue behind a writer that waits.
    #[track_caller]
    fn share(&self, here: &Here, limit: Option<Duration>) -> bool {
        let (on, writer) = (Awaited::Lock(address(self)), Awaited::Write(address(self)));
        acquire(here, on, "a lock, to read", limit, || {
            !here.is_awaited(writer) && self.0.try_lock_shared()
        })
    }

    #[track_caller]
    fn exclude(&self, here: &Here, limit: Option<Duration>) -> bool {
        let on = Awaited::Write(address(self));
        let held = acquire(here, on, "a lock, to write", limit, || self.0.try_lock_exclusive());
        if !held {
            // Readers that queued behind this writer.
            here.wake(Awaited::Lock(address(self)), true);
        }
        held
    }
}

// SAFETY: all exclusion is that of the plain lock inside.
unsafe impl lock_api::RawRwLock for RawRwLock {
    const INIT: RawRwLock = RawRwLock(parking_lot::RawRwLock::INIT);
    type GuardMarker = GuardNoSend;

    #[track_caller]
    fn lock_shared(&self) {
        let Some(here) = here() else { return self.0.lock_shared() };
        self.share(&here, None);
    }

    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        if let Some(here) = here() {
            here.point("try to read", Location::caller());
            if here.is_awaited(Awaited::Write(address(self))) {
                return false;
            }
        }
        self.0.try_lock_shared()
    }

    #[track_caller]
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds it so.
        unsafe { self.0.unlock_shared() };
        self.changed("unlock");
    }

    #[track_caller]
    fn lock_exclusive(&self) {
        let Some(here) = here() else { return self.0.lock_exclusive() };
        self.exclude(&here, None);
    }

    #[track_caller]
    fn try_lock_exclusive(&self) -> bool {
        if let Some(here) = here() {
            here.point("try to write", Location::caller());
        }
        self.0.try_lock_exclusive()
    }

    #[track_caller]
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds it so.
        unsafe { self.0.unlock_exclusive() };
        self.changed("unlock");
    }

    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockDowngrade for RawRwLock {
    #[track_caller]
    unsafe fn downgrade(&self) {
        // SAFETY: the caller holds it to write.
        unsafe { self.0.downgrade() };
        self.changed("downgrade");
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_shared_for(&self, limit: Duration) -> bool {
        let Some(here) = here() else { return self.0.try_lock_shared_for(limit) };
        self.share(&here, Some(limit))
    }

    #[track_caller]
    fn try_lock_shared_until(&self, moment: Instant) -> bool {
        self.try_lock_shared_for(until(moment))
    }

    #[track_caller]
    fn try_lock_exclusive_for(&self, limit: Duration) -> bool {
        let Some(here) = here() else { return self.0.try_lock_exclusive_for(limit) };
        self.exclude(&here, Some(limit))
    }

    #[track_caller]
    fn try_lock_exclusive_until(&self, moment: Instant) -> bool {
        self.try_lock_exclusive_for(until(moment))
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockUpgrade for RawRwLock {
    #[track_caller]
    fn lock_upgradable(&self) {
        let Some(here) = here() else { return self.0.lock_upgradable() };
        let on = Awaited::Lock(address(self));
        acquire(&here, on, "a lock, to upgrade", None, || self.0.try_lock_upgradable());
    }

    #[track_caller]
    fn try_lock_upgradable(&self) -> bool {
        if let Some(here) = here() {
            here.point("try to upgrade", Location::caller());
        }
        self.0.try_lock_upgradable()
    }

    #[track_caller]
    unsafe fn unlock_upgradable(&self) {
        // SAFETY: the caller holds it so.
        unsafe { self.0.unlock_upgradable() };
        self.changed("unlock");
    }

    #[track_caller]
    unsafe fn upgrade(&self) {
        // SAFETY: the caller holds it upgradable.
        let Some(here) = here() else { return unsafe { self.0.upgrade() } };
        let on = Awaited::Write(address(self));
        // SAFETY: as above; an attempt that fails changes nothing.
        acquire(&here, on, "readers to leave", None, || unsafe { self.0.try_upgrade() });
    }

    unsafe fn try_upgrade(&self) -> bool {
        // SAFETY: the caller holds it upgradable.
        unsafe { self.0.try_upgrade() }
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockUpgradeDowngrade for RawRwLock {
    #[track_caller]
    unsafe fn downgrade_upgradable(&self) {
        // SAFETY: the caller holds it upgradable.
        unsafe { self.0.downgrade_upgradable() };
        self.changed("downgrade");
    }

    #[track_caller]
    unsafe fn downgrade_to_upgradable(&self) {
        // SAFETY: the caller holds it to write.
        unsafe { self.0.downgrade_to_upgradable() };
        self.changed("downgrade");
    }
}

/// Whether a wait ended by its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable; see the module.
///
/// A thread that is not simulated waits on the plain one inside, under a lock of its own that
/// [`Condvar::notify_one`] takes: so nothing is missed between the release of the caller's lock
/// and the wait.
#[derive(Debug, Default)]
pub struct Condvar {
    gate: parking_lot::Mutex<()>,
    plain: parking_lot::Condvar,
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Condvar {
        Condvar { gate: parking_lot::Mutex::new(()), plain: parking_lot::Condvar::new() }
    }

    #[track_caller]
    fn wait_at_most<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Option<Duration>,
    ) -> bool {
        let place = Location::caller();
        // SAFETY: the lock is held by `guard`, and held again when this returns.
        let raw = unsafe { MutexGuard::mutex(guard).raw() };
        let Some(here) = here() else {
            let mut gate = self.gate.lock();
            // SAFETY: `guard` holds it.
            unsafe { raw.0.unlock() };
            let timed_out = match limit {
                Some(limit) => self.plain.wait_for(&mut gate, limit).timed_out(),
                None => {
                    self.plain.wait(&mut gate);
                    false
                }
            };
            drop(gate);
            raw.0.lock();
            return timed_out;
        };
        // Nobody runs between these two, because this thread holds the baton.
        // SAFETY: `guard` holds it.
        unsafe { raw.release(&here) };
        let on = Awaited::Condition(address(self));
        let is_woken = here.block(on, "a condition", limit, place);
        let lock = Awaited::Lock(address(raw));
        while !raw.0.try_lock() {
            here.block(lock, "a lock, after a condition", None, place);
        }
        !is_woken
    }

    /// Releases the lock, waits to be notified, and takes the lock again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }

    /// The same, for at most `limit`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.wait_at_most(guard, Some(limit)))
    }

    /// Waits as long as `condition` holds.
    #[track_caller]
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(&mut **guard) {
            self.wait_at_most(guard, None);
        }
    }

    /// Waits as long as `condition` holds, for at most `limit`.
    #[track_caller]
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let clock = crate::RealClock;
        let end = crate::Clock::monotonic(&clock).saturating_add(limit);
        while condition(&mut **guard) {
            let left = end.saturating_sub(crate::Clock::monotonic(&clock));
            if left.is_zero() {
                return WaitTimeoutResult(true);
            }
            self.wait_at_most(guard, Some(left));
        }
        WaitTimeoutResult(false)
    }

    /// Wakes one that waits, if there is one.
    #[track_caller]
    pub fn notify_one(&self) -> bool {
        self.notify(false) > 0
    }

    /// Wakes all that wait.
    #[track_caller]
    pub fn notify_all(&self) -> usize {
        self.notify(true)
    }

    #[track_caller]
    fn notify(&self, all: bool) -> usize {
        let Some(here) = here() else {
            // One that is about to wait has the gate, and waits when this gets it.
            drop(self.gate.lock());
            return match all {
                true => self.plain.notify_all(),
                false => usize::from(self.plain.notify_one()),
            };
        };
        let woken = here.wake(Awaited::Condition(address(self)), all);
        here.point("notify", Location::caller());
        woken
    }
}
