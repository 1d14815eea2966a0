//! Tokens between a mount and the authority: one connection, on which both ends speak.
//!
//! A message of the client is a request, [`Say`] in postcard. The reply is
//! `Result<(Term, Vec<Reply>), Error>`: the term, and what the authority has to say to this client
//! at once. So free tokens come with one round trip, and through few threads. A request may hold up
//! to [`TOGETHER_MAX`] messages, whose replies come together. All else that the
//! authority says is a request back over the same connection: `(Term, Reply)` in postcard, answered
//! by nothing. The two ways may overtake each other, which tokens expect.
//!
//! **Lost messages.** Tokens expect that messages are lost and repeated (`strake-token`), so a
//! message whose connection breaks is not sent again here. The client asks again, and the authority
//! revokes again. A message that says that a file is closed is not repeated by anybody: it is
//! kept here until it has arrived.
//!
//! **Who speaks.** The first message on a connection attaches it to a client. The authority's way
//! to the client is the newest connection that the client has made. A client numbers its
//! connections, because the greeting of one that it has given up may arrive late.
//!
//! **Lease.** Once a second a client renews its lease with [`Say::Pulse`]; attaching renews it too.
//! The reply says that the lease is renewed, and `Fenced` that the client was declared dead. The
//! client's end tells its tokens *when the renewal was sent* ([`ToClient::renewed`]). So a reply
//! that took long extends less. Pulses also give the authority a way to a client that is silent.
//!
//! A client that cannot go on ends its life itself ([`TokenSession::end_life`]).
//!
//! **The authority moves.** It is sought for each connection ([`Whereabouts`]), and each pulse that
//! fails makes another connection. Terms never go back: a leader of an earlier term than one that
//! the client knows of leads no more, and is left again.

use crate::auth::Service;
use crate::back::BackHandler;
use crate::connection::Connection;
use crate::credentials::ProvenPeer;
use crate::frame::FrameKind;
use crate::server::{Answer, ConnectedClient, Handler};
use crate::session::{SessionEnv, decode, encode};
use crate::whereabouts::Whereabouts;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use strake_env::WaitNames;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::workers::{WorkerLimits, Workers};
use strake_proto::feature::{self, Feature};
use strake_proto::{ClientId, Error, ErrorKind, FsId, Result};
use strake_token::message::{Reply, Request, Term};
use strake_token::port::{ToAuthority, ToClient};
use tracing::warn;

/// For a connection and its greeting, and for each message.
const LIMIT: Duration = Duration::from_secs(5);
/// A client speaks at least that often.
const PULSE: Duration = Duration::from_secs(1);
/// The most messages in one request.
const TOGETHER_MAX: usize = 64;
/// Messages to a client that wait for their turn; more are dropped, and repeated by the authority.
const OUTBOX_MAX: usize = 10_000;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Say {
    /// This connection is the way to that client. Each has a higher number than those before.
    Attach(ClientId, u64),
    /// A message to the leader of a term.
    Message(Term, Request),
    /// Renews the lease.
    Pulse,
    /// Messages to the leader of a term, in this order.
    Messages(Term, Vec<Request>),
}

/// The authority, as sessions see it.
pub trait TokenPort: Send + Sync {
    /// A client that was let in has a new way. Returns the term.
    ///
    /// # Errors
    /// `Fenced` for a client that was not let in, or is gone.
    fn attach(&self, client: ClientId, way: Arc<dyn ToClient>) -> Result<Term>;

    /// A client renews its lease. A leader that gives no leases lets every client go on.
    ///
    /// # Errors
    /// `Fenced` for a client that was declared dead; another error where nobody can tell now, for
    /// another leads.
    fn renew(&self, client: ClientId) -> Result<()> {
        let _ = client;
        Ok(())
    }

    /// Takes a message of a client. Returns what the client is told at once.
    fn receive(&self, client: ClientId, term: Term, message: Request) -> Vec<Reply>;
}

/// The server's end.
pub(crate) struct TokenHandler {
    port: Arc<dyn TokenPort>,
    waits: Arc<dyn WaitNames>,
    /// The client of each connection.
    clients: Mutex<std::collections::BTreeMap<u64, ClientId>>,
    term: Mutex<Term>,
    /// The number of the newest connection of each client. Held while one is attached.
    newest: Mutex<std::collections::BTreeMap<ClientId, u64>>,
}

