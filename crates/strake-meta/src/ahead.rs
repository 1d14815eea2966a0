//! The state of a replica of the metadata that may be ahead of its log (decision 0044). See
//! `replicated.rs` for what drives it.
//!
//! A leader decides on each change at once and answers it. The log commits the change later, or
//! never, if another leader comes in between. So the state has two parts:
//!
//! ```text
//! base    what committed entries have made, in order; only this is ever written to a disk
//! layer   in memory: what the entries have changed that were decided ahead, the *tail*
//! ```
//!
//! 1. [`Ahead::decide`] runs the state machine on both parts together. When the log has taken the
//!    entry, [`Ahead::add`] puts its changes into the layer.
//! 2. [`Ahead::commit`] takes each committed entry in order. If it is the first of the tail, its
//!    changes move from the layer to the base. If the place has another entry, another leader has
//!    replaced the tail: the whole tail is dropped, and the machine decides on the base.
//! 3. [`Ahead::drop_tail`] is for a leader that steps down. Clients send again what was answered
//!    and is not durable (`strake-net`).
//!
//! Invariant: the base is what a replica has that applied the same committed entries and was never
//! ahead. [`Ahead::check`] verifies what is known of the layer.

use crate::log_entry::{LogEntry, decode_entry};
use crate::machine;
use crate::ops::rename::Nesting;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use strake_proto::Result;
use strake_proto::meta::{CountedAnswer, MetaReply};
use strake_store::{Batch, KvRead};

/// A store that takes changes.
pub trait Base: KvRead {
    /// Makes the changes of the entry at `position`. There may be none.
    fn apply(&mut self, changes: &Batch, position: u64);
}

impl Base for crate::MemoryKv {
    fn apply(&mut self, changes: &Batch, _position: u64) {
        crate::MemoryKv::apply(self, changes);
    }
}

/// An entry that was decided ahead.
struct Decided {
    position: u64,
    bytes: Arc<[u8]>,
    changes: Batch,
}

/// A key with its new value, if it has one.
type Change<'a> = (&'a [u8], Option<&'a Arc<[u8]>>);

/// A key's newest change in the tail: at which position, and the value.
type Newest = (u64, Option<Arc<[u8]>>);

/// See the module.
pub struct Ahead<K> {
    base: K,
    /// The last committed position that the base has.
    committed: u64,
    tail: VecDeque<Decided>,
    /// Bytes of the entries in the tail.
    tail_bytes: u64,
    layer: BTreeMap<Vec<u8>, Newest>,
}

impl<K: Base> Ahead<K> {
    /// A replica whose base has the entries up to `committed`.
    pub fn new(base: K, committed: u64) -> Ahead<K> {
        let (tail, layer) = (VecDeque::new(), BTreeMap::new());
        Ahead { base, committed, tail, tail_bytes: 0, layer }
    }

    /// The store that committed entries have made.
    pub fn base(&self) -> &K {
        &self.base
    }

    /// The last committed position that the base has.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The position of the last entry that was decided or committed.
    pub fn last(&self) -> u64 {
        self.tail.back().map_or(self.committed, |decided| decided.position)
    }

    /// Decides on an entry that the log may get at `position`. Nothing is changed yet. An entry
    /// without changes needs no place in the log.
    ///
    /// # Errors
    /// Those of the state machine.
    pub fn decide(&self, bytes: &[u8], position: u64) -> Result<(CountedAnswer, Batch)> {
        self.decide_knowing(bytes, position, &[])
    }

    /// As [`Ahead::decide`], with what was found out before (`store/moves.rs`).
    pub(crate) fn decide_knowing(
        &self,
        bytes: &[u8],
        position: u64,
        known: &[(Nesting, bool)],
    ) -> Result<(CountedAnswer, Batch)> {
        assert!(position > self.last(), "positions rise");
        decide(self, bytes, position, known)
    }

    /// Bytes of entries that are not committed.
    pub fn tail_bytes(&self) -> u64 {
        self.tail_bytes
    }

    /// The state as it is now over another form of the same base. Nothing is ever committed to it.
    pub(crate) fn over<B>(&self, base: B) -> Ahead<B> {
        let (committed, layer) = (self.committed, self.layer.clone());
        Ahead { base, committed, tail: VecDeque::new(), tail_bytes: 0, layer }
    }

    /// Makes the changes that were decided for an entry. The log has it at `position` now.
    pub fn add(&mut self, bytes: &[u8], position: u64, changes: Batch) {
        assert!(position > self.last(), "positions rise");
        for (key, value) in changes.iter() {
            self.layer.insert(key.to_vec(), (position, value.cloned()));
        }
        self.tail_bytes += bytes.len() as u64;
        self.tail.push_back(Decided { position, bytes: bytes.into(), changes });
    }

    /// The base has become what it was at `position` elsewhere. Nothing is ahead of it.
    pub fn restart(&mut self, position: u64) {
        self.drop_tail();
        self.committed = position;
    }

