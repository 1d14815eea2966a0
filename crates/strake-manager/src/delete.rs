//! Deleting an NSD. Each of its strips gets a place on an NSD that holds no other strip of the
//! stripe. That NSD is the *heir* of the strip (`nsds/heirs.rs`).
//!
//! 1. One metadata entry says that the NSD is being emptied. New files do without it.
//! 2. The heirs follow: from now on they get every change of the strips that they take over.
//! 3. Every object is compared. Strips that heirs lack are copied from the NSD, or rebuilt from the
//!    others if it cannot be read. Strips that heirs have and should not have are deleted. A file
//!    whose layout has no heirs for all strips is moved to the newest layout.
//! 4. If the NSD has a copy of the metadata, another NSD gets one instead.
//! 5. With no write under way, everything that heirs accepted is made stable, and one metadata
//!    entry deletes the NSD. From then on readers look for its strips on the heirs.
//!
//! Until step 5 readers know nothing of heirs. So a crash, an heir that fails or a full disk cost
//! only time. The NSD counts as what it is: up, or one of the losses that the code tolerates. If an
//! heir missed a change, or lost strips that it had only accepted, steps 2 to 5 are repeated.
//! Strips that heirs already have are not copied again. After a restart the deletion goes on in the
//! same way.
//!
//! **Without parity, beside other mounts,** no client can do without a strip for a moment, so heirs
//! cannot take their places one client after the other. Instead of step 3 every file is moved off
//! the NSD ([`move_off`]). Then no strip has an heir, and step 5 changes no place.

mod move_off;

use crate::compare::{Strip, bring, drop_surplus};
use crate::context::Repair;
use crate::report::RecoveryReport;
use crate::scan::{allocated, scan_objects};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_array::exclusion::Moved;
use strake_array::meta_link::wrong_reply;
use strake_array::nsds::Place;
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{Configuration, MetaOp, MetaQuery, MetaReply};
use strake_proto::{
    BlockIndex, ByteCount, Error, ErrorKind, Ino, NsdId, ObjectLayout, Result, SlotIndex, Version,
};
use tracing::{error, info, warn};

/// The setting with the rate of the deletion under way. The pool map says which NSD it concerns.
const SETTING: &str = "deleting";
/// After a failure everything is compared again after this time.
const REST: Duration = Duration::from_secs(2);
/// Bytes that stay free on every heir. They are room for an uneven placement and for data written
/// meanwhile.
const MARGIN: u64 = 4 << 20;

/// A deletion that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The NSD that goes.
    pub nsd: NsdId,
    /// Bytes per second at most; 0 for no limit.
    pub rate: u64,
}

/// Whether files are moved off the NSD, and heirs take over nothing.
fn moves_files(repair: &Repair) -> Result<bool> {
    Ok(repair.clients.is_some() && configuration(repair)?.code.parity == 0)
}

fn configuration(repair: &Repair) -> Result<Box<Configuration>> {
    match repair.array.meta.query(&MetaQuery::Configuration)? {
        MetaReply::Configuration(configuration) => Ok(configuration),
        _ => Err(wrong_reply()),
    }
}

/// The deletion that is under way according to the metadata.
pub(crate) fn pending(repair: &Repair) -> Result<Option<Deletion>> {
    let nsds = repair.array.io.nsds();
    let Some(slot) = nsds.being_emptied() else { return Ok(None) };
    let settings = configuration(repair)?.settings;
    let rate = settings.iter().find(|(name, _)| name == SETTING);
    let rate = rate.and_then(|(_, rate)| rate.parse().ok()).unwrap_or(0);
    Ok(Some(Deletion { nsd: nsds.nsd(slot), rate }))
}

/// Begins or continues a deletion.
///
/// # Errors
/// See [`crate::Manager::delete_nsd`].
pub(crate) fn start(repair: &Arc<Repair>, Deletion { nsd, rate }: Deletion) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let busy = |detail: String| Err(Error::new(ErrorKind::Busy, detail));
    let slot = nsds.slot_of(nsd).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("NSD {nsd} holds no slot of this file system"))
    })?;
    if let Some(replacement) = crate::replace::pending(repair)? {
        let detail = format!("NSD {} is being replaced: wait until that is done", replacement.old);
        return busy(detail);
    }
    if repair.job.is_running() {
        return busy("a disk is being replaced or deleted: wait until that is done".to_owned());
    }
    match nsds.being_emptied() {
        Some(other) if other != slot => {
            let other = nsds.nsd(other);
            return busy(format!("NSD {other} is being deleted: wait until that is done"));
        }
        Some(_) => {}
        None => {
            require_room(repair, slot)?;
            let (name, value) = (SETTING.to_owned(), rate.to_string());
            repair.array.meta.apply(MetaOp::SetConfig { name, value })?;
            nsds.begin_deletion(slot)?;
        }
    }
    let begin = || repair.pace.start(rate);
    repair.job.start("deletion", repair, begin, move |repair| {
        let mut named = None;
        while let Err(error) = empty(repair, slot) {
            if repair.pace.is_stopped() {
                return;
            }
            // The same error again is not worth a line in the log.
            if named.as_ref() != Some(&error) {
                error!(target: "disks", "NSD {nsd}, which is being deleted: {error}");
            }
            named = Some(error);
            if !repair.pace.rest(REST) {
                return;
            }
        }
    })
}

