//! Inode numbers that a mount has reserved for files that it will make.

use std::collections::VecDeque;
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_proto::Ino;
use strake_proto::limits::INODES_RESERVED_MAX;

/// The count of numbers that are reserved first. It doubles each time, up to
/// [`INODES_RESERVED_MAX`].
const FIRST: u32 = 4;
/// After a refusal numbers are asked for again after that time.
const AGAIN: Duration = Duration::from_secs(1);

/// See the head of this file. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Reserved(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    left: VecDeque<Ino>,
    /// Numbers were given once. So the cluster has the feature level that they need, and levels
    /// never fall.
    is_understood: bool,
    /// How many were asked for last.
    asked: u32,
    not_before: Duration,
}

/// A number, or how to get one.
pub(crate) enum Next {
    /// This one.
    Number(Ino),
    /// The metadata is to be asked for so many.
    Ask(u32),
    /// The metadata has refused just now.
    NotNow,
}

impl Reserved {
    /// Takes a number.
    pub(crate) fn next(&self, now: Duration) -> Next {
        let mut numbers = self.0.lock();
        if let Some(ino) = numbers.left.pop_front() {
            return Next::Number(ino);
        }
        if now < numbers.not_before {
            return Next::NotNow;
        }
        numbers.asked = (2 * numbers.asked).clamp(FIRST, INODES_RESERVED_MAX);
        Next::Ask(numbers.asked)
    }

    /// The metadata has given numbers, or none. Takes one of them.
    pub(crate) fn given(&self, mut given: VecDeque<Ino>, now: Duration) -> Option<Ino> {
        let next = given.pop_front();
        let mut numbers = self.0.lock();
        numbers.left.append(&mut given);
        numbers.is_understood |= next.is_some();
        if next.is_none() {
            numbers.not_before = now + AGAIN;
        }
        next
    }

    /// A number was not used.
    pub(crate) fn give_back(&self, ino: Ino) {
        self.0.lock().left.push_front(ino);
    }

    /// Whether the metadata is known to take changes that are told later.
    pub(crate) fn is_understood(&self) -> bool {
        self.0.lock().is_understood
    }
}
