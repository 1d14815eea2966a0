//! Missed-writes tables: the blocks that an NSD which is away may lack, so that only these are
//! compared when it is back. Pure: no lock, no clock, no I/O.
//!
//! **Invariant.** For every NSD with a complete table, and for every block, one of three things is
//! true: the NSD has made the newest acknowledged version of its strip stable; or the block is in
//! the NSD's table; or the block is among those *sent* (accepted since the last commit). The
//! invariant holds because of three rules.
//!
//! * A write notes its block in the table of every NSD that it left out or that failed it, and as
//!   sent for the NSDs that accepted it. It does so before it lets go of the gate
//!   ([`super::NsdSet::gate`]).
//! * A commit moves the blocks sent before it to the tables of the NSDs that it did not reach. If
//!   an NSD was started anew since a block was sent, the block goes to the tables of all NSDs that
//!   accepted it.
//! * Deletions are in no table: each waits in the metadata for the NSDs that are away.
//!
//! A table is *incomplete*, and everything is compared, where the invariant cannot be known to
//! hold. The NSD was away when this client began, came back older than it went, or lost a part of
//! its index; the slot got another NSD; an heir missed a strip that it was to take over; or the
//! table grew too long. Tables live as long as the client. Making each entry durable before a
//! degraded write would cost more than tables save (decision 0018).

use std::collections::{BTreeMap, BTreeSet};
use strake_proto::{BlockIndex, ObjectId, SlotIndex};

/// The most blocks in a table, and in the list of those sent. A block takes some 50 bytes.
const BLOCKS_MAX: usize = 1 << 18;

/// The blocks that one NSD may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    objects: BTreeMap<ObjectId, BTreeSet<BlockIndex>>,
    count: usize,
    complete: bool,
}

impl Table {
    /// A complete table without an entry.
    fn complete() -> Table {
        Table { objects: BTreeMap::new(), count: 0, complete: true }
    }

    /// Whether the NSD lacks nothing but the blocks in the table.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the NSD lacks nothing.
    pub fn is_clean(&self) -> bool {
        self.complete && self.count == 0
    }

    /// How many blocks are in the table.
    pub fn blocks(&self) -> u64 {
        self.count as u64
    }

    /// The blocks of one object.
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
    /// The slots that accepted a strip of it.
    pub accepted: Vec<SlotIndex>,
    /// `NsdSet::restarts` before the block was sent.
    pub restarts: u64,
}

/// See the file's head.
pub struct Missed {
    tables: Vec<Table>,
    sent: Vec<Sent>,
    /// Set if `sent` grew too long: the count of restarts when the first block was left out.
    overflow: Option<u64>,
}

/// The blocks sent before a commit began.
pub(crate) struct Batch {
    sent: Vec<Sent>,
    overflow: Option<u64>,
}

impl Missed {
    /// A complete table without an entry for each of so many slots.
    pub(crate) fn new(slots: usize) -> Missed {
        Missed { tables: vec![Table::complete(); slots], sent: Vec::new(), overflow: None }
    }

    fn table(&mut self, slot: SlotIndex) -> &mut Table {
        let at = usize::from(slot.0);
        if at >= self.tables.len() {
            // A slot that is new lacks nothing.
            self.tables.resize(at + 1, Table::complete());
        }
        &mut self.tables[at]
    }

    /// Notes that a slot may lack this block.
    pub fn note(&mut self, slot: SlotIndex, object: ObjectId, block: BlockIndex) {
        self.table(slot).add(object, block);
    }

    /// Notes that it is not known what a slot lacks.
    pub fn distrust(&mut self, slot: SlotIndex) {
        self.table(slot).give_up();
    }

    /// Notes a block of which strips were accepted.
    pub(crate) fn sent(&mut self, sent: Sent) {
        if self.sent.len() < BLOCKS_MAX {
            self.sent.push(sent);
        } else {
            self.overflow.get_or_insert(sent.restarts);
        }
    }

    /// Takes the blocks sent so far. Called when a commit begins.
    pub(crate) fn begin_commit(&mut self) -> Batch {
        Batch { sent: std::mem::take(&mut self.sent), overflow: self.overflow.take() }
    }

    /// Notes what a commit did not make stable: all blocks of the slots that it did not reach, and
    /// on every slot the blocks that were sent at another count of restarts than `restarts`.
    /// Returns the unreached slots that lack something because of it.
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

    /// Takes a slot's table for a recovery, and leaves a complete table without an entry.
    pub fn take(&mut self, slot: SlotIndex) -> Table {
        std::mem::replace(self.table(slot), Table::complete())
    }

    /// Puts back the table of a recovery that did not come to its end.
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
        self.tables.get(usize::from(slot.0)).is_none_or(Table::is_clean)
    }
}

#[cfg(test)]
#[path = "missed_test.rs"]
mod missed_test;
