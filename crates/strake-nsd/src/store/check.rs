//! Verifies everything while the store is in use: records of strips, tombstones, promises and the
//! data. Also verifies that exactly the units that records name are allocated. A patch shares units
//! with the version it patches, and those units are named once.
//!
//! **The sum.** The units in use must be those that records name, those that writers hold and those
//! that wait to be used again. A cursor goes through the keys, one slice at a time, and counts the
//! records. A change behind the cursor corrects the sum. A change within the slice being counted
//! makes the check count the slice again. In the end all sums are taken at one moment, under the
//! order lock.

use super::BlockStore;
use crate::edits::Edits;
use crate::extent::units_of;
use crate::keys::{
    Table, block_start, grant_table, parse_grant_key, parse_strip_key, parse_tombstone_key,
    range_end, table_end, tombstone_end, tombstone_key, tombstone_table,
};
use crate::record::{View, decode_grant, decode_promise, decode_strip, decode_tombstone};
use std::sync::atomic::Ordering::SeqCst;
use strake_env::AlignedBuffer;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdCheckReply, NsdReply};
use strake_proto::{BlockIndex, FsId, ObjectId, Result, StripKey};
use strake_store::KvRead;
use strake_stripe::checksum::first_bad_unit;

const FAULTS_MAX: usize = NsdCheckReply::FAULTS_MAX;
/// A part of a check looks at so many strips at most, and reads about so many bytes. A slow disk
/// reads them within a second.
const KEYS_PER_PART: usize = 4096;
const BYTES_PER_PART: u64 = 32 << 20;
/// The scan begins anew after this many keys, so it never holds a snapshot for long.
const KEYS_PER_SCAN: usize = 256;
/// If a slice changed during this many counts, it is counted under the order lock.
const COUNTS_MAX: usize = 16;

/// The count of a check under way.
pub(super) struct Audit {
    /// Keys before the cursor are counted.
    cursor: Vec<u8>,
    /// The units named by the records before the cursor. The number is signed, because corrections
    /// may come in any order.
    units: i64,
    /// Keys from the cursor on that changed since the slice was begun.
    touched: Vec<Vec<u8>>,
    /// True if a record could not be looked up, so the sum is not known.
    is_broken: bool,
}

impl BlockStore {
    /// The whole check at once.
    pub(super) fn check(&self, data: bool) -> Result<NsdReply> {
        let mut found = NsdCheckReply::default();
        let mut next = Some(Vec::new());
        while let Some(from) = next {
            let part;
            (part, next) = self.look_at_part(data, &from)?;
            found.add(part);
        }
        Ok(NsdReply::Checked(found))
    }

    /// A part of the check.
    pub(super) fn check_part(&self, data: bool, from: &[u8]) -> Result<NsdReply> {
        let (found, next) = self.look_at_part(data, from)?;
        Ok(NsdReply::CheckedPart { found, next })
    }

    /// Looks at a part, and says where the next one begins. The first part has the log, the space
    /// and all records but those of strips. It reads no data. Further parts have a few strips each.
    fn look_at_part(&self, data: bool, from: &[u8]) -> Result<(NsdCheckReply, Option<Vec<u8>>)> {
        let mut found = NsdCheckReply::default();
        let strips = vec![Table::Strip as u8];
        if from.is_empty() {
            let _alone = self.checking.lock();
            self.check_records(&mut found)?;
            return Ok((found, Some(strips)));
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let from = strips.as_slice().max(from);
        self.index.scan(from, &table_end(Table::Strip), &mut |key, _| {
            keys.push(key.to_vec());
            keys.len() <= KEYS_PER_PART
        })?;
        for (at, key) in keys.into_iter().enumerate() {
            // At least one strip is looked at, however large it is.
            if at == KEYS_PER_PART || found.bytes >= BYTES_PER_PART {
                return Ok((found, Some(key)));
            }
            self.check_strip(&key, data, &mut found)?;
        }
        Ok((found, None))
    }

    /// Checks the log, the space, tombstones, promises and grants.
    fn check_records(&self, found: &mut NsdCheckReply) -> Result<()> {
        match self.verify_log() {
            Ok(None) => {}
            Ok(Some(chunk)) => {
                fault(
                    found,
                    format!("the log was damaged at chunk {chunk}; it has been written anew"),
                );
            }
            Err(error) => fault(found, format!("the log is damaged or unreadable: {error}")),
        }
        self.check_space(found)?;
        let (from, to) = tombstone_table();
        self.visit_all(from, &to, &mut |key| self.check_tombstone(key, found))?;
        self.visit_all(vec![Table::Promise as u8], &table_end(Table::Promise), &mut |key| {
            let Some(value) = self.index.get(key)? else { return Ok(()) };
            found.promises += 1;
            match parse_strip_key(Table::Promise, key) {
                Some(strip) if decode_promise(key, &value).is_err() => {
                    fault(found, format!("the promise for strip {strip} is damaged"));
                }
                Some(_) => {}
                None => fault(found, "the key of a promise is damaged".to_owned()),
            }
            Ok(())
        })?;
        let (from, to) = grant_table();
        self.visit_all(from, &to, &mut |key| {
            let Some(value) = self.index.get(key)? else { return Ok(()) };
            if parse_grant_key(key).is_none() || decode_grant(key, &value).is_err() {
                fault(found, "what was granted to a client is damaged".to_owned());
            }
            Ok(())
        })?;
        self.space.grants().check();
        Ok(())
    }

    /// Shows `visit` every key of a range, in slices.
    fn visit_all(
        &self,
        mut from: Vec<u8>,
        to: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            self.index.scan(&from, to, &mut |key, _| {
                keys.push(key.to_vec());
                keys.len() < KEYS_PER_SCAN
            })?;
            let Some(last) = keys.last() else { return Ok(()) };
            from.clone_from(last);
            from.push(0);
            keys.iter().try_for_each(|key| visit(key))?;
        }
    }

