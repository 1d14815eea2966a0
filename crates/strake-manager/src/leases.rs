//! The leases of one file system: [`Membership`] with a clock, the ways to the NSDs, and whoever
//! acts on deaths ([`Deaths`]).
//!
//! **Names.** Each life of a mount has a client number of its own, so its epoch is 0. The leader's
//! own clients keep their numbers, and their epoch is the term. So a request of an earlier leader
//! that a server carries out late is refused once the server has a list of this term
//! ([`LeaseService::begun`]).
//!
//! **Standing still.** A leader whose process was stopped has heard no renewals. It counts all
//! leases of clients as renewed when it goes on.
//!
//! **Changes of the metadata** pass through [`LeaseService::metadata`]. A client that was declared
//! dead, or that this leader does not know, makes none. [`Deaths::dead`] is called after those that
//! were under way have ended. So nothing of a dead client appears once its files are others'. A
//! leader that has ended, or that knows of a later one, refuses everything as `Unreachable`, so
//! that clients look for the other one.
//!
//! **Threads.** `leases` looks when something is due. Messages to NSDs are carried by threads of
//! their own, two for each server at most: a fence may wait for long, and must not hold up a lease.
//!
//! **Locks.** `state` is a leaf. NSDs, the metadata and [`Deaths`] are called without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::workers::{Refused, WorkerLimits, Workers};
use strake_env::{Clock, WaitNames};
use strake_lease::membership::{Effect, Lane, Reason};
use strake_lease::message::Message;
use strake_lease::{Member, Membership, Renewal, Times};
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{AdmissionReply, NsdContext, NsdPort, NsdReply};
use strake_proto::{ClientId, Epoch, Error, ErrorKind, MapVersion, NsdId, Result, Term};
use tracing::{error, info, warn};

/// The thread looks at least that often.
const LOOK: Duration = Duration::from_secs(1);
/// At most so many messages are under way. There are two for each NSD server at most.
const MESSAGES_MAX: usize = 512;
/// A join and a raised floor take no longer than the leases of servers that do not answer, and as
/// long again for what NSDs wait for.
const ANSWERS_MAX: Duration = Duration::from_secs(90);
/// The thread did not run for longer than that: the whole process stood still.
const STILL: Duration = Duration::from_secs(3);
/// While it is not certain that this node leads, the thread looks again after that long.
const NO_LEADER_STEP: Duration = Duration::from_millis(100);
/// Changes of a dead client that are under way are asked after again after that long.
const CHANGES_MAX: Duration = Duration::from_secs(60);

/// What follows from a death. The calls come from threads of the service, without locks.
pub trait Deaths: Send + Sync {
    /// A client was declared dead, or has left. It may still use what it holds.
    fn declared(&self, client: ClientId, reason: Reason);

    /// Nothing of a client is published any more, and it uses nothing by itself: what it held can
    /// be repaired, and is free after that. Called again for the next client when this returns.
    fn dead(&self, client: ClientId);

    /// Another leader has begun a term. This one does nothing more.
    fn deposed(&self, term: Term);
}

/// What a service is started with.
pub struct LeaseOptions {
    /// The leader's term.
    pub term: Term,
    /// When this node was chosen, by `clock`. All leases count as given then, because an earlier
    /// leader gives none afterwards.
    pub since: Duration,
    /// How long things take.
    pub times: Times,
    /// The clients that joined an earlier leader, and are not known to be dead.
    pub clients: Vec<ClientId>,
    /// The leader's own clients. They live as long as the service does.
    pub own: Vec<ClientId>,
    /// The NSD servers.
    pub servers: Vec<(NsdId, Arc<dyn NsdPort>)>,
    /// The lowest map version that servers are to accept.
    pub floor: MapVersion,
    /// Whether this node still leads for certain. While it does not, it says nothing to anybody: so
    /// no lease lasts longer than whoever leads next assumes.
    pub leads: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where waits are named.
    pub waits: Arc<dyn WaitNames>,
}

struct State {
    membership: Membership,
    ports: BTreeMap<NsdId, Arc<dyn NsdPort>>,
    /// Changes of the metadata under way of each client.
    changes: BTreeMap<ClientId, u32>,
    /// The NSDs that the log says are not reached. It says so once.
    unreached: BTreeSet<NsdId>,
    /// When somebody last looked at the leases. It is a second ago at most.
    looked: Duration,
    stopped: bool,
}

