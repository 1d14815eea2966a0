//! Changes that are lost although programs were told that they were made, as far as no sync has
//! told that.
//!
//! Handles that are open hear of a loss from their file's
//! [`ErrorLatch`](crate::inode::core::ErrorLatch). A program may have closed the file before, and
//! open it again to sync it, perhaps in the mount's next life. Its sync must not succeed either.

use std::collections::BTreeMap;
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, Ino, Result};

#[derive(Default)]
struct State {
    /// Files and directories, with the reason.
    inodes: BTreeMap<Ino, ErrorKind>,
    /// The error of the next sync of everything.
    newest: Option<Error>,
}

/// See the file's head. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Losses(Mutex<State>);

impl Losses {
    /// Changes of an inode are lost.
    pub(crate) fn note(&self, ino: Ino, error: Error) {
        let mut state = self.0.lock();
        state.inodes.insert(ino, error.kind());
        state.newest = Some(error);
    }

    /// Tells whoever syncs this inode.
    ///
    /// # Errors
    /// Once, if changes of it are lost.
    pub(crate) fn tell_of(&self, ino: Ino) -> Result<()> {
        match self.0.lock().inodes.remove(&ino) {
            Some(kind) => Err(Error::new(kind, format!("changes of inode {ino} may be lost"))),
            None => Ok(()),
        }
    }

    /// Tells whoever syncs everything.
    ///
    /// # Errors
    /// Once, if something is lost.
    pub(crate) fn tell(&self) -> Result<()> {
        let newest = self.0.lock().newest.take();
        newest.map_or(Ok(()), |error| Err(error.context("changes may be lost")))
    }

    /// Takes over what a mount before this one has not told.
    pub(crate) fn inherit(&self, other: &Losses) {
        let State { inodes, newest } = std::mem::take(&mut *other.0.lock());
        let mut state = self.0.lock();
        state.inodes.extend(inodes);
        state.newest = newest.or(state.newest.take());
    }
}
