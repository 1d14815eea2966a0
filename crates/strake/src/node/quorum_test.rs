//! Replicas of the records as nodes have them: with certificates, over real connections.

use super::*;
use crate::cluster::Change;
use crate::node::peer::introduce;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use strake_crew::Place;
use strake_env::SimDisk;
use strake_env::net::SocketAddr;
use strake_net::{
    ClusterAuthority, Door, Endpoint, Listener, NodeCredentials, NodeServer, ServerOptions, Service,
};
use strake_proto::{NodeIdentity, Role, Roles};

const PATIENCE: Duration = Duration::from_secs(30);
const CLUSTER: ClusterId = ClusterId([9; 16]);

/// What all nodes of a test know.
struct World {
    authority: ClusterAuthority,
    places: Arc<Mutex<BTreeMap<NodeNumber, Place>>>,
    nodes: BTreeMap<u32, Machine>,
    /// The records that the log begins with.
    first: Cluster,
    /// Nodes whose program understands the first feature level alone.
    older: BTreeSet<u32>,
}

/// A node: what stays when it is killed, and what runs.
struct Machine {
    credentials: Arc<NodeCredentials>,
    disk: Arc<SimDisk>,
    running: Option<(Door, Arc<Quorum>)>,
}

fn name(number: u32) -> String {
    format!("n{number}")
}

impl World {
    /// Nodes 1 to `count`, which run. The records know the first one only.
    fn new(count: u32) -> World {
        let authority = ClusterAuthority::create(CLUSTER, RealClock::shared()).expect("made");
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let first = Cluster::new(CLUSTER, "demo", "n1", address).expect("names");
        let (nodes, older) = (BTreeMap::new(), BTreeSet::new());
        let mut world = World { authority, places: Arc::default(), nodes, first, older };
        for number in 1..=count {
            let identity = NodeIdentity {
                cluster: CLUSTER,
                name: name(number).parse().expect("a name"),
                roles: Roles::ALL,
            };
            let credentials = Arc::new(world.authority.issue(&identity).expect("issued"));
            let disk = SimDisk::new(JOURNAL_BYTES);
            let replica = ReplicaId(number);
            let identity = Identity { cluster: group(&world.first), replica };
            let founds = (number == 1).then(|| Membership::of([replica]));
            Journal::create(disk.clone(), identity, founds).expect("the disk is new");
            world.nodes.insert(number, Machine { credentials, disk, running: None });
            world.start(number);
        }
        world
    }

