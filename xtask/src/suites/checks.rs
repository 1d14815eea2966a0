//! Counts the checks of one suite and prints those that fail.

use crate::runner::{Tally, now};
use std::time::Instant;

/// The checks of a suite so far.
pub(crate) struct Checks {
    suite: &'static str,
    tally: Tally,
    started: Instant,
}

impl Checks {
    pub(crate) fn new(suite: &'static str) -> Checks {
        Checks { suite, tally: Tally::default(), started: now() }
    }

    /// The suite's name. Its logs and directories have the same name.
    pub(crate) fn suite(&self) -> &'static str {
        self.suite
    }

    /// Counts one check and prints its result at once. Returns whether it passed.
    pub(crate) fn record(&mut self, name: &str, outcome: Result<(), String>) -> bool {
        let seconds = (now() - self.started).as_secs_f64();
        match outcome {
            Ok(()) => {
                println!("{seconds:7.1} s  ok      {name}");
                self.tally.passed += 1;
                true
            }
            Err(reason) => {
                // The runner repeats what is marked so.
                let reason = reason.trim_end().replace('\n', "\n    | ");
                println!("{seconds:7.1} s  FAILED  {name}: {reason}");
                self.tally.failed += 1;
                false
            }
        }
    }

    /// Counts one check that is a plain condition.
    pub(crate) fn hold(&mut self, name: &str, condition: bool, reason: impl FnOnce() -> String) {
        self.record(name, if condition { Ok(()) } else { Err(reason()) });
    }

    /// How many tests there were so far, with any result.
    pub(crate) fn total(&self) -> u64 {
        self.tally.passed + self.tally.failed + self.tally.skipped
    }

    /// Adds the counts of a foreign test runner.
    pub(crate) fn add(&mut self, tally: Tally) {
        self.tally.passed += tally.passed;
        self.tally.failed += tally.failed;
        self.tally.skipped += tally.skipped;
    }

    /// Prints the tally. Returns false if anything failed.
    pub(crate) fn finish(self) -> bool {
        let Tally { passed, failed, skipped } = self.tally;
        let skipped_text = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        println!("{}: {passed} passed, {failed} failed{skipped_text}", self.suite);
        failed == 0
    }
}
