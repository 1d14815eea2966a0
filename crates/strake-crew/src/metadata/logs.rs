//! Which log of a file system's metadata is in force, and how a copy follows it (R31, decision
//! 0078).
//!
//! A log whose majority is lost for good ends. `strake cluster recover` has the records name the
//! next one ([`LogId`]) and the NSD whose copy it goes on with. That is one write of one node, so a
//! crash leaves all logs as they were or all as they are to be. Each journal follows by itself when
//! its replica starts ([`follow_log`]). The groups of two logs have different names, so replicas of
//! an earlier log are not heard in a later one.

use super::{CACHE_BYTES, MetadataParts};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use strake_env::Disk;
use strake_meta::replicated::{goes_on, position_of, time_of};
use strake_proto::{ClusterId, Error, ErrorKind, FsId, NsdId, Result, Timestamp};
use strake_replica::entry::{Entry, Payload};
use strake_replica::journal::{Identity, Journal, JournalError};
use strake_replica::membership::Membership;
use strake_replica::types::{ReplicaId, Stamp};
use strake_store::Container;
use tracing::warn;

/// Where in a group's name the log stands. The file system stands behind it.
const LOG_AT: usize = 4;

/// Which of a file system's logs it is. A log whose majority is lost for good ends, and another one
/// goes on with one of its copies (R31). The first log has the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogId {
    /// How many logs there were before.
    pub generation: u32,
    /// The NSD with the copy that it goes on with.
    pub origin: NsdId,
}

pub(super) fn journal_fault(error: JournalError) -> Error {
    let kind = match error {
        JournalError::Io(_) => ErrorKind::Io,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("the journal of the metadata: {error}"))
}

/// Whose the journal of a node's replica is. Replicas of different file systems do not hear each
/// other, nor do those of different logs of one file system.
pub fn identity(cluster: ClusterId, fs: FsId, log: LogId, replica: ReplicaId) -> Identity {
    let mut group = cluster;
    let reversed = group.0.iter_mut().rev().zip(fs.0.to_le_bytes());
    reversed.for_each(|(byte, of_fs)| *byte ^= of_fs);
    let of_log = log.generation.to_le_bytes().into_iter().chain(log.origin.0.to_le_bytes());
    group.0[LOG_AT..].iter_mut().zip(of_log).for_each(|(byte, of_log)| *byte ^= of_log);
    Identity { cluster: group, replica }
}

/// The log of a file system to which a group belongs, if it is one of this file system's.
fn log_of(group: ClusterId, cluster: ClusterId, fs: FsId) -> Option<LogId> {
    let first = identity(cluster, fs, LogId::default(), ReplicaId(0)).cluster;
    let mut of_log = [0; 8];
    let pairs = group.0[LOG_AT..].iter().zip(&first.0[LOG_AT..]);
    of_log.iter_mut().zip(pairs).for_each(|(byte, (own, first))| *byte = own ^ first);
    let [a, b, c, d, e, f, g, h] = of_log;
    let (generation, origin) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    let log = LogId { generation, origin: NsdId(origin) };
    (identity(cluster, fs, log, ReplicaId(0)).cluster == group).then_some(log)
}

/// Makes the journal that of the log in force, if it is that of an earlier one.
///
/// # Errors
/// `Corrupt` if the log in force goes on with this copy, and the copy is older than that.
pub(super) fn follow_log(parts: &MetadataParts, disk: &Arc<dyn Disk>) -> Result<()> {
    let MetadataParts { fs, nsd, cluster, log, lost, .. } = parts;
    let next = parts.identity();
    let owner = Journal::owner(disk.as_ref()).map_err(journal_fault)?;
    let earlier = log_of(owner.cluster, *cluster, *fs)
        .filter(|earlier| owner.replica == next.replica && earlier.generation < log.generation);
    let Some(earlier) = earlier else { return Ok(()) };
    if log.origin != *nsd {
        warn!(
            target: "metadata",
            "file system {fs}: its metadata went on without a majority. What only NSD {nsd} had is \
             void, and it gets a copy"
        );
        return Journal::begin_anew(Arc::clone(disk), owner, next).map_err(journal_fault);
    }
    if earlier.generation + 1 < log.generation {
        let detail = format!("NSD {nsd} has an older copy than the one that goes on");
        return Err(Error::new(ErrorKind::Corrupt, detail));
    }
    warn!(target: "metadata", "file system {fs}: the metadata goes on with the copy on NSD {nsd}");
    Journal::go_on(Arc::clone(disk), owner, next, &goes_on(lost)).map_err(journal_fault)
}

/// The contents of a copy of the metadata that no process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCopy {
    /// The last entry.
    pub last: Stamp,
    /// When the last change was made that it has, by the clock of the client, if that is known.
    pub changed: Option<Timestamp>,
    /// The members, as it knows them.
    pub membership: Membership,
}

/// Looks at a copy. Changes nothing that counts.
///
/// # Errors
/// `Stale` if it is not whole, because a copy from another node has not come or broke off, or is of
/// an earlier log; `Corrupt` if it cannot be read.
pub fn look_at(container: &Container, identity: Identity) -> Result<KnownCopy> {
    let disk: Arc<dyn Disk> = container.metadata_log().into_disk();
    let log = Journal::peek(disk, identity).map_err(|fault| match fault {
        JournalError::Foreign(_) => Error::new(ErrorKind::Stale, "it is of an earlier log"),
        fault => journal_fault(fault),
    })?;
    if !log.membership().all().contains(&identity.replica) {
        // Without this an empty copy would go on, and make an empty file system.
        return Err(Error::new(ErrorKind::Stale, "it has got nothing from the others yet"));
    }
    let known = log.snapshot_stamp().position.0..=log.last().position.0;
    let position = position_of(container, CACHE_BYTES)?;
    if position.is_none_or(|position| !known.contains(&position)) {
        let detail = "it is not whole: a copy from another node broke off";
        return Err(Error::new(ErrorKind::Stale, detail));
    }
    let time = |entry: &Entry| match &entry.payload {
        Payload::Data { bytes, .. } => time_of(bytes),
        _ => None,
    };
    let changed = log.from(log.base().position.next()).iter().rev().find_map(time);
    Ok(KnownCopy { last: log.last(), changed, membership: log.membership().clone() })
}

#[cfg(test)]
#[path = "logs_test.rs"]
mod logs_test;
