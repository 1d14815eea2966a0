//! Changes of the pool map that all clients must follow.
//!
//! **An NSD that misses a write** is read by nobody afterwards. The client that leaves it out notes
//! so in the metadata before its write counts. From then on every other client is *apart*: it is
//! granted nothing until it has said that it does not use the NSD any more. What it holds already
//! is of no danger. Nobody else writes there, so the NSD has all of that, or the client itself
//! knows what it lacks. So the change is answered after a moment, also if a client is silent, be it
//! dead or cut off. NSDs beyond the code's tolerance are not left out, whoever asks.
//!
//! While a client is apart the NSDs stay out of use, and no disk is replaced, deleted or added. So
//! a later leader sees in the metadata what clients of before may not have left, and all of them
//! are apart when it begins.
//!
//! **An NSD that comes back** is first written by every client ([`TokenService::have_written`]).
//! Only then is it compared with the others, because nobody writes anything without it any more. It
//! counts as up when that is done, unless somebody has noted meanwhile that it missed something
//! again: that note and the end of the comparison come one after the other.
//!
//! **An NSD that is deleted**: see `strake_array::nsds`, heirs. A client's word that an heir lacks
//! something, and the end of the deletion, come one after the other, too.

use super::{Make, TokenService};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_array::nsds::OfDeletion;
use strake_proto::layout::{NsdAvailability, NsdState};
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaQuery, MetaReply};
use strake_proto::{ClientId, Error, ErrorKind, NsdId, Result, SlotIndex};
use strake_stripe::strips_at_most;
use strake_token::message::Reply;

/// A client that has not followed a change is told again after that long.
const REPEAT: Duration = Duration::from_millis(500);
/// Clients that have not left an NSD after that long are not waited for. Those that are there
/// answer within milliseconds.
const LEAVE_WAIT: Duration = Duration::from_secs(1);
/// Clients are not apart any more, or dead, within that time.
const APART_MAX: Duration = Duration::from_secs(60);
/// So many grants are kept for a client that is apart. It asks again for all others.
const KEPT_MAX: usize = 1024;
/// Clients must write to an NSD that comes back within that time. They flush what they have.
const WRITE_MAX: Duration = Duration::from_secs(300);

/// The changes that clients are to follow.
#[derive(Default)]
pub(super) struct PoolChanges {
    last: u64,
    /// The clients that have yet to follow a change.
    behind: BTreeMap<u64, BTreeSet<ClientId>>,
    /// The clients that have yet to leave NSDs: see the file's head.
    apart: BTreeMap<ClientId, Apart>,
    /// The NSD that is being brought up to date. Nobody has noted since that it misses something.
    returning: Option<NsdId>,
    /// No NSD is brought up to date any more, because the manager ends.
    is_ending: bool,
}

/// A client that has yet to leave NSDs.
struct Apart {
    /// The change that it was told of last. It names all of the NSDs.
    change: u64,
    nsds: BTreeSet<NsdId>,
    /// Grants for it. It gets them when it has left the NSDs.
    kept: Vec<Reply>,
}

impl Apart {
    fn message(&self) -> Reply {
        Reply::Unusable { change: self.change, nsds: self.nsds.iter().copied().collect() }
    }
}

/// How long clients are waited for, beside a limit in time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    /// As long as the service lasts.
    Served,
    /// As long as the manager works.
    Managed,
    /// As long as the manager brings this NSD up to date, and nobody notes that it misses
    /// something.
    Returning(NsdId),
}

impl PoolChanges {
    fn is_wanted(&self, change: As) -> bool {
        match change {
            As::Served => true,
            As::Managed => !self.is_ending,
            As::Returning(nsd) => self.returning == Some(nsd),
        }
    }
}

impl PoolChanges {
    /// A client has followed a change. Returns the grants that were kept for it until then.
    pub(super) fn followed(&mut self, client: ClientId, change: u64) -> Vec<Reply> {
        if let Some(behind) = self.behind.get_mut(&change) {
            behind.remove(&client);
        }
        match self.apart.get(&client) {
            Some(apart) if apart.change == change => {
                self.apart.remove(&client).map_or_else(Vec::new, |apart| apart.kept)
            }
            _ => Vec::new(),
        }
    }

    /// A client is gone, and nobody waits for it.
    pub(super) fn forget(&mut self, client: ClientId) {
        for behind in self.behind.values_mut() {
            behind.remove(&client);
        }
        self.apart.remove(&client);
    }

