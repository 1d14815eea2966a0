//! The door of a store under a manager: who may come in, who is inside, and the manager's messages.
//! [`crate::admission`] decides; this file has the clock, the lock and the waiting.
//!
//! **Tested twice.** A request is judged when it comes in, and again where its change becomes
//! visible: under the order lock, in [`BlockStore::publish`]. A fence, a list and a raised floor
//! take the order lock too. So when they have been taken, nothing that they refuse is published any
//! more, however long it waited inside. A reply is judged as well before it goes out, so a read
//! that lasted past the fence, the floor or the lease is not answered.
//!
//! **Who is inside.** A fence and a raised floor return when the requests that they refuse have
//! ended. Each request has a [`Ticket`], and the door counts the tickets of each sender.
//!
//! **A store of one process** has no door. Its requests cost one look at an `Option`.

use super::BlockStore;
use crate::admission::{Admission, Refusal};
use crate::grants::Holder;
use std::collections::BTreeMap;
use strake_env::sync::{Condvar, Mutex, MutexGuard, WatchedMutex};
use strake_proto::nsd::{AdmissionReply, NsdContext, NsdReply, NsdRequest};
use strake_proto::{Error, ErrorKind, Result};

strake_env::lock_names! {
    /// Held while a new term is made durable.
    TermLock = "NSD term";
}

/// See the file's head.
pub(super) struct Door {
    state: Mutex<State>,
    /// Signalled when a request has ended and somebody waits for that.
    ended: Condvar,
    /// Held while a new term is made durable.
    terms: WatchedMutex<TermLock>,
}

struct State {
    admission: Admission,
    /// The number of requests under way of each sender.
    inside: BTreeMap<Sender, u32>,
    /// The number of fences and raised floors that wait.
    waiting: u32,
}

/// A sender's context, in an order.
type Sender = (u64, u64, u64, u64);

fn sender(context: &NsdContext) -> Sender {
    (context.client.0, context.epoch.0, context.term.0, context.map.0)
}

impl Door {
    pub(super) fn new(admission: Admission) -> Door {
        let state = State { admission, inside: BTreeMap::new(), waiting: 0 };
        Door { state: Mutex::new(state), ended: Condvar::new(), terms: WatchedMutex::default() }
    }
}

/// A request under way. Whoever publishes shows one.
pub(super) struct Ticket<'a> {
    /// The client whose grants of space the request uses. `None` for the store's own changes.
    client: Option<Holder>,
    /// `None` for a request to a store of one process, and for the store's own changes.
    holder: Option<(&'a BlockStore, &'a Door, NsdContext)>,
}

impl Ticket<'_> {
    /// The ticket of the store's own changes. They change where strips lie, not what they hold.
    pub(super) const OWN: Ticket<'static> = Ticket { client: None, holder: None };

    /// See the field.
    pub(super) fn client(&self) -> Option<Holder> {
        self.client
    }

    /// The request takes no space of its sender's grant.
    pub(super) fn uses_no_grant(&mut self) {
        self.client = None;
    }

    /// Judges the request again.
    pub(super) fn test(&self) -> Result<()> {
        let Some((store, door, context)) = &self.holder else { return Ok(()) };
        let now = store.clock.monotonic();
        let judged = door.state.lock().admission.judge(context, now);
        judged.map_err(|refusal| store.refusal(refusal))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Some((_, door, context)) = &self.holder else { return };
        let mut state = door.state.lock();
        let sender = sender(context);
        let count = state.inside.get_mut(&sender).expect("invariant: a ticket is counted");
        *count -= 1;
        if *count == 0 {
            state.inside.remove(&sender);
        }
        if state.waiting > 0 {
            door.ended.notify_all();
        }
    }
}

