//! Calls over one authenticated stream, several in flight.
//!
//! Callers write their own frames under the writer's lock. A thread of the connection, or a caller
//! that waits ([`crate::replies`]), takes every reply and hands it to the call that waits for its
//! number. A reply whose call ran out of time is dropped. The first error on the stream ends the
//! connection for all calls. Requests of the server come the same way and are answered by threads
//! of their own ([`crate::back`]).
//!
//! Payload buffers go round: a reply's buffer comes back when the caller has copied it out, so that
//! large reads do not fault in new memory each time.

use crate::auth::Service;
use crate::back::{self, BACK_WORKERS, BackHandler, NoBackRequests};
pub use crate::calls::CallError;
use crate::calls::{Call, Calls};
use crate::credentials::{Introduction, ProvenPeer};
use crate::detour::{self, Detour};
use crate::frame::{Frame, FrameKind, Seal, write_frame};
use crate::handshake::introduce;
use crate::ping;
use crate::replies::{Replies, Turn};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use strake_env::links::tcp::TcpFigures;
use strake_env::links::{Link, LinkEnd, Links};
use strake_env::stream::{Endpoint, Stream};
use strake_env::sync::{Mutex, WatchedMutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_env::workers::Workers;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// Payload buffers kept for the next reply.
const SPARE_BUFFERS: usize = 4;

/// An authenticated stream with calls in flight.
pub struct Connection {
    inner: Arc<Inner>,
    back: Arc<Workers<Frame>>,
    reader: Option<JoinHandle<()>>,
    boot: u64,
    /// The version that both ends speak.
    protocol: u16,
    peer: ProvenPeer,
    /// The detour that it takes, if it takes one.
    detour: Option<Detour>,
}

strake_env::lock_names! {
    /// Held while a frame is written to the socket.
    Writing = "connection to a server";
}

struct Writer {
    stream: Stream,
    seal: Seal,
}

/// What callers, the reader and the threads that answer the server share.
struct Inner {
    /// A handle to end the stream with.
    stream: Stream,
    writer: WatchedMutex<Writing, Writer>,
    calls: Calls,
    replies: Replies,
    spare: Mutex<Vec<Vec<u8>>>,
    /// Where it is counted that something came, if that is done.
    link: OnceLock<Link>,
    /// Where it leads to.
    endpoint: Endpoint,
    introduction: Introduction,
    service: Service,
}

impl Inner {
    /// Ends the connection; every call in flight gets `error`. Returns why it ended, which another
    /// thread may have said before. The reason comes first: one who cannot send because of the
    /// shutdown finds it.
    fn end(&self, error: &Error) -> Error {
        let reason = self.calls.end(error);
        self.stream.shutdown();
        self.replies.end();
        reason
    }

    /// Takes replies, and the server's requests, until the stream ends.
    fn read(&self, back: &Workers<Frame>) {
        loop {
            let taken = self.replies.next(&mut |bytes| self.buffer(bytes));
            match taken.and_then(|frame| self.take_in(frame, back)) {
                Ok(true) if !self.replies.stand_by(&self.calls) => return,
                Ok(_) => {}
                Err(error) => return self.end_reading(&error),
            }
        }
    }

    /// Takes replies in a caller's turn until its own one is there, or nothing comes for so long.
    fn read_for(
        &self,
        turn: &Turn<'_>,
        call: &Call,
        patience: Duration,
        back: &Workers<Frame>,
    ) -> Option<std::result::Result<Frame, CallError>> {
        let end = RealClock.monotonic().saturating_add(patience);
        loop {
            let reply = call.reply();
            if reply.is_some() || RealClock.monotonic() >= end {
                return reply;
            }
            let taken = turn.next(patience, &mut |bytes| self.buffer(bytes));
            let handed_in =
                taken.and_then(|frame| frame.map_or(Ok(false), |frame| self.take_in(frame, back)));
            if let Err(error) = handed_in {
                self.end_reading(&error);
            }
        }
    }

    fn end_reading(&self, error: &Error) {
        let Inner { service, endpoint, .. } = self;
        let detail = format!("{service} at {endpoint}: {error}");
        self.end(&Error::new(ErrorKind::Unreachable, detail));
    }

    /// Hands in what was read. Returns whether a caller waited for it.
    fn take_in(&self, frame: Frame, back: &Workers<Frame>) -> Result<bool> {
        self.link.get().into_iter().for_each(Link::heard);
        match frame.kind {
            FrameKind::BackRequest => back.submit(frame).map(|()| false).map_err(|_| {
                let detail = "the server has more requests in flight than it may";
                Error::new(ErrorKind::Corrupt, detail)
            }),
            FrameKind::Pong => {
                if let Some(link) = self.link.get() {
                    link.answered(frame.number, ping::theirs(&frame.message));
                }
                Ok(false)
            }
            _ => Ok(self.calls.deliver(frame)),
        }
    }

    /// Answers one request of the server.
    fn answer(&self, handler: &dyn BackHandler, request: &Frame, limit: Duration) {
        let sent = back::reply(handler.answer(&request.message)).and_then(|message| {
            let silent = || Error::new(ErrorKind::TimedOut, "the server takes no answer");
            let mut writer = self.writer.try_lock_for(limit).ok_or_else(silent)?;
            let Writer { stream, seal } = &mut *writer;
            write_frame(stream, seal, FrameKind::BackReply, request.number, &message, &[])
        });
        if let Err(error) = sent {
            // Part of a frame may be out: the stream has no meaning any more.
            self.end(&Error::new(ErrorKind::Unreachable, format!("cannot answer: {error}")));
        }
    }

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.lock().pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }
}

