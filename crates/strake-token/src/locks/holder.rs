//! What one client has asked for, and the locks that it believes to hold.
//!
//! **A request** goes out under a number, and is repeated until it is answered. The client's *mark*
//! goes with it: the first number that is neither answered nor known to wait.
//!
//! **The view** says of each byte what the latest answer made of it. Answers may overtake each
//! other, so each has a moment, and a byte keeps that of the answer that it shows. Of an unlocked
//! byte the moment is kept only while a request about it is under way.
//!
//! **A new leader** is told the view, less what requests under way may have unlocked or lowered: it
//! may be somebody else's by now. If such a request then fails, its owner has lost what was
//! lowered, and is told so.

use super::pieces::Pieces;
use super::{
    ByteRange, LockHeld, LockKind, LockOp, LockOutcome, LockOwner, LockReply, LockRequest, LockWant,
};
use crate::held::Mode;
use crate::message::{RequestId, Term};
use crate::rule::{Rule, obeys};
use std::collections::BTreeMap;
use strake_proto::{ClientId, Ino};

/// Locks in one message to a new leader.
const HELD_AT_ONCE: usize = 1000;

/// What the holder wants done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Send the leader a message.
    Send(LockRequest),
    /// A request has come to its end.
    Done {
        /// Which one.
        request: RequestId,
        /// What became of it.
        outcome: LockOutcome,
        /// Whether its owner has lost locks that it would have lowered: it failed, and the leader
        /// changed meanwhile.
        lost: bool,
    },
    /// A request waits for a lock of this client.
    Waits(RequestId, ClientId),
}

/// A request that is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    op: LockOp,
    /// The leader has said that it waits.
    waits: bool,
    cancelled: bool,
    /// Nobody waits for its outcome any more. What it locks is unlocked.
    abandoned: bool,
    /// At a change of leader it might have lowered locks, so they were not reasserted.
    lowered: bool,
}

/// What is known of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    /// `None`: unlocked.
    lock: Option<(Mode, u32)>,
    moment: u64,
}

/// An owner in a file.
type Place = (Ino, LockOwner);

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockHolder {
    term: Term,
    next: u64,
    asked: BTreeMap<RequestId, Asked>,
    view: BTreeMap<Place, Pieces<Known>>,
    /// What is reasserted, until the leader has heard all of it.
    reasserting: Vec<LockRequest>,
}

fn place(want: &LockWant) -> Place {
    (want.ino, want.owner)
}

impl LockHolder {
    /// Of a client that has just joined the leader of a term.
    pub fn new(term: Term) -> LockHolder {
        LockHolder { term, ..LockHolder::default() }
    }

    /// Asks for something. [`Effect::Done`] brings the outcome.
    pub fn ask(&mut self, op: LockOp) -> (RequestId, Effect) {
        let request = RequestId(self.next);
        self.next += 1;
        let asked = Asked { op, waits: false, cancelled: false, abandoned: false, lowered: false };
        self.asked.insert(request, asked);
        (request, self.say(request, op))
    }

    fn say(&self, request: RequestId, op: LockOp) -> Effect {
        let first = self.asked.iter().find(|(_, asked)| !asked.waits);
        let below = first.map_or(RequestId(self.next), |(request, _)| *request);
        Effect::Send(LockRequest::Do { request, below, op })
    }

    /// Ends a request that may wait. [`Effect::Done`] says whether it had been granted before.
    pub fn cancel(&mut self, request: RequestId) -> Option<Effect> {
        let asked = self.asked.get_mut(&request)?;
        asked.cancelled = true;
        Some(Effect::Send(LockRequest::Cancel { request }))
    }

    /// Nobody waits for a request any more. If it locks something, it is ended, and what it has
    /// locked is unlocked. If it unlocks, it goes on.
    pub fn abandon(&mut self, request: RequestId) -> Option<Effect> {
        let asked = self.asked.get_mut(&request)?;
        asked.abandoned = true;
        asked.op.want().mode?;
        self.cancel(request)
    }

