//! Writes a block: encodes all of it, and sends all strips at once.
//!
//! 1. Take a new version. The header names the positions that it leaves out, because their NSD
//!    cannot be written.
//! 2. Compute parity, then send all strips side by side, each with its checksums.
//! 3. An NSD that fails is taken out of use, and its strip counts as left out.
//! 4. If fewer strips were accepted than a read needs, the write has failed. It also fails if an
//!    NSD is full, because a disk that is full must not look like a disk that is gone.
//! 5. While an NSD is deleted, the heir of its strip gets the strip too. If the heir does not get
//!    it, the heir is noted (`nsds/heirs.rs`), but the write does not fail.
//! 6. All NSDs that were left out are noted in the metadata before the write is acknowledged.
//! 7. If an NSD refuses the pool map as too old, the map was fetched meanwhile, and the block is
//!    sent again as a new version (`nsds/map.rs`).

use super::{StripeIo, Written};
use crate::nsds::{Place, Sent, is_nsd_fault};
use crate::scratch::ScratchBuffer;
use std::sync::atomic::Ordering;
use strake_env::sync::Mutex;
use strake_proto::layout::NsdAvailability;
use strake_proto::nsd::{NsdReply, NsdRequest, StripHeader};
use strake_proto::{
    BlockIndex, Code, Error, ErrorKind, Geometry, ObjectId, ObjectLayout, Result, SlotIndex,
    StripIndex, Version,
};
use strake_stripe::{StripeCode, StripeSlots, strip_checksums};

/// A block is sent at most so many times because of changes of the pool map. More in a row are the
/// caller's to wait for.
const OLD_MAPS_MAX: usize = 4;

/// The number of patches of one block in a row that may pass over an NSD that is being brought up
/// to date. The next patch makes the writer send the block whole. So the recovery ends although a
/// program writes the block without pause.
pub(super) const UNREADY_MAX: u32 = 64;
/// The most blocks of which that is counted.
const UNREADY_BLOCKS_MAX: usize = 1 << 16;

/// The NSDs that a stripe is sent to.
pub(super) struct Targets {
    pub(super) header: StripHeader,
    /// The positions and slots that can be written.
    pub(super) sent: Vec<(StripIndex, SlotIndex)>,
    /// The other positions and slots.
    left_out: Vec<(StripIndex, SlotIndex)>,
    /// The value of `NsdSet::restarts` before the stripe was sent.
    restarts: u64,
}

impl StripeIo {
    /// Writes a block of `block_bytes` bytes. `bytes` is the block, padded with zeros to whole data
    /// strips ([`super::padded_bytes`]). `stable` is the version of the block that is known to be
    /// stable everywhere, or [`Version::NONE`]; NSDs free everything older than it. Returns the
    /// version under which the block was accepted, and the positions that lack it.
    ///
    /// # Errors
    /// `NoSpace`, or `Io` if too few NSDs accepted the block. Some NSDs may then hold the new
    /// version. The caller still holds the data and writes it again.
    pub fn write_block(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        block_bytes: u32,
        bytes: &[u8],
        stable: Version,
    ) -> Result<Written> {
        let write = || self.write_once(layout, block, block_bytes, bytes, stable);
        for _ in 1..OLD_MAPS_MAX {
            match self.looking_again(write) {
                Err(error) if error.kind() == ErrorKind::OldMap => {}
                result => return result,
            }
        }
        self.looking_again(write)
    }

    fn write_once(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        block_bytes: u32,
        bytes: &[u8],
        stable: Version,
    ) -> Result<Written> {
        let _under_way = self.nsds.gate().read();
        let stripe = StripeCode::of_block(layout.code, u64::from(block_bytes));
        let strip_bytes = Geometry::of(layout.code, u64::from(block_bytes)).strip_bytes;
        assert_eq!(bytes.len(), stripe.data_strips() * strip_bytes, "blocks come padded");
        let (slots, heir) = self.nsds.stripe_to_write(layout, block)?;
        let targets = self.targets(&stripe, &slots, block_bytes)?;
        let Targets { sent, header, .. } = &targets;

        let data: Vec<&[u8]> = bytes.chunks_exact(strip_bytes).collect();
        let parity = self.encode(&stripe, &data, strip_bytes);
        let strip = |at| strip_at(layout.code, &data, &parity, at);
        // The heir of a strip of an NSD that is being deleted gets the strip too. It is sent as a
        // copy, because the heir may already have got it from that NSD.
        let heir = heir.filter(|(at, _)| stripe.positions().any(|stored| stored == *at));
        let (to_heir, heirless): (Vec<_>, Vec<_>) =
            heir.into_iter().partition(|(_, slot)| self.nsds.availability(*slot).writable());
        let all: Vec<(StripIndex, SlotIndex)> = sent.iter().chain(&to_heir).copied().collect();
        let mut results = self.send_to(&all, &|index, at, slot| {
            let (target, how) = ((slot, Place::Current), (index >= sent.len(), stable));
            self.write_strip(layout, block, at, target, header, strip(at), how)
        });
        let of_heirs = results.split_off(sent.len());
        self.note_missed((layout.object, block), &targets, &results);
        for ((_, slot), result) in to_heir.iter().zip(of_heirs) {
            let Err(error) = result else { continue };
            if is_nsd_fault(error.kind()) {
                self.nsds.fail(*slot);
            }
            self.nsds.heir_missed(*slot)?;
        }
        heirless.iter().try_for_each(|(_, slot)| self.nsds.heir_missed(*slot))?;
        let lacks = self.judge_write(&stripe, &targets, results)?;
        self.counts.whole.fetch_add(1, Ordering::Relaxed);
        Ok(Written { version: header.version, lacks })
    }

