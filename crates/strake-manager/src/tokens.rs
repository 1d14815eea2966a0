//! The tokens of one file system: the authority's table ([`Authority`]) with a clock, the
//! metadata, and the ways to the clients.
//!
//! **Numbers** of grants are reserved in the metadata, durably, before one of them is drawn.
//!
//! **Files without a name** stay as long as any client has them open. A removal comes from one
//! client, which knows only its own handles; [`LeaderMeta`] asks the table for those of the others.
//! The last close removes the file. So no client reaps anything. A client that holds the inode
//! token of a file that has a name opens and closes it without a word.
//!
//! **Sizes and times** of a file that several clients write beside each other come from all of
//! them. Each tells what it knows; [`LeaderMeta`] keeps the larger size and the later time. So do
//! changes of clients that have yet to reassert what they hold.
//!
//! **NSDs** that miss writes, and that come back: see `tokens/pool.rs`.
//!
//! **Locks.** `leaving` is held while an NSD is taken out of use; a client follows that without
//! waiting. `state` is a leaf: messages are sent and the metadata is called without it. A message
//! that is overtaken is no fault (`strake-token`).

mod alarm;
mod departure;
mod heat;
mod pool;

pub use departure::Heal;
pub use heat::Hot;

use crate::locks::LockService;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, WatchedMutex, WatchedMutexGuard};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::{Clock, WaitNames};
use strake_proto::meta::{
    CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
};
use strake_proto::{ClientId, Error, ErrorKind, GrantNumber, Ino, Result};
use strake_token::authority::{Effect, RESERVED_AT_ONCE, Times, Wait};
use strake_token::held::Held;
use strake_token::message::{Reply, Request, Term};
use strake_token::port::{ToAuthority, ToClient};
use strake_token::{Authority, Mode};
use tracing::{error, warn};

/// The name under which the leader itself changes the metadata.
const LEADER: ClientId = ClientId(0);
/// The authority's thread looks at least that often.
const LOOK: Duration = Duration::from_secs(1);
/// A client opens a file that it has made without a name within that time. All other waits of a
/// client for the leader are shorter.
const OPEN_MAX: Duration = Duration::from_secs(600);
/// Orphans asked for at once.
const PAGE: u32 = 1000;

strake_env::lock_names! {
    /// Held across two metadata calls.
    pub(crate) Merging = "size of a file that others write beside";
}

type MergingGuard<'a> = WatchedMutexGuard<'a, ()>;

struct State {
    authority: Authority,
    ways: BTreeMap<ClientId, Arc<dyn ToClient>>,
    /// Inodes without a name that some client has, or had, open.
    nameless: BTreeSet<Ino>,
    /// Those among them that were made without a name and that their maker has yet to open, with
    /// the time until which they are kept for it.
    made: BTreeMap<Ino, (ClientId, Duration)>,
    /// Clients that are gone and still in the table: see `departure.rs`.
    leaving: BTreeSet<ClientId>,
    /// Clients of which no change of the metadata is taken any more, and the number of changes
    /// under way of each client: see `departure.rs`.
    closed: BTreeSet<ClientId>,
    changing: BTreeMap<ClientId, u32>,
    stopped: bool,
    pool: pool::PoolChanges,
    alarm: alarm::Alarm,
}

/// Files that were taken from clients lately, and what waits.
#[derive(Clone, Debug, Default)]
pub struct HotTokens {
    /// The number of files of which some client holds a token.
    pub files: usize,
    /// The files that were taken most often, and what each client holds of them.
    pub files_taken: Vec<(Hot, Vec<(ClientId, Held)>)>,
    /// Requests that wait.
    pub waits: Vec<Wait>,
}

/// See the file's head.
pub struct TokenService {
    state: Mutex<State>,
    changed: Condvar,
    /// Something is due earlier than the thread thinks, or it is to end.
    earlier: Condvar,
    meta: Arc<dyn MetaPort>,
    /// The position of the last change of earlier leaders, or a later one of this one.
    begun: Option<u64>,
    clock: Arc<dyn Clock>,
    thread: Mutex<Option<JoinHandle<()>>>,
    leaving: Mutex<()>,
    merging: WatchedMutex<Merging>,
    locks: LockService,
    waits: Arc<dyn WaitNames>,
    /// A leaf.
    heat: Mutex<heat::Heat>,
}