/// Refuses a deletion if the other NSDs cannot take the strips.
fn require_room(repair: &Repair, slot: SlotIndex) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let refused = |kind: ErrorKind, why: String| {
        Err(Error::new(kind, format!("NSD {} is not deleted: {why}", nsds.nsd(slot))))
    };
    let code = configuration(repair)?.code;
    for other in nsds.slots().filter(|other| *other != slot) {
        if nsds.availability(other) != NsdAvailability::Up {
            let other = nsds.nsd(other);
            let why = format!("NSD {other} is not up; bring it back or replace it first");
            return refused(ErrorKind::Unreachable, why);
        }
    }
    if !nsds.availability(slot).readable() && code.parity == 0 {
        let why = "it cannot be read, and code 1 has no other copy of what it holds; bring it back";
        return refused(ErrorKind::Unreachable, why.to_owned());
    }
    if !nsds.can_delete(slot, code)? {
        let why = format!(
            "the other disks of its files are too few for code {code}, or their failure groups \
             are; replace it instead"
        );
        return refused(ErrorKind::NotSupported, why);
    }
    nsds.refresh_space();
    let views = nsds.views();
    let held = |view: &strake_array::NsdView| view.total.saturating_sub(view.free);
    let others = || views.iter().filter(|view| view.slot != slot);
    // A disk that cannot be asked is taken to hold as much as the fullest of the others.
    let known = views.iter().find(|view| view.slot == slot && view.total > 0).map(held);
    let moved = known.unwrap_or_else(|| others().map(held).max().unwrap_or(0));
    let share = moved / (others().count() as u64).max(1);
    let needed = share.saturating_add(share / 8).saturating_add(MARGIN);
    if let Some(full) = others().find(|view| view.free < needed) {
        let (free, needed) = (ByteCount(full.free), ByteCount(needed));
        let why = format!("NSD {} has {free} free and would need {needed}", full.nsd);
        return refused(ErrorKind::NoSpace, why);
    }
    Ok(())
}

/// Steps 2 to 5 of the file's head.
fn empty(repair: &Repair, slot: SlotIndex) -> Result<()> {
    let nsds = repair.array.io.nsds();
    if !nsds.is_emptied_by_metadata(slot)? {
        nsds.begin_deletion(slot)?;
    }
    nsds.follow_with_heirs();
    if let Some(clients) = &repair.clients {
        nsds.forget_told()?;
        clients.have_placed(nsds.client())?;
        // From here on all clients know of the deletion, and note no other status.
        if !nsds.is_emptied_by_metadata(slot)? {
            let detail = "a mount has noted the state of before: it is told again";
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
    }
    // An NSD that the last step would have to wait for is waited for now.
    nsds.require_heirs(slot)?;
    let restarts = nsds.restarts();
    let mut report = RecoveryReport::default();
    let moves_files = moves_files(repair)?;
    let copied = match moves_files {
        true => move_off::all(repair, slot),
        false => copy_all(repair, slot, &mut report),
    };
    nsds.show_progress(slot, None);
    copied?;
    if report.failed > 0 {
        let detail = format!("{} stripes cannot be rebuilt yet", report.failed);
        return Err(Error::new(ErrorKind::Io, detail));
    }
    let nsd = nsds.nsd(slot);
    repair.array.meta.apply(MetaOp::MoveMetadataCopy { nsd })?;
    repair.array.rounds.run(true)?;
    finish(repair, slot, restarts, moves_files)?;
    if let Some(clients) = &repair.clients
        && let Err(error) = clients.have_placed(nsds.client())
    {
        // They do without a strip until they have found out.
        warn!(target: "disks", "NSD {nsd} is deleted: {error}");
    }
    info!(
        target: "disks",
        "NSD {nsd} is deleted: {} stripes compared, {} strips moved, {} deleted",
        report.stripes, report.rewritten, report.deleted
    );
    Ok(())
}

/// Step 5: the heirs take their places. `is_unused`: no file has a strip on the slot.
fn finish(repair: &Repair, slot: SlotIndex, restarts: u64, is_unused: bool) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let _no_recovery = repair.clients.as_ref().map(|_| nsds.mending().lock());
    if repair.clients.is_some() && !is_unused {
        nsds.have_left(slot)?;
    }
    let _alone = nsds.gate().write();
    let unreached = repair.array.io.commit(&[]).unreached;
    if unreached.iter().any(|other| *other != slot && !nsds.is_noted(*other))
        || nsds.restarts() != restarts
    {
        let detail = "a disk lost what it had not made stable: everything is compared again";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    }
    nsds.require_heirs(slot)?;
    nsds.end_deletion(slot)
}

