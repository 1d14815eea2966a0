//! What this client may use, where others use the same file system: [`Holder`] with a lock, threads
//! that wait, and threads that give up what others want. A lone mount has none of this.
//!
//! **A use.** An operation takes all its tokens before it takes any lock of the client, and keeps
//! them until it ends ([`Tokens::take`]). So what gives up never waits for a lock that is held by
//! somebody who waits for tokens.
//!
//! **Giving up** is done by threads of its own, through [`GiveUp`]: what the tokens cover becomes
//! durable, caches drop it, and only then does the authority hear of it.
//!
//! **The kernel** may wait in the midst of that: it drops a page only after the reads and writes of
//! it that it has sent are answered. So while caches take long to drop, reads and writes of that
//! file are *served* under the token that is still held. When the caches have dropped all, and
//! nothing was served meanwhile, new ones wait. Else it is done once more, with more patience each
//! time: a program that reads and writes without a pause keeps the file from nobody.
//!
//! A program that goes through a mapping may read the next page each time, so that caches always
//! wait for the one that is locked. So pages that wait to be filled are spared: they hold nothing,
//! and are filled when the token has come back. A page whose read is served after all is dropped in
//! the next turn.
//!
//! **Pages that were stored to** are written back when they are dropped. That is served at once,
//! and reads wait for as long as it goes on. Otherwise the program would have all pages again, and
//! store to all of them before the next turn.
//!
//! **Lingering.** A file in quick use is not given up at once, but what follows closely is done
//! first (`tokens/lingering.rs`). That ends as soon as an operation needs more than is held: it
//! gets nothing of the file before its revokes are answered.
//!
//! **Pages that a program may store to.** A program stores to a mapped page without a word. So
//! while a handle may write a file, the kernel gets pages of it only under its exclusive token
//! ([`Tokens::read_mode`]). Such a handle is opened under that token. So where the token is less,
//! the kernel has no page of the file, and nobody waits for pages when it is given up: a read of a
//! page may be waiting for more just then, with the page locked.
//!
//! **Writing beside others.** A write asks for its blocks ([`beside`]). It gets the whole file
//! exclusively where nobody else uses it, and holds it like any other. Where another client writes
//! it too, both hold their blocks: then there is nothing of the file in the adapter's caches, and
//! nothing is served. Each use says which grant is the newest ([`Use::beside`]), because the size
//! must be learnt anew after each.
//!
//! **Open files.** Who asks for the token of a file that a name led to asks for OPEN, too. So a
//! program that opens and closes files whose tokens are held sends no message (`strake-token`). A
//! file that is known to have a name keeps it as long as this client holds its token. One that may
//! have none is let go with its last handle ([`Tokens::let_go`]).
//!
//! **Files that were just found** (`tokens/found.rs`) count as open for a moment: the program that
//! looked a file up opens it next, and the kernel names the inode then, not the path.
//!
//! **For room.** A client keeps the tokens of [`FILES_MAX`] files. Beyond that those that it was
//! granted first are given back, unless the file is open or in use (`tokens/room.rs`).
//!
//! **Lease.** An operation that begins waits while the lease of this client is over
//! (`lease.rs`). A client that was declared dead drops all that it has: `Tokens::bury`.
//!
//! **Locks.** `state` is a leaf. Messages are sent without it.

mod ahead;
mod following;
mod found;
mod given;
mod giving;
mod lingering;
mod room;
mod taking;
mod wants;

use following::{Following, PoolChange};
pub(crate) use found::FOUND_KEPT;
pub(crate) use given::{Drops, GiveUp, Given};
use giving::Giving;
use lingering::{Arrived, Lingering};
pub(crate) use wants::{beside, exclusive, shared, want};

use crate::lease::{Lease, dead};
use crate::locks::Locks;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_env::workers::{Refused, WorkerLimits, Workers};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, GrantNumber, Ino, Result};
use strake_token::held::{Limit, Want};
use strake_token::holder::{Effect, UseId};
use strake_token::message::{Reply, Request, Term};
use strake_token::port::{ToAuthority, ToClient};
use strake_token::{Holder, Mode};
use tracing::error;
use wants::{merged, text};

/// An unanswered request is sent again after that long.
const REPEAT: Duration = Duration::from_secs(1);
/// An operation waits for tokens at most that long. Another client may have gigabytes to flush.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// A client keeps the tokens of so many files. Each takes some 200 bytes here and at the authority.
pub const FILES_MAX: usize = 100_000;
/// Caches above keep attributes for no longer.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// So many files are given up at once.
const GIVING_THREADS: usize = 16;

