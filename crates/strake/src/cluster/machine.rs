//! What the log of a cluster's records holds, and the state machine that it drives.
//!
//! All nodes of the quorum apply the same entries in the same order, so they all have the same
//! records. What comes of an entry is the answer to whoever proposed it.
//!
//! ```text
//! entry     byte 0  version: for records with which the log begins 2, 3 above the first feature
//!                   level, 4 with NSDs that several nodes reach, or 5 with several issuers of
//!                   certificates; 1 for all else
//!           bytes 1..  [`Entry`] in postcard
//! snapshot  the bytes of the records' file (`file.rs`); nothing before the first entry
//! ```
//!
//! Records of version 4 lack the issuers beside the keeper, at the end. Those of version 3 also
//! lack the NSDs that several nodes reach. Those of version 2 also lack their level, which is the
//! first one. Those of version 1 lack the logs of metadata before it as well. The parts that they
//! lack are empty.
//!
//! Magic and checksum are those of the replica's journal and messages, which carry entries. A
//! program that does not know an entry refuses it on every node alike, so a new kind of entry needs
//! a higher feature level of the log (R32).

use super::file::{self, SPARED_BYTES_MAX, spared_bytes};
use super::records::{Change, Cluster};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_proto::feature::Feature;
use strake_proto::{Error, ErrorKind, FeatureLevel, Result};
use strake_replica::StateMachine;
use strake_replica::types::Position;

const VERSION: u8 = 1;
/// Of [`Entry::Found`].
const FOUND_VERSION: u8 = 5;
/// The version of [`Entry::Found`] with records in which the keeper alone issues certificates.
const FOUND_WITHOUT_ISSUERS: u8 = 4;
/// The version of [`Entry::Found`] with records in which each NSD has one server.
const FOUND_WITHOUT_SHARED: u8 = 3;
/// The version of [`Entry::Found`] with records of the first feature level.
const FOUND_WITHOUT_LEVEL: u8 = 2;

/// An entry of the log. A new variant goes at the end: entries are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// The records with which the log begins. Only the first such entry counts.
    Found(Box<Cluster>),
    /// A change of the records.
    Change {
        /// Refused unless the records have this revision, if one is named.
        at: Option<u64>,
        change: Change,
    },
}

impl Entry {
    /// Its bytes.
    ///
    /// # Errors
    /// `Internal` if it has no form in bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let (version, spared) = match self {
            Entry::Found(cluster) => {
                let spared = spared_bytes(cluster);
                let versions = [
                    FOUND_VERSION,
                    FOUND_WITHOUT_ISSUERS,
                    FOUND_WITHOUT_SHARED,
                    FOUND_WITHOUT_LEVEL,
                ];
                (versions[spared], spared)
            }
            Entry::Change { .. } => (VERSION, 0),
        };
        let mut bytes = postcard::to_extend(self, vec![version])
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        bytes.truncate(bytes.len() - spared);
        Ok(bytes)
    }

    /// The feature level of the log that it needs.
    pub(crate) fn level(&self) -> FeatureLevel {
        match self {
            Entry::Found(cluster) if cluster.has_issuers() => Feature::Issuers.level(),
            Entry::Found(cluster) if cluster.has_shared() => Feature::SharedDisks.level(),
            Entry::Found(cluster) if spared_bytes(cluster) < SPARED_BYTES_MAX => {
                Feature::RecordedLevel.level()
            }
            Entry::Change { change, .. } => match change {
                Change::Level { .. } => Feature::RecordedLevel.level(),
                Change::ShareNsd { .. } | Change::ServeNsd { .. } => Feature::SharedDisks.level(),
                Change::Issue { .. } => Feature::Issuers.level(),
                Change::GoOn { .. } => Feature::GoingOn.level(),
                _ => FeatureLevel::FIRST,
            },
            Entry::Found(_) => FeatureLevel::FIRST,
        }
    }

    /// The level that the records have with it, if it says so. The log must have that level before.
    pub(crate) fn raises(&self) -> Option<FeatureLevel> {
        match self {
            Entry::Found(cluster) => Some(cluster.level),
            Entry::Change { change: Change::Level { level }, .. } => Some(*level),
            Entry::Change { .. } => None,
        }
    }

    fn decode(bytes: &[u8]) -> Result<Entry> {
        let unknown = || Error::new(ErrorKind::NotSupported, "an entry that is not understood");
        let (version, body) = bytes.split_first().ok_or_else(unknown)?;
        let whole = |body: &[u8]| match postcard::take_from_bytes(body) {
            Ok((entry, [])) => Some(entry),
            _ => None,
        };
        let found = match *version {
            VERSION => match whole(body) {
                Some(Entry::Found(_)) => None,
                None => whole(&[body, &[0; 4]].concat()),
                change => change,
            },
            FOUND_WITHOUT_LEVEL => whole(&[body, &[0; 3]].concat()),
            FOUND_WITHOUT_SHARED => whole(&[body, &[0; 2]].concat()),
            FOUND_WITHOUT_ISSUERS => whole(&[body, &[0]].concat()),
            FOUND_VERSION => whole(body),
            _ => None,
        };
        let mut found = found.ok_or_else(unknown)?;
        if let Entry::Found(cluster) = &mut found {
            cluster.level = cluster.level.max(FeatureLevel::FIRST);
        }
        Ok(found)
    }
}

