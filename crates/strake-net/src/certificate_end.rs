//! When a certificate ends. It is read from the certificate's bytes (RFC 5280), because the library
//! that verifies certificates does not tell.
//!
//! ```text
//! Certificate ::= SEQUENCE { TBSCertificate, … }
//! TBSCertificate ::= SEQUENCE { [0] version, serial, algorithm, issuer, Validity, … }
//! Validity ::= SEQUENCE { notBefore Time, notAfter Time }
//! ```

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
/// `YYMMDDHHMMSSZ`; years below 50 are of this century.
const UTC_TIME: u8 = 0x17;
/// `YYYYMMDDHHMMSSZ`.
const GENERALIZED_TIME: u8 = 0x18;
const SECONDS_PER_DAY: i64 = 24 * 3600;

/// The second since 1970 at which a certificate ends. `None` if it has another form than ours.
pub(crate) fn end_of(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (SEQUENCE, whole, _) = element(certificate)? else { return None };
    let (SEQUENCE, body, _) = element(whole)? else { return None };
    let (tag, _, after) = element(body)?;
    let mut rest = if tag == VERSION { after } else { body };
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (tag, text, _) = element(element(validity)?.2)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, text) = match (tag, text.len()) {
        (UTC_TIME, 12) => {
            let year: i64 = text[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        (GENERALIZED_TIME, 14) => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let part = |at: usize| text[at..at + 2].parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) {
        return None;
    }
    let seconds = part(4)? * 3600 + part(6)? * 60 + part(8)?;
    Some(days(year, month, day) * SECONDS_PER_DAY + seconds)
}

/// The first element: its tag, its contents, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        length @ 0..=0x7f => (usize::from(length), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => (usize::from(*rest.first()?) << 8 | usize::from(*rest.get(1)?), rest.get(2..)?),
        _ => return None,
    };
    Some((*tag, rest.get(..length)?, rest.get(length..)?))
}

/// The days from 1970-01-01 to a date. The year is counted from March, so that the day that some
/// years have more is the last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap = year / 4 - year / 100 + year / 400;
    // 719,469 days lie between the first of March of year 0 and 1970-01-01, less one for `day`.
    year * 365 + leap + (month * 153 + 2) / 5 + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{ClusterAuthority, new_key, public_key};
    use std::sync::Arc;
    use std::time::Duration;
    use strake_env::{Clock, ManualClock, Rng};
    use strake_proto::{ClusterId, NodeIdentity, Roles};

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [((1970, 1, 1), 0), ((1970, 3, 1), 59), ((2000, 2, 29), 11_016)];
        for ((year, month, day), expected) in cases.into_iter().chain([((2026, 11, 25), 20_782)]) {
            assert_eq!(days(year, month, day), expected, "{year}-{month}-{day}");
        }
    }

    fn certificate(clock: Arc<ManualClock>) -> CertificateDer<'static> {
        let cluster = ClusterId([7; 16]);
        let clock = clock as Arc<dyn Clock>;
        let authority = ClusterAuthority::create(cluster, clock).expect("an authority");
        let name = "n1".parse().expect("a name");
        let identity = NodeIdentity { cluster, name, roles: Roles::ALL };
        let key = public_key(&new_key().expect("a key"));
        authority.sign(&identity, &key).expect("signed")
    }

    #[test]
    fn the_end_is_the_years_after_the_beginning_that_the_authority_gives() {
        let clock = Arc::new(ManualClock::default());
        let now = clock.wall().seconds;
        let end = end_of(&certificate(Arc::clone(&clock))).expect("it is ours");
        let years = (end - now) as f64 / 86_400.0 / 365.0;
        assert!(years > 0.9 && (years - years.round()).abs() < 0.01, "{years} years");
        clock.advance(Duration::from_secs(1000));
        assert_eq!(end_of(&certificate(clock)), Some(end + 1000));
    }

    #[test]
    fn damaged_certificates_are_refused_or_have_some_end() {
        let certificate = certificate(Arc::new(ManualClock::default()));
        let mut rng = Rng::new(55);
        for _ in 0..20_000 {
            let mut bytes = certificate.to_vec();
            let length = bytes.len();
            for _ in 0..=rng.below(3) {
                bytes[rng.index(length)] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.index(length + 1));
            // It must not panic.
            let _ = end_of(&bytes.into());
        }
    }
}
