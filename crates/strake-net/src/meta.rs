//! Metadata ports over a socket, both ends.
//!
//! Request message: `MetaRequest` in postcard; reply message: `Result<MetaReply, Error>`, to a
//! counted change `Result<CountedAnswer, Error>`, to many of them a list of these in a `Result`; no
//! payload.
//!
//! **Counted changes.** From the client's `Join` on, the session counts every change and keeps it
//! until a sync covers it (rpc/journal.rs); the state machine knows which it has applied. So a
//! change may be sent again whenever its answer did not come, and again after a crash of the server
//! that forgot it. The caller notices only that the answer takes longer.
//!
//! **Order after a crash.** A forgotten change must be applied again in a state that gives it the
//! reply it had. The order is known as far as answers are known, and three rules make that enough:
//!
//! 1. The server writes the answers of one connection in the order in which it applied the changes
//!    (rpc/server.rs). So what is answered was applied before what is not.
//! 2. On a fresh connection, before anything else, the session sends again what was under way on
//!    the broken one. These answers count once all of them are there: a single one that counted
//!    could be of a later change than one that is missing.
//! 3. Before that, at a server process with another boot number, the session replays what was
//!    answered, in the order of the answers' positions.
//!
//! A replayed change that gets another reply than the first time ends the session: what its client
//! was told is not true any more. What is known of a file that several clients write at once
//! depends on the order of their changes, so that is not compared ([`Repeats`]).
//!
//! **A server that leads no more** answers with `Unreachable`, and has done nothing. To the session
//! that is a broken connection: the next one goes wherever the service is then.

use crate::auth::Service;
use crate::connection::{CallError, Connection};
use crate::credentials::{Credentials, PortFor, ProvenPeer};
use crate::frame::{Frame, FrameKind};
use crate::journal::{Journal, Message, Print, Repeats};
use crate::server::{Answer, Handler, RpcServer, ServerOptions};
use crate::session::{Attempt, Session, SessionEnv, SessionLimits, decode, encode};
use crate::whereabouts::Whereabouts;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::Listener;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_proto::feature::{self, Feature};
use strake_proto::limits::MESSAGE_BYTES_MAX;
use strake_proto::meta::{
    CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply, apply_in_order,
};
use strake_proto::{Error, ErrorKind, Result, Timestamp};

/// A wait for the window or the journal lasts this long before the waiter looks again.
/// A check of everything may take so long. Its caller can end it.
const CHECK_MAX: Duration = Duration::from_secs(3600);
const WAIT_STEP: Duration = Duration::from_millis(200);

