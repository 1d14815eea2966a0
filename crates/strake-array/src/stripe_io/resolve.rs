//! Deciding between unequal versions of a stripe, which a writer leaves that died, and writing the
//! outcome down before anybody reads it.
//!
//! From the newest version on, of all that are held, current or kept:
//! 1. N of its strips in hand (current, or kept as the predecessor of a newer one): *forward*.
//! 2. Else, if the positions that cannot be read are within what the code tolerates (P), and every
//!    other position that would hold it refuses it for ever: *roll back*; the next older version is
//!    looked at. For a version is acknowledged only when it is stable on every position that is not
//!    noted in the metadata as having missed something. So one NSD that is up and lacks it tells
//!    that nobody was told of it. With a away there are at least P+1-a such witnesses.
//! 3. Else too many are away: an error. An error too for a version that is settled anywhere: it was
//!    stable everywhere, so what is missing of it was lost.
//!
//! The outcome is written as a new, higher version, as long as the longest version seen or a little
//! longer, so that every position that holds a strip of the losers gets a new one. If nothing is
//! left, the block is deleted at a new version.

use super::read::{Survey, Verdict, gone};
use super::{Found, StripeIo};
use crate::nsds::Place;
use crate::scratch::ScratchBuffer;
use std::collections::BTreeMap;
use strake_proto::nsd::{KeptVersion, NsdReply, NsdRequest, StripEntry, StripHeader};
use strake_proto::{
    BlockIndex, ErrorKind, Geometry, ObjectId, ObjectLayout, Result, SlotIndex, StripIndex,
    StripKey, Version,
};
use strake_stripe::StripeCode;

/// Kept versions of one strip looked at: an NSD keeps fewer.
const KEPT_MAX: usize = 16;

/// A version that some position holds.
#[derive(Clone, Copy, Default)]
struct Seen {
    block_bytes: u32,
    /// Whether it is known to have been stable everywhere.
    settled: bool,
}

impl StripeIo {
    /// Makes the strips of a block equal after a crash, if they are not. The caller excludes every
    /// other writer of the block. Until this was done for all stripes that were not settled,
    /// nothing may be read: a read of one strip does not see the others.
    ///
    /// # Errors
    /// `Io` while the NSDs that would tell are away.
    pub fn recover(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Option<Found>> {
        let survey = self.survey(layout, block, floor)?;
        match self.judge(layout, &survey) {
            Verdict::Hole => Ok(None),
            Verdict::Unknown => Err(gone(layout, block)),
            Verdict::Whole(version, block_bytes) => {
                Ok(Some(Found { version, block_bytes, rewritten: false }))
            }
            Verdict::Unequal => Ok(self.resolve(layout, block, &survey)?.map(|(found, _)| found)),
        }
    }

    /// Copies one strip, with its version, to an NSD that lacks it: rebuilt from the others, or as
    /// its holder has it, if that one is to be replaced or deleted. The caller excludes every
    /// other writer of the block; `is_stable`: what they have of it is stable, so that the NSD need
    /// keep nothing older. Returns the bytes copied.
    ///
    /// # Errors
    /// `Stale` if there is nothing to copy or the NSD has something newer; `Io` if the block cannot
    /// be had.
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

    /// Decides, writes the outcome, and returns it; `None` if the block is a hole now. The caller
    /// excludes every other writer of the block.
    pub(super) fn resolve(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
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
                    // It was stable everywhere: its strips are lost, not unwritten.
                    return Err(gone(layout, block));
                }
                self.roll_back(layout, block, survey, &stripe, version)?;
                continue;
            }
            let mut bytes = self.scratch().take(super::padded_bytes(layout.code, longest));
            bytes.fill(0);
            let own = super::padded_bytes(layout.code, block_bytes);
            self.gather(layout, block, &survey.slots, (version, block_bytes), &mut bytes[..own])?;
            let version = self.write_block(layout, block, longest, &bytes, stable)?;
            self.note_mended();
            return Ok(Some((Found { version, block_bytes: longest, rewritten: true }, bytes)));
        }
        let version = self.versions().next();
        self.delete_range(layout, (block, BlockIndex(block.0 + 1)), version, None);
        Ok(None)
    }

    /// Every version that a position in sight holds. The kept ones too: of two writes under way
    /// one after the other each may be the current one of too few, and the last acknowledged
    /// version the current one of none.
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

    /// What the NSD tells of a strip; versions it names are read and verified as all.
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
