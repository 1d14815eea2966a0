//! Ctrl-C: a flag that everything looks at, so that destructors run and files go away.
//!
//! The first signal asks every task to stop after its current operation; a second one ends the
//! process at once, and then leaves files behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{BenchError, Result};

/// Asks tasks to stop. Clones share the flags.
#[derive(Debug, Clone)]
pub struct Stop {
    /// The process's flag, raised by signals, then one per level of session: an agent's driver
    /// went away, a team was sent home.
    flags: Vec<Arc<AtomicBool>>,
}

impl Default for Stop {
    fn default() -> Self {
        Stop { flags: vec![Arc::default()] }
    }
}

impl Stop {
    /// A flag that signals raise.
    pub fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let raised = || Arc::clone(&stop.flags[0]);
            // In this order: the second signal finds the flag raised and exits.
            flag::register_conditional_shutdown(signal, 1, raised())
                .and_then(|_| flag::register(signal, raised()))
                .map_err(|error| BenchError::system("cannot watch for signals", error))?;
        }
        Ok(stop)
    }

    /// A flag of its own that is also up whenever this one is.
    pub fn for_session(&self) -> Stop {
        let mut flags = self.flags.clone();
        flags.push(Arc::default());
        Stop { flags }
    }

    /// Raises the innermost flag.
    pub fn raise(&self) {
        let innermost = self.flags.last();
        innermost.expect("invariant: there is the process's flag").store(true, Ordering::Relaxed);
    }

    /// True once anybody asked to stop.
    #[inline]
    pub fn raised(&self) -> bool {
        self.flags.iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    /// `Interrupted` once anybody asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.raised() {
            return Err(BenchError::Interrupted);
        }
        Ok(())
    }
}
