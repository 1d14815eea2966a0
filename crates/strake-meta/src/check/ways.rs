//! Which directories have a way to the root, each found once.
//!
//! A walk goes up from a directory until it meets one whose way is known, the root, or the end of
//! the way. Then it goes the same way once more and notes the outcome for each directory on it. A
//! walk that does not end is in a loop: a second mark follows it at half the speed and is met
//! there (Floyd, in Knuth, *Seminumerical Algorithms*, exercise 3.1-6).
//!
//! Memory: two bits for each number between directories' numbers, in pages.

use std::collections::BTreeMap;
use strake_proto::{Ino, Result};

/// What becomes of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It leads to the root.
    Root,
    /// It ends elsewhere, or never.
    Lost,
}

/// A page has this many numbers: 8 KiB.
const PAGE_NUMBERS: u64 = 1 << 15;
const BITS: u64 = 2;
const WORDS: usize = (PAGE_NUMBERS * BITS / 64) as usize;

/// The ways that are known.
#[derive(Default)]
pub(super) struct Ways {
    pages: BTreeMap<u64, Box<[u64; WORDS]>>,
}

/// The parent of a directory. `None` if it is none, or has no name.
type Parent<'a> = &'a mut dyn FnMut(Ino) -> Result<Option<Ino>>;

impl Ways {
    /// The way of a directory.
    ///
    /// # Errors
    /// Those of `parent`.
    pub(super) fn of(&mut self, ino: Ino, parent: Parent<'_>) -> Result<Way> {
        let way = self.walk(ino, parent)?;
        let mut at = Some(ino);
        while let Some(ino) = at.filter(|ino| self.known(*ino).is_none()) {
            self.note(ino, way);
            at = if ino == Ino::ROOT { None } else { parent(ino)? };
        }
        Ok(way)
    }

    fn walk(&self, ino: Ino, parent: Parent<'_>) -> Result<Way> {
        let (mut at, mut behind) = (ino, ino);
        for step in 0u64.. {
            if let Some(way) = self.known(at) {
                return Ok(way);
            }
            if at == Ino::ROOT {
                return Ok(Way::Root);
            }
            let Some(next) = parent(at)? else { return Ok(Way::Lost) };
            at = next;
            if step % 2 == 1 {
                behind = parent(behind)?.unwrap_or(Ino::ROOT);
            }
            if at == behind {
                return Ok(Way::Lost);
            }
        }
        unreachable!("the marks meet in every loop")
    }

    fn place(ino: Ino) -> (u64, usize, u32) {
        let bit = ino.0 % PAGE_NUMBERS * BITS;
        (ino.0 / PAGE_NUMBERS, (bit / 64) as usize, (bit % 64) as u32)
    }

    fn known(&self, ino: Ino) -> Option<Way> {
        let (page, word, bit) = Ways::place(ino);
        match self.pages.get(&page)?[word] >> bit & 3 {
            1 => Some(Way::Root),
            2 => Some(Way::Lost),
            _ => None,
        }
    }

    fn note(&mut self, ino: Ino, way: Way) {
        let (page, word, bit) = Ways::place(ino);
        let value = match way {
            Way::Root => 1,
            Way::Lost => 2,
        };
        self.pages.entry(page).or_insert_with(|| Box::new([0; WORDS]))[word] |= value << bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use strake_env::Rng;

    /// Walks to the end each time.
    fn obvious(parents: &HashMap<Ino, Ino>, ino: Ino) -> Way {
        let (mut at, mut seen) = (ino, HashSet::new());
        while at != Ino::ROOT {
            match parents.get(&at) {
                Some(parent) if seen.insert(at) => at = *parent,
                _ => return Way::Lost,
            }
        }
        Way::Root
    }

    fn all(parents: &HashMap<Ino, Ino>, count: u64, asked: &mut u64) -> Vec<Way> {
        let mut ways = Ways::default();
        let mut parent = |ino: Ino| {
            *asked += 1;
            Ok(parents.get(&ino).copied())
        };
        (1..=count).map(|ino| ways.of(Ino(ino), &mut parent).expect("no error")).collect()
    }

    #[test]
    fn ways_are_those_of_an_obvious_walk() {
        for seed in strake_env::rng::test_seeds(0, 300) {
            let mut rng = Rng::new(seed);
            let count = 1 + rng.below(40);
            let mut parents = HashMap::new();
            for ino in 2..=count {
                if !rng.one_in(20) {
                    let any = rng.one_in(10);
                    let parent = 1 + rng.below(if any { count } else { ino - 1 });
                    parents.insert(Ino(ino), Ino(parent));
                }
            }
            parents.insert(Ino::ROOT, Ino::ROOT);
            let expected: Vec<Way> = (1..=count).map(|ino| obvious(&parents, Ino(ino))).collect();
            assert_eq!(all(&parents, count, &mut 0), expected, "seed {seed}");
        }
    }

    #[test]
    fn a_deep_tree_takes_each_step_a_few_times() {
        const DEPTH: u64 = 400_000;
        // The deepest directory comes first.
        let up: HashMap<Ino, Ino> = (2..DEPTH).map(|ino| (Ino(ino), Ino(ino + 1))).collect();
        let mut chain = up.clone();
        chain.insert(Ino(DEPTH), Ino::ROOT);
        let mut ring = up;
        ring.insert(Ino(DEPTH), Ino(2));
        for (parents, way) in [(chain, Way::Root), (ring, Way::Lost)] {
            let mut asked = 0;
            let ways = all(&parents, DEPTH, &mut asked);
            assert!(ways[1..].iter().all(|found| *found == way));
            assert!(asked <= 5 * DEPTH, "{asked} steps");
        }
    }
}
