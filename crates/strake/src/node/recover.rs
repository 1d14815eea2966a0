//! `strake cluster recover`: the records go on without a majority of those that kept them (R31).
//! The metadata of file systems that has lost its majority goes on too (`recover/metadata.rs`).
//!
//! It works on the directory of one node whose server process is down, in these steps:
//! 1. It reads all that the node's journal has, committed or not. What a majority committed may be
//!    committed without this node knowing.
//! 2. It asks the other nodes of the quorum. If one of them leads, or has more, it refuses.
//! 3. It looks with which copies of the metadata file systems can go on that have no majority.
//! 4. With a user's word it begins a log of the next *generation*, with this node alone and these
//!    records. They name the copies with which metadata goes on. The records' file, which names the
//!    generation, is written after the new journal. So a crash in between leaves the old logs in
//!    force, those of the metadata too: their journals follow the records when they are opened
//!    (`strake-crew/src/metadata/logs.rs`).
//!
//! Other nodes of the quorum give up their logs of before when they hear of the new generation
//! (`follow.rs`), and become members again. Replicas of two generations do not hear each other. So
//! **two groups may exist** if a majority comes back that has not heard: what it decides by itself
//! is void as soon as it hears.

mod in_use;
mod metadata;

use super::dir::{NodeDir, NodeFile};
use super::messages::{NodeRequest, NodeState};
use super::peer::Peer;
use super::quorum;
use crate::cluster::{Cluster, FsRecord, NodeNumber, NodeRecord, NsdRecord};
pub(crate) use metadata::{GoesOn, LostMajority};
use std::fs::File;
use strake_proto::{Error, ErrorKind, Result, Role};
use tracing::warn;

/// What a node can go on with, and what others say.
pub(crate) struct Recovery {
    dir: NodeDir,
    file: NodeFile,
    /// The records with everything that this node has.
    pub(crate) records: Cluster,
    /// The last entry that this node has, with its term first.
    pub(crate) last: (u64, u64),
    /// The other nodes of the quorum that do not answer.
    pub(crate) silent: Vec<String>,
    /// The file systems whose metadata has no majority without them.
    pub(crate) metadata: Vec<LostMajority>,
    /// Held, so that no server process starts meanwhile.
    _lock: File,
}

/// The answer of another node; `None` if it is silent.
type Word = (String, Option<State>);

/// The state of another node.
struct State {
    node: NodeState,
    /// Whether it knows of a later generation of the records.
    is_later: bool,
}

/// Asks another node.
fn ask(peer: &Peer, records: &Cluster) -> Result<State> {
    let node = peer.ask(&NodeRequest::State)?;
    let later = NodeRequest::Records { generation: records.generation, newer_than: u64::MAX };
    let is_later = peer.ask::<Option<Cluster>>(&later)?.is_some();
    Ok(State { node, is_later })
}

impl Recovery {
    /// Looks at the node of `dir` and asks the others. Changes nothing.
    ///
    /// # Errors
    /// `Busy` if its server process runs; `Invalid` if there is nothing to recover, or if another
    /// node has more; `Corrupt` if its journal cannot be read.
    pub(crate) fn prepare(dir: NodeDir) -> Result<Recovery> {
        let file = dir.read()?;
        let lock = dir.base().try_lock()?.ok_or_else(|| {
            let root = dir.root().display();
            let detail = format!("the node runs: `strake node stop --force --dir {root}` first");
            Error::new(ErrorKind::Busy, detail)
        })?;
        let own = dir.credentials()?;
        if !own.identity().roles.has(Role::Quorum) {
            return invalid(format!("{} never kept the cluster's records", file.node));
        }
        let known = dir.records()?;
        let (records, last) = quorum::read_journal(&dir, &known, file.id)?;
        // The copy may be newer than the log, if it came from another node.
        let records = if known.is_newer_than(&records) { known } else { records };
        let word = |node: &NodeRecord| {
            let address = node.address.expect("invariant: it has joined");
            let peer = Peer::new(node.certified_name(), address, &own);
            (node.name.clone(), ask(&peer, &records).ok())
        };
        let others = || records.nodes.iter().filter(|node| node.id != file.id);
        let is_of_quorum = |node: &NodeRecord| records.quorum().any(|other| other.id == node.id);
        let has_disks = |node: &NodeRecord| records.nsds_of(node.id).next().is_some();
        let mut words: Vec<Word> = others().filter(|node| is_of_quorum(node)).map(word).collect();
        let silent = judge(&file.node, last, &words)?;
        // Whether the disks of other nodes are there.
        let serve = others().filter(|node| has_disks(node) && !is_of_quorum(node));
        words.extend(serve.map(word));
        let look = |fs: &FsRecord, nsd: &NsdRecord| metadata::look(&dir, &records, fs, nsd);
        let metadata = metadata::without_majority(&records, file.id, &words, &look)?;
        Ok(Recovery { dir, file, records, last, silent, metadata, _lock: lock })
    }

