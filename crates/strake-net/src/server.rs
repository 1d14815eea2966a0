//! The serving end of sessions.
//!
//! One thread accepts; one thread per connection greets and then reads requests; a fixed crew of
//! workers, shared by all connections, executes them and writes the replies. A request that takes
//! no time ([`Handler::is_short`]) is executed by the thread that reads it, if the client has
//! nothing else in progress: to wake a worker takes longer. A connection whose
//! requests in progress reach a limit is not read until some are answered, so that a client cannot
//! make the server hold more than that for it. Clients are told the limit and keep to it, so that
//! their answers to the server's own requests ([`ConnectedClient::call`]) are always read.
//! Strangers have little time and memory for greeting, and only so many may be connected at a time.

use crate::auth::{Agreed, Service, Terms};
use crate::back::{self, BACK_CALLS};
use crate::calls::{Call, CallLimits, Calls};
use crate::credentials::{Credentials, ProvenPeer};
use crate::frame::{Frame, FrameKind, FrameLimits, Seal, read_frame, write_frame};
use crate::handshake::{Refusal, Welcomed, receive_one};
use crate::ping;
use crate::refusals::Refusals;
use std::collections::{BTreeMap, VecDeque};
use std::io::BufReader;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_env::WaitNames;
use strake_env::links::tcp::TcpFigures;
use strake_env::links::{Link, LinkEnd};
use strake_env::stream::{Endpoint, Listener, Stream};
use strake_env::sync::{Condvar, Mutex, WatchedMutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::limits::MESSAGE_BYTES_MAX;
use strake_proto::{Error, ErrorKind, NodeName, Result};

const READ_BUFFER_BYTES: usize = 64 << 10;
/// Between attempts to accept while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Payload buffers a connection keeps for its next requests.
const SPARE_BUFFERS: usize = 4;

/// How a server is run.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Drawn anew whenever the server may have forgotten something: at each start of its process,
    /// and each time that its node begins to serve a file system's metadata. Never 0.
    pub boot: u64,
    /// Threads that execute requests.
    pub workers: usize,
    /// Connections at a time; more are closed at once.
    pub connections_max: usize,
    /// Connections behind a door that may be greeting at a time; see [`crate::door`].
    pub greetings_max: usize,
    /// Requests of one connection in progress at a time.
    pub requests_max: usize,
    /// Bytes of requests of one connection in progress at a time; one request may exceed it.
    pub request_bytes_max: usize,
    /// For a greeting as a whole, and for a client to take a reply.
    pub limit: Duration,
}

impl ServerOptions {
    /// The usual options of a server with that boot number.
    pub fn new(boot: u64) -> ServerOptions {
        ServerOptions {
            boot,
            workers: 8,
            connections_max: 256,
            greetings_max: 64,
            requests_max: 64,
            request_bytes_max: 64 << 20,
            limit: Duration::from_secs(10),
        }
    }

    /// What a client is told when it is welcomed.
    pub(crate) fn terms(&self) -> Terms {
        let limits = CallLimits { calls_max: self.requests_max, bytes_max: self.request_bytes_max };
        Terms { boot: self.boot, limits }
    }
}

/// A reply ready to be sent.
pub(crate) struct Answer {
    pub(crate) message: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// What executes requests.
pub(crate) trait Handler: Send + Sync {
    /// The kind of its requests and of its replies.
    fn kinds(&self) -> (FrameKind, FrameKind);

    /// Whether the answers to such requests of one connection are written in the order in which the
    /// requests were executed. They are executed one at a time then.
    fn is_ordered(&self, _message: &[u8]) -> bool {
        false
    }

    /// Whether such a request waits for nothing, as a rule. It must not wait for its own client.
    fn is_short(&self, _message: &[u8]) -> bool {
        false
    }

