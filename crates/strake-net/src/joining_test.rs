//! Joining over real sockets, with tokens of every kind that is not good.

use super::*;
use crate::cluster_test::{PATIENCE, TestCluster, name, open_door};
use crate::connection::Connection;
use crate::net_test::Folder;
use crate::{
    AuthorityCopy, Cipher, DeskPlace, Door, Introduction, NodeServer, ServerOptions, Service,
};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use strake_proto::Role;

const HOUR: Duration = Duration::from_secs(3600);

/// A node that issues certificates.
struct Issuer {
    cluster: TestCluster,
    folder: Folder,
    desk: DeskPlace,
    door: Door,
}

impl Issuer {
    fn new(id: u8) -> Issuer {
        let cluster = TestCluster::new(id);
        let folder = Folder::new();
        cluster.authority.store(folder.path()).expect("stored");
        let authority = ClusterAuthority::load(folder.path(), cluster.clock()).expect("loaded");
        let desk = JoinDesk::open(authority, folder.path(), cluster.clock()).expect("opened");
        let desk = DeskPlace::from(OnceLock::from(desk));
        let own = cluster.node("n1", &[Role::Quorum], Cipher::AuthOnly);
        let server = NodeServer::new(&own).expect("a server").with_desk(Arc::clone(&desk));
        let door = open_door(server, ServerOptions::new(1));
        Issuer { cluster, folder, desk, door }
    }

    fn desk(&self) -> &JoinDesk {
        self.desk.get().expect("there from the start")
    }

    fn token(&self, node: &str, roles: &[Role]) -> JoinToken {
        let Endpoint::Tcp(address) = self.door.endpoint() else { panic!("a port") };
        self.desk().issue(&name(node), Roles::of(roles), *address, HOUR).expect("issued")
    }

    fn join(&self, token: &JoinToken) -> Result<NodeCredentials> {
        join(token, &self.cluster.clock(), PATIENCE)
    }
}

