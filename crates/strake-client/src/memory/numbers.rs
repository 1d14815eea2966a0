//! Maps by inode or handle number. Strake itself gives these numbers, one after the other, so an
//! attacker cannot choose colliding ones. A multiplication spreads them well enough, at a tenth of
//! the cost of the standard hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number that Strake gives.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// 2⁶⁴ divided by the golden ratio, made odd.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the module.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The table uses the low bits. A multiplication alone leaves them as regular as the numbers
        // of one shard are.
        self.0 ^ (self.0 >> 32)
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(SPREAD);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_one_shard_are_spread() {
        let place = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish() % 1024
        };
        let places: HashSet<u64> = (0..1024).map(|number| place(number * 32 + 5)).collect();
        assert!(places.len() > 512, "{} places of 1024", places.len());
    }
}