impl BlockStore {
    /// Lets a request in.
    pub(super) fn enter(&self, context: NsdContext) -> Result<Ticket<'_>> {
        let client = Some((context.client, context.epoch));
        let Some(door) = &self.door else { return Ok(Ticket { client, holder: None }) };
        let now = self.clock.monotonic();
        let mut state = door.state.lock();
        state.admission.judge(&context, now).map_err(|refusal| self.refusal(refusal))?;
        *state.inside.entry(sender(&context)).or_default() += 1;
        Ok(Ticket { client, holder: Some((self, door, context)) })
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        Error::new(refusal.kind(), format!("NSD {}: {refusal}", self.nsd))
    }

    /// Carries out a message of the manager, or a question about who may use the NSD.
    pub(super) fn manage(&self, context: NsdContext, request: &NsdRequest) -> Result<NsdReply> {
        let Some(door) = &self.door else {
            let detail = format!("NSD {} serves one process and has no manager", self.nsd);
            return Err(Error::new(ErrorKind::NotSupported, detail));
        };
        if !matches!(request, NsdRequest::Admission) {
            self.hear_term(door, &context)?;
            let mut state = {
                // Whoever is about to publish has been judged and has this lock.
                let _order = self.order.lock();
                let mut state = door.state.lock();
                // Another manager's term may have begun since.
                let judged = state.admission.judge_manager(&context);
                let taken = judged.and_then(|_| take(&mut state.admission, request));
                taken.map_err(|refusal| self.refusal(refusal))?;
                state
            };
            match *request {
                NsdRequest::Fence { client, epoch, .. } => {
                    let is_fenced = |one: &Sender| (one.0, one.1) == (client.0, epoch.0);
                    let ended = self.wait_for(door, &mut state, &is_fenced);
                    drop(state);
                    self.free_grants(&|holder| holder != (client, epoch))?;
                    ended?;
                }
                NsdRequest::Lease { list: Some(_), .. } => {
                    let allowed = state.admission.allowed().clone();
                    drop(state);
                    self.free_grants(&|holder| allowed.contains(&holder))?;
                }
                NsdRequest::RaiseFloor { floor } => {
                    self.wait_for(door, &mut state, &|one| one.3 < floor.0)?;
                }
                _ => {}
            }
        }
        Ok(NsdReply::Admission(self.admission(&door.state.lock().admission)))
    }

    /// Judges a manager. If its term is new, makes the term durable and begins it.
    fn hear_term(&self, door: &Door, context: &NsdContext) -> Result<()> {
        let judge = || {
            let judged = door.state.lock().admission.judge_manager(context);
            judged.map_err(|refusal| self.refusal(refusal))
        };
        if !judge()? {
            return Ok(());
        }
        let _alone = door.terms.lock();
        if judge()? {
            let term = context.term;
            self.container
                .update_superblock(|superblock| superblock.term = superblock.term.max(term))
                .map_err(|error| self.fail(error))?;
            door.state.lock().admission.begin_term(term);
        }
        Ok(())
    }

    /// Waits until the requests inside for which `concerns` is true have ended.
    fn wait_for(
        &self,
        door: &Door,
        state: &mut MutexGuard<'_, State>,
        concerns: &dyn Fn(&Sender) -> bool,
    ) -> Result<()> {
        let name = format!("NSD {}", self.nsd);
        let _waiting = self.observe.waiters.enter("NSD earlier requests", name);
        let end = self.clock.monotonic() + self.options.wait_limit;
        state.waiting += 1;
        let mut result = Ok(());
        while state.inside.keys().any(concerns) {
            let left = end.saturating_sub(self.clock.monotonic());
            if left.is_zero() || door.ended.wait_for(state, left).timed_out() {
                let limit = self.options.wait_limit;
                let detail = format!(
                    "NSD {}: earlier requests have not ended within {limit:?}; ask again",
                    self.nsd
                );
                result = Err(Error::new(ErrorKind::TimedOut, detail));
                break;
            }
        }
        state.waiting -= 1;
        result
    }

    fn admission(&self, admission: &Admission) -> AdmissionReply {
        AdmissionReply {
            boot: self.boot,
            clock: self.clock.monotonic(),
            until: admission.until(),
            term: admission.term(),
            floor: admission.floor(),
            number: admission.number(),
        }
    }
}

/// Applies a message of the manager.
fn take(admission: &mut Admission, request: &NsdRequest) -> std::result::Result<(), Refusal> {
    match request {
        NsdRequest::Lease { boot, until, floor, list } => {
            admission.lease(*boot, *until, *floor, list.as_ref())
        }
        NsdRequest::Allow { number, client, epoch } => admission.allow(*number, *client, *epoch),
        NsdRequest::Fence { number, client, epoch } => {
            admission.fence(*number, *client, *epoch);
            Ok(())
        }
        NsdRequest::RaiseFloor { floor } => {
            admission.raise_floor(*floor);
            Ok(())
        }
        _ => unreachable!("invariant: `call` hands over the manager's messages only"),
    }
}

#[cfg(test)]
#[path = "door_test.rs"]
mod door_test;
