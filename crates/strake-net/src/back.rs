//! Requests of a server to a client, over the connection that the client opened: how the server
//! asks for something back.
//!
//! Request message: bytes that the two ends understand. Reply message: `Result<bytes, Error>` in
//! postcard. Both are short and have no payload, so that what a peer makes us hold is small.
//!
//! At most [`BACK_REQUESTS_MAX`] are in flight on a connection. The server waits for room; a client
//! that gets more ends the connection. Neither end executes requests on the thread that reads the
//! connection: replies would wait behind them, and a client may have to ask the server something
//! before it can answer.

use crate::calls::{CallError, CallLimits};
use crate::frame::{BACK_MESSAGE_BYTES_MAX, FrameKind};
use crate::session::{decode, encode};
use strake_env::workers::WorkerLimits;
use strake_proto::{Error, ErrorKind, Result};

/// Requests of a server that one client works on at a time.
pub const BACK_REQUESTS_MAX: usize = 64;

/// The limits that the server keeps.
pub(crate) const BACK_CALLS: CallLimits = CallLimits {
    calls_max: BACK_REQUESTS_MAX,
    bytes_max: BACK_REQUESTS_MAX * BACK_MESSAGE_BYTES_MAX,
};
/// The limits of the client: a thread for each request that waits for something.
pub(crate) const BACK_WORKERS: WorkerLimits =
    WorkerLimits { threads_max: 16, waiting_max: BACK_REQUESTS_MAX };

/// The client's end, which answers the server's requests.
pub trait BackHandler: Send + Sync {
    /// Answers one request. May wait, and may call the server meanwhile.
    ///
    /// # Errors
    /// They are the answer.
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>>;
}

/// The handler of clients that expect no requests.
pub struct NoBackRequests;

impl BackHandler for NoBackRequests {
    fn answer(&self, _message: &[u8]) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::NotSupported, "this client answers no requests"))
    }
}

/// The reply's message. An answer that is too long for one becomes an error.
pub(crate) fn reply(answer: Result<Vec<u8>>) -> Result<Vec<u8>> {
    let message = encode(&answer)?;
    if message.len() <= BACK_MESSAGE_BYTES_MAX {
        return Ok(message);
    }
    let error = Error::new(ErrorKind::TooBig, "the answer is too long for a message");
    encode(&Err::<Vec<u8>, Error>(error))
}

/// What a reply says.
pub(crate) fn decode_reply(kind: FrameKind, message: &[u8]) -> Result<Vec<u8>> {
    if kind != FrameKind::BackReply {
        return Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind"));
    }
    decode::<Result<Vec<u8>>>(message)?
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Disconnected(error) | CallError::Failed(error) => error,
        }
    }
}

#[cfg(test)]
#[path = "back_test.rs"]
mod back_test;
