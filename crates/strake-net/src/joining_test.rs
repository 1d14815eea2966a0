//! Joining over real sockets, with tokens of every kind that is not good.

use super::*;
use crate::cluster_test::{PATIENCE, TestCluster, name, open_door};
use crate::connection::Connection;
use crate::net_test::Folder;
use crate::{Cipher, Door, Introduction, NodeServer, ServerOptions, Service};
use std::os::unix::fs::MetadataExt;
use strake_proto::Role;

const HOUR: Duration = Duration::from_secs(3600);

/// A node that issues certificates.
struct Issuer {
    cluster: TestCluster,
    folder: Folder,
    desk: Arc<JoinDesk>,
    door: Door,
}

impl Issuer {
    fn new(id: u8) -> Issuer {
        let cluster = TestCluster::new(id);
        let folder = Folder::new();
        cluster.authority.store(folder.path()).expect("stored");
        let authority = ClusterAuthority::load(folder.path(), cluster.clock()).expect("loaded");
        let desk = JoinDesk::open(authority, folder.path(), cluster.clock()).expect("opened");
        let desk = Arc::new(desk);
        let own = cluster.node("n1", &[Role::Quorum], Cipher::AuthOnly);
        let server = NodeServer::new(&own).expect("a server").with_desk(Arc::clone(&desk));
        let door = open_door(server, ServerOptions::new(1));
        Issuer { cluster, folder, desk, door }
    }

    fn token(&self, node: &str, roles: &[Role]) -> JoinToken {
        let Endpoint::Tcp(address) = self.door.endpoint() else { panic!("a port") };
        self.desk.issue(&name(node), Roles::of(roles), *address, HOUR).expect("issued")
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
    issuer.desk.withdraw(&name("n3")).expect("written");
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
    denied(issuer.desk.redeem(&request), "does not have the key");
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
