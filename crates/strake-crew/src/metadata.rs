//! One node's part of the metadata of a cluster's file system (decision 0044).
//!
//! **Where.** Each node of the quorum that has an NSD of the file system with
//! usage=dataAndMetadata has a replica: on the first of these NSDs. Its journal is in the region of
//! the NSD's metadata log, its store in the space of the NSD's metadata.
//!
//! **Who serves.** A thread looks whether the replica leads. When it does, the node gets a *crew*
//! for that term ([`Crew`]), which serves the metadata and the tokens. When the term is over, the
//! crew ends. Mounts find the node that serves by
//! themselves ([`strake_net::Seek`]).
//!
//! **A majority is lost for good** (R31, decision 0078). `strake cluster recover` has the records
//! name another log, and the NSD whose copy it goes on with. A replica whose journal is of an
//! earlier log follows when it starts (`metadata/logs.rs`). The one on that NSD goes on alone with
//! all that it has, and every other one gives up what it has and gets a copy.
//!
//! **Failures.** A replica that has ended, because its disk has failed or the disk was away, is
//! started again from what its disk has. What it lacks comes from the others. It knows what it had
//! said before, so it need not ask them whether its disk was put back.

mod logs;
mod scrubbed;

use crate::crew::{Crew, Lead};
pub use logs::{KnownCopy, LogId, identity, look_at};
use logs::{follow_log, journal_fault};
pub use scrubbed::{PartNow, ScrubbedWithCopy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::{Clock, Disk, RealClock, WaitNames};
use strake_meta::replicated::{ReplicatedMeta, ReplicatedOptions, Rules, TermPort, open_store};
use strake_net::{Door, ReplicaPort, Service};
use strake_observe::Observe;
use strake_proto::feature;
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaPort, MetaQuery};
use strake_proto::{ClientId, ClusterId, Error, ErrorKind, FsId, NsdId, Result, Term};
use strake_replica::core::{Config, Word};
use strake_replica::journal::{Identity, Journal};
use strake_replica::membership::Membership;
use strake_replica::replica::{Failure, Parts};
use strake_replica::types::ReplicaId;
use strake_replica::{Replica, Transport};
use strake_store::{Container, Kv, KvRole};
use tracing::{error, info, warn};

/// The thread looks so often whether this node leads.
const LOOK: Duration = Duration::from_millis(50);
/// A replica that has ended is started again after that long, and members are looked after.
const TEND: Duration = Duration::from_secs(2);
/// For a majority to take a change of the members, an entry or a sync.
const MAJORITY_WAIT_MAX: Duration = Duration::from_secs(5);
/// A replica that starts waits so long for those that could tell that its disk was put back to an
/// older state. Then a majority that has answered, itself counted, must do: one of the others may
/// be gone for good, and nobody could serve ever again. Nodes that begin together are there before.
pub const CONTENT_AFTER: Duration = Duration::from_secs(60);
/// A change that nobody waits for is told to the other replicas within that time. A crash loses it
/// until then, and the client that made it sends it again.
const LINGER: Duration = Duration::from_millis(20);
/// The cache of the store.
const CACHE_BYTES: usize = 64 << 20;
/// The log is no longer than that, and no longer than a part of its region.
const LOG_BYTES_MAX: u64 = 16 << 20;
const LOG_PARTS: u64 = 8;
/// One entry more than the largest that the metadata makes (`strake-meta`, `log_entry.rs`).
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// What a crew begins with: the file system as it was made, and what the crew needs.
pub type Begin = Box<dyn Fn() -> Result<(Configuration, Lead)> + Send + Sync>;
/// Gives the container of an NSD, if the NSD is there.
pub type ContainerOf = Box<dyn Fn(NsdId) -> Option<Container> + Send + Sync>;

/// The other replicas, for one of them.
pub trait Peers: Send + Sync {
    /// Ways to them.
    fn ways(&self) -> Arc<dyn Ways>;

    /// Takes their messages for `replica`.
    fn inbox(&self, replica: &Arc<Replica>) -> Arc<dyn ReplicaPort>;

    /// If `replica` leads: brings the members in line with those that there should be. A majority
    /// has so long for that.
    ///
    /// # Errors
    /// If that does not go now. It is tried again.
    fn tend(&self, replica: &Replica, limit: Duration) -> std::result::Result<(), Box<Failure>>;
}

