//! What commands ask a node, and what nodes ask each other.
//!
//! A request is JSON: one line on a node's admin socket, one message between nodes (`strake-net`,
//! `control.rs`). The answer is an [`crate::admin::Reply`]. New requests and fields are added, and
//! those that exist keep their names. So nodes of two versions understand each other, or say which
//! request they do not know.

use crate::admin::{self, Reply};
use crate::background::Order;
pub(crate) use crate::cluster::stanza::Described;
use crate::cluster::{Change, Cluster, FsRecord, MountRecord, NodeNumber, NsdRecord};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use strake_crew::{NsdPlace, Place};
use strake_env::net::SocketAddr;
use strake_manager::StripCheck;
use strake_proto::{Code, FeatureLevel, FsId, NsdId, Roles};

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// About the node that answers.
    Node(NodeRequest),
    /// About the cluster.
    Leader(LeaderRequest),
    /// Of a node that may not serve, to the node that leads.
    Client(ClientRequest),
}

/// A call of a node that may not serve ([`super::errands`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ClientRequest {
    /// Wait for an errand. The answer is an `Option<Errand>`.
    Fetch,
    /// An errand is done.
    Done {
        /// Its number.
        number: u64,
        /// The answer.
        reply: Reply,
    },
}

/// A request about one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeRequest {
    /// Report whether all is well here. The answer is a [`NodeState`].
    State,
    /// How the network to other nodes is: a list of rows ([`strake_observe::LinkRow`]).
    Network,
    /// List the waits of the node's server process. The answer has
    /// [`strake_observe::WaiterSnapshot`]s.
    Waiters,
    /// The threads of the node's server process: a list of [`crate::show::ShowThread`].
    Threads,
    /// End the server process.
    Stop {
        /// Even if file systems are mounted.
        force: bool,
    },
    /// Make the containers of new NSDs. None is left if one fails.
    MakeNsds {
        /// The NSDs, with the bytes of their containers.
        nsds: Vec<(NsdRecord, Option<u64>)>,
        /// Use devices even if they hold something else.
        force: bool,
    },
    /// Remove the containers of NSDs that the records do not name: they were just made, or deleted.
    DropNsds {
        /// The NSDs.
        nsds: Vec<NsdRecord>,
    },
    /// Make NSDs empty that belong to no file system.
    FormatNsds {
        /// The NSDs.
        nsds: Vec<NsdRecord>,
        /// If one of them is to hold metadata: for which file system.
        #[serde(default)]
        metadata: Option<NewReplicas>,
    },
    /// Make an NSD that is in use ready for a copy of the metadata.
    PrepareMetadata {
        /// The file system that it belongs to.
        fs: FsId,
        /// The NSD.
        nsd: NsdId,
    },
    /// The records have changed.
    Follow {
        /// The new records.
        cluster: Box<Cluster>,
    },
    /// Mount a file system.
    Mount {
        /// The file system.
        fs: FsRecord,
        /// `KEY=VALUE` settings of this and later mounts.
        settings: Vec<String>,
        /// Options of mount(8), with commas between them. Older nodes do not send it.
        #[serde(default)]
        options: String,
    },
    /// Flush and unmount a file system.
    Unmount {
        /// Its name.
        fs: String,
        /// Even if programs use it.
        force: bool,
    },
    /// Report whether the process of a mount runs: a boolean.
    IsMounted {
        /// The file system's name.
        fs: String,
    },
    /// The node's own copy of the records, if it is newer. The answer is an `Option<Cluster>`.
    Records {
        /// The generation that the asker has.
        generation: u32,
        /// The revision that the asker has.
        newer_than: u64,
    },
    /// How the node's replica of the records is: a [`ReplicaState`].
    Replica,
    /// The records as a majority has them. Only the node that leads answers.
    Committed,
    /// Change the records. Only the node that leads does. The answer is the records.
    Propose {
        /// Only if the records have this revision.
        at: Option<u64>,
        /// The change.
        change: Change,
    },
    /// Ask the node's mount of a file system a question. Other requests are refused. The answer is
    /// that of the mount's daemon.
    Mounted {
        /// Its name.
        fs: String,
        /// The question.
        request: Box<admin::Request>,
    },
    /// Have a node that may not serve answer. Only the node that leads can.
    HandOn {
        /// The node.
        client: NodeNumber,
        /// The request to it.
        request: Box<NodeRequest>,
    },
    /// Report whether the node serves the metadata of a file system now: a boolean.
    Serves {
        /// The file system.
        fs: FsId,
    },
    /// The cluster's authority with its key: a [`strake_net::AuthorityCopy`]. To be asked over an
    /// encrypted connection.
    Authority,
    /// Report which programs the node and its mounts run: a [`NodePrograms`]. Programs that do not
    /// know this request understand the first feature level.
    Programs,
    /// Refuse unless the node finds an NSD at its place.
    SeesNsd {
        /// The NSD.
        nsd: NsdRecord,
    },
}