impl TokenHandler {
    pub(crate) fn new(port: Arc<dyn TokenPort>, waits: Arc<dyn WaitNames>) -> TokenHandler {
        let (clients, term, newest) = (Mutex::default(), Mutex::default(), Mutex::default());
        TokenHandler { port, waits, clients, term, newest }
    }

    fn answer(&self, from: &ConnectedClient, say: Say) -> Result<(Term, Vec<Reply>)> {
        let mut told = Vec::new();
        match say {
            Say::Attach(client, number) => {
                let way = Arc::new(RemoteClient::new(from.clone(), Arc::clone(&self.waits)));
                let mut newest = self.newest.lock();
                if newest.get(&client).is_some_and(|newest| number <= *newest) {
                    let detail = "the client has made another connection since";
                    return Err(Error::new(ErrorKind::Stale, detail));
                }
                let term = self.port.attach(client, way)?;
                newest.insert(client, number);
                drop(newest);
                self.port.renew(client)?;
                self.clients.lock().insert(from.id(), client);
                *self.term.lock() = term;
            }
            Say::Message(term, message) => {
                told = self.port.receive(self.client(from)?, term, message);
            }
            Say::Pulse => self.port.renew(self.client(from)?)?,
            Say::Messages(_, messages) if messages.len() > TOGETHER_MAX => {
                return Err(Error::new(ErrorKind::Invalid, "too many messages at once"));
            }
            Say::Messages(term, messages) => {
                let client = self.client(from)?;
                for message in messages {
                    told.extend(self.port.receive(client, term, message));
                }
            }
        }
        Ok((*self.term.lock(), told))
    }

    fn client(&self, from: &ConnectedClient) -> Result<ClientId> {
        let client = self.clients.lock().get(&from.id()).copied();
        let detail = "a message before its client is attached";
        client.ok_or_else(|| Error::new(ErrorKind::Invalid, detail))
    }
}

impl Handler for TokenHandler {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::ControlRequest, FrameKind::ControlReply)
    }

    fn handle(&self, _: &ProvenPeer, _: &[u8], _: &[u8], _: Vec<u8>) -> Result<Answer> {
        unreachable!("`handle_from` answers")
    }

    fn handle_from(
        &self,
        from: &ConnectedClient,
        message: &[u8],
        _payload: &[u8],
        mut buffer: Vec<u8>,
    ) -> Result<Answer> {
        let say = decode::<Say>(message)?;
        buffer.clear();
        Ok(Answer { message: encode(&self.answer(from, say))?, payload: buffer })
    }

    fn left(&self, id: u64) {
        self.clients.lock().remove(&id);
    }
}

/// The authority's way to a client: a thread that says one thing after the other. Only what a
/// client is to follow in order waits for its answer.
struct RemoteClient {
    outbox: Workers<ToSay>,
}

/// A message to a client, and whether the next one waits until the client has taken it.
struct ToSay {
    message: Vec<u8>,
    in_order: bool,
}

impl RemoteClient {
    fn new(client: ConnectedClient, waits: Arc<dyn WaitNames>) -> RemoteClient {
        let limits = WorkerLimits { threads_max: 1, waiting_max: OUTBOX_MAX };
        let outbox = Workers::new("token client", limits, move |say: ToSay| {
            let reason = "a client taking a token message";
            // A client that is not there is told again over its next connection.
            let _ = match say.in_order {
                true => client.call(&say.message, LIMIT, &*waits, reason).map(drop),
                false => client.tell(&say.message, LIMIT, &*waits, reason),
            };
        });
        RemoteClient { outbox }
    }
}

impl ToClient for RemoteClient {
    fn send(&self, term: Term, message: Reply) {
        // Tokens and locks expect that messages are overtaken.
        let in_order = matches!(
            message,
            Reply::Unusable { .. } | Reply::Writable { .. } | Reply::Places { .. }
        );
        if let Ok(message) = encode(&(term, message)) {
            let _ = self.outbox.submit(ToSay { message, in_order });
        }
    }