impl State {
    fn check_leads(&self) -> Result<()> {
        if self.stopped || self.membership.is_deposed() { Err(leads_no_more()) } else { Ok(()) }
    }
}

/// What the threads do.
enum Job {
    Send(NsdId, Lane, Message),
    Bury(ClientId),
}

/// See the file's head.
pub struct LeaseService {
    state: Mutex<State>,
    changed: Condvar,
    /// Signalled when all changes of a client have ended.
    unchanging: Condvar,
    own: BTreeSet<ClientId>,
    /// The epoch of its own clients.
    epoch: Epoch,
    deaths: Arc<dyn Deaths>,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    clock: Arc<dyn Clock>,
    waits: Arc<dyn WaitNames>,
    senders: OnceLock<Workers<Job>>,
    /// Deaths are acted on one after the other.
    burying: OnceLock<Workers<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn member(client: ClientId) -> Member {
    (client, Epoch::default())
}

impl LeaseService {
    /// Starts the service.
    ///
    /// # Errors
    /// `NoMemory` when there is no thread.
    pub fn start(options: LeaseOptions, deaths: Arc<dyn Deaths>) -> Result<Arc<LeaseService>> {
        let LeaseOptions { term, since, times, clients, own, servers, floor, leads, clock, waits } =
            options;
        let members: Vec<Member> = clients.into_iter().map(member).collect();
        let nsds: Vec<NsdId> = servers.iter().map(|(nsd, _)| *nsd).collect();
        let now = clock.monotonic();
        // Clients find the service only from now on, and get most of a lease for that.
        let since = since.clamp(now.saturating_sub(times.lease / 3), now);
        let membership = Membership::new(term, times, &members, &nsds, floor, since);
        let ports = servers.into_iter().collect();
        let (changes, stopped) = (BTreeMap::new(), false);
        let own: BTreeSet<ClientId> = own.into_iter().collect();
        let service = Arc::new(LeaseService {
            state: Mutex::new(State {
                membership,
                ports,
                changes,
                unreached: BTreeSet::new(),
                looked: now,
                stopped,
            }),
            changed: Condvar::new(),
            unchanging: Condvar::new(),
            own,
            epoch: Epoch(term.0),
            deaths,
            leads,
            clock,
            waits,
            senders: OnceLock::new(),
            burying: OnceLock::new(),
            thread: Mutex::default(),
        });
        let workers = |name: &str, threads_max: usize| {
            let weak = Arc::downgrade(&service);
            let limits = WorkerLimits { threads_max, waiting_max: usize::MAX };
            Workers::new(name, limits, move |job: Job| {
                if let Some(service) = weak.upgrade() {
                    service.work(job);
                }
            })
        };
        let senders = service.senders.set(workers("lease message", MESSAGES_MAX));
        let burying = service.burying.set(workers("lease death", 1));
        assert!(senders.is_ok() && burying.is_ok(), "set once");
        for client in &service.own {
            let effects = service.state.lock().membership.join((*client, service.epoch), now);
            service.perform(effects);
        }
        let weak = Arc::downgrade(&service);
        let thread = Builder::new().name("leases".into()).spawn(move || look(&weak));
        *service.thread.lock() = Some(thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
        })?);
        Ok(service)
    }

    /// The epoch of the leader's own clients.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Waits until the leader's own clients may use the NSDs. From then on no server publishes what
    /// those of an earlier leader have sent.
    ///
    /// # Errors
    /// As [`LeaseService::join`].
    pub fn begun(&self) -> Result<()> {
        self.wait("NSD servers that let the leader in", &|membership| {
            let has_joined = |client: &ClientId| membership.has_joined((*client, self.epoch));
            self.own.iter().all(has_joined).then_some(Ok(()))
        })
    }

    /// A client joins. Returns when it may use the NSDs. Its lease counts from before this call.
    ///
    /// # Errors
    /// `TimedOut` if an NSD server neither answers nor loses its lease; `Fenced` if the client was
    /// declared dead meanwhile, or another leads.
    pub fn join(&self, client: ClientId) -> Result<()> {
        let effects = {
            let mut state = self.state.lock();
            let now = self.now(&mut state);
            state.membership.join(member(client), now)
        };
        self.perform(effects);
        self.wait("NSD servers that let a client in", &|membership| {
            if membership.has_joined(member(client)) {
                return Some(Ok(()));
            }
            let is_known = membership.is_living(member(client));
            (!is_known).then(|| Err(declared_dead(client)))
        })
    }

    /// A client renews its lease.
    ///
    /// # Errors
    /// `Fenced` if it was declared dead, or never joined; `Unreachable` if another leads.
    pub fn renew(&self, client: ClientId) -> Result<()> {
        let mut state = self.state.lock();
        self.leads_now(&state)?;
        let now = self.now(&mut state);
        match state.membership.renew(member(client), now) {
            Renewal::Renewed => Ok(()),
            Renewal::Dead => Err(declared_dead(client)),
            Renewal::NotLeader => Err(leads_no_more()),
        }
    }

    /// Refuses once this leader has ended, or knows of a later one. Then it must say nothing to
    /// clients, and least of all that they are dead.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn check_leads(&self) -> Result<()> {
        self.leads_now(&self.state.lock())
    }

    fn leads_now(&self, state: &State) -> Result<()> {
        state.check_leads()?;
        if (self.leads)() { Ok(()) } else { Err(leads_no_more()) }
    }

    /// A client has left in order, or is proven to have ended. [`Deaths::dead`] follows.
    pub fn ended(&self, client: ClientId) {
        let effects = {
            let mut state = self.state.lock();
            let now = self.now(&mut state);
            state.membership.ended(member(client), now)
        };
        self.perform(effects);
    }

    /// Like [`LeaseService::ended`], and waits until no NSD publishes anything of it any more.
    ///
    /// # Errors
    /// As [`LeaseService::join`].
    pub fn expel(&self, client: ClientId) -> Result<()> {
        self.ended(client);
        self.wait("NSD servers that fence a client", &|membership| {
            let mut ending = membership.ending().into_iter();
            (!ending.any(|(other, _)| other == member(client))).then_some(Ok(()))
        })?;
        match self.changes_have_ended(client) {
            true => Ok(()),
            false => {
                let detail = format!("changes of dead client {client} do not end");
                Err(Error::new(ErrorKind::TimedOut, detail))
            }
        }
    }

    /// Whether a client has joined and was not declared dead.
    pub fn is_living(&self, client: ClientId) -> bool {
        self.state.lock().membership.is_living(member(client))
    }

    /// The NSD servers that have not been heard of for three quarters of a lease.
    pub fn silent(&self) -> Vec<NsdId> {
        let mut state = self.state.lock();
        let now = self.now(&mut state);
        state.membership.silent(now).collect()
    }

    /// Whether an NSD server has no lease.
    pub fn has_lapsed(&self, nsd: NsdId) -> bool {
        self.state.lock().membership.lapsed().any(|lapsed| lapsed == nsd)
    }

    /// Puts a way to an NSD server in place. A server that is new here gets a lease.
    pub fn attach(&self, nsd: NsdId, port: Arc<dyn NsdPort>) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.ports.insert(nsd, port);
        state.membership.add_server(nsd, now);
        self.changed.notify_all();
    }

    /// An NSD server gets no more leases.
    pub fn detach(&self, nsd: NsdId) {
        self.state.lock().membership.remove_server(nsd);
        self.changed.notify_all();
    }

    /// Has every NSD server refuse maps below this one. Returns when each has ended what was under
    /// way, or has no lease.
    ///
    /// # Errors
    /// `TimedOut` if a server neither answers nor loses its lease; `Fenced` if another leads.
    pub fn raise_floor(&self, floor: MapVersion) -> Result<()> {
        let effects = {
            let mut state = self.state.lock();
            let now = self.now(&mut state);
            state.membership.raise_floor(floor, now)
        };
        self.perform(effects);
        self.wait("NSD servers that raise the map floor", &|membership| {
            membership.is_raised(floor).then_some(Ok(()))
        })
    }

    /// The clients that were declared dead, and the servers that have yet to answer their fences.
    pub fn ending(&self) -> Vec<(ClientId, Vec<NsdId>)> {
        let ending = self.state.lock().membership.ending();
        ending.into_iter().map(|((client, _), servers)| (client, servers)).collect()
    }

    /// The metadata for clients: see the file's head.
    pub fn metadata(self: &Arc<LeaseService>, inner: Arc<dyn MetaPort>) -> Arc<dyn MetaPort> {
        Arc::new(LeasedMeta { service: Arc::clone(self), inner })
    }

    /// Ends the threads. Leases that were given end by themselves.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        self.unchanging.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        for workers in [&self.senders, &self.burying].into_iter().filter_map(OnceLock::get) {
            drop(workers.end());
            workers.join();
        }
    }

    /// The time. Everything that looks at leases begins here: whoever is first after the process
    /// stood still says so.
    fn now(&self, state: &mut State) -> Duration {
        let now = self.clock.monotonic();
        let still = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        if still > STILL {
            warn!(target: "leases", "this process stood still for {still:?}: no client is silent");
            state.membership.stood_still(now);
        }
        for client in &self.own {
            state.membership.renew((*client, self.epoch), now);
        }
        now
    }

    /// Waits until `done` says something.
    fn wait(
        &self,
        name: &'static str,
        done: &dyn Fn(&Membership) -> Option<Result<()>>,
    ) -> Result<()> {
        let end = self.clock.monotonic() + ANSWERS_MAX;
        let wait = self.waits.begin_wait(name, "");
        let mut state = self.state.lock();
        let result = loop {
            if let Some(result) = done(&state.membership) {
                break result;
            }
            if state.stopped || state.membership.is_deposed() {
                break Err(Error::new(ErrorKind::Fenced, "another node leads"));
            }
            if self.clock.monotonic() >= end {
                let detail = format!("{name}: no answer within {ANSWERS_MAX:?}");
                break Err(Error::new(ErrorKind::TimedOut, detail));
            }
            self.changed.wait_for(&mut state, LOOK);
        };
        drop(state);
        self.waits.end_wait(wait);
        result
    }

    fn perform(&self, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Send(nsd, lane, message) => {
                        let senders = self.senders.get().expect("invariant: set at the start");
                        match senders.submit(Job::Send(nsd, lane, message)) {
                            Ok(()) | Err(Refused::Ended(_)) => {}
                            Err(Refused::Full(_)) => {
                                more.extend(self.answered(nsd, lane, Err(ErrorKind::NoMemory)));
                            }
                        }
                    }
                    Effect::Joined(_) | Effect::Raised(_) => {}
                    Effect::Declared((client, _), reason) => {
                        match reason {
                            Reason::Silent => warn!(
                                target: "leases",
                                "client {client} is declared dead: it did not renew its lease"
                            ),
                            Reason::Ended => info!(target: "leases", "client {client} has ended"),
                        }
                        self.deaths.declared(client, reason);
                    }
                    Effect::Dead((client, _)) => self.submit_death(client),
                    Effect::Deposed(term) => {
                        warn!(target: "leases", "another node leads, in term {term}");
                        self.deaths.deposed(term);
                    }
                }
            }
            effects = more;
        }
        self.changed.notify_all();
    }

    fn submit_death(&self, client: ClientId) {
        let burying = self.burying.get().expect("invariant: set at the start");
        if let Err(Refused::Full(job)) = burying.submit(Job::Bury(client)) {
            self.work(job);
        }
    }

    fn work(&self, job: Job) {
        match job {
            Job::Send(nsd, lane, message) => {
                let answer = self.call(nsd, &message);
                if lane == Lane::Lease {
                    self.log_reached(nsd, answer.as_ref().err());
                }
                let answer = answer.map_err(|error| error.kind());
                let effects = self.answered(nsd, lane, answer);
                self.perform(effects);
            }
            Job::Bury(client) => {
                if self.changes_have_ended(client) {
                    info!(target: "leases", "client {client} is dead: what it held is put right");
                    self.deaths.dead(client);
                } else if !self.state.lock().stopped {
                    error!(target: "leases", "changes of dead client {client} do not end");
                    self.submit_death(client);
                }
            }
        }
    }

    /// Says in the log when an NSD is not reached any more, and when it is reached again. Leases
    /// are sent to it all the time, whether or not it answers.
    fn log_reached(&self, nsd: NsdId, error: Option<&Error>) {
        let mut state = self.state.lock();
        match error {
            Some(error) if state.unreached.insert(nsd) => {
                warn!(target: "leases", "NSD {nsd} is not reached: {error}");
            }
            None if state.unreached.remove(&nsd) => {
                info!(target: "leases", "NSD {nsd} is reached again");
            }
            _ => {}
        }
    }

    fn call(&self, nsd: NsdId, message: &Message) -> Result<AdmissionReply> {
        let (port, term) = {
            let state = self.state.lock();
            (state.ports.get(&nsd).cloned(), state.membership.term())
        };
        let port = port.ok_or(ErrorKind::Unreachable)?;
        if !(self.leads)() {
            return Err(leads_no_more());
        }
        let context = NsdContext { client: ClientId::MANAGER, term, ..NsdContext::default() };
        match port.call(context, &message.request(), &[], &mut [])? {
            NsdReply::Admission(reply) => Ok(reply),
            other => Err(Error::new(ErrorKind::Internal, format!("no admission: {other:?}"))),
        }
    }

    fn answered(
        &self,
        nsd: NsdId,
        lane: Lane,
        answer: std::result::Result<AdmissionReply, ErrorKind>,
    ) -> Vec<Effect> {
        let mut state = self.state.lock();
        let now = self.now(&mut state);
        state.membership.answered(nsd, lane, answer, now)
    }

    /// Waits until no change of the metadata of a client is under way. False if one still is.
    fn changes_have_ended(&self, client: ClientId) -> bool {
        let wait = self.waits.begin_wait("changes of a dead client", &client.to_string());
        let mut state = self.state.lock();
        let is_changing = |state: &mut State| state.changes.contains_key(&client) && !state.stopped;
        self.unchanging.wait_while_for(&mut state, is_changing, CHANGES_MAX);
        let have_ended = !state.changes.contains_key(&client);
        drop(state);
        self.waits.end_wait(wait);
        have_ended
    }
}

