//! Writes several small blocks at once: every NSD gets its strips of all of them in one request.
//!
//! Each block is written as `write.rs` does it: with a version of its own, judged by itself. A
//! small file is one such block, and a request for each of its strips would cost more than to write
//! them. An NSD of an older program gets the strips one by one.

use super::write::{Targets, strip_at};
use super::{StripeIo, Written};
use crate::nsds::Place;
use crate::scratch::ScratchBuffer;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdRequest, SMALL_STRIP_UNITS_MAX, STRIPS_MAX, SmallStrip};
use strake_proto::{
    BlockIndex, Error, ErrorKind, Geometry, ObjectLayout, Result, SlotIndex, Version,
};
use strake_stripe::{StripeCode, strip_checksums};

/// The longest block that is written with others. No strip of it is too long for that.
pub const SMALL_BLOCK_BYTES: usize = SMALL_STRIP_UNITS_MAX * UNIT_BYTES;

/// A small block, as for [`StripeIo::write_block`].
pub struct SmallBlock<'a> {
    /// The layout of its object.
    pub layout: &'a ObjectLayout,
    /// The block.
    pub block: BlockIndex,
    /// Its length, at most [`SMALL_BLOCK_BYTES`].
    pub block_bytes: u32,
    /// The block, padded with zeros to whole data strips ([`super::padded_bytes`]).
    pub bytes: &'a [u8],
    /// The version of the block that is known to be stable everywhere.
    pub stable: Version,
}

/// A block on its way.
struct Planned<'a> {
    stripe: StripeCode,
    targets: Targets,
    data: Vec<&'a [u8]>,
    parity: Vec<ScratchBuffer<'a>>,
}

/// The strips for one NSD: the block and the target's number.
type ForSlot = (SlotIndex, Vec<(usize, usize)>);

impl StripeIo {
    /// Writes blocks, at most [`STRIPS_MAX`]. Returns for each what [`StripeIo::write_block`]
    /// would.
    ///
    /// # Errors
    /// As [`StripeIo::write_block`], and `Retry` for a block that cannot be written with others
    /// now. After any of them the block is to be written alone.
    pub fn write_blocks(&self, blocks: &[SmallBlock<'_>]) -> Vec<Result<Written>> {
        assert!(blocks.len() <= STRIPS_MAX, "an NSD gets one strip of each block");
        let _under_way = self.nsds.gate().read();
        let planned: Vec<Result<Planned<'_>>> = blocks.iter().map(|it| self.plan(it)).collect();
        let mut by_slot: BTreeMap<SlotIndex, Vec<(usize, usize)>> = BTreeMap::new();
        for (at, plan) in planned.iter().enumerate() {
            let Ok(plan) = plan else { continue };
            for (index, (_, slot)) in plan.targets.sent.iter().enumerate() {
                by_slot.entry(*slot).or_default().push((at, index));
            }
        }
        let sends: Vec<ForSlot> = by_slot.into_iter().collect();
        let results: Vec<Mutex<Vec<Result<()>>>> = sends.iter().map(|_| Mutex::default()).collect();
        self.fan.run(sends.len(), &|at| {
            let sent = self.send_many(&sends[at], blocks, &planned);
            *results[at].lock() = sent;
        });
        // The results come in the order in which the strips were taken from each block.
        let mut of_blocks: Vec<BTreeMap<usize, Result<()>>> = vec![BTreeMap::new(); blocks.len()];
        for ((_, strips), results) in sends.iter().zip(results) {
            for ((block, index), result) in strips.iter().zip(results.into_inner()) {
                of_blocks[*block].insert(*index, result);
            }
        }
        let judged = planned.into_iter().zip(of_blocks).zip(blocks);
        judged
            .map(|((plan, results), block)| {
                let Planned { stripe, targets, .. } = plan?;
                let results: Vec<Result<()>> = results.into_values().collect();
                self.note_missed((block.layout.object, block.block), &targets, &results);
                let version = targets.header.version;
                let lacks = self.judge_write(&stripe, &targets, results)?;
                self.counts.whole.fetch_add(1, Ordering::Relaxed);
                Ok(Written { version, lacks })
            })
            .collect()
    }

    fn plan<'a>(&'a self, block: &SmallBlock<'a>) -> Result<Planned<'a>> {
        let (layout, block_bytes) = (block.layout, block.block_bytes);
        assert!(block_bytes as usize <= SMALL_BLOCK_BYTES, "a small block");
        let stripe = StripeCode::of_block(layout.code, u64::from(block_bytes));
        let strip_bytes = Geometry::of(layout.code, u64::from(block_bytes)).strip_bytes;
        assert_eq!(block.bytes.len(), stripe.data_strips() * strip_bytes, "blocks come padded");
        let (slots, heir) = self.nsds.stripe_to_write(layout, block.block)?;
        if heir.is_some() {
            return Err(Error::new(ErrorKind::Retry, "an heir gets a strip of it too"));
        }
        let targets = self.targets(&stripe, &slots, block_bytes)?;
        let data: Vec<&[u8]> = block.bytes.chunks_exact(strip_bytes).collect();
        let parity = self.encode(&stripe, &data, strip_bytes);
        Ok(Planned { stripe, targets, data, parity })
    }

    /// Sends an NSD its strips. Returns what became of each.
    fn send_many(
        &self,
        (slot, wanted): &ForSlot,
        blocks: &[SmallBlock<'_>],
        planned: &[Result<Planned<'_>>],
    ) -> Vec<Result<()>> {
        let (mut strips, mut parts) = (Vec::new(), Vec::new());
        for (block, index) in wanted {
            let SmallBlock { layout, block: at, stable, .. } = blocks[*block];
            let plan = planned[*block].as_ref().expect("invariant: planned blocks have targets");
            let (header, position) = (plan.targets.header.clone(), plan.targets.sent[*index].0);
            let key = self.key(layout, at, position);
            let bytes = strip_at(layout.code, &plan.data, &plan.parity, position);
            let checksums = strip_checksums(&key, header.version, bytes);
            strips.push(SmallStrip { key, header, checksums, stable });
            parts.push(bytes);
        }
        let target = (*slot, Place::Current);
        let alone = |at: usize| self.call_for_strip(target, &strips[at].alone(false), parts[at]);
        if let [_] = &strips[..] {
            return vec![alone(0)];
        }
        let request = NsdRequest::WriteMany { strips: strips.clone(), copy: false };
        match self.call_for_strip(target, &request, &parts.concat()) {
            Err(error) if error.kind() == ErrorKind::NotSupported => {
                (0..strips.len()).map(alone).collect()
            }
            result => vec![result; strips.len()],
        }
    }
}

#[cfg(test)]
#[path = "write_many_test.rs"]
mod write_many_test;
