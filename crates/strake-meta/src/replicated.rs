//! The metadata of a file system on several nodes: each has a replica of one log, and a store that
//! the log's entries make (decision 0044).
//!
//! 1. The replica that leads decides on each change at once, on its store and on what it decided
//!    before ([`crate::ahead`]). It proposes the entry at the very place that it decided for. The
//!    change is visible then, and not durable.
//! 2. A sync waits until the last change is committed: a majority has it on disk.
//! 3. Every replica makes committed entries' changes in its store. The store becomes durable when
//!    the log has grown (`replicated/machine.rs`, `replicated/saver.rs`).
//! 4. A leader that is replaced loses what it decided and nobody committed. Clients send it again,
//!    as they do after the crash of a server.
//!
//! **A port serves one term.** Whoever was answered in a term and is answered in a later one may
//! lack changes in between. So [`ReplicatedMeta::port`] gives a port for the present term, and when
//! the term ends, the port answers `Unreachable`. The client then asks for a port again, here or at
//! another node, and replays. A question is answered only if the leader's lease still holds when
//! the answer is there. So a leader that was replaced without knowing answers nothing.
//!
//! **Damage.** What cannot be read on this node may be readable on another one. So a node whose
//! store fails leads no more ([`ReplicatedMeta::fault`]), and clients go elsewhere. Its owner ends
//! it. If pages of its disk turn out to be damaged, its next start takes a copy from the others.
//!
//! **Locks.** `ahead` may be held when a replica's lock is taken, not the other way round. It is
//! held across memory operations, unless a record must be read from the disk.

mod copy;
mod machine;
mod node_store;
mod port;
mod rule;
mod saver;
mod scrub;

use crate::ahead::Ahead;
use crate::log_entry::{self, LogEntry};
use crate::store::Moving;
use crate::store::refusals::Refusals;
use crate::store::scrub::PAGES_PER_PART;
use machine::MetaMachine;
use node_store::NodeStore;
pub use port::TermPort;
pub use rule::{Rule, Rules};
use saver::Saver;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strake_env::sync::{Mutex, RwLock, WatchedMutex};
use strake_env::{Clock, Disk, Stops, WaitNames};
use strake_proto::meta::MetaOp;
use strake_proto::{Error, ErrorKind, FeatureLevel, NsdId, Result, Timestamp};
use strake_replica::journal::{Identity, Journal};
use strake_replica::membership::Membership;
use strake_replica::types::{ReplicaId, Stamp};
use strake_replica::{Machine, Replica};
use strake_store::{Container, Kv, KvRole};
use tracing::{error, warn};

/// Limits, and what is used of the machine.
#[derive(Clone)]
pub struct ReplicatedOptions {
    /// The NSD on which this node's store is.
    pub nsd: NsdId,
    /// How long a change waits for room in the log, and a sync for a majority.
    pub wait_max: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where waits are named.
    pub waits: Arc<dyn WaitNames>,
    /// The rules that are obeyed: all of them.
    pub rules: Rules,
    /// The feature level of the log that an entry with this change needs:
    /// [`strake_proto::feature::level_of`].
    pub level_of: fn(&MetaOp) -> FeatureLevel,
}

/// The entry with which a log goes on when a majority of its replicas is lost for good. Every
/// number that is given from then on is new, all clients of before are forgotten, and the NSDs in
/// `lost` are not read until they are compared.
pub fn goes_on(lost: &[NsdId]) -> Vec<u8> {
    log_entry::encode_goes_on(lost)
}

/// When the client made a change, by its clock. `None` for an entry that is no client's change.
pub fn time_of(entry: &[u8]) -> Option<Timestamp> {
    match log_entry::decode_entry(entry).ok()? {
        LogEntry::Plain(entry) => Some(entry.time),
        LogEntry::Counted(counted) | LogEntry::CountedBefore(counted) => Some(counted.entry.time),
        LogEntry::GoesOn(_) => None,
    }
}

/// The position up to which a node's store has the log, durably. `None` if the store is not whole:
/// a copy from another node broke off. Nothing else has the store open.
///
/// # Errors
/// The store's.
pub fn position_of(container: &Container, cache_bytes: usize) -> Result<Option<u64>> {
    let kv = Kv::open(container.kv_region(KvRole::Metadata), cache_bytes)?;
    NodeStore::new(Arc::new(kv), Rules::default()).position()
}