/// What a client asks; borrowed when sent, owned when received.
#[derive(Serialize)]
enum MetaRequestRef<'a> {
    Query(&'a MetaQuery),
    Apply(&'a MetaEntry),
    Sync,
    Counted(CountedEntryRef<'a>),
}

#[derive(Deserialize)]
enum MetaRequest {
    Query(MetaQuery),
    Apply(MetaEntry),
    Sync,
    Counted(CountedEntry),
    /// Applied in this order. There are never more than [`TOGETHER_MAX`].
    Many(Vec<CountedEntry>),
}

/// The first byte of a [`MetaRequest::Counted`].
const COUNTED: u8 = 3;
/// The first byte of a [`MetaRequest::Many`]. A byte with their number follows.
const MANY: u8 = 4;
/// The most changes of one message.
const TOGETHER_MAX: usize = 32;
/// A message with so many bytes gets no further change.
const TOGETHER_BYTES_MAX: usize = 256 << 10;
/// The first byte of a [`MetaRequest::Query`].
const QUERY: u8 = 0;
/// The second byte of the last kind of query that takes no time. Those before it take none either.
const LAST_SHORT: u8 = 6;
/// The second byte of [`MetaQuery::LookupOrNext`].
const LOOKUP_OR_NEXT: u8 = 17;

/// A [`CountedEntry`] whose count is not the caller's.
#[derive(Serialize)]
struct CountedEntryRef<'a> {
    life: u64,
    oldest: u64,
    client: u64,
    sequence: u64,
    time: Timestamp,
    op: &'a MetaOp,
}

/// The metadata behind a socket.
pub struct MetaClientSession {
    session: Session,
    journal: Mutex<Journal>,
    /// Signalled when something in the journal has changed that a thread may wait for.
    moved: Condvar,
}

impl MetaClientSession {
    /// A session with a metadata server. Connects at the first call.
    pub fn new(
        whereabouts: impl Into<Whereabouts>,
        limits: SessionLimits,
        env: SessionEnv,
    ) -> MetaClientSession {
        MetaClientSession::of(whereabouts, Service::Meta, limits, env)
    }

    /// A session with a server that has the metadata as `service`.
    pub fn of(
        whereabouts: impl Into<Whereabouts>,
        service: Service,
        limits: SessionLimits,
        env: SessionEnv,
    ) -> MetaClientSession {
        MetaClientSession {
            session: Session::new(whereabouts, service, limits, env),
            journal: Mutex::default(),
            moved: Condvar::default(),
        }
    }

    /// Says who is told if the session is over before its client is: what the client was told is
    /// not true any more, and all its calls fail from then on. `then` must not wait.
    pub fn when_over(&self, then: impl FnOnce(&Error) + Send + 'static) {
        self.journal.lock().when_broken(Box::new(then));
    }

    fn call(&self, reason: &'static str, message: &[u8], repeatable: bool) -> Result<MetaReply> {
        self.call_within(self.session.call_max(), reason, message, repeatable, None)
    }

    /// Like `call`, with a limit of its own for the reply, and the feature that the message belongs
    /// to.
    fn call_within(
        &self,
        limit: Duration,
        reason: &'static str,
        message: &[u8],
        repeatable: bool,
        feature: Option<Feature>,
    ) -> Result<MetaReply> {
        let mut broken = None;
        let prepare = |connection: &Connection| self.prepare(connection);
        self.session.persist(reason, &prepare, &mut |connection| {
            if let Some(error) = broken.take().filter(|_| !repeatable) {
                return Attempt::Over(Err(error));
            }
            if let Err(error) = feature::check_spoken(feature, connection.protocol()) {
                return Attempt::Over(Err(error));
            }
            let kind = FrameKind::MetaRequest;
            match self.session.send_within(limit, connection, kind, message, &[]) {
                Ok(frame) => match decode_reply(&frame) {
                    Ok(answer) => Attempt::Over(answer),
                    Err(error) if error.kind() == ErrorKind::Unreachable => {
                        connection.end(&error);
                        Attempt::Disconnected(error)
                    }
                    Err(error) => Attempt::Over(Err(error)),
                },
                Err(CallError::Failed(error)) => Attempt::Over(Err(error)),
                Err(CallError::Disconnected(error)) => {
                    broken = Some(error.clone());
                    Attempt::Disconnected(error)
                }
            }
        })
    }

    /// Counts a change and waits for its answer, through the loss of connections and servers.
    fn apply_counted_here(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let mut changes = self.begin(std::slice::from_ref(entry))?;
        self.persist(&mut changes);
        changes.remove(0).outcome.unwrap_or_else(|| Err(ErrorKind::Internal.into()))
    }

    /// Waits for the answers of changes. All have an outcome then.
    fn persist(&self, changes: &mut [Asked]) {
        let prepare = |connection: &Connection| self.prepare(connection);
        let outcome = self.session.persist("for a change of", &prepare, &mut |connection| {
            self.attempt(connection, changes)
        });
        let Err(error) = outcome else { return };
        // Time has run out, and they may yet be applied: they are sent again on the next
        // connection.
        let mut journal = self.journal.lock();
        for change in changes.iter_mut().filter(|change| change.outcome.is_none()) {
            let delivered = journal.give_up(change.sequence);
            change.outcome = Some(delivered.unwrap_or_else(|| Err(error.clone())));
        }
        self.moved.notify_all();
    }

    /// Sends counted changes once, those that have no outcome yet.
    fn attempt(&self, connection: &Arc<Connection>, changes: &mut [Asked]) -> Attempt<()> {
        let mut open: Vec<&mut Asked> =
            changes.iter_mut().filter(|change| change.outcome.is_none()).collect();
        {
            let mut journal = self.journal.lock();
            open.iter_mut().for_each(|change| change.outcome = journal.ask(change.sequence));
        }
        open.retain(|change| change.outcome.is_none());
        open.retain_mut(|change| {
            let spoken = feature::check_spoken(change.feature, connection.protocol());
            let Err(error) = spoken else { return true };
            self.refuse(std::slice::from_mut(change), &error);
            false
        });
        // Over a connection of an earlier version, one after the other.
        let is_spoken = feature::check_spoken(Some(Feature::LaterChanges), connection.protocol());
        let together = if is_spoken.is_ok() { TOGETHER_MAX } else { 1 };
        let (mut attempt, mut failed) = (Attempt::Over(Ok(())), false);
        for some in open.chunks_mut(together) {
            if failed {
                self.refuse(some, &ErrorKind::Busy.into());
                continue;
            }
            let answers = match &attempt {
                Attempt::Over(Ok(())) => self.ask(connection, some),
                // Not sent any more. This connection is of no use.
                _ => Err(CallError::Disconnected(ErrorKind::Unreachable.into())),
            };
            if let Some(broken) = self.take_in(connection, some, answers)
                && matches!(attempt, Attempt::Over(Ok(())))
            {
                attempt = broken;
            }
            failed = some.iter().any(|change| matches!(change.outcome, Some(Err(_))));
        }
        self.moved.notify_all();
        attempt
    }

    /// Some changes are not sent, or never were.
    fn refuse(&self, changes: &mut [&mut Asked], error: &Error) {
        let mut journal = self.journal.lock();
        for change in changes {
            journal.forget(change.sequence);
            change.outcome = Some(Err(error.clone()));
        }
    }

    /// Sends some changes with one message.
    fn ask(
        &self,
        connection: &Connection,
        changes: &[&mut Asked],
    ) -> std::result::Result<Frame, CallError> {
        let message = match changes {
            [one] => Arc::clone(&one.message),
            many => together(many.iter().map(|change| &change.message)),
        };
        self.session.send(connection, FrameKind::MetaRequest, &message, &[])
    }

    /// Takes in what came of changes that were sent with one message. Returns why the attempt is
    /// over, if they have no answers.
    fn take_in(
        &self,
        connection: &Connection,
        changes: &mut [&mut Asked],
        answers: std::result::Result<Frame, CallError>,
    ) -> Option<Attempt<()>> {
        let answers = answers.and_then(|frame| {
            decode_answers(&frame, changes.len()).map_err(|error| {
                connection.end(&error);
                let error = Error::new(ErrorKind::Unreachable, error.to_string());
                CallError::Disconnected(error)
            })
        });
        match answers {
            Ok(answers) => {
                let mut journal = self.journal.lock();
                for (change, answer) in changes.iter_mut().zip(answers) {
                    change.outcome = Some(journal.answered(change.sequence, answer));
                }
                None
            }
            Err(CallError::Failed(error)) if error.kind() != ErrorKind::TimedOut => {
                self.refuse(changes, &error);
                None
            }
            Err(CallError::Failed(error) | CallError::Disconnected(error)) => {
                // A late answer would find nobody, and rule 1 would be broken.
                connection.end(&error);
                let mut journal = self.journal.lock();
                changes.iter().for_each(|change| journal.disconnected(change.sequence));
                Some(Attempt::Disconnected(error))
            }
        }
    }

    /// Waits until one more change may be sent, and takes it and those that follow into the
    /// journal, as many as may be sent with it. Those that are taken are sent at once: others wait
    /// for them.
    fn begin(&self, entries: &[MetaEntry]) -> Result<Vec<Asked>> {
        let mut journal = self.journal.lock();
        if !journal.has_window() || journal.is_full() {
            let wait = self.session.waits().begin_wait("for the window of changes to", "metadata");
            let waited = self.wait_for_room(journal);
            self.session.waits().end_wait(wait);
            journal = waited?;
        }
        if let Some(error) = journal.broken() {
            return Err(error.clone());
        }
        let life = journal.life;
        let (mut begun, mut bytes) = (Vec::with_capacity(entries.len()), 0);
        for entry in entries {
            let is_first = begun.is_empty();
            let has_room = journal.has_window() && !journal.is_full();
            if !is_first && (!has_room || bytes >= TOGETHER_BYTES_MAX) {
                break;
            }
            let counted = journal.begin(Repeats::of(&entry.op), &|sequence, oldest| {
                let MetaEntry { client, time, op, .. } = entry;
                let counted =
                    CountedEntryRef { life, oldest, client: client.0, sequence, time: *time, op };
                Ok(encode(&MetaRequestRef::Counted(counted))?.into())
            });
            match counted {
                Ok((sequence, message)) => {
                    bytes += message.len();
                    let feature = feature::of_change(&entry.op);
                    begun.push(Asked { sequence, message, feature, outcome: None });
                }
                Err(error) if is_first => return Err(error),
                Err(_) => break,
            }
        }
        Ok(begun)
    }

    fn wait_for_room<'a>(
        &'a self,
        mut journal: MutexGuard<'a, Journal>,
    ) -> Result<MutexGuard<'a, Journal>> {
        let limits = self.session.limits();
        let end = self.session.now() + limits.call.saturating_add(limits.broken);
        loop {
            if journal.broken().is_some() || (journal.has_window() && !journal.is_full()) {
                return Ok(journal);
            }
            if self.session.now() >= end {
                let detail = "too many changes wait for the metadata: see `strake diag waiters`";
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
            if journal.is_full() && !journal.syncing {
                journal.syncing = true;
                drop(journal);
                let synced = self.sync();
                journal = self.journal.lock();
                journal.syncing = false;
                self.moved.notify_all();
                synced?;
            } else if journal.has_forsaken() {
                // Connecting sends the change again, and perhaps no other call connects.
                drop(journal);
                self.call("for a connection with", &encode(&MetaRequestRef::Sync)?, true)?;
                journal = self.journal.lock();
            } else {
                self.moved.wait_for(&mut journal, WAIT_STEP);
            }
        }
    }

    /// Brings the server at the other end of a fresh connection up to date; see the file's head.
    /// Nothing else is sent meanwhile.
    fn prepare(&self, connection: &Connection) -> Result<()> {
        let boot = connection.boot();
        let (replay, adrift) = {
            let mut journal = self.journal.lock();
            if let Some(error) = journal.broken() {
                return Err(error.clone());
            }
            // The last connection broke, so its callers learn how they stand at once.
            let end = self.session.now() + self.session.limits().connect;
            while journal.asked() > 0 {
                if self.session.now() >= end {
                    let detail = "calls on the broken connection with the metadata do not end";
                    return Err(Error::new(ErrorKind::TimedOut, detail));
                }
                self.moved.wait_for(&mut journal, WAIT_STEP);
            }
            let is_other = journal.boot.is_some_and(|before| before != boot);
            let replay = if is_other { journal.to_replay() } else { Vec::new() };
            (replay, journal.adrift())
        };
        for (sequence, message, before) in replay {
            self.replay(connection, sequence, &message, before)?;
        }
        {
            let mut journal = self.journal.lock();
            if journal.boot != Some(boot) {
                journal.replayed(boot);
            }
        }
        let mut answers = Vec::with_capacity(adrift.len());
        for (sequence, message) in adrift {
            answers.push((sequence, self.ask_on(connection, &message)?));
        }
        let mut journal = self.journal.lock();
        answers.into_iter().for_each(|(sequence, answer)| journal.deliver(sequence, answer));
        self.moved.notify_all();
        journal.broken().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Replays a change that was answered.
    fn replay(
        &self,
        connection: &Connection,
        sequence: u64,
        message: &Message,
        before: Print,
    ) -> Result<()> {
        let outcome = match self.ask_on(connection, message)? {
            // Below the oldest that the server keeps answers of: it has it.
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
            Ok(answer) => answer.outcome,
            Err(error) => Err(error),
        };
        let what = match outcome {
            Ok(reply) if before.is_of(&reply) => return Ok(()),
            Ok(_) => "it had another outcome".to_owned(),
            Err(error) => error.to_string(),
        };
        let detail = format!(
            "the metadata server lost change {sequence} in a crash and it cannot be repeated \
             ({what}): unmount and mount again"
        );
        let error = Error::new(ErrorKind::Io, detail);
        self.journal.lock().break_off(&error);
        Err(error)
    }

    fn ask_on(&self, connection: &Connection, message: &Message) -> Result<Result<CountedAnswer>> {
        match self.session.send(connection, FrameKind::MetaRequest, message, &[]) {
            Ok(frame) => decode_reply(&frame),
            Err(CallError::Disconnected(error) | CallError::Failed(error)) => Err(error),
        }
    }

    /// Begins the life of the client, with which counting begins.
    fn join(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let life = strake_env::Rng::from_entropy()?.next_u64().max(1);
        {
            let mut journal = self.journal.lock();
            if journal.life != 0 {
                let detail = "a session serves one life of a client";
                return Err(Error::new(ErrorKind::Invalid, detail));
            }
            journal.life = life;
        }
        let joined = self.apply_counted_here(entry);
        if joined.is_err() {
            self.journal.lock().life = 0;
        }
        joined
    }
}

/// A counted change that is being asked for.
struct Asked {
    sequence: u64,
    message: Message,
    /// The feature that it belongs to, if it came after the first level.
    feature: Option<Feature>,
    outcome: Option<Result<MetaReply>>,
}

/// The message that has several counted changes in it.
fn together<'a>(messages: impl ExactSizeIterator<Item = &'a Message> + Clone) -> Message {
    let count = u8::try_from(messages.len()).expect("invariant: at most TOGETHER_MAX");
    assert!(usize::from(count) <= TOGETHER_MAX, "invariant: the number takes one byte");
    // Without the byte that says that they are counted.
    let entries = messages.flat_map(|message| message[1..].iter().copied());
    [MANY, count].into_iter().chain(entries).collect()
}

