//! The bytes that the benchmark writes. A reader can prove that it reads the right ones.
//!
//! The byte at every offset of every data file is a function of (seed, file, generation, offset). A
//! reader therefore needs no copy to compare with, and its record size may differ from the
//! writer's. It notices a record that went to the wrong place or to the wrong file, and a record
//! that a rewrite did not replace. The content does not compress, and no two 8-byte words of a file
//! are equal.
//!
//! Layout: word w (bytes 8w…8w+7, little-endian) is `mix2(key + w * STEP)`; `key` is derived
//! from seed, file and generation.

use crate::pattern::mix;

/// Odd, so that the walk over words visits every 64-bit value before it repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names the content of one data file at one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    key: u64,
}

/// The first byte that differs from the byte that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The byte that belongs there.
    pub expected: u8,
    /// The byte that was read.
    pub found: u8,
}

impl Content {
    /// The content of file number `file` after its `generation`-th writing.
    pub fn new(seed: u64, file: u64, generation: u64) -> Self {
        Content { key: mix(mix(mix(seed) ^ file) ^ generation) }
    }

    fn word(self, index: u64) -> u64 {
        let value = self.key.wrapping_add(index.wrapping_mul(STEP));
        value ^ (value >> 29)
    }

    /// Fills `buffer` with the bytes that belong at `offset`.
    pub fn fill(self, offset: u64, buffer: &mut [u8]) {
        let (head, skip) = self.head(offset, buffer.len());
        for (position, byte) in buffer[..head].iter_mut().enumerate() {
            *byte = self.word(offset / 8).to_le_bytes()[skip + position];
        }
        let mut index = (offset + head as u64) / 8;
        let mut words = buffer[head..].chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        let tail = words.into_remainder();
        let last = self.word(index).to_le_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
    }

    /// Compares `buffer`, read at `offset`, with what belongs there.
    pub fn check(self, offset: u64, buffer: &[u8]) -> Result<(), Mismatch> {
        let (head, _) = self.head(offset, buffer.len());
        let first = (offset + head as u64) / 8;
        // Differences are gathered over the whole record without a branch; only a bad record
        // is then searched byte by byte.
        let words = buffer[head..].chunks_exact(8);
        let tail = words.remainder();
        let mut difference = 0;
        for (index, chunk) in (first..).zip(words) {
            let word = <[u8; 8]>::try_from(chunk).expect("invariant: chunks of eight bytes");
            difference |= u64::from_le_bytes(word) ^ self.word(index);
        }
        if difference != 0 {
            return self.search(offset, buffer);
        }
        self.search(offset, &buffer[..head])?;
        let tail_offset = offset + (buffer.len() - tail.len()) as u64;
        self.search(tail_offset, tail)
    }

    fn search(self, offset: u64, buffer: &[u8]) -> Result<(), Mismatch> {
        for (position, &found) in buffer.iter().enumerate() {
            let at = offset + position as u64;
            let expected = self.word(at / 8).to_le_bytes()[(at % 8) as usize];
            if expected != found {
                return Err(Mismatch { offset: at, expected, found });
            }
        }
        Ok(())
    }

    /// How many bytes come before the first whole word, and where in their own word they begin.
    fn head(self, offset: u64, length: usize) -> (usize, usize) {
        let skip = (offset % 8) as usize;
        (if skip == 0 { 0 } else { (8 - skip).min(length) }, skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Dice;

    #[test]
    fn one_flipped_byte_is_found_wherever_it_is() {
        for seed in 0..500 {
            let mut dice = Dice::new(seed);
            let content = Content::new(dice.roll(), dice.below(9), dice.below(9));
            let offset = dice.below(1 << 40);
            let mut buffer = vec![0; 1 + dice.below(5_000) as usize];
            content.fill(offset, &mut buffer);
            assert_eq!(content.check(offset, &buffer), Ok(()), "seed {seed}");
            let victim = dice.below(buffer.len() as u64) as usize;
            let expected = buffer[victim];
            buffer[victim] ^= 1 << dice.below(8);
            let found =
                Mismatch { offset: offset + victim as u64, expected, found: buffer[victim] };
            assert_eq!(content.check(offset, &buffer), Err(found), "seed {seed}");
        }
    }

    #[test]
    fn content_does_not_depend_on_the_record_size() {
        let content = Content::new(1, 2, 3);
        let mut whole = vec![0; 10_000];
        content.fill(4_321, &mut whole);
        let mut parts = vec![0; 10_000];
        let mut at = 0;
        for size in (1..).take_while(|size| size * (size + 1) / 2 <= 10_000) {
            content.fill(4_321 + at as u64, &mut parts[at..at + size]);
            at += size;
        }
        assert_eq!(whole[..at], parts[..at]);
    }

    #[test]
    fn place_file_generation_and_seed_all_matter() {
        let mut buffer = vec![0; 64];
        Content::new(1, 2, 3).fill(0, &mut buffer);
        assert!(Content::new(1, 2, 3).check(8, &buffer).is_err());
        assert!(Content::new(1, 2, 4).check(0, &buffer).is_err());
        assert!(Content::new(1, 3, 3).check(0, &buffer).is_err());
        assert!(Content::new(2, 2, 3).check(0, &buffer).is_err());
    }
}
