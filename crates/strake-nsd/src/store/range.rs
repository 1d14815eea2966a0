//! Deletes ranges, and keeps tombstones and promises.

use super::{BlockStore, Decided, Ticket};
use crate::edits::Edits;
use crate::extent::Extent;
use crate::keys::{
    Table, block_start, parse_strip_key, parse_tombstone_key, range_end, strip_key, tombstone_end,
    tombstone_key,
};
use crate::record::{
    StripRecord, Tombstone, decode_promise, decode_strip, decode_tombstone, encode_promise,
    encode_strip, encode_tombstone,
};
use crate::rules::{Piece, RefuseVerdict, delete, judge_refuse, lay_over};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use strake_proto::nsd::{NsdReply, RANGES_MAX, RangeChange};
use strake_proto::{BlockIndex, Error, ErrorKind, FsId, ObjectId, Result, StripKey, Version};
use strake_store::KvRead;

/// One journal entry deletes at most this many strips or promises.
const KEYS_PER_ENTRY: usize = 256;
/// One journal entry changes at most this many tombstones, far fewer than an entry can hold.
const PIECES_PER_ENTRY: usize = 1024;
/// A request with several changes ends early once it has taken so many steps, each of which deletes
/// up to [`KEYS_PER_ENTRY`] keys. A range with few strips takes two.
pub(super) const STEPS_MAX: usize = if cfg!(test) { 4 } else { 256 };

