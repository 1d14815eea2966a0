//! This node's replica of the log of the cluster's records, if it is of the quorum.
//!
//! The nodes with the role *quorum* keep the records together: each change is an entry of a log
//! that a majority of them has on disk before it is answered (`strake-replica`). One of them leads.
//! Any node takes commands, and hands changes and questions on to the leader (`follow.rs`).
//!
//! **Members** are the nodes of the quorum (`replicas.rs`). The leader brings them in line with the
//! records every two seconds.
//!
//! **The first entry** has the records that the first node began with, or those of a cluster that
//! had no log yet.
//!
//! **The journal** is the file `log-N` of the node's directory, where N is the generation of the
//! records. It is made once. A node that had one and has lost it keeps the records no more: it
//! cannot know what it has promised to the others (R26). It still serves its disks. So the file is
//! read again each hour, and a damaged one is written anew while memory has all of it.

use super::dir::NodeDir;
use super::messages::ReplicaState;
use super::replicas::{self, Find, Ways};
use crate::cluster::machine::{Applied, Entry, Publish, RecordsMachine, read_answer};
use crate::cluster::{Cluster, NodeNumber};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::Introduce;
use strake_crew::metadata::{CONTENT_AFTER, Ways as _};
use strake_env::disk::file::{Allocation, FileDisk};
use strake_env::sync::Mutex;
use strake_env::{Clock, Disk, Links, RealClock};
use strake_net::{ReplicaPort, WaitNames};
use strake_proto::{ClusterId, Error, ErrorKind, FeatureLevel, Result, feature};
use strake_replica::core::{ChangeRefusal, Config, Refusal, RoleName};
use strake_replica::entry::Payload;
use strake_replica::journal::{Identity, Journal, JournalError};
use strake_replica::membership::Membership;
use strake_replica::replica::{Failure, Parts};
use strake_replica::types::ReplicaId;
use strake_replica::{Machine, Replica, StateMachine};
use tracing::{error, info, warn};

/// Records have at most this many bytes: those of tens of thousands of nodes, NSDs and mounts.
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Entries behind the last snapshot.
const LOG_BYTES_MAX: usize = 2 << 20;
/// Each of the journal's two areas takes a snapshot, the log, and what is kept before it.
const JOURNAL_BYTES: u64 = 2 * 4096 + 2 * (8 << 20);
/// For a majority to answer, before another node is asked whether it leads by now.
const MAJORITY_WAIT_MAX: Duration = Duration::from_secs(5);

/// The journal is read again so often.
const VERIFY_EVERY: Duration = Duration::from_secs(3600);

/// What a replica of the records is made of.
pub(super) struct QuorumParts {
    /// The records as this node had them when it started.
    pub(super) first: Cluster,
    pub(super) own: NodeNumber,
    pub(super) introduce: Introduce,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) find: Find,
    pub(super) publish: Publish,
    pub(super) waits: Arc<dyn WaitNames>,
    /// Where the connections to other replicas count.
    pub(super) links: Option<Arc<Links>>,
    pub(super) config: Config,
}

/// A replica of the records.
pub(super) struct Quorum {
    first: Cluster,
    own: ReplicaId,
    applied: Applied,
    replica: Arc<Replica>,
    ways: Arc<Ways>,
    /// When the journal is read again.
    next_verify: Mutex<Duration>,
}

/// The times and limits of a replica of the records.
pub(super) fn config(own: NodeNumber) -> Config {
    Config {
        heartbeat: Duration::from_millis(400),
        election: Duration::from_secs(2),
        content_after: Some(CONTENT_AFTER),
        entry_bytes_max: LOG_BYTES_MAX,
        append_bytes: 512 << 10,
        log_bytes_max: LOG_BYTES_MAX,
        snapshot_bytes_max: RECORDS_BYTES_MAX,
        supports: feature::understood().0,
        ..Config::new(ReplicaId(own.0))
    }
}

/// The name under which the replicas of a generation know each other. What one of another
/// generation says is not heard.
fn group(records: &Cluster) -> ClusterId {
    let mut id = records.id;
    for (byte, of_generation) in id.0.iter_mut().zip(records.generation.to_le_bytes()) {
        *byte ^= of_generation;
    }
    id
}

fn journal_fault(error: JournalError) -> Error {
    let kind = match error {
        JournalError::Io(_) => ErrorKind::Io,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("the log of the cluster's records: {error}"))
}

/// Makes the journal of a node that never had one. `founds` if the log begins here.
///
/// # Errors
/// The host's.
pub(super) fn make_journal(
    dir: &NodeDir,
    records: &Cluster,
    own: NodeNumber,
    founds: bool,
) -> Result<()> {
    let path = dir.journal_path(records.generation);
    let disk = match FileDisk::create(&path, JOURNAL_BYTES, Allocation::Preallocated) {
        // A crash came in between. What is empty is made again, and what is whole stays.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => FileDisk::open(&path)?,
        other => other?,
    };
    let replica = ReplicaId(own.0);
    let identity = Identity { cluster: group(records), replica };
    match Journal::create(Arc::new(disk), identity, founds.then(|| Membership::of([replica]))) {
        Err(JournalError::Exists) => Ok(()),
        other => other.map_err(journal_fault),
    }
}