/// Step 3.
fn copy_all(repair: &Repair, slot: SlotIndex, report: &mut RecoveryReport) -> Result<()> {
    let nsds = repair.array.io.nsds();
    // The metadata's scan does not list objects that are only reserved. After a flush it does.
    repair.exclusion.flush_all()?;
    let total = allocated(&repair.array)?;
    let mut done = 0;
    nsds.show_progress(slot, Some((0, total)));
    scan_objects(&repair.array, &mut |inode, layout| {
        match nsds.is_member(layout, slot)? {
            true if nsds.has_heirs(layout, slot)? => {
                copy_object(repair, slot, inode.attr.ino, layout, report)?;
            }
            true => move_away(repair, inode.attr.ino, layout)?,
            false => {}
        }
        done += inode.attr.allocated;
        nsds.show_progress(slot, Some((done.min(total), total)));
        Ok(())
    })
}

/// Moves a file to the newest layout, which does without the NSD.
fn move_away(repair: &Repair, ino: Ino, layout: &ObjectLayout) -> Result<()> {
    let mut go_on = |bytes| go_on(repair, bytes);
    match repair.exclusion.move_file(ino, layout, &mut go_on)? {
        Moved::Done | Moved::Elsewhere => Ok(()),
        Moved::InUse => {
            let detail = format!("inode {ino} is in use: it is moved later");
            Err(Error::new(ErrorKind::Unreachable, detail))
        }
    }
}

fn go_on(repair: &Repair, bytes: u64) -> Result<()> {
    match repair.pace.moved(bytes, &*repair.array.clock) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Unreachable, "goes on at the next start")),
    }
}

/// Gives the heirs of one object's strips what they lack.
fn copy_object(
    repair: &Repair,
    gone: SlotIndex,
    ino: Ino,
    layout: &ObjectLayout,
    report: &mut RecoveryReport,
) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let all = (BlockIndex(0), BlockIndex::END);
    let mut go_on = |bytes| go_on(repair, bytes);
    go_on(0)?;
    // The heirs are listed first. A block written in between is then among the others'.
    let mut held: BTreeMap<BlockIndex, (SlotIndex, Version)> = BTreeMap::new();
    for heir in nsds.slots().filter(|heir| *heir != gone) {
        if !nsds.is_member(layout, heir)? || !is_there(repair, heir)? {
            continue;
        }
        repair.array.io.list_slot(
            (heir, Place::Current),
            layout.object,
            all,
            1024,
            &mut |entry| {
                let found = nsds.stripe_and_heir(layout, entry.key.block);
                if found.is_ok_and(|(_, own)| own == Some((entry.key.strip, heir))) {
                    held.insert(entry.key.block, (heir, entry.header.version));
                }
                true
            },
        )?;
    }
    let floor = |block| repair.array.floors.floor(layout.object, block);
    for (block, newest) in repair.array.io.blocks(layout, all, &floor)? {
        let own = held.remove(&block).map(|(_, version)| version);
        let (_, Some((at, heir))) = nsds.stripe_and_heir(layout, block)? else { continue };
        if !is_there(repair, heir)? {
            continue;
        }
        let strip = Strip { ino, layout, block, at: at.0, newest, keeps_older: false };
        bring(repair, &strip, (heir, Place::Current), own, report, &mut go_on)?;
    }
    for (block, (heir, _)) in held {
        drop_surplus(repair, (ino, layout, block), (heir, Place::Current), report, &mut go_on)?;
    }
    Ok(())
}

/// Whether an heir gets the strips that it lacks now. An heir that is away and noted does not,
/// because it is compared in full before it is read. Any other heir must be there: it could have
/// strips that were never compared.
fn is_there(repair: &Repair, heir: SlotIndex) -> Result<bool> {
    let nsds = repair.array.io.nsds();
    if nsds.availability(heir).writable() {
        return Ok(true);
    }
    if nsds.is_noted(heir) {
        return Ok(false);
    }
    let detail = format!("NSD {} is not up: it is waited for", nsds.nsd(heir));
    Err(Error::new(ErrorKind::Unreachable, detail))
}
