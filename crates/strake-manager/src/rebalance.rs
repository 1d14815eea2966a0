//! Moving files that lie by an older layout to the newest one, so that disks that were added get
//! their share, and a disk that is to be deleted has others in each layout that is in use.
//!
//! Files are moved one after the other ([`strake_array::Exclusion::move_file`]). The metadata says
//! that files are being moved ([`SETTING`]), so the work goes on after a restart, and on the next
//! node that leads. A file that is in use all the time is passed over, and tried again at the end.

use crate::context::Repair;
use crate::job::Job;
use crate::pace::Pace;
use crate::scan::scan_objects;
use std::sync::Arc;
use strake_array::exclusion::Moved;
use strake_array::meta_link::wrong_reply;
use strake_env::sync::Mutex;
use strake_proto::meta::{Configuration, MetaOp, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, LayoutVersion, ObjectLayout, Result, Timestamp};
use tracing::{info, warn};

/// The setting with the rate at which files are moved. It is empty if they are not.
const SETTING: &str = "rebalancing";
/// How often all files are gone through.
const ROUNDS_MAX: u32 = 3;
/// The log names so many files that were left where they are.
const LEFT_LOGGED: u64 = 20;

/// The progress of moving files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebalanceView {
    /// Whether it is at work.
    pub running: bool,
    /// When it began here; `None` if it was not since the start.
    pub started: Option<Timestamp>,
    /// When it ended, by itself or because it was stopped.
    pub ended: Option<Timestamp>,
    /// Whether it got to the end.
    pub complete: bool,
    /// Bytes per second at most; 0 for no limit.
    pub rate: u64,
    /// Bytes of files moved, without parity.
    pub done: u64,
    /// Bytes of files by an older layout when it began.
    pub total: u64,
    /// Files moved.
    pub moved: u64,
    /// Files that are left where they were: in use, or not readable.
    pub left: u64,
}

/// The one rebalance there can be at a time.
pub(crate) struct Rebalancer {
    repair: Arc<Repair>,
    pace: Pace,
    view: Mutex<RebalanceView>,
    job: Job,
}

fn configuration(repair: &Repair) -> Result<Box<Configuration>> {
    match repair.array.meta.query(&MetaQuery::Configuration)? {
        MetaReply::Configuration(configuration) => Ok(configuration),
        _ => Err(wrong_reply()),
    }
}

fn note(repair: &Repair, rate: Option<u64>) -> Result<()> {
    let value = rate.map(|rate| rate.to_string()).unwrap_or_default();
    repair.array.meta.apply(MetaOp::SetConfig { name: SETTING.to_owned(), value })?;
    repair.array.meta.sync()
}

impl Rebalancer {
    /// A rebalancer that is not at work.
    pub(crate) fn new(repair: Arc<Repair>) -> Rebalancer {
        Rebalancer { repair, pace: Pace::default(), view: Mutex::default(), job: Job::default() }
    }

    /// The rate of the rebalance that is under way according to the metadata.
    pub(crate) fn pending(&self) -> Result<Option<u64>> {
        let settings = configuration(&self.repair)?.settings;
        let found = settings.iter().find(|(name, _)| name == SETTING);
        Ok(found.and_then(|(_, rate)| rate.parse().ok()))
    }

    /// The progress.
    pub(crate) fn view(&self) -> RebalanceView {
        // Asked first, because the view of one that has ended is complete.
        let running = self.job.is_running();
        RebalanceView { running, rate: self.pace.rate(), ..self.view.lock().clone() }
    }

    /// Ends the work. The next start takes it up again.
    pub(crate) fn stop(&self) {
        self.pace.stop();
        self.job.join();
    }

    /// Ends the work for good.
    pub(crate) fn give_up(&self) -> Result<()> {
        self.stop();
        if self.pending()?.is_some() { note(&self.repair, None) } else { Ok(()) }
    }
}

