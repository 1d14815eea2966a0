//! What the nodes of a cluster ask each other: one request, one answer, no state between them.
//!
//! Request and answer are bytes whose form the two programs agree on; this file only carries them,
//! in frames of their own kinds, at most [`strake_proto::limits::MESSAGE_BYTES_MAX`] long. Each
//! request has a connection of its own. Commands are few, and a connection that is not kept needs
//! no care when a node is started anew. A request whose connection breaks is *not* sent again: the
//! caller knows whether it may be repeated.

use crate::auth::Service;
use crate::connection::{CallError, Connection};
use crate::credentials::{Introduction, ProvenPeer};
use crate::frame::FrameKind;
use crate::server::{Answer, Handler};
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::Endpoint;
use strake_proto::limits::MESSAGE_BYTES_MAX;
use strake_proto::{Error, ErrorKind, Result};

/// A node as other nodes see it.
pub trait ControlPort: Send + Sync {
    /// Answers one request of `peer`.
    ///
    /// # Errors
    /// When the request does not decode: the connection is closed. Errors of executing a request
    /// are part of the answer.
    fn answer(&self, peer: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>>;
}

/// Asks the node at `endpoint`, which may take `connect` to greet and `limit` to answer.
///
/// # Errors
/// `Unreachable` or `TimedOut` if it does not answer, `Access` if one end refuses the other,
/// `TooBig` for a request that is too long.
pub fn ask_node(
    endpoint: &Endpoint,
    introduction: &Introduction,
    request: &[u8],
    connect: Duration,
    limit: Duration,
) -> Result<Vec<u8>> {
    let connection = Connection::open(endpoint, introduction, Service::Node, connect)?;
    match connection.call(FrameKind::ControlRequest, request, &[], limit) {
        Ok(frame) if frame.kind == FrameKind::ControlReply => Ok(frame.message),
        Ok(_) => Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind")),
        Err(CallError::Failed(error) | CallError::Disconnected(error)) => Err(error),
    }
}

/// Executes requests at a node.
pub(crate) struct ControlHandler {
    pub(crate) port: Arc<dyn ControlPort>,
}

impl Handler for ControlHandler {
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
        let mut message = self.port.answer(peer, message)?;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooBig, "an answer longer than a message may be"));
        }
        message.shrink_to_fit();
        buffer.clear();
        Ok(Answer { message, payload: buffer })
    }
}