    /// Chooses the NSDs that a stripe of a new version is sent to. The caller holds the gate.
    ///
    /// # Errors
    /// `Io` if too few NSDs can be written.
    pub(super) fn targets(
        &self,
        stripe: &StripeCode,
        slots: &StripeSlots,
        block_bytes: u32,
    ) -> Result<Targets> {
        let restarts = self.nsds.restarts();
        let version = self.versions.next();
        let (sent, left_out): (Vec<_>, Vec<_>) = stripe
            .positions()
            .map(|at| (at, slots[usize::from(at.0)]))
            .partition(|(_, slot)| self.nsds.availability(*slot).writable());
        if sent.len() < stripe.data_strips() {
            return Err(too_few(sent.len(), stripe.data_strips()));
        }
        let lacks = left_out.iter().fold(0, |mask, (at, _)| mask | 1 << at.0);
        let header = StripHeader { version, block_bytes, lacks };
        Ok(Targets { header, sent, left_out, restarts })
    }

    /// After a patch was sent: counts NSDs that are being brought up to date, and do not have the
    /// base yet, among those that were left out. They miss the patch, and the mender brings it to
    /// them later. `results` then lacks them, too.
    ///
    /// Nothing is lost if the recovery ends at this moment. It ends only if the NSD has missed
    /// nothing. If it ended before the miss is noted, the NSD is noted anew, like any NSD that is
    /// left out ([`StripeIo::judge_write`]).
    pub(super) fn leave_out_unready(
        &self,
        (object, block): (ObjectId, BlockIndex),
        stripe: &StripeCode,
        targets: &mut Targets,
        results: &mut Vec<Result<()>>,
    ) {
        // Beside other mounts the leader ends a recovery, and does not know this mount's table.
        if self.nsds.holdings().is_some() {
            return;
        }
        let is_unready = |index: &usize| {
            let lacks_base =
                matches!(&results[*index], Err(error) if error.kind() == ErrorKind::NotBase);
            let slot = targets.sent[*index].1;
            lacks_base && self.nsds.availability(slot) == NsdAvailability::Recovering
        };
        let unready: Vec<usize> = (0..results.len()).filter(is_unready).collect();
        if unready.is_empty() || results.len() - unready.len() < stripe.data_strips() {
            return;
        }
        {
            let mut blocks = self.unready.lock();
            if blocks.len() > UNREADY_BLOCKS_MAX {
                blocks.clear();
            }
            let count = blocks.entry((object, block)).or_default();
            *count += 1;
            if *count == UNREADY_MAX {
                blocks.remove(&(object, block));
                return;
            }
        }
        for index in unready.into_iter().rev() {
            drop(results.remove(index));
            let (at, slot) = targets.sent.remove(index);
            targets.header.lacks |= 1 << at.0;
            targets.left_out.push((at, slot));
        }
    }

    /// Calls `send` for all targets side by side, each with its number.
    pub(super) fn send_to(
        &self,
        targets: &[(StripIndex, SlotIndex)],
        send: &(dyn Fn(usize, StripIndex, SlotIndex) -> Result<()> + Sync),
    ) -> Vec<Result<()>> {
        let results: Vec<Mutex<Result<()>>> = targets.iter().map(|_| Mutex::new(Ok(()))).collect();
        self.fan.run(targets.len(), &|index| {
            let (at, slot) = targets[index];
            let result = send(index, at, slot);
            *results[index].lock() = result;
        });
        results.into_iter().map(Mutex::into_inner).collect()
    }

