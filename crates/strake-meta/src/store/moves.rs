//! Moves of directories from one directory to another.
//!
//! Before such a move, the state machine walks from the new place to the root, to see that the
//! directory does not move into itself. In a tree of 400,000 levels the walk takes half a second.
//! Nobody else may wait for that, so it is made before the change, in parts that share the lock of
//! the state. What it found holds as long as no other directory has moved: nothing else changes the
//! way of a directory to the root. The owner of the state counts the moves. If another one came in
//! between, the state machine walks itself. That is rare, because whoever moves a directory holds
//! `moving`.

use super::Moving;
use crate::ops::rename::{Climb, Nesting, nestings_of};
use crate::query;
use crate::transaction::Transaction;
use std::time::Duration;
use strake_env::sync::{WatchedMutex, WatchedMutexGuard};
use strake_proto::meta::MetaOp;
use strake_proto::{ClientId, Error, ErrorKind, Result, Timestamp};
use strake_store::KvRead;

/// So many steps are taken with the lock held once. Where each reads a page from the disk, that
/// takes about 15 ms.
const STEPS: usize = 100;

/// Shows the state as it is now, and the count of moves, with its lock held shared.
pub(crate) type Look<'a> = dyn Fn(&mut dyn FnMut(&dyn KvRead, u64)) + 'a;

/// What was found before a change.
#[derive(Default)]
pub(crate) struct Walked<'a> {
    /// Keeps other moves out until the change is made.
    _alone: Option<WatchedMutexGuard<'a, ()>>,
    /// The count of moves at which the answers hold.
    moves: u64,
    answers: Vec<(Nesting, bool)>,
}

impl Walked<'_> {
    /// The answers, if they still hold after so many moves.
    pub(crate) fn known(&self, moves: u64) -> &[(Nesting, bool)] {
        if self.moves == moves { &self.answers } else { &[] }
    }
}

/// Whether the change, if it is made now, moves a directory from one directory to another.
pub(crate) fn is_move(kv: &dyn KvRead, op: &MetaOp) -> bool {
    // Whoever cannot tell says yes. Then others walk once more than they must.
    asked(kv, op).map_or(true, |asked| !asked.is_empty())
}

fn asked(kv: &dyn KvRead, op: &MetaOp) -> Result<Vec<Nesting>> {
    if !matches!(op, MetaOp::Rename { .. }) {
        return Ok(Vec::new());
    }
    nestings_of(&Transaction::new(kv, ClientId(0), Timestamp::default()), op)
}

/// Walks the ways that a change needs, if it needs any. An error of a walk leaves the question to
/// the state machine, which meets the same error and knows what to do.
///
/// # Errors
/// `TimedOut` if other moves take longer than `limit`.
pub(crate) fn walk_before<'a>(
    op: &MetaOp,
    moving: &'a WatchedMutex<Moving>,
    limit: Duration,
    look: &Look<'_>,
) -> Result<Walked<'a>> {
    if !matches!(op, MetaOp::Rename { .. }) {
        return Ok(Walked::default());
    }
    let mut moves_now = true;
    look(&mut |kv, _| moves_now = is_move(kv, op));
    if !moves_now {
        return Ok(Walked::default());
    }
    let alone = moving.try_lock_for(limit).ok_or_else(|| {
        let detail = "moves of directories take too long: see `strake diag waiters`";
        Error::new(ErrorKind::TimedOut, detail)
    })?;
    let (mut moves, mut wanted) = (0, Vec::new());
    look(&mut |kv, now| (moves, wanted) = (now, asked(kv, op).unwrap_or_default()));
    let walk = |asked| Some((asked, walk(asked, look).ok()?));
    let answers = wanted.into_iter().filter_map(walk).collect();
    Ok(Walked { _alone: Some(alone), moves, answers })
}

fn walk(asked: Nesting, look: &Look<'_>) -> Result<bool> {
    let mut climb = Climb::new(asked);
    loop {
        let mut answer = Ok(None);
        look(&mut |kv, _| answer = climb.go(STEPS, |ino| Ok(query::inode(kv, ino)?.parent)));
        if let Some(answer) = answer? {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
#[path = "moves_test.rs"]
mod moves_test;
