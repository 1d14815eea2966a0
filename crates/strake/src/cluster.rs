//! A cluster's state, apart from everything that runs: which nodes, NSDs and file systems there
//! are, the file that keeps this, and the files by which users describe NSDs.
//!
//! All of it is pure but for the reading of that file. The state changes only through
//! [`Cluster::apply`], which takes one change at a time and is deterministic. The changes are the
//! entries of a log that the nodes of the quorum agree on ([`machine`]).

pub(crate) mod file;
mod issuers;
pub(crate) mod machine;
mod metadata_logs;
pub(crate) mod records;
pub(crate) mod shared;
pub(crate) mod stanza;

pub(crate) use records::{
    Change, Cluster, FsRecord, MountRecord, NewNsd, NodeNumber, NodeRecord, NsdRecord,
};
