//! Sessions with metadata that moves from node to node: nothing is lost, nothing is applied twice,
//! and callers see no error, whatever becomes of the node that served before, and whatever a search
//! says.

use super::*;
use crate::meta::{ListMeta, Told, entry, grant, judge, work};
use crate::net_test::{Folder, PATIENT, credentials, env, introduction};
use crate::{Listener, MetaClientSession, RpcServer, ServerOptions, serve_meta};
use std::collections::BTreeMap;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock, Rng};
use strake_proto::meta::{
    CountedAnswer, CountedEntry, Counts, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
};
use strake_proto::{Error, ErrorKind};

/// How a node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Leads,
    /// It knows that it leads no more.
    Refuses,
    /// It is cut off, or stands still: no answer comes, and what it is asked is lost.
    IsSilent,
}

/// The metadata as one node serves it. What is applied is every node's.
struct Node {
    list: Arc<ListMeta>,
    manner: Mutex<Manner>,
    changed: Condvar,
}

impl Node {
    fn new(list: &Arc<ListMeta>) -> Arc<Node> {
        let manner = Mutex::new(Manner::Leads);
        Arc::new(Node { list: Arc::clone(list), manner, changed: Condvar::new() })
    }

    /// Returns when no request is at work any more.
    fn behave(&self, manner: Manner) {
        *self.manner.lock() = manner;
        self.changed.notify_all();
    }

    fn while_it_leads<T>(&self, work: impl FnOnce(&ListMeta) -> Result<T>) -> Result<T> {
        let mut manner = self.manner.lock();
        self.changed.wait_while(&mut manner, |manner| *manner == Manner::IsSilent);
        match *manner {
            Manner::Leads => work(&self.list),
            _ => Err(Error::new(ErrorKind::Unreachable, "this node leads no more")),
        }
    }
}

impl MetaPort for Node {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.while_it_leads(|list| list.query(query))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.while_it_leads(|list| list.apply(entry))
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        self.while_it_leads(|list| list.apply_counted(counted))
    }

    fn sync(&self) -> Result<()> {
        self.while_it_leads(MetaPort::sync)
    }
}

/// Nodes, the one that serves, and a search that often errs.
struct Nodes {
    places: Vec<Folder>,
    list: Arc<ListMeta>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// One answer in so many is wrong; 0 for none.
    wrong: usize,
    leader: usize,
    /// What serves, and what served before.
    running: BTreeMap<usize, (RpcServer, Arc<Node>)>,
}

impl Nodes {
    fn new(rng: Rng, wrong: usize) -> Arc<Nodes> {
        let list = Arc::new(ListMeta { slow: true, ..ListMeta::default() });
        let state = State { rng, wrong, leader: 0, running: BTreeMap::new() };
        let places = (0..3).map(|_| Folder::new()).collect();
        Arc::new(Nodes { places, list, state: Mutex::new(state) })
    }

    fn session(self: &Arc<Nodes>) -> MetaClientSession {
        let whereabouts = Whereabouts::Moving(Arc::clone(self) as Arc<dyn Seek>);
        MetaClientSession::new(whereabouts, PATIENT, env())
    }

    /// From now on, node `at` serves.
    fn lead(&self, at: usize, boot: u64) {
        let before = self.state.lock().running.remove(&at);
        if let Some((server, node)) = before {
            node.behave(Manner::Refuses);
            server.stop();
        }
        let node = Node::new(&self.list);
        let listener = Listener::bind(&self.places[at].socket()).expect("binds");
        let port = Arc::clone(&node) as Arc<dyn MetaPort>;
        let server = serve_meta(listener, port, credentials(), ServerOptions::new(boot));
        let mut state = self.state.lock();
        state.running.insert(at, (server.expect("threads"), node));
        state.leader = at;
    }

    /// The node that serves does not any more: it is dead, or behaves in that manner.
    fn end(&self, manner: Option<Manner>) {
        let at = self.state.lock().leader;
        let node = Arc::clone(&self.state.lock().running[&at].1);
        node.behave(manner.unwrap_or(Manner::Refuses));
        if manner.is_none() {
            let dead = self.state.lock().running.remove(&at);
            drop(dead);
        }
    }

