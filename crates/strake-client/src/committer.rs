//! From accepted to stable: one commit of all NSDs for everybody who waits for one.
//!
//! A *round* takes all stripes accepted so far, commits every NSD (handing over the stripes that
//! are settled), and then each stripe is stable, unless an NSD was started anew since it was sent
//! (what it had only accepted may be gone) or more of its NSDs failed than the code tolerates.
//! Those blocks become dirty again. A caller is served by a round that begins after its call;
//! callers during a round share the next one.
//!
//! A stable stripe is *settled* (its predecessor may be freed) only when the metadata that names
//! its bytes is durable. So after a crash everything beyond what the metadata knows is among the
//! stripes never settled, where recovery finds it.

use crate::block::Block;
use crate::file::FileState;
use crate::inode::InodeState;
use crate::pool::Page;
use crate::shared::Shared;
use crate::stripe_io::Committed;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_observe::Waiters;
use strake_proto::nsd::SettledStripe;
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout, Result, SlotIndex, Version};

/// Accepted bytes that make a commit due, if the pool is large enough: until then a stream needs
/// fresh memory, which costs more than the commit.
const DUE_BYTES: usize = 64 << 20;
/// Settled stripes handed over in one commit.
const SETTLED_MAX: usize = 65_536;
/// How long one wait for another's round lasts before the waiter looks again.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A stripe that was accepted.
pub(crate) struct Accepted {
    pub(crate) inode: Arc<InodeState>,
    pub(crate) file: Arc<FileState>,
    pub(crate) block: Arc<Block>,
    pub(crate) layout: ObjectLayout,
    pub(crate) version: Version,
    /// Dirty bytes that it holds in the pool.
    pub(crate) charge: usize,
    /// Bytes on disks that are the inode's once it is stable.
    pub(crate) gained: i64,
    /// `NsdSet::restarts` before it was sent.
    pub(crate) restarts: u64,
    /// Whether another block may have its memory: see [`crate::pool::PagePool::leave_behind`]. So
    /// for whole blocks that were not stored before, and those of which only parts were in memory.
    pub(crate) reusable: bool,
    /// Whether only parts of it were written.
    pub(crate) in_parts: bool,
}

#[derive(Default)]
struct Rounds {
    running: bool,
    started: u64,
    finished: u64,
    /// The last round that failed for someone, and how.
    failed: Option<(u64, Error)>,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Committer {
    rounds: Mutex<Rounds>,
    ended: Condvar,
    accepted: Mutex<(Vec<Accepted>, usize)>,
    settled: Mutex<Vec<SettledStripe>>,
    /// See [`Committer::begin_settling`].
    settling: RwLock<()>,
}

impl Committer {
    /// Notes an accepted stripe; its block is pinned already.
    pub(crate) fn add(&self, accepted: Accepted) {
        accepted.file.unstable.fetch_add(1, Ordering::AcqRel);
        if accepted.reusable {
            // What is used from now on stays in memory.
            accepted.block.was_used();
        }
        let mut list = self.accepted.lock();
        list.1 += accepted.charge;
        list.0.push(accepted);
    }

    /// Held by whoever makes files durable, from before it takes what is unsettled of them until
    /// that is settled. Only one that waits for all of them is in the way, and no longer than its
    /// limit.
    pub(crate) fn begin_settling(&self, waiters: &Waiters) -> RwLockReadGuard<'_, ()> {
        self.settling.try_read().unwrap_or_else(|| {
            let _wait = waiters.enter("others who settle", "");
            self.settling.read()
        })
    }

    /// Waits until all is settled that somebody has begun to settle, or until `limit`.
    pub(crate) fn wait_for_settling(&self, limit: Duration, waiters: &Waiters) {
        let _wait = waiters.enter("others who settle", "");
        drop(self.settling.try_write_for(limit));
    }

    /// Notes stripes that are stable and whose metadata is durable.
    pub(crate) fn settle(&self, stripes: &mut Vec<SettledStripe>) {
        self.settled.lock().append(stripes);
    }

    /// Bytes that are accepted and not stable.
    pub(crate) fn accepted_bytes(&self) -> usize {
        self.accepted.lock().1
    }

    /// Whether a commit would relieve the pool, and nobody is at it.
    pub(crate) fn is_due(&self, shared: &Shared) -> bool {
        self.accepted_bytes() >= DUE_BYTES.min(shared.pool.dirty_max() / 4)
            && !self.rounds.lock().running
    }

    /// Whether something waits for the next commit.
    pub(crate) fn has_work(&self) -> bool {
        !self.settled.lock().is_empty() || !self.accepted.lock().0.is_empty()
    }

    /// Makes everything accepted before this call stable. `always`: also if nothing was written,
    /// for range deletions.
    ///
    /// # Errors
    /// Of the round, for whatever stripe: callers look at their own blocks again.
    pub(crate) fn commit(&self, shared: &Shared, always: bool) -> Result<()> {
        let mut rounds = self.rounds.lock();
        let needed = rounds.started + 1;
        loop {
            if rounds.finished >= needed {
                return match &rounds.failed {
                    Some((round, error)) if *round >= needed => Err(error.clone()),
                    _ => Ok(()),
                };
            }
            if !rounds.running {
                rounds.running = true;
                rounds.started += 1;
                let round = rounds.started;
                drop(rounds);
                let result = self.round(shared, always);
                rounds = self.rounds.lock();
                rounds.running = false;
                rounds.finished = round;
                if let Err(error) = result {
                    rounds.failed = Some((round, error));
                }
                self.ended.notify_all();
                continue;
            }
            let _wait = shared.observe.waiters.enter("commit of the NSDs", "");
            self.ended.wait_for(&mut rounds, WAIT_STEP);
        }
    }

