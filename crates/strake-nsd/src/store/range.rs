//! Deleting ranges, tombstones and promises.

use super::{BlockStore, read_tombstones};
use crate::edits::Edits;
use crate::extent::Extent;
use crate::keys::{Table, block_start, parse_strip_key, range_end, strip_key, tombstone_key};
use crate::record::{Tombstone, decode_strip, encode_promise, encode_strip, encode_tombstone};
use crate::rules::{Piece, RefuseVerdict, delete, judge_refuse, lay_over};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use strake_proto::nsd::NsdReply;
use strake_proto::{BlockIndex, Error, ErrorKind, FsId, ObjectId, Result, StripKey, Version};
use strake_store::KvRead;

/// Strips deleted by one journal entry.
const STRIPS_PER_ENTRY: usize = 256;

impl BlockStore {
    pub(super) fn delete_range(
        &self,
        fs: FsId,
        object: ObjectId,
        blocks: Range<BlockIndex>,
        version: Version,
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        if blocks.start >= blocks.end {
            return Ok(NsdReply::Accepted { boot: self.boot });
        }
        self.retry_with_room(object, || self.lay_tombstone(fs, object, &blocks, version))?;
        let mut from = block_start(Table::Strip, fs, object, blocks.start);
        let to = range_end(Table::Strip, fs, object, blocks.end);
        // Each batch lets go of the lock: writes above the tombstone may come between.
        loop {
            let last = self.retry_with_room(object, || self.delete_batch(&from, &to, version))?;
            let Some(last) = last else { break };
            from = last;
            from.push(0);
        }
        self.checkpoint_if_large();
        Ok(NsdReply::Accepted { boot: self.boot })
    }

    /// Runs `work` under the object's lock, again after making room where the journal was full.
    fn retry_with_room<T>(&self, object: ObjectId, work: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let guard = self.object_lock(object);
            match work() {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    drop(guard);
                    self.make_room()?;
                }
                other => return other,
            }
        }
    }

    fn lay_tombstone(
        &self,
        fs: FsId,
        object: ObjectId,
        blocks: &Range<BlockIndex>,
        version: Version,
    ) -> Result<()> {
        let old = read_tombstones(&self.index, fs, object, blocks.start)?;
        let tombstone = Tombstone { from: blocks.start, version };
        let new = lay_over(&old, Piece { tombstone, to: blocks.end });
        if new == old {
            return Ok(());
        }
        let mut edits = Edits::default();
        for piece in &old {
            edits.delete(&tombstone_key(fs, object, piece.to));
        }
        for piece in &new {
            let key = tombstone_key(fs, object, piece.to);
            edits.put(&key, encode_tombstone(&key, piece.tombstone));
        }
        self.publish(|_| (edits, Vec::new()))
    }

    /// Deletes some strips from `from` on; returns the last key looked at, `None` at the end.
    fn delete_batch(&self, from: &[u8], to: &[u8], version: Version) -> Result<Option<Vec<u8>>> {
        let mut edits = Edits::default();
        let mut freed: Vec<Extent> = Vec::new();
        let mut gone: Vec<StripKey> = Vec::new();
        let mut last = None;
        let mut seen = 0;
        let mut damage = None;
        self.index.scan(from, to, &mut |encoded, value| {
            if seen == STRIPS_PER_ENTRY {
                return false;
            }
            seen += 1;
            last = Some(encoded.to_vec());
            let Some(key) = parse_strip_key(Table::Strip, encoded) else { return true };
            match decode_strip(encoded, value) {
                Err(error) => damage = Some(self.damaged(&key, error)),
                Ok(held) => {
                    let Some(change) = delete(&held, version) else { return true };
                    match &change.record {
                        Some(record) => edits.put(encoded, encode_strip(encoded, record)),
                        None => {
                            edits.delete(encoded);
                            gone.push(key);
                        }
                    }
                    freed.extend(change.freed);
                }
            }
            damage.is_none()
        })?;
        if let Some(error) = damage {
            return Err(error);
        }
        if !edits.is_empty() {
            self.publish(|_| (edits, freed))?;
            let mut unsettled = self.unsettled.lock();
            gone.iter().for_each(|key| {
                unsettled.remove(key);
            });
            self.strips.fetch_sub(gone.len() as u64, SeqCst);
        }
        Ok(last)
    }

    pub(super) fn forget_tombstones(
        &self,
        fs: FsId,
        object: ObjectId,
        version: Version,
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        self.retry_with_room(object, || {
            let mut edits = Edits::default();
            for piece in read_tombstones(&self.index, fs, object, BlockIndex(0))? {
                if piece.tombstone.version <= version {
                    edits.delete(&tombstone_key(fs, object, piece.to));
                }
            }
            if edits.is_empty() { Ok(()) } else { self.publish(|_| (edits, Vec::new())) }
        })?;
        Ok(NsdReply::Accepted { boot: self.boot })
    }

    pub(super) fn refuse(&self, key: &StripKey, version: Version) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let refused = self.retry_with_room(key.object, || {
            let held = self.record(key)?;
            match judge_refuse(held.as_ref(), self.floor(key)?, version) {
                RefuseVerdict::Held => Ok(false),
                RefuseVerdict::Refused => Ok(true),
                RefuseVerdict::Promise => {
                    let encoded = strip_key(Table::Promise, key);
                    let mut edits = Edits::default();
                    edits.put(&encoded, encode_promise(&encoded, version));
                    self.publish(|_| (edits, Vec::new()))?;
                    Ok(true)
                }
            }
        })?;
        if refused {
            // A promise that a crash could take back is none.
            self.make_durable()?;
        }
        Ok(NsdReply::Promise { refused })
    }

    /// A damaged part of the index, as an error.
    pub(super) fn index_error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("NSD {}: damaged {what}", self.nsd))
    }
}