    /// The client learns the term from the answer to its greeting.
    fn new_term(&self, _term: Term) {}
}

impl Drop for RemoteClient {
    fn drop(&mut self) {
        drop(self.outbox.end());
    }
}

/// What a session's threads share.
struct Shared {
    whereabouts: Whereabouts,
    service: Service,
    client: ClientId,
    env: SessionEnv,
    /// Who takes the authority's messages.
    sink: OnceLock<Weak<dyn ToClient>>,
    /// The client cannot go on, whatever the authority says.
    is_over: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// How many connections were made.
    made: u64,
    term: Option<Term>,
    /// When the last greeting that was answered was sent.
    attached: Duration,
    /// Messages that nobody repeats, and that have not arrived.
    unsent: Vec<(Term, Request)>,
    ended: bool,
}

/// A client's way to the authority.
pub struct TokenSession {
    shared: Arc<Shared>,
    pulse: Mutex<Option<JoinHandle<()>>>,
}

/// Takes the authority's messages from a connection.
struct FromAuthority(Arc<Shared>);

impl BackHandler for FromAuthority {
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>> {
        let (term, message) = decode::<(Term, Reply)>(message)?;
        if let Some(sink) = self.0.sink.get().and_then(Weak::upgrade) {
            sink.send(term, message);
        }
        Ok(Vec::new())
    }
}

impl TokenSession {
    /// Connects `client` to the authority of a file system.
    ///
    /// # Errors
    /// Those of connecting; `Fenced` for a client that was not let in.
    pub fn open(
        whereabouts: impl Into<Whereabouts>,
        fs: FsId,
        client: ClientId,
        env: SessionEnv,
    ) -> Result<TokenSession> {
        let (state, is_over, changed) = (Mutex::default(), AtomicBool::new(false), Condvar::new());
        let (service, sink) = (Service::TokensOf(fs), OnceLock::new());
        let whereabouts = whereabouts.into();
        let shared = Shared { whereabouts, service, client, env, sink, is_over, state, changed };
        let shared = Arc::new(shared);
        shared.connection()?;
        let of_thread = Arc::clone(&shared);
        let pulse = Builder::new().name("token pulse".into()).spawn(move || of_thread.pulse())?;
        Ok(TokenSession { shared, pulse: Mutex::new(Some(pulse)) })
    }

    /// The term of the authority.
    pub fn term(&self) -> Term {
        self.shared.state.lock().term.expect("invariant: it was attached")
    }

    /// When this client asked for the lease that it has, by the clock that the session was opened
    /// with. Renewals count from later moments.
    pub fn attached(&self) -> Duration {
        self.shared.state.lock().attached
    }

    /// Says who takes the authority's messages. Called once.
    ///
    /// # Panics
    /// If it is called again.
    pub fn deliver_to(&self, sink: Weak<dyn ToClient>) {
        assert!(self.shared.sink.set(sink).is_ok(), "a session has one client");
    }

    /// The client cannot go on, because what it was told is not true any more. Its lease is renewed
    /// no more, so others get what it holds. It hears that it was declared dead. This waits for
    /// nothing.
    pub fn end_life(&self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.changed.notify_all();
    }

    /// Ends the connection and the thread.
    pub fn stop(&self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(pulse) = self.pulse.lock().take() {
            let _ = pulse.join();
        }
        drop(self.shared.state.lock().connection.take());
    }
}

impl ToAuthority for TokenSession {
    fn send(&self, term: Term, message: Request) {
        self.send_all(term, vec![message]);
    }

    fn send_all(&self, term: Term, mut messages: Vec<Request>) {
        while !messages.is_empty() {
            let Ok(connection) = self.shared.connection() else {
                return self.shared.keep(term, messages);
            };
            let spoken = feature::check_spoken(Some(Feature::ManyTokens), connection.protocol());
            let together = if spoken.is_ok() { TOGETHER_MAX } else { 1 };
            let later = messages.split_off(together.min(messages.len()));
            let some = std::mem::replace(&mut messages, later);
            let say = match some.as_slice() {
                [message] => Say::Message(term, message.clone()),
                _ => Say::Messages(term, some.clone()),
            };
            if self.shared.say(&say).is_err() {
                self.shared.keep(term, some);
                // A further attempt may take as long.
                messages.retain(|message| !is_repeated(message));
            }
        }
    }
}