impl NodeRequest {
    /// True for questions that a node answers at once.
    pub(crate) fn is_quick(&self) -> bool {
        use NodeRequest as It;
        matches!(
            self,
            It::State
                | It::Network
                | It::Waiters
                | It::Threads
                | It::IsMounted { .. }
                | It::Records { .. }
                | It::Replica
                | It::Mounted { .. }
                | It::Serves { .. }
                | It::Programs
        )
    }
}

/// A request about the cluster. [`LeaderRequest::answerer`] says who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaderRequest {
    /// The records as a majority of the quorum has them. The answer is an `Option<Cluster>`.
    Records {
        /// `None` is the answer unless they are newer.
        newer_than: u64,
    },
    /// How the replica is that leads: a [`ReplicaState`].
    Replica,
    /// Add nodes. The answer is a list of names and tokens.
    AddNodes {
        /// Their names.
        names: Vec<String>,
        /// What they will do.
        roles: Roles,
    },
    /// A node that has its certificate joins. The answer is the records.
    Join {
        /// Its name.
        node: String,
        /// Where it will listen.
        address: SocketAddr,
    },
    /// Remove a node.
    DeleteNode {
        /// Its name.
        node: String,
    },
    /// Ask all nodes how they are. The answer is a list of [`NodeState`].
    NodeStates,
    /// Ask the mounts of all nodes a question. The answer is a list of [`OfNode`].
    AskMounts {
        /// The file system's name.
        fs: String,
        /// The question.
        request: Box<admin::Request>,
    },
    /// Make NSDs. The answer is a list of [`NsdRecord`].
    CreateNsds {
        /// What the user described.
        nsds: Vec<Described>,
        /// Use devices even if they hold something else.
        force: bool,
    },
    /// Make a file system. The answer is a [`FsRecord`].
    CreateFs(FsWanted),
    /// Delete a file system that is mounted nowhere. The answer is the [`FsRecord`] it had.
    DeleteFs {
        /// Its name.
        fs: String,
    },
    /// Have the metadata of a file system go on without a majority of its copies. The answer is a
    /// [`LostMajority`](super::LostMajority).
    RecoverFs {
        /// Its name.
        fs: String,
        /// The NSD with whose copy a user agreed to go on. Without it nothing is changed.
        agreed: Option<NsdId>,
    },
    /// Delete NSDs that belong to no file system. The answer is a list of sentences about
    /// containers that could not be removed.
    DeleteNsds {
        /// Their names.
        nsds: Vec<String>,
    },
    /// Mount a file system on nodes. The answer is a list of [`MountAnswer`].
    MountFs {
        /// Its name.
        fs: String,
        /// The nodes' names; none for all clients.
        nodes: Vec<String>,
        /// `KEY=VALUE` settings of this and later mounts.
        settings: Vec<String>,
    },
    /// Refuse if the node cannot mount the file system.
    MayMount {
        /// The file system's name.
        fs: String,
        /// The node that is to mount it.
        node: NodeNumber,
    },
    /// The nodes that have a file system mounted and do not answer are off for certain.
    ForgetMount {
        /// The file system's name.
        fs: String,
    },
    /// Unmount a file system. The answer is a list of [`MountAnswer`].
    UnmountFs {
        /// Its name.
        fs: String,
        /// The nodes' names; none for those that have it mounted.
        nodes: Vec<String>,
        /// Even if programs use it.
        force: bool,
    },
    /// A mount's process begins. The answer is a [`Grant`].
    OpenMount {
        /// The file system's name.
        fs: String,
        /// The node it runs on.
        node: NodeNumber,
        /// The life of the mount whose place it takes: [`FsRecord::last_life_on`]. If that is not
        /// the last one any more, the answer is `Stale`. Earlier versions do not say.
        ///
        /// [`FsRecord::last_life_on`]: crate::cluster::FsRecord::last_life_on
        #[serde(default)]
        after: Option<u64>,
        /// The feature level that the mount's program understands.
        #[serde(default)]
        understands: FeatureLevel,
    },
    /// A mount has ended.
    CloseMount {
        /// The file system.
        fs: FsId,
        /// The mount.
        mount: MountRecord,
        /// True if it flushed everything before.
        flushed: bool,
    },
    /// Compare the metadata with the strips. The answer is a [`StripsChecked`].
    CheckStrips {
        /// The file system.
        fs: FsId,
        /// The check's number, by which it can be ended. Earlier versions send none.
        #[serde(default)]
        number: u64,
    },
    /// The NSDs that hold the metadata. The answer is a list of [`NsdId`].
    Holders {
        /// The file system.
        fs: FsId,
    },
    /// Scrub a file system. The answer is a [`ScrubReport`](crate::scrub::ScrubReport).
    Scrub {
        /// The file system.
        fs: FsId,
        /// What to do.
        order: Order,
    },
    /// Place no new files on an NSD, or place them there again. The answer is a boolean: whether
    /// that is so now.
    SuspendNsd {
        /// The file system.
        fs: FsId,
        /// The NSD.
        nsd: NsdId,
        /// Whether to place none.
        suspended: bool,
    },
    /// Where the NSDs of a file system are. The answer is a list of [`NsdPlace`].
    Places {
        /// The file system.
        fs: FsId,
    },
    /// Replace an NSD by one that belongs to no file system. The answer is a sentence.
    ReplaceNsd {
        /// The file system.
        fs: FsId,
        /// The NSD that goes.
        old: NsdId,
        /// The name of the one that comes.
        new: String,
        /// Bytes per second at most; 0 for no limit.
        rate: u64,
    },
    /// Delete an NSD without another one in its place. The answer is a sentence.
    DeleteDisk {
        /// The file system.
        fs: FsId,
        /// The NSD.
        nsd: NsdId,
        /// Bytes per second at most; 0 for no limit.
        rate: u64,
    },
    /// The files that nodes take from each other, and what waits for files. The answer is a
    /// [`strake_observe::TokensView`].
    Tokens {
        /// The file system.
        fs: FsId,
    },
    /// End a `CheckStrips` soon, if it is under way.
    EndCheckStrips {
        /// The file system.
        fs: FsId,
        /// The check's number.
        number: u64,
    },
    /// Give a file system NSDs that belong to none. The answer is a sentence.
    AddDisks {
        /// The file system.
        fs: FsId,
        /// The names of the NSDs.
        nsds: Vec<String>,
    },
    /// Move files to the newest layout. The answer is a
    /// [`RebalanceReport`](crate::rebalance::RebalanceReport).
    Rebalance {
        /// The file system.
        fs: FsId,
        /// The order.
        order: Order,
    },
    /// Ask all nodes which programs they run. The answer is a list of [`NodePrograms`].
    Programs,
    /// Raise the cluster's feature level to the newest that all nodes understand. The answer is the
    /// level.
    Upgrade,
    /// Have an NSD served by another one of its servers. The answer is the records.
    ServeNsd {
        /// The NSD.
        nsd: NsdId,
        /// The server.
        node: NodeNumber,
        /// Refused unless this is the number under which it is served.
        after: u64,
    },
}

