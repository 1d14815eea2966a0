//! The order in which a task visits its records. Every pattern visits each record exactly once.
//!
//! All of it is pure: a pattern, a record count and a seed give an iterator over record indices.
//! The iterator needs constant memory, whatever the count. A small Feistel network with cycle
//! walking computes random orders on the fly, so a run of 10^9 records needs no table. The same
//! seed gives the writer and the reader the same order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An access pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// Record 0, 1, 2, and so on.
    Sequential,
    /// The last record first.
    Backward,
    /// Take one record, skip `skip`, wrap around until all were taken.
    Strided {
        /// Records left out between two accesses.
        skip: u64,
    },
    /// A random permutation of all records.
    Random,
    /// As `Random`, but the records to come are announced to the file system.
    RandomHint,
    /// Shuffled inside successive windows.
    SemiRandom {
        /// Records per window.
        window: u64,
    },
}

/// The stride of the p690/x335 report: skip 100 records, take the next.
const STRIDE_SKIP_DEFAULT: u64 = 100;
/// The window of the semi-random pattern if the user gives none.
const WINDOW_DEFAULT: u64 = 64;

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let number = |default: u64, smallest: u64| match argument {
            None => Ok(default),
            Some(digits) => {
                digits.parse::<u64>().ok().filter(|n| (smallest..=1 << 40).contains(n)).ok_or_else(
                    || format!("`{digits}` in `{text}` must be a number from {smallest}"),
                )
            }
        };
        match name {
            "strided" => Ok(Pattern::Strided { skip: number(STRIDE_SKIP_DEFAULT, 0)? }),
            "semirandom" => Ok(Pattern::SemiRandom { window: number(WINDOW_DEFAULT, 1)? }),
            _ if argument.is_some() => Err(format!("pattern `{name}` takes no number")),
            "seq" | "sequential" => Ok(Pattern::Sequential),
            "backward" => Ok(Pattern::Backward),
            "rand" | "random" => Ok(Pattern::Random),
            "randhint" => Ok(Pattern::RandomHint),
            _ => Err(format!(
                "no pattern `{name}`; there are seq, backward, strided:SKIP, rand, randhint \
                 and semirandom:WINDOW"
            )),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Sequential => f.write_str("seq"),
            Pattern::Backward => f.write_str("backward"),
            Pattern::Strided { skip } => write!(f, "strided:{skip}"),
            Pattern::Random => f.write_str("rand"),
            Pattern::RandomHint => f.write_str("randhint"),
            Pattern::SemiRandom { window } => write!(f, "semirandom:{window}"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.to_string()
    }
}

impl Pattern {
    /// The visits of one task to `count` records. Different seeds shuffle differently.
    pub fn order(self, count: u64, seed: u64) -> Order {
        let permutation = match self {
            Pattern::Random | Pattern::RandomHint => Some(Permutation::new(count, seed)),
            _ => None,
        };
        Order { pattern: self, count, seed, visited: 0, cursor: 0, permutation }
    }
}

/// Iterator over record indices below `count`, each exactly once.
#[derive(Debug, Clone)]
pub struct Order {
    pattern: Pattern,
    count: u64,
    seed: u64,
    visited: u64,
    /// Where the strided pattern stands.
    cursor: u64,
    permutation: Option<Permutation>,
}