/// Begins to move files at `rate` bytes per second, or goes on with it; 0 for no limit.
///
/// # Errors
/// `Busy` if it is at work; the metadata's.
pub(crate) fn start(rebalancer: &Arc<Rebalancer>, rate: u64) -> Result<()> {
    if rebalancer.job.is_running() {
        return Err(Error::new(ErrorKind::Busy, "files are being moved already"));
    }
    note(&rebalancer.repair, Some(rate))?;
    let begin = || {
        rebalancer.pace.start(rate);
        let started = Some(rebalancer.repair.array.clock.wall());
        *rebalancer.view.lock() = RebalanceView { started, ..RebalanceView::default() };
    };
    rebalancer.job.start("rebalance", rebalancer, begin, |rebalancer| {
        info!(target: "disks", "files by older layouts are being moved");
        let result = run(rebalancer);
        let is_over = matches!(result, Ok(true));
        let noted = if is_over { note(&rebalancer.repair, None) } else { Ok(()) };
        if let Err(error) = result.and(noted) {
            warn!(target: "disks", "files by older layouts are moved later: {error}");
        }
        let mut view = rebalancer.view.lock();
        view.ended = Some(rebalancer.repair.array.clock.wall());
        view.complete = is_over;
        info!(
            target: "disks",
            "{} files moved, {} left where they are{}",
            view.moved,
            view.left,
            if is_over { "" } else { "; ended early" }
        );
    })
}

/// Goes through all files until none is left by an older layout, or some stay. False if it was
/// stopped.
fn run(rebalancer: &Rebalancer) -> Result<bool> {
    let repair = &rebalancer.repair;
    let layouts = configuration(repair)?.pool.layouts;
    let newest = layouts.last().map_or(LayoutVersion(0), |layout| layout.version);
    // The metadata's scan does not list objects that are only reserved. After a flush it does.
    repair.exclusion.flush_all()?;
    let mut total = 0;
    scan_objects(&repair.array, &mut |inode, layout| {
        total += if layout.layout < newest { inode.attr.allocated } else { 0 };
        Ok(())
    })?;
    rebalancer.view.lock().total = total;
    for _ in 0..ROUNDS_MAX {
        rebalancer.view.lock().left = 0;
        scan_objects(&repair.array, &mut |inode, layout| {
            if layout.layout < newest && !rebalancer.pace.is_stopped() {
                move_one(rebalancer, inode.attr.ino, layout, inode.attr.allocated)?;
            }
            Ok(())
        })?;
        if rebalancer.pace.is_stopped() {
            return Ok(false);
        }
        if rebalancer.view.lock().left == 0 {
            break;
        }
    }
    Ok(true)
}

/// Moves one file, or counts it among those that are left.
fn move_one(
    rebalancer: &Rebalancer,
    ino: Ino,
    layout: &ObjectLayout,
    allocated: u64,
) -> Result<()> {
    let repair = &rebalancer.repair;
    let mut go_on = |bytes| {
        if rebalancer.pace.moved(bytes, &*repair.array.clock) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unreachable, "goes on at the next start"))
    };
    let moved = repair.exclusion.move_file(ino, layout, &mut go_on);
    let mut view = rebalancer.view.lock();
    match moved {
        Ok(Moved::Done) => {
            view.moved += 1;
            view.done = (view.done + allocated).min(view.total);
        }
        Ok(Moved::Elsewhere) => {}
        Err(_) if rebalancer.pace.is_stopped() => {}
        // Without room for one file there may be some for the next one. Without the metadata there
        // is nothing to be done.
        Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
        Ok(Moved::InUse) | Err(_) => {
            view.left += 1;
            if view.left <= LEFT_LOGGED {
                let why = moved.map_or_else(|error| error.to_string(), |_| "in use".to_owned());
                warn!(target: "disks", "inode {ino} is left where it is: {why}");
            }
        }
    }
    Ok(())
}
