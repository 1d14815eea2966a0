//! Finding the node that serves a file system: its metadata, its tokens and its leases.
//!
//! All nodes that may serve it are asked at once. The first one that says that it does is believed,
//! and only about itself: nodes do not know of each other who serves. An answer may be old a moment
//! later. Then the service refuses, and its sessions begin a new search
//! (`strake_net::Whereabouts`).
//!
//! **Silent nodes** hold up nobody for long. A search does not wait for a node that did not answer
//! last time. At most one question to each node is under way.

use crate::{Introduce, Place};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::Builder;
use strake_net::{Endpoint, Seek, Site, WaitNames};
use strake_proto::{Error, ErrorKind, FsId, NodeName, Result};

/// For all answers to one search. A node that takes longer counts as silent before.
const ANSWERS_MAX: Duration = Duration::from_secs(20);

/// Gives the nodes that may serve the file system.
type Candidates = dyn Fn() -> Result<Vec<Place>> + Send + Sync;
/// Asks a node whether it serves the file system.
type Ask = dyn Fn(&Place) -> Result<bool> + Send + Sync;

/// See the head of this file.
pub struct Search {
    introduce: Introduce,
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
    /// A search for the node that serves `fs`. `candidates` gives the nodes that may, `ask` asks
    /// one of them whether it does, and `introduce` is for those who connect to it then.
    pub fn new(
        introduce: &Introduce,
        fs: FsId,
        candidates: impl Fn() -> Result<Vec<Place>> + Send + Sync + 'static,
        ask: impl Fn(&Place) -> Result<bool> + Send + Sync + 'static,
        waits: Arc<dyn WaitNames>,
    ) -> Arc<Search> {
        let (candidates, ask) = (Box::new(candidates), Box::new(ask));
        let (state, heard) = (Mutex::default(), Condvar::new());
        Arc::new(Search {
            introduce: Arc::clone(introduce),
            fs,
            candidates,
            ask,
            waits,
            state,
            heard,
        })
    }

    /// The node that serves the file system now, by its own word.
    ///
    /// # Errors
    /// `Unreachable` if none says so; those of the records.
    pub fn find(self: &Arc<Search>) -> Result<Place> {
        let candidates = (self.candidates)()?;
        let mut state = self.state.lock();
        let before = state.found;
        for place in candidates {
            if state.asked.insert(place.node.clone()) {
                let (search, node) = (Arc::clone(self), place.node.clone());
                let thread = Builder::new().name("who-serves".to_owned());
                if let Err(error) = thread.spawn(move || search.ask_one(&place)) {
                    state.asked.remove(&node);
                    return Err(error.into());
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

    /// Introductions to nodes that are found.
    pub(crate) fn introduce(&self) -> &Introduce {
        &self.introduce
    }

    /// The node that was found last.
    pub fn last(&self) -> Option<Place> {
        self.state.lock().last.clone()
    }
}

/// Lets sessions follow the file system.
pub struct Follower(pub Arc<Search>);

impl Seek for Follower {
    fn seek(&self) -> Result<Site> {
        let Place { node, address } = self.0.find()?;
        let introduction = (self.0.introduce)(&node);
        Ok(Site { endpoint: Endpoint::Tcp(address), introduction })
    }
}

#[cfg(test)]
#[path = "search_test.rs"]
mod search_test;
