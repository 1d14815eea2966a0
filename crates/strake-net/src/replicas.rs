//! Messages between the replicas of a log: bytes in one direction, which may be lost.
//!
//! A node has one [`ReplicaWay`] to each other replica: an outbox and a thread, which keeps a
//! connection and makes it anew when it breaks. A message goes as a request whose reply nobody
//! waits for. The reply makes room: so the receiver never holds more for a sender than its limits
//! allow, and the sender's outbox has a limit of its own. What has no room is lost, oldest first.
//!
//! **Who may speak.** The service is for nodes with the role *quorum*. Whoever takes a message
//! learns which node sent it ([`ReplicaPort::deliver`]), and must refuse what another one signs.
//!
//! **Threads.** To wake a thread takes longer than to write a short message. So the sender's thread
//! writes it, if nothing waits before it and so little is on its way that the host takes it at
//! once. At the other end the thread that reads a message hands it in.
//!
//! **A peer that is cut off** answers nothing, and the host's buffers would take messages for a
//! while. So a connection on which a message waits for its reply for too long is given up. What
//! waits behind it then is old, and is dropped.

use crate::auth::Service;
use crate::connection::{CallError, Connection};
use crate::credentials::ProvenPeer;
use crate::frame::FrameKind;
use crate::server::{Answer, Handler};
use crate::session::SessionEnv;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::Endpoint;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::limits::MESSAGE_BYTES_MAX;
use strake_proto::{Error, ErrorKind, FsId, Result};
use tracing::warn;

/// For a connection and its greeting, and for a message to be answered.
const LIMIT: Duration = Duration::from_secs(2);
/// Between attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);
/// With no more than so many bytes on their way, the host's buffers take one more message of that
/// length at once, also if the other end is cut off.
const DIRECT_BYTES_MAX: usize = 8 << 10;
/// With no more than so many messages on their way, the other end has room for one more.
const DIRECT_CALLS_MAX: usize = 16;
/// An outbox holds so many messages at most,
const WAITING_MAX: usize = 1024;
/// and so many bytes.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A replica, as other nodes see it.
pub trait ReplicaPort: Send + Sync {
    /// Takes a message of `peer`. It is handed in on one thread, in the order of its connection.
    ///
    /// # Errors
    /// For what is no message of that peer: the connection is closed.
    fn deliver(&self, peer: &ProvenPeer, message: &[u8]) -> Result<()>;
}

/// Hands messages to a replica.
pub(crate) struct ReplicaHandler {
    pub(crate) port: Arc<dyn ReplicaPort>,
}

impl Handler for ReplicaHandler {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::ControlRequest, FrameKind::ControlReply)
    }

    fn handle(
        &self,
        peer: &ProvenPeer,
        message: &[u8],
        _payload: &[u8],
        mut buffer: Vec<u8>,
    ) -> Result<Answer> {
        self.port.deliver(peer, message)?;
        buffer.clear();
        Ok(Answer { message: Vec::new(), payload: buffer })
    }

    fn is_short(&self, _message: &[u8]) -> bool {
        true
    }
}

/// The way to another replica.
pub struct ReplicaWay {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    endpoint: Endpoint,
    service: Service,
    env: SessionEnv,
    outbox: Mutex<Outbox>,
    changed: Condvar,
    /// Messages are taken out of the outbox with this held, so that they are sent in their order.
    held: Mutex<Option<Held>>,
}

#[derive(Default)]
struct Outbox {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    has_ended: bool,
}

