//! Writing a strip.

use super::{BlockStore, Decided, Held};
use crate::edits::Edits;
use crate::extent::{Extent, slice_of, units_of};
use crate::keys::{Table, strip_key};
use crate::record::{
    Checksums, INLINE_CHECKSUMS_MAX, StripVersion, encode_strip, encode_trailer,
    strip_bytes_are_valid, strip_units, trailer_units,
};
use crate::rules::{Change, WriteVerdict, forget_older, judge_write, put_in_front};
use std::sync::atomic::Ordering::SeqCst;
use strake_env::AlignedBuffer;
use strake_observe::{BufferType, IoDirection, IoSide};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdReply, StripHeader};
use strake_proto::{Error, ErrorKind, Result, StripKey, Version};
use strake_store::Lsn;

/// A write waits for freed space this many times before the disk counts as full.
const ALLOCATION_ATTEMPTS: u32 = 8;

impl BlockStore {
    /// `copy` and `stable` as in the request.
    pub(super) fn write(
        &self,
        key: &StripKey,
        header: &StripHeader,
        checksums: &[u32],
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
        let extents = self.allocate(strip_units(data.len() as u32))?;
        let stored = self.store_data(key, header.version, checksums, data, &extents);
        let accepted =
            stored.and_then(|()| self.accept(key, header, checksums, (copy, stable), &extents));
        match accepted {
            Ok(true) => {}
            // Not taken: nobody ever saw these units.
            Ok(false) => self.space.give_back(&extents),
            Err(error) => {
                self.space.give_back(&extents);
                return Err(error);
            }
        }
        self.checkpoint_if_large();
        Ok(NsdReply::Accepted { boot: self.boot })
    }

    /// Allocates space for a strip. If there is too little, makes a commit for units that wait only
    /// for one, and waits for units that wait for readers.
    fn allocate(&self, units: u32) -> Result<Vec<Extent>> {
        let full = || Error::new(ErrorKind::NoSpace, format!("NSD {} is full", self.nsd));
        let mut attempts = 0;
        while attempts < ALLOCATION_ATTEMPTS {
            if let Some(extents) = self.space.allocate(units) {
                return Ok(extents);
            }
            let waiting = self.reclaim.units();
            if self.space.allocator.lock().free_for_data() + waiting < u64::from(units) {
                break;
            }
            self.make_durable()?;
            if let Some(extents) = self.space.allocate(units) {
                return Ok(extents);
            }
            // Free, but withheld for a moment.
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

    /// Writes the strip and its trailer. If the host is full, gives it what is free here and what a
    /// commit makes free, and tries again.
    fn store_data(
        &self,
        key: &StripKey,
        version: Version,
        checksums: &[u32],
        data: &[u8],
        extents: &[Extent],
    ) -> Result<()> {
        let store = || self.store_data_once(key, version, checksums, data, extents);
        match store() {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.make_room_on_host()? => {
                store()
            }
            result => result,
        }
    }

    /// Writes the strip and, behind it, its trailer.
    fn store_data_once(
        &self,
        key: &StripKey,
        version: Version,
        checksums: &[u32],
        data: &[u8],
        extents: &[Extent],
    ) -> Result<()> {
        // Payloads off a wire may lie anywhere; direct I/O wants them aligned.
        let copied;
        let data = if (data.as_ptr() as usize).is_multiple_of(UNIT_BYTES) {
            data
        } else {
            copied = AlignedBuffer::from_slice(data);
            &copied
        };
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
        // The commit may have given the host what it freed.
        Ok(self.discard_all() | (self.reclaim.units() < waiting))
    }

    fn write_extents(&self, extents: &[Extent], mut bytes: &[u8]) -> Result<()> {
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
            // The host is full: that is no failure of the disk.
            std::io::ErrorKind::StorageFull => Error::from(error),
            _ => self.fail(error.into()),
        })
    }

    /// Decides and, if the version is accepted, publishes it. Returns false if it is there already.
    ///
    /// The versions held cannot change under the object's lock. What commits cover can change. So
    /// the fate of the older versions is decided when this one has its place among them.
    fn accept(
        &self,
        key: &StripKey,
        header: &StripHeader,
        checksums: &[u32],
        (copy, stable): (bool, Version),
        extents: &[Extent],
    ) -> Result<bool> {
        loop {
            let object = self.object_lock(key.object);
            let held = match self.look_up(key)? {
                Held::Record(record) => Some(record),
                // A damaged record counts as lost: this write replaces it.
                Held::Nothing | Held::Damaged(_) => None,
            };
            let encoded = strip_key(Table::Strip, key);
            let floor = self.floor(key)?;
            let forgotten = match judge_write(held.as_ref(), floor, header.version, copy) {
                WriteVerdict::Present => {
                    match held.as_ref().and_then(|it| forget_older(it, stable)) {
                        Some(change) => Some(change),
                        None => return Ok(false),
                    }
                }
                WriteVerdict::Stale(highest) => return Err(self.stale(key, header, highest)),
                WriteVerdict::Accepted => None,
            };
            #[cfg(test)]
            self.run_before_publish();
            let mut newest = new_version(header, checksums, extents);
            let has_trailer = newest.checksums == Checksums::Trailer;
            let is_new = held.is_none();
            let is_present = forgotten.is_some();
            let published = self.publish(|moment| {
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
            if is_present {
                return Ok(false);
            }
            self.unsettled.lock().insert(*key);
            if is_new {
                self.strips.fetch_add(1, SeqCst);
            }
            if has_trailer {
                self.trailers.lock().insert(*key, header.version, checksums);
            }
            return Ok(true);
        }
    }

    fn stale(&self, key: &StripKey, header: &StripHeader, highest: Version) -> Error {
        let (nsd, version) = (self.nsd, header.version);
        let detail = format!("NSD {nsd}, strip {key}: version {version} is not above {highest}");
        Error::new(ErrorKind::Stale, detail)
    }

    #[cfg(test)]
    fn run_before_publish(&self) {
        let step = self.before_publish.lock().take();
        if let Some(step) = step {
            step(self);
        }
    }
}

/// A version that is about to be accepted; the entry that accepts it fills in its number.
fn new_version(header: &StripHeader, checksums: &[u32], extents: &[Extent]) -> StripVersion {
    let inline = checksums.len() <= INLINE_CHECKSUMS_MAX;
    StripVersion {
        header: header.clone(),
        strip_bytes: (checksums.len() * UNIT_BYTES) as u32,
        accepted: Lsn(0),
        settled: false,
        extents: extents.to_vec(),
        checksums: if inline { Checksums::Inline(checksums.to_vec()) } else { Checksums::Trailer },
    }
}
