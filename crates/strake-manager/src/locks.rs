//! The locks of programs, at the leader: [`LockTable`] behind a lock. [`crate::TokenService`]
//! brings its messages and sends what it answers.
//!
//! **The lock** is a leaf. Messages are sent without it, and may overtake each other
//! (`strake_token::locks`).

use strake_env::sync::Mutex;
use strake_proto::ClientId;
use strake_token::locks::LockRequest;
use strake_token::locks::table::{LockTable, LockWait, Message};
use strake_token::message::{Reply, Term};
use tracing::warn;

/// See the file's head.
pub struct LockService(Mutex<LockTable>);

fn replies(messages: Vec<Message>) -> Vec<(ClientId, Reply)> {
    messages.into_iter().map(|(client, reply)| (client, Reply::Lock(reply))).collect()
}

impl LockService {
    /// The locks of the leader of a term. `clients` joined an earlier one.
    pub(crate) fn new(term: Term, clients: &[ClientId]) -> LockService {
        LockService(Mutex::new(LockTable::new(term, clients)))
    }

    pub(crate) fn join(&self, client: ClientId) {
        self.0.lock().join(client);
    }

    /// A client has gone; what it held is free.
    pub(crate) fn gone(&self, client: ClientId) -> Vec<(ClientId, Reply)> {
        replies(self.0.lock().dead(client))
    }

    pub(crate) fn receive(
        &self,
        client: ClientId,
        term: Term,
        message: LockRequest,
    ) -> Vec<(ClientId, Reply)> {
        match self.0.lock().receive(client, term, message) {
            Ok(messages) => replies(messages),
            // The client hears nothing, and sends again or ends.
            Err(refusal) => {
                warn!(target: "tokens", "a lock of client {} is refused: {refusal:?}", client.0);
                Vec::new()
            }
        }
    }

    /// What is to be sent again.
    pub(crate) fn tick(&self) -> Vec<(ClientId, Reply)> {
        replies(self.0.lock().tick())
    }

    /// All requests that wait, and who is in their way.
    pub fn waits(&self) -> Vec<LockWait> {
        self.0.lock().waits()
    }

    /// The number of files in which somebody has a lock.
    pub fn files(&self) -> usize {
        self.0.lock().files()
    }
}
