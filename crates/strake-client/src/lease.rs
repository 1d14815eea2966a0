//! This client's lease. An operation that begins waits here while the lease is over, and fails once
//! the leader has said that this client was declared dead. [`strake_lease`] has the reasons.
//!
//! An operation that had begun before the lease ended goes on. What it answers from a cache was so
//! when it began. What it writes is refused by the NSDs as soon as others may use the file.
//!
//! A mount without a lease pays one look at an atomic number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex};
use strake_lease::{Standing, Watch};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{info, warn};

/// The leader may be away for that long before operations fail.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The watch is read again after that long, whoever signals.
const LOOK: Duration = Duration::from_secs(1);
/// No lease is needed.
const ALWAYS: u64 = u64::MAX;

struct State {
    /// `None` if no lease is needed.
    watch: Option<Watch>,
    /// The log has said that the lease is over.
    is_said: bool,
    /// The mount ends: nobody waits any more.
    has_ended: bool,
}

/// See the file's head.
pub(crate) struct Lease {
    /// Operations may begin before this nanosecond of the clock. It follows from `state`.
    until: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    observe: Arc<Observe>,
}

impl Lease {
    /// No lease is needed until [`Lease::begin`].
    pub(crate) fn new(clock: Arc<dyn Clock>, observe: Arc<Observe>) -> Lease {
        let state = Mutex::new(State { watch: None, is_said: false, has_ended: false });
        Lease { until: AtomicU64::new(ALWAYS), state, changed: Condvar::new(), clock, observe }
    }

    /// From now on operations need a lease. The first one was asked for at the moment `sent`.
    pub(crate) fn begin(&self, length: Duration, sent: Duration) {
        self.change(|_| Some(Watch::new(length, sent)));
    }

    /// The leader has answered a renewal that was sent at the moment `sent`.
    pub(crate) fn renewed(&self, sent: Duration) {
        let now = self.clock.monotonic();
        self.change(|watch| {
            watch.map(|mut watch| {
                watch.renewed(sent, now);
                watch
            })
        });
    }

    /// The leader says that this client was declared dead. Returns whether that is news.
    pub(crate) fn die(&self) -> bool {
        let was_dead = self.is_dead();
        self.change(|watch| {
            let mut watch = watch.unwrap_or_else(|| Watch::new(Duration::ZERO, Duration::ZERO));
            watch.declared_dead();
            Some(watch)
        });
        !was_dead
    }

