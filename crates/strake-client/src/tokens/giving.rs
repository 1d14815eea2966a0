//! A file is given up: the work of the threads that do it, and what is served meanwhile.

use super::{Access, GiveUp, Given, Job, REPEAT, State, Todo, Tokens, shared};
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;
use strake_proto::Ino;
use strake_token::held::{Limit, Want};
use tracing::error;

/// Operations of a client that was declared dead end within this time. Calls to NSDs and to the
/// leader have shorter limits.
const BURY_MAX: Duration = Duration::from_secs(600);
/// While caches drop a file, reads and writes of it wait at first for at least that long before
/// they are served. Caches that need no answer are done by then.
const PATIENCE: Duration = Duration::from_millis(2);
/// They never wait longer than that.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// A file that is being given up.
#[derive(Default)]
pub(super) struct Giving {
    /// The time from which on reads and writes are served, while caches drop the file.
    pub(super) serves: Option<Duration>,
    /// How long they wait for caches that do not get on.
    pub(super) patience: Duration,
    /// Those under way.
    pub(super) active: u32,
    /// Those that ever began.
    pub(super) served: u64,
}

impl Tokens {
    /// Has a thread wait until a revoke counts that was put off.
    pub(super) fn begin_to_linger(&self, ino: Ino) {
        let submitted = self.givers.get().map(|givers| givers.submit(Job::Linger(ino)));
        if !matches!(submitted, Some(Ok(()))) {
            self.end_lingering(ino);
        }
    }

    /// Waits until revokes of a file count that were put off.
    pub(super) fn linger(&self, ino: Ino) {
        let _wait = self.observe.waiters.enter("a pause in its use", format!("inode {ino}"));
        loop {
            let left = {
                let state = self.state.lock();
                let left = state.lingering.left(ino, self.clock.monotonic());
                left.filter(|_| !state.ended && !self.lease.is_dead())
            };
            let Some(left) = left else { return self.end_lingering(ino) };
            self.clock.sleep(left);
        }
    }

    /// The revokes of a file that were put off count now.
    pub(super) fn end_lingering(&self, ino: Ino) {
        let mut state = self.state.lock();
        let mut effects = Vec::new();
        for (term, revoke) in state.lingering.end(ino, self.clock.monotonic()) {
            effects.extend(state.holder.receive(term, revoke));
        }
        let todo = state.absorb(effects);
        drop(state);
        self.changed.notify_all();
        self.perform(todo);
    }

    /// Gives a file up as far as the limit says: see the file's head. `is_saved` says that all is
    /// durable that was done under its tokens.
    pub(super) fn give_up(&self, ino: Ino, limit: &Limit, is_saved: bool) {
        let todo = self.give_up_untold(ino, limit, is_saved);
        self.perform(todo);
    }