/// The answers to `count` changes that were sent with one message.
fn decode_answers(frame: &Frame, count: usize) -> Result<Vec<Result<CountedAnswer>>> {
    if count == 1 {
        return Ok(vec![decode_reply(frame)?]);
    }
    let answers: Vec<Result<CountedAnswer>> = match decode_reply(frame)? {
        Ok(answers) => answers,
        Err(error) => vec![Err(error); count],
    };
    if answers.len() != count {
        let detail = format!("{} answers to {count} changes", answers.len());
        return Err(Error::new(ErrorKind::Corrupt, detail));
    }
    Ok(answers)
}

impl MetaPort for MetaClientSession {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        let message = encode(&MetaRequestRef::Query(query))?;
        let (limit, reason) = match query {
            MetaQuery::Check | MetaQuery::CheckAs { .. } => (CHECK_MAX, "for a check of"),
            _ => (self.session.call_max(), "for an answer of"),
        };
        self.call_within(limit, reason, &message, true, feature::of_query(query))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        if matches!(entry.op, MetaOp::Join) {
            return self.join(entry);
        }
        if self.journal.lock().life == 0 {
            let message = encode(&MetaRequestRef::Apply(entry))?;
            return self.call("for a change of", &message, false);
        }
        self.apply_counted_here(entry)
    }

    fn apply_all(&self, entries: &[MetaEntry]) -> Vec<Result<MetaReply>> {
        let mut results = Vec::with_capacity(entries.len());
        if self.journal.lock().life == 0 {
            return apply_in_order(entries, |entry| self.apply(entry));
        }
        while results.len() < entries.len() {
            if results.last().is_some_and(Result::is_err) {
                results.push(Err(ErrorKind::Busy.into()));
                continue;
            }
            let rest = &entries[results.len()..];
            match self.begin(&rest[..rest.len().min(TOGETHER_MAX)]) {
                Ok(mut changes) => {
                    self.persist(&mut changes);
                    let lacks = || Err(ErrorKind::Internal.into());
                    let outcomes = changes.into_iter().map(|it| it.outcome.unwrap_or_else(lacks));
                    results.extend(outcomes);
                }
                Err(error) => results.push(Err(error)),
            }
        }
        results
    }

    fn sync(&self) -> Result<()> {
        // Only what was answered before is promised; what is in flight may miss this sync.
        let answered = self.journal.lock().to_sync();
        self.call("for a sync of", &encode(&MetaRequestRef::Sync)?, true)?;
        let mut journal = self.journal.lock();
        answered.into_iter().for_each(|sequence| journal.forget(sequence));
        self.moved.notify_all();
        Ok(())
    }
}

