//! Names in the log each request that fails for a reason that an administrator should know.
//!
//! A program may try again without a pause, a thousand times a second, and the log is on a disk. So
//! only the first requests of a kind get a line of their own. The others are counted, and the count
//! gets a line when [`PERIOD`] is over ([`Failures::tell`]).

use std::collections::HashMap;
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_proto::ErrorKind;
use tracing::warn;

/// So many failures of one operation with one kind of error get lines of their own.
const LINES: u32 = 10;
/// In so much time.
const PERIOD: Duration = Duration::from_secs(60);

/// The failures of one operation with one kind of error.
struct Burst {
    since: Duration,
    lines: u32,
    left_out: u64,
}

/// Failures that have no line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) operation: &'static str,
    pub(crate) kind: ErrorKind,
    pub(crate) count: u64,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Failures {
    /// By operation and kind of error. A leaf.
    bursts: Mutex<HashMap<(&'static str, ErrorKind), Burst>>,
}

impl Failures {
    /// Counts a failure. True if it gets a line of its own.
    pub(crate) fn has_line(&self, operation: &'static str, kind: ErrorKind, now: Duration) -> bool {
        let mut bursts = self.bursts.lock();
        let first = || Burst { since: now, lines: 0, left_out: 0 };
        let burst = bursts.entry((operation, kind)).or_insert_with(first);
        match burst.lines < LINES {
            true => burst.lines += 1,
            false => burst.left_out += 1,
        }
        burst.left_out == 0
    }

    /// The failures without a line whose period is over. From now on such failures have lines
    /// again.
    fn over(&self, now: Duration) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.bursts.lock().retain(|(operation, kind), burst| {
            let is_over = now >= burst.since.saturating_add(PERIOD);
            if is_over && burst.left_out > 0 {
                left_out.push(LeftOut { operation, kind: *kind, count: burst.left_out });
            }
            !is_over
        });
        left_out
    }

    /// Tells how many failures had no line. It is called every few seconds.
    pub(crate) fn tell(&self, now: Duration) {
        for LeftOut { operation, kind, count } in self.over(now) {
            let seconds = PERIOD.as_secs();
            warn!(
                target: "fuse",
                "{operation}: {count} more requests failed within {seconds} s ({kind:?})"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_few_lines_and_is_counted() {
        let failures = Failures::default();
        let at = Duration::from_secs;
        let fail = |operation, kind, seconds| failures.has_line(operation, kind, at(seconds));
        let lines = (0..1000).filter(|_| fail("fuse_read", ErrorKind::Io, 5)).count();
        assert_eq!(lines, LINES as usize);
        assert!(fail("fuse_write", ErrorKind::Io, 6), "another operation");
        assert!(fail("fuse_read", ErrorKind::Unreachable, 6), "another reason");
        assert_eq!(failures.over(at(64)), []);
        let told = failures.over(at(65));
        let count = 1000 - u64::from(LINES);
        assert_eq!(told, [LeftOut { operation: "fuse_read", kind: ErrorKind::Io, count }]);
        assert_eq!(failures.over(at(65)), [], "told once");
        assert!(fail("fuse_read", ErrorKind::Io, 65), "a new period");
    }
}
