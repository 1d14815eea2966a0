//! Requests that only the node that serves a file system can answer, and who that is
//! ([`strake_crew::Search`]).

use super::messages::{LeaderRequest, NodeRequest, Request};
use super::peer::{Peer, introduce};
use super::server::Node;
use crate::cluster::{Cluster, NodeRecord};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::{Place, Search};
use strake_env::{Clock, RealClock};
use strake_net::{NodeCredentials, WaitNames};
use strake_proto::{FsId, Result};

/// How long a request waits for an election, and how often it looks. An election takes seconds.
const ELECTION_MAX: Duration = Duration::from_secs(30);
const ELECTION_STEP: Duration = Duration::from_millis(200);

/// A search for the node that serves `fs`, by the node that proves itself as `own`. `records` gives
/// the records as they are known now.
pub(crate) fn search(
    own: &Arc<NodeCredentials>,
    fs: FsId,
    records: impl Fn() -> Result<Cluster> + Send + Sync + 'static,
    waits: Arc<dyn WaitNames>,
) -> Arc<Search> {
    let credentials = Arc::clone(own);
    let candidates = move || Ok(candidates(&records()?));
    let ask = move |place: &Place| {
        let peer = Peer::new(place.node.clone(), place.address, &credentials);
        peer.ask(&NodeRequest::Serves { fs })
    };
    Search::new(&introduce(own), fs, candidates, ask, waits)
}

/// The node that serves the file system now, to be asked something by the node that proves itself
/// as `own`.
///
/// # Errors
/// As [`Search::find`].
pub(crate) fn serving_peer(own: &Arc<NodeCredentials>, search: &Arc<Search>) -> Result<Peer> {
    let Place { node, address } = search.find()?;
    Ok(Peer::new(node, address, own))
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
        search(&self.own, fs, records, Arc::clone(&self.observe) as _)
    }

    /// The node that serves a file system. If the request is of no use without one, it waits for an
    /// election that may be under way.
    fn find_serving(&self, fs: FsId, about: &LeaderRequest) -> Option<Peer> {
        let search = self.search(fs);
        let _wait = self.observe.waiters.enter("for the node that serves", fs.to_string());
        let end = RealClock.monotonic() + ELECTION_MAX;
        loop {
            let found = serving_peer(&self.own, &search).ok();
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
mod tests {
    use super::*;
    use crate::cluster::Change;
    use strake_env::net::SocketAddr;
    use strake_proto::{ClusterId, Role, Roles};

    fn place(name: &str) -> Place {
        let number: u16 = name[1..].parse().expect("a number");
        let address = SocketAddr::from(([127, 0, 0, 1], number));
        Place { node: name.parse().expect("a name"), address }
    }

    #[test]
    fn nodes_of_the_quorum_may_serve() {
        let address = place("n1").address;
        let mut cluster = Cluster::new(ClusterId([9; 16]), "demo", "n1", address).expect("names");
        for (name, roles) in
            [("n2", Roles::ALL), ("n3", Roles::of(&[Role::Client])), ("n4", Roles::ALL)]
        {
            let change = Change::Invite { name: name.to_owned(), roles };
            cluster.apply(&change).expect("invited");
            if name != "n4" {
                let (name, address) = (name.to_owned(), place(name).address);
                cluster.apply(&Change::Join { name, address }).expect("joined");
            }
        }
        assert_eq!(candidates(&cluster), [place("n1"), place("n2")]);
    }
}
