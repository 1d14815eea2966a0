//! Who may use the NSDs: the leader's view of all clients and all NSD servers.
//!
//! **Versions.** Each change of the set of clients has a number, upwards in the term. Lists,
//! additions and fences carry the number of the set that they stand for. So a server recognises a
//! message that was overtaken (`admission.rs` of `strake-nsd`).
//!
//! **A join** is finished when each server has the client on its list, or has no lease.
//!
//! **A death** has two steps. First the client is *declared* dead: it did not renew its lease in
//! time, or its end is proven otherwise. From then on it is refused, and each server owes the
//! answer to a fence. The client is *dead* when no server owes that answer any more.
//!
//! **A server's debt** ends in two ways: the server answers, or its lease is over. A server whose
//! lease was over, or that was started anew, gets a fresh list with its next lease.
//!
//! **A new leader** knows neither what the servers have heard nor when clients have renewed. It
//! counts all leases as given at its start. An older leader must give no leases from then on; that
//! is a duty of those who choose the leader.
//!
//! **Lanes.** A fence may wait long for earlier requests, and must not hold up a lease. So each
//! server has two lanes, each with at most one message under way.

use crate::message::Message;
use crate::rule::{Rule, obeys};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_proto::nsd::AdmissionReply;
use strake_proto::{ClientId, Epoch, ErrorKind, MapVersion, NsdId, Term};

/// A client: one life of one mount.
pub type Member = (ClientId, Epoch);

/// How long things take. All are the same on every node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Times {
    /// A server's lease is renewed after that long.
    pub renew: Duration,
    /// How long a lease lasts, of a client and of a server.
    pub lease: Duration,
    /// See the crate's head.
    pub margin: Duration,
    /// A message that failed is sent again after that long.
    pub repeat: Duration,
}

impl Times {
    /// Those of a cluster. The margin is 5 % of a lease. Clocks of machines differ by less than
    /// 0.1 % in how fast they go, also while they are being set.
    pub const CLUSTER: Times = Times {
        renew: Duration::from_secs(2),
        lease: Duration::from_secs(10),
        margin: Duration::from_millis(500),
        repeat: Duration::from_millis(500),
    };

    /// A lease that counts from the moment `from` is over at this moment, whoever measures.
    fn over(&self, from: Duration, rule: Rule) -> Duration {
        let margin = if obeys(rule) { self.margin } else { Duration::ZERO };
        from.saturating_add(self.lease).saturating_add(margin)
    }
}

/// The answer to a client that renews its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is renewed.
    Renewed,
    /// The client was declared dead, or never joined.
    Dead,
    /// A newer term has begun. The client asks the leader of that term.
    NotLeader,
}

/// What the leader wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send a server a message, and say what became of it: [`Membership::answered`].
    Send(NsdId, Lane, Message),
    /// A client may use the NSDs.
    Joined(Member),
    /// A client was declared dead. It is refused from now on. What it holds stays its own.
    Declared(Member, Reason),
    /// No server publishes anything of a client any more, and it uses nothing by itself. What it
    /// held can be repaired and given to others.
    Dead(Member),
    /// Every server refuses what is older than this map, and has ended what was under way.
    Raised(MapVersion),
    /// A newer term has begun. This leader does nothing more.
    Deposed(Term),
}

/// Why a client was declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It did not renew its lease.
    Silent,
    /// It has left, or its process has ended: somebody who knows has said so.
    Ended,
}

/// A message of one lane is under way to a server while another of the other lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Leases, and questions.
    Lease,
    /// Additions, fences, floors. These may take long.
    Change,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Life {
    /// Not every server has the client on its list.
    Joining,
    Living,
    /// It was declared dead.
    Ending,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    life: Life,
    /// When its last renewal was heard.
    heard: Duration,
}

/// What a server has yet to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Debt {
    Allow(Member),
    Fence(Member),
    Floor(MapVersion),
}

