//! Patches a block: sends only the units that change, and the parity units that change with them.
//!
//! A *patch* is a version of a stripe that says how it differs from its *base*. Every position of
//! the stripe gets the patch: positions with changed units get these units, the others get none.
//! NSDs do no arithmetic, so the parity units are computed here (docs/decisions/0031-patches.md).
//!
//! **Parity.** A *row* is the set of units with one number in all strips of the block. There are
//! two ways to compute the parity of a row that changes:
//!
//! * Read the old parity and the old units that change, and add their difference.
//! * Read the data units that stay, and compute parity anew.
//!
//! The way with fewer reads is taken, or the other one if an NSD that it needs is away. All units
//! are read at exactly the base version, and verified.
//!
//! **All or nothing.** If one position does not hold the base, the patch is not accepted, whatever
//! the other positions did. The caller then writes the whole block under a newer version. The base
//! is still on all positions, because an NSD keeps the base of a patch until the stripe is settled.
//!
//! An NSD that is being brought up to date is an exception: as long as it has no version that can
//! be patched, patches pass over it like over an NSD that is away. The mender copies the block to
//! it. A block that is patched without pause is sent whole now and then.
//!
//! **Shadows and heirs.** A stripe is not patched if one of its positions has a shadow or an heir,
//! because these may lack the base.

use super::write::Targets;
use super::{StripeIo, Written};
use crate::nsds::Place;
use crate::scratch::ScratchBuffer;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::NsdRequest;
use strake_proto::{
    BlockIndex, Code, ErrorKind, Geometry, ObjectLayout, Result, SlotIndex, StripIndex, Version,
};
use strake_stripe::{ChecksumSeed, StripeCode, StripeSlots};

/// Two units are read at once, with the units between them, if they are no further apart than this.
const GAP_UNITS_MAX: u32 = 8;

/// How a block differs from its base.
#[derive(Clone, Copy, Debug)]
pub struct Patch<'a> {
    /// The version that is patched. It is known to be stable everywhere.
    pub base: Version,
    /// The length of the block, which is that of the base.
    pub block_bytes: u32,
    /// The units of the block that change, ascending, with their new bytes.
    pub units: &'a [(u32, &'a [u8])],
}

/// The result of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    /// It was accepted.
    Accepted(Written),
    /// It does not fit, or not now. Some positions may hold it nevertheless.
    NotBase,
}

/// The rows that change. Each row has the data positions that change, with their new units.
type Rows<'a> = BTreeMap<u32, Vec<(usize, &'a [u8])>>;

/// How many rows of a block change with these units. No strip gets more units than that.
pub fn rows_of(code: Code, block_bytes: u32, units: impl Iterator<Item = usize>) -> usize {
    let strip_units = Geometry::of(code, u64::from(block_bytes)).strip_bytes / UNIT_BYTES;
    units.map(|unit| unit % strip_units).collect::<std::collections::BTreeSet<_>>().len()
}

/// How the parity of a row is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the old parity and the old units that change.
    Difference,
    /// From all data units.
    Anew,
}

/// Units of one strip that are read at once.
struct Run {
    at: StripIndex,
    first: u32,
    rows: Vec<u32>,
}

impl Run {
    fn bytes(&self) -> usize {
        let last = self.rows.last().expect("invariant: a run has a row");
        (last - self.first + 1) as usize * UNIT_BYTES
    }
}

impl StripeIo {
    /// Patches a block. The caller keeps what it changed until the patch is accepted and stable.
    ///
    /// # Errors
    /// As for [`StripeIo::write_block`].
    pub fn patch_block(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        patch: &Patch<'_>,
    ) -> Result<Patched> {
        match self.patch_once(layout, block, patch) {
            // The NSDs that have accepted it may not take it again, so the block is written whole.
            Err(error) if error.kind() == ErrorKind::Io && self.nsds.look_again() => {
                Ok(self.not_base())
            }
            result => result,
        }
    }

