//! Writes strips, and patches them.

use super::{BlockStore, Decided, Held, Ticket};
use crate::edits::Edits;
use crate::extent::{Extent, slice_of, units_of};
use crate::keys::{Table, strip_key};
use crate::record::{
    Checksums, Displaced, INLINE_CHECKSUMS_MAX, StripRecord, StripVersion, Whole, encode_strip,
    encode_trailer, strip_bytes_are_valid, strip_units, trailer_units,
};
use crate::rules::{Change, WriteVerdict, forget_older, judge_patch, judge_write, put_in_front};
use std::sync::atomic::Ordering::SeqCst;
use strake_env::AlignedBuffer;
use strake_observe::{BufferType, IoDirection, IoSide};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdReply, SMALL_STRIP_UNITS_MAX, STRIPS_MAX, SmallStrip, StripHeader};
use strake_proto::{Error, ErrorKind, Result, StripKey, Version};
use strake_store::Lsn;
use strake_stripe::ChecksumSeed;

/// A write waits for freed space this many times before the disk counts as full.
const ALLOCATION_ATTEMPTS: u32 = 8;

// A strip that is written with others has no trailer.
const _: () = assert!(SMALL_STRIP_UNITS_MAX <= INLINE_CHECKSUMS_MAX);

/// A version to be accepted.
pub(super) struct Candidate<'a> {
    pub(super) key: &'a StripKey,
    pub(super) header: &'a StripHeader,
    /// The checksums of all units, or of those that change.
    pub(super) checksums: &'a [u32],
    pub(super) stable: Version,
    pub(super) form: Form<'a>,
}

pub(super) enum Form<'a> {
    Whole {
        copy: bool,
    },
    Patch {
        base: Version,
        /// The units that change, ascending.
        units: &'a [u32],
    },
}

