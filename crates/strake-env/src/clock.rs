//! Time as product code sees it.

use crate::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;
use strake_proto::Timestamp;

/// Time, handed in from above.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start that never goes back (boot time, suspended time included).
    fn monotonic(&self) -> Duration;
    /// The calendar's time, for the times that `stat` shows.
    fn wall(&self) -> Timestamp;
    /// Waits for this time. Only background workers with a rate or an interval may use it.
    fn sleep(&self, duration: Duration);
}

/// The machine's clocks; for a simulated thread those of the simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl RealClock {
    /// The usual handle.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(RealClock)
    }
}

impl Clock for RealClock {
    fn monotonic(&self) -> Duration {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(now) = crate::simulation::now() {
            return now;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }

    fn wall(&self) -> Timestamp {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(now) = crate::simulation::now() {
            return Timestamp {
                seconds: 1_700_000_000 + now.as_secs() as i64,
                nanos: now.subsec_nanos(),
            };
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp { seconds: now.tv_sec, nanos: now.tv_nsec.unsigned_abs() as u32 }
    }

    #[allow(clippy::disallowed_methods, reason = "this is the seam that the ban points to")]
    fn sleep(&self, duration: Duration) {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::sleep(duration) {
            return;
        }
        std::thread::sleep(duration);
    }
}

/// A clock that moves only when told, for tests. Sleeping advances it. In a simulation its
/// monotonic time moves with simulated time as well; the calendar's does not.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        *self.now.lock() += duration;
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        let now = *self.now.lock();
        #[cfg(any(test, feature = "simulation"))]
        return now + crate::simulation::now().unwrap_or_default();
        #[cfg(not(any(test, feature = "simulation")))]
        now
    }

    fn wall(&self) -> Timestamp {
        let now = *self.now.lock();
        Timestamp { seconds: 1_700_000_000 + now.as_secs() as i64, nanos: now.subsec_nanos() }
    }

    fn sleep(&self, duration: Duration) {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::sleep(duration) {
            return;
        }
        self.advance(duration);
    }
}