impl TokenService {
    /// Starts the service. `clients` joined a service before this one, and hold what it does not
    /// know: it grants nothing before each of them has reasserted all, or is gone. Its term is the
    /// first number that it reserves, so terms rise.
    ///
    /// # Errors
    /// The metadata's; `NoMemory` when there is no thread.
    pub fn start(
        clients: &[ClientId],
        times: Times,
        meta: Arc<dyn MetaPort>,
        clock: Arc<dyn Clock>,
        waits: Arc<dyn WaitNames>,
    ) -> Result<Arc<TokenService>> {
        let first = reserve(&*meta, &*clock, RESERVED_AT_ONCE)?;
        let begun = meta.position();
        let mut authority = Authority::new(Term(first.0), times, clients, first);
        let upto = GrantNumber(first.0 + RESERVED_AT_ONCE);
        let effects = authority.reserved(first, upto, clock.monotonic());
        assert!(effects.is_empty(), "nobody waits before the start");
        let nameless = nameless(&*meta)?;
        let ways = BTreeMap::new();
        let state = Mutex::new(State {
            authority,
            ways,
            nameless,
            made: BTreeMap::new(),
            leaving: BTreeSet::new(),
            closed: BTreeSet::new(),
            changing: BTreeMap::new(),
            stopped: false,
            pool: pool::PoolChanges::default(),
            alarm: alarm::Alarm::default(),
        });
        let (changed, thread) = (Condvar::new(), Mutex::default());
        let (leaving, merging) = (Mutex::new(()), WatchedMutex::default());
        let locks = LockService::new(Term(first.0), clients);
        let service = Arc::new(TokenService {
            state,
            changed,
            earlier: Condvar::new(),
            meta,
            begun,
            clock,
            thread,
            leaving,
            merging,
            locks,
            waits,
            heat: Mutex::default(),
        });
        let out_of_use = pool::out_of_use(&*service.configuration()?);
        if !out_of_use.is_empty() {
            let clients = clients.iter().copied().collect();
            service.state.lock().pool.set_apart(clients, &out_of_use);
        }
        service.reap_unused();
        let weak = Arc::downgrade(&service);
        let thread = Builder::new().name("tokens".into()).spawn(move || look(&weak));
        *service.thread.lock() = Some(thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
        })?);
        Ok(service)
    }

    /// Does what may wait, under a name that `strake diag waiters` shows.
    fn named<T>(&self, reason: &'static str, detail: &str, work: impl FnOnce() -> T) -> T {
        let wait = self.waits.begin_wait(reason, detail);
        let done = work();
        self.waits.end_wait(wait);
        done
    }

    /// A client has joined. `way` leads to it.
    pub fn join(&self, client: ClientId, way: Arc<dyn ToClient>) {
        self.admit(client);
        self.state.lock().ways.insert(client, way);
    }

    /// A client has joined, and will have a way ([`TokenService::attach`]).
    pub fn admit(&self, client: ClientId) {
        self.locks.join(client);
        self.state.lock().authority.join(client);
    }

    /// A client that was admitted has a new way. Returns the term.
    ///
    /// # Errors
    /// `Fenced` for a client that was not admitted, or is gone.
    pub fn attach(&self, client: ClientId, way: Arc<dyn ToClient>) -> Result<Term> {
        let mut state = self.state.lock();
        if !state.authority.clients().contains(&client) || state.leaving.contains(&client) {
            let detail = format!("client {client} is not a client of this file system any more");
            return Err(Error::new(ErrorKind::Fenced, detail));
        }
        state.ways.insert(client, way);
        Ok(state.authority.term())
    }

    /// The term of all that the service says.
    pub fn term(&self) -> Term {
        self.state.lock().authority.term()
    }

    /// A client that joined an earlier service has a way to this one.
    pub fn came_back(&self, client: ClientId, way: Arc<dyn ToClient>) {
        let term = {
            let mut state = self.state.lock();
            state.ways.insert(client, Arc::clone(&way));
            state.authority.term()
        };
        way.new_term(term);
    }

    /// A client has gone or was declared dead, and no NSD accepts a write of it any more. What it
    /// held is free.
    pub fn gone(&self, client: ClientId) {
        let now = self.clock.monotonic();
        let effects = {
            let mut state = self.state.lock();
            state.ways.remove(&client);
            state.pool.forget(client);
            state.leaving.remove(&client);
            state.closed.remove(&client);
            let effects = state.authority.dead(client, now);
            self.wake_if_due(&mut state);
            effects
        };
        self.perform(effects);
        self.tell_all(self.locks.gone(client));
        self.reap_unused();
    }

    /// The way of a client to the authority.
    pub fn way_of(self: &Arc<TokenService>, client: ClientId) -> Arc<dyn ToAuthority> {
        Arc::new(Way { service: Arc::clone(self), client })
    }

    /// The metadata for clients that hold tokens.
    pub fn metadata(self: &Arc<TokenService>) -> Arc<dyn MetaPort> {
        Arc::new(LeaderMeta { service: Arc::clone(self) })
    }

    /// The number of files of which some client holds a token.
    pub fn files(&self) -> usize {
        self.state.lock().authority.files()
    }

    /// All requests that wait, and the clients that they wait for.
    pub fn waits(&self) -> Vec<Wait> {
        self.state.lock().authority.waits()
    }

    /// At most `most` files that were taken from clients in the last minute, and what waits.
    pub fn hot(&self, most: usize) -> HotTokens {
        let hottest = self.heat.lock().hottest(self.clock.monotonic(), most);
        let state = self.state.lock();
        let held = |hot: Hot| {
            let held = state.authority.holders(hot.ino);
            (hot, held)
        };
        HotTokens {
            files: state.authority.files(),
            files_taken: hottest.into_iter().map(held).collect(),
            waits: state.authority.waits(),
        }
    }

    /// The locks of programs.
    pub fn locks(&self) -> &LockService {
        &self.locks
    }

    /// Ends the thread, and lets go of the clients. They hold ways to this service.
    pub fn stop(&self) {
        let ways = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.ways)
        };
        drop(ways);
        self.changed.notify_all();
        self.earlier.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Takes a message of a client. Returns what the client is told at once; all else goes over
    /// the clients' ways.
    #[must_use = "the client waits for it"]
    pub fn receive(&self, client: ClientId, term: Term, message: Request) -> Vec<Reply> {
        if self.state.lock().leaving.contains(&client) {
            return Vec::new();
        }
        let closed = match &message {
            Request::GivenUp { ino, keeps, .. } if !keeps.open => Some(*ino),
            _ => None,
        };
        if let Request::Left { change } = message {
            let mut state = self.state.lock();
            // Each leader counts its changes anew.
            if term == state.authority.term() {
                let kept = state.pool.followed(client, change);
                self.changed.notify_all();
                return kept;
            }
            return Vec::new();
        }
        if let Request::Lock(message) = message {
            let told = self.locks.receive(client, term, message);
            let (own, others) = told.into_iter().partition(|(to, _)| *to == client);
            self.tell_all(others);
            return replies(own);
        }
        let now = self.clock.monotonic();
        let received = {
            let mut state = self.state.lock();
            let received = state.authority.receive(client, term, message, now);
            self.wake_if_due(&mut state);
            received
        };
        let own = match received {
            Ok(effects) => {
                let is_own =
                    |effect: &Effect| matches!(effect, Effect::Send(to, _) if *to == client);
                let (own, others) = effects.into_iter().partition(is_own);
                self.perform(others);
                own
            }
            // The client hears nothing, and sends again or ends.
            Err(refusal) => {
                warn!(target: "tokens", "client {} is refused: {refusal:?}", client.0);
                Vec::new()
            }
        };
        if let Some(ino) = closed {
            self.state.lock().made.remove(&ino);
            self.reap_if_unused(ino);
        }
        let mut state = self.state.lock();
        let mut told: Vec<Reply> = state.pool.unanswered(client).into_iter().collect();
        told.extend(own.into_iter().filter_map(|effect| match effect {
            Effect::Send(_, reply) => state.pool.pass(client, reply),
            Effect::Reserve(_) => None,
        }));
        told
    }

    /// Does what the authority wants done, and what follows from that.
    fn perform(&self, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Send(client, reply) => {
                        if let Reply::Revoke { ino, upto, .. } = &reply {
                            let now = self.clock.monotonic();
                            self.heat.lock().note(*ino, client, *upto, now);
                        }
                        self.tell(client, reply);
                    }
                    Effect::Reserve(upto) => more.extend(self.reserve(upto)),
                }
            }
            effects = more;
        }
        // For those who wait until clients have reasserted or given up.
        self.changed.notify_all();
    }

    /// The authority has changed: its thread is woken if something is due before it looks again.
    fn wake_if_due(&self, state: &mut State) {
        let due = state.authority.due();
        if state.alarm.rings(due) {
            self.earlier.notify_all();
        }
    }

    fn tell_all(&self, messages: Vec<(ClientId, Reply)>) {
        messages.into_iter().for_each(|(client, reply)| self.tell(client, reply));
    }

    fn tell(&self, client: ClientId, reply: Reply) {
        let (way, term, reply) = {
            let mut state = self.state.lock();
            let reply = state.pool.pass(client, reply);
            (state.ways.get(&client).cloned(), state.authority.term(), reply)
        };
        if let (Some(way), Some(reply)) = (way, reply) {
            way.send(term, reply);
        }
    }

    fn reserve(&self, upto: GrantNumber) -> Vec<Effect> {
        let count = RESERVED_AT_ONCE;
        match reserve(&*self.meta, &*self.clock, count) {
            Ok(first) => {
                let now = self.clock.monotonic();
                let upto = GrantNumber(first.0 + count).max(upto);
                let mut state = self.state.lock();
                let effects = state.authority.reserved(first, upto, now);
                self.wake_if_due(&mut state);
                effects
            }
            Err(error) => {
                error!(target: "tokens", "no grants can be reserved: {error}");
                self.state.lock().authority.reserve_failed();
                Vec::new()
            }
        }
    }

    /// Removes every file that has no name and that no client has open.
    fn reap_unused(&self) {
        let nameless: Vec<Ino> = self.state.lock().nameless.iter().copied().collect();
        nameless.into_iter().for_each(|ino| self.reap_if_unused(ino));
    }

    fn reap_if_unused(&self, ino: Ino) {
        {
            let now = self.clock.monotonic();
            let mut state = self.state.lock();
            let is_known = !state.authority.is_in_grace();
            if !is_known || state.is_in_use(ino, now) || !state.nameless.remove(&ino) {
                return;
            }
        }
        match apply(&*self.meta, &*self.clock, MetaOp::Reap { ino }) {
            Ok(_) => {}
            // It has a name again, or is gone.
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Stale) => {}
            Err(error) => {
                warn!(target: "tokens", "inode {ino} is not removed yet: {error}");
                self.state.lock().nameless.insert(ino);
            }
        }
    }

    fn tick(&self) {
        let effects = self.state.lock().authority.tick(self.clock.monotonic());
        self.perform(effects);
        self.tell_all(self.locks.tick());
        let unanswered = self.state.lock().pool.all_unanswered();
        self.tell_all(unanswered);
        self.reap_unused();
    }
}