/// What an operation does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads bytes, perhaps for a page of the kernel.
    Read,
    /// It fills pages of the kernel with these bytes. They are locked meanwhile, and hold nothing.
    Fill {
        /// The first byte.
        from: u64,
        /// The byte behind the last.
        to: u64,
    },
    /// It writes bytes for a program.
    Write,
    /// It writes a page of the kernel that a program has stored to.
    WriteBack,
    /// All else.
    Other,
}

/// Open handles of a file.
#[derive(Clone, Copy, Default)]
struct Handles {
    all: u32,
    writing: u32,
}

struct State {
    holder: Holder,
    /// Uses that begun and that no thread has picked up yet.
    begun: BTreeSet<UseId>,
    /// Uses that nobody waits for any more.
    abandoned: BTreeSet<UseId>,
    giving: BTreeMap<Ino, Giving>,
    lingering: Lingering,
    /// The reads that wait to fill pages.
    filling: BTreeMap<UseId, (Ino, Range<u64>)>,
    handles: HashMap<Ino, Handles>,
    /// Files that were asked for ahead, by the uses that were abandoned before they began.
    late: BTreeMap<UseId, Ino>,
    /// Files that count as open because they were just found, until these times.
    found: BTreeMap<Ino, Duration>,
    /// How many handles that may write a file are left of earlier lives of this mount.
    strays: HashMap<Ino, u32>,
    /// Files whose tokens were granted, in that order, each once.
    granted: VecDeque<Ino>,
    listed: HashSet<Ino>,
    files_max: usize,
    /// When everything that is not answered was last sent again.
    repeated: Duration,
    /// Operations under way.
    active: usize,
    ended: bool,
}

/// What the threads do that give up.
enum Job {
    /// Gives a file up.
    GiveUp(Ino, Limit),
    /// Gives files back for room.
    GiveBack(Vec<(Ino, Limit)>),
    /// Waits until revokes of a file count that were put off.
    Linger(Ino),
    /// This client was declared dead.
    Bury,
}

/// Messages to send and files to give up, once the lock is released.
#[derive(Default)]
struct Todo {
    messages: Vec<Request>,
    files: Vec<(Ino, Limit)>,
    /// Files that are given back for room.
    back: Vec<(Ino, Limit)>,
}

/// See the file's head.
pub struct Tokens {
    state: Mutex<State>,
    changed: Condvar,
    way: Arc<dyn ToAuthority>,
    clock: Arc<dyn Clock>,
    observe: Arc<Observe>,
    keeper: OnceLock<Weak<dyn GiveUp>>,
    givers: OnceLock<Workers<Job>>,
    lease: Lease,
    /// This client was declared dead, and has nothing any more.
    is_buried: Mutex<bool>,
    /// The locks of programs, which travel on the same way.
    pub(crate) locks: Arc<Locks>,
    following: Following,
}

/// A file is being made, until this is dropped: see [`Tokens::make`].
pub(crate) struct Making<'a>(&'a Tokens);

impl Making<'_> {
    /// It was made, and its token has come along with the answer.
    pub(crate) fn made(&self, ino: Ino, token: (Term, GrantNumber)) {
        self.reserved(ino, token);
        self.0.keep(ino);
    }

    /// Its number was reserved, and its token has come along. It takes no room before
    /// [`Tokens::keep`].
    pub(crate) fn reserved(&self, ino: Ino, (term, number): (Term, GrantNumber)) {
        let tokens = self.0;
        if let Some(keeper) = tokens.keeper.get().and_then(Weak::upgrade) {
            keeper.granted(number);
        }
        tokens.state.lock().holder.made(term, ino, number);
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.state.lock().holder.end_making();
    }
}

/// An operation's tokens: held until this is dropped.
pub(crate) struct Use<'a> {
    tokens: Option<&'a Tokens>,
    kind: Kind,
    beside: Option<GrantNumber>,
}

enum Kind {
    /// Of the holder.
    Begun(UseId),
    /// Served while the file is given up.
    Served(Ino),
    /// A lone mount has everything.
    Lone,
}

