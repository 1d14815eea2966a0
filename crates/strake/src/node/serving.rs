//! Finding the node that serves a file system: its metadata, its tokens and its leases.
//!
//! All nodes that may serve it are asked at once. The first one that says that it does is believed,
//! and only about itself: nodes do not know of each other who serves. An answer may be old a moment
//! later. Then the service refuses, and its sessions begin a new search
//! (`strake_net::Whereabouts`).
//!
//! **Silent nodes** hold up nobody for long. A search does not wait for a node that did not answer
//! last time. At most one question to each node is under way.

use super::messages::{LeaderRequest, NodeRequest, Request};
use super::peer::Peer;
use super::server::Node;
use crate::cluster::{Cluster, NodeRecord};
use crate::daemon::start_thread;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::Place;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock};
use strake_net::{Endpoint, Introduction, NodeCredentials, Seek, Site, WaitNames};
use strake_proto::{Error, ErrorKind, FsId, NodeName, Result};

/// For all answers to one search. A node that takes longer counts as silent before.
const ANSWERS_MAX: Duration = Duration::from_secs(20);

/// How long a request waits for an election, and how often it looks. An election takes seconds.
const ELECTION_MAX: Duration = Duration::from_secs(30);
const ELECTION_STEP: Duration = Duration::from_millis(200);

/// Gives the nodes that may serve the file system.
type Candidates = dyn Fn() -> Result<Vec<Place>> + Send + Sync;
/// Asks a node whether it serves the file system.
type Ask = dyn Fn(&Place) -> Result<bool> + Send + Sync;

/// See the head of this file.
pub(crate) struct Search {
    own: Arc<NodeCredentials>,
    fs: FsId,
    candidates: Box<Candidates>,
    ask: Box<Ask>,
    waits: Arc<dyn WaitNames>,
    state: Mutex<State>,
    heard: Condvar,
}

#[derive(Default)]
struct State {
    /// The nodes that are being asked.
    asked: BTreeSet<NodeName>,
    /// Those that did not answer last time.
    silent: BTreeSet<NodeName>,
    /// How often a node has said that it serves the file system.
    found: u64,
    /// The node that said so last.
    last: Option<Place>,
}

impl Search {
    /// A search for the node that serves `fs`, by the node that proves itself as `own`. `records`
    /// gives the records as they are known now.
    pub(crate) fn new(
        own: &Arc<NodeCredentials>,
        fs: FsId,
        records: impl Fn() -> Result<Cluster> + Send + Sync + 'static,
        waits: Arc<dyn WaitNames>,
    ) -> Arc<Search> {
        let credentials = Arc::clone(own);
        Arc::new(Search {
            own: Arc::clone(own),
            fs,
            candidates: Box::new(move || Ok(candidates(&records()?))),
            ask: Box::new(move |place| {
                let peer = Peer::new(place.node.clone(), place.address, &credentials);
                peer.ask(&NodeRequest::Serves { fs })
            }),
            waits,
            state: Mutex::default(),
            heard: Condvar::new(),
        })
    }

    /// The node that serves the file system now, by its own word.
    ///
    /// # Errors
    /// `Unreachable` if none says so; those of the records.
    pub(crate) fn find(self: &Arc<Search>) -> Result<Place> {
        let candidates = (self.candidates)()?;
        let mut state = self.state.lock();
        let before = state.found;
        for place in candidates {
            if state.asked.insert(place.node.clone()) {
                let (search, node) = (Arc::clone(self), place.node.clone());
                let started = start_thread("who-serves", move || search.ask_one(&place));
                if let Err(error) = started {
                    state.asked.remove(&node);
                    return Err(error);
                }
            }
        }
        let wait = self.waits.begin_wait("for the node that serves", &self.fs.to_string());
        let is_open = |state: &mut State| {
            state.found == before && state.asked.difference(&state.silent).next().is_some()
        };
        self.heard.wait_while_for(&mut state, is_open, ANSWERS_MAX);
        self.waits.end_wait(wait);
        match state.last.clone().filter(|_| state.found != before) {
            Some(place) => Ok(place),
            None => {
                let detail = format!("no node serves the metadata of file system {}", self.fs);
                Err(Error::new(ErrorKind::Unreachable, detail))
            }
        }
    }