impl State {
    /// Whether a file without a name is open, or is about to be opened by the client that made it.
    fn is_in_use(&mut self, ino: Ino, now: Duration) -> bool {
        let is_open = !self.authority.openers(ino).is_empty();
        let is_kept = self.made.get(&ino).is_some_and(|(maker, until)| {
            !is_open && self.authority.clients().contains(maker) && now < *until
        });
        if !is_kept {
            self.made.remove(&ino);
        }
        is_open || is_kept
    }
}

/// The thread of the service: revokes that become due, and those that are to be repeated.
fn look(service: &Weak<TokenService>) {
    while let Some(service) = service.upgrade() {
        {
            let mut state = service.state.lock();
            let look = service.clock.monotonic() + LOOK;
            loop {
                if state.stopped {
                    return;
                }
                let now = service.clock.monotonic();
                let due = state.authority.due().map_or(look, |due| due.min(look));
                if due <= now {
                    break;
                }
                state.alarm.set(due);
                service.earlier.wait_for(&mut state, due - now);
                state.alarm.stop();
            }
        }
        service.tick();
    }
}

fn replies(own: impl IntoIterator<Item = (ClientId, Reply)>) -> Vec<Reply> {
    own.into_iter().map(|(_, reply)| reply).collect()
}

fn apply(meta: &dyn MetaPort, clock: &dyn Clock, op: MetaOp) -> Result<MetaReply> {
    meta.apply(&MetaEntry { client: LEADER, sequence: 0, time: clock.wall(), op })
}