    /// Executes one request of `peer`. `buffer` is memory to be used for the reply's payload, if
    /// any. It has the bytes of an earlier one.
    ///
    /// # Errors
    /// When the request has no meaning: the connection is closed. Errors of executing it are part
    /// of the answer.
    fn handle(
        &self,
        peer: &ProvenPeer,
        message: &[u8],
        payload: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Answer>;

    /// As [`Handler::handle`], for handlers that may ask the client something later.
    fn handle_from(
        &self,
        client: &ConnectedClient,
        message: &[u8],
        payload: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Answer> {
        self.handle(client.peer(), message, payload, buffer)
    }

    /// The connection of [`ConnectedClient::id`] has ended.
    fn left(&self, _id: u64) {}
}

/// A running server; stops when dropped.
pub struct RpcServer {
    core: Arc<Core>,
    endpoint: Endpoint,
    threads: Vec<JoinHandle<()>>,
}

/// A client that can be asked something.
#[derive(Clone)]
pub struct ConnectedClient {
    id: u64,
    peer: Arc<Peer>,
}

impl ConnectedClient {
    /// Who it has proven to be.
    pub fn peer(&self) -> &ProvenPeer {
        self.peer.proven.get().expect("invariant: it was welcomed")
    }

    /// Names the connection; never used again by this server.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Asks the client and waits for its answer, at most `limit` for each of: room among the
    /// requests in flight, a turn to write, the answer. The wait has the name `reason`. Not to be
    /// called where requests are executed: the client may need one of them executed before it
    /// can answer.
    ///
    /// # Errors
    /// The client's own; `TimedOut`; `Unreachable` if it is gone; `TooBig`.
    pub fn call(
        &self,
        message: &[u8],
        limit: Duration,
        waits: &dyn WaitNames,
        reason: &'static str,
    ) -> Result<Vec<u8>> {
        let wait = waits.begin_wait(reason, &format!("client {}", self.id));
        let result = self.peer.ask(message, limit);
        waits.end_wait(wait);
        result
    }

    /// Tells the client something whose answer nobody waits for. Until that answer comes it takes
    /// room among the requests in flight. Waits at most `limit` for each of: room, a turn to write.
    /// The wait has the name `reason`.
    ///
    /// # Errors
    /// `TimedOut`; `Unreachable` if the client is gone; `TooBig`.
    pub fn tell(
        &self,
        message: &[u8],
        limit: Duration,
        waits: &dyn WaitNames,
        reason: &'static str,
    ) -> Result<()> {
        let wait = waits.begin_wait(reason, &format!("client {}", self.id));
        let result = self.peer.tell(message, limit);
        waits.end_wait(wait);
        result
    }
}

pub(crate) struct Core {
    /// `None` for a service behind a door, which accepts and greets for it ([`crate::door`]).
    listener: Option<Listener>,
    service: Service,
    handler: Arc<dyn Handler>,
    credentials: Credentials,
    options: ServerOptions,
    state: Mutex<ServerState>,
    work_came: Condvar,
    halted: Condvar,
    refusals: Refusals,
}

#[derive(Default)]
struct ServerState {
    stopped: bool,
    queue: VecDeque<Job>,
    /// By the order in which they came; for stopping them.
    connections: BTreeMap<u64, (Arc<Peer>, Option<JoinHandle<()>>)>,
    next_connection: u64,
    /// Connections that a door's threads read.
    adopted: usize,
}

struct Job {
    /// Names the connection.
    id: u64,
    peer: Arc<Peer>,
    frame: Frame,
}

strake_env::lock_names! {
    /// Held while a frame is written to the socket.
    Replying = "connection to a client";
    /// See [`Peer::order`].
    InOrder = "earlier request of the same client";
}

/// A connected client.
struct Peer {
    /// A handle to end the stream with.
    stream: Stream,
    /// Present once it was welcomed.
    writer: WatchedMutex<Replying, Option<(Stream, Seal)>>,
    /// Held from the execution of an ordered request until its answer is written.
    order: WatchedMutex<InOrder>,
    progress: Mutex<Progress>,
    answered: Condvar,
    /// Who it is, once it was welcomed.
    proven: OnceLock<ProvenPeer>,
    /// Requests of the server to this client.
    back: Calls,
}

#[derive(Default)]
struct Progress {
    closed: bool,
    requests: usize,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl RpcServer {
    pub(crate) fn start(
        listener: Listener,
        service: Service,
        handler: Arc<dyn Handler>,
        credentials: Credentials,
        options: ServerOptions,
    ) -> Result<RpcServer> {
        let endpoint = listener.endpoint()?;
        let mut server =
            RpcServer::with(Some(listener), endpoint, service, handler, credentials, options)?;
        let core = Arc::clone(&server.core);
        let name = format!("{service} accept");
        server.threads.push(Builder::new().name(name).spawn(move || core.accept())?);
        Ok(server)
    }

    /// A server without a listener: a door hands connections over to its core.
    pub(crate) fn behind_door(
        endpoint: Endpoint,
        service: Service,
        handler: Arc<dyn Handler>,
        credentials: Credentials,
        options: ServerOptions,
    ) -> Result<RpcServer> {
        RpcServer::with(None, endpoint, service, handler, credentials, options)
    }

    fn with(
        listener: Option<Listener>,
        endpoint: Endpoint,
        service: Service,
        handler: Arc<dyn Handler>,
        credentials: Credentials,
        options: ServerOptions,
    ) -> Result<RpcServer> {
        let core = Arc::new(Core {
            listener,
            service,
            handler,
            credentials,
            options,
            state: Mutex::default(),
            work_came: Condvar::new(),
            halted: Condvar::new(),
            refusals: Refusals::default(),
        });
        let mut server = RpcServer { core, endpoint, threads: Vec::new() };
        for worker in 0..options.workers.max(1) {
            let core = Arc::clone(&server.core);
            let name = format!("{service} worker {worker}");
            server.threads.push(Builder::new().name(name).spawn(move || core.work())?);
        }
        Ok(server)
    }

    /// What a door hands connections to, and on which terms.
    pub(crate) fn core(&self) -> (Arc<Core>, Terms) {
        (Arc::clone(&self.core), self.core.options.terms())
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connections closed because the peer broke the protocol or proved nothing.
    pub fn rejected(&self) -> u64 {
        self.core.refusals.count()
    }

    /// Ends the connections of the node of that name.
    pub(crate) fn disconnect(&self, name: &NodeName) {
        let state = self.core.state.lock();
        for (peer, _) in state.connections.values() {
            match peer.proven.get() {
                Some(ProvenPeer::Node(node)) if node.name == *name => peer.close(),
                _ => {}
            }
        }
    }

    /// The clients that are connected and welcome.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        let state = self.core.state.lock();
        let peers = state.connections.iter().map(|(id, (peer, _))| (*id, peer));
        peers
            // A writer that is in use belongs to a client that was welcomed.
            .filter(|(_, peer)| peer.writer.try_lock().is_none_or(|writer| writer.is_some()))
            .map(|(id, peer)| ConnectedClient { id, peer: Arc::clone(peer) })
            .collect()
    }

    /// Ends all connections and threads; requests being executed are finished first.
    pub fn stop(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        let connections = {
            let mut state = self.core.state.lock();
            state.stopped = true;
            state.queue.clear();
            self.core.work_came.notify_all();
            self.core.halted.notify_all();
            std::mem::take(&mut state.connections)
        };
        // The file goes before the listener stops. A successor binds only when no process listens
        // any more, so this cannot be its socket.
        if let Some(listener) = &self.core.listener {
            if let Endpoint::Unix(path) = &self.endpoint {
                let _ = std::fs::remove_file(path);
            }
            listener.stop();
        }
        for (peer, _) in connections.values() {
            peer.close();
        }
        // A thread that panicked has said so; all others are on their way out.
        for (_, reader) in connections.into_values() {
            let _ = reader.map(JoinHandle::join);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let mut state = self.core.state.lock();
        self.core.halted.wait_while(&mut state, |state| state.adopted > 0);
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.halt();
        }
    }
}

impl Core {
    fn accept(self: Arc<Core>) {
        let listener = self.listener.as_ref().expect("invariant: only a server that listens");
        loop {
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of descriptors or a client that gave up: the next one may be fine.
                    if self.state.lock().stopped || !is_passing(&error) {
                        return;
                    }
                    // Descriptors come back as clients leave.
                    let mut state = self.state.lock();
                    self.halted.wait_for(&mut state, ACCEPT_PAUSE);
                    continue;
                }
            };
            // Failing to take on a connection closes it, which tells the client all there is.
            let _ = self.take_on(stream);
        }
    }

    /// Starts the thread of a new connection.
    fn take_on(self: &Arc<Core>, stream: Stream) -> Result<()> {
        let peer = Peer::new(&stream)?;
        let mut state = self.state.lock();
        if state.stopped || state.connections.len() >= self.options.connections_max {
            self.refusals.count_silently();
            peer.close();
            return Ok(());
        }
        let id = state.next_connection;
        state.next_connection += 1;
        let (core, of_thread) = (Arc::clone(self), Arc::clone(&peer));
        let name = format!("{} client {id}", self.service);
        let reader = Builder::new().name(name).spawn(move || {
            let origin = stream.peer_address();
            if let Err(refusal) = core.converse(id, &of_thread, stream) {
                core.refusals.note(origin, &core.service.to_string(), &refusal);
            }
            of_thread.close();
            core.handler.left(id);
            core.state.lock().connections.remove(&id);
        })?;
        // The thread removes its entry under the same lock, so it finds it in any case.
        state.connections.insert(id, (peer, Some(reader)));
        Ok(())
    }

    /// Reads the requests of a client that a door has welcomed, until it leaves.
    ///
    /// # Errors
    /// When the client breaks the protocol; the host's.
    pub(crate) fn adopt(&self, stream: Stream, agreed: Agreed) -> Result<()> {
        let peer = Peer::new(&stream)?;
        let id = {
            let mut state = self.state.lock();
            if state.stopped || state.connections.len() >= self.options.connections_max {
                peer.close();
                return Ok(());
            }
            let id = state.next_connection;
            state.next_connection += 1;
            state.adopted += 1;
            state.connections.insert(id, (Arc::clone(&peer), None));
            id
        };
        let result = self.serve(id, &peer, stream, agreed);
        peer.close();
        self.handler.left(id);
        let mut state = self.state.lock();
        state.connections.remove(&id);
        state.adopted -= 1;
        self.halted.notify_all();
        result
    }

    /// Greets a client and reads its requests until it leaves.
    fn converse(
        &self,
        id: u64,
        peer: &Arc<Peer>,
        mut stream: Stream,
    ) -> std::result::Result<(), Refusal> {
        let mut hurried = stream.within(self.options.limit);
        let terms = self.options.terms();
        match receive_one(&mut hurried, &self.credentials, self.service, terms)? {
            Welcomed::Session((), agreed) => {
                let node = agreed.peer.node().cloned();
                self.serve(id, peer, stream, agreed).map_err(|error| Refusal { node, error })
            }
            Welcomed::Passage(..) => {
                Err(Error::new(ErrorKind::NotSupported, "only a node's door passes on").into())
            }
            Welcomed::Joiner(joiner) => Ok(joiner.serve(&mut hurried, self.credentials.desk())?),
        }
    }

    /// Reads the requests of a client until it leaves.
    fn serve(&self, id: u64, peer: &Arc<Peer>, stream: Stream, agreed: Agreed) -> Result<()> {
        let Agreed { sending, mut receiving, peer: proven, .. } = agreed;
        // A client may be silent for as long as it likes now.
        stream.set_limits(None, Some(self.options.limit))?;
        peer.proven.set(proven).expect("invariant: a peer is welcomed once");
        *peer.writer.lock() = Some((stream.try_clone()?, sending));
        let link = self.link_of(peer);
        let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        loop {
            let mut buffer = |bytes| peer.buffer(bytes);
            let frame =
                match read_frame(&mut input, &mut receiving, FrameLimits::SESSION, &mut buffer) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Ok(()),
                    // A client that dies within a frame broke no rule.
                    Err(error) if error.kind() == ErrorKind::Unreachable => return Ok(()),
                    Err(error) => return Err(error),
                };
            link.iter().for_each(Link::heard);
            if frame.kind == FrameKind::BackReply {
                peer.back.deliver(frame);
                continue;
            }
            if frame.kind == FrameKind::Ping {
                let packets = link.as_ref().map_or((0, 0), Link::packets);
                peer.pong(frame.number, packets, self.options.limit)?;
                continue;
            }
            if frame.kind != self.handler.kinds().0 {
                return Err(Error::new(ErrorKind::Corrupt, "a request of the wrong kind"));
            }
            let Some(is_alone) = peer.admit(&frame, &self.options) else { return Ok(()) };
            let is_last = input.buffer().is_empty();
            let runs_here = is_alone && is_last && self.handler.is_short(&frame.message);
            let mut state = self.state.lock();
            if state.stopped {
                return Ok(());
            }
            let job = Job { id, peer: Arc::clone(peer), frame };
            if runs_here {
                drop(state);
                self.execute(job);
                continue;
            }
            state.queue.push_back(job);
            drop(state);
            self.work_came.notify_one();
        }
    }

