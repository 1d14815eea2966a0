//! Moving files that lie by an older layout to the newest one, so that disks that were added get
//! their share, and a disk that is to be deleted has others in each layout that is in use.
//!
//! Files are moved one after the other ([`strake_array::Exclusion::move_file`]). The metadata says
//! that files are being moved ([`SETTING`]), so the work goes on after a restart, and on the next
//! node that leads. A file that is in use all the time is passed over, and tried again at the end.

use crate::background::{Background, View};
use crate::context::Repair;
use crate::scan::scan_objects;
use std::sync::Arc;
use strake_array::exclusion::Moved;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{Configuration, MetaOp, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, LayoutVersion, ObjectLayout, Result};
use tracing::{info, warn};

/// The setting with the rate at which files are moved. It is empty if they are not.
const SETTING: &str = "rebalancing";
/// How often all files are gone through.
const ROUNDS_MAX: u32 = 3;
/// The log names so many files that were left where they are.
const LEFT_LOGGED: u64 = 20;

/// The findings of moving files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebalanced {
    /// Files moved.
    pub moved: u64,
    /// Files that are left where they were: in use, or not readable.
    pub left: u64,
}

/// The one rebalance there can be at a time.
pub(crate) type Rebalancer = Background<Rebalanced>;

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

/// The rate of the rebalance that is under way according to the metadata.
pub(crate) fn pending(repair: &Repair) -> Result<Option<u64>> {
    let settings = configuration(repair)?.settings;
    let found = settings.iter().find(|(name, _)| name == SETTING);
    Ok(found.and_then(|(_, rate)| rate.parse().ok()))
}

/// Ends the work for good. Without this the next start takes it up again.
pub(crate) fn give_up(rebalancer: &Rebalancer) -> Result<()> {
    rebalancer.stop();
    let repair = &rebalancer.repair;
    if pending(repair)?.is_some() { note(repair, None) } else { Ok(()) }
}

/// Begins to move files at `rate` bytes per second, or goes on with it; 0 for no limit.
///
/// # Errors
/// `Busy` if it is at work; the metadata's.
pub(crate) fn start(rebalancer: &Arc<Rebalancer>, rate: u64) -> Result<()> {
    if rebalancer.view().running {
        return Err(Error::new(ErrorKind::Busy, "files are being moved already"));
    }
    note(&rebalancer.repair, Some(rate))?;
    rebalancer.start("rebalance", rate, run, tell)
}

fn tell(view: &View<Rebalanced>, result: &Result<bool>) {
    if let Err(error) = result {
        warn!(target: "disks", "files by older layouts are moved later: {error}");
    }
    let Rebalanced { moved, left } = view.found;
    let early = if view.complete { "" } else { "; ended early" };
    info!(target: "disks", "{moved} files moved, {left} left where they are{early}");
}

/// Goes through all files until none is left by an older layout, or some stay. False if it was
/// stopped.
fn run(rebalancer: &Rebalancer) -> Result<bool> {
    info!(target: "disks", "files by older layouts are being moved");
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
        rebalancer.view.lock().found.left = 0;
        scan_objects(&repair.array, &mut |inode, layout| {
            if layout.layout < newest && !rebalancer.pace.is_stopped() {
                move_one(rebalancer, inode.attr.ino, layout, inode.attr.allocated)?;
            }
            Ok(())
        })?;
        if rebalancer.pace.is_stopped() {
            return Ok(false);
        }
        if rebalancer.view.lock().found.left == 0 {
            break;
        }
    }
    note(repair, None).map(|()| true)
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
    match moved {
        Ok(Moved::Done) => {
            rebalancer.did(allocated);
            rebalancer.view.lock().found.moved += 1;
        }
        Ok(Moved::Elsewhere) => {}
        Err(_) if rebalancer.pace.is_stopped() => {}
        // Without room for one file there may be some for the next one. A dead client moves none.
        Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
        Ok(Moved::InUse) | Err(_) => {
            let left = &mut rebalancer.view.lock().found.left;
            *left += 1;
            if *left <= LEFT_LOGGED {
                let why = moved.map_or_else(|error| error.to_string(), |_| "in use".to_owned());
                warn!(target: "disks", "inode {ino} is left where it is: {why}");
            }
        }
    }
    Ok(())
}
