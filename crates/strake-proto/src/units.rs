//! Sizes and indexes. All units are powers of two: KiB, MiB, GiB.

use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// `count` KiB.
    pub const fn kib(count: u64) -> ByteCount {
        ByteCount(count * 1024)
    }
    /// `count` MiB.
    pub const fn mib(count: u64) -> ByteCount {
        ByteCount(count * 1024 * 1024)
    }
    /// `count` GiB.
    pub const fn gib(count: u64) -> ByteCount {
        ByteCount(count * 1024 * 1024 * 1024)
    }
}

impl fmt::Display for ByteCount {
    /// Writes the size exactly if it is a whole number of units, else with two decimals: `4 MiB`,
    /// `1.50 GiB`, `17 B`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 6] =
            [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 >> shift == 0 {
                continue;
            }
            if self.0.trailing_zeros() >= shift {
                return write!(out, "{} {unit}", self.0 >> shift);
            }
            let hundredths = (u128::from(self.0) * 100) >> shift;
            return write!(out, "{}.{:02} {unit}", hundredths / 100, hundredths % 100);
        }
        write!(out, "{} B", self.0)
    }
}

impl std::str::FromStr for ByteCount {
    type Err = Error;
    fn from_str(text: &str) -> Result<ByteCount> {
        parse_size(text)
    }
}

/// Reads a size such as `4M`, `4MiB`, `4mb`, `512` or `1G`. Units are powers of two.
///
/// # Errors
/// [`ErrorKind::Invalid`]; the message has the text and the accepted forms.
pub fn parse_size(text: &str) -> Result<ByteCount> {
    let bad = || {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "'{text}' is not a size: write a whole number with K, M, G, T, P or E, such as 4M or 4MiB"
            ),
        )
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(split);
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).map(ByteCount).ok_or_else(bad)
}

/// A block's number in its object, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct BlockIndex(pub u64);

impl BlockIndex {
    /// One past the last block that an object can have. It is the open end of a range deletion.
    pub const END: BlockIndex = BlockIndex(u64::MAX);
}

impl fmt::Display for BlockIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, bytes) in [("4M", 4 << 20), ("4MiB", 4 << 20), ("1G", 1 << 30), ("17", 17)] {
            assert_eq!(parse_size(text).expect("valid"), ByteCount(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_are_refused_with_advice() {
        for text in ["", "M", "-1", "4X", "1.5G", "99999999999E"] {
            let error = parse_size(text).expect_err("must be refused");
            assert!(error.to_string().contains("4MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_print_shortest() {
        assert_eq!(ByteCount::mib(4).to_string(), "4 MiB");
        assert_eq!(ByteCount(3 << 29).to_string(), "1.50 GiB");
        assert_eq!(ByteCount(17).to_string(), "17 B");
    }
}
