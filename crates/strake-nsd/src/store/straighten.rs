//! Straightening: displaced units go back to their places within the strip's extents. The strip is
//! then read in one piece again, and its record is short.
//!
//! Only units that the *oldest* version of a strip has displaced are written back. All versions of
//! the strip show these units, or newer ones of their own. So nobody reads the old contents at
//! their places in the extents.
//!
//! **Folding.** A strip of which a quarter or more is displaced is read as a whole and written to
//! new extents, in one piece. This takes two long I/Os instead of hundreds of short ones. The old
//! extents and the displaced units are then freed like those of any version that goes. So nothing
//! must be durable before, and no reader must be waited for. If there is no space for new extents,
//! the units are written into their places, like those of any other strip:
//!
//! **Writing into place.** One turn does this to a few strips:
//!
//! 1. It looks which units are displaced, and makes that durable. Otherwise a crash would bring
//!    back a record that names the places within the extents.
//! 2. It waits until every read that began before has ended. Such a read may still have a record
//!    from before these units were displaced.
//! 3. For each strip it begins a read of its own. Extents that are freed meanwhile are not used
//!    again before that read ends. It verifies the units, writes them into their places in order,
//!    and writes a new trailer elsewhere.
//! 4. Under the object's lock it looks again. The record forgets the places of those units that the
//!    oldest version still has displaced, and names the new trailer. The journal makes the written
//!    units durable before this entry.
//!
//! A crash at any point leaves a record that names only durable units. The version that seeds the
//! checksums stays the same ([`crate::record::Whole::made`]).
//!
//! **When.** Strips of which half is displaced ([`soon_units`]) are straightened soon, but slowly
//! while others use the disk. All other strips wait until the disk has been idle for a while, or
//! until space is short: displaced units take space that the strip's extents have already.

use super::read::TrailerKey;
use super::write::trailer_place;
use super::{BlockStore, Decided, Held, Ticket};
use crate::edits::Edits;
use crate::extent::{Extent, slice_of, units_of};
use crate::keys::{Table, strip_key};
use crate::record::{
    Checksums, DISPLACED_MAX, Damaged, Displaced, StripRecord, StripVersion, Whole, encode_strip,
    encode_trailer, strip_units, trailer_units,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use strake_env::AlignedBuffer;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{ErrorKind, Result, StripKey};
use strake_stripe::{ChecksumSeed, first_bad_unit};
use tracing::warn;

/// Of a short strip, at least this many units are displaced before it is straightened soon.
const SOON_UNITS_LEAST: usize = 32;
/// Of a long strip, at most this many units may be displaced before it is straightened soon. So
/// there is room for as many again in its record.
const SOON_UNITS_MOST: usize = DISPLACED_MAX / 2;
/// A strip is folded if at least one in this many of its units is displaced.
const FOLD_PART: usize = 4;
/// Space is short if displaced units take more than one part in this many of what is free.
const SHORT_PART: u64 = 4;
/// One turn takes at most this many strips on an idle disk, and on a disk that others use. Others
/// wait while strips are written.
const STRIPS_PER_TURN_IDLE: usize = 16;
const STRIPS_PER_TURN_BUSY: usize = 2;
/// The pause between two turns is this many times as long as the last turn took. The first factor
/// is for a disk that others use, the second for an idle one.
const PAUSE_FACTOR_BUSY: u32 = 4;
const PAUSE_FACTOR_IDLE: u32 = 1;
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// While there are displaced units, the worker looks for work at least this often.
const LOOK: Duration = Duration::from_secs(1);

/// A strip is straightened soon if its oldest version has this many displaced units.
fn soon_units(strip_bytes: u32) -> usize {
    (strip_bytes as usize / UNIT_BYTES / 2).clamp(SOON_UNITS_LEAST, SOON_UNITS_MOST)
}

/// Strips whose oldest version has displaced units.
#[derive(Default)]
pub(super) struct Crooked {
    /// The strips, with the number of these units.
    all: BTreeMap<StripKey, usize>,
    /// The strips to straighten soon.
    soon: BTreeSet<StripKey>,
    /// The displaced units of all strips together.
    units: u64,
    /// The last strip of the last turn.
    cursor: Option<StripKey>,
    /// The count of reads and writes of strips at the last look, and the last time when others used
    /// the disk.
    ios_seen: u64,
    last_use: Duration,
}

impl Crooked {
    /// Notes the record of a strip as it is now. Returns true if the worker must be woken.
    pub(super) fn note(&mut self, key: StripKey, record: &StripRecord) -> bool {
        let was_empty = self.all.is_empty();
        let oldest = record.oldest();
        let count = oldest.displaced.len();
        self.forget(&key);
        if count == 0 {
            return false;
        }
        self.all.insert(key, count);
        self.units += count as u64;
        let is_soon = count >= soon_units(oldest.strip_bytes);
        if is_soon {
            self.soon.insert(key);
        }
        is_soon || was_empty
    }

    pub(super) fn forget(&mut self, key: &StripKey) {
        self.units -= self.all.remove(key).unwrap_or(0) as u64;
        self.soon.remove(key);
    }

    /// Notes that others used the disk at this moment.
    pub(super) fn note_use(&mut self, now: Duration) {
        self.last_use = now;
    }

    /// The strips of the next turn. Each strip has its turn before any has it again.
    fn next(&mut self, takes_all: bool, most: usize) -> Vec<StripKey> {
        let later = (self.cursor.map_or(Unbounded, Excluded), Unbounded);
        let mut keys: Vec<StripKey> = match takes_all {
            true => self.all.range(later).map(|(key, _)| *key).take(most).collect(),
            false => self.soon.range(later).copied().take(most).collect(),
        };
        if keys.is_empty() {
            match takes_all {
                true => keys.extend(self.all.keys().take(most)),
                false => keys.extend(self.soon.iter().take(most)),
            }
        }
        self.cursor = keys.last().copied();
        keys
    }

    /// Every strip that has displaced units.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<StripKey> {
        self.all.keys().copied().collect()
    }
}

