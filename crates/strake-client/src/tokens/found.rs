//! Files that a program has just looked up, and opens next.
//!
//! The kernel looks a name up and then names the inode: in an open, or a question for attributes.
//! If another client removes the file in between, or puts another one in its place, the inode is
//! gone. A local file system keeps it, because the kernel refers to it. So a client that gives up a
//! file which was just found says that it has the file open, and says that it is closed a moment
//! later. The kernel asks for a name anew when an inode is gone, but only once.

use super::{State, Tokens};
use std::time::Duration;
use strake_proto::Ino;

/// A file that was found no longer ago counts as open for that long. Programs open a file within a
/// millisecond of its lookup, but on a busy machine they wait for a processor. The space of a
/// removed file is free that much later.
pub(crate) const FOUND_KEPT: Duration = Duration::from_secs(1);

impl Tokens {
    /// Lets go of the files that were kept because they were found, and are due. Called now and
    /// then.
    pub(crate) fn let_found_go(&self) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let mut effects = Vec::new();
        for (ino, _) in state.found.extract_if(.., |_, until| *until <= now).collect::<Vec<_>>() {
            if !state.handles.contains_key(&ino) {
                effects.extend(state.holder.closed(ino));
                // Also if this client has looked at it since, and so has its token: it may have no
                // name.
                effects.extend(state.holder.let_go(ino));
            }
        }
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }
}

impl State {
    /// A file counts as open for a moment, beyond the token that is given up now.
    pub(super) fn keep_found(&mut self, ino: Ino, now: Duration) {
        self.holder.opening(ino);
        self.found.insert(ino, now + FOUND_KEPT);
    }
}
