//! The nodes that issue certificates: those that have the key of the cluster's authority.
//!
//! The node that made the cluster has it from the start and is the first *keeper*. Every other node
//! of the quorum gets a copy, and says so in the records (`node/issuer.rs`). When the keeper leaves
//! the cluster, the next issuer is the keeper. The last issuer cannot leave: without the key nobody
//! could join any more.

use super::records::{Cluster, NodeNumber};
use strake_proto::{Error, ErrorKind, Result, Role};

impl Cluster {
    /// The nodes that issue certificates, the keeper first.
    pub(crate) fn issuers(&self) -> impl Iterator<Item = NodeNumber> {
        std::iter::once(self.keeper).chain(self.issuers.iter().copied())
    }

    /// True if a node issues certificates.
    pub(crate) fn issues(&self, node: NodeNumber) -> bool {
        self.issuers().any(|issuer| issuer == node)
    }

    /// True if nodes beside the keeper issue certificates.
    pub(super) fn has_issuers(&self) -> bool {
        !self.issuers.is_empty()
    }

    fn may_issue(&self, id: NodeNumber) -> bool {
        self.node(id).is_some_and(|node| node.roles.has(Role::Quorum) && node.address.is_some())
    }

    pub(super) fn add_issuer(&mut self, id: NodeNumber) -> Result<()> {
        if !self.may_issue(id) {
            let detail = format!("{} is no node of the quorum", self.node_name(id));
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        if !self.issues(id) {
            self.issuers.push(id);
            self.issuers.sort_unstable();
        }
        Ok(())
    }

    /// A node that leaves the cluster issues no more.
    pub(super) fn remove_issuer(&mut self, id: NodeNumber) -> Result<()> {
        if id != self.keeper {
            self.issuers.retain(|issuer| *issuer != id);
            return Ok(());
        }
        if self.issuers.is_empty() {
            let detail = format!(
                "{} alone issues certificates: without it no node could join any more. Every node \
                 of the quorum that runs gets that ability by itself, and `strake cluster show` \
                 lists those that have it",
                self.node_name(id)
            );
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        self.keeper = self.issuers.remove(0);
        Ok(())
    }

    /// Verifies what the records say about issuers. A fault is a sentence.
    pub(super) fn check_issuers(&self) -> std::result::Result<(), String> {
        if self.node(self.keeper).is_none_or(|keeper| keeper.address.is_none()) {
            return Err("the keeper is no node with an address".to_owned());
        }
        let is_sound = |id: &NodeNumber| *id != self.keeper && self.may_issue(*id);
        if !self.issuers.is_sorted_by(|a, b| a < b) || !self.issuers.iter().all(is_sound) {
            return Err("the nodes that issue certificates cannot be".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Change;
    use strake_env::net::SocketAddr;
    use strake_proto::{ClusterId, Roles};

    /// Three nodes of the quorum and a client.
    fn cluster() -> Cluster {
        let address = |host| SocketAddr::from(([10, 0, 0, host], 7790));
        let mut cluster =
            Cluster::new(ClusterId([1; 16]), "demo", "n1", address(1)).expect("names");
        for (host, roles) in [(2, Roles::ALL), (3, Roles::ALL), (4, Roles::of(&[Role::Client]))] {
            let name = format!("n{host}");
            cluster.apply(&Change::Invite { name: name.clone(), roles }).expect("invites");
            cluster.apply(&Change::Join { name, address: address(host) }).expect("joins");
        }
        cluster
    }

    fn issue(cluster: &mut Cluster, node: u32) -> Result<()> {
        cluster.apply(&Change::Issue { node: NodeNumber(node) })
    }

    fn issuers(cluster: &Cluster) -> Vec<u32> {
        cluster.issuers().map(|node| node.0).collect()
    }

    #[test]
    fn the_next_issuer_is_the_keeper_when_the_keeper_leaves() {
        let mut cluster = cluster();
        let delete = |node| Change::DeleteNode { node: NodeNumber(node) };
        let error = cluster.apply(&delete(1)).expect_err("it has the only key");
        assert!(error.to_string().starts_with("n1 alone issues certificates"), "{error}");
        issue(&mut cluster, 3).expect("it has the key");
        issue(&mut cluster, 2).expect("it has the key");
        issue(&mut cluster, 3).expect("said once more");
        assert_eq!(issuers(&cluster), [1, 2, 3]);
        cluster.apply(&delete(1)).expect("others have the key");
        assert_eq!((cluster.keeper, issuers(&cluster)), (NodeNumber(2), vec![2, 3]));
        cluster.apply(&delete(3)).expect("the keeper has the key");
        assert_eq!(issuers(&cluster), [2]);
        assert!(cluster.apply(&delete(2)).is_err());
    }

    #[test]
    fn a_keeper_that_is_lost_is_invited_anew_under_its_name() {
        let mut cluster = cluster();
        let invite = Change::Invite { name: "n1".into(), roles: Roles::ALL };
        assert!(cluster.apply(&invite).is_err(), "it has the only key");
        issue(&mut cluster, 2).expect("it has the key");
        cluster.apply(&invite).expect("others have the key");
        assert_eq!(issuers(&cluster), [2]);
        let anew = cluster.node_named("n1").expect("invited").id;
        assert!(issue(&mut cluster, anew.0).is_err(), "it has not joined");
    }

    #[test]
    fn only_nodes_of_the_quorum_issue_certificates() {
        let mut cluster = cluster();
        for stranger in [4, 9] {
            assert_eq!(issue(&mut cluster, stranger).expect_err("no").kind(), ErrorKind::Invalid);
        }
        for unsound in [vec![1], vec![4], vec![3, 2], vec![2, 2], vec![9]] {
            cluster.issuers = unsound.into_iter().map(NodeNumber).collect();
            assert!(cluster.check().is_err(), "{:?}", cluster.issuers);
        }
    }
}