/// The ways to other replicas.
pub trait Ways: Transport {
    /// Ends all of them.
    fn stop(&self);
}

/// What a node's part is made of.
pub struct MetadataParts {
    /// The file system.
    pub fs: FsId,
    /// The NSD with the journal and the store.
    pub nsd: NsdId,
    /// The cluster.
    pub cluster: ClusterId,
    /// The log that is in force, and which NSD's copy it goes on with.
    pub log: LogId,
    /// The NSDs of nodes that were lost when that log began.
    pub lost: Vec<NsdId>,
    /// The replica.
    pub replica: ReplicaId,
    /// Gives the NSD's container.
    pub container_of: ContainerOf,
    /// The other replicas.
    pub peers: Box<dyn Peers>,
    /// Makes what else a new file system has, after its first entry.
    pub furnish: fn(&dyn MetaPort) -> Result<()>,
    /// What a crew begins with. It may ask other nodes.
    pub begin: Begin,
    /// Signalled when this node has begun to serve.
    pub bell: Arc<Condvar>,
    /// The word of the replica that ran in this process before ([`Metadata::word`]).
    pub earlier: Option<Word>,
}

impl MetadataParts {
    /// Whose the journal is.
    pub fn identity(&self) -> Identity {
        identity(self.cluster, self.fs, self.log, self.replica)
    }
}

/// See the head of this file.
pub struct Metadata {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    parts: MetadataParts,
    door: Arc<Door>,
    observe: Arc<Observe>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_stopping: bool,
    seat: Option<Arc<Seat>>,
    crew: Option<Arc<Crew>>,
    /// Why there is no seat, or no crew although this node leads.
    fault: Option<String>,
    /// The word of the last replica.
    word: Option<Word>,
}

/// A replica that runs.
struct Seat {
    meta: Arc<ReplicatedMeta>,
    ways: Arc<dyn Ways>,
}

/// A crew, and the term that it works in.
type Leading = (Term, Arc<Crew>);

/// Limits of a replica whose journal has so many bytes.
fn config(own: ReplicaId, journal_bytes: u64) -> Config {
    let log_bytes = (journal_bytes / LOG_PARTS).min(LOG_BYTES_MAX);
    Config {
        heartbeat: Duration::from_millis(300),
        election: Duration::from_millis(1500),
        lease: Duration::from_millis(1200),
        content_after: Some(CONTENT_AFTER),
        linger: LINGER,
        supports: feature::understood().0,
        entry_bytes_max: ENTRY_BYTES_MAX,
        log_bytes_max: usize::try_from(log_bytes).unwrap_or(usize::MAX),
        ..Config::new(own)
    }
}

/// Makes an NSD ready for a replica: what it had of metadata goes. `voters` found the log; a
/// replica that is none of them learns the log from the others.
///
/// # Errors
/// The disk's.
pub fn format(
    container: &Container,
    identity: Identity,
    voters: &BTreeSet<ReplicaId>,
) -> Result<()> {
    container.clear_metadata()?;
    let founds = voters.contains(&identity.replica);
    let members = founds.then(|| Membership::of(voters.iter().copied()));
    let disk = container.metadata_log().into_disk();
    Journal::create(disk, identity, members).map_err(journal_fault)?;
    // The first space is taken now, so that there is some.
    Kv::open(container.kv_region(KvRole::Metadata), CACHE_BYTES).map(drop)
}

