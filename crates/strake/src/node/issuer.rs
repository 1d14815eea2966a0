//! The nodes at which others join: those with the key of the cluster's authority.
//!
//! The node that made the cluster has the key. Every other node of the quorum asks for a copy, over
//! an encrypted connection, stores it, and has the records say that it issues certificates
//! ([`Change::Issue`]). A thread looks after that. So no node is needed for others to join.
//!
//! A join token is good at the node that made it alone, and void when the records have a newer
//! invitation of the same node ([`Node::take_records`]).

use super::dir::NodeDir;
use super::messages::{LeaderRequest, NodeRequest, NodeState, Request};
use super::peer::Peer;
use super::server::Node;
use crate::cluster::{Change, Cluster, NodeNumber};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_crew::Place;
use strake_env::RealClock;
use strake_net::{AuthorityCopy, Cipher, ClusterAuthority, DeskPlace, JoinDesk, NodeCredentials};
use strake_proto::feature::Feature;
use strake_proto::{Error, ErrorKind, Result, Roles};
use tracing::{info, warn};

/// How long a join token is good for.
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);

/// The desk of a node that issues certificates. It is empty at other nodes.
pub(super) fn open_desk(dir: &NodeDir) -> Result<DeskPlace> {
    let place = DeskPlace::default();
    match ClusterAuthority::load(&dir.keys_path(), RealClock::shared()) {
        Ok(authority) => set_desk(&place, dir, authority)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(place)
}

fn set_desk(place: &DeskPlace, dir: &NodeDir, authority: ClusterAuthority) -> Result<()> {
    let desk = JoinDesk::open(authority, &dir.keys_path(), RealClock::shared())?;
    assert!(place.set(desk).is_ok(), "invariant: one thread sets the desk, and once");
    Ok(())
}

/// Looks after this node's being an issuer until it ends.
pub(super) fn become_issuer(node: &Weak<Node>) {
    let mut said = None;
    while let Some(node) = node.upgrade() {
        if node.ends_within(node.tend_interval()) {
            return;
        }
        let fault = node.try_to_issue().err().map(|error| error.to_string());
        if let Some(fault) = fault.as_ref().filter(|_| fault != said) {
            warn!(target: "node", "this node issues no certificates yet: {fault}");
        }
        said = fault;
    }
}

impl Node {
    /// Gets the key if this node lacks it, and has the records say that it has it.
    fn try_to_issue(self: &Arc<Node>) -> Result<()> {
        if self.desk.get().is_none() {
            self.receive_authority()?;
            info!(target: "node", "this node has the authority's key: new nodes can join here");
        }
        let (own, cluster) = (self.file.id, self.cluster());
        let is_member = cluster.node(own).is_some();
        if !is_member || cluster.issues(own) || Feature::Issuers.level() > cluster.level {
            return Ok(());
        }
        self.change(&Change::Issue { node: own }).map(drop)
    }

    /// Gets the key from the first node that gives it.
    fn receive_authority(&self) -> Result<()> {
        let keys = self.dir.keys_path();
        // In a cluster without encryption, too: anybody who reads the key can make any node.
        let own = NodeCredentials::load(&keys, RealClock::shared())?.with_cipher(Cipher::Tls);
        let own = Arc::new(own);
        let mut fault = Error::new(ErrorKind::Unreachable, "no other node of the quorum is known");
        for node in self.possible_issuers() {
            let Some(Place { node, address }) = self.place(node) else { continue };
            let asked = Peer::new(node, address, &own).ask(&NodeRequest::Authority);
            match asked.and_then(|copy: AuthorityCopy| ClusterAuthority::received(&copy, &own)) {
                Ok(authority) => {
                    authority.store(&keys)?;
                    return set_desk(&self.desk, &self.dir, authority);
                }
                Err(error) => fault = error,
            }
        }
        Err(fault)
    }

    /// The other nodes that may have the key: those of which the records say so, then those of the
    /// quorum that have it and could not say so yet.
    fn possible_issuers(&self) -> Vec<NodeNumber> {
        let cluster: Cluster = self.cluster();
        let mut seen = BTreeSet::from([self.file.id]);
        let quorum = cluster.quorum().map(|node| node.id);
        cluster.issuers().chain(quorum).filter(|id| seen.insert(*id)).collect()
    }

    /// Answers [`NodeRequest::Authority`].
    ///
    /// # Errors
    /// `NotSupported` if this node has no key.
    pub(super) fn authority_copy(&self) -> Result<AuthorityCopy> {
        Ok(self.desk_here()?.authority().copy())
    }

    fn desk_here(&self) -> Result<&JoinDesk> {
        self.desk.get().ok_or_else(|| {
            let detail = format!("{} issues no certificates", self.file.node);
            Error::new(ErrorKind::NotSupported, detail)
        })
    }

    /// Answers a request that needs the key, or has another node answer it. What another node hands
    /// on is not handed on again: that one asks all others itself.
    ///
    /// # Errors
    /// `Unreachable` if no node answers that has the key; those of the answer.
    pub(super) fn answer_issuing(
        self: &Arc<Node>,
        about: &LeaderRequest,
        is_from_here: bool,
    ) -> Result<Value> {
        if !is_from_here || self.desk.get().is_some() {
            self.desk_here()?;
            return self.answer_leader(about);
        }
        let mut silent = Vec::new();
        for node in self.possible_issuers() {
            let asked = self.peer(node).and_then(|it| it.call(&Request::Leader(about.clone())));
            match asked {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::NotSupported) =>
                {
                    silent.push(error.to_string());
                }
                answer => return answer,
            }
        }
        let detail = format!("no node answers that issues certificates: {}", silent.join("; "));
        Err(Error::new(ErrorKind::Unreachable, detail))
    }

    /// Invites nodes. Returns the name of each with its token.
    pub(super) fn add_nodes(
        self: &Arc<Node>,
        names: &[String],
        roles: Roles,
    ) -> Result<Vec<(String, String)>> {
        let _alone = self.changing.lock();
        let desk = self.desk_here()?;
        // All names are looked at before the first node is added.
        let mut trial = self.cluster();
        names.iter().try_for_each(|name| self.check_is_gone(&trial, name))?;
        let invite = |name: &String| Change::Invite { name: name.clone(), roles };
        names.iter().try_for_each(|name| trial.apply(&invite(name)))?;
        let mut tokens = Vec::new();
        for name in names {
            let invited = self.change(&invite(name))?.node_named(name)?.id;
            let certified = name.parse()?;
            let token = desk.issue(&certified, roles, self.file.address, TOKEN_LIFE)?;
            // Another node may have invited it once more before this token was there to be void.
            if self.cluster().node_named(name).map(|node| node.id) != Ok(invited) {
                desk.withdraw(&certified)?;
                let detail = format!("{name} was added on another node at the same time");
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            tokens.push((name.clone(), format!("{token}@{}", self.file.node)));
        }
        Ok(tokens)
    }

    /// Refuses to invite a node anew that is there: it would be a node no more.
    fn check_is_gone(self: &Arc<Node>, cluster: &Cluster, name: &str) -> Result<()> {
        let Ok(known) = cluster.node_named(name) else { return Ok(()) };
        let is_gone = known.address.is_none()
            || self.ask::<NodeState>(known.id, &NodeRequest::State).is_err();
        if is_gone {
            return Ok(());
        }
        let detail = format!(
            "{name} is a node of this cluster already, and answers: `strake node delete {name}` \
             first, if it is to join anew"
        );
        Err(Error::new(ErrorKind::Invalid, detail))
    }
}
