//! Golden bytes, round trips and damaged inputs of the index records and the trailer.

use super::*;
use crate::keys::{Table, strip_key};
use strake_env::Rng;
use strake_proto::{FsId, ObjectId, StripIndex};

fn key() -> StripKey {
    StripKey { fs: FsId(1), object: ObjectId(2), block: BlockIndex(3), strip: StripIndex(4) }
}

fn version(grant: u64, counter: u64) -> Version {
    Version { grant: GrantNumber(grant), counter }
}

fn held(version: Version, strip_bytes: u32, settled: bool) -> StripVersion {
    let units = strip_units(strip_bytes);
    let checksums = match trailer_units(strip_bytes) {
        0 => Checksums::Inline((0..strip_bytes / 4096).map(|unit| 0xc0de_0000 + unit).collect()),
        _ => Checksums::Trailer,
    };
    let extents = vec![Extent { start: 4096, count: units }];
    StripVersion {
        header: StripHeader { version, block_bytes: strip_bytes * 2, lacks: 5 },
        strip_bytes,
        accepted: Lsn(77),
        settled,
        whole: Some(Whole { made: version, extents, checksums }),
        displaced: Vec::new(),
    }
}

/// A patch whose units lie at the places given.
fn patch(version: Version, strip_bytes: u32, units: &[(u32, u64)]) -> StripVersion {
    StripVersion { whole: None, displaced: displaced(units), ..held(version, strip_bytes, false) }
}

fn displaced(units: &[(u32, u64)]) -> Vec<Displaced> {
    let one = |&(unit, place)| Displaced { unit, place, checksum: 0xd150_0000 + unit };
    units.iter().map(one).collect()
}

/// A patch of a patch. The extents at the bottom were written for an older version.
fn patched() -> StripRecord {
    let mut oldest = held(version(7, 7), 8 * 4096, true);
    oldest.whole.as_mut().expect("no patch").made = version(6, 5);
    oldest.displaced = displaced(&[(0, 9), (1, 10), (2, 12)]);
    let versions = vec![
        patch(version(7, 9), 8 * 4096, &[]),
        patch(version(7, 8), 8 * 4096, &[(1, 11), (7, 20)]),
        oldest,
    ];
    StripRecord { versions }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_a_strip_record() {
    let record = StripRecord {
        versions: vec![held(version(7, 9), 8192, false), held(version(7, 8), 1 << 20, true)],
    };
    let bytes = encode_strip(&strip_key(Table::Strip, &key()), &record);
    assert_eq!(
        hex(&bytes),
        concat!(
            "0102",
            "0700000000000000",
            "0900000000000000",
            "00400000",
            "05000000",
            "00200000",
            "4d00000000000000",
            "00",
            "00",
            "0100",
            "0010000000000000",
            "02000000",
            "0000dec0",
            "0100dec0",
            "0700000000000000",
            "0800000000000000",
            "00002000",
            "05000000",
            "00001000",
            "4d00000000000000",
            "01",
            "00",
            "0100",
            "0010000000000000",
            "01010000",
            "331905db",
        )
    );
    assert_eq!(decode_strip(&strip_key(Table::Strip, &key()), &bytes), Ok(record));
    let given_up = encode_given_up(&strip_key(Table::Strip, &key()));
    assert_eq!(hex(&given_up), "ff3db62511");
    assert_eq!(decode_strip(&strip_key(Table::Strip, &key()), &given_up), Err(Damaged(LOST)));
}

#[test]
fn golden_bytes_of_a_patched_strip_record() {
    let key = strip_key(Table::Strip, &key());
    let bytes = encode_strip(&key, &patched());
    assert_eq!(
        hex(&bytes),
        concat!(
            "0203",
            // A patch without displaced units.
            "0700000000000000",
            "0900000000000000",
            "00000100",
            "05000000",
            "00800000",
            "4d00000000000000",
            "02",
            "00",
            "0000",
            "0000",
            // A patch with two units.
            "0700000000000000",
            "0800000000000000",
            "00000100",
            "05000000",
            "00800000",
            "4d00000000000000",
            "02",
            "00",
            "0000",
            "0200",
            "0100",
            "0100",
            "0b00000000000000",
            "0700",
            "0100",
            "1400000000000000",
            "010050d1",
            "070050d1",
            // The version that they patch.
            "0700000000000000",
            "0700000000000000",
            "00000100",
            "05000000",
            "00800000",
            "4d00000000000000",
            "01",
            "00",
            "0100",
            "0010000000000000",
            "08000000",
            "0000dec0",
            "0100dec0",
            "0200dec0",
            "0300dec0",
            "0400dec0",
            "0500dec0",
            "0600dec0",
            "0700dec0",
            "0600000000000000",
            "0500000000000000",
            "0200",
            "0000",
            "0200",
            "0900000000000000",
            "0200",
            "0100",
            "0c00000000000000",
            "000050d1",
            "010050d1",
            "020050d1",
            "0d12f752",
        )
    );
    assert_eq!(decode_strip(&key, &bytes), Ok(patched()));
}

#[test]
fn patched_records_that_nobody_writes_are_refused() {
    let refused = |change: &dyn Fn(&mut Vec<StripVersion>), what: &'static str| {
        let mut record = patched();
        change(&mut record.versions);
        let bytes = encode_strip(b"key", &record);
        assert_eq!(decode_strip(b"key", &bytes), Err(Damaged(what)));
    };
    refused(&|versions| drop(versions.pop()), "a patch of nothing");
    refused(&|versions| versions[0].header.block_bytes += 1, "a patch of another length");
    refused(&|versions| versions[1].strip_bytes = 4096, "run of displaced units");
    refused(&|versions| versions[0].strip_bytes = 4096, "a patch of another length");
    let out_of_order = "runs of displaced units out of order";
    refused(&|versions| versions[1].displaced.reverse(), out_of_order);
    refused(&|versions| versions[2].displaced[2].unit = 1, out_of_order);
    refused(&|versions| versions[2].displaced[2].unit = 8, "run of displaced units");
    refused(&|versions| versions[1].displaced[1].place = u64::MAX, "run of displaced units");
    // Long enough for any number.
    let strip_bytes = 4 << 20;
    let mut record = StripRecord {
        versions: vec![
            patch(version(1, 2), strip_bytes, &[(3, 1), (5, 3)]),
            held(version(1, 1), strip_bytes, true),
        ],
    };
    let most: Vec<_> = (0..DISPLACED_MAX as u32).map(|unit| (unit, 2 * u64::from(unit))).collect();
    record.versions[1].displaced = displaced(&most[2..]);
    let bytes = encode_strip(b"key", &record);
    assert_eq!(decode_strip(b"key", &bytes), Ok(record.clone()), "as many as there can be");
    assert!(bytes.len() < 17 << 10, "{} bytes", bytes.len());
    record.versions[1].displaced = displaced(&most[1..]);
    let bytes = encode_strip(b"key", &record);
    assert_eq!(decode_strip(b"key", &bytes), Err(Damaged("number of displaced units")));
    // Neither format may express what the other one is for.
    for (record, format) in
        [(patched(), 1), (StripRecord { versions: vec![held(version(1, 1), 4096, true)] }, 2)]
    {
        let mut bytes = encode_strip(b"key", &record);
        bytes.truncate(bytes.len() - 4);
        bytes[0] = format;
        assert!(decode_strip(b"key", &seal(b"key", bytes)).is_err());
    }
}

