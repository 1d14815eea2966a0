//! Runs foreign programs with a time limit and keeps a log of their output.
//!
//! Every program started here leads a process group, so when its time runs out it can be killed
//! with everything it started. It works in the session's directory, so that the janitor finds it if
//! the runner dies.

use crate::runner::now;
use crate::suites::janitor;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// How often to check whether a running program has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How many of the last lines of a log are quoted when a program fails.
const QUOTED_LINES: usize = 12;
/// As many lines before those are quoted if they speak of an error. Programs that print statistics
/// at their end name the error long before.
const ERROR_LINES: usize = 4;

/// How a program ended, and where its log is.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: PathBuf,
}

impl Ended {
    /// Everything that the program wrote.
    pub(crate) fn output(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// An error that quotes the end of the log, after lines that speak of errors.
    pub(crate) fn complaint(&self, what: &str) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let (before, last) = lines.split_at(lines.len().saturating_sub(QUOTED_LINES));
        let is_of_error = |line: &&&str| line.to_lowercase().contains("error");
        let errors = before.iter().filter(is_of_error).take(ERROR_LINES);
        let quoted = errors.chain(last).copied().collect::<Vec<_>>().join("\n    | ");
        format!("{what} ({}; log {})\n    | {quoted}", self.status, self.log.display())
    }

    /// Fails unless the exit code is 0.
    pub(crate) fn success(self) -> Result<Ended, String> {
        if self.status.success() { Ok(self) } else { Err(self.complaint("failed")) }
    }
}

/// Runs `command` to its end. Its output goes to `log`.
///
/// # Errors
/// It cannot start, or is not done after `limit`. It is then killed with everything it started.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended, String> {
    let words = format!("{command:?}");
    if let Some(directory) = log.parent() {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    }
    let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = file.try_clone().map_err(|error| error.to_string())?;
    command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(errors);
    let mut child = command.spawn().map_err(|error| format!("{words}: {error}"))?;
    let end = now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(Ended { status, log: log.to_owned() });
        }
        if now() >= end {
            janitor::kill_group(child.id());
            // A process stuck in the kernel cannot be reaped. It must not stop the runner.
            return Err(format!(
                "not done after {} s, killed: {words} (log {})",
                limit.as_secs(),
                log.display()
            ));
        }
        pause(LOOK);
    }
}

/// Waits while a foreign process works. There is no event for what real processes do, so this
/// sleeps.
#[allow(clippy::disallowed_methods, reason = "real processes are watched in real time")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
