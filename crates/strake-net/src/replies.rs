//! Takes the replies of a connection: a caller does that, or the connection's thread.
//!
//! To wake a thread takes as long as a short message is on its way. So a caller reads its reply
//! itself where it can. Otherwise the connection's thread would be woken by the reply, and the
//! caller by that thread.
//!
//! One at a time has the *turn* to read. It hands in all replies that it reads, whosever they are.
//!
//! ```text
//! Thread ──a reply was waited for, no call is left──▶ Nobody ──a call──▶ Caller
//!    ▲ ◀──────────no call for [`STAND_BY`]───────────────┘ ▲                │
//!    │                                                     └──its reply─────┤
//!    └──────────────────────its reply, and calls are left──────────────────-┘
//! ```
//!
//! While nobody has the turn, nothing is expected. So the connection of a client that the server
//! may ask something keeps its thread reading.

use crate::calls::Calls;
use crate::frame::{Frame, FrameLimits, Seal, read_frame};
use std::io::{BufReader, Read};
use std::time::Duration;
use strake_env::stream::Stream;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// Frames of up to this size are read with one system call.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// After that long without a call, the connection's thread reads again: it sees the stream's end.
const STAND_BY: Duration = Duration::from_millis(10);
/// A server that stops within a frame is left after so long.
const FRAME_MAX: Duration = Duration::from_secs(30);
/// The thread reads for that long at a time.
const LONG: Duration = Duration::from_secs(3600);

/// A stream from which frames are read.
pub(crate) struct Incoming {
    input: BufReader<Stream>,
    seal: Seal,
    /// The stream's limit for reads.
    limit: Option<Duration>,
    /// See [`FRAME_MAX`].
    frame_max: Duration,
}

/// Reads one frame, which may take longer than the stream's limit once it has begun.
struct OneFrame<'a, R> {
    input: &'a mut R,
    /// When its first byte came.
    begun: Option<Duration>,
    frame_max: Duration,
}

impl<R: Read> Read for OneFrame<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let now = || RealClock.monotonic();
        loop {
            match (self.input.read(bytes), self.begun) {
                (Err(error), Some(begun)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if now().saturating_sub(begun) >= self.frame_max {
                        return Err(std::io::ErrorKind::TimedOut.into());
                    }
                }
                // A signal that interrupts a read begins no frame.
                (Err(error), _) => return Err(error),
                (Ok(count), begun) => {
                    self.begun = begun.or_else(|| Some(now()));
                    return Ok(count);
                }
            }
        }
    }
}

impl Incoming {
    fn new(stream: Stream, seal: Seal, frame_max: Duration) -> Incoming {
        let input = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        Incoming { input, seal, limit: None, frame_max }
    }

    /// The next frame; `None` if none begins for so long. `buffer` is that of [`read_frame`].
    ///
    /// # Errors
    /// If the stream has ended, or what comes is no frame.
    pub(crate) fn next(
        &mut self,
        patience: Duration,
        buffer: &mut dyn FnMut(usize) -> Vec<u8>,
    ) -> Result<Option<Frame>> {
        if self.limit != Some(patience) {
            self.input.get_ref().set_read_limit(patience)?;
            self.limit = Some(patience);
        }
        let Incoming { input, frame_max, .. } = self;
        let mut frame = OneFrame { input, begun: None, frame_max: *frame_max };
        match read_frame(&mut frame, &mut self.seal, FrameLimits::SESSION, buffer) {
            Ok(Some(frame)) => Ok(Some(frame)),
            Ok(None) => Err(Error::new(ErrorKind::Unreachable, "the connection was closed")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Thread,
    Nobody,
    Caller,
}

struct State {
    holder: Holder,
    /// How often a caller has had the turn.
    turns: u64,
}

/// See the file's head.
pub(crate) struct Replies {
    incoming: Mutex<Incoming>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether callers may have the turn.
    is_lent: bool,
}

/// A caller's turn.
pub(crate) struct Turn<'a> {
    replies: &'a Replies,
    calls: &'a Calls,
}

impl Replies {
    /// The connection's thread has the turn. With `is_lent` callers may have it.
    pub(crate) fn new(stream: Stream, seal: Seal, is_lent: bool) -> Replies {
        let state = Mutex::new(State { holder: Holder::Thread, turns: 0 });
        let incoming = Mutex::new(Incoming::new(stream, seal, FRAME_MAX));
        let changed = Condvar::new();
        Replies { incoming, state, changed, is_lent }
    }

    /// The next frame, for the connection's thread in its turn.
    ///
    /// # Errors
    /// As [`Incoming::next`].
    pub(crate) fn next(&self, buffer: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<Frame> {
        loop {
            if let Some(frame) = self.incoming.lock().next(LONG, buffer)? {
                return Ok(frame);
            }
        }
    }

    /// The turn, for a call that was sent, if nobody has it.
    pub(crate) fn turn<'a>(&'a self, calls: &'a Calls) -> Option<Turn<'a>> {
        if !self.is_lent {
            return None;
        }
        let mut state = self.state.lock();
        if state.holder != Holder::Nobody {
            return None;
        }
        state.holder = Holder::Caller;
        state.turns += 1;
        Some(Turn { replies: self, calls })
    }

    /// The connection's thread leaves the turn to the next caller, if no call is left. Returns when
    /// the thread has the turn again; false once the connection has ended.
    pub(crate) fn stand_by(&self, calls: &Calls) -> bool {
        let mut state = self.state.lock();
        // A call that begins from here on finds that nobody has the turn.
        if !self.is_lent || calls.count() > 0 {
            return true;
        }
        state.holder = Holder::Nobody;
        loop {
            if calls.is_broken() {
                return false;
            }
            let turns = state.turns;
            self.changed.wait_for(&mut state, STAND_BY);
            let is_idle = state.holder == Holder::Nobody && state.turns == turns;
            if state.holder == Holder::Thread || is_idle {
                state.holder = Holder::Thread;
                return true;
            }
        }
    }

    /// How often a caller has had the turn.
    #[cfg(test)]
    pub(crate) fn turns(&self) -> u64 {
        self.state.lock().turns
    }

    /// Something comes soon that no caller waits for: the thread reads it, unless a caller does.
    pub(crate) fn expect(&self) {
        let mut state = self.state.lock();
        if state.holder == Holder::Nobody {
            state.holder = Holder::Thread;
            self.changed.notify_one();
        }
    }

    /// The connection has ended: wakes its thread.
    pub(crate) fn end(&self) {
        let _state = self.state.lock();
        self.changed.notify_one();
    }
}

impl Turn<'_> {
    /// As [`Incoming::next`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn next(
        &self,
        patience: Duration,
        buffer: &mut dyn FnMut(usize) -> Vec<u8>,
    ) -> Result<Option<Frame>> {
        self.replies.incoming.lock().next(patience, buffer)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.replies.state.lock();
        // A call that has begun found that this caller has the turn.
        if self.calls.count() > 0 {
            state.holder = Holder::Thread;
            self.replies.changed.notify_one();
        } else {
            state.holder = Holder::Nobody;
        }
    }
}

#[cfg(test)]
#[path = "replies_test.rs"]
mod replies_test;