    fn patch_once(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        patch: &Patch<'_>,
    ) -> Result<Patched> {
        let _under_way = self.nsds.gate().read();
        let stripe = StripeCode::of_block(layout.code, u64::from(patch.block_bytes));
        let rows = rows(layout.code, &stripe, patch);
        let (slots, heir) = self.nsds.stripe_to_write(layout, block)?;
        let mut positions = stripe.positions().map(|at| slots[usize::from(at.0)]);
        if heir.is_some() || positions.any(|slot| self.nsds.shadow(slot).is_some()) {
            return Ok(self.not_base());
        }
        let mut targets = self.targets(&stripe, &slots, patch.block_bytes)?;
        let parity = if stripe.parity_is_copy() {
            Vec::new()
        } else {
            let stripe = (&stripe, &slots);
            match self.parity_of_patch(layout, block, stripe, patch, &rows, &targets) {
                Some(parity) => parity,
                None => return Ok(self.not_base()),
            }
        };
        let mut results = self.send_to(&targets.sent, &|_, at, slot| {
            let units = units_at(&stripe, layout.code, &rows, &parity, at);
            self.patch_strip(layout, block, (at, slot), patch, &targets, &units)
        });
        self.leave_out_unready((layout.object, block), &stripe, &mut targets, &mut results);
        self.note_missed((layout.object, block), &targets, &results);
        let mut refusals = results.iter().filter_map(|result| result.as_ref().err());
        // If there is no room for the units beside the base, the caller looks for room for the
        // whole block. After a change of the map the NSDs of the block may be others.
        let is_refused = refusals.any(|error| {
            matches!(error.kind(), ErrorKind::NotBase | ErrorKind::NoSpace | ErrorKind::OldMap)
        });
        let judged = self.judge_write(&stripe, &targets, results);
        if is_refused {
            return Ok(self.not_base());
        }
        let lacks = judged?;
        self.counts.patches.fetch_add(1, Ordering::Relaxed);
        Ok(Patched::Accepted(Written { version: targets.header.version, lacks }))
    }

    fn not_base(&self) -> Patched {
        self.counts.not_base.fetch_add(1, Ordering::Relaxed);
        Patched::NotBase
    }

    fn patch_strip(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        (at, slot): (StripIndex, SlotIndex),
        patch: &Patch<'_>,
        targets: &Targets,
        units: &[(u32, &[u8])],
    ) -> Result<()> {
        let (key, header) = (self.key(layout, block, at), targets.header.clone());
        let seed = ChecksumSeed::new(&key, header.version);
        // In aligned memory, which the NSD can hand to its disk as it is.
        let mut payload = self.scratch.take(units.len() * UNIT_BYTES);
        for (part, (_, bytes)) in payload.chunks_exact_mut(UNIT_BYTES).zip(units) {
            part.copy_from_slice(bytes);
        }
        let request = NsdRequest::Patch {
            key,
            header,
            base: patch.base,
            units: units.iter().map(|(unit, _)| *unit).collect(),
            checksums: units.iter().map(|(unit, bytes)| seed.unit(*unit, bytes)).collect(),
            stable: patch.base,
        };
        self.call_for_strip((slot, Place::Current), &request, &payload)
    }

    /// The parity units of all rows, one list for each parity strip. `None` if they cannot be
    /// computed.
    fn parity_of_patch(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        (stripe, slots): (&StripeCode, &StripeSlots),
        patch: &Patch<'_>,
        rows: &Rows<'_>,
        targets: &Targets,
    ) -> Option<Vec<Vec<u8>>> {
        let is_sent = |at: &StripIndex| targets.sent.iter().any(|(sent, _)| sent == at);
        let is_parity = |at: &StripIndex| at.0 >= layout.code.data;
        let (parity, data): (Vec<_>, Vec<_>) = stripe.positions().partition(is_parity);
        let parity: Vec<StripIndex> = parity.into_iter().filter(is_sent).collect();
        let is_readable =
            |at: &StripIndex| self.nsds.availability(slots[usize::from(at.0)]).readable();
        let (mut ways, mut needed) = (Vec::with_capacity(rows.len()), BTreeMap::new());
        for (row, changes) in rows {
            let (way, read) = way_of(changes, &data, &parity, &is_readable)?;
            ways.push(way);
            for at in read {
                needed.entry(at).or_insert_with(Vec::new).push(*row);
            }
        }
        let runs: Vec<Run> = needed.into_iter().flat_map(|(at, rows)| runs(at, &rows)).collect();
        let buffers = self.read_runs(layout, block, slots, patch, &runs)?;
        let mut old: BTreeMap<(usize, u32), &[u8]> = BTreeMap::new();
        for (run, buffer) in runs.iter().zip(&buffers) {
            for row in &run.rows {
                let from = (row - run.first) as usize * UNIT_BYTES;
                old.insert((usize::from(run.at.0), *row), &buffer[from..from + UNIT_BYTES]);
            }
        }
        let mut computed = vec![vec![0; rows.len() * UNIT_BYTES]; stripe.parity_strips()];
        for (index, ((row, changes), way)) in rows.iter().zip(ways).enumerate() {
            let from = index * UNIT_BYTES;
            let mut units: Vec<&mut [u8]> =
                computed.iter_mut().map(|strip| &mut strip[from..from + UNIT_BYTES]).collect();
            if way == Way::Anew {
                let changed = |at: usize| changes.iter().find(|(to, _)| *to == at);
                let data: Vec<&[u8]> = (0..stripe.data_strips())
                    .map(|at| changed(at).map_or_else(|| old[&(at, *row)], |(_, new)| *new))
                    .collect();
                stripe.encode(&data, &mut units);
                continue;
            }
            for at in parity.iter().map(|at| usize::from(at.0)) {
                units[at - usize::from(layout.code.data)].copy_from_slice(old[&(at, *row)]);
            }
            for (at, new) in changes {
                let pairs = old[&(*at, *row)].iter().zip(*new);
                let change: Vec<u8> = pairs.map(|(old, new)| old ^ new).collect();
                stripe.encode_add(StripIndex(*at as u8), &change, &mut units);
            }
        }
        Some(computed)
    }