/// Opens the journal that this node has.
///
/// # Errors
/// `Corrupt` if it is gone.
pub(super) fn open_journal(dir: &NodeDir, records: &Cluster) -> Result<Arc<dyn Disk>> {
    let path = dir.journal_path(records.generation);
    let disk = FileDisk::open(&path).map_err(|error| {
        let detail = format!(
            "{error}. This node kept the cluster's records and cannot know any more what it promised \
             the others: bring the file back as it was last, or delete the node on another one and \
             let it join anew"
        );
        Error::new(ErrorKind::Corrupt, detail)
    })?;
    Ok(Arc::new(disk))
}

/// Reads all that a node's journal has, committed or not: the records, and the last entry's term
/// and place. The node's replica must not run.
///
/// # Errors
/// `Corrupt` if the journal is damaged or gone.
pub(super) fn read_journal(
    dir: &NodeDir,
    records: &Cluster,
    own: NodeNumber,
) -> Result<(Cluster, (u64, u64))> {
    let identity = Identity { cluster: group(records), replica: ReplicaId(own.0) };
    let disk = open_journal(dir, records)?;
    let (_, _, log) = Journal::open(disk, identity, 0).map_err(journal_fault)?;
    let applied = Applied::default();
    let publish = Box::new(|_: &Cluster| ());
    let mut machine = RecordsMachine { applied: Arc::clone(&applied), publish };
    let unreadable = |reason| Error::new(ErrorKind::Corrupt, format!("a snapshot: {reason}"));
    let snapshot = log.snapshot().map(|snapshot| machine.install(&snapshot.bytes));
    snapshot.unwrap_or(Ok(())).map_err(unreadable)?;
    for entry in log.from(log.snapshot_stamp().position.next()) {
        if let Payload::Data { bytes, .. } = &entry.payload {
            // A change that was refused is refused here as well.
            drop(machine.apply(entry.position, bytes));
        }
    }
    let last = (log.last().term.0, log.last().position.0);
    let known = applied.lock().clone();
    Ok((known.unwrap_or_else(|| records.clone()), last))
}

impl Quorum {
    /// Starts the replica.
    ///
    /// # Errors
    /// `Corrupt` if its journal is damaged; the host's.
    pub(super) fn start(parts: QuorumParts) -> Result<Quorum> {
        let QuorumParts { first, own, introduce, disk, find, publish, waits, links, config } =
            parts;
        let ways = Ways::new(None, find, introduce, Arc::clone(&waits), links);
        let applied = Applied::default();
        let machine = RecordsMachine { applied: Arc::clone(&applied), publish };
        let replica = Replica::start(Parts {
            cluster: group(&first),
            config,
            disk,
            machine: Machine::Carried(Box::new(machine)),
            transport: Arc::clone(&ways) as _,
            clock: RealClock::shared(),
            waits,
        })
        .map_err(journal_fault)?;
        let (own, replica) = (ReplicaId(own.0), Arc::new(replica));
        // The start has written all of it.
        let next_verify = Mutex::new(RealClock.monotonic() + VERIFY_EVERY);
        Ok(Quorum { first, own, applied, replica, ways, next_verify })
    }

    /// Takes messages of other replicas.
    pub(super) fn inbox(&self, find: Find) -> Arc<dyn ReplicaPort> {
        replicas::inbox(&self.replica, find)
    }

    /// Proposes an entry. Returns the records with it.
    ///
    /// # Errors
    /// `Stale` if this node does not lead, and nothing is done. `TimedOut` if it may be done, or be
    /// done later. Otherwise why the entry is refused.
    pub(super) fn propose(&self, entry: &Entry) -> Result<Cluster> {
        self.found()?;
        self.propose_now(entry)
    }

    fn propose_now(&self, entry: &Entry) -> Result<Cluster> {
        entry.raises().map_or(Ok(()), |level| self.raise(level))?;
        let level = entry.level().in_log();
        let applied = self.replica.propose(level, &entry.encode()?, MAJORITY_WAIT_MAX);
        read_answer(&applied.map_err(refused)?.answer)
    }

    /// Raises the log's level to that of the records to come.
    fn raise(&self, level: FeatureLevel) -> Result<()> {
        match replicas::raise(&self.replica, level, MAJORITY_WAIT_MAX) {
            // It is elected lately, and has not heard of all of them yet.
            Err(Failure::NotChanged(ChangeRefusal::Unsupported(id))) => {
                let detail = format!("node {} has not said that it understands it", id.0);
                Err(Error::new(ErrorKind::Stale, detail))
            }
            raised => raised.map_err(refused),
        }
    }

