//! Who may use an NSD under a manager. Pure: no clock, lock, disk or socket. `store/door.rs` asks
//! here and waits for requests to end.
//!
//! **Lease.** Without a lease the NSD serves nobody: no reads either. The manager names the lease's
//! end on the NSD's own clock, so a message that is late extends nothing. A lease is for one life
//! of the server. A server that was started anew serves nobody until it has a lease with a fresh
//! list, so a fence survives the restart although the list is not durable (decision 0034).
//!
//! **Term.** The highest term ever heard is durable. A manager of a lower term is refused, also by
//! a server that was started anew. The manager's own requests carry its term in the place of an
//! epoch.
//!
//! **List.** The clients that may use the NSD, each with its epoch. Lists, additions and fences are
//! numbered by the manager, so a late one brings no fenced client back.
//!
//! **Floor.** Requests under an older pool map are refused. The floor only rises, and a list does
//! not lower it.

use std::collections::BTreeSet;
use std::time::Duration;
use strake_proto::nsd::{AllowList, NsdContext};
use strake_proto::{ClientId, Epoch, ErrorKind, MapVersion, Term};
use thiserror::Error;

/// A list with more clients than this is refused.
pub const CLIENTS_MAX: usize = 65_536;

/// Why a request or a message of the manager is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The NSD has no lease.
    #[error("the server has no lease; it serves again when its manager has renewed it")]
    NoLease,
    /// The manager's term is not known here yet.
    #[error("term {0} is not known here; its manager gives the server a lease first")]
    TermUnknown(Term),
    /// The manager's term has ended.
    #[error("the manager's term has ended; term {0} has begun")]
    TermEnded(Term),
    /// The client is not on the list.
    #[error("client {0} of epoch {1} may not use it; it was declared dead, or never joined")]
    NotListed(ClientId, Epoch),
    /// The sender's map is below the floor.
    #[error("the pool map of the request is older than version {0}; fetch the map")]
    BelowFloor(MapVersion),
    /// The message is not the manager's.
    #[error("client {0} sent a message that only the manager sends")]
    NotManager(ClientId),
    /// The lease is for another life of the server.
    #[error("the lease is for another start of the server; this is start {0}")]
    OtherBoot(u64),
    /// A renewal or an addition, but there is no list of this term.
    #[error("the server has no list of clients of this term; give it one with its lease")]
    NoList,
    /// The list or addition is older than one that came before.
    #[error("the list or addition is older than number {0}")]
    Overtaken(u64),
    /// The list is too long.
    #[error("a list of more than {CLIENTS_MAX} clients")]
    TooMany,
}

impl Refusal {
    /// What the refused sender should do.
    pub fn kind(self) -> ErrorKind {
        match self {
            // The same as with a server that cannot be reached: use the others, ask the leader.
            Refusal::NoLease | Refusal::TermUnknown(_) => ErrorKind::Unreachable,
            Refusal::TermEnded(_) | Refusal::NotListed(..) => ErrorKind::Fenced,
            Refusal::BelowFloor(_) => ErrorKind::OldMap,
            Refusal::NotManager(_) => ErrorKind::Access,
            Refusal::OtherBoot(_) | Refusal::NoList | Refusal::Overtaken(_) => ErrorKind::Stale,
            Refusal::TooMany => ErrorKind::TooBig,
        }
    }
}

/// Who may use the NSD now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Admission {
    /// The server's life.
    boot: u64,
    /// The highest term heard.
    term: Term,
    /// The lease's end, and the term that gave it.
    lease: Option<(Term, Duration)>,
    floor: MapVersion,
    /// The term of the list.
    listed: Option<Term>,
    allowed: BTreeSet<(ClientId, Epoch)>,
    /// The number of the last list, addition or fence of `term`; 0 for none.
    number: u64,
}

impl Admission {
    /// A server that has just started. `term` is the highest term that it ever heard.
    pub fn new(boot: u64, term: Term) -> Admission {
        Admission {
            boot,
            term,
            lease: None,
            floor: MapVersion(0),
            listed: None,
            allowed: BTreeSet::new(),
            number: 0,
        }
    }

    /// The highest term heard.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The lowest map version that is accepted.
    pub fn floor(&self) -> MapVersion {
        self.floor
    }

    /// The number of the last list, addition or fence.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The lease's end on the server's clock. `None` if there was none in this life.
    pub fn until(&self) -> Option<Duration> {
        self.lease.map(|(_, until)| until)
    }