/// Who answers a request about the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answerer {
    /// Every node.
    Any,
    /// Every node of the quorum.
    Quorum,
    /// Every node that issues certificates.
    Issuing,
    /// The node that serves the file system ([`LeaderRequest::file_system`]).
    Serving,
}

impl LeaderRequest {
    /// Who answers it.
    pub(crate) fn answerer(&self) -> Answerer {
        use LeaderRequest as It;
        match self {
            It::Records { .. }
            | It::Replica
            | It::NodeStates
            | It::Programs
            | It::AskMounts { .. } => Answerer::Any,
            It::Join { .. }
            | It::RecoverFs { .. }
            | It::DeleteNode { .. }
            | It::CreateNsds { .. }
            | It::DeleteNsds { .. }
            | It::CreateFs(_)
            | It::Upgrade
            | It::ServeNsd { .. }
            | It::DeleteFs { .. } => Answerer::Quorum,
            It::AddNodes { .. } => Answerer::Issuing,
            It::MountFs { .. }
            | It::MayMount { .. }
            | It::ForgetMount { .. }
            | It::UnmountFs { .. }
            | It::OpenMount { .. }
            | It::CloseMount { .. }
            | It::CheckStrips { .. }
            | It::EndCheckStrips { .. }
            | It::Holders { .. }
            | It::Scrub { .. }
            | It::Places { .. }
            | It::ReplaceNsd { .. }
            | It::DeleteDisk { .. }
            | It::AddDisks { .. }
            | It::Rebalance { .. }
            | It::Tokens { .. }
            | It::SuspendNsd { .. } => Answerer::Serving,
        }
    }

