//! Which connections may be greeting at a time. Each costs a thread and a little memory before it
//! has proven anything, so their number has a limit.
//!
//! When the limit is reached, the oldest greeting of the *origin* (the machine) with the most of
//! them must go. So a machine that opens connections and says nothing uses up its own share, and
//! those of other machines go on: with `n` origins that have any, each keeps at least `limit / n`.
//! All processes of this machine on Unix sockets are one origin.
//!
//! Pure: it knows no sockets and no threads.

use std::collections::BTreeMap;
use strake_env::net::IpAddr;

/// Where a connection comes from.
pub(crate) type Origin = Option<IpAddr>;

/// The greetings under way, each with what it takes to end it.
pub(crate) struct Greetings<T> {
    limit: usize,
    /// By the order in which they came.
    entries: BTreeMap<u64, (Origin, T)>,
    next: u64,
}

impl<T> Greetings<T> {
    /// At most `limit` at a time, which is at least 1.
    pub(crate) fn new(limit: usize) -> Greetings<T> {
        Greetings { limit: limit.max(1), entries: BTreeMap::new(), next: 0 }
    }

    /// Takes one more in; returns its number, and the one that must go for it, if any.
    pub(crate) fn add(&mut self, origin: Origin, ender: T) -> (u64, Option<(Origin, T)>) {
        let id = self.next;
        self.next += 1;
        self.entries.insert(id, (origin, ender));
        let gone = (self.entries.len() > self.limit).then(|| self.remove_of_the_largest());
        self.check();
        (id, gone)
    }

    fn remove_of_the_largest(&mut self) -> (Origin, T) {
        let mut counts: BTreeMap<Origin, usize> = BTreeMap::new();
        self.entries.values().for_each(|(origin, _)| *counts.entry(*origin).or_default() += 1);
        let largest = counts.iter().max_by_key(|(_, count)| **count).map(|(origin, _)| *origin);
        let oldest = self.entries.iter().find(|(_, (origin, _))| Some(*origin) == largest);
        let oldest = oldest.map(|(id, _)| *id);
        oldest.and_then(|id| self.entries.remove(&id)).expect("invariant: there are some")
    }

    /// This greeting is over. False if it was over before, or was made to go.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        self.entries.remove(&id).is_some()
    }

    /// What it takes to end each of them.
    pub(crate) fn enders(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|(_, ender)| ender)
    }

    /// Asserts what always holds.
    fn check(&self) {
        assert!(self.entries.len() <= self.limit, "no more than the limit");
        assert!(self.entries.keys().all(|id| *id < self.next), "numbers are not reused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    fn origin(number: u8) -> Origin {
        (number > 0).then(|| IpAddr::from([10, 0, 0, number]))
    }

    #[test]
    fn a_flood_of_one_machine_ends_its_own_greetings_alone() {
        let mut greetings = Greetings::new(8);
        for id in 0..3u64 {
            assert!(greetings.add(origin(2), id).1.is_none());
        }
        for id in 3..1000u64 {
            let (_, gone) = greetings.add(origin(1), id);
            assert!(gone.is_none_or(|(from, _)| from == origin(1)), "{id}");
        }
        assert_eq!(greetings.enders().filter(|id| **id < 3).count(), 3);
        assert_eq!(greetings.enders().count(), 8);
    }

    #[test]
    fn the_oldest_of_the_largest_goes_as_in_an_obvious_model() {
        for seed in strake_env::rng::test_seeds(0, 50) {
            let mut rng = Rng::new(seed);
            let limit = 1 + rng.index(6);
            let mut greetings = Greetings::new(limit);
            let mut model: Vec<(u64, Origin)> = Vec::new();
            for _ in 0..300 {
                if rng.one_in(3) && !model.is_empty() {
                    let (id, _) = model.remove(rng.index(model.len()));
                    assert!(greetings.remove(id) && !greetings.remove(id), "seed {seed}");
                    continue;
                }
                let from = origin(rng.index(4) as u8);
                let (id, gone) = greetings.add(from, ());
                model.push((id, from));
                let count = |from: Origin| model.iter().filter(|(_, it)| *it == from).count();
                let most = model.iter().map(|(_, from)| count(*from)).max().unwrap_or(0);
                assert_eq!(gone.is_some(), model.len() > limit, "seed {seed}");
                if let Some((from, ())) = gone {
                    assert_eq!(count(from), most, "seed {seed}");
                    let oldest = model.iter().position(|(_, it)| *it == from).expect("one");
                    model.remove(oldest);
                }
                let kept: Vec<u64> = greetings.entries.keys().copied().collect();
                let expected: Vec<u64> = model.iter().map(|(id, _)| *id).collect();
                assert_eq!(kept, expected, "seed {seed}");
            }
        }
    }
}
