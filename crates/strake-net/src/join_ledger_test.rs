//! Tokens that are used, used again, expired and replaced; golden bytes; damaged lists.

use super::*;
use std::collections::BTreeMap;
use strake_env::Rng;
use strake_proto::{ClusterId, Roles};

fn identity(name: &str) -> NodeIdentity {
    let name = name.parse().expect("a name");
    NodeIdentity { cluster: ClusterId([1; 16]), name, roles: Roles::ALL }
}

fn denied(result: Result<NodeIdentity>, part: &str) {
    let error = result.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Access);
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_token_is_good_for_one_key_until_it_expires() {
    let mut ledger = JoinLedger::default();
    ledger.add([1; 32], identity("n1"), 100, 0).expect("room");
    denied(ledger.redeem(&[2; 32], [7; 32], 1), "not known");
    assert_eq!(ledger.redeem(&[1; 32], [7; 32], 1).expect("good"), identity("n1"));
    denied(ledger.redeem(&[1; 32], [8; 32], 2), "used already");
    assert_eq!(ledger.redeem(&[1; 32], [7; 32], 99).expect("the same key"), identity("n1"));
    denied(ledger.redeem(&[1; 32], [7; 32], 100), "expired");
    ledger.add([3; 32], identity("n1"), 300, 100).expect("room");
    denied(ledger.redeem(&[1; 32], [7; 32], 101), "not known");
    ledger.withdraw(&identity("n1").name);
    denied(ledger.redeem(&[3; 32], [7; 32], 101), "not known");
}

#[test]
fn random_changes_do_as_an_obvious_model_and_survive_the_file() {
    for seed in strake_env::rng::test_seeds(0, 30) {
        let mut rng = Rng::new(seed);
        let mut ledger = JoinLedger::default();
        // The token and key of each name.
        let mut model: BTreeMap<String, ([u8; 32], i64, Option<u8>)> = BTreeMap::new();
        for now in 0..200i64 {
            let name = format!("n{}", rng.index(4));
            if rng.one_in(3) {
                let (token, expires) = ([now as u8; 32], now + 1 + rng.index(40) as i64);
                ledger.add(token, identity(&name), expires, now).expect("room");
                model.insert(name, (token, expires, None));
            } else if let Some((token, expires, used_by)) = model.get_mut(&name) {
                let key = rng.index(2) as u8;
                let is_good = *expires > now && used_by.is_none_or(|used_by| used_by == key);
                let redeemed = ledger.redeem(token, [key; 32], now);
                assert_eq!(redeemed.is_ok(), is_good, "seed {seed}: {redeemed:?}");
                if is_good {
                    *used_by = Some(key);
                }
            }
            ledger.check();
            let read = JoinLedger::decode(&ledger.encode().expect("encodes")).expect("decodes");
            assert_eq!(read, ledger);
        }
    }
}

#[test]
fn tokens_that_wait_have_a_limit() {
    let mut ledger = JoinLedger::default();
    for number in 0..ENTRIES_MAX {
        let digest = [(number >> 8) as u8, number as u8].repeat(16);
        let digest = digest.try_into().expect("32 bytes");
        ledger.add(digest, identity(&format!("n{number}")), 10, 0).expect("room");
    }
    let error = ledger.add([0xff; 32], identity("more"), 10, 0).expect_err("full");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    ledger.add([0xff; 32], identity("more"), 30, 20).expect("the others have expired");
}

#[test]
fn golden_bytes_and_damaged_lists() {
    let mut ledger = JoinLedger::default();
    ledger.add([3; 32], identity("n1"), 300, 100).expect("room");
    ledger.redeem(&[3; 32], [4; 32], 200).expect("good");
    let bytes = ledger.encode().expect("encodes");
    let mut golden = b"SJTL\x01\x00\x01".to_vec();
    golden.extend([3; 32]);
    golden.extend([1; 16]);
    golden.extend(b"\x02n1\x07\xd8\x04\x01");
    golden.extend([4; 32]);
    assert_eq!(bytes[..bytes.len() - CHECK_BYTES], golden);
    for at in 0..bytes.len() {
        assert!(JoinLedger::decode(&bytes[..at]).is_err(), "cut at {at}");
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(JoinLedger::decode(&changed).is_err(), "byte {at}");
    }
    // With a right checksum, for what stands behind it.
    let mut rng = Rng::new(8);
    for _ in 0..5000 {
        let mut changed = bytes.clone();
        for _ in 0..1 + rng.index(4) {
            let at = rng.index(changed.len() - CHECK_BYTES);
            changed[at] = rng.next_u64() as u8;
        }
        let end = changed.len() - CHECK_BYTES;
        let check = crc32c::crc32c(&changed[..end]).to_le_bytes();
        changed[end..].copy_from_slice(&check);
        if let Ok(ledger) = JoinLedger::decode(&changed) {
            ledger.check();
        }
    }
}
