//! The way to the metadata. It puts a client's name and time under each change.

mod later;
mod unsynced;

use later::Later;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::Clock;
use strake_env::answering;
use strake_env::sync::Mutex;
use strake_observe::Observe;
use strake_proto::meta::{Counts, Inode, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{ClientId, Error, ErrorKind, GrantNumber, Ino, Result, Term, Timestamp};
use unsynced::{Changed, Unsynced, changed};

/// The metadata with this client's name and clock.
pub struct MetaLink {
    port: Arc<dyn MetaPort>,
    client: ClientId,
    clock: Arc<dyn Clock>,
    /// Changes of which no caller waits for the answer.
    later: Later,
    /// Changes answered or taken for later, and of these those known to be durable.
    applied: AtomicU64,
    synced: AtomicU64,
    unsynced: Unsynced,
    /// Bytes that the metadata can give to contents, and the time of that answer.
    room: Mutex<(u64, Duration)>,
    /// Calls are events of its trace.
    observe: Arc<Observe>,
}

/// Above this much room in the metadata, the last answer is good enough.
const ROOM_PLENTY: u64 = 64 << 20;
/// How long such an answer may be used.
const ROOM_HOLDS: Duration = Duration::from_secs(1);

impl MetaLink {
    /// The metadata at `port`.
    pub fn new(
        port: Arc<dyn MetaPort>,
        client: ClientId,
        clock: Arc<dyn Clock>,
        observe: Arc<Observe>,
    ) -> MetaLink {
        let (applied, synced) = (AtomicU64::new(0), AtomicU64::new(0));
        let (unsynced, room) = (Unsynced::default(), Mutex::default());
        let later = Later::new(Arc::clone(&port), Arc::clone(&clock), Arc::clone(&observe));
        MetaLink { port, client, clock, later, applied, synced, unsynced, room, observe }
    }

    /// Runs a call. It is a wait of the request that it belongs to, and an event of the trace
    /// while one runs.
    fn traced<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.traced_as(name, call, Result::is_err)
    }

    fn traced_as<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> T,
        failed: impl FnOnce(&T) -> bool,
    ) -> T {
        let begun = self.observe.trace.begin();
        let wait = answering::wait(name);
        let result = call();
        drop(wait);
        self.observe.trace.end(begun, name, 0, None, failed(&result));
        result
    }

    /// Bytes that contents of files may still take of the metadata's space. A third of that space,
    /// used and free, is kept for names and inodes.
    pub fn inline_room(&self) -> Result<u64> {
        let now = self.clock.monotonic();
        let (room, told) = *self.room.lock();
        if room >= ROOM_PLENTY && now.saturating_sub(told) <= ROOM_HOLDS {
            return Ok(room);
        }
        let counts = self.counts()?;
        let room = counts.metadata_free.saturating_sub(counts.metadata_bytes / 2);
        *self.room.lock() = (room, now);
        Ok(room)
    }

    /// Sums over all metadata.
    pub fn counts(&self) -> Result<Counts> {
        match self.query(&MetaQuery::Counts)? {
            MetaReply::Counts(counts) => Ok(counts),
            _ => Err(wrong_reply()),
        }
    }

    /// Asks the metadata.
    pub fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.later.settle()?;
        self.traced("metadata query", || self.port.query(query))
    }

    /// Changes the metadata. The change has no number here (`sequence` 0): a direct call is made
    /// once, and a session numbers what it sends.
    pub fn apply(&self, op: MetaOp) -> Result<MetaReply> {
        self.apply_timed(op).map(|(reply, _)| reply)
    }

    /// Like [`MetaLink::apply`], and returns the time that the change has in the metadata.
    pub fn apply_timed(&self, op: MetaOp) -> Result<(MetaReply, Timestamp)> {
        let time = self.clock.wall();
        let entry = MetaEntry { client: self.client, sequence: 0, time, op };
        if !is_short(&entry.op) {
            self.later.settle()?;
        }
        let reply = self.traced("metadata change", || {
            self.later.ask(&entry).unwrap_or_else(|| self.port.apply(&entry))
        })?;
        self.note_applied(changed(&entry.op));
        Ok((reply, time))
    }

    /// The time of a change that is made now.
    pub fn time(&self) -> Timestamp {
        self.clock.wall()
    }

    /// Takes a change of which the outcome is known, with the time at which it is made. The
    /// metadata is told later, and before anything else is asked of it.
    ///
    /// # Errors
    /// If earlier changes cannot be told, or are too many. This one is not taken then.
    pub fn apply_later(&self, op: MetaOp, time: Timestamp, outcome: MetaReply) -> Result<()> {
        let entry = MetaEntry { client: self.client, sequence: 0, time, op };
        let changed = changed(&entry.op);
        self.later.push(entry, outcome)?;
        self.note_applied(changed);
        Ok(())
    }

    /// Notes a change that was answered, or taken for later.
    fn note_applied(&self, changed: Changed) {
        let number = self.applied.fetch_add(1, Ordering::AcqRel) + 1;
        self.unsynced.note(changed, number);
    }

    /// How many changes the metadata has refused for good of which a program was told.
    pub fn lost(&self) -> u64 {
        self.later.lost()
    }

    /// Directories with changes of names that a program was told of, and that the metadata has
    /// refused since this was last asked.
    pub fn take_refused(&self) -> HashSet<Ino> {
        self.later.take_refused()
    }

    /// The inodes with changes that a program was told of and that are not durable.
    pub fn unsynced_inodes(&self) -> Vec<Ino> {
        self.unsynced.all()
    }

    /// Makes a change that is answered by an inode.
    pub fn apply_inode(&self, op: MetaOp) -> Result<Inode> {
        self.apply_new(op).map(|(inode, _)| inode)
    }

    /// Makes a change that is answered by an inode, perhaps with its token: the term and the number
    /// of the grant.
    pub fn apply_new(&self, op: MetaOp) -> Result<(Inode, Option<(Term, GrantNumber)>)> {
        match self.apply(op)? {
            MetaReply::Inode(inode) => Ok((*inode, None)),
            MetaReply::Made { inode, term, grant } => Ok((*inode, Some((term, grant)))),
            _ => Err(wrong_reply()),
        }
    }

    /// Makes changes that are answered by an inode each, as [`MetaLink::apply_many`] does.
    pub fn apply_inodes(&self, ops: Vec<MetaOp>) -> Vec<Result<Inode>> {
        let inode = |reply| match reply {
            MetaReply::Inode(inode) => Ok(*inode),
            _ => Err(wrong_reply()),
        };
        self.apply_many(ops).into_iter().map(|result| result.and_then(inode)).collect()
    }

    /// Makes changes with as few messages as possible. Those after one that fails are mostly not
    /// made, and get `Busy`. Returns one result for each.
    pub fn apply_many(&self, ops: Vec<MetaOp>) -> Vec<Result<MetaReply>> {
        if ops.is_empty() {
            return Vec::new();
        }
        if let Err(error) = self.later.settle() {
            return ops.iter().map(|_| Err(error.clone())).collect();
        }
        let (client, time) = (self.client, self.clock.wall());
        let entry = |op| MetaEntry { client, sequence: 0, time, op };
        let entries: Vec<MetaEntry> = ops.into_iter().map(entry).collect();
        let call = || self.port.apply_all(&entries);
        let failed = |results: &Vec<_>| results.iter().any(Result::is_err);
        let results = self.traced_as("metadata changes", call, failed);
        for (entry, _) in entries.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
            self.note_applied(changed(&entry.op));
        }
        results
    }

    /// Makes a query that is answered by an inode.
    pub fn query_inode(&self, query: &MetaQuery) -> Result<Inode> {
        match self.query(query)? {
            MetaReply::Inode(inode) => Ok(*inode),
            _ => Err(wrong_reply()),
        }
    }

    /// Makes all changes answered so far durable.
    pub fn sync(&self) -> Result<()> {
        let applied = self.applied.load(Ordering::Acquire);
        self.later.settle()?;
        self.traced("metadata sync", || self.port.sync())?;
        self.synced.fetch_max(applied, Ordering::AcqRel);
        self.unsynced.forget(applied);
        Ok(())
    }

    /// The number of changes answered, or taken for later, so far. If it is the same before and
    /// after a query, nothing changed meanwhile.
    pub fn changes(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Whether the first `changes` changes are durable.
    pub fn is_durable(&self, changes: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= changes
    }

    /// Whether some change was answered or taken, and may not be durable yet.
    pub fn has_unsynced(&self) -> bool {
        self.applied.load(Ordering::Acquire) > self.synced.load(Ordering::Acquire)
    }
}

/// Whether a change goes behind those that are told later, with the same message. A change that
/// brings bytes of a file may be long.
fn is_short(op: &MetaOp) -> bool {
    use MetaOp as It;
    matches!(
        op,
        It::Create { .. }
            | It::CreateOrphan { .. }
            | It::Link { .. }
            | It::Unlink { .. }
            | It::Rmdir { .. }
            | It::Rename { .. }
            | It::SetAttr { .. }
            | It::NewObject { .. }
            | It::Truncate { .. }
            | It::ReserveInodes { .. }
            | It::ReserveObjects { .. }
    )
}

/// A reply that does not fit its question.
pub fn wrong_reply() -> Error {
    Error::new(ErrorKind::Internal, "the metadata gave a reply that does not fit the request")
}