    /// Where the connection counts as a link with a node. A connection on which a node asks another
    /// one something is none: it may be silent for as long as the answer takes.
    fn link_of(&self, peer: &Arc<Peer>) -> Option<Link> {
        let Credentials::Node(server) = &self.credentials else { return None };
        let links = server.links.as_ref().filter(|_| self.service != Service::Node)?;
        let node = peer.proven.get()?.node()?;
        let end: Arc<dyn LinkEnd> = Arc::clone(peer) as Arc<dyn LinkEnd>;
        Some(links.connected(node.as_str(), Arc::downgrade(&end)))
    }

    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let job = loop {
                if state.stopped {
                    return;
                }
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                self.work_came.wait(&mut state);
            };
            drop(state);
            self.execute(job);
        }
    }

    fn execute(&self, Job { id, peer, frame }: Job) {
        let Frame { number, message, payload, .. } = frame;
        let size = message.len() + payload.len();
        let in_order = self.handler.is_ordered(&message).then(|| peer.order.lock());
        let client = ConnectedClient { id, peer: Arc::clone(&peer) };
        let handled = self.handler.handle_from(&client, &message, &payload, peer.spare());
        let sent = handled.and_then(|answer| {
            assert!(answer.message.len() <= MESSAGE_BYTES_MAX, "handlers keep to the limit");
            let mut writer = peer.writer.lock();
            let (stream, seal) = writer.as_mut().expect("invariant: it was welcomed");
            let kind = self.handler.kinds().1;
            write_frame(stream, seal, kind, number, &answer.message, &answer.payload)?;
            Ok(answer.payload)
        });
        drop(in_order);
        match sent {
            Ok(buffer) => peer.finish(size, [payload, buffer]),
            Err(_) => {
                // Half a reply may be out, or the request made no sense: this stream is over.
                peer.close();
                peer.finish(size, [payload, Vec::new()]);
            }
        }
    }
}

