//! The host of a disk fails while a reader and a writer work. The disk lies in a file system of its
//! own. When that is frozen, every write to it hangs in the kernel until it is thawed. When it is
//! shut down, every access is EIO until it is mounted again. The other disks go on meanwhile, and
//! `diag waiters` lists the calls that wait for the one that hangs. Afterwards the disk is brought
//! up to date.

use super::checks::Checks;
use super::command::pause;
use super::faults::{self, WAIT_SECONDS_MAX, wait_for};
use super::mounted::Mounted;
use super::reference::Xfs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The host's size: more than a container of 2 GiB.
pub(super) const HOST_BYTES: u64 = 3 << 30;
/// How long a disk may hang in these file systems before it counts as down (`nsd_io_limit`).
pub(super) const IO_LIMIT: &str = "15s";
/// This many more durable files show that writers go on.
const PROGRESS_FILES: u64 = 3;

/// Moves the disk `old` to the host. Makes the host fail in both ways, or only in the quick one if
/// not `is_hanging`. The moved disk gets the name `new`. `written` counts the load's durable files.
pub(super) fn run(
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    host: &Xfs<'_>,
    (old, new): (&str, &str),
    is_hanging: bool,
    written: &AtomicU64,
) -> Result<(), String> {
    let path = host.mount.join("disk");
    mounted.say(&format!("disk replace {old} {}", path.display()))?;
    let moved = wait_for(mounted, &format!("{new} "), &["ready   up"]);
    checks.record(&format!("{new}: it is moved to a host of its own"), moved);
    if is_hanging {
        let outcome = hang(mounted, host, new, written);
        // Thaws in any case: a frozen file system can be neither unmounted nor synced.
        let thawed = host.thaw();
        checks.record(&format!("{new}: its host hangs: it is down, others go on"), outcome);
        let back = thawed.and_then(|()| wait_for(mounted, &format!("{new} "), &["ready   up"]));
        checks.record(&format!("{new}: thawed, it is brought up to date"), back);
    }
    let outcome = shut_down(mounted, host, new, written);
    checks.record(&format!("{new}: every access is EIO: it is down, others go on"), outcome);
    let back = host.mount_anew(WAIT_SECONDS_MAX);
    let back = back.and_then(|()| wait_for(mounted, &format!("{new} "), &["ready   up"]));
    checks.record(&format!("{new}: mounted anew, it is brought up to date"), back);
    Ok(())
}

fn hang(
    mounted: &Mounted<'_>,
    host: &Xfs<'_>,
    disk: &str,
    written: &AtomicU64,
) -> Result<(), String> {
    host.freeze()?;
    let waiter = format!("NSD {}", disk.trim_start_matches("nsd"));
    // Some call waits for the disk from the first write on until the disk is given up. If the disk
    // holds metadata, the first to hang may be a call for the metadata, whose waiter names no disk.
    let is_hung = |line: &str| line.contains(&waiter) || line.contains("metadata");
    faults::wait_until(mounted, "diag waiters", |text| {
        text.lines().any(|line| waited_seconds(line) >= 1.0 && is_hung(line))
    })
    .map_err(|error| format!("no waiter names {waiter}: {error}"))?;
    wait_for(mounted, &format!("{disk} "), &["down", "unrecovered"])?;
    goes_on(written)
}

/// How long a call has waited, as a line of `diag waiters` says.
fn waited_seconds(line: &str) -> f64 {
    let number = line.strip_prefix("Waiting ").and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

fn shut_down(
    mounted: &Mounted<'_>,
    host: &Xfs<'_>,
    disk: &str,
    written: &AtomicU64,
) -> Result<(), String> {
    host.shut_down()?;
    wait_for(mounted, &format!("{disk} "), &["down", "unrecovered"])?;
    goes_on(written)
}

/// Waits until the writer has made more files durable.
fn goes_on(written: &AtomicU64) -> Result<(), String> {
    let wanted = written.load(Ordering::SeqCst) + PROGRESS_FILES;
    let end = crate::runner::now() + Duration::from_secs(WAIT_SECONDS_MAX);
    while written.load(Ordering::SeqCst) < wanted {
        if crate::runner::now() >= end {
            return Err(format!("nothing was written for {WAIT_SECONDS_MAX} s"));
        }
        pause(Duration::from_millis(20));
    }
    Ok(())
}