    /// Takes a message of the leader of a term.
    pub fn receive(&mut self, term: Term, message: LockReply) -> Vec<Effect> {
        if term != self.term && obeys(Rule::OtherTermsAreVoid) {
            return Vec::new();
        }
        match message {
            LockReply::Answer { request, outcome, moment, late } => {
                let heard = late.then_some(Effect::Send(LockRequest::Heard { request }));
                let mut effects = self.answered(request, outcome, moment);
                effects.extend(heard);
                effects
            }
            LockReply::Waits { request, holder } => {
                let Some(asked) = self.asked.get_mut(&request) else { return Vec::new() };
                asked.waits = true;
                vec![Effect::Waits(request, holder)]
            }
            LockReply::Reasserted => {
                self.reasserting.clear();
                Vec::new()
            }
        }
    }

    fn answered(&mut self, request: RequestId, outcome: LockOutcome, moment: u64) -> Vec<Effect> {
        let Some(asked) = self.asked.remove(&request) else { return Vec::new() };
        let want = *asked.op.want();
        let is_granted = outcome == LockOutcome::Granted;
        if asked.op.changes() && is_granted {
            let lock = want.mode.map(|mode| (mode, want.pid));
            self.learn(&want, want.range, Known { lock, moment });
        } else if asked.op.changes() && want.owner.kind == LockKind::Flock {
            // What it had may have been let go.
            self.learn(&want, ByteRange::ALL, Known { lock: None, moment });
        }
        self.prune(place(&want));
        if asked.abandoned {
            let is_locked = is_granted && want.mode.is_some();
            return if is_locked { vec![self.unlock(want)] } else { Vec::new() };
        }
        vec![Effect::Done { request, outcome, lost: asked.lowered && !is_granted }]
    }

    /// Unlocks what nobody waits for any more.
    fn unlock(&mut self, want: LockWant) -> Effect {
        let (request, effect) = self.ask(LockOp::Set(LockWant { mode: None, ..want }));
        self.abandon(request);
        effect
    }

    /// Takes in what an answer says, where no later one has been heard.
    fn learn(&mut self, want: &LockWant, range: ByteRange, known: Known) {
        let pieces = self.view.entry(place(want)).or_default();
        let is_later = |(_, other): &(ByteRange, Known)| {
            other.moment > known.moment && obeys(Rule::LaterAnswersWin)
        };
        let later: Vec<(ByteRange, Known)> = pieces.over(range).filter(is_later).collect();
        pieces.put(range, Some(known));
        for (piece, other) in later {
            if let Some(common) = piece.common(range) {
                pieces.put(common, Some(other));
            }
        }
    }

    /// Forgets unlocked bytes about which no request is under way.
    fn prune(&mut self, at: Place) {
        let Some(pieces) = self.view.get_mut(&at) else { return };
        let asked = self.asked.values().map(|asked| asked.op.want());
        let under_way: Vec<ByteRange> =
            asked.filter(|want| place(want) == at).map(|want| want.range).collect();
        let unlocked: Vec<ByteRange> = pieces
            .iter()
            .filter(|(_, known)| known.lock.is_none())
            .map(|(range, _)| range)
            .filter(|range| !under_way.iter().any(|other| other.overlaps(*range)))
            .collect();
        unlocked.into_iter().for_each(|range| pieces.put(range, None));
        if pieces.is_empty() {
            self.view.remove(&at);
        }
    }

