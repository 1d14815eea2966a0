//! A small cluster with certificates on loopback: nodes that talk in both ways of protection, and
//! every kind of stranger, while another session goes on undisturbed.

use crate::connection::{CallError, Connection};
use crate::frame::{FrameKind, Seal, write_frame};
use crate::handshake::introduce;
use crate::seal::SPOKEN;
use crate::*;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use strake_env::net::TcpStream;
use strake_env::sync::Mutex;
use strake_env::{Clock, ManualClock, RealClock, Rng};
use strake_proto::feature::OLDEST_PROTOCOL;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, PROTOCOL_VERSION};
use strake_proto::{
    ClusterId, Error, ErrorKind, NodeIdentity, NodeName, NsdId, Result, Role, Roles,
};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
const NSD: NsdId = NsdId(3);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub(super) fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

/// An authority and its clock.
pub(super) struct TestCluster {
    pub(super) clock: Arc<ManualClock>,
    pub(super) authority: ClusterAuthority,
}

impl TestCluster {
    pub(super) fn new(id: u8) -> TestCluster {
        let clock = Arc::new(ManualClock::default());
        let authority = ClusterAuthority::create(ClusterId([id; 16]), clock.clone());
        TestCluster { authority: authority.expect("made"), clock }
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    pub(super) fn node(&self, node: &str, roles: &[Role], cipher: Cipher) -> Arc<NodeCredentials> {
        let cluster = self.authority.cluster();
        let identity = NodeIdentity { cluster, name: name(node), roles: Roles::of(roles) };
        Arc::new(self.authority.issue(&identity).expect("issued").with_cipher(cipher))
    }
}

/// Answers with the name of the one who asks and the request.
struct Echo;

impl ControlPort for Echo {
    fn answer(&self, peer: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>> {
        Ok([peer.to_string().as_bytes(), b": ", request].concat())
    }
}

struct Nsd;

impl NsdPort for Nsd {
    fn call(
        &self,
        _context: NsdContext,
        _request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        receive.fill(send.first().copied().unwrap_or(9));
        Ok(NsdReply::Done)
    }
}

/// A door of node `n1` on a port of loopback, with an echo and an NSD.
pub(super) fn open_door(credentials: impl Into<Credentials>, options: ServerOptions) -> Door {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(&Endpoint::Tcp(any)).expect("a port");
    let door = Door::open(listener, credentials, options).expect("threads");
    door.serve_node(Arc::new(Echo)).expect("threads");
    door.serve_nsd(NSD, Arc::new(Nsd)).expect("threads");
    door
}

fn server_of(own: &NodeCredentials) -> NodeServer {
    NodeServer::new(own).expect("key and certificate")
}

fn options() -> ServerOptions {
    ServerOptions { limit: Duration::from_secs(1), greetings_max: 8, ..ServerOptions::new(7) }
}

fn connect(door: &Door, introduction: &Introduction, service: Service) -> Result<Connection> {
    Connection::open(door.endpoint(), introduction, service, PATIENCE)
}

fn ask(connection: &Connection, text: &str) -> Result<String> {
    let kind = FrameKind::ControlRequest;
    match connection.call(kind, text.as_bytes(), &[], PATIENCE) {
        Ok(frame) => Ok(String::from_utf8(frame.message).expect("text")),
        Err(CallError::Failed(error) | CallError::Disconnected(error)) => Err(error),
    }
}

fn refused<T>(result: Result<T>, kind: ErrorKind, part: &str) {
    let error = result.err().expect("refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn nodes_know_each_other_in_both_ways_of_protection() {
    let cluster = TestCluster::new(1);
    for cipher in [Cipher::AuthOnly, Cipher::Tls] {
        let server = cluster.node("n1", &[Role::Quorum, Role::Server], cipher);
        let client = cluster.node("c1", &[Role::Client], cipher);
        let door = open_door(server_of(&server), options());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let ports: PortFor<dyn NsdPort> = Arc::new(move |peer| {
            noted.lock().push(peer.clone());
            Ok(Arc::new(Nsd) as Arc<dyn NsdPort>)
        });
        door.serve_nsd_for(NSD, ports).expect("threads");
        let introduction = Introduction::node(&client, &name("n1"));
        let connection = connect(&door, &introduction, Service::Node).expect("a node");
        assert_eq!(*connection.peer(), ProvenPeer::Node(server.identity().clone()));
        for _ in 0..100 {
            assert_eq!(ask(&connection, "hello").expect("answered"), "node c1 (client): hello");
        }
        let env = SessionEnv {
            introduction,
            clock: RealClock::shared(),
            waits: Arc::new(()),
            process: None,
            links: None,
        };
        let endpoint = door.endpoint().clone();
        let session = NsdClientSession::new(endpoint, NSD, SessionLimits::NSD, env);
        let request = NsdRequest::Read {
            key: strake_proto::StripKey {
                fs: strake_proto::FsId(1),
                object: strake_proto::ObjectId(1),
                block: strake_proto::BlockIndex(0),
                strip: strake_proto::StripIndex(0),
            },
            version: None,
            offset: 0,
            length: 4096,
        };
        let reply = session.call(NsdContext::default(), &request, &[5; 1 << 20], &mut [0; 4096]);
        assert_eq!(reply.expect("served"), NsdReply::Done);
        assert_eq!(*seen.lock(), [ProvenPeer::Node(client.identity().clone())]);
    }
}

#[test]
fn only_the_expected_node_is_accepted_and_only_if_it_may_serve() {
    let cluster = TestCluster::new(1);
    let client = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let to = |node: &str| Introduction::node(&client, &name(node));
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let door = open_door(server_of(&server), options());
    refused(connect(&door, &to("n2"), Service::Node), ErrorKind::Access, "not node n2");
    let foreign = TestCluster::new(2).node("n1", &[Role::Server], Cipher::AuthOnly);
    let door = open_door(server_of(&foreign), options());
    refused(connect(&door, &to("n1"), Service::Node), ErrorKind::Access, "another cluster");
    let posing = cluster.node("n1", &[Role::Client], Cipher::AuthOnly);
    let door = open_door(server_of(&posing), options());
    refused(connect(&door, &to("n1"), Service::Node), ErrorKind::Access, "may not serve");
}

#[test]
fn nodes_of_other_clusters_and_expired_ones_are_refused() {
    let (cluster, other) = (TestCluster::new(1), TestCluster::new(1));
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let door = open_door(server_of(&server), options());
    // It trusts this cluster's authority, and has a certificate of another with the same id.
    let stranger = other.node("c1", &[Role::Client], Cipher::AuthOnly);
    let posing = NodeCredentials::new(
        stranger.key.clone_key(),
        stranger.certificate.clone(),
        server.authority.clone(),
        cluster.clock(),
    );
    let to_n1 = |own: &Arc<NodeCredentials>| Introduction::node(own, &name("n1"));
    let posing = Arc::new(posing.expect("it names the same cluster"));
    refused(connect(&door, &to_n1(&posing), Service::Node), ErrorKind::Access, "refuses this node");
    let client = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    connect(&door, &to_n1(&client), Service::Node).expect("valid for ten years");
    cluster.clock.advance(YEAR * 10 + Duration::from_secs(1));
    let renewed = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    refused(connect(&door, &to_n1(&client), Service::Node), ErrorKind::Access, "expired");
    let door = open_door(server_of(&renewed), options());
    refused(connect(&door, &to_n1(&client), Service::Node), ErrorKind::Access, "refuses this node");
    wait_for_rejected(&door, 1);
}

#[test]
fn a_server_that_wants_encryption_gets_it_or_refuses() {
    let cluster = TestCluster::new(1);
    let server = cluster.node("n1", &[Role::Server], Cipher::Tls);
    let door = open_door(server_of(&server), options());
    let open = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let introduction = Introduction::node(&open, &name("n1"));
    refused(connect(&door, &introduction, Service::Node), ErrorKind::Access, "cipher=TLS");
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let door = open_door(server_of(&server), options());
    let closed = cluster.node("c1", &[Role::Client], Cipher::Tls);
    let introduction = Introduction::node(&closed, &name("n1"));
    let connection = connect(&door, &introduction, Service::Node).expect("more than it needs");
    assert!(ask(&connection, "x").is_ok());
}

#[test]
fn roles_and_membership_decide_who_may_use_a_service() {
    struct AllBut(NodeName);
    impl Members for AllBut {
        fn admit(&self, node: &NodeIdentity) -> Result<()> {
            match node.name == self.0 {
                true => Err(Error::new(ErrorKind::Access, "it was taken out of the cluster")),
                false => Ok(()),
            }
        }
    }
    let cluster = TestCluster::new(1);
    let server = cluster.node("n1", &[Role::Quorum, Role::Server], Cipher::AuthOnly);
    let members = Arc::new(AllBut(name("gone")));
    let door = open_door(server_of(&server).with_members(members), options());
    let to_n1 = |own: &Arc<NodeCredentials>| Introduction::node(own, &name("n1"));
    let storage = to_n1(&cluster.node("s1", &[Role::Server], Cipher::AuthOnly));
    let error = connect(&door, &storage, Service::Nsd(NSD));
    refused(error, ErrorKind::Access, "node s1 (server) may not use nsd 3");
    assert!(connect(&door, &storage, Service::Node).is_ok(), "other services are for all nodes");
    let all = to_n1(&cluster.node("s1", &[Role::Client], Cipher::AuthOnly));
    refused(connect(&door, &all, Service::Agent), ErrorKind::Access, "not for nodes");
    refused(connect(&door, &all, Service::Meta), ErrorKind::Unreachable, "not served here");
    let gone = to_n1(&cluster.node("gone", &[Role::Client], Cipher::AuthOnly));
    refused(connect(&door, &gone, Service::Node), ErrorKind::Access, "taken out of the cluster");
    let connection = connect(&door, &all, Service::Node).expect("a member");
    door.disconnect(&name("other"));
    assert!(ask(&connection, "x").is_ok());
    door.disconnect(&name("s1"));
    assert!(ask(&connection, "x").is_err(), "its connections end with its membership");
}

#[test]
fn an_older_program_and_a_newer_one_work_together() {
    let cluster = TestCluster::new(1);
    let server = cluster.node("n1", &[Role::Quorum, Role::Server], Cipher::Tls);
    let door = open_door(server_of(&server), options());
    let own = cluster.node("c1", &[Role::Client], Cipher::Tls);
    let to_n1 = Introduction::node(&own, &name("n1"));
    for spoken in [None, Some(OLDEST_PROTOCOL)] {
        SPOKEN.set(spoken);
        let connection = connect(&door, &to_n1, Service::Node);
        SPOKEN.set(None);
        let connection = connection.expect("both are spoken");
        assert_eq!(connection.protocol(), spoken.unwrap_or(PROTOCOL_VERSION));
        assert!(ask(&connection, "x").is_ok(), "{spoken:?}");
    }
    SPOKEN.set(Some(OLDEST_PROTOCOL - 1));
    let refused_one = connect(&door, &to_n1, Service::Node);
    SPOKEN.set(None);
    refused(refused_one, ErrorKind::Access, "install a newer version of strake there");
}

/// Sets it when dropped, also by a test that fails: threads that look at it end then.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// One session that asks all the time while `strangers` do what they like; it must not notice. What
/// they return stays open until others have got in.
fn undisturbed<T>(strangers: impl FnOnce(&Door, &TestCluster) -> T) {
    let cluster = TestCluster::new(1);
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let client = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let door = open_door(server_of(&server), options());
    let introduction = Introduction::node(&client, &name("n1"));
    // A connection is never made anew, so its calls fail if anything happens to it.
    let connection = connect(&door, &introduction, Service::Node).expect("a node");
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    strake_env::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = SetAtEnd(&stop);
            while !stop.load(SeqCst) {
                ask(&connection, "still here?").expect("undisturbed");
                asked.fetch_add(1, SeqCst);
            }
        });
        let _end = SetAtEnd(&stop);
        let _open = strangers(&door, &cluster);
        let new = connect(&door, &introduction, Service::Node).expect("others get in");
        let before = asked.load(SeqCst);
        assert!(ask(&new, "hello").is_ok());
        // It stops by itself only if it was disturbed.
        while asked.load(SeqCst) <= before && !stop.load(SeqCst) {
            strake_env::thread::yield_now();
        }
    });
}

