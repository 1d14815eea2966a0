//! Replacing an NSD by another while the file system is in use.
//!
//! **If the old NSD can be read**, it is `replacing`, and the new one becomes its *shadow*. The
//! shadow gets every change that the old NSD gets. Meanwhile every strip is copied, under its
//! block's lock and with its version. When the shadow has everything, one metadata entry gives it
//! the slot. Until then nothing depends on the new disk, and the redundancy stays the same. At the
//! end strips are deleted whose files are gone since a crash.
//!
//! **If it cannot be read**, the new NSD gets the slot at once, `unrecovered` and empty. It is
//! filled like an NSD that has missed everything.
//!
//! The metadata knows the two NSDs ([`SETTING`]) before anything is copied. A replacement that a
//! restart interrupts is continued, and strips that were copied already are not copied again.

use crate::compare::{compare_files, delete_unowned};
use crate::context::Repair;
use crate::report::RecoveryReport;
use std::sync::Arc;
use strake_array::nsds::Place;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::meta::{Configuration, MetaOp, MetaQuery, MetaReply};
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result, SlotIndex};
use tracing::{error, info};

/// The setting that names the replacement under way: `OLD NEW RATE`, three numbers. It is empty if
/// there is none.
const SETTING: &str = "replacing";

/// A replacement that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The NSD that goes.
    pub old: NsdId,
    /// The NSD that comes.
    pub new: NsdId,
    /// Bytes per second at most; 0 for no limit.
    pub rate: u64,
}

/// The replacement that the metadata names. It may not have begun here, or may just have ended.
pub(crate) fn pending(repair: &Repair) -> Result<Option<Replacement>> {
    let MetaReply::Configuration(configuration) =
        repair.array.meta.query(&MetaQuery::Configuration)?
    else {
        return Err(strake_array::meta_link::wrong_reply());
    };
    Ok(Replacement::noted_in(&configuration))
}

impl Replacement {
    /// The replacement that a configuration says is under way.
    pub fn noted_in(configuration: &Configuration) -> Option<Replacement> {
        let (_, value) = configuration.settings.iter().find(|(name, _)| name == SETTING)?;
        let numbers: Vec<u64> = value.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [old, new, rate] = numbers[..] else { return None };
        let id = |number: u64| u32::try_from(number).ok().map(NsdId);
        Some(Replacement { old: id(old)?, new: id(new)?, rate })
    }
}

fn note(repair: &Repair, replacement: Option<Replacement>) -> Result<()> {
    let value =
        replacement.map(|it| format!("{} {} {}", it.old, it.new, it.rate)).unwrap_or_default();
    repair.array.meta.apply(MetaOp::SetConfig { name: SETTING.to_owned(), value })?;
    repair.array.meta.sync()
}

