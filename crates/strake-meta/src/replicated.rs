//! The metadata of a file system on several nodes: each has a replica of one log, and a store that
//! the log's entries make (decision 0044). The product does not use it yet.
//!
//! 1. The replica that leads decides on each change at once, on its store and on what it decided
//!    before ([`crate::ahead`]). It proposes the entry at the very place that it decided for. The
//!    change is visible then, and not durable.
//! 2. A sync waits until the last change is committed: a majority has it on disk.
//! 3. Every replica makes committed entries' changes in its store. The store becomes durable when
//!    the log has grown (`replicated/machine.rs`).
//! 4. A leader that is replaced loses what it decided and nobody committed. Clients send it again,
//!    as they do after the crash of a server.
//!
//! **A port serves one term.** Whoever was answered in a term and is answered in a later one may
//! lack changes in between. So [`ReplicatedMeta::port`] gives a port for the present term, and when
//! the term ends, the port answers `Unreachable`. The client then asks for a port again, here or at
//! another node, and replays. A question is answered only if the leader's lease still holds when
//! the answer is there. So a leader that was replaced without knowing answers nothing.
//!
//! **Locks.** `ahead` may be held when a replica's lock is taken, not the other way round. It is
//! held across memory operations, unless a record must be read from the disk.

mod copy;
mod machine;
mod node_store;
mod rule;

use crate::ahead::Ahead;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::{machine as state_machine, query};
use machine::MetaMachine;
use node_store::NodeStore;
pub use rule::{Rule, Rules};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::RwLock;
use strake_env::{Clock, WaitNames};
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, Result, Term};
use strake_replica::core::Refusal;
use strake_replica::replica::Failure;
use strake_replica::types::{Position, Stamp};
use strake_replica::{Machine, Replica};
use strake_store::Kv;

/// How long a change waits before it looks again whether the log has room.
const ROOM_STEP: Duration = Duration::from_millis(10);

/// Limits, and what is used of the machine.
#[derive(Clone)]
pub struct ReplicatedOptions {
    /// How long a change waits for room in the log, and a sync for a majority.
    pub wait_max: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where waits are named.
    pub waits: Arc<dyn WaitNames>,
    /// The rules that are obeyed: all of them.
    pub rules: Rules,
}

/// One node's part of the metadata; see the module.
pub struct ReplicatedMeta {
    ahead: Arc<RwLock<Ahead<NodeStore>>>,
    replica: Arc<Replica>,
    options: ReplicatedOptions,
}

/// The metadata as the leader of one term has it.
pub struct TermPort {
    meta: Arc<ReplicatedMeta>,
    term: Term,
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
        let store = NodeStore::new(kv, rules);
        let position = store.position()?.unwrap_or_default();
        let ahead = Arc::new(RwLock::new(Ahead::new(store.clone(), position)));
        let machine =
            MetaMachine { store, ahead: Arc::clone(&ahead), copies: BTreeMap::new(), rules };
        let replica = Arc::new(start(Machine::Keeping(Box::new(machine)))?);
        Ok(ReplicatedMeta { ahead, replica, options })
    }

    /// The replica of the log.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// The metadata, if this node leads and has everything from before its term. Ports of one term
    /// are as one.
    pub fn port(self: &Arc<Self>) -> Option<TermPort> {
        let Stamp { term, .. } = self.replica.next()?;
        Some(TermPort { meta: Arc::clone(self), term })
    }
}

impl TermPort {
    /// The term. Another one is like another start of a server: clients replay.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Where the next entry is, if the term goes on.
    fn next(&self) -> Result<Stamp> {
        let is_same = |next: &Stamp| {
            next.term == self.term || !self.meta.options.rules.obeys(Rule::PortsEndWithTheirTerm)
        };
        self.meta.replica.next().filter(is_same).ok_or_else(gone)
    }