/// Whether `accept` may succeed next time.
pub(crate) fn is_passing(error: &std::io::Error) -> bool {
    !matches!(error.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::NotConnected)
}

impl LinkEnd for Peer {
    /// Clients send the pings.
    fn ping(&self, _number: u64) -> bool {
        false
    }

    fn figures(&self) -> Option<TcpFigures> {
        (!self.progress.lock().closed).then(|| self.stream.figures())?
    }

    fn calls(&self) -> usize {
        usize::MAX
    }
}

impl Peer {
    fn new(stream: &Stream) -> Result<Arc<Peer>> {
        Ok(Arc::new(Peer {
            stream: stream.try_clone()?,
            writer: WatchedMutex::default(),
            order: WatchedMutex::default(),
            progress: Mutex::default(),
            answered: Condvar::new(),
            proven: OnceLock::new(),
            back: Calls::new(BACK_CALLS),
        }))
    }

    fn close(&self) {
        self.stream.shutdown();
        self.progress.lock().closed = true;
        self.answered.notify_all();
        self.back.end(&Error::new(ErrorKind::Unreachable, "the client is gone"));
    }

    /// Answers a ping. A client that takes no answers is not read meanwhile, for at most `limit`
    /// twice. Then it is left.
    fn pong(&self, number: u64, packets: (u64, u64), limit: Duration) -> Result<()> {
        let silent = || Error::new(ErrorKind::TimedOut, "the client takes no answers");
        let mut writer = self.writer.try_lock_for(limit).ok_or_else(silent)?;
        let (stream, seal) = writer.as_mut().expect("invariant: it was welcomed");
        write_frame(stream, seal, FrameKind::Pong, number, &ping::pong(packets), &[])
    }

