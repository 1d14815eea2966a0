//! Calls over one authenticated stream, several in flight.
//!
//! Callers write their own frames under the writer's lock. One reader thread per connection takes
//! every reply and hands it to the call that waits for its number; a reply that nobody waits for
//! any more (its call ran out of time) is dropped. The first error on the stream ends the
//! connection for all calls.
//!
//! Payload buffers go round: a reply's buffer comes back when the caller has copied it out, so that
//! large reads do not fault in new memory each time.

use crate::rpc::auth::{Service, SharedSecret, greet};
use crate::rpc::frame::{Frame, FrameKind, FrameLimits, Seal, read_frame, write_frame};
use crate::rpc::stream::{Endpoint, Stream};
use crate::sync::{Condvar, Mutex};
use crate::thread::JoinHandle;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// Frames of up to this size are read with one system call.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Payload buffers kept for the next reply.
const SPARE_BUFFERS: usize = 4;

/// Why a call did not return a reply.
#[derive(Debug)]
pub enum CallError {
    /// The connection is gone; the request may have been executed or not.
    Lost(Error),
    /// The connection may be fine; the call is over.
    Failed(Error),
}

/// An authenticated stream with calls in flight.
pub struct Connection {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    reader: Option<JoinHandle<()>>,
    boot: u64,
}

struct Writer {
    stream: Stream,
    seal: Seal,
    next_number: u64,
}

/// What callers and the reader share.
struct Shared {
    /// A handle to end the stream with.
    stream: Stream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The calls in flight, by request number.
    waiting: BTreeMap<u64, Arc<Slot>>,
    /// Set once, when the connection ends.
    lost: Option<Error>,
    spare: Vec<Vec<u8>>,
}

/// Where a call's reply arrives.
#[derive(Default)]
struct Slot {
    reply: Mutex<Option<std::result::Result<Frame, Error>>>,
    arrived: Condvar,
}

impl Shared {
    /// Ends the connection; every call in flight gets `error`.
    fn end(&self, error: &Error) {
        self.stream.shutdown();
        let mut state = self.state.lock();
        state.lost.get_or_insert_with(|| error.clone());
        for slot in std::mem::take(&mut state.waiting).into_values() {
            *slot.reply.lock() = Some(Err(error.clone()));
            slot.arrived.notify_one();
        }
    }

    /// Takes replies until the stream ends.
    fn read_replies(&self, stream: Stream, mut seal: Seal, from: &str) {
        let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        let error = loop {
            let mut buffer = |bytes| self.buffer(bytes);
            match read_frame(&mut input, &mut seal, FrameLimits::SESSION, &mut buffer) {
                Ok(Some(frame)) => {
                    let waiting = self.state.lock().waiting.remove(&frame.number);
                    if let Some(slot) = waiting {
                        *slot.reply.lock() = Some(Ok(frame));
                        slot.arrived.notify_one();
                    }
                }
                Ok(None) => break Error::new(ErrorKind::Unreachable, "the connection was closed"),
                Err(error) => break error,
            }
        };
        self.end(&Error::new(ErrorKind::Unreachable, format!("{from}: {error}")));
    }

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.state.lock().spare.pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }
}

impl Connection {
    /// Connects, greets and starts the reader, all within about `limit`.
    ///
    /// # Errors
    /// As [`Stream::connect`] and [`greet`].
    pub fn open(
        endpoint: &Endpoint,
        secret: &SharedSecret,
        service: Service,
        limit: Duration,
    ) -> Result<Connection> {
        let mut stream = Stream::connect(endpoint, limit)?;
        stream.set_limits(Some(limit), Some(limit))?;
        let agreed = greet(&mut stream, secret, service).map_err(|error| {
            // The socket's way to say that its time limit passed.
            let silent = error.kind() == ErrorKind::WouldBlock;
            let error = if silent {
                Error::new(ErrorKind::TimedOut, "the server does not answer")
            } else {
                error
            };
            error.context(format!("{service} at {endpoint}"))
        })?;
        // From here on the reader may wait for replies as long as it takes; the calls have limits.
        stream.set_limits(None, Some(limit))?;
        let (for_reader, for_end) = (stream.try_clone()?, stream.try_clone()?);
        let shared = Arc::new(Shared { stream: for_end, state: Mutex::default() });
        let name = format!("reply {service}");
        let reader = crate::thread::Builder::new().name(name).spawn({
            let shared = Arc::clone(&shared);
            let from = format!("{service} at {endpoint}");
            move || shared.read_replies(for_reader, agreed.receiving, &from)
        })?;
        let writer = Mutex::new(Writer { stream, seal: agreed.sending, next_number: 1 });
        Ok(Connection { shared, writer, reader: Some(reader), boot: agreed.boot })
    }

    /// The boot number of the server at the other end.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Whether calls are of use yet.
    pub fn is_lost(&self) -> bool {
        self.shared.state.lock().lost.is_some()
    }

    /// Sends a request and waits for its reply, at most `limit` for each of: its turn to write, the
    /// writing, the reply.
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
        let slot = Arc::new(Slot::default());
        let number = self.send(kind, message, payload, limit, &slot)?;
        let mut reply = slot.reply.lock();
        if reply.is_none() {
            slot.arrived.wait_while_for(&mut reply, |reply| reply.is_none(), limit);
        }
        match reply.take() {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(error)) => Err(CallError::Lost(error)),
            None => {
                drop(reply);
                self.shared.state.lock().waiting.remove(&number);
                let detail = format!("no reply within {:.1} s", limit.as_secs_f64());
                Err(CallError::Failed(Error::new(ErrorKind::TimedOut, detail)))
            }
        }
    }

    fn send(
        &self,
        kind: FrameKind,
        message: &[u8],
        payload: &[u8],
        limit: Duration,
        slot: &Arc<Slot>,
    ) -> std::result::Result<u64, CallError> {
        let Some(mut writer) = self.writer.try_lock_for(limit) else {
            let detail = "the connection takes no more requests";
            return Err(CallError::Failed(Error::new(ErrorKind::TimedOut, detail)));
        };
        let number = writer.next_number;
        writer.next_number += 1;
        {
            // Registered before it is sent, or a quick reply would find nobody; and under the lock
            // that `end` takes, so that none is registered after the connection ended.
            let mut state = self.shared.state.lock();
            if let Some(error) = &state.lost {
                return Err(CallError::Lost(error.clone()));
            }
            state.waiting.insert(number, Arc::clone(slot));
        }
        let Writer { stream, seal, .. } = &mut *writer;
        match write_frame(stream, seal, kind, number, message, payload) {
            Ok(()) => Ok(number),
            Err(error) if error.kind() == ErrorKind::TooBig => {
                self.shared.state.lock().waiting.remove(&number);
                Err(CallError::Failed(error))
            }
            Err(error) => {
                // Part of a frame may be out: the stream has no meaning any more.
                let error = Error::new(ErrorKind::Unreachable, format!("cannot send: {error}"));
                self.shared.end(&error);
                Err(CallError::Lost(error))
            }
        }
    }

    /// Takes a reply's payload buffer back for the next reply.
    pub fn recycle(&self, buffer: Vec<u8>) {
        let mut state = self.shared.state.lock();
        if buffer.capacity() > 0 && state.spare.len() < SPARE_BUFFERS {
            state.spare.push(buffer);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end(&Error::new(ErrorKind::Unreachable, "the session was closed"));
        if let Some(reader) = self.reader.take() {
            // The reader ends with the stream; a panic in it was reported when it happened.
            let _ = reader.join();
        }
    }
}