    fn finish(&self) {
        let running = std::mem::take(&mut self.state.lock().running);
        for (server, node) in running.into_values() {
            node.behave(Manner::Refuses);
            server.stop();
        }
    }
}

impl Seek for Nodes {
    fn seek(&self) -> Result<Site> {
        let mut state = self.state.lock();
        let (wrong, leader) = (state.wrong, state.leader);
        let at = match wrong {
            0 => leader,
            _ if state.rng.index(wrong) > 0 => leader,
            _ if state.rng.index(3) == 0 => {
                return Err(Error::new(ErrorKind::Unreachable, "nobody says that it leads"));
            }
            _ => state.rng.index(self.places.len()),
        };
        Ok(Site { endpoint: self.places[at].socket(), introduction: introduction() })
    }
}

/// Callers at work while the service moves again and again, each time without a part of what was
/// not synced. `boots` says whether each leader has a boot number of its own. Returns what is wrong
/// in the end.
fn moves(seed: u64, boots: bool) -> std::result::Result<(), String> {
    const CALLERS: i64 = 4;
    const CHANGES: i64 = 80;
    const MOVES: u64 = 8;
    let mut rng = Rng::new(seed);
    let nodes = Nodes::new(Rng::new(seed + 1), 3);
    nodes.lead(0, 1);
    let session = nodes.session();
    session.apply(&MetaEntry { op: MetaOp::Join, ..entry(0) }).expect("joins");
    session.sync().expect("synced");
    let outcome = strake_env::thread::scope(|scope| {
        let session = &session;
        let work = |caller| scope.spawn(move || work(session, caller, CHANGES, true));
        let callers: Vec<_> = (0..CALLERS).map(work).collect();
        for step in 0..MOVES {
            RealClock.sleep(Duration::from_micros(rng.below(20_000)));
            let manners = [None, Some(Manner::Refuses), Some(Manner::IsSilent)];
            nodes.end(manners[rng.index(3)]);
            nodes.list.lose_some(&mut rng);
            // Sometimes the same node leads again.
            let at = rng.index(nodes.places.len());
            nodes.lead(at, if boots { step + 2 } else { 1 });
        }
        let ended = callers.into_iter().map(|caller| caller.join().expect("no panic"));
        let ended = ended.collect::<std::result::Result<Vec<Told>, String>>();
        let synced = session.sync().map_err(|error| format!("sync: {error}"));
        nodes.finish();
        synced.and(ended)
    });
    let judged = outcome.and_then(|told| judge(&nodes.list, told, CHANGES));
    judged.map_err(|fault| format!("seed {seed}: {fault}"))
}

#[test]
fn changes_under_way_survive_a_service_that_moves() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        moves(seed, true).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

#[test]
fn each_leader_needs_a_boot_number_of_its_own() {
    let found = (0..20).find_map(|seed| moves(seed, false).err());
    println!("{}", found.expect("changes are lost"));
}

#[test]
fn a_node_that_leads_no_more_is_left_by_all_kinds_of_calls() {
    let nodes = Nodes::new(Rng::new(0), 0);
    nodes.lead(0, 1);
    let session = nodes.session();
    let mut boot = 1;
    let mut follow = |manner| {
        boot += 1;
        nodes.end(Some(manner));
        nodes.lead(boot as usize % 3, boot);
    };
    for manner in [Manner::Refuses, Manner::IsSilent] {
        follow(manner);
        // Its effect is not known where no answer came; where it was refused, it has none.
        let uncounted = session.apply(&entry(1));
        match manner {
            Manner::IsSilent => assert!(uncounted.is_err(), "it is never repeated"),
            _ => assert_eq!(uncounted.expect("applied"), grant(1)),
        }
    }
    session.apply(&MetaEntry { op: MetaOp::Join, ..entry(0) }).expect("joins");
    for manner in [Manner::Refuses, Manner::IsSilent] {
        follow(manner);
        session.apply(&entry(7)).expect("applied");
        follow(manner);
        session.sync().expect("synced");
        follow(manner);
        let counts = session.query(&MetaQuery::Counts).expect("answered");
        assert!(matches!(counts, MetaReply::Counts(Counts { inodes: 3 | 4, .. })));
    }
    nodes.finish();
}
