//! NSDs that several nodes reach: which nodes, and which one of them serves.
//!
//! An NSD's record names the node that serves it now. The first of its servers is its *home*. A
//! copy of the metadata on it works only there: it is that node's vote, so nothing else moves when
//! another node serves the NSD for a while. An NSD of no file system is at home.
//!
//! Each change of the server has a number that rises (`strake_lease::reservation`). It follows from
//! the generation and the revision of the records, as the lives of mounts do, so records that go on
//! from an older copy give no number again.

use super::records::{Cluster, NodeNumber, NsdRecord};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use strake_crew::Place;
use strake_lease::reservation::SERVERS_MAX;
use strake_proto::{Error, ErrorKind, NsdId, Result, Role};

/// An NSD that several nodes reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedNsd {
    pub(crate) nsd: NsdId,
    /// The nodes that reach it, its home first. The place of each is also that of its mark.
    pub(crate) servers: Vec<NodeNumber>,
    /// The number under which the node that serves it does so.
    pub(crate) number: u64,
}

impl SharedNsd {
    /// The place of a node among the servers.
    pub(crate) fn place_of(&self, node: NodeNumber) -> Option<usize> {
        self.servers.iter().position(|server| *server == node)
    }
}

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Cluster {
    /// How an NSD is shared, if several nodes reach it.
    pub(crate) fn shared(&self, nsd: NsdId) -> Option<&SharedNsd> {
        self.shared.iter().find(|shared| shared.nsd == nsd)
    }

    /// True if several nodes reach some NSD.
    pub(super) fn has_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The node that an NSD is at unless that node is away.
    pub(crate) fn home_of(&self, nsd: &NsdRecord) -> NodeNumber {
        let home = self.shared(nsd.id).and_then(|shared| shared.servers.first());
        home.copied().unwrap_or(nsd.node)
    }

    /// Where the node is that serves an NSD, if it has joined.
    pub(crate) fn place_of_nsd(&self, nsd: NsdId) -> Option<Place> {
        let node = self.node(self.nsd(nsd)?.node)?;
        Some(Place { node: node.certified_name(), address: node.address? })
    }

    /// The names of all nodes that reach an NSD, its home first.
    pub(crate) fn server_names(&self, nsd: &NsdRecord) -> Vec<String> {
        let servers = self.shared(nsd.id).map_or(vec![nsd.node], |shared| shared.servers.clone());
        servers.into_iter().map(|node| self.node_name(node)).collect()
    }

    /// The number of a reservation that these records give next.
    fn next_number(&self) -> u64 {
        self.last_life() + 1
    }

    pub(super) fn share_nsd(&mut self, nsd: NsdId, servers: &[NodeNumber]) -> Result<()> {
        let Some(record) = self.nsd(nsd) else { return invalid(format!("no NSD {nsd}")) };
        let name = record.name.clone();
        if record.fs.is_some() {
            return invalid(format!("NSD {name} belongs to a file system: its servers stay"));
        }
        if servers.first() != Some(&record.node) {
            return invalid(format!("the first server of NSD {name} is the node that made it"));
        }
        if servers.len() > SERVERS_MAX {
            return invalid(format!("NSD {name}: an NSD has at most {SERVERS_MAX} servers"));
        }
        for (at, server) in servers.iter().enumerate() {
            let server_name = self.node_name(*server);
            let is_server = |id| self.node(id).is_some_and(|node| node.roles.has(Role::Server));
            if !is_server(*server) {
                return invalid(format!("{server_name} lacks the role server"));
            }
            if servers[..at].contains(server) {
                return invalid(format!("NSD {name}: {server_name} is named twice"));
            }
        }
        let number = self.next_number();
        self.shared.retain(|shared| shared.nsd != nsd);
        self.shared.push(SharedNsd { nsd, servers: servers.to_vec(), number });
        self.shared.sort_by_key(|shared| shared.nsd);
        Ok(())
    }

    pub(super) fn serve_nsd(&mut self, nsd: NsdId, node: NodeNumber, after: u64) -> Result<()> {
        let (number, name) = (self.next_number(), self.node_name(node));
        let Some(shared) = self.shared.iter_mut().find(|shared| shared.nsd == nsd) else {
            return invalid(format!("NSD {nsd} has one server"));
        };
        if shared.place_of(node).is_none() {
            return invalid(format!("{name} is no server of NSD {nsd}"));
        }
        if shared.number != after {
            let detail = format!("another node serves NSD {nsd} meanwhile");
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        shared.number = number;
        let of_id = self.nsds.iter_mut().filter(|record| record.id == nsd);
        of_id.for_each(|record| record.node = node);
        Ok(())
    }

    /// Gives every shared NSD a number of the present generation. Lost changes may have given
    /// higher ones than these records know, and marks on the disks have them.
    pub(super) fn renumber_shared(&mut self) {
        let number = self.last_life();
        self.shared.iter_mut().for_each(|shared| shared.number = number);
    }

    /// NSDs of no file system are at home.
    pub(super) fn bring_home(&mut self) {
        let number = self.next_number();
        for record in self.nsds.iter_mut().filter(|record| record.fs.is_none()) {
            let shared = self.shared.iter_mut().find(|shared| shared.nsd == record.id);
            if let Some(shared) = shared
                && shared.servers[0] != record.node
            {
                (record.node, shared.number) = (shared.servers[0], number);
            }
        }
    }

    /// Verifies what the records say about shared NSDs. A fault is a sentence.
    pub(super) fn check_shared(&self) -> std::result::Result<(), String> {
        let mut before = None;
        for shared in &self.shared {
            let Some(record) = self.nsd(shared.nsd) else {
                return Err(format!("NSD {} has servers and does not exist", shared.nsd));
            };
            let distinct: BTreeSet<_> = shared.servers.iter().collect();
            let serves =
                |id: &NodeNumber| self.node(*id).is_some_and(|it| it.roles.has(Role::Server));
            let is_sound = shared.place_of(record.node).is_some()
                && distinct.len() == shared.servers.len()
                && shared.servers.len() <= SERVERS_MAX
                && shared.servers.iter().all(serves)
                && shared.number <= self.last_life()
                && before < Some(shared.nsd);
            if !is_sound {
                return Err(format!("the servers of NSD {} cannot be", record.name));
            }
            before = Some(shared.nsd);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "shared_test.rs"]
mod shared_test;
