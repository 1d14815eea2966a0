//! CRC32C of each 4 KiB unit of a strip. The seed names the place. So bytes that are whole but
//! stand in the wrong place (another strip, an older version, another unit of the same strip) do
//! not pass either.
//!
//! A unit's checksum is the CRC32C (Castagnoli, reflected, initial value and final xor all ones:
//! the one of iSCSI, RFC 3720) of these bytes one after the other, integers little-endian:
//!
//! ```text
//! 0   4  file system id
//! 4   8  object id
//! 12  8  block index
//! 20  1  strip index
//! 21  8  version: grant number
//! 29  8  version: counter
//! 37  4  index of the unit within the strip
//! 41  …  the unit, 4096 bytes
//! ```
//!
//! This is on disk and on the wire, and never changes. The first 37 bytes are hashed once per
//! strip.

use strake_proto::limits::UNIT_BYTES;
use strake_proto::{StripKey, Version};

/// The hash of the prefix that all units of one strip at one version share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(u32);

impl ChecksumSeed {
    /// The seed of strip `key` at `version`.
    pub fn new(key: &StripKey, version: Version) -> ChecksumSeed {
        let mut bytes = [0u8; 37];
        bytes[0..4].copy_from_slice(&key.fs.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&key.object.0.to_le_bytes());
        bytes[12..20].copy_from_slice(&key.block.0.to_le_bytes());
        bytes[20] = key.strip.0;
        bytes[21..29].copy_from_slice(&version.grant.0.to_le_bytes());
        bytes[29..37].copy_from_slice(&version.counter.to_le_bytes());
        ChecksumSeed(crc32c::crc32c(&bytes))
    }

    /// Turns checksums of units under this seed into checksums of the same units under `other`:
    /// each is xored with the result. That is one number for all units, because a CRC is linear:
    /// the difference of two CRCs depends on the difference of their seeds and on the number of
    /// bytes that follow, and not on these bytes.
    pub fn difference(self, other: ChecksumSeed) -> u32 {
        const ZEROS: [u8; 4 + UNIT_BYTES] = [0; 4 + UNIT_BYTES];
        crc32c::crc32c_append(self.0, &ZEROS) ^ crc32c::crc32c_append(other.0, &ZEROS)
    }

    /// The checksum of the unit with that index in the strip.
    pub fn unit(self, unit_index: u32, unit: &[u8]) -> u32 {
        debug_assert_eq!(unit.len(), UNIT_BYTES, "a unit has 4 KiB");
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &unit_index.to_le_bytes()), unit)
    }
}

/// The checksums of all units of a whole strip, whose length is a multiple of 4 KiB.
pub fn strip_checksums(key: &StripKey, version: Version, strip: &[u8]) -> Vec<u32> {
    assert_eq!(strip.len() % UNIT_BYTES, 0, "a strip is a multiple of 4 KiB");
    let seed = ChecksumSeed::new(key, version);
    (0u32..)
        .zip(strip.chunks_exact(UNIT_BYTES))
        .map(|(index, unit)| seed.unit(index, unit))
        .collect()
}

/// Verifies part of a strip: `bytes` begin at unit `first_unit` of the strip, and `checksums` are
/// those of its units. Returns the index within `bytes` of the first unit that does not match;
/// `None` means that all are good. A missing checksum counts as bad.
pub fn first_bad_unit(
    key: &StripKey,
    version: Version,
    first_unit: u32,
    bytes: &[u8],
    checksums: &[u32],
) -> Option<usize> {
    assert_eq!(bytes.len() % UNIT_BYTES, 0, "a strip is a multiple of 4 KiB");
    let seed = ChecksumSeed::new(key, version);
    let mut units = (first_unit..).zip(bytes.chunks_exact(UNIT_BYTES)).enumerate();
    units
        .find(|(at, (index, unit))| checksums.get(*at) != Some(&seed.unit(*index, unit)))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::{BlockIndex, FsId, GrantNumber, ObjectId, StripIndex};

    const KEY: StripKey =
        StripKey { fs: FsId(1), object: ObjectId(2), block: BlockIndex(3), strip: StripIndex(4) };
    const VERSION: Version = Version { grant: GrantNumber(5), counter: 6 };

    fn strip() -> Vec<u8> {
        (0..3 * UNIT_BYTES).map(|at| (at * 7 % 251) as u8).collect()
    }

    #[test]
    fn golden_checksums() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "the algorithm's check value");
        assert_eq!(
            strip_checksums(&KEY, VERSION, &strip()),
            [0x1875_a1e9, 0x5da7_73c9, 0x326e_ea0b]
        );
    }

    #[test]
    fn checksums_of_one_version_become_those_of_another() {
        let newer = Version { grant: GrantNumber(9), counter: 1 };
        let seed = ChecksumSeed::new(&KEY, VERSION);
        let change = seed.difference(ChecksumSeed::new(&KEY, newer));
        let changed: Vec<u32> =
            strip_checksums(&KEY, VERSION, &strip()).iter().map(|sum| sum ^ change).collect();
        assert_eq!(changed, strip_checksums(&KEY, newer, &strip()));
    }

    #[test]
    fn another_place_or_version_or_bit_is_found() {
        let (strip, sums) = (strip(), strip_checksums(&KEY, VERSION, &strip()));
        let bad =
            |key, version, first, bytes: &[u8]| first_bad_unit(&key, version, first, bytes, &sums);
        assert_eq!(bad(KEY, VERSION, 0, &strip), None);
        let keys = [
            StripKey { fs: FsId(2), ..KEY },
            StripKey { object: ObjectId(3), ..KEY },
            StripKey { block: BlockIndex(2), ..KEY },
            StripKey { strip: StripIndex(5), ..KEY },
        ];
        for key in keys {
            assert_eq!(bad(key, VERSION, 0, &strip), Some(0), "{key}");
        }
        assert_eq!(bad(KEY, Version { counter: 7, ..VERSION }, 0, &strip), Some(0));
        assert_eq!(bad(KEY, Version { grant: GrantNumber(6), ..VERSION }, 0, &strip), Some(0));
        assert_eq!(bad(KEY, VERSION, 1, &strip), Some(0), "units know their index");
        for at in [0, UNIT_BYTES, 2 * UNIT_BYTES + 4095] {
            let mut torn = strip.clone();
            torn[at] ^= 0x10;
            assert_eq!(bad(KEY, VERSION, 0, &torn), Some(at / UNIT_BYTES));
        }
    }

    #[test]
    fn parts_verify_alone_and_missing_checksums_are_bad() {
        let (strip, sums) = (strip(), strip_checksums(&KEY, VERSION, &strip()));
        let tail = &strip[UNIT_BYTES..];
        assert_eq!(first_bad_unit(&KEY, VERSION, 1, tail, &sums[1..]), None);
        assert_eq!(first_bad_unit(&KEY, VERSION, 1, tail, &sums[1..2]), Some(1));
        assert_eq!(first_bad_unit(&KEY, VERSION, 0, &[], &[]), None);
    }
}
