//! Commits: they make accepted changes stable. Also settling, and checkpoints.

use super::{BlockStore, Decided, Ticket};
use crate::edits::Edits;
use crate::keys::{Table, block_start, parse_strip_key, range_end, strip_key};
use crate::record::{decode_promise, decode_strip, encode_strip};
use crate::rules::settle;
use std::sync::atomic::Ordering::SeqCst;
use strake_proto::nsd::{NsdReply, SettledStripe};
use strake_proto::{BlockIndex, Error, ErrorKind, Result, StripKey, Version};
use strake_store::{KvRead, Lsn};

/// A list with more settled stripes than this is refused.
const SETTLED_MAX: usize = 65_536;
/// The journal is trimmed when one part in this many of its capacity is used.
const JOURNAL_FILL_PARTS: u64 = 2;

impl BlockStore {
    pub(super) fn commit(
        &self,
        ticket: &Ticket<'_>,
        settled: &[SettledStripe],
    ) -> Result<NsdReply> {
        if settled.len() > SETTLED_MAX {
            let detail = format!("{} settled stripes, at most {SETTLED_MAX}", settled.len());
            return Err(Error::new(ErrorKind::TooBig, detail));
        }
        self.refuse_if_failed()?;
        settled.iter().try_for_each(|stripe| self.settle(ticket, stripe))?;
        let space = self.top_up(ticket)?;
        self.make_durable()?;
        Ok(NsdReply::Stable { boot: self.boot, stable: self.durable.load(SeqCst), space })
    }

    /// Makes every change accepted so far durable, and lets the space that these changes freed be
    /// used again. It costs nothing if there is no such change.
    pub(super) fn make_durable(&self) -> Result<()> {
        let target = {
            let _order = self.order.lock();
            let last = self.journal.last().0;
            self.committing.fetch_max(last, SeqCst);
            last
        };
        if self.durable.load(SeqCst) < target {
            let _waiting = self.observe.waiters.enter("NSD commit", format!("NSD {}", self.nsd));
            match self.journal.sync_within(self.options.wait_limit) {
                Ok(()) => {}
                // Another thread's barrier takes long. The disk may still complete it.
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(error.context(format!("NSD {}: commit", self.nsd)));
                }
                Err(error) => return Err(self.fail(error)),
            }
            self.durable.fetch_max(target, SeqCst);
        }
        self.reuse_released();
        Ok(())
    }

    fn settle(&self, ticket: &Ticket<'_>, stripe: &SettledStripe) -> Result<()> {
        let from = block_start(Table::Strip, stripe.fs, stripe.object, stripe.block);
        let next = BlockIndex(stripe.block.0.saturating_add(1));
        let to = range_end(Table::Strip, stripe.fs, stripe.object, next);
        self.retry_with_room(stripe.object, || {
            let mut edits = Edits::default();
            let mut freed = Vec::new();
            let mut settled = Vec::new();
            self.index.scan(&from, &to, &mut |encoded, value| {
                // A damaged record has nothing to settle. A reader of the strip mends it.
                if let Some(key) = parse_strip_key(Table::Strip, encoded)
                    && let Ok(held) = decode_strip(encoded, value)
                    && let Some(change) = settle(&held, stripe.version, stripe.lacks)
                {
                    let record = change.record;
                    let record = record.expect("invariant: settling keeps the current version");
                    edits.put(encoded, encode_strip(encoded, &record));
                    freed.extend(change.freed);
                    settled.push((key, record));
                }
                true
            })?;
            if edits.is_empty() {
                return Ok(());
            }
            // The version held is newer than the promised one, so it refuses by itself from now on.
            let keys = settled.iter().map(|(key, _)| *key);
            let promises = self.forget_promises(keys, stripe.version, &mut edits)?;
            self.publish(ticket, |_| Decided { edits, freed, taken: 0 })?;
            self.promises.fetch_sub(promises, SeqCst);
            let mut unsettled = self.unsettled.lock();
            settled.iter().filter(|(_, record)| record.current().settled).for_each(|(key, _)| {
                unsettled.remove(key);
            });
            drop(unsettled);
            settled.iter().for_each(|(key, record)| self.note_displaced(*key, record));
            Ok(())
        })
    }

    /// Adds the removal of promises for `keys` up to `version`. Returns how many there are.
    fn forget_promises(
        &self,
        keys: impl Iterator<Item = StripKey>,
        version: Version,
        edits: &mut Edits,
    ) -> Result<u64> {
        // Promises are made only after crashes, so there are usually none.
        if self.promises.load(SeqCst) == 0 {
            return Ok(0);
        }
        let mut count = 0;
        for key in keys {
            let encoded = strip_key(Table::Promise, &key);
            let promise = self.index.get(&encoded)?;
            let promise = promise.and_then(|value| decode_promise(&encoded, &value).ok());
            if promise.is_some_and(|promised| promised <= version) {
                edits.delete(&encoded);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Makes room in a full journal: the first caller makes a checkpoint, and the others wait for
    /// it.
    pub(super) fn make_room(&self) -> Result<()> {
        let _waiting = self.observe.waiters.enter("NSD journal space", format!("NSD {}", self.nsd));
        let before = self.journal.used();
        let limit = self.options.wait_limit;
        let _guard = self.checkpointing.try_lock_for(limit).ok_or_else(|| {
            let detail = format!("NSD {}: no space in the journal within {limit:?}", self.nsd);
            Error::new(ErrorKind::TimedOut, detail)
        })?;
        if self.journal.used() < before {
            return Ok(());
        }
        self.checkpoint_locked()
    }

    /// Writes the index's changes to its base and trims the journal.
    ///
    /// `NoSpace` if the index cannot grow; nothing is lost then. The disk's errors.
    pub fn checkpoint(&self) -> Result<()> {
        let _guard = self.checkpointing.lock();
        self.checkpoint_locked()
    }

    fn checkpoint_locked(&self) -> Result<()> {
        let applied = self.index_checkpoint()?;
        self.journal.trim(Lsn(applied.0 + 1)).map_err(|error| self.fail(error))
    }

    /// Reads the log back. If the disk has lost some of it, makes a checkpoint that replaces it and
    /// returns the number of the first damaged chunk.
    pub(super) fn verify_log(&self) -> Result<Option<u64>> {
        let damaged = self.journal.verify()?;
        if damaged.is_some() {
            let _guard = self.checkpointing.lock();
            let applied = self.index_checkpoint()?;
            self.journal.renew(Lsn(applied.0 + 1)).map_err(|error| self.fail(error))?;
        }
        Ok(damaged)
    }

    /// Writes the index's changes to its base. Returns the entry up to which the base holds
    /// everything.
    fn index_checkpoint(&self) -> Result<Lsn> {
        self.make_durable()?;
        match self.index.checkpoint() {
            // The host may be full of space that is free here, or the one chunk left may be
            // withheld.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.discard_all() => {
                self.index.checkpoint()
            }
            other => other,
        }
    }

    fn is_large(&self) -> bool {
        self.index.overlay_bytes() > self.options.overlay_bytes_max
            || self.journal.used() > self.journal.capacity() / JOURNAL_FILL_PARTS
    }

    /// Wakes the worker if a checkpoint is due.
    pub(super) fn checkpoint_if_large(&self) {
        if self.is_large()
            && let Some(worker) = &*self.checkpointer.lock()
        {
            worker.wake();
        }
    }
}

#[cfg(test)]
#[path = "commit_test.rs"]
mod commit_test;