/// The results of writing a strip's units back.
struct Written {
    /// The units that were written into their places.
    units: Vec<Displaced>,
    /// The extents in which these places are.
    old: Whole,
    /// The same extents with a new trailer, or with new checksums. If the strip was folded, new
    /// extents.
    new: Whole,
    /// The units taken for the trailer, or for the whole strip.
    taken: Vec<Extent>,
    /// The units of `old` that `new` does not name.
    freed: Vec<Extent>,
    checksums: Vec<u32>,
}

impl BlockStore {
    /// Notes a published record. The caller holds the object's lock.
    pub(super) fn note_displaced(&self, key: StripKey, record: &StripRecord) {
        let must_hear = self.crooked.lock().note(key, record);
        if must_hear && let Some(worker) = &*self.straightener.lock() {
            worker.wake();
        }
    }

    /// One turn of the worker. Returns the pause after which there is more to do, or `None` if
    /// there is nothing.
    pub(super) fn straighten_some(&self) -> Option<Duration> {
        if self.failure.lock().is_some() {
            return None;
        }
        let begin = self.clock.monotonic();
        let free = self.space.allocator.lock().free_for_data();
        let (keys, is_idle, left) = {
            let mut crooked = self.crooked.lock();
            let ios = self.ios.load(SeqCst);
            if std::mem::replace(&mut crooked.ios_seen, ios) != ios {
                crooked.note_use(begin);
            }
            let idle = begin.saturating_sub(crooked.last_use);
            let is_short = crooked.units > free / SHORT_PART;
            let is_idle = idle >= self.options.straighten_delay;
            let most = if is_idle { STRIPS_PER_TURN_IDLE } else { STRIPS_PER_TURN_BUSY };
            (crooked.next(is_idle || is_short, most), is_idle, crooked.all.len())
        };
        if left == 0 {
            return None;
        }
        let mut moved = 0;
        if !keys.is_empty() {
            let detail = format!("NSD {}, {left} strips", self.nsd);
            let _waiting = self.observe.waiters.enter("NSD straightening", detail);
            match self.straighten(&keys) {
                Ok(units) => moved = units,
                Err(error) => warn!(target: "nsd", "NSD {}: not straightened: {error}", self.nsd),
            }
            // These reads and writes were the worker's own.
            self.crooked.lock().ios_seen = self.ios.load(SeqCst);
        }
        if moved == 0 {
            return Some(LOOK);
        }
        let took = self.clock.monotonic().saturating_sub(begin);
        let factor = if is_idle { PAUSE_FACTOR_IDLE } else { PAUSE_FACTOR_BUSY };
        Some(PAUSE_MIN.max(took * factor))
    }

