//! Prints and encodes times for listings.

use std::time::Duration;
use strake_proto::Timestamp;

/// `HH:MM:SS`, `utc_offset_seconds` east of UTC.
pub(crate) fn time_of_day(time: Timestamp, utc_offset_seconds: i64) -> String {
    let seconds = time.seconds.saturating_add(utc_offset_seconds).rem_euclid(24 * 3600);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `HH:MM:SS.uuuuuu`, `utc_offset_seconds` east of UTC.
pub(crate) fn time_of_day_micros(time: Timestamp, utc_offset_seconds: i64) -> String {
    format!("{}.{:06}", time_of_day(time, utc_offset_seconds), time.nanos / 1000)
}

/// Encodes a duration as whole nanoseconds, so that JSON shows one number.
pub(crate) mod nanoseconds {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_wrap_in_both_directions() {
        let at = |seconds| Timestamp { seconds, nanos: 123_456_789 };
        assert_eq!(time_of_day(at(0), 0), "00:00:00");
        assert_eq!(time_of_day(at(-1), 0), "23:59:59");
        assert_eq!(time_of_day(at(86_399), 3600), "00:59:59");
        assert_eq!(time_of_day_micros(at(86_400 + 3661), -3600), "00:01:01.123456");
    }
}