    /// False for requests about a file system that nobody need serve for the answer.
    pub(crate) fn needs_metadata(&self) -> bool {
        use LeaderRequest as It;
        !matches!(
            self,
            It::MountFs { .. } | It::MayMount { .. } | It::UnmountFs { .. } | It::Holders { .. }
        )
    }

    /// The file system that the request is about, as far as the records know it.
    pub(crate) fn file_system(&self, cluster: &Cluster) -> Option<FsId> {
        use LeaderRequest as It;
        match self {
            It::CloseMount { fs, .. }
            | It::CheckStrips { fs, .. }
            | It::EndCheckStrips { fs, .. }
            | It::Holders { fs }
            | It::Scrub { fs, .. }
            | It::Places { fs }
            | It::Tokens { fs }
            | It::ReplaceNsd { fs, .. }
            | It::DeleteDisk { fs, .. }
            | It::AddDisks { fs, .. }
            | It::Rebalance { fs, .. }
            | It::SuspendNsd { fs, .. } => Some(*fs),
            It::DeleteFs { fs }
            | It::MountFs { fs, .. }
            | It::MayMount { fs, .. }
            | It::ForgetMount { fs }
            | It::UnmountFs { fs, .. }
            | It::OpenMount { fs, .. } => Some(cluster.fs_named(fs).ok()?.id),
            _ => None,
        }
    }
}

/// New replicas of the metadata of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewReplicas {
    /// The file system.
    pub(crate) fs: FsId,
    /// The NSDs that have one each.
    pub(crate) nsds: Vec<NsdId>,
    /// Those that found the log. A replica that is none of them joins a log that is there.
    pub(crate) voters: Vec<NsdId>,
}

/// The file system that a user wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FsWanted {
    pub(crate) name: String,
    pub(crate) code: Code,
    pub(crate) block_size: u32,
    pub(crate) mount: PathBuf,
    /// Names of NSDs; none for all that are free.
    pub(crate) nsds: Vec<String>,
    /// Even if the loss of one failure group loses data.
    pub(crate) force: bool,
}

/// Where a mount's process finds its file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) fs: FsRecord,
    /// The mount that was granted.
    pub(crate) mount: MountRecord,
    /// Where the metadata is.
    pub(crate) leader: Place,
    pub(crate) nsds: Vec<NsdPlace>,
}