/// The inner result is the server's. `Unreachable` is the outer one: it leads no more.
fn decode_reply<T: for<'a> Deserialize<'a>>(frame: &Frame) -> Result<Result<T>> {
    if frame.kind != FrameKind::MetaReply || !frame.payload.is_empty() {
        return Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind"));
    }
    match decode(&frame.message)? {
        Err(error @ Error { .. }) if error.kind() == ErrorKind::Unreachable => Err(error),
        answer => Ok(answer),
    }
}

/// Serves `port` as the metadata to all clients that prove themselves as `credentials` demand.
///
/// # Errors
/// When no thread can be started.
pub fn serve_meta(
    listener: Listener,
    port: Arc<dyn MetaPort>,
    credentials: impl Into<Credentials>,
    options: ServerOptions,
) -> Result<RpcServer> {
    let handler = Arc::new(MetaHandler::for_all(port));
    RpcServer::start(listener, Service::Meta, handler, credentials.into(), options)
}

/// Executes requests at a metadata port.
pub(crate) struct MetaHandler {
    ports: PortFor<dyn MetaPort>,
}

impl MetaHandler {
    pub(crate) fn new(ports: PortFor<dyn MetaPort>) -> MetaHandler {
        MetaHandler { ports }
    }

    /// One port for all peers.
    pub(crate) fn for_all(port: Arc<dyn MetaPort>) -> MetaHandler {
        MetaHandler::new(Arc::new(move |_| Ok(Arc::clone(&port))))
    }

