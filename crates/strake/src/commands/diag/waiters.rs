//! `strake diag waiters`: what waits now, for what, and what that waits for in turn.

use super::{Asked, text};
use crate::admin::{self, Request};
use crate::registry;
use clap::Args;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_observe::{WaiterSnapshot, print_wait_chains, wait_chain};
use strake_proto::{Error, ErrorKind, Result};

/// On a terminal, each list takes the place of the one before.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// List everything that waits now, longest first, and what that waits for in turn.
///
/// Below a wait for a lock stands the thread that has the lock, and what that thread waits for, up
/// to the root, as far as it is known.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag waiters
  strake diag waiters --all            on all nodes
  strake diag waiters --watch          again each second, until Ctrl-C
  strake diag waiters --watch=5 --json | tee waits.json     a line for each list")]
pub(crate) struct WaitersArgs {
    #[command(flatten)]
    asked: Asked,
    /// List again each second, or after so many seconds.
    #[arg(long, conflicts_with = "all", value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// Runs `strake diag waiters`.
pub(super) fn run(args: &WaitersArgs) -> Result<()> {
    let Some(seconds) = args.watch else {
        return args.asked.show(&Request::Waiters, &|waits: &Vec<WaiterSnapshot>| listed(waits));
    };
    let target = &args.asked.target;
    let dir = registry::find(target.data.as_deref())?;
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let waits: Vec<WaiterSnapshot> = admin::ask(&dir, &Request::Waiters)?;
        let text = if target.json {
            let line = serde_json::to_string(&waits)
                .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            format!("{line}\n")
        } else {
            let (now, count) = (wait_chain::time_of_day(RealClock.wall()), waits.len());
            format!("{clear}{now} UTC, {count} waits\n{}", listed(&waits)?)
        };
        let mut out = std::io::stdout().lock();
        // The reader may have seen enough.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
        drop(out);
        RealClock.sleep(Duration::from_secs(seconds));
    }
}

fn listed(waits: &[WaiterSnapshot]) -> Result<String> {
    if waits.is_empty() {
        return Ok("nothing waits\n".to_owned());
    }
    text(|out| print_wait_chains(out, waits, 0))
}