/// The door counts a client that it sent away a moment after the client knows.
pub(super) fn wait_for_rejected(door: &Door, count: u64) {
    while door.rejected() < count {
        strake_env::thread::yield_now();
    }
    assert_eq!(door.rejected(), count);
}

fn dial(door: &Door) -> TcpStream {
    let Endpoint::Tcp(address) = door.endpoint() else { panic!("a port") };
    let stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

/// Waits until the server ends the connection; what it said before.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return said,
            Ok(count) => said.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(error) => panic!("it is not closed: {error}"),
        }
    }
}

#[test]
fn garbage_and_peers_that_speak_otherwise_are_refused() {
    undisturbed(|door, _| {
        for seed in strake_env::rng::test_seeds(0, 40) {
            let mut rng = Rng::new(seed);
            let mut bytes = vec![0; 1 + rng.index(600)];
            rng.fill(&mut bytes);
            // Some look like a record of TLS at first.
            if rng.one_in(2) {
                let head = [22, 3, 1, 0, rng.next_u64() as u8];
                let count = head.len().min(bytes.len());
                bytes[..count].copy_from_slice(&head[..count]);
            }
            let mut stream = dial(door);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(strake_env::net::Shutdown::Write);
            until_closed(stream);
        }
        // The greeting of a peer that knows secrets only, in this version and the one before.
        for version in 0..2 {
            let mut frame = Vec::new();
            write_frame(&mut frame, &mut Seal::none(), FrameKind::Hello, 0, &[1; 40], &[])
                .expect("a Vec takes all");
            frame[4] -= version;
            let mut stream = dial(door);
            stream.write_all(&frame).expect("sent");
            until_closed(stream);
        }
        wait_for_rejected(door, 42);
    });
}

