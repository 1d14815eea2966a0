//! Quantities and how they are written: what a user types, what a library file holds, what a
//! table shows.
//!
//! The unit rules are those of the reference documents, because architects compare against them:
//! a disk's raw capacity counts in powers of ten (what its maker prints), every other capacity
//! and every rate in powers of two (`TB` = 2^40 B, `GB/s` = 2^30 B/s). `TiB` and `GiB/s` always
//! mean powers of two. Line speeds in bits (`Gb/s`) count in powers of ten. Inside the planner a
//! quantity is a plain number of bytes, bytes per second or operations per second.

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize};

/// 2^10.
pub const KIB: f64 = 1024.0;
/// 2^20.
pub const MIB: f64 = KIB * 1024.0;
/// 2^30.
pub const GIB: f64 = MIB * 1024.0;
/// 2^40.
pub const TIB: f64 = GIB * 1024.0;
/// 10^12.
pub const TERA: f64 = 1e12;

/// What a figure counts, and so how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A maker's capacity, printed in powers of ten.
    RawBytes,
    /// A capacity, printed in powers of two.
    Bytes,
    /// A rate, printed in powers of two.
    BytesPerSecond,
    /// 4 KiB operations per second.
    OperationsPerSecond,
    /// Things.
    Count,
    /// A dimensionless ratio.
    Ratio,
    /// Time.
    Seconds,
    /// Time in seconds, printed in years.
    Years,
    /// A probability, or a rate of rare faults.
    Probability,
    /// Height in a rack.
    RackUnits,
    /// Money, in the library's currency.
    Price,
    /// Power.
    Watts,
    /// Heat.
    BtuPerHour,
    /// Weight.
    Kilograms,
}

impl Unit {
    /// The value with its unit, rounded for reading.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::RawBytes => scaled(value, 1000.0, ""),
            Unit::Bytes => scaled(value, 1024.0, ""),
            Unit::BytesPerSecond => scaled(value, 1024.0, "/s"),
            Unit::OperationsPerSecond => format!("{} IOP/s", thousands(value)),
            Unit::Count => thousands(value),
            Unit::Ratio => format!("{value:.3}"),
            Unit::Seconds if value < 1e-3 => format!("{:.0} µs", value * 1e6),
            Unit::Seconds if value < 1.0 => format!("{:.1} ms", value * 1e3),
            Unit::Seconds if value < 7200.0 => format!("{value:.0} s"),
            Unit::Seconds => format!("{:.1} h", value / 3600.0),
            Unit::Years => {
                let years = value / crate::reliability::YEAR;
                match years {
                    years if years < 1e6 => format!("{} years", thousands(years)),
                    years => format!("{years:.1e} years"),
                }
            }
            Unit::Probability if value == 0.0 => "0".into(),
            Unit::Probability if value < 1e-3 => format!("{value:.1e}"),
            Unit::Probability => format!("{value:.4}"),
            Unit::RackUnits => format!("{}U", thousands(value)),
            Unit::Price => thousands(value),
            Unit::Watts if value >= 10_000.0 => format!("{} kW", trimmed(value / 1000.0, 1)),
            Unit::Watts => format!("{} W", thousands(value)),
            Unit::BtuPerHour => format!("{} BTU/h", thousands(value)),
            Unit::Kilograms => format!("{} kg", thousands(value)),
        }
    }
}

fn scaled(value: f64, step: f64, suffix: &str) -> String {
    let mut value = value;
    let mut prefix = "";
    for next in ["K", "M", "G", "T", "P", "E"] {
        // Rates below 1 GB/s read better in MB/s, so a step is taken only when it is full.
        if value.abs() < step {
            break;
        }
        value /= step;
        prefix = next;
    }
    let digits = if value.abs() >= 100.0 { 1 } else { 2 };
    format!("{} {prefix}B{suffix}", trimmed(value, digits))
}

/// A number with at most `digits` decimals and no trailing zeros.
pub fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    }
}

/// A count with thousands separated by commas; decimals only where the number has some.
pub fn thousands(value: f64) -> String {
    let whole = if value.abs() >= 1000.0 { value.round() } else { value };
    let text = trimmed(whole, 2);
    let (digits, rest) = match text.split_once('.') {
        Some((digits, rest)) => (digits, format!(".{rest}")),
        None => (text.as_str(), String::new()),
    };
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && digit != '-' && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out + &rest
}

/// Reads a capacity; `tb` without an `i` counts in powers of `base` (1000 for raw, 1024 else).
/// A bare number is refused: `500` is far more often 500 TB than 500 bytes.
pub fn parse_capacity(text: &str, base: f64) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        let bare = text.trim();
        return Err(format!(
            "'{bare}' has no unit; write for example {bare}TB, {bare}M or {bare}B"
        ));
    }
    let factor =
        prefix_factor(unit.strip_suffix(['b', 'B']).unwrap_or(unit), base).ok_or_else(|| {
            format!("'{text}' is no capacity; write for example 2TB, 500TiB or 300GB")
        })?;
    finite(text, number * factor)
}