    fn round(&self, shared: &Shared, always: bool) -> Result<()> {
        let (batch, _) = std::mem::take(&mut *self.accepted.lock());
        let mut settled = std::mem::take(&mut *self.settled.lock());
        if batch.is_empty() && settled.is_empty() && !always {
            return Ok(());
        }
        if settled.len() > SETTLED_MAX {
            let later = settled.split_off(SETTLED_MAX);
            self.settled.lock().extend(later);
        }
        let Committed { unreached, lacking } = shared.io.commit(&settled);
        let mut noted = Ok(());
        let mut lost = 0;
        let restarts = shared.io.nsds().restarts();
        for stripe in batch {
            let stable = noted.is_ok()
                && stripe.restarts == restarts
                && match self.tolerated(shared, &stripe, &unreached) {
                    Ok(tolerated) => tolerated,
                    Err(error) => {
                        noted = Err(error);
                        false
                    }
                };
            if stable {
                stripe.stable(shared);
            } else {
                lost += 1;
                if stripe.restarts == restarts {
                    let detail = "too many NSDs failed while data was made stable";
                    let error = Error::new(ErrorKind::Io, detail);
                    stripe.inode.core.lock().latch.set(error);
                }
                stripe.lost(shared);
            }
        }
        // Also for stripes that no file waits for: those that a reader mended.
        let lacking = lacking.into_iter().try_for_each(|slot| shared.io.nsds().note(slot));
        noted.and(lacking)?;
        if lost > 0 {
            let detail = format!("{lost} blocks did not become stable and are written again");
            return Err(Error::new(ErrorKind::Retry, detail));
        }
        Ok(())
    }

    /// Whether a stripe is safe although the commit did not reach these NSDs; notes durably that
    /// they lack it if so.
    fn tolerated(
        &self,
        shared: &Shared,
        stripe: &Accepted,
        unreached: &[SlotIndex],
    ) -> Result<bool> {
        if unreached.is_empty() {
            return Ok(true);
        }
        let nsds = shared.io.nsds();
        let block = BlockIndex(stripe.block.index);
        let (slots, heir) = nsds.stripe_to_write(&stripe.layout, block)?;
        if let Some((_, heir)) = heir
            && unreached.contains(&heir)
        {
            nsds.heir_missed(heir)?;
        }
        let away = slots.iter().filter(|slot| !nsds.availability(**slot).writable()).count();
        if away > usize::from(stripe.layout.code.parity) {
            return Ok(!slots.iter().any(|slot| unreached.contains(slot)));
        }
        for slot in slots.iter().filter(|slot| unreached.contains(slot)) {
            nsds.note(*slot)?;
        }
        Ok(true)
    }
}

impl Accepted {
    fn stable(self, shared: &Shared) {
        let stripe = SettledStripe {
            fs: shared.io.nsds().fs(),
            object: self.layout.object,
            block: BlockIndex(self.block.index),
            version: self.version,
        };
        if self.gained != 0 {
            let mut gain = self.block.gain.lock();
            if let Some(sum) = &mut gain.unstable {
                *sum -= self.gained;
                let mut core = self.inode.core.lock();
                core.unstable_gain -= self.gained;
                core.allocated_delta += self.gained;
                core.changes += 1;
            }
        }
        self.file.unsettled.lock().push(stripe);
        self.block.became_stable(self.version);
        self.release(shared);
        if self.in_parts && shared.pool.is_behind() {
            // Kept, it would be dirty as a whole at the next write to a part of it.
            if let Some(buffer) = self.block.take_clean() {
                shared.pool.release(buffer);
            }
        } else if self.reusable {
            shared.pool.leave_behind(self.block);
        }
    }

    /// The NSDs may have lost it: the block is dirty again, unless it was dropped meanwhile.
    fn lost(self, shared: &Shared) {
        self.block.gain.lock().owed += self.gained;
        {
            let mut data = self.block.data.write();
            if !data.detached && data.buffer.is_some() {
                data.whole = true;
                if !data.dirty {
                    data.dirty = true;
                    data.charge = self.charge;
                    data.dirtied = self.charge;
                    shared.pool.add_dirty(self.charge);
                    // It is sent again, and so needs room again.
                    shared.space.owe(data.held());
                    self.file.insert_dirty(self.block.index);
                }
                self.file.insert_unsaved(self.block.index);
            }
        }
        self.file.lost.fetch_add(1, Ordering::AcqRel);
        self.release(shared);
    }

    fn release(&self, shared: &Shared) {
        self.block.pinned.fetch_sub(1, Ordering::AcqRel);
        self.file.unstable.fetch_sub(1, Ordering::AcqRel);
        shared.pool.remove_dirty(self.charge);
    }
}
