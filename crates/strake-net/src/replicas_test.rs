//! Messages between replicas over real connections: order, who sent them, who may not, memory,
//! and connections that break or fall silent.

use super::*;
use crate::auth::Hello;
use crate::cluster_test::{TestCluster, name, open_door};
use crate::server::ServerOptions;
use crate::{Cipher, Door, Introduction, NodeCredentials, NodeServer};
use strake_env::{Clock, RealClock, Rng};
use strake_proto::Role;

/// Remembers what it hears. A message that begins with 0 is none.
#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<(String, Vec<u8>)>>,
    changed: Condvar,
    /// While true, nothing is taken.
    is_deaf: Mutex<bool>,
}

impl Ear {
    fn wait_for(&self, count: usize) -> Vec<(String, Vec<u8>)> {
        let mut heard = self.heard.lock();
        let is_short = |heard: &mut Vec<_>| heard.len() < count;
        self.changed.wait_while_for(&mut heard, is_short, Duration::from_secs(20));
        assert!(heard.len() >= count, "{} of {count} messages came", heard.len());
        heard.clone()
    }
}

impl ReplicaPort for Ear {
    fn deliver(&self, peer: &ProvenPeer, message: &[u8]) -> Result<()> {
        let mut deaf = self.is_deaf.lock();
        let is_deaf = |deaf: &mut bool| *deaf;
        self.changed.wait_while_for(&mut deaf, is_deaf, Duration::from_secs(20));
        if message.first() == Some(&0) {
            return Err(Error::new(ErrorKind::Corrupt, "not a message"));
        }
        let peer = peer.node().expect("a node").to_string();
        self.heard.lock().push((peer, message.to_vec()));
        self.changed.notify_all();
        Ok(())
    }
}

fn door_of(cluster: &TestCluster, ear: &Arc<Ear>) -> Door {
    let own = cluster.node("n1", &[Role::Quorum, Role::Server], Cipher::AuthOnly);
    let server = NodeServer::new(&own).expect("key and certificate");
    let door = open_door(server, ServerOptions::new(7));
    door.serve_replica(None, ear.clone()).expect("threads");
    door
}

fn env(own: &Arc<NodeCredentials>) -> SessionEnv {
    SessionEnv {
        introduction: Introduction::node(own, &name("n1")),
        clock: RealClock::shared(),
        waits: Arc::new(()),
        process: None,
        links: None,
    }
}

fn way(door: &Door, own: &Arc<NodeCredentials>) -> ReplicaWay {
    ReplicaWay::open(door.endpoint().clone(), None, env(own)).expect("a thread")
}

#[test]
fn messages_come_in_order_and_with_their_sender() {
    let cluster = TestCluster::new(1);
    for cipher in [Cipher::AuthOnly, Cipher::Tls] {
        let ear = Arc::new(Ear::default());
        let door = door_of(&cluster, &ear);
        let own = cluster.node("n2", &[Role::Quorum], cipher);
        let way = way(&door, &own);
        let sent: Vec<Vec<u8>> = (1..=200u8).map(|byte| vec![byte; 5000]).collect();
        sent.iter().for_each(|message| way.send(message.clone()));
        let heard = ear.wait_for(200);
        assert!(heard.iter().all(|(peer, _)| peer == "n2"), "the certificate says who speaks");
        assert!(heard.into_iter().map(|(_, message)| message).eq(sent));
        way.stop();
    }
}

/// Some messages are written by whoever sends them, and some by the thread of the way.
#[test]
fn messages_of_several_threads_keep_the_order_of_each() {
    const THREADS: u8 = 4;
    const COUNT: u8 = 100;
    let cluster = TestCluster::new(1);
    let ear = Arc::new(Ear::default());
    let door = door_of(&cluster, &ear);
    let own = cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let way = way(&door, &own);
    let seed = Rng::from_entropy().expect("random").next_u64();
    println!("seed {seed}");
    strake_env::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (way, mut rng) = (&way, Rng::new(seed + u64::from(thread)));
            scope.spawn(move || {
                for number in 0..COUNT {
                    let mut message = vec![thread, number];
                    message.resize(2 + rng.index(2 * DIRECT_BYTES_MAX), 7);
                    way.send(message);
                    if rng.one_in(4) {
                        RealClock.sleep(Duration::from_micros(rng.below(2000)));
                    }
                }
            });
        }
    });
    let heard = ear.wait_for(usize::from(THREADS) * usize::from(COUNT));
    for thread in 1..=THREADS {
        let of_thread = heard.iter().map(|(_, message)| message).filter(|it| it[0] == thread);
        assert!(of_thread.map(|message| message[1]).eq(0..COUNT), "thread {thread}: {seed}");
    }
    way.stop();
}

