//! `strake fs check`: asks the daemon for a check, shows how far it is, and ends it on Ctrl-C.
//!
//! The daemon ends a check whose caller hangs up. So a signal closes this end of the connection,
//! and the answer is what was found until then. A second signal ends the command at once. If the
//! command is killed, the connection is closed with it.

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::data_dir::DataDir;
use crate::output;
use crate::registry;
use crate::show::{CheckReport, CheckStatus};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;
use strake_env::Stop;
use strake_env::net::{Shutdown, UnixStream};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::{ByteCount, Error, ErrorKind, Result};

/// A check may take so long.
const CHECK_MAX: Duration = Duration::from_secs(24 * 3600);
/// For the daemon to tell how far it is.
const STATUS_MAX: Duration = Duration::from_secs(10);
/// How often it is asked.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `strake fs check --status`.
pub(super) fn status(target: &Target) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    let status = ask_status(&dir)?;
    if target.json {
        return output::print_json(&status);
    }
    println!("{}", status.sentence());
    Ok(())
}

fn ask_status(dir: &DataDir) -> Result<CheckStatus> {
    admin::read_value(admin::call(dir, &Request::CheckStatus, STATUS_MAX)?)
}

/// Runs `strake fs check`. Every checksum is verified only if `data` is.
pub(super) fn run(target: &Target, data: bool) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    let asked = admin::send(&dir, &Request::Check { data }, CHECK_MAX, &|| admin::absent(&dir))?;
    let signalled = hang_up_on_signals(&asked)?;
    let progress = Progress::begin(&dir)?;
    let answer = admin::receive(&dir, &asked);
    progress.end();
    let report: CheckReport = admin::read_value(answer?)?;
    if target.json {
        output::print_json(&report)?;
    } else {
        print(&report);
    }
    if report.stopped {
        let why = match signalled.is_asked() {
            true => (ErrorKind::Interrupted, "interrupted"),
            false => (ErrorKind::Unreachable, "the daemon ended the check, because it ends"),
        };
        let text = format!("{}: not everything was checked, and nothing was changed", why.1);
        return Err(Error::new(why.0, text));
    }
    if report.faults.is_empty() {
        return Ok(());
    }
    let count = report.faults.len();
    let detail = format!(
        "{count} faults, listed above: `strake fs scrub start` mends the strips that others can \
         rebuild; then check again"
    );
    Err(Error::new(ErrorKind::Corrupt, detail))
}

fn print(report: &CheckReport) {
    let so_far = if report.stopped { "until then: " } else { "" };
    println!(
        "{so_far}checked {} inodes, {} directory entries: names, links, counts",
        report.inodes, report.entries
    );
    println!(
        "{so_far}checked {} blocks of {} files, {} allocated: their {} strips, versions, places, \
         sums",
        report.blocks,
        report.files,
        ByteCount(report.allocated_bytes),
        report.block_strips
    );
    println!(
        "{so_far}checked {} strips of {} objects on the disks, {} tombstones: owners, {} of space, \
         {} of data against checksums",
        report.strips,
        report.objects,
        report.tombstones,
        ByteCount(report.disk_bytes),
        ByteCount(report.bytes)
    );
    report.notes.iter().for_each(|note| println!("note: {note}"));
    report.faults.iter().for_each(|fault| println!("FAULT: {fault}"));
    match (report.faults.is_empty(), report.stopped) {
        (true, false) => println!("clean"),
        (true, true) => println!("no fault until then"),
        (false, _) => println!("not clean"),
    }
}

/// From now on the first signal closes this end of the connection, and the second one ends the
/// command. Says whether one came.
fn hang_up_on_signals(asked: &UnixStream) -> Result<Stop> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let (asked, signalled) = (asked.try_clone()?, Stop::default());
    let told = signalled.clone();
    Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if told.is_asked() {
                std::process::exit(130);
            }
            told.ask();
            // If the daemon is gone, the answer says so.
            let _ = asked.shutdown(Shutdown::Write);
        }
    })?;
    Ok(signalled)
}

/// A line on a terminal that says how far the check is. It disappears at the end.
struct Progress {
    shared: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    fn begin(dir: &DataDir) -> Result<Progress> {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = match std::io::stderr().is_terminal() {
            false => None,
            true => Some(Builder::new().name("progress".to_owned()).spawn({
                let (dir, shared) = (dir.clone(), Arc::clone(&shared));
                move || show_progress(&dir, &shared.0, &shared.1)
            })?),
        };
        Ok(Progress { shared, thread })
    }

    fn end(self) {
        *self.shared.0.lock() = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread {
            // A panic in it was printed there.
            drop(thread.join());
        }
    }
}

fn show_progress(dir: &DataDir, is_over: &Mutex<bool>, changed: &Condvar) {
    // A terminal that went away is no reason to end the check.
    let draw = |text: &str| drop(write!(std::io::stderr(), "\r\x1b[K{text}"));
    let mut over = is_over.lock();
    while !*over {
        if changed.wait_for(&mut over, STATUS_INTERVAL).timed_out() && !*over {
            drop(over);
            if let Some(status) = ask_status(dir).ok().filter(|status| status.running) {
                draw(&status.sentence());
            }
            over = is_over.lock();
        }
    }
    draw("");
}
