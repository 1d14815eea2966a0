//! How the two ends of a connection prove themselves, and what each then knows of the other.
//!
//! There are two ways. A *shared secret* ([`crate::auth`]) serves processes of one machine and the
//! benchmark's agents: whoever knows it may do everything. A *certificate* ([`crate::certificate`])
//! serves the nodes of a cluster: it says who a node is and what it may do.

use crate::auth::SharedSecret;
use crate::certificate::NodeCredentials;
use crate::joining::JoinDesk;
use crate::passage::Seats;
use crate::tls::Acceptance;
use std::fmt;
use std::sync::{Arc, OnceLock};
use strake_env::links::Links;
use strake_env::stream::Endpoint;
use strake_proto::{NodeIdentity, NodeName, Result};

/// How an end that is connected to proves itself, and what it asks of those who connect.
#[derive(Clone)]
pub enum Credentials {
    /// Both ends know a secret.
    Secret(SharedSecret),
    /// Both ends have a certificate of the cluster.
    Node(Arc<NodeServer>),
}

/// How an end that connects proves itself, and whom it expects.
#[derive(Clone)]
pub enum Introduction {
    /// Whoever knows the secret.
    Secret(SharedSecret),
    /// This node of the cluster, and no other.
    Node {
        /// This end's certificate.
        own: Arc<NodeCredentials>,
        /// The other end's name.
        expected: NodeName,
    },
}

impl Credentials {
    /// Where nodes join, if they do so here.
    pub(crate) fn desk(&self) -> Option<&JoinDesk> {
        match self {
            Credentials::Secret(_) => None,
            Credentials::Node(server) => server.desk.get(),
        }
    }
}

impl From<SharedSecret> for Credentials {
    fn from(secret: SharedSecret) -> Credentials {
        Credentials::Secret(secret)
    }
}

impl From<NodeServer> for Credentials {
    fn from(server: NodeServer) -> Credentials {
        Credentials::Node(Arc::new(server))
    }
}

impl From<SharedSecret> for Introduction {
    fn from(secret: SharedSecret) -> Introduction {
        Introduction::Secret(secret)
    }
}

impl Introduction {
    /// As this node, to the node of that name.
    pub fn node(own: &Arc<NodeCredentials>, expected: &NodeName) -> Introduction {
        Introduction::Node { own: Arc::clone(own), expected: expected.clone() }
    }
}

/// Who the other end has proven to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProvenPeer {
    /// Somebody who knows the secret.
    Secret,
    /// This node.
    Node(NodeIdentity),
}

impl ProvenPeer {
    /// The node's name, if it is one.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            ProvenPeer::Secret => None,
            ProvenPeer::Node(identity) => Some(&identity.name),
        }
    }
}

impl fmt::Display for ProvenPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProvenPeer::Secret => out.write_str("a process that knows the secret"),
            ProvenPeer::Node(identity) => identity.fmt(out),
        }
    }
}

/// Gives a peer the port through which it is served. So a service learns who asks, and may refuse:
/// the error is the answer to the peer's request.
pub type PortFor<P> = Arc<dyn Fn(&ProvenPeer) -> Result<Arc<P>> + Send + Sync>;

/// Who belongs to the cluster now. A certificate outlives the membership of its node.
pub trait Members: Send + Sync {
    /// Asked at each connection, after the certificate was verified.
    ///
    /// # Errors
    /// `Access` if the node may not connect, with the reason.
    fn admit(&self, node: &NodeIdentity) -> Result<()>;
}

/// Admits every node with a certificate.
impl Members for () {
    fn admit(&self, _node: &NodeIdentity) -> Result<()> {
        Ok(())
    }
}

/// To whom a node passes connections on.
pub trait Passes: Send + Sync {
    /// Where a node of the cluster listens; `None` if there is no such node.
    fn place_of(&self, node: &NodeName) -> Option<Endpoint>;
}

/// The place of a server's desk. The desk may come while the server serves.
pub type DeskPlace = Arc<OnceLock<JoinDesk>>;

/// A node as a server.
pub struct NodeServer {
    pub(crate) acceptance: Acceptance,
    pub(crate) members: Arc<dyn Members>,
    pub(crate) desk: DeskPlace,
    /// Where the connections of nodes count.
    pub(crate) links: Option<Arc<Links>>,
    pub(crate) passes: Option<Arc<dyn Passes>>,
    /// For connections that are passed on.
    pub(crate) seats: Seats,
}

impl NodeServer {
    /// A server with this certificate that admits every node of the cluster.
    ///
    /// # Errors
    /// `Corrupt` if key and certificate do not belong together.
    pub fn new(own: &NodeCredentials) -> Result<NodeServer> {
        let acceptance = Acceptance::new(own)?;
        Ok(NodeServer {
            acceptance,
            members: Arc::new(()),
            desk: DeskPlace::default(),
            links: None,
            passes: None,
            seats: Seats::default(),
        })
    }

    /// Admits only those whom `members` admit.
    #[must_use]
    pub fn with_members(mut self, members: Arc<dyn Members>) -> NodeServer {
        self.members = members;
        self
    }

    /// Also passes connections on, to nodes that `passes` knows.
    #[must_use]
    pub fn with_passes(mut self, passes: Arc<dyn Passes>) -> NodeServer {
        self.passes = Some(passes);
        self
    }

    /// Also counts the connections of nodes as links with them.
    #[must_use]
    pub fn with_links(mut self, links: &Arc<Links>) -> NodeServer {
        self.links = Some(Arc::clone(links));
        self
    }

    /// Also lets new nodes join, from the moment at which there is a desk.
    #[must_use]
    pub fn with_desk(mut self, desk: DeskPlace) -> NodeServer {
        self.desk = desk;
        self
    }
}