    fn execute(&self, peer: &ProvenPeer, request: MetaRequest) -> Result<MetaReply> {
        let port = (self.ports)(peer)?;
        match request {
            MetaRequest::Query(query) => port.query(&query),
            MetaRequest::Apply(entry) => port.apply(&entry),
            MetaRequest::Sync => port.sync().map(|()| MetaReply::Done),
            MetaRequest::Counted(_) | MetaRequest::Many(_) => {
                unreachable!("counted changes have replies of their own")
            }
        }
    }
}

impl MetaHandler {
    /// Applies changes in their order, up to the first that fails. If this server leads no more,
    /// none counts as answered; those that were applied are answered again when they are sent
    /// again.
    fn apply_many(
        &self,
        peer: &ProvenPeer,
        changes: &[CountedEntry],
    ) -> Result<Vec<Result<CountedAnswer>>> {
        if changes.len() > TOGETHER_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too many changes in one message"));
        }
        let port = (self.ports)(peer)?;
        let mut failed = false;
        let apply = |counted: &CountedEntry| {
            if failed {
                // It has no position, and the client forgets its number.
                return Ok(Err(ErrorKind::Busy.into()));
            }
            match port.apply_counted(counted) {
                Err(error) if error.kind() == ErrorKind::Unreachable => Err(error),
                answer => {
                    failed = answer.as_ref().map_or(true, |answer| answer.outcome.is_err());
                    Ok(answer)
                }
            }
        };
        changes.iter().map(apply).collect()
    }
}

