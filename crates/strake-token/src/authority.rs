//! The table of tokens of one file system, at the leader.
//!
//! **Requests** wait in the order in which they came. A request is granted as a whole, when
//! 1. no other client holds anything that conflicts,
//! 2. no earlier request of another client conflicts, so that nobody is passed by for ever, unless
//!    that one waits for this client to give up another file: an operation may hold a directory
//!    while it asks for the file that it has made in it,
//! 3. the asking client owes no answer to a revoke of one of these files, and
//! 4. after a change of leader every client has reasserted what it holds, or is dead. That is not
//!    awaited for files that a client has reasserted exclusively, or has made since: no other one
//!    had anything of them but OPEN.
//!
//! **A revoke** goes to each client that holds what a waiting request needs, but not before that
//! client has held its last grant for the minimum time. It is sent again until it is answered.
//! While it is out, nothing of that file is granted to that client. So the answer, which names
//! the newest grant that it covers, says exactly what the client keeps.
//!
//! **An answer** counts only if it covers the newest grant; an older one is void. The table may
//! then say more than the client holds, which is safe.
//!
//! **Writers beside each other.** Who asks to write some blocks gets the file exclusively where
//! nobody else has anything of it. Else it gets the blocks, and others keep the rest. So the first
//! writer has the file to itself until a second one comes. A client that writes beside others gives
//! that up before it is granted anything else of the inode: it may not know the size.
//!
//! **Clients that are gone** ([`Authority::fenced`]) keep what they hold until what they left is
//! put right. Where one of them wrote beside others, the others give the file up, and it is granted
//! to nobody meanwhile: repair works on whole files.
//!
//! **New files.** A client that makes a file is granted it with the answer to that change
//! ([`Authority::grant_new`]). It knows nothing of the file before, so it cannot ask. If the answer
//! is late, the client has perhaps answered a revoke of the file meanwhile: see `holder.rs`.
//!
//! **Numbers** are drawn when a request is granted, thus after the revokes that it needed. They
//! come from a range that the log has, so that no later leader draws them again.

mod files;
mod settle;

use crate::held::{Held, Limit, Mode, Want};
use crate::message::{Granted, Reply, Request, RequestId, Term};
use crate::ranges::{BlockRange, Ranges};
use crate::rule::{Rule, obeys};
use files::{Files, Holding, Revoke};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_proto::{ClientId, GrantNumber, Ino};

/// Files that one request may name: a rename has two directories and two files.
pub const WANTS_MAX: usize = 4;
/// Requests of one client that may wait.
pub const REQUESTS_MAX: usize = 1024;
/// Numbers are reserved in portions of this many.
pub const RESERVED_AT_ONCE: u64 = 1 << 20;

/// How long things take. All are configuration of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Times {
    /// A client keeps a new grant at least that long before it is revoked.
    pub hold_min: Duration,
    /// A revoke that is not answered is sent again after that long.
    pub repeat: Duration,
}

/// What the authority wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send a client a message.
    Send(ClientId, Reply),
    /// Have the log reserve numbers up to this one, exclusively; then call [`Authority::reserved`].
    Reserve(GrantNumber),
}

/// Why a message was refused. The client is at fault, or was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client has not joined, or is dead.
    Unknown,
    /// The message makes no sense: an empty range, too many files, more kept than held.
    Invalid,
    /// The client has too many requests waiting.
    TooMany,
    /// What the client says it holds conflicts with what another has reasserted.
    Conflict,
}

/// What a client has reasserted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Grace {
    files: BTreeSet<Ino>,
    /// How many it has, once it has said so.
    count: Option<u64>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    client: ClientId,
    request: RequestId,
    wants: Vec<Want>,
}

/// A request that waits, and the clients that it waits for: for `diag waiters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who asked.
    pub client: ClientId,
    /// The files.
    pub files: Vec<Ino>,
    /// The clients that hold what conflicts.
    pub holders: Vec<ClientId>,
}