impl Use<'_> {
    /// Of a lone mount.
    pub(crate) const LONE: Use<'static> = Use { tokens: None, kind: Kind::Lone, beside: None };

    /// If it writes blocks beside others, the newest grant of the file.
    pub(crate) fn beside(&self) -> Option<GrantNumber> {
        self.beside
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let Some(tokens) = self.tokens else { return };
        match self.kind {
            Kind::Begun(number) => tokens.end(number),
            Kind::Served(ino) => {
                let mut state = tokens.state.lock();
                state.active -= 1;
                if let Some(giving) = state.giving.get_mut(&ino) {
                    giving.active -= 1;
                }
                drop(state);
                tokens.changed.notify_all();
            }
            Kind::Lone => {}
        }
    }
}

impl Tokens {
    /// The tokens of a client that has just joined the authority of `term`, and holds none. It will
    /// keep those of `files_max` files ([`FILES_MAX`]).
    pub fn new(
        term: Term,
        way: Arc<dyn ToAuthority>,
        clock: Arc<dyn Clock>,
        observe: Arc<Observe>,
        files_max: usize,
    ) -> Arc<Tokens> {
        let mut holder = Holder::default();
        if term > holder.term() {
            // It holds nothing, so it has nothing to reassert but that.
            drop(holder.reassert(term));
            drop(holder.receive(term, Reply::Reasserted));
        }
        let state = State {
            holder,
            begun: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            giving: BTreeMap::new(),
            lingering: Lingering::default(),
            filling: BTreeMap::new(),
            handles: HashMap::new(),
            late: BTreeMap::new(),
            found: BTreeMap::new(),
            strays: HashMap::new(),
            granted: VecDeque::new(),
            listed: HashSet::new(),
            files_max,
            repeated: Duration::ZERO,
            active: 0,
            ended: false,
        };
        let locks = Locks::new(term, Arc::clone(&way), Arc::clone(&clock), Arc::clone(&observe));
        let (keeper, givers) = (OnceLock::new(), OnceLock::new());
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let lease = Lease::new(Arc::clone(&clock), Arc::clone(&observe));
        let following = Following::default();
        Arc::new(Tokens {
            state,
            changed,
            way,
            clock,
            observe,
            keeper,
            givers,
            lease,
            is_buried: Mutex::new(false),
            locks,
            following,
        })
    }

    /// Says who gives up. Called once, before the first operation.
    pub(crate) fn attach(self: &Arc<Tokens>, keeper: Weak<dyn GiveUp>) {
        let weak = Arc::downgrade(self);
        let limits = WorkerLimits { threads_max: GIVING_THREADS, waiting_max: usize::MAX };
        let givers = Workers::new("give-up", limits, move |job: Job| {
            if let Some(tokens) = weak.upgrade() {
                tokens.run(job);
            }
        });
        self.begin_following();
        assert!(self.givers.set(givers).is_ok() && self.keeper.set(keeper).is_ok(), "called once");
    }

    /// From now on operations need a lease of this length. The first one was asked for at the
    /// moment `sent` of the clock. Called before the first operation.
    pub fn need_lease(&self, length: Duration, sent: Duration) {
        self.lease.begin(length, sent);
    }

    /// Waits until this client has a lease.
    ///
    /// # Errors
    /// `Io` once this client was declared dead; `TimedOut` after a long wait.
    pub(crate) fn hold_lease(&self) -> Result<()> {
        self.lease.hold()
    }

    /// Whether this client has a lease now.
    pub fn has_lease(&self) -> bool {
        self.lease.is_held()
    }

    /// Whether this client was declared dead. That is final.
    pub fn is_dead(&self) -> bool {
        self.lease.is_dead()
    }

