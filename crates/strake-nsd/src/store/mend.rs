//! Mends strips: a version that is held and bad on the disk gets its right bytes, in new space.
//!
//! **No token is needed** (rule R12 of the cluster), because a strip that is mended holds the same
//! versions as before, with the same bytes, and is settled or not as before. The store looks for
//! itself whether the version is bad, and changes nothing otherwise:
//!
//! 1. If it does not hold the version, it refuses. A deletion or a writer may be the cause if there
//!    is no strip, a newer version alone, or a damaged record. Only a client that excludes these
//!    can write the strip anew.
//! 2. If the checksums that it has for the version are others than those that were sent, it
//!    refuses: one of the two is not that version.
//! 3. If all units match their checksums on the disk, there is nothing to do.
//! 4. It stores the bytes that were sent, like those of any write.
//! 5. Under the object's lock it looks again. If the version lies where it did, the record names
//!    the new extents, and what it named before is freed. Otherwise all begins again.
//!
//! **Patches.** A patch that is mended is a whole version from then on. It keeps the seed of the
//! checksums ([`Whole::made`]), because patches of it have theirs seeded so, too.
//!
//! **A power cut** leaves the strip as it was, or mended: what was named before is free only when
//! the new record is durable.
//!
//! **Space** is that of nobody, not of the sender's grant: a commit frees as much.

use super::read::TrailerKey;
use super::write::trailer_place;
use super::{BlockStore, Decided, Held, Ticket};
use crate::edits::Edits;
use crate::extent::Extent;
use crate::keys::{Table, strip_key};
use crate::record::{Checksums, View, Whole, encode_strip, strip_bytes_are_valid, strip_units};
use strake_env::AlignedBuffer;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::NsdReply;
use strake_proto::{Error, ErrorKind, Result, StripKey, Version};
use strake_stripe::{ChecksumSeed, first_bad_unit};

/// A strip that changes all the time is tried so many times.
const ATTEMPTS: u32 = 4;

/// The right bytes of a version.
pub(super) struct Right<'a> {
    pub(super) key: &'a StripKey,
    pub(super) version: Version,
    /// Seeded with key and version.
    pub(super) checksums: &'a [u32],
    pub(super) data: &'a [u8],
}

impl BlockStore {
    /// Mends a strip; see the file's head.
    pub(super) fn mend(&self, ticket: &Ticket<'_>, right: &Right<'_>) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let Right { key, version, checksums, data } = *right;
        if !strip_bytes_are_valid(data.len())
            || checksums.len() != data.len() / UNIT_BYTES
            || first_bad_unit(key, version, 0, data, checksums).is_some()
        {
            let detail = format!("{} bytes that are no strip are to mend {key}", data.len());
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        for _ in 0..ATTEMPTS {
            if self.mend_once(ticket, right)? {
                self.checkpoint_if_large();
                return Ok(NsdReply::Accepted { boot: self.boot });
            }
        }
        Err(self.not_mended(key, version, "it changes all the time"))
    }

    /// False if the strip changed meanwhile.
    fn mend_once(&self, ticket: &Ticket<'_>, right: &Right<'_>) -> Result<bool> {
        let Right { key, version, data, .. } = *right;
        // While it lives, no extent that is seen now is used for anything else. So what is read is
        // what the record means.
        let _guard = self.reclaim.read();
        let Held::Record(record) = self.look_up(key)? else {
            return Err(self.not_mended(key, version, "no version is known to be held"));
        };
        let Some(view) = record.view(Some(version)) else {
            return Err(self.not_mended(key, version, "other versions are held"));
        };
        if !self.is_bad(&view, right)? {
            return Ok(true);
        }
        #[cfg(test)]
        self.run_before_publish();
        let Some(extents) =
            self.space.allocate(None, &self.reclaim, strip_units(data.len() as u32))
        else {
            return Err(Error::new(ErrorKind::NoSpace, format!("NSD {} is full", self.nsd)));
        };
        let done = self.put_right(ticket, &view, right, &extents);
        if !matches!(done, Ok(true)) {
            self.space.give_back(None, &extents);
        }
        done
    }

