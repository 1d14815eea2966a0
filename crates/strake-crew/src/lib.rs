//! One file system of a cluster, put together: the part of it that a node has, and the ways of a
//! mount to the nodes.
//!
//! ```text
//! metadata   a node's replica of the metadata; begins and ends the crew as the node leads or not
//! crew       what all mounts share, on the node that leads: leases, tokens, metadata, repair
//! ways       sessions with the NSDs of all nodes
//! search     finds the node that leads
//! mount      what a mount has of the nodes: metadata, tokens, NSDs
//! ```
//!
//! The program gives what is behind this: nodes, their records, their certificates and disks. A
//! simulation gives other ones (`strake-sim`). Everything above, below and beside these files is a
//! crate of its own. Nothing here is used by the client or the manager, which stand beside each
//! other; the crew has one of each.

pub mod crew;
pub mod metadata;
pub mod mount;
pub mod search;
pub mod ways;

pub use crew::{Crew, Lead};
pub use metadata::{Metadata, MetadataParts};
pub use mount::{MountLimits, MountWays};
pub use search::{Follower, Search};
pub use ways::{Locate, NsdWays};

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use strake_env::net::SocketAddr;
use strake_net::Introduction;
use strake_proto::{NodeName, NsdId};

/// A node, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The name that the node proves.
    pub node: NodeName,
    /// Where its server process listens.
    pub address: SocketAddr,
}

/// Where an NSD is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdPlace {
    /// The NSD.
    pub nsd: NsdId,
    /// The node that serves it.
    pub place: Place,
}

/// Says how a process proves itself to the node of a name.
pub type Introduce = Arc<dyn Fn(&NodeName) -> Introduction + Send + Sync>;
