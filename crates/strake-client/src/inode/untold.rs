//! The inodes with attributes that the metadata is told of later (`Core::keep`).
//!
//! An fsync of any file tells all of them, because it makes every attribute durable that was
//! changed before. So they are told soon, by a thread of their own, and there are never many.

use std::collections::BTreeSet;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::Ino;

/// So long after the first change the thread tells all. Programs that unpack archives set several
/// attributes of a file, one right after the other.
const GATHER: Duration = Duration::from_millis(100);
/// With this many the thread does not wait any longer.
const MANY: usize = 256;
/// With this many, further changes are told at once.
const MOST: usize = 1024;

#[derive(Default)]
struct State {
    inos: BTreeSet<Ino>,
    is_closed: bool,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Untold {
    state: Mutex<State>,
    changed: Condvar,
}

impl Untold {
    /// Whether more may be kept.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.inos.len() < MOST && !state.is_closed
    }

    /// An inode has such attributes now.
    pub(crate) fn insert(&self, ino: Ino) {
        let mut state = self.state.lock();
        state.inos.insert(ino);
        if [1, MANY].contains(&state.inos.len()) {
            self.changed.notify_one();
        }
    }

    /// The metadata has all attributes of an inode.
    pub(crate) fn remove(&self, ino: Ino) {
        self.state.lock().inos.remove(&ino);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Ino> {
        self.state.lock().inos.iter().copied().collect()
    }

    /// Waits until some are to be told. False once this is closed.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.inos.is_empty() && !state.is_closed);
        self.changed.wait_while_for(
            &mut state,
            |state| state.inos.len() < MANY && !state.is_closed,
            GATHER,
        );
        !state.is_closed
    }

    /// Ends the wait. Nothing more is kept.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}