/// Whether the client sends a message again until it is answered.
fn is_repeated(message: &Request) -> bool {
    matches!(message, Request::Ask { .. } | Request::Lock(_))
}

impl Shared {
    /// The connection, made and attached if there is none.
    fn connection(self: &Arc<Shared>) -> Result<Arc<Connection>> {
        let mut state = self.state.lock();
        if let Some(connection) = state.connection.as_ref().filter(|it| !it.is_broken()) {
            return Ok(Arc::clone(connection));
        }
        state.connection = None;
        let site = self.whereabouts.site(&self.env.introduction)?;
        let handler = Arc::new(FromAuthority(Arc::clone(self)));
        let (introduction, service) = (&site.introduction, self.service);
        let connection =
            Connection::answering(&site.endpoint, introduction, service, LIMIT, handler)?;
        self.env.made(&connection);
        let sent = self.env.clock.monotonic();
        state.made += 1;
        let (term, _) = ask(&connection, &Say::Attach(self.client, state.made))?;
        if let Some(known) = state.term.filter(|known| term < *known) {
            let detail = format!("{} leads no more: term {} has begun", site.endpoint, known.0);
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        state.attached = sent;
        let is_new = state.term.replace(term) != Some(term);
        let connection = Arc::new(connection);
        state.connection = Some(Arc::clone(&connection));
        drop(state);
        if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
            sink.renewed(sent);
            if is_new {
                sink.new_term(term);
            }
        }
        Ok(connection)
    }

    /// Keeps those of these messages that nobody repeats, until they have arrived.
    fn keep(&self, term: Term, messages: Vec<Request>) {
        let kept = messages.into_iter().filter(|message| !is_repeated(message));
        self.state.lock().unsent.extend(kept.map(|message| (term, message)));
    }

    fn say(self: &Arc<Shared>, say: &Say) -> Result<()> {
        let (term, told) = ask(&*self.connection()?, say)?;
        if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
            told.into_iter().for_each(|reply| sink.send(term, reply));
        }
        Ok(())
    }

    fn pulse(self: &Arc<Shared>) {
        loop {
            let unsent = {
                let mut state = self.state.lock();
                if !state.ended {
                    self.changed.wait_for(&mut state, PULSE);
                }
                if state.ended {
                    return;
                }
                std::mem::take(&mut state.unsent)
            };
            if self.is_over.load(Ordering::Acquire) {
                if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
                    sink.declared_dead();
                }
                continue;
            }
            let is_reached = self.renew();
            for (term, message) in unsent {
                // Further attempts would hold up the next renewal.
                if !is_reached || self.say(&Say::Message(term, message.clone())).is_err() {
                    self.state.lock().unsent.push((term, message));
                }
            }
        }
    }

    /// Renews the lease. Returns whether the authority has answered.
    fn renew(self: &Arc<Shared>) -> bool {
        let sent = self.env.clock.monotonic();
        let answer = self.say(&Say::Pulse);
        if answer.as_ref().is_err_and(|error| error.kind() != ErrorKind::Fenced) {
            // The authority may be at another node now. And a connection that was cut off for long
            // repeats what it sent ever more rarely.
            let silent = self.state.lock().connection.take();
            drop(silent);
        }
        let sink = self.sink.get().and_then(Weak::upgrade);
        match (&answer, sink) {
            (Ok(_), Some(sink)) => sink.renewed(sent),
            (Err(error), Some(sink)) if error.kind() == ErrorKind::Fenced => sink.declared_dead(),
            (Err(error), _) => warn!(target: "tokens", "the authority is not reached: {error}"),
            (Ok(_), None) => {}
        }
        answer.is_ok()
    }
}

fn ask(connection: &Connection, say: &Say) -> Result<(Term, Vec<Reply>)> {
    let frame = connection.call(FrameKind::ControlRequest, &encode(say)?, &[], LIMIT)?;
    if frame.kind != FrameKind::ControlReply {
        return Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind"));
    }
    decode::<Result<(Term, Vec<Reply>)>>(&frame.message)?
}

#[cfg(test)]
#[path = "tokens_test.rs"]
mod tokens_test;
