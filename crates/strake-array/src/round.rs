//! From accepted to stable: one commit of all NSDs serves all callers that wait for one.
//!
//! A *round* takes all stripes accepted so far and commits every NSD. With the commit it hands over
//! the stripes that are settled. Afterwards each stripe is stable, with two exceptions: an NSD was
//! started anew since the stripe was sent, so strips that it had only accepted may be gone; or more
//! of the stripe's NSDs failed than the code tolerates. The owner of each stripe is told the result
//! ([`Outcome`]). A call is served by a round that begins after it. All calls during a round share
//! the next one.
//!
//! A stable stripe is *settled* only when the metadata that names its bytes is durable. Then its
//! predecessor may be freed. So after a crash recovery finds everything that the metadata does not
//! know of among the stripes that were never settled.

use crate::stripe_io::{Committed, StripeIo, Written};
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, WatchedReadGuard, WatchedRwLock};
use strake_observe::Observe;
use strake_proto::nsd::SettledStripe;
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout, Result, SlotIndex};

/// The most settled stripes that one commit hands over.
const SETTLED_MAX: usize = 65_536;
/// A caller that waits for the round of another thread looks again after this time.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// How the owner of an accepted stripe learns what the round made of it. One of the two functions
/// is called, once.
pub trait Outcome: Send {
    /// The stripe is stable. The owner settles it once the metadata that names its bytes is
    /// durable.
    fn stable(self: Box<Self>, stripe: SettledStripe);

    /// The NSDs may have lost the stripe. `fault` says why. It is `None` if an NSD was merely
    /// started anew.
    fn lost(self: Box<Self>, fault: Option<Error>);
}

/// A stripe that was accepted.
pub struct Accepted {
    pub layout: ObjectLayout,
    pub block: BlockIndex,
    /// The version, and the positions that did not accept it.
    pub written: Written,
    /// Dirty bytes that its owner keeps in memory until the stripe is stable.
    pub charge: usize,
    /// `NsdSet::restarts` before the stripe was sent.
    pub restarts: u64,
    pub outcome: Box<dyn Outcome>,
}

#[derive(Default)]
struct State {
    running: bool,
    started: u64,
    finished: u64,
    /// The last round that failed for some stripe, and its error.
    failed: Option<(u64, Error)>,
}

/// So many accepted stripes make a round due. A start after a power cut asks about each stripe that
/// was not stable, which must not take long (docs/decisions/0031-patches.md).
const STRIPES_DUE: usize = 1024;

/// Stripes that are accepted and wait for a round.
#[derive(Clone, Copy)]
struct Waiting {
    /// Their dirty bytes.
    bytes: usize,
    /// Their number.
    stripes: usize,
}

impl Waiting {
    /// Whether these are at least `bytes`, or [`STRIPES_DUE`] stripes.
    fn is_much(self, bytes: usize) -> bool {
        self.bytes >= bytes || self.stripes >= STRIPES_DUE
    }
}

strake_env::lock_names! {
    /// See [`Rounds::begin_settling`].
    Settling = "others who settle";
}

/// See the file's head.
pub struct Rounds {
    io: Arc<StripeIo>,
    observe: Arc<Observe>,
    state: Mutex<State>,
    ended: Condvar,
    accepted: Mutex<(Vec<Accepted>, usize)>,
    settled: Mutex<Vec<SettledStripe>>,
    /// See [`Rounds::begin_settling`].
    settling: WatchedRwLock<Settling>,
}

impl Rounds {
    /// Rounds of these NSDs; their waits show in `observe`.
    pub(crate) fn new(io: Arc<StripeIo>, observe: Arc<Observe>) -> Rounds {
        Rounds {
            io,
            observe,
            state: Mutex::default(),
            ended: Condvar::new(),
            accepted: Mutex::default(),
            settled: Mutex::default(),
            settling: WatchedRwLock::default(),
        }
    }

    /// Notes an accepted stripe.
    pub fn add(&self, accepted: Accepted) {
        let mut list = self.accepted.lock();
        list.1 += accepted.charge;
        list.0.push(accepted);
    }

