//! Bringing an NSD that returns up to date.
//!
//! First the NSD gets all writes again, and everything is flushed. Then the blocks in its table of
//! missed writes ([`strake_array::nsds`]) are compared, or every object if the table is incomplete.

use crate::compare::{compare, compare_files, delete_unowned};
use crate::context::Repair;
use crate::report::RecoveryReport;
use crate::salvage::salvage;
use crate::scan::scan_objects;
use crate::tokens::TokenService;
use std::collections::BTreeSet;
use strake_array::nsds::{Place, RecoveryEnd, Table};
use strake_array::reaper;
use strake_proto::layout::NsdAvailability;
use strake_proto::{BlockIndex, Error, ErrorKind, Result, SlotIndex};
use tracing::info;

/// Brings an NSD that missed writes up to date. `None` if it has missed none, or went down again.
pub(crate) fn recover_nsd(repair: &Repair, slot: SlotIndex) -> Result<Option<RecoveryReport>> {
    let nsds = repair.array.io.nsds();
    if !nsds.begin_recovery(slot) {
        return Ok(None);
    }
    if let Some(clients) = &repair.clients
        && let Err(error) = have_written(repair, clients, slot)
    {
        nsds.fail(slot);
        return Err(error);
    }
    let mut report = RecoveryReport::default();
    let done = loop {
        // What it misses from now on is in the next table.
        let table = nsds.missed().take(slot);
        let result = catch_up(repair, slot, &table, &mut report);
        nsds.show_progress(slot, None);
        let end = result.and_then(|()| nsds.end_recovery(slot));
        if !matches!(end, Ok(RecoveryEnd::Up | RecoveryEnd::More)) {
            nsds.missed().give_back(slot, table);
        }
        if end != Ok(RecoveryEnd::More) {
            break end;
        }
    };
    match done {
        Ok(RecoveryEnd::Up) => {
            info!(
                target: "disks",
                "NSD {} is up to date: {} stripes compared{}, {} copied, {} deleted",
                nsds.nsd(slot),
                report.stripes,
                if report.full { "" } else { " that it had missed" },
                report.rewritten,
                report.deleted
            );
            Ok(Some(report))
        }
        Ok(RecoveryEnd::More | RecoveryEnd::Down) => {
            nsds.fail(slot);
            Ok(None)
        }
        Err(error) => {
            // A listing that met a damaged page would meet it each time.
            if error.kind() == ErrorKind::Corrupt && nsds.is_noted(slot) {
                salvage(&repair.array, slot);
            }
            nsds.fail(slot);
            Err(error)
        }
    }
}

/// Has all clients write to a returning NSD. What they missed is in no table here, so all of it is
/// compared.
fn have_written(repair: &Repair, clients: &TokenService, slot: SlotIndex) -> Result<()> {
    let nsds = repair.array.io.nsds();
    nsds.missed().distrust(slot);
    nsds.announce_recovery(slot)?;
    clients.have_written(nsds.nsd(slot), nsds.client())
}

/// Compares the strips that a returning NSD may lack, and makes stable what it got.
fn catch_up(
    repair: &Repair,
    slot: SlotIndex,
    table: &Table,
    report: &mut RecoveryReport,
) -> Result<()> {
    let nsds = repair.array.io.nsds();
    let restarts = nsds.restarts();
    // Pending deletions are applied first. That leaves less to compare, and nothing deleted is
    // copied.
    reaper::apply_pending(&repair.array)?;
    let mut go_on = |bytes| {
        if !repair.pace.moved(bytes, &*repair.array.clock) {
            return Err(Error::new(ErrorKind::Unreachable, "goes on at the next start"));
        }
        if nsds.availability(slot) != NsdAvailability::Recovering {
            return Err(Error::new(ErrorKind::Unreachable, "it went down again"));
        }
        Ok(())
    };
    // Strips that it is to take over from an NSD that is being emptied are in no table.
    if table.is_complete() && nsds.being_emptied().is_none() {
        compare_missed(repair, slot, table, report, &mut go_on)?;
    } else {
        report.full = true;
        reaper::apply_again(&repair.array, nsds.nsd(slot))?;
        compare_files(repair, (slot, Place::Current), report, &mut go_on)?;
        delete_unowned(repair, slot, report)?;
    }
    repair.array.rounds.run(true)?;
    // Copies and deletions that it had only accepted may be gone.
    if nsds.restarts() != restarts {
        let detail = "a disk was started anew meanwhile: it is compared again";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    }
    if report.failed > 0 {
        let detail = format!("{} stripes cannot be rebuilt yet", report.failed);
        return Err(Error::new(ErrorKind::Io, detail));
    }
    Ok(())
}

/// Compares the blocks of a table.
fn compare_missed(
    repair: &Repair,
    slot: SlotIndex,
    table: &Table,
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    // As in `compare_files`.
    repair.exclusion.flush_all()?;
    if table.is_clean() {
        return Ok(());
    }
    let (nsds, block_size) = (repair.array.io.nsds(), u64::from(repair.array.block_size));
    let total = table.blocks() * block_size;
    let mut done = 0;
    nsds.show_progress(slot, Some((0, total)));
    scan_objects(&repair.array, &mut |inode, layout| {
        let Some(blocks) = table.blocks_of(layout.object) else { return Ok(()) };
        for run in runs(blocks) {
            let target = (slot, Place::Current);
            compare(repair, target, inode.attr.ino, layout, run, report, go_on)?;
            go_on(0)?;
        }
        done += blocks.len() as u64 * block_size;
        nsds.show_progress(slot, Some((done.min(total), total)));
        Ok(())
    })
}

/// Ranges that cover the blocks. Blocks near each other are listed at once.
fn runs(blocks: &BTreeSet<BlockIndex>) -> Vec<(BlockIndex, BlockIndex)> {
    const NEAR: u64 = 64;
    let mut runs: Vec<(BlockIndex, BlockIndex)> = Vec::new();
    for block in blocks {
        let end = BlockIndex(block.0 + 1);
        match runs.last_mut() {
            Some(run) if block.0 - run.1.0 < NEAR => run.1 = end,
            _ => runs.push((*block, end)),
        }
    }
    runs
}