impl BlockStore {
    /// Writes a strip. `copy` and `stable` are as in the request.
    pub(super) fn write(
        &self,
        ticket: &Ticket<'_>,
        (key, header, checksums): (&StripKey, &StripHeader, &[u32]),
        (copy, stable): (bool, Version),
        data: &[u8],
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        if !strip_bytes_are_valid(data.len()) || checksums.len() != data.len() / UNIT_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a strip of {} bytes with {} checksums", data.len(), checksums.len()),
            ));
        }
        if header.version == Version::NONE {
            return Err(Error::new(ErrorKind::Invalid, "a strip without a version"));
        }
        let extents = self.allocate(ticket, strip_units(data.len() as u32))?;
        let stored = self
            .with_room_on_host(|| self.store_data(key, header.version, checksums, data, &extents));
        let candidate = Candidate { key, header, checksums, stable, form: Form::Whole { copy } };
        let accepted = stored.and_then(|()| self.accept(ticket, &candidate, &extents));
        self.conclude(ticket, accepted, &extents)
    }

    /// Writes small strips, whose bytes come one after the other. They get units beside each other
    /// as far as there are any, and are written to the disk together.
    pub(super) fn write_many(
        &self,
        ticket: &Ticket<'_>,
        strips: &[SmallStrip],
        copy: bool,
        data: &[u8],
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let is_valid = |strip: &SmallStrip| {
            let is_small = (1..=SMALL_STRIP_UNITS_MAX).contains(&strip.checksums.len());
            is_small && strip.header.version != Version::NONE
        };
        let bytes: usize = strips.iter().map(SmallStrip::bytes).sum();
        let is_many = (1..=STRIPS_MAX).contains(&strips.len());
        if !is_many || !strips.iter().all(is_valid) || bytes != data.len() {
            let detail = format!("{} strips in {} bytes", strips.len(), data.len());
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let extents = self.allocate(ticket, (bytes / UNIT_BYTES) as u32)?;
        let copied = aligned(data);
        let data = copied.as_deref().unwrap_or(data);
        let mut result = self.with_room_on_host(|| self.write_extents(&extents, data));
        let mut first = 0;
        for SmallStrip { key, header, checksums, stable } in strips {
            let count = checksums.len() as u64;
            let own = slice_of(&extents, first, count);
            first += count;
            let form = Form::Whole { copy };
            let candidate = Candidate { key, header, checksums, stable: *stable, form };
            // After an error nothing more is accepted, and the space goes back.
            let accepted = result.and_then(|()| self.accept(ticket, &candidate, &own));
            result = self.keep_or_give_back(ticket, accepted, &own);
        }
        result.map(|()| self.written())
    }

    pub(super) fn patch(
        &self,
        ticket: &Ticket<'_>,
        (key, header): (&StripKey, &StripHeader),
        (base, stable): (Version, Version),
        (units, checksums): (&[u32], &[u32]),
        data: &[u8],
    ) -> Result<NsdReply> {
        let start = self.patches.begin();
        let form = Form::Patch { base, units };
        let candidate = Candidate { key, header, checksums, stable, form };
        let reply = self.patch_uncounted(ticket, &candidate, units, data);
        let bytes = if reply.is_ok() { data.len() as u64 } else { 0 };
        self.patches.end(start, bytes, reply.is_ok());
        reply
    }

    fn patch_uncounted(
        &self,
        ticket: &Ticket<'_>,
        candidate: &Candidate<'_>,
        units: &[u32],
        data: &[u8],
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let checksums = candidate.checksums;
        if data.len() != units.len() * UNIT_BYTES
            || checksums.len() != units.len()
            || !units.is_sorted_by(|one, next| one < next)
        {
            let detail = format!("a patch of {} units, {} bytes", units.len(), data.len());
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        // A patch that cannot be accepted must cost no I/O. Others may still be refused in the end.
        let held = match self.look_up(candidate.key)? {
            Held::Record(record) => Some(record),
            Held::Nothing | Held::Damaged(_) => None,
        };
        match self.judge(candidate, held.as_ref(), self.floor(candidate.key)?) {
            WriteVerdict::NotBase => return Err(ErrorKind::NotBase.into()),
            WriteVerdict::Accepted if self.index_is_short() => {
                return Err(ErrorKind::NotBase.into());
            }
            _ => {}
        }
        self.allow_patches()?;
        let extents = match units.len() {
            0 => Vec::new(),
            count => self.allocate(ticket, count as u32)?,
        };
        let copied = aligned(data);
        let data = copied.as_deref().unwrap_or(data);
        let stored = self.with_room_on_host(|| self.write_extents(&extents, data));
        let accepted = stored.and_then(|()| self.accept(ticket, candidate, &extents));
        self.conclude(ticket, accepted, &extents)
    }

    /// True if records must not become longer, because the index has little space left to grow
    /// into.
    fn index_is_short(&self) -> bool {
        self.space.allocator.lock().reserve_is_short()
    }

    /// Durably notes in the superblock that older programs cannot read the records.
    fn allow_patches(&self) -> Result<()> {
        if self.container.superblock().has_patches {
            return Ok(());
        }
        let written = self.container.update_superblock(|superblock| superblock.has_patches = true);
        written.map_err(|error| self.fail(error))
    }

    /// Ends a write: `accepted` says whether a record names `extents` now.
    fn conclude(
        &self,
        ticket: &Ticket<'_>,
        accepted: Result<bool>,
        extents: &[Extent],
    ) -> Result<NsdReply> {
        self.keep_or_give_back(ticket, accepted, extents).map(|()| self.written())
    }

    /// Gives units back that no record names.
    fn keep_or_give_back(
        &self,
        ticket: &Ticket<'_>,
        accepted: Result<bool>,
        extents: &[Extent],
    ) -> Result<()> {
        // If the version was not taken, nobody ever saw these units.
        if !matches!(accepted, Ok(true)) {
            self.space.give_back(ticket.client(), extents);
        }
        accepted.map(drop)
    }

    /// The reply to a write that was accepted.
    fn written(&self) -> NsdReply {
        self.checkpoint_if_large();
        NsdReply::Accepted { boot: self.boot }
    }

    /// Allocates space for a strip, from the sender's grant first. If there is too little, makes a
    /// commit to free the units that wait for one, and waits for readers of other units to end.
    fn allocate(&self, ticket: &Ticket<'_>, units: u32) -> Result<Vec<Extent>> {
        let full = || Error::new(ErrorKind::NoSpace, format!("NSD {} is full", self.nsd));
        let allocate = || self.space.allocate(ticket.client(), &self.reclaim, units);
        let mut attempts = 0;
        while attempts < ALLOCATION_ATTEMPTS {
            if let Some(extents) = allocate() {
                return Ok(extents);
            }
            if !self.space.could_allocate(ticket.client(), &self.reclaim, units) {
                break;
            }
            self.make_durable()?;
            if let Some(extents) = allocate() {
                return Ok(extents);
            }
            // There are free units that are withheld for a moment.
            if self.wait_for_discard() {
                continue;
            }
            attempts += 1;
            let _waiting = self.observe.waiters.enter("NSD readers of freed space", "");
            if !self.reclaim.wait_for_a_reader(self.options.wait_limit) {
                break;
            }
        }
        Err(full())
    }

    /// Runs `write`. If the host is full, gives it the space that is free here and the space that a
    /// commit frees, and tries again.
    pub(super) fn with_room_on_host(&self, write: impl Fn() -> Result<()>) -> Result<()> {
        match write() {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.make_room_on_host()? => {
                write()
            }
            result => result,
        }
    }

    /// Writes the strip and, behind it, its trailer.
    pub(super) fn store_data(
        &self,
        key: &StripKey,
        version: Version,
        checksums: &[u32],
        data: &[u8],
        extents: &[Extent],
    ) -> Result<()> {
        let copied = aligned(data);
        let data = copied.as_deref().unwrap_or(data);
        let units = (data.len() / UNIT_BYTES) as u64;
        let behind = u64::from(trailer_units(data.len() as u32));
        if behind == 0 {
            return self.write_extents(&slice_of(extents, 0, units), data);
        }
        let trailer = AlignedBuffer::from_slice(&encode_trailer(key, version, checksums));
        if let [extent] = extents {
            return self.write_extent(*extent, data, &trailer);
        }
        self.write_extents(&slice_of(extents, 0, units), data)?;
        self.write_extents(&slice_of(extents, units, behind), &trailer)
    }

    fn make_room_on_host(&self) -> Result<bool> {
        let waiting = self.reclaim.units();
        if waiting > 0 {
            self.make_durable()?;
        }
        // The commit itself may have given the host what it freed.
        Ok(self.discard_all() | (self.reclaim.units() < waiting))
    }

    pub(super) fn write_extents(&self, extents: &[Extent], mut bytes: &[u8]) -> Result<()> {
        for extent in extents {
            let (part, rest) = bytes.split_at(extent.bytes() as usize);
            bytes = rest;
            self.write_extent(*extent, part, &[])?;
        }
        assert!(bytes.is_empty(), "a strip has as many units as were allocated");
        Ok(())
    }

    /// Fills an extent with `first` and, behind it, `second`.
    fn write_extent(&self, extent: Extent, first: &[u8], second: &[u8]) -> Result<()> {
        assert_eq!(extent.bytes(), (first.len() + second.len()) as u64, "an extent is filled");
        self.ios.fetch_add(1, SeqCst);
        let start = self.observe.io.begin();
        let waiting =
            self.observe.waiters.enter("NSD I/O completion", format!("write, NSD {}", self.nsd));
        // No record names the extent yet.
        let written = self.disk.write_both_at(extent.offset(), first, second);
        drop(waiting);
        self.observe.io.end(
            start,
            IoDirection::Write,
            BufferType::Data,
            self.nsd,
            extent.offset(),
            extent.bytes(),
            IoSide::Local,
        );
        written.map_err(|error| match error.kind() {
            // A full host is no failure of the disk.
            std::io::ErrorKind::StorageFull => Error::from(error),
            _ => self.fail(error.into()),
        })
    }

    /// Decides about a version and publishes it if it is accepted. Returns false if it is there
    /// already.
    ///
    /// The versions held cannot change under the object's lock. The entries that commits cover can.
    /// So the fate of the older versions is decided when the new version has its place in the
    /// order.
    fn accept(
        &self,
        ticket: &Ticket<'_>,
        candidate: &Candidate<'_>,
        extents: &[Extent],
    ) -> Result<bool> {
        let Candidate { key, header, stable, .. } = *candidate;
        loop {
            let object = self.object_lock(key.object);
            let held = match self.look_up(key)? {
                Held::Record(record) => Some(record),
                // A damaged record counts as lost: this write replaces it.
                Held::Nothing | Held::Damaged(_) => None,
            };
            let encoded = strip_key(Table::Strip, key);
            let floor = self.floor(key)?;
            let forgotten = match self.judge(candidate, held.as_ref(), floor) {
                WriteVerdict::Present => {
                    match held.as_ref().and_then(|it| forget_older(it, stable)) {
                        Some(change) => Some(change),
                        None => return Ok(false),
                    }
                }
                WriteVerdict::NotBase => return Err(ErrorKind::NotBase.into()),
                WriteVerdict::Stale(highest) => return Err(self.stale(key, header, highest)),
                WriteVerdict::Accepted => None,
            };
            #[cfg(test)]
            self.run_before_publish();
            let is_new = held.is_none();
            let is_present = forgotten.is_some();
            let mut now = None;
            let mut newest = candidate.version(held.as_ref(), extents);
            let published = self.publish(ticket, |moment| {
                let (record, freed, taken) = match forgotten {
                    Some(Change { record, freed }) => {
                        (record.expect("invariant: what is stable stays"), freed, 0)
                    }
                    None => {
                        newest.accepted = moment.lsn;
                        let (record, freed) = put_in_front(newest, held, moment.committing, stable);
                        (record, freed, units_of(extents))
                    }
                };
                let mut edits = Edits::default();
                edits.put(&encoded, encode_strip(&encoded, &record));
                now = Some(record);
                Decided { edits, freed, taken }
            });
            match published {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    drop(object);
                    self.make_room()?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some(record) = now {
                self.note_displaced(*key, &record);
            }
            if !is_present {
                self.note_accepted(candidate, extents, is_new);
            }
            return Ok(!is_present);
        }
    }

    fn judge(
        &self,
        candidate: &Candidate<'_>,
        held: Option<&StripRecord>,
        floor: Version,
    ) -> WriteVerdict {
        let header = candidate.header;
        match candidate.form {
            Form::Whole { copy } => judge_write(held, floor, header.version, copy),
            Form::Patch { base, units } => {
                let committing = Lsn(self.committing.load(SeqCst));
                judge_patch(held, floor, committing, (header, base, units))
            }
        }
    }

    /// Updates what memory knows of a strip.
    fn note_accepted(&self, candidate: &Candidate<'_>, extents: &[Extent], is_new: bool) {
        self.unsettled.lock().insert(*candidate.key);
        if is_new {
            self.strips.fetch_add(1, SeqCst);
        }
        let checksums = candidate.checksums;
        if matches!(candidate.form, Form::Whole { .. })
            && let Some(place) = trailer_place(extents, checksums.len() as u64)
        {
            let made = candidate.header.version;
            self.trailers.lock().insert((*candidate.key, made, place), checksums);
        }
    }

    fn stale(&self, key: &StripKey, header: &StripHeader, highest: Version) -> Error {
        let (nsd, version) = (self.nsd, header.version);
        let detail = format!("NSD {nsd}, strip {key}: version {version} is not above {highest}");
        Error::new(ErrorKind::Stale, detail)
    }

    #[cfg(test)]
    pub(super) fn run_before_publish(&self) {
        let step = self.before_publish.lock().take();
        if let Some(step) = step {
            step(self);
        }
    }
}

impl Candidate<'_> {
    /// The version as a record holds it. The entry that accepts the version fills in its own
    /// number. A patch has been judged to fit the version held.
    fn version(&self, held: Option<&StripRecord>, extents: &[Extent]) -> StripVersion {
        let header = self.header.clone();
        let version = StripVersion {
            header,
            strip_bytes: (self.checksums.len() * UNIT_BYTES) as u32,
            accepted: Lsn(0),
            settled: false,
            whole: None,
            displaced: Vec::new(),
        };
        let (Form::Patch { units, .. }, Some(base)) = (&self.form, held) else {
            let inline = self.checksums.len() <= INLINE_CHECKSUMS_MAX;
            let checksums = match inline {
                true => Checksums::Inline(self.checksums.to_vec()),
                false => Checksums::Trailer,
            };
            let (made, extents) = (self.header.version, extents.to_vec());
            return StripVersion { whole: Some(Whole { made, extents, checksums }), ..version };
        };
        let view = base.view(None).expect("invariant: a record holds a version");
        let seed = |version| ChecksumSeed::new(self.key, version);
        let change = seed(self.header.version).difference(seed(view.whole.made));
        let places = extents.iter().flat_map(|extent| extent.start..extent.end());
        let displaced = units.iter().zip(self.checksums).zip(places);
        let displaced = displaced.map(|((&unit, &checksum), place)| Displaced {
            unit,
            place,
            checksum: checksum ^ change,
        });
        let strip_bytes = view.held.strip_bytes;
        StripVersion { strip_bytes, displaced: displaced.collect(), ..version }
    }
}

/// The first unit of the trailer of a strip of `units` in these extents. `None` if it has no
/// trailer.
pub(super) fn trailer_place(extents: &[Extent], units: u64) -> Option<u64> {
    slice_of(extents, units, 1).first().map(|extent| extent.start)
}

/// A copy of data that is not aligned for direct I/O. Payloads from the network may lie anywhere.
fn aligned(data: &[u8]) -> Option<AlignedBuffer> {
    let is_aligned = (data.as_ptr() as usize).is_multiple_of(UNIT_BYTES);
    (!is_aligned).then(|| AlignedBuffer::from_slice(data))
}
