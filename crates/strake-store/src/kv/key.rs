//! A key in memory. Nearly all keys are short, and short keys lie in the tree's node itself. A
//! search compares a dozen keys. Each key that lies elsewhere costs a wait for memory.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// Keys of at most this many bytes are short. With length and tag they take five words.
const SHORT_BYTES_MAX: usize = 38;

/// A key. Keys are ordered as their bytes are.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Short { length: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<Key>() == 40, "a key takes five words");

impl Key {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Key::Short { length, bytes } => &bytes[..usize::from(*length)],
            Key::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Key {
        if key.len() > SHORT_BYTES_MAX {
            return Key::Long(key.into());
        }
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Key::Short { length: key.len() as u8, bytes }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_keep_their_bytes_and_order() {
        let keys: Vec<Vec<u8>> = (0..80).map(|length| vec![7; length]).collect();
        for pair in keys.windows(2) {
            let (a, b) = (Key::from(&pair[0][..]), Key::from(&pair[1][..]));
            assert_eq!(a.bytes(), &pair[0][..]);
            assert!(a < b && a == a.clone() && a != b);
        }
        assert!(Key::from(&[8u8][..]) > Key::from(&[7u8; 50][..]));
    }
}
