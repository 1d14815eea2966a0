//! Space for the metadata itself.
//!
//! The stores lie on disks that data fills. A store's checkpoint writes its changes to new pages.
//! So a store that has used all its space could not even delete. Three measures prevent this.
//! Changes that make the store larger are refused before that point
//! ([`Kv::weight_max`](strake_store::Kv::weight_max)). Checkpoints come sooner when little space is
//! left. While there is plenty, more space is kept from data.
//!
//! A checkpoint may still find no space. Nothing is lost then: the changes stay in the journal.
//! Until a checkpoint succeeds, only changes that do not make the metadata larger are accepted. The
//! journal has room for many of them, because a checkpoint is already tried when it is half full.

use super::holder::Holder;
use super::{MetaStore, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_proto::meta::MetaOp;
use strake_proto::{Error, ErrorKind, Result};
use strake_store::Kv;
use tracing::{error, info};

/// Names may take this many eighths of the metadata's largest allowed size.
pub(crate) const PART_FOR_NAMES: u64 = 7;

/// How many eighths of its largest allowed size the metadata may use for an operation that makes it
/// larger for good. 0 for all other operations. An [`MetaOp::Update`] is one of those others: the
/// client took over the contents it describes when there was space.
pub(crate) fn part_for(op: &MetaOp) -> u64 {
    match op {
        // The client can write these bytes in another way.
        MetaOp::Harden { .. } => 6,
        MetaOp::SetXattr { value, .. } if value.is_empty() => 0,
        MetaOp::Create { .. }
        | MetaOp::CreateOrphan { .. }
        | MetaOp::Link { .. }
        | MetaOp::SetXattr { .. } => PART_FOR_NAMES,
        // A client that reserves numbers makes names and objects with them.
        MetaOp::ReserveInodes { .. } | MetaOp::ReserveObjects { .. } => PART_FOR_NAMES,
        // A file that exists is written anew; a program was told of the name or the bytes.
        MetaOp::NewObject { .. } | MetaOp::NewObjectAs { .. } | MetaOp::CreateAs { .. } => 8,
        _ => 0,
    }
}

/// A store makes a change wait for a checkpoint when it holds this many times what makes a
/// checkpoint due. A change that has waited once goes on unless the second limit is reached. A
/// change that has waited twice goes on in any case. Others may have written as much again
/// meanwhile, and a checkpoint that finds no space loses nothing.
const OVERDUE_TIMES: [u64; 2] = [2, 3];

/// True if an entry of this many bytes may make a store larger. The store may grow to `part`
/// eighths of its largest allowed size.
pub(crate) fn may_grow(kv: &Kv, bytes: usize, part: u64) -> bool {
    // An entry makes several records. Together they are hardly twice as large as the entry.
    let fits = || free(kv, part) >= 4 * bytes as u64;
    fits() || {
        kv.look_for_space();
        fits()
    }
}

/// Bytes of pages that a store may still take, up to `part` eighths of its largest allowed size.
pub(crate) fn free(kv: &Kv, part: u64) -> u64 {
    (kv.weight_max() / 8).saturating_mul(part).saturating_sub(kv.weight())
}

/// Whether an entry may be made now.
pub(super) enum Admission {
    Now,
    /// Only after a checkpoint, which shows how much space is really used.
    AfterCheckpoint,
}

impl MetaStore {
    /// Decides whether all copies have space for an entry of `bytes` bytes, after `made`
    /// checkpoints were made for it. `part` is [`part_for`] its operation, or 0 if the operation is
    /// refused.
    ///
    /// # Errors
    /// `NoSpace` for a change that would make the metadata larger than it may be.
    pub(super) fn space_for(
        &self,
        state: &State,
        part: u64,
        bytes: usize,
        made: usize,
    ) -> Result<Admission> {
        let copies = || state.holders.iter().chain(&state.joining);
        let is_full = self.is_full.load(Ordering::Acquire);
        if part > 0 && (is_full || !copies().all(|copy| may_grow(&copy.kv, bytes, part))) {
            // Records removed lately count until a checkpoint. Hardening has another way.
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
        state.holders.iter().map(|copy| free(&copy.kv, PART_FOR_NAMES)).min().unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "space_test.rs"]
mod space_test;
