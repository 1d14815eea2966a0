//! The one table from error kinds to the numbers that Linux shows to applications.

use crate::error::ErrorKind;

/// The errno (x86-64 and aarch64 Linux) that an application sees for `kind`.
pub const fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NotPermitted => 1,
        ErrorKind::NotFound => 2,
        ErrorKind::Interrupted => 4,
        ErrorKind::Io
        | ErrorKind::Corrupt
        | ErrorKind::Fenced
        | ErrorKind::Internal
        | ErrorKind::Unreachable => 5,
        ErrorKind::NoDevice => 6,
        ErrorKind::TooBig => 7,
        ErrorKind::BadHandle => 9,
        ErrorKind::WouldBlock | ErrorKind::Retry | ErrorKind::OldMap => 11,
        ErrorKind::NoMemory => 12,
        ErrorKind::Access => 13,
        ErrorKind::Busy => 16,
        ErrorKind::Exists => 17,
        ErrorKind::CrossDevice => 18,
        ErrorKind::NotDirectory => 20,
        ErrorKind::IsDirectory => 21,
        ErrorKind::Invalid => 22,
        ErrorKind::NoIoctl => 25,
        ErrorKind::FileTooBig => 27,
        ErrorKind::NoSpace => 28,
        ErrorKind::ReadOnly => 30,
        ErrorKind::TooManyLinks => 31,
        ErrorKind::Range => 34,
        ErrorKind::Deadlock => 35,
        ErrorKind::NameTooLong => 36,
        ErrorKind::NoLocks => 37,
        ErrorKind::NoSystem => 38,
        ErrorKind::NotEmpty => 39,
        ErrorKind::Loop => 40,
        ErrorKind::NoAttribute => 61,
        ErrorKind::NotSupported => 95,
        ErrorKind::TimedOut => 110,
        ErrorKind::Stale | ErrorKind::NotBase => 116,
        ErrorKind::Quota => 122,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_maps_to_a_positive_errno() {
        assert_eq!(errno(ErrorKind::NotFound), 2);
        assert_eq!(errno(ErrorKind::NoSpace), 28);
        assert_eq!(errno(ErrorKind::NotEmpty), 39);
        assert_eq!(errno(ErrorKind::NoAttribute), 61);
    }
}
