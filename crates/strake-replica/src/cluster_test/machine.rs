//! The state machine of the simulation: a few records. In some groups it is carried by snapshots;
//! in others it keeps its own state, and copies bring that to others.

use super::judge::{chain, digest, value_of};
use crate::core::Committed;
use crate::message::CopyId;
use crate::types::{Bytes, Position, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Stands for everything that was ever applied.
const CHAIN: u8 = 0;
/// Where the register was written last.
const WRITTEN: u8 = 1;
/// Other records have keys from here on.
const OTHERS: u8 = 2;
const OTHER_COUNT: u64 = 30;
/// A part of a copy has so many records, so that a copy has several.
const PART_RECORDS: usize = 4;

/// Keys with their new values, if they have one.
type Changes = Vec<(u8, Option<u64>)>;

#[derive(Clone, Default)]
pub(super) struct Machine {
    pub(super) applied: Position,
    records: BTreeMap<u8, u64>,
}

impl Machine {
    /// What all replicas must have alike at a position.
    pub(super) fn state(&self) -> u64 {
        let fold = |state, (&key, &value): (&u8, &u64)| chain(chain(state, u64::from(key)), value);
        self.records.iter().fold(1, fold)
    }

    /// Where the register was written last.
    pub(super) fn written_at(&self) -> Position {
        Position(self.records.get(&WRITTEN).copied().unwrap_or_default())
    }

    pub(super) fn snapshot(&self) -> Bytes {
        let state = (self.applied, &self.records);
        let mut bytes = postcard::to_allocvec(&state).expect("it encodes");
        // Long enough for several parts.
        bytes.resize(900 + (self.applied.0 % 900) as usize, 0);
        bytes.into()
    }

    pub(super) fn of(bytes: &[u8]) -> Machine {
        let (state, _) = postcard::take_from_bytes(bytes).expect("a snapshot of ours");
        let (applied, records) = state;
        Machine { applied, records }
    }

    /// Applies an entry. Returns the keys that it changed.
    pub(super) fn apply(&mut self, committed: &Committed) -> Vec<u8> {
        let entry = &committed.entry;
        assert_eq!(entry.position, self.applied.next(), "entries come in order");
        self.applied = entry.position;
        let state = self.records.get(&CHAIN).copied().unwrap_or_default();
        self.records.insert(CHAIN, chain(state, digest(entry)));
        let Some(value) = value_of(entry).filter(|_| committed.applies) else {
            return vec![CHAIN];
        };
        self.records.insert(WRITTEN, entry.position.0);
        let other = OTHERS + (value % OTHER_COUNT) as u8;
        // The next record goes, so that copies meet records that come and go.
        let gone = OTHERS + ((value + 1) % OTHER_COUNT) as u8;
        self.records.insert(other, value);
        self.records.remove(&gone);
        vec![CHAIN, WRITTEN, other, gone]
    }
}

/// A copy that a machine makes for another one.
struct Outgoing {
    copy: CopyId,
    /// The last key that was copied. `None` before the first one.
    cursor: Option<u8>,
    /// What was changed since the last part.
    changed: BTreeSet<u8>,
}

/// The copies that a machine makes.
#[derive(Default)]
pub(super) struct Copies(BTreeMap<ReplicaId, Outgoing>);

impl Copies {
    pub(super) fn note(&mut self, changed: &[u8]) {
        self.0.values_mut().for_each(|copy| copy.changed.extend(changed));
    }

    pub(super) fn end(&mut self, to: ReplicaId) {
        self.0.remove(&to);
    }

    /// Makes a part: what was changed since the last one, and the next records.
    pub(super) fn make(
        &mut self,
        machine: &Machine,
        to: ReplicaId,
        copy: CopyId,
        number: u64,
    ) -> Option<(Bytes, Option<Position>)> {
        if number == 0 {
            self.0.insert(to, Outgoing { copy, cursor: None, changed: BTreeSet::new() });
        }
        let outgoing = self.0.get_mut(&to).filter(|outgoing| outgoing.copy == copy)?;
        let changed = std::mem::take(&mut outgoing.changed);
        let value = |key: u8| (key, machine.records.get(&key).copied());
        let mut changes: Changes = changed.into_iter().map(value).collect();
        let start = outgoing.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let next: Vec<u8> =
            machine.records.range((start, Bound::Unbounded)).map(|(key, _)| *key).collect();
        let is_whole = next.len() <= PART_RECORDS;
        changes.extend(next.iter().take(PART_RECORDS).map(|&key| value(key)));
        outgoing.cursor = next.get(PART_RECORDS - 1).copied().or(Some(u8::MAX));
        let bytes = postcard::to_allocvec(&changes).expect("it encodes");
        Some((bytes.into(), is_whole.then_some(machine.applied)))
    }
}

impl Machine {
    /// Takes a part of a copy.
    pub(super) fn take(&mut self, number: u64, bytes: &[u8], whole: Option<Position>) {
        if number == 0 {
            *self = Machine::default();
        }
        let changes: Changes = postcard::from_bytes(bytes).expect("a part of ours");
        for (key, value) in changes {
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
        self.applied = whole.unwrap_or_default();
    }
}
