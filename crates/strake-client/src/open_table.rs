//! Which inodes are in use: by lookups the adapter has not given back, by open handles, by calls
//! under way or by changes not yet committed (pins). One [`InodeState`] per inode, as long as any.
//!
//! The shards' locks are leaves: nothing else is locked under them.

use crate::inode::InodeState;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_proto::{ErrorKind, Ino, Result};

use crate::vfs::Handle;

const SHARDS: usize = 32;

struct Entry {
    state: Arc<InodeState>,
    lookups: u64,
    handles: u32,
    pins: u32,
}

impl Entry {
    fn is_unused(&self) -> bool {
        self.lookups == 0 && self.handles == 0 && self.pins == 0
    }
}

/// The inodes in use.
pub(crate) struct OpenTable {
    shards: Vec<Mutex<HashMap<Ino, Entry>>>,
}

/// An inode that stays while this is held.
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
    /// Nothing is in use.
    pub(crate) fn new() -> Arc<OpenTable> {
        Arc::new(OpenTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect() })
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Entry>> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// The inode, in use from now on if it was not.
    pub(crate) fn pin(self: &Arc<OpenTable>, ino: Ino) -> Pinned {
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino).or_insert_with(|| Entry {
            state: Arc::new(InodeState::new(ino)),
            lookups: 0,
            handles: 0,
            pins: 0,
        });
        entry.pins += 1;
        Pinned { table: Arc::clone(self), state: Arc::clone(&entry.state) }
    }

    /// The inode if it is in use.
    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<InodeState>> {
        self.shard(ino).lock().get(&ino).map(|entry| Arc::clone(&entry.state))
    }

    /// Changes the counts of an entry; the last use takes it out. What is dropped with it is
    /// dropped after the lock.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut Entry)) {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.get_mut(&ino) else { return };
        change(entry);
        let gone = if entry.is_unused() { shard.remove(&ino) } else { None };
        drop(shard);
        drop(gone);
    }

    /// Counts lookups.
    pub(crate) fn add_lookups(&self, ino: Ino, count: u64) {
        self.change(ino, |entry| entry.lookups += count);
    }

    /// Gives lookups back.
    pub(crate) fn remove_lookups(&self, ino: Ino, count: u64) {
        self.change(ino, |entry| entry.lookups = entry.lookups.saturating_sub(count));
    }

    /// Counts an open handle.
    pub(crate) fn add_handle(&self, ino: Ino) {
        self.change(ino, |entry| entry.handles += 1);
    }

    /// Gives an open handle back; returns how many are left.
    pub(crate) fn remove_handle(&self, ino: Ino) -> u32 {
        let mut left = 0;
        self.change(ino, |entry| {
            entry.handles -= 1;
            left = entry.handles;
        });
        left
    }

    /// How many handles are open.
    pub(crate) fn handles(&self, ino: Ino) -> u32 {
        self.shard(ino).lock().get(&ino).map_or(0, |entry| entry.handles)
    }

    /// Inodes in use.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// Open handles by number.
pub(crate) struct HandleTable<T> {
    shards: Vec<RwLock<HashMap<u64, Arc<T>>>>,
    next: AtomicU64,
}

impl<T> HandleTable<T> {
    /// None is open.
    pub(crate) fn new() -> HandleTable<T> {
        HandleTable {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next: AtomicU64::new(1),
        }
    }

    fn shard(&self, handle: Handle) -> &RwLock<HashMap<u64, Arc<T>>> {
        &self.shards[(handle.0 % SHARDS as u64) as usize]
    }

    /// Opens one.
    pub(crate) fn insert(&self, open: T) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(handle).write().insert(handle.0, Arc::new(open));
        handle
    }

    /// Finds one.
    ///
    /// # Errors
    /// `BadHandle`.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>> {
        self.shard(handle).read().get(&handle.0).cloned().ok_or_else(|| ErrorKind::BadHandle.into())
    }

    /// Closes one.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        self.shard(handle).write().remove(&handle.0)
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_stays_as_long_as_anything_uses_it() {
        let table = OpenTable::new();
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