/// What a server said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sample {
    boot: u64,
    /// Its clock, and ours when we heard of it.
    clock: Duration,
    heard: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    /// `None` before it has answered, and after a message failed.
    sample: Option<Sample>,
    /// From this moment on every lease that was ever sent to it is over.
    over_at: Duration,
    /// The life of the server and the version of the last list that it took.
    listed: Option<(u64, u64)>,
    /// Lists of lower versions do not count.
    needs: u64,
    /// Its lease was over, and nothing was sent since.
    is_lapsed: bool,
    /// When it was added. Nothing could be heard of it before.
    since: Duration,
    /// The messages under way.
    lease: Option<Message>,
    change: Option<Debt>,
    /// When each lane may send again.
    lease_due: Duration,
    change_due: Duration,
    /// What it owes, and the version in which that came about.
    owes: BTreeMap<Debt, u64>,
    /// It is to get no more leases, and is forgotten when its last one is over.
    is_leaving: bool,
}

/// See the file's head. All times are of the leader's clock, unless another is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    term: Term,
    times: Times,
    start: Duration,
    /// The version of the set of clients.
    version: u64,
    clients: BTreeMap<Member, Client>,
    servers: BTreeMap<NsdId, Server>,
    floor: MapVersion,
    is_raising: bool,
    is_deposed: bool,
}

impl Membership {
    /// The view of a leader whose term begins now. `clients` have joined earlier and are not known
    /// to be dead. `floor` is the lowest map version that servers are to accept.
    pub fn new(
        term: Term,
        times: Times,
        clients: &[Member],
        servers: &[NsdId],
        floor: MapVersion,
        now: Duration,
    ) -> Membership {
        let heard = if obeys(Rule::NewLeadersRenewClients) { now } else { Duration::ZERO };
        let client = |member: &Member| (*member, Client { life: Life::Living, heard });
        let mut made = Membership {
            term,
            times,
            start: now,
            version: 1,
            clients: clients.iter().map(client).collect(),
            servers: BTreeMap::new(),
            floor,
            is_raising: false,
            is_deposed: false,
        };
        servers.iter().for_each(|nsd| made.add_server(*nsd, now));
        made
    }