impl Outbox {
    fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.waiting.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

impl ReplicaWay {
    /// A way to the replica at `endpoint`: that of the cluster's records, or that of the metadata
    /// of a file system. It connects when there is something to send.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn open(endpoint: Endpoint, of: Option<FsId>, env: SessionEnv) -> Result<ReplicaWay> {
        let (outbox, changed) = (Mutex::default(), Condvar::new());
        let service = of.map_or(Service::Replica, Service::ReplicaOf);
        let held = Mutex::default();
        let shared = Arc::new(Shared { endpoint, service, env, outbox, changed, held });
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().name("replica way".into()).spawn(move || of_thread.run())?;
        Ok(ReplicaWay { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Sends a message, or loses it. Never waits.
    pub fn send(&self, message: Vec<u8>) {
        if message.len() > MESSAGE_BYTES_MAX {
            return;
        }
        let mut outbox = self.shared.outbox.lock();
        outbox.bytes += message.len();
        outbox.waiting.push_back(message);
        while outbox.waiting.len() > WAITING_MAX || outbox.bytes > WAITING_BYTES_MAX {
            drop(outbox.pop());
        }
        let is_first = outbox.waiting.len() == 1;
        drop(outbox);
        if !is_first || !self.shared.send_directly() {
            self.shared.changed.notify_all();
        }
    }

    /// Ends the thread and the connection. This takes as long as an attempt to connect may.
    pub fn stop(&self) {
        self.shared.end();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// The thread ends by itself soon. A replica that drops a way must not wait for it.
impl Drop for ReplicaWay {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// A connection, and the oldest message on it that has no reply.
struct Held {
    connection: Connection,
    oldest: Option<(u64, Duration)>,
}

impl Held {
    /// Whether one more short message goes out without a wait.
    fn is_quick(&self) -> bool {
        let (calls, bytes) = self.connection.in_flight();
        !self.connection.is_broken() && calls <= DIRECT_CALLS_MAX && bytes <= DIRECT_BYTES_MAX
    }

    /// Sends a message, if those before it are answered in time.
    fn post(&mut self, message: &[u8], now: Duration) -> Result<()> {
        let number = self.connection.oldest_call();
        self.oldest = match (number, self.oldest) {
            (Some(number), Some((before, since))) if number == before => Some((before, since)),
            (number, _) => number.map(|number| (number, now)),
        };
        if self.oldest.is_some_and(|(_, since)| now.saturating_sub(since) > LIMIT) {
            return Err(Error::new(ErrorKind::TimedOut, "the replica answers nothing"));
        }
        match self.connection.post(FrameKind::ControlRequest, message, LIMIT) {
            Ok(()) => Ok(()),
            Err(CallError::Failed(error) | CallError::Disconnected(error)) => Err(error),
        }
    }
}

impl Shared {
    fn end(&self) {
        self.outbox.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut was_reached = true;
        while self.is_wanted() {
            let sent = {
                let mut held = self.held.lock();
                let Some(message) = self.outbox.lock().pop() else { continue };
                let sent = self.send(&mut held, &message);
                if sent.is_err() {
                    *held = None;
                }
                sent
            };
            let Err(error) = sent else {
                was_reached = true;
                continue;
            };
            if was_reached {
                warn!(target: "replica", "a replica is not reached: {error}");
            }
            was_reached = false;
            self.pause();
        }
    }

    /// Waits for a message. False at the end.
    fn is_wanted(&self) -> bool {
        let mut outbox = self.outbox.lock();
        self.changed
            .wait_while(&mut outbox, |outbox| outbox.waiting.is_empty() && !outbox.has_ended);
        !outbox.has_ended
    }

    /// Sends the first message on the caller's thread, if that takes no time. False if something is
    /// left for the thread of this way.
    fn send_directly(&self) -> bool {
        let Some(mut held) = self.held.try_lock() else { return false };
        let message = {
            let mut outbox = self.outbox.lock();
            let is_short =
                outbox.waiting.front().is_some_and(|message| message.len() <= DIRECT_BYTES_MAX);
            if !is_short || outbox.has_ended || !held.as_ref().is_some_and(Held::is_quick) {
                return false;
            }
            outbox.pop()
        };
        let now = self.env.clock.monotonic();
        if let (Some(message), Some(way)) = (message, held.as_mut())
            && way.post(&message, now).is_err()
        {
            // The thread makes a connection for the next message.
            *held = None;
        }
        self.outbox.lock().waiting.is_empty()
    }

    /// Drops what is old by now, and gives the other end a moment.
    fn pause(&self) {
        let mut outbox = self.outbox.lock();
        if !outbox.has_ended {
            self.changed.wait_while_for(&mut outbox, |outbox| !outbox.has_ended, PAUSE);
        }
        while outbox.pop().is_some() {}
    }

    fn send(&self, held: &mut Option<Held>, message: &[u8]) -> Result<()> {
        let way = match held.take() {
            Some(way) if !way.connection.is_broken() => way,
            _ => Held { connection: self.connect()?, oldest: None },
        };
        held.insert(way).post(message, self.env.clock.monotonic())
    }

    fn connect(&self) -> Result<Connection> {
        let waits = &self.env.waits;
        let wait = waits.begin_wait("for a connection to the", &self.endpoint.to_string());
        let introduction = &self.env.introduction;
        let made = Connection::open(&self.endpoint, introduction, self.service, LIMIT);
        waits.end_wait(wait);
        made.inspect(|connection| self.env.made(connection))
    }
}

#[cfg(test)]
#[path = "replicas_test.rs"]
mod replicas_test;
