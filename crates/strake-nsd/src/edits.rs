//! A change of the index as the journal holds it: the keys put and deleted. Replaying applies these
//! keys and decides nothing again, so it cannot decide differently. The decision depended on which
//! commits had begun, and the journal does not record that.
//!
//! ```text
//! 0   1  format (1)
//! 1   4  number of edits, little-endian
//! 5   …  edits, each:
//!        0  1  1 put, 2 delete
//!        1  1  bytes of the key
//!        2  …  key
//!        …  4  bytes of the value (put only), little-endian
//!        …  …  value (put only)
//! ```
//! A checksum in the journal's own record covers the bytes.

use crate::record::Damaged;

const FORMAT: u8 = 1;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Keys with their new values. `None` deletes a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits(pub Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Edits {
    /// Adds a value.
    pub fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.0.push((key.to_vec(), Some(value)));
    }

    /// Adds a deletion.
    pub fn delete(&mut self, key: &[u8]) {
        self.0.push((key.to_vec(), None));
    }

    /// True if there are no edits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes for the journal.
    pub fn encode(&self) -> Vec<u8> {
        let size =
            self.0.iter().map(|(key, value)| 6 + key.len() + value_len(value)).sum::<usize>();
        let mut bytes = Vec::with_capacity(5 + size);
        bytes.push(FORMAT);
        bytes.extend_from_slice(&u32_of(self.0.len()).to_le_bytes());
        for (key, value) in &self.0 {
            let key_length = u8::try_from(key.len()).expect("invariant: keys are short");
            bytes.extend_from_slice(&[if value.is_some() { PUT } else { DELETE }, key_length]);
            bytes.extend_from_slice(key);
            if let Some(value) = value {
                bytes.extend_from_slice(&u32_of(value.len()).to_le_bytes());
                bytes.extend_from_slice(value);
            }
        }
        bytes
    }

    /// Reads what [`Edits::encode`] wrote.
    ///
    /// # Errors
    /// [`Damaged`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Edits, Damaged> {
        const SHORT: Damaged = Damaged("short journal entry");
        let (&[format], rest) = bytes.split_first_chunk::<1>().ok_or(SHORT)?;
        let (count, mut rest) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
        if format != FORMAT {
            return Err(Damaged("unknown format of a journal entry"));
        }
        let mut edits = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (&[kind, key_length], after) = rest.split_first_chunk::<2>().ok_or(SHORT)?;
            let (key, after) = after.split_at_checked(usize::from(key_length)).ok_or(SHORT)?;
            rest = after;
            let value = match kind {
                DELETE => None,
                PUT => {
                    let (length, after) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
                    let length = u32::from_le_bytes(*length) as usize;
                    let (value, after) = after.split_at_checked(length).ok_or(SHORT)?;
                    rest = after;
                    Some(value.to_vec())
                }
                _ => return Err(Damaged("unknown edit")),
            };
            edits.push((key.to_vec(), value));
        }
        if rest.is_empty() { Ok(Edits(edits)) } else { Err(Damaged("bytes behind the edits")) }
    }
}

fn value_len(value: &Option<Vec<u8>>) -> usize {
    value.as_ref().map_or(0, Vec::len)
}

fn u32_of(length: usize) -> u32 {
    u32::try_from(length).expect("invariant: entries are far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    fn example() -> Edits {
        let mut edits = Edits::default();
        edits.put(b"key", vec![9, 8]);
        edits.delete(b"k");
        edits
    }

    #[test]
    fn golden_bytes() {
        let golden = [1, 2, 0, 0, 0, 1, 3, b'k', b'e', b'y', 2, 0, 0, 0, 9, 8, 2, 1, b'k'];
        assert_eq!(example().encode(), golden);
        assert_eq!(Edits::decode(&golden), Ok(example()));
    }

    #[test]
    fn mutated_entries_are_refused_or_read_but_never_panic() {
        let mut rng = Rng::new(1);
        let good = example().encode();
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            bytes.truncate(rng.index(bytes.len() + 1));
            for _ in 0..rng.below(3) {
                if !bytes.is_empty() {
                    let at = rng.index(bytes.len());
                    bytes[at] = rng.next_u64() as u8;
                }
            }
            match Edits::decode(&bytes) {
                Ok(edits) => assert_eq!(edits.encode(), bytes, "one form for one meaning"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 10_000);
    }
}
