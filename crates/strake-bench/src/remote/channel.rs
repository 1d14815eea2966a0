//! JSON messages over a conversation of the file system's network layer (`strake_net`): the
//! same frames, handshake and limits that sessions with servers have.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use strake_net::{Stream, Talk};
use strake_proto::{Error, ErrorKind};

use crate::error::{BenchError, Result};

/// One side of a connection.
pub struct Channel {
    talk: Talk,
}

/// An error of the network layer, told apart by who is at fault.
pub fn broken(error: Error) -> BenchError {
    match error.kind() {
        ErrorKind::Corrupt
        | ErrorKind::Access
        | ErrorKind::NotSupported
        | ErrorKind::NotFound
        | ErrorKind::TooBig => BenchError::Protocol(error.to_string()),
        _ => BenchError::system("the connection broke", io::Error::other(error.to_string())),
    }
}

impl Channel {
    /// A side of a conversation that was opened.
    pub fn new(talk: Talk) -> Channel {
        Channel { talk }
    }

    /// A side of a conversation between a process and its own child, which proves nothing.
    pub fn with_child(stream: Stream) -> Channel {
        Channel { talk: Talk::with_child(stream) }
    }

    /// The stream itself, for what follows the last message.
    pub fn into_stream(self) -> Stream {
        self.talk.into_stream()
    }

    /// Sends a message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let text = serde_json::to_vec(message)
            .map_err(|error| BenchError::Protocol(format!("a message without JSON: {error}")))?;
        self.talk.send(&text).map_err(broken)
    }

    /// Receives the next message; waits for it as long as the conversation's limit allows.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.talk.receive().map_err(broken)?.ok_or_else(|| {
            let end = io::ErrorKind::UnexpectedEof;
            BenchError::system("the peer closed the connection", end)
        })?;
        serde_json::from_slice(&text)
            .map_err(|error| BenchError::Protocol(format!("a message not understood: {error}")))
    }

    /// True if a message (or the end of the connection) waits; waits for that up to `patience`.
    pub fn is_readable(&self, patience: Duration) -> Result<bool> {
        self.talk.is_readable(patience).map_err(broken)
    }
}
