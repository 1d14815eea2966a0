//! Sizes as people write them: `4M`, `4MiB` and `4194304` are the same number.
//!
//! Powers of two, as in the benchmark reports this tool follows (K = 2^10, M = 2^20). The one
//! exception is the network test, whose MB is 10^6; it says so where it prints.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// A number of bytes that reads and prints with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 6] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("`{text}` is not a size; write a number such as 4096, 64K, 4MiB or 1G");
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit = text[digits..].trim().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, shift)| *shift)
            .ok_or_else(bad)?;
        number
            .checked_mul(1 << shift)
            .map(ByteSize)
            .ok_or_else(|| format!("`{text}` is larger than 2^64 bytes"))
    }
}

impl fmt::Display for ByteSize {
    /// The largest unit that divides the number, so that nothing is rounded away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shift) = UNITS
            .iter()
            .rev()
            .find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift))
            .unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", self.0 >> shift)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(ByteSize(number)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A count such as `20k` or `20000`; here k is 1,000, as in "20k files".
pub fn parse_count(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, factor) = match lower.strip_suffix('k') {
        Some(rest) => (rest, 1_000),
        None => match lower.strip_suffix('m') {
            Some(rest) => (rest, 1_000_000),
            None => (lower.as_str(), 1),
        },
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is not a count; write a number such as 500, 20k or 1m"))
}

/// A length of time such as `500ms`, `10s`, `2m` or a bare number of seconds.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, factor) = if let Some(rest) = text.strip_suffix("ms") {
        (rest, 1e-3)
    } else if let Some(rest) = text.strip_suffix('s') {
        (rest, 1.0)
    } else if let Some(rest) = text.strip_suffix('m') {
        (rest, 60.0)
    } else {
        (text, 1.0)
    };
    match digits.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 && number * factor < 1e7 => {
            Ok(number * factor)
        }
        _ => Err(format!("`{text}` is not a time; write for example 500ms, 10s or 2m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_with_or_without_ib() {
        for (text, bytes) in [
            ("0", 0),
            ("47008", 47008),
            ("4k", 4096),
            ("4M", 4 << 20),
            ("4MiB", 4 << 20),
            ("4 MB", 4 << 20),
            ("1G", 1 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "M", "4X", "-1", "1.5G", "99999999999P", "4KK"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn printed_sizes_read_back() {
        for bytes in [0, 1, 1023, 1024, 47008, 4 << 20, (4 << 20) + 1, 10 << 30, 3 << 40] {
            let text = ByteSize(bytes).to_string();
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!(ByteSize(8 << 20).to_string(), "8M");
    }

    #[test]
    fn counts_and_times() {
        assert_eq!(parse_count("20k"), Ok(20_000));
        assert_eq!(parse_count("1m"), Ok(1_000_000));
        assert!(parse_count("k").is_err());
        assert_eq!(parse_seconds("500ms"), Ok(0.5));
        assert_eq!(parse_seconds("2m"), Ok(120.0));
        assert_eq!(parse_seconds("10"), Ok(10.0));
        assert!(parse_seconds("-1s").is_err() && parse_seconds("nan").is_err());
    }
}
