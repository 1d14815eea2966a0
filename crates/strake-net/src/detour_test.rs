//! A client, a node that it does not reach, and a node between them.

use super::*;
use crate::cluster_test::{PATIENCE, TestCluster, name, open_door};
use crate::connection::Connection;
use crate::frame::FrameKind;
use crate::{Cipher, Door, NodeServer, Passes, ProvenPeer, ServerOptions};
use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, listen, socket};
use std::os::fd::OwnedFd;
use strake_env::RealClock;
use strake_env::net::SocketAddr;
use strake_proto::Role;

/// For a connection and its greetings.
const LIMIT: Duration = Duration::from_secs(5);

/// An address of loopback that answers no attempt to connect: its queue is full.
struct Deaf {
    address: SocketAddr,
    _sockets: Vec<OwnedFd>,
}

impl Deaf {
    fn new() -> Deaf {
        let new = || socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let listener = new();
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        bind(&listener, &any).expect("a port");
        listen(&listener, 0).expect("listens");
        let bound = rustix::net::getsockname(&listener).expect("its address");
        let address: SocketAddr = bound.try_into().expect("an address of the Internet");
        let mut sockets = vec![listener];
        let filling = new();
        connect_to(&filling, &address).expect("the only place in the queue");
        sockets.push(filling);
        Deaf { address, _sockets: sockets }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Tcp(self.address)
    }
}

/// Passes on to one node.
struct To(&'static str, Endpoint);

impl Passes for To {
    fn place_of(&self, node: &NodeName) -> Option<Endpoint> {
        (node.as_str() == self.0).then(|| self.1.clone())
    }
}

fn door_of(own: &NodeCredentials, passes: Option<To>) -> Door {
    let server = NodeServer::new(own).expect("key and certificate");
    let server = match passes {
        Some(to) => server.with_passes(Arc::new(to)),
        None => server,
    };
    open_door(server, ServerOptions::new(7))
}

/// The credentials of a node that may go through those at `nodes`.
fn client(
    cluster: &TestCluster,
    roles: &[Role],
    nodes: Vec<(NodeName, Endpoint)>,
) -> Arc<NodeCredentials> {
    let own = cluster.node("c1", roles, Cipher::Tls);
    let own = Arc::into_inner(own).expect("the only one");
    Arc::new(own.with_detours(Detours::new(RealClock::shared(), move || nodes.clone())))
}

fn open(own: &Arc<NodeCredentials>, at: &Endpoint, service: Service) -> Result<Connection> {
    Connection::open(at, &Introduction::node(own, &name("x")), service, LIMIT)
}

fn says(connection: &Connection, text: &str) -> String {
    let kind = FrameKind::ControlRequest;
    let frame = connection.call(kind, text.as_bytes(), &[], PATIENCE);
    String::from_utf8(frame.map_err(Error::from).expect("answered").message).expect("text")
}

#[test]
fn a_node_that_does_not_answer_is_reached_through_another_one() {
    let cluster = TestCluster::new(1);
    let server = [Role::Server];
    let [x, y, z] = ["x", "y", "z"].map(|node| cluster.node(node, &server, Cipher::Tls));
    let x_door = door_of(&x, None);
    let (deaf, dead) = (Deaf::new(), Deaf::new());
    let y_door = door_of(&y, Some(To("x", x_door.endpoint().clone())));
    let nodes = vec![
        (name("x"), deaf.endpoint()),
        (name("c1"), deaf.endpoint()),
        (name("z"), dead.endpoint()),
        (name("y"), y_door.endpoint().clone()),
    ];
    drop(z);
    let own = client(&cluster, &[Role::Client], nodes);
    let connection = open(&own, &deaf.endpoint(), Service::Node).expect("connected");
    assert!(matches!(connection.peer(), ProvenPeer::Node(node) if node.name == name("x")));
    let told = says(&connection, "hello");
    assert!(told.contains("c1") && told.ends_with(": hello"), "x knows who asks: {told}");
    let long = "long ".repeat(100_000);
    assert!(says(&connection, &long).ends_with(&long));
    assert!(!connection.is_detour_over(), "the link is still bad");
    let taken = || own.detours().expect("some").taken();
    assert_eq!(taken(), [(name("x"), name("y"))]);

    let second = open(&own, &deaf.endpoint(), Service::Node).expect("connected");
    assert!(says(&second, "again").ends_with(": again"));
    let (to_x, limit) = (Introduction::node(&own, &name("x")), Duration::from_millis(300));
    let replica = Connection::open(&deaf.endpoint(), &to_x, Service::Replica, limit);
    let replica = replica.err().expect("no detour");
    assert_eq!(replica.kind(), ErrorKind::TimedOut);

    // A door that closes ends what it passes on.
    y_door.close();
    let call = second.call(FrameKind::ControlRequest, b"gone", &[], PATIENCE);
    assert!(call.is_err() && second.is_broken());
    let none = open(&own, &deaf.endpoint(), Service::Node).err().expect("nobody passes it on");
    assert_eq!(none.kind(), ErrorKind::TimedOut, "{none}");
    drop((connection, second));
    assert_eq!(taken(), []);
    x_door.close();
}

#[test]
fn a_detour_leads_to_the_expected_node_or_nowhere() {
    let cluster = TestCluster::new(1);
    let [x, y] = ["x", "y"].map(|node| cluster.node(node, &[Role::Server], Cipher::Tls));
    let (x_door, deaf) = (door_of(&x, None), Deaf::new());
    let refused = |roles: &[Role], passes: Option<To>, kind: ErrorKind| {
        let y_door = door_of(&y, passes);
        let own = client(&cluster, roles, vec![(name("y"), y_door.endpoint().clone())]);
        let error = open(&own, &deaf.endpoint(), Service::Node).err().expect("refused");
        assert_eq!(error.kind(), kind, "{error}");
        y_door.close();
    };
    let to_x = || Some(To("x", x_door.endpoint().clone()));
    refused(&[Role::Server], to_x(), ErrorKind::TimedOut);
    refused(&[Role::Client], None, ErrorKind::TimedOut);
    refused(&[Role::Client], Some(To("z", x_door.endpoint().clone())), ErrorKind::TimedOut);
    // Another node that is there cannot prove to be the wanted one.
    let other = door_of(&cluster.node("o", &[Role::Server], Cipher::Tls), None);
    refused(&[Role::Client], Some(To("x", other.endpoint().clone())), ErrorKind::Access);
    // So the next attempt does not begin with that way.
    let y_door = door_of(&y, Some(To("x", other.endpoint().clone())));
    let own = client(&cluster, &[Role::Client], vec![(name("y"), y_door.endpoint().clone())]);
    open(&own, &deaf.endpoint(), Service::Node).err().expect("refused");
    assert!(own.detours().expect("some").known(&name("x")).is_none());
    y_door.close();

    // A machine that refuses was reached, and nobody else is asked.
    let closed = other.endpoint().clone();
    other.close();
    let y_door = door_of(&y, to_x());
    let own = client(&cluster, &[Role::Client], vec![(name("y"), y_door.endpoint().clone())]);
    let error = open(&own, &closed, Service::Node).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}
