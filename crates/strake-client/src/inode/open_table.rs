//! The table of inodes in use. An inode is in use while the adapter has not given back its lookups,
//! while handles are open, and while it is pinned: by a call under way, or by changes that the
//! metadata does not know yet. Each inode in use has at most one [`InodeState`].
//!
//! The kernel may remember a million inodes while only a few are at work. An inode is *idle* when
//! it is only looked up. The state of an idle inode is dropped if the metadata has everything that
//! is in it, and made anew when it is wanted. What stays is an entry with counts, of
//! [`ENTRY_BYTES`]. The inodes that became idle last keep their states, because an inode that was
//! used is often used again.
//!
//! The locks of the shards are leaves: no other lock is taken under them.

use crate::inode::core::InodeState;
use crate::memory::numbers::NumberMap;
use crate::tokens::FOUND_KEPT;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::sync::{Mutex, RwLock};
use strake_proto::{ErrorKind, Ino, Result};

use crate::vfs::Handle;

const SHARDS: usize = 32;
/// So many idle inodes of a lone mount keep their states, of some 600 bytes each. Its metadata is a
/// call away.
pub(crate) const IDLE_STATES_LONE: usize = 1 << 14;
/// The same beside others. To make a state anew takes messages.
pub(crate) const IDLE_STATES_BESIDE: usize = 1 << 16;
/// The bytes of an entry of the table, without the state and without the table's free places.
const ENTRY_BYTES: usize = size_of::<(Ino, Entry)>();
/// A shard with at most so many places is not made smaller.
const PLACES_MIN: usize = 1024;

const _: () =
    assert!(ENTRY_BYTES <= 40, "four times as many places as inodes stay below 200 bytes");

struct Entry {
    /// Absent while the inode is idle and nothing but its counts is known; see the file's head.
    state: Option<Arc<InodeState>>,
    lookups: u64,
    handles: u32,
    pins: u32,
    /// Whether the inode is in the queue of idle inodes.
    queued: bool,
    /// When it was last found, as a [`Moment`].
    found: Moment,
    /// The thread that has found it, or [`SEVERAL`].
    finder: u16,
}

impl Entry {
    const UNUSED: Entry =
        Entry { state: None, lookups: 0, handles: 0, pins: 0, queued: false, found: 0, finder: 0 };

    fn is_idle(&self) -> bool {
        self.handles == 0 && self.pins == 0
    }

    fn is_unused(&self) -> bool {
        self.lookups == 0 && self.is_idle()
    }

    fn is_just_found(&self, now: Duration) -> bool {
        let passed = moment(now).wrapping_sub(self.found);
        self.lookups > 0 && self.found > 0 && passed <= moment(FOUND_KEPT)
    }
}

#[derive(Default)]
struct Shard {
    entries: NumberMap<Ino, Entry>,
    /// Inodes that were idle and had a state when they were queued, the oldest first. Since then an
    /// inode may have come into use or be gone.
    idle: VecDeque<Ino>,
}

impl Shard {
    /// Queues an inode that has become idle with a state. Returns states that are not kept any
    /// more, because there are more than `most`. The caller drops them after the lock.
    fn queue(&mut self, ino: Ino, most: usize) -> [Option<Arc<InodeState>>; 2] {
        self.idle.push_back(ino);
        let mut dropped = [None, None];
        // Two at a time, so that the queue shrinks again after states that had to stay are gone.
        for place in &mut dropped {
            if self.idle.len() <= most {
                break;
            }
            *place = self.idle.pop_front().and_then(|ino| self.retire(ino));
        }
        dropped
    }

    /// Takes the state from an entry that left the queue, if it is not needed.
    fn retire(&mut self, ino: Ino) -> Option<Arc<InodeState>> {
        let entry = self.entries.get_mut(&ino)?;
        entry.queued = false;
        if !entry.is_idle() {
            return None;
        }
        if Arc::get_mut(entry.state.as_mut()?).is_some_and(|state| state.is_forgettable()) {
            return entry.state.take();
        }
        entry.queued = true;
        self.idle.push_back(ino);
        None
    }

    fn remove(&mut self, ino: Ino) -> Option<Entry> {
        let gone = self.entries.remove(&ino);
        let (count, places) = (self.entries.len(), self.entries.capacity());
        if places > PLACES_MIN && count < places / 4 {
            self.entries.shrink_to(count * 2);
        }
        gone
    }
}

/// The inodes in use.
pub(crate) struct OpenTable {
    shards: Vec<Mutex<Shard>>,
    /// So many idle inodes of a shard keep their states.
    idle_max: usize,
}

/// A pin of an inode: the inode stays in use while this lives.
pub(crate) struct Pinned {
    table: Arc<OpenTable>,
    state: Arc<InodeState>,
}