impl Metadata {
    /// Starts the thread. The replica starts with it, if its NSD is there.
    ///
    /// # Errors
    /// When there are no more threads.
    pub fn start(
        parts: MetadataParts,
        door: &Arc<Door>,
        observe: &Arc<Observe>,
    ) -> Result<Metadata> {
        let (door, observe) = (Arc::clone(door), Arc::clone(observe));
        let state = Mutex::new(State { word: parts.earlier.clone(), ..State::default() });
        let changed = Condvar::new();
        let shared = Arc::new(Shared { parts, door, observe, state, changed });
        let of_thread = Arc::clone(&shared);
        let name = format!("metadata {}", shared.parts.fs);
        let thread = Builder::new().name(name).spawn(move || of_thread.run())?;
        Ok(Metadata { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The NSD with the journal and the store, and the log.
    pub fn place(&self) -> (NsdId, LogId) {
        (self.shared.parts.nsd, self.shared.parts.log)
    }

    /// What the mounts share, if this node serves them.
    pub fn crew(&self) -> Option<Arc<Crew>> {
        self.shared.state.lock().crew.clone()
    }

    /// The word of the replica, once it has ended. The next one on this NSD in this process then
    /// knows by itself whether the disk was put back.
    pub fn word(&self) -> Option<Word> {
        self.shared.state.lock().word.clone()
    }

    /// What is wrong, if anything is.
    pub fn fault(&self) -> Option<String> {
        self.shared.state.lock().fault.clone()
    }

    /// The metadata on this node, if the replica runs.
    pub fn replicated(&self) -> Option<Arc<ReplicatedMeta>> {
        self.shared.state.lock().seat.as_ref().map(|seat| Arc::clone(&seat.meta))
    }

    /// The replica, if it runs.
    pub fn replica(&self) -> Option<Arc<Replica>> {
        let seat = self.shared.state.lock().seat.clone();
        seat.map(|seat| Arc::clone(seat.meta.replica()))
    }

    /// Ends the crew, the replica and the thread. What was answered is durable with a majority.
    pub fn stop(&self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.changed.notify_all();
        // A panic ends the process, and was printed.
        let _ = self.thread.lock().take().map(JoinHandle::join);
    }
}

impl Shared {
    fn run(&self) {
        let clock = RealClock;
        let mut leading: Option<Leading> = None;
        // The term of the last port, and when it was seen first.
        let mut chosen: Option<(Term, Duration)> = None;
        let mut next_tend = clock.monotonic();
        while !self.is_stopping_after(LOOK) {
            let mut seat = self.state.lock().seat.clone();
            if let Some(ended) = seat.take_if(|seat| seat.meta.fault().is_some()) {
                leading.take().into_iter().for_each(|led| self.step_down(led, true));
                self.leave(&ended);
                next_tend = clock.monotonic() + TEND;
            }
            let is_due = clock.monotonic() >= next_tend;
            if is_due {
                next_tend = clock.monotonic() + TEND;
                match &seat {
                    None => seat = self.take_seat(),
                    Some(seat) => self.tend(seat),
                }
            }
            let port = seat.as_ref().and_then(|seat| seat.meta.port());
            if let Some(port) = port.as_ref()
                && chosen.is_none_or(|(term, _)| term != port.term())
            {
                chosen = Some((port.term(), clock.monotonic()));
            }
            let is_over =
                |(term, _): &mut Leading| port.as_ref().is_none_or(|port| port.term() != *term);
            if let Some(led) = leading.take_if(is_over) {
                self.step_down(led, true);
            }
            if leading.is_none()
                && let (Some(seat), Some(port), Some((_, since))) = (&seat, port, chosen)
            {
                leading = self.step_up(seat, port, since);
            }
        }
        leading.into_iter().for_each(|led| self.step_down(led, false));
        let seat = self.state.lock().seat.clone();
        seat.iter().for_each(|seat| self.leave(seat));
    }

    fn is_stopping_after(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.is_stopping, pause);
        state.is_stopping
    }

    /// Notes what is wrong. The log says it once.
    fn note(&self, fault: Option<Error>) {
        let fault = fault.map(|fault| fault.to_string());
        let mut state = self.state.lock();
        if let Some(fault) = &fault
            && state.fault.as_ref() != Some(fault)
        {
            error!(target: "metadata", "file system {}: {fault}", self.parts.fs);
        }
        state.fault = fault;
    }

    /// Starts the replica, if its NSD is there.
    fn take_seat(&self) -> Option<Arc<Seat>> {
        match self.try_take_seat() {
            Ok(seat) => {
                let seat = Arc::new(seat);
                self.state.lock().seat = Some(Arc::clone(&seat));
                self.note(None);
                Some(seat)
            }
            Err(fault) => {
                self.note(Some(fault.context("this node has no part in the metadata")));
                None
            }
        }
    }

    fn try_take_seat(&self) -> Result<Seat> {
        let MetadataParts { fs, nsd, peers, .. } = &self.parts;
        let identity = self.parts.identity();
        let container = (self.parts.container_of)(*nsd).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, format!("NSD {nsd} cannot be used"))
        })?;
        let waits = Arc::clone(&self.observe) as Arc<dyn WaitNames>;
        let disk: Arc<dyn Disk> = container.metadata_log().into_disk();
        let earlier = self.state.lock().word.clone();
        let config = Config { earlier, ..config(identity.replica, disk.len()) };
        follow_log(&self.parts, &disk)?;
        let ways = peers.ways();
        let kv = Arc::new(open_store(&container, &disk, identity, CACHE_BYTES)?);
        let options = ReplicatedOptions {
            nsd: *nsd,
            wait_max: MAJORITY_WAIT_MAX,
            clock: RealClock::shared(),
            waits: waits.clone(),
            rules: Rules::default(),
            level_of: feature::level_of,
        };
        let transport = Arc::clone(&ways) as _;
        let start = |machine| {
            let (cluster, clock) = (identity.cluster, RealClock::shared());
            Replica::start(Parts { cluster, config, disk, machine, transport, clock, waits })
                .map_err(journal_fault)
        };
        let meta = Arc::new(ReplicatedMeta::start(kv, options, start)?);
        self.door.serve_replica(Some(*fs), peers.inbox(meta.replica()))?;
        Ok(Seat { meta, ways })
    }

    /// Ends the replica.
    fn leave(&self, seat: &Seat) {
        self.door.end(Service::ReplicaOf(self.parts.fs));
        let fault = seat.meta.fault();
        seat.meta.stop();
        seat.ways.stop();
        {
            let mut state = self.state.lock();
            state.word = seat.meta.replica().word();
            state.seat = None;
        }
        self.note(fault.map(|fault| {
            Error::new(ErrorKind::Io, format!("this node's replica of the metadata: {fault}"))
        }));
    }

    /// Brings the members in line with the records, if this replica leads.
    fn tend(&self, seat: &Seat) {
        if seat.meta.replica().is_newly_content() {
            warn!(
                target: "metadata",
                "file system {}: this node's copy of the metadata goes on, and not all others have \
                 answered. If its disk was put back to an older state, changes may be lost",
                self.parts.fs
            );
        }
        let tended = self.parts.peers.tend(seat.meta.replica(), MAJORITY_WAIT_MAX);
        if let Err(failure) = tended {
            warn!(target: "metadata", "the members are not changed yet: {failure}");
        }
    }

    /// Begins to serve in a term. This node was chosen at `since`.
    fn step_up(&self, seat: &Arc<Seat>, port: TermPort, since: Duration) -> Option<Leading> {
        let term = port.term();
        match self.try_step_up(seat, Arc::new(port), since) {
            Ok(crew) => {
                info!(
                    target: "metadata",
                    "this node serves file system {} from now on, in term {term}", self.parts.fs
                );
                self.state.lock().crew = Some(Arc::clone(&crew));
                self.note(None);
                self.parts.bell.notify_all();
                Some((term, crew))
            }
            Err(fault) => {
                // It may have begun in part.
                self.door.end(Service::TokensOf(self.parts.fs));
                self.door.end(Service::MetaOf(self.parts.fs));
                self.note(Some(fault.context("this node leads, and cannot serve yet")));
                None
            }
        }
    }

    fn try_step_up(
        &self,
        seat: &Arc<Seat>,
        port: Arc<dyn MetaPort>,
        since: Duration,
    ) -> Result<Arc<Crew>> {
        let (configuration, lead) = (self.parts.begin)()?;
        format_if_new(&*port, configuration, self.parts.furnish)?;
        let replica = Arc::downgrade(seat.meta.replica());
        let leads = move || replica.upgrade().is_some_and(|replica| replica.lease());
        let lead = Lead { since, leads: Arc::new(leads), ..lead };
        Crew::start(self.parts.fs, port, lead, &self.door, &self.observe).map(Arc::new)
    }

    /// Ends the services of a term that is over, or that this node gives up.
    fn step_down(&self, (term, crew): Leading, is_deposed: bool) {
        let fs = self.parts.fs;
        self.state.lock().crew = None;
        // This ends what requests wait for. The door waits for the requests.
        if let Err(error) = crew.finish(is_deposed) {
            // The next leader puts right what the manager leaves.
            warn!(target: "metadata", "the manager of term {term} has ended: {error}");
        }
        self.door.end(Service::TokensOf(fs));
        self.door.end(Service::MetaOf(fs));
        info!(target: "metadata", "this node serves file system {fs} no more (term {term})");
    }
}