impl LinkEnd for Inner {
    fn ping(&self, number: u64) -> bool {
        // Where a frame is being written, something is on its way that will be answered.
        let Some(mut writer) = self.writer.try_lock() else { return false };
        let Writer { stream, seal } = &mut *writer;
        if self.calls.is_broken() || !stream.is_writable() {
            return false;
        }
        let sent = write_frame(stream, seal, FrameKind::Ping, number, &[], &[]);
        drop(writer);
        self.replies.expect();
        if let Err(error) = &sent {
            // Part of a frame may be out: the stream has no meaning any more.
            self.end(&Error::new(ErrorKind::Unreachable, format!("cannot send: {error}")));
        }
        sent.is_ok()
    }

    fn figures(&self) -> Option<TcpFigures> {
        (!self.calls.is_broken()).then(|| self.stream.figures())?
    }

    /// The connection ends now if there may be a detour, so that its callers, and those who still
    /// send, look for it. By itself it would end after minutes.
    fn cut_off(&self) {
        if detour::is_possible(&self.introduction, self.service) {
            let detail = format!("{} at {} is cut off", self.service, self.endpoint);
            self.end(&Error::new(ErrorKind::Unreachable, detail));
        }
    }

    fn calls(&self) -> usize {
        self.calls.count()
    }
}

impl Connection {
    /// Connects, greets and starts the reader, all within about `limit`.
    ///
    /// # Errors
    /// As [`Stream::connect`]; `Access` if one end refuses the other; `Unreachable` if the service
    /// is not there now; `TimedOut`.
    pub fn open(
        endpoint: &Endpoint,
        introduction: &Introduction,
        service: Service,
        limit: Duration,
    ) -> Result<Connection> {
        let handler = Arc::new(NoBackRequests);
        Connection::open_with(endpoint, introduction, service, limit, handler, true)
    }

    /// As [`Connection::open`]; `handler` answers what the server asks.
    ///
    /// # Errors
    /// The same.
    pub fn answering(
        endpoint: &Endpoint,
        introduction: &Introduction,
        service: Service,
        limit: Duration,
        handler: Arc<dyn BackHandler>,
    ) -> Result<Connection> {
        Connection::open_with(endpoint, introduction, service, limit, handler, false)
    }

    /// With `is_lent` callers read replies.
    fn open_with(
        endpoint: &Endpoint,
        introduction: &Introduction,
        service: Service,
        limit: Duration,
        handler: Arc<dyn BackHandler>,
        is_lent: bool,
    ) -> Result<Connection> {
        let (mut stream, detour) = detour::connect(endpoint, introduction, service, limit)?;
        let mut hurried = stream.within(limit);
        let agreed = introduce(&mut hurried, introduction, service).map_err(|error| {
            detour.iter().for_each(Detour::failed);
            // The socket's way to say that its time limit passed.
            let silent = error.kind() == ErrorKind::WouldBlock;
            let error = if silent {
                Error::new(ErrorKind::TimedOut, "the server does not answer")
            } else {
                error
            };
            error.context(format!("{service} at {endpoint}"))
        })?;
        // Calls have their own limits for replies to begin.
        stream.set_limits(None, Some(limit))?;
        let (for_reader, for_end) = (stream.try_clone()?, stream.try_clone()?);
        let protocol = agreed.sending.protocol();
        let inner = Arc::new(Inner {
            stream: for_end,
            writer: WatchedMutex::new(Writer { stream, seal: agreed.sending }),
            calls: Calls::new(agreed.terms.limits),
            replies: Replies::new(for_reader, agreed.receiving, is_lent),
            spare: Mutex::default(),
            link: OnceLock::new(),
            endpoint: endpoint.clone(),
            introduction: introduction.clone(),
            service,
        });
        let back = Arc::new(Workers::new(format!("back {service}"), BACK_WORKERS, {
            let inner = Arc::clone(&inner);
            move |request: Frame| inner.answer(&*handler, &request, limit)
        }));
        let name = format!("reply {service}");
        let reader = Builder::new().name(name).spawn({
            let (inner, back) = (Arc::clone(&inner), Arc::clone(&back));
            move || inner.read(&back)
        })?;
        Ok(Connection {
            inner,
            back,
            reader: Some(reader),
            boot: agreed.terms.boot,
            protocol,
            peer: agreed.peer,
            detour,
        })
    }

    /// Where it leads to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// The boot number of the server at the other end.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// The protocol version that both ends speak.
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// Who the server at the other end has proven to be.
    pub fn peer(&self) -> &ProvenPeer {
        &self.peer
    }