    fn start(&mut self, number: u32) {
        let machine = self.nodes.get_mut(&number).expect("there is such a node");
        let own = NodeNumber(number);
        let places = Arc::clone(&self.places);
        let find: Find = Arc::new(move |id| places.lock().get(&NodeNumber(id.0)).cloned());
        let config = Config {
            heartbeat: Duration::from_millis(40),
            election: Duration::from_millis(300),
            lease: Duration::from_millis(200),
            supports: if self.older.contains(&number) { 1 } else { FeatureLevel::NEWEST.0 },
            ..config(own)
        };
        let quorum = Quorum::start(QuorumParts {
            first: self.first.clone(),
            own,
            introduce: introduce(&machine.credentials),
            disk: machine.disk.clone(),
            find: Arc::clone(&find),
            publish: Box::new(|_| ()),
            waits: Arc::new(()),
            links: None,
            config,
        });
        let quorum = Arc::new(quorum.expect("its journal is there"));
        let server = NodeServer::new(&machine.credentials).expect("key and certificate");
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&Endpoint::Tcp(any)).expect("a port");
        let door = Door::open(listener, server, ServerOptions::new(7)).expect("threads");
        let Endpoint::Tcp(address) = *door.endpoint() else { panic!("a port of TCP") };
        door.serve_replica(None, quorum.inbox(find)).expect("threads");
        let place = Place { node: name(number).parse().expect("a name"), address };
        self.places.lock().insert(own, place);
        machine.running = Some((door, quorum));
    }

    /// Ends a node's connections and threads. Its disk loses nothing that was synced.
    fn kill(&mut self, number: u32) {
        let machine = self.nodes.get_mut(&number).expect("there is such a node");
        let (door, quorum) = machine.running.take().expect("it runs");
        door.end(Service::Replica);
        quorum.stop();
    }

    fn running(&self) -> Vec<(u32, Arc<Quorum>)> {
        let running = self.nodes.iter();
        let running = running
            .filter_map(|(number, machine)| Some((*number, machine.running.as_ref()?.1.clone())));
        running.collect()
    }

    /// Does something at the node that leads.
    fn at_leader<T>(&self, call: impl Fn(&Quorum) -> Result<T>) -> T {
        let end = RealClock.monotonic() + PATIENCE;
        loop {
            for (_, quorum) in self.running() {
                match call(&quorum) {
                    Ok(value) => return value,
                    Err(error) if error.kind() == ErrorKind::Stale => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(RealClock.monotonic() < end, "nobody leads");
            RealClock.sleep(Duration::from_millis(20));
        }
    }

    fn change(&self, change: Change) -> Cluster {
        self.at_leader(|quorum| quorum.propose(&Entry::Change { at: None, change: change.clone() }))
    }

    /// Node `number` becomes one of the records' nodes.
    fn let_in(&self, number: u32) {
        self.change(Change::Invite { name: name(number), roles: Roles::ALL });
        let address = SocketAddr::from(([127, 0, 0, 1], number as u16));
        let cluster = self.change(Change::Join { name: name(number), address });
        assert_eq!(cluster.node_named(&name(number)).expect("there").id, NodeNumber(number));
    }

    /// Tends the members until `voters` vote and all others of the records learn.
    fn tend_until(&self, voters: &[u32]) {
        let end = RealClock.monotonic() + PATIENCE;
        loop {
            let running = self.running();
            running.iter().for_each(|(_, quorum)| drop(quorum.tend()));
            let leading = running.iter().find(|(_, quorum)| quorum.leads());
            let states = leading.map(|(_, quorum)| quorum.state().members).unwrap_or_default();
            let votes: Vec<u32> =
                states.iter().filter(|state| state.votes).map(|state| state.node.0).collect();
            if votes == voters && states.iter().all(|state| state.behind == 0) {
                return;
            }
            assert!(RealClock.monotonic() < end, "voters are {votes:?}, not {voters:?}");
            RealClock.sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn one_node_keeps_the_records_at_once_and_after_a_restart() {
    let mut world = World::new(1);
    let begun = RealClock.monotonic();
    let found = world.at_leader(Quorum::committed);
    assert_eq!(found, world.first, "the log begins with what the node knew");
    assert!(RealClock.monotonic() - begun < Duration::from_millis(290), "it waits for nobody");
    let changed = world.change(Change::Invite { name: "n2".into(), roles: Roles::ALL });
    world.kill(1);
    // What it knows at its start must not take the place of what the log has.
    world.first.name = "other".into();
    world.start(1);
    assert_eq!(world.at_leader(Quorum::committed), changed);
    let refused = Entry::Change { at: Some(1), change: Change::DeleteNode { node: NodeNumber(2) } };
    let refused = world.running()[0].1.propose(&refused).expect_err("made for other records");
    assert_eq!(refused.kind(), ErrorKind::Busy);
}

#[test]
fn the_level_rises_when_all_members_understand_it_and_older_programs_end() {
    let mut world = World::new(3);
    let restart = |world: &mut World, number: u32, is_older: bool| {
        world.kill(number);
        match is_older {
            true => world.older.insert(number),
            false => world.older.remove(&number),
        };
        world.start(number);
    };
    restart(&mut world, 3, true);
    world.let_in(2);
    world.tend_until(&[1]);
    world.let_in(3);
    world.tend_until(&[1, 2, 3]);
    let entry = |level| {
        let change = Change::Level { level: FeatureLevel(level) };
        Entry::Change { at: None, change }
    };
    let end = RealClock.monotonic() + PATIENCE;
    let is_named = |(_, quorum): &(u32, Arc<Quorum>)| {
        let refused = quorum.propose(&entry(2)).expect_err("one does not understand it");
        assert_eq!(refused.kind(), ErrorKind::Stale, "{refused}");
        refused.to_string().contains("node 3 has not said that it understands it")
    };
    while !world.running().iter().any(is_named) {
        assert!(RealClock.monotonic() < end, "the older one is not named");
        RealClock.sleep(Duration::from_millis(20));
    }
    assert_eq!(world.at_leader(Quorum::committed).level, FeatureLevel::FIRST);
    restart(&mut world, 3, false);
    let raised = world.at_leader(|quorum| quorum.propose(&entry(2)));
    assert_eq!(raised.level, FeatureLevel(2));
    let falls = world.at_leader(|quorum| match quorum.propose(&entry(1)) {
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(error.to_string()),
        other => other.map(|cluster| format!("{}", cluster.level)),
    });
    assert!(falls.contains("never falls"), "{falls}");
    // Until it has the entry, an older program does not know.
    world.tend_until(&[1, 2, 3]);
    restart(&mut world, 3, true);
    let end = RealClock.monotonic() + PATIENCE;
    loop {
        let fault = world.nodes[&3].running.as_ref().expect("it runs").1.state().fault;
        if fault.is_some_and(|fault| fault.contains("which this program does not understand")) {
            return;
        }
        assert!(RealClock.monotonic() < end, "it goes on");
        RealClock.sleep(Duration::from_millis(20));
    }
}

#[test]
fn three_nodes_go_on_without_the_first_one_and_take_it_back() {
    let mut world = World::new(3);
    world.let_in(2);
    world.tend_until(&[1]);
    world.let_in(3);
    world.tend_until(&[1, 2, 3]);
    let before = world.at_leader(Quorum::committed);
    world.kill(1);
    let changed =
        world.change(Change::Invite { name: "n4".into(), roles: Roles::of(&[Role::Client]) });
    assert_eq!(changed.revision, before.revision + 1);
    assert_eq!(world.at_leader(Quorum::committed), changed, "a majority answers");
    let leading = world.running().into_iter().find(|(_, quorum)| quorum.leads());
    let leading = leading.expect("there is a leader").1.state();
    let first = leading.members.iter().find(|member| member.node == NodeNumber(1));
    assert!(first.is_some_and(|member| member.votes && member.behind > 0), "{leading:?}");
    world.start(1);
    // Another one goes: the first one has caught up and counts.
    world.tend_until(&[1, 2, 3]);
    let end = RealClock.monotonic() + PATIENCE;
    while world.nodes[&1].running.as_ref().expect("it runs").1.state().role == "asking" {
        assert!(RealClock.monotonic() < end, "both others answer");
        RealClock.sleep(Duration::from_millis(20));
    }
    world.kill(3);
    let last = world.change(Change::DeleteNode { node: NodeNumber(4) });
    assert_eq!(last.revision, changed.revision + 1);
    let kept = world.nodes[&1].running.as_ref().expect("it runs").1.applied.lock().clone();
    assert!(kept.is_some_and(|kept| kept.revision >= changed.revision));
}

#[test]
fn without_a_majority_nothing_is_answered() {
    let mut world = World::new(3);
    world.let_in(2);
    world.let_in(3);
    world.tend_until(&[1, 2, 3]);
    world.kill(2);
    world.kill(3);
    let end = RealClock.monotonic() + PATIENCE;
    let first = world.running().remove(0).1;
    while first.leads() {
        assert!(RealClock.monotonic() < end, "it notices that it is alone");
        RealClock.sleep(Duration::from_millis(20));
    }
    assert_eq!(first.committed().expect_err("alone").kind(), ErrorKind::Stale);
    let change = Change::Invite { name: "n4".into(), roles: Roles::ALL };
    let refused = first.propose(&Entry::Change { at: None, change }).expect_err("alone");
    assert_eq!(refused.kind(), ErrorKind::Stale, "nothing is done");
}

#[test]
fn a_node_that_is_deleted_votes_no_more() {
    let world = World::new(3);
    world.let_in(2);
    world.let_in(3);
    world.tend_until(&[1, 2, 3]);
    world.change(Change::DeleteNode { node: NodeNumber(3) });
    let end = RealClock.monotonic() + PATIENCE;
    loop {
        world.running().iter().for_each(|(_, quorum)| drop(quorum.tend()));
        let leading = world.running().into_iter().find(|(_, quorum)| quorum.leads());
        let members = leading.map(|(_, quorum)| quorum.state().members).unwrap_or_default();
        let votes = members.iter().filter(|member| member.votes).count();
        if votes == 1 && members.len() == 2 {
            break;
        }
        assert!(RealClock.monotonic() < end, "{members:?}");
        RealClock.sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_damaged_journal_of_the_records_is_found_and_written_anew() {
    let mut world = World::new(3);
    world.let_in(2);
    world.let_in(3);
    world.tend_until(&[1, 2, 3]);
    for number in [1, 2, 3] {
        let machine = &world.nodes[&number];
        let (_, quorum) = machine.running.as_ref().expect("it runs");
        assert!(!quorum.verify().expect("it is read"), "nothing is damaged yet");
        [20, 4096 + 20].iter().for_each(|at| machine.disk.flip(*at, 1));
        assert!(quorum.verify().expect("it is written anew"), "no superblock is left");
        assert!(!quorum.verify().expect("it is read"), "it was written anew");
        world.kill(number);
        world.start(number);
        world.tend_until(&[1, 2, 3]);
    }
}

/// A node alone, on the journal of its directory.
pub(in crate::node) struct Lonely(Quorum);

impl Lonely {
    pub(in crate::node) fn start(dir: &NodeDir, first: &Cluster) -> Lonely {
        let authority = ClusterAuthority::create(first.id, RealClock::shared()).expect("made");
        let name = "n1".parse().expect("a name");
        let identity = NodeIdentity { cluster: first.id, name, roles: Roles::ALL };
        let own = NodeNumber(1);
        let quorum = Quorum::start(QuorumParts {
            first: first.clone(),
            own,
            introduce: introduce(&Arc::new(authority.issue(&identity).expect("issued"))),
            disk: open_journal(dir, first).expect("is there"),
            find: Arc::new(|_| None),
            publish: Box::new(|_| ()),
            waits: Arc::new(()),
            links: None,
            config: config(own),
        });
        Lonely(quorum.expect("its journal is there"))
    }

    /// Proposes an entry until the node leads.
    pub(in crate::node) fn propose(&self, entry: &Entry) -> Cluster {
        let end = RealClock.monotonic() + PATIENCE;
        loop {
            match self.0.propose(entry) {
                Err(error) if error.kind() == ErrorKind::Stale => {
                    assert!(RealClock.monotonic() < end, "it does not lead");
                    RealClock.sleep(Duration::from_millis(5));
                }
                done => return done.expect("taken"),
            }
        }
    }
}

impl Drop for Lonely {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A directory of the test's own, which is removed at the end.
pub(in crate::node) struct Folder(PathBuf);

impl Folder {
    pub(in crate::node) fn new(what: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("strake-quorum-{what}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub(in crate::node) fn dir(&self) -> NodeDir {
        NodeDir::at(Path::new(&self.0)).expect("a path")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_journal_is_made_once_and_its_loss_is_noticed() {
    let folder = Folder::new("journal");
    let (dir, own) = (folder.dir(), NodeNumber(1));
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let records = Cluster::new(CLUSTER, "demo", "n1", address).expect("names");
    make_journal(&dir, &records, own, true).expect("made");
    let opened = |dir: &NodeDir| {
        let identity = Identity { cluster: group(&records), replica: ReplicaId(1) };
        let disk = open_journal(dir, &records)?;
        Journal::open(disk, identity, 0).map(|(_, hard, _)| hard).map_err(journal_fault)
    };
    assert_eq!(opened(&dir).expect("there").life.number, 1);
    make_journal(&dir, &records, own, true).expect("is there, and stays");
    assert_eq!(opened(&dir).expect("there").life.number, 2, "it was not made anew");
    // A crash may leave the file without anything in it.
    std::fs::write(dir.journal_path(0), vec![0; JOURNAL_BYTES as usize]).expect("writes");
    make_journal(&dir, &records, own, true).expect("made now");
    assert_eq!(opened(&dir).expect("there").life.number, 1);
    std::fs::remove_file(dir.journal_path(0)).expect("removes");
    let error = opened(&dir).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("delete the node on another one"), "{error}");
}

#[test]
fn replicas_of_another_generation_do_not_hear_each_other() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let records = Cluster::new(CLUSTER, "demo", "n1", address).expect("names");
    assert_eq!(group(&records), CLUSTER);
    let (mut later, mut before) = (records.clone(), records);
    (later.generation, before.revision) = (3, 99);
    assert_ne!(group(&later), CLUSTER);
    assert!(later.is_newer_than(&before) && !before.is_newer_than(&later));
}
