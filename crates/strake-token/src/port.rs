//! The ways between clients and the authority: direct calls in one process, or sessions.
//!
//! A message may be lost, repeated and overtaken; both ends send again what needs an answer. So a
//! way that fails need not say so. It must not keep the sender waiting for anything but itself.

use crate::message::{Reply, Request, Term};
use std::time::Duration;

/// A client's way to the authority.
pub trait ToAuthority: Send + Sync {
    /// Sends a message to the leader of a term.
    fn send(&self, term: Term, message: Request);

    /// Sends several messages, as few as possible at a time.
    fn send_all(&self, term: Term, messages: Vec<Request>) {
        messages.into_iter().for_each(|message| self.send(term, message));
    }
}

/// The authority's way to one client.
pub trait ToClient: Send + Sync {
    /// Sends a message of the leader of a term.
    fn send(&self, term: Term, message: Reply);

    /// There is a new leader, whose term is this. It knows nothing of what the client holds.
    fn new_term(&self, term: Term);

    /// The leader has answered a renewal of the client's lease. `sent` is when the client sent it,
    /// by the client's own clock. Only the client's end of a way has a use for this.
    fn renewed(&self, sent: Duration) {
        let _ = sent;
    }

    /// The leader says that the client was declared dead. Only the client's end of a way has a use
    /// for this.
    fn declared_dead(&self) {}
}