#[test]
fn a_peer_with_the_secret_of_before_gets_no_session() {
    undisturbed(|door, _| {
        let secret: Introduction = SharedSecret::of_words(b"of the first version").into();
        assert!(connect(door, &secret, Service::Node).is_err());
    });
}

#[test]
fn half_a_greeting_and_a_byte_now_and_then_are_outlived() {
    undisturbed(|door, _| {
        let begun = RealClock.monotonic();
        let mut streams: Vec<TcpStream> = (0..4).map(|_| dial(door)).collect();
        // The head of a long record, and then its bytes one by one.
        for stream in &mut streams {
            stream.write_all(&[22, 3, 1, 0x20, 0]).expect("sent");
        }
        let mut open = streams.len();
        while open > 0 {
            assert!(RealClock.monotonic() - begun < PATIENCE, "the limit is one second");
            strake_env::thread::yield_now();
            open = streams.iter().filter(|stream| (&mut &**stream).write_all(&[0]).is_ok()).count();
            RealClock.sleep(Duration::from_millis(20));
        }
        assert!(RealClock.monotonic() - begun >= options().limit, "they had their time");
    });
}

#[test]
fn a_node_that_sends_half_a_request_holds_up_itself_alone() {
    undisturbed(|door, cluster| {
        let other = cluster.node("c2", &[Role::Client], Cipher::AuthOnly);
        let introduction = Introduction::node(&other, &name("n1"));
        let mut stream = Stream::connect(door.endpoint(), PATIENCE).expect("connects");
        let agreed = introduce(&mut stream, &introduction, Service::Node).expect("a node");
        let (mut sending, mut frame) = (agreed.sending, Vec::new());
        let message = vec![0; strake_proto::limits::MESSAGE_BYTES_MAX];
        write_frame(&mut frame, &mut sending, FrameKind::ControlRequest, 1, &message, &[])
            .expect("a Vec takes all");
        stream.write_all(&frame[..100]).expect("sent");
        stream
    });
}

