//! Grants of space: clients ask, commits top up, and the manager frees what the dead held.
//! [`crate::grants`] decides.
//!
//! **Durable.** Under a manager, clients outlive the server. So each entry of the journal has what
//! changed of the grants before it, and what a client hears is durable before
//! ([`crate::grants`], a restart). A store of one process keeps grants in memory only, because its
//! clients end with it.

use super::{BlockStore, Decided, Ticket};
use crate::edits::Edits;
use crate::grants::{Answer, Ask, Grant, Grants, Holder, TooMany};
use crate::keys::grant_key;
use crate::record::encode_grant;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdReply, SpaceAsk, SpaceGrant};
use strake_proto::{Error, ErrorKind, Result};

/// What an entry of the journal says of grants.
#[derive(Default)]
pub(super) struct Changes {
    /// Units of the sender's grant that were flying before.
    landed: u64,
    changed: Vec<(Holder, Option<Grant>)>,
}

/// An ask in units. What a client counts in bytes, it needs in whole units.
fn in_units(ask: &SpaceAsk) -> Ask {
    let units = |bytes: u64| bytes.div_ceil(UNIT_BYTES as u64);
    let SpaceAsk { number, floor, need, ahead } = *ask;
    Ask { number, floor: units(floor), need: units(need), ahead: units(ahead) }
}

fn in_bytes(answer: Answer) -> SpaceGrant {
    let bytes = |units: u64| units * UNIT_BYTES as u64;
    let Answer { granted, target, is_short, elsewhere } = answer;
    let (granted, target) = (bytes(granted), bytes(target));
    SpaceGrant { granted, target, is_short, elsewhere: bytes(elsewhere) }
}

impl BlockStore {
    /// Sets what is granted to a client, as far as there is space.
    ///
    /// # Errors
    /// `TooBig` if too many clients hold grants; the journal's.
    pub(super) fn grant_space(&self, ticket: &Ticket<'_>, ask: &SpaceAsk) -> Result<NsdReply> {
        self.refuse_if_failed()?;
        let holder = ticket.client().expect("invariant: a request has a sender");
        let work = |grants: &mut Grants, supply| grants.ask(holder, in_units(ask), supply);
        let answer = self.space.change_grants(&self.reclaim, work)?;
        if self.door.is_some()
            && let Err(error) = self.publish_grants(ticket).and_then(|()| self.make_durable())
        {
            // What is not durable is not told. A client that was fenced meanwhile has nothing.
            if error.kind() == ErrorKind::Fenced {
                self.space.change_grants(&self.reclaim, |grants, _| grants.remove(holder));
            }
            return Err(error);
        }
        Ok(NsdReply::Granted { boot: self.boot, space: in_bytes(answer) })
    }

    /// Journals what has changed of the grants. Any other entry does so as well.
    fn publish_grants(&self, ticket: &Ticket<'_>) -> Result<()> {
        loop {
            match self.publish(ticket, |_| Decided::default()) {
                Err(error) if error.kind() == ErrorKind::NoSpace => self.make_room()?,
                other => return other,
            }
        }
    }

    /// Adds to an entry what has changed of the grants. The entry names so many units that its
    /// sender took. [`BlockStore::take_back_changes`] undoes it. Called under the order lock.
    pub(super) fn add_changes(
        &self,
        ticket: &Ticket<'_>,
        taken: u64,
        edits: &mut Edits,
    ) -> Changes {
        if !self.space.is_granting() {
            return Changes::default();
        }
        let mut grants = self.space.grants();
        let landed = grants.land(ticket.client(), taken);
        let changed = grants.take_changes();
        for (holder, grant) in changed.iter().filter(|_| self.door.is_some()) {
            let key = grant_key(*holder);
            match grant {
                Some(grant) => edits.put(&key, encode_grant(&key, grant)),
                None => edits.delete(&key),
            }
        }
        Changes { landed, changed }
    }

    /// Notes that an entry did not get into the journal.
    pub(super) fn take_back_changes(&self, ticket: &Ticket<'_>, changes: &Changes) {
        if self.space.is_granting() {
            let mut grants = self.space.grants();
            grants.fly_on(ticket.client(), changes.landed);
            grants.return_changes(&changes.changed);
        }
    }

    /// Tops up the sender's grant. Called by a commit that has freed what was replaced, and that
    /// makes the journal durable afterwards.
    pub(super) fn top_up(&self, ticket: &Ticket<'_>) -> Result<SpaceGrant> {
        let Some(holder) = ticket.client() else { return Ok(SpaceGrant::default()) };
        if !self.space.is_granting() || self.space.grants().of(holder).is_none() {
            return Ok(SpaceGrant::default());
        }
        let work = |grants: &mut Grants, supply| grants.top_up(holder, supply);
        let answer = self.space.change_grants(&self.reclaim, work);
        if self.door.is_some() {
            self.publish_grants(ticket)?;
        }
        Ok(in_bytes(answer))
    }

    /// Frees the grants of all clients but those for which `stays` is true.
    pub(super) fn free_grants(&self, stays: &dyn Fn(Holder) -> bool) -> Result<()> {
        if !self.space.is_granting() {
            return Ok(());
        }
        self.space.change_grants(&self.reclaim, |grants, _| grants.retain(stays));
        self.publish_grants(&Ticket::OWN)
    }
}

impl From<TooMany> for Error {
    fn from(error: TooMany) -> Error {
        Error::new(ErrorKind::TooBig, error.to_string())
    }
}

#[cfg(test)]
#[path = "grants_test.rs"]
mod grants_test;
