//! Tests the superblock's bytes with a golden fixture and damaged inputs.

use super::*;
use strake_env::Rng;

fn sample() -> Superblock {
    Superblock {
        sequence: 0x0102_0304_0506_0708,
        cluster: ClusterId(*b"sixteen bytes id"),
        nsd: NsdId(7),
        fs: FsId(1),
        failure_group: 3,
        length: 1 << 40,
        metadata_generation: 42,
        has_patches: false,
        term: Term(0),
        metadata_holders: vec![NsdId(7), NsdId(2), NsdId(5)],
        index_log_seed: 0x1111_2222_3333_4444,
        metadata_log_seed: 0x5555_6666_7777_8888,
        index_kv: KvSpace { length: 123_456_789, chunks: vec![1000, 998, 997] },
        metadata_kv: KvSpace { length: 4096, chunks: vec![999] },
    }
}

/// The fixture holds the superblock's non-zero part in hexadecimal, 32 bytes a line, each line
/// after its offset.
fn fixture() -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    for line in include_str!("../tests/fixtures/superblock_v1.hex").lines() {
        let (at, hex) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (index, pair) in hex.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).unwrap();
            bytes[at + index] = u8::from_str_radix(pair, 16).unwrap();
        }
    }
    bytes
}

#[test]
fn the_format_is_the_one_on_existing_disks() {
    let encoded = sample().encode();
    let text: String = encoded
        .chunks(32)
        .enumerate()
        .filter(|(_, line)| line.iter().any(|&byte| byte != 0))
        .map(|(index, line)| {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:04x} {hex}\n", index * 32)
        })
        .collect();
    assert!(encoded == fixture(), "the superblock's format changed; it is now\n{text}");
    assert_eq!(Superblock::decode(&fixture()).unwrap(), sample());
}

#[test]
fn a_flag_says_that_older_programs_cannot_read_the_records() {
    let patched = Superblock { has_patches: true, ..sample() };
    let mut bytes = patched.encode();
    assert_eq!(Superblock::decode(&bytes).unwrap(), patched);
    assert_eq!(bytes[16..24], [1, 0, 0, 0, 0, 0, 0, 0]);
    // Otherwise only the checksum differs.
    bytes[16] = 0;
    bytes[8..12].copy_from_slice(&fixture()[8..12]);
    assert_eq!(bytes, fixture());
}

#[test]
fn a_term_comes_with_a_flag_that_keeps_programs_without_leases_away() {
    let managed = Superblock { term: Term(0x0102_0304_0506_0708), ..sample() };
    let mut bytes = managed.encode();
    assert_eq!(Superblock::decode(&bytes).unwrap(), managed);
    assert_eq!(bytes[16..24], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[120..128], [8, 7, 6, 5, 4, 3, 2, 1]);
    // One without the other is damage.
    for at in [16, 120] {
        let mut damaged = bytes;
        damaged[at..at + 8].fill(0);
        damaged[8..12].fill(0);
        let crc = crc32c::crc32c(&damaged);
        damaged[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&damaged).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    // Otherwise only the checksum differs.
    (bytes[16], bytes[120]) = (0, 0);
    bytes[121..128].fill(0);
    bytes[8..12].copy_from_slice(&fixture()[8..12]);
    assert_eq!(bytes, fixture());
}

#[test]
fn a_newer_format_or_unknown_flag_is_refused_with_its_reason() {
    for (at, changed) in [(12, 0x80), (16, 0x80), (16, 0x04), (16, 0x05), (23, 0x80)] {
        let mut bytes = sample().encode();
        bytes[at] = changed;
        bytes[8..12].fill(0);
        let crc = crc32c::crc32c(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let error = Superblock::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        assert!(error.to_string().contains("newer than this program"), "{error}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = sample().encode();
    let mut rng = Rng::new(1);
    for _ in 0..2000 {
        let mut damaged = bytes;
        damaged[rng.index(SUPERBLOCK_BYTES)] ^= 1 << rng.below(8);
        assert!(Superblock::decode(&damaged).is_err());
    }
}

#[test]
fn lies_with_a_good_checksum_never_panic() {
    let mut rng = Rng::new(2);
    for _ in 0..2000 {
        let mut bytes = sample().encode();
        for _ in 0..rng.index(6) {
            let at = 12 + rng.index(SUPERBLOCK_BYTES - 12);
            bytes[at] = rng.next_u64() as u8;
        }
        // False values in counts would do the most harm.
        let at = *[60, 112, 116].get(rng.index(3)).unwrap();
        bytes[at] = rng.next_u64() as u8;
        bytes[8..12].fill(0);
        let crc = crc32c::crc32c(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        if let Ok(superblock) = Superblock::decode(&bytes) {
            assert!(superblock.metadata_holders.len() <= METADATA_HOLDERS_MAX);
            assert!(superblock.index_kv.chunks.len() <= KV_CHUNKS_MAX);
        }
    }
}
