//! Space for the metadata itself.
//!
//! The stores lie on disks that data fills. A store's checkpoint writes what it changes to new
//! pages, so a store that uses all of its space could not even delete. Therefore what makes it
//! larger is refused before ([`Kv::weight_max`](strake_store::Kv::weight_max)), checkpoints come
//! sooner where little is left, and while there is plenty more is kept from data.
//!
//! Where a checkpoint finds no space all the same nothing is lost: the changes stay in the journal.
//! Until one succeeds only what does not make the metadata larger is accepted, for which the
//! journal has room for long: a checkpoint is tried when it is half full.

use super::holder::Holder;
use super::{MetaStore, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::meta::MetaOp;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{error, info};

/// Of what the metadata may become, so many eighths are for what has a name.
const PART_FOR_NAMES: u64 = 7;

/// How many eighths of what the metadata may become are for an operation that makes it larger for
/// good; 0 for others. What a client tells of contents that it took over when there was space
/// ([`MetaOp::Update`]) is among those.
pub(super) fn part_for(op: &MetaOp) -> u64 {
    match op {
        // There is another way for these.
        MetaOp::Harden { .. } => 6,
        MetaOp::SetXattr { value, .. } if value.is_empty() => 0,
        MetaOp::Create { .. }
        | MetaOp::CreateOrphan { .. }
        | MetaOp::Link { .. }
        | MetaOp::SetXattr { .. } => PART_FOR_NAMES,
        // A file that is there is written anew.
        MetaOp::NewObject { .. } => 8,
        _ => 0,
    }
}

/// A store that holds up others for a checkpoint does so from so many times what makes one due:
/// who waited once goes on where that alone does not, and who waited twice at any rate. Others may
/// have written as much again, and a checkpoint that finds no space loses nothing.
const OVERDUE_TIMES: [u64; 2] = [2, 3];

/// Whether an entry may be made.
pub(super) enum Admission {
    Now,
    /// After a checkpoint, which tells what is taken indeed.
    AfterCheckpoint,
}

impl MetaStore {
    /// Whether there is space for an entry of so many bytes in all copies, after so many
    /// checkpoints were `made` for it. `part` is [`part_for`] its operation, or 0 if the operation
    /// is refused.
    ///
    /// # Errors
    /// `NoSpace` for what makes the metadata larger than it may be.
    pub(super) fn space_for(
        &self,
        state: &State,
        part: u64,
        bytes: usize,
        made: usize,
    ) -> Result<Admission> {
        let copies = || state.holders.iter().chain(&state.joining);
        let is_full = self.is_full.load(Ordering::Acquire);
        if part > 0 && (is_full || !copies().all(|copy| copy.may_grow(bytes, part))) {
            // What was removed lately counts until then; but hardening has another way.
            let in_memory = |copy: &Arc<Holder>| match part >= PART_FOR_NAMES {
                true => copy.has_changes(),
                false => copy.has_much_in_memory(),
            };
            if !is_full && made == 0 && copies().any(in_memory) {
                return Ok(Admission::AfterCheckpoint);
            }
            let detail = "no space for more metadata: delete something, or add disks";
            return Err(Error::new(ErrorKind::NoSpace, detail));
        }
        let overdue = |times: &u64| copies().any(|copy| copy.kv.is_due(*times));
        match !is_full && OVERDUE_TIMES.get(made).is_some_and(overdue) {
            true => Ok(Admission::AfterCheckpoint),
            false => Ok(Admission::Now),
        }
    }

    /// Notes whether the last checkpoint found space.
    pub(super) fn set_full(&self, is_full: bool) {
        if self.is_full.swap(is_full, Ordering::AcqRel) != is_full {
            match is_full {
                true => {
                    error!(target: "metadata", "the checkpoint finds no space: nothing is added")
                }
                false => info!(target: "metadata", "the checkpoint has space again"),
            }
        }
    }

    /// Looks how much space there is; see the file's head.
    pub(super) fn look_for_space(&self) {
        let state = self.state.read();
        state.holders.iter().chain(&state.joining).for_each(|copy| copy.kv.look_for_space());
    }

    /// Bytes of pages that names and inodes may still take.
    pub(super) fn free(&self, state: &State) -> u64 {
        if self.is_full.load(Ordering::Acquire) {
            return 0;
        }
        state.holders.iter().map(|copy| copy.free(PART_FOR_NAMES)).min().unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "space_test.rs"]
mod space_test;
