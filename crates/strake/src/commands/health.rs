//! `strake health`: one line for each component, and an exit code for scripts.

use crate::admin::{self, Request};
use crate::commands::diag::everywhere::ask_all;
use crate::commands::fs::Target;
use crate::data_dir::DataDir;
use crate::output;
use crate::registry;
use clap::Args;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use strake_observe::health::{self, Colour, Component, Health, print_health};
use strake_proto::{Error, ErrorKind, Result};

/// The daemon must answer within this time.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Exit codes. 1 and 2 are those of every command.
const YELLOW: u8 = 3;
const RED: u8 = 4;

/// Show how the file system is: a line for each component, green, yellow or red, and why.
///
/// The exit code is 0 if all is green, 3 if something is yellow, and 4 if something is red.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake health                      a line for each component
  strake health --all                in a cluster, as each node sees it
  strake health --json               with what to do about each event
  strake health || mail -s strake root < /dev/null      for scripts, by the exit code")]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    target: Target,
    /// In a cluster: ask the mounts of all nodes. The worst of them decides on the exit code.
    #[arg(long)]
    all: bool,
}

/// Runs `strake health`.
pub(crate) fn run(args: &HealthArgs) -> ExitCode {
    if args.all {
        return everywhere(args).unwrap_or_else(|error| output::finish(Err(error)));
    }
    let health = match registry::find(args.target.data.as_deref()).and_then(|dir| ask(&dir)) {
        Ok(health) => health,
        Err(error) => return output::finish(Err(error)),
    };
    if let Err(error) = show(&health, args.target.json) {
        return output::finish(Err(error));
    }
    exit_code(health.colour)
}

fn exit_code(colour: Colour) -> ExitCode {
    match colour {
        Colour::Green => ExitCode::SUCCESS,
        Colour::Yellow => ExitCode::from(YELLOW),
        Colour::Red => ExitCode::from(RED),
    }
}

/// The health of the mounts of all nodes. A mount that gives no answer is red.
fn everywhere(args: &HealthArgs) -> Result<ExitCode> {
    let dir = registry::find(args.target.data.as_deref())?;
    let mut all = BTreeMap::new();
    for (node, answer) in ask_all(&dir, &Request::Health)? {
        let health = answer.and_then(admin::read_value).unwrap_or_else(|error: Error| {
            let text = error.to_string();
            Health::of(vec![Component::with("daemon", &health::DAEMON_SILENT, text)])
        });
        all.insert(node, health);
    }
    if args.target.json {
        output::print_json(&all)?;
    } else {
        for (node, health) in &all {
            println!("{node}:");
            show(health, false)?;
        }
    }
    Ok(exit_code(all.values().map(|health: &Health| health.colour).max().unwrap_or_default()))
}

/// Asks the daemon. A daemon that is not there, or silent, is an answer too.
///
/// # Errors
/// The directory is none of a file system; what the daemon reports.
fn ask(dir: &DataDir) -> Result<Health> {
    let of_daemon = |event, text: String| Health::of(vec![Component::with("daemon", event, text)]);
    // The name of another directory is a mistake, and no daemon that is down.
    dir.read_config()?;
    match admin::call(dir, &Request::Health, ANSWER_MAX) {
        Ok(value) => admin::read_value(value),
        Err(error) if error.kind() == ErrorKind::Unreachable => {
            Ok(of_daemon(&health::DAEMON_DOWN, error.to_string()))
        }
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            let text = format!("no answer within {} s", ANSWER_MAX.as_secs());
            Ok(of_daemon(&health::DAEMON_SILENT, text))
        }
        Err(error) => Err(error),
    }
}

fn show(health: &Health, json: bool) -> Result<()> {
    if json {
        return output::print_json(health);
    }
    let mut text = String::new();
    print_health(&mut text, health)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}