    /// Takes all tokens of an operation. Waits until this client has them, and a lease.
    ///
    /// # Errors
    /// `TimedOut` after a long wait; `Unreachable` if the mount ends; `Io` once this client was
    /// declared dead.
    pub(crate) fn take(&self, wants: &[Want], access: Access) -> Result<Use<'_>> {
        loop {
            self.lease.hold()?;
            self.fetch_missing(wants, access)?;
            let taken = self.take_now(wants, access)?;
            // It may have waited for long.
            if self.lease.is_held() {
                return Ok(taken);
            }
        }
    }

    fn take_now(&self, wants: &[Want], access: Access) -> Result<Use<'_>> {
        let wants = merged(wants);
        let mut state = self.state.lock();
        if self.lease.is_dead() {
            return Err(dead());
        }
        let (number, effects) = state.holder.begin(wants.clone());
        let todo = state.absorb(effects);
        if state.begun.remove(&number) {
            return Ok(self.begun(&mut state, number, &wants));
        }
        // It needs more than is held, and gets nothing before revokes are answered.
        let mut put_off: Vec<Ino> = wants.iter().map(|want| want.ino).collect();
        put_off.retain(|ino| state.lingering.is_put_off(*ino));
        drop(state);
        self.perform(todo);
        put_off.into_iter().for_each(|ino| self.end_lingering(ino));
        self.wait(number, &wants, access)
    }

    fn wait(&self, number: UseId, wants: &[Want], access: Access) -> Result<Use<'_>> {
        let start = self.clock.monotonic();
        let _wait = self.observe.waiters.enter("token", text(wants));
        let mut state = self.state.lock();
        if let Access::Fill { from, to } = access {
            let ino = wants[0].ino;
            state.filling.insert(number, (ino, from..to));
            if state.giving.contains_key(&ino) {
                // The thread that gives the file up spares these pages.
                self.changed.notify_all();
            }
        }
        let outcome = loop {
            if self.lease.is_dead() {
                state.abandoned.insert(number);
                break Err(dead());
            }
            if state.begun.remove(&number) {
                break Ok(self.begun(&mut state, number, wants));
            }
            let now = self.clock.monotonic();
            if let Some(served) = self.serve(&mut state, wants, access, now) {
                state.abandoned.insert(number);
                break Ok(served);
            }
            let is_late = now.saturating_sub(start) >= WAIT_MAX;
            if state.ended || is_late {
                state.abandoned.insert(number);
                let kind = if is_late { ErrorKind::TimedOut } else { ErrorKind::Unreachable };
                break Err(Error::new(kind, format!("no token for {}", text(wants))));
            }
            // Whatever else was heard meanwhile.
            let repeats = state.repeated.max(start) + REPEAT;
            if now >= repeats {
                state = self.repeat(state, now);
                continue;
            }
            let serves = state.serves(wants, access).filter(|serves| *serves > now);
            let pause = serves.unwrap_or(repeats).min(repeats) - now;
            self.changed.wait_for(&mut state, pause);
        };
        state.filling.remove(&number);
        outcome
    }

    /// Sends again all that is not answered. The lock is released meanwhile.
    fn repeat<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now: Duration,
    ) -> MutexGuard<'a, State> {
        state.repeated = now;
        let effects = state.holder.repeat();
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
        self.state.lock()
    }

    fn begun(&self, state: &mut State, number: UseId, wants: &[Want]) -> Use<'_> {
        state.active += 1;
        let now = self.clock.monotonic();
        wants.iter().for_each(|want| state.lingering.used(want.ino, now));
        let beside = match wants {
            [want] if state.holder.in_use(want.ino).is_writing() => state.holder.newest(want.ino),
            _ => None,
        };
        Use { tokens: Some(self), kind: Kind::Begun(number), beside }
    }

    /// Serves a read or write of a file that is being given up and still held.
    fn serve(
        &self,
        state: &mut State,
        wants: &[Want],
        access: Access,
        now: Duration,
    ) -> Option<Use<'_>> {
        let serves = state.serves(wants, access)?;
        if now < serves {
            return None;
        }
        let ino = wants[0].ino;
        let giving = state.giving.get_mut(&ino)?;
        if access == Access::WriteBack {
            // The caches get on, and wait for no read.
            giving.serves = Some((now + giving.patience).max(giving.serves?));
        }
        giving.active += 1;
        giving.served += 1;
        state.active += 1;
        Some(Use { tokens: Some(self), kind: Kind::Served(ino), beside: None })
    }

    fn end(&self, number: UseId) {
        let mut state = self.state.lock();
        state.active -= 1;
        if state.active == 0 && self.lease.is_dead() {
            self.changed.notify_all();
        }
        let effects = state.holder.end(number);
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// A file is in use from now on of which this client has the token.
    pub(crate) fn keep(&self, ino: Ino) {
        let back = self.state.lock().make_room(&[ino]);
        self.perform(Todo { back, ..Todo::default() });
    }

    /// A change is sent that makes a file. Its answer may bring the file's token.
    pub(crate) fn make(&self) -> Making<'_> {
        self.state.lock().holder.begin_making();
        Making(self)
    }

    /// Like [`Tokens::take`], for an operation that opens a file. The handle counts from now on;
    /// if the operation fails, it is to be closed again.
    ///
    /// # Panics
    /// If a handle is to write, and not the exclusive token is wanted: see the file's head.
    pub(crate) fn take_open(&self, want: Want, writing: bool) -> Result<Use<'_>> {
        let ino = want.ino;
        assert!(!writing || want.inode == Some(Mode::Exclusive), "handles that write need it");
        {
            let mut state = self.state.lock();
            state.handles.entry(ino).or_default().all += 1;
            state.holder.opening(ino);
        }
        let taken = self.take(&[want], Access::Other);
        match &taken {
            Ok(_) if writing => {
                self.state.lock().handles.entry(ino).or_default().writing += 1;
            }
            Ok(_) => {}
            Err(_) => {
                self.close(ino, false);
                self.let_go(ino);
            }
        }
        taken
    }

    /// A handle is closed. If the file may have no name, [`Tokens::let_go`] is called next.
    pub(crate) fn close(&self, ino: Ino, writing: bool) {
        let mut state = self.state.lock();
        let handles = state.handles.get_mut(&ino).expect("invariant: only open files are closed");
        handles.all -= 1;
        handles.writing -= u32::from(writing);
        if handles.all > 0 {
            return;
        }
        state.handles.remove(&ino);
        let effects = state.holder.closed(ino).into_iter().collect();
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// A handle of an earlier life of this mount may write a file. It is open until
    /// [`Tokens::stray_closed`].
    pub(crate) fn stray_found(&self, ino: Ino) {
        *self.state.lock().strays.entry(ino).or_default() += 1;
    }

    /// See [`Tokens::stray_found`].
    pub(crate) fn stray_closed(&self, ino: Ino) {
        let mut state = self.state.lock();
        let count = state.strays.get_mut(&ino).expect("invariant: it was found");
        *count -= 1;
        if *count == 0 {
            state.strays.remove(&ino);
        }
    }

    /// A file has no name, or may have none: if no handle of it is open, the leader hears so now.
    /// It removes the file when the last client has.
    pub(crate) fn let_go(&self, ino: Ino) {
        let mut state = self.state.lock();
        if state.handles.contains_key(&ino) {
            return;
        }
        let effects = state.holder.let_go(ino).into_iter().collect();
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    /// The mode in which a read takes a file. While a handle may write it, a program may store to a
    /// mapped page without a word, so that a page that was read must be the only one there is.
    pub(crate) fn read_mode(&self, ino: Ino) -> Mode {
        if self.state.lock().is_written(ino) { Mode::Exclusive } else { Mode::Shared }
    }

    /// The token that this client holds of a file.
    pub fn held(&self, ino: Ino) -> Option<Mode> {
        self.state.lock().holder.in_use(ino).inode
    }

    /// How long caches above may keep what an operation that has just ended was told of a file.
    /// They are told to drop it before its token is given up. Nobody can tell them while the
    /// process is stopped, so they keep nothing for longer than the lease lasts.
    pub(crate) fn hold_of(&self, ino: Ino) -> Duration {
        let sees = [Some(Mode::Shared), Some(Mode::Exclusive)].contains(&self.held(ino));
        if sees { self.lease.left().min(HOLD_MAX) } else { Duration::ZERO }
    }

    /// Whether this client may change a file now.
    pub(crate) fn may_change(&self, ino: Ino) -> bool {
        self.state.lock().holder.in_use(ino).inode == Some(Mode::Exclusive)
    }

    /// Ends all waits. What is held stays until the authority learns that this client is gone.
    pub(crate) fn stop(&self) {
        self.locks.stop();
        self.state.lock().ended = true;
        self.changed.notify_all();
        self.lease.end();
        if let Some(givers) = self.givers.get() {
            drop(givers.end());
            givers.join();
        }
        self.following.end();
    }

    fn perform(&self, todo: Todo) {
        if !todo.messages.is_empty() {
            let term = self.state.lock().holder.term();
            self.way.send_all(term, todo.messages);
        }
        todo.files.into_iter().for_each(|(ino, limit)| self.submit(Job::GiveUp(ino, limit)));
        if !todo.back.is_empty() {
            self.submit(Job::GiveBack(todo.back));
        }
    }

    /// Has a thread do a job. If no thread is to be had, this one does it, for somebody waits.
    fn submit(&self, job: Job) {
        let givers = self.givers.get().expect("invariant: attached before the first operation");
        match givers.submit(job) {
            // The mount ends, and the authority frees all that it holds.
            Ok(()) | Err(Refused::Ended(_)) => {}
            Err(Refused::Full(job)) => self.run(job),
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::GiveUp(ino, limit) => self.give_up(ino, &limit, false),
            Job::GiveBack(files) => self.give_back(files),
            Job::Linger(ino) => self.linger(ino),
            Job::Bury => {
                self.bury();
            }
        }
    }
}

impl ToClient for Tokens {
    fn renewed(&self, sent: Duration) {
        self.lease.renewed(sent);
    }

    fn declared_dead(&self) {
        if !self.lease.die() {
            return;
        }
        error!(target: "tokens", "{}", dead());
        self.locks.die();
        // Under the lock, so that every operation either sees this or is counted.
        drop(self.state.lock());
        self.changed.notify_all();
        if let Some(givers) = self.givers.get() {
            // No thread is to be had only where the mount ends.
            let _ = givers.submit(Job::Bury);
        }
    }

    fn new_term(&self, term: Term) {
        self.locks.new_term(term);
        let mut state = self.state.lock();
        let effects = match term.cmp(&state.holder.term()) {
            std::cmp::Ordering::Less => return,
            // A new way to the same leader. The old one may have lost what it was told.
            std::cmp::Ordering::Equal => state.holder.repeat(),
            std::cmp::Ordering::Greater => state.holder.reassert(term),
        };
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }

    fn send(&self, term: Term, message: Reply) {
        if let Reply::Lock(message) = message {
            self.locks.receive(term, message);
            return;
        }
        if let Reply::Grant { grants, .. } = &message
            && let Some(keeper) = self.keeper.get().and_then(Weak::upgrade)
        {
            grants.iter().for_each(|grant| keeper.granted(grant.number));
        }
        if let Some(change) = PoolChange::of(term, &message) {
            // A mount that has not begun may read the pool map just now. It is asked again.
            if let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) {
                self.hear(&*keeper, change);
            }
            return;
        }
        let mut state: MutexGuard<'_, State> = self.state.lock();
        let message = match message {
            Reply::Revoke { ino, .. } if state.changes(ino) => {
                let now = self.clock.monotonic();
                match state.lingering.arrived(ino, term, message, now) {
                    Arrived::Now(message) => message,
                    Arrived::WithEarlier => return,
                    Arrived::PutOff => {
                        drop(state);
                        return self.begin_to_linger(ino);
                    }
                }
            }
            other => other,
        };
        let granted: Vec<Ino> = match &message {
            Reply::Grant { grants, .. } => grants.iter().map(|grant| grant.ino).collect(),
            _ => Vec::new(),
        };
        granted.iter().for_each(|ino| state.lingering.granted(*ino));
        let effects = state.holder.receive(term, message);
        let mut todo = state.absorb(effects);
        todo.back = state.make_room(&granted);
        drop(state);
        self.changed.notify_all();
        self.perform(todo);
    }
}