#[test]
fn a_view_shows_each_unit_of_the_newest_version_that_has_it() {
    let record = patched();
    let places = |counter| {
        let view = record.view(Some(version(7, counter))).expect("held");
        assert_eq!((view.held.version(), view.whole.made), (version(7, counter), version(6, 5)));
        view.displaced.iter().map(|one| (one.unit, one.place)).collect::<Vec<_>>()
    };
    assert_eq!(places(7), [(0, 9), (1, 10), (2, 12)]);
    assert_eq!(places(8), [(0, 9), (1, 11), (2, 12), (7, 20)]);
    assert_eq!(places(9), places(8));
    assert!(record.view(Some(version(7, 6))).is_none());
    assert_eq!(record.view(None).expect("held").held.version(), version(7, 9));
    let named = record.extents().map(|extent| extent.start).collect::<Vec<_>>();
    assert_eq!(named, [11, 20, 4096, 9, 10, 12]);
}

#[test]
fn golden_bytes_of_tombstone_promise_grant_and_trailer() {
    let tombstone = Tombstone { from: BlockIndex(5), version: version(6, 7) };
    let bytes = encode_tombstone(b"T", tombstone);
    assert_eq!(hex(&bytes), "01050000000000000006000000000000000700000000000000c861df56");
    assert_eq!(decode_tombstone(b"T", &bytes), Ok(tombstone));
    let bytes = encode_promise(b"P", version(6, 7));
    assert_eq!(hex(&bytes), "0106000000000000000700000000000000fae68c69");
    assert_eq!(decode_promise(b"P", &bytes), Ok(version(6, 7)));
    let grant = Grant { number: 6, floor: 7, need: 8, target: 10, granted: 9, flying: 0 };
    let bytes = encode_grant(b"G", &grant);
    assert_eq!(
        hex(&bytes),
        "010600000000000000070000000000000008000000000000000a000000000000000900000000000000a50ce3ff"
    );
    assert_eq!(decode_grant(b"G", &bytes), Ok(grant));
    let trailer = encode_trailer(&key(), version(6, 7), &[1, 2, 3]);
    assert_eq!(trailer.len(), 4096);
    assert_eq!(
        hex(&trailer[..80]),
        concat!(
            "53545452",
            "0100",
            "0000",
            "03000000",
            "3fed3dc1",
            "01000000",
            "04000000",
            "0200000000000000",
            "0300000000000000",
            "0600000000000000",
            "0700000000000000",
            "0000000000000000",
            "010000000200000003000000",
            "00000000",
        )
    );
}

