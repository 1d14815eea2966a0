//! Golden identities, files, and certificates that lie.

use super::*;
use crate::ClusterAuthority;
use crate::cluster_test::{TestCluster, name};
use crate::net_test::Folder;
use strake_env::Rng;
use strake_proto::Role;

fn identity() -> NodeIdentity {
    let roles = Roles::of(&[Role::Quorum, Role::Client]);
    NodeIdentity { cluster: ClusterId([0x1f; 16]), name: name("n1.rack-2"), roles }
}

#[test]
fn golden_names_of_identities() {
    let cluster = "1f".repeat(16);
    let uri = identity_uri(&identity());
    assert_eq!(uri, format!("strake:{cluster}:n1.rack-2:quorum,client"));
    assert_eq!(parse_identity(&uri), Some(identity()));
    assert_eq!(authority_uri(ClusterId([0x1f; 16])), format!("strake:{cluster}"));
    for other in [
        uri.replace("quorum,client", "client,quorum"),
        uri.replace("quorum,client", "quorum,quorum,client"),
        uri.replace("quorum,client", ""),
        uri.replace("1f1f", "1F1f"),
        uri.replace("n1", "N1"),
        format!("{uri}:"),
        format!("{uri} "),
        uri.replace("strake:", "Strake:"),
        uri[..uri.len() - 15].to_owned(),
    ] {
        assert_eq!(parse_identity(&other), None, "{other}");
    }
}

#[test]
fn golden_pem() {
    assert_eq!(pem("X", b""), "-----BEGIN X-----\n-----END X-----\n");
    assert_eq!(pem("X", b"f"), "-----BEGIN X-----\nZg==\n-----END X-----\n");
    assert_eq!(pem("X", b"foob"), "-----BEGIN X-----\nZm9vYg==\n-----END X-----\n");
    assert_eq!(pem("X", b"foobar"), "-----BEGIN X-----\nZm9vYmFy\n-----END X-----\n");
    let mut rng = Rng::new(1);
    for length in 0..200 {
        let mut bytes = vec![0; length];
        rng.fill(&mut bytes);
        let text = pem("CERTIFICATE", &bytes);
        assert!(text.lines().all(|line| line.len() <= 64));
        let read = CertificateDer::from_pem_slice(text.as_bytes()).expect("a certificate's form");
        assert_eq!(read.as_ref(), bytes);
    }
}

#[test]
fn credentials_are_kept_in_files_that_only_their_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = TestCluster::new(1);
    let node = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let folder = Folder::new();
    let missing = NodeCredentials::load(folder.path(), cluster.clock()).expect_err("none");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    node.store(folder.path()).expect("stored");
    let loaded = NodeCredentials::load(folder.path(), cluster.clock()).expect("loaded");
    assert_eq!(loaded.identity(), node.identity());
    assert_eq!(node.store(folder.path()).expect_err("not twice").kind(), ErrorKind::Exists);
    for file in [NODE_KEY, NODE_CERTIFICATE, AUTHORITY_CERTIFICATE] {
        let path = folder.path().join(file);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("a mode");
        let error = NodeCredentials::load(folder.path(), cluster.clock()).expect_err("readable");
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    }
    let other = cluster.node("n2", &[Role::Server], Cipher::AuthOnly);
    std::fs::write(folder.path().join(NODE_CERTIFICATE), pem("CERTIFICATE", &other.certificate))
        .expect("written");
    let error = NodeCredentials::load(folder.path(), cluster.clock()).expect_err("another's");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn an_authority_is_kept_with_the_key_that_belongs_to_it() {
    let (cluster, other) = (TestCluster::new(1), TestCluster::new(1));
    let folder = Folder::new();
    cluster.authority.store(folder.path()).expect("stored");
    let node = cluster.node("n1", &[Role::Quorum], Cipher::AuthOnly);
    node.store(folder.path()).expect("beside it, with the same authority");
    let loaded = ClusterAuthority::load(folder.path(), cluster.clock()).expect("loaded");
    assert_eq!(loaded.fingerprint(), node.authority_fingerprint());
    let path = folder.path().join(AUTHORITY_CERTIFICATE);
    std::fs::write(&path, pem("CERTIFICATE", other.authority.certificate())).expect("written");
    let error = ClusterAuthority::load(folder.path(), cluster.clock()).expect_err("another's");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let stranger = NodeIdentity { cluster: ClusterId([9; 16]), ..identity() };
    assert_eq!(cluster.authority.issue(&stranger).expect_err("not its").kind(), ErrorKind::Invalid);
}

#[test]
fn mutated_certificates_name_nobody_else_and_never_panic() {
    let cluster = TestCluster::new(1);
    let node = cluster.node("n1", &[Role::Client], Cipher::AuthOnly);
    let genuine: &[u8] = &node.certificate;
    for seed in strake_env::rng::test_seeds(0, 3000) {
        let mut rng = Rng::new(seed);
        let mut bytes = genuine.to_vec();
        for _ in 0..1 + rng.index(4) {
            let at = rng.index(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        if rng.one_in(3) {
            bytes.truncate(rng.index(bytes.len()));
        }
        let certificate = CertificateDer::from(bytes.clone());
        // What it says may differ. Whether somebody signed that is the question.
        let _ = (identity_of(&certificate), cluster_of(&certificate));
        let (key, authority) = (node.key.clone_key(), node.authority.clone());
        if bytes != genuine
            && let Ok(lying) = NodeCredentials::new(key, certificate, authority, cluster.clock())
        {
            assert!(crate::tls::check_chain(&lying).is_err(), "seed {seed}");
        }
    }
}