impl BlockStore {
    pub(super) fn change_ranges(
        &self,
        ticket: &Ticket<'_>,
        fs: FsId,
        changes: &[RangeChange],
    ) -> Result<NsdReply> {
        if changes.is_empty() || changes.len() > RANGES_MAX {
            let detail = format!("{} changes of ranges in one request", changes.len());
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let (mut done, mut steps) = (0, 0);
        for change in changes {
            let changed = match *change {
                RangeChange::Delete { object, from, to, version } => {
                    self.delete_range(ticket, (fs, object), from..to, version)
                }
                RangeChange::Forget { object, version } => {
                    self.forget_tombstones(ticket, fs, object, version).map(|_| 1)
                }
            };
            match changed {
                Ok(more) => steps += more,
                Err(error) if done == 0 => return Err(error),
                // It is asked for again, and then it is the first one.
                Err(_) => break,
            }
            done += 1;
            if steps >= STEPS_MAX {
                break;
            }
        }
        Ok(NsdReply::Changed { boot: self.boot, done })
    }

    /// Deletes a range, and returns the number of steps that it took.
    pub(super) fn delete_range(
        &self,
        ticket: &Ticket<'_>,
        (fs, object): (FsId, ObjectId),
        blocks: Range<BlockIndex>,
        version: Version,
    ) -> Result<usize> {
        self.refuse_if_failed()?;
        if blocks.start >= blocks.end {
            return Ok(0);
        }
        self.deletions.fetch_add(1, SeqCst);
        let deleted = self.delete_blocks(ticket, (fs, object), blocks, version);
        self.deletions.fetch_sub(1, SeqCst);
        let steps = deleted?;
        self.checkpoint_if_large();
        Ok(steps)
    }

    /// Deletes a range. The tombstone comes first, so deleted strips cannot come back. The work is
    /// done in steps that release the lock. Writes above the tombstone may come between them.
    /// Returns the number of steps.
    fn delete_blocks(
        &self,
        ticket: &Ticket<'_>,
        (fs, object): (FsId, ObjectId),
        blocks: Range<BlockIndex>,
        version: Version,
    ) -> Result<usize> {
        let mut steps = 0;
        let mut from = blocks.start;
        while from < blocks.end {
            from = self.retry_with_room(object, || {
                self.lay_tombstone(ticket, (fs, object), from..blocks.end, version)
            })?;
        }
        for table in [Table::Strip, Table::Promise] {
            if table == Table::Promise && self.promises.load(SeqCst) == 0 {
                continue;
            }
            let mut from = block_start(table, fs, object, blocks.start);
            let to = range_end(table, fs, object, blocks.end);
            loop {
                let last = self.retry_with_room(object, || match table {
                    Table::Strip => self.delete_strips(ticket, (&from, &to), version),
                    Table::Promise => self.delete_promises(ticket, (&from, &to), version),
                })?;
                steps += 1;
                let Some(last) = last else { break };
                from = last;
                from.push(0);
            }
        }
        Ok(steps)
    }

    /// Runs `work` under the object's lock. If the journal is full, makes room and runs it again.
    pub(super) fn retry_with_room<T>(
        &self,
        object: ObjectId,
        work: impl Fn() -> Result<T>,
    ) -> Result<T> {
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

    /// Lays a tombstone over the first part of `blocks`. Returns the block up to which it reaches.
    fn lay_tombstone(
        &self,
        ticket: &Ticket<'_>,
        (fs, object): (FsId, ObjectId),
        blocks: Range<BlockIndex>,
        version: Version,
    ) -> Result<BlockIndex> {
        let Found { pieces: old, damaged, is_cut } =
            self.tombstones(fs, object, blocks.start, blocks.end)?;
        let end = match old.last() {
            _ if !is_cut => blocks.end,
            Some(last) => last.to.min(blocks.end),
            // All tombstones found are damaged. They are out of the way next time.
            None => blocks.start,
        };
        let tombstone = Tombstone { from: blocks.start, version };
        let new = lay_over(&old, Piece { tombstone, to: end });
        if new == old && damaged.is_empty() {
            return Ok(end);
        }
        let mut edits = Edits::default();
        damaged.iter().for_each(|key| edits.delete(key));
        for piece in old.iter().filter(|piece| !has(&new, piece)) {
            edits.delete(&tombstone_key(fs, object, piece.to));
        }
        for piece in new.iter().filter(|piece| !has(&old, piece)) {
            let key = tombstone_key(fs, object, piece.to);
            edits.put(&key, encode_tombstone(&key, piece.tombstone));
        }
        self.publish(ticket, |_| edits.into())?;
        Ok(end)
    }

    /// The first tombstones of an object that overlap or touch `from..to`. There are at most as
    /// many as one journal entry takes.
    fn tombstones(
        &self,
        fs: FsId,
        object: ObjectId,
        from: BlockIndex,
        to: BlockIndex,
    ) -> Result<Found> {
        let mut found = Found::default();
        let start = tombstone_key(fs, object, from);
        self.index.scan(&start, &tombstone_end(fs, object), &mut |key, value| {
            if found.pieces.len() + found.damaged.len() == PIECES_PER_ENTRY {
                found.is_cut = true;
                return false;
            }
            let parsed = parse_tombstone_key(key);
            match parsed.and_then(|(_, _, end)| Some((end, decode_tombstone(key, value).ok()?))) {
                Some((_, tombstone)) if tombstone.from > to => return false,
                Some((end, tombstone)) => found.pieces.push(Piece { tombstone, to: end }),
                None => found.damaged.push(key.to_vec()),
            }
            true
        })?;
        Ok(found)
    }

    /// Deletes some strips from `from` on. Returns the last key looked at, or `None` at the end.
    fn delete_strips(
        &self,
        ticket: &Ticket<'_>,
        (from, to): (&[u8], &[u8]),
        version: Version,
    ) -> Result<Option<Vec<u8>>> {
        let mut edits = Edits::default();
        let mut freed: Vec<Extent> = Vec::new();
        let mut gone: Vec<StripKey> = Vec::new();
        let mut left: Vec<(StripKey, StripRecord)> = Vec::new();
        let mut strips = 0;
        let last = self.visit_some(from, to, &mut |encoded, value| {
            let Some(key) = parse_strip_key(Table::Strip, encoded) else { return };
            // A damaged strip can never be read again, so its version does not matter.
            let Ok(held) = decode_strip(encoded, value) else {
                edits.delete(encoded);
                gone.push(key);
                return;
            };
            let Some(change) = delete(&held, version) else { return };
            match change.record {
                Some(record) => {
                    edits.put(encoded, encode_strip(encoded, &record));
                    left.push((key, record));
                }
                None => {
                    edits.delete(encoded);
                    gone.push(key);
                    strips += 1;
                }
            }
            freed.extend(change.freed);
        })?;
        if !edits.is_empty() {
            self.publish(ticket, |_| Decided { edits, freed, taken: 0 })?;
            for key in &gone {
                self.unsettled.lock().remove(key);
                self.crooked.lock().forget(key);
            }
            left.iter().for_each(|(key, record)| self.note_displaced(*key, record));
            self.strips.fetch_sub(strips, SeqCst);
        }
        Ok(last)
    }

    /// Deletes promises that the tombstone replaces from now on.
    fn delete_promises(
        &self,
        ticket: &Ticket<'_>,
        (from, to): (&[u8], &[u8]),
        version: Version,
    ) -> Result<Option<Vec<u8>>> {
        let mut edits = Edits::default();
        let last = self.visit_some(from, to, &mut |encoded, value| {
            if decode_promise(encoded, value).is_ok_and(|promised| promised <= version) {
                edits.delete(encoded);
            }
        })?;
        if !edits.is_empty() {
            let count = edits.0.len() as u64;
            self.publish(ticket, |_| edits.into())?;
            self.promises.fetch_sub(count, SeqCst);
        }
        Ok(last)
    }

    /// Shows `visit` the next keys, as many as one journal entry takes. Returns the last one, or
    /// `None` if there was none.
    fn visit_some(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Option<Vec<u8>>> {
        let mut last = None;
        let mut seen = 0;
        self.index.scan(from, to, &mut |key, value| {
            seen += 1;
            last = Some(key.to_vec());
            visit(key, value);
            seen < KEYS_PER_ENTRY
        })?;
        Ok(last)
    }

    pub(super) fn forget_tombstones(
        &self,
        ticket: &Ticket<'_>,
        fs: FsId,
        object: ObjectId,
        version: Version,
    ) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let mut from = BlockIndex(0);
        loop {
            let next = self.retry_with_room(object, || {
                let found = self.tombstones(fs, object, from, BlockIndex::END)?;
                let mut edits = Edits::default();
                found.damaged.iter().for_each(|key| edits.delete(key));
                for piece in found.pieces.iter().filter(|one| one.tombstone.version <= version) {
                    edits.delete(&tombstone_key(fs, object, piece.to));
                }
                if !edits.is_empty() {
                    self.publish(ticket, |_| edits.into())?;
                }
                let next = found.pieces.last().map_or(from, |last| last.to);
                Ok(found.is_cut.then_some(next))
            })?;
            match next {
                Some(to) => from = to,
                None => return Ok(NsdReply::Accepted { boot: self.boot }),
            }
        }
    }

    pub(super) fn refuse(
        &self,
        ticket: &Ticket<'_>,
        key: &StripKey,
        version: Version,
    ) -> Result<NsdReply> {
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
                    let is_new = self.index.get(&encoded)?.is_none();
                    self.publish(ticket, |_| edits.into())?;
                    self.promises.fetch_add(u64::from(is_new), SeqCst);
                    Ok(true)
                }
            }
        })?;
        if refused {
            // A promise must survive a crash, so it is made durable now.
            self.make_durable()?;
        }
        Ok(NsdReply::Promise { refused })
    }
}

/// Tombstones found of an object.
#[derive(Default)]
struct Found {
    /// Intact tombstones, in order.
    pieces: Vec<Piece>,
    /// Keys of damaged tombstones.
    damaged: Vec<Vec<u8>>,
    /// True if there are more.
    is_cut: bool,
}

/// True if `pieces`, which are in order, contain exactly this one.
fn has(pieces: &[Piece], piece: &Piece) -> bool {
    pieces.binary_search_by_key(&piece.to, |one| one.to).is_ok_and(|at| pieces[at] == *piece)
}
