//! Clients that are gone: before anybody else gets what they held, what they left on the NSDs is
//! put right.
//!
//! A client that died may leave stripes that some NSDs have and others lack, and small writes that
//! only the metadata has. Until these are resolved its tokens stay in the table, and it is heard no
//! more. So nobody reads or writes the files concerned meanwhile (rule R4 of the cluster).
//!
//! **Writers beside others.** Where a client that is gone wrote some blocks of a file, living
//! clients that write others of it give the file up first, and it is granted to nobody before the
//! end ([`strake_token::Authority::fenced`]): what is put right are whole files.
//!
//! **Late changes.** A change by a client that is gone may still be under way to the metadata.
//! If it told a size while its files are put right, its blocks would lie beyond the end of before,
//! and be counted twice. So its changes are refused first, and those under way end
//! ([`TokenService::close`]).
//!
//! **Which files.** Those that a client that is gone holds exclusively, or wrote beside others. If
//! one of them has not reasserted what it holds, that is not known: then all files, but those that
//! a living client has reasserted exclusively. Only these are granted at that time.

use super::{TokenService, pool};
use std::collections::BTreeSet;
use std::time::Duration;
use strake_proto::meta::{MetaEntry, MetaOp};
use strake_proto::{ClientId, Error, ErrorKind, GrantNumber, Ino, Result};

/// The living clients must have reasserted within that time. A later attempt waits anew.
const REASSERT_MAX: Duration = Duration::from_secs(20);
/// Living clients must have given up what they wrote beside those that are gone within that time.
const CLEAR_MAX: Duration = Duration::from_secs(60);
/// Changes of clients that are gone must have ended within that time.
const CHANGES_MAX: Duration = Duration::from_secs(20);
/// Numbers must be reserved within that time.
const DRAW_MAX: Duration = Duration::from_secs(20);

/// A wait lasts that long before the waiter looks again.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// Puts right what clients that are gone have left in the files for which the function says true,
/// with versions of that grant.
pub type Heal<'a> = &'a dyn Fn(GrantNumber, &dyn Fn(Ino) -> bool) -> Result<()>;

/// A change of the metadata that is under way.
pub(super) struct Change<'a> {
    service: &'a TokenService,
    client: ClientId,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.service.state.lock();
        let count = state.changing.get_mut(&self.client).expect("invariant: a change is counted");
        *count -= 1;
        if *count == 0 {
            state.changing.remove(&self.client);
        }
        if state.closed.contains(&self.client) {
            self.service.changed.notify_all();
        }
    }
}

impl TokenService {
    /// Clients are gone, and no NSD accepts a write of them any more. Frees what they held when
    /// `heal` has put right what they left. If that fails, they keep it, and the caller tries
    /// again.
    ///
    /// # Errors
    /// Those of `heal`; `TimedOut` while a living client has not reasserted what it holds.
    pub fn bury(&self, clients: &BTreeSet<ClientId>, heal: Heal<'_>) -> Result<()> {
        self.hear_no_more(clients);
        let who = format!("{clients:?}");
        self.named("mounts that say what they hold", &who, || self.wait_for_living(clients))?;
        self.named("mounts that wrote beside dead ones", &who, || self.wait_for_clearing())?;
        let number = self.named("grant numbers", &who, || self.draw())?;
        heal(number, &|ino| self.state.lock().authority.may_have_changed(ino, clients))?;
        clients.iter().for_each(|client| self.gone(*client));
        Ok(())
    }

    /// No change of the metadata by these clients is taken from now on, but that they leave.
    /// Returns when what they had sent before is in the metadata, or refused.
    ///
    /// # Errors
    /// `TimedOut` if a change lasts too long; the metadata's. The caller asks again.
    pub fn close(&self, clients: &BTreeSet<ClientId>) -> Result<()> {
        let end = self.clock.monotonic() + CHANGES_MAX;
        let mut state = self.state.lock();
        state.closed.extend(clients);
        while clients.iter().any(|client| state.changing.contains_key(client)) {
            if state.stopped {
                return Err(pool::ended());
            }
            if self.clock.monotonic() >= end {
                let detail = "a change by a mount that is gone has not ended";
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
        drop(state);
        self.meta.sync()
    }

    /// Begins a change of the metadata by a client.
    ///
    /// # Errors
    /// `Fenced` if the client was closed.
    pub(super) fn begin_change(&self, entry: &MetaEntry) -> Result<Change<'_>> {
        let client = entry.client;
        let mut state = self.state.lock();
        if state.closed.contains(&client) && !matches!(entry.op, MetaOp::Leave) {
            let detail = format!("client {client} is not a client of this file system any more");
            return Err(Error::new(ErrorKind::Fenced, detail));
        }
        *state.changing.entry(client).or_default() += 1;
        Ok(Change { service: self, client })
    }

    /// Clients are gone, and no NSD accepts a write of them any more. Nobody waits for an answer of
    /// them from now on. They keep what they held until they are buried.
    pub fn hear_no_more(&self, clients: &BTreeSet<ClientId>) {
        let mut state = self.state.lock();
        for client in clients {
            state.ways.remove(client);
            state.pool.forget(*client);
            if state.authority.clients().contains(client) {
                state.leaving.insert(*client);
            }
        }
        let effects = state.authority.fenced(clients, self.clock.monotonic());
        self.wake_if_due(&mut state);
        drop(state);
        self.perform(effects);
        self.changed.notify_all();
    }

    /// Waits until all living clients have reasserted what they hold. Waits for nothing if those
    /// that are gone have.
    fn wait_for_living(&self, gone: &BTreeSet<ClientId>) -> Result<()> {
        let end = self.clock.monotonic() + REASSERT_MAX;
        let mut state = self.state.lock();
        loop {
            let awaited = state.authority.awaited();
            let living: Vec<ClientId> = awaited.difference(gone).copied().collect();
            if awaited.is_disjoint(gone) || living.is_empty() {
                return Ok(());
            }
            if let Some(client) = living.iter().find(|client| state.leaving.contains(client)) {
                let detail = format!("client {client} has died meanwhile");
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
            if state.stopped {
                return Err(pool::ended());
            }
            if self.clock.monotonic() >= end {
                let detail = format!("clients {living:?} have not said what they hold");
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
    }

    /// Waits until no living client writes beside one that is gone.
    fn wait_for_clearing(&self) -> Result<()> {
        let end = self.clock.monotonic() + CLEAR_MAX;
        let mut state = self.state.lock();
        while !state.authority.is_cleared() {
            if state.stopped {
                return Err(pool::ended());
            }
            if self.clock.monotonic() >= end {
                let detail = "a mount does not give up what it wrote beside a dead one";
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
            self.changed.wait_for(&mut state, WAIT_STEP);
        }
        Ok(())
    }

    /// A number above all that were granted.
    fn draw(&self) -> Result<GrantNumber> {
        let end = self.clock.monotonic() + DRAW_MAX;
        loop {
            let mut effects = Vec::new();
            {
                let mut state = self.state.lock();
                if let Some(number) = state.authority.draw(&mut effects) {
                    return Ok(number);
                }
                if state.stopped {
                    return Err(pool::ended());
                }
            }
            let waits = effects.is_empty();
            self.perform(effects);
            if self.clock.monotonic() >= end {
                return Err(Error::new(ErrorKind::TimedOut, "no grants can be reserved"));
            }
            if waits {
                // Somebody else has them reserved.
                self.changed.wait_for(&mut self.state.lock(), WAIT_STEP);
            }
        }
    }
}