    /// The clients that may use the NSD.
    pub fn allowed(&self) -> &BTreeSet<(ClientId, Epoch)> {
        &self.allowed
    }

    /// Judges a request at the moment `now` of the server's clock.
    ///
    /// # Errors
    /// The reason to refuse the request.
    pub fn judge(&self, context: &NsdContext, now: Duration) -> Result<(), Refusal> {
        if self.until().is_none_or(|until| now >= until) {
            return Err(Refusal::NoLease);
        }
        let NsdContext { client, epoch, term, map } = *context;
        if client == ClientId::MANAGER {
            self.judge_term(term)?;
            if term > self.term {
                return Err(Refusal::TermUnknown(term));
            }
        } else if !self.allowed.contains(&(client, epoch)) {
            return Err(Refusal::NotListed(client, epoch));
        }
        if map < self.floor {
            return Err(Refusal::BelowFloor(self.floor));
        }
        Ok(())
    }

    /// Judges the sender of a manager's message. True if its term is new: it must be durable before
    /// [`Admission::begin_term`], and that must come before the message.
    ///
    /// # Errors
    /// The reason to refuse the message.
    pub fn judge_manager(&self, context: &NsdContext) -> Result<bool, Refusal> {
        if context.client != ClientId::MANAGER {
            return Err(Refusal::NotManager(context.client));
        }
        self.judge_term(context.term)?;
        Ok(context.term > self.term)
    }

    fn judge_term(&self, term: Term) -> Result<(), Refusal> {
        if term < self.term { Err(Refusal::TermEnded(self.term)) } else { Ok(()) }
    }

    /// Begins a term that is durable. The list and the lease of the term before stay until the new
    /// manager gives others: what its clients hold stays usable.
    pub fn begin_term(&mut self, term: Term) {
        if term > self.term {
            (self.term, self.number) = (term, 0);
        }
    }

    /// Takes a lease of the current term, as in [`strake_proto::nsd::NsdRequest::Lease`].
    ///
    /// # Errors
    /// The reason to refuse it. Nothing has changed then.
    pub fn lease(
        &mut self,
        boot: u64,
        until: Duration,
        floor: MapVersion,
        list: Option<&AllowList>,
    ) -> Result<(), Refusal> {
        if boot != self.boot {
            return Err(Refusal::OtherBoot(self.boot));
        }
        match list {
            None => self.judge_list()?,
            Some(list) if list.clients.len() > CLIENTS_MAX => return Err(Refusal::TooMany),
            Some(list) => {
                self.take_number(list.number)?;
                self.listed = Some(self.term);
                self.allowed = list.clients.iter().copied().collect();
            }
        }
        let before = self.lease.filter(|(term, _)| *term == self.term);
        let until = before.map_or(until, |(_, before)| before.max(until));
        self.lease = Some((self.term, until));
        self.raise_floor(floor);
        Ok(())
    }

    /// Adds a client.
    ///
    /// # Errors
    /// The reason to refuse it. Nothing has changed then.
    pub fn allow(&mut self, number: u64, client: ClientId, epoch: Epoch) -> Result<(), Refusal> {
        self.judge_list()?;
        if self.allowed.len() >= CLIENTS_MAX && !self.allowed.contains(&(client, epoch)) {
            return Err(Refusal::TooMany);
        }
        self.take_number(number)?;
        self.allowed.insert((client, epoch));
        Ok(())
    }

    /// Takes a client off the list. A fence is never too late, because it only takes away.
    pub fn fence(&mut self, number: u64, client: ClientId, epoch: Epoch) {
        self.number = self.number.max(number);
        self.allowed.remove(&(client, epoch));
    }

    /// Raises the floor.
    pub fn raise_floor(&mut self, floor: MapVersion) {
        self.floor = self.floor.max(floor);
    }

    fn judge_list(&self) -> Result<(), Refusal> {
        if self.listed == Some(self.term) { Ok(()) } else { Err(Refusal::NoList) }
    }

    /// Takes the number of a list or addition. The last number again is the last message again.
    fn take_number(&mut self, number: u64) -> Result<(), Refusal> {
        if number < self.number {
            return Err(Refusal::Overtaken(self.number));
        }
        self.number = number;
        Ok(())
    }
}

#[cfg(test)]
#[path = "admission_test.rs"]
mod admission_test;