#[test]
fn a_node_without_the_role_is_not_heard() {
    let cluster = TestCluster::new(1);
    let ear = Arc::new(Ear::default());
    let door = door_of(&cluster, &ear);
    let sets = [&[Role::Client][..], &[Role::Server], &[Role::Server, Role::Client]];
    for (round, roles) in (1..).zip(sets) {
        let own = cluster.node("c1", roles, Cipher::AuthOnly);
        let to = Introduction::node(&own, &name("n1"));
        let opened = Connection::open(door.endpoint(), &to, Service::Replica, LIMIT);
        let error = opened.err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
        assert!(error.to_string().contains("roles quorum"), "{error}");
        let way = way(&door, &own);
        way.send(vec![1]);
        let end = RealClock.monotonic() + Duration::from_secs(20);
        while door.rejected() < 2 * round {
            assert!(RealClock.monotonic() < end, "its way is refused too");
            RealClock.sleep(Duration::from_millis(5));
        }
        way.stop();
    }
    assert!(ear.heard.lock().is_empty());
}

#[test]
fn whatever_is_sent_closes_one_connection_at_most() {
    let cluster = TestCluster::new(1);
    let ear = Arc::new(Ear::default());
    let door = door_of(&cluster, &ear);
    let nodes = ["n2", "n3"].map(|node| cluster.node(node, &[Role::Quorum], Cipher::Tls));
    let [bad, good] = nodes;
    let (bad, good) = (way(&door, &bad), way(&door, &good));
    let seed = Rng::from_entropy().expect("random").next_u64();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    for round in 1..=20u8 {
        let mut bytes = vec![0; rng.index(3000)];
        rng.fill(&mut bytes);
        bad.send(bytes);
        bad.send(vec![0; 10]);
        good.send(vec![round]);
    }
    let of_good = |heard: &[(String, Vec<u8>)]| {
        heard.iter().filter(|(peer, _)| peer == "n3").map(|(_, bytes)| bytes[0]).collect::<Vec<_>>()
    };
    let end = RealClock.monotonic() + Duration::from_secs(20);
    while of_good(&ear.heard.lock()).len() < 20 {
        assert!(RealClock.monotonic() < end, "the other connection is undisturbed");
        RealClock.sleep(Duration::from_millis(5));
    }
    assert!(of_good(&ear.heard.lock()).into_iter().eq(1..=20));
    // The one that was closed comes back.
    let before = ear.heard.lock().len();
    let end = RealClock.monotonic() + Duration::from_secs(20);
    while ear.heard.lock().len() == before {
        assert!(RealClock.monotonic() < end, "a new connection is made");
        bad.send(vec![9]);
        RealClock.sleep(Duration::from_millis(20));
    }
    bad.stop();
    good.stop();
}

#[test]
fn what_has_no_room_is_lost_and_a_node_that_comes_back_is_reached() {
    let cluster = TestCluster::new(1);
    let ear = Arc::new(Ear::default());
    let door = door_of(&cluster, &ear);
    let own = cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let way = way(&door, &own);
    // A server that takes nothing: the messages wait here, and not for ever.
    *ear.is_deaf.lock() = true;
    let begun = RealClock.monotonic();
    for _ in 0..100 {
        way.send(vec![1; 1 << 20]);
        let outbox = way.shared.outbox.lock();
        assert!(outbox.bytes <= WAITING_BYTES_MAX && outbox.waiting.len() <= WAITING_MAX);
        assert_eq!(outbox.bytes, outbox.waiting.iter().map(Vec::len).sum::<usize>());
        drop(outbox);
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(way.shared.outbox.lock().bytes > 0, "the server holds only so much");
    let end = RealClock.monotonic() + Duration::from_secs(20);
    while way.shared.outbox.lock().bytes > 0 {
        assert!(RealClock.monotonic() < end, "what is old is dropped");
        RealClock.sleep(Duration::from_millis(20));
    }
    assert!(RealClock.monotonic() - begun >= LIMIT / 2, "after a limit in time");
    *ear.is_deaf.lock() = false;
    ear.changed.notify_all();
    way.send(vec![2]);
    let end = RealClock.monotonic() + Duration::from_secs(20);
    while !ear.heard.lock().iter().any(|(_, message)| message == &[2]) {
        assert!(RealClock.monotonic() < end, "it is heard again");
        way.send(vec![2]);
        RealClock.sleep(Duration::from_millis(50));
    }
    way.stop();
}

/// The other end has room for so many messages. Whoever sends one more must not wait for it.
#[test]
fn no_sender_waits_for_a_replica_that_takes_nothing() {
    let cluster = TestCluster::new(1);
    let ear = Arc::new(Ear::default());
    let door = door_of(&cluster, &ear);
    let own = cluster.node("n2", &[Role::Quorum], Cipher::AuthOnly);
    let way = way(&door, &own);
    way.send(vec![1]);
    ear.wait_for(1);
    *ear.is_deaf.lock() = true;
    let begun = RealClock.monotonic();
    (0..300).for_each(|_| way.send(vec![7; 10]));
    assert!(RealClock.monotonic() - begun < LIMIT / 2, "a send took as long as a limit");
    *ear.is_deaf.lock() = false;
    ear.changed.notify_all();
    way.stop();
}

#[test]
fn the_greeting_that_wants_a_replica_never_changes() {
    let wanted = Hello::Wanted { service: Service::Replica };
    assert_eq!(crate::session::encode(&wanted).expect("encodes"), [6, 6]);
}