impl Deref for Pinned {
    type Target = Arc<InodeState>;
    fn deref(&self) -> &Arc<InodeState> {
        &self.state
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.table.change(self.state.ino, |entry| entry.pins -= 1);
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Pinned {
        self.table.change(self.state.ino, |entry| entry.pins += 1);
        Pinned { table: Arc::clone(&self.table), state: Arc::clone(&self.state) }
    }
}

impl OpenTable {
    /// An empty table. So many idle inodes keep their states.
    pub(crate) fn new(idle_states: usize) -> Arc<OpenTable> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(OpenTable { shards, idle_max: idle_states / SHARDS })
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// Pins an inode, which is in use from now on.
    pub(crate) fn pin(self: &Arc<OpenTable>, ino: Ino) -> Pinned {
        let mut shard = self.shard(ino).lock();
        let entry = shard.entries.entry(ino).or_insert(Entry::UNUSED);
        entry.pins += 1;
        let state = entry.state.get_or_insert_with(|| Arc::new(InodeState::new(ino)));
        Pinned { table: Arc::clone(self), state: Arc::clone(state) }
    }

    /// The state of an inode, if it is in use and has one.
    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<InodeState>> {
        self.shard(ino).lock().entries.get(&ino).and_then(|entry| entry.state.clone())
    }

    /// Changes the counts of an entry, and removes it when it is not in use any more. States are
    /// dropped after the lock.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut Entry)) {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.entries.get_mut(&ino) else { return };
        change(entry);
        let (mut gone, mut dropped) = (None, [None, None]);
        if entry.is_unused() {
            gone = shard.remove(ino);
        } else if entry.is_idle() && !entry.queued && entry.state.is_some() {
            entry.queued = true;
            dropped = shard.queue(ino, self.idle_max);
        }
        drop(shard);
        drop((gone, dropped));
    }

    /// Counts a lookup of an inode that a listing returned. The inode is in use from now on. No
    /// state is made for it, because a listing returns many inodes, of which few are used soon.
    pub(crate) fn remember(&self, ino: Ino) {
        self.shard(ino).lock().entries.entry(ino).or_insert(Entry::UNUSED).lookups += 1;
    }

    /// Counts lookups.
    pub(crate) fn add_lookups(&self, ino: Ino, count: u64) {
        self.change(ino, |entry| entry.lookups += count);
    }

    /// Counts a lookup of an inode that a program's thread has found just now.
    pub(crate) fn add_found(&self, ino: Ino, thread: u32, now: Duration) {
        self.change(ino, |entry| {
            let others = entry.finder != finder(thread) && entry.is_just_found(now);
            entry.lookups += 1;
            entry.finder = if others { SEVERAL } else { finder(thread) };
            entry.found = moment(now);
        });
    }

    /// Whether lookups of an inode are counted, the last one of which is no older than
    /// [`FOUND_KEPT`]. It may also be older by a multiple of nine minutes.
    pub(crate) fn is_just_found(&self, ino: Ino, now: Duration) -> bool {
        let shard = self.shard(ino).lock();
        shard.entries.get(&ino).is_some_and(|entry| entry.is_just_found(now))
    }

    /// As [`OpenTable::is_just_found`], by another thread than that.
    pub(crate) fn is_found_by_others(&self, ino: Ino, thread: u32, now: Duration) -> bool {
        let shard = self.shard(ino).lock();
        let is_others = |entry: &Entry| entry.finder != finder(thread) && entry.is_just_found(now);
        shard.entries.get(&ino).is_some_and(is_others)
    }

    /// Gives lookups back.
    pub(crate) fn remove_lookups(&self, ino: Ino, count: u64) {
        self.change(ino, |entry| entry.lookups = entry.lookups.saturating_sub(count));
    }

    /// Takes over the lookups of a table whose inodes nobody else uses any more.
    pub(crate) fn adopt(&self, other: &OpenTable) {
        for (shard, old) in self.shards.iter().zip(&other.shards) {
            let mut shard = shard.lock();
            for (ino, entry) in old.lock().entries.iter().filter(|(_, entry)| entry.lookups > 0) {
                shard.entries.entry(*ino).or_insert(Entry::UNUSED).lookups += entry.lookups;
            }
        }
    }

    /// Whether lookups of an inode are counted.
    pub(crate) fn is_looked_up(&self, ino: Ino) -> bool {
        self.shard(ino).lock().entries.get(&ino).is_some_and(|entry| entry.lookups > 0)
    }

    /// Counts an open handle.
    pub(crate) fn add_handle(&self, ino: Ino) {
        self.change(ino, |entry| entry.handles += 1);
    }

    /// Gives an open handle back. Returns how many are left.
    pub(crate) fn remove_handle(&self, ino: Ino) -> u32 {
        let mut left = 0;
        self.change(ino, |entry| {
            entry.handles -= 1;
            left = entry.handles;
        });
        left
    }

    /// The number of open handles of an inode.
    pub(crate) fn handles(&self, ino: Ino) -> u32 {
        self.shard(ino).lock().entries.get(&ino).map_or(0, |entry| entry.handles)
    }

    /// The number of inodes in use.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }
}

/// Units of 8 milliseconds, which begin anew after nine minutes. Never 0, which stands for "never".
type Moment = u16;

