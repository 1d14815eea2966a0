//! `strake cluster recover`: the records go on without a majority of those that kept them (R31).
//!
//! It works on the directory of one node whose server process is down, in these steps:
//! 1. It reads all that the node's journal has, committed or not. What a majority committed may be
//!    committed without this node knowing.
//! 2. It asks the other nodes of the quorum. If one of them leads, or has more, it refuses.
//! 3. With a user's word it begins a log of the next *generation*, with this node alone and these
//!    records. The records' file, which names the generation, is written after the new journal. So
//!    a crash in between leaves the old log in force.
//!
//! Other nodes of the quorum give up their logs of before when they hear of the new generation
//! (`follow.rs`), and become members again. Replicas of two generations do not hear each other. So
//! **two groups may exist** if a majority comes back that has not heard: what it decides by itself
//! is void as soon as it hears.

use super::dir::{NodeDir, NodeFile};
use super::messages::{NodeRequest, ReplicaState};
use super::peer::Peer;
use super::quorum;
use crate::cluster::{Cluster, NodeNumber};
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
    /// Held, so that no server process starts meanwhile.
    _lock: File,
}

/// What another node of the quorum says, or that it says nothing.
type Word = (String, Option<ReplicaState>);

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
        let words: Vec<Word> = records
            .quorum()
            .filter(|node| node.id != file.id)
            .map(|node| {
                let address = node.address.expect("invariant: nodes of the quorum have joined");
                let peer = Peer::new(node.certified_name(), address, &own);
                (node.name.clone(), peer.ask(&NodeRequest::Replica).ok())
            })
            .collect();
        let silent = judge(&file.node, last, &words)?;
        Ok(Recovery { dir, file, records, last, silent, _lock: lock })
    }

    /// The name of the node that goes on.
    pub(crate) fn node(&self) -> &str {
        &self.file.node
    }

    /// The file systems whose metadata has no majority without the nodes that do not answer, with
    /// the nodes that have it.
    pub(crate) fn lost_metadata(&self) -> Vec<(String, Vec<String>)> {
        lost_metadata(&self.records, &self.silent)
    }

    /// The node that issues certificates, if it is one that does not answer.
    pub(crate) fn lost_keeper(&self) -> Option<String> {
        let keeper = self.records.node_name(self.records.keeper);
        self.silent.contains(&keeper).then_some(keeper)
    }

    /// Begins the new log.
    ///
    /// # Errors
    /// The host's. The old log is in force then.
    pub(crate) fn carry_out(self) -> Result<Cluster> {
        let before = self.records.generation;
        let mut records = self.records;
        records.generation += 1;
        records.revision += 1;
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
        if state.role == "leader" {
            return invalid(format!(
                "{name} leads the cluster, so a majority is there: `strake node start` is enough"
            ));
        }
        if (state.last_term, state.last) > last {
            return invalid(format!(
                "{name} has changes that {own} lacks (entry {} of term {}, here {} of term {}): \
                 recover there",
                state.last, state.last_term, last.1, last.0
            ));
        }
    }
    let silent: Vec<String> =
        words.iter().filter(|(_, state)| state.is_none()).map(|(name, _)| name.clone()).collect();
    if silent.is_empty() {
        return invalid(format!(
            "all other nodes of the quorum answer: start {own}, and they agree by themselves"
        ));
    }
    Ok(silent)
}

fn lost_metadata(records: &Cluster, silent: &[String]) -> Vec<(String, Vec<String>)> {
    let of_fs = records.file_systems.iter().map(|fs| {
        let places = records.metadata_places(&fs.nsds).into_iter();
        (fs.name.clone(), places.map(|(node, _)| records.node_name(node)).collect::<Vec<_>>())
    });
    let is_lost = |(_, nodes): &(String, Vec<String>)| {
        let left = nodes.iter().filter(|node| !silent.contains(node)).count();
        left <= nodes.len() / 2
    };
    of_fs.filter(is_lost).collect()
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