    /// Compares the sums; see the file's head.
    fn check_space(&self, found: &mut NsdCheckReply) -> Result<()> {
        let cursor = vec![Table::Strip as u8];
        let audit = Audit { cursor, units: 0, touched: Vec::new(), is_broken: false };
        {
            let _order = self.order.lock();
            *self.audit.lock() = Some(audit);
        }
        let counted = self.count_records(found);
        *self.audit.lock() = None;
        counted
    }

    fn count_records(&self, found: &mut NsdCheckReply) -> Result<()> {
        while self.count_slice()? {}
        let _order = self.order.lock();
        let audit = self.audit.lock();
        let allocator = self.space.allocator.lock();
        let audit = audit.as_ref().expect("invariant: made by this check");
        if audit.is_broken {
            fault(found, "the records could not be read while they were counted".to_owned());
            return Ok(());
        }
        let (in_flight, waiting) = (self.space.in_flight.load(SeqCst), self.reclaim.units());
        found.allocated = allocator.used() * UNIT_BYTES as u64;
        let named = i128::from(allocator.used()) - i128::from(in_flight) - i128::from(waiting);
        if named != i128::from(audit.units) {
            let text = format!(
                "{} units are in use, {in_flight} of them by writers and {waiting} on their way \
                 out; the records name {} and not {named}",
                allocator.used(),
                audit.units
            );
            fault(found, text);
        }
        Ok(())
    }

    /// Counts the next slice of records. Returns false at the end.
    fn count_slice(&self) -> Result<bool> {
        for attempt in 0.. {
            let held = (attempt == COUNTS_MAX).then(|| self.order.lock());
            let from = {
                let mut audit = self.audit.lock();
                let audit = audit.as_mut().expect("invariant: made by this check");
                audit.touched.clear();
                audit.cursor.clone()
            };
            let mut units = 0;
            let mut keys = 0;
            let mut last = None;
            self.index.scan(&from, &table_end(Table::Strip), &mut |key, value| {
                units += units_named(key, value);
                last = Some(key.to_vec());
                keys += 1;
                keys < KEYS_PER_SCAN
            })?;
            // Publishing takes the order lock, so nothing changes from here on.
            let _order = held.or_else(|| Some(self.order.lock()));
            let mut audit = self.audit.lock();
            let audit = audit.as_mut().expect("invariant: made by this check");
            let is_last = keys < KEYS_PER_SCAN;
            let end = match last {
                Some(mut last) if !is_last => {
                    last.push(0);
                    last
                }
                _ => table_end(Table::Strip),
            };
            if audit.touched.iter().all(|key| *key >= end) {
                audit.units += units;
                audit.cursor = end;
                return Ok(!is_last);
            }
        }
        unreachable!("the last attempt is made while nobody publishes")
    }

    /// Notes every change for the check. The caller holds the order lock and has not changed the
    /// index yet.
    pub(super) fn note_for_check(&self, edits: &Edits) {
        let mut audit = self.audit.lock();
        let Some(audit) = audit.as_mut() else { return };
        for (key, value) in &edits.0 {
            if key.first() != Some(&(Table::Strip as u8)) {
                continue;
            }
            if *key >= audit.cursor {
                audit.touched.push(key.clone());
                continue;
            }
            match self.index.get(key) {
                Ok(old) => {
                    audit.units -= old.map_or(0, |old| units_named(key, &old));
                    audit.units += value.as_ref().map_or(0, |new| units_named(key, new));
                }
                Err(_) => audit.is_broken = true,
            }
        }
    }