    /// Takes the committed entry at `position`. `bytes` is `None` for an entry that is not for the
    /// state machine, such as the beginning of a term. Returns what was changed in the base.
    ///
    /// # Errors
    /// `Corrupt` for bytes that no leader proposed, and the store's: this replica must end.
    pub fn commit(&mut self, bytes: Option<&[u8]>, position: u64) -> Result<Batch> {
        assert_eq!(position, self.committed + 1, "entries are committed in order");
        let is_ours = self.tail.front().is_some_and(|first| {
            first.position == position && bytes.is_some_and(|bytes| *first.bytes == *bytes)
        });
        let changes = if is_ours && let Some(ours) = self.tail.pop_front() {
            let Decided { changes, bytes, .. } = ours;
            self.tail_bytes -= bytes.len() as u64;
            for (key, _) in changes.iter() {
                // A later change of the tail stays.
                if self.layer.get(key).is_some_and(|(newest, _)| *newest == position) {
                    self.layer.remove(key);
                }
            }
            changes
        } else {
            if self.tail.front().is_some_and(|first| first.position <= position) {
                self.drop_tail();
            }
            match bytes {
                Some(bytes) => {
                    assert!(self.tail.is_empty(), "a leader has proposed what is before its tail");
                    decide(&self.base, bytes, position, &[])?.1
                }
                None => Batch::new(),
            }
        };
        self.base.apply(&changes, position);
        self.committed = position;
        Ok(changes)
    }

    /// Forgets everything that is not committed. Returns how many entries that were.
    pub fn drop_tail(&mut self) -> usize {
        self.layer.clear();
        self.tail_bytes = 0;
        std::mem::take(&mut self.tail).len()
    }

    /// Asserts what must be true between calls.
    pub fn check(&self) {
        let positions = self.tail.iter().map(|decided| decided.position);
        assert!(positions.is_sorted(), "the tail is in order");
        assert!(self.tail.front().is_none_or(|first| first.position > self.committed));
        let bytes: usize = self.tail.iter().map(|decided| decided.bytes.len()).sum();
        assert_eq!(self.tail_bytes, bytes as u64, "the tail's bytes are counted");
        let mut newest: BTreeMap<&[u8], u64> = BTreeMap::new();
        for Decided { position, changes, .. } in &self.tail {
            newest.extend(changes.iter().map(|(key, _)| (key, *position)));
        }
        let layer = self.layer.iter().map(|(key, (position, _))| (key.as_slice(), *position));
        assert!(layer.eq(newest), "the layer has exactly what the tail changes");
    }
}

/// Runs the state machine. An entry that the machine refuses at its leader is never in the log.
fn decide(
    kv: &dyn KvRead,
    bytes: &[u8],
    position: u64,
    known: &[(Nesting, bool)],
) -> Result<(CountedAnswer, Batch)> {
    match decode_entry(bytes)? {
        LogEntry::Plain(entry) => machine::apply_knowing(kv, &entry, known)
            .map(|(reply, changes)| (CountedAnswer { position, outcome: Ok(reply) }, changes)),
        LogEntry::Counted(counted) => machine::apply_counted_knowing(kv, &counted, position, known),
        LogEntry::CountedBefore(counted) => machine::apply_counted_before(kv, &counted, position),
        LogEntry::GoesOn(lost) => {
            let answer = CountedAnswer { position, outcome: Ok(MetaReply::Done) };
            machine::go_on(kv, &lost).map(|changes| (answer, changes))
        }
    }
}

impl<K: Base> Ahead<K> {
    fn range(&self, from: &[u8], to: &[u8]) -> Vec<Change<'_>> {
        if from >= to {
            return Vec::new();
        }
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let range = self.layer.range::<[u8], _>(bounds);
        range.map(|(key, (_, value))| (key.as_slice(), value.as_ref())).collect()
    }
}

/// Visits the pairs of two sorted runs as one; `layer` wins, and its removed keys are not there.
struct Merge<'a> {
    layer: std::vec::IntoIter<Change<'a>>,
    next: Option<Change<'a>>,
    is_descending: bool,
    is_over: bool,
}

impl<'a> Merge<'a> {
    fn new(mut run: Vec<Change<'a>>, is_descending: bool) -> Merge<'a> {
        if is_descending {
            run.reverse();
        }
        let mut layer = run.into_iter();
        let next = layer.next();
        Merge { layer, next, is_descending, is_over: false }
    }

    /// Visits what the layer has before `key`, or all of it. False if the visitor has enough.
    fn up_to(&mut self, key: Option<&[u8]>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        while let Some((own, value)) = self.next {
            let is_before =
                key.is_none_or(|key| if self.is_descending { own > key } else { own < key });
            if !is_before {
                break;
            }
            self.next = self.layer.next();
            if let Some(value) = value
                && !visit(own, value)
            {
                self.is_over = true;
                return false;
            }
        }
        true
    }

    /// Takes a pair of the base.
    fn base(
        &mut self,
        key: &[u8],
        value: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        if !self.up_to(Some(key), visit) {
            return false;
        }
        let goes_on = match self.next {
            Some((own, newer)) if own == key => {
                self.next = self.layer.next();
                newer.is_none_or(|newer| visit(key, newer))
            }
            _ => visit(key, value),
        };
        self.is_over = !goes_on;
        goes_on
    }
}

impl<K: Base> KvRead for Ahead<K> {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        match self.layer.get(key) {
            Some((_, value)) => Ok(value.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut merge = Merge::new(self.range(from, to), false);
        self.base.scan(from, to, &mut |key, value| merge.base(key, value, visit))?;
        if !merge.is_over {
            merge.up_to(None, visit);
        }
        Ok(())
    }

    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut merge = Merge::new(self.range(from, to), true);
        self.base.scan_back(from, to, &mut |key, value| merge.base(key, value, visit))?;
        if !merge.is_over {
            merge.up_to(None, visit);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ahead_test.rs"]
mod ahead_test;