    /// Straightens strips; see the file's head. A strip that changes meanwhile is left for later.
    /// Returns how many units are no longer displaced.
    pub(super) fn straighten(&self, keys: &[StripKey]) -> Result<u64> {
        let (mut all, mut seen) = (0, Vec::new());
        for key in keys {
            match self.look_up(key)? {
                Held::Record(record) if !record.oldest().displaced.is_empty() => {
                    let oldest = record.oldest().clone();
                    let units = oldest.strip_bytes as usize / UNIT_BYTES;
                    let is_folded = oldest.displaced.len() * FOLD_PART >= units;
                    match if is_folded { self.straighten_counted(key, None)? } else { None } {
                        Some(moved) => all += moved,
                        None => seen.push((*key, oldest)),
                    }
                }
                _ => self.crooked.lock().forget(key),
            }
        }
        if !seen.is_empty() {
            self.make_durable()?;
            if !self.reclaim.outlive_readers(self.options.wait_limit) {
                return Ok(all);
            }
        }
        for (key, oldest) in &seen {
            all += self.straighten_counted(key, Some(oldest))?.unwrap_or(0);
        }
        self.checkpoint_if_large();
        Ok(all)
    }

    /// Straightens a strip like [`BlockStore::straighten_strip`], and counts that.
    fn straighten_counted(
        &self,
        key: &StripKey,
        seen: Option<&StripVersion>,
    ) -> Result<Option<u64>> {
        let start = self.straightenings.begin();
        let moved = self.straighten_strip(key, seen);
        let units = moved.as_ref().map_or(0, |moved| moved.unwrap_or(0));
        if units > 0 || seen.is_some() {
            self.straightenings.end(start, units * UNIT_BYTES as u64, units > 0);
        }
        match moved {
            // The strip is damaged. A reader mends it, and nothing can be done before.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                warn!(target: "nsd", "NSD {}: {error}", self.nsd);
                self.crooked.lock().forget(key);
                Ok(Some(0))
            }
            other => other,
        }
    }

    /// Straightens one strip. Without `seen`, folds it. With `seen`, writes units into their
    /// places; then its oldest version is durably as `seen`, and nobody reads an older state of it.
    /// Returns how many units it moved, or `None` if there is no space.
    fn straighten_strip(&self, key: &StripKey, seen: Option<&StripVersion>) -> Result<Option<u64>> {
        let _guard = self.reclaim.read();
        let written = match seen {
            Some(seen) => self.write_back(key, seen)?,
            None => self.write_anew(key)?,
        };
        let Some(written) = written else { return Ok(None) };
        let done = self.retry_with_room(key.object, || self.publish_straight(key, &written));
        if !matches!(done, Ok(1..)) && !written.taken.is_empty() {
            self.space.give_back(None, &written.taken);
        }
        done.map(Some)
    }

    /// Writes the oldest version to new extents. `None` if there is no space for them.
    fn write_anew(&self, key: &StripKey) -> Result<Option<Written>> {
        let Held::Record(record) = self.look_up(key)? else { return Ok(None) };
        let oldest = record.oldest();
        let view = record.view(Some(oldest.version())).expect("invariant: it is held");
        let free = self.space.allocator.lock().free_for_data();
        if free / SHORT_PART < u64::from(strip_units(oldest.strip_bytes)) {
            return Ok(None);
        }
        let mut data = AlignedBuffer::zeroed(oldest.strip_bytes as usize);
        let mut checksums = self.read_view(key, &view, false, 0, &mut data)?;
        if first_bad_unit(key, oldest.version(), 0, &data, &checksums).is_some() {
            return Err(self.damaged(key, Damaged("unit")));
        }
        #[cfg(test)]
        self.run_before_publish();
        let old = view.whole.clone();
        let seed = |version| ChecksumSeed::new(key, version);
        let change = seed(oldest.version()).difference(seed(old.made));
        checksums.iter_mut().for_each(|checksum| *checksum ^= change);
        let Some(taken) = self.space.allocate(None, &self.reclaim, strip_units(oldest.strip_bytes))
        else {
            return Ok(None);
        };
        if let Err(error) = self.store_data(key, old.made, &checksums, &data, &taken) {
            self.space.give_back(None, &taken);
            // The host is full.
            return if error.kind() == ErrorKind::NoSpace { Ok(None) } else { Err(error) };
        }
        let kept = match &old.checksums {
            Checksums::Inline(_) => Checksums::Inline(checksums.clone()),
            Checksums::Trailer => Checksums::Trailer,
        };
        let new = Whole { made: old.made, extents: taken.clone(), checksums: kept };
        let (units, freed) = (oldest.displaced.clone(), old.extents.clone());
        Ok(Some(Written { units, old, new, taken, freed, checksums }))
    }

    /// Writes displaced units into their places, and writes a new trailer. `None` if no units are
    /// displaced, or if there is no space for the trailer.
    fn write_back(&self, key: &StripKey, seen: &StripVersion) -> Result<Option<Written>> {
        let Held::Record(record) = self.look_up(key)? else { return Ok(None) };
        let oldest = record.oldest();
        let view = record.view(Some(oldest.version())).expect("invariant: it is held");
        if seen.whole.as_ref() != Some(view.whole) {
            return Ok(None);
        }
        let mut units = oldest.displaced.clone();
        units.retain(|one| seen.displaced.contains(one));
        if units.is_empty() {
            return Ok(None);
        }
        let data = self.read_verified(key, view.whole, &units)?;
        #[cfg(test)]
        self.run_before_publish();
        let mut checksums = self.checksums(key, &view)?.to_vec();
        units.iter().for_each(|one| checksums[one.unit as usize] = one.checksum);
        let old = view.whole.clone();
        let mut new = old.clone();
        let mut taken = Vec::new();
        match &mut new.checksums {
            Checksums::Inline(inline) => inline.clone_from(&checksums),
            Checksums::Trailer => {
                let trailer = encode_trailer(key, old.made, &checksums);
                let Some(extents) =
                    self.space.allocate(None, &self.reclaim, trailer_units(oldest.strip_bytes))
                else {
                    return Ok(None);
                };
                let bytes = AlignedBuffer::from_slice(&trailer);
                if let Err(error) = self.write_extents(&extents, &bytes) {
                    self.space.give_back(None, &extents);
                    return Err(error);
                }
                new.extents = slice_of(&old.extents, 0, checksums.len() as u64);
                new.extents.extend_from_slice(&extents);
                taken = extents;
            }
        }
        if let Err(error) = self.write_units(&old.extents, &units, &data) {
            if !taken.is_empty() {
                self.space.give_back(None, &taken);
            }
            return Err(error);
        }
        let freed = slice_of(&old.extents, checksums.len() as u64, units_of(&taken));
        Ok(Some(Written { units, old, new, taken, freed, checksums }))
    }

    /// Reads displaced units and verifies them.
    fn read_verified(
        &self,
        key: &StripKey,
        whole: &Whole,
        units: &[Displaced],
    ) -> Result<AlignedBuffer> {
        let mut data = AlignedBuffer::zeroed(units.len() * UNIT_BYTES);
        let index_of = |unit| units.partition_point(|one| one.unit < unit);
        self.read_displaced(units, &index_of, &mut data)?;
        let seed = ChecksumSeed::new(key, whole.made);
        for (one, bytes) in units.iter().zip(data.chunks_exact(UNIT_BYTES)) {
            if seed.unit(one.unit, bytes) != one.checksum {
                return Err(self.damaged(key, Damaged("displaced unit")));
            }
        }
        Ok(data)
    }

    /// Writes units into their places within the extents.
    fn write_units(&self, extents: &[Extent], units: &[Displaced], data: &[u8]) -> Result<()> {
        let mut rest = data;
        for run in units.chunk_by(|one, next| next.unit == one.unit + 1) {
            let (part, behind) = rest.split_at(run.len() * UNIT_BYTES);
            let places = slice_of(extents, run[0].unit.into(), run.len() as u64);
            self.write_extents(&places, part)?;
            rest = behind;
        }
        Ok(())
    }

    /// Makes the record name the written units, as far as they are still displaced. Returns how
    /// many units are no longer displaced. The caller holds the object's lock.
    fn publish_straight(&self, key: &StripKey, written: &Written) -> Result<u64> {
        let Held::Record(mut record) = self.look_up(key)? else { return Ok(0) };
        let oldest = record.versions.last_mut().expect("invariant: a record holds a version");
        let gone = oldest.displaced.extract_if(.., |one| written.units.contains(one));
        let mut freed: Vec<Extent> = gone.map(|one| one.extent()).collect();
        let moved = freed.len() as u64;
        if moved == 0 {
            return Ok(0);
        }
        // No other unit got the same place meanwhile, so the units are displaced from the same
        // extents.
        assert!(
            oldest.whole.as_ref() == Some(&written.old),
            "extents changed under displaced units"
        );
        let taken = units_of(&written.taken);
        freed.extend(&written.freed);
        oldest.whole = Some(written.new.clone());
        let encoded = strip_key(Table::Strip, key);
        let mut edits = Edits::default();
        edits.put(&encoded, encode_strip(&encoded, &record));
        self.publish(&Ticket::OWN, |_| Decided { edits, freed, taken })?;
        if let Some(place) = trailer_place(&written.new.extents, written.checksums.len() as u64) {
            let trailer: TrailerKey = (*key, written.new.made, place);
            self.trailers.lock().insert(trailer, &written.checksums);
        }
        self.note_displaced(*key, &record);
        Ok(moved)
    }
}

#[cfg(test)]
#[path = "straighten_test.rs"]
mod straighten_test;
