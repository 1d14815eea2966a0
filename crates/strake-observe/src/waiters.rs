//! Everything that waits, by name: whoever may wait for another part holds a guard meanwhile.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_proto::Timestamp;

/// One wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterSnapshot {
    /// The name of the thread that waits.
    pub thread: String,
    /// What for: one of a small set of names.
    pub reason: String,
    /// Which one of those; may be empty.
    pub detail: String,
    /// Since when, by the calendar.
    pub since: Timestamp,
    /// For how long.
    pub waited: Duration,
}

struct Waiter {
    thread: String,
    reason: &'static str,
    detail: Cow<'static, str>,
    since: Timestamp,
    start: Duration,
}

/// The registry.
pub struct Waiters {
    clock: Arc<dyn Clock>,
    table: Mutex<(u64, BTreeMap<u64, Waiter>)>,
}

/// Held while waiting; dropping it ends the wait.
pub struct WaitGuard<'a> {
    waiters: &'a Waiters,
    id: u64,
}

impl Waiters {
    /// Nobody waits yet.
    pub fn new(clock: Arc<dyn Clock>) -> Waiters {
        Waiters { clock, table: Mutex::new((0, BTreeMap::new())) }
    }

    /// Notes that this thread begins to wait for `reason`.
    #[must_use = "the wait ends when the guard is dropped"]
    pub fn enter(
        &self,
        reason: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> WaitGuard<'_> {
        let waiter = Waiter {
            thread: std::thread::current().name().unwrap_or("unnamed").to_owned(),
            reason,
            detail: detail.into(),
            since: self.clock.wall(),
            start: self.clock.monotonic(),
        };
        let mut table = self.table.lock();
        let id = table.0;
        table.0 += 1;
        table.1.insert(id, waiter);
        WaitGuard { waiters: self, id }
    }

    /// All waits, longest first.
    pub fn snapshot(&self) -> Vec<WaiterSnapshot> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        table
            .1
            .values()
            .map(|waiter| WaiterSnapshot {
                thread: waiter.thread.clone(),
                reason: waiter.reason.to_owned(),
                detail: waiter.detail.clone().into_owned(),
                since: waiter.since,
                waited: now.saturating_sub(waiter.start),
            })
            .collect()
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiters.table.lock().1.remove(&self.id);
    }
}