    /// Sends a request to the client and waits for its answer.
    fn ask(&self, message: &[u8], limit: Duration) -> Result<Vec<u8>> {
        let call = self.back.begin(message.len(), limit)?;
        self.send_back(&call, message, limit)?;
        let reply = self.back.wait(&call, limit)?;
        back::decode_reply(reply.kind, &reply.message)
    }

    /// Sends a request to the client whose answer nobody waits for.
    fn tell(&self, message: &[u8], limit: Duration) -> Result<()> {
        let call = self.back.begin(message.len(), limit)?;
        self.back.forsake(&call);
        self.send_back(&call, message, limit)
    }

    fn send_back(&self, call: &Call, message: &[u8], limit: Duration) -> Result<()> {
        let sent = match self.writer.try_lock_for(limit) {
            None => Err(Error::new(ErrorKind::TimedOut, "the client takes no requests")),
            Some(mut writer) => {
                let (stream, seal) = writer.as_mut().expect("invariant: it was welcomed");
                let kind = FrameKind::BackRequest;
                let sent = write_frame(stream, seal, kind, call.number(), message, &[]);
                // Part of a frame may be out: the stream has no meaning any more.
                if sent.as_ref().is_err_and(|error| error.kind() != ErrorKind::TooBig) {
                    self.close();
                }
                sent
            }
        };
        sent.inspect_err(|_| self.back.withdraw(call))
    }

