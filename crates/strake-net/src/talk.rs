//! A conversation: one authenticated stream with one thread at each end, which send each other
//! whole messages in an order that they know. The benchmark's agents use it, whose sessions have a
//! state, and report while they work.
//!
//! A message travels as one frame ([`FrameKind::Talk`]) or, if it is long, as several; the frame's
//! number says how many more belong to the message. So memory follows what was really sent.
//! Nothing is read ahead: after its last message the stream may carry something else.

use crate::auth::{Agreed, Service, SharedSecret, Terms, greet, welcome};
use crate::calls::CallLimits;
use crate::frame::{Frame, FrameKind, FrameLimits, Seal, read_frame, write_frame};
use std::time::Duration;
use strake_env::stream::{Endpoint, Stream};
use strake_proto::{Error, ErrorKind, Result};

/// The longest message.
pub const TALK_BYTES_MAX: usize = 16 << 20;
/// Of a message in one frame.
const PIECE_BYTES: usize = 1 << 20;
const PIECES_MAX: u64 = (TALK_BYTES_MAX / PIECE_BYTES) as u64;
const PIECE: FrameLimits = FrameLimits { message_bytes: PIECE_BYTES, payload_bytes: 0 };
/// Conversations have no calls in flight; the two ends take turns as they like.
const TERMS: Terms = Terms { boot: 0, limits: CallLimits { calls_max: 1, bytes_max: 0 } };

/// One end of a conversation.
pub struct Talk {
    stream: Stream,
    sending: Seal,
    receiving: Seal,
}

impl Talk {
    /// Calls `service` and proves the secret, each step within `limit`.
    ///
    /// # Errors
    /// As [`Stream::connect`] and [`greet`].
    pub fn call(
        endpoint: &Endpoint,
        secret: &SharedSecret,
        service: Service,
        limit: Duration,
    ) -> Result<Talk> {
        let mut stream = Stream::connect(endpoint, limit)?;
        stream.set_limits(Some(limit), Some(limit))?;
        let Agreed { sending, receiving, .. } = greet(&mut stream, secret, service)?;
        Ok(Talk { stream, sending, receiving })
    }

    /// Lets a caller prove the secret, each step within `limit`.
    ///
    /// # Errors
    /// As [`welcome`].
    pub fn welcome(
        mut stream: Stream,
        secret: &SharedSecret,
        service: Service,
        limit: Duration,
    ) -> Result<Talk> {
        stream.set_limits(Some(limit), Some(limit))?;
        let Agreed { sending, receiving, .. } = welcome(&mut stream, secret, service, TERMS)?;
        Ok(Talk { stream, sending, receiving })
    }

    /// A talk with a process's own child, over a socket that no other process has. Nothing has to
    /// be proven.
    pub fn with_child(stream: Stream) -> Talk {
        Talk { stream, sending: Seal::none(), receiving: Seal::none() }
    }

    /// How long a read or write may make no progress from now on.
    ///
    /// # Errors
    /// The host's.
    pub fn set_limit(&self, limit: Duration) -> Result<()> {
        Ok(self.stream.set_limits(Some(limit), Some(limit))?)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `TooBig` beyond [`TALK_BYTES_MAX`]; the stream's.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > TALK_BYTES_MAX {
            let detail = format!("a message of {} bytes is too long", message.len());
            return Err(Error::new(ErrorKind::TooBig, detail));
        }
        let mut left = (message.len().max(1).div_ceil(PIECE_BYTES)) as u64;
        let mut rest = message;
        while left > 0 {
            left -= 1;
            let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES));
            let (stream, seal) = (&mut self.stream, &mut self.sending);
            write_frame(stream, seal, FrameKind::Talk, left, piece, &[])?;
            rest = after;
        }
        Ok(())
    }

    /// Receives the next message; `None` if the peer has hung up between two.
    ///
    /// # Errors
    /// As [`read_frame`]; `TimedOut` after the limit; `Corrupt` for what is no message.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(first) = self.frame()? else { return Ok(None) };
        let (mut message, mut left) = (first.message, first.number);
        if left >= PIECES_MAX {
            return Err(Error::new(ErrorKind::Corrupt, "a message of too many pieces"));
        }
        while left > 0 {
            left -= 1;
            let detail = "the peer closed the connection within a message";
            let gone = || Error::new(ErrorKind::Unreachable, detail);
            let piece = self.frame()?.ok_or_else(gone)?;
            if piece.number != left {
                return Err(Error::new(ErrorKind::Corrupt, "a message's pieces are out of order"));
            }
            message.extend_from_slice(&piece.message);
        }
        Ok(Some(message))
    }

    fn frame(&mut self) -> Result<Option<Frame>> {
        let (stream, seal) = (&mut self.stream, &mut self.receiving);
        let frame = read_frame(stream, seal, PIECE, &mut |_| Vec::new());
        let frame = frame.map_err(|error| match error.kind() {
            // The socket's way to say that its time limit passed.
            ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, "the peer does not answer"),
            _ => error,
        })?;
        if frame.as_ref().is_some_and(|frame| frame.kind != FrameKind::Talk) {
            return Err(Error::new(ErrorKind::Corrupt, "a frame that is no part of a message"));
        }
        Ok(frame)
    }

    /// Whether a message, or the end of the connection, waits; waits for one up to `patience`.
    ///
    /// # Errors
    /// The host's.
    pub fn is_readable(&self, patience: Duration) -> Result<bool> {
        Ok(self.stream.is_readable(patience)?)
    }

    /// The stream, for what follows the last message.
    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

#[cfg(test)]
#[path = "talk_test.rs"]
mod talk_test;
