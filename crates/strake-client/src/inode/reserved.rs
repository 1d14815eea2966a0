//! Numbers of inodes and objects that a mount has reserved for files that it will make. With them
//! the metadata is told later of what a program does.

use std::collections::VecDeque;
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_proto::{ErrorKind, Result};

/// The count of numbers that are reserved first. It doubles each time, up to the most that are
/// given.
const FIRST: u32 = 4;
/// After a refusal numbers are asked for again after that time.
const AGAIN: Duration = Duration::from_secs(1);

/// See the head of this file. Its lock is a leaf.
pub(crate) struct Reserved<N> {
    numbers: Mutex<Numbers<N>>,
    /// At most this many are given at once.
    most: u32,
}

struct Numbers<N> {
    left: VecDeque<N>,
    /// Numbers were given once. So the cluster has the feature level that they need, and levels
    /// never fall.
    is_understood: bool,
    /// How many were asked for last.
    asked: u32,
    not_before: Duration,
}

impl<N> Reserved<N> {
    /// None yet, of which `most` are given at once.
    pub(crate) fn new(most: u32) -> Reserved<N> {
        let (left, not_before) = (VecDeque::new(), Duration::ZERO);
        let numbers = Numbers { left, is_understood: false, asked: 0, not_before };
        Reserved { numbers: Mutex::new(numbers), most }
    }

    /// Takes a number. `ask` asks the metadata for so many. `None` if it gives none now.
    ///
    /// # Errors
    /// `Io`: an earlier change is lost, of which a program was told.
    pub(crate) fn take(
        &self,
        now: Duration,
        ask: impl FnOnce(u32) -> Result<VecDeque<N>>,
    ) -> Result<Option<N>> {
        let count = {
            let mut numbers = self.numbers.lock();
            if let Some(number) = numbers.left.pop_front() {
                return Ok(Some(number));
            }
            if now < numbers.not_before {
                return Ok(None);
            }
            numbers.asked = (2 * numbers.asked).clamp(FIRST, self.most);
            numbers.asked
        };
        let mut given = match ask(count) {
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            given => given.unwrap_or_default(),
        };
        let next = given.pop_front();
        let mut numbers = self.numbers.lock();
        numbers.left.append(&mut given);
        numbers.is_understood |= next.is_some();
        if next.is_none() {
            numbers.not_before = now + AGAIN;
        }
        Ok(next)
    }

    /// A number was not used.
    pub(crate) fn give_back(&self, number: N) {
        self.numbers.lock().left.push_front(number);
    }

    /// Whether the metadata is known to take changes that are told later.
    pub(crate) fn is_understood(&self) -> bool {
        self.numbers.lock().is_understood
    }
}