    /// Sets clients apart until they leave these NSDs. Returns the number of that change. Clients
    /// that have yet to leave all of them since an earlier one are not behind in this one, because
    /// nobody need wait for them any more.
    pub(super) fn set_apart(&mut self, mut clients: BTreeSet<ClientId>, nsds: &[NsdId]) -> u64 {
        let is_told = |apart: &Apart| nsds.iter().all(|nsd| apart.nsds.contains(nsd));
        clients.retain(|client| !self.apart.get(client).is_some_and(is_told));
        let change = self.begin(clients.clone());
        for client in clients {
            let none = || Apart { change, nsds: BTreeSet::new(), kept: Vec::new() };
            let apart = self.apart.entry(client).or_insert_with(none);
            apart.change = change;
            apart.nsds.extend(nsds);
        }
        change
    }

    /// A change for which clients were set apart because of an NSD is not made.
    fn take_back(&mut self, change: u64, nsd: NsdId) {
        self.behind.remove(&change);
        for apart in self.apart.values_mut().filter(|apart| apart.change == change) {
            apart.nsds.remove(&nsd);
        }
        self.apart.retain(|_, apart| !apart.nsds.is_empty());
    }

    /// Whether a client is apart.
    pub(super) fn is_apart(&self, client: ClientId) -> bool {
        self.apart.contains_key(&client)
    }

    /// The message for a client, unless it is a grant and the client is apart.
    pub(super) fn pass(&mut self, client: ClientId, message: Reply) -> Option<Reply> {
        let is_grant = matches!(message, Reply::Grant { .. });
        match self.apart.get_mut(&client).filter(|_| is_grant) {
            Some(apart) => {
                if apart.kept.len() < KEPT_MAX {
                    apart.kept.push(message);
                }
                None
            }
            None => Some(message),
        }
    }

    /// The message that a client that is apart has yet to answer.
    pub(super) fn unanswered(&self, client: ClientId) -> Option<Reply> {
        self.apart.get(&client).map(Apart::message)
    }

    /// The messages that clients that are apart have yet to answer.
    pub(super) fn all_unanswered(&self) -> Vec<(ClientId, Reply)> {
        self.apart.iter().map(|(client, apart)| (*client, apart.message())).collect()
    }

    fn begin(&mut self, clients: BTreeSet<ClientId>) -> u64 {
        self.last += 1;
        self.behind.insert(self.last, clients);
        self.last
    }
}

/// How a change sets the availability of an NSD.
fn availability(op: &MetaOp) -> Option<(NsdId, NsdAvailability)> {
    match op {
        MetaOp::SetNsdState { nsd, state } => Some((*nsd, state.availability)),
        _ => None,
    }
}

/// Whether a change gives slots other NSDs.
fn is_of_places(op: &MetaOp) -> bool {
    matches!(op, MetaOp::ReplaceNsd { .. } | MetaOp::AddNsd { .. })
}

/// The NSDs that miss writes and that no client may use.
pub(super) fn out_of_use(known: &Configuration) -> Vec<NsdId> {
    let is_out = |state: NsdState| {
        matches!(state.availability, NsdAvailability::Down | NsdAvailability::Unrecovered)
    };
    known.pool.live().filter(|(_, slot)| is_out(slot.state)).map(|(_, slot)| slot.nsd).collect()
}

impl TokenService {
    /// Makes a change of the metadata. If it concerns the availability of an NSD, the clients
    /// follow first, or it is refused: see the file's head.
    pub(super) fn change_pool(&self, entry: &MetaEntry, make: Make<'_>) -> Result<()> {
        match OfDeletion::of(&entry.op) {
            Some(missed @ OfDeletion::HeirMissed) => {
                let _one = self.leaving.lock();
                missed.check(&*self.configuration()?)?;
                return make();
            }
            Some(end @ OfDeletion::End) => {
                return self.with_nobody_apart(&mut || {
                    end.check(&*self.configuration()?)?;
                    make()
                });
            }
            None => {}
        }
        match availability(&entry.op) {
            Some((nsd, NsdAvailability::Down | NsdAvailability::Unrecovered)) => {
                self.take_out(nsd, entry.client, make)
            }
            Some((nsd, NsdAvailability::Up)) => self.bring_in(nsd, make),
            Some((_, NsdAvailability::Recovering)) => self.with_nobody_apart(make),
            None if is_of_places(&entry.op) => self.with_nobody_apart(make),
            None => make(),
        }
    }

