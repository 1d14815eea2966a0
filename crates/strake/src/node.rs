//! Nodes: the directory that makes a machine one, and its server process.
//!
//! A *node directory* holds who the node is, the cluster's records as last known, and one folder
//! for each file system of which the node has disks or a mount. One *server process* works for it
//! ([`server`]): it serves the node's NSDs, and on the leader the metadata, behind one port, and
//! answers commands and other nodes. Each *mount* is a process of its own, so that the server
//! process may end and start again without it.
//!
//! Requests come in three kinds ([`messages`]). A [`LeaderRequest`] concerns the whole cluster; any
//! node takes it from a command, and hands it on if it cannot answer itself. A [`NodeRequest`]
//! concerns the node that answers it. Nodes that may not serve ask for theirs ([`errands`]). The
//! cluster's records are kept by the nodes of the quorum together ([`quorum`]); each node knows how
//! to reach them ([`follow`]). Each node of the quorum lets others join ([`issuer`]).

mod create;
mod delete;
mod dir;
mod disks;
mod errands;
mod everywhere;
mod follow;
mod issuer;
mod leader;
mod messages;
mod metadata;
mod mount;
mod peer;
mod quorum;
mod recover;
pub(crate) mod replicas;
mod server;
mod serving;
mod shared;
mod tokens;
mod upgrade;

pub(crate) use dir::{NodeDir, NodeFile};
#[cfg(test)]
pub(crate) use messages::MemberState;
pub(crate) use messages::{
    FsWanted, Grant, LeaderRequest, MetadataState, MountAnswer, NodePrograms, NodeRequest,
    NodeState, OfNode, ReplicaState, Request, StripsChecked,
};
pub(crate) use mount::disks_of_mount;
pub(crate) use peer::{Peer, ask_own, ask_own_soon};
pub(crate) use recover::{GoesOn, LostMajority, Recovery};
pub(crate) use replicas::voters_of;
pub(crate) use server::serve;
pub(crate) use serving::{search, serving_peer};
pub(crate) use upgrade::next_level;

/// The port of a node's server process if `--address` names none.
pub(crate) const PORT_DEFAULT: u16 = 7790;
