//! Decides between unequal versions of a stripe, which a writer that died leaves behind. Writes the
//! outcome down before anybody reads it.
//!
//! It looks at all versions that are held, current or kept, from the newest on:
//!
//! 1. If N of the version's strips can be read (current, or kept as the predecessor of a newer
//!    one), the version stands: *forward*.
//! 2. Otherwise the version is *rolled back*, and the next older version is looked at. This has two
//!    conditions: at most P positions cannot be read, so the code tolerates their loss, and every
//!    other position that does not hold the version refuses it for ever. Rolling back is right
//!    because a version is acknowledged only when it is stable on every position that the metadata
//!    has not noted as having missed something. So one NSD that is up and lacks the version is a
//!    witness that it was never acknowledged. With `a` positions away there are at least P+1-a such
//!    witnesses.
//! 3. Otherwise too many positions are away, which is an error. It is also an error if such a
//!    version is settled anywhere: it was stable everywhere, so its missing strips were lost.
//!
//! The outcome is written as a new, higher version. It is at least as long as the longest version
//! seen, so that every position that holds a strip of a losing version gets a new one. If nothing
//! is left, the block is deleted at a new version.

use super::read::{Survey, Verdict, gone};
use super::{Found, StripeIo};
use crate::nsds::Place;
use crate::scratch::ScratchBuffer;
use std::collections::BTreeMap;
use strake_proto::nsd::{KeptVersion, NsdReply, NsdRequest, RangeChange, StripEntry, StripHeader};
use strake_proto::{
    BlockIndex, ErrorKind, Geometry, ObjectId, ObjectLayout, Result, SlotIndex, StripIndex,
    StripKey, Version,
};
use strake_stripe::StripeCode;

/// How many kept versions of one strip are looked at. An NSD keeps fewer.
const KEPT_MAX: usize = 16;

/// A version that some position holds.
#[derive(Clone, Copy, Default)]
struct Seen {
    block_bytes: u32,
    /// Whether the version is known to have been stable everywhere.
    settled: bool,
}

impl StripeIo {
    /// Makes the strips of a block equal after a crash, if they are not. The caller excludes every
    /// other writer of the block. Nothing may be read until this was done for all unsettled
    /// stripes, because a read of one strip does not see the others.
    ///
    /// Without `may_write` nothing is written that takes room. Versions are rolled back, and what
    /// nothing is left of is deleted.
    ///
    /// # Errors
    /// `Io` while the NSDs are away that are needed to decide. `Retry` if the block must be written
    /// anew, without `may_write`. `NoSpace`.
    pub fn recover(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
        may_write: bool,
    ) -> Result<Option<Found>> {
        let survey = self.survey(layout, block, floor)?;
        match self.judge(layout, &survey) {
            Verdict::Hole => Ok(None),
            Verdict::Unknown => Err(gone(layout, block)),
            Verdict::Whole(version, block_bytes) => {
                Ok(Some(Found { version, block_bytes, rewritten: None }))
            }
            Verdict::Unequal => {
                Ok(self.resolve(layout, block, &survey, may_write)?.map(|(found, _)| found))
            }
        }
    }

    /// Copies one strip, with its version, to an NSD that lacks it. The strip is rebuilt from the
    /// others, or read from its holder if that NSD is to be replaced or deleted. The caller
    /// excludes every other writer of the block. `is_stable` says that what the others have of the
    /// block is stable, so that the NSD need not keep anything older. Returns the bytes copied.
    ///
    /// # Errors
    /// `Stale` if there is nothing to copy or the NSD has something newer. `Io` if the block cannot
    /// be read.
    pub fn copy_strip(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
        at: u8,
        target: (SlotIndex, Place),
        is_stable: bool,
    ) -> Result<u64> {
        let survey = self.survey(layout, block, floor)?;
        let newest = survey.sights.iter().filter_map(|sight| sight.as_ref().ok());
        let Some(header) = newest.max_by_key(|header| header.version).cloned() else {
            return Err(ErrorKind::Stale.into());
        };
        if !Geometry::is_stored(layout.code, u64::from(header.block_bytes), at) {
            return Err(ErrorKind::Stale.into());
        }
        let stripe = StripeCode::of_block(layout.code, u64::from(header.block_bytes));
        let strip_bytes = Geometry::of(layout.code, u64::from(header.block_bytes)).strip_bytes;
        let how = (true, if is_stable { header.version } else { Version::NONE });
        let send = |strip: &[u8]| {
            self.write_strip(layout, block, StripIndex(at), target, &header, strip, how)
                .map(|()| strip_bytes as u64)
        };
        let slot = survey.slots[usize::from(at)];
        if target != (slot, Place::Current) {
            let mut strip = self.scratch().take(strip_bytes);
            let key = self.key(layout, block, StripIndex(at));
            if self.read_strip(slot, key, Some(header.version), 0, &mut strip).is_ok() {
                return send(&strip);
            }
        }
        let bytes_len = super::padded_bytes(layout.code, header.block_bytes);
        let mut bytes = self.scratch().take(bytes_len);
        let shape = (header.version, header.block_bytes);
        self.gather(layout, block, &survey.slots, shape, &mut bytes)?;
        let data: Vec<&[u8]> = bytes.chunks_exact(strip_bytes).collect();
        match at.checked_sub(layout.code.data) {
            None => send(data[usize::from(at)]),
            Some(row) => {
                let mut parity: Vec<Vec<u8>> = vec![vec![0; strip_bytes]; stripe.parity_strips()];
                let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
                stripe.encode(&data, &mut rows);
                send(&parity[usize::from(row)])
            }
        }
    }