    /// The guard of a thread that makes files durable. The thread takes it before it collects the
    /// unsettled stripes of the files, and keeps it until these are settled. Such threads do not
    /// wait for each other. They wait only for [`Rounds::wait_for_settling`], up to its limit.
    pub fn begin_settling(&self) -> WatchedReadGuard<'_, ()> {
        self.settling.read()
    }

    /// Waits until every thread that has begun to settle has done so, at most for `limit`.
    pub fn wait_for_settling(&self, limit: Duration) {
        drop(self.settling.try_write_for(limit));
    }

    /// Notes stripes that are stable and whose metadata is durable.
    pub fn settle(&self, stripes: &mut Vec<SettledStripe>) {
        self.settled.lock().append(stripes);
    }

    /// Bytes that are accepted and not stable.
    pub fn accepted_bytes(&self) -> usize {
        self.accepted.lock().1
    }

    /// Whether at least `bytes`, or many stripes, wait for a round, and no round is under way.
    pub fn is_due(&self, bytes: usize) -> bool {
        self.waiting().is_much(bytes) && !self.state.lock().running
    }

    /// What is accepted and not stable.
    fn waiting(&self) -> Waiting {
        let accepted = self.accepted.lock();
        Waiting { bytes: accepted.1, stripes: accepted.0.len() }
    }

    /// Whether something waits for the next round.
    pub fn has_work(&self) -> bool {
        !self.settled.lock().is_empty() || !self.accepted.lock().0.is_empty()
    }

    /// Makes everything accepted before this call stable. With `always` the NSDs commit even if
    /// nothing was written, which range deletions need.
    ///
    /// # Errors
    /// The error of the round. It may concern stripes of others, so the caller looks at its own
    /// blocks again.
    pub fn run(&self, always: bool) -> Result<()> {
        let mut rounds = self.state.lock();
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
                let result = self.round(always);
                rounds = self.state.lock();
                rounds.running = false;
                rounds.finished = round;
                if let Err(error) = result {
                    rounds.failed = Some((round, error));
                }
                self.ended.notify_all();
                continue;
            }
            let _wait = self.observe.waiters.enter("commit of the NSDs", "");
            self.ended.wait_for(&mut rounds, WAIT_STEP);
        }
    }

    fn round(&self, always: bool) -> Result<()> {
        let (batch, _) = std::mem::take(&mut *self.accepted.lock());
        let mut settled = std::mem::take(&mut *self.settled.lock());
        if batch.is_empty() && settled.is_empty() && !always {
            return Ok(());
        }
        if settled.len() > SETTLED_MAX {
            let later = settled.split_off(SETTLED_MAX);
            self.settled.lock().extend(later);
        }
        let Committed { unreached, lacking, refused } = self.io.commit(&settled);
        if let Some(error) = refused {
            // No NSD is at fault, so none is noted. The owners send their blocks again, if they
            // may.
            batch.into_iter().for_each(|stripe| stripe.outcome.lost(Some(error.clone())));
            return Err(error);
        }
        let mut noted = Ok(());
        let mut lost = 0;
        let restarts = self.io.nsds().restarts();
        for stripe in batch {
            let mut lacks = None;
            if noted.is_ok() && stripe.restarts == restarts {
                match self.lacks(&stripe, &unreached) {
                    Ok(known) => lacks = known,
                    Err(error) => noted = Err(error),
                }
            }
            let Accepted { layout, block, written, restarts: before, outcome, .. } = stripe;
            if let Some(lacks) = lacks {
                let (fs, object) = (self.io.nsds().fs(), layout.object);
                let version = written.version;
                outcome.stable(SettledStripe { fs, object, block, version, lacks });
            } else {
                lost += 1;
                outcome.lost((before == restarts).then(|| {
                    let detail = "too many NSDs failed while data was made stable";
                    Error::new(ErrorKind::Io, detail)
                }));
            }
        }
        // This covers stripes that no file waits for, too: those that a reader mended.
        let lacking = lacking.into_iter().try_for_each(|slot| self.io.nsds().note(slot));
        noted.and(lacking)?;
        if lost > 0 {
            let detail = format!("{lost} blocks did not become stable and are written again");
            return Err(Error::new(ErrorKind::Retry, detail));
        }
        Ok(())
    }

    /// The positions that may lack a stripe (R1): those that did not accept it, and those that this
    /// round did not reach, whatever they had accepted. All that were away are among these. `None`
    /// if the stripe is not safe. An NSD that goes away later has the stripe stable, and unsettled.
    fn lacks(&self, stripe: &Accepted, unreached: &[SlotIndex]) -> Result<Option<u32>> {
        if !self.tolerated(stripe, unreached)? {
            return Ok(None);
        }
        let nsds = self.io.nsds();
        let unreached = nsds.positions_on(&stripe.layout, stripe.block, unreached)?;
        Ok(Some(stripe.written.lacks | unreached))
    }

    /// Whether a stripe is safe although the commit did not reach these NSDs. If it is, the
    /// metadata durably records that they lack it.
    fn tolerated(&self, stripe: &Accepted, unreached: &[SlotIndex]) -> Result<bool> {
        if unreached.is_empty() {
            return Ok(true);
        }
        let nsds = self.io.nsds();
        let (slots, heir) = nsds.stripe_to_write(&stripe.layout, stripe.block)?;
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

#[cfg(test)]
#[path = "round_test.rs"]
mod round_test;
