//! Golden bytes of the records' file, and mutated ones.

use super::*;
use crate::cluster::records::{Change, NewNsd, NodeNumber, Usage};
use strake_env::Rng;
use strake_env::net::SocketAddr;
use strake_proto::{ClusterId, Code, FeatureLevel, NsdId, Role, Roles};

/// One record of each kind, with values that differ.
fn sample() -> Cluster {
    let address = SocketAddr::from(([10, 0, 0, 1], 7790));
    let mut cluster = Cluster::new(ClusterId([0xab; 16]), "demo", "n1", address).expect("names");
    let invite = Change::Invite { name: "n2".into(), roles: Roles::of(&[Role::Server]) };
    cluster.apply(&invite).expect("invites");
    let nsd = NewNsd {
        name: Some("d1".into()),
        node: NodeNumber(1),
        device: "/dev/sdb".into(),
        usage: Usage::DataOnly,
        failure_group: None,
        pool: "system".into(),
    };
    cluster.apply(&Change::AddNsds { nsds: vec![nsd] }).expect("adds");
    let fs = Change::AddFs {
        name: "fs".into(),
        code: Code { data: 1, parity: 0 },
        block_size: 4 << 20,
        mount: "/m".into(),
        nsds: vec![NsdId(1)],
    };
    cluster.apply(&fs).expect("makes");
    let fs = cluster.file_systems[0].id;
    cluster.apply(&Change::Mount { fs, node: NodeNumber(1) }).expect("mounts");
    cluster
}

#[test]
fn the_bytes_of_the_file_never_change() {
    let bytes = encode(&sample()).expect("encodes");
    let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        shown,
        "5354524b434c5553040000005e0000009e6c5069abababababababababababababababab\
         0464656d6f05010201010201026e3101000a000001ee3c0702026e320002010102643101\
         082f6465762f73646201a11f0673797374656d01010101026673010080808002022f6d01\
         010101050000"
    );
    assert_eq!(decode(&bytes).expect("decodes"), sample());
}

#[test]
fn the_file_of_a_cluster_above_the_first_level_ends_with_it() {
    let mut cluster = sample();
    cluster.apply(&Change::Level { level: FeatureLevel(2) }).expect("rises");
    let bytes = encode(&cluster).expect("encodes");
    assert_eq!((bytes[8], bytes.last()), (5, Some(&2)));
    assert_eq!(read(&bytes).expect("decodes"), (cluster.clone(), true));
    let falls = Change::Level { level: FeatureLevel::FIRST };
    assert_eq!(cluster.apply(&falls).expect_err("never").kind(), ErrorKind::Invalid);
    let mut newer = bytes;
    newer[8] = 8;
    let error = decode(&newer).expect_err("of the future");
    assert!(error.to_string().contains("a newer program wrote: install that one"), "{error}");
}

#[test]
fn the_file_of_a_cluster_with_shared_nsds_ends_with_them() {
    let mut cluster = sample();
    cluster
        .apply(&Change::Unmount { fs: cluster.file_systems[0].id, node: NodeNumber(1) })
        .expect("unmounts");
    cluster.apply(&Change::DeleteFs { fs: cluster.file_systems[0].id }).expect("deletes");
    cluster.apply(&Change::Level { level: FeatureLevel(2) }).expect("rises");
    let servers = vec![NodeNumber(1), NodeNumber(2)];
    cluster.apply(&Change::ShareNsd { nsd: NsdId(1), servers }).expect("shares");
    let bytes = encode(&cluster).expect("encodes");
    assert_eq!(bytes[8], 6);
    assert_eq!(bytes[bytes.len() - 7..], [2, 1, 1, 2, 1, 2, 9]);
    assert_eq!(read(&bytes).expect("decodes"), (cluster, true));
}

#[test]
fn the_file_of_a_cluster_with_several_issuers_ends_with_them() {
    let mut cluster = sample();
    cluster.apply(&Change::Level { level: FeatureLevel(2) }).expect("rises");
    let address = SocketAddr::from(([10, 0, 0, 3], 7790));
    cluster.apply(&Change::Invite { name: "n3".into(), roles: Roles::ALL }).expect("invites");
    cluster.apply(&Change::Join { name: "n3".into(), address }).expect("joins");
    let before = encode(&cluster).expect("encodes");
    cluster.apply(&Change::Issue { node: NodeNumber(3) }).expect("issues");
    let bytes = encode(&cluster).expect("encodes");
    assert_eq!((before[8], bytes[8]), (5, 7));
    assert_eq!(bytes[bytes.len() - 4..], [2, 0, 1, 3]);
    assert_eq!(read(&bytes).expect("decodes"), (cluster, true));
}

/// The bytes of hexadecimal digits.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().collect();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(text, 16).expect("a byte")
    };
    digits.chunks(2).map(byte).collect()
}

#[test]
fn the_file_of_a_cluster_without_logs_of_metadata_is_read() {
    let hex = "5354524b434c5553030000005d0000008e15f187abababababababababababababababab\
         0464656d6f05010201010201026e3101000a000001ee3c0702026e320002010102643101\
         082f6465762f73646201a11f0673797374656d01010101026673010080808002022f6d010101010500";
    assert_eq!(read(&bytes_of(hex)).expect("decodes"), (sample(), true));
}

#[test]
fn the_file_of_a_cluster_without_a_log_is_read() {
    let hex = "5354524b434c5553020000005c0000001c947e4eabababababababababababababababab\
         0464656d6f05010201010201026e3101000a000001ee3c0702026e320002010102643101\
         082f6465762f73646201a11f0673797374656d01010101026673010080808002022f6d0101010105";
    let bytes = bytes_of(hex);
    assert_eq!(read(&bytes).expect("decodes"), (sample(), false));
    let now = encode(&sample()).expect("encodes");
    assert_eq!(read(&now).expect("decodes"), (sample(), true));
}

#[test]
fn damaged_bytes_are_refused() {
    let bytes = encode(&sample()).expect("encodes");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(decode(&damaged).expect_err("damaged").kind(), ErrorKind::Corrupt, "byte {at}");
        assert_eq!(decode(&bytes[..at]).expect_err("cut").kind(), ErrorKind::Corrupt, "{at} bytes");
    }
}

#[test]
fn bytes_with_a_right_checksum_never_break_the_reader() {
    let seed = Rng::from_entropy().expect("random").next_u64();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let good = encode(&sample()).expect("encodes");
    for _ in 0..20_000 {
        let mut body = good[HEAD_BYTES..].to_vec();
        for _ in 0..=rng.index(3) {
            let at = rng.index(body.len());
            body[at] = rng.next_u64() as u8;
        }
        body.truncate(body.len() - rng.index(2) * rng.index(body.len()));
        let mut bytes = good[..12].to_vec();
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        let sum = sum(&bytes[8..16], &body);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&body);
        if let Ok(cluster) = decode(&bytes) {
            cluster.check().expect("what is accepted keeps the invariants");
        }
    }
}