/// Reserves numbers durably, and returns the first.
fn reserve(meta: &dyn MetaPort, clock: &dyn Clock, count: u64) -> Result<GrantNumber> {
    match apply(meta, clock, MetaOp::ReserveGrants { count })? {
        MetaReply::Session { grant } => meta.sync().map(|()| grant),
        other => Err(Error::new(ErrorKind::Internal, format!("no grants: {other:?}"))),
    }
}

fn nameless(meta: &dyn MetaPort) -> Result<BTreeSet<Ino>> {
    let (mut all, mut after) = (BTreeSet::new(), Ino(0));
    loop {
        match meta.query(&MetaQuery::Orphans { after, limit: PAGE })? {
            MetaReply::Inos(page) => {
                let Some(last) = page.last() else { return Ok(all) };
                after = *last;
                all.extend(page);
            }
            other => return Err(Error::new(ErrorKind::Internal, format!("no list: {other:?}"))),
        }
    }
}

/// A client's way to the authority in the same process.
struct Way {
    service: Arc<TokenService>,
    client: ClientId,
}

impl ToAuthority for Way {
    fn send(&self, term: Term, message: Request) {
        let told = self.service.receive(self.client, term, message);
        told.into_iter().for_each(|reply| self.service.tell(self.client, reply));
    }
}