fn denied<T>(result: Result<T>, part: &str) {
    let error = result.err().expect("denied");
    assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_machine_with_a_token_becomes_the_node_that_the_token_is_for() {
    let issuer = Issuer::new(1);
    let token = issuer.token("n2", &[Role::Server, Role::Client]);
    let token: JoinToken = token.to_string().parse().expect("as it is shown");
    let node = issuer.join(&token).expect("joined");
    assert_eq!(node.identity().to_string(), "node n2 (server,client)");
    let home = Folder::new();
    node.store(home.path()).expect("stored");
    for file in ["node.key", "node.crt", "ca.crt"] {
        let mode = std::fs::metadata(home.path().join(file)).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let node = NodeCredentials::load(home.path(), issuer.cluster.clock()).expect("loaded");
    let introduction = Introduction::node(&Arc::new(node), &name("n1"));
    let connection =
        Connection::open(issuer.door.endpoint(), &introduction, Service::Node, PATIENCE);
    connection.expect("a node of the cluster");
}

#[test]
fn used_expired_replaced_forged_and_foreign_tokens_give_no_certificate() {
    let issuer = Issuer::new(1);
    let token = issuer.token("n2", &[Role::Client]);
    issuer.join(&token).expect("the first time");
    denied(issuer.join(&token), "used already");

    let token = issuer.token("n3", &[Role::Client]);
    let newer = issuer.token("n3", &[Role::Client]);
    denied(issuer.join(&token), "not known");
    issuer.desk().withdraw(&name("n3")).expect("written");
    denied(issuer.join(&newer), "not known");

    let mut forged = issuer.token("n3", &[Role::Client]);
    forged.secret[3] ^= 1;
    denied(issuer.join(&forged), "not known");

    let token = issuer.token("n4", &[Role::Client]);
    issuer.cluster.clock.advance(HOUR);
    denied(issuer.join(&token), "expired");

    let token = issuer.token("n5", &[Role::Client]);
    let other = Issuer::new(1);
    let mut astray = token.clone();
    let Endpoint::Tcp(address) = other.door.endpoint() else { panic!("a port") };
    astray.address = *address;
    denied(issuer.join(&astray), "another cluster");
    issuer.join(&token).expect("the other cluster never saw its secret");
}

#[test]
fn what_the_desk_knows_outlives_its_process() {
    let issuer = Issuer::new(1);
    let (used, waiting) =
        (issuer.token("n2", &[Role::Client]), issuer.token("n3", &[Role::Client]));
    issuer.join(&used).expect("the first time");
    let path = issuer.folder.path();
    let reopen = || {
        let authority = ClusterAuthority::load(path, issuer.cluster.clock()).expect("loaded");
        JoinDesk::open(authority, path, issuer.cluster.clock())
    };
    let desk = reopen().expect("opened");
    let request = |token: &JoinToken| {
        let key = new_key().expect("a key");
        let PublicKey(public) = public_key(&key);
        let signature = key.sign(&signed(&token.secret, &public)).expect("signed");
        JoinRequest { secret: token.secret, key: public, signature }
    };
    denied(desk.redeem(&request(&used)), "used already");
    let asked = request(&waiting);
    desk.redeem(&asked).expect("known");
    desk.redeem(&asked).expect("the same key may ask again");
    let stored = std::fs::read(path.join(LEDGER)).expect("there");
    let secret = &waiting.secret[..];
    assert!(!stored.windows(secret.len()).any(|part| part == secret), "only the hash is kept");
    std::fs::write(path.join(LEDGER), b"SJTL").expect("damaged");
    assert_eq!(reopen().err().expect("damaged").kind(), ErrorKind::Corrupt);
}

#[test]
fn nobody_gets_a_certificate_for_a_key_of_somebody_else() {
    let issuer = Issuer::new(1);
    let token = issuer.token("n2", &[Role::Client]);
    let (mine, other) = (new_key().expect("a key"), new_key().expect("a key"));
    let PublicKey(key) = public_key(&other);
    let signature = mine.sign(&signed(&token.secret, &key)).expect("signed");
    let request = JoinRequest { secret: token.secret, key, signature };
    denied(issuer.desk().redeem(&request), "does not have the key");
    issuer.join(&token).expect("the token was not used by that");
}

#[test]
fn a_node_without_a_desk_and_a_joiner_without_a_token_say_so() {
    let issuer = Issuer::new(1);
    let own = issuer.cluster.node("n9", &[Role::Server], Cipher::AuthOnly);
    let door = open_door(NodeServer::new(&own).expect("a server"), ServerOptions::new(1));
    let mut token = issuer.token("n2", &[Role::Client]);
    let Endpoint::Tcp(address) = door.endpoint() else { panic!("a port") };
    token.address = *address;
    let error = issuer.join(&token).expect_err("no desk");
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    // A joiner has no certificate, so it gets no other service.
    let mut stream = Stream::connect(issuer.door.endpoint(), PATIENCE).expect("connects");
    let expected = Expected::Cluster(token.authority, issuer.cluster.clock());
    let mut secured = tls::connect(&mut stream, &expected).expect("an issuer");
    let wanted = crate::auth::Hello::Wanted { service: Service::Node };
    crate::auth::say(&mut stream, &mut secured.sending, &wanted).expect("sent");
    let heard = crate::auth::hear(&mut stream, &mut secured.receiving);
    assert!(heard.is_err(), "{heard:?}");
}

#[test]
fn a_node_that_got_the_authority_issues_certificates_from_then_on() {
    let issuer = Issuer::new(1);
    let own = issuer.cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let home = Folder::new();
    own.store(home.path()).expect("stored");
    let place = DeskPlace::default();
    let server = NodeServer::new(&own).expect("a server").with_desk(Arc::clone(&place));
    let door = open_door(server, ServerOptions::new(1));
    let Endpoint::Tcp(address) = door.endpoint() else { panic!("a port") };
    let early = JoinToken { address: *address, ..issuer.token("n3", &[Role::Client]) };
    assert_eq!(issuer.join(&early).expect_err("too early").kind(), ErrorKind::NotSupported);

    let sent = encode(&issuer.cluster.authority.copy()).expect("encodes");
    let sent: AuthorityCopy = decode(&sent).expect("as it was sent");
    let received = ClusterAuthority::received(&sent, &own).expect("the one it trusts");
    received.store(home.path()).expect("stored");
    let path = home.path().join("ca.key");
    assert_eq!(std::fs::metadata(path).expect("there").mode() & 0o777, 0o600);
    let authority = ClusterAuthority::load(home.path(), issuer.cluster.clock()).expect("loaded");
    let desk = JoinDesk::open(authority, home.path(), issuer.cluster.clock()).expect("opened");
    assert!(place.set(desk).is_ok(), "it has none yet");
    let desk = place.get().expect("there");
    let token = desk.issue(&name("n4"), Roles::of(&[Role::Client]), *address, HOUR);
    let node = issuer.join(&token.expect("issued")).expect("joined");
    assert_eq!(node.identity().to_string(), "node n4 (client)");
    // Nodes that the first issuer let in trust those that the second one let in.
    assert_eq!(node.authority_fingerprint(), issuer.cluster.authority.fingerprint());
}

#[test]
fn an_authority_that_a_node_does_not_trust_is_not_taken() {
    let (cluster, other) = (TestCluster::new(1), TestCluster::new(1));
    let own = cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let refused = |copy: &AuthorityCopy| {
        let error = ClusterAuthority::received(copy, &own).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        error.to_string()
    };
    let text = refused(&other.authority.copy());
    assert!(text.contains("not the authority that this node trusts"), "{text}");
    let genuine = || cluster.authority.copy();
    for key in [other.authority.copy().key, "no key".to_owned(), genuine().certificate] {
        refused(&AuthorityCopy { key, ..genuine() });
    }
    let cut = "-----BEGIN CERTIFICATE-----".to_owned();
    refused(&AuthorityCopy { certificate: cut, ..genuine() });
}
