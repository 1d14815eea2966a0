//! What a replica drives, and how its messages travel: the traits that a caller implements.
//!
//! A state machine must be deterministic, since all replicas apply the same entries in the same
//! order: no clock, no chance, nothing that another replica may not have.

use crate::message::CopyId;
use crate::types::{Position, ReplicaId};

/// What the log's entries make.
pub enum Machine {
    /// It lives in memory, and snapshots carry it.
    Carried(Box<dyn StateMachine>),
    /// It keeps its own state on a disk.
    Keeping(Box<dyn KeepingMachine>),
}

/// A state machine in memory. After a start it is given the last snapshot, and then the entries.
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

/// A part of a copy, as a machine makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadePart {
    /// What the other machine is to take.
    pub bytes: Vec<u8>,
    /// If the other one has everything with this part: the last position that was applied here.
    pub whole: Option<Position>,
}

/// A state machine that keeps its own state on a disk. A replica gives it only entries that are
/// committed and that its own journal has too. So the machine may make each of them durable at
/// once, or later. An error ends the replica, and not the group.
pub trait KeepingMachine: Send {
    /// At a start: the last entry that the state has. `None` if the state is not whole, because a
    /// copy broke off. A machine without any entry has [`Position::START`].
    fn position(&mut self) -> Option<Position>;

    /// Applies the entry at a position. `bytes` is `None` for an entry that is not for the machine.
    /// Returns the answer for whoever proposed it.
    ///
    /// # Errors
    /// If the state cannot be read or written.
    fn apply(&mut self, position: Position, bytes: Option<&[u8]>) -> Result<Vec<u8>, String>;

    /// The log has grown: what is applied should become durable. Returns the last position that is
    /// durable by now. The log before it may go. While the log is too long this is asked again, so
    /// the machine need not wait for its disk here.
    ///
    /// # Errors
    /// If the state cannot be written.
    fn save(&mut self) -> Result<Position, String>;

    /// Makes a part of a copy for another replica's machine, of about `bytes_max` bytes. Parts are
    /// ordered one after the other from 0 on, each once. Entries are applied in between; the copy
    /// is whole when the other one has all of their changes too. `None` gives the copy up, and
    /// another one begins.
    ///
    /// # Errors
    /// If the state cannot be read.
    fn make_part(
        &mut self,
        to: ReplicaId,
        copy: CopyId,
        number: u64,
        bytes_max: usize,
    ) -> Result<Option<MadePart>, String>;

    /// No part of the copy to this replica is wanted any more.
    fn end_copy(&mut self, to: ReplicaId);

    /// Takes a part of a copy. Part 0 takes the place of everything that the machine has, also
    /// after a crash. With the part that is `whole` at a position everything is durable.
    ///
    /// # Errors
    /// If the part makes no sense, or the state cannot be written.
    fn take_part(
        &mut self,
        number: u64,
        bytes: &[u8],
        whole: Option<Position>,
    ) -> Result<(), String>;
}

/// The way to other replicas.
pub trait Transport: Send + Sync {
    /// Sends a message, or loses it. Must not block: the caller has others to send to. The receiver
    /// hands it to [`crate::Replica::deliver`].
    fn send(&self, to: ReplicaId, message: Vec<u8>);
}