/// See the file's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    times: Times,
    term: Term,
    /// The next number, and the first that is not reserved.
    next: GrantNumber,
    reserved: GrantNumber,
    reserving: bool,
    granted: u64,
    clients: BTreeSet<ClientId>,
    /// Clients that are fenced, and whose holdings are kept for repair.
    gone: BTreeSet<ClientId>,
    /// Clients that have not reasserted all. Before they have, only files are granted that are
    /// `known`.
    grace: BTreeMap<ClientId, Grace>,
    /// Files that a client has reasserted exclusively, or made, while others have yet to reassert.
    known: BTreeSet<Ino>,
    files: Files,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    /// When the first revoke is due that was put off, so that its client keeps a new grant for a
    /// while. It may be answered by now.
    put_off: Option<Duration>,
    /// A request was not granted for want of numbers. The next event looks at all.
    lacks_numbers: bool,
}

impl Authority {
    /// The table of a leader in its term. `clients` have joined earlier, and reassert what they
    /// hold. Numbers from `reserved` on were never drawn.
    pub fn new(term: Term, times: Times, clients: &[ClientId], reserved: GrantNumber) -> Authority {
        let clients: BTreeSet<ClientId> = clients.iter().copied().collect();
        Authority {
            times,
            term,
            next: reserved,
            reserved,
            reserving: false,
            granted: 0,
            grace: clients.iter().map(|client| (*client, Grace::default())).collect(),
            known: BTreeSet::new(),
            clients,
            gone: BTreeSet::new(),
            files: Files::default(),
            waiting: Vec::new(),
            put_off: None,
            lacks_numbers: false,
        }
    }

    /// The term of all that it says.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether some client has yet to reassert what it holds.
    pub fn is_in_grace(&self) -> bool {
        !self.grace.is_empty()
    }

    /// The clients that have yet to reassert what they hold.
    pub fn awaited(&self) -> BTreeSet<ClientId> {
        self.grace.keys().copied().collect()
    }

    /// The clients that have joined and are not dead.
    pub fn clients(&self) -> &BTreeSet<ClientId> {
        &self.clients
    }

    /// A client has joined. It holds nothing.
    pub fn join(&mut self, client: ClientId) {
        assert!(self.clients.insert(client), "each life of a client has an id of its own");
    }

    /// A client was declared dead, and every NSD server fences it: what it held is free.
    pub fn dead(&mut self, client: ClientId, now: Duration) -> Vec<Effect> {
        self.clients.remove(&client);
        self.gone.remove(&client);
        self.leave_grace(client);
        self.waiting.retain(|waiting| waiting.client != client);
        self.files.forget(client);
        self.settle(None, now)
    }

    /// Clients are fenced by every NSD server, and what they left is to be put right before they
    /// count as [`Authority::dead`]. Until then see the file's head.
    pub fn fenced(&mut self, clients: &BTreeSet<ClientId>, now: Duration) -> Vec<Effect> {
        self.gone.extend(clients.intersection(&self.clients));
        self.settle(None, now)
    }

    /// Whether no living client writes beside one that is gone.
    pub fn is_cleared(&self) -> bool {
        self.living_writers_beside_gone().next().is_none()
    }

    /// Living clients that write a file beside clients that are gone.
    fn living_writers_beside_gone(&self) -> impl Iterator<Item = (Ino, ClientId)> {
        self.files
            .writers()
            .filter(|(ino, client)| !self.gone.contains(client) && self.is_in_repair(*ino))
    }

    /// Whether a client that is gone wrote this file beside others, or may have.
    fn is_in_repair(&self, ino: Ino) -> bool {
        let writes = |client: &ClientId| {
            let holding = self.files.get(ino, *client);
            self.is_awaited(*client, ino) || holding.is_some_and(|one| one.held.is_writing())
        };
        self.gone.iter().any(writes) && obeys(Rule::RepairIsAlone)
    }

    /// Whether a client may hold something of a file that it has yet to reassert.
    fn is_awaited(&self, client: ClientId, ino: Ino) -> bool {
        self.grace.contains_key(&client) && !self.known.contains(&ino)
    }

    /// A client has reasserted all that it holds, or holds nothing any more.
    fn leave_grace(&mut self, client: ClientId) {
        self.grace.remove(&client);
        if self.grace.is_empty() {
            self.known.clear();
        }
    }

    /// Has living clients give up what they write beside clients that are gone.
    fn clear_writers(&mut self, now: Duration) -> Vec<Effect> {
        if self.gone.is_empty() {
            return Vec::new();
        }
        let writers: Vec<(Ino, ClientId)> = self.living_writers_beside_gone().collect();
        let all = || Limit { inode: None, ranges: Vec::new() };
        writers.into_iter().filter_map(|(ino, one)| self.revoke(ino, one, all(), now)).collect()
    }

