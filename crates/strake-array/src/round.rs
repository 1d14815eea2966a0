//! From accepted to stable: one commit of all NSDs for everybody who waits for one.
//!
//! A *round* takes all stripes accepted so far, commits every NSD (handing over the stripes that
//! are settled), and then each stripe is stable, unless an NSD was started anew since it was sent
//! (what it had only accepted may be gone) or more of its NSDs failed than the code tolerates.
//! The owner of each stripe is told which ([`Outcome`]). A caller is served by a round that begins
//! after its call; callers during a round share the next one.
//!
//! A stable stripe is *settled* (its predecessor may be freed) only when the metadata that names
//! its bytes is durable. So after a crash everything beyond what the metadata knows is among the
//! stripes never settled, where recovery finds it.

use crate::stripe_io::{Committed, StripeIo};
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, RwLock, RwLockReadGuard};
use strake_observe::Observe;
use strake_proto::nsd::SettledStripe;
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout, Result, SlotIndex, Version};

/// Settled stripes handed over in one commit.
const SETTLED_MAX: usize = 65_536;
/// How long one wait for another's round lasts before the waiter looks again.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// The owner of an accepted stripe is told here, once, what became of it after the round.
pub trait Outcome: Send {
    /// It is stable. `stripe` is to be settled once the metadata that names its bytes is durable.
    fn stable(self: Box<Self>, stripe: SettledStripe);

    /// The NSDs may have lost it. `fault` says why; it is `None` where an NSD was merely started
    /// anew.
    fn lost(self: Box<Self>, fault: Option<Error>);
}

/// A stripe that was accepted.
pub struct Accepted {
    pub layout: ObjectLayout,
    pub block: BlockIndex,
    pub version: Version,
    /// Dirty bytes that its owner holds until it is stable.
    pub charge: usize,
    /// `NsdSet::restarts` before it was sent.
    pub restarts: u64,
    pub outcome: Box<dyn Outcome>,
}

#[derive(Default)]
struct State {
    running: bool,
    started: u64,
    finished: u64,
    /// The last round that failed for someone, and how.
    failed: Option<(u64, Error)>,
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
    settling: RwLock<()>,
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
            settling: RwLock::new(()),
        }
    }

    /// Notes an accepted stripe.
    pub fn add(&self, accepted: Accepted) {
        let mut list = self.accepted.lock();
        list.1 += accepted.charge;
        list.0.push(accepted);
    }

    /// Held by whoever makes files durable, from before it takes what is unsettled of them until
    /// that is settled. Only one that waits for all of them is in the way, and no longer than its
    /// limit.
    pub fn begin_settling(&self) -> RwLockReadGuard<'_, ()> {
        self.settling.try_read().unwrap_or_else(|| {
            let _wait = self.observe.waiters.enter("others who settle", "");
            self.settling.read()
        })
    }

    /// Waits until all is settled that somebody has begun to settle, or until `limit`.
    pub fn wait_for_settling(&self, limit: Duration) {
        let _wait = self.observe.waiters.enter("others who settle", "");
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

    /// Whether `bytes` at least wait for a round, and none is under way.
    pub fn is_due(&self, bytes: usize) -> bool {
        self.accepted_bytes() >= bytes && !self.state.lock().running
    }

    /// Whether something waits for the next round.
    pub fn has_work(&self) -> bool {
        !self.settled.lock().is_empty() || !self.accepted.lock().0.is_empty()
    }

    /// Makes everything accepted before this call stable. `always`: also if nothing was written,
    /// for range deletions.
    ///
    /// # Errors
    /// Of the round, for whatever stripe: callers look at their own blocks again.
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
        let Committed { unreached, lacking } = self.io.commit(&settled);
        let mut noted = Ok(());
        let mut lost = 0;
        let restarts = self.io.nsds().restarts();
        for stripe in batch {
            let stable = noted.is_ok()
                && stripe.restarts == restarts
                && match self.tolerated(&stripe, &unreached) {
                    Ok(tolerated) => tolerated,
                    Err(error) => {
                        noted = Err(error);
                        false
                    }
                };
            let Accepted { layout, block, version, restarts: before, outcome, .. } = stripe;
            if stable {
                let (fs, object) = (self.io.nsds().fs(), layout.object);
                outcome.stable(SettledStripe { fs, object, block, version });
            } else {
                lost += 1;
                outcome.lost((before == restarts).then(|| {
                    let detail = "too many NSDs failed while data was made stable";
                    Error::new(ErrorKind::Io, detail)
                }));
            }
        }
        // Also for stripes that no file waits for: those that a reader mended.
        let lacking = lacking.into_iter().try_for_each(|slot| self.io.nsds().note(slot));
        noted.and(lacking)?;
        if lost > 0 {
            let detail = format!("{lost} blocks did not become stable and are written again");
            return Err(Error::new(ErrorKind::Retry, detail));
        }
        Ok(())
    }

    /// Whether a stripe is safe although the commit did not reach these NSDs; notes durably that
    /// they lack it if so.
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