    /// Whether the disk has something else than the right bytes. An error if the version is not
    /// the one that was sent, or if that cannot be told now.
    fn is_bad(&self, view: &View<'_>, right: &Right<'_>) -> Result<bool> {
        let Right { key, version, checksums, data } = *right;
        let differs = "it has other bytes under this version";
        if view.held.strip_bytes as usize != data.len() {
            return Err(self.not_mended(key, version, differs));
        }
        let known = match self.all_checksums(key, view) {
            Err(error) if is_damage(error.kind()) => return Ok(true),
            known => known?,
        };
        if known != checksums {
            return Err(self.not_mended(key, version, differs));
        }
        let mut bytes = AlignedBuffer::zeroed(data.len());
        match self.read_view(key, view, true, 0, &mut bytes) {
            Ok(found) => Ok(first_bad_unit(key, version, 0, &bytes, &found).is_some()),
            Err(error) if is_damage(error.kind()) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The checksums of all units under the version of the view, as the disk has them.
    fn all_checksums(&self, key: &StripKey, view: &View<'_>) -> Result<Vec<u32>> {
        let mut all = match &view.whole.checksums {
            Checksums::Inline(checksums) => checksums.clone(),
            Checksums::Trailer => self.read_trailer(key, view)?,
        };
        view.displaced.iter().for_each(|one| all[one.unit as usize] = one.checksum);
        Ok(reseeded(key, all, view.whole.made, view.held.version()))
    }

    /// Stores the right bytes, and has the record name them. False if the version does not lie any
    /// more where it was seen.
    fn put_right(
        &self,
        ticket: &Ticket<'_>,
        view: &View<'_>,
        right: &Right<'_>,
        extents: &[Extent],
    ) -> Result<bool> {
        let Right { key, version, checksums, data } = *right;
        let made = view.whole.made;
        let checksums = reseeded(key, checksums.to_vec(), version, made);
        self.with_room_on_host(|| self.store_data(key, made, &checksums, data, extents))?;
        let kept = match &view.whole.checksums {
            Checksums::Inline(_) => Checksums::Inline(checksums.clone()),
            Checksums::Trailer => Checksums::Trailer,
        };
        let whole = Whole { made, extents: extents.to_vec(), checksums: kept };
        let is_named =
            self.retry_with_room(key.object, || self.name_right(ticket, (key, view), &whole))?;
        if is_named && let Some(place) = trailer_place(extents, checksums.len() as u64) {
            let trailer: TrailerKey = (*key, made, place);
            self.trailers.lock().insert(trailer, &checksums);
        }
        Ok(is_named)
    }

    /// The caller holds the object's lock.
    fn name_right(
        &self,
        ticket: &Ticket<'_>,
        (key, seen): (&StripKey, &View<'_>),
        whole: &Whole,
    ) -> Result<bool> {
        let Held::Record(mut record) = self.look_up(key)? else { return Ok(false) };
        let version = seen.held.version();
        let is_as_seen = record.view(Some(version)).is_some_and(|view| {
            (view.whole, &view.displaced, view.held.is_patch())
                == (seen.whole, &seen.displaced, seen.held.is_patch())
        });
        let own = record.versions.iter_mut().find(|one| one.version() == version);
        let Some(own) = own.filter(|_| is_as_seen) else { return Ok(false) };
        let freed: Vec<Extent> = own.extents().collect();
        own.whole = Some(whole.clone());
        own.displaced.clear();
        let encoded = strip_key(Table::Strip, key);
        let mut edits = Edits::default();
        edits.put(&encoded, encode_strip(&encoded, &record));
        let taken = crate::extent::units_of(&whole.extents);
        self.publish(ticket, |_| Decided { edits, freed, taken })?;
        self.note_displaced(*key, &record);
        Ok(true)
    }

    fn not_mended(&self, key: &StripKey, version: Version, why: &str) -> Error {
        let detail = format!("NSD {}, strip {key}: {version} is not mended: {why}", self.nsd);
        Error::new(ErrorKind::Stale, detail)
    }
}

/// Whether an error of a read means that the disk has lost what was there.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::Io)
}

/// Checksums that were seeded with one version, as they are with another.
fn reseeded(key: &StripKey, mut checksums: Vec<u32>, from: Version, to: Version) -> Vec<u32> {
    let change = ChecksumSeed::new(key, from).difference(ChecksumSeed::new(key, to));
    checksums.iter_mut().for_each(|checksum| *checksum ^= change);
    checksums
}

#[cfg(test)]
#[path = "mend_test.rs"]
mod mend_test;
