//! Pings over real connections of a small cluster, answered and not.

use super::*;
use crate::auth::Service;
use crate::cluster_test::{PATIENCE, TestCluster, name};
use crate::connection::Connection;
use crate::{
    Cipher, ControlPort, Door, Endpoint, Introduction, Listener, NodeCredentials, NodeServer,
    ProvenPeer, ReplicaPort, ServerOptions,
};
use std::time::Duration;
use strake_env::links::PeerView;
use strake_env::{Clock, ManualClock, RealClock};
use strake_proto::{Result, Role};

/// Takes all messages.
struct Ear;

impl ReplicaPort for Ear {
    fn deliver(&self, _peer: &ProvenPeer, _message: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl ControlPort for Ear {
    fn answer(&self, _peer: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>> {
        Ok(request.to_vec())
    }
}

fn door(own: &NodeCredentials, links: &Arc<Links>) -> Door {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(&Endpoint::Tcp(any)).expect("a port");
    let server = NodeServer::new(own).expect("key and certificate").with_links(links);
    let door = Door::open(listener, server, ServerOptions::new(7)).expect("threads");
    door.serve_replica(None, Arc::new(Ear)).expect("threads");
    door.serve_node(Arc::new(Ear)).expect("threads");
    door
}

fn connect(door: &Door, own: &Arc<NodeCredentials>, service: Service) -> Connection {
    let to = Introduction::node(own, &name("n1"));
    Connection::open(door.endpoint(), &to, service, PATIENCE).expect("welcome")
}

/// Waits for a row about a node that is as wanted.
fn wait_for(links: &Links, node: &str, is_so: impl Fn(&PeerView) -> bool) -> PeerView {
    let end = RealClock.monotonic() + PATIENCE;
    loop {
        let rows = links.view();
        if let Some(row) = rows.iter().find(|row| row.name == node && is_so(row)) {
            return row.clone();
        }
        assert!(RealClock.monotonic() < end, "{rows:?}");
        RealClock.sleep(Duration::from_millis(2));
    }
}

#[test]
fn both_ends_hear_each_other_and_the_client_knows_the_way_there_and_back() {
    let cluster = TestCluster::new(1);
    for cipher in [Cipher::AuthOnly, Cipher::Tls] {
        let roles = [Role::Quorum, Role::Server];
        let (first, second) =
            (cluster.node("n1", &roles, cipher), cluster.node("n2", &roles, cipher));
        let clock: Arc<dyn Clock> = RealClock::shared();
        let (of_server, of_client) = (Links::new(Arc::clone(&clock)), Links::new(clock));
        let door = door(&first, &of_server);
        let connection = connect(&door, &second, Service::Replica);
        connection.count_in(&of_client);
        // A connection on which a node asks another one something may be silent.
        let question = connect(&door, &second, Service::Node);
        let served = wait_for(&of_server, "n2", |row| row.connections == 1);
        assert_eq!(served.pings, 0, "clients send the pings");
        of_server.tick();
        for count in 1..=3 {
            of_client.tick();
            let row = wait_for(&of_client, "n1", |row| row.answered == count);
            assert_eq!((row.pings, row.connections), (count, 1));
            assert!(row.smallest_ns <= row.median_ns && row.smallest_ns > Some(0), "{row:?}");
            assert!(row.theirs.0 > 0, "the server says how much it has sent: {row:?}");
        }
        of_client.tick();
        let row = wait_for(&of_client, "n1", |_| true);
        assert!(row.figures.sent > 3 * 56 && row.figures.packets > 3, "{row:?}");
        drop((connection, question));
        of_client.tick();
        wait_for(&of_client, "n1", |row| row.connections == 0);
    }
}

/// The server's threads that would answer are held by a client that takes nothing. Its own pings,
/// and those of others, hold up nobody.
#[test]
fn a_peer_that_takes_nothing_holds_up_no_tick() {
    let cluster = TestCluster::new(1);
    let own = cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let first = cluster.node("n1", &[Role::Quorum, Role::Server], Cipher::AuthOnly);
    let other = Links::new(RealClock::shared());
    let door = door(&first, &other);
    let connection = connect(&door, &own, Service::Replica);
    let clock = Arc::new(ManualClock::default());
    let links = Links::new(Arc::clone(&clock) as Arc<dyn Clock>);
    connection.count_in(&links);
    links.tick();
    wait_for(&links, "n1", |row| row.answered == 1);
    // While a frame is being written, no ping is sent and nothing waits for its end.
    let writing = connection.hold_writer();
    for _ in 0..5 {
        clock.advance(PERIOD);
        links.tick();
    }
    let row = wait_for(&links, "n1", |_| true);
    assert_eq!((row.pings, row.silent_ns / 1_000_000_000), (1, 4), "{row:?}");
    drop(writing);
    clock.advance(PERIOD);
    links.tick();
    let row = wait_for(&links, "n1", |row| row.answered == 2);
    assert_eq!(row.pings, 2);
}

#[test]
fn an_answer_that_is_cut_says_that_nothing_was_sent() {
    assert_eq!(theirs(&pong((70_000, 3))), (70_000, 3));
    assert_eq!(theirs(&[]), (0, 0));
    assert_eq!(theirs(&pong((70_000, 3))[..15]), (70_000, 0));
}