    /// Draws a number that is above all that were granted before, for changes that the leader makes
    /// itself. Without one it may want numbers reserved; the caller tries again then.
    pub fn draw(&mut self, effects: &mut Vec<Effect>) -> Option<GrantNumber> {
        if self.next == self.reserved {
            self.reserve(effects);
            return None;
        }
        let number = self.next;
        self.next = GrantNumber(number.0 + 1);
        Some(number)
    }

    /// The log has reserved the numbers `from..upto`. Those between the portion before and `from`
    /// were given to others.
    ///
    /// # Panics
    /// If the portion before is not used up, or is not below this one.
    pub fn reserved(&mut self, from: GrantNumber, upto: GrantNumber, now: Duration) -> Vec<Effect> {
        assert!(self.next == self.reserved, "the portion before is not used up");
        assert!(self.reserved <= from && from < upto, "portions ascend");
        (self.next, self.reserved) = (from, upto);
        self.reserving = false;
        self.settle(None, now)
    }

    /// The log could not reserve numbers. They are asked for again when something happens.
    pub fn reserve_failed(&mut self) {
        self.reserving = false;
    }

    /// Time has passed: revokes become due, or are sent again.
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = self.settle(None, now);
        // Also where the request that needed it is gone: the client may have given up by now, and
        // is granted nothing of the file before it has said so.
        let due = now.checked_sub(self.times.repeat).map(|time| self.files.sent_until(time));
        for (ino, client) in due.into_iter().flatten() {
            effects.extend(self.ask_again(ino, client, now));
        }
        effects
    }

    /// When [`Authority::tick`] is to be called next, if nothing else happens. It may be over.
    pub fn due(&self) -> Option<Duration> {
        let repeated = self.files.first_sent().map(|sent| sent + self.times.repeat);
        [repeated, self.put_off].into_iter().flatten().min()
    }

    /// Takes a message that a client sent to the leader of a term.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn receive(
        &mut self,
        client: ClientId,
        term: Term,
        message: Request,
        now: Duration,
    ) -> Result<Vec<Effect>, Refusal> {
        if term != self.term && obeys(Rule::OtherTermsAreVoid) {
            return Ok(Vec::new());
        }
        if !self.clients.contains(&client) {
            return Err(Refusal::Unknown);
        }
        let mut effects = Vec::new();
        let is_reassertion =
            matches!(message, Request::Reassert { .. } | Request::Reasserted { .. });
        let files: Option<BTreeSet<Ino>> = match &message {
            Request::Ask { wants, .. } => Some(wants.iter().map(|want| want.ino).collect()),
            Request::GivenUp { ino, .. } | Request::Reassert { ino, .. } => {
                Some(BTreeSet::from([*ino]))
            }
            _ => None,
        };
        let was_awaited = self.grace.contains_key(&client);
        match message {
            Request::Ask { request, wants } => self.ask(client, request, wants)?,
            Request::GivenUp { ino, upto, keeps } => {
                if self.given_up(client, ino, upto, keeps)? {
                    effects.extend(self.ask_again(ino, client, now));
                }
            }
            Request::Reassert { ino, held, newest } => self.reassert(client, ino, held, newest)?,
            Request::Left { .. } | Request::Lock(_) => {}
            Request::Reasserted { files } => {
                self.grace.entry(client).and_modify(|grace| grace.count = Some(files));
            }
        }
        if is_reassertion {
            effects.extend(self.end_grace(client));
        }
        let has_reasserted = was_awaited && !self.grace.contains_key(&client);
        effects.extend(self.settle(files.filter(|_| !has_reasserted), now));
        Ok(effects)
    }

    /// Ends the grace of a client that has reasserted all. It is told so at each repetition.
    fn end_grace(&mut self, client: ClientId) -> Option<Effect> {
        if let Some(grace) = self.grace.get(&client) {
            let is_whole = grace.count == Some(grace.files.len() as u64);
            if !is_whole && obeys(Rule::ReassertionsAreCounted) {
                return None;
            }
            self.leave_grace(client);
        }
        Some(Effect::Send(client, Reply::Reasserted))
    }

    fn ask(
        &mut self,
        client: ClientId,
        request: RequestId,
        wants: Vec<Want>,
    ) -> Result<(), Refusal> {
        let distinct: BTreeSet<Ino> = wants.iter().map(|want| want.ino).collect();
        let sound = (1..=WANTS_MAX).contains(&wants.len()) && distinct.len() == wants.len();
        if !sound || !wants.iter().all(Want::is_valid) {
            return Err(Refusal::Invalid);
        }
        let own = self.waiting.iter().filter(|waiting| waiting.client == client);
        if own.clone().any(|waiting| waiting.request == request) {
            return Ok(());
        }
        if own.count() >= REQUESTS_MAX {
            return Err(Refusal::TooMany);
        }
        // A request that was answered is answered anew: granting what is held changes nothing.
        self.waiting.push(Waiting { client, request, wants });
        Ok(())
    }

    /// Takes an answer in. True if it is not enough, because more was wanted meanwhile.
    fn given_up(
        &mut self,
        client: ClientId,
        ino: Ino,
        upto: GrantNumber,
        keeps: Held,
    ) -> Result<bool, Refusal> {
        let Some(holding) = self.files.get(ino, client) else { return Ok(false) };
        if upto < holding.newest && obeys(Rule::AnswersCoverTheNewestGrant) {
            // The client has not seen the newest grant when it said that.
            return Ok(false);
        }
        if upto > holding.newest || !keeps.is_complete() {
            return Err(Refusal::Invalid);
        }
        if !keeps.is_within(&holding.held) {
            // A later answer of the client has overtaken this one.
            return Ok(false);
        }
        let answers =
            holding.revoke.as_ref().is_none_or(|revoke| keeps.limited(&revoke.limit) == keeps);
        let is_less = (holding.held.inode, &holding.held.ranges) != (keeps.inode, &keeps.ranges);
        self.files.change(ino, client, |holding| {
            holding.held = keeps;
            if answers {
                holding.revoke = None;
            }
        });
        Ok(is_less && !answers)
    }

    /// Sends a revoke again that a client has just answered in part.
    fn ask_again(&mut self, ino: Ino, client: ClientId, now: Duration) -> Option<Effect> {
        self.files.change(ino, client, |holding| {
            let revoke = holding.revoke.as_mut()?;
            revoke.sent = now;
            let (upto, limit) = (holding.newest, revoke.limit.clone());
            Some(Effect::Send(client, Reply::Revoke { ino, upto, limit }))
        })
    }

    fn reassert(
        &mut self,
        client: ClientId,
        ino: Ino,
        held: Held,
        newest: GrantNumber,
    ) -> Result<(), Refusal> {
        let Some(grace) = self.grace.get(&client) else {
            // A repetition: what it says was taken in.
            return Ok(());
        };
        if grace.files.contains(&ino) {
            return Ok(());
        }
        if held.is_empty() || !held.is_complete() || newest >= self.reserved {
            return Err(Refusal::Invalid);
        }
        let conflicts = self
            .files
            .of(ino)
            .any(|(other, holding)| other != client && holding.held.conflicts_with(&held));
        if conflicts {
            return Err(Refusal::Conflict);
        }
        if held.inode == Some(Mode::Exclusive) || !obeys(Rule::OnlyExclusiveIsAlone) {
            self.known.insert(ino);
        }
        self.files.change(ino, client, |holding| {
            *holding = Holding { held, newest, ..Holding::default() };
        });
        if let Some(grace) = self.grace.get_mut(&client) {
            grace.files.insert(ino);
        }
        Ok(())
    }

    fn reserve(&mut self, effects: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.reserving, true) {
            effects.push(Effect::Reserve(GrantNumber(self.reserved.0 + RESERVED_AT_ONCE)));
        }
    }

    fn revoke(
        &mut self,
        ino: Ino,
        client: ClientId,
        limit: Limit,
        now: Duration,
    ) -> Option<Effect> {
        let (times, put_off) = (self.times, &mut self.put_off);
        self.files.get(ino, client)?;
        self.files.change(ino, client, |holding| {
            match &mut holding.revoke {
                Some(revoke) => {
                    let before = revoke.limit.clone();
                    revoke.limit.and(limit);
                    if revoke.limit == before {
                        return None;
                    }
                    revoke.sent = now;
                }
                None if now < holding.since + times.hold_min => {
                    let due = holding.since + times.hold_min;
                    *put_off = Some(put_off.map_or(due, |other| other.min(due)));
                    return None;
                }
                None => holding.revoke = Some(Box::new(Revoke { limit, sent: now })),
            }
            let limit = holding.revoke.as_ref().map(|revoke| revoke.limit.clone())?;
            Some(Effect::Send(client, Reply::Revoke { ino, upto: holding.newest, limit }))
        })
    }

    fn grant(&mut self, waiting: Waiting, now: Duration) -> Effect {
        let Waiting { client, request, wants } = waiting;
        let number = self.next;
        assert!(number < self.reserved, "only reserved numbers are drawn");
        self.next = GrantNumber(number.0 + 1);
        self.granted += 1;
        let grants = wants.iter().map(|want| self.grant_one(client, want, number, now)).collect();
        Effect::Send(client, Reply::Grant { request, grants })
    }

    /// A client has made a file. Grants it exclusively, and open, unless somebody else holds it or
    /// waits for it, or nothing can be granted now. The client is told with the answer to its
    /// change, or asks like anybody else. `is_first` says that no earlier leader has made this
    /// change: then no other client has heard of the file, and nobody has to reassert it.
    pub fn grant_new(
        &mut self,
        client: ClientId,
        ino: Ino,
        is_first: bool,
        now: Duration,
    ) -> Option<GrantNumber> {
        let is_heard = self.clients.contains(&client) && !self.gone.contains(&client);
        let is_calm = self.grace.is_empty()
            || is_first && !self.grace.contains_key(&client)
            || !obeys(Rule::AllReassertFirst);
        let names = |waiting: &Waiting| waiting.wants.iter().any(|want| want.ino == ino);
        let is_free =
            !self.files.of(ino).any(|(other, one)| other != client || one.revoke.is_some())
                && !self.waiting.iter().any(names);
        if !is_heard
            || !is_calm
            || (!is_free && obeys(Rule::NewFilesAreFree))
            || (self.is_in_repair(ino) && !is_first)
            || self.next == self.reserved
        {
            return None;
        }
        let number = self.next;
        self.next = GrantNumber(number.0 + 1);
        self.granted += 1;
        let want = Want { ino, inode: Some(Mode::Exclusive), open: true, range: None };
        self.grant_one(client, &want, number, now);
        if self.is_in_grace() {
            self.known.insert(ino);
        }
        Some(number)
    }

    fn grant_one(
        &mut self,
        client: ClientId,
        want: &Want,
        number: GrantNumber,
        now: Duration,
    ) -> Granted {
        let mode = self.mode_for(client, want);
        let wanted = want.range.filter(|_| mode != Some(Mode::Exclusive));
        let range = wanted.map(|wanted| {
            let room = self.room(client, want.ino, wanted.required, wanted.desired, wanted.mode);
            (room, wanted.mode)
        });
        self.files.change(want.ino, client, |holding| {
            holding.held.inode = mode;
            holding.held.open |= want.open;
            if let Some((range, mode)) = range {
                holding.held.ranges.raise(range, mode);
            }
            holding.newest = number;
            holding.since = now;
            Granted { ino: want.ino, held: holding.held.clone(), number }
        })
    }

    /// The mode of the inode token that a client has after its request is granted.
    fn mode_for(&self, client: ClientId, want: &Want) -> Option<Mode> {
        let own = self.held(client, want.ino).inode;
        let mut others = self.files.of(want.ino);
        let is_alone =
            !others.any(|(other, holding)| other != client && holding.held.inode.is_some());
        match (own, want.inode) {
            (None, Some(Mode::Writing)) if is_alone => Some(Mode::Exclusive),
            (Some(own), Some(wanted)) => Some(own.join(wanted)),
            (own, wanted) => own.or(wanted),
        }
    }

    /// What of a desired range is free of others, held or waited for.
    fn room(
        &self,
        client: ClientId,
        ino: Ino,
        required: BlockRange,
        desired: BlockRange,
        mode: Mode,
    ) -> BlockRange {
        let mut room = desired;
        for (other, holding) in self.files.of(ino) {
            if other != client {
                room = holding.held.ranges.room(required, room, mode);
            }
        }
        for waiting in self.waiting.iter().filter(|waiting| waiting.client != client) {
            let wants = waiting.wants.iter().filter(|want| want.ino == ino);
            for wanted in wants.filter_map(|want| want.range) {
                // One that overlaps what is required waits for it anyway.
                if !wanted.mode.agrees(mode) && !wanted.required.overlaps(required) {
                    let mut theirs = Ranges::default();
                    theirs.raise(wanted.required, wanted.mode);
                    room = theirs.room(required, room, mode);
                }
            }
        }
        room
    }

    /// What a client holds of a file, as the table says.
    pub fn held(&self, client: ClientId, ino: Ino) -> Held {
        let holding = self.files.get(ino, client);
        holding.map(|holding| holding.held.clone()).unwrap_or_default()
    }

    /// Whether one of these clients may have changed a file: it holds it exclusively, or writes it
    /// beside others, or may do so and has yet to reassert it.
    pub fn may_have_changed(&self, ino: Ino, clients: &BTreeSet<ClientId>) -> bool {
        let mut holdings = self.files.of(ino);
        let changes = [Some(Mode::Exclusive), Some(Mode::Writing)];
        clients.iter().any(|client| self.is_awaited(*client, ino))
            || holdings.any(|(client, holding)| {
                clients.contains(&client) && changes.contains(&holding.held.inode)
            })
    }

    /// The tokens that each client holds of a file.
    pub fn holders(&self, ino: Ino) -> Vec<(ClientId, Held)> {
        let holdings = self.files.of(ino);
        holdings.map(|(client, holding)| (client, holding.held.clone())).collect()
    }

    /// The number of files of which some client holds something.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The clients that use a file.
    pub fn openers(&self, ino: Ino) -> Vec<ClientId> {
        let holdings = self.files.of(ino);
        holdings.filter(|(_, holding)| holding.held.open).map(|(client, _)| client).collect()
    }

    /// Has a client say whether it has a file open, which it need not say as long as it holds the
    /// inode token: all but OPEN is revoked. Nobody waits for the inode, so this waits for no
    /// minimum time.
    pub fn recall(&mut self, client: ClientId, ino: Ino, now: Duration) -> Option<Effect> {
        self.files.get(ino, client).filter(|holding| holding.held.open)?;
        let limit = Limit { inode: None, ranges: Vec::new() };
        self.files.change(ino, client, |holding| match &mut holding.revoke {
            Some(revoke) => revoke.limit.and(limit),
            None => holding.revoke = Some(Box::new(Revoke { limit, sent: now })),
        });
        self.ask_again(ino, client, now)
    }

    /// All requests that wait, in order, and the clients that they wait for.
    pub fn waits(&self) -> Vec<Wait> {
        let waits = (0..self.waiting.len()).map(|at| Wait {
            client: self.waiting[at].client,
            files: self.waiting[at].wants.iter().map(|want| want.ino).collect(),
            holders: self.needed(at).into_iter().map(|(_, client, _)| client).collect(),
        });
        waits.collect()
    }

    /// Whether no request waits, and no revoke is out.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.files.first_sent().is_none()
    }

    /// How many requests it has granted.
    pub fn grants(&self) -> u64 {
        self.granted
    }

    /// The first number that no leader has reserved.
    pub fn first_free_number(&self) -> GrantNumber {
        self.reserved
    }

    /// Walks the whole table.
    ///
    /// # Panics
    /// If two clients hold what conflicts, a range is held without its inode, a number was drawn
    /// that is not reserved, or something is kept for a client that is gone.
    pub fn check(&self) {
        assert!(self.next <= self.reserved, "only reserved numbers are drawn");
        assert!(self.grace.keys().all(|one| self.clients.contains(one)), "grace is for clients");
        assert!(self.gone.is_subset(&self.clients), "who is dead is forgotten");
        assert!(self.known.is_empty() || self.is_in_grace(), "without grace all files are known");
        self.files.check(|ino, holdings| {
            for (client, holding) in holdings {
                assert!(self.clients.contains(client), "inode {ino}: client {client} is gone");
                assert!(holding.held.is_complete(), "inode {ino}: ranges without the inode");
                assert!(!holding.held.is_empty(), "inode {ino}: nothing is not kept");
                assert!(holding.newest < self.next, "inode {ino}: a number from nowhere");
                for (other, theirs) in holdings.iter().filter(|(other, _)| other > client) {
                    let conflict = holding.held.conflicts_with(&theirs.held);
                    assert!(!conflict, "inode {ino}: clients {client} and {other} conflict");
                }
            }
        });
        for waiting in &self.waiting {
            assert!(self.clients.contains(&waiting.client), "only clients wait");
        }
    }
}

#[cfg(test)]
#[path = "authority_test.rs"]
mod authority_test;
