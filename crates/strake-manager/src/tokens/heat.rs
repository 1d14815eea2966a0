//! How often each file was taken from which client in the last minute. A revoke that is sent again
//! is the same one.
//!
//! It has room for [`FILES_MAX`] files. What comes when it is full, and all of these were taken in
//! the last minute, is not counted.

use std::collections::BTreeMap;
use std::time::Duration;
use strake_proto::{ClientId, GrantNumber, Ino};

/// Counts are kept for the last minute, in parts of so many seconds.
const PART_SECONDS: u64 = 10;
const PARTS: u64 = 6;
const FILES_MAX: usize = 1024;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Heat {
    files: BTreeMap<Ino, BTreeMap<ClientId, Taken>>,
}

/// How often a file was taken from a client.
#[derive(Default)]
struct Taken {
    /// The newest grant that was revoked.
    upto: GrantNumber,
    /// By the number of the part, ascending.
    parts: Vec<(u64, u64)>,
}

/// A file that was taken from clients in the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The file.
    pub ino: Ino,
    /// From each client, how often.
    pub taken: Vec<(ClientId, u64)>,
}

impl Hot {
    /// How often in all.
    pub fn count(&self) -> u64 {
        self.taken.iter().map(|(_, count)| count).sum()
    }
}

fn part(now: Duration) -> u64 {
    now.as_secs() / PART_SECONDS
}

impl Taken {
    fn forget_before(&mut self, part: u64) {
        self.parts.retain(|(of, _)| of + PARTS > part);
    }
}

impl Heat {
    /// A file is taken from a client, which has been granted it up to `upto`.
    pub(super) fn note(&mut self, ino: Ino, client: ClientId, upto: GrantNumber, now: Duration) {
        let part = part(now);
        if !self.files.contains_key(&ino) && self.files.len() >= FILES_MAX {
            self.forget_before(part);
            if self.files.len() >= FILES_MAX {
                return;
            }
        }
        let taken = self.files.entry(ino).or_default().entry(client).or_default();
        if taken.upto >= upto {
            return;
        }
        taken.upto = upto;
        match taken.parts.last_mut() {
            Some((of, count)) if *of == part => *count += 1,
            _ => {
                taken.forget_before(part);
                taken.parts.push((part, 1));
            }
        }
    }

    fn forget_before(&mut self, part: u64) {
        for clients in self.files.values_mut() {
            clients.values_mut().for_each(|taken| taken.forget_before(part));
            clients.retain(|_, taken| !taken.parts.is_empty());
        }
        self.files.retain(|_, clients| !clients.is_empty());
    }

    /// The files that were taken most often, at most `most`.
    pub(super) fn hottest(&mut self, now: Duration, most: usize) -> Vec<Hot> {
        self.forget_before(part(now));
        let files = self.files.iter().map(|(ino, clients)| {
            let count = |taken: &Taken| taken.parts.iter().map(|(_, count)| count).sum();
            let taken = clients.iter().map(|(client, taken)| (*client, count(taken)));
            Hot { ino: *ino, taken: taken.collect() }
        });
        let mut files: Vec<Hot> = files.collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.count()));
        files.truncate(most);
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClientId = ClientId(11);
    const TWO: ClientId = ClientId(12);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn files_are_counted_by_client_for_a_minute_and_repetitions_are_not() {
        let mut heat = Heat::default();
        for number in 1..=5 {
            heat.note(Ino(7), ONE, GrantNumber(2 * number), seconds(number));
            heat.note(Ino(7), ONE, GrantNumber(2 * number), seconds(number));
            heat.note(Ino(7), TWO, GrantNumber(2 * number + 1), seconds(number));
        }
        heat.note(Ino(8), TWO, GrantNumber(99), seconds(58));
        let hot = heat.hottest(seconds(59), 9);
        assert_eq!(hot[0], Hot { ino: Ino(7), taken: vec![(ONE, 5), (TWO, 5)] });
        assert_eq!((hot.len(), hot[1].ino), (2, Ino(8)));
        assert_eq!(heat.hottest(seconds(59), 1).len(), 1);
        let later = heat.hottest(seconds(61), 9);
        assert_eq!(later, [Hot { ino: Ino(8), taken: vec![(TWO, 1)] }]);
    }

    #[test]
    fn it_has_room_for_so_many_files() {
        let mut heat = Heat::default();
        for number in 1..=2 * FILES_MAX as u64 {
            heat.note(Ino(number), ONE, GrantNumber(number), seconds(1));
        }
        assert_eq!(heat.files.len(), FILES_MAX);
        heat.note(Ino(7777), ONE, GrantNumber(7777), seconds(90));
        assert_eq!(heat.hottest(seconds(90), 9).len(), 1, "old ones make room");
    }
}
