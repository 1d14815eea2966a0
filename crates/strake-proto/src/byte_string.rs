//! Long byte strings in messages, encoded and decoded as one piece instead of byte by byte. The
//! bytes on the wire are those of a plain `Vec<u8>`: its length, then its contents.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

/// For a length that a message claims, a vector reserves at most this many bytes in advance.
const CAPACITY_MAX: usize = 1 << 16;

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes)
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    /// Formats without byte strings (JSON) write them as lists.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::with_capacity(list.size_hint().unwrap_or(0).min(CAPACITY_MAX));
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::meta::FileData;

    #[test]
    fn the_wire_form_is_that_of_a_vector() {
        let inline = FileData::Inline(vec![7; 300]);
        let bytes = postcard::to_allocvec(&inline).expect("encodes");
        let plain = postcard::to_allocvec(&(1u8, vec![7u8; 300])).expect("encodes");
        assert_eq!(bytes, plain);
        assert_eq!(postcard::from_bytes(&bytes), Ok(inline));
        assert!(postcard::from_bytes::<FileData>(&bytes[..200]).is_err());
    }
}
