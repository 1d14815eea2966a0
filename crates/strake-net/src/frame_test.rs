//! Golden frames, and whatever else may come over a wire.

use super::*;
use crate::session::encode;
use strake_env::Rng;
use strake_proto::nsd::PROTOCOL_VERSION;

const KEY: [u8; 32] = [7; 32];

fn written(seal: &mut Seal, message: &[u8], payload: &[u8]) -> Vec<u8> {
    written_as(FrameKind::NsdRequest, seal, message, payload)
}

fn written_as(kind: FrameKind, seal: &mut Seal, message: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, seal, kind, 0x0102_0304_0506_0708, message, payload).expect("a Vec");
    out
}

fn read(mut bytes: &[u8], seal: &mut Seal, limits: FrameLimits) -> Result<Option<Frame>> {
    read_frame(&mut bytes, seal, limits, &mut |length| {
        assert!(length <= limits.payload_bytes, "no memory beyond the limit");
        vec![0; length]
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// On a connection with a program that speaks the oldest version.
fn old(mut seal: Seal) -> Seal {
    seal.speak_at_most(OLDEST_PROTOCOL);
    seal
}

/// The oldest version, so these bytes stay as long as that is spoken.
#[test]
fn golden_frames() {
    let plain = written(&mut old(Seal::none()), b"header", b"payload");
    let mut seal = old(Seal::new(&KEY));
    let sealed = [
        written(&mut seal, b"header", b"payload"),
        written(&mut seal, b"", b""),
        written_as(FrameKind::BackRequest, &mut seal, b"header", b""),
        written_as(FrameKind::BackReply, &mut seal, b"header", b""),
        written_as(FrameKind::Ping, &mut seal, b"", b""),
        written_as(FrameKind::Pong, &mut seal, &crate::ping::pong((70_000, 3)), b""),
    ];
    assert_eq!(
        hex(&plain),
        "535250430d0001000807060504030201060000000700000042e15f1c7069e3f4000000005ed3527f\
         000000000000000000000000000000006865616465727061796c6f6164"
    );
    let golden = [
        "535250430d0001000807060504030201060000000700000042e15f1c7069e3f4000000005ed3527f\
         a8697b54ecf5b04ccdc9c8c976c09bb26865616465727061796c6f6164",
        "535250430d00010008070605040302010000000000000000000000000000000000000000855ca145\
         4fc1054a9d49422a899221d73717952f",
        "535250430d0006000807060504030201060000000000000042e15f1c000000000000000096ce42be\
         615d49a77311b324b6050b2993180c53686561646572",
        "535250430d0007000807060504030201060000000000000042e15f1c00000000000000009f8ff9ab\
         1dc5ed11d8ad97a95c2e4e4b14078d6a686561646572",
        "535250430d000b0008070605040302010000000000000000000000000000000000000000dfd60dc3\
         fa001c318951338a11d959ca2afb959a",
        "535250430d000c0008070605040302011000000000000000cf88c9ac00000000000000009c95c4cf\
         731a2809eca189ec87374f8ae0fbca2370110100000000000300000000000000",
    ];
    assert_eq!(sealed.map(|frame| hex(&frame)), golden);
}

/// The messages of a check in parts, as the protocol has them since version 8.
#[test]
fn golden_messages_of_checks() {
    use strake_proto::StripKey;
    use strake_proto::meta::{MetaQuery, MetaReply};
    use strake_proto::nsd::{NsdCheckReply, NsdReply, NsdRequest};
    let bytes = |encoded: strake_proto::Result<Vec<u8>>| hex(&encoded.expect("encodes"));
    let found = NsdCheckReply {
        strips: 1,
        damaged: 2,
        tombstones: 3,
        promises: 4,
        allocated: 5,
        bytes: 6,
        faults: vec!["f".to_owned()],
        bad: Vec::<StripKey>::new(),
    };
    let got = [
        bytes(encode(&MetaQuery::CheckAs { number: 300 })),
        bytes(encode(&MetaQuery::EndCheck { number: 300 })),
        bytes(encode(&MetaReply::Done)),
        bytes(encode(&NsdRequest::CheckPart { data: true, from: vec![7, 8] })),
        bytes(encode(&NsdReply::CheckedPart { found, next: Some(vec![9]) })),
    ];
    let golden = ["0fac02", "10ac02", "0e", "1401020708", "0c01020304050601016600010109"];
    assert_eq!(got, golden);
}

/// The message that mends a strip.
#[test]
fn golden_message_of_mending() {
    use strake_proto::nsd::NsdRequest;
    use strake_proto::{BlockIndex, FsId, GrantNumber, ObjectId, StripIndex, StripKey, Version};
    let (fs, object, block, strip) = (FsId(1), ObjectId(2), BlockIndex(3), StripIndex(4));
    let key = StripKey { fs, object, block, strip };
    let version = Version { grant: GrantNumber(5), counter: 6 };
    let request = NsdRequest::Mend { key, version, checksums: vec![7, 300] };
    assert_eq!(hex(&encode(&request).expect("encodes")), "150102030405060207ac02");
}

/// The messages of many ranges.
#[test]
fn golden_messages_of_many_ranges() {
    use strake_proto::nsd::{NsdReply, NsdRequest, RangeChange};
    use strake_proto::{BlockIndex, FsId, GrantNumber, ObjectId, Version};
    let version = Version { grant: GrantNumber(5), counter: 6 };
    let (object, from, to) = (ObjectId(2), BlockIndex(3), BlockIndex(300));
    let changes = vec![
        RangeChange::Delete { object, from, to, version },
        RangeChange::Forget { object, version },
    ];
    let request = encode(&NsdRequest::ChangeRanges { fs: FsId(1), changes }).expect("encodes");
    assert_eq!(hex(&request), "160102000203ac02050601020506");
    let reply = encode(&NsdReply::Changed { boot: 300, done: 2 }).expect("encodes");
    assert_eq!(hex(&reply), "0dac0202");
}

/// The message of many strips.
#[test]
fn golden_message_of_many_strips() {
    use strake_proto::nsd::{NsdRequest, SmallStrip, StripHeader};
    use strake_proto::{BlockIndex, FsId, GrantNumber, ObjectId, StripIndex, StripKey, Version};
    let (fs, object, block, strip) = (FsId(1), ObjectId(2), BlockIndex(3), StripIndex(4));
    let key = StripKey { fs, object, block, strip };
    let version = Version { grant: GrantNumber(5), counter: 6 };
    let header = StripHeader { version, block_bytes: 300, lacks: 7 };
    let one = SmallStrip { key, header, checksums: vec![8, 300], stable: Version::NONE };
    let strips = vec![one.clone(), SmallStrip { checksums: vec![9], stable: version, ..one }];
    let request = encode(&NsdRequest::WriteMany { strips, copy: true }).expect("encodes");
    assert_eq!(hex(&request), "1702010203040506ac02070208ac020000010203040506ac02070109050601");
}

#[test]
fn golden_encrypted_frames() {
    let mut seal = old(Seal::encrypting(&KEY));
    let frames = [
        written(&mut seal, b"header", b"payload"),
        written(&mut seal, b"", b""),
        written_as(FrameKind::BackRequest, &mut seal, b"header", b""),
    ];
    // Another library decrypts them (Python's `cryptography`).
    let golden = [
        "535250430d0001000807060504030201060000000700000000000000000000000000000013a1d523\
         a2318d8fcfcf224b6df1379cfab0178509bdc5d69ee04ffb0aa66bcf8ce734e455f725d68971df136f78371d93",
        "535250430d00010008070605040302010000000000000000000000000000000000000000855ca145\
         2d5578d811330156353fa536bddf8225",
        "535250430d0006000807060504030201060000000000000000000000000000000000000034aa099e\
         eceee9580013555de07e9b6b98f9552ab6a150132fc0",
    ];
    assert_eq!(frames.map(|frame| hex(&frame)), golden);
}

#[test]
fn what_is_encrypted_shows_nothing_of_itself() {
    let (mut one, mut other) = (Seal::encrypting(&KEY), Seal::encrypting(&[8; 32]));
    let frames = [
        written(&mut one, b"the same message", &[7; 64]),
        written(&mut one, b"the same message", &[7; 64]),
        written(&mut other, b"another message!", &[8; 64]),
    ];
    for frame in &frames[1..] {
        assert_eq!(frames[0][..40], frame[..40], "heads tell lengths, and no checksums");
        let alike = frames[0][40..].iter().zip(&frame[40..]).filter(|(one, other)| one == other);
        assert!(alike.count() < 10, "of 112 bytes");
    }
}

#[test]
fn keys_wear_out_at_both_ends_at_the_same_frame() {
    for seed in strake_env::rng::test_seeds(0, 20) {
        let mut rng = Rng::new(seed);
        let bytes_max = 1 + rng.below(5000);
        let seal = || Seal::encrypting_with(&KEY, bytes_max);
        let (mut sending, mut receiving) = (seal(), seal());
        let mut lasting = Seal::encrypting(&KEY);
        let mut differed = false;
        for _ in 0..200 {
            let (message, payload) = (vec![1; rng.index(300)], vec![2; rng.index(900)]);
            let frame = written(&mut sending, &message, &payload);
            differed |= frame != written(&mut lasting, &message, &payload);
            let frame = read(&frame, &mut receiving, FrameLimits::SESSION).expect("genuine");
            let frame = frame.expect("one");
            assert_eq!((frame.message, frame.payload), (message, payload), "seed {seed}");
        }
        assert!(differed, "seed {seed}: the key has changed");
    }
}

#[test]
fn encrypted_frames_that_are_repeated_moved_or_mixed_are_refused() {
    let mut sending = Seal::encrypting(&KEY);
    let frames = [written(&mut sending, b"one", b"1"), written(&mut sending, b"two", b"2")];
    let denied = |bytes: &[u8], seal: &mut Seal| {
        let error = read(bytes, seal, FrameLimits::SESSION).expect_err("not genuine");
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    };
    denied(&frames[1], &mut Seal::encrypting(&KEY));
    denied(&frames[0], &mut Seal::encrypting(&[8; 32]));
    let mut receiving = Seal::encrypting(&KEY);
    read(&frames[0], &mut receiving, FrameLimits::SESSION).expect("genuine");
    denied(&frames[0], &mut receiving);
    // The payload of one frame behind the message of another that has the same length.
    let payload_at = HEAD_BYTES + 3;
    let mixed = [&frames[0][..payload_at], &frames[1][payload_at..]].concat();
    denied(&mixed, &mut Seal::encrypting(&KEY));
    // A head that was changed together with its checksum.
    let mut changed = frames[0].clone();
    changed[8] ^= 1;
    let check = crc32c::crc32c(&changed[..CHECKED_BYTES]);
    changed[CHECKED_BYTES..COVERED_BYTES].copy_from_slice(&check.to_le_bytes());
    denied(&changed, &mut Seal::encrypting(&KEY));
}

#[test]
fn frames_read_back_one_after_the_other() {
    for seal in [Seal::new(&KEY), Seal::encrypting(&KEY)] {
        read_back(seal.clone(), seal);
    }
}

fn read_back(mut sending: Seal, mut receiving: Seal) {
    let mut stream = Vec::new();
    let mut rng = Rng::new(3);
    let sent: Vec<(Vec<u8>, Vec<u8>)> = (0..50)
        .map(|_| {
            let mut part = |most| {
                let mut bytes = vec![0; rng.index(most)];
                rng.fill(&mut bytes);
                bytes
            };
            (part(300), part(20_000))
        })
        .collect();
    for (message, payload) in &sent {
        stream.extend(written(&mut sending, message, payload));
    }
    let mut input = stream.as_slice();
    for (message, payload) in &sent {
        let mut buffer = |bytes| vec![0; bytes];
        let frame = read_frame(&mut input, &mut receiving, FrameLimits::SESSION, &mut buffer);
        let frame = frame.expect("valid").expect("there is one");
        assert_eq!((&frame.message, &frame.payload), (message, payload));
    }
    assert_eq!(read(input, &mut receiving, FrameLimits::SESSION).expect("the end"), None);
}

#[test]
fn repeated_reordered_and_foreign_frames_are_refused() {
    let mut sending = Seal::new(&KEY);
    let frames = [written(&mut sending, b"first", b""), written(&mut sending, b"second", b"")];
    let denied = |bytes: &[u8], seal: &mut Seal| {
        let error = read(bytes, seal, FrameLimits::SESSION).expect_err("not genuine");
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    };
    denied(&frames[1], &mut Seal::new(&KEY));
    denied(&frames[0], &mut Seal::new(&[8; 32]));
    denied(&frames[0], &mut Seal::none());
    denied(&written(&mut Seal::none(), b"first", b""), &mut Seal::new(&KEY));
    let mut receiving = Seal::new(&KEY);
    read(&frames[0], &mut receiving, FrameLimits::SESSION).expect("genuine");
    denied(&frames[0], &mut receiving);
}

#[test]
fn any_changed_or_missing_byte_is_found() {
    let mut rng = Rng::new(9);
    let seals = [Seal::none(), Seal::new(&KEY), Seal::encrypting(&KEY)];
    for seal in &seals {
        let seal = || seal.clone();
        let frame = written(&mut seal(), b"a message", &[5; 100]);
        let whole = read(&frame, &mut seal(), FrameLimits::SESSION).expect("valid").expect("one");
        for at in 0..frame.len() {
            for _ in 0..4 {
                let mut changed = frame.clone();
                changed[at] ^= 1 << rng.below(8);
                assert!(read(&changed, &mut seal(), FrameLimits::SESSION).is_err(), "byte {at}");
            }
            let cut = read(&frame[..at], &mut seal(), FrameLimits::SESSION);
            assert!(if at == 0 { matches!(cut, Ok(None)) } else { cut.is_err() }, "cut at {at}");
        }
        let after = [&frame[..], b"garbage"].concat();
        let first = read(&after, &mut seal(), FrameLimits::SESSION).expect("valid");
        assert_eq!(first, Some(whole));
    }
}

#[test]
fn random_heads_with_right_checksums_neither_panic_nor_take_memory() {
    let seed = 17;
    let mut rng = Rng::new(seed);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = written(&mut Seal::none(), b"message", b"payload");
        for _ in 0..rng.index(6) {
            let at = rng.index(bytes.len());
            bytes[at] = if rng.one_in(2) { rng.next_u64() as u8 } else { 0xff };
        }
        // Half of them get past the head's checksum, to reach what stands behind it.
        if rng.one_in(2) {
            let check = crc32c::crc32c(&bytes[..CHECKED_BYTES]);
            bytes[CHECKED_BYTES..COVERED_BYTES].copy_from_slice(&check.to_le_bytes());
        }
        bytes.truncate(bytes.len() - rng.index(3) * rng.index(30));
        let limits = if round % 2 == 0 { FrameLimits::SESSION } else { FrameLimits::HELLO };
        if let Ok(Some(frame)) = read(&bytes, &mut Seal::none(), limits) {
            assert_eq!(
                (frame.message.as_slice(), frame.payload.as_slice()),
                (&b"message"[..], &b"payload"[..]),
                "seed {seed}"
            );
            accepted += 1;
        }
    }
    assert!(accepted > 100, "the unchanged ones pass");
}

#[test]
fn limits_hold_before_memory_is_taken() {
    let payload = written(&mut Seal::none(), b"", b"x");
    let error = read(&payload, &mut Seal::none(), FrameLimits::HELLO).expect_err("no payload");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let long = written(&mut Seal::none(), &[0; 1025], b"");
    assert!(read(&long, &mut Seal::none(), FrameLimits::HELLO).is_err());
    let mut out = Vec::new();
    let message = vec![0; MESSAGE_BYTES_MAX + 1];
    let error = write_frame(&mut out, &mut Seal::none(), FrameKind::Hello, 0, &message, &[]);
    assert_eq!(error.expect_err("too long").kind(), ErrorKind::TooBig);
    assert!(out.is_empty());
}

#[test]
fn requests_of_servers_and_their_replies_are_short() {
    for kind in [FrameKind::BackRequest, FrameKind::BackReply] {
        let longest = written_as(kind, &mut Seal::none(), &[1; BACK_MESSAGE_BYTES_MAX], b"");
        let frame = read(&longest, &mut Seal::none(), FrameLimits::SESSION).expect("valid");
        assert_eq!(frame.expect("one").message.len(), BACK_MESSAGE_BYTES_MAX);
        for (message, payload) in [(BACK_MESSAGE_BYTES_MAX + 1, 0), (0, 1)] {
            let (message, payload) = (vec![1; message], vec![1; payload]);
            let error =
                write_frame(&mut Vec::new(), &mut Seal::none(), kind, 0, &message, &payload);
            assert_eq!(error.expect_err("too long").kind(), ErrorKind::TooBig);
            // As somebody would write it who does not look.
            let mut frame = written(&mut Seal::none(), &message, &payload);
            frame[6] = kind as u8;
            let check = crc32c::crc32c(&frame[..CHECKED_BYTES]);
            frame[CHECKED_BYTES..COVERED_BYTES].copy_from_slice(&check.to_le_bytes());
            let error = read(&frame, &mut Seal::none(), FrameLimits::SESSION);
            assert_eq!(error.expect_err("too long").kind(), ErrorKind::Corrupt);
        }
    }
}

/// A frame with another version in its head.
fn of_version(mut frame: Vec<u8>, version: u16) -> Vec<u8> {
    frame[4..6].copy_from_slice(&version.to_le_bytes());
    let check = crc32c::crc32c(&frame[..CHECKED_BYTES]);
    frame[CHECKED_BYTES..COVERED_BYTES].copy_from_slice(&check.to_le_bytes());
    frame
}

#[test]
fn a_version_that_is_too_old_is_refused_with_advice() {
    for kind in [FrameKind::Hello, FrameKind::NsdRequest] {
        let frame = written_as(kind, &mut Seal::none(), b"", b"");
        let frame = of_version(frame, OLDEST_PROTOCOL - 1);
        let error = read(&frame, &mut Seal::none(), FrameLimits::HELLO).expect_err("too old");
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        assert!(error.to_string().contains("install a newer version of strake there"), "{error}");
    }
}

#[test]
fn a_hello_of_any_later_version_is_read_and_the_lower_version_counts() {
    let hello = written_as(FrameKind::Hello, &mut Seal::none(), b"hi", b"");
    for (version, agreed) in [(OLDEST_PROTOCOL, OLDEST_PROTOCOL), (99, PROTOCOL_VERSION)] {
        let mut seal = Seal::none();
        let frame = read(&of_version(hello.clone(), version), &mut seal, FrameLimits::HELLO);
        assert_eq!(frame.expect("a frame").expect("one").message, b"hi");
        assert_eq!(seal.protocol(), agreed, "{version}");
    }
}

#[test]
fn a_frame_of_another_version_than_was_agreed_is_named_and_refused() {
    for (agreed, version) in [(PROTOCOL_VERSION, OLDEST_PROTOCOL), (OLDEST_PROTOCOL, 99)] {
        let mut seal = Seal::none();
        seal.speak_at_most(agreed);
        let frame = written(&mut Seal::none(), b"", b"");
        let frame = of_version(frame, version);
        let error = read(&frame, &mut seal, FrameLimits::HELLO).expect_err("another one");
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        let text = format!("a frame of protocol {version}, where {agreed} was agreed");
        assert!(error.to_string().contains(&text), "{error}");
    }
}
