//! A small seeded generator (xoshiro256++, Blackman and Vigna 2019) for tests, placement-free
//! choices and identities; the seed reproduces the run. Not for keys: see [`Rng::from_entropy`].

/// A seeded pseudo-random generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator. All its numbers follow from `seed`.
    pub fn new(seed: u64) -> Rng {
        // SplitMix64 spreads the seed, so that seeds 0, 1, 2… give unrelated streams.
        let mut spread = seed;
        let state = std::array::from_fn(|_| {
            spread = spread.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = spread;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Rng { state }
    }

    /// A generator seeded by the operating system's entropy.
    ///
    /// # Errors
    /// When `/dev/urandom` cannot be read.
    pub fn from_entropy() -> std::io::Result<Rng> {
        let mut seed = [0u8; 32];
        entropy(&mut seed)?;
        let mut words = seed.chunks_exact(8);
        let state = std::array::from_fn(|_| {
            words.next().map_or(1, |word| {
                word.iter().fold(0u64, |value, &byte| (value << 8) | u64::from(byte))
            })
        });
        Ok(Rng { state })
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let mut next = [a, b, c ^ a, d ^ b];
        next[1] ^= next[2];
        next[0] ^= next[3];
        next[2] ^= b << 17;
        next[3] = next[3].rotate_left(45);
        self.state = next;
        result
    }

    /// Uniform in `0..bound`; `bound` > 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no members");
        // Multiply-shift: bias below 2⁻⁶⁴ × bound, of no weight here.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `0..bound` as an index.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// A random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// Fills `bytes` from the operating system's entropy; in a simulation from its seed.
///
/// # Errors
/// When `/dev/urandom` cannot be read.
pub fn entropy(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read;
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::fill_entropy(bytes) {
        return Ok(());
    }
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// The seeds of a test that runs `count` of them: `first..first + count`, moved up by the number in
/// the environment variable `STRAKE_SEED` where it is set (`make soak` counts it up).
///
/// # Panics
/// If `STRAKE_SEED` is no whole number: a soak with a mistyped seed would test nothing new.
pub fn test_seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let moved = std::env::var("STRAKE_SEED")
        .map_or(0, |text| text.parse::<u64>().expect("STRAKE_SEED is a whole number"));
    let from = first.wrapping_add(moved);
    from..from.saturating_add(count)
}

/// How many times as long as in `make test` a test must run. This is the number in the environment
/// variable `STRAKE_SIM_SCALE`, which `make soak` sets.
///
/// # Panics
/// If it is no whole number.
pub fn test_scale() -> u64 {
    std::env::var("STRAKE_SIM_SCALE")
        .map_or(1, |text| text.parse().expect("STRAKE_SIM_SCALE is a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reproduces_its_stream_and_seeds_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn below_reaches_every_member_and_no_other() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.index(5)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
    }
}