    /// The mount ends. Whoever waits for the lease fails.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn change(&self, change: impl FnOnce(Option<Watch>) -> Option<Watch>) {
        let mut state = self.state.lock();
        state.watch = change(state.watch.take());
        let until = match &state.watch {
            None => ALWAYS,
            Some(watch) => {
                let until = u64::try_from(watch.until().as_nanos()).unwrap_or(ALWAYS - 1);
                if watch.is_dead() { 0 } else { until.min(ALWAYS - 1) }
            }
        };
        self.until.store(until, Ordering::Release);
        let is_held = self.now() < until;
        if is_held && std::mem::take(&mut state.is_said) {
            info!(target: "tokens", "the leader has renewed the lease: operations go on");
        }
        drop(state);
        self.changed.notify_all();
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(ALWAYS - 1)
    }

    /// Whether this client may use now what it holds.
    pub(crate) fn is_held(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == ALWAYS || self.now() < until
    }

    /// How long this client may use what it holds, if the lease is not renewed.
    pub(crate) fn left(&self) -> Duration {
        let until = self.until.load(Ordering::Acquire);
        Duration::from_nanos(until.saturating_sub(self.now()))
    }

    /// Whether this client was declared dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.until.load(Ordering::Acquire) == 0
    }

    /// Waits until this client may use what it holds.
    ///
    /// # Errors
    /// `Io` once this client was declared dead; `TimedOut` after a long wait; `Unreachable` if the
    /// mount ends.
    pub(crate) fn hold(&self) -> Result<()> {
        if self.is_held() {
            return Ok(());
        }
        let start = self.clock.monotonic();
        let _wait = self.observe.waiters.enter("lease", "");
        let mut state = self.state.lock();
        loop {
            let now = self.clock.monotonic();
            let standing = state.watch.as_ref().map(|watch| watch.standing(now));
            match standing {
                None | Some(Standing::Held) => return Ok(()),
                Some(Standing::Dead) => return Err(dead()),
                Some(Standing::Over) => {}
            }
            let is_late = now.saturating_sub(start) >= WAIT_MAX;
            if state.has_ended || is_late {
                let kind = if is_late { ErrorKind::TimedOut } else { ErrorKind::Unreachable };
                return Err(Error::new(kind, "the leader does not renew this mount's lease"));
            }
            if !std::mem::replace(&mut state.is_said, true) {
                warn!(
                    target: "tokens",
                    "the lease is over, because the leader does not answer: operations wait"
                );
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }
}

/// The error of every operation of a client that was declared dead.
pub(crate) fn dead() -> Error {
    let detail = "this mount was declared dead, because the leader did not hear of it for longer \
                  than a lease or has lost what this mount knows: it goes on by itself, and files \
                  that were open must be opened again";
    Error::new(ErrorKind::Io, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::ManualClock;
    use strake_env::thread;

    const LENGTH: Duration = Duration::from_secs(10);

    fn lease() -> (Arc<ManualClock>, Lease) {
        let clock = Arc::new(ManualClock::default());
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let observe = Observe::new(Arc::clone(&shared), 16);
        (clock, Lease::new(shared, observe))
    }

    #[test]
    fn a_mount_that_needs_no_lease_never_waits() {
        let (clock, lease) = lease();
        clock.advance(LENGTH * 1000);
        assert!(lease.is_held() && !lease.is_dead());
        lease.renewed(Duration::ZERO);
        lease.hold().expect("no lease is needed");
    }

    #[test]
    fn operations_wait_until_the_lease_is_renewed() {
        let (clock, lease) = lease();
        lease.begin(LENGTH, Duration::ZERO);
        lease.hold().expect("held");
        clock.advance(LENGTH);
        assert!(!lease.is_held());
        lease.renewed(Duration::ZERO);
        assert!(!lease.is_held(), "that was sent too long ago");
        let waiters = &lease.observe.waiters;
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lease.hold());
            while waiters.snapshot().is_empty() {
                thread::yield_now();
            }
            assert_eq!(waiters.snapshot()[0].reason, "lease");
            lease.renewed(Duration::from_secs(9));
            waiting.join().expect("no panic").expect("renewed");
        });
        assert!(lease.is_held() && waiters.snapshot().is_empty());
    }

    #[test]
    fn death_ends_every_wait_and_is_final() {
        let (clock, lease) = lease();
        lease.begin(LENGTH, Duration::ZERO);
        clock.advance(LENGTH);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lease.hold());
            while lease.observe.waiters.snapshot().is_empty() {
                thread::yield_now();
            }
            assert!(lease.die(), "it is news");
            let error = waiting.join().expect("no panic").expect_err("dead");
            assert_eq!(error.kind(), ErrorKind::Io);
        });
        lease.renewed(clock.monotonic());
        assert!(lease.is_dead() && !lease.is_held() && !lease.die());
        assert!(lease.hold().is_err());
    }

    #[test]
    fn a_leader_that_stays_away_is_an_error() {
        let (clock, lease) = lease();
        lease.begin(LENGTH, Duration::ZERO);
        clock.advance(LENGTH);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lease.hold());
            while lease.observe.waiters.snapshot().is_empty() {
                thread::yield_now();
            }
            clock.advance(WAIT_MAX);
            let error = waiting.join().expect("no panic").expect_err("too long");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        });
    }
}