impl Iterator for Order {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.visited == self.count {
            return None;
        }
        let turn = self.visited;
        self.visited += 1;
        Some(match self.pattern {
            Pattern::Sequential => turn,
            Pattern::Backward => self.count - 1 - turn,
            Pattern::Strided { skip } => self.strided(skip),
            Pattern::Random | Pattern::RandomHint => self
                .permutation
                .as_ref()
                .expect("invariant: random orders are made with their permutation")
                .at(turn),
            Pattern::SemiRandom { window } => self.semi_random(turn, window),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.count - self.visited).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl Order {
    fn strided(&mut self, skip: u64) -> u64 {
        let here = self.cursor;
        let step = skip.saturating_add(1);
        // Past the end, the walk starts again one record further than last time. It reaches every
        // residue once: the lanes 0, 1, … step-1 partition the records.
        self.cursor = match here.checked_add(step) {
            Some(next) if next < self.count => next,
            _ => here % step + 1,
        };
        here
    }

    fn semi_random(&mut self, turn: u64, window: u64) -> u64 {
        let inside = turn % window;
        let base = turn - inside;
        if inside == 0 {
            let width = window.min(self.count - base);
            self.permutation = Some(Permutation::new(width, mix(self.seed ^ base)));
        }
        let permutation = self.permutation.as_ref();
        base + permutation
            .expect("invariant: a window's first turn makes its permutation")
            .at(inside)
    }
}

/// A bijection of `0..count`: four Feistel rounds over the next even power of two, repeated
/// until the value falls below `count` (fewer than four steps on average).
#[derive(Debug, Clone)]
struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let mut key = seed;
        let keys = std::array::from_fn(|_| {
            key = mix(key.wrapping_add(0x9e37_79b9_7f4a_7c15));
            key
        });
        Permutation { count, half_bits: bits.div_ceil(2).max(1), keys }
    }

    fn at(&self, index: u64) -> u64 {
        assert!(index < self.count, "index {index} of {}", self.count);
        let mask = (1 << self.half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mix(right ^ key) & mask));
            }
            value = left << self.half_bits | right;
            if value < self.count {
                return value;
            }
        }
    }
}

/// SplitMix64's finaliser: a cheap bijection of 64-bit words that spreads every input bit.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A seeded sequence of words, for choices that must repeat from run to run.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// A sequence that depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// The next word.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern_of(dice: &mut Dice) -> Pattern {
        match dice.below(6) {
            0 => Pattern::Sequential,
            1 => Pattern::Backward,
            2 => Pattern::Strided { skip: dice.below(300) },
            3 => Pattern::Random,
            4 => Pattern::RandomHint,
            _ => Pattern::SemiRandom { window: 1 + dice.below(200) },
        }
    }

    #[test]
    fn every_pattern_touches_every_record_exactly_once() {
        for seed in 0..2_000 {
            let mut dice = Dice::new(seed);
            let pattern = pattern_of(&mut dice);
            let count = dice.below(if seed % 10 == 0 { 20_000 } else { 300 });
            let mut seen = vec![0u8; count as usize];
            for index in pattern.order(count, dice.roll()) {
                seen[index as usize] += 1;
            }
            assert!(
                seen.iter().all(|&visits| visits == 1),
                "seed {seed}: {pattern} over {count} records"
            );
        }
    }

    #[test]
    fn the_named_orders_are_what_their_names_say() {
        let order = |pattern: &str, count| -> Vec<u64> {
            let pattern: Pattern = pattern.parse().unwrap();
            pattern.order(count, 7).collect()
        };
        assert_eq!(order("seq", 4), [0, 1, 2, 3]);
        assert_eq!(order("backward", 4), [3, 2, 1, 0]);
        assert_eq!(order("strided:2", 8), [0, 3, 6, 1, 4, 7, 2, 5]);
        assert_eq!(order("strided:100", 3), [0, 1, 2]);
        for (position, index) in order("semirandom:16", 100).into_iter().enumerate() {
            assert_eq!(index / 16, position as u64 / 16);
        }
    }

    #[test]
    fn random_orders_depend_on_the_seed_and_are_not_nearly_sequential() {
        let order = |seed| Pattern::Random.order(1_000, seed).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let neighbours = order(3).windows(2).filter(|w| w[0] + 1 == w[1]).count();
        assert!(neighbours < 20, "{neighbours} of 999 steps are sequential");
    }

    #[test]
    fn names_read_back_and_nonsense_is_refused() {
        for seed in 0..200 {
            let pattern = pattern_of(&mut Dice::new(seed));
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        for text in ["", "seq:3", "strided:x", "semirandom:0", "zigzag"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