/// Begins or continues a replacement. `port` is the way to the new NSD, which is empty or has the
/// strips that an earlier attempt copied.
///
/// # Errors
/// `Busy` if another is under way; `NotFound` if the old NSD has no slot; the new NSD's.
pub(crate) fn start(
    repair: &Arc<Repair>,
    replacement: Replacement,
    port: Arc<dyn NsdPort>,
) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let Replacement { old, new, rate } = replacement;
    if let Some(other) = pending(repair)?
        && (other.old, other.new) != (old, new)
    {
        let detail = format!("NSD {} is being replaced: wait until that is done", other.old);
        return Err(Error::new(ErrorKind::Busy, detail));
    }
    // After a crash the new NSD may have the slot already, without the setting saying so.
    let taken = nsds.slot_of(new);
    let slot = taken.or_else(|| nsds.slot_of(old)).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("NSD {old} holds no slot of this file system"))
    })?;
    if nsds.being_emptied() == Some(slot) {
        return Err(Error::new(ErrorKind::Busy, format!("NSD {old} is being deleted")));
    }
    if taken.is_none() && !nsds.availability(slot).readable() {
        if repair.clients.is_some() {
            // All other clients leave it before this returns. Nobody writes to it by the old map
            // then, and the new one finds everybody without it.
            nsds.note(slot)?;
        }
        repair.pace.start(rate);
        nsds.replace_lost(slot, new, port)?;
        return note(repair, None);
    }
    if repair.clients.is_some() && taken.is_none() {
        // A shadow gets what this client writes, and nothing of the others.
        let detail = format!(
            "NSD {old} can be read: beside other mounts only a lost disk is replaced. Add the new one \
             (`strake disk add`), and delete the old one then (`strake disk delete`)"
        );
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    check_not_deleting(repair)?;
    if taken.is_none() {
        note(repair, Some(replacement))?;
        nsds.set_status(slot, NsdStatus::Replacing)?;
    }
    let begin = || repair.pace.start(rate);
    repair.job.start("replacement", repair, begin, move |repair| {
        let result = match taken {
            Some(_) => Ok(()),
            None => fill(repair, slot, new, Arc::clone(&port)),
        };
        repair.array.io.nsds().show_progress(slot, None);
        repair.array.io.nsds().end_shadow(slot);
        // The deletions are stable before the replacement is over, because they are not repeated.
        let sweep = || {
            delete_unowned(repair, slot, &mut RecoveryReport::default())?;
            repair.array.rounds.run(true)
        };
        if result.is_ok()
            && let Err(error) = sweep()
        {
            error!(target: "disks", "NSD {new} may hold strips that no file has: {error}");
        }
        if let Err(error) = result.and_then(|()| note(repair, None)) {
            error!(target: "disks", "NSD {new}, which is to replace NSD {old}: {error}");
            after_failure(repair, slot, new, port);
        }
    })
}

fn check_not_deleting(repair: &Repair) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let Some(leaving) = nsds.being_emptied() else { return Ok(()) };
    let detail = format!("NSD {} is being deleted: wait until that is done", nsds.nsd(leaving));
    Err(Error::new(ErrorKind::Busy, detail))
}

fn fill(repair: &Repair, slot: SlotIndex, new: NsdId, port: Arc<dyn NsdPort>) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let pace = &repair.pace;
    nsds.begin_shadow(slot, new, port)?;
    let mut report = RecoveryReport::default();
    compare_files(repair, (slot, Place::Shadow), &mut report, &mut |bytes| {
        if nsds.availability(slot) != NsdAvailability::Up {
            return Err(Error::new(ErrorKind::Unreachable, "the old disk failed meanwhile"));
        }
        if nsds.shadow(slot).is_none_or(|shadow| shadow.has_failed()) {
            return Err(Error::new(ErrorKind::Unreachable, "the new disk failed"));
        }
        if !pace.moved(bytes, &*repair.array.clock) {
            return Err(Error::new(ErrorKind::Unreachable, "goes on at the next start"));
        }
        Ok(())
    })?;
    if report.failed > 0 {
        let detail = format!("{} stripes cannot be copied", report.failed);
        return Err(Error::new(ErrorKind::Io, detail));
    }
    info!(
        target: "disks",
        "NSD {new}: {} stripes compared, {} copied, {} deleted",
        report.stripes, report.rewritten, report.deleted
    );
    nsds.promote_shadow(slot)
}

/// If the old disk is gone, the new one takes its place as it is, and gets the rest from the
/// others.
fn after_failure(repair: &Repair, slot: SlotIndex, new: NsdId, port: Arc<dyn NsdPort>) {
    let nsds = repair.array.io.nsds();
    if repair.pace.is_stopped() || nsds.nsd(slot) == new {
        return;
    }
    if !nsds.availability(slot).readable() {
        let taken = nsds.replace_lost(slot, new, port).and_then(|()| note(repair, None));
        if let Err(error) = taken {
            error!(target: "disks", "NSD {new}: {error}");
        }
    }
}
