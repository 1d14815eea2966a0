//! The directories of which the adapter's caches may keep names. Beside other mounts a directory's
//! names are right as long as its token is held, and caches must drop them before it is given up.
//!
//! **The order** to drop names ([`Outdated::AllNames`](crate::invalidate::Outdated)) is about all
//! directories, and raises the caches' *epoch*. It waits for nothing, and caches do not believe an
//! answer to a question that was asked in an earlier epoch. So this keeps the epoch, too. One order
//! covers all directories that were shown before it, and a directory that was not shown since needs
//! none.
//!
//! **An answer** that shows a name is announced before the operation ([`ShownNames::begin`]), and
//! is kept by caches only if no order came in between ([`ShownNames::is_kept`]). So whoever gives
//! the token up either sees the announcement and has names dropped, or the answer is not kept.
//!
//! **A rename** moves what caches know of one name to the other one, in either directory. So if one
//! of them is shown, both are, and neither is announced until the rename has ended.
//!
//! **A rest.** An order costs all names of the mount. So a directory that others take while its
//! names are shown is not shown for a while, which is longer each time.
//!
//! Nothing here knows a clock: times are those of the caller.

use std::collections::HashMap;
use std::time::Duration;
use strake_proto::Ino;

/// So long is a directory not shown after it was taken for the first time.
const REST_MIN: Duration = Duration::from_secs(2);
/// No directory rests for longer.
const REST_MAX: Duration = Duration::from_secs(300);
/// A directory that was not taken for so many times its last rest begins anew.
const RESTS_REMEMBERED: u32 = 4;
/// No more directories rest. Beyond that some are shown too early, which costs only time.
const RESTING_MAX: usize = 10_000;
/// So long is nothing shown after caches refused an order.
const REFUSED: Duration = Duration::from_secs(60);

/// A time in which a directory is not shown.
#[derive(Clone, Copy)]
struct Rest {
    until: Duration,
    length: Duration,
}

impl Rest {
    /// The rest that begins now, after `last`.
    fn after(last: Option<&Rest>, now: Duration) -> Rest {
        let length = match last.filter(|last| !last.is_forgotten(now)) {
            Some(last) => (2 * last.length).min(REST_MAX),
            None => REST_MIN,
        };
        Rest { until: now + length, length }
    }

    fn is_forgotten(&self, now: Duration) -> bool {
        now >= self.until + RESTS_REMEMBERED * self.length
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct ShownNames {
    /// Raised with every order.
    epoch: u64,
    /// Names that were shown in earlier epochs are dropped.
    first_kept: u64,
    /// The epoch in which names of a directory were last shown.
    directories: HashMap<Ino, u64>,
    rests: HashMap<Ino, Rest>,
    /// Nothing is shown before.
    refused_until: Duration,
    /// The directories of renames under way.
    renames: Vec<[Ino; 2]>,
    /// Caches keep no name for longer.
    until: Duration,
}

/// An order to be given before a directory's token goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// It covers what was shown up to this epoch.
    epoch: u64,
}

impl ShownNames {
    /// An operation is about to begin whose answer may show a name of a directory. Returns the
    /// epoch; `None` if the directory is not shown now.
    pub(crate) fn begin(&mut self, directory: Ino, now: Duration) -> Option<u64> {
        let is_shown = self.is_shown(directory, now)
            && !self.renames.iter().any(|renamed| renamed.contains(&directory));
        is_shown.then(|| {
            self.directories.insert(directory, self.epoch);
            self.epoch
        })
    }

    fn is_shown(&self, directory: Ino, now: Duration) -> bool {
        now >= self.refused_until && self.rests.get(&directory).is_none_or(|it| now >= it.until)
    }

    /// Whether caches may keep, until some time, what an operation has answered that began in
    /// `epoch`. The directory's token is held at this moment.
    pub(crate) fn is_kept(&mut self, epoch: u64, until: Duration) -> bool {
        let is_kept = self.epoch == epoch;
        if is_kept {
            self.until = self.until.max(until);
        }
        is_kept
    }

    /// A rename between two directories is about to begin. To be ended with
    /// [`ShownNames::renamed`].
    pub(crate) fn rename(&mut self, directories: [Ino; 2], now: Duration) {
        self.renames.push(directories);
        if directories.iter().any(|directory| self.is_shown(*directory, now)) {
            self.directories.extend(directories.map(|directory| (directory, self.epoch)));
        }
    }

    /// A rename has ended.
    pub(crate) fn renamed(&mut self, directories: [Ino; 2]) {
        let at = self.renames.iter().position(|renamed| *renamed == directories);
        self.renames.swap_remove(at.expect("invariant: a rename that ends has begun"));
    }

    /// A directory's token is about to go to another client. Returns the order to be given before;
    /// `None` if caches have no name of it.
    pub(crate) fn take(&mut self, directory: Ino, now: Duration) -> Option<Order> {
        self.directories.get(&directory).filter(|epoch| **epoch >= self.first_kept)?;
        if self.rests.len() >= RESTING_MAX {
            self.rests.retain(|_, rest| !rest.is_forgotten(now));
        }
        let rest = Rest::after(self.rests.get(&directory), now);
        if self.rests.len() < RESTING_MAX || self.rests.contains_key(&directory) {
            self.rests.insert(directory, rest);
        }
        Some(self.order())
    }

    /// An order that covers all that was shown.
    pub(crate) fn order(&mut self) -> Order {
        self.epoch += 1;
        Order { epoch: self.epoch - 1 }
    }

    /// Caches have carried out an order, or what it covers has run out.
    pub(crate) fn dropped(&mut self, order: Order) {
        self.first_kept = self.first_kept.max(order.epoch + 1);
        self.directories.retain(|_, epoch| *epoch >= self.first_kept);
    }

    /// Caches have refused an order. Nothing is shown for a while. Returns the time at which all
    /// that was shown has run out.
    pub(crate) fn refused(&mut self, now: Duration) -> Duration {
        self.refused_until = now + REFUSED;
        self.until
    }
}

#[cfg(test)]
#[path = "shown_test.rs"]
mod shown_test;
