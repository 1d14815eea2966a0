//! What must always hold, and whether the history of a register is linearizable.

use crate::entry::{Entry, Payload};
use crate::types::{Life, Position, ReplicaId};
use std::collections::BTreeMap;
use strake_proto::Term;

/// A step in the chain that stands for a machine's state.
pub(super) fn chain(state: u64, part: u64) -> u64 {
    (state ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ part
}

/// What an entry comes to in the chain.
pub(super) fn digest(entry: &Entry) -> u64 {
    let bytes = postcard::to_allocvec(entry).expect("it encodes");
    bytes.iter().fold(17, |state, &byte| chain(state, u64::from(byte)))
}

/// The value that an entry writes, if it does.
pub(super) fn value_of(entry: &Entry) -> Option<u64> {
    let Payload::Data { bytes, .. } = &entry.payload else { return None };
    let value = bytes.get(..8)?;
    Some(value.iter().fold(0, |value, &byte| (value << 8) | u64::from(byte)))
}

/// What a client did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) is_read: bool,
    pub(super) begun: u64,
    /// When it ended, if that is known.
    pub(super) ended: Option<u64>,
    /// The position of what it wrote or read. Unknown for a write that never ended.
    pub(super) position: Option<Position>,
    /// What it wrote.
    pub(super) value: u64,
}

#[derive(Default)]
pub(super) struct Judge {
    /// The digest of what is committed, and the state after it.
    chosen: BTreeMap<Position, (u64, u64)>,
    written: BTreeMap<u64, Position>,
    leaders: BTreeMap<Term, (ReplicaId, Life)>,
    pub(super) operations: Vec<Operation>,
}

impl Judge {
    /// A replica says that this is committed, and has this state after it.
    pub(super) fn committed(&mut self, by: ReplicaId, entry: &Entry, state: u64) {
        let digest = digest(entry);
        let position = entry.position;
        let known = *self.chosen.entry(position).or_insert((digest, state));
        assert_eq!(known, (digest, state), "{by} has something else committed at {position}");
        if let Some(value) = value_of(entry) {
            let first = *self.written.entry(value).or_insert(position);
            assert_eq!(first, position, "{by}: {value} is written twice");
        }
    }

    /// A replica has this state at a position, from a snapshot.
    pub(super) fn installed(&self, by: ReplicaId, position: Position, state: u64) {
        let known = match position {
            Position::START => Some(super::machine::Machine::default().state()),
            _ => self.chosen.get(&position).map(|(_, state)| *state),
        };
        assert_eq!(known, Some(state), "{by} has another state at {position}");
    }

    /// A replica leads. Returns whether it is a new leader.
    pub(super) fn leads(&mut self, term: Term, who: ReplicaId, life: Life) -> bool {
        let is_new = !self.leaders.contains_key(&term);
        let first = *self.leaders.entry(term).or_insert((who, life));
        assert_eq!(first, (who, life), "two leaders in term {term}");
        is_new
    }

    pub(super) fn last_chosen(&self) -> Position {
        self.chosen.last_key_value().map_or(Position::START, |(position, _)| *position)
    }

    /// Judges the whole history. The log gives the order of writes, so it is enough to compare each
    /// operation with what ended before it began.
    pub(super) fn judge_history(&self) {
        let position = |operation: &Operation| match operation.is_read {
            true => operation.position,
            false => self.written.get(&operation.value).copied(),
        };
        for operation in self.operations.iter().filter(|operation| !operation.is_read) {
            if let (Some(_), Some(acknowledged)) = (operation.ended, operation.position) {
                let chosen = self.written.get(&operation.value);
                assert_eq!(chosen, Some(&acknowledged), "an acknowledged write: {operation:?}");
            }
        }
        let mut ends: Vec<(u64, Position)> = Vec::new();
        for operation in &self.operations {
            if let (Some(ended), Some(position)) = (operation.ended, position(operation)) {
                ends.push((ended, position));
            }
        }
        ends.sort_unstable();
        let mut operations: Vec<&Operation> = self.operations.iter().collect();
        operations.sort_by_key(|operation| operation.begun);
        let (mut before, mut highest) = (0, Position::START);
        for operation in operations {
            while ends.get(before).is_some_and(|(ended, _)| *ended < operation.begun) {
                highest = highest.max(ends[before].1);
                before += 1;
            }
            let Some(position) = position(operation) else { continue };
            if operation.is_read && operation.ended.is_some() {
                assert!(position >= highest, "a stale read: {operation:?}, not {highest}");
            } else if !operation.is_read {
                assert!(position > highest, "a write before its time: {operation:?}, {highest}");
            }
        }
    }
}

#[test]
fn stale_reads_and_lost_writes_are_found() {
    let read = |begun, position| Operation {
        is_read: true,
        begun,
        ended: Some(begun + 1),
        position: Some(Position(position)),
        value: 0,
    };
    let judge = |operations| Judge { operations, ..Judge::default() };
    judge(vec![read(1, 1), read(3, 2), read(5, 2)]).judge_history();
    let stale = judge(vec![read(1, 2), read(3, 1)]);
    assert!(std::panic::catch_unwind(move || stale.judge_history()).is_err());
    let lost = Operation { is_read: false, value: 9, ..read(1, 1) };
    let lost = judge(vec![lost]);
    assert!(std::panic::catch_unwind(move || lost.judge_history()).is_err());
}