    /// Waits until the request may be in progress beside the others. Returns whether it is the only
    /// one; `None` if the connection was closed meanwhile.
    fn admit(&self, frame: &Frame, options: &ServerOptions) -> Option<bool> {
        let size = frame.message.len() + frame.payload.len();
        let mut progress = self.progress.lock();
        while !progress.closed
            && progress.requests > 0
            && (progress.requests >= options.requests_max
                || progress.bytes + size > options.request_bytes_max)
        {
            self.answered.wait(&mut progress);
        }
        progress.requests += 1;
        progress.bytes += size;
        (!progress.closed).then_some(progress.requests == 1)
    }

    fn finish(&self, size: usize, buffers: [Vec<u8>; 2]) {
        let mut progress = self.progress.lock();
        progress.requests -= 1;
        progress.bytes -= size;
        for buffer in buffers {
            if buffer.capacity() > 0 && progress.spare.len() < SPARE_BUFFERS {
                progress.spare.push(buffer);
            }
        }
        self.answered.notify_one();
    }

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare();
        buffer.resize(bytes, 0);
        buffer
    }

    /// A buffer as it was given back. To clear it would have the next user fill all of it with
    /// zeros.
    fn spare(&self) -> Vec<u8> {
        self.progress.lock().spare.pop().unwrap_or_default()
    }
}