impl State {
    /// Notes which uses begun, and sorts out what is to be done without the lock.
    fn absorb(&mut self, effects: Vec<Effect>) -> Todo {
        let mut todo = Todo::default();
        let mut left = effects;
        while let Some(effect) = left.pop() {
            match effect {
                Effect::Send(message) => todo.messages.push(message),
                Effect::Flush(ino, limit) => todo.files.push((ino, limit)),
                Effect::Begun(number) if self.abandoned.remove(&number) => {
                    left.extend(self.holder.end(number));
                    // It may have no name by now, and nobody looks at it.
                    if let Some(ino) = self.late.remove(&number)
                        && !self.handles.contains_key(&ino)
                    {
                        left.extend(self.holder.let_go(ino));
                    }
                }
                Effect::Begun(number) => {
                    self.begun.insert(number);
                }
            }
        }
        todo
    }

    /// Whether this client holds a file in a mode in which it changes it.
    fn changes(&self, ino: Ino) -> bool {
        let mode = self.holder.in_use(ino).inode;
        matches!(mode, Some(Mode::Exclusive | Mode::Writing))
    }

    /// Whether a handle of this client may write a file.
    fn is_written(&self, ino: Ino) -> bool {
        self.handles.get(&ino).is_some_and(|handles| handles.writing > 0)
            || self.strays.contains_key(&ino)
    }
}

#[cfg(test)]
#[path = "tokens_test.rs"]
mod tokens_test;
