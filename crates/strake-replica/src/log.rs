//! The log of one replica in memory: a snapshot, and the entries behind a base.
//!
//! ```text
//!      base            snapshot                 last
//!        │ kept entries   │  entries              │
//! ───────┴────────────────┴───────────────────────┘
//! ```
//!
//! The base is at the snapshot or before it. Entries between the two are kept for replicas that
//! lag a little, so that they need no snapshot.

use crate::entry::{Entry, Payload, Snapshot};
use crate::membership::Membership;
use crate::types::{Position, Stamp};
use std::sync::Arc;
use strake_proto::Term;

/// A snapshot and the entries behind the base.
#[derive(Clone, Debug, Default)]
pub struct Log {
    base: Stamp,
    entries: Vec<Entry>,
    snapshot: Option<Arc<Snapshot>>,
    /// Where each membership of the log begins, rising. The first one may lie before the base.
    memberships: Vec<(Position, Membership)>,
    /// The same for feature levels.
    levels: Vec<(Position, u32)>,
    bytes: usize,
}

impl Log {
    /// A log as a journal kept it. `None` if the parts do not fit together.
    pub fn of(base: Stamp, snapshot: Option<Arc<Snapshot>>, entries: Vec<Entry>) -> Option<Log> {
        let mut log = Log { base, ..Log::default() };
        match &snapshot {
            Some(snapshot) => {
                log.memberships.push((snapshot.stamp.position, snapshot.membership.clone()));
                log.levels.push((snapshot.stamp.position, snapshot.level));
            }
            None if base != Stamp::default() => return None,
            None => {}
        }
        log.snapshot = snapshot;
        for entry in entries {
            let fits =
                entry.position == log.last().position.next() && entry.term >= log.last().term;
            if !fits {
                return None;
            }
            log.push(entry);
        }
        let start = log.snapshot_stamp();
        (base <= start && log.last() >= start && log.term_at(start.position) == Some(start.term))
            .then_some(log)
    }

    /// The stamp before the first entry that is kept.
    pub fn base(&self) -> Stamp {
        self.base
    }

    /// The last entry's stamp.
    pub fn last(&self) -> Stamp {
        self.entries.last().map_or(self.base, Entry::stamp)
    }

