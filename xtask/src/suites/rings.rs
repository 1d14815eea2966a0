//! FUSE over io_uring. This suite repeats, on a small scale, what the other suites test on
//! `/dev/fuse`.
//!
//! The kernel offers io_uring to new mounts while its module parameter says so. At the end the
//! parameter is set back to what it was.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use super::{fsx, lifecycle, pjdfstest};
use crate::runner::Tally;
use std::path::Path;

const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";
const OPERATIONS: u64 = 1000;

/// While this value lives, the kernel offers io_uring to new mounts.
pub(super) struct Offer {
    before: String,
}

impl Offer {
    /// True if this kernel has FUSE over io_uring at all.
    pub(super) fn is_possible() -> bool {
        Path::new(OFFER).exists()
    }

    pub(super) fn make() -> Result<Offer, String> {
        let failed = |error: std::io::Error| format!("{OFFER}: {error}");
        let before = std::fs::read_to_string(OFFER).map_err(failed)?;
        std::fs::write(OFFER, "Y").map_err(failed)?;
        Ok(Offer { before })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(OFFER, self.before.trim()) {
            eprintln!("suites: {OFFER} stays as it is: {error}");
        }
    }
}

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    if !Offer::is_possible() {
        println!("SKIPPED: this kernel has no FUSE over io_uring (Linux 6.14 and later have)");
        checks.add(Tally { skipped: 1, ..Default::default() });
        return Ok(());
    }
    let offer = Offer::make()?;
    let shape = Shape { rings: true, ..Shape::of("4+2p", 6) };
    let mounted = Mounted::create(session, checks, "offered", &shape)?;
    checks.record("requests come through rings", served_by_rings(&mounted, true));
    mounted.finish(checks);
    pjdfstest::run(session, checks, Shape { rings: true, ..Shape::of("4+2p", 6) })?;
    let seed = session.seed + 20;
    fsx::run(session, checks, &shape, Some(2), &[seed], OPERATIONS)?;
    lifecycle::killed(session, checks, "kill rings", &shape)?;
    drop(offer);
    let mounted = Mounted::create(session, checks, "not offered", &shape)?;
    let offered = std::fs::read_to_string(OFFER).is_ok_and(|word| word.trim() == "Y");
    checks.record("without the offer it is /dev/fuse", served_by_rings(&mounted, offered));
    mounted.finish(checks);
    Ok(())
}

/// Checks whether the daemon has threads that serve rings.
fn served_by_rings(mounted: &Mounted<'_>, wanted: bool) -> Result<(), String> {
    let threads = format!("/proc/{}/task", mounted.daemon()?);
    let entries = std::fs::read_dir(&threads).map_err(|error| format!("{threads}: {error}"))?;
    let names = entries
        .flatten()
        .map(|entry| std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default());
    let rings = names.filter(|name| name.trim() == "fuse-ring").count();
    if (rings > 0) == wanted { Ok(()) } else { Err(format!("{rings} threads serve rings")) }
}