fn moment(time: Duration) -> Moment {
    ((time.as_millis() / 8) as u16).max(1)
}

/// Instead of a finder: more than one.
const SEVERAL: u16 = u16::MAX;

/// A short number of a thread, which few others have. The number 0 stands for a thread that is not
/// known.
fn finder(thread: u32) -> u16 {
    (thread % u32::from(SEVERAL)) as u16
}

/// Open handles by number.
pub(crate) struct HandleTable<T> {
    shards: Vec<RwLock<NumberMap<u64, Arc<T>>>>,
    next: AtomicU64,
}

impl<T> HandleTable<T> {
    /// A table without handles.
    pub(crate) fn new() -> HandleTable<T> {
        HandleTable {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next: AtomicU64::new(1),
        }
    }

    fn shard(&self, handle: Handle) -> &RwLock<NumberMap<u64, Arc<T>>> {
        &self.shards[(handle.0 % SHARDS as u64) as usize]
    }

    /// Opens a handle.
    pub(crate) fn insert(&self, open: T) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(handle).write().insert(handle.0, Arc::new(open));
        handle
    }

    /// Finds an open handle.
    ///
    /// # Errors
    /// `BadHandle`.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>> {
        self.shard(handle).read().get(&handle.0).cloned().ok_or_else(|| ErrorKind::BadHandle.into())
    }

    /// Closes a handle.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        self.shard(handle).write().remove(&handle.0)
    }

    /// All open handles.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Handle, Arc<T>)> {
        self.shards.iter().flat_map(|shard| {
            let open = shard.read();
            open.iter()
                .map(|(handle, open)| (Handle(*handle), Arc::clone(open)))
                .collect::<Vec<_>>()
        })
    }

    /// The number of open handles.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::Timestamp;

    #[test]
    fn an_inode_stays_as_long_as_anything_uses_it() {
        let table = OpenTable::new(IDLE_STATES_LONE);
        let pinned = table.pin(Ino(5));
        table.add_lookups(Ino(5), 2);
        table.add_handle(Ino(5));
        drop(pinned);
        table.remove_lookups(Ino(5), 1);
        assert!(table.find(Ino(5)).is_some());
        table.remove_lookups(Ino(5), 1);
        assert_eq!(table.handles(Ino(5)), 1);
        assert_eq!(table.remove_handle(Ino(5)), 0);
        assert!(table.find(Ino(5)).is_none());
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn what_is_listed_is_remembered_without_a_state() {
        let table = OpenTable::new(IDLE_STATES_LONE);
        table.remember(Ino(5));
        assert!(table.find(Ino(5)).is_none());
        drop(table.pin(Ino(5)));
        assert!(table.find(Ino(5)).is_some(), "it is looked up still");
        table.remember(Ino(5));
        assert!(table.find(Ino(5)).is_some(), "a state that is there stays");
        table.remove_lookups(Ino(5), 1);
        assert_eq!(table.count(), 1);
        table.remove_lookups(Ino(5), 1);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn of_many_idle_inodes_the_last_ones_and_the_changed_ones_keep_their_state() {
        let table = OpenTable::new(IDLE_STATES_LONE);
        let (changed, held) = (Ino(1), Ino(2));
        let many = 4 * IDLE_STATES_LONE as u64;
        let mut pinned = None;
        for ino in (1..=many).map(Ino) {
            let state = table.pin(ino);
            table.add_lookups(ino, 1);
            if ino == changed {
                state.core.lock().note_write(Timestamp::default());
            }
            if ino == held {
                pinned = Some(state);
            }
        }
        assert_eq!(table.count(), many as usize);
        let known = |ino: Ino| table.find(ino).is_some();
        assert!(known(changed), "the metadata does not have all of it");
        assert!(known(held) && !known(Ino(3)) && known(Ino(many)));
        let states = (1..=many).filter(|&ino| known(Ino(ino))).count();
        assert!(states <= IDLE_STATES_LONE + 1, "{states} states");
        // What is made anew takes the place of another; what was told goes.
        drop((table.pin(Ino(3)), pinned));
        assert!(known(Ino(3)));
        table.find(changed).expect("known").core.lock().told = 1;
        (many / 2..many).for_each(|ino| drop(table.pin(Ino(ino))));
        assert!(!known(changed) && !known(held) && !known(Ino(3)));
        (1..=many).for_each(|ino| table.remove_lookups(Ino(ino), 1));
        assert_eq!(table.count(), 0);
        for shard in &table.shards {
            let shard = shard.lock();
            assert!(shard.entries.capacity() <= 2 * PLACES_MIN, "places are given back");
        }
    }

    #[test]
    fn handles_are_never_reused() {
        let table = HandleTable::new();
        let first = table.insert("a");
        assert!(table.remove(first).is_some());
        let second = table.insert("b");
        assert_ne!(first, second);
        assert_eq!(table.get(first).expect_err("closed").kind(), ErrorKind::BadHandle);
        assert_eq!(*table.get(second).expect("open"), "b");
    }
}