#[test]
fn trailers_are_sized_for_their_checksums_and_belong_to_one_version() {
    for (bytes, units) in [(4096, 0), (65536, 0), (69632, 1), (1 << 20, 1), (4 << 20, 2)] {
        assert_eq!(trailer_units(bytes), units, "{bytes}");
    }
    let checksums: Vec<u32> = (0..256).collect();
    let trailer = encode_trailer(&key(), version(1, 2), &checksums);
    assert_eq!(decode_trailer(&key(), version(1, 2), 1 << 20, &trailer), Ok(checksums));
    let other = StripKey { strip: StripIndex(5), ..key() };
    assert!(decode_trailer(&other, version(1, 2), 1 << 20, &trailer).is_err());
    assert!(decode_trailer(&key(), version(1, 3), 1 << 20, &trailer).is_err());
    assert!(decode_trailer(&key(), version(1, 2), 2 << 20, &trailer).is_err());
    assert!(decode_trailer(&key(), version(1, 2), 16 << 20, &trailer).is_err());
    let mut flipped = trailer;
    flipped[1000] ^= 1;
    assert!(decode_trailer(&key(), version(1, 2), 1 << 20, &flipped).is_err());
}

#[test]
fn a_value_under_another_key_is_damaged() {
    let record = StripRecord { versions: vec![held(version(1, 1), 4096, true)] };
    let bytes = encode_strip(b"one", &record);
    assert_eq!(decode_strip(b"two", &bytes), Err(Damaged("checksum")));
}

/// Values are sealed again after the mutation, so that the fields are judged and not only the
/// checksum.
#[test]
fn mutated_records_are_refused_or_read_but_never_panic() {
    let mut rng = Rng::new(3);
    let (mut refused, mut read) = (0, 0);
    for round in 0..30_000 {
        let count = 1 + rng.below(VERSIONS_MAX as u64);
        let is_patched = rng.one_in(2);
        let length = |rng: &mut Rng| 4096 * (1 + rng.below(20)) as u32;
        let same = length(&mut rng);
        let mut versions: Vec<StripVersion> = (0..count)
            .map(|index| {
                let bytes = if is_patched { same } else { length(&mut rng) };
                held(version(9, 100 - index), bytes, rng.one_in(2))
            })
            .collect();
        for at in (0..versions.len()).filter(|_| is_patched) {
            if at + 1 < versions.len() && rng.one_in(2) {
                versions[at].whole = None;
            }
            let mut units: Vec<_> =
                (0..same / 4096).map(|unit| (unit, u64::from(unit) + rng.below(3))).collect();
            units.retain(|_| rng.one_in(2));
            versions[at].displaced = displaced(&units);
        }
        let mut bytes = encode_strip(b"key", &StripRecord { versions });
        bytes.truncate(bytes.len() - 4);
        if rng.one_in(3) {
            bytes.truncate(rng.index(bytes.len() + 1));
        }
        for _ in 0..rng.below(4) {
            if !bytes.is_empty() {
                let at = rng.index(bytes.len());
                bytes[at] = if rng.one_in(2) { 0xff } else { rng.next_u64() as u8 };
            }
        }
        let bytes = if rng.one_in(10) { bytes } else { seal(b"key", bytes) };
        match decode_strip(b"key", &bytes) {
            Ok(record) => {
                assert_eq!(encode_strip(b"key", &record), bytes, "round {round}");
                read += 1;
            }
            Err(_) => refused += 1,
        }
        let _ = decode_tombstone(b"key", &bytes);
        let _ = decode_promise(b"key", &bytes);
        let _ = decode_grant(b"key", &bytes);
    }
    assert!(refused > 5_000 && read > 5_000, "{refused} refused, {read} read");
}

#[test]
fn mutated_trailers_are_refused() {
    let mut rng = Rng::new(4);
    for _ in 0..2_000 {
        let count = 17 + rng.index(1500);
        let checksums: Vec<u32> = (0..count).map(|_| rng.next_u64() as u32).collect();
        let strip_bytes = (count * UNIT_BYTES) as u32;
        let good = encode_trailer(&key(), version(1, 2), &checksums);
        let used = TRAILER_HEADER_BYTES + 4 * count;
        let mut bytes = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.index(used);
            bytes[at] ^= 1 << rng.below(8);
        }
        bytes.truncate(bytes.len() - rng.index(2) * rng.index(bytes.len()));
        let read = decode_trailer(&key(), version(1, 2), strip_bytes, &bytes);
        // Flips may undo each other.
        let same = bytes.get(..used) == Some(&good[..used]);
        assert_eq!(read.is_ok(), same);
        assert_eq!(read.unwrap_or(checksums.clone()), checksums);
    }
}
