//! What the log drives at each replica of the metadata.

use super::copy::{OutgoingCopy, read_part};
use super::node_store::NodeStore;
use super::rule::{Rule, Rules};
use super::saver::Saver;
use crate::ahead::Ahead;
use std::collections::BTreeMap;
use std::sync::Arc;
use strake_env::sync::RwLock;
use strake_proto::Error;
use strake_replica::KeepingMachine;
use strake_replica::machine::MadePart;
use strake_replica::message::CopyId;
use strake_replica::types::{Position, ReplicaId};

/// The metadata as a state machine. Only the thread that drives it changes the store.
pub(super) struct MetaMachine {
    pub(super) store: NodeStore,
    pub(super) saver: Arc<Saver>,
    pub(super) ahead: Arc<RwLock<Ahead<NodeStore>>>,
    pub(super) copies: BTreeMap<ReplicaId, (CopyId, OutgoingCopy)>,
    pub(super) rules: Rules,
}

fn reason(error: Error) -> String {
    error.to_string()
}

impl KeepingMachine for MetaMachine {
    fn position(&mut self) -> Option<Position> {
        // A store that cannot be read is as good as none: another replica has it.
        self.store.position().ok().flatten().map(Position)
    }

    fn apply(&mut self, position: Position, bytes: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let changes = self.ahead.write().commit(bytes, position.0).map_err(reason)?;
        if self.rules.obeys(Rule::CopiesBringChanges) {
            self.copies.retain(|_, (_, copy)| copy.note(&changes));
        }
        Ok(Vec::new())
    }

    fn save(&mut self) -> Result<Position, String> {
        self.saver.ask().map(Position).map_err(reason)
    }

    fn make_part(
        &mut self,
        to: ReplicaId,
        copy: CopyId,
        number: u64,
        bytes_max: usize,
    ) -> Result<Option<MadePart>, String> {
        if number == 0 {
            self.copies.insert(to, (copy, OutgoingCopy::new()));
        }
        let known = self.copies.get_mut(&to).filter(|(known, _)| *known == copy);
        let Some((_, copy)) = known else { return Ok(None) };
        let (bytes, is_whole) = copy.part(&self.store, bytes_max).map_err(reason)?;
        let committed = self.ahead.read().committed();
        Ok(Some(MadePart { bytes, whole: is_whole.then_some(Position(committed)) }))
    }

    fn end_copy(&mut self, to: ReplicaId) {
        self.copies.remove(&to);
    }

    fn take_part(
        &mut self,
        number: u64,
        bytes: &[u8],
        whole: Option<Position>,
    ) -> Result<(), String> {
        let changes = read_part(bytes).map_err(reason)?;
        if number == 0 {
            self.store.erase().map_err(reason)?;
        }
        self.store.take(changes).map_err(reason)?;
        if let Some(Position(position)) = whole {
            self.store.finish(position).map_err(reason)?;
            self.ahead.write().restart(position);
        }
        Ok(())
    }
}
