//! The one place where this crate looks at a clock.
//!
//! A benchmark measures real time, so nothing is simulated. All other code takes nanoseconds as
//! plain numbers, so tests can use made-up ones. Times of two hosts are never compared, only
//! differences taken on one host. The clocks of the hosts need not agree.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on this host's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(Instant);

impl Tick {
    /// The present moment.
    #[allow(
        clippy::disallowed_methods,
        reason = "a benchmark measures real time; this is the only reader of the clock here"
    )]
    pub fn now() -> Tick {
        Tick(Instant::now())
    }

    /// Nanoseconds from `earlier` to this moment; zero if `earlier` is the later one.
    pub fn nanos_since(self, earlier: Tick) -> u64 {
        u64::try_from(self.0.saturating_duration_since(earlier.0).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds from this moment until now.
    pub fn elapsed_nanos(self) -> u64 {
        Tick::now().nanos_since(self)
    }

    /// Seconds from this moment until now.
    pub fn elapsed_seconds(self) -> f64 {
        self.elapsed_nanos() as f64 / 1e9
    }
}

/// Seconds since 1970, for the head of a report; zero on a clock set before that.
#[allow(
    clippy::disallowed_methods,
    reason = "the date in the head of a report; no measurement uses it"
)]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Sleeps. Used between two looks at a progress counter, never to hide a race.
#[allow(
    clippy::disallowed_methods,
    reason = "pacing of progress lines and timed tests; nothing depends on its exactness"
)]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