    /// The term of all that it says.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The clients that have joined and were not declared dead.
    pub fn living(&self) -> impl Iterator<Item = Member> + '_ {
        let is_living = |(_, client): &(&Member, &Client)| client.life != Life::Ending;
        self.clients.iter().filter(is_living).map(|(member, _)| *member)
    }

    /// Whether a client is among [`Membership::living`].
    pub fn is_living(&self, member: Member) -> bool {
        self.clients.get(&member).is_some_and(|client| client.life != Life::Ending)
    }

    /// Whether a newer term has begun.
    pub fn is_deposed(&self) -> bool {
        self.is_deposed
    }

    /// Whether a client has joined, and was not declared dead.
    pub fn has_joined(&self, member: Member) -> bool {
        self.clients.get(&member).is_some_and(|client| client.life == Life::Living)
    }

    /// Whether every server refuses what is older than this map.
    pub fn is_raised(&self, floor: MapVersion) -> bool {
        floor <= self.floor && !self.is_raising
    }

    /// The clients that were declared dead, and the servers that have yet to answer their fences.
    pub fn ending(&self) -> Vec<(Member, Vec<NsdId>)> {
        let is_ending = |(_, client): &(&Member, &Client)| client.life == Life::Ending;
        let ending = self.clients.iter().filter(is_ending);
        ending.map(|(member, _)| (*member, self.debtors(Debt::Fence(*member)))).collect()
    }

    /// An NSD server is to be used. It may have a lease of an earlier leader.
    pub fn add_server(&mut self, nsd: NsdId, now: Duration) {
        if let Some(server) = self.servers.get_mut(&nsd) {
            server.is_leaving = false;
            return;
        }
        let waits = obeys(Rule::NewLeadersWaitForOldLeases);
        let over = self.times.over(self.start, Rule::ServersHaveAMargin);
        let mut server = Server {
            sample: None,
            over_at: if waits { over } else { now },
            listed: None,
            needs: self.version,
            is_lapsed: false,
            since: now,
            lease: None,
            change: None,
            lease_due: now,
            change_due: now,
            owes: BTreeMap::new(),
            is_leaving: false,
        };
        for (member, client) in &self.clients {
            match client.life {
                Life::Joining => drop(server.owes.insert(Debt::Allow(*member), self.version)),
                Life::Ending => drop(server.owes.insert(Debt::Fence(*member), self.version)),
                Life::Living => {}
            }
        }
        if self.is_raising {
            server.owes.insert(Debt::Floor(self.floor), self.version);
        }
        self.servers.insert(nsd, server);
    }

    /// An NSD server is to be used no more.
    pub fn remove_server(&mut self, nsd: NsdId) {
        if let Some(server) = self.servers.get_mut(&nsd) {
            (server.is_leaving, server.sample) = (true, None);
        }
    }

    /// A client asks to join. [`Effect::Joined`] follows.
    pub fn join(&mut self, member: Member, now: Duration) -> Vec<Effect> {
        if self.is_deposed || self.clients.contains_key(&member) {
            return Vec::new();
        }
        self.version += 1;
        self.clients.insert(member, Client { life: Life::Joining, heard: now });
        for server in self.servers.values_mut().filter(|server| !server.is_lapsed) {
            server.owes.insert(Debt::Allow(member), self.version);
        }
        self.tick(now)
    }

    /// A client renews its lease.
    pub fn renew(&mut self, member: Member, now: Duration) -> Renewal {
        if self.is_deposed {
            return Renewal::NotLeader;
        }
        match self.clients.get_mut(&member) {
            Some(client) if client.life != Life::Ending => {
                client.heard = client.heard.max(now);
                Renewal::Renewed
            }
            _ => Renewal::Dead,
        }
    }

    /// The leader's own process stood still until now, so it has heard no renewals. All leases of
    /// clients count as renewed now, as they do for a new leader: to wait longer is always safe.
    pub fn stood_still(&mut self, now: Duration) {
        if obeys(Rule::NewLeadersRenewClients) {
            let living = self.clients.values_mut().filter(|client| client.life != Life::Ending);
            living.for_each(|client| client.heard = client.heard.max(now));
        }
    }

    /// The servers that have not been heard of for three quarters of a lease. They may still serve.
    pub fn silent(&self, now: Duration) -> impl Iterator<Item = NsdId> + '_ {
        let whole = self.times.over(Duration::ZERO, Rule::ServersHaveAMargin);
        let limit = self.times.lease * 3 / 4;
        let is_silent = move |server: &Server| {
            let heard = server.sample.as_ref().map_or(Duration::ZERO, |sample| sample.heard);
            let heard = heard.max(server.over_at.saturating_sub(whole)).max(server.since);
            server.is_lapsed || now >= heard.saturating_add(limit)
        };
        self.servers.iter().filter(move |(_, server)| is_silent(server)).map(|(nsd, _)| *nsd)
    }

    /// The servers that have no lease: they serve nobody.
    pub fn lapsed(&self) -> impl Iterator<Item = NsdId> + '_ {
        self.servers.iter().filter(|(_, server)| server.is_lapsed).map(|(nsd, _)| *nsd)
    }

    /// A client has left in order, or is proven to have ended: its process's lock is free, or its
    /// node joins anew. The word of another client is no proof.
    pub fn ended(&mut self, member: Member, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.declare(member, Reason::Ended, &mut effects);
        effects.extend(self.tick(now));
        effects
    }

    /// Servers are to refuse all maps below this one. [`Effect::Raised`] follows.
    pub fn raise_floor(&mut self, floor: MapVersion, now: Duration) -> Vec<Effect> {
        if floor > self.floor && !self.is_deposed {
            (self.floor, self.is_raising) = (floor, true);
            for server in self.servers.values_mut() {
                server.owes.retain(|debt, _| !matches!(debt, Debt::Floor(_)));
                if !server.is_lapsed {
                    server.owes.insert(Debt::Floor(floor), self.version);
                }
            }
        }
        self.tick(now)
    }

    /// What became of the message that was under way to a server on a lane.
    pub fn answered(
        &mut self,
        nsd: NsdId,
        lane: Lane,
        answer: Result<AdmissionReply, ErrorKind>,
        now: Duration,
    ) -> Vec<Effect> {
        if let Ok(reply) = &answer
            && reply.term > self.term
        {
            return self.depose(reply.term);
        }
        let Some(server) = self.servers.get_mut(&nsd) else { return Vec::new() };
        match (lane, answer) {
            (Lane::Lease, answer) => server.lease_answered(answer, now, self.times),
            (Lane::Change, Ok(_)) => {
                if let Some(debt) = server.change.take() {
                    server.owes.remove(&debt);
                }
                server.change_due = now;
            }
            // An addition is refused where a lease has yet to bring a list.
            (Lane::Change, Err(_)) => {
                server.change = None;
                server.change_due = now.saturating_add(self.times.repeat);
            }
        }
        self.tick(now)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_deposed {
            return effects;
        }
        self.lapse(now);
        let (times, rule) = (self.times, Rule::ClientsHaveAMargin);
        let is_silent =
            |client: &Client| client.life != Life::Ending && now >= times.over(client.heard, rule);
        let silent: Vec<Member> = self
            .clients
            .iter()
            .filter(|(_, client)| is_silent(client))
            .map(|(member, _)| *member)
            .collect();
        silent.into_iter().for_each(|member| self.declare(member, Reason::Silent, &mut effects));
        self.finish(&mut effects);
        self.send(now, &mut effects);
        effects
    }

    /// When [`Membership::tick`] is to be called next, if nothing else happens.
    pub fn due(&self) -> Option<Duration> {
        if self.is_deposed {
            return None;
        }
        let living = self.clients.values().filter(|client| client.life != Life::Ending);
        let silent = living.map(|client| self.times.over(client.heard, Rule::ClientsHaveAMargin));
        let of_servers = self.servers.values().flat_map(|server| {
            let lease = (server.lease.is_none() && !server.is_leaving).then_some(server.lease_due);
            let owes = !server.owes.is_empty();
            let change = (server.change.is_none() && owes).then_some(server.change_due);
            let lapse = (!server.is_lapsed).then_some(server.over_at);
            [lease, change, lapse].into_iter().flatten()
        });
        silent.chain(of_servers).min()
    }

    fn depose(&mut self, term: Term) -> Vec<Effect> {
        if self.is_deposed {
            return Vec::new();
        }
        self.is_deposed = true;
        vec![Effect::Deposed(term)]
    }

    fn declare(&mut self, member: Member, reason: Reason, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&member) else { return };
        if client.life == Life::Ending || self.is_deposed {
            return;
        }
        client.life = Life::Ending;
        if obeys(Rule::FencesAreNumbered) {
            self.version += 1;
        }
        for server in self.servers.values_mut() {
            server.owes.remove(&Debt::Allow(member));
            if !server.is_lapsed {
                server.owes.insert(Debt::Fence(member), self.version);
            }
        }
        effects.push(Effect::Declared(member, reason));
    }

    /// Notes which servers have no lease any more.
    fn lapse(&mut self, now: Duration) {
        let lapsed = |server: &Server| !server.is_lapsed && now >= server.over_at;
        if !self.servers.values().any(lapsed) {
            return;
        }
        self.version += 1;
        for server in self.servers.values_mut().filter(|server| lapsed(server)) {
            server.is_lapsed = true;
            server.owes.clear();
            if obeys(Rule::LapsedServersGetAList) {
                let late = server.listed.map_or(0, |(_, version)| version + 1);
                let fresh = obeys(Rule::LateAnswersAreVoid);
                server.needs = if fresh { self.version } else { late };
            }
        }
        self.servers.retain(|_, server| !(server.is_lapsed && server.is_leaving));
    }

    /// Says what no server owes any more.
    fn finish(&mut self, effects: &mut Vec<Effect>) {
        let mut dead = Vec::new();
        let owed: BTreeSet<Debt> =
            self.servers.values().flat_map(|server| server.owes.keys().copied()).collect();
        for (member, client) in &mut self.clients {
            let is_awaited = match client.life {
                Life::Joining if obeys(Rule::JoinsAreAnswered) => {
                    owed.contains(&Debt::Allow(*member))
                }
                Life::Ending if obeys(Rule::FencesAreAnswered) => {
                    owed.contains(&Debt::Fence(*member))
                }
                Life::Joining | Life::Ending => false,
                Life::Living => continue,
            };
            match client.life {
                _ if is_awaited => {}
                Life::Ending => dead.push(*member),
                _ => {
                    client.life = Life::Living;
                    effects.push(Effect::Joined(*member));
                }
            }
        }
        for member in dead {
            self.clients.remove(&member);
            for server in self.servers.values_mut() {
                server.owes.remove(&Debt::Fence(member));
            }
            effects.push(Effect::Dead(member));
        }
        if self.is_raising && !owed.contains(&Debt::Floor(self.floor)) {
            self.is_raising = false;
            effects.push(Effect::Raised(self.floor));
        }
    }

    fn send(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let is_listed =
            |client: &Client| client.life != Life::Ending || !obeys(Rule::ListsLeaveOutTheDead);
        let list = || -> Vec<Member> {
            let listed = self.clients.iter().filter(|(_, client)| is_listed(client));
            listed.map(|(member, _)| *member).collect()
        };
        for (nsd, server) in &mut self.servers {
            if server.lease.is_none() && now >= server.lease_due && !server.is_leaving {
                let lease = self.times.lease;
                let message = server.lease_message(self.version, self.floor, lease, &list);
                if obeys(Rule::SentLeasesCount) && message != Message::Ask {
                    server.count(self.times);
                }
                server.lease = Some(message.clone());
                effects.push(Effect::Send(*nsd, Lane::Lease, message));
            }
            if server.change.is_none()
                && now >= server.change_due
                && let Some(debt) = server.owes.keys().next_back().copied()
            {
                let number = self.version;
                let message = match debt {
                    Debt::Allow(member) => Message::Allow { number, member },
                    Debt::Fence(member) => Message::Fence { number, member },
                    Debt::Floor(floor) => Message::RaiseFloor { floor },
                };
                server.change = Some(debt);
                effects.push(Effect::Send(*nsd, Lane::Change, message));
            }
        }
    }

    fn debtors(&self, debt: Debt) -> Vec<NsdId> {
        let owes = |(_, server): &(&NsdId, &Server)| server.owes.contains_key(&debt);
        self.servers.iter().filter(owes).map(|(nsd, _)| *nsd).collect()
    }

    /// Asserts what must hold at any time.
    pub fn check(&self) {
        for (nsd, server) in &self.servers {
            assert!(!server.is_lapsed || server.owes.is_empty(), "NSD {nsd} has no lease");
            assert!(server.needs <= self.version, "NSD {nsd} needs a list that there is not yet");
            for debt in server.owes.keys() {
                let life = match debt {
                    Debt::Allow(member) | Debt::Fence(member) => {
                        self.clients.get(member).map(|client| &client.life)
                    }
                    Debt::Floor(_) => continue,
                };
                let right = match debt {
                    Debt::Fence(_) => life == Some(&Life::Ending),
                    _ => life == Some(&Life::Joining),
                };
                assert!(right, "NSD {nsd} owes {debt:?} of a client that is {life:?}");
            }
        }
    }
}