/// What a comparison of the metadata with the strips found; see `strake_manager::StripCheck`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StripsChecked {
    pub(crate) files: u64,
    pub(crate) blocks: u64,
    pub(crate) strips: u64,
    pub(crate) allocated: u64,
    pub(crate) objects: u64,
    pub(crate) faults: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// It was ended early.
    #[serde(default)]
    pub(crate) is_partial: bool,
}

impl From<StripCheck> for StripsChecked {
    fn from(found: StripCheck) -> StripsChecked {
        let StripCheck { files, blocks, strips, allocated, objects, faults, notes, .. } = found;
        let is_partial = found.is_partial;
        StripsChecked { files, blocks, strips, allocated, objects, faults, notes, is_partial }
    }
}

/// How one node answered when it was to mount or unmount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MountAnswer {
    pub(crate) node: String,
    /// True if the node did as it was asked.
    pub(crate) done: bool,
    /// A sentence about it.
    pub(crate) message: String,
}

/// The state of a node that answers.
pub(crate) const ACTIVE: &str = "active";

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeState {
    pub(crate) node: String,
    /// [`ACTIVE`], `down`, or `invited` if it has not joined.
    pub(crate) state: String,
    /// The server process.
    pub(crate) pid: Option<u32>,
    /// The version of its program.
    pub(crate) version: Option<String>,
    /// The file systems that it has mounted.
    pub(crate) mounts: Vec<String>,
    /// One sentence for each thing that is wrong.
    pub(crate) faults: Vec<String>,
    /// The NSDs of its file systems that it cannot use.
    #[serde(default)]
    pub(crate) unusable: Vec<NsdId>,
    /// Its replica of the cluster's records, if it is of the quorum.
    #[serde(default)]
    pub(crate) replica: Option<ReplicaState>,
    /// Its replicas of the metadata of file systems.
    #[serde(default)]
    pub(crate) metadata: Vec<MetadataState>,
}

/// The answer of the mount of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OfNode {
    pub(crate) node: String,
    pub(crate) answer: admin::Reply,
}

/// How a replica of the metadata of a file system is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MetadataState {
    /// The file system's name.
    pub(crate) fs: String,
    /// Whether this node serves the file system.
    pub(crate) serves: bool,
    pub(crate) replica: ReplicaState,
}

/// How a replica of a log is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaState {
    /// `leader`, `follower`, `candidate`, `learner`, `asking` or `ended`.
    pub(crate) role: String,
    /// Who leads, as far as it knows.
    pub(crate) leader: Option<NodeNumber>,
    pub(crate) term: u64,
    /// The last entry of its log.
    pub(crate) last: u64,
    /// The term of that entry.
    #[serde(default)]
    pub(crate) last_term: u64,
    /// The last entry that its records have.
    pub(crate) applied: u64,
    /// All replicas, if this one leads.
    pub(crate) members: Vec<MemberState>,
    /// Why it has ended.
    pub(crate) fault: Option<String>,
    /// The feature level of its log.
    #[serde(default)]
    pub(crate) level: FeatureLevel,
}

/// Which programs a node and its mounts run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodePrograms {
    pub(crate) node: String,
    /// The version of the program of its server process.
    pub(crate) version: Option<String>,
    /// The feature level that it understands; `None` if the node does not answer.
    pub(crate) understands: Option<FeatureLevel>,
    pub(crate) mounts: Vec<MountProgram>,
}

/// Which program a mount runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MountProgram {
    /// The file system's name.
    pub(crate) fs: String,
    /// The feature level that it understands; `None` if the mount does not answer.
    pub(crate) understands: Option<FeatureLevel>,
}

/// How far a replica is, as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberState {
    pub(crate) node: NodeNumber,
    /// False for one that receives the log only.
    pub(crate) votes: bool,
    /// It has the log up to here.
    pub(crate) agrees: u64,
    /// So many entries are missing there.
    pub(crate) behind: u64,
    /// Whether it has answered lately.
    pub(crate) is_heard: bool,
}
