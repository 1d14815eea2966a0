//! The log goes on after the loss of its majority (R31, decision 0078). No number that the lost
//! entries may have given is ever given again.
//!
//! Entries that only the lost replicas had may have given numbers to inodes, objects, deletions and
//! grants, and may have raised the pool map's version. NSDs and clients have met some of these. So
//! all numbers begin far beyond them ([`NUMBERS_SKIPPED`]).
//!
//! All lives of clients are closed, and what clients had reserved is deleted. A client of before
//! may have been told of changes that are lost, and may have forgotten that it made them. What it
//! keeps in memory fits to no state that there is now. So it must mount again.
//!
//! NSDs of nodes that are lost may come back after all. They may have carried out lost deletions,
//! and then lack what the metadata says they have. So they count as NSDs that have missed writes:
//! each is compared as a whole before it is read.

use super::{configure, session};
use crate::keys::{self, Table};
use crate::records::CONFIGURATION;
use crate::transaction::Transaction;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::{Error, ErrorKind, MapVersion, NsdId, Result};

/// The count of numbers of each kind that are left out. A million of them a second last for twelve
/// days, and there is room for sixteen million recoveries.
pub(crate) const NUMBERS_SKIPPED: u64 = 1 << 40;

/// See the file's head. Changes nothing in a store without a file system.
pub(crate) fn go_on(txn: &mut Transaction<'_>, lost: &[NsdId]) -> Result<()> {
    if txn.get_raw(&keys::global(CONFIGURATION))?.is_none() {
        return Ok(());
    }
    for (key, _) in txn.collect(&keys::whole(Table::Session))? {
        txn.remove(key);
    }
    session::give_up_reserved(txn, &|_| true)?;
    let slots = txn.configuration()?.pool.slots;
    for slot in slots.iter().filter(|slot| lost.contains(&slot.nsd)) {
        if !matches!(slot.state.status, NsdStatus::Deleted { .. }) {
            let availability = NsdAvailability::Unrecovered;
            configure::set_nsd_state(txn, slot.nsd, NsdState { availability, ..slot.state })?;
        }
    }
    let mut configuration = txn.configuration()?;
    configuration.pool.version = MapVersion(beyond(configuration.pool.version.0)?);
    txn.put(keys::global(CONFIGURATION), &configuration);
    let counters = txn.counters()?;
    for next in [
        &mut counters.next_ino,
        &mut counters.next_object,
        &mut counters.next_pending,
        &mut counters.next_grant,
    ] {
        *next = beyond(*next)?;
    }
    Ok(())
}

fn beyond(number: u64) -> Result<u64> {
    number
        .checked_add(NUMBERS_SKIPPED)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "the file system's numbers are used up"))
}

#[cfg(test)]
#[path = "go_on_test.rs"]
mod go_on_test;