#[test]
fn silent_connections_cost_a_limited_number_of_places() {
    undisturbed(|door, _| {
        let streams: Vec<TcpStream> = (0..100).map(|_| dial(door)).collect();
        let begun = RealClock.monotonic();
        let mut open = streams.len();
        while open > options().greetings_max {
            assert!(RealClock.monotonic() - begun < PATIENCE, "{open} are open");
            let is_open = |stream: &&TcpStream| {
                stream.set_nonblocking(true).expect("a mode");
                let peeked = stream.peek(&mut [0]);
                peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            };
            open = streams.iter().filter(is_open).count();
        }
        streams
    });
}

#[test]
fn sessions_survive_servers_that_come_back_with_certificates() {
    let cluster = TestCluster::new(1);
    for cipher in [Cipher::AuthOnly, Cipher::Tls] {
        let server = cluster.node("n1", &[Role::Server], cipher);
        let client = cluster.node("c1", &[Role::Client], cipher);
        let mut door = open_door(server_of(&server), options());
        let endpoint = door.endpoint().clone();
        let env = SessionEnv {
            introduction: Introduction::node(&client, &name("n1")),
            clock: RealClock::shared(),
            waits: Arc::new(()),
            process: None,
            links: None,
        };
        let limits = SessionLimits { absent: PATIENCE, broken: PATIENCE, ..SessionLimits::NSD };
        let session = NsdClientSession::new(endpoint.clone(), NSD, limits, env);
        for _ in 0..3 {
            let reply = session.call(NsdContext::default(), &NsdRequest::Status, &[], &mut []);
            assert_eq!(reply.expect("served"), NsdReply::Done);
            door.close();
            let listener = loop {
                match Listener::bind(&endpoint) {
                    Ok(listener) => break listener,
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        strake_env::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            door = Door::open(listener, server_of(&server), options()).expect("threads");
            door.serve_nsd(NSD, Arc::new(Nsd)).expect("threads");
        }
    }
}
