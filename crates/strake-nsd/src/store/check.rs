//! Verifying everything while in use: the index, that what it names is allocated, and the data.

use super::BlockStore;
use crate::extent::slice_of;
use crate::keys::{Table, parse_strip_key, table_end};
use crate::record::{StripVersion, decode_strip};
use strake_env::AlignedBuffer;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdCheckReply, NsdReply};
use strake_proto::{Result, StripKey};
use strake_store::KvRead;
use strake_stripe::checksum::first_bad_unit;

/// Faults and bad strips reported at most.
const FAULTS_MAX: usize = 1000;
/// Keys looked at before the scan is begun anew, so that it never holds a snapshot for long.
const KEYS_PER_SCAN: usize = 256;

impl BlockStore {
    pub(super) fn check(&self, data: bool) -> Result<NsdReply> {
        let mut found = NsdCheckReply::default();
        let mut from = vec![Table::Strip as u8];
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            self.index.scan(&from, &table_end(Table::Strip), &mut |key, _| {
                keys.push(key.to_vec());
                keys.len() < KEYS_PER_SCAN
            })?;
            let Some(last) = keys.last() else { break };
            from.clone_from(last);
            from.push(0);
            keys.iter().try_for_each(|key| self.check_strip(key, data, &mut found))?;
        }
        Ok(NsdReply::Checked(found))
    }

    fn check_strip(&self, encoded: &[u8], data: bool, found: &mut NsdCheckReply) -> Result<()> {
        let _guard = self.reclaim.read();
        // It may have been deleted since.
        let Some(value) = self.index.get(encoded)? else { return Ok(()) };
        found.strips += 1;
        let Some(key) = parse_strip_key(Table::Strip, encoded) else {
            fault(found, self.index_error("key of a strip").to_string());
            return Ok(());
        };
        let record = match decode_strip(encoded, &value) {
            Ok(record) => record,
            Err(damage) => {
                fault(found, self.damaged(&key, damage).to_string());
                return Ok(());
            }
        };
        for held in &record.versions {
            let allocator = self.space.allocator.lock();
            let stray = held.extents.iter().find(|extent| !allocator.is_used(**extent));
            let stray = stray.copied();
            drop(allocator);
            if let Some(extent) = stray {
                fault(found, format!("strip {key}: {extent:?} is not allocated"));
            }
            if data && let Some(error) = self.check_data(&key, held)? {
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

    /// Reads a version with its checksums from the disk and compares; what is wrong with it, if
    /// anything.
    fn check_data(&self, key: &StripKey, held: &StripVersion) -> Result<Option<String>> {
        let mut bytes = AlignedBuffer::zeroed(held.strip_bytes as usize);
        let units = u64::from(held.strip_bytes) / UNIT_BYTES as u64;
        if let Err(error) = self.read_extents(&slice_of(&held.extents, 0, units), &mut bytes) {
            return Ok(Some(error.to_string()));
        }
        let checksums = match &held.checksums {
            crate::record::Checksums::Inline(checksums) => checksums.clone(),
            crate::record::Checksums::Trailer => match self.read_trailer(key, held) {
                Ok(checksums) => checksums,
                Err(error) => return Ok(Some(error.to_string())),
            },
        };
        Ok(first_bad_unit(key, held.version(), 0, &bytes, &checksums)
            .map(|unit| format!("unit {unit} does not match its checksum")))
    }
}

fn fault(found: &mut NsdCheckReply, what: String) {
    if found.faults.len() < FAULTS_MAX {
        found.faults.push(what);
    }
}