    /// Like [`Tokens::give_up`], and returns what the authority is to be told.
    pub(super) fn give_up_untold(&self, ino: Ino, limit: &Limit, is_saved: bool) -> Todo {
        let nothing = Todo::default();
        let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) else { return nothing };
        let from = self.held(ino);
        let given = Given { from, limit: limit.clone() };
        let mut is_saved = is_saved;
        self.state.lock().giving.insert(ino, Giving::default());
        let mut patience = PATIENCE;
        loop {
            if !std::mem::take(&mut is_saved) && !keeper.save(ino, &given) {
                self.give_up_later(ino, limit);
                return nothing;
            }
            if self.have_caches_dropped(&*keeper, ino, &given, patience) {
                break;
            }
            self.await_filling(ino);
            patience = (2 * patience).min(PATIENCE_MAX);
        }
        let drops_all = given.begins_beside() && !keeper.may_be_written_beside(ino);
        let is_just_found = given.is_all() && keeper.is_just_found(ino);
        keeper.forget(ino, &given);
        let mut state = self.state.lock();
        if is_just_found {
            state.keep_found(ino, self.clock.monotonic());
        }
        let effects = match drops_all {
            true => state.holder.dropped(ino),
            false => state.holder.flushed(ino),
        };
        let todo = state.absorb(effects);
        drop(state);
        self.changed.notify_all();
        todo
    }

    /// The file stays with this client until it can be made durable. Others are given up meanwhile.
    fn give_up_later(&self, ino: Ino, limit: &Limit) {
        let mut state = self.state.lock();
        state.giving.remove(&ino);
        let is_over = state.ended;
        drop(state);
        self.changed.notify_all();
        if !is_over && let Some(givers) = self.givers.get() {
            // A mount that ends takes no more jobs. Any other one has this thread for it.
            let _ = givers.submit(Job::GiveUp(ino, limit.clone()));
        }
    }

    /// A program whose pages were dropped soon reads one anew, and waits. That page is spared then.
    fn await_filling(&self, ino: Ino) {
        let mut state = self.state.lock();
        let is_missing = |state: &mut State| state.filling(ino).is_empty() && !state.ended;
        self.changed.wait_while_for(&mut state, is_missing, PATIENCE);
    }

    /// Has the adapter's caches drop a file that is given up. False if reads or writes were served
    /// meanwhile. If none were, they wait for a token from then on, like all else.
    fn have_caches_dropped(
        &self,
        keeper: &dyn GiveUp,
        ino: Ino,
        given: &Given,
        patience: Duration,
    ) -> bool {
        let (drops, spared, before) = {
            let mut state = self.state.lock();
            let drops = given.drops(state.is_written(ino));
            let spared = state.filling(ino);
            let giving = state.giving.entry(ino).or_default();
            giving.serves = Some(self.clock.monotonic() + patience);
            giving.patience = patience;
            (drops, spared, giving.served)
        };
        // Those that wait learn from when on they are served.
        self.changed.notify_all();
        keeper.drop_from_caches(ino, drops, &spared);
        let mut state = self.state.lock();
        state.giving.entry(ino).or_default().serves = None;
        if state.active(ino) > 0 {
            let _wait =
                self.observe.waiters.enter("reads and writes under way", format!("inode {ino}"));
            self.changed.wait_while(&mut state, |state| state.active(ino) > 0);
        }
        let is_done = state.served(ino) == before;
        if is_done {
            state.giving.remove(&ino);
        }
        is_done
    }

    /// Drops all that a client has that was declared dead, unless that was done. The operations
    /// under way end before: NSDs and the leader refuse what they ask for. False if some of them
    /// hang, or if the mount ends.
    pub fn bury(&self) -> bool {
        let mut is_buried = self.is_buried.lock();
        if !*is_buried {
            *is_buried = self.bury_now();
        }
        *is_buried
    }

    fn bury_now(&self) -> bool {
        let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) else { return false };
        let end = self.clock.monotonic() + BURY_MAX;
        let mut state = self.state.lock();
        let waiting = self.observe.waiters.enter("operations of a dead mount", "");
        while state.active > 0 && !state.ended {
            if self.clock.monotonic() >= end {
                error!(target: "tokens", "{} operations of this dead mount hang", state.active);
                return false;
            }
            self.changed.wait_for(&mut state, REPEAT);
        }
        drop(waiting);
        let is_idle = state.active == 0;
        let files: Vec<Ino> = state.listed.iter().copied().collect();
        drop(state);
        keeper.bury(&files);
        is_idle
    }
}

impl State {
    /// The time from which on a read or write is served, if its file is being given up and the
    /// token that is still held suffices.
    pub(super) fn serves(&self, wants: &[Want], access: Access) -> Option<Duration> {
        let [want] = wants else { return None };
        let serves = self.giving.get(&want.ino)?.serves?;
        let held = self.holder.in_use(want.ino);
        let suffices = match access {
            Access::Other => false,
            Access::Write => held.covers(want),
            Access::WriteBack if held.covers(want) => return Some(Duration::ZERO),
            Access::WriteBack => false,
            // A handle that may write is closed since, perhaps.
            Access::Read | Access::Fill { .. } => {
                held.covers(want) || !self.is_written(want.ino) && held.covers(&shared(want.ino))
            }
        };
        suffices.then_some(serves)
    }

    /// The bytes of a file whose pages wait to be filled.
    pub(super) fn filling(&self, ino: Ino) -> Vec<Range<u64>> {
        let of_file = self.filling.values().filter(|(of, _)| *of == ino);
        of_file.map(|(_, range)| range.clone()).collect()
    }

    pub(super) fn served(&self, ino: Ino) -> u64 {
        self.giving.get(&ino).map_or(0, |giving| giving.served)
    }

    pub(super) fn active(&self, ino: Ino) -> u32 {
        self.giving.get(&ino).map_or(0, |giving| giving.active)
    }
}