/// Opens a node's store. One that is damaged is given up if other nodes have the metadata: the
/// replica lacks its state then, and gets a copy. `journal` is the disk of the replica's journal.
///
/// # Errors
/// The store's, and the journal's.
pub fn open_store(
    container: &Container,
    journal: &Arc<dyn Disk>,
    identity: Identity,
    cache_bytes: usize,
) -> Result<Kv> {
    let region = || container.kv_region(KvRole::Metadata);
    let damage = match Kv::open(region(), cache_bytes) {
        Err(damage) if damage.kind() == ErrorKind::Corrupt => damage,
        opened => return opened,
    };
    let Ok((_, _, log)) = Journal::open(Arc::clone(journal), identity, 0) else {
        return Err(damage);
    };
    if !others_vote(log.membership(), identity.replica) {
        return Err(damage);
    }
    warn!(target: "metadata", "{damage}: the store is made anew from other nodes'");
    region().clear()?;
    Kv::open(region(), cache_bytes)
}

/// Whether another replica than `own` votes.
fn others_vote(members: &Membership, own: ReplicaId) -> bool {
    members.voters.iter().any(|voter| *voter != own)
}

/// One node's part of the metadata; see the module.
pub struct ReplicatedMeta {
    kv: Arc<Kv>,
    ahead: Arc<RwLock<Ahead<NodeStore>>>,
    replica: Arc<Replica>,
    saver: Arc<Saver>,
    options: ReplicatedOptions,
    refusals: Mutex<Refusals>,
    moving: WatchedMutex<Moving>,
    /// How many directories this node has moved as a leader. Changed with `ahead` held alone.
    moves: AtomicU64,
    /// Held by a check.
    checking: Mutex<()>,
    stops: Stops,
    /// Why this node leads no more.
    fault: Mutex<Option<Error>>,
}

impl ReplicatedMeta {
    /// Starts with this node's store. `start` starts the node's replica with the machine.
    ///
    /// # Errors
    /// The store's, and those of `start`.
    pub fn start(
        kv: Arc<Kv>,
        options: ReplicatedOptions,
        start: impl FnOnce(Machine) -> Result<Replica>,
    ) -> Result<ReplicatedMeta> {
        let rules = options.rules;
        let store = NodeStore::new(Arc::clone(&kv), rules);
        let position = store.position()?.unwrap_or_default();
        let ahead = Arc::new(RwLock::new(Ahead::new(store.clone(), position)));
        let saver = Arc::new(Saver::start(Arc::clone(&kv))?);
        let machine = MetaMachine {
            store,
            saver: Arc::clone(&saver),
            ahead: Arc::clone(&ahead),
            copies: BTreeMap::new(),
            rules,
        };
        let replica = Arc::new(start(Machine::Keeping(Box::new(machine)))?);
        Ok(ReplicatedMeta {
            kv,
            ahead,
            replica,
            saver,
            options,
            refusals: Mutex::default(),
            moving: WatchedMutex::default(),
            moves: AtomicU64::new(0),
            checking: Mutex::default(),
            stops: Stops::default(),
            fault: Mutex::default(),
        })
    }

    /// This node's store.
    pub fn store(&self) -> &Arc<Kv> {
        &self.kv
    }

    /// The replica of the log.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// The metadata, if this node leads and has everything from before its term. Ports of one term
    /// are as one.
    pub fn port(self: &Arc<Self>) -> Option<TermPort> {
        if self.fault.lock().is_some() {
            return None;
        }
        let Stamp { term, .. } = self.replica.next()?;
        Some(TermPort { meta: Arc::clone(self), term })
    }

    /// Why this node takes part no more, if it does not: its owner has to end it.
    pub fn fault(&self) -> Option<String> {
        let own = self.fault.lock().as_ref().map(Error::to_string);
        own.or_else(|| self.replica.status().ended.map(|reason| reason.to_string()))
    }

    /// Ends this node's part. Whoever still has a port gets errors. Nothing is written to the disk
    /// afterwards.
    pub fn stop(&self) {
        self.replica.stop();
        let is_sound = self.fault.lock().is_none();
        self.saver.stop(is_sound);
        if is_sound || !self.is_damaged() || !self.has_others() {
            return self.kv.close_base();
        }
        let nsd = self.options.nsd;
        warn!(target: "metadata", "the store on NSD {nsd} is damaged: it is made anew from others");
        if let Err(fault) = self.kv.give_up_base() {
            error!(target: "metadata", "NSD {nsd}: {fault}");
        }
    }

    /// Whether other nodes vote. Then they may have what this one lacks.
    fn has_others(&self) -> bool {
        let status = self.replica.status();
        others_vote(&status.membership, status.id)
    }

    /// Reads the whole store past all caches. True if a page is damaged and stays so.
    fn is_damaged(&self) -> bool {
        let mut next = Some(0);
        while let Some(first) = next {
            let Ok(pages) = self.kv.verify(first, PAGES_PER_PART) else { return false };
            if pages.damaged > pages.mended {
                return true;
            }
            next = pages.next;
        }
        false
    }
}