    /// The name of the node that goes on.
    pub(crate) fn node(&self) -> &str {
        &self.file.node
    }

    /// The nodes that issue certificates, if none of them is left.
    pub(crate) fn lost_issuers(&self) -> Option<String> {
        let names = || self.records.issuers().map(|node| self.records.node_name(node));
        let is_left = self.dir.has_authority() || names().any(|name| !self.silent.contains(&name));
        (!is_left).then(|| names().collect::<Vec<_>>().join(", "))
    }

    /// Begins the new log of the records, and has metadata go on.
    ///
    /// # Errors
    /// The host's. The old logs are in force then.
    pub(crate) fn carry_out(self) -> Result<Cluster> {
        let before = self.records.generation;
        let goes_on = |lost: &LostMajority| {
            let nsds = lost.lost_nsds.iter().map(|(nsd, _)| *nsd).collect();
            Some((lost.fs, lost.goes_on.as_ref().ok()?.nsd.0, nsds))
        };
        let metadata: Vec<_> = self.metadata.iter().filter_map(goes_on).collect();
        let records = self.records.after_loss(&metadata);
        quorum::make_journal(&self.dir, &records, self.file.id, true)?;
        self.dir.store_records(&records)?;
        // Of no use any more, and in nobody's way if it stays.
        let _ = std::fs::remove_file(self.dir.journal_path(before));
        Ok(records)
    }
}

fn invalid<T>(detail: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, detail))
}

/// Refuses a recovery that is not needed, or that loses more than another node's would. Returns the
/// nodes that do not answer.
fn judge(own: &str, last: (u64, u64), words: &[Word]) -> Result<Vec<String>> {
    if words.is_empty() {
        return invalid(format!("{own} keeps the records alone: `strake node start` is enough"));
    }
    let known = words.iter().filter_map(|(name, state)| Some((name, state.as_ref()?)));
    for (name, state) in known {
        if state.is_later {
            return invalid(format!(
                "the cluster has gone on without {own}, as {name} says: `strake node start` is \
                 enough"
            ));
        }
        let Some(replica) = &state.node.replica else { continue };
        if replica.role == "leader" {
            return invalid(format!(
                "{name} leads the cluster, so a majority is there: `strake node start` is enough"
            ));
        }
        if (replica.last_term, replica.last) > last {
            return invalid(format!(
                "{name} has changes that {own} lacks (entry {} of term {}, here {} of term {}): \
                 recover there",
                replica.last, replica.last_term, last.1, last.0
            ));
        }
    }
    // A node that lost its log is of no use to the others.
    let is_silent =
        |state: &Option<State>| state.as_ref().is_none_or(|state| state.node.replica.is_none());
    let silent = words.iter().filter(|(_, state)| is_silent(state));
    let silent: Vec<String> = silent.map(|(name, _)| name.clone()).collect();
    if silent.is_empty() {
        return invalid(format!(
            "all other nodes of the quorum answer: start {own}, and they agree by themselves"
        ));
    }
    Ok(silent)
}

/// True if records of this generation mean that a node must begin a log anew.
pub(super) fn is_void(own: &Cluster, heard: &Cluster) -> bool {
    own.id == heard.id && heard.generation > own.generation
}

/// Makes ready what a node of the quorum needs when records of a later generation have come. The
/// file with these records is written after this.
///
/// # Errors
/// The host's.
pub(super) fn begin_anew(dir: &NodeDir, heard: &Cluster, own: NodeNumber) -> Result<()> {
    warn!(
        target: "node",
        "the cluster's records went on without a majority: what only this node had is void"
    );
    quorum::make_journal(dir, heard, own, false)
}

#[cfg(test)]
#[path = "recover_test.rs"]
mod recover_test;
