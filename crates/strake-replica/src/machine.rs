//! What a replica drives, and how its messages travel: the two traits that a caller implements.

use crate::types::{Position, ReplicaId};

/// What the log's entries make. All replicas apply the same entries in the same order, so it must
/// be deterministic: no clock, no chance, nothing that another replica may not have.
///
/// It keeps nothing by itself. After a start it is given the last snapshot, and then the entries.
pub trait StateMachine: Send {
    /// Applies an entry. Returns the answer for whoever proposed it.
    fn apply(&mut self, position: Position, bytes: &[u8]) -> Vec<u8>;

    /// Its whole state.
    fn snapshot(&mut self) -> Vec<u8>;

    /// Takes a state in place of its own. A replica hands in only what another one, or an earlier
    /// life, returned from [`StateMachine::snapshot`].
    ///
    /// # Errors
    /// If it cannot read the state. Then the replica ends.
    fn install(&mut self, bytes: &[u8]) -> Result<(), String>;
}

/// The way to other replicas.
pub trait Transport: Send + Sync {
    /// Sends a message, or loses it. Must not block: the caller has others to send to. The receiver
    /// hands it to [`crate::Replica::deliver`].
    fn send(&self, to: ReplicaId, message: Vec<u8>);
}