    /// Makes a change when no client is apart.
    fn with_nobody_apart(&self, make: Make<'_>) -> Result<()> {
        let end = self.clock.monotonic() + APART_MAX;
        self.named("mounts that leave NSDs", "", || {
            loop {
                let one = self.leaving.lock();
                if self.state.lock().pool.apart.is_empty() {
                    return make();
                }
                drop(one);
                let mut state = self.state.lock();
                if state.stopped || state.pool.is_ending {
                    return Err(ended());
                }
                if self.clock.monotonic() >= end {
                    let apart: Vec<ClientId> = state.pool.apart.keys().copied().collect();
                    let detail = format!("{apart:?} do not leave an NSD that misses writes");
                    return Err(Error::new(ErrorKind::TimedOut, detail));
                }
                self.changed.wait_for(&mut state, REPEAT);
            }
        })
    }

    fn take_out(&self, nsd: NsdId, client: ClientId, make: Make<'_>) -> Result<()> {
        let _one = self.leaving.lock();
        let known = self.configuration()?;
        let is_out = |state: NsdState| state.availability != NsdAvailability::Up;
        // Nothing is on a deleted NSD.
        let away = known.pool.live().filter(|(_, slot)| slot.nsd == nsd || is_out(slot.state));
        let away: Vec<SlotIndex> = away.map(|(at, _)| at).collect();
        let parity = usize::from(known.code.parity);
        if away.len() > parity && strips_at_most(&known.pool, known.code, &away) > parity {
            let detail = "more NSDs are away than the code tolerates: bring them back";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        let change = {
            let mut state = self.state.lock();
            state.pool.returning = state.pool.returning.filter(|returning| *returning != nsd);
            let mut clients = state.authority.clients() - &state.leaving;
            clients.remove(&client);
            state.pool.set_apart(clients, &[nsd])
        };
        if let Err(error) = make().and_then(|()| self.meta.sync()) {
            self.state.lock().pool.take_back(change, nsd);
            return Err(error);
        }
        self.named("mounts that leave an NSD", &nsd.to_string(), || self.have_left(change))
    }

    /// Tells the clients that are apart, and waits for a moment until those of a change have
    /// followed it.
    fn have_left(&self, change: u64) -> Result<()> {
        let told = self.state.lock().pool.all_unanswered();
        self.tell_all(told);
        let mut state = self.state.lock();
        let goes_on = |state: &mut super::State| {
            state.pool.behind.get(&change).is_some_and(|them| !them.is_empty()) && !state.stopped
        };
        self.changed.wait_while_for(&mut state, goes_on, LEAVE_WAIT);
        state.pool.behind.remove(&change);
        if state.stopped { Err(ended()) } else { Ok(()) }
    }

    fn bring_in(&self, nsd: NsdId, make: Make<'_>) -> Result<()> {
        let _one = self.leaving.lock();
        let known = self.configuration()?;
        let is_up = |state: NsdState| state.availability == NsdAvailability::Up;
        let was_up = known.pool.slots.iter().any(|slot| slot.nsd == nsd && is_up(slot.state));
        if !was_up && self.state.lock().pool.returning != Some(nsd) {
            let detail = format!("NSD {nsd} has missed something meanwhile");
            return Err(Error::new(ErrorKind::Io, detail));
        }
        make()
    }

    pub(super) fn configuration(&self) -> Result<Box<Configuration>> {
        match self.meta.query(&MetaQuery::Configuration)? {
            MetaReply::Configuration(known) => Ok(known),
            _ => Err(Error::new(ErrorKind::Internal, "not a configuration")),
        }
    }

    /// Has all clients but one write to an NSD that comes back, and waits until they do. The
    /// metadata says that it is being brought up to date, for clients that come later.
    ///
    /// # Errors
    /// `TimedOut` if a client does not follow; `Io` if one has noted that the NSD misses something;
    /// `Unreachable` if the service or the manager ends.
    pub fn have_written(&self, nsd: NsdId, but: ClientId) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.pool.is_ending {
                return Err(ended());
            }
            state.pool.returning = Some(nsd);
        }
        let message = |change| Reply::Writable { change, nsd };
        self.named("mounts that write to an NSD again", &nsd.to_string(), || {
            self.have_followed(message, but, WRITE_MAX, As::Returning(nsd))
        })
    }

    /// The manager ends: nobody waits any more until clients do what it asked for.
    pub(crate) fn end_waits(&self) {
        let mut state = self.state.lock();
        state.pool.is_ending = true;
        state.pool.returning = None;
        drop(state);
        self.changed.notify_all();
    }

    /// Has all clients but one place strips by the pool map that the metadata has now, and waits
    /// until they do. What they wrote before is durable then.
    ///
    /// # Errors
    /// `TimedOut` if a client does not follow; `Unreachable` if the service or the manager ends.
    pub fn have_placed(&self, but: ClientId) -> Result<()> {
        self.named("mounts that follow the pool map", "", || {
            self.have_followed(|change| Reply::Places { change }, but, WRITE_MAX, As::Managed)
        })
    }

    /// Tells all clients but one of a change, and waits until they have followed it, as
    /// long as `wanted` says. A service that has ended
    /// waits for nobody, because its node may be about to lead again.
    fn have_followed(
        &self,
        message: impl Fn(u64) -> Reply,
        but: ClientId,
        limit: Duration,
        wanted: As,
    ) -> Result<()> {
        let end = self.clock.monotonic() + limit;
        let change = {
            let mut state = self.state.lock();
            let mut clients = state.authority.clients() - &state.leaving;
            clients.remove(&but);
            state.pool.begin(clients)
        };
        let message = message(change);
        loop {
            let (term, ways) = {
                let state = self.state.lock();
                let behind = state.pool.behind.get(&change).into_iter().flatten();
                let ways: Vec<_> = behind.filter_map(|id| state.ways.get(id).cloned()).collect();
                (state.authority.term(), ways)
            };
            ways.iter().for_each(|way| way.send(term, message.clone()));
            let mut state = self.state.lock();
            let goes_on = |state: &super::State| {
                let is_behind = state.pool.behind.get(&change).is_some_and(|them| !them.is_empty());
                is_behind && state.pool.is_wanted(wanted) && !state.stopped
            };
            self.changed.wait_while_for(&mut state, |state| goes_on(state), REPEAT);
            let is_over = self.clock.monotonic() >= end;
            if goes_on(&state) && !is_over {
                continue;
            }
            let behind = state.pool.behind.remove(&change).unwrap_or_default();
            return match behind.is_empty() {
                true => Ok(()),
                false if state.stopped || (wanted != As::Served && state.pool.is_ending) => {
                    Err(ended())
                }
                false if is_over => {
                    let detail = format!("{behind:?} do not follow a change of the pool");
                    Err(Error::new(ErrorKind::TimedOut, detail))
                }
                false => Err(Error::new(ErrorKind::Io, "it has missed something again")),
            };
        }
    }
}

pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Unreachable, "the manager of this file system ends here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_token::message::RequestId;

    const CLIENT: ClientId = ClientId(7);
    const OTHER: ClientId = ClientId(8);
    const NSDS: [NsdId; 2] = [NsdId(1), NsdId(2)];

    fn grant(number: u64) -> Reply {
        Reply::Grant { request: RequestId(number), grants: Vec::new() }
    }

    #[test]
    fn a_client_gets_its_grants_when_it_has_answered_the_newest_change() {
        let mut pool = PoolChanges::default();
        let first = pool.set_apart([CLIENT, OTHER].into(), &NSDS[..1]);
        assert_eq!(pool.pass(CLIENT, grant(1)), None);
        assert_eq!(pool.pass(CLIENT, Reply::Reasserted), Some(Reply::Reasserted));
        let again = pool.set_apart([CLIENT, OTHER].into(), &NSDS[..1]);
        assert!(pool.behind[&again].is_empty(), "who was told already is not waited for");
        assert_eq!(pool.followed(OTHER, first), []);
        assert_eq!(pool.pass(OTHER, grant(2)), Some(grant(2)));
        let second = pool.set_apart([CLIENT].into(), &NSDS[1..]);
        assert_eq!(pool.followed(CLIENT, first), [], "it has not left the second one");
        let message = Reply::Unusable { change: second, nsds: NSDS.to_vec() };
        assert_eq!(pool.unanswered(CLIENT), Some(message));
        assert_eq!(pool.followed(CLIENT, second), [grant(1)]);
        assert_eq!(pool.pass(CLIENT, grant(3)), Some(grant(3)));
    }

    #[test]
    fn a_change_that_is_not_made_leaves_earlier_ones() {
        let mut pool = PoolChanges::default();
        pool.set_apart([CLIENT].into(), &NSDS[..1]);
        let second = pool.set_apart([CLIENT, OTHER].into(), &NSDS[1..]);
        pool.take_back(second, NSDS[1]);
        assert!(pool.is_apart(CLIENT) && !pool.is_apart(OTHER));
        assert_eq!(
            pool.unanswered(CLIENT),
            Some(Reply::Unusable { change: second, nsds: vec![NSDS[0]] })
        );
    }
}
