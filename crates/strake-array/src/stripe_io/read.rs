//! Reading part of a block.
//!
//! *Fast*: guess the shape of the block from the length that the caller expects. Read exactly the
//! strips that hold the range, straight into the caller's memory. Accept the result if all strips
//! are good and of one version. If a header shows another shape, try again with that shape.
//!
//! *Slow*: ask every position for its header ([`Survey`]) and judge. If the readable strips agree,
//! the block is rebuilt from any N of them ([`StripeIo::gather`]). A strip that is bad is put right
//! by the version that it has (`mend.rs`). If that is not possible, or if versions are unequal, the
//! block must be written anew, and the caller must exclude other writers for that.

use super::{Access, Found, StripFault, StripeIo};
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::StripHeader;
use strake_proto::{
    BlockIndex, Error, ErrorKind, Geometry, ObjectLayout, Result, StripIndex, Version,
};
use strake_stripe::{StripeCode, StripeSlots};

/// The answers of all positions of a stripe.
pub(super) struct Survey {
    pub(super) slots: StripeSlots,
    pub(super) sights: Vec<std::result::Result<StripHeader, StripFault>>,
    /// Strips below this version do not count.
    pub(super) floor: Version,
}

/// What a survey means.
pub(super) enum Verdict {
    /// Nothing is stored.
    Hole,
    /// Every readable position that should hold this version does, and nothing else is there.
    Whole(Version, u32),
    /// Versions are unequal, or strips are missing on NSDs that are up.
    Unequal,
    /// Too few NSDs can be read to know.
    Unknown,
}

enum Fast {
    Done(Found),
    OtherShape(u32),
    Failed,
}

/// A part of the wanted range that lies within one strip.
struct Piece<'a> {
    at: StripIndex,
    offset: usize,
    out: &'a mut [u8],
}

impl StripeIo {
    /// Reads `out.len()` bytes from `offset` of a block. Both are in whole units, and the range
    /// must not go beyond the block size. `expected` is the block's likely length. Bytes that the
    /// block does not have become zero. `None` means that the block is a hole.
    ///
    /// # Errors
    /// `Io` if too many strips are gone. `Retry` if access is shared and the read needs exclusive
    /// access.
    #[allow(clippy::too_many_arguments, reason = "the range and the block are told apart")]
    pub fn read(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
        expected: u32,
        offset: usize,
        out: &mut [u8],
        access: Access,
    ) -> Result<Option<Found>> {
        assert!(offset.is_multiple_of(UNIT_BYTES) && out.len().is_multiple_of(UNIT_BYTES));
        self.looking_again(|| {
            let slots = self.nsds.stripe(layout, block)?;
            let mut shape = expected.clamp(1, layout.block_size);
            for _ in 0..2 {
                match self.read_fast(layout, block, &slots, floor, shape, offset, out) {
                    Fast::Done(found) => return Ok(Some(found)),
                    Fast::OtherShape(block_bytes) => shape = block_bytes,
                    Fast::Failed => break,
                }
            }
            self.read_slow(layout, block, floor, offset, out, access)
        })
    }

    #[allow(clippy::too_many_arguments, reason = "the range and the block are told apart")]
    fn read_fast(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        floor: Version,
        shape: u32,
        offset: usize,
        out: &mut [u8],
    ) -> Fast {
        let stripe = StripeCode::of_block(layout.code, u64::from(shape));
        let geometry = Geometry::of(layout.code, u64::from(shape));
        let mut pieces = cut(out, offset, geometry.strip_bytes, stripe.data_strips());
        if pieces.is_empty() {
            // If the guess is right, nothing of the range is stored. A header confirms it.
            pieces.push(Piece { at: StripIndex(0), offset: 0, out: &mut [] });
        }
        let headers = self.read_pieces(layout, block, slots, &mut pieces);
        let mut agreed: Option<StripHeader> = None;
        for header in headers {
            let Ok(header) = header else { return Fast::Failed };
            if header.version < floor || header.block_bytes > layout.block_size {
                return Fast::Failed;
            }
            let actual = Geometry::of(layout.code, u64::from(header.block_bytes));
            if actual != geometry {
                return Fast::OtherShape(header.block_bytes);
            }
            match &agreed {
                Some(first)
                    if (first.version, first.block_bytes)
                        != (header.version, header.block_bytes) =>
                {
                    return Fast::Failed;
                }
                Some(_) => {}
                None => agreed = Some(header),
            }
        }
        let Some(header) = agreed else { return Fast::Failed };
        Fast::Done(Found {
            version: header.version,
            block_bytes: header.block_bytes,
            rewritten: None,
        })
    }