/// Reads a rate: `1.6GB/s` and `MB/s` in powers of two, `10Gb/s` in bits and powers of ten.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is no rate; write for example 1.6GB/s, 80MB/s or 10Gb/s");
    let (number, unit) = split(text)?;
    let unit = unit.strip_suffix("/s").ok_or_else(wrong)?;
    if let Some(prefix) = unit.strip_suffix('b') {
        return finite(text, number * prefix_factor(prefix, 1000.0).ok_or_else(wrong)? / 8.0);
    }
    let prefix = unit.strip_suffix('B').ok_or_else(wrong)?;
    finite(text, number * prefix_factor(prefix, 1024.0).ok_or_else(wrong)?)
}

fn finite(text: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() { Ok(value) } else { Err(format!("'{text}' is too large")) }
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("'{text}' is negative; write a number above 0 with its unit"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 =
        number.parse().map_err(|_| format!("'{text}' does not begin with a number"))?;
    Ok((number, unit.trim()))
}

fn prefix_factor(prefix: &str, base: f64) -> Option<f64> {
    let (letter, base) = match prefix.strip_suffix('i') {
        Some("") => return None,
        Some(letter) => (letter, 1024.0),
        None => (prefix, base),
    };
    let power = match letter {
        "" => 0,
        "K" | "k" => 1,
        "M" | "m" => 2,
        "G" | "g" => 3,
        "T" | "t" => 4,
        "P" | "p" => 5,
        _ => return None,
    };
    Some(base.powi(power))
}

/// The shortest text in powers of two that is exactly the number: `4MiB`, `1234B`.
fn exact(value: f64) -> String {
    let mut value = value;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value == 0.0 || value % 1024.0 != 0.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value}{unit}")
}

/// A quantity as it is written: text. A bare number gets a message that says how to write it.
struct Written;

impl Visitor<'_> for Written {
    type Value = String;

    fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str("a quantity with its unit in quotes, for example \"4M\" or \"1.6GB/s\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_string())
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $suffix:literal, $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct $name(pub f64);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(Written)?;
                let parse: fn(&str) -> Result<f64, String> = $parse;
                parse(&text).map($name).map_err(D::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                // Text that reads back as the same number, since the fields are read from text.
                serializer.serialize_str(&(exact(self.0) + $suffix))
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<f64, String> = $parse;
                parse(text).map($name)
            }
        }
    };
}

quantity!(
    /// Bytes as a disk's maker counts them: `2TB` is 2 * 10^12.
    RawCapacity,
    "",
    |text| parse_capacity(text, 1000.0)
);
quantity!(
    /// Bytes in powers of two: `500TB` is 500 * 2^40, `4M` is 4 * 2^20.
    Capacity,
    "",
    |text| parse_capacity(text, 1024.0)
);
quantity!(
    /// Bytes per second.
    Rate,
    "/s",
    parse_rate
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_rules_of_the_documents() {
        assert_eq!(parse_capacity("2TB", 1000.0), Ok(2e12));
        assert_eq!(parse_capacity("2 TB", 1024.0), Ok(2.0 * TIB));
        assert_eq!(parse_capacity("2TiB", 1000.0), Ok(2.0 * TIB));
        assert_eq!(parse_capacity("4M", 1024.0), Ok(4.0 * MIB));
        assert_eq!(parse_rate("1.6GB/s"), Ok(1.6 * GIB));
        assert_eq!(parse_rate("10Gb/s"), Ok(1.25e9));
    }

    #[test]
    fn wrong_units_are_refused_with_an_example() {
        for text in ["", "TB", "3XB", "5 iB", "1.2.3TB", "500", "4096 ", "-5TB"] {
            assert!(parse_capacity(text, 1024.0).is_err(), "{text}");
        }
        for text in ["5GB", "GB/s", "5 furlongs/s", "9Gi/s"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_read_as_in_the_documents() {
        assert_eq!(Unit::RawBytes.show(720e12), "720 TB");
        assert_eq!(Unit::Bytes.show(16e12), "14.55 TB");
        assert_eq!(Unit::BytesPerSecond.show(4.8 * GIB), "4.8 GB/s");
        assert_eq!(Unit::OperationsPerSecond.show(12000.0), "12,000 IOP/s");
        assert_eq!(Unit::Count.show(1234567.0), "1,234,567");
        assert_eq!(Unit::Seconds.show(0.0334), "33.4 ms");
    }
}