/// Makes the first entry of the metadata, if there is none.
fn format_if_new(
    port: &dyn MetaPort,
    configuration: Configuration,
    furnish: fn(&dyn MetaPort) -> Result<()>,
) -> Result<()> {
    match port.query(&MetaQuery::Configuration) {
        // Nothing else makes this question an invalid one.
        Err(error) if error.kind() == ErrorKind::Invalid => {}
        known => return known.map(drop),
    }
    let time = configuration.created;
    let op = MetaOp::Format(Box::new(configuration));
    port.apply(&MetaEntry { client: ClientId(0), sequence: 0, time, op })?;
    furnish(port)?;
    port.sync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::SimDisk;
    use strake_replica::core::Batch;
    use strake_replica::entry::{Entry, Payload};
    use strake_replica::types::Position;
    use strake_store::container::{CONTAINER_BYTES_MIN, FormatOptions};

    fn container(bytes: u64) -> Container {
        let options = FormatOptions {
            cluster: ClusterId([1; 16]),
            nsd: NsdId(1),
            fs: FsId(1),
            failure_group: 1,
            seed: 7,
        };
        Container::format(SimDisk::new(bytes), &options).expect("formats")
    }

    #[test]
    fn replicas_of_two_file_systems_do_not_hear_each_other() {
        let first = LogId::default();
        let of = |fs, node| identity(ClusterId([1; 16]), FsId(fs), first, ReplicaId(node));
        assert_ne!(of(1, 1).cluster, of(2, 1).cluster);
        assert_ne!(of(1, 1).cluster, ClusterId([1; 16]), "nor those of the records");
        assert_eq!(of(1, 1).cluster, of(1, 2).cluster);
        assert_ne!(of(1, 1).replica, of(1, 2).replica);
    }

    /// The log may be as long as it can become, and one entry longer.
    #[test]
    fn the_journal_of_any_nsd_takes_the_longest_log() {
        for length in [CONTAINER_BYTES_MIN, 64 << 20, 300 << 20, 1 << 30, 8 << 30] {
            let (container, _source) = {
                let source = strake_store::UnusedChunks::shared();
                let container = container(length);
                container.set_chunk_source(&source);
                (container, source)
            };
            let own = identity(ClusterId([1; 16]), FsId(1), LogId::default(), ReplicaId(1));
            format(&container, own, &BTreeSet::from([own.replica])).expect("formats");
            let disk = container.metadata_log().into_disk();
            let config = config(own.replica, disk.len());
            let (mut journal, _, log) = Journal::open(disk.clone(), own, 0).expect("is there");
            let mut last = log.last();
            let mut left = config.log_bytes_max + config.log_bytes_max / 4;
            while left > 0 {
                left = left.saturating_sub(ENTRY_BYTES_MAX / 4);
                last.position = last.position.next();
                let bytes = vec![7; ENTRY_BYTES_MAX / 4].as_slice().into();
                let payload = Payload::Data { level: 0, bytes };
                let entry = Entry { term: last.term, position: last.position, payload };
                append(&mut journal, entry);
            }
            let bytes = vec![8; ENTRY_BYTES_MAX].as_slice().into();
            let payload = Payload::Data { level: 0, bytes };
            let position: Position = last.position.next();
            append(&mut journal, Entry { term: last.term, position, payload });
            drop(journal);
            let (_, _, log) = Journal::open(disk, own, 0).expect("opens");
            assert_eq!(log.last().position, position, "{length} bytes");
        }
    }

    fn append(journal: &mut Journal, entry: Entry) {
        let batch =
            Batch { ticket: 1, hard: None, entries: vec![entry], snapshot: None, sync: true };
        journal.write(&batch).expect("has room");
        journal.sync().expect("syncs");
    }
}