    /// Decides, writes the outcome, and returns it. `None` if the block is now a hole. The caller
    /// excludes every other writer of the block. For `may_write` see [`StripeIo::recover`].
    pub(super) fn resolve(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
        may_write: bool,
    ) -> Result<Option<(Found, ScratchBuffer<'_>)>> {
        let seen = self.versions_held(layout, block, survey);
        let longest = seen.values().map(|one| one.block_bytes).max().unwrap_or(1);
        let longest = seen.values().fold(u64::from(longest), |bytes, one| {
            Geometry::widened(layout.code, bytes, one.block_bytes.into())
        });
        let longest = u32::try_from(longest).expect("invariant: at most a block");
        let settled = seen.iter().rev().find(|(_, one)| one.settled);
        let stable = settled.map_or(Version::NONE, |(version, _)| *version);
        for (version, Seen { block_bytes, settled }) in seen.into_iter().rev() {
            let stripe = StripeCode::of_block(layout.code, u64::from(block_bytes));
            let strips = stripe
                .positions()
                .filter(|at| self.holds(layout, block, survey, *at, version))
                .count();
            if strips < stripe.data_strips() {
                if settled {
                    // The version was stable everywhere: its strips were lost, not left unwritten.
                    return Err(gone(layout, block));
                }
                self.roll_back(layout, block, survey, &stripe, version)?;
                continue;
            }
            if !may_write {
                return Err(ErrorKind::Retry.into());
            }
            let mut bytes = self.scratch().take(super::padded_bytes(layout.code, longest));
            bytes.fill(0);
            let own = super::padded_bytes(layout.code, block_bytes);
            self.gather(layout, block, &survey.slots, (version, block_bytes), &mut bytes[..own])?;
            let written = self.write_block(layout, block, longest, &bytes, stable)?;
            self.note_mended();
            let (version, rewritten) = (written.version, Some(written));
            return Ok(Some((Found { version, block_bytes: longest, rewritten }, bytes)));
        }
        let version = self.versions().next();
        let (object, to) = (layout.object, BlockIndex(block.0 + 1));
        self.change_everywhere(&[RangeChange::Delete { object, from: block, to, version }]);
        Ok(None)
    }

    /// Every version that a readable position holds. This includes the kept ones: if two writes
    /// were on their way one after the other, each may be the current version on too few NSDs, and
    /// the last acknowledged version may be the current one on none.
    fn versions_held(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
    ) -> BTreeMap<Version, Seen> {
        let mut seen: BTreeMap<Version, Seen> = BTreeMap::new();
        let mut add = |header: &StripHeader, settled: bool| {
            let entry = seen.entry(header.version).or_default();
            entry.block_bytes = header.block_bytes;
            entry.settled |= settled;
        };
        for (at, (sight, slot)) in (0u8..).zip(survey.sights.iter().zip(survey.slots.iter())) {
            let Ok(current) = sight else { continue };
            let listed = self.entry(*slot, self.key(layout, block, StripIndex(at)));
            add(current, listed.as_ref().is_some_and(|entry| entry.settled));
            let kept = listed.iter().flat_map(|entry| &entry.kept).take(KEPT_MAX);
            for KeptVersion { header, settled } in kept {
                if header.version >= survey.floor
                    && header.version < current.version
                    && (1..=layout.block_size).contains(&header.block_bytes)
                {
                    add(header, *settled);
                }
            }
        }
        seen
    }

    /// What the NSD says about a strip. The versions that it names are read and verified like all
    /// others.
    fn entry(&self, slot: SlotIndex, key: StripKey) -> Option<StripEntry> {
        let request = NsdRequest::List {
            fs: key.fs,
            object: key.object,
            block: key.block,
            strip: key.strip,
            until: ObjectId(key.object.0.saturating_add(1)),
            limit: 1,
        };
        match self.nsds().call(slot, &request, &[], &mut []) {
            Ok(NsdReply::Strips { entries, .. }) => {
                entries.into_iter().find(|entry| entry.key == key)
            }
            _ => None,
        }
    }

    fn holds(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
        at: StripIndex,
        version: Version,
    ) -> bool {
        let index = usize::from(at.0);
        match &survey.sights[index] {
            Ok(header) if header.version == version => true,
            Ok(header) if header.version > version => {
                let key = self.key(layout, block, at);
                self.read_strip(survey.slots[index], key, Some(version), 0, &mut []).is_ok()
            }
            _ => false,
        }
    }

    fn roll_back(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
        stripe: &StripeCode,
        version: Version,
    ) -> Result<()> {
        let mut away = 0;
        for at in stripe.positions() {
            let slot = survey.slots[usize::from(at.0)];
            if !self.nsds().availability(slot).readable() {
                away += 1;
                continue;
            }
            if self.holds(layout, block, survey, at, version) {
                continue;
            }
            let request = NsdRequest::Refuse { key: self.key(layout, block, at), version };
            let reply = self.nsds().call(slot, &request, &[], &mut []);
            if !matches!(reply, Ok(NsdReply::Promise { refused: true })) {
                away += 1;
            }
        }
        if away <= stripe.parity_strips() {
            return Ok(());
        }
        Err(gone(layout, block).context(format!("version {version} may have been acknowledged")))
    }
}