    fn ask_one(&self, place: &Place) {
        let answer = (self.ask)(place);
        let mut state = self.state.lock();
        state.asked.remove(&place.node);
        match answer {
            Ok(serves) => {
                state.silent.remove(&place.node);
                if serves {
                    state.found += 1;
                    state.last = Some(place.clone());
                }
            }
            Err(_) => drop(state.silent.insert(place.node.clone())),
        }
        self.heard.notify_all();
    }

    /// The node that was found last.
    pub(crate) fn last(&self) -> Option<Place> {
        self.state.lock().last.clone()
    }

    /// The node that serves the file system now, to be asked something.
    ///
    /// # Errors
    /// As [`Search::find`].
    pub(crate) fn peer(self: &Arc<Search>) -> Result<Peer> {
        let Place { node, address } = self.find()?;
        Ok(Peer::new(node, address, &self.own))
    }
}

/// Lets sessions follow the file system.
pub(crate) struct Follower(pub(crate) Arc<Search>);

impl Seek for Follower {
    fn seek(&self) -> Result<Site> {
        let Place { node, address } = self.0.find()?;
        let introduction = Introduction::node(&self.0.own, &node);
        Ok(Site { endpoint: Endpoint::Tcp(address), introduction })
    }
}

impl Node {
    /// True if this node serves the metadata of a file system now.
    pub(super) fn serves(&self, fs: FsId) -> bool {
        self.door.serves_meta(fs)
    }

    /// A search for the node that serves a file system.
    pub(super) fn search(&self, fs: FsId) -> Arc<Search> {
        let cluster = Arc::clone(&self.cluster);
        let records = move || Ok(cluster.lock().clone());
        Search::new(&self.own, fs, records, Arc::clone(&self.observe) as _)
    }

    /// The node that serves a file system. If the request is of no use without one, it waits for an
    /// election that may be under way.
    fn find_serving(&self, fs: FsId, about: &LeaderRequest) -> Option<Peer> {
        let search = self.search(fs);
        let _wait = self.observe.waiters.enter("for the node that serves", fs.to_string());
        let end = RealClock.monotonic() + ELECTION_MAX;
        loop {
            let found = search.peer().ok();
            let is_over = !about.needs_metadata() || RealClock.monotonic() >= end;
            if found.is_some() || is_over || self.serves(fs) {
                return found;
            }
            RealClock.sleep(ELECTION_STEP);
        }
    }

    /// Has the node answer that serves the file system. Another node that asks has found out that
    /// this one does, and its request goes no further.
    pub(super) fn answer_serving(
        self: &Arc<Node>,
        about: &LeaderRequest,
        is_own: bool,
    ) -> Result<Value> {
        let fs = about.file_system(&self.cluster.lock());
        let found = match fs.filter(|fs| is_own && !self.serves(*fs)) {
            Some(fs) => self.find_serving(fs, about),
            None => None,
        };
        match found {
            Some(peer) => peer.call(&Request::Leader(about.clone())),
            // What needs no metadata goes on without it. For the rest a node of the quorum says
            // what is wrong.
            None if self.quorum().is_none() => self.ask_quorum(&Request::Leader(about.clone())),
            None => self.answer_leader(about),
        }
    }
}

/// The nodes that may serve a file system: those of the quorum.
fn candidates(cluster: &Cluster) -> Vec<Place> {
    let place =
        |node: &NodeRecord| Some(Place { node: node.certified_name(), address: node.address? });
    cluster.quorum().filter_map(place).collect()
}

#[cfg(test)]
#[path = "serving_test.rs"]
mod serving_test;
