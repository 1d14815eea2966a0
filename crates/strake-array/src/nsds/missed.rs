//! Missed-writes tables: which blocks an NSD that is away may lack, so that only these are compared
//! when it is back. Pure: no lock, no clock, no I/O.
//!
//! **Invariant.** For every NSD with a complete table, and every block: the NSD has made the newest
//! acknowledged version of its strip stable, or the block is in its table, or among those *sent*
//! (accepted since the last commit). It holds because
//!
//! * a write notes its block for every NSD that it left out or that failed it, and as sent for
//!   those that accepted it, before it lets others come between ([`super::NsdSet::gate`]);
//! * a commit moves what was sent before it to the tables of all NSDs that it did not reach, and of
//!   all where an NSD was started anew since it was sent;
//! * deletions are not in it: each waits in the metadata for those who are away.
//!
//! A table is *incomplete*, and everything is compared, where this cannot be known: the NSD was
//! away when this client began, came back older than it went, changed hands or lost a part of its
//! index, an heir missed what it was to take over, or the table grew too long. Tables live as long
//! as the client; what it would cost to make each entry durable before a degraded write is more
//! than they save (decision 0018).

use std::collections::{BTreeMap, BTreeSet};
use strake_proto::{BlockIndex, ObjectId, SlotIndex};

/// The longest table, in blocks, and the longest list of what was sent. At some 50 bytes each.
const BLOCKS_MAX: usize = 1 << 18;

/// What one NSD may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    objects: BTreeMap<ObjectId, BTreeSet<BlockIndex>>,
    count: usize,
    complete: bool,
}

impl Table {
    /// Nothing is missing.
    fn complete() -> Table {
        Table { objects: BTreeMap::new(), count: 0, complete: true }
    }

    /// Whether everything else is known to be there.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether nothing is missing.
    pub fn is_clean(&self) -> bool {
        self.complete && self.count == 0
    }

    /// How many blocks are in it.
    pub fn blocks(&self) -> u64 {
        self.count as u64
    }

    /// Those of an object.
    pub fn blocks_of(&self, object: ObjectId) -> Option<&BTreeSet<BlockIndex>> {
        self.objects.get(&object)
    }

    fn add(&mut self, object: ObjectId, block: BlockIndex) {
        if !self.complete {
            return;
        }
        self.count += usize::from(self.objects.entry(object).or_default().insert(block));
        if self.count > BLOCKS_MAX {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        *self = Table { complete: false, ..Table::complete() };
    }
}

/// A block of which strips were accepted.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub object: ObjectId,
    pub block: BlockIndex,
    /// Who accepted a strip of it.
    pub accepted: Vec<SlotIndex>,
    /// `NsdSet::restarts` before it was sent.
    pub restarts: u64,
}

/// See the file's head.
pub struct Missed {
    tables: Vec<Table>,
    sent: Vec<Sent>,
    /// Not all of `sent` is known: the count of restarts when the first was left out.
    overflow: Option<u64>,
}

/// What was sent before a commit began.
pub(crate) struct Batch {
    sent: Vec<Sent>,
    overflow: Option<u64>,
}

impl Missed {
    /// Complete tables without an entry, for so many slots.
    pub(crate) fn new(slots: usize) -> Missed {
        Missed { tables: vec![Table::complete(); slots], sent: Vec::new(), overflow: None }
    }

    fn table(&mut self, slot: SlotIndex) -> &mut Table {
        &mut self.tables[usize::from(slot.0)]
    }

    /// A slot may lack this block.
    pub fn note(&mut self, slot: SlotIndex, object: ObjectId, block: BlockIndex) {
        self.table(slot).add(object, block);
    }

    /// What a slot lacks is not known.
    pub fn distrust(&mut self, slot: SlotIndex) {
        self.table(slot).give_up();
    }

    /// A stripe was accepted by some.
    pub(crate) fn sent(&mut self, sent: Sent) {
        if self.sent.len() < BLOCKS_MAX {
            self.sent.push(sent);
        } else {
            self.overflow.get_or_insert(sent.restarts);
        }
    }

    /// Takes what was sent, at the begin of a commit.
    pub(crate) fn begin_commit(&mut self) -> Batch {
        Batch { sent: std::mem::take(&mut self.sent), overflow: self.overflow.take() }
    }

    /// Notes what a commit did not make stable: on the slots that it did not reach, and everywhere
    /// what was sent at another count of restarts than `restarts`. Returns the unreached slots that
    /// lack something because of it.
    pub(crate) fn end_commit(
        &mut self,
        batch: Batch,
        unreached: &[SlotIndex],
        restarts: u64,
    ) -> BTreeSet<SlotIndex> {
        let mut lacking = BTreeSet::new();
        if let Some(before) = batch.overflow {
            for (at, table) in (0..).map(SlotIndex).zip(&mut self.tables) {
                if before != restarts || unreached.contains(&at) {
                    table.give_up();
                }
            }
            lacking.extend(unreached);
        }
        if unreached.is_empty() && batch.sent.iter().all(|sent| sent.restarts == restarts) {
            return lacking;
        }
        for sent in &batch.sent {
            for slot in &sent.accepted {
                let is_unreached = unreached.contains(slot);
                if is_unreached || sent.restarts != restarts {
                    self.note(*slot, sent.object, sent.block);
                }
                if is_unreached {
                    lacking.insert(*slot);
                }
            }
        }
        lacking
    }

    /// Takes a slot's table for a recovery, which leaves an empty one.
    pub fn take(&mut self, slot: SlotIndex) -> Table {
        std::mem::replace(self.table(slot), Table::complete())
    }

    /// Gives back what a recovery could not bring to its end.
    pub fn give_back(&mut self, slot: SlotIndex, table: Table) {
        if !table.complete {
            self.distrust(slot);
        }
        for (object, blocks) in &table.objects {
            blocks.iter().for_each(|block| self.note(slot, *object, *block));
        }
    }

    /// Whether a slot lacks nothing.
    pub fn is_clean(&self, slot: SlotIndex) -> bool {
        self.tables[usize::from(slot.0)].is_clean()
    }
}

#[cfg(test)]
#[path = "missed_test.rs"]
mod missed_test;
