//! Names in the log each request that fails for a reason that an administrator should know.
//!
//! A program may try again without a pause, a thousand times a second, and the log is on a disk. So
//! only the first requests of a kind get a line of their own. The others are counted, and the count
//! gets a line when [`PERIOD`] is over or the mount ends ([`Failures::tell`]).

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
    /// Counts a failure. True if it gets a line of its own. It does not rely on another thread to
    /// end periods, so no kind of failure loses its lines for good.
    pub(crate) fn has_line(&self, operation: &'static str, kind: ErrorKind, now: Duration) -> bool {
        self.tell(now);
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

    /// Tells how many failures had no line, for each period that is over. It is called every few
    /// seconds. At the mount's end it is called with the largest time, which ends all periods.
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

    #[test]
    fn a_failure_after_the_period_has_a_line_although_nobody_has_told() {
        let failures = Failures::default();
        let fail =
            |seconds| failures.has_line("fuse_read", ErrorKind::Io, Duration::from_secs(seconds));
        assert_eq!((0..25).filter(|_| fail(5)).count(), LINES as usize);
        assert!(!fail(64), "the period goes on");
        assert_eq!((0..25).filter(|_| fail(65)).count(), LINES as usize);
        let rest = LeftOut { operation: "fuse_read", kind: ErrorKind::Io, count: 15 };
        assert_eq!(failures.over(Duration::MAX), [rest], "at the end of the mount");
    }
}