    /// The records as a majority has them now.
    ///
    /// # Errors
    /// `Stale` if this node does not lead, or does not lead any more.
    pub(super) fn committed(&self) -> Result<Cluster> {
        self.found()?;
        self.replica.read_barrier(MAJORITY_WAIT_MAX).map_err(|failure| match failure {
            // Nothing was to be done, so another node may be asked.
            Failure::Unknown => Error::new(ErrorKind::Stale, "no majority answers"),
            failure => refused(failure),
        })?;
        self.applied.lock().clone().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// Writes the first entry, if there is none yet.
    fn found(&self) -> Result<()> {
        if self.applied.lock().is_some() {
            return Ok(());
        }
        self.replica.read_barrier(MAJORITY_WAIT_MAX).map_err(refused)?;
        if self.applied.lock().is_none() {
            self.propose_now(&Entry::Found(Box::new(self.first.clone())))?;
            info!(target: "node", "the log of the cluster's records begins");
        }
        Ok(())
    }

    /// The generation of the records that it keeps.
    pub(super) fn generation(&self) -> u32 {
        self.first.generation
    }

    /// True if this node leads, as far as it knows.
    pub(super) fn leads(&self) -> bool {
        self.replica.status().role == RoleName::Leader
    }

    /// Reads the journal again, and has it written anew if it is damaged. Returns whether it was.
    ///
    /// # Errors
    /// If the replica has ended, or does not write within its limit.
    fn verify(&self) -> Result<bool> {
        let verified = self.replica.verify_journal(MAJORITY_WAIT_MAX).map_err(refused)?;
        if let Some(damage) = &verified.damage {
            error!(target: "node", "the log of the cluster's records: {damage}; it is written anew");
        }
        Ok(verified.damage.is_some())
    }

    /// If this node leads: brings the members in line with the records. Returns whether they have
    /// changed, so that a further change may follow. Any node looks after its journal.
    ///
    /// # Errors
    /// If that does not go now. It is tried again.
    pub(super) fn tend(&self) -> Result<bool> {
        let now = RealClock.monotonic();
        let is_due = {
            let mut next = self.next_verify.lock();
            let is_due = now >= *next;
            *next = if is_due { now + VERIFY_EVERY } else { *next };
            is_due
        };
        if is_due {
            self.verify()?;
        }
        if self.replica.is_newly_content() {
            warn!(
                target: "node",
                "this node's log of the cluster's records goes on, and not all others have \
                 answered. If its disk was put back to an older state, changes may be lost"
            );
        }
        if self.replica.status().role == RoleName::Asking {
            let known = self.applied.lock().clone();
            let gone = known.as_ref().unwrap_or(&self.first).deleted_nodes();
            self.replica.give_up_on(&gone.map(|id| ReplicaId(id.0)).collect());
        }
        if !self.leads() {
            return Ok(false);
        }
        self.found()?;
        let wanted =
            |cluster: &Cluster| cluster.quorum().map(|node| ReplicaId(node.id.0)).collect();
        let wanted: BTreeSet<ReplicaId> =
            self.applied.lock().as_ref().map(wanted).unwrap_or_default();
        let kept = "the cluster's records are kept by nodes";
        replicas::tend(&self.replica, self.own, &wanted, kept, MAJORITY_WAIT_MAX)
            .map_err(|failure| refused(*failure))
    }

    /// How it is.
    pub(super) fn state(&self) -> ReplicaState {
        replicas::state(&self.replica, &|id| Some(NodeNumber(id.0)))
    }

    /// Ends it. What was answered is durable.
    pub(super) fn stop(&self) {
        self.replica.stop();
        self.ways.stop();
    }
}

/// Why a replica does not do something, for those who asked.
fn refused(failure: Failure) -> Error {
    let detail = failure.to_string();
    match failure {
        Failure::Refused(Refusal::NotLeader(_))
        | Failure::NotChanged(ChangeRefusal::Refused(Refusal::NotLeader(_)))
        | Failure::Replaced => Error::new(ErrorKind::Stale, detail),
        Failure::Unknown => Error::new(
            ErrorKind::TimedOut,
            "no majority of the cluster's quorum nodes has answered in time. The change may be \
             made later: look before you try again",
        ),
        Failure::Ended(_) => Error::new(ErrorKind::Io, detail),
        Failure::Refused(Refusal::AboveLevel { .. }) => {
            Error::new(ErrorKind::NotSupported, format!("{detail}: `strake cluster upgrade`"))
        }
        Failure::Refused(_) | Failure::NotChanged(_) => Error::new(ErrorKind::Busy, detail),
    }
}

#[cfg(test)]
#[path = "quorum_test.rs"]
pub(in crate::node) mod quorum_test;
