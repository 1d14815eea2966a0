//! Moves of directories from one directory to another.
//!
//! Before such a move, the state machine walks from the new place to the root, to see that the
//! directory does not move into itself. In a tree of 400,000 levels the walk takes half a second.
//! Nobody else may wait for that, so it is made before the change, in parts that share the lock of
//! the state. What it found holds as long as no other directory has moved: nothing else changes the
//! way of a directory to the root. The state counts the moves. If another one came in between, the
//! state machine walks itself. That is rare, because whoever moves a directory holds `moving`.

use super::{MetaStore, State};
use crate::ops::rename::{Climb, Nesting, nestings_of};
use crate::query;
use crate::transaction::Transaction;
use strake_env::sync::WatchedMutexGuard;
use strake_proto::meta::MetaOp;
use strake_proto::{ClientId, Error, ErrorKind, Result, Timestamp};
use strake_store::KvRead;

/// So many steps are taken with the lock held once. Where each reads a page from the disk, that
/// takes about 15 ms.
const STEPS: usize = 100;

/// What was found before a change.
#[derive(Default)]
pub(super) struct Walked<'a> {
    /// Keeps other moves out until the change is made.
    _alone: Option<WatchedMutexGuard<'a, ()>>,
    /// The count of moves at which the answers hold.
    moves: u64,
    answers: Vec<(Nesting, bool)>,
}

impl Walked<'_> {
    /// The answers, if they still hold.
    pub(super) fn known(&self, state: &State) -> &[(Nesting, bool)] {
        if self.moves == state.moves { &self.answers } else { &[] }
    }
}

/// Whether the change, if it is made now, moves a directory from one directory to another.
pub(super) fn is_move(state: &State, op: &MetaOp) -> bool {
    // Whoever cannot tell says yes. Then others walk once more than they must.
    asked(&state.holders[0].kv, op).map_or(true, |asked| !asked.is_empty())
}

fn asked(kv: &dyn KvRead, op: &MetaOp) -> Result<Vec<Nesting>> {
    if !matches!(op, MetaOp::Rename { .. }) {
        return Ok(Vec::new());
    }
    nestings_of(&Transaction::new(kv, ClientId(0), Timestamp::default()), op)
}

impl MetaStore {
    /// Walks the ways that a change needs, if it needs any. An error of a walk leaves the question
    /// to the state machine, which meets the same error and knows what to do.
    ///
    /// # Errors
    /// `TimedOut` if other moves take too long.
    pub(super) fn walk_before(&self, op: &MetaOp) -> Result<Walked<'_>> {
        if !matches!(op, MetaOp::Rename { .. }) || !is_move(&self.state.read(), op) {
            return Ok(Walked::default());
        }
        let alone = self.moving.try_lock_for(self.options.room_wait_max).ok_or_else(|| {
            let detail = "moves of directories take too long: see `strake diag waiters`";
            Error::new(ErrorKind::TimedOut, detail)
        })?;
        let (moves, asked) = {
            let state = self.state.read();
            (state.moves, asked(&state.holders[0].kv, op).unwrap_or_default())
        };
        let walk = |asked| Some((asked, self.walk(asked).ok()?));
        Ok(Walked {
            _alone: Some(alone),
            moves,
            answers: asked.into_iter().filter_map(walk).collect(),
        })
    }

    fn walk(&self, asked: Nesting) -> Result<bool> {
        let mut climb = Climb::new(asked);
        loop {
            let state = self.state.read();
            let kv = &state.holders[0].kv;
            if let Some(answer) = climb.go(STEPS, |ino| Ok(query::inode(kv, ino)?.parent))? {
                return Ok(answer);
            }
        }
    }
}

#[cfg(test)]
#[path = "moves_test.rs"]
mod moves_test;