impl Handler for MetaHandler {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::MetaRequest, FrameKind::MetaReply)
    }

    fn is_ordered(&self, message: &[u8]) -> bool {
        matches!(message, [COUNTED | MANY, ..])
    }

    /// Most changes are visible at once. A few kinds wait until they are durable.
    fn is_short(&self, message: &[u8]) -> bool {
        matches!(message, [COUNTED | MANY, ..] | [QUERY, ..=LAST_SHORT | LOOKUP_OR_NEXT, ..])
    }

    fn handle(
        &self,
        peer: &ProvenPeer,
        message: &[u8],
        _payload: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Answer> {
        let mut reply = match decode(message)? {
            MetaRequest::Counted(counted) => {
                let answer = (self.ports)(peer).and_then(|port| port.apply_counted(&counted));
                return Ok(Answer { message: encode(&answer)?, payload: Vec::new() });
            }
            MetaRequest::Many(changes) => {
                let answers = self.apply_many(peer, &changes);
                return Ok(Answer { message: encode(&answers)?, payload: Vec::new() });
            }
            request => self.execute(peer, request),
        };
        let mut message = encode(&reply)?;
        while message.len() > MESSAGE_BYTES_MAX {
            reply = shorter(reply);
            message = encode(&reply)?;
        }
        drop(buffer);
        Ok(Answer { message, payload: Vec::new() })
    }
}

/// Half of a listing that is too long for a message; its reader goes on after the last it got.
fn shorter(reply: Result<MetaReply>) -> Result<MetaReply> {
    match reply {
        Ok(MetaReply::Entries { mut entries, .. }) if entries.len() > 1 => {
            entries.truncate(entries.len() / 2);
            Ok(MetaReply::Entries { entries, end: false })
        }
        Ok(MetaReply::Inodes(mut inodes)) if inodes.len() > 1 => {
            inodes.truncate(inodes.len() / 2);
            Ok(MetaReply::Inodes(inodes))
        }
        _ => Err(Error::new(ErrorKind::TooBig, "the answer is too long for a message")),
    }
}

#[cfg(test)]
#[path = "meta_test.rs"]
mod meta_test;

#[cfg(test)]
pub(crate) use meta_test::{ListMeta, Told, entry, grant, judge, work};