    /// An answer, if this node was the leader for sure until after it was there.
    fn under_lease<T>(&self, answer: Result<T>) -> Result<T> {
        let rules = self.meta.options.rules;
        if self.meta.replica.lease() || !rules.obeys(Rule::LeasesGuardAnswers) {
            return answer;
        }
        Err(gone())
    }

    /// Decides on an entry and proposes it. `None` if the log has no room.
    fn try_apply(&self, entry: LogEntryRef<'_>, bytes: &[u8]) -> Result<Option<CountedAnswer>> {
        let mut ahead = self.meta.ahead.write();
        // Entries that no one decides on may come in between. Then the place is another one.
        loop {
            let stamp = self.next()?;
            let decided = ahead.decide(bytes, stamp.position.0);
            let is_new = decided.as_ref().is_ok_and(|(_, changes)| !changes.is_empty());
            // A log that takes the entry proves the leader. All other answers need the lease.
            let (answer, changes) = if is_new { decided } else { self.under_lease(decided) }?;
            if changes.is_empty() {
                return Ok(Some(answer));
            }
            match self.meta.replica.propose_at(stamp, 0, bytes) {
                Ok(()) => {
                    ahead.add(bytes, stamp.position.0, changes);
                    return Ok(Some(answer));
                }
                Err(Failure::Refused(Refusal::Moved)) => {}
                Err(Failure::Refused(Refusal::Busy)) => return Ok(None),
                Err(Failure::Refused(Refusal::TooLarge)) => return Err(ErrorKind::TooBig.into()),
                Err(failure) => return Err(unreachable(entry, &failure)),
            }
        }
    }

    fn apply_logged(&self, entry: LogEntryRef<'_>) -> Result<CountedAnswer> {
        let bytes = encode_entry(entry)?;
        if let Some(answer) = self.try_apply(entry, &bytes)? {
            return Ok(answer);
        }
        let ReplicatedOptions { wait_max, clock, waits, .. } = &self.meta.options;
        let end = clock.monotonic() + *wait_max;
        let wait = waits.begin_wait("metadata log full", "waits until a majority has it");
        let outcome = loop {
            clock.sleep(ROOM_STEP);
            match self.try_apply(entry, &bytes) {
                Ok(None) if clock.monotonic() < end => {}
                Ok(None) => break Err(gone()),
                Ok(Some(answer)) => break Ok(answer),
                Err(error) => break Err(error),
            }
        };
        waits.end_wait(wait);
        outcome
    }
}

impl MetaPort for TermPort {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        let reply = {
            let ahead = self.meta.ahead.read();
            self.next()?;
            query::query(&*ahead, query)
        };
        self.under_lease(reply)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.apply_logged(LogEntryRef::Plain(entry))?.outcome
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let answer = self.apply_logged(LogEntryRef::Counted(counted))?;
        let is_late = {
            let ahead = self.meta.ahead.read();
            state_machine::durable_first(&*ahead, counted, &answer)? > ahead.committed()
        };
        if is_late && self.meta.options.rules.obeys(Rule::NumbersAreDurableFirst) {
            self.sync()?;
        }
        Ok(answer)
    }

    fn sync(&self) -> Result<()> {
        let stamp = {
            let ahead = self.meta.ahead.read();
            let Stamp { term, .. } = self.next()?;
            Stamp { term, position: Position(ahead.last()) }
        };
        if !self.meta.options.rules.obeys(Rule::SyncsWaitForCommits) {
            return Ok(());
        }
        let waited = self.meta.replica.wait_committed(stamp, self.meta.options.wait_max);
        waited.map_err(|failure| {
            Error::new(ErrorKind::Unreachable, format!("the metadata's log: {failure}"))
        })
    }
}

/// This node does not lead any more, or not for sure. Another one may.
fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "another node serves the metadata, or will soon")
}

fn unreachable(entry: LogEntryRef<'_>, failure: &Failure) -> Error {
    let client = entry.entry().client;
    let detail = format!("a change of client {client} has no place in the log: {failure}");
    Error::new(ErrorKind::Unreachable, detail)
}