/// The answer to an entry.
///
/// # Errors
/// The one with which the entry was refused; `Corrupt` for what is no answer.
pub(crate) fn read_answer(bytes: &[u8]) -> Result<Cluster> {
    match postcard::take_from_bytes::<Result<Cluster>>(bytes) {
        Ok((answer, [])) => answer,
        _ => Err(Error::new(ErrorKind::Corrupt, "an answer that does not decode")),
    }
}

/// The records as one node has applied them; `None` before the first entry.
pub(crate) type Applied = Arc<Mutex<Option<Cluster>>>;

/// Hears of all records that were applied.
pub(crate) type Publish = Box<dyn Fn(&Cluster) + Send>;

/// The state machine. Its state is shared with those who read it.
pub(crate) struct RecordsMachine {
    pub(crate) applied: Applied,
    pub(crate) publish: Publish,
}

impl RecordsMachine {
    fn take(&self, entry: Entry) -> Result<Cluster> {
        let before = self.applied.lock().clone();
        let next = match (before, entry) {
            (None, Entry::Found(cluster)) => *cluster,
            (Some(cluster), Entry::Found(_)) => return Ok(cluster),
            (None, Entry::Change { .. }) => {
                return Err(Error::new(ErrorKind::Invalid, "the records have not begun"));
            }
            (Some(cluster), Entry::Change { at: Some(at), .. }) if at != cluster.revision => {
                let detail = "the cluster was changed meanwhile: try again";
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            (Some(mut cluster), Entry::Change { change, .. }) => {
                cluster.apply(&change)?;
                cluster
            }
        };
        *self.applied.lock() = Some(next.clone());
        (self.publish)(&next);
        Ok(next)
    }
}

impl StateMachine for RecordsMachine {
    fn apply(&mut self, _: Position, bytes: &[u8]) -> Vec<u8> {
        let answer = Entry::decode(bytes).and_then(|entry| self.take(entry));
        postcard::to_allocvec(&answer).expect("invariant: records have a form in bytes")
    }

    fn snapshot(&mut self) -> Vec<u8> {
        let applied = self.applied.lock();
        let encode =
            |cluster| file::encode(cluster).expect("invariant: records have a form in bytes");
        applied.as_ref().map_or_else(Vec::new, encode)
    }

    fn install(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        if bytes.is_empty() {
            *self.applied.lock() = None;
            return Ok(());
        }
        let cluster = file::decode(bytes).map_err(|error| error.to_string())?;
        *self.applied.lock() = Some(cluster.clone());
        (self.publish)(&cluster);
        Ok(())
    }
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod machine_test;