    /// Reads runs at exactly the base version. `None` if one of them cannot be read.
    fn read_runs(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        patch: &Patch<'_>,
        runs: &[Run],
    ) -> Option<Vec<ScratchBuffer<'_>>> {
        let jobs: Vec<Mutex<(ScratchBuffer<'_>, bool)>> =
            runs.iter().map(|run| Mutex::new((self.scratch.take(run.bytes()), false))).collect();
        self.fan.run(runs.len(), &|index| {
            let (run, mut job) = (&runs[index], jobs[index].lock());
            let (slot, key) = (slots[usize::from(run.at.0)], self.key(layout, block, run.at));
            let offset = run.first as usize * UNIT_BYTES;
            let header = self.read_strip(slot, key, Some(patch.base), offset, &mut job.0);
            job.1 = header.is_ok_and(|header| header.block_bytes == patch.block_bytes);
        });
        let jobs = jobs.into_iter().map(Mutex::into_inner);
        jobs.map(|(buffer, is_read)| is_read.then_some(buffer)).collect()
    }
}

fn rows<'a>(code: Code, stripe: &StripeCode, patch: &Patch<'a>) -> Rows<'a> {
    let strip_bytes = Geometry::of(code, u64::from(patch.block_bytes)).strip_bytes;
    let strip_units = (strip_bytes / UNIT_BYTES) as u32;
    let mut rows = Rows::new();
    for (unit, bytes) in patch.units {
        let at = (unit / strip_units) as usize;
        assert!(at < stripe.data_strips() && bytes.len() == UNIT_BYTES, "units are of the block");
        rows.entry(unit % strip_units).or_default().push((at, bytes));
    }
    rows
}

/// How the parity of a row is computed, and which positions must be read for it. `None` if neither
/// way is possible.
fn way_of(
    changes: &[(usize, &[u8])],
    data: &[StripIndex],
    parity: &[StripIndex],
    is_readable: &dyn Fn(&StripIndex) -> bool,
) -> Option<(Way, Vec<StripIndex>)> {
    let is_changed = |at: &&StripIndex| changes.iter().any(|(to, _)| *to == usize::from(at.0));
    let (changed, others): (Vec<_>, Vec<_>) = data.iter().partition(is_changed);
    let by_difference = changed.into_iter().chain(parity.iter().copied()).collect();
    let mut both = [(Way::Difference, by_difference), (Way::Anew, others)];
    both.sort_by_key(|(_, read)| read.len());
    both.into_iter().find(|(_, read)| read.iter().all(is_readable))
}

/// The units that a position gets.
fn units_at<'a>(
    stripe: &StripeCode,
    code: Code,
    rows: &'a Rows<'a>,
    parity: &'a [Vec<u8>],
    at: StripIndex,
) -> Vec<(u32, &'a [u8])> {
    let row_of = usize::from(at.0).checked_sub(usize::from(code.data));
    if let Some(strip) = row_of.and_then(|row| parity.get(row)) {
        return rows.keys().copied().zip(strip.chunks_exact(UNIT_BYTES)).collect();
    }
    let own = |changes: &Vec<(usize, &'a [u8])>| {
        let is_own = |to: usize| stripe.parity_is_copy() || to == usize::from(at.0);
        changes.iter().find(|(to, _)| is_own(*to)).map(|(_, bytes)| *bytes)
    };
    rows.iter().filter_map(|(row, changes)| Some((*row, own(changes)?))).collect()
}

/// Cuts the rows of one strip, which are ascending, into runs.
fn runs(at: StripIndex, rows: &[u32]) -> Vec<Run> {
    rows.chunk_by(|one, next| next - one <= GAP_UNITS_MAX)
        .map(|rows| Run { at, first: rows[0], rows: rows.to_vec() })
        .collect()
}

#[cfg(test)]
#[path = "patch_test.rs"]
mod patch_test;
