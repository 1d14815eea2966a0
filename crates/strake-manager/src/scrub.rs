//! A scrub reads and verifies everything on the disks in the background, at a limited rate. It
//! mends what is bad or missing.
//!
//! **First everything but strips:** superblock, log and index of every NSD, and every copy of the
//! metadata, which in a cluster comes with the NSD that it is on. Each of them mends itself, except
//! an index that has lost something. The NSD of such an index is noted as having missed writes, the
//! rest of its index is written anew, and a recovery copies what is missing.
//!
//! **Then every strip of every file.** A block is first read without its lock. Strips that are bad
//! on their disks are put right by the version that they have, which needs no token and no lock. If
//! anything else looks wrong, the block is read again while no other thread writes it, because a
//! writer at work looks wrong, too. If it is still wrong, the block is rewritten, in new space and
//! at a new version. Parity strips are verified like the others. Disks that are away are left out:
//! their recovery compares them.

use crate::background::{Background, View};
use crate::salvage::salvage;
use crate::scan::{allocated, scan_objects};
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_array::stripe_io::Health;
use strake_proto::meta::{MetaQuery, MetaReply};
use strake_proto::nsd::{NsdReply, NsdRequest, ScrubPart};
use strake_proto::{BlockIndex, ErrorKind, Ino, NsdId, ObjectLayout, Result, SlotIndex};
use tracing::{error, info};

/// The findings of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Strips read and verified.
    pub strips: u64,
    /// The bad or missing strips among them.
    pub bad: u64,
    /// Blocks put right or rewritten because of them.
    pub mended: u64,
    /// Blocks that cannot be rebuilt, at all or now. The log names the first.
    pub failed: u64,
    /// Bytes of superblocks, logs, indexes and copies of the metadata read and verified.
    pub own_bytes: u64,
    /// Damaged pages of these.
    pub bad_pages: u64,
    /// The mended pages among them.
    pub mended_pages: u64,
}

/// The one scrub there can be at a time.
pub(crate) type Scrubber = Background<Scrubbed>;

/// Begins a scrub at `rate` bytes per second; 0 for no limit.
///
/// # Errors
/// `Busy` if one is at work.
pub(crate) fn start(scrubber: &Arc<Scrubber>, rate: u64) -> Result<()> {
    scrubber.start("scrub", rate, run, tell)
}

fn tell(view: &View<Scrubbed>, result: &Result<bool>) {
    if let Err(error) = result {
        error!(target: "scrub", "{error}");
    }
    let found = &view.found;
    info!(
        target: "scrub",
        "{}: {} strips verified, {} bad or missing, {} blocks mended, {} not; {} bytes \
         of indexes, logs and metadata verified, {} pages damaged, {} mended",
        if view.complete { "complete" } else { "ended early" },
        found.strips,
        found.bad,
        found.mended,
        found.failed,
        found.own_bytes,
        found.bad_pages,
        found.mended_pages
    );
}

/// Scrubs everything. False if it was stopped, or if something could not be looked at.
fn run(scrubber: &Scrubber) -> Result<bool> {
    info!(target: "scrub", "begins");
    scrubber.view.lock().total = allocated(&scrubber.repair.array)?;
    let mut is_whole = true;
    let mut stopped = !(nsds(scrubber, &mut is_whole)? && copies(scrubber)?);
    scan_objects(&scrubber.repair.array, &mut |inode, layout| {
        stopped = stopped || !object(scrubber, inode.attr.ino, layout)?;
        if !stopped {
            scrubber.did(inode.attr.allocated);
        }
        Ok(())
    })?;
    // Mended blocks become stable like any write, and then settled. That frees the bad strips.
    scrubber.repair.exclusion.flush_all()?;
    scrubber.repair.array.rounds.run(false)?;
    Ok(!stopped && is_whole)
}