/// The metadata for clients that hold tokens: see the file's head.
struct LeaderMeta {
    service: Arc<TokenService>,
}

impl LeaderMeta {
    /// The change as it is to be made: a file that any client has open outlives its last name. The
    /// client that removes a name holds both inodes exclusively, so nobody opens the file now. The
    /// others have said whether they have it open when they gave the inode up. For this client the
    /// change says so. A leader that does not know yet what all of them have takes it for open.
    fn changed(&self, client: ClientId, op: &MetaOp) -> Result<Option<MetaOp>> {
        let has_other_openers = |ino: Ino| {
            let authority = &self.service.state.lock().authority;
            authority.is_in_grace() || authority.openers(ino).iter().any(|opener| *opener != client)
        };
        let is_open_elsewhere = |parent: Ino, name: &[u8]| -> Result<bool> {
            let query = MetaQuery::Lookup { parent, name: name.to_vec() };
            match self.service.meta.query(&query) {
                Ok(MetaReply::Inode(inode)) => Ok(has_other_openers(inode.attr.ino)),
                Ok(_) => Err(Error::new(ErrorKind::Internal, "not an inode")),
                // The change itself finds the right error.
                Err(_) => Ok(false),
            }
        };
        let is_open = match op {
            MetaOp::Remove { ino, open: false, .. } => has_other_openers(*ino),
            MetaOp::Unlink { parent, name, open: false } => is_open_elsewhere(*parent, name)?,
            MetaOp::Rename { new_parent, new_name, open: false, .. } => {
                is_open_elsewhere(*new_parent, new_name)?
            }
            _ => false,
        };
        let mut changed = is_open.then(|| op.clone());
        match &mut changed {
            Some(MetaOp::Unlink { open, .. } | MetaOp::Remove { open, .. }) => *open = true,
            Some(MetaOp::Rename { open, .. }) => *open = true,
            _ => {}
        }
        Ok(changed)
    }

    /// The change as it is to be made, if it differs, and what is held until it is made.
    fn as_made(&self, entry: &MetaEntry) -> Result<(Option<MetaOp>, Option<MergingGuard<'_>>)> {
        if let Some((op, guard)) = self.merged(entry)? {
            return Ok((Some(op), Some(guard)));
        }
        Ok((self.changed(entry.client, &entry.op)?, None))
    }

    /// What a client tells of a file, changed so that nothing gets lost that another one told which
    /// writes beside it. The guard is held until the change is made.
    fn merged(&self, entry: &MetaEntry) -> Result<Option<(MetaOp, MergingGuard<'_>)>> {
        let MetaOp::Update { ino, .. } = &entry.op else { return Ok(None) };
        let mode = self.service.state.lock().authority.held(entry.client, *ino).inode;
        if mode == Some(Mode::Exclusive) {
            return Ok(None);
        }
        let guard = self.service.merging.lock();
        let known = match self.service.meta.query(&MetaQuery::GetInode { ino: *ino }) {
            Ok(MetaReply::Inode(known)) => known.attr,
            Ok(_) => return Err(Error::new(ErrorKind::Internal, "not an inode")),
            // The change itself finds the right error.
            Err(_) => return Ok(None),
        };
        let mut op = entry.op.clone();
        if let MetaOp::Update { size, mtime, ctime, .. } = &mut op {
            *size = known.size.max(*size);
            if ctime.is_some_and(|ctime| ctime < known.ctime) {
                *mtime = mtime.map(|mtime| mtime.max(known.mtime));
            }
        }
        Ok(Some((op, guard)))
    }