    /// A new leader: see the file's head. What is not answered is asked for anew.
    pub fn reassert(&mut self, term: Term) -> Vec<Effect> {
        assert!(term > self.term, "terms rise");
        self.term = term;
        self.reasserting.clear();
        for pieces in self.view.values_mut() {
            let locked: Vec<(ByteRange, Known)> =
                pieces.iter().filter(|(_, known)| known.lock.is_some()).collect();
            *pieces = Pieces::default();
            // The new leader's moments begin anew.
            for (range, known) in locked {
                pieces.put(range, Some(Known { moment: 0, ..known }));
            }
        }
        for asked in self.asked.values_mut() {
            asked.waits = false;
            if asked.op.changes() && obeys(Rule::UnlockedIsNotReasserted) {
                let want = asked.op.want();
                asked.lowered |= self.view.get_mut(&place(want)).is_some_and(|it| lower(it, want));
            }
        }
        self.view.retain(|_, pieces| !pieces.is_empty());
        for ((ino, owner), pieces) in &self.view {
            for locks in held(pieces).chunks(HELD_AT_ONCE) {
                let (part, locks) = (self.reasserting.len() as u64, locks.to_vec());
                let (ino, owner) = (*ino, *owner);
                self.reasserting.push(LockRequest::Reassert { part, ino, owner, locks });
            }
        }
        let parts = self.reasserting.len() as u64;
        self.reasserting.push(LockRequest::Reasserted { parts });
        self.repeat()
    }

    /// All that waits for an answer, to be sent again when none came for a while.
    pub fn repeat(&self) -> Vec<Effect> {
        let reasserting = self.reasserting.iter().cloned().map(Effect::Send);
        let asked = self.asked.iter().map(|(request, asked)| {
            let request = *request;
            if asked.cancelled {
                return Effect::Send(LockRequest::Cancel { request });
            }
            self.say(request, asked.op)
        });
        reasserting.chain(asked).collect()
    }

    /// Whether the table may have a lock of an owner in a file.
    pub fn may_have(&self, ino: Ino, owner: LockOwner) -> bool {
        self.view.contains_key(&(ino, owner))
            || self.asked.values().any(|asked| place(asked.op.want()) == (ino, owner))
    }

    /// Whether a request of an owner about a file was abandoned and is not answered. What it locks
    /// is unlocked later, so the owner must lock nothing else there.
    pub fn is_unsettled(&self, ino: Ino, owner: LockOwner) -> bool {
        let mut abandoned = self.asked.values().filter(|asked| asked.abandoned);
        abandoned.any(|asked| place(asked.op.want()) == (ino, owner))
    }

    /// What an owner holds of a file, as the client believes.
    pub fn held(&self, ino: Ino, owner: LockOwner) -> Vec<LockHeld> {
        self.view.get(&(ino, owner)).map(held).unwrap_or_default()
    }

    /// The number of requests that are not answered.
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Whether nothing waits for an answer.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.reasserting.is_empty()
    }

    /// The term that this client has reasserted in; all that it says is of this term.
    pub fn term(&self) -> Term {
        self.term
    }
}

/// The locks in a view, whatever their moments.
fn held(view: &Pieces<Known>) -> Vec<LockHeld> {
    let mut locks = Pieces::default();
    view.iter().for_each(|(range, known)| locks.put(range, known.lock));
    locks.iter().map(|(range, (mode, pid))| LockHeld { range, mode, pid }).collect()
}

/// Takes from a view what a request may have unlocked or lowered. Whether it has lowered something
/// that its owner keeps if it fails.
fn lower(view: &mut Pieces<Known>, want: &LockWant) -> bool {
    let is_flock = want.owner.kind == LockKind::Flock;
    let touched: Vec<(ByteRange, Known)> = view.over(want.range).collect();
    let mut lowers = false;
    for (piece, known) in touched {
        let (Some(range), Some((mode, pid))) = (piece.common(want.range), known.lock) else {
            continue;
        };
        let most = match want.mode {
            // It is let go first.
            Some(wanted) if is_flock && wanted > mode => None,
            wanted => wanted.map(|wanted| wanted.min(mode)),
        };
        if most != Some(mode) {
            lowers |= most.is_some();
            view.put(range, most.map(|most| Known { lock: Some((most, pid)), ..known }));
        }
    }
    lowers
}
