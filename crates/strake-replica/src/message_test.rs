//! The bytes of messages: they come back as they went, are fixed, and garbage is refused.

use super::*;
use crate::entry::Payload;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

const CLUSTER: ClusterId = ClusterId([5; 16]);

fn samples() -> Vec<Envelope> {
    let stamp = Stamp { term: Term(3), position: Position(8) };
    let lives: Lives = [(ReplicaId(2), Life { number: 1, chance: 77 })].into();
    let membership = Membership::of([1, 2, 3].map(ReplicaId));
    let bytes = Bytes::from(&b"some bytes"[..]);
    let entry = |position, payload| Entry { term: Term(3), position: Position(position), payload };
    let entries = vec![
        entry(9, Payload::Begin),
        entry(10, Payload::Membership(membership.clone())),
        entry(11, Payload::Level(2)),
        entry(12, Payload::Data { level: 1, bytes: bytes.clone() }),
    ];
    let answer = Answer { last: stamp, membership: membership.clone(), membership_stamp: stamp };
    let records = Bytes::from(&b"records"[..]);
    let whole = Bytes::from(&[][..]);
    let whole = Some(Snapshot { stamp, membership: membership.clone(), level: 1, bytes: whole });
    let copy = CopyId { term: Term(3), count: 2 };
    let part = Part { stamp, membership, level: 1, length: 900, offset: 300, bytes, round: 4 };
    let (term, is_preliminary, round) = (Term(4), true, 6);
    let supports = 3;
    let appended = |verdict| {
        let lives = lives.clone();
        Body::Appended { verdict, round, counts: true, supports, lives }
    };
    let differs = Verdict::Differs { previous: Position(4), hint: Position(2) };
    let bodies = vec![
        Body::Ask,
        Body::Answer(answer),
        Body::Outlived(7),
        Body::Vote { term, last: stamp, is_preliminary },
        Body::Voted { term, is_preliminary, granted: true, lives: lives.clone() },
        Body::Append { previous: stamp, entries, committed: Position(7), round },
        Body::Part(part),
        appended(Verdict::Agrees(Position(12))),
        appended(differs),
        appended(Verdict::Received { position: Position(8), bytes: 600 }),
        appended(Verdict::Lacks),
        appended(Verdict::Copied { copy, next: 3 }),
        Body::Copy(CopyPart { copy, number: 2, bytes: records, whole, round }),
    ];
    let from_life = Life { number: 2, chance: 9 };
    let to_life = Some(Life { number: 4, chance: 1 });
    let envelope = |body| Envelope {
        from: ReplicaId(1),
        from_life,
        to: ReplicaId(2),
        to_life,
        term: Term(3),
        body,
    };
    bodies.into_iter().map(envelope).collect()
}

#[test]
fn messages_come_back_as_they_went() {
    for envelope in samples() {
        assert_eq!(decode(CLUSTER, &encode(CLUSTER, &envelope)), Ok(envelope));
    }
}

#[test]
fn the_bytes_of_messages_are_these() {
    let bytes = |samples: &[Envelope]| {
        let bytes = samples.iter().flat_map(|envelope| encode(CLUSTER, envelope));
        let bytes: Vec<u8> = bytes.collect();
        (bytes.len(), crc32c::crc32c(&bytes))
    };
    let samples = samples();
    let (first, later) = samples.split_at(10);
    assert_eq!((bytes(first), bytes(later)), (GOLDEN_FIRST, GOLDEN_COPIES));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&encode(CLUSTER, &samples[3])), GOLDEN_VOTE);
}

const GOLDEN_FIRST: (usize, u32) = (483, 2079368386);
/// Messages that came later.
const GOLDEN_COPIES: (usize, u32) = (153, 1659356531);
const GOLDEN_VOTE: &str =
    "5352726d01000000050505050505050505050505050505057eeca0dc01020902010401030304030801";

#[test]
fn messages_of_others_are_refused_by_name() {
    let mut bytes = encode(CLUSTER, &samples()[0]);
    let other = ClusterId([6; 16]);
    assert_eq!(decode(other, &bytes), Err(MessageError::Cluster(CLUSTER)));
    bytes[4] = 2;
    bytes[CRC_AT..HEAD_BYTES].fill(0);
    let crc = crc32c::crc32c(&bytes);
    bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode(CLUSTER, &bytes), Err(MessageError::Version(2)));
}

#[test]
fn mutated_messages_are_refused_or_messages_and_never_panic() {
    for seed in test_seeds(0, 3000 * test_scale()) {
        let mut rng = Rng::new(seed);
        let samples = samples();
        let mut bytes = encode(CLUSTER, &samples[rng.index(samples.len())]);
        for _ in 0..1 + rng.index(4) {
            let at = rng.index(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        bytes.truncate(bytes.len() - rng.index(3) * rng.index(9));
        // With a checksum that fits, everything behind it must hold as well.
        if bytes.len() >= HEAD_BYTES {
            bytes[CRC_AT..HEAD_BYTES].fill(0);
            let crc = crc32c::crc32c(&bytes);
            bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(envelope) = decode(CLUSTER, &bytes) {
            assert_eq!(decode(CLUSTER, &encode(CLUSTER, &envelope)), Ok(envelope));
        }
    }
}