    /// Notes which NSDs lack a stripe, and which will lack it if the next commit does not reach
    /// them. This comes before failed NSDs are taken out of use, so that the end of a recovery
    /// takes it into account.
    pub(super) fn note_missed(
        &self,
        (object, block): (ObjectId, BlockIndex),
        targets: &Targets,
        results: &[Result<()>],
    ) {
        if self.nsds.tolerates_none() {
            return;
        }
        let mut missed = self.nsds.missed();
        targets.left_out.iter().for_each(|(_, slot)| missed.note(*slot, object, block));
        let mut accepted = Vec::with_capacity(targets.sent.len());
        for ((_, slot), result) in targets.sent.iter().zip(results) {
            match result {
                Ok(()) => accepted.push(*slot),
                Err(error) if is_nsd_fault(error.kind()) => missed.note(*slot, object, block),
                Err(_) => {}
            }
        }
        missed.sent(Sent { object, block, accepted, restarts: targets.restarts });
    }

    /// The parity strips. Empty if every strip equals the only data strip.
    pub(super) fn encode(
        &self,
        stripe: &StripeCode,
        data: &[&[u8]],
        strip_bytes: usize,
    ) -> Vec<ScratchBuffer<'_>> {
        if data.len() == 1 {
            return Vec::new();
        }
        let mut parity: Vec<ScratchBuffer<'_>> =
            (0..stripe.parity_strips()).map(|_| self.scratch.take(strip_bytes)).collect();
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
        stripe.encode(data, &mut rows);
        parity
    }

    /// Sends one strip. `copy` and `stable` are those of the request.
    #[allow(clippy::too_many_arguments, reason = "a strip, its place, and how it is sent")]
    pub(super) fn write_strip(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        at: StripIndex,
        target: (SlotIndex, Place),
        header: &StripHeader,
        strip: &[u8],
        (copy, stable): (bool, Version),
    ) -> Result<()> {
        let key = self.key(layout, block, at);
        let request = NsdRequest::Write {
            key,
            header: header.clone(),
            checksums: strip_checksums(&key, header.version, strip),
            copy,
            stable,
        };
        self.call_for_strip(target, &request, strip)
    }

    /// Sends a request that is answered with `Accepted`.
    pub(super) fn call_for_strip(
        &self,
        target: (SlotIndex, Place),
        request: &NsdRequest,
        payload: &[u8],
    ) -> Result<()> {
        match self.nsds.call_at(target, request, payload, &mut [])? {
            NsdReply::Accepted { boot } => {
                // The commit, which judges all writes before it, finds out about a new boot by
                // itself too.
                if target.1 == Place::Current {
                    self.nsds.saw_boot(target.0, boot);
                }
                Ok(())
            }
            _ => Err(Error::new(ErrorKind::Internal, "an NSD gave a wrong reply to a write")),
        }
    }

    /// Takes NSDs that failed out of use, and durably notes which NSDs lack the stripe. Returns the
    /// positions that lack it: a mask.
    ///
    /// # Errors
    /// If the stripe does not count as accepted.
    pub(super) fn judge_write(
        &self,
        stripe: &StripeCode,
        Targets { header, sent, left_out, .. }: &Targets,
        results: Vec<Result<()>>,
    ) -> Result<u32> {
        let mut failed = Vec::new();
        let mut lacks = header.lacks;
        let mut refusal = None;
        for ((at, slot), result) in sent.iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(error) if is_nsd_fault(error.kind()) => {
                    self.nsds.fail(*slot);
                    failed.push(*slot);
                    lacks |= 1 << at.0;
                }
                Err(error) => refusal = Some(error),
            }
        }
        if let Some(error) = refusal {
            return Err(error);
        }
        let accepted = sent.len() - failed.len();
        if accepted < stripe.data_strips() {
            return Err(too_few(accepted, stripe.data_strips()));
        }
        let left_out = left_out.iter().map(|(_, slot)| *slot);
        left_out.chain(failed).try_for_each(|slot| self.nsds.note(slot))?;
        Ok(lacks)
    }
}

/// The strip at a position of a block that was encoded.
pub(super) fn strip_at<'a>(
    code: Code,
    data: &[&'a [u8]],
    parity: &'a [ScratchBuffer<'_>],
    at: StripIndex,
) -> &'a [u8] {
    match usize::from(at.0).checked_sub(usize::from(code.data)) {
        None => data[usize::from(at.0)],
        Some(_) if parity.is_empty() => data[0],
        Some(row) => &parity[row],
    }
}

fn too_few(have: usize, needed: usize) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("only {have} of the {needed} NSDs that a block needs can be written"),
    )
}