/// Scrubs everything but strips on each NSD. False if the scrub is to end. `is_whole` becomes false
/// if an NSD could not be asked for all of it.
fn nsds(scrubber: &Scrubber, is_whole: &mut bool) -> Result<bool> {
    let nsds = scrubber.repair.array.io.nsds();
    for slot in nsds.slots() {
        let mut part = Some(0);
        while let Some(at) = part
            && nsds.availability(slot).readable()
        {
            let reply = nsds.call_current(slot, &NsdRequest::Scrub { part: at });
            let found = match reply {
                Ok(NsdReply::Scrubbed(found)) => found,
                Ok(_) => return Err(wrong_reply()),
                Err(error) if error.kind() == ErrorKind::NotSupported => break,
                Err(error) => {
                    // The next use of the NSD tells whether it is fit.
                    error!(target: "scrub", "NSD {}: {error}", nsds.nsd(slot));
                    *is_whole = false;
                    break;
                }
            };
            part = found.next;
            let is_salvaged = found.is_lost && salvage(&scrubber.repair.array, slot);
            let found = match is_salvaged {
                true => ScrubPart { mended: found.bad, ..found },
                false => found,
            };
            if !note(scrubber, slot, &found) {
                return Ok(false);
            }
        }
    }
    Ok(!scrubber.pace.is_stopped())
}

/// Scrubs every copy of the metadata. False if the scrub is to end.
fn copies(scrubber: &Scrubber) -> Result<bool> {
    let (mut nsd, mut part) = (NsdId(0), 0);
    loop {
        let query = MetaQuery::ScrubCopy { nsd, part };
        let MetaReply::CopyScrubbed(found) = scrubber.repair.array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some((at, found)) = found else { return Ok(true) };
        (nsd, part) = match found.next {
            Some(next) => (at, next),
            None => (NsdId(at.0.saturating_add(1)), 0),
        };
        let slot = scrubber.repair.array.io.nsds().slot_of(at);
        if slot.is_some_and(|slot| !note(scrubber, slot, &found)) {
            return Ok(false);
        }
    }
}

/// Counts what was found in a part. False if the scrub is to end.
fn note(scrubber: &Scrubber, slot: SlotIndex, found: &ScrubPart) -> bool {
    {
        let mut view = scrubber.view.lock();
        view.found.own_bytes += found.bytes;
        view.found.bad_pages += found.bad;
        view.found.mended_pages += found.mended;
    }
    scrubber.repair.array.io.nsds().count_pages(slot, found.bad, found.mended);
    scrubber.pace.moved(found.bytes, &*scrubber.repair.array.clock)
}

/// Scrubs one object. False if the scrub is to end.
fn object(scrubber: &Scrubber, ino: Ino, layout: &ObjectLayout) -> Result<bool> {
    if scrubber.pace.is_stopped() {
        return Ok(false);
    }
    let floor = |block| scrubber.repair.array.floors.floor(layout.object, block);
    let blocks =
        scrubber.repair.array.io.blocks(layout, (BlockIndex(0), BlockIndex::END), &floor)?;
    for block in blocks.into_keys() {
        let io = &scrubber.repair.array.io;
        let health = io.examine(layout, block, floor(block))?;
        if !health.is_whole() {
            if io.mend(layout, block, floor(block), &health.wrong)? {
                let mut view = scrubber.view.lock();
                view.found.bad += health.wrong.len() as u64;
                view.found.mended += 1;
            } else {
                mend(scrubber, ino, layout, block)?;
            }
        }
        scrubber.view.lock().found.strips += health.strips;
        if !scrubber.pace.moved(health.bytes, &*scrubber.repair.array.clock) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn mend(scrubber: &Scrubber, ino: Ino, layout: &ObjectLayout, block: BlockIndex) -> Result<()> {
    let mut look = |_| {
        scrubber.repair.array.io.examine(
            layout,
            block,
            scrubber.repair.array.floors.floor(layout.object, block),
        )
    };
    let health: Health = match scrubber.repair.exclusively(ino, layout, block, &mut look)? {
        Some(health) if !health.is_whole() => health,
        _ => return Ok(()),
    };
    let outcome = scrubber.repair.exclusion.rewrite(ino, layout, block);
    let mut view = scrubber.view.lock();
    view.found.bad += health.wrong.len() as u64;
    match outcome {
        Ok(()) => {
            view.found.mended += 1;
            drop(view);
            scrubber.repair.array.io.count_repaired(layout, block, &health.slots, &health.wrong);
        }
        Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace) => {
            view.found.failed += 1;
            if view.found.failed == 1 {
                error!(target: "scrub", "{error}");
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
