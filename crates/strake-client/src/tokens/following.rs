//! Changes of the pool map that the manager has all clients follow.
//!
//! A client stops to use an NSD at once, on the thread that receives messages: a write of another
//! client waits for that. All other changes are followed by a thread of their own, one after the
//! other, because they make data durable. That may wait for NSDs, for the metadata, and for what
//! later messages bring.

use super::{GiveUp, Tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use strake_env::sync::Mutex;
use strake_env::workers::{Refused, WorkerLimits, Workers};
use strake_proto::NsdId;
use strake_token::message::{Reply, Request, Term};

/// A change of the pool map, told by the authority of a term.
#[derive(Clone, Debug)]
pub(super) struct PoolChange {
    number: (Term, u64),
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// These NSDs are not used any more.
    Leave(Vec<NsdId>),
    /// This NSD is written to again.
    WriteAgain(NsdId),
    /// Slots have other NSDs, or strips belong elsewhere.
    Places,
}

impl PoolChange {
    /// The change that a message tells of, if it does.
    pub(super) fn of(term: Term, message: &Reply) -> Option<PoolChange> {
        let (change, what) = match message {
            Reply::Unusable { change, nsds } => (change, What::Leave(nsds.clone())),
            Reply::Writable { change, nsd } => (change, What::WriteAgain(*nsd)),
            Reply::Places { change } => (change, What::Places),
            _ => return None,
        };
        Some(PoolChange { number: (term, *change), what })
    }
}

/// A change that waits for the thread.
struct Job {
    change: PoolChange,
    /// How often this client had left an NSD when it heard of the change.
    leaves: u64,
}

/// See the file's head.
#[derive(Default)]
pub(super) struct Following {
    /// The newest change that had this client write to an NSD again. A leaf.
    written: Mutex<BTreeMap<NsdId, (Term, u64)>>,
    /// The changes that the thread has or will have. A leaf.
    pending: Mutex<BTreeSet<(Term, u64)>>,
    thread: OnceLock<Workers<Job>>,
}

impl Following {
    /// Ends the thread. Changes that it has not begun are never answered.
    pub(super) fn end(&self) {
        if let Some(thread) = self.thread.get() {
            drop(thread.end());
            thread.join();
        }
    }
}

impl Tokens {
    /// Begins the thread. Called once.
    pub(super) fn begin_following(self: &Arc<Tokens>) {
        let weak = Arc::downgrade(self);
        let limits = WorkerLimits { threads_max: 1, waiting_max: usize::MAX };
        let thread = Workers::new("follow", limits, move |job: Job| {
            if let Some(tokens) = weak.upgrade() {
                tokens.follow(&job);
            }
        });
        assert!(self.following.thread.set(thread).is_ok(), "called once");
    }

    /// Hears of a change. The authority repeats it until it is answered.
    pub(super) fn hear(&self, keeper: &dyn GiveUp, change: PoolChange) {
        let number = change.number;
        match &change.what {
            What::Leave(nsds) => {
                // One that is late may be about an NSD that has come back since.
                let written = self.following.written.lock();
                let is_new = |nsd: &&NsdId| written.get(*nsd) < Some(&number);
                let left: Vec<NsdId> = nsds.iter().filter(is_new).copied().collect();
                keeper.leave(&left);
                drop(written);
                self.answer(number);
                return;
            }
            What::WriteAgain(nsd) => {
                let mut written = self.following.written.lock();
                let newest = written.entry(*nsd).or_insert(number);
                *newest = number.max(*newest);
            }
            What::Places => {}
        }
        if !self.following.pending.lock().insert(number) {
            return;
        }
        let Some(thread) = self.following.thread.get() else { return };
        match thread.submit(Job { change, leaves: keeper.leaves() }) {
            Ok(()) | Err(Refused::Ended(_)) => {}
            // No thread is to be had: this one must do it, for somebody waits.
            Err(Refused::Full(job)) => self.follow(&job),
        }
    }

    fn follow(&self, job: &Job) {
        let number = job.change.number;
        let keeper = self.keeper.get().and_then(Weak::upgrade);
        let is_followed = keeper.is_some_and(|keeper| match &job.change.what {
            What::Leave(_) => unreachable!("invariant: followed where it is heard"),
            What::WriteAgain(nsd) => keeper.write_again(*nsd, job.leaves),
            What::Places => keeper.follow_places(),
        });
        self.following.pending.lock().remove(&number);
        if is_followed {
            self.answer(number);
        }
    }

    fn answer(&self, (term, change): (Term, u64)) {
        self.way.send(term, Request::Left { change });
    }
}