fn declared_dead(client: ClientId) -> Error {
    let detail = format!("client {client} was declared dead, or never joined: mount again");
    Error::new(ErrorKind::Fenced, detail)
}

fn leads_no_more() -> Error {
    Error::new(ErrorKind::Unreachable, "this node leads the file system no more")
}

/// The thread of the service.
fn look(service: &Weak<LeaseService>) {
    while let Some(service) = service.upgrade() {
        let effects = {
            let mut state = service.state.lock();
            if state.stopped {
                return;
            }
            let now = service.clock.monotonic();
            let due = state.membership.due().map_or(LOOK, |due| due.saturating_sub(now));
            if !due.is_zero() {
                service.changed.wait_for(&mut state, due.min(LOOK));
            }
            if state.stopped {
                return;
            }
            let now = service.now(&mut state);
            if (service.leads)() {
                state.membership.tick(now)
            } else {
                // Clients are told to go elsewhere meanwhile, and are not silent for that.
                state.membership.stood_still(now);
                drop(state);
                service.clock.sleep(NO_LEADER_STEP);
                Vec::new()
            }
        };
        if !effects.is_empty() {
            service.perform(effects);
        }
    }
}

/// The metadata for clients that need a lease.
struct LeasedMeta {
    service: Arc<LeaseService>,
    inner: Arc<dyn MetaPort>,
}

/// A change under way.
struct Change<'a> {
    service: &'a LeaseService,
    client: ClientId,
}

impl LeasedMeta {
    fn begin(&self, client: ClientId) -> Result<Change<'_>> {
        let service = &*self.service;
        let mut state = service.state.lock();
        state.check_leads()?;
        let is_living = state.membership.is_living(member(client));
        if !is_living && !service.own.contains(&client) {
            return Err(declared_dead(client));
        }
        *state.changes.entry(client).or_default() += 1;
        Ok(Change { service, client })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.service.state.lock();
        let count = state.changes.get_mut(&self.client).expect("invariant: it is counted");
        *count -= 1;
        if *count == 0 {
            state.changes.remove(&self.client);
            self.service.unchanging.notify_all();
        }
    }
}

impl MetaPort for LeasedMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.service.check_leads()?;
        self.inner.query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let _change = self.begin(entry.client)?;
        self.inner.apply(entry)
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let _change = self.begin(counted.entry.client)?;
        self.inner.apply_counted(counted)
    }

    fn sync(&self) -> Result<()> {
        self.service.check_leads()?;
        self.inner.sync()
    }
}

#[cfg(test)]
#[path = "leases_test.rs"]
mod leases_test;