    /// The snapshot, if there is one.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.snapshot.as_ref()
    }

    /// What the snapshot covers.
    pub fn snapshot_stamp(&self) -> Stamp {
        self.snapshot.as_ref().map_or_else(Stamp::default, |snapshot| snapshot.stamp)
    }

    /// The cost of all entries that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The cost of the entries that are kept up to a position.
    pub fn bytes_up_to(&self, position: Position) -> usize {
        self.bytes - self.from(position.next()).iter().map(Entry::cost).sum::<usize>()
    }

    /// The term of the entry at a position, if it is known.
    pub fn term_at(&self, position: Position) -> Option<Term> {
        if position == self.base.position {
            return Some(self.base.term);
        }
        self.entry(position).map(|entry| entry.term)
    }

    /// The entry at a position, if it is kept.
    pub fn entry(&self, position: Position) -> Option<&Entry> {
        let index = position.0.checked_sub(self.base.position.0)?.checked_sub(1)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The entries from a position on.
    pub fn from(&self, position: Position) -> &[Entry] {
        assert!(position > self.base.position, "the entries before the base are gone");
        let index = (position.0 - self.base.position.0 - 1) as usize;
        self.entries.get(index..).unwrap_or_default()
    }

    /// The newest membership.
    pub fn membership(&self) -> &Membership {
        static NOBODY: Membership = Membership {
            voters: std::collections::BTreeSet::new(),
            outgoing: std::collections::BTreeSet::new(),
            learners: std::collections::BTreeSet::new(),
        };
        self.memberships.last().map_or(&NOBODY, |(_, membership)| membership)
    }

    /// The newest stamp from which the newest membership is known to hold.
    pub fn membership_stamp(&self) -> Stamp {
        let position = self.membership_position();
        let term = self.term_at(position).unwrap_or(self.snapshot_stamp().term);
        Stamp { term, position }
    }

    /// Where the newest membership stands.
    pub fn membership_position(&self) -> Position {
        self.memberships.last().map_or(Position::START, |(position, _)| *position)
    }

    /// The feature level at a position, which is at the snapshot or behind it.
    pub fn level_at(&self, position: Position) -> u32 {
        let known = self.levels.iter().rev().find(|(start, _)| *start <= position);
        known.map_or(0, |(_, level)| *level)
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, entry: Entry) {
        assert_eq!(entry.position, self.last().position.next(), "entries have no gaps");
        assert!(entry.term >= self.last().term, "terms do not fall");
        let is_covered = entry.position <= self.snapshot_stamp().position;
        match &entry.payload {
            Payload::Membership(members) if !is_covered => {
                self.memberships.push((entry.position, members.clone()));
            }
            Payload::Level(level) if !is_covered => self.levels.push((entry.position, *level)),
            _ => {}
        }
        self.bytes += entry.cost();
        self.entries.push(entry);
    }

    /// Removes all entries behind `last`.
    pub fn truncate(&mut self, last: Position) {
        assert!(last >= self.snapshot_stamp().position, "what a snapshot covers is committed");
        let keep = (last.0 - self.base.position.0) as usize;
        let removed = self.entries.drain(keep.min(self.entries.len())..);
        self.bytes -= removed.map(|entry| entry.cost()).sum::<usize>();
        self.memberships.retain(|(position, _)| *position <= last);
        self.levels.retain(|(position, _)| *position <= last);
    }

    /// The snapshot of the state machine's `bytes` at a position that is in the log.
    pub fn snapshot_at(&self, position: Position, bytes: crate::types::Bytes) -> Option<Snapshot> {
        let term = self.term_at(position)?;
        let known = self.memberships.iter().rev().find(|(start, _)| *start <= position);
        Some(Snapshot {
            stamp: Stamp { term, position },
            membership: known.map(|(_, membership)| membership.clone()).unwrap_or_default(),
            level: self.level_at(position),
            bytes,
        })
    }

    /// The base that keeps so much before a position.
    fn base_to_keep(&self, position: Position, kept: u64, kept_bytes: usize) -> Position {
        let (mut base, mut bytes) = (position, 0);
        while base > self.base.position && position.0 - base.0 < kept {
            bytes += self.entry(base).map_or(0, Entry::cost);
            if bytes > kept_bytes {
                break;
            }
            base = base.previous();
        }
        base
    }

    /// Takes a newer snapshot. Entries behind its stamp stay if the log has the stamp. Otherwise
    /// the log is another one, and goes. Before the stamp up to `kept` entries stay, of
    /// `kept_bytes` at most.
    pub fn take_snapshot(&mut self, snapshot: Arc<Snapshot>, kept: u64, kept_bytes: usize) {
        let stamp = snapshot.stamp;
        assert!(stamp.position >= self.snapshot_stamp().position, "snapshots do not go back");
        if self.term_at(stamp.position) == Some(stamp.term) {
            let base = self.base_to_keep(stamp.position, kept, kept_bytes);
            let term = self.term_at(base).expect("invariant: entries have no gaps");
            let gone = (base.0 - self.base.position.0) as usize;
            let gone = self.entries.drain(..gone);
            self.bytes -= gone.map(|entry| entry.cost()).sum::<usize>();
            self.base = Stamp { term, position: base };
        } else {
            self.entries.clear();
            self.bytes = 0;
            self.base = stamp;
        }
        let behind =
            |position: &Position| *position > stamp.position && *position <= self.last().position;
        let mut memberships = self.memberships.clone();
        memberships.retain(|(position, _)| behind(position));
        memberships.insert(0, (stamp.position, snapshot.membership.clone()));
        let mut levels = self.levels.clone();
        levels.retain(|(position, _)| behind(position));
        levels.insert(0, (stamp.position, snapshot.level));
        (self.memberships, self.levels) = (memberships, levels);
        self.snapshot = Some(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Bytes, ReplicaId};

    fn entry(position: u64, term: u64, payload: Payload) -> Entry {
        Entry { term: Term(term), position: Position(position), payload }
    }

    fn data(position: u64, term: u64) -> Entry {
        entry(position, term, Payload::Data { level: 0, bytes: Bytes::from(&b"x"[..]) })
    }

    fn three() -> Membership {
        Membership::of([1, 2, 3].map(ReplicaId))
    }

    #[test]
    fn a_membership_ends_with_the_entry_that_made_it() {
        let mut log = Log::default();
        log.push(entry(1, 1, Payload::Membership(three())));
        log.push(entry(2, 1, Payload::Level(4)));
        let four = Membership::of([1, 2, 3, 4].map(ReplicaId));
        log.push(entry(3, 1, Payload::Membership(four.clone())));
        assert_eq!((log.membership(), log.level_at(Position(2))), (&four, 4));
        log.truncate(Position(1));
        assert_eq!((log.membership(), log.level_at(Position(9))), (&three(), 0));
        assert_eq!(log.last(), Stamp { term: Term(1), position: Position(1) });
    }

    #[test]
    fn a_snapshot_keeps_what_fits_and_drops_another_log() {
        let mut log = Log::default();
        log.push(entry(1, 1, Payload::Membership(three())));
        (2..=9).for_each(|position| log.push(data(position, 1)));
        let snapshot = log.snapshot_at(Position(7), Bytes::from(&b"s"[..])).expect("it is there");
        log.take_snapshot(Arc::new(snapshot.clone()), 2, 1000);
        assert_eq!((log.base().position, log.last().position), (Position(5), Position(9)));
        assert_eq!((log.membership(), log.from(Position(6)).len()), (&three(), 4));
        assert_eq!(log.base_to_keep(Position(9), 4, 150), Position(7), "two entries fit");
        let other = Stamp { term: Term(3), position: Position(9) };
        log.take_snapshot(Arc::new(Snapshot { stamp: other, ..snapshot }), 2, 1000);
        assert_eq!((log.base(), log.last(), log.bytes()), (other, other, 0));
    }

    #[test]
    fn parts_that_do_not_fit_are_no_log() {
        let base = Stamp { term: Term(1), position: Position(3) };
        assert!(Log::of(base, None, vec![data(4, 1)]).is_none(), "the entries before are missing");
        assert!(Log::of(Stamp::default(), None, vec![data(1, 1), data(3, 1)]).is_none());
        assert!(Log::of(Stamp::default(), None, vec![data(1, 2), data(2, 1)]).is_none());
        assert!(Log::of(Stamp::default(), None, vec![data(1, 1), data(2, 2)]).is_some());
    }
}