impl Server {
    /// A lease from the last sample on, or a question if there is none.
    fn lease_message(
        &self,
        version: u64,
        floor: MapVersion,
        lease: Duration,
        list: &dyn Fn() -> Vec<Member>,
    ) -> Message {
        let Some(Sample { boot, clock, .. }) = self.sample else { return Message::Ask };
        let has_list = self.listed.is_some_and(|(of, number)| of == boot && number >= self.needs);
        let list = (!has_list).then(|| (version, list()));
        Message::Lease { boot, until: clock.saturating_add(lease), floor, list }
    }

    /// Counts the lease that is being sent.
    fn count(&mut self, times: Times) {
        let Some(Sample { heard, .. }) = self.sample else { return };
        self.over_at = self.over_at.max(times.over(heard, Rule::ServersHaveAMargin));
        self.is_lapsed = false;
    }

    fn lease_answered(
        &mut self,
        answer: Result<AdmissionReply, ErrorKind>,
        now: Duration,
        times: Times,
    ) {
        let message = self.lease.take();
        match (answer, message) {
            (Ok(reply), Some(message)) => {
                self.lease_due = now;
                if let Message::Lease { boot, list, .. } = message {
                    if !obeys(Rule::SentLeasesCount) {
                        self.count(times);
                    }
                    self.lease_due = now.saturating_add(times.renew);
                    if let Some((number, _)) = list {
                        self.listed = Some((boot, number));
                        let is_open = |debt: &Debt, since: u64| {
                            !matches!(debt, Debt::Allow(_)) || since > number
                        };
                        self.owes.retain(|debt, since| is_open(debt, *since));
                    }
                }
                self.sample = Some(Sample { boot: reply.boot, clock: reply.clock, heard: now });
            }
            // It was started anew, or heard of changes before the list: ask, and say all again.
            (Err(ErrorKind::Stale), _) => {
                (self.sample, self.listed, self.lease_due) = (None, None, now);
            }
            _ => (self.sample, self.lease_due) = (None, now.saturating_add(times.repeat)),
        }
    }
}

#[cfg(test)]
#[path = "membership_test.rs"]
mod membership_test;