    /// From now on it counts among the links with the node at its other end, if that is one.
    pub(crate) fn count_in(&self, links: &Links) {
        if let ProvenPeer::Node(node) = &self.peer {
            let inner: Arc<dyn LinkEnd> = Arc::clone(&self.inner) as Arc<dyn LinkEnd>;
            let end: Weak<dyn LinkEnd> = Arc::downgrade(&inner);
            // A second call changes nothing but the number of connections that are shown.
            let _ = self.inner.link.set(links.connected(node.name.as_str(), end));
        }
    }

    /// Has the writer until the value is dropped, as one who writes a frame for long.
    #[cfg(test)]
    pub(crate) fn hold_writer(&self) -> impl Sized + '_ {
        self.inner.writer.lock()
    }

    /// How often a caller has read replies.
    #[cfg(test)]
    pub(crate) fn turns(&self) -> u64 {
        self.inner.replies.turns()
    }

    /// Ends the connection for all calls: `error` says why.
    pub(crate) fn end(&self, error: &Error) {
        self.inner.end(error);
    }

    /// Whether it takes a detour that is not needed any more. Looking takes a moment now and then.
    pub(crate) fn is_detour_over(&self) -> bool {
        let is_idle = || self.inner.calls.count() == 0;
        self.detour.as_ref().is_some_and(|detour| is_idle() && detour.is_over(&self.inner.endpoint))
    }

    /// Whether calls are of use yet.
    pub fn is_broken(&self) -> bool {
        self.inner.calls.is_broken()
    }

    /// Sends a request and waits for its reply, at most `limit` for each of: room among those in
    /// flight, its turn to write, the writing, the reply.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(
        &self,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
        limit: Duration,
    ) -> std::result::Result<Frame, CallError> {
        self.call_looking(kind, message, payload, (limit, limit), &|| ())
    }

    /// As [`Connection::call`]; calls `look` once an `interval` while the reply does not come. It
    /// may end the connection.
    pub(crate) fn call_looking(
        &self,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
        (limit, interval): (Duration, Duration),
        look: &dyn Fn(),
    ) -> std::result::Result<Frame, CallError> {
        let call = self.inner.calls.begin(message.len() + payload.len(), limit)?;
        self.send(kind, message, payload, limit, &call)?;
        // Not before: one that waits to send does not read.
        let Inner { replies, calls, .. } = &*self.inner;
        let mut spent = Duration::ZERO;
        if let Some(turn) = replies.turn(calls) {
            let patience = limit.min(interval);
            if let Some(reply) = self.inner.read_for(&turn, &call, patience, &self.back) {
                return reply;
            }
            // Nor does one that looks.
            drop(turn);
            look();
            spent = patience;
        }
        calls.wait_looking(&call, (limit, interval), spent, look)
    }

    /// Sends a request whose reply nobody waits for. It takes room among the calls in flight until
    /// the reply comes. Waits at most `limit` for each of: room, its turn to write, the writing.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) fn post(
        &self,
        kind: FrameKind,
        message: &[u8],
        limit: Duration,
    ) -> std::result::Result<(), CallError> {
        let call = self.inner.calls.begin(message.len(), limit)?;
        self.inner.calls.forsake(&call);
        self.inner.replies.expect();
        self.send(kind, message, &[], limit, &call)
    }

    /// The requests without a reply: their number, and their bytes.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        self.inner.calls.in_flight()
    }

    /// The oldest request without a reply.
    pub(crate) fn oldest_call(&self) -> Option<u64> {
        self.inner.calls.oldest()
    }

    fn send(
        &self,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
        limit: Duration,
        call: &Call,
    ) -> std::result::Result<(), CallError> {
        let Some(mut writer) = self.inner.writer.try_lock_for(limit) else {
            self.inner.calls.withdraw(call);
            let detail = "the connection takes no more requests";
            return Err(CallError::Failed(Error::new(ErrorKind::TimedOut, detail)));
        };
        let Writer { stream, seal } = &mut *writer;
        match write_frame(stream, seal, kind, call.number(), message, payload) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::TooBig => {
                self.inner.calls.withdraw(call);
                Err(CallError::Failed(error))
            }
            Err(error) => {
                // Part of a frame may be out: the stream has no meaning any more.
                let error = Error::new(ErrorKind::Unreachable, format!("cannot send: {error}"));
                Err(CallError::Disconnected(self.inner.end(&error)))
            }
        }
    }

    /// Takes a reply's payload buffer back for the next reply.
    pub fn recycle(&self, buffer: Vec<u8>) {
        let mut spare = self.inner.spare.lock();
        if buffer.capacity() > 0 && spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.inner.end(&Error::new(ErrorKind::Unreachable, "the session was closed"));
        if let Some(reader) = self.reader.take() {
            // The reader ends with the stream; a panic in it was reported when it happened.
            let _ = reader.join();
        }
        // Requests that no thread has begun have no answer to wait for. Those being answered end by
        // themselves: one of them may drop this connection.
        drop(self.back.end());
    }
}