    fn read_pieces(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        pieces: &mut [Piece<'_>],
    ) -> Vec<std::result::Result<StripHeader, StripFault>> {
        let read = |piece: &mut Piece<'_>| {
            let slot = slots[usize::from(piece.at.0)];
            self.read_strip(slot, self.key(layout, block, piece.at), None, piece.offset, piece.out)
        };
        if let [piece] = pieces {
            return vec![read(piece)];
        }
        let jobs: Vec<Mutex<(&mut Piece<'_>, _)>> =
            pieces.iter_mut().map(|piece| Mutex::new((piece, Err(StripFault::Bad)))).collect();
        self.fan.run(jobs.len(), &|at| {
            let mut job = jobs[at].lock();
            job.1 = read(job.0);
        });
        jobs.into_iter().map(|job| job.into_inner().1).collect()
    }

    fn read_slow(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
        offset: usize,
        out: &mut [u8],
        access: Access,
    ) -> Result<Option<Found>> {
        let survey = self.survey(layout, block, floor)?;
        let (version, block_bytes) = match self.judge(layout, &survey) {
            Verdict::Hole => {
                out.fill(0);
                return Ok(None);
            }
            Verdict::Unknown => return Err(gone(layout, block)),
            Verdict::Unequal if access == Access::Shared => return Err(ErrorKind::Retry.into()),
            Verdict::Unequal => {
                let resolved = self.resolve(layout, block, &survey, true)?;
                let Some((found, bytes)) = resolved else {
                    out.fill(0);
                    return Ok(None);
                };
                copy_range(&bytes, offset, out);
                return Ok(Some(found));
            }
            Verdict::Whole(version, block_bytes) => (version, block_bytes),
        };
        let found = Found { version, block_bytes, rewritten: None };
        let shape = (version, block_bytes);
        let strip_bytes = Geometry::of(layout.code, u64::from(block_bytes)).strip_bytes;
        let first = offset / strip_bytes;
        let is_part = access == Access::Shared && (offset + out.len() - 1) / strip_bytes == first;
        if is_part {
            // Only this part of the other strips is needed to rebuild this part of one strip.
            match self.rebuild_part(layout, block, &survey, found, first, offset, out) {
                // A strip is bad, or a writer is at work.
                Err(error) if error.kind() == ErrorKind::Retry => {}
                rebuilt => return rebuilt,
            }
        }
        let mut bytes = self.scratch.take(super::padded_bytes(layout.code, block_bytes));
        let gathered = self.gather(layout, block, &survey.slots, shape, &mut bytes);
        let bad = match gathered {
            Err(_) if is_part => return Err(ErrorKind::Retry.into()),
            gathered => gathered?,
        };
        copy_range(&bytes, offset, out);
        let can_mend = bad.iter().all(|(_, fault)| *fault == StripFault::Bad);
        let bad: Vec<StripIndex> = bad.into_iter().map(|(at, _)| at).collect();
        if can_mend && self.mend_strips(layout, block, &survey.slots, shape, &bytes, &bad) {
            return Ok(Some(found));
        }
        if access == Access::Shared {
            return Err(ErrorKind::Retry.into());
        }
        // The rewrite puts the good strips and the rebuilt strip into new space. If that fails, the
        // data is still right, and the next reader tries again.
        match self.write_block(layout, block, block_bytes, &bytes, Version::NONE) {
            Ok(written) => {
                self.note_mended();
                self.count_repaired(layout, block, &survey.slots, &bad);
                let (version, rewritten) = (written.version, Some(written));
                Ok(Some(Found { version, block_bytes, rewritten }))
            }
            Err(_) => Ok(Some(found)),
        }
    }

    /// Asks every position for its header. Strips below `floor` do not count.
    pub(super) fn survey(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Survey> {
        let slots = self.nsds.stripe(layout, block)?;
        let sights = (0u8..)
            .zip(slots.iter())
            .map(|(at, slot)| {
                let key = self.key(layout, block, StripIndex(at));
                let header = self.read_strip(*slot, key, None, 0, &mut [])?;
                if header.block_bytes > layout.block_size {
                    return Err(StripFault::Bad);
                }
                if header.version < floor { Err(StripFault::Absent) } else { Ok(header) }
            })
            .collect();
        Ok(Survey { slots, sights, floor })
    }

    pub(super) fn judge(&self, layout: &ObjectLayout, survey: &Survey) -> Verdict {
        let newest = survey
            .sights
            .iter()
            .filter_map(|sight| sight.as_ref().ok())
            .max_by_key(|header| header.version);
        let Some(newest) = newest else {
            let everywhere: Vec<_> = survey
                .sights
                .iter()
                .enumerate()
                .filter(|(at, _)| *at == 0 || *at >= usize::from(layout.code.data))
                .collect();
            let absent =
                everywhere.iter().filter(|(_, s)| matches!(s, Err(StripFault::Absent))).count();
            let away = everywhere.len() - absent;
            let believed = absent > 0 && away <= usize::from(layout.code.parity);
            return if believed { Verdict::Hole } else { Verdict::Unknown };
        };
        let (version, block_bytes) = (newest.version, newest.block_bytes);
        let equal = survey.sights.iter().enumerate().all(|(at, sight)| {
            let stored = Geometry::is_stored(layout.code, u64::from(block_bytes), at as u8);
            match sight {
                Ok(header) => {
                    stored && (header.version, header.block_bytes) == (version, block_bytes)
                }
                Err(StripFault::Absent) => !stored,
                Err(StripFault::Bad | StripFault::Unreadable) => true,
            }
        });
        if equal { Verdict::Whole(version, block_bytes) } else { Verdict::Unequal }
    }

    /// Reads a whole version of a block, which the NSDs may hold beside a newer one. The bytes are
    /// padded with zeros to whole data strips ([`super::padded_bytes`]).
    ///
    /// # Errors
    /// `Io` if too few NSDs hold it.
    pub fn read_version(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        shape: (Version, u32),
        bytes: &mut [u8],
    ) -> Result<()> {
        let slots = self.nsds.stripe(layout, block)?;
        self.looking_again(|| self.gather(layout, block, &slots, shape, bytes).map(|_| ()))
    }

    /// Reads all data strips of a version into `bytes`. Strips that cannot be read are rebuilt from
    /// the others. Returns the positions of the strips that are bad or absent, and which they are.
    pub(super) fn gather(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        (version, block_bytes): (Version, u32),
        bytes: &mut [u8],
    ) -> Result<Vec<(StripIndex, StripFault)>> {
        let stripe = StripeCode::of_block(layout.code, u64::from(block_bytes));
        let strip_bytes = Geometry::of(layout.code, u64::from(block_bytes)).strip_bytes;
        let fetch = |at: StripIndex, out: &mut [u8]| {
            let slot = slots[usize::from(at.0)];
            self.read_strip(slot, self.key(layout, block, at), Some(version), 0, out)
        };
        let data: Vec<Mutex<(&mut [u8], Option<StripFault>)>> =
            bytes.chunks_exact_mut(strip_bytes).map(|strip| Mutex::new((strip, None))).collect();
        self.fan.run(data.len(), &|at| {
            let mut strip = data[at].lock();
            strip.1 = fetch(StripIndex(at as u8), &mut *strip.0).err();
        });
        let data: Vec<(&mut [u8], Option<StripFault>)> =
            data.into_iter().map(Mutex::into_inner).collect();
        let faults = (0..).map(StripIndex).zip(data.iter().map(|(_, fault)| *fault));
        let faults = faults.filter_map(|(at, fault)| Some((at, fault?)));
        let mut bad: Vec<_> = faults.filter(|(_, fault)| is_bad(*fault)).collect();
        let mut missing = data.iter().filter(|(_, fault)| fault.is_some()).count();
        let mut parity = Vec::new();
        for at in stripe.positions().skip(stripe.data_strips()) {
            if missing == 0 {
                break;
            }
            let mut strip = self.scratch.take(strip_bytes);
            match fetch(at, &mut strip) {
                Ok(_) => {
                    parity.push((at, strip));
                    missing -= 1;
                }
                Err(fault) if is_bad(fault) => bad.push((at, fault)),
                Err(_) => {}
            }
        }
        let mut present: Vec<(StripIndex, &[u8])> = Vec::new();
        let mut wanted: Vec<(StripIndex, &mut [u8])> = Vec::new();
        for (at, (strip, fault)) in data.into_iter().enumerate() {
            match fault {
                None => present.push((StripIndex(at as u8), strip)),
                Some(_) => wanted.push((StripIndex(at as u8), strip)),
            }
        }
        present.extend(parity.iter().map(|(at, strip)| (*at, &strip[..])));
        if present.len() < stripe.data_strips() {
            return Err(gone(layout, block));
        }
        if !wanted.is_empty() {
            stripe.reconstruct(&present, &mut wanted)?;
        }
        Ok(bad)
    }

    /// Rebuilds a part of one data strip from the same part of any N other strips.
    #[allow(clippy::too_many_arguments, reason = "the range and the block are told apart")]
    fn rebuild_part(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        survey: &Survey,
        found: Found,
        strip: usize,
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<Found>> {
        let stripe = StripeCode::of_block(layout.code, u64::from(found.block_bytes));
        if strip >= stripe.data_strips() {
            out.fill(0);
            return Ok(Some(found));
        }
        let strip_bytes = Geometry::of(layout.code, u64::from(found.block_bytes)).strip_bytes;
        let within = offset - strip * strip_bytes;
        let fetch = |at: StripIndex, out: &mut [u8]| {
            let slot = survey.slots[usize::from(at.0)];
            let key = self.key(layout, block, at);
            self.read_strip(slot, key, Some(found.version), within, out)
        };
        let wanted = StripIndex(strip as u8);
        match fetch(wanted, out) {
            Ok(_) => return Ok(Some(found)),
            Err(StripFault::Unreadable) => {}
            Err(_) => return Err(ErrorKind::Retry.into()),
        }
        let mut parts = Vec::new();
        for at in stripe.positions().filter(|at| *at != wanted) {
            if parts.len() == stripe.data_strips() {
                break;
            }
            let mut part = self.scratch.take(out.len());
            match fetch(at, &mut part) {
                Ok(_) => parts.push((at, part)),
                Err(StripFault::Unreadable) => {}
                Err(_) => return Err(ErrorKind::Retry.into()),
            }
        }
        if parts.len() < stripe.data_strips() {
            return Err(gone(layout, block));
        }
        let present: Vec<(StripIndex, &[u8])> =
            parts.iter().map(|(at, part)| (*at, &part[..])).collect();
        stripe.reconstruct(&present, &mut [(wanted, out)])?;
        Ok(Some(found))
    }

    /// The version and the length of a block, if it is stored.
    pub fn head(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Option<(Version, u32)>> {
        self.looking_again(|| {
            let slots = self.nsds.stripe(layout, block)?;
            let key = self.key(layout, block, StripIndex(0));
            if let Ok(header) = self.read_strip(slots[0], key, None, 0, &mut [])
                && header.version >= floor
            {
                return Ok(Some((header.version, header.block_bytes)));
            }
            let survey = self.survey(layout, block, floor)?;
            match self.judge(layout, &survey) {
                Verdict::Hole => Ok(None),
                Verdict::Unknown => Err(gone(layout, block)),
                Verdict::Whole(version, block_bytes) => Ok(Some((version, block_bytes))),
                Verdict::Unequal => {
                    let headers = survey.sights.iter().filter_map(|sight| sight.as_ref().ok());
                    let newest = headers.max_by_key(|header| header.version);
                    Ok(newest.map(|header| (header.version, header.block_bytes)))
                }
            }
        })
    }

    /// Counts strips that were rebuilt and rewritten.
    pub fn count_repaired(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &StripeSlots,
        bad: &[StripIndex],
    ) {
        for at in bad {
            self.nsds.count_repaired(slots[usize::from(at.0)], &self.key(layout, block, *at));
        }
    }

    pub(super) fn note_mended(&self) {
        self.mended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

fn is_bad(fault: StripFault) -> bool {
    matches!(fault, StripFault::Bad | StripFault::Absent)
}

/// The error that a reader gets if a block cannot be read.
pub(super) fn gone(layout: &ObjectLayout, block: BlockIndex) -> Error {
    Error::new(
        ErrorKind::Io,
        format!(
            "block {block} of object {} cannot be read: too many of its NSDs are away or damaged; \
             bring them back and read again",
            layout.object
        ),
    )
}

/// Copies the bytes of `block` from `offset` on. Zeros follow.
fn copy_range(block: &[u8], offset: usize, out: &mut [u8]) {
    let part = block.get(offset..).unwrap_or(&[]);
    let length = part.len().min(out.len());
    out[..length].copy_from_slice(&part[..length]);
    out[length..].fill(0);
}

/// Cuts `out`, which begins at `offset` of the block, at strip borders. The part beyond the stored
/// strips is zeroed at once.
fn cut(out: &mut [u8], offset: usize, strip_bytes: usize, strips: usize) -> Vec<Piece<'_>> {
    let mut pieces = Vec::with_capacity(strips);
    let (mut rest, mut offset) = (out, offset);
    while !rest.is_empty() {
        let strip = offset / strip_bytes;
        if strip >= strips {
            rest.fill(0);
            break;
        }
        let within = offset - strip * strip_bytes;
        let (piece, after) = rest.split_at_mut(rest.len().min(strip_bytes - within));
        offset += piece.len();
        rest = after;
        pieces.push(Piece { at: StripIndex(strip as u8), offset: within, out: piece });
    }
    pieces
}