    /// The reply as the client gets it: a new inode comes with its token, where that is free, and
    /// so do reserved numbers. A client that sends a change again may get another one, and has one
    /// answer. `position` is that of a counted change.
    fn with_token(
        &self,
        client: ClientId,
        op: &MetaOp,
        reply: MetaReply,
        position: Option<u64>,
    ) -> MetaReply {
        let new: Vec<Ino> = match (op, &reply) {
            (MetaOp::Create { .. }, MetaReply::Inode(inode)) => vec![inode.attr.ino],
            (MetaOp::ReserveInodes { .. }, MetaReply::Inos(inos)) => inos.clone(),
            _ => return reply,
        };
        let now = self.service.clock.monotonic();
        let mut state = self.service.state.lock();
        if state.leaving.contains(&client) || state.pool.is_apart(client) {
            return reply;
        }
        let term = state.authority.term();
        let is_first = self.service.begun.zip(position).is_some_and(|(begun, at)| begun < at);
        let grant = |ino: &Ino| state.authority.grant_new(client, *ino, is_first, now);
        let grants: Vec<GrantNumber> = new.iter().map_while(grant).collect();
        match (reply, grants.as_slice()) {
            (MetaReply::Inode(inode), [grant]) => MetaReply::Made { inode, term, grant: *grant },
            (MetaReply::Inos(inodes), [_, ..]) => MetaReply::Reserved { inodes, grants, term },
            (reply, _) => reply,
        }
    }

    /// Notes files that have lost their last name. `told` is the change as the client has sent it.
    fn note(&self, client: ClientId, told: &MetaOp, op: &MetaOp, reply: &MetaReply) {
        let nameless = match (op, reply) {
            (MetaOp::CreateOrphan { .. }, MetaReply::Inode(made)) => {
                // The client that made it opens it next.
                let until = self.service.clock.monotonic() + OPEN_MAX;
                let mut state = self.service.state.lock();
                state.nameless.insert(made.attr.ino);
                state.made.insert(made.attr.ino, (client, until));
                return;
            }
            (_, MetaReply::Removed(Some(removed))) if removed.links == 0 => removed.ino,
            _ => return,
        };
        let says_open = |op: &MetaOp| match op {
            MetaOp::Unlink { open, .. } | MetaOp::Remove { open, .. } => Some(*open),
            MetaOp::Rename { open, .. } => Some(*open),
            _ => None,
        };
        if says_open(op) == Some(true) {
            let is_told = says_open(told) == Some(false);
            let recall = {
                let mut state = self.service.state.lock();
                state.nameless.insert(nameless);
                // Another client has it open. This one has said that it has not, but opens and
                // closes of it are under way, perhaps.
                let now = self.service.clock.monotonic();
                let recall =
                    is_told.then(|| state.authority.recall(client, nameless, now)).flatten();
                self.service.wake_if_due(&mut state);
                recall
            };
            self.service.perform(recall.into_iter().collect());
            // The last close may have come before the entry.
            self.service.reap_if_unused(nameless);
        }
    }
}

/// Makes a change.
type Make<'a> = &'a mut dyn FnMut() -> Result<()>;

impl MetaPort for LeaderMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.service.meta.query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let _change = self.service.begin_change(entry)?;
        let told = entry;
        let (changed, _merging) = self.as_made(entry)?;
        let changed = changed.map(|op| MetaEntry { op, ..entry.clone() });
        let entry = changed.as_ref().unwrap_or(entry);
        let mut reply = MetaReply::Done;
        let mut make = || {
            reply = self.service.meta.apply(entry)?;
            Ok(())
        };
        self.service.change_pool(entry, &mut make)?;
        self.note(entry.client, &told.op, &entry.op, &reply);
        Ok(self.with_token(entry.client, &entry.op, reply, None))
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let told = &counted.entry;
        let _change = self.service.begin_change(told)?;
        let entry = told;
        let (changed, _merging) = self.as_made(entry)?;
        let changed = changed
            .map(|op| CountedEntry { entry: MetaEntry { op, ..entry.clone() }, ..counted.clone() });
        let counted = changed.as_ref().unwrap_or(counted);
        let mut answer = None;
        let mut make = || {
            answer = Some(self.service.meta.apply_counted(counted)?);
            Ok(())
        };
        self.service.change_pool(&counted.entry, &mut make)?;
        let CountedAnswer { position, outcome } = answer.ok_or(ErrorKind::Internal)?;
        let MetaEntry { client, op, .. } = &counted.entry;
        let outcome = outcome.map(|reply| {
            self.note(*client, &told.op, op, &reply);
            self.with_token(*client, op, reply, Some(position))
        });
        Ok(CountedAnswer { position, outcome })
    }

    fn sync(&self) -> Result<()> {
        self.service.meta.sync()
    }
}