    fn check_tombstone(&self, key: &[u8], found: &mut NsdCheckReply) -> Result<()> {
        found.tombstones += 1;
        let Some((fs, object, to)) = parse_tombstone_key(key) else {
            fault(found, "the key of a tombstone is damaged".to_owned());
            return Ok(());
        };
        if self.tombstone_fault(fs, object, to)?.is_none() {
            return Ok(());
        }
        // A deletion lays its tombstone first and deletes after that. It may also lay one tombstone
        // in several changes. So the tombstone is looked at again while no deletion is under way.
        let _object = self.object_lock(object);
        if self.deletions.load(SeqCst) == 0
            && let Some(text) = self.tombstone_fault(fs, object, to)?
        {
            fault(found, text);
        }
        Ok(())
    }

    /// The fault of the tombstone that ends before `to`, if it has one.
    fn tombstone_fault(
        &self,
        fs: FsId,
        object: ObjectId,
        to: BlockIndex,
    ) -> Result<Option<String>> {
        let key = tombstone_key(fs, object, to);
        let Some(value) = self.index.get(&key)? else { return Ok(None) };
        let Ok(tombstone) = decode_tombstone(&key, &value) else {
            return Ok(Some(format!("a tombstone of object {object} is damaged")));
        };
        if tombstone.from >= to {
            return Ok(Some(format!("a tombstone of object {object} covers nothing")));
        }
        let after = tombstone_key(fs, object, BlockIndex(tombstone.from.0 + 1));
        let mut first = None;
        self.index.scan(&after, &tombstone_end(fs, object), &mut |key, _| {
            first = Some(key.to_vec());
            false
        })?;
        if first.is_some_and(|first| first != key) {
            return Ok(Some(format!("tombstones of object {object} overlap")));
        }
        let from = block_start(Table::Strip, fs, object, tombstone.from);
        let end = range_end(Table::Strip, fs, object, to);
        let mut below = None;
        self.index.scan(&from, &end, &mut |key, value| {
            let record = decode_strip(key, value).ok();
            let mut versions = record.iter().flat_map(|record| &record.versions);
            if versions.any(|held| held.version() <= tombstone.version) {
                below = parse_strip_key(Table::Strip, key);
            }
            below.is_none()
        })?;
        Ok(below.map(|strip| format!("strip {strip} is held below its tombstone")))
    }

    fn check_strip(&self, encoded: &[u8], data: bool, found: &mut NsdCheckReply) -> Result<()> {
        let _guard = self.reclaim.read();
        // The strip may have been deleted since.
        let Some(value) = self.index.get(encoded)? else { return Ok(()) };
        found.strips += 1;
        let Some(key) = parse_strip_key(Table::Strip, encoded) else {
            fault(found, "the key of a strip is damaged".to_owned());
            return Ok(());
        };
        let record = match decode_strip(encoded, &value) {
            Ok(record) => record,
            Err(damage) => {
                found.damaged += 1;
                fault(found, self.damaged(&key, damage).to_string());
                if found.bad.len() < FAULTS_MAX {
                    found.bad.push(key);
                }
                return Ok(());
            }
        };
        for held in &record.versions {
            let allocator = self.space.allocator.lock();
            let stray = held.extents().find(|extent| !allocator.is_used(*extent));
            drop(allocator);
            if let Some(extent) = stray {
                fault(found, format!("strip {key}: {extent:?} is not allocated"));
            }
            let view = record.view(Some(held.version()));
            if data
                && let Some(view) = view
                && let Some(error) = self.check_data(&key, &view)
            {
                fault(found, format!("strip {key}, version {}: {error}", held.version()));
                if found.bad.len() < FAULTS_MAX && found.bad.last() != Some(&key) {
                    found.bad.push(key);
                }
            }
            if data {
                found.bytes += u64::from(held.strip_bytes);
            }
        }
        Ok(())
    }

    /// Reads a version and its checksums from the disk and compares them. Returns the fault, if
    /// there is one.
    fn check_data(&self, key: &StripKey, view: &View<'_>) -> Option<String> {
        let mut bytes = AlignedBuffer::zeroed(view.held.strip_bytes as usize);
        match self.read_view(key, view, true, 0, &mut bytes) {
            Err(error) => Some(error.to_string()),
            Ok(checksums) => first_bad_unit(key, view.held.version(), 0, &bytes, &checksums)
                .map(|unit| format!("unit {unit} does not match its checksum")),
        }
    }
}

fn fault(found: &mut NsdCheckReply, what: String) {
    if found.faults.len() < FAULTS_MAX {
        found.faults.push(what);
    }
}

/// The number of units that a value of the strip table names.
fn units_named(key: &[u8], value: &[u8]) -> i64 {
    decode_strip(key, value).map_or(0, |record| {
        let extents: Vec<_> = record.extents().collect();
        units_of(&extents) as i64
    })
}
