//! Reads all strips of a block and checks that they are as they should be.

use super::{StripFault, StripeIo};
use crate::scratch::ScratchBuffer;
use std::collections::BTreeSet;
use strake_env::sync::Mutex;
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, Code, Geometry, ObjectLayout, Result, StripIndex, Version};
use strake_stripe::{StripeCode, StripeSlots};

/// How many bytes of each strip parity is computed for at a time.
const PART_BYTES: usize = 64 << 10;

/// One strip of a block.
enum Strip<'a> {
    /// It cannot be read now.
    Away,
    /// It is bad, missing, or has another version than the newest.
    Wrong,
    /// It has the newest version and matches its checksums.
    Right(ScratchBuffer<'a>),
}

/// The result of an examination.
pub struct Health {
    pub slots: StripeSlots,
    /// How many strips were read.
    pub strips: u64,
    /// How many bytes were read.
    pub bytes: u64,
    /// The positions whose strips are bad, missing, or of another version than the newest, and
    /// parity strips that do not match the data.
    pub wrong: Vec<StripIndex>,
}

impl Health {
    /// True if nothing is wrong with the strips that can be read.
    pub fn is_whole(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl StripeIo {
    /// Reads and verifies every strip of a block that can be read, and checks that parity matches
    /// the data. Strips below `floor` are no longer part of the block.
    pub fn examine(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Health> {
        let survey = self.survey(layout, block, floor)?;
        let mut health = Health { slots: survey.slots, strips: 0, bytes: 0, wrong: Vec::new() };
        let headers = survey.sights.iter().filter_map(|sight| sight.as_ref().ok());
        let Some(newest) = headers.max_by_key(|header| header.version).cloned() else {
            return Ok(health);
        };
        let block_bytes = u64::from(newest.block_bytes);
        let strip_bytes = Geometry::of(layout.code, block_bytes).strip_bytes;
        let stored = |at: u8| Geometry::is_stored(layout.code, block_bytes, at);
        let positions: Vec<u8> = (0..survey.sights.len() as u8).filter(|at| stored(*at)).collect();
        let results: Vec<Mutex<Strip<'_>>> =
            positions.iter().map(|_| Mutex::new(Strip::Away)).collect();
        self.fan.run(positions.len(), &|index| {
            let at = positions[index];
            let sight = &survey.sights[usize::from(at)];
            *results[index].lock() =
                self.examine_strip(layout, block, at, &newest, sight, strip_bytes);
        });
        let mut strips = Vec::with_capacity(positions.len());
        for (at, strip) in positions.iter().map(|at| StripIndex(*at)).zip(results) {
            match strip.into_inner() {
                Strip::Wrong => health.wrong.push(at),
                Strip::Away => {}
                Strip::Right(bytes) => strips.push((at, bytes)),
            }
        }
        let stripe = StripeCode::of_block(layout.code, block_bytes);
        health.wrong.extend(self.wrong_parity(layout.code, &stripe, &strips));
        health.strips = positions.len() as u64;
        health.bytes = health.strips * strip_bytes as u64;
        Ok(health)
    }

    /// The parity strips that do not match the data although each strip matches its checksums.
    /// Empty if data strips are missing. The data may be at fault instead of the parity; this
    /// cannot be told.
    fn wrong_parity(
        &self,
        code: Code,
        stripe: &StripeCode,
        strips: &[(StripIndex, ScratchBuffer<'_>)],
    ) -> Vec<StripIndex> {
        let (data, parity): (Vec<_>, Vec<_>) = strips.iter().partition(|(at, _)| at.0 < code.data);
        let mut wrong = BTreeSet::new();
        if data.len() < stripe.data_strips() || parity.is_empty() {
            return Vec::new();
        }
        let length = data[0].1.len();
        let mut computed: Vec<ScratchBuffer<'_>> =
            (0..stripe.parity_strips()).map(|_| self.scratch.take(PART_BYTES)).collect();
        for from in (0..length).step_by(PART_BYTES) {
            let to = length.min(from + PART_BYTES);
            let part: Vec<&[u8]> = data.iter().map(|(_, bytes)| &bytes[from..to]).collect();
            let mut rows: Vec<&mut [u8]> =
                computed.iter_mut().map(|row| &mut row[..to - from]).collect();
            stripe.encode(&part, &mut rows);
            let differs = |(at, bytes): &&&(StripIndex, ScratchBuffer<'_>)| {
                bytes[from..to] != *rows[usize::from(at.0 - code.data)]
            };
            wrong.extend(parity.iter().filter(differs).map(|(at, _)| *at));
        }
        wrong.into_iter().collect()
    }

    /// Reads one strip, which should have the newest version and be whole.
    fn examine_strip(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        at: u8,
        newest: &StripHeader,
        sight: &std::result::Result<StripHeader, StripFault>,
        strip_bytes: usize,
    ) -> Strip<'_> {
        match sight {
            Err(StripFault::Unreadable) => return Strip::Away,
            Err(StripFault::Absent | StripFault::Bad) => return Strip::Wrong,
            Ok(header) if header.version != newest.version => return Strip::Wrong,
            Ok(header) if header.block_bytes != newest.block_bytes => return Strip::Wrong,
            Ok(_) => {}
        }
        let Ok(slots) = self.nsds.stripe(layout, block) else { return Strip::Away };
        let mut bytes = self.scratch.take(strip_bytes);
        let (slot, key) = (slots[usize::from(at)], self.key(layout, block, StripIndex(at)));
        match self.read_strip(slot, key, Some(newest.version), 0, &mut bytes) {
            Ok(_) => Strip::Right(bytes),
            Err(StripFault::Absent | StripFault::Bad) => Strip::Wrong,
            Err(StripFault::Unreadable) => Strip::Away,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::padded_bytes;
    use super::super::stripe_io_test::{bench, data};
    use super::*;
    use crate::nsds::Place;
    use strake_env::Rng;

    #[test]
    fn parity_that_matches_its_checksums_and_not_the_data_is_found() {
        let mut rng = Rng::new(1);
        for (name, length) in [("3x", 200_000), ("4+2p", 1_000), ("4+2p", 200_001), ("8+3p", 999)] {
            let code: Code = name.parse().expect("a code");
            let bench = bench(code, code.width() as u16);
            let (block, io) = (BlockIndex(0), &bench.io);
            let bytes = data(&mut rng, padded_bytes(code, length));
            let stripe = StripeCode::of_block(code, u64::from(length));
            for wrong in stripe.positions().filter(|at| at.0 >= code.data) {
                let header =
                    StripHeader { version: io.versions().next(), block_bytes: length, lacks: 0 };
                let strips: Vec<&[u8]> =
                    bytes.chunks_exact(bytes.len() / stripe.data_strips()).collect();
                let mut parity = vec![vec![0; strips[0].len()]; stripe.parity_strips()];
                let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                stripe.encode(&strips, &mut rows);
                *parity[usize::from(wrong.0 - code.data)].last_mut().expect("bytes") ^= 1;
                for at in stripe.positions() {
                    let row = usize::from(at.0).checked_sub(usize::from(code.data));
                    let strip = row.map_or_else(|| strips[usize::from(at.0)], |row| &parity[row]);
                    let target = (bench.slot_at(at.0), Place::Current);
                    let how = (false, Version::NONE);
                    io.write_strip(&bench.layout, block, at, target, &header, strip, how)
                        .expect("accepted");
                }
                let health = io.examine(&bench.layout, block, Version::NONE).expect("readable");
                assert_eq!(health.wrong, [wrong], "{name}, {length} bytes");
            }
        }
    }
}
